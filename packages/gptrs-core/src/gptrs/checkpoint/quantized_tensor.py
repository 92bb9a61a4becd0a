"""Quantized weights as data: the parts of a tensor, and their meaning.

All formats are one family. A tensor [.., O, I] is codes of a few bits, and a scale for each group
of `group_size` along the last axis; some have a bias or zero points as well, and some keep the
scales themselves as small integers under a scale for several groups. A source returns each part as
a separate array (planar), and `dequantized` decodes them in PTIR.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, Protocol, runtime_checkable

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gptrs.backend.contract import Backend
from gptrs.backend.weight_identity import WeightIdentity
from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.tensor_type import TensorType

Part = Literal["codes", "scale", "super_scale", "bias", "super_bias", "zero_point"]
"""The names of the parts of a quantized tensor, the same in all formats."""


class QuantizedTensor(Struct, frozen=True):
    """The parts of a quantized tensor of `shape`, whose groups lie along the last axis.

    An element is `(code - zero_point) * scale`, or `code * scale + bias` where there is the part
    `bias`. With `bits` below 8 the codes are packed as `unpack_bits` reads them. `zero_point`
    applies to all groups, unless there is a part of that name. With a `table`, codes are indices
    into it. The parts `scale` and `bias` are integers where there are `super_scale` and
    `super_bias`, by which `super_group` of them in a row are multiplied.
    """

    format: str
    """Its name in files, such as `Q4_K`."""
    shape: tuple[int, ...]
    parts: Mapping[Part, TensorType]
    bits: int
    group_size: int
    zero_point: int = 0
    super_group: int | None = None
    table: tuple[int, ...] | None = None
    transposed: bool = False
    """Whether the model has the last two axes the other way round."""

    @property
    def type(self) -> TensorType:
        """The type of the values."""
        *outer, rows, columns = self.shape
        shape = (*outer, columns, rows) if self.transposed else self.shape
        return TensorType(dtypes.f32, shape)

    def values(self, part_of: Mapping[Part, np.ndarray]) -> np.ndarray:
        """Return f32 [rows, I] of the parts of some rows, codes not packed: what PTIR computes.

        Not transposed: its rows are those of the parts.
        """
        codes = part_of["codes"]
        with np.errstate(over="ignore", invalid="ignore"):  # as floats of PTIR do
            return self._values(codes, part_of)

    def _values(self, codes: np.ndarray, part_of: Mapping[Part, np.ndarray]) -> np.ndarray:
        if self.table is not None:
            codes = np.array(self.table, np.int8)[codes]
        scale = self._spread("scale", "super_scale", part_of)
        if "bias" in part_of:
            product = codes.astype(np.float32) * scale
            return product + self._spread("bias", "super_bias", part_of)
        zero = np.int32(self.zero_point)
        if "zero_point" in part_of:
            zero = np.repeat(part_of["zero_point"], self.group_size, axis=1)
        return (codes.astype(np.int32) - zero).astype(np.float32) * scale

    def _spread(self, name: Part, above: Part, part_of: Mapping[Part, np.ndarray]) -> np.ndarray:
        """Return the scale or bias of each element."""
        found = part_of[name].astype(np.float32)
        if above in part_of and self.super_group is not None:
            found = found * np.repeat(part_of[above].astype(np.float32), self.super_group, axis=1)
        return np.repeat(found, self.group_size, axis=1)


@runtime_checkable
class QuantizedSource(Protocol):
    """A source of parameters that may be quantized."""

    def quantized(self, name: str) -> QuantizedTensor | None:
        """Return how a tensor is quantized, None if it is not."""
        ...

    def load_part(self, name: str, part: Part) -> np.ndarray:
        """Return a part of a quantized tensor; CheckpointError if it cannot be read."""
        ...

    def identity_of_part(self, name: str, part: Part) -> WeightIdentity | None:
        """Return the identity of the part; None if unknown."""
        ...


def reads_quantized(backend: Backend, quantized: QuantizedTensor) -> bool:
    """Return whether `backend` computes with such a weight as stored."""
    codes = quantized.parts["codes"]
    return backend.reads_quantized(codes, quantized.bits, quantized.group_size)


def stack_of(matrix: QuantizedTensor, count: int) -> QuantizedTensor:
    """Return `count` tensors that are quantized alike as one, with an axis for them in front."""
    parts = {name: part.with_shape((count, *part.shape)) for name, part in matrix.parts.items()}
    return replace(matrix, shape=(count, *matrix.shape), parts=parts)


def dequantized(
    quantized: QuantizedTensor, part_of: Callable[[Part], Tensor], dtype: DType
) -> Tensor:
    """Return what a quantized tensor stands for, computed of its parts, as floats of `dtype`.

    This is the only form in which quantized weights occur in programs, for backends to match:
    `dequantize` or `dequantize_affine` of `unpack_bits`, along the last axis.
    """
    codes = part_of("codes")
    axis = len(quantized.shape) - 1
    if quantized.bits < 8:
        codes = primitives.unpack_bits(codes, quantized.bits, axis)
    if quantized.table is not None:
        codes = primitives.take(primitives.constant(quantized.table, dtypes.si8), codes)
    scale = _parameter("scale", "super_scale", quantized, part_of)
    if "bias" in quantized.parts:
        bias = _parameter("bias", "super_bias", quantized, part_of)
        value = primitives.dequantize_affine(codes, scale, bias, dtype, axis, quantized.group_size)
    else:
        value = primitives.dequantize(
            codes, scale, _zero_point(quantized, part_of), dtype, axis, quantized.group_size
        )
    if not quantized.transposed:
        return value
    return primitives.transpose(value, (*range(axis - 1), axis, axis - 1))


def _parameter(
    name: Part, above: Part, quantized: QuantizedTensor, part_of: Callable[[Part], Tensor]
) -> Tensor:
    """Return the scale or bias of each group."""
    found = part_of(name)
    if above not in quantized.parts:
        return found
    zero, axis = _si32(0), len(quantized.shape) - 1
    size = quantized.super_group
    return primitives.dequantize(found, part_of(above), zero, dtypes.f32, axis, size)


def _zero_point(quantized: QuantizedTensor, part_of: Callable[[Part], Tensor]) -> Tensor:
    if "zero_point" in quantized.parts:
        return part_of("zero_point")
    return _si32(quantized.zero_point)


def _si32(value: int) -> Tensor:
    return primitives.constant(value, dtypes.si32)
