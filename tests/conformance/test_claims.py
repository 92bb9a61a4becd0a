"""The kit compares what a backend claims with decompositions, and tells of idle claims."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gptrs.errors import UnsupportedError
from gptrs.ir.ops.custom_call import CustomCall
from gptrs_backend_ref.backend import RefBackend
from gptrs_backend_ref.kernels import TABLE
from gptrs_conformance.checks.claims import CHECKS, require_claims
from gptrs_conformance.kit import run_check


def claiming(softmax: Callable[..., np.ndarray], when: Callable[..., bool] | None = None):
    """The reference with a kernel for softmax."""
    table = TABLE.changed({})

    def kernel(call: CustomCall, x: np.ndarray) -> np.ndarray:
        made = softmax(x.astype(np.float64), call.attrs["axis"])
        return np.asarray(made).astype(call.results[0].dtype.numpy)

    table.composite("softmax.v1", when=when)(kernel)

    class Claiming(RefBackend):
        def __init__(self) -> None:
            super().__init__(table)

        def claim(self, op, operands, results):
            return table.claim(op, operands, results)

    return Claiming()


def right(x: np.ndarray, axis: int) -> np.ndarray:
    powers = np.exp(x - x.max(axis=axis, keepdims=True, initial=-np.inf))
    return powers / powers.sum(axis=axis, keepdims=True)


def test_a_claim_is_compared_with_the_decomposition():
    calls: list[int] = []

    def counted(x: np.ndarray, axis: int) -> np.ndarray:
        calls.append(axis)
        return right(x, axis)

    require_claims("softmax", claiming(counted))
    assert len(set(calls)) > 1


@pytest.mark.parametrize(
    "wrong",
    [lambda x, axis: right(x, -1 - axis % x.ndim), lambda x, axis: right(x, axis) * 1.001],
    ids=["the wrong axis", "too far off"],
)
def test_a_claim_that_computes_something_else_fails(wrong: Callable[..., np.ndarray]):
    (check,) = [check for check in CHECKS if check.name == "claims of softmax"]
    outcome = run_check(claiming(wrong), check)
    assert outcome.status == "fail"
    assert "softmax" in outcome.reason
    assert outcome.reason.endswith("which its decomposition gives")


def test_a_claim_that_never_fires_is_told_with_its_reasons():
    idle = claiming(right, when=lambda op, operands: operands[0].rank > 9)
    with pytest.raises(UnsupportedError, match=r"no use of `softmax` is claimed: .*f32\["):
        require_claims("softmax", idle)


def test_what_is_not_claimed_has_nothing_to_show():
    for check in CHECKS:
        assert run_check(RefBackend(), check).status == "pass"
