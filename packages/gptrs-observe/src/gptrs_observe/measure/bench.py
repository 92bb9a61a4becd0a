"""Measurements of models: phases timed alternating with peers that do the same work."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct, field

from gptrs.errors import UsageError
from gptrs.plugins.references import Reference
from gptrs_observe.measure.bench_cases import (
    BenchCase,
    Decode,
    ForwardCase,
    KnownPrefill,
    PeerModel,
    Prefill,
    RaggedPrefill,
    ReferenceCase,
    random_prompts,
    require_room,
)
from gptrs_observe.measure.step_work import MachineLimits, Measure, Row, first_run, total_work
from gptrs_runtime.generation.generate import PREFILL_CHUNK
from gptrs_runtime.imported.scores import LoadedImport
from gptrs_runtime.loaded_model import LoadedModel


def alternating(cases: Mapping[str, BenchCase], rounds: int) -> dict[str, float]:
    """Return the median seconds of each case; cases alternate, and the first round is dropped."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds + 1):
        for name, case in cases.items():
            times[name].append(_seconds(case))
    # The first round compiles, packs weights and faults pages in. Cases take turns so that a slow
    # minute of the machine hits all of them.
    return {name: statistics.median(seconds[1:]) for name, seconds in times.items()}


def _seconds(case: BenchCase) -> float:
    case.prepare()
    started = time.perf_counter()
    case.run()
    return time.perf_counter() - started


OURS = "gptrs"
SHORTEST_NEW, LONGEST_NEW = 5, 700
"""Tokens of the prompts of `ModelBench.new_lengths`."""
RAGGED = (58, 700, 3, 120, 7, 90, 15, 30)
"""Tokens of the prompts of `ModelBench.ragged_prefill`: 1023, as many as GPT-2 takes in one step.
"""
AGAIN = "the same lengths again"
KNOWN = "a known length beyond its repeat"


def new_lengths(count: int, longest: int) -> list[int]:
    """Return `count` different lengths from `SHORTEST_NEW` to `longest`, the same ones each time.

    UsageError unless there are so many.
    """
    possible = range(SHORTEST_NEW, longest + 1)
    if not 1 <= count <= len(possible):
        raise UsageError(
            f"there are {len(possible)} lengths from {SHORTEST_NEW} to {longest},"
            f" asked for {count} new ones"
        )
    # A fixed seed: figures of two versions are of the same lengths.
    return np.random.default_rng(0).choice(possible, count, replace=False).tolist()


