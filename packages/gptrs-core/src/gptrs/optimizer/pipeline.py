"""Which passes run on a program, and in which order."""

from __future__ import annotations

from gptrs.errors import ProgramError, UsageError
from gptrs.ir import verify as verify_program
from gptrs.ir.program import Program
from gptrs.optimizer.pass_base import Pass, RewritePass
from gptrs.optimizer.passes.broadcast_folding import BROADCAST_FOLDING
from gptrs.optimizer.passes.common_subexpressions import COMMON_SUBEXPRESSIONS
from gptrs.optimizer.passes.dead_code import DEAD_CODE
from gptrs.optimizer.passes.reshape_folding import RESHAPE_FOLDING
from gptrs.optimizer.passes.transpose_folding import TRANSPOSE_FOLDING

FOLDINGS: tuple[RewritePass, ...] = (
    RESHAPE_FOLDING,
    TRANSPOSE_FOLDING,
    BROADCAST_FOLDING,
)
"""Rewrites that make a program smaller and are always worth it."""

# One worklist for all of them: each uncovers work for the others, to any depth of nesting.
CANONICALIZATION = RewritePass(
    "canonicalization", tuple(rewrite for folding in FOLDINGS for rewrite in folding.rewrites)
)

PIPELINE: tuple[Pass, ...] = (
    DEAD_CODE,
    CANONICALIZATION,
    COMMON_SUBEXPRESSIONS,
)
"""The passes in the order in which `optimize` runs them."""

MAX_ROUNDS = 8
"""How often the pipeline runs at most; it stops as soon as a round changes nothing."""


def optimize(program: Program, *, verify: bool = False) -> Program:
    """A program that computes the same, bit for bit, with less; `program` itself if it is minimal.

    Functions, their parameters, and the number and types of their results stay as they are. With
    `verify`, the program is checked after every pass, and ProgramError says which one broke what.
    """
    for _ in range(MAX_ROUNDS):
        before = program
        for pass_ in PIPELINE:
            program = pass_.apply(program)
            if verify:
                _verify_after(pass_, program)
        if program is before:
            break
    return program


def _verify_after(pass_: Pass, program: Program) -> None:
    try:
        verify_program(program)
    except ProgramError as error:
        raise ProgramError(f"after the pass `{pass_.name}`: {error}") from error


def find_pass(name: str) -> Pass:
    """The pass called `name`, one of the pipeline or of the foldings; UsageError lists them all."""
    known = {pass_.name: pass_ for pass_ in (*PIPELINE, *FOLDINGS)}
    if name not in known:
        raise UsageError(f"there is no pass `{name}`", hint=f"known passes: {', '.join(known)}")
    return known[name]
