"""The kit compares what a backend claims with decompositions, and tells of idle claims."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection

import numpy as np
import pytest

from gptrs.backend.op_table import OpTable, require_supported
from gptrs.errors import ProgramError, UnsupportedError, UsageError
from gptrs.ir import TensorType, dtypes
from gptrs.ir.attributes import Dictionary, FunctionName
from gptrs.ir.op import OPS
from gptrs.ir.ops.custom_call import Composite, CustomCall, functional_arguments
from gptrs_backend_ref.backend import RefBackend
from gptrs_backend_ref.kernels import TABLE
from gptrs_conformance.checks.claims import CHECKS, claim_check, require_claims
from gptrs_conformance.kit import run_check, run_conformance
from gptrs_conformance.op_support import composite_support


def claiming(softmax: Callable[..., np.ndarray], when: Callable[..., bool] | None = None):
    """The reference with a kernel for softmax."""
    table = TABLE.changed({})

    def kernel(call: CustomCall, x: np.ndarray) -> np.ndarray:
        made = softmax(x.astype(np.float64), call.attrs["axis"])
        return np.asarray(made).astype(call.results[0].dtype.numpy)

    table.composite("softmax.v1", when=when)(kernel)
    return backend_of(table)


def backend_of(table: OpTable[Callable[..., np.ndarray]]):
    """The reference with the kernels of a table, which claim functionals."""

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


def stale():
    """A kernel that keeps what it made for a shape, as of weights that it packs."""
    kept: dict[tuple[int, ...], np.ndarray] = {}
    return lambda x, axis: kept.setdefault(x.shape, right(x, axis))


def varying():
    """A kernel whose last digits differ from run to run."""
    runs = itertools.count()
    return lambda x, axis: right(x, axis) * (1 + next(runs) * 1e-6)


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (stale(), "which its decomposition gives"),
        (varying(), "the same inputs again"),
        (lambda x, axis: right(x.ravel(order="K").reshape(x.shape), axis), "on transposed views"),
        (lambda x, axis: right(np.nan_to_num(x), axis), "large and hidden"),
        (lambda x, axis: right(x, axis) * (1 + (x.size > 64)), "a vector"),
    ],
    ids=["kept by its shape", "varies", "reads memory in order", "without NaN", "long rows"],
)
def test_a_claim_that_is_wrong_for_some_runs_and_operands_fails(wrong, reason: str):
    outcome = run_check(claiming(wrong), claim_check("softmax"))
    assert outcome.status == "fail"
    assert reason in outcome.reason


def test_a_claim_that_never_fires_is_told_with_its_reasons():
    idle = claiming(right, when=lambda op, operands: operands[0].rank > 9)
    with pytest.raises(UnsupportedError, match=r"no use of `softmax` is claimed: .*f32\["):
        require_claims("softmax", idle)


def test_what_is_not_claimed_has_nothing_to_show():
    for check in CHECKS:
        assert run_check(RefBackend(), check).status == "pass"


def few_ops(softmax: Callable[..., np.ndarray], ops: Collection[str] = ()):
    """The reference with a kernel for softmax, and no other ops than these."""
    backend = claiming(softmax)
    refusal, compiled = backend.refusal, backend.compile

    def refuses(op, operands, results):
        few = op.name in ("custom_call", *ops)
        return refusal(op, operands, results) if few else f"`{op.name}` (not one of few)"

    def compile_few(program, roles):
        require_supported(backend, program)
        return compiled(program, roles)

    backend.refusal, backend.compile = refuses, compile_few
    return backend


def test_without_the_ops_of_the_decomposition_numpy_says_what_is_right():
    assert run_check(few_ops(right), claim_check("softmax")).status == "pass"
    outcome = run_check(few_ops(lambda x, axis: right(x, axis) * 1.001), claim_check("softmax"))
    assert outcome.status == "fail"
    assert outcome.reason.endswith("which NumPy gives")


def test_a_claim_that_is_named_has_to_be_made():
    report = run_conformance(claiming(right), "smoke", ops=["neg", "softmax", "gelu"])
    assert report.checks == {"claims of softmax": "pass", "claims of gelu": "refused"}
    assert report.coverage.keys() == {"neg"}
    only = run_conformance(claiming(right), "smoke", ops=["softmax"])
    assert (only.passed, only.coverage) == (1, {})
    with pytest.raises(UsageError, match="no op `silu`"):
        run_conformance(RefBackend(), "smoke", ops=["silu"])


def test_the_name_of_an_op_that_is_a_functional_too_stands_for_both():
    report = run_conformance(RefBackend(), "smoke", ops=["layer_norm"])
    assert report.checks == {"claims of layer_norm": "pass"}
    assert report.coverage.keys() == {"layer_norm"}
    table = TABLE.changed({})
    table.composite("layer_norm.v1")(lambda call, x, *rest: x)
    wrong = run_conformance(backend_of(table), "smoke", ops=["layer_norm"])
    assert wrong.checks == {"claims of layer_norm": "fail"}


def test_who_computes_a_functional():
    found = composite_support(few_ops(right, ops=OPS.keys() - {"max_pool", "reduce_window"}))
    assert found["softmax"].keys() == {"kernel"}
    assert found["max_pool"].keys() == {"refused"}
    assert found["gelu"].keys() == {"decomposition"}


def test_backends_of_any_name_claim_and_kernels_get_arguments_by_name():
    table = OpTable[Callable[..., np.ndarray]]("My-GPU")

    @table.composite("rms_norm.v1")
    def kernel(call: CustomCall, *arrays: np.ndarray) -> np.ndarray:
        return np.array(sorted(functional_arguments(call, arrays)))

    type_ = TensorType(dtypes.f32, (3,))
    names = FunctionName("f"), "weight x"
    op = Composite("rms_norm.v1", *names, Dictionary.of(epsilon=0.5))
    call = table.claim(op, [type_, type_], [type_])
    assert isinstance(call, CustomCall)
    assert call.result_types([type_, type_]) == (type_,)
    assert call.target == "my_gpu.rms_norm.v1"
    found = table.find(call, [type_, type_], [type_])
    assert found is kernel
    assert found(call, np.ones(3), np.ones(3)).tolist() == ["epsilon", "weight", "x"]
    assert functional_arguments(call, ("a", "b")) == {"epsilon": 0.5, "weight": "a", "x": "b"}
    with pytest.raises(UsageError, match="takes 2 named tensors, got 1"):
        functional_arguments(call, ("a",))
    with pytest.raises(ProgramError, match="needs 1 distinct names of operands, got `weight x`"):
        call.infer(type_)
