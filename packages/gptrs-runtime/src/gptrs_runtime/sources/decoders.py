"""Decoders of quantized weights stored in several tensors: GPTQ, AWQ, MLX, MXFP4, FP8, ...

`DECODERS` has a row for each layout of codes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from typing_extensions import override

from gptrs.backend.weight_identity import WeightIdentity
from gptrs.checkpoint.formats.foreign_files import packed_bits
from gptrs.checkpoint.formats.gguf_types import E2M1, mxfp4_scale
from gptrs.checkpoint.formats.mapped_tensors import MappedTensors
from gptrs.checkpoint.formats.safetensors_header import TensorEntry
from gptrs.checkpoint.param_source import FileSource
from gptrs.checkpoint.quantized_tensor import Part, QuantizedTensor
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.tensor_type import TensorType
from gptrs.lazy_module import lazy_module
from gptrs_runtime.sources.made_tensors import MadeTensor, MadeTensors
from gptrs_runtime.sources.quantization_config import GPTQ_BITS, Layout, QuantizationScheme

if TYPE_CHECKING:
    from gptrs_runtime.sources import bitsandbytes, fp4, fp8
else:
    bitsandbytes = lazy_module("gptrs_runtime.sources.bitsandbytes")
    fp4 = lazy_module("gptrs_runtime.sources.fp4")
    fp8 = lazy_module("gptrs_runtime.sources.fp8")


def decoded(
    stored: FileSource, scheme: QuantizationScheme, experts: Mapping[str, str]
) -> MadeTensors:
    """Return the tensors of a folder, with weights instead of their stored parts.

    Weights have the names of the model. `experts` maps MLX's names of an expert's matrices to the
    model's, if they differ.
    """
    return MadeTensors(stored, DECODERS[scheme.layout](stored, scheme, experts))


Decoder = Callable[[FileSource, QuantizationScheme, Mapping[str, str]], Iterator[MadeTensor]]
"""Finds the weights of a folder in a layout; takes the arguments of `decoded`."""


class _Packing(Struct, frozen=True):
    """The storage of a layer in GPTQ, AWQ or compressed-tensors: names of tensors, order of codes.

    `unpack` returns ui8 [O, I] of codes and the bits of one. Where codes and scales lie `across`,
    they are [I, O]; `axis` is the one along which codes share an int32. `zeros` returns
    [O, groups], perhaps with more rows, of zero points.
    """

    codes: str
    scale: str
    zero_point: str
    index: str
    unpack: Callable[[np.ndarray, int], np.ndarray]
    zeros: Callable[[np.ndarray, int], np.ndarray]
    axis: int | None
    across: bool = False
    dtype: DType = dtypes.si32


def _unpacked(words: np.ndarray, bits: int) -> np.ndarray:
    """Return ui8 [N, n * 32 / bits] of int32 [N, n], which hold codes from the lowest bits on."""
    octets = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return octets
    if bits == 4:
        return np.stack([octets & 15, octets >> 4], axis=-1).reshape(len(words), -1)
    # Codes of 3 bits cross the borders of words: 32 codes in three of them.
    streams = np.unpackbits(octets, axis=1, bitorder="little").reshape(len(words), -1, bits)
    return np.packbits(streams, axis=2, bitorder="little")[..., 0]


_AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""The slots of 8 columns' codes in an int32, from the lowest bits up."""


def _awq(words: np.ndarray, _: int) -> np.ndarray:
    """Return ui8 [O, I] of int32 [I, O / 8]."""
    codes = _unpacked(words, 4)
    return codes.reshape(len(words), -1, 8)[..., _AWQ_ORDER].reshape(codes.shape).T


