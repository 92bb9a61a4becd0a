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
    words = np.array(codes, order="C").view("<u8")
    spare, width = np.empty_like(words), bits
    for lane, mask in _EVEN.items():
        np.bitwise_and(words, np.uint64(mask), out=spare)
        np.right_shift(words, np.uint64(lane), out=words)
        np.bitwise_and(words, np.uint64(mask), out=words)
        np.left_shift(words, np.uint64(width), out=words)
        np.bitwise_or(words, spare, out=words)
        width *= 2
    size = (*codes.shape[:-1], codes.shape[-1] // 8 * bits)
    unit = np.uint8 if bits % 2 else np.uint16 if bits % 4 else np.uint32
    parts = words.reshape(-1, 1).view(unit)
    packed = np.empty((len(parts), bits // parts.itemsize), unit)
    for place in range(packed.shape[1]):  # many at a time, not the few of a word
        packed[:, place] = parts[:, place]
    return packed.view(np.uint8).reshape(size)


def packed_halves(bytes_: np.ndarray, run: int) -> np.ndarray:
    """Return ui8 [N, B] of codes of 4 bits in bytes [N, B], which hold them in another order.

    Of each `run` bytes, a multiple of 8, the low halves come first, then the high ones. Neighbours
    change places within words of 64 bits, in three steps: low halves then lie before high ones.
    """
    words = dense_rows(bytes_).copy().view(np.uint64)
    spare = np.empty_like(words)
    _exchange(words, 4, 0x00F000F000F000F0, spare)
    _exchange(words, 8, 0x0000FF000000FF00, spare)
    _exchange(words, 16, 0x00000000FFFF0000, spare)
    moved, count = words.view(np.uint32).reshape(-1, run // 4), run // 8
    packed = np.empty_like(moved)
    for place in range(count):
        packed[:, place] = moved[:, 2 * place]
        packed[:, count + place] = moved[:, 2 * place + 1]
    return packed.view(np.uint8).reshape(bytes_.shape)


def dense_rows(bytes_: np.ndarray) -> np.ndarray:
    """Return bytes [N, B] that are contiguous; rows are moved whole, which is 10 times as fast."""
    if bytes_.flags.c_contiguous:
        return bytes_
    return np.ascontiguousarray(bytes_.view(f"V{bytes_.shape[1]}")).view(np.uint8)


def _exchange(words: np.ndarray, distance: int, mask: int, spare: np.ndarray) -> None:
    """Have the bits of `mask` and those `distance` above them change places in all words."""
    np.right_shift(words, np.uint64(distance), out=spare)
    np.bitwise_xor(spare, words, out=spare)
    np.bitwise_and(spare, np.uint64(mask), out=spare)
    np.bitwise_xor(words, spare, out=words)
    np.left_shift(spare, np.uint64(distance), out=spare)
    np.bitwise_xor(words, spare, out=words)
