"""Inference with symbolic dims agrees with inference after specialization, for every op."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator

import pytest

from gptrs.errors import ProgramError
from gptrs.ir import OPS, Op, Signature, TensorType, dtypes
from gptrs.ir.lexer import Lexer
from gptrs.ir.ops import contraction, creation, indexing, layout, quantization, sorting, window
from gptrs.ir.symbolic_dim import substituted, symbol
from gptrs.ir.type_text import read_type
from gptrs_conformance.kit import cases_of
from gptrs_conformance.op_case import ROWS, OpCase

Sizes = dict[int, int]
Lift = Callable[[int], int]

LIFTS: dict[str, Lift] = {
    "any size": symbol,
    "at least what it was": lambda dim: symbol(dim) + dim,
    "a multiple of what it was": lambda dim: symbol(dim) * dim,
}
"""Dims of 2 and more become symbols, those of one size the same, so that equal dims stay equal."""

BY_HAND = {"constant", "call", "composite", "custom_call", "while"}
"""Ops whose cases have no dims, or whose result types come from elsewhere (test_specialize.py)."""


def symbolic(dim: int, lift: Lift) -> int:
    return lift(dim) if 1 < dim < 1024 else dim


def lifted(type_: TensorType, lift: Lift) -> TensorType:
    return type_.with_shape(tuple(symbolic(dim, lift) for dim in type_.shape))


def static(type_: TensorType, sizes: Sizes) -> TensorType:
    return type_.with_shape(tuple(substituted(dim, sizes) for dim in type_.shape))


def with_attributes(op: Op, names: set[str], change: Callable[[int], int]) -> Op:
    """`op` with every entry of the tuples of integers called `names` changed."""
    values = {name: getattr(op, name) for name in op.attribute_types}
    for name in names:
        if values[name] is not None:
            values[name] = tuple(map(change, values[name]))
    return type(op)(**values)


def variants(op: Op, lift: Lift) -> Iterator[tuple[Op, set[str]]]:
    """`op` itself, and with symbols in its tuples of integers: the shape-like ones, and each."""
    tuples = {name for name in op.attribute_types if type(getattr(op, name)) is tuple}
    for names in (set(), tuples & {"shape", "sizes"}, *({name} for name in sorted(tuples))):
        yield with_attributes(op, names, lambda dim: symbolic(dim, lift)), names


def check(case: OpCase, op: Op, names: set[str], lift: Lift, kept: int) -> bool:
    """Infer with symbols, all operands but the last `kept` lifted; whether the op allows that.

    If it does, then it must give the same after the symbols have got sizes, whatever they are; 0
    alone may be refused by then, since an op may demand elements.
    """
    types = [TensorType.of(array) for array in case.inputs]
    count = len(types) - kept
    operands = [*(lifted(type_, lift) for type_ in types[:count]), *types[count:]]
    regions = [region.signature for region in case.regions]
    bodies = [
        Signature(*(tuple(lifted(each, lift) for each in side) for side in (s.params, s.results)))
        for s in regions
    ]
    try:
        found = op.result_types(operands, bodies)
    except ProgramError:
        return False
    rng = random.Random(0)
    for least in (0, 1, 1):
        sizes = {dim: rng.randint(least, 9) for dim in range(1024)}
        special = with_attributes(op, names, lambda dim, at=sizes: substituted(dim, at))
        inputs = [static(type_, sizes) for type_ in operands]
        inner = [
            Signature(*(tuple(static(e, sizes) for e in side) for side in (s.params, s.results)))
            for s in bodies
        ]
        try:
            wanted = special.result_types(inputs, inner)
        except ProgramError:
            assert least == 0, f"{op} allows {operands} and refuses {inputs}"
            continue
        assert tuple(static(type_, sizes) for type_ in found) == wanted
    return any(not type_.is_static for type_ in (*operands, *found))


@pytest.mark.long
@pytest.mark.sample(30)
@pytest.mark.parametrize("name", sorted(set(OPS) - BY_HAND))
def test_symbolic_inference_agrees_with_the_static_one(name: str) -> None:
    *_, dtype = ROWS[OPS[name]]
    allowed = sum(
        check(case, op, names, lift, kept)
        for case in cases_of(OPS[name], dtype)
        for lift in LIFTS.values()
        for op, names in variants(case.op, lift)
        for kept in (0, 1)  # a vector of starts has the length of the rank
    )
    assert allowed, "no case could be inferred with symbols"


def types(*texts: str) -> list[TensorType]:
    return [read_type(Lexer(text)) for text in texts]


N, M = symbol(0), symbol(1)


@pytest.mark.parametrize(
    ("op", "operands", "result"),
    [
        (layout.Reshape((-1, 2)), ["f32[?0, 4]"], "f32[2*?0, 2]"),
        (layout.Reshape((N + 1, -1)), ["f32[?0*?1+?1, 3]"], "f32[?0+1, 3*?1]"),
        (layout.Reshape((M, N)), ["f32[?0, ?1]"], "f32[?1, ?0]"),
        (layout.Concat(0), ["f32[?0]", "f32[?1]", "f32[3]"], "f32[?0+?1+3]"),
        (layout.BroadcastTo((N, 4)), ["f32[4]"], "f32[?0, 4]"),
        (layout.BroadcastTo((5, N)), ["f32[1, ?0]"], "f32[5, ?0]"),
        (layout.Slice((1,), (N,)), ["f32[?0+1]"], "f32[?0]"),
        (layout.Slice((N,), (2,)), ["f32[?0+?1+2]"], "f32[2]"),
        (layout.Pad((1,), (N,), (1,)), ["f32[?0+1]"], "f32[3*?0+2]"),
        (layout.Tile((N,)), ["f32[?1]"], "f32[?0*?1]"),
        (creation.Iota((N,), 0, dtypes.ui4), [], "ui4[?0]"),
        (contraction.DotGeneral((1,), (0,)), ["f32[?0, ?1]", "f32[?1, 3]"], "f32[?0, 3]"),
        (window.ReduceWindow("max", (3,), (2,), (1, 1)), ["f32[2*?0]"], "f32[?0]"),
        (window.ReduceWindow("max", (3,), (2,), (1, 1)), ["f32[?0]"], "f32[floor((?0+1)/2)]"),
        (quantization.Dequantize(dtypes.f32, 0, 4), ["si4[8*?0]", "f32[2*?0]", "si32[2*?0]"],
         "f32[8*?0]"),
        (indexing.Take(), ["f32[?0, 4]", "si32[?1]"], "f32[?1, 4]"),
    ],
)  # fmt: skip
def test_inferred_types(op: Op, operands: list[str], result: str) -> None:
    assert [str(type_) for type_ in op.result_types(types(*operands))] == [result]


@pytest.mark.parametrize(
    ("op", "operands", "message"),
    [
        (layout.Reshape((-1, 2)), ["f32[?0]"], "does not keep the number of elements, ?0"),
        (layout.Reshape((-1, 2)), ["f32[2*?0+1]"], "does not keep the number of elements, 2*?0+1"),
        (layout.Reshape((N,)), ["f32[?1]"], "does not keep the number of elements, ?1"),
        (layout.BroadcastTo((N,)), ["f32[2]"], "needs each dim, aligned at the right, equal or 1"),
        (layout.Slice((0,), (3,)), ["f32[?0]"], "cannot tell whether `?0` < 3"),
        (layout.Slice((0,), (N + 1,)), ["f32[?0]"], "reads up to ?0+1 on axis 0, past its size"),
        (layout.Pad((0,), (-1,)), ["f32[?0]"], "cannot tell whether `?0-1` < 0"),
        (layout.Transpose((N,)), ["f32[2]"], "needs a permutation of 1 axes, got [?0]"),
        (layout.Reverse((N,)), ["f32[2]"], "cannot tell whether `?0` < 1"),
        (contraction.DotGeneral((0,), (0,)), ["f32[?0]", "f32[?1]"],
         "pairs contract axis 0 of size ?0 with 0 of ?1"),
        (sorting.TopK(2), ["f32[?0]"], "cannot tell whether `?0` >= 2"),
        (sorting.Sort(0), ["f32[?0]", "f32[3]"], "needs operands of one shape"),
        (window.ReduceWindow("max", (3,), (2,)), ["f32[?0]"],
             "cannot tell whether `floor((?0+1)/2)-1` < 0"),
        (window.ReduceWindow("max", (3,)), ["f32[?0]"], "cannot tell whether `?0-2` < 0"),
    ],
)  # fmt: skip
def test_refusals(op: Op, operands: list[str], message: str) -> None:
    with pytest.raises(ProgramError, match=re.escape(message)):
        op.result_types(types(*operands))
