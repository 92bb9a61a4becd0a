"""Functions per element type for the bindings of kernels: they load, round, cast and store.

`X` being a pointer to elements of the type `memory_of(dtype)`, `load_of(dtype)` is the function of
compiled code that makes a register value of `X[i]`, and `X[i] = store(value)` needs
`store_of(dtype)`. See `gptrs_backend_numba.codegen.machine` for what values live as.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs_backend_numba.codegen import scalar
from gptrs_backend_numba.codegen.conversion import conversion_to, convert, to_53_bits_odd, wrapped
from gptrs_backend_numba.codegen.inlining import Intrinsic, made, named, register_jitable
from gptrs_backend_numba.codegen.machine import is_narrow
from gptrs_backend_numba.codegen.scalar import f64_to_f32_odd

Function = Callable[..., object] | Intrinsic
"""A function in compiled code."""
Unary = Callable[..., object]
"""A function of one value in compiled code."""
Binary = Callable[..., object]
"""A function of two values in compiled code."""


def register_of(dtype: DType) -> type[np.generic]:
    """Return the NumPy type of a value in a register."""
    if is_narrow(dtype):
        return np.float32
    if dtype.bits == 4:
        return np.int8 if dtype.kind == "signed" else np.uint8
    return dtype.numpy.type


def memory_of(dtype: DType) -> type[np.generic]:
    """Return the NumPy type of an element in memory."""
    if is_narrow(dtype) or dtype.is_bool:
        return bits_of_width(dtype.itemsize)
    return register_of(dtype)


def bits_of_width(width: int) -> type[np.generic]:
    """Return the NumPy type of elements of `width` bytes that are moved as they are."""
    return np.complex128 if width == 16 else np.dtype(f"u{width}").type


@register_jitable
def unchanged(value):
    """Return the value."""
    return value


def load_of(dtype: DType) -> Unary:
    """Return the function from an element in memory to a register value."""
    if is_narrow(dtype):
        return getattr(scalar, f"{dtype}_to_f32")
    if dtype.bits == 4:
        return rounded_of(dtype)
    return conversion_to(np.bool_) if dtype.is_bool else unchanged


def store_of(dtype: DType) -> Unary:
    """Return the function from a register value to an element in memory; it rounds."""
    if is_narrow(dtype):
        return getattr(scalar, f"f32_to_{dtype}")
    return conversion_to(np.uint8) if dtype.is_bool else unchanged


@made
def rounded_of(dtype: DType) -> Unary:
    """Return the function that brings a computed value to the precision of its type."""
    if dtype.bits == 4:
        return getattr(scalar, f"wrapped_{dtype}")
    if not is_narrow(dtype):
        return unchanged
    load, store = load_of(dtype), store_of(dtype)

    @register_jitable
    @named(f"rounded_{dtype}")
    def rounded(value):
        return load(store(value))

    return rounded


@made
def cast_of(source: DType, target: DType) -> Unary:
    """Return the function that converts register values as `cast` does; none is complex to real."""
    if source is target or not is_narrow(target):
        return unrounded_cast_of(source, target)
    return _composed(f"{source}_to_{target}", rounded_of(target), _to_f32_of(source))


@made
def unrounded_cast_of(source: DType, target: DType) -> Unary:
    """Return `cast_of` without the rounding to a narrow type, which storing does, too."""
    if source is target:
        return unchanged
    if target.is_complex:
        return _to_complex_of(source, target)
    if source.is_complex:
        return _is_not_zero_of(source)
    if is_narrow(target):
        return _to_f32_of(source)
    if target.bits == 4:
        clamped = getattr(scalar, f"clamped_{target}")
        return _composed(f"{source}_to_{target}", clamped, conversion_to(register_of(target)))
    return conversion_to(register_of(target))


@made
def cast_element_of(source: DType, target: DType) -> Unary:
    """Return the function from a register value of one type to an element of another."""
    store = store_of(target)
    if source is target:
        return store
    if is_narrow(target):  # storing rounds
        return _composed(f"{source}_to_{target}_element", store, _to_f32_of(source))
    if store is unchanged:
        return cast_of(source, target)
    return _composed(f"{source}_to_{target}_element", store, cast_of(source, target))


@made
def load_as(dtype: DType, accumulator: DType) -> Unary:
    """Return the function from an element in memory to a register value of the accumulator."""
    load, accumulated = load_of(dtype), accumulated_of(dtype, accumulator)
    if accumulated is unchanged:
        return load
    if load is unchanged:
        return accumulated
    return _composed(f"{dtype}_element_as_{accumulator}", accumulated, load)


@made
def accumulated_of(source: DType, accumulator: DType) -> Unary:
    """Return the function for values on their way into a sum: integers wrap, as the sum does."""
    if not source.is_integer:
        return cast_of(source, accumulator)
    widened = _wrapped_to(register_of(accumulator))
    if accumulator.bits != 4:
        return widened
    return _composed(f"wrapped_to_{accumulator}", rounded_of(accumulator), widened)


@made
def _wrapped_to(type_: type[np.generic]) -> Unary:
    @register_jitable
    @named(f"wrapped_to_{type_.__name__}")
    def widened(value):
        return wrapped(value, type_)

    return widened


def _composed(name: str, outer: Unary, inner: Unary) -> Unary:
    @register_jitable
    @named(name)
    def composed(value):
        return outer(inner(value))

    return composed


def _to_complex_of(source: DType, target: DType) -> Unary:
    part = dtypes.f32 if target is dtypes.cf32 else dtypes.f64
    inner = unchanged if source.is_complex else cast_of(source, part)
    type_ = register_of(target)

    @register_jitable
    @named(f"{source}_to_{target}")
    def to_complex(value):
        return type_(inner(value))

    return to_complex


def _is_not_zero_of(source: DType) -> Unary:
    type_ = register_of(source)

    @register_jitable
    @named(f"{source}_to_i1")
    def is_not_zero(value):
        return value != type_(0)

    return is_not_zero


@made
def _to_f32_of(source: DType) -> Unary:
    """Return the conversion to f32 before a narrow type: to odd, so that no tie arises there."""
    if source.bits < 32 or source is dtypes.f32:
        return conversion_to(np.float32)
    exact = to_53_bits_odd if source.is_integer and source.bits == 64 else unchanged

    @register_jitable
    @named(f"{source}_to_f32_odd")
    def to_f32(value):
        return convert(f64_to_f32_odd(convert(exact(value), np.float64)), np.float32)

    return to_f32
