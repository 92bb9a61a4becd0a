"""The element types of GGUF that are read: the blocks of each, and the parts that these hold.

A quantized tensor is rows of blocks. The parts are cut out of the blocks [N, bytes] of a type: the
codes [N, elements], ui8 or si8, and the scales and biases of their groups, as the family of
`quantized_tensor` has them. The layouts are those of ggml-quants.h of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from msgspec import Struct

from gptrs.checkpoint.formats.foreign_files import dense_rows, packed_bits, packed_halves
from gptrs.checkpoint.quantized_tensor import Part
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType

_LOW_HALVES = np.uint64(0x0F0F0F0F0F0F0F0F)
_LOW_PAIRS = np.uint64(0x0303030303030303)
_LOW_BITS = np.uint64(0x0101010101010101)
"""The lowest 4, 2 and 1 bits of all bytes of a word."""

Cut = Callable[[np.ndarray], np.ndarray]
"""Takes a part out of blocks [N, bytes], as [N, elements of a block]."""


class PartFormat(Struct, frozen=True):
    """A part other than the codes: its type, its elements in a block, and how they are cut out."""

    dtype: DType
    count: int
    cut: Cut


class Halves(Struct, frozen=True):
    """Codes of 4 bits from the byte `start` on: of `run` bytes the low halves, then the high ones.

    And so on, to the end of the block.
    """

    start: int
    run: int

    def __call__(self, blocks: np.ndarray) -> np.ndarray:
        """Return the codes, ui8."""
        runs = blocks[:, self.start :].reshape(len(blocks), -1, self.run)
        return _halves(runs).reshape(len(blocks), -1)

    def packed(self, blocks: np.ndarray) -> np.ndarray:
        """Return the codes as `packed_bits` packs them."""
        return packed_halves(blocks[:, self.start :], self.run)


class BlockFormat(Struct, frozen=True):
    """How the blocks of a quantized type become parts.

    Fields other than these are as in `QuantizedTensor`. `parts` are all but the codes, which are
    `signed` or not.
    """

    bits: int
    group_size: int
    codes: Cut | Halves
    parts: Mapping[Part, PartFormat]
    zero_point: int = 0
    super_group: int | None = None
    table: tuple[int, ...] | None = None
    signed: bool = False

    def cut(self, blocks: np.ndarray, part: Part) -> np.ndarray:
        """Return a part of blocks [N, bytes], codes one to an element."""
        return (self.codes if part == "codes" else self.parts[part].cut)(blocks)

    def packed_codes(self, blocks: np.ndarray) -> np.ndarray:
        """Return the codes of blocks [N, bytes] as `unpack_bits` reads them."""
        if isinstance(self.codes, Halves):
            return self.codes.packed(blocks)
        return packed_bits(self.codes(blocks), self.bits)


class GgufType(Struct, frozen=True):
    """A type by its name: `block` elements take `block_bytes`. Plain ones have a `dtype`."""

    name: str
    block: int
    block_bytes: int
    dtype: DType | None = None
    format: BlockFormat | None = None


def _f16(start: int) -> PartFormat:
    def cut(blocks: np.ndarray) -> np.ndarray:
        return blocks[:, start : start + 2].view("<f2")  # (N, 1)

    return PartFormat(dtypes.f16, 1, cut)


def _halves(bytes_: np.ndarray) -> np.ndarray:
    """Return the low halves of all bytes, and then the high ones."""
    return np.concatenate([bytes_ & 15, bytes_ >> 4], axis=-1)


def _fifth_bits(blocks: np.ndarray, start: int) -> np.ndarray:
    bits = np.unpackbits(blocks[:, start : start + 4], axis=1, bitorder="little")  # (N, 32)
    return bits << np.uint8(4)


def _q5_0(blocks: np.ndarray) -> np.ndarray:
    return _halves(blocks[:, 6:]) | _fifth_bits(blocks, 2)


def _q5_1(blocks: np.ndarray) -> np.ndarray:
    return _halves(blocks[:, 8:]) | _fifth_bits(blocks, 4)


def _q8_0(blocks: np.ndarray) -> np.ndarray:
    return dense_rows(blocks[:, 2:]).view(np.int8)


def _words(bytes_: np.ndarray, *shape: int) -> np.ndarray:
    return dense_rows(bytes_).view(np.uint64).reshape(-1, *shape)


def _q5_k(blocks: np.ndarray) -> np.ndarray:
    """As Q4_K; bit i of 32 bytes in between is the fifth bit of the i-th 32 codes."""
    low, high = _words(blocks[:, 48:], 4, 4), _words(blocks[:, 16:48], 4)
    codes = np.empty((len(blocks), 8, 4), np.uint64)
    # 8 codes per operation: bytes are processed as words of 64 bits, and no carry crosses them.
    codes[:, 0::2] = low & _LOW_HALVES
    codes[:, 1::2] = low >> np.uint64(4) & _LOW_HALVES
    for bit in range(8):
        codes[:, bit] |= (high >> np.uint64(bit) & _LOW_BITS) << np.uint64(4)
    return codes.view(np.uint8).reshape(-1, 256)


def _scales_of_k(blocks: np.ndarray) -> np.ndarray:
    """Return the 8 scales of 6 bits in 12 bytes, which also hold 8 minima.

    The first 4 of each are the low bits of 8 bytes. The others have their low bits in the last 4
    bytes, and their 2 high bits above the first ones. A minimum is subtracted: a negative bias.
    """
    # `get_scale_min_k4` of ggml-quants.c, for all 8 at once.
    first, mixed = blocks[:, 4:8], blocks[:, 12:16]
    return np.concatenate([first & 63, mixed & 15 | first >> 2 & 48], axis=1)


def _minima_of_k(blocks: np.ndarray) -> np.ndarray:
    second, mixed = blocks[:, 8:12], blocks[:, 12:16]
    return np.concatenate([second & 63, mixed >> 4 | second >> 2 & 48], axis=1)


def _factor_of_minima(blocks: np.ndarray) -> np.ndarray:
    # ggml subtracts minima; parts have biases, which are added.
    return -_f16(2).cut(blocks)


def _q6_k(blocks: np.ndarray) -> np.ndarray:
    """Twice 128 codes: low halves and high halves of 64 bytes, with 2 bits each of 32 bytes."""
    low, high = _words(blocks[:, :128], 2, 2, 4), _words(blocks[:, 128:192], 2, 4)
    codes = np.empty((len(blocks), 2, 4, 4), np.uint64)
    codes[:, :, :2] = low & _LOW_HALVES
    codes[:, :, 2:] = low >> np.uint64(4) & _LOW_HALVES
    for bit in range(4):
        codes[:, :, bit] |= (high >> np.uint64(2 * bit) & _LOW_PAIRS) << np.uint64(4)
    return codes.view(np.uint8).reshape(-1, 256)


def _scales_of_q6_k(blocks: np.ndarray) -> np.ndarray:
    return blocks[:, 192:208].view(np.int8)


def _q2_k(blocks: np.ndarray) -> np.ndarray:
    """The 4 pairs of bits of 32 bytes are 4 times 32 codes, the lowest first."""
    codes = np.empty((len(blocks), 2, 4, 4), np.uint64)
    _pairs(blocks[:, 16:80], codes)
    return codes.view(np.uint8).reshape(-1, 256)


def _q3_k(blocks: np.ndarray) -> np.ndarray:
    """As Q2_K; bit i of 32 bytes in front is the third bit of the i-th 32 codes."""
    codes = np.empty((len(blocks), 2, 4, 4), np.uint64)
    _pairs(blocks[:, 32:96], codes)
    high, runs = _words(blocks[:, :32], 4), codes.reshape(-1, 8, 4)
    for bit in range(8):
        runs[:, bit] |= (high >> np.uint64(bit) & _LOW_BITS) << np.uint64(2)
    return codes.view(np.uint8).reshape(-1, 256)


def _pairs(bytes_: np.ndarray, codes: np.ndarray) -> None:
    """Set codes, words [N, 2, 4, 4], to the pairs of bits of bytes [N, 64]."""
    words = _words(bytes_, 2, 4)
    for place in range(4):
        codes[:, :, place] = words >> np.uint64(2 * place) & _LOW_PAIRS


def _scales_of_q2_k(blocks: np.ndarray) -> np.ndarray:
    return blocks[:, :16] & 15


def _minima_of_q2_k(blocks: np.ndarray) -> np.ndarray:
    return blocks[:, :16] >> 4


def _factor_of_q2_k(blocks: np.ndarray) -> np.ndarray:
    return -_f16(82).cut(blocks)


def _scales_of_q3_k(blocks: np.ndarray) -> np.ndarray:
    """Return the 16 scales of 6 bits, above -32: low halves in 8 bytes, pairs of bits in 4."""
    low, high = _halves(blocks[:, 96:104]), blocks[:, 104:108]
    pairs = np.concatenate([high >> place & 3 for place in (0, 2, 4, 6)], axis=1)
    return (low | pairs << 4).view(np.int8) - np.int8(32)


def _scales_of_iq4_xs(blocks: np.ndarray) -> np.ndarray:
    """Return the 8 scales of 6 bits, above -32: pairs of bits in a word, low halves in 4 bytes."""
    low, high = blocks[:, 4:8], blocks[:, 2:4]
    halves = np.stack([low & 15, low >> 4], axis=2).reshape(-1, 8)
    pairs = np.stack([high >> place & 3 for place in (0, 2, 4, 6)], axis=2).reshape(-1, 8)
    return (halves | pairs << 4).view(np.int8) - np.int8(32)


def _exponents(blocks: np.ndarray) -> np.ndarray:
    return mxfp4_scale(blocks[:, :1])


def mxfp4_scale(exponents: np.ndarray) -> np.ndarray:
    """Return half of `2 ** (exponent - 127)` as bf16, since the table is doubled."""
    exponent = exponents.astype(np.uint16)
    # bf16 has the exponents of f32; the two least ones are subnormal.
    half = np.where(exponent < 2, np.uint16(0x20) << exponent, (exponent - 1) << 7)
    return half.astype(np.uint16).view(dtypes.bf16.numpy)


_SCALE: Mapping[Part, PartFormat] = {"scale": _f16(0)}
_SCALE_AND_BIAS: Mapping[Part, PartFormat] = {"scale": _f16(0), "bias": _f16(2)}
_K_PARTS: Mapping[Part, PartFormat] = {
    "scale": PartFormat(dtypes.ui8, 8, _scales_of_k),
    "super_scale": _f16(0),
    "bias": PartFormat(dtypes.ui8, 8, _minima_of_k),
    "super_bias": PartFormat(dtypes.f16, 1, _factor_of_minima),
}
_Q6_K_PARTS: Mapping[Part, PartFormat] = {
    "scale": PartFormat(dtypes.si8, 16, _scales_of_q6_k),
    "super_scale": _f16(208),
}
_Q2_K_PARTS: Mapping[Part, PartFormat] = {
    "scale": PartFormat(dtypes.ui8, 16, _scales_of_q2_k),
    "super_scale": _f16(80),
    "bias": PartFormat(dtypes.ui8, 16, _minima_of_q2_k),
    "super_bias": PartFormat(dtypes.f16, 1, _factor_of_q2_k),
}
_Q3_K_PARTS: Mapping[Part, PartFormat] = {
    "scale": PartFormat(dtypes.si8, 16, _scales_of_q3_k),
    "super_scale": _f16(108),
}
_IQ4_XS_PARTS: Mapping[Part, PartFormat] = {
    "scale": PartFormat(dtypes.si8, 8, _scales_of_iq4_xs),
    "super_scale": _f16(0),
}
_MXFP4_PARTS: Mapping[Part, PartFormat] = {"scale": PartFormat(dtypes.bf16, 1, _exponents)}
E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)
"""Twice the values of the 4-bit floats; the negative zero is 0."""
IQ4: tuple[int, ...] = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
"""The values of the codes of IQ4_NL and IQ4_XS."""

GGUF_TYPES: Mapping[int, GgufType] = {
    0: GgufType("F32", 1, 4, dtypes.f32),
    1: GgufType("F16", 1, 2, dtypes.f16),
    30: GgufType("BF16", 1, 2, dtypes.bf16),
    2: GgufType("Q4_0", 32, 18, None, BlockFormat(4, 32, Halves(2, 16), _SCALE, 8)),
    3: GgufType("Q4_1", 32, 20, None, BlockFormat(4, 32, Halves(4, 16), _SCALE_AND_BIAS)),
    6: GgufType("Q5_0", 32, 22, None, BlockFormat(5, 32, _q5_0, _SCALE, 16)),
    7: GgufType("Q5_1", 32, 24, None, BlockFormat(5, 32, _q5_1, _SCALE_AND_BIAS)),
    8: GgufType("Q8_0", 32, 34, None, BlockFormat(8, 32, _q8_0, _SCALE, signed=True)),
    10: GgufType("Q2_K", 256, 84, None, BlockFormat(2, 16, _q2_k, _Q2_K_PARTS, super_group=16)),
    11: GgufType("Q3_K", 256, 110, None, BlockFormat(
        3, 16, _q3_k, _Q3_K_PARTS, 4, super_group=16
    )),
    12: GgufType("Q4_K", 256, 144, None, BlockFormat(
        4, 32, Halves(16, 32), _K_PARTS, super_group=8
    )),
    13: GgufType("Q5_K", 256, 176, None, BlockFormat(5, 32, _q5_k, _K_PARTS, super_group=8)),
    14: GgufType("Q6_K", 256, 210, None, BlockFormat(
        6, 16, _q6_k, _Q6_K_PARTS, 32, super_group=16
    )),
    20: GgufType("IQ4_NL", 32, 18, None, BlockFormat(
        4, 32, Halves(2, 16), _SCALE, table=IQ4
    )),
    23: GgufType("IQ4_XS", 256, 136, None, BlockFormat(
        4, 32, Halves(8, 16), _IQ4_XS_PARTS, super_group=8, table=IQ4
    )),
    39: GgufType("MXFP4", 32, 17, None, BlockFormat(
        4, 32, Halves(1, 16), _MXFP4_PARTS, table=E2M1
    )),
}  # fmt: skip
"""The types by their numbers in files."""

_OTHER_NAMES: Mapping[int, str] = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S",
    22: "IQ2_S", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M",
    34: "TQ1_0", 35: "TQ2_0", 40: "NVFP4",
}  # fmt: skip


def name_of_type(number: int) -> str:
    """Return what llama.cpp calls the type, else its number."""
    found = GGUF_TYPES.get(number)
    return found.name if found else _OTHER_NAMES.get(number, f"number {number}")
