"""Wrong arithmetic: one element at a time, conversions, quantization, and random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from conformance.mutation import Kernel, Mutations
from gptrs.ir import Op
from gptrs_conformance.numerics import integer_range

MUTATIONS = Mutations()
wrong, with_attributes = MUTATIONS.wrong, MUTATIONS.with_attributes


@wrong("operands of sub swapped", "sub")
def _(kernel: Kernel) -> Kernel:
    return lambda op, x, y: kernel(op, y, x)


@wrong("integers added with saturation", "add")
def _(kernel: Kernel) -> Kernel:
    def add(op: Op, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        if x.dtype != np.int8:
            return kernel(op, x, y)
        return np.clip(x.astype("i4") + y, -128, 127).astype("i1")

    return add


@wrong("NaN dropped", "maximum", "minimum")
def _(kernel: Kernel) -> Kernel:
    def extreme(op: Op, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        if x.dtype.kind != "f":
            return kernel(op, x, y)
        return np.fmax(x, y) if op.name == "maximum" else np.fmin(x, y)

    return extreme


@wrong("division rounds down", "div")
def _(kernel: Kernel) -> Kernel:
    def down(op: Op, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        result = kernel(op, x, y)
        return np.floor_divide(x, y) if x.dtype == np.int32 else result

    return down


@wrong("the remainder has the sign of the divisor", "rem")
def _(kernel: Kernel) -> Kernel:
    def modulo(op: Op, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        result = kernel(op, x, y)
        return np.mod(x, y) if x.dtype == np.int32 else result

    return modulo


@wrong("shifts count modulo the width", "shift_left", "shift_right_logical")
def _(kernel: Kernel) -> Kernel:
    def modulo(op: Op, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return kernel(op, x, y & 31) if x.dtype == np.int32 else kernel(op, x, y)

    return modulo


@wrong("halves round away from zero", "round_nearest_even")
def _(kernel: Kernel) -> Kernel:
    def away(op: Op, x: np.ndarray) -> np.ndarray:
        if x.dtype != np.float32:
            return kernel(op, x)
        return np.copysign(np.floor(np.abs(x) + np.float32(0.5)), x)

    return away


@wrong("the unstable form overflows", "logistic")
def _(kernel: Kernel) -> Kernel:
    def unstable(op: Op, x: np.ndarray) -> np.ndarray:
        if x.dtype != np.float32:
            return kernel(op, x)
        return np.exp(x) / (1 + np.exp(x))

    return unstable


@wrong("expm1 as exp minus one", "expm1")
def _(kernel: Kernel) -> Kernel:
    return lambda op, x: np.exp(x) - 1 if x.dtype == np.float32 else kernel(op, x)


@wrong("-0.0 lost", "neg", "floor", "ceil", "round_nearest_even", "sqrt")
def _(kernel: Kernel) -> Kernel:
    def positive(op: Op, *arrays: np.ndarray) -> np.ndarray:
        result = kernel(op, *arrays)
        return result + np.float32(0) if result.dtype == np.float32 else result

    return positive


@wrong("floats that do not fit wrap", "cast")
def _(kernel: Kernel) -> Kernel:
    def wrapping(op: Any, x: np.ndarray) -> np.ndarray:
        if x.dtype != np.float32 or op.dtype.name != "si8":
            return kernel(op, x)
        return np.where(np.isfinite(x), x, 0).astype(np.int64).astype(np.int8)

    return wrapping


@wrong("NaN becomes the least integer", "cast")
def _(kernel: Kernel) -> Kernel:
    def least(op: Any, x: np.ndarray) -> np.ndarray:
        result = kernel(op, x)
        if x.dtype != np.float32 or op.dtype.name != "si32":
            return result
        return np.where(np.isnan(x), np.iinfo(np.int32).min, result).astype(np.int32)

    return least


@wrong("bf16 truncated", "cast")
def _(kernel: Kernel) -> Kernel:
    def truncated(op: Any, x: np.ndarray) -> np.ndarray:
        if x.dtype != np.float32 or op.dtype.name != "bf16":
            return kernel(op, x)
        return (x.view(np.uint32) >> 16).astype(np.uint16).view(op.dtype.numpy)

    return truncated


@wrong("halves round up", "quantize")
def _(kernel: Kernel) -> Kernel:
    def upwards(op: Any, x: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
        if op.axis is not None or x.dtype != np.float32 or scale.dtype != np.float32:
            return kernel(op, x, scale, zero)
        quotient = np.nan_to_num(np.floor(x / scale + 0.5), nan=0, posinf=2**40, neginf=-(2**40))
        clipped = np.clip(quotient.astype("i8") + zero, *integer_range(op.dtype))
        return clipped.astype(op.dtype.numpy)

    return upwards


with_attributes("every axis treated as one group", "quantize", group_size=None)


@wrong("the counter is one ahead", "rng_uniform", "rng_normal")
def _(kernel: Kernel) -> Kernel:
    return lambda op, seed: kernel(op, seed + np.array([0, 1], np.uint64))
