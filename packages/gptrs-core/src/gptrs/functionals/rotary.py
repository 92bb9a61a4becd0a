"""Rotary position embeddings: rotate pairs of components by angles proportional to the position."""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct

from gptrs.capture import primitives
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.functionals.dispatch.examples import pattern_examples
from gptrs.functionals.dispatch.registry import functional
from gptrs.functionals.layout import cast
from gptrs.functionals.operands import (
    expand,
    require_float,
    require_integer,
    require_same_dtype,
    require_shape,
    splat,
)
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType

# Scalings of rotary frequencies for texts longer than in training.


class RotaryScaling(Struct, frozen=True):
    """The protocol of a scaling, for `rotary_frequencies` and `rotary_tables`."""

    @property
    def magnitude(self) -> float:
        """Factor of the cosines and sines; 1 changes nothing."""
        return 1.0

    def frequencies(self, head_dim: int, theta: float, length: int | None) -> np.ndarray:
        """Return f32 [head_dim / 2] for base `theta` and a text of `length` positions."""
        raise NotImplementedError


def unscaled_frequencies(head_dim: int, theta: float) -> np.ndarray:
    """f32 [head_dim / 2]: `theta^(-2i / head_dim)` (Su et al. 2021), rounded as in transformers.

    That is, the exponent, the power and its inverse are each rounded to f32.
    """
    return np.float32(1) / _powers(head_dim, theta)


class LinearScaling(RotaryScaling, frozen=True):
    """Every frequency divided by `factor` (Chen et al. 2023, position interpolation)."""

    factor: float

    def __post_init__(self) -> None:
        _require_factor("LinearScaling", self.factor)

    def frequencies(self, head_dim: int, theta: float, length: int | None) -> np.ndarray:
        """Return the unscaled frequencies divided by `factor`; ignores `length`."""
        return unscaled_frequencies(head_dim, theta) / np.float32(self.factor)


