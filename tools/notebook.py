"""Write `docs/assets/notebooks.ipynb`: the page `docs/notebooks.md` as a notebook with its outputs.

python tools/notebook.py
"""

from __future__ import annotations

import ast
import io
import json
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Final

from doc_examples import find_blocks

DOCS: Final = Path(__file__).parents[1] / "docs"
PAGE: Final = DOCS / "notebooks.md"
NOTEBOOK: Final = DOCS / "assets" / "notebooks.ipynb"
_LINK: Final = " This page is [a notebook](assets/notebooks.ipynb), too."


class _Printer:
    """What IPython passes to `_repr_pretty_`, as far as ours use it."""

    def __init__(self) -> None:
        self.shown = ""

    def text(self, text: str) -> None:
        self.shown += text


def cells() -> list[dict[str, Any]]:
    """Return the cells of the page, without outputs."""
    return [_cell(kind, source) for kind, source in _parts(PAGE.read_text(encoding="utf-8"))]


def run(made: list[dict[str, Any]]) -> None:
    """Run the cells in order, and give each its output."""
    names: dict[str, Any] = {}
    count = 0
    for cell in made:
        if cell["cell_type"] == "code":
            count += 1
            cell["execution_count"] = count
            cell["outputs"] = list(_outputs("".join(cell["source"]), names, count))


def _parts(text: str) -> Iterator[tuple[str, str]]:
    """Yield prose and Python of a page in turn."""
    lines = text.replace(_LINK, "").splitlines()
    at = 0
    for block in find_blocks(text):
        yield "markdown", "\n".join(lines[at : block.start - 2]).strip("\n")
        yield "code", "\n".join(block.lines)
        at = block.start + len(block.lines)
    rest = "\n".join(lines[at:]).strip("\n")
    if rest:
        yield "markdown", rest


def _cell(kind: str, source: str) -> dict[str, Any]:
    lines = source.splitlines(keepends=True)
    cell = {"cell_type": kind, "metadata": {}, "source": lines}
    return cell | ({"execution_count": None, "outputs": []} if kind == "code" else {})


def _outputs(source: str, names: dict[str, Any], count: int) -> Iterator[dict[str, Any]]:
    tree = ast.parse(source)
    last = tree.body[-1]
    if isinstance(last, ast.Expr):
        del tree.body[-1]
    with redirect_stdout(io.StringIO()) as printed:
        exec(compile(tree, "<cell>", "exec"), names)
        value = None
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
    if printed.getvalue():
        yield {"output_type": "stream", "name": "stdout", "text": printed.getvalue()}
    if value is not None:
        yield {
            "output_type": "execute_result",
            "execution_count": count,
            "metadata": {},
            "data": _shown(value),
        }


def _shown(value: object) -> dict[str, str]:
    """Return what a notebook shows of a value, by media type."""
    printer = _Printer()
    pretty = getattr(value, "_repr_pretty_", None)
    if pretty is None:
        printer.text(repr(value))
    else:
        pretty(printer, False)
    found = {"text/plain": printer.shown}
    for name, media in (("_repr_html_", "text/html"), ("_repr_svg_", "image/svg+xml")):
        if hasattr(value, name):
            found[media] = getattr(value, name)()
    return found


def main() -> None:
    """Write the notebook."""
    made = cells()
    run(made)
    language = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    whole = {"cells": made, "metadata": language, "nbformat": 4, "nbformat_minor": 4}
    NOTEBOOK.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
