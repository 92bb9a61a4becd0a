"""The tokens of a text that are in the model's context."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from gptrs.errors import UsageError


class ContextLimit(Struct, frozen=True):
    """A limit of `size` tokens; with `shift`, an overflow keeps the first `keep` and the latest
    other tokens.

    UsageError if `keep` leaves no room for others.
    """

    size: int
    shift: bool = False
    keep: int = 0

    def __post_init__(self) -> None:
        if self.shift and self.keep > self.size - 2:
            raise UsageError(
                f"of a context of {self.size} tokens at most {self.size - 2} can be kept when it"
                f" shifts, got {self.keep}",
                hint="lower --keep",
            )

    def shortened(self, tokens: Sequence[int]) -> list[int]:
        """Return the first `keep` tokens, and the last ones that fill half of the remaining
        room."""
        half = (self.size - self.keep) // 2
        return [*tokens[: self.keep], *tokens[len(tokens) - half :]]


class Context:
    """The tokens of a text in the model's context; `moved` counts changes of their positions."""

    def __init__(self, tokens: Sequence[int], limit: ContextLimit) -> None:
        self._limit = limit
        self.tokens = list(tokens)
        self.moved = False
        self.shifts = 0
        """How often positions have changed."""
        self._fit()

    def append(self, token: int) -> None:
        """Append a token; if the context is full, shift it if the limit allows."""
        self.tokens.append(token)
        self._fit()

    def _fit(self) -> None:
        if self._limit.shift and len(self.tokens) > self._limit.size:
            self.tokens = self._limit.shortened(self.tokens)
            self.moved = True
            self.shifts += 1
