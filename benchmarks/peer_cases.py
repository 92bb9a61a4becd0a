"""The work of peers, in terms of one step of theirs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

State = TypeVar("State")


class SteppedTexts(Protocol[State]):
    """Texts of a peer that take tokens together; `State` is theirs: next tokens, a cache."""

    def begin(self, prompts: list[list[int]]) -> State:
        """Forget all texts, and read prompts of equal length: the likeliest tokens after them."""
        ...

    def step(self, state: State) -> State:
        """Append its token to each text, and choose the likeliest next ones."""
        ...


class PeerPrefill(Generic[State]):
    """Like `Prefill`."""

    def __init__(self, texts: SteppedTexts[State], prompts: Iterator[list[int]]) -> None:
        self._texts, self._prompts = texts, prompts

    def prepare(self) -> None:
        """Take the next prompt."""
        self._tokens = next(self._prompts)

    def run(self) -> None:
        """Read it whole."""
        self._texts.begin([self._tokens])


class PeerDecode(Generic[State]):
    """Like `Decode`, after the next `width` of `prompts`."""

    def __init__(
        self, texts: SteppedTexts[State], prompts: Iterator[list[int]], count: int, width: int
    ) -> None:
        self._texts, self._prompts, self._count, self._width = texts, prompts, count, width
        self.gaps: list[float] = []

    def prepare(self) -> None:
        """Read the prompts."""
        self._state = self._texts.begin([next(self._prompts) for _ in range(self._width)])

    def run(self) -> None:
        """Append `count` tokens to each text."""
        self.gaps = []
        for _ in range(self._count):
            started = time.perf_counter()
            self._state = self._texts.step(self._state)
            self.gaps.append(time.perf_counter() - started)
