"""The lowest versions of dependencies that the packages ask for, read from their pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Collection
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXTRAS = ("chat", "hub", "images", "sounds")
"""The optional dependencies that users get; those for tools and for comparison are not tried."""
_FORM = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(\[[\w,]+\])?(?P<bound>[<>=!~].*)?")
_FLOOR = re.compile(r">=(\d[\w.]*)")


class FloorError(Exception):
    """An error for a requirement without a floor, or with another bound."""


def floors(root: Path = ROOT, without: Collection[str] = ()) -> dict[str, str]:
    """Return the floor of each dependency of the packages below `root`, gptrs's own left out.

    The folders in `without` do not count. Of several floors the highest holds. FloorError for one
    without a floor, or with another bound: an upper bound needs a break that is known, and a line
    here.
    """
    found: dict[str, str] = {}
    for path in [root / "pyproject.toml", *sorted(root.glob("packages/*/pyproject.toml"))]:
        if path.parent.name in without:
            continue
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        optional = project.get("optional-dependencies", {})
        asked = [
            *project.get("dependencies", ()),
            *(r for e in EXTRAS for r in optional.get(e, ())),
        ]
        for requirement in asked:
            name, floor = _split(requirement)
            if not name.startswith("gptrs"):
                found[name] = max(found.get(name, "0"), floor, key=_numbers)
    return dict(sorted(found.items()))


def _split(requirement: str) -> tuple[str, str]:
    match = _FORM.fullmatch(requirement)
    if match is None:
        raise FloorError(f"`{requirement}` cannot be read")
    name, bound = match["name"], match["bound"] or ""
    if name.startswith("gptrs"):
        return name, ""
    floor = _FLOOR.fullmatch(bound)
    if floor is None:
        raise FloorError(f"`{requirement}` must have a floor, `>=VERSION`, and no other bound")
    return name, floor[1]


def _numbers(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]
