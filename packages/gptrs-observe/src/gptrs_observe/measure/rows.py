"""Seconds become figures: a row of a table, with rates and the share of what the machine can do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gptrs.quick_dataclass import dataclass
from gptrs_observe.measure.machine_limits import MachineLimits
from gptrs_observe.measure.step_work import WorkOfStep


@dataclass(frozen=True, slots=True)
class Row:
    """One figure of ours, and that of a peer that did the same work, alternating with us.

    `ratio` says how many times as fast we are. `share_of_limit` is that of the machine, for reading
    or for computing, whichever is closer; None where the work is not known.
    """

    work: str
    threads: int | None
    ours: float
    unit: str
    peer: float | None = None
    peer_name: str | None = None
    ratio: float | None = None
    share_of_limit: float | None = None
    gb_per_s: float | None = None
    """Weights read a second."""
    gflop_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Measure:
    """How the median seconds of a piece of work become a figure: as they are, or `units` of them.

    `step` is the work of one of the `steps` that it is made of.
    """

    work: str
    threads: int | None
    unit: str = "s"
    units: int | None = None
    steps: int = 1
    step: WorkOfStep | None = None

    def rows(self, seconds: Mapping[str, float], limits: MachineLimits | None = None) -> list[Row]:
        """Return our row, the first of `seconds`, beside each peer; alone without peers."""
        (_, ours), *peers = seconds.items()
        row = Row(self.work, self.threads, self._figure(ours), self.unit)
        if self.step is not None:
            row = _with_rates(row, self.step, self.steps / ours, limits)
        return [
            replace(row, peer=self._figure(theirs), peer_name=name, ratio=theirs / ours)
            for name, theirs in peers
        ] or [row]

    def _figure(self, seconds: float) -> float:
        return seconds if self.units is None else self.units / seconds


def _with_rates(
    row: Row, work: WorkOfStep, steps_per_s: float, limits: MachineLimits | None
) -> Row:
    read = steps_per_s * work.weight_bytes / 1e9
    computed = steps_per_s * work.operations / 1e9
    share = None
    if limits is not None:
        share = max(read / limits.read_gb_per_s, computed / limits.gflop_per_s)
    return replace(row, gb_per_s=read, gflop_per_s=computed, share_of_limit=share)
