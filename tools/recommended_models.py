"""Write `docs/which_model.md` from the list of `gptrs models recommended`.

python tools/recommended_models.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gptrs_cli.inspect.checkpoint import byte_size
from gptrs_runtime.sources.recommended import recommended

PAGE: Final = Path(__file__).parents[1] / "docs" / "which_model.md"
HEAD: Final = """# Which model to take

<!-- search: recommended, best, small models -->

Small open models of the Hugging Face hub to begin with, for a laptop without a GPU. `gptrs models
recommended` prints this list. Every command takes the short name: `gptrs run smollm2` fetches the
model when it is first used. gptrs reads many more: see [the kinds of models](kinds.md) and, for
GGUF files of the hub, [Formats](formats.md#the-hugging-face-hub).

Parameters and licenses are those of the model cards. The size is that of the weights, on disk and
in memory; the context of a text comes on top. `--weights q8` or `q4` takes less memory.
`gptrs models pull NAME` fetches a model before it is needed.

This page is written by tools/recommended_models.py.
"""


def page_text() -> str:
    """Return the whole page."""
    lines = [HEAD.rstrip()]
    models = recommended()
    for task in dict.fromkeys(each.task for each in models):
        lines += ["", f"## {task.capitalize()}", ""]
        lines += [
            "| short | model | parameters | size | license | for |",
            "|---|---|---|---|---|---|",
        ]
        found = [each for each in models if each.task == task]
        for each in found:
            size, memory = each.parameters_shown, byte_size(each.nbytes)
            cells = (f"`{each.short}`", f"`{each.name}`", size, memory, each.license, each.about)
            lines.append(f"| {' | '.join(cells)} |")
        lines += ["", "```sh", *(each.example for each in found), "```"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page_text(), encoding="utf-8")
