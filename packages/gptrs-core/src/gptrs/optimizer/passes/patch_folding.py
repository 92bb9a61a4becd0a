"""Takes zeros that a pad puts around images as the padding of the windows that read them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from gptrs.ir.dtypes import DType
from gptrs.ir.literal import Literal, Scalar
from gptrs.ir.op import Op
from gptrs.ir.ops.elementwise import Cast
from gptrs.ir.ops.layout import Pad, Reshape, Transpose
from gptrs.ir.ops.window import ExtractPatches
from gptrs.ir.program import Value
from gptrs.ir.shapes import Shape
from gptrs.ir.symbolic_dim import symbols_of
from gptrs.optimizer.pass_base import RewritePass
from gptrs.optimizer.rewrite.pattern import Match, Operand, calls
from gptrs.optimizer.rewrite.rewrite import Declined, Emitter, rewrite
from gptrs.optimizer.rewrite.rewriter import InstructionNode

patches = calls(ExtractPatches)
x = Operand("x")

SYMBOLIC = Declined("its padding is symbolic")

Axes = tuple[int | None, ...]
"""For each axis of a value, the axis of what was padded; None for what is none or several."""


@rewrite(patches(x))
def patches_of_pad(m: Match, emit: Emitter) -> Value | Declined:
    """extract_patches(f(pad(x, l, h)), p) -> extract_patches(f(x), p + (l, h)) where f moves axes

    The pad puts zeros around spatial axes. f is any number of transposes, casts, and reshapes that
    keep the padded axes; nothing else reads what it makes. What else reads the pad still does.
    """
    chain, found = _chain(m)
    if found is None or not isinstance(found.op, Pad):
        return Declined("its operand is not padded")
    pad, (bare,) = found.op, found.operands
    if not _is_zero(pad.value, bare.type.dtype) or not _is_zero(m[patches].value, m.type.dtype):
        return Declined("other values than zeros are put around it")
    if symbols_of((*pad.low, *pad.high)):
        return SYMBOLIC
    if any(pad.interior or ()) or any(side < 0 for side in (*pad.low, *pad.high)):
        return Declined("the pad trims, or puts zeros between the elements")
    padded = frozenset(axis for axis in range(bare.type.rank) if pad.low[axis] or pad.high[axis])
    ops, axes = _without_padding(chain, bare.type.shape, padded)
    if not padded.issubset(axes[1:-1]):
        return Declined(f"the padded axes {sorted(padded)} do not all become spatial ones")
    for op in ops:
        bare = emit(op, bare)
    return emit(_with_padding(m[patches], pad, axes[1:-1]), bare)


def _chain(m: Match) -> tuple[list[InstructionNode], InstructionNode | None]:
    """Return what moves a value on its way to the patches, in order, and what defines the value."""
    chain: list[InstructionNode] = []
    node = m.definition(m[x])
    while node is not None and isinstance(node.op, (Transpose, Cast, Reshape)):
        if not m.is_read_once(node.results[0]):
            break
        chain.insert(0, node)
        node = m.definition(node.operands[0])
    return chain, node


def _is_zero(value: Scalar | None, dtype: DType) -> bool:
    return value is None or value == Literal.full(0, dtype)


def _without_padding(
    chain: Sequence[InstructionNode], shape: Shape, padded: frozenset[int]
) -> tuple[list[Op], Axes]:
    """Return the ops of a chain for a value of `shape`, not padded, and the axes that come out."""
    axes: Axes = tuple(range(len(shape)))
    ops: list[Op] = []
    for node in chain:
        op, after = node.op, node.results[0].type.shape
        if isinstance(op, Transpose):
            axes = tuple(axes[axis] for axis in op.permutation)
        elif isinstance(op, Reshape):
            before = node.operands[0].type.shape
            axes = _kept([axis if axis in padded else None for axis in axes], before, after)
            pairs = zip(axes, after, strict=True)
            op = Reshape(tuple(dim if axis is None else shape[axis] for axis, dim in pairs))
        ops.append(op)
    return ops, axes


def _kept(axes: Sequence[int | None], before: Shape, after: Shape) -> Axes:
    """Return the axes of a reshaped value: `axes` where they are kept whole, else None."""
    found: list[int | None] = [None] * len(after)
    if not symbols_of((*before, *after)) and math.prod(before):
        starts = {math.prod(after[:at]): at for at, dim in enumerate(after) if dim > 1}
        for at, (axis, dim) in enumerate(zip(axes, before, strict=True)):
            there = starts.get(math.prod(before[:at]))
            if there is not None and after[there] == dim > 1:
                found[there] = axis
    return tuple(found)


def _with_padding(op: ExtractPatches, pad: Pad, axes: Axes) -> ExtractPatches:
    """Return the op with the sides of a pad added to its own."""
    sides: list[int] = []
    for window, axis in zip(op.axes(), axes, strict=True):
        low, high = (0, 0) if axis is None else (pad.low[axis], pad.high[axis])
        sides += (window.low + low, window.high + high)
    return replace(op, padding=tuple(sides) if any(sides) else None)


PATCH_FOLDING = RewritePass("patch-folding", (patches_of_pad,))