class ProportionalScaling(RotaryScaling, frozen=True):
    """Only the `share` of highest frequencies rotates, divided by `factor`; the others are 0.

    Unlike a rotation of the first components of a head, pairs and powers are those of whole heads
    (Gemma 4).
    """

    share: float
    factor: float = 1.0

    def __post_init__(self) -> None:
        _require_factor("ProportionalScaling", self.factor)
        if not 0 <= self.share <= 1:
            raise UsageError(f"`ProportionalScaling` needs a share from 0 to 1, got {self.share}")

    def frequencies(self, head_dim: int, theta: float, length: int | None) -> np.ndarray:
        """Return the unscaled frequencies, the lowest as 0; ignores `length`."""
        found = unscaled_frequencies(head_dim, theta) / np.float32(self.factor)
        found[int(self.share * head_dim // 2) :] = 0
        return found


class DynamicScaling(RotaryScaling, frozen=True):
    """A base that grows with the length beyond `max_position` (dynamic NTK scaling).

    For a length L > max_position M the base is
    `theta * (factor * L / M - (factor - 1))^(head_dim / (head_dim - 2))`, up to M it is `theta`.
    """

    factor: float
    max_position: int

    def __post_init__(self) -> None:
        _require_factor("DynamicScaling", self.factor)
        _require_position("DynamicScaling", "max_position", self.max_position)

    def frequencies(self, head_dim: int, theta: float, length: int | None) -> np.ndarray:
        """Return the frequencies of the grown base; `length` defaults to `max_position`."""
        if head_dim < 4:
            raise UsageError(f"`DynamicScaling` needs a head_dim of at least 4, got {head_dim}")
        longest = max(length or 0, self.max_position)
        growth = self.factor * longest / self.max_position - (self.factor - 1)
        return unscaled_frequencies(head_dim, theta * growth ** (head_dim / (head_dim - 2)))


class YarnScaling(RotaryScaling, frozen=True):
    """YaRN (Peng et al. 2023): low frequencies divided by `factor`, high ones kept.

    Frequencies with at least `beta_fast` turns over `original_max_position` positions are kept,
    those with at most `beta_slow` turns are divided, and those between are blended by a ramp over
    their indices; `truncate` widens the ramp to integers. `attention_factor` is `0.1 * ln(factor) +
    1` unless given; with both `mscale` and `mscale_all_dim` (DeepSeek) it is the quotient of two
    such terms, with their logarithms multiplied by these.
    """

    factor: float
    original_max_position: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        _require_factor("YarnScaling", self.factor)
        _require_position("YarnScaling", "original_max_position", self.original_max_position)
        if not 0 < self.beta_slow <= self.beta_fast < math.inf:
            raise UsageError(
                "`YarnScaling` needs 0 < beta_slow <= beta_fast,"
                f" got {self.beta_slow} and {self.beta_fast}"
            )

    @property
    def magnitude(self) -> float:
        """Return `attention_factor`, or its default."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._growth(self.mscale) / self._growth(self.mscale_all_dim)
        return self._growth(1.0)

    def frequencies(self, head_dim: int, theta: float, length: int | None) -> np.ndarray:
        """Return kept, divided and blended frequencies; ignores `length`."""
        powers = _powers(head_dim, theta)
        low, high = self._range(head_dim, theta)
        numbers = np.arange(head_dim // 2, dtype=np.float32)
        divided = np.clip((numbers - np.float32(low)) / np.float32(high - low), 0, 1)
        kept = np.float32(1) - divided
        slow = np.float32(1) / (np.float32(self.factor) * powers)
        return slow * (np.float32(1) - kept) + np.float32(1) / powers * kept

    def _growth(self, weight: float) -> float:
        return 1.0 if self.factor <= 1 else 0.1 * weight * math.log(self.factor) + 1.0

    def _range(self, head_dim: int, theta: float) -> tuple[float, float]:
        """Return the indices of the frequencies between which the ramp lies."""
        low, high = (
            head_dim * math.log(self.original_max_position / (turns * 2 * math.pi))
            / (2 * math.log(theta))
            for turns in (self.beta_fast, self.beta_slow)
        )  # fmt: skip
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        # An empty ramp would cause a division by zero.
        # 0.001 as in transformers.
        return low, high + 0.001 if low == high else high


class Llama3Scaling(RotaryScaling, frozen=True):
    """Llama 3.1: frequencies of long waves are divided by `factor`, of short waves kept, between
    blended.

    A wave is short below `original_max_position / high_frequency_factor` positions and long above
    `original_max_position / low_frequency_factor`.
    """

    factor: float
    low_frequency_factor: float
    high_frequency_factor: float
    original_max_position: int

    def __post_init__(self) -> None:
        _require_factor("Llama3Scaling", self.factor)
        _require_position("Llama3Scaling", "original_max_position", self.original_max_position)
        if not 0 < self.low_frequency_factor < self.high_frequency_factor < math.inf:
            raise UsageError(
                "`Llama3Scaling` needs 0 < low_frequency_factor < high_frequency_factor,"
                f" got {self.low_frequency_factor} and {self.high_frequency_factor}"
            )

    def frequencies(self, head_dim: int, theta: float, length: int | None) -> np.ndarray:
        """Return kept, divided and blended frequencies; ignores `length`."""
        low, high = self.low_frequency_factor, self.high_frequency_factor
        plain = unscaled_frequencies(head_dim, theta)
        divided = plain / np.float32(self.factor)
        # In f32 as in transformers: at position 100,000, one unit in the last place of a frequency
        # is an angle of up to 0.01.
        wave = np.float32(2 * math.pi) / plain
        share = (self.original_max_position / wave - np.float32(low)) / np.float32(high - low)
        blended = (np.float32(1) - share) * plain / np.float32(self.factor) + share * plain
        longer = np.where(wave > self.original_max_position / low, divided, blended)
        return np.where(wave < self.original_max_position / high, plain, longer)


class LongRopeScaling(RotaryScaling, frozen=True):
    """LongRoPE (Ding et al. 2024): each frequency divided by its own factor.

    Texts of more than `original_max_position` positions have the `long` factors, others the `short`
    ones, head_dim / 2 each. `attention_factor` is `sqrt(1 + ln(factor) /
    ln(original_max_position))` unless given, where `factor` is the extension of the context length.
    """

    long: tuple[float, ...]
    short: tuple[float, ...]
    factor: float
    original_max_position: int
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        _require_position("LongRopeScaling", "original_max_position", self.original_max_position)
        if len(self.long) != len(self.short) or not all(
            0 < value < math.inf for value in (*self.long, *self.short)
        ):
            raise UsageError(
                "`LongRopeScaling` needs as many positive factors for long texts as for short"
                f" ones, got {len(self.long)} and {len(self.short)}"
            )

    @property
    def magnitude(self) -> float:
        """Return `attention_factor`, or its default."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.factor <= 1:
            return 1.0
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original_max_position))

    def frequencies(self, head_dim: int, theta: float, length: int | None) -> np.ndarray:
        """Return the frequencies for a text of `length`; None is a short one."""
        factors = self.long if (length or 0) > self.original_max_position else self.short
        if len(factors) != head_dim // 2:
            raise UsageError(
                f"`LongRopeScaling` needs {head_dim // 2} factors for {head_dim} rotated"
                f" components, got {len(factors)}"
            )
        return np.float32(1) / (np.asarray(factors, np.float32) * _powers(head_dim, theta))


