"""Rounded weights as the blocks of GGUF: Q8_0, Q4_0 and Q4_1, as ggml-quants.h lays them out."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gptrs.checkpoint.formats.foreign_files import OutgoingTensor
from gptrs.checkpoint.formats.gguf_types import GGUF_TYPES
from gptrs.checkpoint.formats.gguf_writer import GgufOutgoing
from gptrs.ir import dtypes
from gptrs.ir.tensor_type import TensorType
from gptrs_runtime.quantizing.plan import WeightType
from gptrs_runtime.quantizing.tensor_rounding import RoundedTensor

GGUF_WEIGHT_TYPES = {
    "q8": WeightType("q8", 8),
    "q4": WeightType("q4", 4),
    "q4_asym": WeightType("q4_asym", 4, "bias"),
}
"""The types that weights are rounded to in GGUF files, by the names that users give them."""
_BLOCKS_OF = {"q8": "Q8_0", "q4": "Q4_0", "q4_asym": "Q4_1"}
_SIZES = {type_.name: (type_.block, type_.block_bytes) for type_ in GGUF_TYPES.values()}


def quantized_outgoing(rounded: RoundedTensor, name: str) -> GgufOutgoing:
    """Return the tensor called `name` in the file; it is rounded while it is written."""
    type_name = _BLOCKS_OF[rounded.type.name]
    block, block_bytes = _SIZES[type_name]
    rows, columns = rounded.shape
    nbytes = rows * columns // block * block_bytes

    def parts() -> Iterator[np.ndarray]:
        for found, _ in rounded.chunks():
            scales = [found[part] for part in ("scale", "bias") if part in found]
            yield blocks_of(found["codes"], scales, rounded.type.bits)

    return GgufOutgoing(
        OutgoingTensor(name, TensorType(dtypes.ui8, (nbytes,)), parts), type_name, rounded.shape
    )


def blocks_of(codes: np.ndarray, scales: list[np.ndarray], bits: int) -> np.ndarray:
    """Return blocks ui8 [N, bytes] of codes [.., 32 * n], si8 around 0 or ui8, and scales in f16.

    Of 4 bits the first 16 codes of a block are the low halves of its bytes.
    """
    grouped = codes.reshape(-1, 32)
    if bits == 4:
        if grouped.dtype == np.int8:
            grouped = (grouped + np.int8(8)).view(np.uint8)
        stored = grouped[:, :16] | grouped[:, 16:] << np.uint8(4)
    else:
        stored = grouped.view(np.uint8)
    heads = [np.ascontiguousarray(each, "<f2").reshape(-1, 1).view(np.uint8) for each in scales]
    return np.concatenate([*heads, stored], axis=1)
