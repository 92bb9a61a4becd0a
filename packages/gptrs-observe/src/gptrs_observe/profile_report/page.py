"""The page itself: the verdict first, then the figures that lead to it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any, cast

from msgspec import Struct

from gptrs.quoting import clipped
from gptrs_observe.measure.step_work import MachineLimits
from gptrs_observe.profile import KernelTotals, Profile
from gptrs_observe.profile_document import profile_document
from gptrs_observe.profile_report.colors import OTHER, kernel_colors
from gptrs_observe.profile_report.roofline import Named, roofline
from gptrs_observe.programs.op_work import kernel_name
from gptrs_observe.timeline import Interval
from gptrs_observe.verdict import all_kernels, verdict_of
from gptrs_runtime.text_batches import shown_bytes

# The style of the page, light and dark, and the policy that admits nothing else.


STYLE = """
:root { color-scheme: light dark; --ground: #fff; --panel: #f6f8fa; --ink: #1d2733; --dim: #5c6975;
  --line: #d4dbe2; --k0: #2f6fb7; --k1: #d9822b; --k2: #3c8f4f; --k3: #8d5bb5; --k4: #c2484d;
  --k5: #23919a; --k6: #8b7a1e; --k7: #7d8894; --roof: #1d2733 }
@media (prefers-color-scheme: dark) { :root { --ground: #14181d; --panel: #1d232a; --ink: #e4e9ee;
  --dim: #9aa7b4; --line: #36404a; --k0: #6aa7ec; --k1: #eda354; --k2: #6cc180; --k3: #ba91de;
  --k4: #ec7d82; --k5: #59c3cc; --k6: #c9b651; --k7: #94a0ac; --roof: #e4e9ee } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 70rem; padding: 1.5rem; background: var(--ground);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif }
h1 { font-size: 1.3rem; margin: 0 } h2 { font-size: 1.05rem; margin: 2.2rem 0 .5rem }
p { margin: .3rem 0 } .dim, figcaption { color: var(--dim) } figure { margin: 0 }
.verdict { background: var(--panel); border-left: 4px solid var(--k0); border-radius: 4px;
  padding: .8rem 1.1rem; margin: 1rem 0 } .verdict p:first-child { font-size: 1.15rem }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .6rem }
.facts div { background: var(--panel); border-radius: 4px; padding: .5rem .8rem }
.facts b { display: block; font-size: 1.25rem } .facts span { color: var(--dim); font-size: 13px }
.wide { overflow-x: auto; border: 1px solid var(--line); border-radius: 4px }
table { border-collapse: collapse; width: 100%; font-size: 13px }
th, td { padding: .25rem .6rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line) }
tr:last-child td { border-bottom: 0 } th { color: var(--dim); font-weight: 500 }
.text { text-align: left } .ops { font: 12px ui-monospace, monospace; white-space: normal;
  min-width: 16rem; overflow-wrap: anywhere }
svg { display: block; width: 100%; height: auto } svg.bar { width: 7rem; height: .7rem }
.scroll { overflow-x: auto } .scroll svg { min-width: 44rem }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif } svg .dim { fill: var(--dim) }
.grid { stroke: var(--line) } .roof { stroke: var(--roof); fill: none; stroke-width: 2 }
.track { fill: var(--panel) } .band0 { fill: var(--panel) } .band1 { fill: var(--line) }
.k0 { fill: var(--k0) } .k1 { fill: var(--k1) } .k2 { fill: var(--k2) } .k3 { fill: var(--k3) }
.k4 { fill: var(--k4) } .k5 { fill: var(--k5) } .k6 { fill: var(--k6) } .k7 { fill: var(--k7) }
.point { fill-opacity: .75 } svg text.tag { font-size: 11px }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; font-size: 13px }
.legend svg { display: inline-block; width: .7rem; height: .7rem; margin-right: .35rem }
@media print { body { max-width: none } }
"""


def content_policy() -> str:
    """Return a Content-Security-Policy that admits this style, and nothing from anywhere."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


# The timeline of one typical run: its layers above, its kernels below.


_WIDTH, _HEIGHT, _TOP, _ROW = 900, 112, 8, 34
_MOST = 1200
"""Kernels that are drawn; there are more in trace.json."""
_LETTER = 6.4


class StepRun(Struct, frozen=True):
    """A run of a program, and its kernels in order."""

    run: Interval
    kernels: Sequence[Interval]


