"""Fusions of convolutions with the elementwise ops after them into one `custom_call`.

A convolution was claimed, or is a product over the channels of an image; what follows is a factor
and a term for each channel (batch normalization, a bias), a tensor to add (the other way around a
residual block), and ReLU, ReLU6, SiLU or hard-swish. Each is taken if nothing else reads what is
before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

from msgspec import Struct
from msgspec.structs import replace

from gptrs.ir import dtypes
from gptrs.ir.attributes import Dictionary
from gptrs.ir.op import Op
from gptrs.ir.ops import elementwise, layout
from gptrs.ir.ops.contraction import DotGeneral
from gptrs.ir.ops.creation import Constant
from gptrs.ir.ops.custom_call import CustomCall, Declined
from gptrs.ir.program import Region, Value
from gptrs.ir.size_guards import Shape, usual_size
from gptrs.optimizer.pass_base import RegionPass
from gptrs.optimizer.passes.slice_folding import without_zeros
from gptrs.optimizer.rewrite.rewriter import InstructionNode, Rewriter
from gptrs_backend_numba.cost_model import FEW_POSITIONS, forced_algorithm
from gptrs_backend_numba.fusion.convolution_chain import chained_convolutions
from gptrs_backend_numba.fusion.linear import GELU, is_shared
from gptrs_backend_numba.schedule import (
    BF16_CONV2D,
    BF16_GROUPED,
    CHAIN,
    CONV2D,
    DEPTHWISE,
    GROUPED,
)

_OPEN = frozenset({"none", "relu"})
"""The activations that more may follow: `minimum(maximum(x, 0), 6)` is relu6."""


_TARGETS = (CONV2D, DEPTHWISE, GROUPED)
_WINDOW = ("window", "stride", "padding", "dilation")


class _Fused(Struct, frozen=True):
    """A convolution with what has been taken of its users so far; `value` is the result."""

    target: str
    x: Value
    weight: Value
    window: dict[str, Shape]
    value: Value
    scale: Value | None = None
    shift: Value | None = None
    residual: Value | None = None
    activation: str = "none"

    def attributes(self) -> Dictionary:
        """Return the attributes of the call."""
        has = {name: getattr(self, name) is not None for name in ("scale", "shift", "residual")}
        return Dictionary.of({**self.window, **has, "activation": self.activation})


def fused_convolutions(region: Region) -> Region:
    """Return the region with its convolutions of f32 images as calls of this backend's kernels."""
    if forced_algorithm() == "gemm":
        return region
    rewriter = Rewriter(region)
    returned = frozenset(region.results)
    for node in list(rewriter):
        if node.erased or len(node.results) != 1:
            continue
        found = _claimed(node) or _product(node)
        extended = found and _extended(found, rewriter, returned)
        if extended and (extended is not found or isinstance(node.op, DotGeneral)):
            _put(extended, rewriter)
    return chained_convolutions(rewriter.region())


FUSE_CONVOLUTIONS = RegionPass("numba-fuse-convolutions", fused_convolutions)
"""To run when parameters have been folded."""

_ROUNDED = {CONV2D: BF16_CONV2D, GROUPED: BF16_GROUPED}


def round_convolutions(region: Region) -> Region:
    """Return the region whose convolutions round both operands, but not depthwise ones.

    Those are bound by what they read and write, which is f32.
    """
    rewriter = Rewriter(region)
    for node in list(rewriter):
        op = node.op
        if not isinstance(op, CustomCall):
            continue
        targets = {
            name: _ROUNDED[value]
            for name, value in op.attrs.items
            if op.target == CHAIN and isinstance(value, str) and value in _ROUNDED
        }
        target = _ROUNDED.get(op.target, op.target)
        if targets or target != op.target:
            attrs = Dictionary.of(dict(op.attrs.items) | targets)
            made = rewriter.insert(replace(op, target=target, attrs=attrs), node.operands, node)
            rewriter.replace(node.results[0], made.results[0])
            rewriter.erase(node)
    _add_gelu(rewriter)
    return rewriter.region()


