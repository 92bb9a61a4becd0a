"""Weights of 8-bit floats with scales, as DeepSeek and compressed-tensors store them.

`W` is f8e4m3 [O, I]. `W_scale_inv`, which is a factor despite its name, or `W_scale` has one
number for all elements, for each row, or for each block of rows and columns.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from typing_extensions import override

from gptrs.checkpoint.param_source import FileSource
from gptrs.checkpoint.quantized_tensor import Part, QuantizedTensor
from gptrs.ir import dtypes
from gptrs.ir.tensor_type import TensorType
from gptrs_runtime.sources.made_tensors import MadeTensor
from gptrs_runtime.sources.quantization_config import QuantizationScheme

_WEIGHT = ".weight"
_SCALES = ("_scale_inv", "_scale")
_OF_INPUTS = ("input_scale", "activation_scale")
"""Factors of rounded activations, which gptrs does not round."""


class Fp8Weight(MadeTensor):
    """A weight of 8-bit floats, decoded to f32: the product of an element and its scale."""

    def __init__(self, stored: FileSource, name: str, scale: str, scheme: QuantizationScheme):
        super().__init__(stored, name, (name, scale))
        self._block = scheme.block
        self.recipe = f"{scheme}"

    @property
    @override
    def hidden(self) -> Iterator[str]:
        yield from self.parts
        end = self.name.removesuffix(_WEIGHT)
        yield from (f"{end}.{name}" for name in _OF_INPUTS)

    @override
    def quantized(self) -> None:
        return None

    @override
    def described(self) -> QuantizedTensor:
        codes, scale = (self.stored.type_of(each) for each in self.parts)
        if codes.dtype is not dtypes.f8e4m3 or codes.rank != 2 or not scale.dtype.is_float:
            raise self.misfit(self.name, f"is `{codes}` with a scale of `{scale}`")
        _, columns = self._sizes()
        parts: dict[Part, TensorType] = {"codes": codes, "scale": scale}
        return QuantizedTensor("fp8", codes.shape, parts, 8, columns)

    def _sizes(self) -> tuple[int, int]:
        """Return the rows and columns of a block; CheckpointError if the scales do not fit."""
        (rows, columns), scale = (self.stored.type_of(each).shape for each in self.parts)
        if scale in ((), (1,), (1, 1)):
            return rows, columns
        if scale in ((rows,), (rows, 1)):
            return 1, columns
        high, wide = self._block or (rows, columns)
        if scale != (-(-rows // high), -(-columns // wide)):
            found = self.stored.type_of(self.parts[1])
            raise self.misfit(
                self.name,
                f"of [{rows}, {columns}] does not fit a scale of `{found}`, blocks of"
                f" [{high}, {wide}]",
            )
        return high, wide

    @override
    def load(self) -> np.ndarray:
        rows, columns = self.described().shape
        high, wide = self._sizes()
        values = self.stored.load(self.name).astype(np.float32)
        scale = self.stored.load(self.parts[1]).astype(np.float32)
        scale = scale.reshape(-(-rows // high), -(-columns // wide))
        with np.errstate(over="ignore", invalid="ignore"):  # as floats of PTIR do
            for at, own in enumerate(scale):
                values[at * high : (at + 1) * high] *= np.repeat(own, wide)[:columns]
        return values


def weights(stored: FileSource, scheme: QuantizationScheme) -> Iterator[MadeTensor]:
    """Yield the weights of a folder that have scales."""
    known = stored.names()
    for name in known:
        if name.endswith(_WEIGHT):
            scale = next((name + end for end in _SCALES if name + end in known), None)
            if scale is not None:
                yield Fp8Weight(stored, name, scale, scheme)
