"""Tensors whose value is not known: placeholders for arguments, and what is computed from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gptrs.capture.graph import Argument, GraphSlice, Leaf, Source
from gptrs.errors import UsageError


@dataclass(eq=False, slots=True)
class Placeholder(Argument):
    """An argument of a function that `gptrs.jit` captures."""

    function: str
    """The name of the function."""
    ended: bool = False
    """Whether the capture is over, so that no value will ever take its place."""


def require_known(what: str, source: Source, hint: str) -> None:
    """UsageError if `what`, which needs the value of `source`, is done while that is unknown."""
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
    """The error of what was `asked` of a tensor that outlived the capture it belongs to."""
    return UsageError(
        f"{asked} that only stood for an argument of `{leaf.function}` while it was captured",
        hint=f"let `{leaf.function}` return the tensor, and use what its calls return",
    )


def require_own(bound: Sequence[Leaf], name: str) -> None:
    """UsageError if the function `name` binds what stands for an argument of another one."""
    for leaf in bound:
        if isinstance(leaf, Placeholder):
            raise _leaked(f"`{name}` uses a `{leaf.type}`", leaf)
        if isinstance(leaf, Argument):
            raise UsageError(
                f"`{name}` uses a `{leaf.type}` that stands for an argument of the body of a loop"
                " or branch",
                hint="pass it as an argument",
            )
