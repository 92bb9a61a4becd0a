"""The passes, their stages and their order."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct
from msgspec.structs import replace

from gptrs.errors import ProgramError, UsageError
from gptrs.ir import verify as verify_program
from gptrs.ir.ops.custom_call import decompositions
from gptrs.ir.program import Program
from gptrs.optimizer.evaluation import Evaluator
from gptrs.optimizer.pass_base import Pass, RewritePass
from gptrs.optimizer.passes.arithmetic_folding import (
    CAST_FOLDING,
    EXTREME_FOLDING,
    INTEGER_SIMPLIFICATION,
    LATE_CASTS,
    STRENGTH_REDUCTION,
)
from gptrs.optimizer.passes.broadcast_folding import BROADCAST_FOLDING, REVERSE_FOLDING
from gptrs.optimizer.passes.cleanup import (
    COMMON_SUBEXPRESSIONS,
    COMPOSITE_INVARIANTS,
    DEAD_CODE,
    LOOP_INVARIANTS,
    Inlining,
)
from gptrs.optimizer.passes.constant_folding import ConstantFolding
from gptrs.optimizer.passes.elementwise_simplification import (
    DOT_GENERAL_FOLDING,
    ELEMENTWISE_SIMPLIFICATION,
    LATE_BROADCASTS,
    UNIT_DIMS,
)
from gptrs.optimizer.passes.layout_folding import (
    PAD_FOLDING,
    RESHAPE_FOLDING,
    SELECT_FOLDING,
    TILE_FOLDING,
    TRANSPOSE_FOLDING,
)
from gptrs.optimizer.passes.region_simplification import REGION_SIMPLIFICATION
from gptrs.optimizer.passes.slice_folding import CONCAT_FOLDING, PATCH_FOLDING, SLICE_FOLDING
from gptrs.optimizer.rounds import FIRST_ROUNDS, LAST_ROUNDS, rounds

# A stage of the pipeline, whose passes run in rounds, and the report of each pass.


class PassRun(Struct, frozen=True):
    """One application of a pass, for observers of an optimization."""

    stage: str
    name: str
    round: int
    """The number of the round in its stage, from 0."""
    changed: bool
    before: int
    """Instructions before the pass, including those of regions and of every function."""
    after: int
    """Instructions after it."""
    seconds: float


Observer = Callable[[PassRun], None]


class Stage(Struct, frozen=True):
    """Passes in order, repeated until a round changes nothing or `max_rounds` have run."""

    name: str
    passes: tuple[Pass, ...]
    max_rounds: int = 1

    def run(
        self, program: Program, *, verify: bool = False, observe: Observer | None = None
    ) -> Program:
        """Run the passes on `program`; return the same object if they change nothing.

        With `verify`, the program is checked after every pass, and ProgramError names the pass that
        broke it.
        """
        for round_ in range(self.max_rounds):
            before = program
            for pass_ in self.passes:
                program = self._apply(pass_, program, round_, observe)
                if verify:
                    _verify_after(pass_, program)
            # Identity: passes return the same object when they change nothing, so no comparison is
            # needed.
            if program is before:
                break
        return program

    def _apply(
        self, pass_: Pass, program: Program, round_: int, observe: Observer | None
    ) -> Program:
        if observe is None:
            return pass_.apply(program)
        started = time.perf_counter()
        changed = pass_.apply(program)
        seconds = time.perf_counter() - started
        sizes = instruction_count(program), instruction_count(changed)
        observe(PassRun(self.name, pass_.name, round_, changed is not program, *sizes, seconds))
        return changed


def instruction_count(program: Program) -> int:
    """Return the number of instructions of every function, including nested regions.

    A composite counts as one; functions that only composites refer to are excluded.
    """
    inner = decompositions(program)
    functions = (each for each in program.functions if each.name not in inner)
    return sum(1 for function in functions for _ in function.body.walk())


def _verify_after(pass_: Pass, program: Program) -> None:
    try:
        verify_program(program)
    except ProgramError as error:
        raise ProgramError(f"after the pass `{pass_.name}`: {error}") from error


FOLDINGS: tuple[RewritePass, ...] = (
    RESHAPE_FOLDING,
    TRANSPOSE_FOLDING,
    BROADCAST_FOLDING,
    DOT_GENERAL_FOLDING,
    SLICE_FOLDING,
    CONCAT_FOLDING,
    PAD_FOLDING,
    PATCH_FOLDING,
    TILE_FOLDING,
    REVERSE_FOLDING,
    CAST_FOLDING,
    SELECT_FOLDING,
    ELEMENTWISE_SIMPLIFICATION,
    INTEGER_SIMPLIFICATION,
    EXTREME_FOLDING,
    LATE_BROADCASTS,
    LATE_CASTS,
)
"""Rewrites that simplify a program, independent of its sizes and values."""

SPECIALIZATIONS: tuple[RewritePass, ...] = (UNIT_DIMS, STRENGTH_REDUCTION)
"""Rewrites that depend on sizes and numbers; they come last, after patterns have been matched."""


def _together(name: str, passes: tuple[RewritePass, ...]) -> RewritePass:
    # One worklist for all: each uncovers work for the others, at any depth of nesting.
    return RewritePass(name, tuple(rewrite for pass_ in passes for rewrite in pass_.rewrites))


CANONICALIZATION = _together("canonicalization", FOLDINGS)
SPECIALIZATION = _together("specialization", (*FOLDINGS, *SPECIALIZATIONS))

PIPELINE: tuple[Pass, ...] = (
    # The order affects the number of rounds, not the result: dead code first, so that no rewrite
    # works on it; canonical forms before common subexpressions, which must look alike to be found;
    # then control flow, where both may have left unused operands and invariants.
    DEAD_CODE,
    CANONICALIZATION,
    COMMON_SUBEXPRESSIONS,
    REGION_SIMPLIFICATION,
    LOOP_INVARIANTS,
)
"""The passes of the first stage, in order; with an evaluator, constant folding follows. The last
stage has `SPECIALIZATION` instead of `CANONICALIZATION`."""


class Pipeline(Struct, frozen=True):
    """The optimization of a program for one backend, in two halves.

    Between the halves, the caller may split off computations that depend only on parameters (see
    `gptrs.optimizer.parameter_folding`). First the backend claims composites, and all others are
    inlined. The rest of the first half canonicalizes the program, so that equal computations look
    alike, and lets the backend replace unsupported ops (`legalize`). In the second half the backend
    fuses instructions (`fuse`), and the remains are cleaned up, using sizes and numbers. Every
    stage keeps what the program computes, bit for bit, and its signature. `GPTRS_OPT_PRE_ITERS` and
    `GPTRS_OPT_POST_ITERS` bound the rounds of the first and the last stage; with 0 it does not run.
    """

    inlining: Inlining = Inlining(calls=False)
    """The claims of the backend, and the functions to keep."""
    legalize: tuple[Pass, ...] = ()
    fuse: tuple[Pass, ...] = ()
    evaluate: Evaluator | None = None
    """Computes constants; None disables constant folding."""
    ieee_floats: bool = False
    """`Backend.ieee_floats`."""
    verify: bool = False
    """Whether the program is checked after every pass."""
    observe: Observer | None = None
    """Called after every pass."""
    without: frozenset[str] = frozenset()
    """Names of passes and foldings to leave out, to find the one that is to blame for a result."""

    def before_folding(self, program: Program) -> Program:
        """Return `program` in canonical form and legalized for the backend."""
        return self._run(
            program,
            # Invariants first: once a backend has claimed a composite, its body no longer shows
            # that it cannot fail, and it stays in the loop.
            Stage("inline", (COMPOSITE_INVARIANTS, self.inlining)),
            Stage("canonicalize", self._with_constants(PIPELINE), rounds(FIRST_ROUNDS)),
            Stage("legalize", self.legalize),
        )

    def after_folding(self, program: Program) -> Program:
        """Apply the fusions of the backend, and clean up the remains."""
        last = tuple(SPECIALIZATION if each is CANONICALIZATION else each for each in PIPELINE)
        return self._run(
            program,
            Stage("fuse", self.fuse),
            Stage("clean up", self._with_constants(last), rounds(LAST_ROUNDS)),
        )

    def run(self, program: Program) -> Program:
        """Run both halves."""
        return self.after_folding(self.before_folding(program))

    def _with_constants(self, passes: tuple[Pass, ...]) -> tuple[Pass, ...]:
        if self.evaluate is None:
            return passes
        return (*passes, ConstantFolding(self.evaluate, self.ieee_floats))

    def _run(self, program: Program, *stages: Stage) -> Program:
        for stage in stages:
            if self.without:
                kept = tuple(_kept(each, self.without) for each in stage.passes)
                passes = tuple(each for each in kept if each.name not in self.without)
                stage = replace(stage, passes=passes)
            program = stage.run(program, verify=self.verify, observe=self.observe)
        return program


def _kept(pass_: Pass, without: frozenset[str]) -> Pass:
    """Return a pass that several foldings make up, without the rewrites of some of them."""
    if pass_ is not CANONICALIZATION and pass_ is not SPECIALIZATION:
        return pass_
    foldings = FOLDINGS if pass_ is CANONICALIZATION else (*FOLDINGS, *SPECIALIZATIONS)
    return _together(pass_.name, tuple(each for each in foldings if each.name not in without))


def optimize(
    program: Program, *, verify: bool = False, evaluate: Evaluator | None = None
) -> Program:
    """Return a simpler program with the same results, bit for bit.

    Returns `program` itself if nothing can be simplified.

    The bits of a NaN result are unspecified in PTIR, and may change.

    Functions, their parameters, and the number and types of their results are kept. With `verify`,
    the program is checked after every pass, and ProgramError names the pass that broke it. With
    `evaluate`, constants are folded.
    """
    return Pipeline(verify=verify, evaluate=evaluate).run(program)


def find_pass(name: str, evaluate: Evaluator | None = None) -> Pass:
    """Return the pass called `name`, one of the pipeline or of the foldings.

    UsageError lists all passes.
    """
    passes = known_passes(evaluate)
    known = {pass_.name: pass_ for pass_ in passes}
    if name not in known:
        raise UsageError(f"there is no pass `{name}`", hint=f"known passes: {', '.join(known)}")
    return known[name]


def known_passes(evaluate: Evaluator | None = None) -> tuple[Pass, ...]:
    """Return every pass of gptrs itself; constant folding only with an evaluator."""
    folding = () if evaluate is None else (ConstantFolding(evaluate),)
    return (*PIPELINE, *folding, *FOLDINGS, SPECIALIZATION, *SPECIALIZATIONS)
