"""Generate text: prefill the prompt in chunks, then choose one token after another."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gptrs.errors import ContextLengthError, UsageError
from gptrs.runtime.load import LoadedModel, require_known_tokens
from gptrs.runtime.sampling import Sampler, Sampling, configured_sampling
from gptrs.runtime.text_stream import IncrementalDecoder, StopFilter

DEFAULT_MAX_TOKENS = 128
PREFILL_CHUNK = 256

FinishReason = Literal["eos", "stop", "length", "interrupted"]


@dataclass(frozen=True)
class Timings:
    """Seconds and tokens per second of one generation; None for a phase that did not happen."""

    load_s: float
    first_token_s: float | None
    prompt_tokens_per_s: float | None
    decode_tokens_per_s: float | None


@dataclass(frozen=True)
class Generation:
    """The outcome: `text` ends before a stop string, `token_ids` include the token that ended it.

    `finish_reason` is "eos", "stop" or "length"; "interrupted" while tokens are still to come.
    """

    text: str
    token_ids: tuple[int, ...]
    prompt_token_ids: tuple[int, ...]
    finish_reason: FinishReason
    timings: Timings


@dataclass(frozen=True)
class GenerationOptions:
    """Everything that shapes a generation besides the model and the prompt.

    `max_tokens` None takes `max_new_tokens` of the model, else 128, and no more than the context
    holds; a number that is given must fit. `sampling` None takes what generation_config.json asks
    for. `use_cache=False` recomputes the whole sequence for each token. `prefill_chunk` is how many
    prompt tokens one step takes.
    """

    max_tokens: int | None = None
    sampling: Sampling | None = None
    stop: Sequence[str] = ()
    ignore_eos: bool = False
    use_cache: bool = True
    prefill_chunk: int = PREFILL_CHUNK

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise UsageError(f"max-tokens must be at least 1, got {self.max_tokens}")
        if self.prefill_chunk < 1:
            raise UsageError(f"the prefill chunk must be at least 1, got {self.prefill_chunk}")
        if any(not stop for stop in self.stop):
            raise UsageError("a stop string must not be empty")


class TextStream:
    """An iterator over pieces of generated text; `generation` is the outcome so far.

    All checks happen when it is made, before any work. Pieces are whole characters. A model
    without a tokenizer yields empty pieces, one a token.
    """

    def __init__(
        self, model: LoadedModel, prompt: str | Sequence[int], options: GenerationOptions
    ) -> None:
        self._model = model
        self._options = options
        self._lm = model.causal_lm()
        self._prompt = _prompt_tokens(model, prompt)
        self._max_tokens = self._token_budget()
        self._eos = frozenset[int]() if options.ignore_eos else model.eos_tokens
        self._sampler = Sampler(options.sampling or configured_sampling(model.generation_config))
        if options.stop and not model.has_tokenizer:
            raise UsageError("stop strings need a model with a tokenizer")
        self._stop = StopFilter(options.stop)
        self._tokens: list[int] = []
        self._text: list[str] = []
        self._reason: FinishReason = "interrupted"
        self._started: float | None = None
        self._first: float | None = None
        self._last: float | None = None
        self._pieces = self._run()

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        return next(self._pieces)

    @property
    def generation(self) -> Generation:
        """The outcome; while the stream is not exhausted, what there is so far."""
        return Generation(
            "".join(self._text),
            tuple(self._tokens),
            tuple(self._prompt),
            self._reason,
            self._timings(),
        )

    def _run(self) -> Iterator[str]:
        decoder = IncrementalDecoder(self._decode)
        self._started = time.perf_counter()
        for token in self._choose_tokens():
            self._tokens.append(token)
            if token in self._eos:
                self._reason = "eos"
                break
            yield self._emit(self._stop.push(decoder.push(token)))
            if self._stop.stopped:
                self._reason = "stop"
                return
        else:
            self._reason = "length"
        rest = self._stop.push(decoder.finish())
        if self._stop.stopped:
            self._reason = "stop"
        yield self._emit(rest + self._stop.finish())

    def _choose_tokens(self) -> Iterator[int]:
        logits = self._prefill()
        for count in range(self._max_tokens):
            token = self._sampler.choose(logits)
            self._last = time.perf_counter()
            self._first = self._first or self._last
            yield token
            if count + 1 < self._max_tokens:
                logits = self._next_logits(token)

    def _prefill(self) -> np.ndarray:
        if not self._options.use_cache:
            return self._uncached_logits()
        self._cache = self._lm.new_cache(1)
        tokens = np.array([self._prompt], np.int64)
        logits = np.empty((1, 0), np.float32)
        for start in range(0, len(self._prompt), self._options.prefill_chunk):
            chunk = tokens[:, start : start + self._options.prefill_chunk]
            logits = self._lm.step(chunk, self._cache)
        return logits[0]

    def _next_logits(self, token: int) -> np.ndarray:
        if not self._options.use_cache:
            return self._uncached_logits()
        return self._lm.step(np.array([[token]], np.int64), self._cache)[0]

    def _uncached_logits(self) -> np.ndarray:
        return self._lm.forward(np.array([[*self._prompt, *self._tokens]], np.int64))[0, -1]

    def _emit(self, piece: str) -> str:
        self._text.append(piece)
        return piece

    def _decode(self, tokens: Sequence[int]) -> str:
        return self._model.tokenizer.decode(tokens) if self._model.has_tokenizer else ""

    def _token_budget(self) -> int:
        room = self._lm.context_length - len(self._prompt)
        asked = self._options.max_tokens
        if room < 1 or (asked is not None and asked > room):
            more = f" and {asked} new ones" if asked is not None else ""
            raise ContextLengthError(
                f"{len(self._prompt)} prompt tokens{more} do not fit into the context of"
                f" {self._lm.context_length} tokens",
                hint="shorten the prompt or lower --max-tokens",
            )
        if asked is not None:
            return asked
        default = self._model.generation_config.get("max_new_tokens")
        return min(
            room, default if isinstance(default, int) and default > 0 else DEFAULT_MAX_TOKENS
        )

    def _timings(self) -> Timings:
        started, first, last = self._started, self._first, self._last
        if started is None or first is None or last is None:
            return Timings(self._model.load_seconds, None, None, None)
        decoded = len(self._tokens) - 1
        return Timings(
            load_s=self._model.load_seconds,
            first_token_s=first - started,
            prompt_tokens_per_s=len(self._prompt) / (first - started),
            decode_tokens_per_s=decoded / (last - first) if decoded and last > first else None,
        )


def stream(
    model: LoadedModel, prompt: str | Sequence[int], options: GenerationOptions | None = None
) -> TextStream:
    """Generate piece by piece; see `TextStream`.

    `prompt` is text or token ids. UsageError for an empty prompt or unknown tokens,
    ContextLengthError when it does not fit, ModelError for a model that cannot generate.
    """
    return TextStream(model, prompt, options or GenerationOptions())


def generate(
    model: LoadedModel,
    prompt: str | Sequence[int],
    *,
    max_tokens: int | None = None,
    sampling: Sampling | None = None,
    stop: Sequence[str] = (),
    ignore_eos: bool = False,
    use_cache: bool = True,
) -> Generation:
    """Generate to the end and return the outcome; parameters as in `GenerationOptions`."""
    options = GenerationOptions(max_tokens, sampling, stop, ignore_eos, use_cache)
    text = stream(model, prompt, options)
    for _ in text:
        pass
    return text.generation


def _prompt_tokens(model: LoadedModel, prompt: str | Sequence[int]) -> list[int]:
    tokens = model.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
    if not tokens and model.bos_token is not None:
        tokens = [model.bos_token]
    if not tokens:
        raise UsageError("the prompt is empty and the model has no token to begin with")
    require_known_tokens(tokens, model.causal_lm().vocab_size)
    return tokens
