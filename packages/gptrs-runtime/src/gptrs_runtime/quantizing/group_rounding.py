"""Rounding of weights by groups: the codes and the scale that come closest, found without data.

`nearest` takes the scale from the extremes of a group. `search` tries several, rounds by each, and
fits the scale to the codes by least squares: the sum of squared errors of a group gets smaller, or
stays. Scales are f16, as all formats store them, and errors count those of their rounding.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from gptrs.checkpoint.quantized_tensor import Part
from gptrs.quick_dataclass import dataclass

Rounding = Literal["nearest", "search"]
ROUNDINGS: tuple[Rounding, ...] = ("nearest", "search")

_SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)
"""Shares of the range of a group that its codes may span; what is beyond them is clipped."""
_SHRINKS_OF_8_BITS = (1.0, 0.985, 0.97)


@dataclass(frozen=True, slots=True)
class Rounded:
    """The parts of groups [N, size]: codes, one to an element, and a column of each other part."""

    parts: dict[Part, np.ndarray]
    values: np.ndarray
    """The weights that the parts stand for, f32 [N, size]."""


def round_symmetric(groups: np.ndarray, bits: int, rounding: Rounding) -> Rounded:
    """Round f32 [N, size] to codes si8 from `-2**(bits - 1)` on, and a scale >= 0.

    Groups of infinities, NaN or scales beyond f16 give infinite or NaN values.
    """
    top = np.float32(2 ** (bits - 1) - 1)
    extreme = np.abs(groups).max(axis=1, keepdims=True)
    scale = _half(extreme / top)
    span = scale.astype(np.float32)
    if rounding == "search":
        span, scale = _searched(groups, bits, extreme, scale)
    return _of_codes(_codes(groups, span, bits), scale)


def _searched(
    groups: np.ndarray, bits: int, extreme: np.ndarray, scale: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return of each group the scale by which codes are best rounded, f32, and that they get, f16.

    Codes themselves are made again of these, which is faster than choosing among those of all.
    """
    top = np.float32(2 ** (bits - 1) - 1)
    span = scale.astype(np.float32)
    error = _error_of(groups, _codes(groups, span, bits), scale)
    # The code below zero that has no counterpart above is one step more.
    spans = [extreme / (top + 1), extreme / (top + np.float32(0.5))]
    shrinks = _SHRINKS_OF_8_BITS if bits == 8 else _SHRINKS
    spans += [extreme / top * np.float32(shrink) for shrink in shrinks[1:]]
    for other in spans:
        codes = _codes(groups, other, bits)
        fitted = _half(
            _ratio((groups * codes).sum(1, keepdims=True), (codes * codes).sum(1, keepdims=True))
        )
        found = _error_of(groups, codes, fitted)
        wins = found < error
        span, scale = np.where(wins, other, span), np.where(wins, fitted, scale)
        error = np.where(wins, found, error)
    return span, scale


def round_affine(groups: np.ndarray, bits: int, rounding: Rounding) -> Rounded:
    """Round f32 [N, size] to codes ui8 from 0 on, a scale and a bias, both f16."""
    top = np.float32(2**bits - 1)
    low, high = groups.min(axis=1, keepdims=True), groups.max(axis=1, keepdims=True)
    best = _with_bias(groups, (high - low) / top, low, top)
    if rounding == "nearest":
        return best
    error = _error(groups, best)
    middle, half = (low + high) / 2, (high - low) / 2
    for shrink in _SHRINKS:
        first = _with_bias(groups, 2 * half * np.float32(shrink) / top, middle - half * shrink, top)
        found = _fitted_bias(groups, first.parts["codes"].astype(np.float32))
        best, error = _better(groups, best, error, found)
    return best


