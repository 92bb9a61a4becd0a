"""Rounds a weight to codes and scales, some rows at a time, and measures the errors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import Literal, Self

import numpy as np
from msgspec import Struct

from gptrs.backend.contract import Backend
from gptrs.backend.process_limits import granted_cpus, requested_threads
from gptrs.checkpoint.quantized_tensor import Part, QuantizedTensor, reads_quantized
from gptrs.errors import CheckpointError
from gptrs.ir import dtypes
from gptrs.ir.tensor_type import TensorType
from gptrs.quoting import quoted
from gptrs_runtime.quantizing.plan import WeightType, in_threads
from gptrs_runtime.results import TensorError

# Rounding of weights by groups: the codes and the scale that come closest, found without data.
#
# `nearest` takes the scale from the extremes of a group. `search` tries several scales, rounds with
# each, and fits the scale to the codes by least squares, which never increases the sum of squared
# errors of a group. Scales are f16, as all formats store them, and errors include their rounding.


Rounding = Literal["nearest", "search"]
ROUNDINGS: tuple[Rounding, ...] = ("nearest", "search")

_SHRINKS = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)
"""Candidate shares of a group's range that its codes span; values beyond are clipped."""
_SHRINKS_OF_8_BITS = (1.0, 0.985, 0.97)


class Rounded(Struct, frozen=True):
    """The parts of groups [N, size]: codes, one to an element, and a column of each other part."""

    parts: dict[Part, np.ndarray]
    values: np.ndarray
    """The dequantized weights, f32 [N, size]."""


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
    """Return for each group the scale for rounding, f32, and the stored scale, f16.

    Codes are recomputed from these, which is faster than selecting among the codes of all
    candidates.
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
    # The range shrinks around its middle: a bias moves freely, unlike a zero point.
    middle, half = (low + high) / 2, (high - low) / 2
    for shrink in _SHRINKS:
        first = _with_bias(groups, 2 * half * np.float32(shrink) / top, middle - half * shrink, top)
        found = _fitted_bias(groups, first.parts["codes"].astype(np.float32))
        best, error = _better(groups, best, error, found)
    return best


def round_with_zero_point(groups: np.ndarray, bits: int, rounding: Rounding) -> Rounded:
    """Round f32 [N, size] to codes ui8 from 0 on, a scale f16, and a zero point si32 among them."""
    top = np.float32(2**bits - 1)
    # The range must include 0, or the zero point would not be among the codes.
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
    """Return the quotients, 0 if the divisor is 0."""
    return np.divide(above, below, out=np.zeros_like(above), where=below != 0)


def _half(array: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # the reported error is then infinite
        return array.astype(np.float16)


def _codes(groups: np.ndarray, scale: np.ndarray, bits: int) -> np.ndarray:
    """Return the nearest codes as f32."""
    half = 2 ** (bits - 1)
    # One division per group rather than per weight.
    codes = groups * _ratio(np.ones_like(scale), scale)
    np.rint(codes, out=codes)
    return np.clip(codes, -half, half - 1, out=codes)


def _of_codes(codes: np.ndarray, scale: np.ndarray) -> Rounded:
    parts: dict[Part, np.ndarray] = {"codes": codes.astype(np.int8), "scale": scale}
    return Rounded(parts, codes * scale.astype(np.float32))


def _with_bias(groups: np.ndarray, scale: np.ndarray, bias: np.ndarray, top: np.float32) -> Rounded:
    stored, moved = _half(scale), _half(bias)
    # Rounded with the stored f16 scale, which readers multiply with, not with the exact one.
    inverse = _ratio(np.ones_like(scale), stored.astype(np.float32))
    codes = np.clip(np.rint((groups - moved.astype(np.float32)) * inverse), 0, top)
    return _affine(codes, stored, moved)


def _affine(codes: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> Rounded:
    parts: dict[Part, np.ndarray] = {"codes": codes.astype(np.uint8), "scale": scale, "bias": bias}
    return Rounded(parts, codes * scale.astype(np.float32) + bias.astype(np.float32))


def _fitted_bias(groups: np.ndarray, codes: np.ndarray) -> Rounded:
    """Return the codes with the least-squares scale and bias."""
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
    """Return the sum of squared errors of each group; overwrites `codes`."""
    np.multiply(codes, scale.astype(np.float32), out=codes)
    np.subtract(groups, codes, out=codes)
    return np.square(codes, out=codes).sum(axis=1, keepdims=True)


def _error(groups: np.ndarray, found: Rounded) -> np.ndarray:
    return np.square(groups - found.values).sum(axis=1, keepdims=True)


def _better(
    groups: np.ndarray, best: Rounded, error: np.ndarray, found: Rounded
) -> tuple[Rounded, np.ndarray]:
    """Return for each group the candidate with the smaller error, and that error."""
    other = _error(groups, found)
    wins = other < error
    parts: dict[Part, np.ndarray] = {
        part: np.where(wins, found.parts[part], array) for part, array in best.parts.items()
    }
    return Rounded(parts, np.where(wins, found.values, best.values)), np.where(wins, other, error)


_ELEMENTS = 2**18
"""Weights that a thread rounds at a time, few enough that NumPy's intermediates stay in cache."""

_INPUTS = 16
"""Number of vectors for measuring errors of products, which takes 2 % of the time of the search."""
_INPUT_GROUP = 32
"""Inputs that share a scale in products of the precision `int8`."""


