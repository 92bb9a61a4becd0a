"""The texts of a scheduler: the tokens each has read, and its share of the next step."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import field
from typing import Final, NamedTuple

import numpy as np

from gptrs.quick_dataclass import dataclass
from gptrs_runtime.generation.generated_text import GeneratedText
from gptrs_runtime.generation.guessing.guesser import Guess
from gptrs_runtime.generation.pages.page_pool import TextPages

WhenRead = Callable[[TextPages], None]
"""Called with the pages of a text once its prompt has been read."""


@dataclass(eq=False)
class Work:
    """A text, the texts that continue the same prompt, and its pages once it runs.

    Of waiting works, the one with the smallest `priority_key` begins first.
    """

    text: GeneratedText
    priority_key: tuple[int, float, int]
    copies: list[GeneratedText] = field(default_factory=list[GeneratedText])
    when_read: WhenRead | None = None
    pages: TextPages = field(default_factory=lambda: TextPages((), [], []))
    room: int = 0
    """The positions that it may have in its pages so far."""
    mask: Future[None] | None = None
    """The work for the next token that is done beside the steps."""
    logits: np.ndarray | None = None
    """Those of the next token, f32 [V], while its mask is not there."""

    @property
    def unread(self) -> list[int]:
        """The tokens that the model has not seen."""
        return self.text.context.tokens[self.pages.length :]


@dataclass(eq=False)
class Read:
    """The next tokens of a text, whether they are its last ones, and what may come after them."""

    work: Work
    tokens: list[int]
    is_last: bool
    guess: Guess | None = None
    scored: Sequence[int] = ()
    """Tokens after `tokens` whose logits are needed, too."""

    @property
    def grows(self) -> bool:
        """Whether it is only the token that the text chose last."""
        return self.is_last and len(self.tokens) == 1 and bool(self.work.text.tokens)

    @property
    def guessed(self) -> Sequence[int]:
        """The tokens after the next ones, each with logits of its own."""
        return self.scored if self.guess is None else self.guess.tokens


def by_priority(work: Work) -> tuple[int, float, int]:
    """Return the key by which texts are ordered."""
    return work.priority_key


def read_shares(unread: Mapping[Work, int], room: int) -> dict[Work, int]:
    """Return how many unread tokens each text reads next, at most `room` in total.

    The first text gets half of the room and what the others, the shortest first, leave of the rest.
    """
    if not unread:
        return {}
    # In order of arrival alone, a short prompt would wait for a long one; shortest first alone, a
    # long one might starve. So the oldest gets half, and the shortest get the rest.
    first, *others = sorted(unread, key=by_priority)
    shares = {first: min(unread[first], room - room // 2)}
    room -= shares[first]
    for work in sorted(others, key=unread.__getitem__):
        shares[work] = min(unread[work], room)
        room -= shares[work]
    shares[first] += min(unread[first] - shares[first], room)
    return shares


_MOST_TURNS: Final = 4096
"""Clients whose turns are remembered until some are in the past."""


class Client(NamedTuple):
    """A client with a share of its own: weight 2 takes twice as many turns as weight 1."""

    name: str
    weight: float = 1.0


class Turns:
    """The order of texts of several clients, by start-time fair queueing.

    A client that asks for much waits for itself: its next turn is as many later as its texts,
    divided by its weight.
    """

    def __init__(self) -> None:
        self._now = 0.0
        """The turn of the text that began last."""
        self._next: dict[Hashable, float] = {}

    def next(self, client: Hashable, texts: int) -> float:
        """Return the turn of a request: after those of its client, and not before the present."""
        turn = max(self._now, self._next.get(client, 0.0))
        if len(self._next) >= _MOST_TURNS:
            self._next = {name: t for name, t in self._next.items() if t > self._now}
        weight = client.weight if isinstance(client, Client) else 1.0
        self._next[client] = turn + texts / weight
        return turn

    def begins(self, turn: float) -> None:
        """Say that a text of this turn begins."""
        self._now = max(self._now, turn)
