"""Backends that are wrong in one way each: the reference backend with one kernel changed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gptrs.backend.protocol import Backend
from gptrs.errors import ExecutionError
from gptrs.ir import OPS, Op
from gptrs.testing.numerics import integer_range
from gptrs_backend_ref.backend import RefBackend
from gptrs_backend_ref.kernels import TABLE

Kernel = Callable[..., Any]


@dataclass(frozen=True)
class Mutant:
    """A wrong backend, and the ops of which a case must fail on it."""

    name: str
    ops: tuple[str, ...]
    make: Callable[[], Backend]


MUTANTS: list[Mutant] = []


def wrong(name: str, *ops: str) -> Callable[[Callable[[Kernel], Kernel]], object]:
    """Decorator: a function from the right kernel of these ops to the wrong one."""

    def register(change: Callable[[Kernel], Kernel]) -> object:
        table = TABLE.changed({OPS[op]: change for op in ops})
        MUTANTS.append(Mutant(name, ops, lambda: RefBackend(table)))
        return change

    return register


def with_attributes(name: str, op: str, **values: object) -> None:
    """A kernel that takes these values for the attributes, whatever they are."""

    @wrong(name, op)
    def change(kernel: Kernel) -> Kernel:
        return lambda op, *arrays: kernel(_replaced(op, values), *arrays)


def _replaced(op: Op, values: dict[str, object]) -> Op:
    return replace(op, **values)  # pyright: ignore[reportArgumentType]


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


@wrong("the last of equals", "argmax", "argmin")
def _(kernel: Kernel) -> Kernel:
    def last(op: Any, x: np.ndarray) -> np.ndarray:
        backwards = kernel(op, np.flip(x, op.axis))
        return (x.shape[op.axis] - 1 - backwards).astype(op.dtype.numpy)

    return last


@wrong("NaN is no extreme", "argmax")
def _(kernel: Kernel) -> Kernel:
    def ignoring(op: Any, x: np.ndarray) -> np.ndarray:
        if x.dtype.kind == "f":
            x = np.where(np.isnan(x), -np.inf, x).astype(x.dtype)
        return kernel(op, x)

    return ignoring


with_attributes("accum_dtype ignored by reduce", "reduce", accum_dtype=None)
with_attributes("accum_dtype ignored by dot_general", "dot_general", accum_dtype=None)
with_attributes("exclusive ignored", "cumulative", exclusive=False)
with_attributes("reverse ignored by cumulative", "cumulative", reverse=False)
with_attributes("descending ignored", "sort", descending=False)
with_attributes("largest ignored", "top_k", largest=True)
with_attributes("dilation ignored", "extract_patches", dilation=None)
with_attributes("the value of padding ignored", "pad", value=None)
with_attributes("epsilon ignored", "layer_norm", epsilon=0.0)
with_attributes("every axis treated as one group", "quantize", group_size=None)


@wrong("out_dtype ignored", "dot_general", "reduce", "cumulative", "reduce_window")
def _(kernel: Kernel) -> Kernel:
    return lambda op, x, *more: kernel(op, x, *more).astype(x.dtype)


@wrong("f16 accumulated in f16", "reduce")
def _(kernel: Kernel) -> Kernel:
    def narrow(op: Any, x: np.ndarray) -> np.ndarray:
        plain = x.dtype == np.float16 and op.kind == "sum" and not (op.accum_dtype or op.out_dtype)
        if not plain or len(op.axes) != 1 or x.shape[op.axes[0]] == 0:
            return kernel(op, x)
        running = np.add.accumulate(x, axis=op.axes[0], dtype=np.float16)
        last = np.take(running, [-1], axis=op.axes[0])
        return last if op.keepdims else last.squeeze(op.axes[0])

    return narrow


@wrong("batch axes sorted on each side", "dot_general")
def _(kernel: Kernel) -> Kernel:
    def sorted_batch(op: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        lhs, rhs = tuple(sorted(op.batch_lhs)), tuple(sorted(op.batch_rhs))
        if [x.shape[a] for a in lhs] != [y.shape[b] for b in rhs]:
            raise ExecutionError("the batch axes do not fit")
        return kernel(replace(op, batch_lhs=lhs, batch_rhs=rhs), x, y)

    return sorted_batch


@wrong("free axes of the right side come first", "dot_general")
def _(kernel: Kernel) -> Kernel:
    def turned(op: Any, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        result = kernel(op, x, y)
        return result if result.ndim != 2 else result.T.reshape(result.shape)

    return turned


@wrong("windows start one too late", "reduce_window")
def _(kernel: Kernel) -> Kernel:
    def late(op: Any, x: np.ndarray) -> np.ndarray:
        return kernel(op, np.concatenate([x[1:], x[:1]])) if x.ndim else kernel(op, x)

    return late


@wrong("padding is zero, not the identity", "reduce_window")
def _(kernel: Kernel) -> Kernel:
    def zero_padded(op: Any, x: np.ndarray) -> np.ndarray:
        if not op.padding or x.size == 0:
            return kernel(op, x)
        pairs = list(zip(op.padding[::2], op.padding[1::2], strict=True))
        return kernel(replace(op, padding=None), np.pad(x, pairs))

    return zero_padded


@wrong("channels before window positions", "extract_patches")
def _(kernel: Kernel) -> Kernel:
    def turned(op: Any, x: np.ndarray) -> np.ndarray:
        result = kernel(op, x)
        split = result.reshape(*result.shape[:-1], int(np.prod(op.window)), x.shape[-1])
        return np.swapaxes(split, -1, -2).reshape(result.shape)

    return turned


@wrong("indices out of range clamped", "gather", "take")
def _(kernel: Kernel) -> Kernel:
    def clamped(op: Any, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
        size = x.shape[getattr(op, "axis", 0)]
        return kernel(op, x, np.clip(indices.astype(np.float64), 0, max(size - 1, 0)).astype("i8"))

    return clamped


@wrong("negative indices count from the end", "gather", "take")
def _(kernel: Kernel) -> Kernel:
    def wrapped(op: Any, x: np.ndarray, indices: np.ndarray) -> np.ndarray:
        size = x.shape[getattr(op, "axis", 0)]
        if indices.dtype.kind != "i":
            return kernel(op, x, indices)
        return kernel(op, x, np.where(indices < 0, indices.astype("i8") + size, indices))

    return wrapped


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


@wrong("halves round away from zero", "round_nearest_even")
def _(kernel: Kernel) -> Kernel:
    def away(op: Op, x: np.ndarray) -> np.ndarray:
        if x.dtype != np.float32:
            return kernel(op, x)
        return np.copysign(np.floor(np.abs(x) + np.float32(0.5)), x)

    return away


@wrong("bf16 truncated", "cast")
def _(kernel: Kernel) -> Kernel:
    def truncated(op: Any, x: np.ndarray) -> np.ndarray:
        if x.dtype != np.float32 or op.dtype.name != "bf16":
            return kernel(op, x)
        return (x.view(np.uint32) >> 16).astype(np.uint16).view(op.dtype.numpy)

    return truncated


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


@wrong("operands joined in the wrong order", "concat")
def _(kernel: Kernel) -> Kernel:
    return lambda op, *parts: kernel(op, *reversed(parts))


@wrong("the inverse permutation", "transpose")
def _(kernel: Kernel) -> Kernel:
    def inverse(op: Any, x: np.ndarray) -> np.ndarray:
        turned = x.transpose(np.argsort(op.permutation))
        right = kernel(op, x)
        return turned if turned.shape == right.shape else turned.reshape(right.shape)

    return inverse


@wrong("strides ignored", "slice")
def _(kernel: Kernel) -> Kernel:
    return lambda op, x: kernel(replace(op, strides=None), x)


@wrong("starts not clamped", "dynamic_slice")
def _(kernel: Kernel) -> Kernel:
    def wrapping(op: Any, x: np.ndarray, starts: np.ndarray) -> np.ndarray:
        room = [dim - size for dim, size in zip(x.shape, op.sizes, strict=True)]
        moved = [int(s) % (free + 1) for s, free in zip(starts, room, strict=True)]
        return kernel(op, x, np.array(moved, np.int64))

    return wrapping


@wrong("the first of several updates stays", "scatter_reduce")
def _(kernel: Kernel) -> Kernel:
    def first(op: Any, x: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> np.ndarray:
        if op.kind != "replace":
            return kernel(op, x, indices, updates)
        return kernel(op, x, np.flip(indices, op.axis), np.flip(updates, op.axis))

    return first


@wrong("ties go to the larger index", "top_k")
def _(kernel: Kernel) -> Kernel:
    def backwards(op: Any, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, indices = kernel(op, np.flip(x, op.axis))
        return values, (x.shape[op.axis] - 1 - indices).astype(indices.dtype)

    return backwards


@wrong("equal elements change places", "sort")
def _(kernel: Kernel) -> Kernel:
    return lambda op, *xs: kernel(op, *(np.flip(x, op.axis) for x in xs))


@wrong("segments without rows are zero", "segment_reduce")
def _(kernel: Kernel) -> Kernel:
    def zeros(op: Any, x: np.ndarray, ids: np.ndarray) -> np.ndarray:
        result = np.array(kernel(op, x, ids))
        result[[i for i in range(op.num_segments) if i not in ids.astype("i8")]] = 0
        return result

    return zeros


@wrong("halves round up", "quantize")
def _(kernel: Kernel) -> Kernel:
    def upwards(op: Any, x: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
        if op.axis is not None or x.dtype != np.float32 or scale.dtype != np.float32:
            return kernel(op, x, scale, zero)
        quotient = np.nan_to_num(np.floor(x / scale + 0.5), nan=0, posinf=2**40, neginf=-(2**40))
        clipped = np.clip(quotient.astype("i8") + zero, *integer_range(op.dtype))
        return clipped.astype(op.dtype.numpy)

    return upwards


@wrong("the counter is one ahead", "rng_uniform", "rng_normal")
def _(kernel: Kernel) -> Kernel:
    return lambda op, seed: kernel(op, seed + np.array([0, 1], np.uint64))


@wrong("the branches are swapped", "cond")
def _(kernel: Kernel) -> Kernel:
    return lambda op, p, *xs, bodies: kernel(op, ~p, *xs, bodies=bodies)


@wrong("the loop runs once too often", "while")
def _(kernel: Kernel) -> Kernel:
    return lambda op, *xs, bodies: bodies[1](*kernel(op, *xs, bodies=bodies))


with_attributes("reverse ignored by scan", "scan", reverse=False)


@wrong("an operand is overwritten", "neg", "exp")
def _(kernel: Kernel) -> Kernel:
    def in_place(op: Op, x: np.ndarray) -> np.ndarray:
        result = kernel(op, x)
        if x.size and x.flags.writeable:
            x[...] = result
        return result.copy()

    return in_place


@wrong("a bare exception", "tanh")
def _(kernel: Kernel) -> Kernel:
    def crash(op: Op, x: np.ndarray) -> np.ndarray:
        raise KeyError("no such kernel")

    return crash


@wrong("the result has another type", "compare", "is_finite")
def _(kernel: Kernel) -> Kernel:
    return lambda op, *xs: kernel(op, *xs).astype(np.uint8)


@wrong("rank 0 becomes rank 1", "add", "reduce")
def _(kernel: Kernel) -> Kernel:
    return lambda op, *xs: np.atleast_1d(kernel(op, *xs))
