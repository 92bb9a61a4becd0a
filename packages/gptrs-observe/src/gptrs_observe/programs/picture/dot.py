"""The picture of a program in the DOT language of Graphviz."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from gptrs_observe.programs.diagram import Diagram, DiagramNode, NodeKind

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
        yield from _node(node, f"{prefix}_n{position}", f"{indent}  ")
    for edge in diagram.edges:
        source, target = f"{prefix}_n{edge.source}", f"{prefix}_n{edge.target}"
        several = len(diagram.nodes[edge.source].types) > 1
        label = f' [taillabel="{edge.output}"]' if several else ""
        yield f'{indent}  "{source}" -> "{target}"{label};'
    yield f"{indent}}}"


def _node(node: DiagramNode, name: str, indent: str) -> Iterator[str]:
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
