"""Texts that are read and continued together: they come and go, each step takes what there is."""

from __future__ import annotations

import itertools
from bisect import insort
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

import numpy as np

from gptrs.errors import CacheBudgetError
from gptrs.nn.pages.page_pool import TextPages
from gptrs.nn.pages.prefix_index import shared_tokens
from gptrs.nn.ragged_step import PAGE_SIZE
from gptrs.quick_dataclass import dataclass
from gptrs.runtime.generation.generated_text import GeneratedText
from gptrs.runtime.generation.text_cache import TextCache
from gptrs.spans import span

WhenRead = Callable[[TextPages], None]
"""Called with the pages of a text once its prompt has been read."""
WhenFailed = Callable[[GeneratedText, Exception], None]
"""Called with a text that is taken out, since no token of it could be chosen."""


@dataclass(eq=False)
class _Work:
    """A text, the texts that continue the same prompt, and its pages once it runs.

    Of works that wait, the one of the smallest `place` begins first.
    """

    text: GeneratedText
    place: tuple[int, int]
    copies: list[GeneratedText] = field(default_factory=list[GeneratedText])
    when_read: WhenRead | None = None
    pages: TextPages = field(default_factory=lambda: TextPages((), [], []))

    @property
    def unread(self) -> list[int]:
        """The tokens that the model has not seen."""
        return self.text.context.tokens[self.pages.length :]


