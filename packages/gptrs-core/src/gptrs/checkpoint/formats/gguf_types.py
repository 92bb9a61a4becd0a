"""The element types of GGUF that are read: the blocks of each, and the parts that these hold.

A quantized tensor is rows of blocks. `decode` cuts the blocks [N, bytes] of a type into the codes
[N, elements], ui8 or si8, and the scales and biases of their groups, as the family of
`quantized_tensor` has them. The layouts are those of ggml-quants.h of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from gptrs.checkpoint.quantized_tensor import Part
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.quick_dataclass import dataclass

Fields = dict[Part, np.ndarray]


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """How the blocks of a quantized type become parts.

    Fields other than these are as in `QuantizedTensor`. `parts` are the element types and the
    number of elements a block of all parts but the codes, which are `signed` or not.
    """

    bits: int
    group_size: int
    decode: Callable[[np.ndarray], Fields]
    parts: Mapping[Part, tuple[DType, int]]
    zero_point: int = 0
    super_group: int | None = None
    table: tuple[int, ...] | None = None
    signed: bool = False


@dataclass(frozen=True, slots=True)
class GgufType:
    """A type by its name: `block` elements take `block_bytes`. Plain ones have a `dtype`."""

    name: str
    block: int
    block_bytes: int
    dtype: DType | None = None
    format: BlockFormat | None = None


def _f16(blocks: np.ndarray, start: int) -> np.ndarray:
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2")  # (N, 1)


def _halves(bytes_: np.ndarray) -> np.ndarray:
    """Return the low halves of all bytes, and then the high ones."""
    return np.concatenate([bytes_ & 15, bytes_ >> 4], axis=-1)


def _fifth_bits(blocks: np.ndarray, start: int) -> np.ndarray:
    bits = np.unpackbits(blocks[:, start : start + 4], axis=1, bitorder="little")  # (N, 32)
    return bits << np.uint8(4)


def _q4_0(blocks: np.ndarray) -> Fields:
    return {"codes": _halves(blocks[:, 2:]), "scale": _f16(blocks, 0)}


def _q4_1(blocks: np.ndarray) -> Fields:
    return {"codes": _halves(blocks[:, 4:]), "scale": _f16(blocks, 0), "bias": _f16(blocks, 2)}


def _q5_0(blocks: np.ndarray) -> Fields:
    codes = _halves(blocks[:, 6:]) | _fifth_bits(blocks, 2)
    return {"codes": codes, "scale": _f16(blocks, 0)}


def _q5_1(blocks: np.ndarray) -> Fields:
    codes = _halves(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return {"codes": codes, "scale": _f16(blocks, 0), "bias": _f16(blocks, 2)}


def _q8_0(blocks: np.ndarray) -> Fields:
    return {"codes": blocks[:, 2:].view(np.int8), "scale": _f16(blocks, 0)}


def _q4_k(blocks: np.ndarray) -> Fields:
    """256 codes: of each 32 bytes the low halves, then the high ones."""
    codes = _halves(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 256)
    return {"codes": codes, **_scales_of_k(blocks)}


def _q5_k(blocks: np.ndarray) -> Fields:
    """As Q4_K; bit i of 32 bytes in between is the fifth bit of the i-th 32 codes."""
    low = _halves(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    place = np.arange(8, dtype=np.uint8)[:, np.newaxis]
    high = (blocks[:, np.newaxis, 16:48] >> place & 1) << np.uint8(4)
    return {"codes": (low | high).reshape(-1, 256), **_scales_of_k(blocks)}


def _scales_of_k(blocks: np.ndarray) -> Fields:
    """Return 8 scales and 8 minima of 6 bits out of 12 bytes, and what they are multiplied by.

    The first 4 of each are the low bits of 8 bytes. The others have their low bits in the last 4
    bytes, and their 2 high bits above the first ones. A minimum is subtracted: a negative bias.
    """
    first, second, mixed = (blocks[:, start : start + 4] for start in (4, 8, 12))
    scale = np.concatenate([first & 63, mixed & 15 | first >> 2 & 48], axis=1)
    least = np.concatenate([second & 63, mixed >> 4 | second >> 2 & 48], axis=1)
    return {
        "scale": scale,
        "bias": least,
        "super_scale": _f16(blocks, 0),
        "super_bias": -_f16(blocks, 2),
    }


def _q6_k(blocks: np.ndarray) -> Fields:
    """Twice 128 codes: low halves and high halves of 64 bytes, with 2 bits each of 32 bytes."""
    low = _halves(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    place = np.arange(0, 8, 2, dtype=np.uint8)[:, np.newaxis]
    high = (blocks[:, 128:192].reshape(-1, 2, 1, 32) >> place & 3) << np.uint8(4)
    return {
        "codes": (low | high).reshape(-1, 256),
        "scale": blocks[:, 192:208].view(np.int8),
        "super_scale": _f16(blocks, 208),
    }


def _mxfp4(blocks: np.ndarray) -> Fields:
    """The first byte is the exponent of the scale."""
    return {"codes": _halves(blocks[:, 1:]), "scale": mxfp4_scale(blocks[:, :1])}


def mxfp4_scale(exponents: np.ndarray) -> np.ndarray:
    """Return half of `2 ** (exponent - 127)` as bf16, since the table is doubled."""
    exponent = exponents.astype(np.uint16)
    # bf16 has the exponents of f32; the two least ones are subnormal.
    half = np.where(exponent < 2, np.uint16(0x20) << exponent, (exponent - 1) << 7)
    return half.astype(np.uint16).view(dtypes.bf16.numpy)


_F16 = (dtypes.f16, 1)
_K_PARTS: Mapping[Part, tuple[DType, int]] = {
    "scale": (dtypes.ui8, 8),
    "super_scale": _F16,
    "bias": (dtypes.ui8, 8),
    "super_bias": _F16,
}
E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice the values of the 4-bit floats; the negative zero is 0."""

