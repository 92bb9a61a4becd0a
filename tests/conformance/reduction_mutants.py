"""Wrong sums and extremes: reductions, products, windows, segments, and normalization."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec.structs import replace

from conformance.mutation import Kernel, Mutations
from gptrs.errors import ExecutionError

MUTATIONS = Mutations()
wrong, with_attributes = MUTATIONS.wrong, MUTATIONS.with_attributes


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


with_attributes("exclusive ignored", "cumulative", exclusive=False)
with_attributes("reverse ignored by cumulative", "cumulative", reverse=False)
with_attributes("epsilon ignored", "layer_norm", epsilon=0.0)


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


with_attributes("dilation ignored", "extract_patches", dilation=None)


@wrong("segments without rows are zero", "segment_reduce")
def _(kernel: Kernel) -> Kernel:
    def zeros(op: Any, x: np.ndarray, ids: np.ndarray) -> np.ndarray:
        result = np.array(kernel(op, x, ids))
        result[[i for i in range(op.num_segments) if i not in ids.astype("i8")]] = 0
        return result

    return zeros