class Scheduler:
    """Generates texts until each has ended; `step` runs the model once.

    A step appends one token to each text whose prompt has been read, and reads up to `chunk` tokens
    of prompts. Together they are no more than `chunk`, while fewer texts than that run. At most
    `most_texts` run at once, as long as `cache` has room for them; the others wait, those of higher
    priority and then those that were added first before the others. Of prompts the first one gets
    half of the room at least, and the shortest of the others what is left: a short one need not
    wait until a long one has been read. The outcome of a text does not depend on others.

    No thread is started. While one runs a step, others may add texts, and run schedulers of the
    same cache; they wait for each other, as does `cancel`. An error of one text, which a logits
    processor may raise, is told to `when_failed`, and the others go on; without it `step` raises.
    """

    def __init__(
        self,
        cache: TextCache,
        *,
        chunk: int,
        most_texts: int | None = None,
        when_failed: WhenFailed | None = None,
    ) -> None:
        self._cache = cache
        self._chunk = chunk
        self._most_texts = most_texts
        self._when_failed = when_failed
        self._added: deque[_Work] = deque()
        """Texts that no step has seen: other threads add them at any time."""
        self._count = itertools.count()
        self._waiting: list[_Work] = []
        self._running: list[_Work] = []
        self._grown: list[tuple[GeneratedText, str]] = []
        """The pieces that no step has returned yet."""
        self._failed: list[tuple[GeneratedText, Exception]] = []

    @property
    def running(self) -> list[GeneratedText]:
        """The texts that have begun and not ended."""
        return [work.text for work in self._running]

    @property
    def waiting(self) -> int:
        """How many texts have not begun."""
        return len(self._added) + len(self._waiting)

    @property
    def busy(self) -> bool:
        """Whether there are texts that have not ended."""
        return bool(self._running or self.waiting or self._grown)

    def add(
        self,
        text: GeneratedText,
        copies: Sequence[GeneratedText] = (),
        when_read: WhenRead | None = None,
        priority: int = 0,
    ) -> None:
        """Add a text, and `copies` that continue the same prompt, which is read once.

        CacheBudgetError if the cache would not even hold the text alone.
        """
        self._cache.require(text.most_positions, self._chunk)
        place = (-priority, next(self._count))
        self._added.append(_Work(text, place, list(copies), when_read))

    def cancel(self, text: GeneratedText) -> None:
        """Take a text out, whether it has begun or not; nothing happens if it has ended."""
        with self._cache.exclusive():
            self._take_in()
            self._waiting = [work for work in self._waiting if work.text is not text]
            for work in [work for work in self._running if work.text is text]:
                self._end(work)

    def close(self) -> None:
        """Cancel all texts."""
        with self._cache.exclusive():
            self._take_in()
            self._waiting.clear()
            for work in list(self._running):
                self._end(work)

    def step(self) -> list[tuple[GeneratedText, str]]:
        """Run the model once; return the texts that grew, each with its new piece.

        CacheBudgetError if texts of other schedulers leave no room to begin. After any error, an
        interrupt included, the scheduler can go on: what was not finished is done again.
        """
        with self._cache.exclusive():
            with span("step"):
                self._advance()
            grown, self._grown = self._grown, []
            failed, self._failed = self._failed, []
        for text, error in failed:
            assert self._when_failed is not None
            self._when_failed(text, error)
        return grown

    def _advance(self) -> None:
        self._settle()
        self._admit()
        rows = self._rows()
        if rows:
            logits = self._cache.run([(work.pages, tokens) for work, tokens, _ in rows])
            for (work, _, is_read), scores in zip(rows, logits, strict=True):
                if is_read:
                    self._continue(work, scores)
            self._settle()

    def _take_in(self) -> None:
        while self._added:
            insort(self._waiting, self._added.popleft(), key=_place)

    @property
    def _is_full(self) -> bool:
        return self._most_texts is not None and len(self._running) >= self._most_texts

    def _admit(self) -> None:
        """Begin waiting texts, in their order, as long as there is room.

        One whose prompt begins as another that is being read waits for that, and lets others pass.
        """
        self._take_in()
        for work in list(self._waiting):
            if self._is_full:
                return
            tokens = work.text.context.tokens
            if self._is_being_read(tokens):
                continue
            pages = self._cache.admit(tokens, work.text.most_positions, self._chunk)
            if pages is None and self._running:
                return
            if pages is None:
                raise CacheBudgetError(
                    f"a text of {work.text.most_positions} positions finds no room: other texts"
                    " that have not ended hold the key/value cache",
                    hint="finish or close them, or raise --cache-budget",
                )
            work.pages = pages
            work.text.start(found=pages.length)
            self._waiting.remove(work)
            self._running.append(work)

    def _is_being_read(self, tokens: Sequence[int]) -> bool:
        """Whether a prompt that runs will soon have read pages that `tokens` begins with, too."""
        for work in self._running:
            if len(work.unread) > 1 and self._cache.chunked:
                shared = shared_tokens(work.text.context.tokens, tokens[: len(tokens) - 1])
                if shared // PAGE_SIZE * PAGE_SIZE > work.pages.length:
                    return True
        return False

    def _rows(self) -> list[tuple[_Work, list[int], bool]]:
        """Return the tokens of the next step, and whether they are the last of their texts."""
        unread = {work: work.unread for work in self._running}
        reading = [w for w in self._running if self._cache.chunked and len(unread[w]) > 1]
        room = self._chunk - sum(bool(tokens) for tokens in unread.values()) + len(reading)
        shares = _shares({work: len(unread[work]) for work in reading}, max(1, room))
        rows: list[tuple[_Work, list[int], bool]] = []
        for work, tokens in unread.items():
            taken = tokens[: shares.get(work, len(tokens))]
            if taken:
                rows.append((work, taken, len(taken) == len(tokens)))
        return rows

    def _continue(self, work: _Work, logits: np.ndarray) -> None:
        """Choose the next token of a text, and of its copies after the prompt."""
        if work.when_read is not None:
            work.when_read(work.pages)
            work.when_read = None
        while work.copies:
            copy = _Work(work.copies.pop(0), work.place)
            pages = None if self._is_full else self._cache.fork(work.pages)
            if pages is None:
                insort(self._waiting, copy, key=_place)
                continue
            copy.pages = pages
            copy.text.start()
            self._running.append(copy)
            self._grow(copy, logits)
        self._grow(work, logits)

    def _grow(self, work: _Work, logits: np.ndarray) -> None:
        try:
            with span("choose token"):
                self._grown.append((work.text, work.text.append(logits)))
        except Exception as error:
            if self._when_failed is None:
                raise
            self._end(work)
            self._failed.append((work.text, error))

    def _settle(self) -> None:
        """Let go of texts that ended, and bring back those whose pages are not as they should be.

        That is the case after a context has shifted, and after an interrupt.
        """
        for work in list(self._running):
            if work.text.ended:
                self._end(work)
            elif work.pages.lost:
                self._wait_again(work)
            elif work.text.context.moved or not work.unread:
                self._rewind(work)

    def _rewind(self, work: _Work) -> None:
        """Keep what the pages have of the context, but for its last token."""
        tokens = work.text.context.tokens
        kept = shared_tokens(work.pages.tokens, tokens[: len(tokens) - 1])
        try:
            self._cache.rewind(work.pages, kept)
        except CacheBudgetError:
            self._wait_again(work)
        work.text.context.moved = False

    def _wait_again(self, work: _Work) -> None:
        self._end(work)
        work.pages = TextPages((), [], [])
        insort(self._waiting, work, key=_place)

    def _end(self, work: _Work) -> None:
        self._running.remove(work)
        self._cache.release(work.pages)


def _place(work: _Work) -> tuple[int, int]:
    return work.place


def _shares(unread: Mapping[_Work, int], room: int) -> dict[_Work, int]:
    """Return how many of their unread tokens texts read next, `room` at most in all.

    The first text gets half of the room and what the others, the shortest first, leave of the rest.
    """
    if not unread:
        return {}
    first, *others = sorted(unread, key=_place)
    shares = {first: min(unread[first], room - room // 2)}
    room -= shares[first]
    for work in sorted(others, key=unread.__getitem__):
        shares[work] = min(unread[work], room)
        room -= shares[work]
    shares[first] += min(unread[first] - shares[first], room)
    return shares
