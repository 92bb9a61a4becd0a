"""Summaries of hidden states: range, mean, spread, and the share of NaN and infinities."""

from __future__ import annotations

import numpy as np

from gptrs.ir.tensor_type import TensorType
from gptrs.quick_dataclass import dataclass
from gptrs_runtime.results import Number


@dataclass(frozen=True)
class StateSummary:
    """Statistics of one state, in f64 over its finite numbers; NaN where it has none.

    `type` is in IR syntax. `non_finite` is the share of NaN and infinities, `norm` the Euclidean
    length of the state as one vector.
    """

    name: str
    type: str
    mean: Number
    std: Number
    min: Number
    max: Number
    non_finite: Number
    norm: Number


def summarize(name: str, state: np.ndarray) -> StateSummary:
    """Return the statistics of `state`, a non-empty array of floats."""
    finite = state[np.isfinite(state)].astype(np.float64)
    values = finite if finite.size else np.array([np.nan])
    return StateSummary(
        name=name,
        type=str(TensorType.of(state)),
        mean=float(values.mean()),
        std=float(values.std()),
        min=float(values.min()),
        max=float(values.max()),
        non_finite=1 - finite.size / state.size,
        norm=float(np.sqrt(np.square(values).sum())),
    )
