"""Calls of functionals as users make them: composites that backends may claim."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct

from gptrs import functionals as F
from gptrs.capture.graph import Argument, GraphSlice
from gptrs.capture.tensor import Tensor
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.ops.custom_call import Composite
from gptrs.ir.program import Function, Program, Value
from gptrs.ir.tensor_type import TensorType
from gptrs_conformance.program_generator.draft import Draft, StepDeclined
from gptrs_conformance.program_generator.elements import computed, epsilon

FLOATS: tuple[DType, ...] = (dtypes.f16, dtypes.bf16, dtypes.f32, dtypes.f64)
_REACH = 4.0
"""Greatest magnitude of an operand: sums, powers and roots of such numbers are well conditioned."""
_EPSILON = 0.5
"""Of norms: rows that vary little are not blown up, which would show how their sums are rounded."""


class _Call(Struct, frozen=True):
    """A call on operands whose results have no magnitude above `bound`.

    `terms` says of how many rounded numbers each is made.
    """

    function: Callable[..., Tensor]
    operands: Sequence[Value]
    bound: float
    terms: float


def functional_call(draft: Draft, dtype: DType) -> None:
    """Emit the call of a functional on exact values, all of `dtype`."""
    call = draft.dice.pick(_CALLS)(draft, dtype)
    program = _captured(call)
    inner = {function.name: function for function in program.functions if function.name != "main"}
    (made,) = program.main.body.instructions
    if not isinstance(made.op, Composite) or not all(_is_allowed(draft, f) for f in inner.values()):
        raise StepDeclined
    known = draft.library.decompositions
    added = inner.keys() - known.keys()  # equal names are equal functions
    known.update(inner)
    kept = _REACH * call.terms * call.bound * epsilon(dtype.accumulator)
    facts = computed(dtype, call.bound, kept)
    try:
        draft.emit(made.op, *call.operands, facts=facts)
    except StepDeclined:
        for name in added:
            del known[name]
        raise


def _captured(call: _Call) -> Program:
    leaves = [Argument(value.type, at, None) for at, value in enumerate(call.operands)]
    return GraphSlice([call.function(*map(Tensor, leaves)).source]).lower(leaves)


def _is_allowed(draft: Draft, function: Function) -> bool:
    return all(
        draft.rules.allow(
            made.op,
            [value.type for value in made.operands],
            [value.type for value in made.results],
        )
        for made in function.body.walk()
    )


def _operand(draft: Draft, dtype: DType) -> Value:
    """Return an exact value with elements, of rank 1 or more and of small numbers or NaN."""

    def fits(value: Value) -> bool:
        return 0 not in value.type.shape

    return draft.tame(draft.operand(dtype, fits, least_rank=1, exact=True), _REACH)


def _mild(draft: Draft, dtype: DType, *shape: int) -> Value:
    return draft.constant(TensorType(dtype, shape), "mild")


def _vectors(draft: Draft, dtype: DType, size: int, most: int) -> list[Value]:
    return [_mild(draft, dtype, size) for _ in range(draft.dice.between(0, most))]


def _softmax(draft: Draft, dtype: DType) -> _Call:
    x = _operand(draft, dtype)
    axis = draft.dice.pick((-1, -1, draft.dice.below(x.type.rank)))
    function = draft.dice.pick((F.softmax, F.safe_softmax))
    return _Call(partial(function, axis=axis), [x], 1.0, 8.0 + x.type.shape[axis])


def _gelu(draft: Draft, dtype: DType) -> _Call:
    x = _operand(draft, dtype)
    approximate = draft.dice.pick(("none", "tanh", "quick"))
    return _Call(partial(F.gelu, approximate=approximate), [x], _REACH, 8.0)


def _norm(draft: Draft, dtype: DType) -> _Call:
    x = _operand(draft, dtype)
    size = x.type.shape[-1]
    function, most = draft.dice.pick(((F.layer_norm, 2), (F.rms_norm, 1)))
    vectors = _vectors(draft, dtype, size, most)
    bound = 2 * (2 * _REACH / math.sqrt(_EPSILON) + 1)
    return _Call(partial(function, epsilon=_EPSILON), [x, *vectors], bound, 8.0 + size)


def _linear(draft: Draft, dtype: DType) -> _Call:
    x = _operand(draft, dtype)
    inputs, outputs = x.type.shape[-1], draft.dice.between(1, 5)
    weight = _mild(draft, dtype, outputs, inputs)
    bias = _vectors(draft, dtype, outputs, 1)
    return _Call(F.linear, [x, weight, *bias], 2 * _REACH * inputs + 2, 2.0 + inputs)


def _convolution(draft: Draft, dtype: DType) -> _Call:
    channels, outputs = draft.dice.between(1, 3), draft.dice.between(1, 4)
    height, width = draft.dice.between(2, 5), draft.dice.between(2, 5)
    type_ = TensorType(dtype, (1, height, width, channels))
    x = draft.tame(draft.like(type_, exact=True), _REACH)
    window = draft.dice.between(1, 2), draft.dice.between(1, 2)
    depthwise = draft.dice.chance(0.3)
    weight = (channels, 1, *window) if depthwise else (outputs, channels, *window)
    function = partial(
        F.depthwise_conv2d if depthwise else F.conv2d,
        stride=draft.dice.between(1, 2),
        padding=draft.dice.pick((0, 1, "same")),
    )
    terms = math.prod(weight[1:])
    operands = [x, _mild(draft, dtype, *weight), *_vectors(draft, dtype, weight[0], 1)]
    return _Call(function, operands, 2 * _REACH * terms + 2, 2.0 + terms)


def _attention(draft: Draft, dtype: DType) -> _Call:
    kv_heads, head_dim = draft.dice.between(1, 2), draft.dice.between(1, 4)
    heads, queries = kv_heads * draft.dice.between(1, 2), draft.dice.between(1, 3)
    keys = queries + draft.dice.between(0, 2)
    type_ = TensorType(dtype, (1, heads, queries, head_dim))
    # A NaN in a value may hide behind a mask or not: values are given.
    query = draft.tame(draft.like(type_, exact=True), _REACH)
    rest = [_mild(draft, dtype, 1, kv_heads, keys, head_dim) for _ in range(2)]
    function = partial(F.attention, causal=draft.dice.chance(0.5))
    return _Call(function, [query, *rest], 2.0, _REACH * (head_dim + keys + 8.0))


_CALLS: tuple[Callable[[Draft, DType], _Call], ...] = (
    *(_softmax, _gelu, _norm, _norm, _linear, _convolution, _attention),
)
