"""One text during generation: its tokens, their text, and why it ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from gptrs.errors import NoTokenError
from gptrs_runtime.generation.context import Context
from gptrs_runtime.generation.guessing.guesser import TextGuesses
from gptrs_runtime.generation.logits_processors import FormJudge, ProcessorChain
from gptrs_runtime.generation.outcome import FinishReason, Generation, Timings
from gptrs_runtime.generation.sampling import Sampler, require_finite
from gptrs_runtime.generation.text_stream import IncrementalDecoder, StopFilter, TokenScores
from gptrs_runtime.generation.watching import RowReader
from gptrs_runtime.images.image_prompts import Picture


class GeneratedText:
    """Chooses tokens from logits and decodes them to pieces of text.

    `context` has the tokens that the model sees, `most_positions` at a time. `ends` are the tokens
    that end the text; those of `shown_ends` are part of it. `logprobs` is the number of likeliest
    tokens to score at each position, None to disable scores. `guesses` configures speculative
    decoding, None disables it. `source` has the tokens that an encoder-decoder reads. `pictures`
    are the images represented by tokens of the context. `steps_at_once` is how many tokens may be
    chosen before one is visible, None for any number. `form` decides whether a text cut by a stop
    string is complete. `marks` are the texts of special tokens that are not shown, but that stop
    strings contain. With `keeps_stop` the text has the stop string that ends it.
    """

    _targets: Sequence[int] = ()
    """The tokens to score, see `to_score`."""

    def __init__(
        self,
        *,
        prompt: Sequence[int],
        context: Context,
        most_positions: int,
        max_tokens: int,
        ends: frozenset[int],
        shown_ends: frozenset[int],
        sampler: Sampler,
        processors: ProcessorChain,
        decoder: IncrementalDecoder,
        stops: Sequence[str],
        logprobs: int | None,
        load_seconds: float,
        guesses: TextGuesses | None = None,
        source: Sequence[int] = (),
        pictures: Sequence[Picture] = (),
        steps_at_once: int | None = None,
        form: FormJudge | None = None,
        marks: Mapping[int, str] = MappingProxyType({}),
        keeps_stop: bool = False,
    ) -> None:
        self.source = tuple(source)
        self.pictures = tuple(pictures)
        self.prompt = tuple(prompt)
        self.context = context
        self.most_positions = most_positions
        self.tokens: list[int] = []
        self.reason: FinishReason = "interrupted"
        self.error: str | None = None
        self.guesses = guesses
        self.family = 0
        """Index of its model among the models (adapters) that share a cache."""
        self.found = 0
        """Number of prompt tokens found in the cache."""
        self.reader: RowReader | None = None
        """Takes the rows of its tokens, if its steps are watched."""
        self._max_tokens = max_tokens
        self.ends = ends
        self._steps_at_once = steps_at_once
        self._form = form
        self._marks = marks
        self._shown_ends = shown_ends
        self._sampler = sampler
        self._processors = processors
        self._decoder = decoder
        self._stop = StopFilter(stops)
        self._keeps_stop = keeps_stop
        self._logprobs = logprobs
        self._scores: list[TokenScores] = []
        self._text: list[str] = []
        self._load_seconds = load_seconds
        self._started: float | None = None
        self._first: float | None = None
        self._last: float | None = None

    @property
    def has_begun(self) -> bool:
        """Whether it was started."""
        return self._started is not None

    @property
    def began(self) -> float | None:
        """When it was started, by `time.perf_counter`; None before."""
        return self._started

    @property
    def ended(self) -> bool:
        """Whether the text is complete."""
        return self.reason != "interrupted"

    @property
    def stop_string(self) -> str | None:
        """The stop string that ended the text, if one did."""
        return self._stop.found

    @property
    def room(self) -> int:
        """How many tokens may follow the next one in the current context."""
        return min(
            self.most_positions - len(self.context.tokens), self._max_tokens - len(self.tokens) - 1
        )

    @property
    def steps_ahead(self) -> int:
        """How many greedy tokens may be chosen at once; see `room`. 1 if logits are needed for
        processors, scores, sampling, or guesses.
        """
        if self._steps_at_once == 1:
            return 1
        looks = self._processors.changes_logits or self._logprobs is not None
        if looks or self.guesses is not None or not self._sampler.takes_largest:
            return 1
        return sys.maxsize if self._steps_at_once is None else self._steps_at_once

    @property
    def can_prepare(self) -> bool:
        """Whether some work for the next token can be done before its logits are known."""
        return self._processors.prepared is not None

    @property
    def prepare_seconds(self) -> float:
        """Mean processor time of `prepare` so far, in seconds."""
        prepared = self._processors.prepared
        return 0.0 if prepared is None else prepared.prepare_seconds

    def prepare(self) -> None:
        """Do that work, in any thread; no other method may run meanwhile."""
        self._processors.prepare()

    def start(self, found: int = 0) -> None:
        """Start the timings unless started; `found` tokens were cached."""
        if self._started is None:
            self._started = time.perf_counter()
            self.found = found

    def append(self, logits: np.ndarray) -> str:
        """Choose the next token from logits f32 [V]; return the text it completes, possibly empty.

        If no token is allowed, the text ends with the reason "error".
        """
        try:
            changed = self._processors(logits)
            _require_token(changed, logits)
        except NoTokenError as error:
            return self._give_up(error)
        token = self._sampler.choose(changed)
        if self._logprobs is not None:
            self._scores.append(TokenScores.of(logits, token, self._logprobs))
        return self.take(token)

    def to_score(self, targets: Sequence[int], count: int) -> None:
        """Score `targets`, the token after each prompt token, instead of generating.

        When the text has ended, `scores` has them, each with the `count` likeliest tokens. Since
        all logits are needed, no cached pages are reused.
        """
        self._targets, self._logprobs = tuple(targets), count

    @property
    def is_scored(self) -> bool:
        """Whether it is scored rather than generated."""
        return bool(self._targets)

    @property
    def most_shared(self) -> int | None:
        """How many tokens at its start may come from cached pages, None for any number."""
        # Cached pages have neither logits nor other values of the model. A scored text shares its
        # first token, whose logits nobody needs.
        if self.is_scored:
            return 1
        return None if self.reader is None else self.reader.first

    def score(self, start: int, logits: np.ndarray) -> None:
        """Take the logits f32 [N, V] after the prompt tokens from `start` on; they may overlap
        earlier ones."""
        known = len(self._scores) - start
        targets = self._targets[start : start + len(logits)]
        for row, target in list(zip(logits, targets, strict=True))[known:]:
            self._scores.append(TokenScores.of(row, target, self._logprobs or 0))
        if len(self._scores) == len(self._targets):
            self.reason = "length"

    def take_largest(self, token: int, logit: float) -> str:
        """Append the token of the largest logit, as `append` would."""
        require_finite(logit)
        return self.take(token)

    def take(self, token: int) -> str:
        """Append a chosen token; return the text it completes, possibly empty."""
        self._processors.append(token)
        self._last = time.perf_counter()
        self._first = self._first or self._last
        self.tokens.append(token)
        self.context.append(token)
        piece = self._piece(token)
        self._text.append(piece)
        return piece

    def replay(self, tokens: Sequence[int], first: float) -> str:
        """Append the tokens found by a search, the first at the time `first`.

        The text ends after them, with an error if the search found no end.
        """
        text = "".join([self.take(token) for token in tokens])
        self._first = first
        return text if self.ended else text + self._give_up(_none_left())

    @property
    def scores(self) -> Sequence[TokenScores]:
        """The scores of each token so far; empty if not requested."""
        return self._scores

    def generation(self) -> Generation:
        """Return the outcome so far, with the reason "interrupted" until the text has ended."""
        return Generation(
            "".join(self._text),
            tuple(self.tokens),
            self.prompt,
            self.reason,
            self._timings(),
            None if self._logprobs is None else tuple(self._scores),
            None if self.guesses is None else self.guesses.counts,
            self.error,
        )

    def _piece(self, token: int) -> str:
        is_end = token in self.ends
        piece = "" if is_end and token not in self._shown_ends else self._decoder.push(token)
        piece = self._stop.push(piece)
        if token in self._marks:
            piece += self._stop.push(self._marks[token], shown=False)
        if self._stop.stopped:
            return self._stopped_after(piece)
        if is_end:
            return piece + self._rest("eos")
        if len(self.tokens) >= self._max_tokens:
            return piece + self._rest("length")
        return piece

    def _rest(self, reason: FinishReason) -> str:
        """Return the text that was held back; it may complete a stop string."""
        rest = self._stop.push(self._decoder.finish())
        self.reason = reason
        return self._stopped_after(rest) if self._stop.stopped else rest + self._stop.finish()

    def _stopped_after(self, piece: str) -> str:
        """End the text at a stop string after `piece`; return its last piece.

        With a form, the text must be complete before the stop string.
        """
        self.reason = "stop"
        if self._form is not None and not self._form.is_whole("".join([*self._text, piece])):
            self.reason = "error"
            self.error = "a stop string came before the text had its form"
        return piece + self._stop.shown_stop if self._keeps_stop else piece

    def _give_up(self, error: NoTokenError) -> str:
        """End the text with an error; return the text held back."""
        # `_rest` may find a stop string in the text held back, but the error remains the reason.
        rest = self._rest("error")
        self.reason, self.error = "error", str(error)
        self._text.append(rest)
        return rest

    def _timings(self) -> Timings:
        started, first, last = self._started, self._first, self._last
        if started is None or first is None or last is None:
            return Timings(self._load_seconds, None, None, None)
        decoded = len(self.tokens) - 1
        return Timings(
            load_s=self._load_seconds,
            first_token_s=first - started,
            prompt_tokens_per_s=len(self.prompt) / (first - started),
            decode_tokens_per_s=decoded / (last - first) if decoded and last > first else None,
        )


def _require_token(changed: np.ndarray, logits: np.ndarray) -> None:
    """Raise NoTokenError if processors suppressed every token."""
    # Logits that are all -inf before processors are the model's own: the sampler reports them.
    if changed is not logits and changed.max() == -np.inf and logits.max() > -np.inf:
        raise _none_left()


def _none_left() -> NoTokenError:
    return NoTokenError(
        "no next token is allowed: all of them are suppressed",
        hint="check the logits processors, the biases, and the settings of generation_config.json",
    )
