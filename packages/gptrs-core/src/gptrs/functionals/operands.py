"""Checks and conversions of operands that functionals share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import SupportsIndex, cast

import numpy as np

from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.ir.dtypes import ALL, FLOATS, INTEGERS, DType, i1, si64
from gptrs.ir.size_guards import broadcast_shapes, normalize_axis
from gptrs.ir.symbolic_dim import SymbolicDim, dim_of
from gptrs.quoting import joined

Number = bool | int | float | complex
Operand = Tensor | Number | np.ndarray
"""A tensor, a NumPy array, or a Python number, which takes the element type of the others."""

Axes = int | Sequence[int] | None
"""One axis, several, or all of them."""

COMPLEX: tuple[DType, ...] = tuple(dtype for dtype in ALL if dtype.is_complex)
REALS: tuple[DType, ...] = (*INTEGERS, *FLOATS)
NUMBERS: tuple[DType, ...] = (*REALS, *COMPLEX)
INEXACT: tuple[DType, ...] = (*FLOATS, *COMPLEX)
BITS: tuple[DType, ...] = (i1, *INTEGERS)
ORDERED: tuple[DType, ...] = (i1, *REALS)
LEAST_NORMAL = 2.0**-126
"""The least positive number that is normal in f32, and so in f64."""
_FAMILIES = {"integer": INTEGERS, "floating-point": FLOATS, "complex": COMPLEX}


def splat(value: Number, dtype: DType, shape: tuple[int, ...] = ()) -> Tensor:
    """`value` as a tensor of `dtype` and `shape`; UsageError if the type cannot hold it.

    Integer types hold integers in their range, `i1` holds False and True. Floats are rounded, but a
    value that would become infinite or NaN is refused. A symbolic size is computed at run time and
    converted as by `cast`.
    """
    if isinstance(value, SymbolicDim):
        scalar = size_scalar(cast("int", value), dtype)
    else:
        require_held(dtype, value)
        scalar = primitives.constant(value, dtype)
    return primitives.broadcast_to(scalar, shape) if shape else scalar


def size_scalar(size: int, dtype: DType = si64) -> Tensor:
    """Return a size, a number or symbolic, as a tensor of rank 0.

    A symbolic size is computed term by term in integers, so nothing is rounded before the end; each
    symbol and quotient is a sum of that many ones.
    """
    if not isinstance(size, SymbolicDim):
        return primitives.constant(np.asarray(size).astype(dtype.numpy))
    one = primitives.constant(np.asarray(1, np.int64))
    total: Tensor | None = None
    for monomial, factor in size.terms:
        term = None if monomial and factor == 1 else primitives.constant(np.asarray(factor))
        for atom in monomial:
            ones = primitives.broadcast_to(one, (dim_of(atom),))
            counted = primitives.reduce(ones, "sum", (0,))
            term = counted if term is None else primitives.mul(term, counted)
        assert term is not None, "a factor, or an atom"
        total = term if total is None else primitives.add(total, term)
    assert total is not None, "a symbolic size has a term"
    return total if dtype is si64 else primitives.cast(total, dtype)


def require_held(dtype: DType, value: Number) -> None:
    """UsageError unless `value` is representable in `dtype`, possibly after rounding."""
    if not _holds(dtype, value):
        raise UsageError(
            f"the number {value!r} is not a value of {dtype}",
            hint="cast the tensor to a type that holds it",
        )


def _holds(dtype: DType, value: Number) -> bool:
    if dtype.is_bool:
        return isinstance(value, bool)
    if dtype.is_integer:
        return isinstance(value, int) and _in_range(value, dtype)
    if isinstance(value, complex):
        return dtype.is_complex
    try:
        with np.errstate(over="ignore"):
            held = complex(np.asarray(value, dtype.numpy)).real
    except OverflowError:  # an int beyond the range of floats
        return False
    return math.isfinite(held) or math.isnan(value) or held == value


def _in_range(value: int, dtype: DType) -> bool:
    low = -(2 ** (dtype.bits - 1)) if dtype.kind == "signed" else 0
    high = 2 ** (dtype.bits - (dtype.kind == "signed")) - 1
    return low <= value <= high


def expand(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return `x` broadcast to `shape`, and `x` itself if it has that shape."""
    return x if x.shape == shape else primitives.broadcast_to(x, shape)


def widened(x: Tensor) -> Tensor:
    """`x` in the type in which it accumulates: 8- and 16-bit floats as f32, others unchanged."""
    return converted(x, x.dtype.accumulator)


def converted(x: Tensor, dtype: DType) -> Tensor:
    """`x` as `dtype`; nothing is captured if it has that type already."""
    return x if x.dtype is dtype else primitives.cast(x, dtype)


