"""The journal of an optimization: which rewrites fired, which declined and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import field

from gptrs.quick_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    """A rewrite whose pattern matched `instruction` and that declined, and why."""

    rewrite: str
    instruction: str
    reason: str

    def __str__(self) -> str:
        return f"{self.rewrite} at {self.instruction}: {self.reason}"


@dataclass(slots=True)
class Journal:
    """Counts over everything that was optimized while it was open."""

    steps: int = 0
    """Instructions that a driver looked at."""
    fired: Counter[str] = field(default_factory=Counter[str])
    """The times that each rewrite was applied, by its name."""
    refused: Counter[Refusal] = field(default_factory=Counter[Refusal])
    """The times that each refusal was given."""


_open_journal: ContextVar[Journal | None] = ContextVar("open_journal", default=None)


@contextmanager
def recording() -> Generator[Journal]:
    """Let the optimizations of the `with` block, in this thread, write into the journal it gives.

    >>> with recording() as journal:
    ...     optimize(program)
    >>> for refusal in journal.refused:
    ...     print(refusal)
    """
    journal = Journal()
    token = _open_journal.set(journal)
    try:
        yield journal
    finally:
        _open_journal.reset(token)


def current_journal() -> Journal | None:
    """Return the journal that is open in this thread, None where nobody asked for one."""
    return _open_journal.get()