def _powers(head_dim: int, theta: float) -> np.ndarray:
    """f32 [head_dim / 2]: `theta^(2i / head_dim)`."""
    # Exponents are f32 as in transformers; the power is computed in f64 and rounded once.
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    return np.power(theta, exponents.astype(np.float64)).astype(np.float32)


def _require_factor(name: str, factor: float) -> None:
    if not 1 <= factor < math.inf:
        raise UsageError(f"`{name}` needs a finite factor of at least 1, got {factor}")


def _require_position(name: str, label: str, position: int) -> None:
    if position < 1:
        raise UsageError(f"`{name}` needs `{label}` of at least 1, got {position}")


@functional
def rotary_frequencies(
    head_dim: int,
    theta: float = 10000.0,
    scaling: RotaryScaling | None = None,
    length: Tensor | int | None = None,
) -> Tensor:
    """f32 [head_dim / 2]: the angle by which pair i rotates from a position to the next.

    `theta^(-2i / head_dim)` (Su et al. 2021), changed by `scaling`: `LinearScaling`,
    `DynamicScaling`, `YarnScaling`, `Llama3Scaling` or `LongRopeScaling`. `head_dim` counts the
    rotated components. `length` is the length of the text, used by `DynamicScaling` and
    `LongRopeScaling`: a number gives a constant, an integer tensor serves compiled steps. A tensor
    of higher rank has one length per row; with these scalings, the result is then [*length.shape,
    head_dim / 2]. UsageError for a head_dim that is odd or below 2, a theta that is not finite or
    at most 1, and another kind of length.
    """
    _require_frequencies(head_dim, theta, length)
    if scaling is None:
        return primitives.constant(unscaled_frequencies(head_dim, theta))
    if not isinstance(length, Tensor):
        return primitives.constant(scaling.frequencies(head_dim, theta, length), dtypes.f32)
    if isinstance(scaling, DynamicScaling):
        return _grown_frequencies(head_dim, theta, scaling, length)
    if isinstance(scaling, LongRopeScaling):
        return _chosen_frequencies(head_dim, theta, scaling, length)
    return primitives.constant(scaling.frequencies(head_dim, theta, None), dtypes.f32)


