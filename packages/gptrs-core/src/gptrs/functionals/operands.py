"""Checks and conversions of operands that functionals share."""

from __future__ import annotations

from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.ir.dtypes import DType
from gptrs.ir.shapes import broadcast_shapes, normalize_axis

Number = bool | int | float
Operand = Tensor | Number


def splat(value: Number, dtype: DType, shape: tuple[int, ...] = ()) -> Tensor:
    """`value` as a tensor of `dtype` and `shape`; UsageError if an integer type cannot hold it."""
    if dtype.is_integer and (isinstance(value, float) or not _fits(value, dtype)):
        raise UsageError(
            f"the number {value!r} is not a value of {dtype}",
            hint="cast the tensor to a type that holds it",
        )
    scalar = primitives.constant(value, dtype)
    return primitives.broadcast_to(scalar, shape) if shape else scalar


def _fits(value: int, dtype: DType) -> bool:
    low = -(2 ** (dtype.bits - 1)) if dtype.kind == "signed" else 0
    high = 2 ** (dtype.bits - (dtype.kind == "signed")) - 1
    return low <= value <= high


def expand(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """`x` repeated to `shape`, nothing captured where it has that shape already."""
    return x if x.shape == shape else primitives.broadcast_to(x, shape)


def broadcast_pair(name: str, lhs: Operand, rhs: Operand) -> tuple[Tensor, Tensor]:
    """Both operands as tensors of one element type, expanded to their common shape (NumPy rules).

    A Python number takes the element type of the other side. UsageError when neither is a tensor
    or the element types differ, ProgramError when the shapes do not broadcast.
    """
    if isinstance(lhs, Tensor) and not isinstance(rhs, Tensor):
        return lhs, splat(_number(name, rhs), lhs.dtype, lhs.shape)
    if isinstance(rhs, Tensor) and not isinstance(lhs, Tensor):
        return splat(_number(name, lhs), rhs.dtype, rhs.shape), rhs
    if not (isinstance(lhs, Tensor) and isinstance(rhs, Tensor)):
        raise UsageError(f"`{name}` needs at least one tensor")
    require_same_dtype(name, lhs, rhs)
    shape = broadcast_shapes([lhs.shape, rhs.shape], f"`{name}`")
    return expand(lhs, shape), expand(rhs, shape)


def _number(name: str, value: object) -> Number:
    if isinstance(value, bool | int | float):
        return value
    kind = type(value).__name__
    raise UsageError(
        f"`{name}` takes tensors and numbers, got `{kind}`", hint="wrap it with `gptrs.tensor`"
    )


def require_float(name: str, **tensors: Tensor) -> None:
    """UsageError unless every tensor has a real floating-point element type."""
    for label, x in tensors.items():
        if not x.dtype.is_float:
            raise UsageError(f"`{name}` needs a floating-point `{label}`, got `{x.type}`")


def require_integer(name: str, **tensors: Tensor) -> None:
    """UsageError unless every tensor has an integer element type."""
    for label, x in tensors.items():
        if not x.dtype.is_integer:
            raise UsageError(f"`{name}` needs an integer `{label}`, got `{x.type}`")


def require_same_dtype(name: str, *tensors: Tensor) -> None:
    """UsageError unless all tensors have one element type; gptrs never promotes."""
    if len({x.dtype for x in tensors}) > 1:
        listed = ", ".join(f"`{x.type}`" for x in tensors)
        raise UsageError(
            f"`{name}` needs tensors of one element type, got {listed}", hint="`cast` one of them"
        )


def require_shape(name: str, label: str, x: Tensor, shape: tuple[int, ...]) -> None:
    """UsageError unless `x` has exactly this shape."""
    if x.shape != shape:
        raise UsageError(f"`{name}` needs `{label}` of shape {list(shape)}, got `{x.type}`")


def axis_of(name: str, axis: int, x: Tensor) -> int:
    """`axis` counted from the front; UsageError when `x` has no such axis."""
    if not -x.rank <= axis < x.rank:
        raise UsageError(f"`{name}` got axis {axis} for `{x.type}`, which has {x.rank} axes")
    return normalize_axis(axis, x.rank, name)