class RoundedTensor:
    """A matrix [O, I] returned by `load`, quantized to `type`; `load` returns [I, O] if `turned`.

    `threads` round it; None means `GPTRS_NUM_THREADS`, else one for each processor.
    """

    def __init__(
        self,
        name: str,
        load: Callable[[], np.ndarray],
        shape: tuple[int, int],
        type: WeightType,
        rounding: Rounding,
        *,
        turned: bool = False,
        threads: int | None = None,
    ) -> None:
        self.name = name
        self.shape = shape
        self.type = type
        self.turned = turned
        self._load = load
        self.rounding: Rounding = rounding
        self._threads = threads
        self._inputs: np.ndarray | None = None
        self._rounded_inputs: np.ndarray | None = None
        self._start()

    def _start(self) -> None:
        self._squares = self._errors = self._largest = 0.0
        self._product_squares = self._product_errors = 0.0

    def computed_on(self, backend: Backend) -> Self:
        """Return this weight, which will measure errors of products as `backend` has them."""
        backend = backend.with_precision(backend.quantized_precision())
        self._inputs = self._rounded_inputs = _normal_inputs(self.shape[1])
        if backend.precision == "int8" and reads_quantized(backend, self.described()):
            self._rounded_inputs = rounded_to_8_bits(self._inputs)
        return self

    def described(self) -> QuantizedTensor:
        """Return the parts as programs have them: codes packed."""
        rows, columns = self.shape
        kind, size = self.type, self.type.group_of(columns)
        signed = kind.bits == 8 and kind.offset == "none"
        codes = dtypes.si8 if signed else dtypes.ui8
        parts: dict[Part, TensorType] = {
            "codes": TensorType(codes, (rows, columns * kind.bits // 8)),
            "scale": TensorType(dtypes.f16, (rows, columns // size)),
        }
        if kind.offset == "zero_point":
            parts["zero_point"] = TensorType(dtypes.si32, (rows, columns // size))
        if kind.offset == "bias":
            parts["bias"] = TensorType(dtypes.f16, (rows, columns // size))
        middle = 0 if signed or kind.offset != "none" else 1 << kind.bits - 1
        return QuantizedTensor(
            kind.name, self.shape, parts, kind.bits, size, middle, transposed=self.turned
        )

    def chunks(self) -> Iterator[tuple[dict[Part, np.ndarray], np.ndarray]]:
        """Yield the parts of some rows after another, and their values f32 [rows, I].

        Codes are one to an element; symmetric ones are si8. CheckpointError for values that are not
        finite or too large for scales in f16.
        """
        stored = self._load()
        matrix = stored.T if self.turned else stored
        rows, columns = self.shape
        step = max(1, _ELEMENTS // columns)
        self._start()
        parts_of_rows = (matrix[start : start + step] for start in range(0, rows, step))
        threads = requested_threads(self._threads) or granted_cpus()
        for block, found in in_threads(self._round, parts_of_rows, threads):
            values = found.values.reshape(block.shape)
            self._count(block, values)
            yield (
                {part: array.reshape(len(block), -1) for part, array in found.parts.items()},
                values,
            )

    def _round(self, rows: np.ndarray) -> tuple[np.ndarray, Rounded]:
        """Return a block of rows as f32, and their rounded values."""
        block = np.ascontiguousarray(rows, np.float32)
        groups = block.reshape(-1, self.type.group_of(self.shape[1]))
        with np.errstate(all="ignore"):
            if self.type.offset == "zero_point":
                return block, round_with_zero_point(groups, self.type.bits, self.rounding)
            if self.type.offset == "bias":
                return block, round_affine(groups, self.type.bits, self.rounding)
            return block, round_symmetric(groups, self.type.bits, self.rounding)

    def error(self) -> TensorError:
        """Return the errors of the last round of `chunks`."""
        kind, columns = self.type, self.shape[1]
        offset = {"none": 0, "bias": 16, "zero_point": kind.bits}[kind.offset]
        bits = kind.bits + (16 + offset) / kind.group_of(columns)
        relative = _relative(self._errors, self._squares)
        of_products = _relative(self._product_errors, self._product_squares)
        return TensorError(
            self.name, kind.name, self.shape, bits, relative, of_products, self._largest
        )

    def _count(self, block: np.ndarray, values: np.ndarray) -> None:
        difference = block.astype(np.float64) - values
        largest = float(np.abs(difference).max(initial=0.0))
        if not math.isfinite(largest):
            raise CheckpointError(
                f"tensor {quoted(self.name)} cannot be quantized: it has values that are not"
                " finite, or beyond the range of scales in f16",
                hint="`--keep` excludes a tensor",
            )
        self._largest = max(self._largest, largest)
        self._errors += float(np.square(difference).sum())
        self._squares += float(np.square(block, dtype=np.float64).sum())
        if self._inputs is None or self._rounded_inputs is None:
            return
        exact = block @ self._inputs
        self._product_squares += float(np.square(exact, dtype=np.float64).sum())
        exact -= values @ self._rounded_inputs
        self._product_errors += float(np.square(exact, dtype=np.float64).sum())


@cache
def _normal_inputs(columns: int) -> np.ndarray:
    """Return f32 [I, `_INPUTS`], the same each time."""
    drawn = np.random.default_rng(0).standard_normal((_INPUTS, columns), np.float32)
    return np.ascontiguousarray(drawn.T)


def rounded_to_8_bits(inputs: np.ndarray) -> np.ndarray:
    """Return f32 [I, N] rounded as `gptrs.backend.contract` says of `int8`."""
    columns = len(inputs)
    size = math.gcd(columns, _INPUT_GROUP)
    groups = inputs.reshape(columns // size, size, -1)
    scale = np.maximum(np.abs(groups).max(axis=1, keepdims=True) / 127, np.float32(1e-30))
    return (np.rint(groups / scale) * scale).reshape(inputs.shape)


def _relative(errors: float, squares: float) -> float:
    return math.sqrt(errors / squares) if squares else 0.0