@functional
def rotary_tables(
    positions: Tensor,
    head_dim: int,
    theta: float = 10000.0,
    scaling: RotaryScaling | None = None,
    length: Tensor | int | None = None,
    dtype: DType = dtypes.f32,
) -> tuple[Tensor, Tensor]:
    """Cosine and sine of `position * frequency`, both [..., head_dim / 2], for `rotary`.

    `positions` is an integer tensor [...], usually [T], or [B, T] where the sequences of a batch
    are at different positions. The frequencies are those of `rotary_frequencies`; a `length` tensor
    has rank 0 or one element for each position. Angles, cosines and sines are computed in f32,
    multiplied by the magnitude of the scaling and rounded to the float type `dtype`. UsageError for
    other positions and lengths and another kind of `dtype`.
    """
    require_integer("rotary_tables", positions=positions)
    if isinstance(length, Tensor) and length.rank:
        require_shape("rotary_tables", "length", length, positions.shape)
    if not dtype.is_float:
        raise UsageError(f"`rotary_tables` makes tables of a floating-point type, got {dtype}")
    frequencies = rotary_frequencies(head_dim, theta, scaling, length)
    shape = (*positions.shape, head_dim // 2)
    column = primitives.reshape(primitives.cast(positions, dtypes.f32), (*positions.shape, 1))
    angles = primitives.mul(expand(column, shape), expand(frequencies, shape))
    factor = 1.0 if scaling is None else scaling.magnitude
    cos, sin = (
        table if factor == 1 else primitives.mul(table, splat(factor, dtypes.f32, shape))
        for table in (primitives.cos(angles), primitives.sin(angles))
    )
    return cast(cos, dtype), cast(sin, dtype)


@pattern_examples(
    {"x": "f16[2, 3, 5, 6]", "cos": table, "sin": table, "interleaved": interleaved}
    for table in ("f32[5, 3]", "f32[5, 2]", "f32[2, 5, 3]", "f32[2, 5, 2]")
    for interleaved in (False, True)
)
@functional(composite=True)
def rotary(
    x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False, heads_axis: int = 1
) -> Tensor:
    """Pairs (a, b) of components of x rotated to `(a cos - b sin, b cos + a sin)` (Su et al. 2021).

    x is [B, H, T, D], or [B, T, H, D] with `heads_axis=2`; the result has its type. `cos` and `sin`
    come from `rotary_tables`: [T, R / 2] or [B, T, R / 2]. The first R <= D components are rotated,
    the rest is kept. Pair i is components i and i + R / 2 (half-split: GPT-NeoX, Llama), or with
    `interleaved` 2i and 2i + 1 (GPT-J). Tables have the type of x, or f32 with a 16-bit x, which is
    then rotated in f32 and rounded once. UsageError for what does not fit.
    """
    require_float("rotary", x=x)
    _require_tables(x, cos, sin, heads_axis)
    halves = (*x.shape[:3], cos.shape[-1])
    cos, sin = (expand(_beside_heads(table, heads_axis), halves) for table in (cos, sin))
    return apply_rotary(x, cos, sin, interleaved)


@pattern_examples(
    {"x": "f16[2, 3, 5, 6]", "cos": table, "sin": table, "interleaved": interleaved}
    for table in ("f32[2, 3, 5, 3]", "f32[2, 3, 5, 2]")
    for interleaved in (False, True)
)
def apply_rotary(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool = False) -> Tensor:
    """`rotary` of x [A, B, C, D] with tables [A, B, C, R / 2] for all its rows.

    Every call of `rotary` reduces to this, for any shape of its tables and axis of its heads.
    Unchecked.
    """
    half = cos.shape[-1]
    rotated = _part(x, 0, 2 * half)
    kept = [_part(x, 2 * half, x.shape[3] - 2 * half)] if 2 * half < x.shape[3] else []
    wide = cast(rotated, cos.dtype)
    if interleaved:
        a, b = (_part(wide, start, half, 2) for start in (0, 1))
    else:
        a, b = (_part(wide, start, half) for start in (0, half))
    first = primitives.sub(primitives.mul(a, cos), primitives.mul(b, sin))
    second = primitives.add(primitives.mul(b, cos), primitives.mul(a, sin))
    parts = [_interleave(first, second)] if interleaved else [first, second]
    pieces = [*(cast(part, x.dtype) for part in parts), *kept]
    return primitives.concat(pieces, 3) if len(pieces) > 1 else pieces[0]


def _grown_frequencies(
    head_dim: int, theta: float, scaling: DynamicScaling, length: Tensor
) -> Tensor:
    """Return the frequencies of `DynamicScaling` for lengths known when the program runs.

    `(theta * g^(d / (d - 2)))^(-2i / d)` is `theta^(-2i / d) * g^(2i / (2 - d))`.
    """
    unscaled = scaling.frequencies(head_dim, theta, None)
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(2 - head_dim)
    rows = length.shape
    longest = primitives.maximum(length, splat(scaling.max_position, length.dtype, rows))
    ratio = primitives.div(cast(longest, dtypes.f32), splat(scaling.max_position, dtypes.f32, rows))
    grown = primitives.mul(ratio, splat(scaling.factor, dtypes.f32, rows))
    growth = primitives.sub(grown, splat(scaling.factor - 1, dtypes.f32, rows))
    shape = (*rows, head_dim // 2)
    column = primitives.reshape(growth, (*rows, 1)) if rows else growth
    shrunk = primitives.pow(expand(column, shape), expand(primitives.constant(exponents), shape))
    return primitives.mul(expand(primitives.constant(unscaled), shape), shrunk)


def _chosen_frequencies(
    head_dim: int, theta: float, scaling: LongRopeScaling, length: Tensor
) -> Tensor:
    """Return the frequencies of `LongRopeScaling` for lengths known when the program runs."""
    limit, rows = scaling.original_max_position, length.shape
    short, long = (
        primitives.constant(scaling.frequencies(head_dim, theta, text))
        for text in (limit, limit + 1)
    )
    shape = (*rows, head_dim // 2)
    column = primitives.reshape(length, (*rows, 1)) if rows else length
    wide = expand(column, shape)
    is_long = primitives.compare(wide, splat(limit, length.dtype, shape), "gt")
    return primitives.select(is_long, expand(long, shape), expand(short, shape))


def _beside_heads(table: Tensor, heads_axis: int) -> Tensor:
    """Reshape [T, R / 2] or [B, T, R / 2] to rank 4 with an axis for the heads."""
    lead, (length, half) = table.shape[:-2] or (1,), table.shape[-2:]
    between = (1, length) if heads_axis == 1 else (length, 1)
    return primitives.reshape(table, (*lead, *between, half))


def _interleave(first: Tensor, second: Tensor) -> Tensor:
    """first[0], second[0], first[1], second[1], ... along the last axis."""
    pairs = [primitives.reshape(x, (*x.shape, 1)) for x in (first, second)]
    joined = primitives.concat(pairs, -1)
    return primitives.reshape(joined, (*first.shape[:-1], 2 * first.shape[-1]))


def _part(x: Tensor, start: int, size: int, step: int = 1) -> Tensor:
    """`size` components of the last axis of x."""
    if (start, size, step) == (0, x.shape[3], 1):
        return x
    return primitives.slice(x, (0, 0, 0, start), (*x.shape[:3], size), (1, 1, 1, step))


def _require_frequencies(head_dim: int, theta: float, length: Tensor | int | None) -> None:
    name = "rotary_frequencies"
    if head_dim < 2 or head_dim % 2:
        raise UsageError(f"`{name}` needs an even head_dim of at least 2, got {head_dim}")
    if not 1 < theta < math.inf:
        raise UsageError(f"`{name}` needs a finite theta above 1, got {theta}")
    if isinstance(length, Tensor):
        require_integer(name, length=length)
    elif length is not None and length < 0:
        raise UsageError(f"`{name}` needs a length of at least 0, got {length}")


def _require_tables(x: Tensor, cos: Tensor, sin: Tensor, heads_axis: int) -> None:
    if x.rank != 4:
        raise UsageError(f"`rotary` needs `x` of rank 4 [B, H, T, D], got `{x.type}`")
    if heads_axis not in (1, 2):
        raise UsageError(f"`rotary` takes heads_axis=1 or 2, got {heads_axis}")
    require_same_dtype("rotary", cos, sin)
    allowed = dict.fromkeys((x.dtype, x.dtype.accumulator))
    if cos.dtype not in allowed:
        listed = " or ".join(map(str, allowed))
        raise UsageError(f"`rotary` of `{x.type}` needs tables of {listed}, got `{cos.type}`")
    length = x.shape[3 - heads_axis]
    fitting = ((length,), (x.shape[0], length))
    if cos.shape != sin.shape or cos.shape[:-1] not in fitting or not cos.shape[-1]:
        raise UsageError(
            f"`rotary` of `{x.type}` needs tables [{length}, R / 2] or [{x.shape[0]}, {length},"
            f" R / 2], got `{cos.type}` and `{sin.type}`"
        )
    if 2 * cos.shape[-1] > x.shape[3]:
        raise UsageError(
            f"`rotary` with tables of `{cos.type}` rotates {2 * cos.shape[-1]} components,"
            f" but `{x.type}` has {x.shape[3]}"
        )
