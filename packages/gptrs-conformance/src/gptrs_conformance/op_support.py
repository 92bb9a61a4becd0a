"""The ops, element types and functionals that a backend claims, without running anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from gptrs.backend.contract import Backend
from gptrs.backend.op_table import refusals_of
from gptrs.functionals.dispatch.registry import composite_names
from gptrs.ir.op import OPS
from gptrs.ir.ops.custom_call import Declined
from gptrs.ir.program import Program
from gptrs.optimizer.passes.cleanup import Inlining
from gptrs_conformance import cases as cases  # registers the rows
from gptrs_conformance.checks.claims import captured, claims_of
from gptrs_conformance.op_case import OpCase, legal_dtypes
from gptrs_conformance.op_case import cases as cases_of
from gptrs_conformance.op_runner import cut_of, prepared, program_of
from gptrs_conformance.uses import ALL_USES

Support = Literal["all", "some", "fallback", "none"]
Computed = Literal["kernel", "decomposition", "fallback", "refused"]
"""Who computes a functional: a kernel of the backend, its ops, or in part another backend."""


def op_support(backend: Backend) -> dict[str, dict[str, Support]]:
    """By op and element type, how many cases of the conformance kit `backend` does not refuse.

    Covers the types on which the op is defined, by the type that selects its kernel. `some`: it
    depends on the other types, the attributes or the shapes of the case. `fallback`: the backend
    refuses all of them, and runs some together with the one that it falls back to.
    """
    return {
        name: {
            dtype.name: _support(backend, list(cases_of(op_class, dtype)))
            for dtype in legal_dtypes(op_class)
        }
        for name, op_class in sorted(OPS.items())
    }


def _support(backend: Backend, op_cases: Sequence[OpCase]) -> Support:
    programs = [prepared(program_of(case)) for case in op_cases]
    refused = {bool(refusals_of(backend, program)) for program in programs}
    if len(refused) > 1:
        return "some"
    if refused != {True}:
        return "all"
    return "fallback" if any(cut_of(backend, program) for program in programs) else "none"


def composite_support(backend: Backend) -> dict[str, dict[Computed, int]]:
    """By functional that backends may claim, how many uses of the kit are computed by whom.

    Uses are in f32, or of the types that they are defined for. `decomposition`: the backend claims
    no call of the use and runs all of its ops; `fallback`: it refuses some of them, which the
    backend that it falls back to runs; `refused`: nobody does.
    """
    counts = {name: Counter[Computed]() for name in composite_names()}
    for use in ALL_USES:
        if use.functional in counts:
            _, arrays = next(iter(use.cases()))
            program = captured(use, arrays)
            counts[use.functional][_computed(program, use.functional, backend)] += 1
    return {name: dict(found) for name, found in counts.items()}


def _computed(program: Program, functional: str, backend: Backend) -> Computed:
    claimed = any(
        not isinstance(each, Declined | None) for each in claims_of(program, functional, backend)
    )
    left = Inlining(backend.claim).apply(program)
    for each in backend.legalize():
        left = each.apply(left)
    reasons = refusals_of(backend, left)
    if not reasons:
        return "kernel" if claimed else "decomposition"
    return "refused" if cut_of(backend, prepared(program)) is None else "fallback"