def _add_gelu(rewriter: Rewriter) -> None:
    """Let rounded layers compute the GELU of their result, whose last bits the rounding hides."""
    if not any(isinstance(node.op, elementwise.Erf) for node in rewriter):
        return
    for node in reversed(list(rewriter)):
        if node.erased or len(node.results) != 1:
            continue
        call = GELU.find_call(node.results[0], rewriter.definition)
        made = call and rewriter.definition(call.operands["x"].value)
        if call is None or not made or is_shared(call, rewriter):
            continue
        op = made.op
        plain = isinstance(op, CustomCall) and op.target == BF16_CONV2D
        if isinstance(op, CustomCall) and plain and op.attrs["activation"] == "none":
            attrs = Dictionary.of(dict(op.attrs.items) | {"activation": "gelu"})
            root = rewriter.definition(call.result)
            assert root is not None, "GELU is computed"
            joined = rewriter.insert(replace(op, attrs=attrs), made.operands, root)
            rewriter.replace(call.result, joined.results[0])
            rewriter.erase_dead(root)


ROUND_CONVOLUTIONS = RegionPass("numba-round-convolutions", round_convolutions)
"""For the precision `bf16`, to run when convolutions have been fused."""


def _claimed(node: InstructionNode) -> _Fused | None:
    op = node.op
    if not isinstance(op, CustomCall) or op.target not in _TARGETS:
        return None
    if op.attrs["scale"] or op.attrs["residual"] or op.attrs["activation"] != "none":
        return None
    x, weight, *bias = node.operands
    window = {name: cast("Shape", op.attrs[name]) for name in _WINDOW}
    return _Fused(op.target, x, weight, window, node.results[0], shift=bias[0] if bias else None)


def _product(node: InstructionNode) -> _Fused | None:
    """Return the product of images with a matrix [C, O] as a convolution of one position."""
    op = node.op
    if not isinstance(op, DotGeneral) or op.batch_lhs or op.contract_lhs != (3,):
        return None
    if op.accum_dtype not in (None, dtypes.f32):
        return None
    x, weight = node.operands
    (result,) = node.results
    if weight.type.rank != 2 or op.contract_rhs != (0,) or result.type.rank != 4:
        return None
    if {value.type.dtype for value in (x, weight, result)} != {dtypes.f32}:
        return None
    if usual_size(math.prod(result.type.shape[:3])) < FEW_POSITIONS or 0 in weight.type.shape:
        return None
    sizes = (1, 1), (1, 1), (0, 0, 0, 0), (1, 1)
    return _Fused(CONV2D, x, weight, dict(zip(_WINDOW, sizes, strict=True)), result)


def take_padding(region: Region) -> Region:
    """Return the region whose convolutions take in the zeros that a pad puts around images."""
    rewriter = Rewriter(region)
    for node in list(rewriter):
        call = _claimed(node)
        if call is None:
            continue
        found = without_zeros(call.x, rewriter.definition, lambda value: rewriter.reads(value) == 1)
        if isinstance(found, Declined):
            continue
        bare, ops, sides = found
        for op in ops:
            (bare,) = rewriter.insert(op, [bare], node).results
        padding = tuple(map(sum, zip(call.window["padding"], sides, strict=True)))
        wider = replace(call, x=bare, window={**call.window, "padding": padding})
        _put(wider, rewriter)
    return rewriter.region()


PADDING = RegionPass("numba-convolution-padding", take_padding)
"""Before parameters are folded, as the pads around patches go when a program becomes canonical."""


def _extended(fused: _Fused, rewriter: Rewriter, returned: frozenset[Value]) -> _Fused:
    """Return the convolution with all users that fit, one after another."""
    while fused.activation in _OPEN and fused.value not in returned:
        users = rewriter.users(fused.value)
        if len(users) == 2 and fused.activation == "none":
            return _gated(fused, rewriter, returned) or fused
        if len(users) != 1 or users[0].operands.count(fused.value) != 1:
            break
        larger = _with_user(fused, users[0], rewriter)
        if larger is None:
            break
        fused = replace(larger, value=users[0].results[0])
    return fused


def _with_user(fused: _Fused, user: InstructionNode, rewriter: Rewriter) -> _Fused | None:
    taken = _USERS.get(type(user.op))
    return None if taken is None else taken(fused, user, rewriter)


def _scaled(fused: _Fused, user: InstructionNode, rewriter: Rewriter) -> _Fused | None:
    vector = _per_channel(_other(fused, user), rewriter)
    if vector is None or (fused.scale, fused.shift, fused.residual) != (None, None, None):
        return None
    return replace(fused, scale=vector) if fused.activation == "none" else None


def _added(fused: _Fused, user: InstructionNode, rewriter: Rewriter) -> _Fused | None:
    if fused.residual is not None or fused.activation != "none":
        return None
    other = _other(fused, user)
    vector = _per_channel(other, rewriter)
    if vector is not None and fused.shift is None:
        return replace(fused, shift=vector)
    return replace(fused, residual=other)


