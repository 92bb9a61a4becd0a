"""Tensors made of numbers."""

from __future__ import annotations

import math
from typing import Any

from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs.api.programs import DType, dtypes
from gptrs_torch.node import Node
from gptrs_torch.ops.arithmetic import name_of
from gptrs_torch.registry import converts
from gptrs_torch.values import Number, Operand, converted, is_symbol, operand, scalar


def filled(shape: list[int], value: Operand, dtype: DType) -> Tensor:
    """Return a tensor whose elements are all `value`."""
    made = operand(value, dtype)
    return F.broadcast_to(made, shape) if shape else made


@converts("full", "new_full")
def full(node: Node, shape: list[int] | Tensor, *rest: Any, **named: object) -> Tensor:
    """Return a tensor of one number; `new_full` names a tensor first, whose type it takes."""
    del named
    wanted, value = rest if isinstance(shape, Tensor) else (shape, rest[0])
    return filled(wanted, value, node.dtype)


@converts("full_like", "fill")
def full_like(node: Node, x: Tensor, value: Operand, **named: object) -> Tensor:
    """Return a tensor like x of one number."""
    del named
    return filled(list(x.shape), value, node.dtype)


@converts("zeros_like", "ones_like", "empty_like")
def constant_like(node: Node, x: Tensor, **named: object) -> Tensor:
    """Return zeros or ones like x; memory that nobody has written is zeros, too."""
    del named
    return filled(list(x.shape), 1 if name_of(node) == "ones_like" else 0, node.dtype)


@converts("zeros", "ones", "empty", "empty_strided")
def constant(node: Node, shape: list[int], *rest: object, **named: object) -> Tensor:
    """Return zeros or ones; memory that nobody has written is zeros, too."""
    del rest, named
    return filled(shape, 1 if name_of(node) == "ones" else 0, node.dtype)


@converts("new_zeros", "new_ones", "new_empty", "new_empty_strided")
def new_constant(node: Node, x: Tensor, shape: list[int], *rest: object, **named: object) -> Tensor:
    """Return zeros or ones in the type of x; memory that nobody has written is zeros, too."""
    del x, rest, named
    return filled(shape, 1 if name_of(node) == "new_ones" else 0, node.dtype)


@converts("scalar_tensor")
def scalar_tensor(node: Node, value: Number, **named: object) -> Tensor:
    """Return a number as a tensor."""
    del named
    return scalar(value, node.dtype)


@converts("arange.start_step", "arange.start", "arange.default")
def arange(node: Node, *bounds: Number, **named: object) -> Tensor:
    """Return numbers from one to below another, in steps."""
    del named
    start, end, step = (0, *bounds, 1) if len(bounds) == 1 else (*bounds, 1)[:3]
    dtype = node.dtype
    if any(is_symbol(each) for each in (start, end, step)):
        if not isinstance(step, int) or not dtype.is_integer:
            node.refuse("has a fractional step over a free size")
        count = end - start if step == 1 else (end - start + step - 1) // step
        places = F.arange(count)  # pyright: ignore[reportArgumentType]
        return converted(places * scalar(step, dtypes.si64) + scalar(start, dtypes.si64), dtype)
    count = max(math.ceil((end - start) / step), 0)
    if dtype.is_integer:
        made = F.arange(int(start), int(start) + count * int(step), int(step))
        return converted(made, dtype)
    places = F.cast(F.arange(count), dtypes.f64)
    return converted(places * float(step) + float(start), dtype)


@converts("eye", "eye.m")
def eye(node: Node, rows: int, columns: int | None = None, **named: object) -> Tensor:
    """Return a matrix with ones on the diagonal."""
    del named
    shape = [rows, rows if columns is None else columns]
    down = primitives.iota(shape, 0, dtypes.si64)
    return converted(F.equal(down, primitives.iota(shape, 1, dtypes.si64)), node.dtype)
