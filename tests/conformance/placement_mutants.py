"""Elements in the wrong place: indices, layout, padding, and order."""

from __future__ import annotations

from typing import Any

import numpy as np
from msgspec.structs import replace

from conformance.mutation import Kernel, Mutations

MUTATIONS = Mutations()
wrong, with_attributes = MUTATIONS.wrong, MUTATIONS.with_attributes


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


@wrong("the first of several updates stays", "scatter_reduce")
def _(kernel: Kernel) -> Kernel:
    def first(op: Any, x: np.ndarray, indices: np.ndarray, updates: np.ndarray) -> np.ndarray:
        if op.kind != "replace":
            return kernel(op, x, indices, updates)
        return kernel(op, x, np.flip(indices, op.axis), np.flip(updates, op.axis))

    return first


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


with_attributes("the value of padding ignored", "pad", value=None)


@wrong("ties go to the larger index", "top_k")
def _(kernel: Kernel) -> Kernel:
    def backwards(op: Any, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, indices = kernel(op, np.flip(x, op.axis))
        return values, (x.shape[op.axis] - 1 - indices).astype(indices.dtype)

    return backwards


@wrong("equal elements change places", "sort")
def _(kernel: Kernel) -> Kernel:
    return lambda op, *xs: kernel(op, *(np.flip(x, op.axis) for x in xs))


with_attributes("descending ignored", "sort", descending=False)
with_attributes("largest ignored", "top_k", largest=True)
