"""The scheduler of concurrent texts: continuous batching, where each step mixes prefill and
decode."""

from __future__ import annotations

import itertools
import time
from bisect import insort
from collections import deque
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import numpy as np

from gptrs.errors import CacheBudgetError
from gptrs.nn.ragged_step import PAGE_SIZE
from gptrs.spans import span
from gptrs_runtime.generation.generated_text import GeneratedText
from gptrs_runtime.generation.guessing.guesser import Candidate, Guesser
from gptrs_runtime.generation.masks_beside import MasksBeside
from gptrs_runtime.generation.pages.page_group import shared_tokens
from gptrs_runtime.generation.pages.page_pool import TextPages
from gptrs_runtime.generation.scheduled_text import (
    Read,
    Turns,
    WhenRead,
    Work,
    by_priority,
    in_order,
    read_shares,
    to_yield,
)
from gptrs_runtime.generation.text_cache import GreedyRow, Row, RowStates, TextCache
from gptrs_runtime.generation.watching import Watch

if TYPE_CHECKING:
    from gptrs.nn.causal_lm import Layers

WhenFailed = Callable[[GeneratedText, Exception], None]
"""Called with a text that was removed because of an error."""

_Values = tuple[int, Mapping[str, np.ndarray]]
"""The position of a token, and the values of the model for it and those after it."""
_ANY: Final = 1 << 62
_ROOM: Final = 128
"""Number of positions by which a text grows at a time."""
_LEAST_ROOM: Final = 64
"""With less room than this it grows: a step may choose as many tokens."""
_MOST_READING: Final = 8
_LONGEST_RUN_S: Final = 0.05
"""Seconds that several steps in one run should take at most: new texts, `cancel`, and texts that
end early wait for its end, and slower models spend little of their time in Python."""
_LOOK_S: Final = 0.1
"""How often it is asked who gives way: that takes 0.1 ms with 1,024 texts that wait."""
_MOST_SCORED: Final = 64
"""Most tokens of a scored text per step, since each has logits f32 [V]."""


