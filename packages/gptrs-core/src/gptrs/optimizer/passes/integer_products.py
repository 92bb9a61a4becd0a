"""Products of dequantized numbers as products of their codes: sums of integers, scaled once.

What quantized networks of other formats multiply is `(codes - zero point) * scale` in floats. The
scales come out of a sum, and what is left are integers, whose sums in si32 are exact. The result is
rounded in fewer steps than a sum of floats: it differs in the last bits, and is nearer to the exact
one. That is no rewrite for every backend: those without kernels for 8-bit integers are faster with
floats. Backends with such kernels run the pass before parameters are folded.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

from msgspec import Struct

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.op import Op
from gptrs.ir.ops.contraction import DotGeneral
from gptrs.ir.ops.creation import Constant
from gptrs.ir.ops.elementwise import Add, Cast, Clamp, Div, Mul, RoundNearestEven, Sub
from gptrs.ir.ops.indexing import Take
from gptrs.ir.ops.layout import BroadcastTo, Reshape, Slice, Transpose
from gptrs.ir.ops.window import ReduceWindow
from gptrs.ir.program import Region, Value
from gptrs.ir.size_guards import Shape
from gptrs.ir.symbolic_dim import SymbolicDim
from gptrs.optimizer.pass_base import RegionPass
from gptrs.optimizer.rewrite.rewriter import InstructionNode, Rewriter

_CODES = tuple(dtype for dtype in dtypes.INTEGERS if dtype.bits <= 8)
"""The element types of codes."""
_BYTES = (dtypes.si8, dtypes.ui8)
_LEAST_SCALE = 2.0**-100
_PARTS: dict[type[Op], DType] = {Mul: dtypes.f32, Sub: dtypes.si32}
"""The ops that apply a scale and a zero point, and their types."""
_NARROWER = {dtypes.f32: (*_CODES, dtypes.si32), dtypes.si32: _CODES}
"""The types that a tensor of each type may have been widened from."""


class Spread(Struct, frozen=True):
    """A number for all elements of a tensor, or a vector of one for each index along `axis`."""

    value: Value
    axis: int | None = None


class Widened(Struct, frozen=True):
    """A tensor, `(codes - zero) * scale`, as it is computed of codes of at most 8 bits."""

    codes: Value
    layout: tuple[Op, ...]
    """Transposes, reshapes, slices and pools of largest that give codes the shape of the tensor."""
    zero: Spread | None = None
    """Subtracted in si32."""
    scale: Spread | None = None
    """Multiplied in f32."""

    def arranged(self, rewriter: Rewriter, before: InstructionNode) -> Value:
        """Insert the layout of the codes, and return them in the shape of the tensor."""
        value = self.codes
        for op in self.layout:
            (value,) = rewriter.insert(op, [value], before).results
        return value


def find_widened(value: Value, rewriter: Rewriter) -> Widened | None:
    """Return how a tensor of f32 or si32 is computed of codes; None if it is of anything else."""
    layout: list[Op] = []
    shapes: list[Shape] = []
    parts: dict[type[Op], Spread] = {}
    while value.type.dtype not in _CODES:
        node = rewriter.definition(value)
        if node is None or not node.operands or value.type.dtype not in _NARROWER:
            return None
        op, below = node.op, node.operands[0]
        # Two reshapes in a row are one, which keeps an axis that the first one splits and the
        # second joins.
        if isinstance(op, Reshape) and layout and isinstance(layout[0], Reshape):
            shapes[0] = below.type.shape  # the later reshape does it alone
        elif isinstance(op, Transpose | Reshape | Slice) or is_largest_of_window(op):
            layout.insert(0, op)
            shapes.insert(0, below.type.shape)
        # Each part once, in this type: a subtraction in f32 may round, and is no zero point.
        elif type(op) not in parts and _PARTS.get(type(op)) is value.type.dtype:
            found = _beside(node, rewriter)
            spread = found and _moved(found[1], layout, shapes)
            if found is None or spread is None:
                return None
            below, parts[type(op)] = found[0], spread
        # Only casts that widen: one that narrows changes numbers.
        elif not isinstance(op, Cast) or below.type.dtype not in _NARROWER[value.type.dtype]:
            return None
        value = below
    scale = parts.get(Mul)
    # A negative scale turns the largest code into the smallest number; with 0 or NaN, no number is
    # the largest.
    if scale is not None and any(is_largest_of_window(op) for op in layout):
        number = number_of(scale.value, rewriter)
        if number is None or not 0 < number < math.inf:
            return None
    return Widened(value, tuple(layout), parts.get(Sub), scale)


def is_largest_of_window(op: Op) -> bool:
    """Return whether an op takes the largest numbers of windows: they have the largest codes."""
    return isinstance(op, ReduceWindow) and op.kind == "max" and op.out_dtype is None


def number_of(value: Value, rewriter: Rewriter) -> float | None:
    """Return the number that a tensor of one element is known to be."""
    node = rewriter.definition(value)
    if node is None or not isinstance(node.op, Constant) or value.type.size != 1:
        return None
    return float(node.op.value.array.reshape(()))


def _beside(node: InstructionNode, rewriter: Rewriter) -> tuple[Value, Spread] | None:
    """Return the operand of a node that is a tensor, and the one that is spread over it.

    Either may be the first, but what is subtracted is the second.
    """
    first, second = node.operands
    orders = ((first, second), (second, first))
    for value, other in orders if node.op.commutative else orders[:1]:
        spread = find_spread(other, rewriter)
        if spread is not None:
            return value, spread
    return None


def find_spread(value: Value, rewriter: Rewriter) -> Spread | None:
    """Return what is repeated along all axes of a tensor, or along all but one."""
    if value.type.size == 1:
        return Spread(value)
    node = rewriter.definition(value)
    if node is None or not isinstance(node.op, BroadcastTo):
        return None
    (small,) = node.operands
    first = value.type.rank - small.type.rank
    axes = [first + axis for axis, size in enumerate(small.type.shape) if size != 1]
    if len(axes) > 1:
        return None
    return Spread(small, axes[0] if axes else None)


def _moved(spread: Spread, layout: Sequence[Op], shapes: Sequence[Shape]) -> Spread | None:
    """Return the spread behind transposes and reshapes; None if one breaks up its axis."""
    axis = spread.axis
    for op, shape in zip(layout, shapes, strict=True):
        if axis is None:
            return spread
        if isinstance(op, Transpose):
            axis = op.permutation.index(axis)
        elif isinstance(op, Reshape):
            axis = _kept_axis(shape, op.shape, axis)
            if axis is None:
                return None
        elif not isinstance(op, Slice) or op.sizes[axis] != shape[axis]:
            return None
    return Spread(spread.value, axis)


def _kept_axis(before: Shape, after: Shape, axis: int) -> int | None:
    """Return where a reshape has an axis; None if it is split or joined with others."""
    count = math.prod(before[:axis])
    return next(
        (
            each
            for each, size in enumerate(after)
            if size == before[axis] and math.prod(after[:each]) == count
        ),
        None,
    )


def emit_spread(spread: Spread, shape: Shape, rewriter: Rewriter, before: InstructionNode) -> Value:
    """Insert what repeats a number or vector over a tensor of a shape."""
    small = tuple(shape[axis] if axis == spread.axis else 1 for axis in range(len(shape)))
    value = spread.value
    small = () if spread.axis is None else small
    if value.type.shape != small:
        (value,) = rewriter.insert(Reshape(small), [value], before).results
    if small == shape:
        return value
    return rewriter.insert(BroadcastTo(shape), [value], before).results[0]


def emit_vector(spread: Spread, rewriter: Rewriter, before: InstructionNode) -> Value:
    """Insert what makes a spread number a tensor of rank 0, and a spread vector one of rank 1."""
    shape = () if spread.axis is None else (spread.value.type.size,)
    if spread.value.type.shape == shape:
        return spread.value
    return rewriter.insert(Reshape(shape), [spread.value], before).results[0]


def fits_bits(left: Value, right: Value, count: int, bits: int) -> bool:
    """Return whether sums of `count` products of codes, less zero points, have so many bits."""
    most = ((1 << left.type.dtype.bits) - 1) * ((1 << right.type.dtype.bits) - 1)
    # A free size has no bound, so sums over it could wrap.
    return not isinstance(count, SymbolicDim) and count * most < 1 << bits


def multiply_codes(region: Region) -> Region:
    """`dot((a - p) * s, (b - q) * t) -> dot(a - p, b - q) * (s * t)`, in si32 but for the scales.

    For codes a and b, where no sum exceeds 32 bits, and scales that do not change along the
    contracted axes.
    """
    rewriter = Rewriter(region)
    for node in list(rewriter):
        op = node.op
        if isinstance(op, DotGeneral) and _sums_f32(node, op):
            _multiply(node, op, rewriter)
    return rewriter.region()


def _sums_f32(node: InstructionNode, op: DotGeneral) -> bool:
    types = [value.type for value in (*node.operands, *node.results)]
    same = all(type_.dtype is dtypes.f32 for type_ in types)
    return same and op.accumulator(types[0]) is dtypes.f32


def _multiply(node: InstructionNode, op: DotGeneral, rewriter: Rewriter) -> None:
    sides = [find_widened(value, rewriter) for value in node.operands]
    left, right = sides
    if left is None or right is None:
        return
    lhs, rhs = (value.type for value in node.operands)
    count = math.prod(lhs.shape[axis] for axis in op.contract_lhs)
    # 31, since the sum is signed: differences to a zero point may be of either sign.
    if not fits_bits(left.codes, right.codes, count, 31):
        return
    (result,) = node.results
    spreads: list[Spread] = []
    free = op.free_lhs(lhs), op.free_rhs(rhs)
    begins = len(op.batch_lhs), len(op.batch_lhs) + len(free[0])
    for side, batch, own, begin in zip(
        (left, right), (op.batch_lhs, op.batch_rhs), free, begins, strict=True
    ):
        if side.scale is None:
            continue
        axis = side.scale.axis
        places = {each: place for place, each in enumerate(batch)}
        places |= {each: begin + place for place, each in enumerate(own)}
        # A scale that changes along the contracted axis cannot be taken out of the sum.
        if axis is not None and axis not in places:
            return
        spreads.append(Spread(side.scale.value, None if axis is None else places[axis]))
    whole = [_less_zero(side, rewriter, node) for side in (left, right)]
    axes = DotGeneral(op.contract_lhs, op.contract_rhs, op.batch_lhs, op.batch_rhs)
    sums = rewriter.insert(axes, whole, node)
    # The only rounding of the sum; in floats each addition may round.
    (made,) = rewriter.insert(Cast(dtypes.f32), sums.results, node).results
    factor = _factor(spreads, result.type.shape, rewriter, node)
    if factor is not None:
        (made,) = rewriter.insert(Mul(), [made, factor], node).results
    rewriter.replace(result, made)
    rewriter.erase_dead(node)


def _less_zero(side: Widened, rewriter: Rewriter, before: InstructionNode) -> Value:
    """Insert codes less their zero point, si32."""
    (value,) = rewriter.insert(Cast(dtypes.si32), [side.arranged(rewriter, before)], before).results
    if side.zero is None:
        return value
    zero = emit_spread(side.zero, value.type.shape, rewriter, before)
    return rewriter.insert(Sub(), [value, zero], before).results[0]


def _factor(
    spreads: Sequence[Spread], shape: Shape, rewriter: Rewriter, before: InstructionNode
) -> Value | None:
    """Insert the product of the scales, which is computed before it is repeated."""
    if not spreads:
        return None
    first, *others = spreads
    if not others:
        return emit_spread(first, shape, rewriter, before)
    # The product of two small scales, then one multiplication of the large tensor.
    axes = sorted({each.axis for each in spreads if each.axis is not None})
    small = tuple(size if axis in axes else 1 for axis, size in enumerate(shape)) if axes else ()
    values: list[Value] = []
    for each in spreads:
        size = each.value.type.size
        own = tuple(size if axis == each.axis else 1 for axis in range(len(small)))
        value = each.value
        if value.type.shape != own:
            (value,) = rewriter.insert(Reshape(own), [value], before).results
        if own != small:
            (value,) = rewriter.insert(BroadcastTo(small), [value], before).results
        values.append(value)
    (product,) = rewriter.insert(Mul(), values, before).results
    if small == shape:
        return product
    return rewriter.insert(BroadcastTo(shape), [product], before).results[0]


INTEGER_PRODUCTS = RegionPass("integer-products", multiply_codes)


def keep_codes(region: Region) -> Region:
    """`quantize(f(dequantize(codes))) -> f(codes)`, where f moves numbers or takes the largest.

    For one scale, which is a positive number, and one zero point, the same in both: `(c * s) / s`
    rounds to c again.
    """
    rewriter = Rewriter(region)
    for node in list(rewriter):
        if isinstance(node.op, Cast) and node.op.dtype in _BYTES and not node.erased:
            _keep(node, rewriter)
    return rewriter.region()


def _keep(node: InstructionNode, rewriter: Rewriter) -> None:
    found = find_quantized(node, rewriter)
    side = None if found is None else find_widened(found.value, rewriter)
    (result,) = node.results
    if found is None or side is None or side.codes.type.dtype is not result.type.dtype:
        return
    if side.scale is None or found.step is None or side.scale.axis is not None:
        return
    lowest, highest = found.limits
    least, most = (-128, 127) if result.type.dtype is dtypes.si8 else (0, 255)
    scale, step = (number_of(each.value, rewriter) for each in (side.scale, found.step))
    zeros = [
        0.0 if each is None else number_of(each.value, rewriter)
        for each in (side.zero, found.middle)
    ]
    same = scale is not None and scale == step and None not in zeros and zeros[0] == zeros[1]
    # Of subnormal scales the product may be rounded too far away.
    if not same or scale is None or not _LEAST_SCALE < scale < math.inf:
        return
    if lowest <= least and highest >= most and (side.zero is None or side.zero.axis is None):
        rewriter.replace(result, side.arranged(rewriter, node))
        rewriter.erase_dead(node)


class Quantized(Struct, frozen=True):
    """`cast(clamp(round(value / step) + middle, *limits))`; without `step` it is not divided."""

    value: Value
    step: Spread | None
    middle: Spread | None
    limits: tuple[float, float]
    nodes: tuple[InstructionNode, ...]
    """The instructions, the last one first."""


def find_quantized(node: InstructionNode, rewriter: Rewriter) -> Quantized | None:
    """Return how codes of 8 bits, the result of a cast, are rounded; None if they are not."""
    if not isinstance(node.op, Cast) or node.op.dtype not in _BYTES:
        return None
    clamp = rewriter.definition(node.operands[0])
    if clamp is None or not isinstance(clamp.op, Clamp):
        return None
    spreads = [find_spread(each, rewriter) for each in clamp.operands[1:]]
    numbers = [None if each is None else number_of(each.value, rewriter) for each in spreads]
    nodes, made = [node, clamp], rewriter.definition(clamp.operands[0])
    middle, step = None, None
    if made is not None and isinstance(made.op, Add):
        found = _beside(made, rewriter)
        if found is None:
            return None
        nodes.append(made)
        made, middle = rewriter.definition(found[0]), found[1]
    if made is None or not isinstance(made.op, RoundNearestEven) or None in numbers:
        return None
    nodes.append(made)
    value = made.operands[0]
    made = rewriter.definition(value)
    if made is not None and isinstance(made.op, Div):
        step = find_spread(made.operands[1], rewriter)
        if step is not None and step.axis is None:
            nodes.append(made)
            value = made.operands[0]
        else:
            step = None
    if middle is not None and middle.axis is not None:
        return None
    low, high = (cast("float", each) for each in numbers)
    return Quantized(value, step, middle, (low, high), tuple(nodes))


KEPT_CODES = RegionPass("kept-codes", keep_codes)


def take_codes(region: Region) -> Region:
    """`take((codes - p) * s, i) -> (take(codes, i) - p) * s`: only rows that are read are widened.

    For a zero point and a scale of the whole table, or that are repeated along the axis it is read
    along.
    """
    rewriter = Rewriter(region)
    for node in list(rewriter):
        if isinstance(node.op, Take):
            _take(node, rewriter)
    return rewriter.region()


def _take(node: InstructionNode, rewriter: Rewriter) -> None:
    table, rows = node.operands
    side = find_widened(table, rewriter)
    if side is None or side.layout or side.codes is table:
        return
    if any(each is not None and each.axis is not None for each in (side.zero, side.scale)):
        return
    (result,) = node.results
    (value,) = rewriter.insert(node.op, [side.codes, rows], node).results
    middle = table.type.dtype if side.zero is None else dtypes.si32
    (value,) = rewriter.insert(Cast(middle), [value], node).results
    shape = result.type.shape
    if side.zero is not None:
        zero = emit_spread(side.zero, shape, rewriter, node)
        (value,) = rewriter.insert(Sub(), [value, zero], node).results
    if value.type.dtype is not table.type.dtype:
        (value,) = rewriter.insert(Cast(table.type.dtype), [value], node).results
    if side.scale is not None:
        scale = emit_spread(side.scale, shape, rewriter, node)
        (value,) = rewriter.insert(Mul(), [value, scale], node).results
    rewriter.replace(result, value)
    rewriter.erase_dead(node)


TAKEN_CODES = RegionPass("taken-codes", take_codes)