class ModelBench(Struct, frozen=True):
    """Our model, the same model of peers, and the settings of the measurement."""

    model: LoadedModel
    threads: int | None
    rounds: int = 5
    limits: MachineLimits | None = None
    peers: Mapping[str, PeerModel] = field(default_factory=dict[str, PeerModel])
    step: Callable[[str], None] = lambda name: None
    """Called with each piece of work before it begins."""
    cache_dtype: str | None = None
    """As in `GenerationOptions`."""

    def generation(self, prompt_lengths: Sequence[int], context: int, new_tokens: int) -> list[Row]:
        """Loading, compiling, the first token, prompts of these lengths, text after a context.

        Raises the errors of `require_room`, before anything is measured.
        """
        for length in prompt_lengths:
            require_room(self._context_length, length)
        require_room(self._context_length, context + new_tokens)
        rows = self._load_rows()
        for position, length in enumerate(prompt_lengths):
            rows += self._prefill_rows(length, as_first_token=position == 0)
        return rows + self.decode(context, new_tokens)

    def new_lengths(self, count: int, longest: int = LONGEST_NEW) -> list[Row]:
        """The first token of `count` prompts, each of a length that this process has not met.

        Measures each length again with other tokens, and the peers. A third time shows the
        variation of a known length. Lengths are random, of `SHORTEST_NEW` to `longest` tokens,
        fewer where the context is shorter. UsageError for fewer than one.
        """
        lengths = new_lengths(count, min(longest, self._context_length - 1))
        vocabulary = self.model.causal_lm().vocab_size
        self.step(f"{count} prompts of lengths not seen before")
        ours, again, known = (
            Prefill(
                self.model,
                random_prompts(lengths, vocabulary, seed),
                cache_dtype=self.cache_dtype,
            )
            for seed in (0, 1, 2)
        )
        others = {
            who: peer.prefill(random_prompts(lengths, vocabulary))
            for who, peer in self.peers.items()
        }
        times: dict[str, list[float]] = {name: [] for name in (OURS, AGAIN, *others)}
        beyond = {OURS: 0.0, KNOWN: 0.0}
        for _ in lengths:
            for name, case in {OURS: ours, AGAIN: again, **others}.items():
                times[name].append(_seconds(case))
            # After the peers, as the new length came after the peers of the previous length.
            for name, seconds in {OURS: times[OURS][-1], KNOWN: _seconds(known)}.items():
                beyond[name] = max(beyond[name], seconds - times[AGAIN][-1])
        medians = {name: statistics.median(seconds) for name, seconds in times.items()}
        work = f"first token, {count} new lengths of {min(lengths)} to {max(lengths)}"
        return [
            *Measure(work, self.threads).rows(medians),
            *Measure("slowest new length beyond its repeat", self.threads).rows(beyond),
        ]

    def decode(self, context: int, count: int, texts: int = 1) -> list[Row]:
        """Measure `count` tokens after a context of `context`, for one text or several at once.

        Raises the errors of `Decode`.
        """
        together = "" if texts == 1 else f" of {texts} texts"
        name = f"decode{together} after {context} tokens"
        decode = Decode(self.model, context, count, texts, cache_dtype=self.cache_dtype)
        self.step(name)
        first, works = first_run(decode)
        others = {who: peer.decode(context, count, texts) for who, peer in self.peers.items()}
        seconds = alternating({OURS: decode, **others}, self.rounds)
        step = works[-1] if works else None  # those before it read the context
        measure = Measure(name, self.threads, "tok/s", texts * count, count, step)
        return [*self._first_rows(name, first), *measure.rows(seconds, self.limits)]

    def ragged_prefill(self, lengths: Sequence[int] = RAGGED) -> list[Row]:
        """Measure prompts of these lengths together, and one prompt of as many tokens.

        Raises the errors of `RaggedPrefill`.
        """
        total = sum(lengths)
        name = f"prefill of {len(lengths)} texts of {min(lengths)} to {max(lengths)} tokens"
        ours = RaggedPrefill(self.model, lengths, cache_dtype=self.cache_dtype)
        cases = {
            OURS: ours,
            f"one text of {total}": RaggedPrefill(
                self.model, [total], cache_dtype=self.cache_dtype
            ),
        }
        self.step(name)
        first, works = first_run(ours)
        seconds = alternating(cases, self.rounds)
        measure = Measure(name, self.threads, "tok/s", total, 1, total_work(works))
        return [*self._first_rows(name, first), *measure.rows(seconds, self.limits)]

    def known_prefill(self, known: int, new: int) -> list[Row]:
        """Measure a prompt with `known` tokens in the cache, and its `new` tokens alone.

        Raises the errors of `KnownPrefill`.
        """
        name = f"prefill of {new} tokens after {known} known ones"
        cases = {
            OURS: KnownPrefill(self.model, known, new, cache_dtype=self.cache_dtype),
            f"{new} tokens alone": RaggedPrefill(self.model, [new], cache_dtype=self.cache_dtype),
        }
        self.step(name)
        seconds = alternating(cases, self.rounds)
        return Measure(name, self.threads).rows(seconds)

    def gaps(self, context: int, count: int) -> list[Row]:
        """Seconds from one token to the next, of `count` that follow a context of `context`.

        In one text, the first that is so long: the median, 99 % of the gaps, the longest one.
        Raises the errors of `require_room`.
        """
        decode = Decode(self.model, context, count, cache_dtype=self.cache_dtype)
        self.step(f"the gaps between {count} tokens")
        cases = {OURS: decode, **{who: p.decode(context, count) for who, p in self.peers.items()}}
        for case in cases.values():
            case.prepare()
            case.run()
        return [
            row
            for text, share in (("median", 0.5), ("99 %", 0.99), ("longest", 1.0))
            for row in Measure(f"gap between {count} tokens, {text}", self.threads).rows(
                {name: float(np.quantile(case.gaps, share)) for name, case in cases.items()}
            )
        ]

    def forward(
        self, inputs: np.ndarray, references: Mapping[str, Reference] | None = None
    ) -> list[Row]:
        """One run on an array that the model takes, and its rate, beside references by name.

        Raises the errors of `ForwardCase` and of `LoadedModel.checked_inputs`.
        """
        name = f"forward of {list(inputs.shape)}"
        unit, units = ("tok/s", inputs.size) if inputs.ndim == 2 else ("images/s", len(inputs))
        ours = ForwardCase(self.model, inputs)
        rows = Measure("load", self.threads).rows({OURS: self.model.load_seconds})
        self.step(name)
        first, works = first_run(ours)
        given = self.model.checked_inputs(inputs)
        others = {who: ReferenceCase(each, given) for who, each in (references or {}).items()}
        seconds = alternating({OURS: ours, **others}, self.rounds)
        measure = Measure(name, self.threads, step=total_work(works))
        rate = Measure(f"{name}, rate", self.threads, unit, units)
        found = [*measure.rows(seconds, self.limits), *rate.rows(seconds)]
        return [*rows, *self._first_rows(name, first), *found]

    @property
    def _context_length(self) -> int:
        return self.model.causal_lm().context_length

    def _prompts(self, length: int) -> Iterator[list[int]]:
        return random_prompts([length], self.model.causal_lm().vocab_size)

    def _prefill_rows(self, length: int, *, as_first_token: bool) -> list[Row]:
        name = f"prefill of {length} tokens"
        self.step(name)
        ours = Prefill(self.model, self._prompts(length), cache_dtype=self.cache_dtype)
        first, works = first_run(ours)
        rows = self._first_rows(name, first)
        others = {who: peer.prefill(self._prompts(length)) for who, peer in self.peers.items()}
        seconds = alternating({OURS: ours, **others}, self.rounds)
        if as_first_token:
            rows += Measure(f"first token after {length}", self.threads).rows(seconds)
        steps = math.ceil(length / PREFILL_CHUNK)
        # The work of a step that was compiled before any measurement is unknown.
        whole = total_work(works) if len(works) == steps else None
        measure = Measure(name, self.threads, "tok/s", length, 1, whole)
        return rows + measure.rows(seconds, self.limits)

    def _load_rows(self) -> list[Row]:
        seconds = {who: peer.load_seconds for who, peer in self.peers.items()}
        return Measure("load", self.threads).rows({OURS: self.model.load_seconds, **seconds})

    def _first_rows(self, name: str, seconds: float) -> list[Row]:
        return Measure(f"compile and first {name}", self.threads).rows({OURS: seconds})


