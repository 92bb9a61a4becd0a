"""Logits processors: functions that modify the logits of the next token, as in transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Protocol, cast, runtime_checkable

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from gptrs.errors import UsageError
from gptrs_runtime.generation.sampling_options import Sampling

LogitsProcessor = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""`(tokens, logits) -> logits`: one text's tokens so far including the prompt, si64 [T], and the
logits of the next token, f32 [V]. It may change `logits` in place; `tokens` are read-only."""


_F32 = np.finfo(np.float32)
_BITS = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_BOUNDS_OF_BYTE = np.where(_BITS, np.inf, -np.inf).astype(np.float32)


def bounds_of(packed: np.ndarray) -> np.ndarray:
    """Return upper bounds f32 [8 N] of logits: inf for each set bit of `packed` ui8 [N], else -inf.

    The minimum with them bans tokens in the same time whichever they are. An assignment under a
    mask, as NumPy does it, takes up to 15 times as long: 0.7 ms for half of 150,000 tokens.
    """
    return _BOUNDS_OF_BYTE.take(packed, axis=0).reshape(-1)


class AllowedTokens:
    """Bans all but some tokens of a vocabulary."""

    def __init__(self, tokens: Sequence[int], vocab_size: int) -> None:
        self._bounds = np.full(vocab_size, -np.inf, np.float32)
        self._bounds[np.array(tokens, np.int64)] = np.inf

    def __call__(self, tokens: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Set the logits of all other tokens to -inf."""
        return np.minimum(logits, self._bounds, out=logits)


class ProcessorMaker(Protocol):
    """Makes a logits processor for each text, for processors with state."""

    def new_processor(self, prompt_length: int) -> LogitsProcessor:
        """Return the processor of a text with a prompt of that many tokens.

        If it is also a `FormJudge`, it decides whether a text cut by a stop string is complete.
        """
        ...


@runtime_checkable
class FormJudge(Protocol):
    """Decides whether a text has a form."""

    def is_whole(self, text: str) -> bool:
        """Return whether a text has the form."""
        ...


@runtime_checkable
class PreparedProcessor(Protocol):
    """A logits processor that can work in another thread before the logits are known."""

    prepare_seconds: float
    """Mean processor time per token so far, in seconds."""

    def prepare(self, tokens: np.ndarray) -> None:
        """Do the work of the next call, which will have the same `tokens`."""
        ...


class TokenRules(Struct, frozen=True):
    """Rules of generation_config.json for single tokens: which must not, or must, come next.

    They always suppress `suppress`, `begin_suppress` as the first new token, and end-of-text tokens
    before `min_new_tokens` others (without that limit, before `min_length` including the prompt).
    They also suppress tokens that would repeat a sequence of `no_repeat_ngram_size` tokens, prompt
    included, or one of `encoder_no_repeat_ngram_size` tokens of the source; 0 disables a limit. The
    last token of each of `bad_words` never follows the others, that of each of `biases` does so
    with a bias. `forced_first` follows a single token, one of `forced_last` is the last one that
    may follow. `encoder_repetition_penalty` above 1 makes the source's tokens likelier. After
    `length_decay[0]` new tokens, ends become likelier by the power of `length_decay[1]`.
    """

    suppress: tuple[int, ...] = ()
    begin_suppress: tuple[int, ...] = ()
    min_new_tokens: int = 0
    no_repeat_ngram_size: int = 0
    min_length: int = 0
    bad_words: tuple[tuple[int, ...], ...] = ()
    biases: tuple[tuple[tuple[int, ...], float], ...] = ()
    encoder_repetition_penalty: float = 1
    encoder_no_repeat_ngram_size: int = 0
    forced_first: tuple[int, ...] = ()
    forced_last: tuple[int, ...] = ()
    length_decay: tuple[int, float] = (0, 1)


def built_in_processors(
    sampling: Sampling,
    rules: TokenRules,
    ends: Iterable[int],
    prompt_length: int,
    *,
    count: int | None = None,
    source: Sequence[int] = (),
) -> list[LogitsProcessor]:
    """Return new processors for one text in transformers' order, omitting those without effect.

    The text has at most `count` new tokens; `source` is what it was made from: the prompt, or what
    the encoder reads.
    """
    ends = tuple(ends)
    processors: list[LogitsProcessor] = []
    if rules.biases:
        processors.append(SequenceBiases(dict(rules.biases)))
    if rules.encoder_repetition_penalty != 1 and source:
        processors.append(SourcePenalty(rules.encoder_repetition_penalty, source))
    if sampling.repetition_penalty != 1:
        processors.append(RepetitionPenalty(sampling.repetition_penalty))
    if sampling.presence_penalty or sampling.frequency_penalty:
        presence, frequency = sampling.presence_penalty, sampling.frequency_penalty
        processors.append(OccurrencePenalty(presence, frequency, prompt_length))
    if rules.no_repeat_ngram_size:
        processors.append(NoRepeatNgrams(rules.no_repeat_ngram_size))
    if rules.encoder_no_repeat_ngram_size and source:
        processors.append(NoRepeatNgrams(rules.encoder_no_repeat_ngram_size, source))
    if rules.bad_words:
        processors.append(SuppressSequences(rules.bad_words, ends))
    new = rules.min_new_tokens
    minimum = prompt_length + new if new else rules.min_length
    if minimum > prompt_length:
        processors.append(SuppressBefore(minimum, ends))
    return processors + _last_processors(rules, ends, prompt_length, count)


def _last_processors(
    rules: TokenRules, ends: tuple[int, ...], prompt_length: int, count: int | None
) -> list[LogitsProcessor]:
    """Return the processors that come after the shortest length."""
    processors: list[LogitsProcessor] = []
    forces_first = bool(rules.forced_first) and prompt_length == 1
    if forces_first:
        processors.append(ForcedTokens(1, rules.forced_first))
    if rules.forced_last and count is not None:
        processors.append(ForcedTokens(prompt_length + count - 1, rules.forced_last))
    start, factor = rules.length_decay
    if factor != 1 and ends:
        processors.append(LengthDecay(prompt_length + start, factor, ends))
    if rules.suppress:
        processors.append(SuppressTokens(rules.suppress))
    if rules.begin_suppress:
        first = prompt_length + forces_first
        processors.append(SuppressAt(first, rules.begin_suppress))
    return processors


class ProcessorChain:
    """The processors of one text, applied in order to the logits after its tokens so far."""

    def __init__(self, processors: Sequence[LogitsProcessor], prompt: Sequence[int]) -> None:
        self._processors = tuple(processors)
        self._tokens: npt.NDArray[np.int64] = np.array(prompt, np.int64)
        self._length = len(prompt)

    @property
    def changes_logits(self) -> bool:
        """Whether there is a processor."""
        return bool(self._processors)

    @cached_property
    def prepared(self) -> PreparedProcessor | None:
        """The processor that can work ahead, if there is one."""
        found = (each for each in self._processors if isinstance(each, PreparedProcessor))
        return next(found, None)

    def prepare(self) -> None:
        """Do the work that does not need the logits after the current tokens."""
        if self.prepared is not None:
            self.prepared.prepare(self._seen())

    def _seen(self) -> np.ndarray:
        tokens = self._tokens[: self._length]
        # A view of the buffer that later tokens are appended to: a processor must not change the
        # past.
        tokens.flags.writeable = False
        return tokens

    def append(self, token: int) -> None:
        """Append a chosen token in amortized constant time."""
        if not self._processors:
            return
        if self._length == self._tokens.size:
            self._tokens = np.concatenate([self._tokens, np.empty_like(self._tokens)])
        self._tokens[self._length] = token
        self._length += 1

    def __call__(self, logits: np.ndarray) -> np.ndarray:
        """Return the processed logits f32 [V] without changing the input.

        UsageError if a processor returns anything but an array f32 [V].
        """
        if not self._processors:
            return logits
        tokens = self._seen()
        # Processors change logits in place, while scores are of the model's own logits.
        changed = logits.copy()
        for processor in self._processors:
            changed = _checked(processor, processor(tokens, changed), logits)
        return changed


def _checked(processor: LogitsProcessor, found: object, logits: np.ndarray) -> np.ndarray:
    """Return `found`; UsageError unless it is an array of the type and shape of `logits`."""
    got = type(found).__name__
    if isinstance(found, np.ndarray):
        array = cast("np.ndarray", found)
        if array.dtype == logits.dtype and array.shape == logits.shape:
            return array
        got = f"{array.dtype}{list(array.shape)}"
    name = getattr(processor, "__name__", type(processor).__name__)
    raise UsageError(
        f"logits processor `{name}` must return an array {logits.dtype}{list(logits.shape)},"
        f" got {got}",
        hint="return the logits that it was given, changed",
    )


class TokenCounts:
    """Counts of tokens, in arrays usable as indices; adding a token takes constant time."""

    def __init__(self) -> None:
        self._index: dict[int, int] = {}
        self._tokens = np.empty(64, np.int64)
        self._counts = np.zeros(64, np.float32)
        self._length = 0

    def update(self, tokens: np.ndarray) -> None:
        """Count the tokens of a text, si64 [T], that were not counted before."""
        for token in tokens[self._length :].tolist():
            self._add(token)
        self._length = tokens.size

    def _add(self, token: int) -> None:
        index = self._index.setdefault(token, len(self._index))
        if index == self._tokens.size:
            self._tokens = np.concatenate([self._tokens, np.empty_like(self._tokens)])
            self._counts = np.concatenate([self._counts, np.zeros_like(self._counts)])
        self._tokens[index] = token
        self._counts[index] += 1

    @property
    def tokens(self) -> np.ndarray:
        """Each token that occurs, once, si64."""
        return self._tokens[: len(self._index)]

    @property
    def counts(self) -> np.ndarray:
        """How often each of `tokens` occurs, f32."""
        return self._counts[: len(self._index)]


class RepetitionPenalty:
    """Divides positive logits of tokens that occurred by the penalty and multiplies negative
    ones."""

    def __init__(self, penalty: float) -> None:
        # As f32, the penalty must neither become 0, a divisor, nor infinite.
        self._penalty = np.float32(np.clip(penalty, _F32.tiny, _F32.max))
        self._seen = TokenCounts()

    def __call__(self, tokens: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Change the logits of the prompt's and of generated tokens."""
        self._seen.update(tokens)
        seen = logits[self._seen.tokens]
        with np.errstate(over="ignore"):
            # Dividing a negative logit would make the token likelier (CTRL divides all;
            # transformers distinguishes signs).
            penalized = np.where(seen < 0, seen * self._penalty, seen / self._penalty)
        logits[self._seen.tokens] = _in_range(penalized, seen)
        return logits


class SourcePenalty:
    """Makes the tokens of `source` likelier by a penalty above 1, for less that is made up."""

    def __init__(self, penalty: float, source: Sequence[int]) -> None:
        self._penalty = RepetitionPenalty(1 / max(penalty, float(_F32.tiny)))
        self._source: npt.NDArray[np.int64] = np.array(source, np.int64)

    def __call__(self, tokens: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Change the logits of the source's tokens, which may have a vocabulary of their own."""
        return self._penalty(self._source[self._source < logits.size], logits)


class OccurrencePenalty:
    """Subtracts `presence` once, and `frequency` per occurrence, from logits of generated tokens
    (OpenAI)."""

    def __init__(self, presence: float, frequency: float, prompt_length: int) -> None:
        self._presence = np.float32(np.clip(presence, _F32.min, _F32.max))
        self._frequency = np.float32(np.clip(frequency, _F32.min, _F32.max))
        self._prompt_length = prompt_length
        self._generated = TokenCounts()

    def __call__(self, tokens: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Change the logits of generated tokens; those that occur only in the prompt are kept."""
        self._generated.update(tokens[self._prompt_length :])
        before = logits[self._generated.tokens]
        with np.errstate(over="ignore", invalid="ignore"):
            penalty = self._generated.counts * self._frequency + self._presence
            logits[self._generated.tokens] = _in_range(before - penalty, before)
        return logits


class NoRepeatNgrams:
    """Suppresses tokens that would repeat `size` tokens in a row, of the text or of `source`."""

    def __init__(self, size: int, source: Sequence[int] | None = None) -> None:
        self._size = size
        self._length = 0
        self._last: tuple[int, ...] = ()
        self._followers: dict[tuple[int, ...], list[int]] = {}
        for token in source or ():
            self._add(token)
        self._only_source = source is not None

    def __call__(self, tokens: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Suppress the tokens that followed earlier occurrences of the last `size - 1` tokens."""
        if self._only_source:
            self._last = tuple(tokens[max(0, tokens.size - self._size + 1) :].tolist())
        else:
            for token in tokens[self._length :].tolist():
                self._add(token)
            self._length = tokens.size
        return suppressed(logits, self._followers.get(self._last, []))

    def _add(self, token: int) -> None:
        if len(self._last) == self._size - 1:
            self._followers.setdefault(self._last, []).append(token)
        self._last = (*self._last, token)[-(self._size - 1) :] if self._size > 1 else ()


def _in_range(changed: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Return changed logits, overflow clamped to the largest f32; non-finite inputs are kept."""
    held = np.clip(changed, _F32.min, _F32.max)
    return np.where(np.isfinite(before), held, before)


class SuppressTokens:
    """Suppresses `suppressed` always."""

    def __init__(self, suppressed: Iterable[int]) -> None:
        self._suppressed = list(suppressed)

    def __call__(self, tokens: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Set the logits of the suppressed tokens to -inf."""
        return suppressed(logits, self._suppressed)


class SequenceBiases:
    """Adds a bias to the last token of each sequence after the others; -inf suppresses it."""

    def __init__(self, biases: Mapping[tuple[int, ...], float]) -> None:
        found: dict[tuple[int, ...], dict[int, float]] = {}
        for (*before, last), bias in biases.items():
            found.setdefault(tuple(before), {})[last] = bias
        self._biases = {
            before: (np.array([*after], np.int64), np.array([*after.values()]))
            for before, after in found.items()
        }
        self._lengths = sorted({len(before) for before in found})

    def __call__(self, tokens: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Change the logits of tokens that would end a sequence."""
        total = np.zeros(logits.shape)
        for length in self._lengths:
            before = tuple(tokens[max(0, tokens.size - length) :].tolist()) if length else ()
            if before in self._biases:
                last, biases = self._biases[before]
                known = last < logits.size
                total[last[known]] += biases[known]
        held = np.where(np.isneginf(total), total, np.clip(total, _F32.min, _F32.max))
        with np.errstate(over="ignore", invalid="ignore"):
            changed = logits + held.astype(np.float32)
        logits[:] = np.where(np.isneginf(total), -np.inf, _in_range(changed, logits))
        return logits


class SuppressSequences(SequenceBiases):
    """Suppresses the last token of each sequence after the others, but never end tokens alone."""

    def __init__(self, sequences: Iterable[tuple[int, ...]], ends: Iterable[int]) -> None:
        # As in transformers: a list that bans the end of the text alone would never let it end.
        alone = {(end,) for end in ends}
        kept = [sequence for sequence in sequences if sequence not in alone]
        super().__init__(dict.fromkeys(kept, -np.inf))


class ForcedTokens:
    """Allows only some tokens after the first `length` ones."""

    def __init__(self, length: int, forced: Iterable[int]) -> None:
        self._length = length
        self._forced = list(forced)

    def __call__(self, tokens: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Set the logits of the forced tokens to 0 and all others to -inf after `length` tokens."""
        if tokens.size == self._length:
            logits[:] = -np.inf
            logits[self._forced] = 0
        return logits


class LengthDecay:
    """Makes `ends` likelier with each token after the first `length` ones."""

    def __init__(self, length: int, factor: float, ends: Iterable[int]) -> None:
        self._length = length
        self._factor = np.float64(factor)
        self._ends = list(ends)

    def __call__(self, tokens: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Add to the logits of ends their size, times a power of the factor less 1."""
        beyond = tokens.size - self._length
        if beyond > 0:
            ends = [end for end in self._ends if end < logits.size]
            before = logits[ends]
            with np.errstate(over="ignore", invalid="ignore"):
                grown = before + np.abs(before) * np.float32(self._factor**beyond - 1)
            logits[ends] = _in_range(grown, before)
        return logits


class SuppressBefore:
    """Suppresses `suppressed` while a text has fewer than `length` tokens, the prompt included."""

    def __init__(self, length: int, suppressed: Iterable[int]) -> None:
        self._length = length
        self._suppressed = list(suppressed)

    def __call__(self, tokens: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Set the logits of the suppressed tokens to -inf."""
        return suppressed(logits, self._suppressed if tokens.size < self._length else [])


class SuppressAt:
    """Suppresses `suppressed` after the first `length` tokens only, the prompt included."""

    def __init__(self, length: int, suppressed: Iterable[int]) -> None:
        self._length = length
        self._suppressed = list(suppressed)

    def __call__(self, tokens: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """Set the logits of the suppressed tokens to -inf."""
        return suppressed(logits, self._suppressed if tokens.size == self._length else [])


def suppressed(logits: np.ndarray, tokens: Iterable[int]) -> np.ndarray:
    """Return the logits of a token, those of `tokens` changed to -inf in place."""
    # Configurations may name tokens beyond the vocabulary, which transformers accepts.
    logits[[token for token in tokens if token < logits.size]] = -np.inf
    return logits