def broadcast(name: str, *operands: Operand) -> tuple[Tensor, ...]:
    """Convert operands to tensors of one element type and their broadcast shape (NumPy rules).

    A number takes the element type of the tensors; NumPy arrays become tensors. UsageError when
    none is a tensor or the element types differ, ProgramError when the shapes do not broadcast.
    """
    operands = tuple(map(plain_or_tensor, operands))
    tensors = [operand for operand in operands if isinstance(operand, Tensor)]
    numbers = [_number(name, operand) for operand in operands if not isinstance(operand, Tensor)]
    if not tensors:
        raise UsageError(f"`{name}` needs at least one tensor, got {_listed(numbers)}")
    require_same_dtype(name, *tensors)
    shape = broadcast_shapes([x.shape for x in tensors], f"`{name}`")
    dtype = tensors[0].dtype
    return tuple(
        expand(operand, shape)
        if isinstance(operand, Tensor)
        else splat(_number(name, operand), dtype, shape)
        for operand in operands
    )


def broadcast_pair(
    name: str, lhs: Operand, rhs: Operand, dtypes: Sequence[DType] = ALL
) -> tuple[Tensor, Tensor]:
    """`broadcast` of two operands, of one of `dtypes`."""
    lhs, rhs = plain_or_tensor(lhs), plain_or_tensor(rhs)
    for label, operand in (("lhs", lhs), ("rhs", rhs)):
        if isinstance(operand, Tensor):
            require_dtype(name, dtypes, **{label: operand})
    left, right = broadcast(name, lhs, rhs)
    return left, right


def plain_or_tensor(operand: Operand) -> Tensor | Number:
    """Return a NumPy array as a tensor, and any other operand as it is."""
    return Tensor.of_array(operand) if isinstance(operand, np.ndarray) else operand


def _number(name: str, value: object) -> Number:
    plain = _plain(value)
    if isinstance(plain, bool | int | float | complex):
        return plain
    kind = type(plain).__name__
    raise UsageError(
        f"`{name}` takes tensors and numbers, got `{kind}`", hint="wrap it with `gptrs.tensor`"
    )


def _plain(value: object) -> object:
    """Return a NumPy scalar as a Python number."""
    return cast("np.generic[object]", value).item() if isinstance(value, np.generic) else value


def _listed(numbers: Sequence[Number]) -> str:
    return " and ".join(repr(number) for number in numbers)


def require_dtype(name: str, dtypes: Sequence[DType], /, **tensors: Tensor) -> None:
    """Raise UsageError unless every tensor has one of `dtypes`, which functional `name` supports.

    The message lists them, whole families by their names.
    """
    for label, x in tensors.items():
        if x.dtype not in dtypes:
            wanted = _described(dtypes)
            raise UsageError(
                f"`{name}` needs {wanted} `{label}`, got `{x.type}`",
                hint=f"`cast` `{label}` to a type that `{name}` takes",
            )


def require_made_dtype(name: str, dtypes: Sequence[DType], dtype: DType) -> None:
    """UsageError unless functional `name` makes tensors of `dtype`."""
    if dtype not in dtypes:
        raise UsageError(f"`{name}` needs {_described(dtypes)} `dtype`, got `{dtype}`")


def _described(dtypes: Sequence[DType]) -> str:
    """`an integer or floating-point`, `an f16 or f32`."""
    whole = {word: family for word, family in _FAMILIES.items() if set(family) <= set(dtypes)}
    named = {dtype for family in whole.values() for dtype in family}
    words = [dtype.name for dtype in dtypes if dtype not in named] + list(whole)
    # The article follows the pronunciation: an eff-32, an ess-i-8, but a bee-eff-16, a you-i-8.
    vowel = words[0] == "integer" or (words[0] not in _FAMILIES and words[0][0] in "fis")
    article = "an" if vowel else "a"
    return f"{article} {joined(words)}"


def require_float(name: str, **tensors: Tensor) -> None:
    """UsageError unless every tensor has a real floating-point element type."""
    require_dtype(name, FLOATS, **tensors)


def require_integer(name: str, **tensors: Tensor) -> None:
    """UsageError unless every tensor has an integer element type."""
    require_dtype(name, INTEGERS, **tensors)


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


def require_one_of(name: str, label: str, value: str, known: Sequence[str]) -> None:
    """UsageError unless `value` is one of the words that the functional takes."""
    if value not in known:
        listed = joined([f'"{word}"' for word in known])
        raise UsageError(f"`{name}` takes {label}={listed}, got {value!r}")


def axis_of(name: str, axis: int, x: Tensor) -> int:
    """Return `axis` counted from the front; UsageError when `x` has no such axis."""
    if not isinstance(cast("object", axis), SupportsIndex):
        raise UsageError(f"`{name}` takes an integer as an axis, got `{axis!r}`")
    if not -x.rank <= axis < x.rank:
        raise UsageError(f"`{name}` got axis {axis} for `{x.type}`, which has {x.rank} axes")
    return normalize_axis(axis, x.rank, name)


def axes_of(name: str, axes: Axes, x: Tensor) -> tuple[int, ...]:
    """`axes` counted from the front, ascending; UsageError if one does not exist or is named
    twice."""
    if axes is None:
        return tuple(range(x.rank))
    several = [axes] if isinstance(axes, int) else axes
    found = sorted(axis_of(name, axis, x) for axis in several)
    if len(set(found)) != len(found):
        raise UsageError(f"`{name}` of `{x.type}` got axes {list(several)}, which name one twice")
    return tuple(found)
