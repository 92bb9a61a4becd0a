"""A case of each op on each element type, those at the edges of a type, all errors, no elements."""

from __future__ import annotations

import pytest

from backend_jax.many_cases import fits_together, problems
from gptrs.api.backends import op_support
from gptrs.backend.contract import Backend
from gptrs.ir.op import OPS
from gptrs_conformance import kit
from gptrs_conformance.op_case import OpCase, cases, legal_dtypes
from gptrs_conformance.op_runner import run_case

assert kit.LEVELS, "importing the kit registers the cases"


REFUSED = {("rng_normal", "f64")}
"""What the backend does not claim, by op and element type."""


def _sample(op_name: str) -> list[OpCase]:
    """Return the first case of each element type, and all that look at the edges of one.

    Of one type also those without elements.
    """
    op = OPS[op_name]
    chosen: list[OpCase] = []
    empty: list[OpCase] = []
    for dtype in legal_dtypes(op):
        if (op_name, dtype.name) in REFUSED:
            continue
        first, *others = cases(op, dtype)
        chosen += [first, *(case for case in others if case.label == "edges" or case.error)]
        empty = empty or [case for case in others if any(not array.size for array in case.inputs)]
    return chosen + empty


def test_what_is_refused_is_known(jax_backend: Backend) -> None:
    support = op_support(jax_backend)
    missing = {
        (name, dtype)
        for name, of_types in support.items()
        for dtype, takes in of_types.items()
        if takes != "all"
    }
    assert missing == REFUSED


@pytest.mark.parametrize("op_name", sorted(OPS))
def test_ops(op_name: str, jax_backend: Backend) -> None:
    chosen = _sample(op_name)
    together = [case for case in chosen if fits_together(case)]
    wrong = problems(jax_backend, together) if together else []
    alone = [case for case in chosen if not fits_together(case)]
    for case in alone[:4]:
        outcome = run_case(jax_backend, case)
        if outcome.status != "pass":
            wrong.append(f"{op_name} ({case.label}): {outcome.reason}")
    assert not wrong, "\n".join(wrong)
