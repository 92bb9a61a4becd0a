"""The roofline of a profile (Williams et al. 2009): the speed of kernels and their limits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from gptrs.quoting import clipped
from gptrs_observe.measure.step_work import MachineLimits
from gptrs_observe.profile import KernelTotals
from gptrs_observe.profile_report.colors import OTHER
from gptrs_observe.programs.op_work import kernel_name

_WIDTH, _HEIGHT = 900, 380
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 20, 16, 46
_MOST = 40
Named = tuple[tuple[str, str], KernelTotals]


def roofline(kernels: Sequence[Named], limits: MachineLimits, colors: Mapping[str, int]) -> str:
    """Return an SVG with a dot for each kernel whose work is known, "" if there is none.

    Both axes are logarithmic: operations for each byte, and 10^9 operations a second. The area of a
    dot is its share of the time.
    """
    known = [
        (key, totals, x, y)
        for key, totals in kernels[:_MOST]
        if (x := totals.operations_per_byte) and (y := totals.gflop_per_s)
    ]
    if not known:
        return ""
    ridge = limits.gflop_per_s / limits.read_gb_per_s
    xs, ys = [x for _, _, x, _ in known], [y for _, _, _, y in known]
    scale = _Scale(
        (min(*xs, ridge) / 2, max(*xs, ridge) * 4), (min(ys) / 2, limits.gflop_per_s * 2)
    )
    total = sum(totals.seconds for _, totals, _, _ in known)
    lines = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="Roofline of the kernels">',
        *scale.grid(),
        *_roof(scale, limits, ridge),
    ]
    for (kernel, operands), totals, x, y in known:
        name = kernel_name(kernel)
        share = totals.seconds / total
        shown = escape(clipped(f"{name}: {operands}", 200))
        lines.append(
            f'<circle class="point k{colors.get(name, OTHER)}" cx="{scale.x(x):.1f}"'
            f' cy="{scale.y(y):.1f}" r="{3 + 14 * math.sqrt(share):.1f}"><title>{shown}:'
            f" {y:.2f} GFLOP/s, {totals.gb_per_s or 0.0:.1f} GB/s, {share:.1%} of the"
            " time</title></circle>"
        )
    return "".join([*lines, "</svg>"])


class _Scale:
    """Where figures lie in the picture."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float]) -> None:
        self.left, self.right = x
        self.low = y[0]
        self._x = math.log10(x[0]), math.log10(x[1])
        self._y = math.log10(y[0]), math.log10(y[1])

    def x(self, value: float) -> float:
        low, high = self._x
        return _LEFT + (math.log10(value) - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def y(self, value: float) -> float:
        low, high = self._y
        part = (math.log10(value) - low) / (high - low)
        return _HEIGHT - _BOTTOM - part * (_HEIGHT - _TOP - _BOTTOM)

    def grid(self) -> Iterator[str]:
        """Yield a line and a number for each power of ten, and the names of the axes."""
        bottom, left = _HEIGHT - _BOTTOM, _LEFT
        for power in range(math.ceil(self._x[0]), math.floor(self._x[1]) + 1):
            at = self.x(10**power)
            yield f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{bottom}"/>'
            yield _label(at, bottom + 18, f"{10**power:g}", "middle")
        for power in range(math.ceil(self._y[0]), math.floor(self._y[1]) + 1):
            at = self.y(10**power)
            right = _WIDTH - _RIGHT
            yield f'<line class="grid" x1="{left}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>'
            yield _label(left - 8, at + 4, f"{10**power:g}", "end")
        yield _label(_WIDTH - _RIGHT, bottom + 36, "operations a byte", "end")
        yield _label(left - 8, _TOP - 4, "GFLOP/s", "end")


def _roof(scale: _Scale, limits: MachineLimits, ridge: float) -> Iterator[str]:
    peak = limits.gflop_per_s
    start = max(scale.left, scale.low / limits.read_gb_per_s)
    points = [(start, start * limits.read_gb_per_s), (ridge, peak), (scale.right, peak)]
    path = " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in points)
    yield f'<polyline class="roof" points="{path}"/>'
    yield _label(scale.x(scale.right) - 4, scale.y(peak) - 7, f"{peak:.0f} GFLOP/s", "end")
    middle = math.sqrt(start * ridge)
    at = scale.x(middle) - 8, scale.y(middle * limits.read_gb_per_s) - 8
    yield _label(*at, f"memory, {limits.read_gb_per_s:.1f} GB/s", "end")


def _label(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text class="dim" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{text}</text>'
