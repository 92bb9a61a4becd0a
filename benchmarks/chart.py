"""Draws how many times as fast as each peer we are."""

from __future__ import annotations

from pathlib import Path

import matplotlib
from matplotlib import pyplot


def draw(path: Path, result: dict[str, object]) -> None:
    """Write a PNG with a bar for each row that has a ratio, and a line at 1."""
    matplotlib.use("Agg")
    rows = [row for row in result["rows"] if row["ratio"] is not None][::-1]
    labels = [f"{row['work']}, {row['threads']} threads, vs {row['peer_name']}" for row in rows]
    ratios = [row["ratio"] for row in rows]
    figure, axes = pyplot.subplots(figsize=(9, 0.4 * len(rows) + 1.5))
    bars = axes.barh(labels, ratios, color=["#2a7" if ratio >= 1 else "#c55" for ratio in ratios])
    axes.bar_label(bars, [f"{ratio:.2f}x" for ratio in ratios], padding=3)
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("times as fast as the peer")
    axes.set_title(f"{result['machine']['processor']}, {result['date']}")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
