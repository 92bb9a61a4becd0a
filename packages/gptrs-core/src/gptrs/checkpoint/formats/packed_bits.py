"""Packing codes of few bits into bytes, as `unpack_bits` of PTIR reads them."""

from __future__ import annotations

import numpy as np

_EVEN = {8: 0x00FF00FF00FF00FF, 16: 0x0000FFFF0000FFFF, 32: 0x00000000FFFFFFFF}
"""For each width of lanes the mask of every second lane of 64 bits."""


def packed_bits(codes: np.ndarray, bits: int) -> np.ndarray:
    """Return ui8 [.., I * bits / 8] of codes ui8 [.., I], each below `2**bits`; I divides by 8.

    Eight codes are moved together within a word of 64 bits, in three steps.
    """
    if bits == 8:
        return codes
    words = np.ascontiguousarray(codes).view("<u8")
    width = bits
    for lane, mask in _EVEN.items():
        low, high = words & np.uint64(mask), (words >> np.uint64(lane)) & np.uint64(mask)
        words = low | (high << np.uint64(width))
        width *= 2
    size = (*codes.shape[:-1], codes.shape[-1] // 8 * bits)
    return words.view(np.uint8).reshape(*words.shape, 8)[..., :bits].reshape(size)
