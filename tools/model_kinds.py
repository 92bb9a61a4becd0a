"""Write `docs/kinds.md` and the table in the README of `gptrs-models` from the table of kinds.

python tools/model_kinds.py
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gptrs.api import ModelPlugin
from gptrs_models.kinds import KINDS

ROOT: Final = Path(__file__).parents[1]
PAGE: Final = ROOT / "docs" / "kinds.md"
README: Final = ROOT / "packages" / "gptrs-models" / "README.md"
START, END = "<!-- written by tools/model_kinds.py -->", "<!-- end -->"
HEAD: Final = """# Supported models: the kinds

<!-- search: architectures -->

The kinds of models that gptrs runs, by the `model_type` of config.json. `gptrs list models --all`
also lists known but unsupported kinds, and those of other packages. [Add a kind of
model](recipes/add_a_model_kind.md) shows how to add one. From the multimodal models under the last
heading, gptrs loads only the language model; a note says that they read text only. The last column
lists the `general.architecture` of GGUF files, and the architectures of timm that belong to the
kind (most of those that match a wildcard).

This page is written by tools/model_kinds.py.
"""


def page_text() -> str:
    """Return the whole page."""
    lines = [HEAD, f"There are {sum(len(family.kinds) for family in KINDS)} kinds."]
    for heading in dict.fromkeys(family.heading for family in KINDS):
        plugins = [
            each for family in KINDS if family.heading == heading for each in family.plugins()
        ]
        formats = any(plugin.gguf or plugin.timm for plugin in plugins)
        lines += ["", f"## {heading}", "", "| `model_type` | |", "|---|---|"]
        if formats:
            lines[-2:] = ["| `model_type` | | in other formats |", "|---|---|---|"]
        for plugin in plugins:
            row = f"| `{plugin.name}` | {plugin.summary} |"
            lines.append(f"{row} {_formats(plugin)} |" if formats else row)
    return "\n".join(lines) + "\n"


def _formats(plugin: ModelPlugin) -> str:
    """Return the words for a kind in GGUF files, and the names of timm."""
    named = {"GGUF": plugin.gguf, "timm": plugin.timm}
    words = (
        f"{name}: {', '.join(f'`{word}`' for word in own)}" for name, own in named.items() if own
    )
    return "; ".join(words)


def readme_text() -> str:
    """Return the README of the package, with the table of its modules as it should be."""
    lines = ["| module | `model_type` | capability |", "|---|---|---|"]
    for module in dict.fromkeys(family.module for family in KINDS):
        families = [family for family in KINDS if family.module == module]
        names = ", ".join(f"`{name}`" for family in families for name in family.kinds)
        lines.append(f"| `{module}` | {names} | {families[0].does} |")
    before, rest = README.read_text(encoding="utf-8").split(START)
    after = rest.split(END)[1]
    return "\n".join([before + START, "", *lines, "", END + after])


if __name__ == "__main__":
    PAGE.write_text(page_text(), encoding="utf-8")
    README.write_text(readme_text(), encoding="utf-8")
