"""Placeholders for the arguments of captured functions: errors where a value would be needed."""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.capture.graph import Argument, GraphSlice, Leaf, Source
from gptrs.errors import UsageError
from gptrs.quick_dataclass import dataclass


@dataclass(eq=False, slots=True)
class Placeholder(Argument):
    """An argument of a function that `gptrs.jit` captures."""

    function: str
    """The name of the function."""
    ended: bool = False
    """Whether the capture is over: a tensor that still depends on it has leaked."""


def require_known(what: str, source: Source, hint: str) -> None:
    """Raise UsageError if `what` needs the value of a `source` that depends on a placeholder."""
    if source.abstract:
        raise _unknown(what, source, hint)


def _unknown(what: str, source: Source, hint: str) -> UsageError:
    below = GraphSlice([source]).leaves
    placeholders = [leaf for leaf in below if isinstance(leaf, Placeholder)]
    asked = f"{what} needs the value of a `{source.type}`"
    for leaf in placeholders:
        if leaf.ended:
            return _leaked(asked, leaf)
    if placeholders:
        when = f"`gptrs.jit` captures `{placeholders[0].function}`"
    else:
        when = "the body of a loop or branch is captured"
    return UsageError(f"{asked}, which is not known while {when}", hint=hint)


def _leaked(asked: str, leaf: Placeholder) -> UsageError:
    """Return the error for a tensor that is used after the capture that it belongs to."""
    return UsageError(
        f"{asked} that only stood for an argument of `{leaf.function}` while it was captured",
        hint=f"let `{leaf.function}` return the tensor, and use what its calls return",
    )


def require_own(bound: Sequence[Leaf], name: str) -> None:
    """Raise UsageError if the function `name` closes over a placeholder of another function."""
    for leaf in bound:
        if isinstance(leaf, Placeholder):
            raise _leaked(f"`{name}` uses a `{leaf.type}`", leaf)
        if isinstance(leaf, Argument):
            raise UsageError(
                f"`{name}` uses a `{leaf.type}` that stands for an argument of the body of a loop"
                " or branch",
                hint="pass it as an argument",
            )