def _rectified(fused: _Fused, user: InstructionNode, rewriter: Rewriter) -> _Fused | None:
    zero = _splat(_other(fused, user), rewriter) == 0.0
    return replace(fused, activation="relu") if zero and fused.activation == "none" else None


def _bounded(fused: _Fused, user: InstructionNode, rewriter: Rewriter) -> _Fused | None:
    six = _splat(_other(fused, user), rewriter) == 6.0
    return replace(fused, activation="relu6") if six and fused.activation == "relu" else None


def _clamped(fused: _Fused, user: InstructionNode, rewriter: Rewriter) -> _Fused | None:
    x, low, high = user.operands
    bounds = _splat(low, rewriter), _splat(high, rewriter)
    fits = (x, bounds, fused.activation) == (fused.value, (0.0, 6.0), "none")
    return replace(fused, activation="relu6") if fits else None


_USERS: dict[type[Op], Callable[[_Fused, InstructionNode, Rewriter], _Fused | None]] = {
    elementwise.Mul: _scaled,
    elementwise.Add: _added,
    elementwise.Maximum: _rectified,
    elementwise.Minimum: _bounded,
    elementwise.Clamp: _clamped,
}


_GATES: dict[str, tuple[tuple[type[Op], tuple[float, ...]], ...]] = {
    "silu": ((elementwise.Logistic, ()),),
    "hard_swish": (
        (elementwise.Add, (3.0,)),
        (elementwise.Clamp, (0.0, 6.0)),
        (elementwise.Div, (6.0,)),
    ),
}
"""Activations `x * gate(x)`: the ops of a gate, one after another, with their numbers."""


def _gated(fused: _Fused, rewriter: Rewriter, returned: frozenset[Value]) -> _Fused | None:
    """Return the convolution with `x * gate(x)` after it, None if something else follows."""
    for activation, steps in _GATES.items():
        inner, value = list[Value](), fused.value
        for op, numbers in steps:
            found = [n for n in rewriter.users(value) if _takes(n, op, value, numbers, rewriter)]
            inner += [node.results[0] for node in found]
            value = inner[-1] if inner else value
        users = rewriter.users(value)
        once = all(len(rewriter.users(each)) == 1 and each not in returned for each in inner)
        if len(inner) != len(steps) or not once or not isinstance(users[0].op, elementwise.Mul):
            continue
        if set(users[0].operands) == {fused.value, value}:
            return replace(fused, activation=activation, value=users[0].results[0])
    return None


def _takes(
    node: InstructionNode,
    op: type[Op],
    value: Value,
    numbers: tuple[float, ...],
    rewriter: Rewriter,
) -> bool:
    """Return whether the node applies `op` to the value and the numbers."""
    first, *rest = node.operands
    if isinstance(node.op, elementwise.Add) and first is not value:
        first, rest = rest[0], [first]
    same = type(node.op) is op and first is value
    return same and tuple(_splat(each, rewriter) for each in rest) == numbers


def _other(fused: _Fused, user: InstructionNode) -> Value:
    first, second = user.operands
    return second if first is fused.value else first


def _per_channel(value: Value, rewriter: Rewriter) -> Value | None:
    """Return the vector [C] that is repeated for every position."""
    node = rewriter.definition(value)
    if node is None or not isinstance(node.op, layout.BroadcastTo):
        return None
    (vector,) = node.operands
    return vector if vector.type.shape == value.type.shape[-1:] else None


def _splat(value: Value, rewriter: Rewriter) -> float | None:
    """Return the number that all elements equal."""
    node = rewriter.definition(value)
    if node is not None and isinstance(node.op, layout.BroadcastTo):
        node = rewriter.definition(node.operands[0])
    if node is None or not isinstance(node.op, Constant) or node.op.value.type.size != 1:
        return None
    return float(node.op.value.array.reshape(()))


def _put(fused: _Fused, rewriter: Rewriter) -> None:
    """Insert the call where the last instruction that it replaces was."""
    root = rewriter.definition(fused.value)
    assert root is not None, "computed by the region"
    extra = [value for value in (fused.scale, fused.shift, fused.residual) if value is not None]
    op = CustomCall(fused.target, (fused.value.type,), fused.attributes())
    made = rewriter.insert(op, [fused.x, fused.weight, *extra], root)
    rewriter.replace(fused.value, made.results[0])
    rewriter.erase_dead(root)
