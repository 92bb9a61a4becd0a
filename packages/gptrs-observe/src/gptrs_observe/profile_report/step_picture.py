"""The timeline of one typical run: its layers above, its kernels below."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import groupby

from gptrs.quick_dataclass import dataclass
from gptrs.quoting import clipped
from gptrs_observe.profile import Profile
from gptrs_observe.profile_report.colors import OTHER
from gptrs_observe.programs.op_names import kernel_name
from gptrs_observe.timeline import Interval

_WIDTH, _HEIGHT, _TOP, _ROW = 900, 112, 8, 34
_MOST = 1200
"""Kernels that are drawn; there are more in trace.json."""
_LETTER = 6.4


@dataclass(frozen=True, slots=True)
class StepRun:
    """A run of a program, and its kernels in order."""

    run: Interval
    kernels: Sequence[Interval]


def typical_step(profile: Profile, program: int | None) -> StepRun | None:
    """Return the run of `program` that took the median time; None if no kernel of it is known.

    The first run is not chosen if there are others: it also reads and packs weights.
    """
    runs = [i for i in profile.timeline.intervals if i.kind == "run" and i.program == program]
    ordered = sorted(runs[1:] or runs, key=lambda run: run.seconds)
    if not ordered:
        return None
    run = ordered[len(ordered) // 2]
    end = run.started + run.seconds
    kernels = [
        i
        for i in profile.timeline.intervals
        if i.kind == "kernel" and i.program == program and run.started <= i.started <= end
    ]
    return StepRun(run, kernels) if kernels else None


def step_picture(step: StepRun, colors: Mapping[str, int]) -> str:
    """Return the SVG of a step."""
    lines = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="Kernels of a step in time">',
        f'<rect class="track" width="{_WIDTH}" height="{_ROW}" y="{_TOP + _ROW + 4}"/>',
        *_layers(step),
    ]
    for kernel in step.kernels[:_MOST]:
        name = kernel_name(kernel.name)
        x, width = _place(step, kernel.started, kernel.seconds)
        told = escape(clipped(f"{name}: {kernel.detail}", 160))
        lines.append(
            f'<rect class="k{colors.get(name, OTHER)}" x="{x:.2f}" y="{_TOP + _ROW + 4}"'
            f' width="{max(width, 0.5):.2f}" height="{_ROW}"><title>{escape(kernel.layer)} {told},'
            f" {1e6 * kernel.seconds:.1f} µs</title></rect>"
        )
    lines += _axis(step)
    return "".join([*lines, "</svg>"])


def _layers(step: StepRun) -> Iterator[str]:
    for number, (layer, group) in enumerate(groupby(step.kernels, key=lambda each: each.layer)):
        kernels = list(group)
        start, last = kernels[0].started, kernels[-1]
        x, width = _place(step, start, last.started + last.seconds - start)
        yield (
            f'<rect class="band{number % 2}" x="{x:.2f}" y="{_TOP}" width="{max(width, 0.5):.2f}"'
            f' height="{_ROW}"><title>{escape(clipped(layer, 100)) or "no layer"}</title></rect>'
        )
        shown = ".".join(layer.rsplit(".", 2)[-2:])
        if len(shown) * _LETTER < width:
            yield (
                f'<text class="tag" x="{x + width / 2:.1f}" y="{_TOP + _ROW / 2 + 4}"'
                f' text-anchor="middle">{escape(shown)}</text>'
            )


def _axis(step: StepRun) -> Iterator[str]:
    bottom = _TOP + 2 * _ROW + 4
    for part in range(5):
        x = part / 4 * _WIDTH
        anchor = "start" if part == 0 else "end" if part == 4 else "middle"
        yield (
            f'<text class="dim" x="{x:.0f}" y="{bottom + 18}" text-anchor="{anchor}">'
            f"{1000 * step.run.seconds * part / 4:.2f} ms</text>"
        )


def _place(step: StepRun, started: float, seconds: float) -> tuple[float, float]:
    scale = _WIDTH / step.run.seconds
    return (started - step.run.started) * scale, seconds * scale
