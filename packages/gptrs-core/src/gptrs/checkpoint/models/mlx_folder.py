"""The weights of a folder that MLX quantized, as quantized tensors.

A weight NAME.weight is ui32 [O, I * bits / 32], a stream of codes from the lowest bits on, with
NAME.scales and NAME.biases [O, I / group_size]: an element is `code * scale + bias`.
"""

from __future__ import annotations

import numpy as np
from typing_extensions import override

from gptrs.checkpoint.models.quantized_folder import QuantizedFolder
from gptrs.checkpoint.quantized_tensor import Part, QuantizedTensor
from gptrs.ir import dtypes
from gptrs.ir.tensor_type import TensorType


class MlxFolder(QuantizedFolder):
    """Tensors of a folder; those with scales have the values that these give them."""

    @override
    def load_part(self, name: str, part: Part) -> np.ndarray:
        array = self._stored.load(f"{self._weights[name]}.{_STORED[part]}")
        if part == "codes":
            array = np.ascontiguousarray(array).view(np.uint8)
        array.flags.writeable = False
        return array

    @override
    def _described(self, name: str) -> QuantizedTensor | None:
        end = self._weights.get(name)
        if end is None:
            return None
        bits, size = self._scheme.of(end)
        codes, scale, bias = (
            self._stored.type_of(f"{end}.{_STORED[part]}") for part in ("codes", "scale", "bias")
        )
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


_STORED: dict[Part, str] = {"codes": "weight", "scale": "scales", "bias": "biases"}
_MATRIX = 2
