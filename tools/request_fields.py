"""Writes docs/requests.md: the fields of every request that the server reads, by their tables.

python tools/request_fields.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from gptrs_serve.dialects.ollama_body import RuntimeOptions
from gptrs_serve.fields import field_rows
from gptrs_serve.openapi import ROUTES

PAGE = Path(__file__).parents[1] / "docs/requests.md"
HEAD = """\
# Fields of requests

<!-- Written by tools/request_fields.py. -->

`gptrs serve` reads these fields of each [protocol](clients.md), and refuses others by name, with
status 400. A null counts as a missing field. A field with *no effect* is accepted with the values
that its type allows, and changes no answer. Bounds and types are in `/openapi.json`.
"""


def page_text() -> str:
    """The page."""
    parts = [HEAD, *_sections()]
    return "\n".join(parts)


def _sections() -> Iterator[str]:
    """A section for each body, under the paths that read it."""
    paths: dict[type[Struct], list[str]] = {}
    for path, route in ROUTES.items():
        if route.body is not None:
            paths.setdefault(route.body, []).append(path)
    for body, found in paths.items():
        yield f"## {', '.join(f'`{path}`' for path in found)}\n"
        yield _table(body)
        if "/api/chat" in found:
            yield "### `options` of `/api/chat` and `/api/generate`\n"
            yield _table(RuntimeOptions)


def _table(body: type[Struct]) -> str:
    rows = [
        f"| `{row.name}` | {row.state} | {row.about.replace('|', chr(92) + '|')} |"
        for row in field_rows(body)
    ]
    return "\n".join(["| field | | |", "|---|---|---|", *rows, ""])


if __name__ == "__main__":
    PAGE.write_text(page_text(), encoding="utf-8")
