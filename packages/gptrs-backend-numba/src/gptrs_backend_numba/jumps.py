"""Jumps and counted loops of a schedule, beside its kernel calls."""

from __future__ import annotations

from gptrs.quick_dataclass import dataclass
from gptrs_backend_numba.views import Counter, View


@dataclass(frozen=True, eq=False, slots=True)
class Label:
    """A place in a schedule that jumps lead to."""

    views: tuple[View, ...] = ()


@dataclass(frozen=True, slots=True)
class Jump:
    """Go on at `target`; with a predicate, an `i1`, only where that is false."""

    target: Label
    unless: View | None = None

    @property
    def views(self) -> tuple[View, ...]:
        """The tensors that it reads."""
        return () if self.unless is None else (self.unless,)


@dataclass(frozen=True, slots=True)
class Begin:
    """Set a counter to its first number."""

    counter: Counter
    views: tuple[View, ...] = ()


@dataclass(frozen=True, slots=True)
class Next:
    """Go back to `target` with the next number of the counter; go on if this was the last."""

    counter: Counter
    target: Label
    views: tuple[View, ...] = ()


Control = Label | Jump | Begin | Next
"""A step of a schedule that computes nothing."""
