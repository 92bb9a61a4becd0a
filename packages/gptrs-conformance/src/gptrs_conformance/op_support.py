"""The ops and element types that a backend claims, without running anything."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from gptrs.backend.contract import Backend
from gptrs.backend.op_table import refusals_of
from gptrs.capture.fallback.parts_executable import fallback_of
from gptrs.ir.op import OPS
from gptrs_conformance import cases as cases  # registers the rows
from gptrs_conformance.op_case import OpCase, legal_dtypes
from gptrs_conformance.op_case import cases as cases_of
from gptrs_conformance.op_runner import prepared, program_of

Support = Literal["all", "some", "fallback", "none"]


def op_support(backend: Backend) -> dict[str, dict[str, Support]]:
    """By op and element type, how many cases of the conformance kit `backend` does not refuse.

    Covers the types on which the op is defined, by the type that selects its kernel. `some`: it
    depends on the other types, the attributes or the shapes of the case. `fallback`: the backend
    refuses all of them, and the one that it falls back to runs some.
    """
    fallback = fallback_of(backend)
    return {
        name: {
            dtype.name: _support(backend, fallback, list(cases_of(op_class, dtype)))
            for dtype in legal_dtypes(op_class)
        }
        for name, op_class in sorted(OPS.items())
    }


def _support(backend: Backend, fallback: Backend | None, op_cases: Sequence[OpCase]) -> Support:
    refused = {bool(refusals_of(backend, prepared(program_of(case)))) for case in op_cases}
    if len(refused) > 1:
        return "some"
    if refused != {True}:
        return "all"
    elsewhere = fallback is not None and _support(fallback, None, op_cases) != "none"
    return "fallback" if elsewhere else "none"
