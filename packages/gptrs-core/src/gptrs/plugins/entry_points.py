"""The entry points in our groups of all installed distributions, also of damaged ones."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from dataclasses import dataclass

from gptrs.plugins.hookspecs import EXTENSION_POINTS, ExtensionPoint
from gptrs.plugins.selection import canonical

ENTRY_POINTS_FILE = "entry_points.txt"


@dataclass(frozen=True)
class Candidate:
    """An entry point in one of our groups, and the distribution that installed it."""

    point: ExtensionPoint
    entry_point: importlib.metadata.EntryPoint
    distribution: str
    version: str

    @property
    def names(self) -> tuple[str, str, str]:
        """What users can call it by: its name, `KIND:NAME`, its distribution."""
        name = self.entry_point.name
        return name, f"{self.point.kind}:{name}", canonical(self.distribution)

    @property
    def identity(self) -> str:
        """The name under which pluggy knows it; no two candidates have the same."""
        return f"{self.point.kind}:{self.entry_point.name}@{canonical(self.distribution)}"


@dataclass(frozen=True)
class Unreadable:
    """A distribution that has entry points for us in a file that is damaged."""

    distribution: str
    version: str
    error: Exception


def find_candidates() -> tuple[list[Candidate], list[Unreadable]]:
    """All entry points in our groups by kind, name and distribution, and the damaged files."""
    candidates: list[Candidate] = []
    unreadable: list[Unreadable] = []
    seen: set[str] = set()
    for distribution in importlib.metadata.distributions():
        # The cheap test first: to read the metadata of every distribution takes longer.
        if "gptrs." not in (distribution.read_text(ENTRY_POINTS_FILE) or ""):
            continue
        name, version = _identify(distribution)
        if canonical(name) in seen:
            continue  # the first on sys.path is the one that is imported
        seen.add(canonical(name))
        try:
            candidates.extend(_candidates_of(distribution, name, version))
        except Exception as error:
            unreadable.append(Unreadable(name, version, error))
    order = [point.kind for point in EXTENSION_POINTS]
    candidates.sort(key=lambda c: (order.index(c.point.kind), c.entry_point.name, c.names[2]))
    return candidates, unreadable


def _identify(distribution: importlib.metadata.Distribution) -> tuple[str, str]:
    """Name and version, also of a distribution whose metadata is damaged."""
    try:
        return str(distribution.metadata["Name"] or "unknown"), str(distribution.version)
    except Exception:
        return "unknown", "unknown"


def _candidates_of(
    distribution: importlib.metadata.Distribution, name: str, version: str
) -> Iterator[Candidate]:
    points = {point.group: point for point in EXTENSION_POINTS}
    for entry_point in distribution.entry_points:
        if entry_point.group in points:
            yield Candidate(points[entry_point.group], entry_point, name, version)
