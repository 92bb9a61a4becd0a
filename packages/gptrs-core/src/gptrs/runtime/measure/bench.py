"""Measurements of models: phases timed alternating with peers that do the same work."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace

import numpy as np

from gptrs.backend.protocol import InputRole
from gptrs.capture.events.trace import CompileStart, ExecutionTraceSink, tracing
from gptrs.errors import UsageError
from gptrs.ir.ops.indexing import Take
from gptrs.ir.program import Program
from gptrs.runtime.generation.generate import PREFILL_CHUNK
from gptrs.runtime.load import LoadedModel
from gptrs.runtime.measure.bench_cases import (
    BenchCase,
    Decode,
    Forward,
    PeerModel,
    Prefill,
    random_prompts,
    require_room,
)
from gptrs.runtime.measure.machine_limits import MachineLimits
from gptrs.runtime.programs.report import report_program


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of ours, and that of a peer that did the same work, alternating with us.

    `ratio` says how many times as fast we are. `share_of_limit` is that of the machine, for reading
    or for computing, whichever is closer; None where the work is not known.
    """

    work: str
    threads: int | None
    ours: float
    unit: str
    peer: float | None = None
    peer_name: str | None = None
    ratio: float | None = None
    share_of_limit: float | None = None
    gb_per_s: float | None = None
    """Weights read a second."""
    gflop_per_s: float | None = None

    def as_json(self) -> dict[str, object]:
        """The fields as JSON values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class WorkOfStep:
    """What one run of a compiled step takes: weights read, and operations on elements."""

    weight_bytes: int
    operations: int


def alternating(cases: Mapping[str, BenchCase], rounds: int) -> dict[str, float]:
    """Return the median seconds of each case; cases alternate, and the first round is dropped."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(rounds + 1):
        for name, case in cases.items():
            times[name].append(_seconds(case))
    return {name: statistics.median(seconds[1:]) for name, seconds in times.items()}


def _seconds(case: BenchCase) -> float:
    case.prepare()
    started = time.perf_counter()
    case.run()
    return time.perf_counter() - started


class _Programs(ExecutionTraceSink):
    def __init__(self) -> None:
        self.started: list[CompileStart] = []

    def before_program(self, event: CompileStart) -> None:
        self.started.append(event)


def first_run(case: BenchCase) -> tuple[float, list[WorkOfStep | None]]:
    """Seconds of the first run, compilation included, and the work of each step it compiled.

    The work is None where that of an op is not known.
    """
    programs = _Programs()
    started = time.perf_counter()
    with tracing(programs):
        case.prepare()
        case.run()
    seconds = time.perf_counter() - started
    steps = [event for event in programs.started if event.origin.startswith("jit ")]
    return seconds, [_work(step.program, step.roles) for step in steps]


def _total(works: Sequence[WorkOfStep | None]) -> WorkOfStep | None:
    """Of all steps; None if there is none, or if one is not known."""
    known = [work for work in works if work is not None]
    if not known or len(known) < len(works):
        return None
    return WorkOfStep(
        sum(work.weight_bytes for work in known), sum(work.operations for work in known)
    )


def _work(program: Program, roles: Sequence[InputRole]) -> WorkOfStep | None:
    """Operations by the rules of `programs.op_work`; tables that are looked up do not count.

    A weight that is looked up and multiplied by as well, such as tied embeddings, is read.
    """
    work = report_program(program).work
    if work is None or work.lower_bounds:
        return None
    region = program.main.body
    read = {
        operand
        for instruction in region.instructions
        for place, operand in enumerate(instruction.operands)
        if not (isinstance(instruction.op, Take) and place == 0)
    }
    weights = [
        param.type.nbytes
        for param, role in zip(region.params, roles, strict=True)
        if role is InputRole.PARAMETER and param in read
    ]
    return WorkOfStep(sum(weights), work.arithmetic)


@dataclass(frozen=True, slots=True)
class Measure:
    """How the median seconds of a piece of work become a figure: as they are, or `units` of them.

    `step` is the work of one of the `steps` that it is made of.
    """

    work: str
    threads: int | None
    unit: str = "s"
    units: int | None = None
    steps: int = 1
    step: WorkOfStep | None = None

    def rows(self, seconds: Mapping[str, float], limits: MachineLimits | None = None) -> list[Row]:
        """Ours, the first of `seconds`, beside each of the others; alone where there is none."""
        (_, ours), *peers = seconds.items()
        row = Row(self.work, self.threads, self._figure(ours), self.unit)
        if self.step is not None:
            row = _with_rates(row, self.step, self.steps / ours, limits)
        return [
            replace(row, peer=self._figure(theirs), peer_name=name, ratio=theirs / ours)
            for name, theirs in peers
        ] or [row]

    def _figure(self, seconds: float) -> float:
        return seconds if self.units is None else self.units / seconds


def _with_rates(
    row: Row, work: WorkOfStep, steps_per_s: float, limits: MachineLimits | None
) -> Row:
    read = steps_per_s * work.weight_bytes / 1e9
    computed = steps_per_s * work.operations / 1e9
    share = None
    if limits is not None:
        share = max(read / limits.read_gb_per_s, computed / limits.gflop_per_s)
    return replace(row, gb_per_s=read, gflop_per_s=computed, share_of_limit=share)


OURS = "gptrs"
SHORTEST_NEW, LONGEST_NEW = 5, 700
"""Tokens of the prompts of `ModelBench.new_lengths`."""


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
    return np.random.default_rng(0).choice(possible, count, replace=False).tolist()