_COMPRESSED = ("weight_scale", "weight_zero_point", "weight_g_idx")
_GPTQ = ("qweight", "scales", "qzeros", "g_idx")
_PACKINGS: Mapping[Layout, _Packing] = {
    "packed": _Packing(
        "weight_packed", *_COMPRESSED, _unpacked,
        lambda zeros, bits: _unpacked(zeros.T, bits).T, axis=1,  # (O / 8, G)
    ),
    "int8": _Packing(
        "weight", *_COMPRESSED, lambda codes, _: codes, lambda zeros, _: zeros, axis=None,
        dtype=dtypes.si8,
    ),
    "gptq": _Packing(
        *_GPTQ, lambda codes, bits: _unpacked(codes.T, bits),
        lambda zeros, bits: _unpacked(zeros, bits).T, axis=0, across=True,  # (G, O / 8)
    ),
    "awq": _Packing(*_GPTQ, _awq, _awq, axis=1, across=True),
}  # fmt: skip
_SHAPE = "weight_shape"


class PackedWeight(MadeTensor):
    """A weight of GPTQ, AWQ or compressed-tensors: codes, scales and perhaps zero points."""

    def __init__(self, stored: FileSource, end: str, scheme: QuantizationScheme) -> None:
        self.packing, self.scheme, self.end = _PACKINGS[scheme.layout], scheme, end
        packing, known = self.packing, stored.names()
        names = (packing.codes, packing.scale, packing.zero_point, packing.index)
        found = [each for each in (f"{end}.{name}" for name in names) if each in known]
        super().__init__(stored, f"{end}.weight", found)
        if scheme.varied:
            self.scheme = self._of_shapes(scheme)
        self.recipe = f"{self.scheme}"

    def _of_shapes(self, scheme: QuantizationScheme) -> QuantizationScheme:
        """Return the scheme of this layer where GPTQModel gave some layers their own (`dynamic`).

        Its expressions of names need not be followed: the shapes say the same.
        """
        names = [f"{self.end}.{name}" for name in ("qweight", "scales", "qzeros")]
        if not {*names} <= {*self.parts}:
            return scheme
        codes, scale, zeros = (self.stored.type_of(name).shape for name in names)
        if len(codes) != 2 or len(scale) != 2 or len(zeros) != 2 or not codes[1] or not scale[0]:
            return scheme
        bits = zeros[1] * 32 // codes[1]
        if bits not in GPTQ_BITS:
            raise self.misfit(names[0], f"has {bits} bits; 2, 3, 4 and 8 are read")
        size = codes[0] * 32 // bits // scale[0]
        return replace(scheme, bits=bits, group_size=size or None)

    @property
    @override
    def hidden(self) -> Sequence[str]:
        return *self.parts, f"{self.end}.{_SHAPE}"

    @override
    def described(self) -> QuantizedTensor:
        scheme, packing = self.scheme, self.packing
        codes, scale = (self.stored.type_of(each) for each in self.parts[:2])
        if codes.dtype is not packing.dtype or codes.rank != 2 or not scale.dtype.is_float:
            raise self.misfit(self.parts[0], f"is `{codes}` with a scale of `{scale}`")
        sizes = list(codes.shape)
        if packing.axis is not None:
            sizes[packing.axis] = sizes[packing.axis] * 32 // scheme.bits
        rows, columns = reversed(sizes) if packing.across else sizes
        size = scheme.group_size or columns
        groups = columns // size if size and columns % size == 0 else 0
        stored_scale = (groups, rows) if packing.across else (rows, groups)
        if not groups or columns % 8 or scale.shape != stored_scale:
            raise self.misfit(
                self.parts[0],
                f"of [{rows}, {columns}] does not fit a scale of `{scale}`, groups of {size}",
            )
        signed = packing.dtype is dtypes.si8
        octets = TensorType(
            dtypes.si8 if signed else dtypes.ui8, (rows, columns * scheme.bits // 8)
        )
        parts: dict[Part, TensorType] = {"codes": octets}
        parts["scale"] = TensorType(scale.dtype, (rows, groups))
        if not scheme.symmetric:
            parts["zero_point"] = TensorType(dtypes.si32, (rows, groups))
        zero = 0 if signed or not scheme.symmetric else 1 << scheme.bits - 1
        label = f"{scheme.method}-{scheme.bits}"
        return QuantizedTensor(label, (rows, columns), parts, scheme.bits, size, zero)

    @override
    def quantized(self) -> QuantizedTensor | None:
        """Return the quantization; None if the groups are not in order."""
        found = self.described()
        return found if self._groups(found) is None else None

    @override
    def load(self) -> np.ndarray:
        described = self.described()
        parts: dict[Part, np.ndarray] = {part: self._part(part) for part in described.parts}
        groups = self._groups(described)
        if groups is None:
            return described.values(parts)
        # Columns are assigned to groups individually.
        scale = parts["scale"][:, groups].astype(np.float32)
        zeros = parts.get("zero_point")
        zero = described.zero_point if zeros is None else zeros[:, groups]
        return (parts["codes"].astype(np.int32) - zero).astype(np.float32) * scale

    @override
    def load_part(self, part: Part) -> np.ndarray:
        array, bits = self._part(part), self.scheme.bits
        packed = part == "codes" and bits < 8
        return np.ascontiguousarray(packed_bits(array, bits) if packed else array)

    def _groups(self, quantized: QuantizedTensor) -> np.ndarray | None:
        """Return the group of each column if they are not in order (act-order)."""
        index = f"{self.end}.{self.packing.index}"
        if index not in self.parts:
            return None
        found = self.stored.load(index).reshape(-1)
        columns, count = quantized.shape[1], quantized.parts["scale"].shape[1]
        if found.shape != (columns,) or not np.all((found >= 0) & (found < count)):
            raise self.misfit(index, f"must be {columns} numbers of {count} groups")
        ordered = np.arange(columns) // quantized.group_size
        return None if np.array_equal(found, ordered) else found

    def _part(self, part: Part) -> np.ndarray:
        """Return a part, codes one to an element."""
        packing, bits = self.packing, self.scheme.bits
        if part == "codes":
            return packing.unpack(self.stored.load(self.parts[0]), bits)
        if part == "scale":
            scale = self.stored.load(self.parts[1])
            return scale.T if packing.across else scale
        stored = self.stored.load(f"{self.end}.{packing.zero_point}")
        if stored.dtype != np.int32 or stored.ndim != 2:
            raise self.misfit(self.name, "has zero points that are not packed in int32")
        zeros = packing.zeros(stored, bits)
        wanted = self.described().parts["zero_point"].shape
        if zeros.shape[0] < wanted[0] or zeros.shape[1] != wanted[1]:
            raise self.misfit(self.name, f"has zero points of {list(zeros.shape)}")
        zeros, offset = zeros[: wanted[0]].astype(np.int32), self.scheme.zero_offset
        if self.scheme.centered and np.all(zeros == 1 << bits - 1):
            offset = 0  # as the second version of GPTQ stores them, whatever the settings say
        # Zero points are stored minus 1: 0 wraps to the greatest code.
        return zeros + np.int32(offset) & np.int32((1 << bits) - 1)


def _layers(stored: FileSource, codes: str, scale: str) -> Iterator[str]:
    """Yield the names of layers with codes and a scale."""
    known = stored.names()
    for name in known:
        end, _, last = name.rpartition(".")
        if last == codes and f"{end}.{scale}" in known:
            yield end


def _packed_weights(
    stored: FileSource, scheme: QuantizationScheme, _: Mapping[str, str]
) -> Iterator[MadeTensor]:
    packing = _PACKINGS[scheme.layout]
    for end in _layers(stored, packing.codes, packing.scale):
        yield PackedWeight(stored, end, scheme)


_JOINED = ".switch_mlp."
_MLX: Mapping[Part, str] = {"codes": "weight", "scale": "scales", "bias": "biases"}


class MlxWeight(MadeTensor):
    """A weight of MLX: ui32 [O, I * bits / 32], a stream of codes from the lowest bits on.

    With `scales` and `biases` [O, I / group_size] an element is `code * scale + bias`. The matrices
    of all experts of a layer are one with an axis more in front; this is that of one `expert`.
    """

    def __init__(
        self,
        stored: FileSource,
        end: str,
        scheme: QuantizationScheme,
        name: str,
        expert: int | None = None,
    ) -> None:
        super().__init__(stored, name, [f"{end}.{each}" for each in _MLX.values()])
        self.scheme, self.end, self.expert = scheme, end, expert
        self.recipe = f"{scheme}"

    @override
    def described(self) -> QuantizedTensor:
        bits, size = self.scheme.of(self.end)
        codes, scale, bias = (self.stored.type_of(each) for each in self.parts)
        unlike = f"is `{codes}` with scales of `{scale}`"
        if self.expert is not None:
            if codes.rank != 3 or {scale.shape[:1], bias.shape[:1]} != {codes.shape[:1]}:
                raise self.misfit(self.parts[0], unlike)
            codes, scale, bias = (each.with_shape(each.shape[1:]) for each in (codes, scale, bias))
            unlike = f"is `{codes}` with scales of `{scale}`"
        if codes.dtype is not dtypes.ui32 or codes.rank != 2 or not scale.dtype.is_float:
            raise self.misfit(self.parts[0], unlike)
        rows, columns = codes.shape[0], codes.shape[1] * 32 // bits
        stored_alike = scale == bias and scale.shape == (rows, columns // size)
        if not stored_alike or columns % size or columns * bits != codes.shape[1] * 32:
            problem = f"of {bits} bits does not fit scales of `{scale}`, groups of {size}"
            raise self.misfit(self.parts[0], problem)
        packed = TensorType(dtypes.ui8, (rows, columns * bits // 8))
        parts: dict[Part, TensorType] = {"codes": packed, "scale": scale, "bias": bias}
        return QuantizedTensor(f"mlx-{bits}", (rows, columns), parts, bits, size)

    @override
    def load(self) -> np.ndarray:
        described = self.described()
        parts: dict[Part, np.ndarray] = {part: self.load_part(part) for part in _MLX}
        octets, bits = parts["codes"], described.bits
        streams = np.unpackbits(octets, axis=1, bitorder="little").reshape(len(octets), -1, bits)
        parts["codes"] = np.packbits(streams, axis=2, bitorder="little")[..., 0]
        return described.values(parts)

    @override
    def load_part(self, part: Part) -> np.ndarray:
        stored = f"{self.end}.{_MLX[part]}"
        if self.expert is None:
            array = self.stored.load(stored)
        else:
            own = slice(self.expert, self.expert + 1)
            (array,) = self.stored.read_slice(stored, (own, slice(None), slice(None)))
        return np.ascontiguousarray(array).view(np.uint8) if part == "codes" else array

    @override
    def identity(self) -> WeightIdentity | None:
        found = super().identity()
        return found if found is None or self.expert is None else found.computed(f"{self.expert}")

    @override
    def locate(self) -> tuple[MappedTensors, TensorEntry]:
        file, entry = super().locate()
        if self.expert is None:
            return file, entry
        count = self.stored.type_of(self.parts[0]).shape[0]
        codes = self.stored.locate(self.parts[0])[1].nbytes // count
        offset = entry.offset + self.expert * codes
        return file, replace(entry, offset=offset, nbytes=entry.nbytes // count)


def _mlx_weights(
    stored: FileSource, scheme: QuantizationScheme, experts: Mapping[str, str]
) -> Iterator[MadeTensor]:
    for end in _layers(stored, _MLX["codes"], _MLX["scale"]):
        scope, joined, matrix = end.partition(_JOINED)
        if not joined:
            yield MlxWeight(stored, end, scheme, f"{end}.weight")
            continue
        for number in range(stored.type_of(f"{end}.weight").shape[0]):
            name = f"{scope}.experts.{number}.{experts.get(matrix, matrix)}.weight"
            yield MlxWeight(stored, end, scheme, name, number)


_BLOCKS, _SCALES = "_blocks", "_scales"
_GROUP = 32


class Mxfp4Weight(MadeTensor):
    """The matrices of experts in MXFP4, as gpt-oss has them, f32 [G, I, O].

    `NAME_blocks` are ui8 [G, O, I / 32, 16], two codes a byte, `NAME_scales` ui8 [G, O, I / 32],
    exponents. Codes keep their layout, scales become bf16.
    """

    recipe = "MXFP4"

    @override
    def load(self) -> np.ndarray:
        quantized = self.described()
        blocks = self.stored.load(self.parts[0])
        codes = np.stack([blocks & 15, blocks >> 4], axis=-1)
        columns = quantized.shape[-1]
        parts: dict[Part, np.ndarray] = {
            "codes": codes.reshape(-1, columns),
            "scale": self.load_part("scale").reshape(-1, columns // _GROUP),
        }
        whole = quantized.values(parts).reshape(quantized.shape)
        return np.ascontiguousarray(np.swapaxes(whole, 1, 2))

    @override
    def described(self) -> QuantizedTensor:
        blocks, scales = (self.stored.type_of(each) for each in self.parts)
        if (
            blocks.rank != 4
            or blocks.shape[3] != _GROUP // 2
            or scales.shape != blocks.shape[:3]
            or (blocks.dtype, scales.dtype) != (dtypes.ui8, dtypes.ui8)
        ):
            raise self.misfit(self.parts[0], f"is `{blocks}` with scales of `{scales}`")
        experts, rows, groups, _ = blocks.shape
        parts: dict[Part, TensorType] = {
            "codes": TensorType(dtypes.ui8, (experts, rows, groups * _GROUP // 2)),
            "scale": TensorType(dtypes.bf16, (experts, rows, groups)),
        }
        shape = (experts, rows, groups * _GROUP)
        return QuantizedTensor("MXFP4", shape, parts, 4, _GROUP, table=E2M1, transposed=True)

    @override
    def load_part(self, part: Part) -> np.ndarray:
        if part == "codes":
            blocks = self.stored.load(self.parts[0])
            return blocks.reshape(*blocks.shape[:2], -1)
        return mxfp4_scale(self.stored.load(self.parts[1]))


def _mxfp4_weights(
    stored: FileSource, _scheme: QuantizationScheme, _experts: Mapping[str, str]
) -> Iterator[MadeTensor]:
    names = stored.names()
    ends = sorted(name.removesuffix(_BLOCKS) for name in names if name.endswith(_BLOCKS))
    for end in ends:
        if f"{end}{_SCALES}" in names:
            yield Mxfp4Weight(stored, end, (f"{end}{_BLOCKS}", f"{end}{_SCALES}"))


def _bitsandbytes_weights(
    stored: FileSource, _scheme: QuantizationScheme, _experts: Mapping[str, str]
) -> Iterator[MadeTensor]:
    return bitsandbytes.weights(stored)


def _fp8_weights(
    stored: FileSource, scheme: QuantizationScheme, _experts: Mapping[str, str]
) -> Iterator[MadeTensor]:
    return fp8.weights(stored, scheme)


def _fp4_weights(
    stored: FileSource, scheme: QuantizationScheme, _experts: Mapping[str, str]
) -> Iterator[MadeTensor]:
    return fp4.weights(stored, scheme)


DECODERS: Mapping[Layout, Decoder] = {
    **dict.fromkeys(_PACKINGS, _packed_weights),
    "mlx": _mlx_weights,
    "mxfp4": _mxfp4_weights,
    "bitsandbytes": _bitsandbytes_weights,
    "fp8": _fp8_weights,
    "fp4": _fp4_weights,
}
"""The finders of weights by layout."""
