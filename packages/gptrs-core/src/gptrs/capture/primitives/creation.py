"""Primitives that make a tensor from nothing but attributes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from gptrs.capture.tensor import Tensor, apply
from gptrs.ir.dtypes import DType
from gptrs.ir.literal import Literal
from gptrs.ir.ops import creation
from gptrs.ir.shapes import normalize_axis


def constant(value: npt.ArrayLike, dtype: DType | None = None) -> Tensor:
    """Return a literal tensor; `dtype` is that of the array unless given."""
    array = np.asarray(value, dtype=dtype.numpy if dtype else None)
    return apply(creation.Constant(Literal.of(array)))


def iota(shape: Sequence[int], axis: int, dtype: DType) -> Tensor:
    """Each element is its index along axis."""
    normal = normalize_axis(axis, len(shape), "`iota`")
    return apply(creation.Iota(tuple(shape), normal, dtype))
