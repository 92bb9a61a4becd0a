"""Markdown as GitHub and editors read it, for Python-Markdown, which MkDocs uses.

Python-Markdown wants four spaces for each level of a list and an empty line before a list, and
knows no flags after the language of a fence.
"""

from __future__ import annotations

import re

_FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,})(?P<language>[\w+-]*)(?P<flags>.*)$")
_ITEM = re.compile(r"^(?P<indent> *)(?P<marker>[-*+]|\d+\.)(?P<gap> +)(?=\S)")
_STEP = 4


def for_python_markdown(markdown: str) -> str:
    """Return the text with lists and fences as Python-Markdown wants them."""
    lines: list[str] = []
    levels: list[int] = []  # the columns at which the text of the open items begins
    fence = ""
    for line in markdown.split("\n"):
        opening = _FENCE.match(line)
        if fence:
            lines.append(_shifted(line, levels))
            if line.strip() == fence:
                fence = ""
        elif opening:
            _close(levels, len(opening["indent"]))
            lines.append(
                _shifted(f"{opening['indent']}{opening['fence']}{opening['language']}", levels)
            )
            fence = opening["fence"]
        else:
            _add_text(lines, line, levels)
    return "\n".join(lines)


def _add_text(lines: list[str], line: str, levels: list[int]) -> None:
    """Add a line outside of fences; `levels` are brought up to date."""
    if not line.strip():
        lines.append(line)
        return
    item = _ITEM.match(line)
    follows_text = bool(lines) and bool(lines[-1].strip())
    indent = len(line) - len(line.lstrip())
    if item is None:
        if not follows_text or indent:  # else it goes on, unindented, in the paragraph before it
            _close(levels, indent)
        lines.append(_shifted(line, levels))
        return
    _close(levels, len(item["indent"]))
    if follows_text and not levels and not _ITEM.match(lines[-1].lstrip()) and lines[-1][0] != " ":
        lines.append("")
    text = line[item.end() :]
    lines.append(f"{' ' * _STEP * len(levels)}{item['marker']} {text}")
    levels.append(item.end())


def _close(levels: list[int], indent: int) -> None:
    """End the items whose text begins right of a line with so many spaces."""
    while levels and indent < levels[-1]:
        levels.pop()


def _shifted(line: str, levels: list[int]) -> str:
    """Return a line of the innermost item at the column that Python-Markdown expects."""
    if not levels or not line.strip():
        return line
    kept = line[levels[-1] :] if not line[: levels[-1]].strip() else line.lstrip()
    return f"{' ' * _STEP * len(levels)}{kept}"
