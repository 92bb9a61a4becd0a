"""Fusions of convolutions with the elementwise ops after them into one `custom_call`.

A convolution is a product with patches, however it was written; what follows is a factor and a
term for each channel (batch normalization, a bias), a tensor to add (the other way around a
residual block), and ReLU, ReLU6, SiLU or hard-swish. Each is taken if nothing else reads what is
before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from gptrs.ir import dtypes
from gptrs.ir.attributes import Dictionary
from gptrs.ir.op import Op
from gptrs.ir.ops import elementwise, layout
from gptrs.ir.ops.contraction import DotGeneral
from gptrs.ir.ops.creation import Constant
from gptrs.ir.ops.custom_call import CustomCall
from gptrs.ir.ops.reduction import Reduce
from gptrs.ir.ops.window import ExtractPatches
from gptrs.ir.program import Region, Value
from gptrs.ir.size_guards import Shape
from gptrs.optimizer.pass_base import RegionPass
from gptrs.optimizer.rewrite.rewriter import InstructionNode, Rewriter
from gptrs.quick_dataclass import dataclass
from gptrs_backend_numba.cost_model import FEW_POSITIONS, forced_algorithm
from gptrs_backend_numba.fusion.convolution_chain import chained_convolutions
from gptrs_backend_numba.schedule import CONV2D, DEPTHWISE, GROUP_OUTPUTS, GROUPED

_OPEN = frozenset({"none", "relu"})
"""The activations that more may follow: `minimum(maximum(x, 0), 6)` is relu6."""


@dataclass(frozen=True)
class _Fused:
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
        found = _convolution(node, rewriter) or _depthwise(node, rewriter)
        found = found or _grouped(node, rewriter)
        if found is not None:
            _put(_extended(found, rewriter, returned), rewriter)
    return chained_convolutions(rewriter.region())


FUSE_CONVOLUTIONS = RegionPass("numba-fuse-convolutions", fused_convolutions)
"""To run when parameters have been folded."""


def _convolution(node: InstructionNode, rewriter: Rewriter) -> _Fused | None:
    """Return the product of patches with a matrix [KH * KW * C, O] as a convolution."""
    op = node.op
    if not isinstance(op, DotGeneral) or op.batch_lhs or op.contract_lhs != (3,):
        return None
    if op.accum_dtype not in (None, dtypes.f32):
        return None
    patches, weight = node.operands
    (result,) = node.results
    if weight.type.rank != 2 or op.contract_rhs != (0,) or result.type.rank != 4:
        return None
    if {value.type.dtype for value in (patches, weight, result)} != {dtypes.f32}:
        return None
    if math.prod(result.type.shape[:3]) < FEW_POSITIONS or 0 in weight.type.shape:
        return None
    x, window = _windows(patches, rewriter)
    return _Fused(CONV2D, x, weight, window, result)


def _windows(patches: Value, rewriter: Rewriter) -> tuple[Value, dict[str, Shape]]:
    """Return the image behind patches (or patches itself), and the attributes of the windows."""
    node = rewriter.definition(patches)
    found = None if node is None else _patches_window(node)
    if found is None and node is not None and isinstance(node.op, layout.Slice):
        found = _strided_window(node.op, node.operands[0].type.shape)
    if node is None or found is None:
        return patches, _window((1, 1))
    return node.operands[0], found


def _patches_window(node: InstructionNode) -> dict[str, Shape] | None:
    op = node.op
    if not isinstance(op, ExtractPatches) or len(op.window) != 2 or not _is_zero(op):
        return None
    return _window(
        op.window, op.strides or (1, 1), op.padding or (0, 0, 0, 0), op.dilation or (1, 1)
    )


def _is_zero(op: ExtractPatches) -> bool:
    return op.value is None or float(op.value.array) == 0.0


def _strided_window(op: layout.Slice, shape: Shape) -> dict[str, Shape] | None:
    """Return the 1x1 window whose strides take every n-th row and column from the first on."""
    if len(shape) != 4 or any(op.starts) or op.strides is None:
        return None
    whole = (op.sizes[0], op.sizes[3]) == (shape[0], shape[3])
    return _window((1, 1), op.strides[1:3]) if whole else None


def _window(
    window: Shape, stride: Shape = (1, 1), padding: Shape = (0, 0, 0, 0), dilation: Shape = (1, 1)
) -> dict[str, Shape]:
    return {"window": window, "stride": stride, "padding": padding, "dilation": dilation}


def _depthwise(node: InstructionNode, rewriter: Rewriter) -> _Fused | None:
    """Match `reshape(sum over taps of patches [.., taps, C, 1] * weight [taps, C, 1])`."""
    steps = _defined_by(node, (layout.Reshape, Reduce, elementwise.Mul), rewriter)
    (result,) = node.results
    if steps is None or result.type.rank != 4 or result.type.dtype is not dtypes.f32:
        return None
    total, product = steps[1:]
    if not isinstance(total.op, Reduce) or (total.op.kind, total.op.axes) != ("sum", (3,)):
        return None
    if total.op.accum_dtype not in (None, dtypes.f32):
        return None
    for boxes, kernels in (product.operands, product.operands[::-1]):
        found = _depthwise_operands(boxes, kernels, result, rewriter)
        if found is not None:
            return found
    return None


def _depthwise_operands(
    boxes: Value, kernels: Value, result: Value, rewriter: Rewriter
) -> _Fused | None:
    reshaped, spread = rewriter.definition(boxes), rewriter.definition(kernels)
    if reshaped is None or not isinstance(reshaped.op, layout.Reshape):
        return None
    if spread is None or not isinstance(spread.op, layout.BroadcastTo):
        return None
    patches = rewriter.definition(reshaped.operands[0])
    window = None if patches is None else _patches_window(patches)
    if patches is None or window is None:
        return None
    x, weight = patches.operands[0], spread.operands[0]
    lead, channels, taps = result.type.shape[:3], x.type.shape[3], math.prod(window["window"])
    if boxes.type.shape != (*lead, taps, channels, 1) or result.type.shape != (*lead, channels):
        return None
    if weight.type.shape != (taps, channels, 1) or 0 in boxes.type.shape:
        return None
    return _Fused(DEPTHWISE, x, weight, window, result)


def _grouped(node: InstructionNode, rewriter: Rewriter) -> _Fused | None:
    """Match what `conv2d` makes of groups: their patches, a product for each, side by side again.

    `x` becomes [groups, N, H, W, C / groups]; patches [groups, N, OH, OW, K] are multiplied by a
    weight [K, groups, O / groups].
    """
    steps = _defined_by(node, (layout.Reshape, layout.Transpose, DotGeneral), rewriter)
    (result,) = node.results
    if steps is None or result.type.rank != 4 or result.type.dtype is not dtypes.f32:
        return None
    turn, product = steps[1].op, steps[2]
    wanted = DotGeneral((4,), (0,), (0,), (1,))
    if not isinstance(turn, layout.Transpose) or turn.permutation != (1, 2, 3, 0, 4):
        return None
    if product.op not in (wanted, replace(wanted, accum_dtype=dtypes.f32)):
        return None
    rows, weight = product.operands
    found = _split_windows(rows, rewriter)
    if found is None or weight.type.dtype is not dtypes.f32 or 0 in weight.type.shape:
        return None
    x, window = found
    groups, outputs = weight.type.shape[1:]
    fits = x.type.dtype is dtypes.f32 and x.type.rank == 4 and outputs % GROUP_OUTPUTS == 0
    split = (groups, *result.type.shape[:3], outputs)
    if not fits or product.results[0].type.shape != split:
        return None
    return _Fused(GROUPED, x, weight, window, result)


def _split_windows(rows: Value, rewriter: Rewriter) -> tuple[Value, dict[str, Shape]] | None:
    """Return the image that was split into groups before it was cut into patches."""
    node = rewriter.definition(rows)
    ops = (layout.Reshape, ExtractPatches, layout.Reshape, layout.Transpose, layout.Reshape)
    steps = None if node is None else _defined_by(node, ops, rewriter)
    if steps is None:
        return None
    _, patches, joined, turn, split = steps
    window, (x,) = _patches_window(patches), split.operands
    groups, batch, *rest = turn.results[0].type.shape
    if window is None or not isinstance(turn.op, layout.Transpose) or x.type.rank != 4:
        return None
    if turn.op.permutation != (3, 0, 1, 2, 4) or joined.results[0].type.rank != 4:
        return None
    parts = (*x.type.shape[:3], groups, x.type.shape[3] // groups)
    if split.results[0].type.shape != parts or rows.type.shape[:2] != (groups, batch):
        return None
    cut = (groups * batch, *rest)
    return (x, window) if joined.results[0].type.shape == cut else None


def _defined_by(
    node: InstructionNode, ops: tuple[type[Op], ...], rewriter: Rewriter
) -> tuple[InstructionNode, ...] | None:
    """Return the node and the nodes before it, by first operands, if they are of the given ops."""
    found: list[InstructionNode] = []
    current: InstructionNode | None = node
    for op in ops:
        if current is None or not isinstance(current.op, op):
            return None
        found.append(current)
        current = rewriter.definition(current.operands[0])
    return tuple(found)


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
    """Put the call in the place of the last instruction that it replaces."""
    root = rewriter.definition(fused.value)
    assert root is not None, "computed by the region"
    weight = fused.weight
    if fused.target == DEPTHWISE:
        flat = layout.Reshape(weight.type.shape[:2])
        weight = rewriter.insert(flat, [weight], root).results[0]
    extra = [value for value in (fused.scale, fused.shift, fused.residual) if value is not None]
    op = CustomCall(fused.target, (fused.value.type,), fused.attributes())
    made = rewriter.insert(op, [fused.x, weight, *extra], root)
    rewriter.replace(fused.value, made.results[0])
    rewriter.erase_dead(root)
