"""The hint for a tensor that a checkpoint lacks: the names that come closest."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Sequence

from gptrs.quoting import listed, quoted

_MOST_COMPARED = 2000
_LONGEST_COMPARED = 200


def suggest(name: str, names: Sequence[str]) -> str:
    """Return a line on the names closest to the missing `name`, in time linear in `names`."""
    if not names:
        return "it has no tensors at all"
    moved = [other for other in names if _differ_by_prefix(name, other)]
    close = moved or _similar(name, names)
    if close:
        return f"did you mean {listed(close, 3)}?"
    prefix, below = _deepest_prefix(name, names)
    if below:
        return f"below {quoted(prefix)} it has {listed(below)}"
    return f"it has {listed(names)}"


def _differ_by_prefix(name: str, other: str) -> bool:
    return name.endswith(f".{other}") or other.endswith(f".{name}")


def _similar(name: str, names: Sequence[str]) -> list[str]:
    if len(name) > _LONGEST_COMPARED:
        return []
    short = (other for other in names if len(other) <= _LONGEST_COMPARED)
    compared = list(itertools.islice(short, _MOST_COMPARED))
    return difflib.get_close_matches(name, compared, n=3, cutoff=0.85)


def _deepest_prefix(name: str, names: Sequence[str]) -> tuple[str, list[str]]:
    """Return the longest dotted prefix of `name` that other names share, and those names."""
    parts = name.split(".")
    depths = [_shared(parts, other.split(".")) for other in names]
    deepest = max(depths)
    below = [other for other, depth in zip(names, depths, strict=True) if depth == deepest]
    return (".".join(parts[:deepest]), below) if deepest else ("", [])


def _shared(parts: list[str], others: list[str]) -> int:
    equal = (part == other for part, other in zip(parts, others, strict=False))
    return sum(itertools.takewhile(bool, equal))
