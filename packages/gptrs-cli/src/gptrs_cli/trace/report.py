"""The reports of `gptrs trace`: values, the logit lens, and a comparison, as tables or JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gptrs.quick_dataclass import dataclass
from gptrs_cli.terminal.stderr import printable
from gptrs_cli.terminal.tables import print_table
from gptrs_observe.compare.state_summary import StateSummary, summarize
from gptrs_observe.compare.trace_comparison import TraceComparison
from gptrs_observe.results import ComparedTrace, ComparedValue
from gptrs_observe.traced_values import LensToken

_SUMMARY = ("state", "mean", "std", "min", "max", "non-finite", "norm", "type")
_COMPARISON = ("state", "largest error", "mean error", "", "type")
_SHOWN = 4
"""Tokens of a state in a table."""


@dataclass(frozen=True)
class Traced:
    """The values of a run by name, and what was made of them."""

    values: Mapping[str, np.ndarray]
    seconds: float
    lens: Mapping[str, Sequence[LensToken]]
    comparison: TraceComparison | None

    def summaries(self) -> list[StateSummary]:
        """Return the statistics of each value."""
        return [summarize(name, value) for name, value in self.values.items()]


def print_traced(traced: Traced) -> None:
    """Print tables: the comparison if there is one, else the statistics; then the logit lens."""
    if traced.comparison is None:
        print_table(_SUMMARY, [_cells(summary) for summary in traced.summaries()])
    else:
        _print_comparison(traced.comparison)
    if traced.lens:
        print()
        most = min(_SHOWN, max(map(len, traced.lens.values())))
        columns = ("state", *(f"token {number}" for number in range(1, most + 1)))
        rows = [
            [name, *(_token(token) for token in tokens[:most])]
            for name, tokens in traced.lens.items()
        ]
        print_table(columns, rows)


def _print_comparison(comparison: TraceComparison) -> None:
    rows = [
        [
            value.name,
            f"{value.relative_max_error:.2e}",
            f"{value.relative_mean_error:.2e}",
            "" if comparison.holds(value) else "differs",
            value.type,
        ]
        for value in comparison.values
    ]
    print_table(_COMPARISON, rows)
    first = comparison.first_mismatch
    if first is None:
        print(f"\nall {len(comparison.values)} agree to {comparison.tolerance:g} of their range")
    else:
        print(f"\nthe first that differs by more than {comparison.tolerance:g}: {first.name}")
    if comparison.alone:
        print(f"{len(comparison.alone)} have no counterpart, such as {comparison.alone[0]}")


def _token(token: LensToken) -> str:
    shown = str(token.token) if token.text is None else printable(repr(token.text))
    return f"{shown} {token.probability:.0%}"


def _cells(summary: StateSummary) -> list[str]:
    numbers = (summary.mean, summary.std, summary.min, summary.max)
    return [
        summary.name,
        *(f"{number:.4g}" for number in numbers),
        f"{summary.non_finite:.2%}" if summary.non_finite else "0",
        f"{summary.norm:.4g}",
        summary.type,
    ]


def told_comparison(comparison: TraceComparison) -> ComparedTrace:
    """Return a comparison as results tell it."""
    first = comparison.first_mismatch
    return ComparedTrace(
        tolerance=comparison.tolerance,
        agrees=first is None,
        first_mismatch=None if first is None else first.name,
        without_counterpart=list(comparison.alone),
        values=[
            ComparedValue(
                name=value.name,
                type=value.type,
                max_error=value.relative_max_error,
                mean_error=value.relative_mean_error,
                agrees=comparison.holds(value),
            )
            for value in comparison.values
        ],
    )