# Measurements of imported models: loading, compiling, and one run.


class _Run(Struct, frozen=True):
    """One run of a model on the same arrays."""

    loaded: LoadedImport
    arrays: Mapping[str, np.ndarray]

    def prepare(self) -> None:
        """Nothing to do."""

    def run(self) -> None:
        """All outputs, as arrays of NumPy."""
        self.loaded.run(self.arrays)


def imported_rows(
    loaded: LoadedImport,
    arrays: Mapping[str, np.ndarray],
    rounds: int,
    limits: MachineLimits,
    threads: int | None,
) -> list[Row]:
    """Return the times of loading, of the first run, and of one run: the median of `rounds`.

    Raises the errors of `LoadedImport.run`.
    """
    case = _Run(loaded, arrays)
    name = f"run of {', '.join(str(list(array.shape)) for array in arrays.values())}"
    first, works = first_run(case)
    seconds = alternating({OURS: case}, rounds)
    measure = Measure(name, threads, step=total_work(works))
    rate = Measure(f"{name}, rate", threads, "runs/s", 1)
    return [
        *Measure("load", threads).rows({OURS: loaded.load_seconds}),
        *Measure(f"compile and first {name}", threads).rows({OURS: first}),
        *measure.rows(seconds, limits),
        *rate.rows(seconds),
    ]
