"""Measures of how far arrays are from those of a reference."""

from __future__ import annotations

import math

import numpy as np

from gptrs.errors import ModelError
from gptrs.functionals.dispatch.agreement import absolute_errors
from gptrs.ir.tensor_type import TensorType
from gptrs.quick_dataclass import dataclass


@dataclass(frozen=True)
class Agreement:
    """The absolute errors of an array called `name`, of `type` in IR syntax.

    `scale` is the range of the reference, its largest number less its smallest; where these are
    equal, its magnitude.
    """

    name: str
    type: str
    max_error: float
    mean_error: float
    scale: float

    @property
    def relative_max_error(self) -> float:
        """Largest error, relative to the scale."""
        return share(self.max_error, self.scale)

    @property
    def relative_mean_error(self) -> float:
        """Mean error, relative to the scale."""
        return share(self.mean_error, self.scale)


def agreement(name: str, ours: np.ndarray, theirs: np.ndarray) -> Agreement:
    """Compare two non-empty arrays of floats; ModelError if their shapes differ.

    Where one of two numbers is NaN or infinite and the other is not the same, the error is
    infinite.
    """
    if ours.shape != theirs.shape:
        raise ModelError(
            f"{name} cannot be compared: `{TensorType.of(ours)}` here,"
            f" `{TensorType.of(theirs)}` in the reference"
        )
    error = absolute_errors(ours, theirs)
    return Agreement(
        name=name,
        type=str(TensorType.of(ours)),
        max_error=float(error.max()),
        mean_error=float(error.mean()),
        scale=_scale(theirs),
    )


def top_agreement(ours: np.ndarray, theirs: np.ndarray, count: int) -> float:
    """Return the share of the `count` largest scores of each row, [..., N], that both have."""
    count = min(count, ours.shape[-1])
    pairs = zip(_best(ours, count), _best(theirs, count), strict=True)
    common = [np.intersect1d(mine, other).size for mine, other in pairs]
    return float(np.mean(common)) / count


def _best(scores: np.ndarray, count: int) -> np.ndarray:
    """Return the positions of the `count` largest of each row, [rows, count]."""
    flat = scores.reshape(-1, scores.shape[-1])
    return np.argsort(-flat, axis=-1, kind="stable")[:, :count]


def least_cosine(ours: np.ndarray, theirs: np.ndarray) -> float:
    """Return the least cosine similarity of vectors [..., D] at one position; NaN for zeros."""
    wide, reference = ours.astype(np.float64), theirs.astype(np.float64)
    lengths = np.linalg.norm(wide, axis=-1) * np.linalg.norm(reference, axis=-1)
    with np.errstate(invalid="ignore"):
        return float(((wide * reference).sum(axis=-1) / lengths).min())


def share(error: float, scale: float) -> float:
    """Return an error relative to a scale, infinite if that is 0 and the error is not."""
    if error == 0:
        return 0.0
    return float(error / scale) if scale else math.inf


def _scale(values: np.ndarray) -> float:
    finite = values[np.isfinite(values)].astype(np.float64)
    if not finite.size:
        return 0.0
    return float(finite.max() - finite.min()) or float(np.abs(finite).max())
