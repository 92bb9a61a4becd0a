"""Quantized weights as compressed-tensors stores them, for transformers and this library."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from gptrs.checkpoint.formats.outgoing_tensor import OutgoingTensor
from gptrs.checkpoint.formats.packed_bits import packed_bits
from gptrs.checkpoint.quantized_tensor import Part
from gptrs.ir import dtypes
from gptrs.ir.tensor_type import TensorType
from gptrs_runtime.quantizing.quantizing_source import packed_codes
from gptrs_runtime.quantizing.tensor_rounding import RoundedTensor
from gptrs_runtime.quantizing.weight_types import WeightType

_PACKED, _PLAIN = "pack-quantized", "int-quantized"


def compressed_config(type: WeightType, ignored: Sequence[str]) -> dict[str, object]:
    """Return the `quantization_config` of weights of `type` in all linear layers but `ignored`."""
    weights: dict[str, object] = {
        "num_bits": type.bits,
        "type": "int",
        "symmetric": type.offset == "none",
        "strategy": "channel" if type.group is None else "group",
        "group_size": type.group,
        "dynamic": False,
        "actorder": None,
        "block_structure": None,
        "observer": "minmax",
    }
    group: dict[str, object] = {
        "targets": ["Linear"],
        "weights": weights,
        "input_activations": None,
        "output_activations": None,
        "format": _form(type),
    }
    return {
        "quant_method": "compressed-tensors",
        "format": _form(type),
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "kv_cache_scheme": None,
        "config_groups": {"group_0": group},
        "ignore": list(ignored),
    }


def compressed_tensors(rounded: RoundedTensor) -> list[OutgoingTensor]:
    """Return the tensors of a weight; it is rounded once, when its codes are written."""
    once = _Once(rounded)
    end = rounded.name.removesuffix(".weight")
    rows, columns = rounded.shape
    groups = columns // rounded.type.group_of(columns)
    scale = OutgoingTensor(
        f"{end}.weight_scale", TensorType(dtypes.f16, (rows, groups)), partial(once.part, "scale")
    )
    if _form(rounded.type) == _PLAIN:
        codes = TensorType(dtypes.si8, rounded.shape)
        return [OutgoingTensor(rounded.name, codes, once.codes), scale]
    words = TensorType(dtypes.si32, (rows, columns * rounded.type.bits // 32))
    shape = np.array(rounded.shape, np.int64)
    found = [
        OutgoingTensor(f"{end}.weight_packed", words, once.words),
        scale,
        OutgoingTensor.of(f"{end}.weight_shape", shape),
    ]
    if rounded.type.offset == "zero_point":
        packed = TensorType(dtypes.si32, (-(-rows * rounded.type.bits // 32), groups))
        found.append(OutgoingTensor(f"{end}.weight_zero_point", packed, once.zero_words))
    return found


def _form(type: WeightType) -> str:
    return _PLAIN if type.group is None and type.bits == 8 else _PACKED


class _Once:
    """The parts of a weight: its codes pass by, the smaller ones wait until they are written."""

    def __init__(self, rounded: RoundedTensor) -> None:
        self._rounded = rounded
        self._kept: Mapping[Part, np.ndarray] | None = None

    def codes(self) -> Iterator[np.ndarray]:
        kept: dict[Part, list[np.ndarray]] = {}
        for parts, _ in self._rounded.chunks():
            for part, array in parts.items():
                if part != "codes":
                    kept.setdefault(part, []).append(array)
            yield parts["codes"]
        self._kept = {part: np.concatenate(arrays) for part, arrays in kept.items()}

    def words(self) -> Iterator[np.ndarray]:
        for codes in self.codes():
            if self._rounded.type.bits == 8:
                octets = (codes.astype(np.int16) + 128).astype(np.uint8)
            else:
                octets = packed_codes(codes, self._rounded.type.bits)
            yield np.ascontiguousarray(octets).view(np.int32)

    def part(self, part: Part) -> Iterator[np.ndarray]:
        if self._kept is None:  # the codes have not been written yet
            for _ in self.codes():
                pass
        assert self._kept is not None, "it is there after the codes"
        yield self._kept[part]

    def zero_words(self) -> Iterator[np.ndarray]:
        """Yield the zero points packed along the rows."""
        (zeros,) = self.part("zero_point")
        bits = self._rounded.type.bits
        across = zeros.T.astype(np.uint8)
        padded = np.pad(across, ((0, 0), (0, -across.shape[1] % (32 // bits))))
        yield np.ascontiguousarray(packed_bits(padded, bits)).view(np.int32).T
