"""Stored tensors in the type that a model wants: when they keep theirs, and how they are read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gptrs.backend.contract import Backend
from gptrs.checkpoint.param_source import MappedSource, ParamSource, PartialSource
from gptrs.ir import dtypes
from gptrs.ir.ops.elementwise import Cast
from gptrs.ir.tensor_type import TensorType


def stays_narrow(
    stored: TensorType, wanted: TensorType, backend: Backend, ranks: Sequence[int]
) -> bool:
    """Return whether a weight keeps its stored type: one of `ranks` that `backend` can convert.

    Convolutions and stacks of matrices, but those of experts, are better off with one conversion
    ahead: what is computed of their weights, such as a folded batch norm, is computed once then.
    """
    halves = stored.dtype in (dtypes.bf16, dtypes.f16) and wanted.dtype is dtypes.f32
    if not halves or stored.rank not in ranks:
        return False
    return backend.refusal(Cast(wanted.dtype), [stored], [wanted]) is None


def load_slice(
    source: PartialSource, name: str, type: TensorType, index: tuple[slice, ...]
) -> np.ndarray:
    """Return a part of the stored array in the dtype of `type`; see `PartialSource.read_slice`."""
    with np.errstate(over="ignore", invalid="ignore"):  # as `load_as` does
        return source.read_slice(name, index).astype(type.dtype.numpy, copy=False)


def load_as(source: ParamSource, name: str, type: TensorType) -> np.ndarray:
    """Return the stored array if it has the dtype already, else a copy rounded to even."""
    dtype = type.dtype.numpy
    with np.errstate(over="ignore", invalid="ignore"):  # to inf and NaN, as `cast` of PTIR says
        if not isinstance(source, MappedSource) or source.type_of(name) == type:
            return source.load(name).astype(dtype, copy=False)
        array, start = np.empty(type.size, dtype), 0
        for part in source.parts(name):  # so that no more of the file is in memory
            array[start : start + part.size] = part.astype(dtype, copy=False)
            start += part.size
    return array.reshape(type.shape)