@dataclass(frozen=True)
class ModelBench:
    """A model of ours, the same one of others, and how they are measured."""

    model: LoadedModel
    threads: int | None
    rounds: int = 5
    limits: MachineLimits | None = None
    peers: Mapping[str, PeerModel] = field(default_factory=dict[str, PeerModel])
    step: Callable[[str], None] = lambda name: None
    """Told of each piece of work before it begins."""

    def generation(self, prompt_lengths: Sequence[int], context: int, new_tokens: int) -> list[Row]:
        """Loading, compiling, the first token, prompts of these lengths, text after a context.

        Errors as those of `require_room`, before anything is measured.
        """
        for length in prompt_lengths:
            require_room(self._context_length, length)
        decode = Decode(self.model, context, new_tokens)
        rows = self._load_rows()
        for position, length in enumerate(prompt_lengths):
            rows += self._prefill_rows(length, as_first_token=position == 0)
        return rows + self._decode_rows(decode, context, new_tokens)

    def new_lengths(self, count: int, longest: int = LONGEST_NEW) -> list[Row]:
        """The first token of `count` prompts, each of a length that this process has not met.

        Beside each the same length again, with other tokens, and the peers. Lengths are random, of
        `SHORTEST_NEW` to `longest` tokens, fewer where the context is shorter. UsageError for fewer
        than one.
        """
        lengths = new_lengths(count, min(longest, self._context_length - 1))
        vocabulary = self.model.causal_lm().vocab_size
        self.step(f"{count} prompts of lengths not seen before")
        ours, again = (
            Prefill(self.model, random_prompts(lengths, vocabulary, seed)) for seed in (0, 1)
        )
        others = {
            who: peer.prefill(random_prompts(lengths, vocabulary))
            for who, peer in self.peers.items()
        }
        times: dict[str, list[float]] = {name: [] for name in (OURS, "again", *others)}
        for _ in lengths:
            for name, case in {OURS: ours, "again": again, **others}.items():
                times[name].append(_seconds(case))
        medians = {name: statistics.median(seconds) for name, seconds in times.items()}
        repeated = medians.pop("again")
        work = f"first token, {count} new lengths of {min(lengths)} to {max(lengths)}"
        beyond = max(new - old for new, old in zip(times[OURS], times["again"], strict=True))
        return [
            *Measure(work, self.threads).rows(medians),
            *Measure("the same lengths again", self.threads).rows({OURS: repeated}),
            *Measure("slowest new length beyond its repeat", self.threads).rows({OURS: beyond}),
        ]

    def gaps(self, context: int, count: int) -> list[Row]:
        """Seconds from one token to the next, of `count` that follow a context of `context`.

        In one text, the first that is so long: the median, 99 % of the gaps, the longest one.
        Errors as those of `require_room`.
        """
        decode = Decode(self.model, context, count)
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

    def forward(self, inputs: np.ndarray) -> list[Row]:
        """One run of the model on an array that it takes; errors as those of its `forward`."""
        name = f"forward of {list(inputs.shape)}"
        ours = Forward(self.model, inputs)
        rows = self._load_rows()
        self.step(name)
        first, works = first_run(ours)
        others = {who: peer.forward(inputs) for who, peer in self.peers.items()}
        seconds = alternating({OURS: ours, **others}, self.rounds)
        measure = Measure(name, self.threads, step=_total(works))
        return [*rows, *self._first_rows(name, first), *measure.rows(seconds, self.limits)]

    @property
    def _context_length(self) -> int:
        return self.model.causal_lm().context_length

    def _prompts(self, length: int) -> Iterator[list[int]]:
        return random_prompts([length], self.model.causal_lm().vocab_size)

    def _prefill_rows(self, length: int, *, as_first_token: bool) -> list[Row]:
        name = f"prefill of {length} tokens"
        self.step(name)
        ours = Prefill(self.model, self._prompts(length))
        first, works = first_run(ours)
        rows = self._first_rows(name, first)
        others = {who: peer.prefill(self._prompts(length)) for who, peer in self.peers.items()}
        seconds = alternating({OURS: ours, **others}, self.rounds)
        if as_first_token:
            rows += Measure(f"first token after {length}", self.threads).rows(seconds)
        steps = math.ceil(length / PREFILL_CHUNK)
        # A step that was compiled before, for another prompt, did not tell its work.
        whole = _total(works) if len(works) == steps else None
        measure = Measure(name, self.threads, "tok/s", length, 1, whole)
        return rows + measure.rows(seconds, self.limits)

    def _decode_rows(self, decode: Decode, context: int, count: int) -> list[Row]:
        name = f"decode after {context} tokens"
        self.step(name)
        first, works = first_run(decode)
        others = {who: peer.decode(context, count) for who, peer in self.peers.items()}
        seconds = alternating({OURS: decode, **others}, self.rounds)
        step = works[-1] if works else None  # those before it read the context
        measure = Measure(name, self.threads, "tok/s", count, count, step)
        return [*self._first_rows(name, first), *measure.rows(seconds, self.limits)]

    def _load_rows(self) -> list[Row]:
        seconds = {who: peer.load_seconds for who, peer in self.peers.items()}
        return Measure("load", self.threads).rows({OURS: self.model.load_seconds, **seconds})

    def _first_rows(self, name: str, seconds: float) -> list[Row]:
        return Measure(f"compile and first {name}", self.threads).rows({OURS: seconds})
