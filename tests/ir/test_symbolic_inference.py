"""Inference with symbolic dims agrees with inference after specialization, for every op."""

from __future__ import annotations

import pytest

from gptrs.errors import ProgramError
from gptrs.ir import OPS, Signature, TensorType
from gptrs.ir.op import Op
from gptrs.ir.symbolic_dim import substituted, symbol
from gptrs.testing.kit import cases_of
from gptrs.testing.op_case import ROWS, OpCase

STATIC_ONLY = {"constant", "rng_uniform", "rng_normal", "iota", "custom_call", "call", "while"}
"""Ops whose cases have no operand that could be symbolic, or whose attributes state the types."""


def symbolic(type_: TensorType, change: bool) -> TensorType:
    """Each dim of 2 and more as a symbol of its own size, so that equal dims stay equal."""
    if not change:
        return type_
    return type_.with_shape(tuple(symbol(dim) if dim > 1 else dim for dim in type_.shape))


def with_symbols(op: Op) -> Op:
    """`op` with symbols in the attributes that state a shape."""
    values = {name: getattr(op, name) for name in op.attribute_types}
    for name in {"shape", "sizes"} & set(values):
        values[name] = tuple(symbol(dim) if dim > 1 else dim for dim in values[name])
    return type(op)(**values)


def bodies(case: OpCase, change: bool) -> list[Signature]:
    found = [region.signature for region in case.regions]
    return [
        Signature(
            tuple(symbolic(type_, change) for type_ in body.params),
            tuple(symbolic(type_, change) for type_ in body.results),
        )
        for body in found
    ]


def static(type_: TensorType) -> TensorType:
    return type_.with_shape(
        tuple(substituted(dim, {number: number for number in type_.symbols}) for dim in type_.shape)
    )


def agrees(case: OpCase, op: Op, but_last: bool) -> bool:
    """Whether the symbolic result exists; if so it must become the static one."""
    operands = [TensorType.of(array) for array in case.inputs]
    count = len(operands) - but_last
    lifted = [symbolic(type_, index < count) for index, type_ in enumerate(operands)]
    try:
        found = op.result_types(lifted, bodies(case, change=True))
    except ProgramError:
        return False
    assert tuple(map(static, found)) == case.op.result_types(operands, bodies(case, change=False))
    return any(not type_.is_static for type_ in (*lifted, *found))


@pytest.mark.parametrize("name", sorted(OPS))
def test_symbolic_inference_agrees_with_the_static_one(name: str) -> None:
    cases = [case for dtype in list(ROWS[OPS[name]])[-3:] for case in cases_of(OPS[name], dtype)]
    inferred = sum(
        agrees(case, op, but_last)
        for case in cases
        for op in (case.op, with_symbols(case.op))
        for but_last in (False, True)  # a vector of starts has the length of the rank
    )
    assert inferred or name in STATIC_ONLY, "no case could be inferred with symbols"
