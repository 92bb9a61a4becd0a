"""The cache as a scheduler sees it: admit texts, run a step of them, fork, rewind, release."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from gptrs.nn.greedy_steps import Chosen
from gptrs_runtime.generation.pages.page_pool import TextPages
from gptrs_runtime.generation.step_times import StepTimes


class Row(NamedTuple):
    """A text of a step, its new tokens, and tokens that may follow them.

    The text keeps `tokens`. What is computed of `guess` is there until its next step, see `keep`:
    it begins `after` tokens that were guessed before. One of both is not empty.
    """

    text: TextPages
    tokens: Sequence[int]
    guess: Sequence[int] = ()
    after: int = 0


class GreedyRow(NamedTuple):
    """A text of several steps: its new token, the steps that it has room for, and its ends.

    The text keeps `token`. What is computed of the tokens after it is there until its next step,
    see `keep`.
    """

    text: TextPages
    token: int
    room: int
    ends: frozenset[int]


class TextCache(Protocol):
    """Runs a model on texts and keeps what later steps need of them."""

    chunked: bool
    """Whether a text may be read in several steps."""
    short_context: int | None
    """Tokens after which a text is read anew, in one step; see `CausalLMModule.short_context`."""

    def exclusive(self) -> AbstractContextManager[object]:
        """Scope in which no other thread uses the cache; one may enter it again."""
        ...

    def require(self, positions: int, step: int) -> None:
        """CacheBudgetError if such a text would not even fit alone; see `admit`."""
        ...

    def admit(
        self,
        tokens: Sequence[int],
        positions: int,
        step: int,
        source: Sequence[int] = (),
        family: int = 0,
    ) -> TextPages | None:
        """Return a text of up to `positions` that begins like `tokens`; None if it must wait.

        `source` are the tokens of the text that it is about, for models that read one. `family` is
        which of the models of a `FamilyCache` it is of. Up to
        `step` tokens of it come at once. Its `length` says how many tokens are known, all but
        the last one at most. CacheBudgetError if it would not even fit alone.
        """
        ...

    @property
    def times(self) -> StepTimes:
        """How long steps take, as whoever runs them has measured."""
        ...

    def run(self, rows: Sequence[Row]) -> np.ndarray:
        """Append tokens to texts; return logits f32 [R, V] after the last one of each.

        Those after each guessed token of a text follow.
        """
        ...

    def keep(self, text: TextPages, tokens: Sequence[int]) -> None:
        """Append tokens that the last step of the text had as the first of its guess."""
        ...

    def fork(self, text: TextPages) -> TextPages | None:
        """Return another text with the same content; None if it must wait."""
        ...

    def rewind(self, text: TextPages, length: int) -> None:
        """Forget all but the first `length` tokens, or all; CacheBudgetError without room."""
        ...

    def release(self, text: TextPages) -> None:
        """Give back the memory of a text."""
        ...


@runtime_checkable
class RepeatingCache(Protocol):
    """A `TextCache` that can run several steps at once."""

    @property
    def steps_at_once(self) -> int:
        """How many steps `run_greedy` takes at most; 1 where it cannot be called."""
        ...

    def run_greedy(self, rows: Sequence[GreedyRow], count: int) -> Chosen:
        """Append a token to each text, then the likeliest one `count` times; return these.

        No text chooses another one after one of its ends once all have come to theirs.
        """
        ...
