"""Scalings of the frequencies of rotary embeddings, for texts longer than those of training."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np

from gptrs.errors import UsageError
from gptrs.quick_dataclass import dataclass


class RotaryScaling(ABC):
    """The protocol of a scaling, for `rotary_frequencies` and `rotary_tables`."""

    @property
    def magnitude(self) -> float:
        """Factor of the cosines and sines; 1 changes nothing."""
        return 1.0

    @abstractmethod
    def frequencies(self, head_dim: int, theta: float, length: int | None) -> np.ndarray:
        """Return f32 [head_dim / 2] for base `theta` and a text of `length` positions."""


def unscaled_frequencies(head_dim: int, theta: float) -> np.ndarray:
    """f32 [head_dim / 2]: `theta^(-2i / head_dim)` (Su et al. 2021), rounded as in transformers.

    That is, the exponent, the power and its inverse are each rounded to f32.
    """
    return np.float32(1) / _powers(head_dim, theta)


@dataclass(frozen=True)
class LinearScaling(RotaryScaling):
    """Every frequency divided by `factor` (Chen et al. 2023, position interpolation)."""

    factor: float

    def __post_init__(self) -> None:
        _require_factor("LinearScaling", self.factor)

    def frequencies(self, head_dim: int, theta: float, length: int | None) -> np.ndarray:
        """Return the unscaled frequencies divided by `factor`; ignores `length`."""
        return unscaled_frequencies(head_dim, theta) / np.float32(self.factor)


@dataclass(frozen=True)
class DynamicScaling(RotaryScaling):
    """A base that grows with a text longer than `max_position` (NTK-aware, dynamic).

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


@dataclass(frozen=True)
class YarnScaling(RotaryScaling):
    """YaRN (Peng et al. 2023): low frequencies divided by `factor`, high ones kept.

    A frequency that turns at least `beta_fast` times over `original_max_position` positions is
    kept, one that turns at most `beta_slow` times is divided, those between are blended by a ramp
    over their numbers; `truncate` widens the ramp to whole numbers. `attention_factor` is
    `0.1 * ln(factor) + 1` unless given; with both `mscale` and `mscale_all_dim` (DeepSeek) it is
    the quotient of two such terms, whose logarithms they multiply.
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
        """`attention_factor`, or what stands for it."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.mscale and self.mscale_all_dim:
            return self._growth(self.mscale) / self._growth(self.mscale_all_dim)
        return self._growth(1.0)

    def frequencies(self, head_dim: int, theta: float, length: int | None) -> np.ndarray:
        """Return kept, divided and blended frequencies; ignores `length`."""
        powers = _powers(head_dim, theta)
        low, high = self._range(head_dim, theta)
        places = np.arange(head_dim // 2, dtype=np.float32)
        divided = np.clip((places - np.float32(low)) / np.float32(high - low), 0, 1)
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
        # An empty ramp would divide by zero.
        return low, high + 0.001 if low == high else high


@dataclass(frozen=True)
class Llama3Scaling(RotaryScaling):
    """Llama 3.1: long waves divided by `factor`, short ones kept, those between blended.

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
        wave = np.float32(2 * math.pi) / plain
        share = (self.original_max_position / wave - np.float32(low)) / np.float32(high - low)
        blended = (np.float32(1) - share) * plain / np.float32(self.factor) + share * plain
        longer = np.where(wave > self.original_max_position / low, divided, blended)
        return np.where(wave < self.original_max_position / high, plain, longer)


@dataclass(frozen=True)
class LongRopeScaling(RotaryScaling):
    """LongRoPE (Ding et al. 2024): each frequency divided by a factor of its own.

    Texts of more than `original_max_position` positions have the `long` factors, others the
    `short` ones, head_dim / 2 each. `attention_factor` is
    `sqrt(1 + ln(factor) / ln(original_max_position))` unless given, where `factor` is how much
    longer than before texts may be.
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
        """`attention_factor`, or what stands for it."""
        if self.attention_factor is not None:
            return self.attention_factor
        if self.factor <= 1:
            return 1.0
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original_max_position))

    def frequencies(self, head_dim: int, theta: float, length: int | None) -> np.ndarray:
        """Return the frequencies of a text of `length`; None is a short one."""
        factors = self.long if (length or 0) > self.original_max_position else self.short
        if len(factors) != head_dim // 2:
            raise UsageError(
                f"`LongRopeScaling` needs {head_dim // 2} factors for {head_dim} rotated"
                f" components, got {len(factors)}"
            )
        return np.float32(1) / (np.asarray(factors, np.float32) * _powers(head_dim, theta))


def _powers(head_dim: int, theta: float) -> np.ndarray:
    """f32 [head_dim / 2]: `theta^(2i / head_dim)`."""
    exponents = np.arange(0, head_dim, 2, dtype=np.float32) / np.float32(head_dim)
    return np.power(theta, exponents.astype(np.float64)).astype(np.float32)


def _require_factor(name: str, factor: float) -> None:
    if not 1 <= factor < math.inf:
        raise UsageError(f"`{name}` needs a finite factor of at least 1, got {factor}")


def _require_position(name: str, label: str, position: int) -> None:
    if position < 1:
        raise UsageError(f"`{name}` needs `{label}` of at least 1, got {position}")