GGUF_TYPES: Mapping[int, GgufType] = {
    0: GgufType("F32", 1, 4, dtypes.f32),
    1: GgufType("F16", 1, 2, dtypes.f16),
    30: GgufType("BF16", 1, 2, dtypes.bf16),
    2: GgufType("Q4_0", 32, 18, None, BlockFormat(4, 32, _q4_0, {"scale": _F16}, zero_point=8)),
    3: GgufType("Q4_1", 32, 20, None, BlockFormat(4, 32, _q4_1, {"scale": _F16, "bias": _F16})),
    6: GgufType("Q5_0", 32, 22, None, BlockFormat(5, 32, _q5_0, {"scale": _F16}, zero_point=16)),
    7: GgufType("Q5_1", 32, 24, None, BlockFormat(5, 32, _q5_1, {"scale": _F16, "bias": _F16})),
    8: GgufType("Q8_0", 32, 34, None, BlockFormat(8, 32, _q8_0, {"scale": _F16}, signed=True)),
    12: GgufType("Q4_K", 256, 144, None, BlockFormat(4, 32, _q4_k, _K_PARTS, super_group=8)),
    13: GgufType("Q5_K", 256, 176, None, BlockFormat(5, 32, _q5_k, _K_PARTS, super_group=8)),
    14: GgufType("Q6_K", 256, 210, None, BlockFormat(
        6, 16, _q6_k, {"scale": (dtypes.si8, 16), "super_scale": _F16}, 32, super_group=16
    )),
    39: GgufType("MXFP4", 32, 17, None, BlockFormat(
        4, 32, _mxfp4, {"scale": (dtypes.bf16, 1)}, table=E2M1
    )),
}  # fmt: skip
"""The types by their numbers in files."""

_OTHER_NAMES: Mapping[int, str] = {
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS",
    19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16",
    26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 40: "NVFP4",
}  # fmt: skip


def name_of_type(number: int) -> str:
    """Return what llama.cpp calls the type, else its number."""
    found = GGUF_TYPES.get(number)
    return found.name if found else _OTHER_NAMES.get(number, f"number {number}")
