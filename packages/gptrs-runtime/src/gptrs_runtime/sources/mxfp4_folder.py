"""The experts of a folder in MXFP4, as gpt-oss has them, as quantized tensors."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from typing_extensions import override

from gptrs.checkpoint.formats.gguf_types import E2M1, mxfp4_scale
from gptrs.checkpoint.formats.safetensors_header import refused
from gptrs.checkpoint.param_source import FileSource
from gptrs.checkpoint.quantized_tensor import Part, QuantizedTensor
from gptrs.ir import dtypes
from gptrs.ir.tensor_type import TensorType
from gptrs_runtime.sources.decoded_folder import DecodedFolder

_BLOCKS, _SCALES = "_blocks", "_scales"
_GROUP = 32


class Mxfp4Folder(DecodedFolder):
    """Tensors of a folder; `NAME_blocks` and `NAME_scales` are shown as the weight `NAME`.

    Blocks are ui8 [G, O, I / 32, 16], two codes a byte, scales ui8 [G, O, I / 32], exponents. The
    whole weight is f32 [G, I, O]. Codes are given as they lie, scales as bf16.
    """

    def __init__(self, stored: FileSource) -> None:
        super().__init__(stored, "MXFP4")
        names = stored.names()
        ends = [name.removesuffix(_BLOCKS) for name in names if name.endswith(_BLOCKS)]
        self._weights = {end for end in ends if f"{end}{_SCALES}" in names}
        hidden = {f"{end}{each}" for end in self._weights for each in (_BLOCKS, _SCALES)}
        self._shown = (*(name for name in names if name not in hidden), *sorted(self._weights))

    @override
    def _parts_of(self, name: str) -> Sequence[str]:
        return [f"{name}{each}" for each in (_BLOCKS, _SCALES)] if name in self._weights else []

    @override
    def _decoded(self, name: str, quantized: QuantizedTensor) -> np.ndarray:
        blocks = self._stored.load(f"{name}{_BLOCKS}")
        codes = np.stack([blocks & 15, blocks >> 4], axis=-1)
        columns = quantized.shape[-1]
        parts: dict[Part, np.ndarray] = {
            "codes": codes.reshape(-1, columns),
            "scale": self.load_part(name, "scale").reshape(-1, columns // _GROUP),
        }
        whole = quantized.values(parts).reshape(quantized.shape)
        return np.ascontiguousarray(np.swapaxes(whole, 1, 2))

    @override
    def _described(self, name: str) -> QuantizedTensor | None:
        if name not in self._weights:
            return None
        blocks, scales = (self._stored.type_of(f"{name}{each}") for each in (_BLOCKS, _SCALES))
        if (
            blocks.rank != 4
            or blocks.shape[3] != _GROUP // 2
            or scales.shape != blocks.shape[:3]
            or (blocks.dtype, scales.dtype) != (dtypes.ui8, dtypes.ui8)
        ):
            raise refused(
                self.origin,
                f"{name}{_BLOCKS}",
                f"is `{blocks}` with scales of `{scales}`",
                "config.json and the weights are not of one model",
            )
        experts, rows, groups, _ = blocks.shape
        parts: dict[Part, TensorType] = {
            "codes": TensorType(dtypes.ui8, (experts, rows, groups * _GROUP // 2)),
            "scale": TensorType(dtypes.bf16, (experts, rows, groups)),
        }
        shape = (experts, rows, groups * _GROUP)
        return QuantizedTensor("MXFP4", shape, parts, 4, _GROUP, table=E2M1, transposed=True)

    @override
    def load_part(self, name: str, part: Part) -> np.ndarray:
        if part == "codes":
            blocks = self._stored.load(f"{name}{_BLOCKS}")
            return blocks.reshape(*blocks.shape[:2], -1)
        scale = mxfp4_scale(self._stored.load(f"{name}{_SCALES}"))
        scale.flags.writeable = False
        return scale