class Scheduler:
    """Generates texts until each has ended; `step` runs the model once.

    A step appends one token, or more if guessed, to each text whose prompt has been read, and reads
    prompts with the rest of its `chunk` tokens. At most `most_texts` run at once, fewer if `cache`
    has no room; the others wait, ordered by priority, then arrival. The first prompt gets at least
    half of the room, and the shortest of the others the rest, so that a short prompt need not wait
    for a long one. The outcome of a text does not depend on others.

    If the cache can run several steps at once, greedy texts do so, for some `_LONGEST_RUN_S`; new
    texts, `cancel`, and texts that end early then wait for the end of the run.

    With `grows`, texts start with room for their prompt and some more, and get more as they grow.
    If there is none, the youngest text is preempted and continues later; recomputation gives the
    same bits.

    Clients take turns (start-time fair queueing). At most `_MOST_READING` prompts that take several
    steps are read at once: more would not finish sooner, and would leave no room for short ones.

    With `masks`, masks of forms are computed concurrently. A text whose mask is late skips steps
    until it is ready.

    With a `watch`, the model runs in its scope, and texts get the rows of their tokens.

    It starts no thread. While a thread runs a step, others may add texts; schedulers of the same
    cache wait for each other, as does `cancel`. An error of one text, for example from a logits
    processor, is passed to `when_failed`, and the others continue; without it `step` raises.
    """

    def __init__(
        self,
        cache: TextCache,
        *,
        chunk: int,
        most_texts: int | None = None,
        when_failed: WhenFailed | None = None,
        grows: bool = False,
        masks: MasksBeside | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._cache = cache
        self._masks = masks
        self._watch = watch
        self._grows = grows and cache.grows
        self._turns = Turns()
        self._begun: dict[int, float] = {}
        """When a text of each priority last began."""
        self._guesser = Guesser(cache.times)
        self._chunk = chunk
        self._most_texts = most_texts
        self._when_failed = when_failed
        self._added: deque[Work] = deque()
        """Texts not seen by a step yet; other threads may add to it at any time."""
        self._count = itertools.count()
        self._waiting: list[Work] = []
        self._running: list[Work] = []
        self._grown: list[tuple[GeneratedText, str]] = []
        """The pieces that no step has returned yet."""
        self._looked = 0.0
        """When it was last asked who is to give way."""
        self._failed: list[tuple[GeneratedText, Exception]] = []

    @property
    def running(self) -> list[GeneratedText]:
        """Return the texts that have started but not ended."""
        return [work.text for work in self._running]

    @property
    def waiting(self) -> int:
        """Return the number of texts that have not started."""
        return len(self._added) + len(self._waiting)

    @property
    def busy(self) -> bool:
        """Return whether there are texts that have not ended."""
        return bool(self._running or self.waiting or self._grown)

    def add(
        self,
        text: GeneratedText,
        copies: Sequence[GeneratedText] = (),
        when_read: WhenRead | None = None,
        priority: int = 0,
        client: Hashable = None,
        since: float | None = None,
    ) -> None:
        """Add a text, and `copies` that continue the same prompt, which is read once.

        `since` is when it began to wait, by `time.perf_counter`; None: now.

        CacheBudgetError if the cache would not even hold the text alone.
        """
        # At once, in the caller's thread: in the queue, a text that can never fit would block the
        # others.
        self._cache.require(text.most_positions, self._chunk)
        turn = self._turns.next(client, 1 + len(copies))
        number = next(self._count)
        work = Work(text, (-priority, turn, number), list(copies), when_read, client, number)
        work.since = time.perf_counter() if since is None else since
        self._added.append(work)

    def cancel(self, text: GeneratedText) -> None:
        """Remove a text, whether or not it has started; no effect if it has ended."""
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
            # A copy, since `_end` removes from the list.
            for work in list(self._running):
                self._end(work)

    def step(self) -> list[tuple[GeneratedText, str]]:
        """Run the model once; return the texts that grew, each with its new piece.

        CacheBudgetError if texts of other schedulers leave no room to begin. After any error,
        including an interrupt, the scheduler can continue: unfinished work is repeated.
        """
        with self._cache.exclusive(), span("step"):
            self._choose_late()
            self._settle()
            if self._grows:
                self._give_room()
            self._admit()
            if rows := self._rows():
                most = self._steps_at_once(rows)
                if most > 1:
                    self._run_several(rows, most)
                else:
                    self._run(rows)
                self._settle()
            elif self._masks is not None:
                self._masks.wait_for_any(self._running)
            grown, self._grown = self._grown, []
            failed, self._failed = self._failed, []
        for text, error in failed:
            assert self._when_failed is not None
            self._when_failed(text, error)
        return grown

    def _steps_at_once(self, reads: Sequence[Read]) -> int:
        """Return how many steps of these texts one run of the model may take."""
        if self._watch is not None:  # rows of a loop inside a run are not visible
            return 1
        # Prompts in the same step would make all of its texts wait for the end of the run.
        ahead = [read.work.text.steps_ahead if read.grows else 1 for read in reads]
        most = min(self._cache.steps_at_once, self._chunk, *ahead)
        if most <= 1:
            return 1
        # All texts run the same number of steps: the one with the least room decides.
        for work in (read.work for read in reads):
            most = min(most, self._before_border(work), work.room - work.pages.length)
        step_s = self._cache.times.estimate(len(reads))
        return most if step_s is None else min(most, max(1, int(_LONGEST_RUN_S / step_s)))

    def _run_several(self, reads: Sequence[Read], most: int) -> None:
        """Run up to `most` steps at once; each text takes as many tokens as it has room for."""
        rows = [
            GreedyRow(work.pages, work.unread[0], work.text.room + 1, work.text.ends)
            for work in (read.work for read in reads)
        ]
        chosen = self._cache.run_greedy(rows, min(most, max(row.room for row in rows)))
        columns = zip(reads, rows, chosen.tokens.T, chosen.logits.T, strict=True)
        for read, row, tokens, logits in columns:
            found = zip(tokens[: row.room].tolist(), logits[: row.room].tolist(), strict=True)
            count = self._take(read.work, list(found))
            self._cache.keep(read.work.pages, tokens[: max(0, count - 1)].tolist())

    def _take(self, work: Work, chosen: Sequence[tuple[int, float]]) -> int:
        """Append tokens with their logits to a text until it ends; return how many."""
        text = work.text
        pieces: list[str] = []
        with self._growing(work, pieces), span("choose token"):
            for token, logit in chosen:
                pieces.append(text.take_largest(token, logit))
                if text.ended:
                    break
        return len(pieces)

    def _run(self, reads: Sequence[Read]) -> None:
        """Run the model on the next tokens of texts, and on guesses after them."""
        self._guess(reads)
        started = time.perf_counter()
        rows = [Row(r.work.pages, r.tokens, r.guessed) for r in reads]
        wanted = self._wanted(reads)
        states: Sequence[RowStates] = []
        values: Sequence[_Values] = []
        if self._watch is not None:
            logits, values = self._run_watched(self._watch, rows)
        elif wanted:
            logits, states = self._cache.run_stated(rows, wanted)
        else:
            logits = self._cache.run(rows)
        # Only time steps of single tokens: a prompt chunk has rows without logits.
        if all([len(read.tokens) == 1 for read in reads]):
            self._guesser.record(len(logits), time.perf_counter() - started)
        first = 0
        for read in reads:
            scores = logits[first : first + 1 + len(read.guessed)]
            first += len(scores)
            if read.work.text.is_scored:
                self._score(read, scores)
            elif read.is_last:
                accepted = self._continue(read.work, scores, read.guessed)
                guesses = read.work.text.guesses
                if guesses is not None and read.guess is not None:
                    rows = len(reads), len(logits)
                    self._guesser.record_guess(guesses, read.guess, accepted, rows)
        for read, found in zip(reads, states, strict=False):
            self._tell_head(read, found, wanted)
        for read, found in zip(reads, values, strict=False):
            self._tell_reader(read.work, found)

    def _run_watched(self, watch: Watch, rows: Sequence[Row]) -> tuple[np.ndarray, list[_Values]]:
        """Run the model in the scope of `watch`; return also the values of the tokens of each row,
        and the position of the first.
        """
        with watch:
            logits, count, places = self._cache.run_placed(rows)
            values = {n: v for n, v in watch.values().items() if v.shape[:1] == (count,)}
        ends = itertools.accumulate(count for _, count in places)
        parts: list[_Values] = []
        for (start, count), end in zip(places, ends, strict=True):
            own = {name: value[end - count : end] for name, value in values.items()}
            parts.append((start, own))
        return logits, parts

    def _tell_reader(self, work: Work, found: _Values) -> None:
        """Pass a text the values of its tokens; an error there ends it."""
        if work.text.reader is not None and work in self._running:
            with self._growing(work, []):
                work.text.reader.take(work.text, *found)

    def _wanted(self, reads: Sequence[Read]) -> tuple[Layers, ...]:
        """Return which states of the model the draft heads of these texts read."""
        if not self._cache.tells_states:
            return ()
        guesses = [each for read in reads if (each := read.work.text.guesses) is not None]
        found = dict.fromkeys(each.layers for each in guesses)
        return tuple(layers for layers in found if layers is not None)

    def _tell_head(self, read: Read, found: RowStates, wanted: tuple[Layers, ...]) -> None:
        """Pass the states of the tokens that a text has kept to its draft head."""
        guesses = read.work.text.guesses
        layers = None if guesses is None else guesses.layers
        if guesses is not None and layers is not None:
            kept = read.work.pages.length - found.start
            guesses.note(found.start, found.states[wanted.index(layers)][:kept])

    def _score(self, read: Read, logits: np.ndarray) -> None:
        """Score the targets of the tokens that a step has read."""
        text, pages = read.work.text, read.work.pages
        text.score(pages.length - 1, logits)
        self._cache.keep(pages, read.guessed)
        if text.ended:
            self._grown.append((text, ""))

    def _guess(self, reads: Sequence[Read]) -> None:
        """Add guesses to the reads of texts with speculative decoding."""
        growing: list[Read] = []
        asked: list[Candidate] = []
        for read in reads:
            text = read.work.text
            if text.guesses is not None and read.grows and read.work.mask is None:
                text.guesses.read(text.tokens)
                growing.append(read)
                room = min(text.room, self._before_border(read.work) - 1)
                room = min(room, read.work.room - len(text.context.tokens))
                room = min(room, self._cache.most_guessed)
                asked.append(Candidate(text.guesses, len(text.tokens), room))
        if asked:
            room = self._chunk - sum(len(read.tokens) for read in reads)
            guesses = self._guesser.guess(asked, len(reads), room)
            for read, guess in zip(growing, guesses, strict=True):
                read.guess = guess

    def _take_in(self) -> None:
        while self._added:
            insort(self._waiting, self._added.popleft(), key=by_priority)

    @property
    def _is_full(self) -> bool:
        return self._most_texts is not None and len(self._running) >= self._most_texts

    def _admit(self) -> None:
        """Start waiting texts in order while there is room.

        A text whose prompt shares a prefix with one being read waits for it, and lets others pass.
        """
        self._take_in()
        waiting = in_order(self._waiting, self._begun)
        for work in self._given_way(waiting) if self._is_full else waiting:
            if self._is_full:
                return
            text = work.text
            known = text.context.tokens[: text.most_shared]
            if self._is_being_read(text) or (self._is_long(work) and self._reads_enough):
                continue
            room = self._first_room(text)
            pages = self._cache.admit(known, room, self._chunk, text.source, text.family)
            # A text without room blocks later ones: if smaller texts could pass, a large one might
            # starve.
            # Running texts will release pages; without any, waiting would never end, hence the
            # error below.
            if pages is None and self._running:
                return
            if pages is None:
                raise CacheBudgetError(
                    f"a text of {work.text.most_positions} positions finds no room: other texts"
                    " that have not ended hold the key/value cache",
                    hint="finish or close them, or raise --cache-budget",
                )
            work.pages, work.room = pages, room
            self._turns.begins(work.priority_key[1])
            self._begun[work.priority_key[0]] = time.perf_counter()
            work.text.start(found=pages.length)
            self._waiting.remove(work)
            self._running.append(work)
            self._prepare(work)

    def _given_way(self, waiting: Sequence[Work]) -> list[Work]:
        """Put a running text back for one that waits, where that is fair; return the latter."""
        now = time.perf_counter()
        if not self._grows or not waiting or now - self._looked < _LOOK_S:
            return []
        self._looked = now
        found = to_yield(waiting, self._running)
        if found is None:
            return []
        self._wait_again(found[1])
        return [found[0]]

    def _first_room(self, text: GeneratedText) -> int:
        """Return the number of positions reserved for a new text."""
        if not self._grows:
            return text.most_positions
        return min(text.most_positions, len(text.context.tokens) + _ROOM)

    def _give_room(self) -> None:
        """Extend texts that are about to fill their room, oldest first."""
        # Oldest first, and the youngest gives way: the oldest always makes progress, so no two
        # texts can push each other out forever.
        for work in sorted(self._running, key=by_priority):
            most, length = work.text.most_positions, len(work.text.context.tokens)
            while work in self._running and work.room < min(most, length + _LEAST_ROOM):
                room = self._first_room(work.text)
                if self._cache.grow(work.pages, room, self._chunk):
                    work.room = room
                else:
                    self._wait_again(max(self._running, key=by_priority))

    def _is_long(self, work: Work) -> bool:
        """Return whether the unread tokens of a text take several steps."""
        return len(work.text.context.tokens) - work.pages.length > self._chunk

    @property
    def _reads_enough(self) -> bool:
        return sum(map(self._is_long, self._running)) >= _MOST_READING

    def _is_being_read(self, text: GeneratedText) -> bool:
        """Return whether a running text is about to fill pages that `text` can share."""
        tokens = text.context.tokens[: text.most_shared]
        for work in self._running:
            if len(work.unread) > 1 and self._cache.chunked and work.text.family == text.family:
                shared = shared_tokens(work.text.context.tokens, tokens[: len(tokens) - 1])
                # Only whole pages are shared, and `admit` finds those already filled.
                if shared // PAGE_SIZE * PAGE_SIZE > work.pages.length:
                    return True
        return False

    def _rows(self) -> list[Read]:
        """Return the tokens of the next step."""
        unread = {work: work.unread for work in self._running}
        reading = [w for w in self._running if self._cache.chunked and len(unread[w]) > 1]
        # Decoding texts take one token each; prompts share the rest of the chunk.
        room = self._chunk - sum(bool(tokens) for tokens in unread.values()) + len(reading)
        shares = read_shares({work: len(unread[work]) for work in reading}, max(1, room))
        rows: list[Read] = []
        for work, tokens in unread.items():
            least = self._least(work, len(tokens))
            taken = tokens[: max(least, shares.get(work, len(tokens)))]
            if taken and work.text.is_scored:
                rows.append(Read(work, taken[:1], is_last=False, scored=taken[1:_MOST_SCORED]))
            elif taken:
                rows.append(Read(work, taken, len(taken) == len(tokens)))
        return rows

    def _before_border(self, work: Work) -> int:
        """Return how many tokens a text can take before it must be read again, at least 1.

        Unlimited if it never must.
        """
        border, length = self._cache.short_context, work.pages.length
        return _ANY if border is None or length > border else max(1, border - length)

    def _least(self, work: Work, unread: int) -> int:
        """Return how many unread tokens of a text must be in one step."""
        border, length = self._cache.short_context, work.pages.length
        return (
            0 if border is None or not length <= border < length + unread else border + 1 - length
        )

    def _continue(self, work: Work, logits: np.ndarray, guess: Sequence[int]) -> int:
        """Choose the next token of a text, and after the prompt of its copies.

        Return how many tokens of the guess were accepted, using the logits after each of them.
        """
        if work.when_read is not None:
            work.when_read(work.pages)
            work.when_read = None
        while work.copies:
            text, request = work.copies.pop(0), work.request
            copy = Work(text, work.priority_key, client=work.client, request=request)
            pages = None if self._is_full else self._cache.fork(work.pages)
            if pages is None:
                insort(self._waiting, copy, key=by_priority)
                continue
            copy.pages, copy.room = pages, work.room
            copy.text.start()
            self._running.append(copy)
            self._prepare(copy)
            self._grow(copy, logits, ())
        accepted = self._grow(work, logits, guess)
        self._cache.keep(work.pages, guess[:accepted])
        return accepted

    def _prepare(self, work: Work) -> None:
        """Start the mask of a text's next token unless it has been started."""
        if self._masks is not None and work.mask is None and work.text.can_prepare:
            work.mask = self._masks.begin(work.text)

    def _waits_for_mask(self, work: Work, logits: np.ndarray) -> bool:
        """Return whether the mask is pending; `logits` are kept until it is ready."""
        if self._masks is None or self._masks.ready(work):
            return False
        # A copy: the buffer of the backend's results is reused by the next step.
        work.logits = logits.copy()
        return True

    def _choose_late(self) -> None:
        """Choose the next tokens of texts whose masks have become ready."""
        for work in list(self._running):
            logits = work.logits
            if logits is not None and work.mask is not None and work.mask.done():
                work.logits = None
                self._grow(work, logits[None], ())

    def _grow(self, work: Work, logits: np.ndarray, guess: Sequence[int]) -> int:
        """Choose tokens while they match the guess, and one more; return the number accepted."""
        pieces: list[str] = []
        accepted = 0
        text = work.text
        known = len(text.tokens)
        if self._waits_for_mask(work, logits[0]):
            return 0
        if work.mask is not None:
            # Masks of guessed tokens would be computed here, in the scheduler's thread.
            guess = ()
        with self._growing(work, pieces), span("choose token"):
            if work.mask is not None:
                work.mask.result()
                work.mask = None
            pieces.append(text.append(logits[0]))
            # A text may end without another token: then the last one does not match the guess.
            while accepted < len(guess) and text.tokens[known + accepted :] == [guess[accepted]]:
                accepted += 1
                if text.ended:
                    break
                pieces.append(text.append(logits[accepted]))
        if not text.ended:
            self._prepare(work)
        return accepted

    @contextmanager
    def _growing(self, work: Work, pieces: list[str]) -> Generator[None]:
        """Scope that appends tokens to a text; reports `pieces`, or the error that stopped it."""
        try:
            yield
        except Exception as error:
            if pieces:  # deliver the pieces first: the next step raises it again
                pass
            elif self._when_failed is None:
                raise
            else:
                self._end(work)
                self._failed.append((work.text, error))
        if pieces:
            self._grown.append((work.text, "".join(pieces)))

    def _settle(self) -> None:
        """Release texts that ended, and restore those whose pages are not in the expected state.

        That happens after a context shift or an interrupt.
        """
        for work in list(self._running):
            if work.text.ended:
                self._end(work)
            elif work.pages.lost:
                self._wait_again(work)
            elif work.text.context.moved or not (work.unread or work.logits is not None):
                self._rewind(work)

    def _rewind(self, work: Work) -> None:
        """Keep the cached part of the context except its last token."""
        tokens = work.text.context.tokens
        # At least one token must stay unread, since its step computes the next logits.
        kept = shared_tokens(work.pages.tokens, tokens[: len(tokens) - 1])
        try:
            self._cache.rewind(work.pages, kept)
        except CacheBudgetError:
            self._wait_again(work)
        work.text.context.moved = False

    def _wait_again(self, work: Work) -> None:
        self._end(work)
        work.pages, work.logits, work.since = TextPages((), [], []), None, time.perf_counter()
        insort(self._waiting, work, key=by_priority)

    def _end(self, work: Work) -> None:
        self._running.remove(work)
        self._cache.release(work.pages)
        if work.text.guesses is not None:
            work.text.guesses.close()
