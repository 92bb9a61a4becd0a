"""The passes that run on a program, their stages and their order."""

from __future__ import annotations

from gptrs.errors import UsageError
from gptrs.ir.program import Program
from gptrs.optimizer.evaluation import Evaluator
from gptrs.optimizer.pass_base import Pass, RewritePass
from gptrs.optimizer.passes.broadcast_folding import BROADCAST_FOLDING
from gptrs.optimizer.passes.cast_folding import CAST_FOLDING
from gptrs.optimizer.passes.common_subexpressions import COMMON_SUBEXPRESSIONS
from gptrs.optimizer.passes.concat_folding import CONCAT_FOLDING
from gptrs.optimizer.passes.constant_folding import ConstantFolding
from gptrs.optimizer.passes.dead_code import DEAD_CODE
from gptrs.optimizer.passes.dot_general_folding import DOT_GENERAL_FOLDING
from gptrs.optimizer.passes.elementwise_simplification import ELEMENTWISE_SIMPLIFICATION
from gptrs.optimizer.passes.extreme_folding import EXTREME_FOLDING
from gptrs.optimizer.passes.inlining import Inlining
from gptrs.optimizer.passes.integer_simplification import INTEGER_SIMPLIFICATION
from gptrs.optimizer.passes.late_broadcasts import LATE_BROADCASTS
from gptrs.optimizer.passes.late_casts import LATE_CASTS
from gptrs.optimizer.passes.loop_invariants import LOOP_INVARIANTS
from gptrs.optimizer.passes.pad_folding import PAD_FOLDING
from gptrs.optimizer.passes.patch_folding import PATCH_FOLDING
from gptrs.optimizer.passes.region_simplification import REGION_SIMPLIFICATION
from gptrs.optimizer.passes.reshape_folding import RESHAPE_FOLDING
from gptrs.optimizer.passes.reverse_folding import REVERSE_FOLDING
from gptrs.optimizer.passes.select_folding import SELECT_FOLDING
from gptrs.optimizer.passes.slice_folding import SLICE_FOLDING
from gptrs.optimizer.passes.strength_reduction import STRENGTH_REDUCTION
from gptrs.optimizer.passes.tile_folding import TILE_FOLDING
from gptrs.optimizer.passes.transpose_folding import TRANSPOSE_FOLDING
from gptrs.optimizer.passes.unit_dims import UNIT_DIMS
from gptrs.optimizer.rounds import FIRST_ROUNDS, LAST_ROUNDS, rounds
from gptrs.optimizer.stage import Observer, Stage
from gptrs.quick_dataclass import dataclass

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
"""Rewrites that make a program smaller, whatever its sizes and numbers are."""

SPECIALIZATIONS: tuple[RewritePass, ...] = (UNIT_DIMS, STRENGTH_REDUCTION)
"""Rewrites that make use of sizes and numbers; they come last, after patterns were matched."""


def _together(name: str, passes: tuple[RewritePass, ...]) -> RewritePass:
    # One worklist for all of them: each uncovers work for the others, to any depth of nesting.
    return RewritePass(name, tuple(rewrite for pass_ in passes for rewrite in pass_.rewrites))


CANONICALIZATION = _together("canonicalization", FOLDINGS)
SPECIALIZATION = _together("specialization", (*FOLDINGS, *SPECIALIZATIONS))

PIPELINE: tuple[Pass, ...] = (
    DEAD_CODE,
    CANONICALIZATION,
    COMMON_SUBEXPRESSIONS,
    REGION_SIMPLIFICATION,
    LOOP_INVARIANTS,
)
"""The passes of the first stage, in this order; where there is an evaluator, constants are folded
after it. The last stage is the same but for `SPECIALIZATION` in the place of `CANONICALIZATION`."""


@dataclass(frozen=True)
class Pipeline:
    """The optimization of a program for one backend, in two halves.

    Between them the caller may cut out what depends on parameters alone (see
    `gptrs.optimizer.parameter_folding`). The first half brings a program into its canonical form,
    in which equal computations look alike, and lets the backend replace what it does not take
    (`legalize`). In front of that the backend claims composites, and `inlining` takes apart all
    others. In the second half the backend puts instructions together (`fuse`), and what that
    left behind is cleaned up, with an eye on sizes and numbers. Every stage keeps what the program
    computes, bit for bit, and its signature. `GPTRS_OPT_PRE_ITERS` and `GPTRS_OPT_POST_ITERS` bound
    the rounds of the first and the last stage; with 0 it does not run.
    """

    inlining: Inlining = Inlining(calls=False)
    """Whose claims count, and which functions stay."""
    legalize: tuple[Pass, ...] = ()
    fuse: tuple[Pass, ...] = ()
    evaluate: Evaluator | None = None
    """Computes constants; without it they stay as they are."""
    verify: bool = False
    """Whether the program is checked after every pass."""
    observe: Observer | None = None
    """Called after every pass."""

    def before_folding(self, program: Program) -> Program:
        """Return `program` in canonical form, and as the backend wants it."""
        return self._run(
            program,
            Stage("inline", (self.inlining,)),
            Stage("canonicalize", self._with_constants(PIPELINE), rounds(FIRST_ROUNDS)),
            Stage("legalize", self.legalize),
        )

    def after_folding(self, program: Program) -> Program:
        """Fuse what the backend puts together, and clean up what that left behind."""
        last = tuple(SPECIALIZATION if each is CANONICALIZATION else each for each in PIPELINE)
        return self._run(
            program,
            Stage("fuse", self.fuse),
            Stage("clean up", self._with_constants(last), rounds(LAST_ROUNDS)),
        )

    def run(self, program: Program) -> Program:
        """Both halves, one after the other."""
        return self.after_folding(self.before_folding(program))

    def _with_constants(self, passes: tuple[Pass, ...]) -> tuple[Pass, ...]:
        return passes if self.evaluate is None else (*passes, ConstantFolding(self.evaluate))

    def _run(self, program: Program, *stages: Stage) -> Program:
        for stage in stages:
            program = stage.run(program, verify=self.verify, observe=self.observe)
        return program


def optimize(
    program: Program, *, verify: bool = False, evaluate: Evaluator | None = None
) -> Program:
    """Return a program that computes the same, bit for bit, with less.

    `program` itself if it is minimal.

    Which of the NaNs comes out is not said by PTIR, and may change.

    Functions, their parameters, and the number and types of their results stay as they are. With
    `verify`, the program is checked after every pass, and ProgramError says which one broke what.
    With `evaluate`, constants are folded.
    """
    return Pipeline(verify=verify, evaluate=evaluate).run(program)


def find_pass(name: str, evaluate: Evaluator | None = None) -> Pass:
    """Return the pass called `name`, one of the pipeline or of the foldings.

    Raise UsageError lists them all.
    """
    passes = known_passes(evaluate)
    known = {pass_.name: pass_ for pass_ in passes}
    if name not in known:
        raise UsageError(f"there is no pass `{name}`", hint=f"known passes: {', '.join(known)}")
    return known[name]


def known_passes(evaluate: Evaluator | None = None) -> tuple[Pass, ...]:
    """Return every pass of gptrs itself.

    That for constants only with something to evaluate them.
    """
    folding = () if evaluate is None else (ConstantFolding(evaluate),)
    return (*PIPELINE, *folding, *FOLDINGS, SPECIALIZATION, *SPECIALIZATIONS)
