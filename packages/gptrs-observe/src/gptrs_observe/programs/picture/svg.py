"""The picture of a program as SVG."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from gptrs.ir.program import Program
from gptrs_observe.programs.diagram import Diagram, DiagramNode, NodeKind, diagrams_of
from gptrs_observe.programs.picture.layout import (
    FONT_SIZE,
    LINE,
    PADDING,
    Box,
    Placed,
    Point,
    place,
)

MAX_DRAWN = 1000
"""Most boxes in an SVG picture; a larger one is unreadable."""
_MARGIN = 12
_PANEL_GAP = 24
_COLORS: dict[NodeKind, tuple[str, str]] = {
    "parameter": ("#e3f1e3", "#3f8f4f"),
    "constant": ("#f1efe6", "#8a8064"),
    "instruction": ("#ffffff", "#5b6b7d"),
    "result": ("#e2ecf9", "#3a6fb0"),
}
"""Fill and border of each kind of box."""
_STYLE = (
    "text { font-family: 'DejaVu Sans Mono', Menlo, Consolas, monospace; "
    f"font-size: {FONT_SIZE}px; fill: #1d2733 }}"
    " .title { font-weight: bold } .detail { fill: #6b7684 } .type { fill: #2f5d94 }"
    " .name { font-weight: bold; fill: #6b7684 }"
    " .arrow { fill: none; stroke: #7b8794; stroke-width: 1.2 }"
)


def notebook_picture(program: Program) -> str | None:
    """Return the picture of a program; None if it has more than `MAX_DRAWN` boxes."""
    diagrams = diagrams_of(program)
    if sum(diagram.size() for diagram in diagrams) > MAX_DRAWN:
        return None
    return to_svg(diagrams)


def to_svg(diagrams: Sequence[Diagram]) -> str:
    """Return an SVG document with a panel for each diagram, one below the other."""
    panels: list[Placed] = []
    y = float(_MARGIN)
    for diagram in diagrams:
        panels.append(place(diagram, _MARGIN, y))
        y += panels[-1].height + _PANEL_GAP
    width = max((panel.width for panel in panels), default=0) + 2 * _MARGIN
    height = y - _PANEL_GAP + _MARGIN
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}">'
    )
    lines = [
        head,
        f"<style>{_STYLE}</style>",
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" '
        'markerHeight="7" orient="auto"><path d="M0,1 L7,4 L0,7 z" fill="#7b8794"/></marker>'
        "</defs>",
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="#ffffff"/>',
    ]
    for panel in panels:
        lines += _panel(panel)
    return "\n".join([*lines, "</svg>", ""])


def _panel(panel: Placed) -> Iterator[str]:
    yield _rectangle(panel, "#f7f9fb", "#c3ccd6", 6)
    yield _text(panel.x + PADDING, panel.y + PADDING + FONT_SIZE, panel.name, "name")
    for points in panel.arrows:
        yield f'<path class="arrow" marker-end="url(#head)" d="{_curve(points)}"/>'
    for box in panel.boxes:
        yield from _node(box)


def _node(box: Box) -> Iterator[str]:
    node = box.node
    fill, border = _COLORS[node.kind]
    if node.share is not None and node.kind == "instruction":
        fill = _heat(node.share)
    rounding = 12 if node.kind in ("parameter", "result") else 3
    yield "<g>"
    yield f"<title>{escape(' '.join([node.title, *node.details]))}</title>"
    yield _rectangle(box, fill, border, rounding)
    x, y = box.x + box.width / 2, box.y + PADDING / 2 + FONT_SIZE
    for look, lines in (("title", (node.title,)), ("detail", node.details)):
        for line in lines:
            yield _text(x, y, line, look, centered=True)
            y += LINE
    y = box.y + box.height - PADDING / 2 - LINE * len(node.types) + FONT_SIZE
    for line in node.types:
        yield _text(x, y, line, "type", centered=True)
        y += LINE
    for region in box.regions:
        yield from _panel(region)
    yield "</g>"


def _heat(share: float) -> str:
    """Return white for no time, orange for all of it; small shares are distinguishable."""
    part = min(1.0, max(0.0, share)) ** 0.5
    low, high = (255, 255, 255), (240, 120, 40)
    return "#" + "".join(f"{round(a + (b - a) * part):02x}" for a, b in zip(low, high, strict=True))


def _rectangle(at: Box | Placed, fill: str, border: str, rounding: int) -> str:
    return (
        f'<rect x="{at.x:.1f}" y="{at.y:.1f}" width="{at.width:.1f}" height="{at.height:.1f}" '
        f'rx="{rounding}" fill="{fill}" stroke="{border}"/>'
    )


def _text(x: float, y: float, text: str, look: str, *, centered: bool = False) -> str:
    anchor = ' text-anchor="middle"' if centered else ""
    return f'<text class="{look}" x="{x:.1f}" y="{y:.1f}"{anchor}>{escape(text)}</text>'


def _curve(points: Sequence[Point]) -> str:
    """Return a path: straight within a row, an S from one row to the next."""
    x, y = points[0]
    parts = [f"M{x:.1f},{y:.1f}"]
    for position, (to_x, to_y) in enumerate(points[1:]):
        if (to_x, to_y) == (x, y):
            continue  # an arrowhead takes its direction from the last piece
        if position % 2 == 0:
            parts.append(f"L{to_x:.1f},{to_y:.1f}")
        else:
            middle = (y + to_y) / 2
            parts.append(f"C{x:.1f},{middle:.1f} {to_x:.1f},{middle:.1f} {to_x:.1f},{to_y:.1f}")
        x, y = to_x, to_y
    return " ".join(parts)


# The picture of a program in the DOT language of Graphviz.


_LOOKS: dict[NodeKind, str] = {
    "parameter": 'style="rounded,filled", fillcolor="#e3f1e3"',
    "constant": 'style="filled", fillcolor="#f1efe6"',
    "instruction": 'style="filled", fillcolor="#ffffff"',
    "result": 'style="rounded,filled", fillcolor="#e2ecf9"',
}
_SPECIAL = re.compile(r'(["\\])')


def to_dot(diagrams: Sequence[Diagram]) -> str:
    """Return a digraph with a cluster for each diagram and each region of an instruction."""
    lines = [
        "digraph program {",
        "  compound=true;",
        '  node [shape=box, fontname="monospace", fontsize=10];',
        '  edge [color="#7b8794", arrowsize=0.7];',
    ]
    for position, diagram in enumerate(diagrams):
        lines += _cluster(diagram, f"f{position}", "  ")
    return "\n".join([*lines, "}", ""])


def _cluster(diagram: Diagram, prefix: str, indent: str) -> Iterator[str]:
    yield f'{indent}subgraph "cluster_{prefix}" {{'
    yield f"{indent}  label={_quoted([diagram.name])}; labeljust=l;"
    for position, node in enumerate(diagram.nodes):
        yield from _dot_node(node, f"{prefix}_n{position}", f"{indent}  ")
    for edge in diagram.edges:
        source, target = f"{prefix}_n{edge.source}", f"{prefix}_n{edge.target}"
        several = len(diagram.nodes[edge.source].types) > 1
        label = f' [taillabel="{edge.output}"]' if several else ""
        yield f'{indent}  "{source}" -> "{target}"{label};'
    yield f"{indent}}}"


def _dot_node(node: DiagramNode, name: str, indent: str) -> Iterator[str]:
    label = _quoted([node.title, *node.details, *node.types])
    here = f'{indent}"{name}" [label={label}, {_LOOKS[node.kind]}];'
    if not node.inner:
        yield here
        return
    # A box of Graphviz holds no graphs, so a cluster holds the box and its regions side by side.
    yield f'{indent}subgraph "cluster_{name}" {{'
    yield f'{indent}  label=""; style=dashed;'
    yield f"  {here}"
    for position, inner in enumerate(node.inner):
        yield from _cluster(inner, f"{name}_r{position}", f"{indent}  ")
    yield f"{indent}}}"


def _quoted(lines: Sequence[str]) -> str:
    return '"' + r"\n".join(_SPECIAL.sub(r"\\\1", line) for line in lines) + '"'