def round_with_zero_point(groups: np.ndarray, bits: int, rounding: Rounding) -> Rounded:
    """Round f32 [N, size] to codes ui8 from 0 on, a scale f16, and a zero point si32 among them."""
    top = np.float32(2**bits - 1)
    low = np.minimum(groups.min(axis=1, keepdims=True), 0)
    high = np.maximum(groups.max(axis=1, keepdims=True), 0)
    best = _with_zero(groups, (high - low) / top, low, top, fit=False)
    if rounding == "nearest":
        return best
    error = _error(groups, best)
    for shrink in _SHRINKS:
        for side in (1.0, shrink):
            begin, end = low * np.float32(side), high * np.float32(shrink)
            found = _with_zero(groups, (end - begin) / top, begin, top, fit=True)
            best, error = _better(groups, best, error, found)
    return best


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Return the quotients, 0 where the divisor is."""
    return np.divide(above, below, out=np.zeros_like(above), where=below != 0)


def _half(array: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # whoever asks for the error sees an infinite one
        return array.astype(np.float16)


def _codes(groups: np.ndarray, scale: np.ndarray, bits: int) -> np.ndarray:
    """Return the nearest codes as f32."""
    half = 2 ** (bits - 1)
    codes = groups * _ratio(np.ones_like(scale), scale)
    np.rint(codes, out=codes)
    return np.clip(codes, -half, half - 1, out=codes)


def _of_codes(codes: np.ndarray, scale: np.ndarray) -> Rounded:
    parts: dict[Part, np.ndarray] = {"codes": codes.astype(np.int8), "scale": scale}
    return Rounded(parts, codes * scale.astype(np.float32))


def _with_bias(groups: np.ndarray, scale: np.ndarray, bias: np.ndarray, top: np.float32) -> Rounded:
    stored, moved = _half(scale), _half(bias)
    inverse = _ratio(np.ones_like(scale), stored.astype(np.float32))
    codes = np.clip(np.rint((groups - moved.astype(np.float32)) * inverse), 0, top)
    return _affine(codes, stored, moved)


def _affine(codes: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> Rounded:
    parts: dict[Part, np.ndarray] = {"codes": codes.astype(np.uint8), "scale": scale, "bias": bias}
    return Rounded(parts, codes * scale.astype(np.float32) + bias.astype(np.float32))


def _fitted_bias(groups: np.ndarray, codes: np.ndarray) -> Rounded:
    """Return the codes with the scale and bias that are best by least squares."""
    mean, middle = groups.mean(1, keepdims=True), codes.mean(1, keepdims=True)
    apart = codes - middle
    scale = _ratio((apart * groups).sum(1, keepdims=True), (apart * apart).sum(1, keepdims=True))
    return _affine(codes, _half(scale), _half(mean - scale * middle))


def _with_zero(
    groups: np.ndarray, scale: np.ndarray, low: np.ndarray, top: np.float32, *, fit: bool
) -> Rounded:
    stored = _half(scale)
    inverse = _ratio(np.ones_like(scale), stored.astype(np.float32))
    zero = np.clip(np.rint(-low * inverse), 0, top)
    steps = np.clip(np.rint(groups * inverse) + zero, 0, top) - zero
    if fit:
        above = (groups * steps).sum(1, keepdims=True)
        stored = _half(_ratio(above, (steps * steps).sum(1, keepdims=True)))
    parts: dict[Part, np.ndarray] = {
        "codes": (steps + zero).astype(np.uint8),
        "scale": stored,
        "zero_point": zero.astype(np.int32),
    }
    return Rounded(parts, steps * stored.astype(np.float32))


def _error_of(groups: np.ndarray, codes: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return the sum of squared errors of each group; `codes` are written over."""
    np.multiply(codes, scale.astype(np.float32), out=codes)
    np.subtract(groups, codes, out=codes)
    return np.square(codes, out=codes).sum(axis=1, keepdims=True)


def _error(groups: np.ndarray, found: Rounded) -> np.ndarray:
    return np.square(groups - found.values).sum(axis=1, keepdims=True)


def _better(
    groups: np.ndarray, best: Rounded, error: np.ndarray, found: Rounded
) -> tuple[Rounded, np.ndarray]:
    """Return of each group the one with the smaller error, and that."""
    other = _error(groups, found)
    wins = other < error
    parts: dict[Part, np.ndarray] = {
        part: np.where(wins, found.parts[part], array) for part, array in best.parts.items()
    }
    return Rounded(parts, np.where(wins, found.values, best.values)), np.where(wins, other, error)
