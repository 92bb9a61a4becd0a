"""The texts of a scheduler: their progress, and their shares of the next step."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct, field

from gptrs_runtime.generation.generated_text import GeneratedText
from gptrs_runtime.generation.guessing.guesser import Guess
from gptrs_runtime.generation.pages.page_pool import TextPages

WhenRead = Callable[[TextPages], None]
"""Called with the pages of a text once its prompt has been read."""


class Work(Struct, eq=False):
    """A text, copies that continue the same prompt, and its pages once it runs.

    The waiting work with the smallest `priority_key` starts first.
    """

    text: GeneratedText
    priority_key: tuple[int, float, int]
    copies: list[GeneratedText] = field(default_factory=list[GeneratedText])
    when_read: WhenRead | None = None
    client: Hashable = None
    request: int = 0
    """The same number for the answers to one request."""
    since: float = field(default_factory=time.perf_counter)
    """When it began to wait, by `time.perf_counter`."""
    pages: TextPages = field(default_factory=lambda: TextPages((), [], []))
    room: int = 0
    """The number of positions reserved so far."""
    mask: Future[None] | None = None
    """The concurrent work on the next token's mask."""
    logits: np.ndarray | None = None
    """The next token's logits, f32 [V], while its mask is pending."""

    @property
    def unread(self) -> list[int]:
        """The tokens not yet read by the model."""
        return self.text.context.tokens[self.pages.length :]


class Read(Struct, eq=False):
    """The next tokens of a text to read, whether they are its last, and guesses after them."""

    work: Work
    tokens: list[int]
    is_last: bool
    guess: Guess | None = None
    scored: Sequence[int] = ()
    """Further tokens whose logits are needed, too."""

    @property
    def grows(self) -> bool:
        """Whether it consists only of the token chosen last."""
        return self.is_last and len(self.tokens) == 1 and bool(self.work.text.tokens)

    @property
    def guessed(self) -> Sequence[int]:
        """The guessed tokens, each with its own logits."""
        return self.scored if self.guess is None else self.guess.tokens


MOST_PASSED_S: Final = 5.0
"""How long others may pass a waiting text: a client that gives all of its requests the highest
priority would otherwise keep those of everybody else waiting forever."""


def in_order(waiting: Sequence[Work], begun: Mapping[int, float]) -> list[Work]:
    """Return waiting texts, sorted by their keys, in the order in which they begin.

    The one that has waited longest is the first if others have passed it for too long. A priority
    without a beginning for that long comes before it, with its oldest text; `begun` has the last
    times, by the first number of the keys.
    """
    late = time.perf_counter() - MOST_PASSED_S
    oldest: dict[int, Work] = {}
    for work in waiting:
        known = oldest.setdefault(work.priority_key[0], work)
        if work.since < known.since:
            oldest[work.priority_key[0]] = work
    passed = [work for work in oldest.values() if work.since <= late]
    if not passed:
        return list(waiting)
    # By age alone, a flood that came before a request of lower priority would pass it as a whole.
    passed.sort(key=lambda work: (begun.get(work.priority_key[0], 0.0) > late, work.since))
    return [passed[0], *(work for work in waiting if work is not passed[0])]


PATIENCE_S: Final = 0.25
"""How long a text waits for a slot before one of many by the same hand is put back for it."""


def to_yield(waiting: Sequence[Work], running: Sequence[Work]) -> tuple[Work, Work] | None:
    """Return a waiting text, and the running one that is put back for it; None if all are to wait.

    The first is one whose client runs none, else one whose request runs none; the second is the
    youngest of the client, or the request, that runs most. Who runs a single one keeps it.
    """
    since = time.perf_counter() - PATIENCE_S
    for name in ("client", "request"):
        hands = Counter(getattr(each, name) for each in running)
        hand, count = hands.most_common(1)[0]
        if count > 1:
            for work in waiting:
                if work.since <= since and getattr(work, name) not in hands:
                    theirs = [each for each in running if getattr(each, name) == hand]
                    return work, max(
                        theirs, key=lambda each: (each.priority_key, -len(each.text.tokens))
                    )
    return None


def by_priority(work: Work) -> tuple[int, float, int]:
    """Return the sort key of texts."""
    return work.priority_key


def read_shares(unread: Mapping[Work, int], room: int) -> dict[Work, int]:
    """Return how many unread tokens each text reads next, at most `room` in total.

    The first text gets half of the room; the others, shortest first, share the rest, and what they
    leave goes to the first.
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
"""Number of remembered clients above which past turns are dropped."""


class Client(NamedTuple):
    """A client with a weighted share: weight 2 gets twice as many turns as weight 1."""

    name: str
    weight: float = 1.0


class Turns:
    """Orders texts of several clients by start-time fair queueing.

    A client with many requests only delays itself: each request advances its next turn by its
    number of texts, divided by its weight.
    """

    def __init__(self) -> None:
        self._now = 0.0
        """The turn of the text started last."""
        self._next: dict[Hashable, float] = {}

    def next(self, client: Hashable, texts: int) -> float:
        """Return the turn of a request: after the client's earlier ones, and not before the current
        turn."""
        # Not before now: a client that was idle has saved up no turns.
        turn = max(self._now, self._next.get(client, 0.0))
        if len(self._next) >= _MOST_TURNS:
            # Turns that are past mean nothing: such a client begins at the current turn anyway.
            self._next = {name: t for name, t in self._next.items() if t > self._now}
        weight = client.weight if isinstance(client, Client) else 1.0
        self._next[client] = turn + texts / weight
        return turn

    def begins(self, turn: float) -> None:
        """Record that a text of this turn starts."""
        self._now = max(self._now, turn)
