"""Emitters of the ops that multiply and sum over shared axes."""

from __future__ import annotations

import math

from msgspec import Struct

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.literal_text import Scalar
from gptrs.ir.op import Op
from gptrs.ir.ops import contraction as contraction_ops
from gptrs.ir.ops import normalization as normalization_ops
from gptrs.ir.ops import quantization as quantization_ops
from gptrs.ir.ops import random as random_ops
from gptrs.ir.ops import window as window_ops
from gptrs.ir.program import Value
from gptrs.ir.size_guards import Shape
from gptrs.ir.tensor_type import TensorType
from gptrs_conformance.program_generator.draft import NUMBERS, Draft, StepDeclined, emits
from gptrs_conformance.program_generator.elements import (
    NOTHING_KNOWN,
    Facts,
    Style,
    computed,
    epsilon,
    joined,
    magnitude,
    random_literal,
)
from gptrs_conformance.program_generator.elementwise import combinable, combined, kindred, kinds_of


@emits(contraction_ops.DotGeneral, dtypes=NUMBERS, weight=4)
def dots(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Emit a product of any values."""
    x = draft.operand(dtype)
    y = draft.search(lambda value: value.type.dtype is dtype and _shares(value, x))
    if y is None or draft.dice.chance(0.3):
        y = draft.fresh(TensorType(dtype, tuple(draft.dice.shuffled(x.type.shape))))
    dot(draft, x, y)


def dot(draft: Draft, x: Value, y: Value) -> None:
    """Over any axes that two values share, with any of them as a batch."""
    dtype = x.type.dtype
    batch: list[tuple[int, int]] = []
    contracted: list[tuple[int, int]] = []
    free = draft.dice.shuffled(range(y.type.rank))
    for axis in draft.dice.shuffled(range(x.type.rank)):
        partner = next((b for b in free if y.type.shape[b] == x.type.shape[axis]), None)
        where = draft.dice.pick((batch, contracted, contracted, None))
        if partner is not None and where is not None:
            free.remove(partner)
            where.append((axis, partner))
    x, y = combinable(draft, x, "sum"), combinable(draft, y, "sum")
    op = contraction_ops.DotGeneral(
        tuple(a for a, _ in contracted),
        tuple(b for _, b in contracted),
        tuple(a for a, _ in batch),
        tuple(b for _, b in batch),
        kindred(draft, dtype),
        kindred(draft, dtype),
    )
    count = math.prod(x.type.shape[a] for a, _ in contracted)
    draft.emit(op, x, y, facts=_facts(draft, op, x, y, count))


def _shares(y: Value, x: Value) -> bool:
    return bool(set(y.type.shape) & set(x.type.shape)) or not y.type.rank


def _facts(draft: Draft, dot: contraction_ops.DotGeneral, x: Value, y: Value, count: int) -> Facts:
    dtype = dot.out_dtype or x.type.dtype
    if dtype.is_integer:
        return NOTHING_KNOWN
    a, b = draft.facts[x], draft.facts[y]
    bound = 2.0 * count * a.scale * b.scale
    kept = 4.0 * max(bound, 1.0) * epsilon(dot.accumulator(x.type)) * max(count, 1)
    spread = 2.0 * count * (a.distance * b.scale + b.distance * a.scale)
    return computed(dtype, bound, spread + kept)


# Emitters of the ops that look at every position of a sliding box.


class Lists(Struct, frozen=True):
    """The lists that describe a window."""

    window: Shape
    strides: Shape | None
    padding: Shape | None
    dilation: Shape | None


def random_lists(draft: Draft, dims: Shape) -> Lists:
    """Return a window for axes of these dims, mostly one that fits."""
    dice = draft.dice
    window = tuple(dice.between(1, max(1, min(dim, 3))) for dim in dims)
    strides = tuple(dice.pick((1, 1, 2, 3)) for _ in dims)
    padding = tuple(dice.pick((0, 0, 1, 2)) for _ in (*dims, *dims))
    dilation = tuple(dice.pick((1, 1, 1, 2)) for _ in dims)
    return Lists(
        window,
        strides if dice.chance(0.6) else None,
        padding if dice.chance(0.5) else None,
        dilation if dice.chance(0.3) else None,
    )


@emits(window_ops.ReduceWindow, dtypes=NUMBERS, weight=2)
def window_reductions(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Positions in the padding alone included."""
    x = draft.operand(dtype)
    kind = draft.dice.pick(kinds_of(dtype))
    x = combinable(draft, x, kind)
    accumulator = kindred(draft, dtype) if kind in ("sum", "prod") else None
    lists = random_lists(draft, x.type.shape)
    reduce = window_ops.ReduceWindow(
        kind,
        lists.window,
        lists.strides,
        lists.padding,
        lists.dilation,
        accumulator,
        kindred(draft, dtype),
    )
    count = math.prod(lists.window)
    kept = reduce.accumulator(x.type)
    known = combined(draft, x, kind, count, kept, reduce.out_dtype or dtype)
    bound = known.bound if kind in ("sum", "prod") else math.inf
    draft.emit(reduce, x, facts=Facts(bound, known.error))


@emits(window_ops.ExtractPatches, dtypes=dtypes.ALL)
def patches(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Over up to three spatial axes."""
    x = draft.operand(dtype, least_rank=2)
    lists = random_lists(draft, x.type.shape[1:-1])
    value = random_literal(draft.dice, TensorType(dtype, ()), "special")
    given = draft.dice.chance(0.5)
    extract = window_ops.ExtractPatches(
        lists.window,
        lists.strides,
        lists.padding,
        lists.dilation,
        Scalar(value) if given else None,
    )
    border = Facts(magnitude(value) if given else 0.0)
    draft.emit(extract, x, facts=joined(draft.facts[x], border))


# Emitters of the ops that map floats to integers of few bits and back.


STYLES: tuple[Style, ...] = ("mild", "mild", "ordinary", "special")


def _granularity(draft: Draft, shape: Shape) -> tuple[int | None, int | None]:
    """Return an axis and a group size, or none."""
    if not shape or draft.dice.chance(0.3):
        return None, None
    axis = draft.dice.below(len(shape))
    sizes = [size for size in range(1, shape[axis] + 1) if shape[axis] % size == 0]
    return axis, draft.dice.pick(sizes) if sizes and draft.dice.chance(0.5) else None


def _parameters(draft: Draft, shape: Shape) -> tuple[Value, Value]:
    """Return a scale of any float type and a zero point, one of them at times tensor-wide."""
    scale, zero_point = (() if draft.dice.chance(0.1) else shape for _ in range(2))
    type_ = TensorType(dtypes.si32, zero_point)
    return _scale(draft, scale), draft.constant(type_, draft.dice.pick(STYLES))


def _scale(draft: Draft, shape: Shape) -> Value:
    floats = [dtype for dtype in dtypes.FLOATS if dtype in draft.rules.dtypes]
    if not floats:
        raise StepDeclined
    dtype = dtypes.f32 if dtypes.f32 in floats and draft.dice.chance(0.5) else None
    type_ = TensorType(dtype or draft.dice.pick(floats), shape)
    if draft.dice.chance(0.7):
        return draft.constant(type_, draft.dice.pick(STYLES))
    return draft.like(type_, exact=True)


def _target(draft: Draft, choices: tuple[DType, ...]) -> DType:
    used = [dtype for dtype in choices if dtype in draft.palette]
    return draft.dice.pick(used if used and draft.dice.chance(0.5) else choices)


@emits(quantization_ops.Quantize, dtypes=dtypes.FLOATS, weight=2)
def quantizations(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Of an exact operand, per tensor, axis or group."""
    x = draft.operand(dtype, exact=True)
    target = _target(draft, quantization_ops.QUANTIZED)
    quantize = quantization_ops.Quantize(target, *_granularity(draft, x.type.shape))
    draft.emit(quantize, x, *_parameters(draft, quantize.parameter_shape(x.type)))


@emits(quantization_ops.Dequantize, dtypes=quantization_ops.QUANTIZED, weight=2)
def dequantizations(draft: Draft, op: type[Op], dtype: DType) -> None:
    """To any float type, exact since the scale is."""
    x = draft.operand(dtype)
    target = _target(draft, dtypes.FLOATS)
    dequantize = quantization_ops.Dequantize(target, *_granularity(draft, x.type.shape))
    draft.emit(dequantize, x, *_parameters(draft, dequantize.parameter_shape(x.type)))


@emits(quantization_ops.DequantizeAffine, dtypes=quantization_ops.QUANTIZED, weight=2)
def affine_dequantizations(draft: Draft, op: type[Op], dtype: DType) -> None:
    """To any float type, with a scale and a bias that are exact."""
    x = draft.operand(dtype)
    target = _target(draft, dtypes.FLOATS)
    dequantize = quantization_ops.DequantizeAffine(target, *_granularity(draft, x.type.shape))
    shape = dequantize.parameter_shape(x.type)
    draft.emit(dequantize, x, _scale(draft, shape), _scale(draft, shape))


@emits(quantization_ops.UnpackBits, dtypes=(dtypes.ui8,))
def unpacked_bits(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Along any axis whose bits a width divides: 8, and those that 8 divides, always do."""
    x = draft.operand(dtype)
    if not x.type.rank:
        raise StepDeclined
    axis = draft.dice.below(x.type.rank)
    widths = [bits for bits in range(1, 9) if 8 * x.type.shape[axis] % bits == 0]
    draft.emit(quantization_ops.UnpackBits(draft.dice.pick(widths), axis), x)


@emits(quantization_ops.Requantize, dtypes=quantization_ops.QUANTIZED)
def requantizations(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Between any two; either may be for the whole tensor."""
    x = draft.operand(dtype)
    target = _target(draft, quantization_ops.QUANTIZED)
    requantize = quantization_ops.Requantize(target, *_granularity(draft, x.type.shape))
    shape = requantize.parameter_shape(x.type)
    pairs = [_parameters(draft, () if draft.dice.chance(0.2) else shape) for _ in ("in", "out")]
    draft.emit(requantize, x, *pairs[0], *pairs[1])


# Emitters of the ops that shift and scale elements by their own statistics.


@emits(normalization_ops.LayerNorm, dtypes=dtypes.FLOATS, weight=2)
def layer_norms(draft: Draft, op: type[Op], dtype: DType) -> None:
    """With an epsilon that keeps small variances from blowing up what was rounded."""
    x = draft.tame(draft.operand(dtype, least_rank=1), 4.0)
    axis = draft.dice.below(x.type.rank)
    vector = TensorType(dtype, (x.type.shape[axis],))
    scale, bias = (draft.tame(draft.like(vector), 2.0) for _ in range(2))
    small = draft.dice.pick((1.0, 0.25, 0.01))
    known = [draft.facts[value] for value in (x, scale, bias)]
    normal = 2.0 * known[0].scale / small**0.5
    rounded = known[0].distance + 64.0 * epsilon(dtype.accumulator)
    distance = (
        2.0 * rounded / small**0.5 * known[1].scale + normal * known[1].distance + known[2].distance
    )
    facts = computed(dtype, normal * known[1].scale + known[2].scale, distance)
    draft.emit(normalization_ops.LayerNorm(small, axis), x, scale, bias, facts=facts)


# Emitters of the ops that make random numbers out of a seed.


SEED = TensorType(dtypes.ui64, (2,))


@emits(random_ops.RngUniform, dtypes=random_ops.RngUniform.allowed)
def uniforms(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Of any seed."""
    draft.emit(random_ops.RngUniform(draft.shape(), dtype), _seed(draft), facts=Facts(1.0))


@emits(random_ops.RngNormal, dtypes=random_ops.RngNormal.allowed)
def normals(draft: Draft, op: type[Op], dtype: DType) -> None:
    """Of any seed; no number is larger than 9."""
    draft.emit(random_ops.RngNormal(draft.shape(), dtype), _seed(draft), facts=Facts(16.0))


def _seed(draft: Draft) -> Value:
    return draft.constant(SEED, "bits") if draft.dice.chance(0.5) else draft.like(SEED)
