"""Examples in docstrings, `>>> ...`, as code blocks of the site."""

from __future__ import annotations

import re
from typing import Any

import griffe

_EXAMPLE = re.compile(r"(?m)((?:^>>>.*\n?)(?:^(?!\s*$).*\n?)*)")


class DoctestFences(griffe.Extension):
    """Puts a fence around each example of a docstring that is read as plain Markdown."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of an object when it has been loaded."""
        if obj.docstring is not None and ">>>" in obj.docstring.value:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(docstring: str) -> str:
    """Return a docstring with its examples, up to the next empty line, as fenced blocks."""
    return _EXAMPLE.sub(lambda match: f"```pycon\n{match[1].rstrip()}\n```\n", docstring)
