"""Functions of JAX whose own types are partly unknown, with whole ones, as far as they are used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

Carried = TypeVar("Carried")
Made = TypeVar("Made")
Scanned = TypeVar("Scanned")
Shape = Sequence[int]
Type = np.dtype[Any] | type[np.generic]

_lax = cast("Any", lax)
_numpy = cast("Any", jnp)


def zeros(shape: Shape, dtype: Type) -> Array:
    """Return zeros."""
    return full(shape, 0, dtype)


def full(shape: Shape, value: complex | np.generic | np.ndarray, dtype: Type) -> Array:
    """Return `value` everywhere."""
    return cast("Array", _lax.full(tuple(shape), value, dtype))


def array(value: complex | np.generic | np.ndarray, dtype: Type | None = None) -> Array:
    """Return an array of host values, as a constant of the program."""
    return cast("Array", _numpy.asarray(value, dtype))


def iota(dtype: Type, shape: Shape, axis: int) -> Array:
    """Return the index along `axis` of each element."""
    return cast("Array", _lax.broadcasted_iota(dtype, tuple(shape), axis))


def broadcast_to(x: Array, shape: Shape) -> Array:
    """Return `x` repeated to `shape`, aligned at the right."""
    return cast("Array", _numpy.broadcast_to(x, tuple(shape)))


def broadcast_in(x: Array, shape: Shape, axes: Sequence[int]) -> Array:
    """Return `x` repeated to `shape`, where its own axes are `axes`."""
    return cast("Array", _lax.broadcast_in_dim(x, tuple(shape), tuple(axes)))


def reduce(
    x: Array, start: np.ndarray, combine: Callable[..., Array], axes: Sequence[int]
) -> Array:
    """Return the elements along `axes` combined, in any order."""
    return cast("Array", _lax.reduce(x, start, combine, tuple(axes)))


def reduce_window(
    x: Array,
    start: np.ndarray,
    combine: Callable[..., Array],
    sizes: Sequence[int],
    *,
    strides: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
) -> Array:
    """Return the elements under each position of a window combined, in any order."""
    return cast(
        "Array",
        _lax.reduce_window(
            x, start, combine, sizes, strides, padding, window_dilation=tuple(dilation)
        ),
    )


def dot_general(
    lhs: Array, rhs: Array, axes: tuple[tuple[Sequence[int], ...], ...], total: Type
) -> Array:
    """Return products summed in the type `total`; (contracted, batch) axes of both operands.

    Operands keep all their bits, on GPUs and TPUs, too.
    """
    return cast(
        "Array",
        _lax.dot_general(
            lhs,
            rhs,
            axes,
            precision=lax.Precision.HIGHEST,
            preferred_element_type=total,
        ),
    )


def cond(
    predicate: Array,
    then: Callable[[Carried], Made],
    otherwise: Callable[[Carried], Made],
    operand: Carried,
) -> Made:
    """Return what the one or the other function gives."""
    return cast("Made", _lax.cond(predicate, then, otherwise, operand))


def while_loop(
    more: Callable[[Carried], Array], step: Callable[[Carried], Carried], first: Carried
) -> Carried:
    """Return the first value for which `more` is false, after steps from `first` on."""
    return cast("Carried", _lax.while_loop(more, step, first))


def scan(
    step: Callable[[Carried, Scanned], tuple[Carried, Scanned]],
    first: Carried,
    scanned: Scanned,
    *,
    length: int,
    reverse: bool,
) -> tuple[Carried, Scanned]:
    """Return the last carried value, and what all steps gave, stacked."""
    return cast(
        "tuple[Carried, Scanned]",
        _lax.scan(step, first, scanned, length=length, reverse=reverse),
    )


def copy(x: Array) -> Array:
    """Return the elements in memory of their own."""
    return cast("Array", _numpy.copy(x))
