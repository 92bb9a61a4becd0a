"""Fusions of products and convolutions of quantized numbers into calls of integer kernels.

Codes are read as they are, their zero points and scales become operands, and what follows is taken
in as far as it fits: integers to add, a scale, a bias, ReLU, and the rounding to codes again.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gptrs.ir import dtypes
from gptrs.ir.attributes import Dictionary, DictionaryValue
from gptrs.ir.literal_text import Literal
from gptrs.ir.op import Op
from gptrs.ir.ops import elementwise
from gptrs.ir.ops.contraction import DotGeneral
from gptrs.ir.ops.creation import Constant
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.ops.elementwise import Bitcast, Cast, Mul, Xor
from gptrs.ir.ops.layout import BroadcastTo, Reshape
from gptrs.ir.ops.window import ExtractPatches
from gptrs.ir.program import Region, Value
from gptrs.ir.tensor_type import TensorType
from gptrs.optimizer.pass_base import RegionPass
from gptrs.optimizer.passes.integer_products import (
    Spread,
    Widened,
    emit_vector,
    find_quantized,
    find_spread,
    find_widened,
    fits_bits,
    keep_codes,
    multiply_codes,
    number_of,
    take_codes,
)
from gptrs.optimizer.rewrite.rewriter import InstructionNode, Rewriter
from gptrs_backend_numba.fusion.convolution_chain import with_channels_last
from gptrs_backend_numba.lowering.integer_products import (
    BYTES,
    EXTRA,
    INTEGER_CONV2D,
    INTEGER_DEPTHWISE,
    INTEGER_GROUPED,
    INTEGER_PRODUCT,
)
from gptrs_backend_numba.lowering.table import TABLE
from gptrs_backend_numba.schedule import CONV2D, DEPTHWISE, GROUPED

_MOVED = 128
_CONVOLUTIONS = {
    CONV2D: INTEGER_CONV2D, GROUPED: INTEGER_GROUPED, DEPTHWISE: INTEGER_DEPTHWISE
}  # fmt: skip
_WINDOW = ("window", "stride", "padding", "dilation")


class _Call(Struct, frozen=True):
    """A call with what has been taken of its users so far; `value` is the result."""

    target: str
    geometry: dict[str, DictionaryValue]
    sides: tuple[Widened, Widened]
    value: Value
    extra: dict[str, Spread]
    activation: str = "none"
    limits: tuple[float, float] = (0.0, 0.0)

    def taking(self, node: InstructionNode, **extra: Spread) -> _Call:
        """Return the call with more operands, and the result of its user."""
        return replace(self, value=node.results[0], extra={**self.extra, **extra})

    def has(self, *names: str) -> bool:
        """Return whether any of these operands was taken."""
        return any(name in self.extra for name in names)


def fuse_integers(region: Region) -> Region:
    """Return the region whose products and convolutions of codes are calls of integer kernels."""
    if not any(_reads_codes(made.op, made.operands) for made in region.instructions):
        return region
    region = multiply_codes(take_codes(keep_codes(with_channels_last(region))))
    rewriter = Rewriter(region)
    returned = frozenset(region.results)
    for node in list(rewriter):
        if node.erased or len(node.results) != 1:
            continue
        call = _product(node, rewriter) or _convolution(node, rewriter)
        if call is not None:
            _put(_extended(call, rewriter, returned), rewriter)
    return rewriter.region()


FUSE_INTEGERS = RegionPass("numba-fuse-integers", fuse_integers)
"""Before parameters are folded, which would widen the codes of weights."""


def _reads_codes(op: Op, operands: tuple[Value, ...]) -> bool:
    return (
        isinstance(op, Cast)
        and operands[0].type.dtype.is_integer
        and (operands[0].type.dtype.bits <= 8 and op.dtype in (dtypes.si32, dtypes.f32))
    )


def _product(node: InstructionNode, rewriter: Rewriter) -> _Call | None:
    """Return the call for a product of integers, of patches of images as well."""
    op = node.op
    if not isinstance(op, DotGeneral) or node.results[0].type.dtype is not dtypes.si32:
        return None
    lhs, rhs = node.operands
    axes = (op.contract_lhs, op.contract_rhs, op.batch_lhs, op.batch_rhs)
    right = find_widened(rhs, rewriter)
    if right is None or len(op.free_rhs(rhs.type)) != 1:
        return None
    made = rewriter.definition(lhs)
    last = lhs.type.rank - 1
    if made is not None and isinstance(made.op, ExtractPatches) and lhs.type.rank == 4:
        left = find_widened(made.operands[0], rewriter)
        if axes != ((last,), (0,), (), ()) or left is None:
            return None
        if made.op.value is not None:
            return None
        window = _window(made.op)
        return _checked(INTEGER_CONV2D, window, (left, right), node, op.free_rhs(rhs.type)[0])
    left = find_widened(lhs, rewriter)
    names = ("contract_lhs", "contract_rhs", "batch_lhs", "batch_rhs")
    if left is None:
        return None
    geometry: dict[str, DictionaryValue] = dict(zip(names, axes, strict=True))
    return _checked(INTEGER_PRODUCT, geometry, (left, right), node, op.free_rhs(rhs.type)[0])


def _window(op: ExtractPatches) -> dict[str, DictionaryValue]:
    """Return the attributes of the windows of images."""
    sizes = op.window, op.strides or (1, 1), op.padding or (0, 0, 0, 0), op.dilation or (1, 1)
    return dict(zip(_WINDOW, sizes, strict=True))


def _convolution(node: InstructionNode, rewriter: Rewriter) -> _Call | None:
    """Return the call for a convolution of dequantized images."""
    op = node.op
    if not isinstance(op, CustomCall) or op.target not in _CONVOLUTIONS:
        return None
    if op.attrs["scale"] or op.attrs["residual"] or op.attrs["activation"] != "none":
        return None
    x, weight, *shift = node.operands
    window = {name: op.attrs[name] for name in _WINDOW}
    depth, groups = weight.type.shape[0], weight.type.shape[1:-1]
    if groups:
        window["groups"] = groups[0]
        matrix = Reshape((depth, math.prod(weight.type.shape[1:])))
        flat = rewriter.insert(matrix, [weight], node)
        left, right = find_widened(x, rewriter), find_widened(flat.results[0], rewriter)
        rewriter.erase(flat)
    else:
        left, right = find_widened(x, rewriter), find_widened(weight, rewriter)
    if left is None or right is None or not fits_bits(left.codes, right.codes, depth, 31):
        return None
    call = _checked(_CONVOLUTIONS[op.target], window, (left, right), node, 1)
    if call is None:
        return None
    users = rewriter.users(node.results[0])
    plain = left.scale is None and right.scale is None and not shift
    exact = plain and fits_bits(left.codes, right.codes, depth, 24) and len(users) == 1
    if exact and isinstance(users[0].op, Cast) and users[0].op.dtype is dtypes.si32:
        return call.taking(
            users[0]
        )  # integers in floats, for want of such convolutions of integers
    scale = _joined_scale(left, right, rewriter, node)
    extra = {**call.extra, "scale": scale}
    return replace(call, extra=extra | ({"bias": Spread(shift[0], 0)} if shift else {}))


def _joined_scale(
    left: Widened, right: Widened, rewriter: Rewriter, before: InstructionNode
) -> Spread:
    """Insert the product of the scales of images and their weight."""
    values = [emit_vector(side.scale, rewriter, before) for side in (left, right) if side.scale]
    if not values:
        one = rewriter.insert(Constant(Literal.full(1.0, dtypes.f32)), [], before)
        return Spread(one.results[0])
    if len(values) == 1:
        return Spread(values[0], 0 if values[0].type.rank else None)
    shape = max((value.type.shape for value in values), key=len)
    wide = [
        value
        if value.type.shape == shape
        else rewriter.insert(BroadcastTo(shape), [value], before).results[0]
        for value in values
    ]
    (product,) = rewriter.insert(Mul(), wide, before).results
    return Spread(product, 0 if shape else None)


def _checked(
    target: str,
    geometry: dict[str, DictionaryValue],
    sides: tuple[Widened, Widened],
    node: InstructionNode,
    column_axis: int,
) -> _Call | None:
    """Return a call; None if scales or zero points are none that kernels take."""
    left, right = sides
    for spread, axis in (
        (left.zero, None), (left.scale, None), (right.zero, column_axis), (right.scale, column_axis)
    ):  # fmt: skip
        if spread is not None and spread.axis not in (None, axis):
            return None
    extra: dict[str, Spread] = {}
    if left.zero is not None:
        extra["zero"] = left.zero
    if right.zero is not None:
        extra["other_zero"] = right.zero
    return _Call(target, geometry, sides, node.results[0], extra)


# What follows a call.


def _extended(call: _Call, rewriter: Rewriter, returned: frozenset[Value]) -> _Call:
    """Return the call with all users that fit, one after another."""
    while call.value not in returned and call.value.type.dtype not in BYTES:
        users = rewriter.users(call.value)
        if len(users) != 1 or users[0].operands.count(call.value) != 1:
            break
        taken = _USERS.get(type(users[0].op))
        larger = None if taken is None else taken(call, users[0], rewriter)
        larger = larger or _rounded(call, users[0], rewriter, returned)
        if larger is None:
            break
        call = larger
    return call


def _other(call: _Call, user: InstructionNode, rewriter: Rewriter) -> Spread | None:
    """Return what an operation of two operands spreads over the call: a number, or columns."""
    first, second = user.operands
    other = second if first is call.value else first
    spread = find_spread(other, rewriter)
    last = call.value.type.rank - 1
    if spread is None and all(size == 1 for size in call.value.type.shape[:-1]):
        spread = Spread(other, last)  # a row, as the only one
    return spread if spread is not None and spread.axis in (None, last) else None


def _added(call: _Call, user: InstructionNode, rewriter: Rewriter) -> _Call | None:
    name = "term" if call.value.type.dtype is dtypes.si32 else "bias"
    spread = _other(call, user, rewriter)
    if spread is None or spread.axis is None or call.has(name) or call.activation != "none":
        return None
    return call.taking(user, **{name: spread})


def _converted(call: _Call, user: InstructionNode, rewriter: Rewriter) -> _Call | None:
    del rewriter
    to_floats = call.value.type.dtype is dtypes.si32 and user.results[0].type.dtype is dtypes.f32
    return call.taking(user) if to_floats else None


def _scaled(call: _Call, user: InstructionNode, rewriter: Rewriter) -> _Call | None:
    spread = _other(call, user, rewriter)
    plain = call.value.type.dtype is dtypes.f32 and call.activation == "none"
    if spread is None or not plain or call.has("scale", "bias"):
        return None
    return call.taking(user, scale=spread)


def _rectified(call: _Call, user: InstructionNode, rewriter: Rewriter) -> _Call | None:
    spread = _other(call, user, rewriter)
    if call.value.type.dtype is not dtypes.f32 or call.activation != "none":
        return None
    zero = spread is not None and number_of(spread.value, rewriter) == 0.0
    return replace(call.taking(user), activation="relu") if zero else None


def _clamped(call: _Call, user: InstructionNode, rewriter: Rewriter) -> _Call | None:
    x, *bounds = user.operands
    if call.value.type.dtype is not dtypes.f32 or call.activation != "none" or x is not call.value:
        return None
    spreads = [find_spread(each, rewriter) for each in bounds]
    found = [each and number_of(each.value, rewriter) for each in spreads]
    return replace(call.taking(user), activation="relu6") if found == [0.0, 6.0] else None


def _bounded(call: _Call, user: InstructionNode, rewriter: Rewriter) -> _Call | None:
    spread = _other(call, user, rewriter)
    six = spread is not None and number_of(spread.value, rewriter) == 6.0
    return (
        replace(call.taking(user), activation="relu6")
        if six and call.activation == "relu"
        else None
    )


_USERS: dict[type[Op], Callable[[_Call, InstructionNode, Rewriter], _Call | None]] = {
    elementwise.Add: _added,
    elementwise.Cast: _converted,
    elementwise.Mul: _scaled,
    elementwise.Maximum: _rectified,
    elementwise.Minimum: _bounded,
    elementwise.Clamp: _clamped,
}


_ROUNDING = (
    elementwise.Div, elementwise.RoundNearestEven, elementwise.Add, elementwise.Clamp
)  # fmt: skip


def _rounded(
    call: _Call, user: InstructionNode, rewriter: Rewriter, returned: frozenset[Value]
) -> _Call | None:
    """Return the call with `cast(clamp(round(x / step) + middle, least, most))` after it."""
    last = user
    while not isinstance(last.op, Cast):
        if not isinstance(last.op, _ROUNDING):
            return None
        (value,) = last.results
        users = rewriter.users(value)
        if len(users) != 1 or rewriter.reads(value) != 1 or value in returned:
            return None
        last = users[0]
    found = find_quantized(last, rewriter)
    if found is None or found.value is not call.value or found.nodes[-1] is not user:
        return None
    if found.middle is not None and not _is_whole(found.middle.value, rewriter):
        return None
    step = None if found.step is None else number_of(found.step.value, rewriter)
    if found.step is not None and (step is None or not 2.0**-100 <= step <= 2.0**100):
        return None
    least, most = found.limits
    lowest, highest = (-128, 127) if last.results[0].type.dtype is dtypes.si8 else (0, 255)
    if not lowest <= least <= most <= highest or not (least.is_integer() and most.is_integer()):
        return None
    given = {"step": found.step, "middle": found.middle}
    extra = {name: each for name, each in given.items() if each is not None}
    return _without_relu(replace(call.taking(last, **extra), limits=found.limits), rewriter)


def _without_relu(call: _Call, rewriter: Rewriter) -> _Call:
    """Return a call that rounds to codes, with its ReLU as the least code: that of 0.

    Steps are positive.
    """
    middle = number_of(call.extra["middle"].value, rewriter) if call.has("middle") else 0.0
    if call.activation != "relu" or middle is None:
        return call
    least, most = call.limits
    return replace(call, activation="none", limits=(min(max(least, middle), most), most))


def _is_whole(value: Value, rewriter: Rewriter) -> bool:
    """Return whether a number, f32, is known to be a zero point of 8 bits."""
    known = number_of(value, rewriter)
    if known is not None:
        return known.is_integer() and -128 <= known <= 255
    node = rewriter.definition(value)
    return node is not None and isinstance(node.op, Cast) and node.operands[0].type.dtype in BYTES


# Calls are put where the last instruction that they replace was.


def _put(call: _Call, rewriter: Rewriter) -> None:
    root = rewriter.definition(call.value)
    assert root is not None, "computed by the region"
    left, right = call.sides
    x = _as_bytes(left.arranged(rewriter, root), rewriter, root)
    weight = _as_bytes(right.arranged(rewriter, root), rewriter, root)
    extra = dict(call.extra)
    signed = None
    if call.target != INTEGER_DEPTHWISE:
        signed = _signed(weight, extra.get("other_zero"), rewriter, root)
    if signed is not None:
        weight, zero = signed
        extra.pop("other_zero", None)
        extra |= {} if zero is None else {"other_zero": zero}
    operands = [emit_vector(extra[name], rewriter, root) for name in EXTRA if name in extra]
    attrs = Dictionary.of(
        {**call.geometry, **{name: name in extra for name in EXTRA}},
        activation=call.activation,
        least=call.limits[0],
        most=call.limits[1],
    )
    op = CustomCall(call.target, (call.value.type,), attrs)
    types = [value.type for value in (x, weight, *operands)]
    if TABLE.refusal(op, types, op.results) is not None and _is_static(types):
        return
    made = rewriter.insert(op, [x, weight, *operands], root)
    rewriter.replace(call.value, made.results[0])
    rewriter.erase_dead(root)


def _is_static(types: list[TensorType]) -> bool:
    return all(type_.is_static for type_ in types)


def _as_bytes(value: Value, rewriter: Rewriter, before: InstructionNode) -> Value:
    """Return codes in bytes: those of fewer bits are widened to the type of 8 bits."""
    dtype = value.type.dtype
    wide = dtypes.si8 if dtype.kind == "signed" else dtypes.ui8
    return value if dtype is wide else rewriter.insert(Cast(wide), [value], before).results[0]


def _signed(
    weight: Value, zero: Spread | None, rewriter: Rewriter, before: InstructionNode
) -> tuple[Value, Spread | None] | None:
    """Return unsigned codes and their known zero point moved by 128; None for any others.

    Codes of weights are folded then, and a zero point of 128, as symmetric ones have it, vanishes.
    """
    node = None if zero is None else rewriter.definition(zero.value)
    if weight.type.dtype is not dtypes.ui8 or not weight.type.is_static:
        return None
    if zero is not None and (node is None or not isinstance(node.op, Constant)):
        return None
    shape = weight.type.shape
    (moved,) = rewriter.insert(Constant(Literal.full(_MOVED, dtypes.ui8)), [], before).results
    (moved,) = rewriter.insert(BroadcastTo(shape), [moved], before).results
    (codes,) = rewriter.insert(Xor(), [weight, moved], before).results
    (codes,) = rewriter.insert(Bitcast(dtypes.si8), [codes], before).results
    old = np.zeros((), np.int32) if node is None else cast("Constant", node.op).value.array
    new = np.asarray(old.astype(np.int32) - _MOVED)
    if not new.any():
        return codes, None
    made = rewriter.insert(Constant(Literal.of(new)), [], before)
    return codes, Spread(made.results[0], None if zero is None else zero.axis)
