"""Weights of 4-bit floats (E2M1) in groups, as compressed-tensors and ModelOpt store them.

Codes are ui8 [O, I / 2], the first of two in the lower half. NVFP4 has a scale f8e4m3 for each 16
and one factor f32 for all: `NAME.weight_packed` with `NAME.weight_global_scale`, by which scales
are divided, or `NAME.weight` with `NAME.weight_scale_2`, by which they are multiplied. MXFP4 has an
exponent ui8 for each 32, and no factor for all.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from typing_extensions import override

from gptrs.checkpoint.formats.gguf_types import E2M1, mxfp4_scale
from gptrs.checkpoint.param_source import FileSource
from gptrs.checkpoint.quantized_tensor import Part, QuantizedTensor
from gptrs.ir import dtypes
from gptrs.ir.tensor_type import TensorType
from gptrs_runtime.sources.made_tensors import MadeTensor
from gptrs_runtime.sources.quantization_config import QuantizationScheme

_CODES = (".weight_packed", ".weight")
_SCALE, _DIVISOR, _FACTOR = ".weight_scale", ".weight_global_scale", ".weight_scale_2"
_OF_INPUTS = (".input_global_scale", ".input_scale")
"""Factors of rounded activations, which gptrs does not round."""


class Fp4Weight(MadeTensor):
    """A weight of NVFP4 or MXFP4; the scales of NVFP4 become f32, those of MXFP4 bf16."""

    def __init__(self, stored: FileSource, end: str, codes: str, scheme: QuantizationScheme):
        known = stored.names()
        self._whole = next((end + each for each in (_DIVISOR, _FACTOR) if end + each in known), "")
        parts = (end + codes, end + _SCALE, self._whole)
        super().__init__(stored, f"{end}.weight", tuple(filter(None, parts)))
        self._end, self._size = end, scheme.group_size or 0
        self.recipe = f"{scheme}"

    @property
    @override
    def hidden(self) -> Iterator[str]:
        yield from self.parts
        yield from (self._end + name for name in _OF_INPUTS)

    @property
    def _is_mx(self) -> bool:
        return self.stored.type_of(self.parts[1]).dtype is dtypes.ui8

    @override
    def described(self) -> QuantizedTensor:
        codes, scale, *whole = (self.stored.type_of(each) for each in self.parts)
        wanted = {dtypes.ui8: 0, dtypes.f8e4m3: 1}.get(scale.dtype)
        if codes.dtype is not dtypes.ui8 or codes.rank != 2 or wanted != len(whole):
            raise self.misfit(self.parts[0], f"is `{codes}` with scales of `{scale}`")
        if whole and (whole[0].size != 1 or not whole[0].dtype.is_float):
            raise self.misfit(self._whole, f"is `{whole[0]}`, not one float")
        rows, columns = codes.shape[0], 2 * codes.shape[1]
        if columns % self._size or scale.shape != (rows, columns // self._size):
            problem = f"of [{rows}, {columns}] does not fit scales of `{scale}`"
            raise self.misfit(self.parts[0], f"{problem}, groups of {self._size}")
        kind = dtypes.f32 if whole else dtypes.bf16
        parts: dict[Part, TensorType] = {"codes": codes, "scale": TensorType(kind, scale.shape)}
        label = "NVFP4" if whole else "MXFP4"
        return QuantizedTensor(label, (rows, columns), parts, 4, self._size, table=E2M1)

    @override
    def load(self) -> np.ndarray:
        described, octets = self.described(), self.stored.load(self.parts[0])
        codes = np.stack([octets & 15, octets >> 4], axis=-1).reshape(described.shape)
        return described.values({"codes": codes, "scale": self.load_part("scale")})

    @override
    def load_part(self, part: Part) -> np.ndarray:
        if part == "codes":
            return self.stored.load(self.parts[0])
        stored = self.stored.load(self.parts[1])
        if self._is_mx:
            return mxfp4_scale(stored)
        whole = self.stored.load(self._whole).astype(np.float32).reshape(())
        half = stored.astype(np.float32) * np.float32(0.5)  # the table is doubled
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):  # as floats of PTIR do
            return half / whole if self._whole.endswith(_DIVISOR) else half * whole


def weights(stored: FileSource, scheme: QuantizationScheme) -> Iterator[MadeTensor]:
    """Yield the weights of a folder that have scales."""
    known = stored.names()
    for name in known:
        codes = next((each for each in _CODES if name.endswith(each)), "")
        end = name.removesuffix(codes)
        if codes and end + _SCALE in known:
            yield Fp4Weight(stored, end, codes, scheme)
