"""Beam search: several hypotheses grow in parallel, and the likeliest complete one wins."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct

from gptrs.checkpoint.config_fields import Fields
from gptrs.errors import CacheBudgetError, UsageError
from gptrs_runtime.generation.logits_processors import ProcessorChain
from gptrs_runtime.generation.options import MOST_PENALTY, EarlyStopping, GenerationOptions
from gptrs_runtime.generation.pages.page_pool import TextPages
from gptrs_runtime.generation.sampling_options import Sampling
from gptrs_runtime.generation.text_cache import Row, TextCache

MOST_BEAMS: Final = 256
BEAM_SETTINGS: Final = ("num_beams",)
"""Settings of generation_config.json that only beam search reads."""
_FILE: Final = "in generation_config.json"
_WAIT_S: Final = 0.01


class Beams(Struct, frozen=True):
    """The number of beams, and when the search ends.

    The score of a text is the sum of its tokens' log-probabilities, divided by `tokens **
    length_penalty`. With `early_stopping` the search ends once `count` texts have ended; without
    it, once no growing text can be better at its current length; "never" tests that for the
    greatest length. With `renormalizes` the probabilities that the logits processors leave of a
    next token sum to 1 again.
    """

    count: int
    length_penalty: float = 1.0
    early_stopping: EarlyStopping = False
    renormalizes: bool = False


class Found(Struct, frozen=True):
    """A complete text found by the search: its new tokens and its score."""

    tokens: tuple[int, ...]
    score: float


class _Beam(Struct, frozen=True, eq=False):
    """A growing text: its pages, its new tokens, and the sum of their log-probabilities."""

    pages: TextPages
    tokens: tuple[int, ...]
    score: np.float32


class _Candidate(NamedTuple):
    """A token that may follow a beam, and the score of both."""

    score: np.float32
    beam: _Beam
    token: int

    @property
    def tokens(self) -> tuple[int, ...]:
        """The new tokens with this one."""
        return (*self.beam.tokens, self.token)


class BeamTask(Struct, frozen=True):
    """The start of a beam search, and its limits.

    `begin` has the prompt's tokens, `source` those of the source text. `processors` returns the
    logits processors of a text, given its tokens. A text ends with a token of `ends` or after
    `max_tokens`.
    """

    begin: Sequence[int]
    source: Sequence[int]
    positions: int
    max_tokens: int
    ends: frozenset[int]
    processors: Callable[[Sequence[int]], ProcessorChain]
    chunk: int


def asked_beams(
    settings: Mapping[str, object], options: GenerationOptions, sampling: Sampling
) -> Beams | None:
    """Return the beams of the options, else of generation_config.json, or None.

    The settings of a model that samples are ignored. UsageError for beams with sampling or another
    incompatible option; ModelError for a malformed setting.
    """
    fields = Fields(settings, _FILE)
    count = options.beams
    if count is None:
        count = 1 if sampling.temperature > 0 else fields.integer("num_beams", 1)
    if count == 1:
        if options.length_penalty is not None or options.early_stopping is not None:
            raise UsageError("a length penalty and early stopping need beams", hint="give beams")
        return None
    if count > MOST_BEAMS:
        raise UsageError(f"there are {MOST_BEAMS} beams at most, got {count}")
    _require_plain(options, sampling)
    penalty, stopping = options.length_penalty, options.early_stopping
    if stopping is None:
        stopping = _early_stopping(fields)
    if penalty is None:
        penalty = fields.number("length_penalty", 1.0, minimum=-MOST_PENALTY)
        if penalty > MOST_PENALTY:
            raise fields.error("length_penalty", f"must be at most {MOST_PENALTY}")
    return Beams(count, penalty, stopping, fields.boolean("renormalize_logits", False))


def _early_stopping(fields: Fields) -> EarlyStopping:
    value = fields.get("early_stopping", False)
    if value is None or value is False:
        return False
    if value is True:
        return True
    if value != "never":
        raise fields.error("early_stopping", "must be true, false or `never`")
    return "never"


def _require_plain(options: GenerationOptions, sampling: Sampling) -> None:
    """Raise UsageError for options incompatible with beam search."""
    refused: Mapping[str, object] = {
        "sampling": sampling.temperature > 0,
        "stop": options.stop,
        "logprobs": options.logprobs is not None,
        "context_shift": options.context_shift,
        "prompt_cache": options.prompt_cache is not None,
        "form": options.form is not None,
        "prompt_lookup": options.prompt_lookup,
        "draft": options.draft is not None,
        "mtp": options.mtp,
    }
    for name, is_asked in refused.items():
        if is_asked:
            instead = "choose greedily" if name == "sampling" else "leave it out"
            raise UsageError(
                f"`{name}` does not go with beams", hint=f"{instead}, or ask for 1 beam"
            )


class BeamSearch:
    """Beam search as in transformers.

    Texts share the pages of their common prefix. Other threads wait while it runs.
    """

    def __init__(self, beams: Beams, cache: TextCache, task: BeamTask) -> None:
        self._beams = beams
        self._cache = cache
        self._task = task
        self._held: list[TextPages] = []
        self.prompt_read = 0.0
        """`time.perf_counter` when the prompt had been read."""

    def run(self) -> list[Found]:
        """Return the texts found, best first; CacheBudgetError without room."""
        task = self._task
        step = min(task.chunk, len(task.begin)) if self._cache.chunked else len(task.begin)
        while True:
            # Admit and read in one scope: in between, another thread could invalidate the pages.
            with self._cache.exclusive():
                root = self._cache.admit(task.begin, task.positions, step, task.source)
                if root is not None:
                    return self._searched(root)
            time.sleep(_WAIT_S)  # other texts occupy the pages

    def _searched(self, root: TextPages) -> list[Found]:
        self._held = [root]
        try:
            return self._search(_Beam(root, (), np.float32(0)))
        finally:
            for pages in self._held:
                self._cache.release(pages)

    def _search(self, root: _Beam) -> list[Found]:
        task, count = self._task, self._beams.count
        growing, found = [root], list[Found]()
        logits = self._read_prompt(root)
        self.prompt_read = time.perf_counter()
        for length in range(1, task.max_tokens + 1):
            candidates = self._candidates(growing, logits)
            ends = [each.token in task.ends or length == task.max_tokens for each in candidates]
            going = [each for each, end in zip(candidates, ends, strict=True) if not end][:count]
            best = zip(candidates[:count], ends[:count], strict=True)
            found += [self._found(each, length) for each, end in best if end]
            found = sorted(found, key=lambda each: -each.score)[:count]
            if not going or not self._may_improve(found, going[0].score, length):
                break
            growing = self._branched(growing, going)
            logits = self._cache.run([self._row(beam) for beam in growing])
        return found or [Found(beam.tokens, float(beam.score)) for beam in growing]

    def _read_prompt(self, root: _Beam) -> np.ndarray:
        """Return the logits after the prompt, f32 [1, V]."""
        begin, chunk = self._task.begin, self._task.chunk
        while self._cache.chunked and len(begin) - root.pages.length > chunk:
            start = root.pages.length
            self._cache.run([Row(root.pages, begin[start : start + chunk])])
        return self._cache.run([self._row(root)])

    def _row(self, beam: _Beam) -> Row:
        """Return the tokens of a text that are not in the cache yet."""
        return Row(beam.pages, [*self._task.begin, *beam.tokens][beam.pages.length :])

    def _candidates(self, growing: Sequence[_Beam], logits: np.ndarray) -> list[_Candidate]:
        """Return the likeliest next tokens of all beams, the best first."""
        rows = [self._scores(beam, row) for beam, row in zip(growing, logits, strict=True)]
        flat, vocabulary = np.concatenate(rows), rows[0].size
        # Enough that `count` candidates continue, even if the others end their text.
        most = min(flat.size, self._beams.count * max(2, 1 + len(self._task.ends)))
        # A partition takes linear time; only the few survivors are sorted, ties by index.
        likeliest = np.argpartition(-flat, most - 1)[:most]
        ordered: list[int] = likeliest[np.lexsort((likeliest, -flat[likeliest]))].tolist()
        return [
            _Candidate(np.float32(flat[index]), growing[index // vocabulary], index % vocabulary)
            for index in ordered
            if flat[index] > -np.inf
        ]

    def _scores(self, beam: _Beam, logits: np.ndarray) -> np.ndarray:
        """Return the score of a text with each next token, f32 [V]."""
        tokens = [*self._task.begin, *beam.tokens]
        scores = self._task.processors(tokens)(_log_probabilities(logits))
        if self._beams.renormalizes:
            scores = _log_probabilities(scores)
        return scores + beam.score

    def _found(self, ended: _Candidate, length: int) -> Found:
        return Found(ended.tokens, self._rated(ended.score, length))

    def _rated(self, score: np.float32, length: int) -> float:
        with np.errstate(over="ignore", divide="ignore"):
            return float(score / np.float32(np.float64(length) ** self._beams.length_penalty))

    def _may_improve(self, found: Sequence[Found], best: np.float32, length: int) -> bool:
        """Return whether a growing text with the score `best` may still win."""
        beams = self._beams
        if len(found) < beams.count:
            return True
        if beams.early_stopping is True:
            return False
        # With a positive penalty the score of a growing text improves with length, so its bound is
        # at the end; with another one, at the present length.
        is_never = beams.early_stopping == "never" and beams.length_penalty > 0
        return self._rated(best, self._task.max_tokens if is_never else length) > found[-1].score

    def _branched(self, growing: Sequence[_Beam], going: Sequence[_Candidate]) -> list[_Beam]:
        """Return the texts with their next tokens: one continues in its parent's pages, others
        share them."""
        # Pages of beams without a successor are released first, so that the forks below find room.
        used = {id(each.beam) for each in going}
        for beam in growing:
            if id(beam) not in used:
                self._give_back(beam.pages)
        made: list[_Beam] = []
        for each in going:
            first = id(each.beam) in used
            used.discard(id(each.beam))
            pages = each.beam.pages if first else self._shared(each.beam.pages)
            made.append(_Beam(pages, each.tokens, each.score))
        return made

    def _shared(self, pages: TextPages) -> TextPages:
        copy = self._cache.fork(pages)
        if copy is None:
            raise CacheBudgetError(
                f"the key/value cache has no room for {self._beams.count} beams",
                hint="raise the cache budget, ask for fewer beams or tokens, or wait for others",
            )
        self._held.append(copy)
        return copy

    def _give_back(self, pages: TextPages) -> None:
        self._held.remove(pages)
        self._cache.release(pages)


def _log_probabilities(logits: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore"):  # where processors leave no token
        shifted = logits - logits.max()
    return shifted - np.log(np.exp(shifted).sum())
