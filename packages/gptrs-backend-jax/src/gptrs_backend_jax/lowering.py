"""The table of lowerings of ops to JAX, by op class and element type."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from msgspec import Struct

from gptrs.api.backends import OpTable
from gptrs.api.programs import DType, Instruction, Region, TensorType, Value
from gptrs_backend_jax.conversion import convert
from gptrs_backend_jax.element_types import computing, held, narrow, widen

Arrays: TypeAlias = Sequence[Array]


class Walk(Protocol):
    """The walk over a program that calls the lowerings; they report errors to it."""

    @property
    def for_one_cpu(self) -> bool:
        """Whether products read pages of a pool where they lie: on one CPU, which has no copies
        to spare."""
        ...

    def check(self, is_bad: Array, values: Array, message: str) -> None:
        """Make the run fail where any of `is_bad` holds; `{}` in `message` is the value there.

        What is bad follows from the message and the values.
        """
        ...

    def maker(self, value: Value) -> tuple[Instruction, Arrays] | None:
        """Return the instruction that defines `value`, and its operands; None for most ops."""
        ...

    def repeats_rows(self, indices: Value) -> bool:
        """Return whether `indices` is known to have one number in each row."""
        ...

    def cond(self, predicate: Array, branches: Sequence[Region], operands: Arrays) -> Arrays:
        """Run the first of two regions if the predicate is true, else the second."""
        ...

    def loop(self, condition: Region, body: Region, state: Arrays) -> Arrays:
        """Run `body` on the state while `condition` is true; return the last state."""
        ...

    def scan(
        self, body: Region, carried: Arrays, scanned: Arrays, length: int, reverse: bool
    ) -> Arrays:
        """Run `body` for each step; return the last carried values, then the stacked results."""
        ...

    def call(self, function: str, operands: Arrays) -> Arrays:
        """Run a function of the program."""
        ...


class LoweringContext(Struct, frozen=True):
    """One instruction: its types, where it stands, and the walk that it belongs to."""

    instruction: Instruction
    operands: tuple[TensorType, ...]
    results: tuple[TensorType, ...]
    walk: Walk

    @property
    def result(self) -> TensorType:
        """The type of the first result."""
        return self.results[0]


Lowering: TypeAlias = Callable[..., Array | Arrays]
"""`(op, ctx, *arrays) -> array`: the held result for held operands; several results as a tuple."""

TABLE: OpTable[Lowering] = OpTable("jax")
"""Filled when `gptrs_backend_jax.lowerings` is imported."""


# Conversion to and from the accumulate type of sums and products.


def to_accumulator(x: Array, source: DType, accum: DType) -> Array:
    """Convert held elements to the computing type of `accum`; integers wrap, as sums in it do."""
    if accum.is_integer:
        return lax.convert_element_type(x, held(accum))
    if computing(source) == computing(accum) and accum.bits >= source.bits:
        return widen(source, x)
    return widen(accum, convert(x, source, accum))


def from_accumulator(x: Array, accum: DType, out: DType) -> Array:
    """Round a total in the computing type of `accum` to `accum`, and cast it to `out`."""
    return convert(narrow(accum, x), accum, out)


# Products that are rounded separately before a sum.


_NO_PRODUCT = -0x5A5A5A5A
"""Bits of a NaN that no multiplication produces, as an integer of the float's width."""


def unfused(product: Array) -> Array:
    """Return `product`, f32 or f64, in a form that no compiler fuses with following operations.

    LLVM contracts `a * b + c` to one operation that rounds once (FMA), for any precision set in
    XLA. An integer operation between them that changes nothing prevents that.
    """
    whole = np.dtype(f"int{8 * product.dtype.itemsize}")
    bits = lax.bitcast_convert_type(product, whole)
    flipped = lax.convert_element_type(bits == np.array(_NO_PRODUCT, whole), whole)
    return lax.bitcast_convert_type(bits ^ flipped, product.dtype)


# Functions of JAX with partly unknown types, typed as far as they are used.


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
    """Return the result of one of the two functions."""
    return cast("Made", _lax.cond(predicate, then, otherwise, operand))


def while_loop(
    more: Callable[[Carried], Array], step: Callable[[Carried], Carried], first: Carried
) -> Carried:
    """Return the first value for which `more` is false, stepping from `first`."""
    return cast("Carried", _lax.while_loop(more, step, first))


def scan(
    step: Callable[[Carried, Scanned], tuple[Carried, Scanned]],
    first: Carried,
    scanned: Scanned,
    *,
    length: int,
    reverse: bool,
) -> tuple[Carried, Scanned]:
    """Return the last carried value, and the stacked results of all steps."""
    return cast(
        "tuple[Carried, Scanned]",
        _lax.scan(step, first, scanned, length=length, reverse=reverse),
    )


def copy(x: Array) -> Array:
    """Return the elements in separate memory."""
    return cast("Array", _numpy.copy(x))
