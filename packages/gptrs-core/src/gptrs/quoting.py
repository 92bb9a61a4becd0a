"""Names and values from possibly hostile files, as messages show them: escaped and short."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence, Sized

LIMIT = 80
_LONGEST_COMPARED = 100
"""Longest name compared, in characters: time grows with the square of the length."""
_LEAST_ALIKE = 0.65
"""Names that share less are no misspellings: `nosuch` and `cosh` have 0.6, `lou` and `low` 0.67."""


def clipped(text: str, limit: int = LIMIT) -> str:
    """Return at most `limit` characters of `text` on one line, control characters escaped."""
    start = text[:limit]
    if not start.isprintable():
        start = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in start)
    return start if len(text) <= limit >= len(start) else f"{start[: limit - 3]}..."


def quoted(text: str, limit: int = LIMIT) -> str:
    """Return `clipped` text in backticks."""
    return f"`{clipped(text, limit)}`"


def listed(names: Iterable[str], most: int = 4) -> str:
    """Return the first `most` names, quoted, and the number of the others."""
    names = list(names)
    shown = ", ".join(quoted(name) for name in names[:most])
    return f"{shown} and {len(names) - most} more" if len(names) > most else shown


def shown_value(value: object) -> str:
    """Return a JSON value in backticks, clipped; of a huge value, only its size."""
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    if isinstance(value, Sized) and not isinstance(value, str) and len(value) > LIMIT:
        return f"a list or object of {len(value)} values"
    return quoted(repr(value))


def joined(words: Sequence[str], last: str = "or") -> str:
    """Return `a`, `a or b`, `a, b or c`."""
    return f" {last} ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def did_you_mean(name: str, known: Iterable[str], most: int = 1) -> str:
    """Return "did you mean `x`? " with up to `most` of the known names like `name`, else ""."""
    close = difflib.get_close_matches(name[:_LONGEST_COMPARED], list(known), most, _LEAST_ALIKE)
    return f"did you mean {joined([f'`{match}`' for match in close])}? " if close else ""


def counted(number: int, noun: str) -> str:
    """Return `1 token` or `2 tokens`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def one_line(error: BaseException) -> str:
    """Return type and message of `error` on one line of bounded length."""
    try:
        message = " ".join(str(error).split())
    except Exception:
        message = "(its message cannot be shown)"
    name = type(error).__name__
    shown = message if len(message) <= 300 else f"{message[:297]}..."
    return f"{name}: {shown}" if shown else name
