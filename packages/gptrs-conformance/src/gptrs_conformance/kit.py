"""The conformance kit: every case and check of a level, run on one backend.

>>> report = run_conformance(gptrs.get_backend("mine"), "core")
>>> report.failed
0
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import groupby

from msgspec import Struct

from gptrs.backend.contract import Backend
from gptrs.capture.fallback.parts_executable import fallback_of, noting_fallback
from gptrs.errors import GptrsError, UnsupportedError, UsageError
from gptrs.functionals.dispatch.registry import composite_names
from gptrs.ir.op import OPS
from gptrs.ir.tensor_type import TensorType
from gptrs.progress import StepProgress
from gptrs_conformance import cases as cases  # registers the rows
from gptrs_conformance.check import Check, CheckFailure, place_of
from gptrs_conformance.checks import ALL_CHECKS
from gptrs_conformance.checks.claims import claim_check
from gptrs_conformance.derivatives import (
    derivative_cases,
    differentiable_ops,
    run_derivative,
)
from gptrs_conformance.model_needs import Need, needs_of
from gptrs_conformance.op_case import cases as cases_of
from gptrs_conformance.op_case import legal_dtypes
from gptrs_conformance.op_runner import Outcome, run_case
from gptrs_conformance.report import CaseName, Report
from gptrs_runtime.conformance import Level

LEVELS: tuple[Level, ...] = ("smoke", "core", "full")
"""From the fastest to the most thorough; each includes the previous one."""
LARGEST_NEED = 1 << 25
"""Elements of operands and results; for larger ones in a model only the claim is checked."""

NamedCase = tuple[CaseName, Callable[[Backend], Outcome]]


class CaseGroup(Struct, frozen=True):
    """Cases that belong together: those of an op on an element type, or one check.

    `subject` is the name of the op or the check.
    """

    subject: str
    cases: Callable[[], Iterable[NamedCase]]


class Plan(Struct, frozen=True, kw_only=True):
    """A part of the kit to run, the same in every process.

    `ops` limits it to these ops, without checks, and to the claims of these functionals; `model`
    selects the ops of this model's programs, with their types and shapes, instead of a level.
    `sample` selects at most so many of all cases and checks, evenly over ops and types, by `seed`;
    `shard` (i, n) is the i-th of n parts, from 1. `derivatives` selects those of the ops instead.
    UsageError for contradictions.
    """

    level: Level = "core"
    ops: Sequence[str] = ()
    model: str | None = None
    sample: int | None = None
    seed: int = 0
    shard: tuple[int, int] = (1, 1)
    claimed: bool = True
    """Whether only claims of the backend are judged, so that a refusal is not a failure. What runs
    on the backend that it falls back to is never a failure, and never passes by itself."""
    derivatives: bool = False
    """Whether the derivatives of ops are run, by differences in f64, instead of the ops."""

    def __post_init__(self) -> None:
        for name in self.ops:
            if name in composite_names() and not (self.derivatives or self.model):
                continue
            if name not in OPS:
                listed = ", ".join(sorted(OPS))
                raise UsageError(
                    f"PTIR has no op `{name}`",
                    hint=f"it has {listed}; backends claim {', '.join(composite_names())}",
                )
        index, count = self.shard
        if not 1 <= index <= count:
            raise UsageError(
                f"there is no shard {index} of {count}", hint="the first of four is 1/4"
            )
        if self.sample is not None and self.sample < 1:
            raise UsageError(f"a sample has at least one case, got {self.sample}")
        if self.derivatives and self.model is not None:
            raise UsageError("derivatives are tested op by op: leave out the model")

    def steps(self) -> list[CaseGroup]:
        """Return the steps to run, in order. Raises as `load_model` does for the model."""
        if self.derivatives:
            steps = _derived(self.ops)
        else:
            steps = _needed(self.model, self.ops) if self.model else self._of_level()
        if self.sample is not None:
            steps = _drawn(steps, self.sample, self.seed)
        index, count = self.shard
        return steps[index - 1 :: count]

    def _of_level(self) -> list[CaseGroup]:
        """Return the ops on each type, and the checks."""
        of_ops = [
            CaseGroup(name, partial(_cases_in, name, dtype.name, self.level))
            for name in sorted(set(self.ops) & OPS.keys() or (() if self.ops else OPS))
            for dtype in legal_dtypes(OPS[name])
        ]
        named = [name for name in dict.fromkeys(self.ops) if name in composite_names()]
        # A functional that is an op, too, need not be claimed: its cases run the op.
        claims = [claim_check(name, claimed=name not in OPS) for name in named]
        checks = claims if self.ops else checks_of(self.level)
        return [*of_ops, *(CaseGroup(check.name, partial(_check_alone, check)) for check in checks)]


def run_conformance(
    backend: Backend,
    level: Level = "core",
    *,
    ops: Sequence[str] = (),
    progress: StepProgress | None = None,
) -> Report:
    """Run the kit on `backend`; failures are in the report, never raised.

    `smoke` runs one case of each op and element type; `core` all cases, whole graphs and the
    runtime contract; `full` also the functionals, tiny models and generated programs. `ops` limits
    the run to these ops and leaves the checks out; the name of a functional that the backend
    claims, such as `softmax`, stands for the check of its claim. UsageError for any other name.
    """
    return run_plan(backend, Plan(level=level, ops=ops), progress)


def run_plan(backend: Backend, plan: Plan, progress: StepProgress | None = None) -> Report:
    """Run what `plan` says on `backend`, in this process."""
    steps = plan.steps()
    report = new_report(plan, backend.name)
    start = time.perf_counter()
    for done, step in enumerate(steps):
        if progress:
            progress(done, len(steps), step.subject)
        for case, run in step.cases():
            report.add(case, run(backend))
    if progress:
        progress(len(steps), len(steps), "")
    report.seconds = time.perf_counter() - start
    report.complete = True
    return report


def new_report(plan: Plan, backend: str = "") -> Report:
    """Return an empty report of what `plan` says."""
    return Report(
        backend,
        plan.level,
        model=plan.model,
        claimed=plan.claimed,
        sample=plan.sample,
        seed=plan.seed,
        shard=plan.shard,
        derivatives=plan.derivatives,
    )


def checks_of(level: Level) -> list[Check]:
    """Return the checks that belong to `level`."""
    return [check for check in ALL_CHECKS if LEVELS.index(check.level) <= LEVELS.index(level)]


def run_check(backend: Backend, check: Check) -> Outcome:
    """Run one check. Returns an Outcome for any exception of the backend.

    If a program of the check ran in parts, because of what the backend refuses, that is `fallback`.
    """
    try:
        with noting_fallback() as noted:
            check.run(backend)
    except CheckFailure as failure:
        return Outcome("fail", str(failure))
    except UnsupportedError as error:
        return Outcome("refused", str(error))
    except GptrsError as error:
        return Outcome("fail", f"raised {type(error).__name__}: {error}")
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a backend under test may raise anything, SystemExit, too
        kind, place = type(error).__name__, place_of(error)
        return Outcome("fail", f"raised {kind}, which is not a GptrsError: {error}{place}")
    return Outcome("fallback", "; ".join(noted)) if noted else Outcome("pass")


def _cases_in(op: str, type_name: str, level: Level) -> Iterator[NamedCase]:
    (dtype,) = [dtype for dtype in legal_dtypes(OPS[op]) if dtype.name == type_name]
    for case in cases_of(OPS[op], dtype, level):
        # A generator: the arrays of a case live only while it runs.
        yield CaseName(op, type_name, case.label), partial(run_case, case=case)


def _derived(ops: Sequence[str]) -> list[CaseGroup]:
    """Return the derivatives of ops; of all that have one unless some are named."""
    chosen = sorted(op.name for op in differentiable_ops() if not ops or op.name in ops)
    return [CaseGroup(name, partial(_derivatives_of, name)) for name in chosen]


def _derivatives_of(op: str) -> Iterator[NamedCase]:
    for number, case in enumerate(derivative_cases(OPS[op])):
        label = case.label or f"number {number}"
        yield CaseName(op, "f64", label), partial(run_derivative, case=case)


def _check_alone(check: Check) -> Iterator[NamedCase]:
    yield CaseName(check.name), partial(run_check, check=check)


def _needed(model: str, ops: Sequence[str]) -> list[CaseGroup]:
    """Return the ops that the programs of `model` need, each on a type."""
    wanted = [need for need in needs_of(model) if not ops or need.op.name in ops]
    wanted.sort(key=lambda need: (need.op.name, need.key_type))
    return [
        CaseGroup(name, partial(_needs_in, list(needs)))
        for (name, _), needs in groupby(wanted, key=lambda need: (need.op.name, need.key_type))
    ]


def _needs_in(needs: Sequence[Need]) -> Iterator[NamedCase]:
    for need in needs:
        name = CaseName(need.op.name, need.key_type, need.label)
        yield name, partial(_run_need, need=need)


def _run_need(backend: Backend, need: Need) -> Outcome:
    if need.elements <= LARGEST_NEED:
        return run_case(backend, need.case())
    operands: list[TensorType] = need.operands
    refused = backend.refusal(need.op, operands, need.results)
    if refused is None:
        return Outcome("pass")
    fallback = fallback_of(backend)
    if fallback is None or fallback.refusal(need.op, operands, need.results) is not None:
        return Outcome("refused", refused)
    return Outcome("fallback", refused)


def _drawn(steps: Sequence[CaseGroup], count: int, seed: int) -> list[CaseGroup]:
    """Return at most `count` cases of `steps`: as many of each step, and of some one more."""
    # Python's generator, whose numbers are the same on every platform and version.
    generator = random.Random(seed)
    each, more = divmod(count, len(steps)) if steps else (0, 0)
    lucky = set(generator.sample(range(len(steps)), more))
    quotas = [each + (at in lucky) for at in range(len(steps))]
    return [
        CaseGroup(step.subject, partial(_some_of, step, quota, generator.getrandbits(32)))
        for step, quota in zip(steps, quotas, strict=True)
        if quota
    ]


def _some_of(step: CaseGroup, count: int, seed: int) -> list[NamedCase]:
    found = list(step.cases())
    chosen = random.Random(seed).sample(range(len(found)), min(count, len(found)))
    return [found[at] for at in sorted(chosen)]
