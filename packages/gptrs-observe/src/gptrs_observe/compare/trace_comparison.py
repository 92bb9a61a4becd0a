"""Values of a run beside those of another one: where do they begin to differ?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gptrs.errors import UsageError
from gptrs.quick_dataclass import dataclass
from gptrs.quoting import listed
from gptrs_observe.compare.agreement import Agreement, agreement


@dataclass(frozen=True, slots=True)
class TraceComparison:
    """The agreement of each value that both have, in the order of computation."""

    tolerance: float
    """Largest error that is right, as a share of the range of the reference."""
    values: tuple[Agreement, ...]
    alone: tuple[str, ...]
    """Values that the other one does not have."""

    def holds(self, value: Agreement) -> bool:
        """Return whether all errors are within the tolerance."""
        return value.relative_max_error <= self.tolerance

    @property
    def first_mismatch(self) -> Agreement | None:
        """The first value beyond the tolerance."""
        return next((value for value in self.values if not self.holds(value)), None)

    def up_to_mismatch(self) -> TraceComparison:
        """Return it without what comes after the first mismatch."""
        first = self.first_mismatch
        if first is None:
            return self
        kept = self.values[: self.values.index(first) + 1]
        return TraceComparison(self.tolerance, kept, self.alone)


def compare_traces(
    ours: Mapping[str, np.ndarray], theirs: Mapping[str, np.ndarray], tolerance: float
) -> TraceComparison:
    """Compare values by name; UsageError if there is none in common, ModelError for other shapes.

    Images inside of our models have their channels last; they are compared as others have them.
    """
    common = [name for name in ours if name in theirs]
    if not common:
        raise UsageError(
            f"nothing to compare: none of {listed(ours)} is among {listed(theirs)}",
            hint="trace the same modules in both runs",
        )
    values = [
        agreement(name, _aligned(ours[name], theirs[name].shape), theirs[name]) for name in common
    ]
    alone = tuple(name for name in ours if name not in theirs)
    return TraceComparison(tolerance, tuple(values), alone)


def _aligned(value: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if value.shape != shape and value.ndim == 4:
        channels_first = np.moveaxis(value, -1, 1)
        return channels_first if channels_first.shape == shape else value
    return value