def typical_step(profile: Profile, program: int | None) -> StepRun | None:
    """Return the run of `program` with the median time; None if no kernel of it is known.

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
        *_layer_rows(step),
    ]
    for kernel in step.kernels[:_MOST]:
        name = kernel_name(kernel.name)
        x, width = _span(step, kernel.started, kernel.seconds)
        told = escape(clipped(f"{name}: {kernel.detail}", 160))
        lines.append(
            f'<rect class="k{colors.get(name, OTHER)}" x="{x:.2f}" y="{_TOP + _ROW + 4}"'
            f' width="{max(width, 0.5):.2f}" height="{_ROW}"><title>{escape(kernel.layer)} {told},'
            f" {1e6 * kernel.seconds:.1f} µs</title></rect>"
        )
    lines += _axis(step)
    return "".join([*lines, "</svg>"])


def _layer_rows(step: StepRun) -> Iterator[str]:
    for number, (layer, group) in enumerate(groupby(step.kernels, key=lambda each: each.layer)):
        kernels = list(group)
        start, last = kernels[0].started, kernels[-1]
        x, width = _span(step, start, last.started + last.seconds - start)
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


def _span(step: StepRun, started: float, seconds: float) -> tuple[float, float]:
    scale = _WIDTH / step.run.seconds
    return (started - step.run.started) * scale, seconds * scale


MOST_ROWS = 80
"""Kernels and layers in a table; profile.json has them all."""
_MOST_TEXT = 240
"""Characters of a name out of a program."""
_KINDS = {
    "weights": "weights of the programs, as stored in the files",
    "donated": "donated and updated in place: the key/value cache",
    "arguments": "other arguments of a run, at most",
    "process_peak": "the most that the process has held in memory",
}
_CACHES = {
    "captures": "functions captured again",
    "programs_compiled": "programs compiled",
    "programs_optimized_before": "of them optimized by an earlier process, from disk",
    "kernels_compiled": "kernels compiled, since no cache had them",
    "kernels_installed": "kernels that were installed with the backend",
    "kernels_from_disk": "kernels from the cache on disk",
}


def report_page(profile: Profile, limits: MachineLimits | None, title: str = "") -> str:
    """Return the page as HTML; `title` describes the run."""
    document = cast("dict[str, Any]", profile_document(profile, limits))
    sections = [
        *_head(title, document),
        *_facts(document),
        *_wall(document),
        *_figures(profile, limits),
        *_layers(document["layers"]),
        *_kernels(all_kernels(profile)),
        *_programs(document["programs"]),
        *_pairs("Memory", document["memory"], _KINDS, shown_bytes),
        *_pairs("Compilation and caches", document["caches"], _CACHES, str),
        "</body></html>",
    ]
    return "\n".join(sections) + "\n"


def _head(title: str, document: Mapping[str, Any]) -> Iterator[str]:
    shown = _text(title) or "gptrs"
    yield "<!doctype html>"
    yield '<html lang="en"><head><meta charset="utf-8">'
    yield f'<meta http-equiv="Content-Security-Policy" content="{escape(content_policy())}">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield '<meta name="referrer" content="no-referrer">'
    yield f"<title>Profile: {shown}</title><style>{STYLE}</style></head><body>"
    yield f"<h1>Profile of <code>{shown}</code></h1>"
    yield (
        f'<p class="dim">{escape(str(document["started"]))}, {document["seconds"]:.2f} s,'
        f" gptrs {escape(str(document['gptrs']))}</p>"
    )
    sentences = "".join(f"<p>{escape(each)}</p>" for each in document["verdict"]["sentences"])
    yield f'<div class="verdict">{sentences}</div>'


def _facts(document: Mapping[str, Any]) -> Iterator[str]:
    verdict = document["verdict"]
    facts = {
        "tokens a second, profiled": _number(verdict["tokens_per_s"], "{:.1f}"),
        "of the memory's limit": _number(verdict["share_of_memory"], "{:.0%}"),
        "of the arithmetic's limit": _number(verdict["share_of_arithmetic"], "{:.0%}"),
        "of the wall time attributed": f"{document['attribution']['attributed']:.1%}",
    }
    shown = "".join(
        f"<div><b>{value}</b><span>{name}</span></div>" for name, value in facts.items() if value
    )
    yield f'<div class="facts">{shown}</div>'


def _wall(document: Mapping[str, Any]) -> Iterator[str]:
    rows = [
        (_text(part["name"]), _ms(part["seconds"]), f"{part['share']:.1%}", _bar(part["share"]),
         _text(part["meaning"]))
        for part in document["attribution"]["parts"]
        if part["share"] >= 0.0005 or part["name"] == "not attributed"
    ]  # fmt: skip
    yield "<h2>Where the time went</h2>"
    yield _table(("part", "ms", "share", "", "what it is"), rows, text=(0, 3, 4))


def _figures(profile: Profile, limits: MachineLimits | None) -> Iterator[str]:
    colors = kernel_colors(profile)
    verdict = verdict_of(profile, limits)
    step = typical_step(profile, verdict.program)
    drawn = "" if limits is None else roofline(all_kernels(profile), limits, colors)
    if step is None and not drawn:
        return
    legend = [*((name, color) for name, color in colors.items()), ("others", OTHER)]
    shown = "".join(
        f'<span><svg viewBox="0 0 9 9"><rect class="k{color}" width="9" height="9"/></svg>'
        f"{_text(name)}</span>"
        for name, color in legend
    )
    if step is not None:
        yield "<h2>A step in time</h2><figure>"
        yield f'<div class="scroll">{step_picture(step, colors)}</div>'
        yield f'<div class="legend">{shown}</div>'
        yield (
            f"<figcaption>A run of median time of program {verdict.program}: layers above, kernels"
            " below. What is empty was spent between kernels, mostly to time them.</figcaption>"
            "</figure>"
        )
    if drawn and limits is not None:
        yield f'<h2>Roofline</h2><figure><div class="scroll">{drawn}</div>'
        yield f'<div class="legend">{shown}</div>'
        yield (
            "<figcaption>A dot is a kernel on operands of certain shapes, its area the time that it"
            f" took. The line is what this machine does at most, as {_text(limits.measured_by)}"
            " measured it just after the run; caches can give more than memory.</figcaption>"
            "</figure>"
        )


def _layers(layers: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not any(layer["layer"] for layer in layers):
        return
    most = max((layer["share"] for layer in layers), default=1.0) or 1.0
    rows = [
        (_text(layer["layer"]) or "<i>no weights yet</i>", layer["calls"], _ms(layer["seconds"]),
         f"{layer['share']:.1%}", _bar(layer["share"] / most))
        for layer in layers[:MOST_ROWS]
    ]  # fmt: skip
    yield "<h2>Time by layer</h2>"
    yield "<p>In kernels. A kernel belongs to the layer whose weights were read last.</p>"
    yield _table(("layer", "kernels", "ms", "share", ""), rows, text=(0, 4))
    yield from _more(len(layers))


def _kernels(kernels: Sequence[Named]) -> Iterator[str]:
    yield "<h2>Time by kernel</h2>"
    if not kernels:
        yield "<p>The backend does not say what its kernels take.</p>"
        return
    total = sum(totals.seconds for _, totals in kernels) or 1.0
    most = kernels[0][1].seconds or 1.0
    rows = [_kernel(key, totals, total, most) for key, totals in kernels[:MOST_ROWS]]
    columns = ("kernel", "calls", "ms", "share", "", "GB/s", "GFLOP/s", "operands")
    yield _table(columns, rows, text=(0, 4, 7), ops=(7,))
    yield from _more(len(kernels))


def _kernel(
    key: tuple[str, str], totals: KernelTotals, total: float, most: float
) -> tuple[object, ...]:
    return (
        _text(kernel_name(key[0])),
        totals.calls,
        _ms(totals.seconds),
        f"{totals.seconds / total:.1%}",
        _bar(totals.seconds / most),
        _number(totals.gb_per_s, "{:.1f}"),
        _number(totals.gflop_per_s, "{:.1f}"),
        _text(key[1]),
    )


def _programs(programs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    rows = [
        (each["number"], _text(each["origin"]), _text(each["backend"]), each["runs"],
         _ms(each["seconds"]), _ms(each["compile_s"]),
         "from disk" if each["optimized_before"] else "now", _text(each["reason"]))
        for each in programs[:MOST_ROWS]
    ]  # fmt: skip
    yield "<h2>Programs</h2>"
    columns = ("", "asked for by", "backend", "runs", "ms", "compiled, ms", "optimized", "why")
    yield _table(columns, rows, text=(1, 2, 6, 7))
    yield from _more(len(programs))


def _pairs(
    title: str, values: Mapping[str, int], names: Mapping[str, str], show: Any
) -> Iterator[str]:
    yield f"<h2>{title}</h2>"
    rows = [(name, show(values[key])) for key, name in names.items() if values.get(key)]
    yield _table(("", ""), rows, text=(0,)) if rows else "<p>Nothing.</p>"


def _more(count: int) -> Iterator[str]:
    if count > MOST_ROWS:
        yield f'<p class="dim">{count - MOST_ROWS} more are in profile.json.</p>'


def _table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    text: Sequence[int],
    ops: Sequence[int] = (),
) -> str:
    classes = [
        " ".join(name for name, where in (("text", text), ("ops", ops)) if at in where)
        for at in range(len(columns))
    ]
    kinds = [f' class="{each}"' if each else "" for each in classes]
    head = "".join(f"<th{kind}>{name}</th>" for name, kind in zip(columns, kinds, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{k}>{cell}</td>" for cell, k in zip(row, kinds, strict=True))
        + "</tr>"
        for row in rows
    )
    headed = f"<tr>{head}</tr>" if any(columns) else ""
    return f'<div class="wide"><table>{headed}{body}</table></div>'


def _bar(share: float) -> str:
    width = max(0.0, min(1.0, share)) * 100
    return (
        '<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none"><rect class="track"'
        f' width="100" height="10"/><rect class="k0" width="{width:.1f}" height="10"/></svg>'
    )


def _text(value: object) -> str:
    return escape(clipped(str(value), _MOST_TEXT))


def _number(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.2f}"
