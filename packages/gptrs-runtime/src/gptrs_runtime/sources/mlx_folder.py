"""The weights of a folder that MLX quantized, as quantized tensors.

A weight NAME.weight is ui32 [O, I * bits / 32], a stream of codes from the lowest bits on, with
NAME.scales and NAME.biases [O, I / group_size]: an element is `code * scale + bias`. The matrices
of all experts of a layer are one weight `switch_mlp.gate_proj` with one more axis in front.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from typing_extensions import override

from gptrs.backend.weight_identity import WeightIdentity
from gptrs.checkpoint.formats.mapped_tensors import MappedTensors
from gptrs.checkpoint.formats.safetensors_header import TensorEntry
from gptrs.checkpoint.param_source import FileSource
from gptrs.checkpoint.quantized_tensor import Part, QuantizedTensor
from gptrs.ir import dtypes
from gptrs.ir.tensor_type import TensorType
from gptrs_runtime.sources.quantized_folder import QuantizationScheme, QuantizedFolder


class MlxFolder(QuantizedFolder):
    """Tensors of a folder; those with scales have the values that these give them.

    Each expert has the name that it has in a folder of transformers: `names` are those of its
    matrices, by MLX's, where they differ.
    """

    def __init__(
        self, stored: FileSource, scheme: QuantizationScheme, names: Mapping[str, str]
    ) -> None:
        super().__init__(stored, scheme)
        self._experts: dict[str, int] = {}
        for name, end in list(self._weights.items()):
            if _JOINED not in end:
                continue
            del self._weights[name]
            self._shown = tuple(each for each in self._shown if each != name)
            for number in range(stored.type_of(f"{end}.weight").shape[0]):
                expert = _name_of_expert(end, number, names)
                self._weights[expert], self._experts[expert] = end, number
        self._shown = (*self._shown, *self._experts)

    @override
    def load_part(self, name: str, part: Part) -> np.ndarray:
        stored, expert = f"{self._weights[name]}.{_STORED[part]}", self._experts.get(name)
        if expert is None:
            array = self._stored.load(stored)
        else:
            own = slice(expert, expert + 1)
            (array,) = self._stored.read_slice(stored, (own, slice(None), slice(None)))
        if part == "codes":
            array = np.ascontiguousarray(array).view(np.uint8)
        array.flags.writeable = False
        return array

    @override
    def identity_of(self, name: str) -> WeightIdentity | None:
        found, expert = super().identity_of(name), self._experts.get(name)
        return found if found is None or expert is None else found.computed(f"expert {expert}")

    @override
    def locate(self, name: str) -> tuple[MappedTensors, TensorEntry]:
        file, entry = super().locate(name)
        expert = self._experts.get(name)
        if expert is None:
            return file, entry
        stored = f"{self._weights[name]}.weight"
        count = self._stored.type_of(stored).shape[0]
        codes = self._stored.locate(stored)[1].nbytes // count
        return file, replace(
            entry, offset=entry.offset + expert * codes, nbytes=entry.nbytes // count
        )

    @override
    def _described(self, name: str) -> QuantizedTensor | None:
        end = self._weights.get(name)
        if end is None:
            return None
        bits, size = self._scheme.of(end)
        codes, scale, bias = (
            self._stored.type_of(f"{end}.{_STORED[part]}") for part in ("codes", "scale", "bias")
        )
        if name in self._experts:
            if codes.rank != _MATRIX + 1 or {scale.shape[:1], bias.shape[:1]} != {codes.shape[:1]}:
                raise self._misfit(f"{end}.weight", f"is `{codes}` with scales of `{scale}`")
            codes, scale, bias = (each.with_shape(each.shape[1:]) for each in (codes, scale, bias))
        if codes.dtype is not dtypes.ui32 or codes.rank != _MATRIX or not scale.dtype.is_float:
            raise self._misfit(f"{end}.weight", f"is `{codes}` with scales of `{scale}`")
        rows, columns = codes.shape[0], codes.shape[1] * 32 // bits
        stored_alike = scale == bias and scale.shape == (rows, columns // size)
        if not stored_alike or columns % size or columns * bits != codes.shape[1] * 32:
            problem = f"of {bits} bits does not fit scales of `{scale}`, groups of {size}"
            raise self._misfit(f"{end}.weight", problem)
        packed = TensorType(dtypes.ui8, (rows, columns * bits // 8))
        parts: dict[Part, TensorType] = {"codes": packed, "scale": scale, "bias": bias}
        return QuantizedTensor(f"mlx-{bits}", (rows, columns), parts, bits, size)

    @override
    def _part(self, name: str, part: Part) -> np.ndarray:
        array = self.load_part(name, part)
        if part != "codes":
            return array
        bits, _ = self._scheme.of(self._weights[name])
        places = np.unpackbits(array, axis=1, bitorder="little").reshape(len(array), -1, bits)
        return np.packbits(places, axis=2, bitorder="little")[..., 0]

    @override
    def _groups(self, name: str, quantized: QuantizedTensor) -> np.ndarray | None:
        return None


def _name_of_expert(end: str, number: int, names: Mapping[str, str]) -> str:
    """Return the name of a weight of `..switch_mlp.up_proj` as transformers has it."""
    scope, _, matrix = end.partition(_JOINED)
    return f"{scope}.experts.{number}.{names.get(matrix, matrix)}.weight"


_JOINED = ".switch_mlp."
_STORED: dict[Part, str] = {"codes": "weight", "scale": "scales", "bias": "biases"}
_MATRIX = 2
