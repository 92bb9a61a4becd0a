"""The outputs of the notebook of the docs, below the cells on its page of the site."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from doc_examples import find_blocks


def with_outputs(markdown: str, notebook: Path) -> str:
    """Return a page with what each of its Python blocks shows in `notebook`.

    Raises ValueError if the blocks of the page are not the code cells of the notebook.
    """
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    lines = markdown.splitlines()
    blocks = list(find_blocks(markdown))
    if ["\n".join(block.lines) for block in blocks] != ["".join(cell["source"]) for cell in code]:
        raise ValueError(f"{notebook.name} has other cells than its page: run tools/notebook.py")
    for block, cell in reversed(list(zip(blocks, code, strict=True))):
        at = block.start + len(block.lines)
        lines[at:at] = [line for output in cell["outputs"] for line in ("", *_shown(output))]
    return "\n".join(lines) + "\n"


def _shown(output: dict[str, Any]) -> list[str]:
    """Return the lines of an output: its HTML or picture, as in notebooks, or else its text."""
    data = output.get("data", {})
    rich = data.get("text/html") or data.get("image/svg+xml")
    if rich:
        # Markdown leaves HTML alone that is one line, whatever it contains.
        return ["<div>" + "".join(rich).replace("\n", "&#10;") + "</div>"]
    text = "".join(output.get("text") or data["text/plain"])
    return ["```text", *text.rstrip("\n").splitlines(), "```"]
