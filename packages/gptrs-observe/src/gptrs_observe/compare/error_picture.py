"""The picture of error by depth: a bar for each value of a run, in the order of computation."""

from __future__ import annotations

import math
from html import escape

from gptrs.quoting import clipped
from gptrs_observe.compare.validation import TraceComparison

_STEP, _HEIGHT, _LEFT, _TOP = 18, 260, 70, 30
_LONGEST = 60
_LEAST = 1e-9
"""Errors below are drawn as this."""
_STYLE = (
    ":root{color-scheme:light dark}text{font:11px system-ui,sans-serif;fill:#1d2733}"
    ".ground{fill:#fff}.grid{stroke:#d4dbe2}.good{fill:#2f6fb7}.bad{fill:#c2484d}"
    ".limit{stroke:#d9822b;stroke-width:2;stroke-dasharray:5 4}"
    "@media(prefers-color-scheme:dark){.ground{fill:#14181d}text{fill:#e4e9ee}"
    ".grid{stroke:#36404a}.good{fill:#6aa7ec}.bad{fill:#ec7d82}}"
)


def error_picture(comparison: TraceComparison) -> str:
    """Return an SVG: the largest error of each value as a share of its range, logarithmic.

    Bars beyond the tolerance, a dashed line, are red.
    """
    values = comparison.values
    width = max(_LEFT + _STEP * len(values) + 30, 320)
    longest = max(len(clipped(value.name, _LONGEST)) for value in values)
    height = _TOP + _HEIGHT + 7 * longest + 20
    errors = [min(max(value.relative_max_error, _LEAST), 1e3) for value in values]
    drawn = [*errors, comparison.tolerance or _LEAST]
    low = math.floor(math.log10(min(drawn)))
    high = max(math.ceil(math.log10(max(drawn))), low + 1)

    def y(error: float) -> float:
        part = (math.log10(max(error, 10.0**low)) - low) / (high - low)
        return _TOP + (1 - part) * _HEIGHT

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        f' width="{width}" height="{height}"><style>{_STYLE}</style>',
        f'<rect class="ground" width="{width}" height="{height}"/>',
        f'<text x="{_LEFT}" y="14">largest error, as a share of the range</text>',
    ]
    for power in range(low, high + 1):
        at = y(10.0**power)
        lines.append(
            f'<line class="grid" x1="{_LEFT}" x2="{width - 20}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">1e{power}</text>'
        )
    for index, (value, error) in enumerate(zip(values, errors, strict=True)):
        x, top = _LEFT + index * _STEP + 4, y(error)
        look = "good" if comparison.holds(value) else "bad"
        name = escape(clipped(value.name, _LONGEST))
        lines.append(
            f'<rect class="{look}" x="{x}" y="{top:.1f}" width="{_STEP - 6}"'
            f' height="{max(_TOP + _HEIGHT - top, 1):.1f}"><title>{name}:'
            f" {value.relative_max_error:.3g}</title></rect>"
            f'<text transform="translate({x + 2},{_TOP + _HEIGHT + 8}) rotate(90)">{name}</text>'
        )
    if comparison.tolerance:
        at = y(comparison.tolerance)
        lines.append(
            f'<line class="limit" x1="{_LEFT}" x2="{width - 20}" y1="{at:.1f}" y2="{at:.1f}"/>'
        )
    return "\n".join([*lines, "</svg>", ""])
