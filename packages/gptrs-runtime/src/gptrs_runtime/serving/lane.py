"""One model of an engine: its scheduler, and the requests behind its texts."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final

from gptrs.errors import CacheBudgetError, EngineBusyError, GptrsError, TimeLimitError
from gptrs_runtime.generation.generated_text import GeneratedText
from gptrs_runtime.generation.masks_beside import MasksBeside
from gptrs_runtime.generation.options import GenerationOptions
from gptrs_runtime.generation.paged_cache import own_cache
from gptrs_runtime.generation.setup import GenerationSetup
from gptrs_runtime.generation.step_times import cache_budget, cache_dtype
from gptrs_runtime.generation.watching import Watch
from gptrs_runtime.serving.answers import AnswerStream, Family

_logger = logging.getLogger("gptrs")

_ATTEMPTS = 2
"""Attempts at a step before its texts are given up."""


_FORECAST_FROM: Final = 64
"""Number of recent answers from which the rate of ends is estimated: a few seconds of a busy
server."""
_FORECAST_S: Final = 60.0
"""Age in seconds beyond which they are ignored: the load may have changed."""


class Lane:
    """The texts of a model or a family; everything except `check` runs in the engine's thread.

    The steps of a lane with a `watch` run in its scope, in a key/value cache of the lane.
    """

    def __init__(
        self,
        family: Family,
        options: GenerationOptions,
        most_texts: int,
        masks: MasksBeside,
        watch: Watch | None = None,
    ) -> None:
        self.family = family
        self.options = options
        self.watch = watch
        setup = GenerationSetup(family.models[0], options)
        if watch is None:
            self._cache = family.new_cache(options) or setup.cache
        else:
            # Keys and values of changed states must not be found by other texts.
            self._cache = own_cache(
                family.models[0],
                cache_dtype(options.cache_dtype),
                cache_budget(options.cache_budget),
            )
        self._scheduler = setup.new_scheduler(
            most_texts, self._failed, self._cache, grows=True, masks=masks, watch=watch
        )
        self._streams: dict[GeneratedText, AnswerStream] = {}
        self.requests: weakref.WeakSet[AnswerStream] = weakref.WeakSet()
        """The requests that were submitted, whether or not they have begun."""
        self._failures = 0
        self._changed: set[AnswerStream] = set()
        self._ends: deque[float] = deque(maxlen=_FORECAST_FROM)
        """When the last answers ended, by `time.perf_counter`."""

    @property
    def can_score(self) -> bool:
        """Whether prompts can be scored in steps: states cannot be rewound, and a text that exceeds
        a short context must be read in one step.
        """
        cache = self._cache
        return cache is not None and not cache.keeps_states and cache.short_context is None

    @property
    def busy(self) -> bool:
        """Whether there are texts that have not ended."""
        return self._scheduler.busy

    @property
    def running(self) -> int:
        """How many texts have begun and not ended."""
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        """How many texts have not begun."""
        return self._scheduler.waiting

    @property
    def requests_open(self) -> bool:
        """Whether a request that was submitted has not ended."""
        return any(not stream.done for stream in list(self.requests))

    @property
    def streams(self) -> set[AnswerStream]:
        """The requests that have not ended."""
        return set(self._streams.values())

    def seconds_for(self, answers: int) -> float | None:
        """Estimate the seconds until `answers` answers have ended, from the rate of recent ones.

        None if too few have ended recently.
        """
        ends = list(self._ends)
        if len(ends) < 2 or time.perf_counter() - ends[-1] > _FORECAST_S:
            return None
        return answers * (ends[-1] - ends[0]) / (len(ends) - 1)

    def check(self, text: GeneratedText) -> None:
        """Raise CacheBudgetError if the cache would not even hold the text alone."""
        if self._cache is not None:
            self._cache.require(text.most_positions, self.options.prefill_chunk)

    def cache_pages(self) -> tuple[int, int]:
        """Return how many pages of the cache texts hold, and the most that there may be."""
        groups = self._cache.pool.groups if self._cache is not None else ()
        return sum(group.held for group in groups), sum(g.layout.most_pages for g in groups)

    def add(self, stream: AnswerStream, priority: int, client: Hashable = None) -> None:
        """Add the answers of a request, which read its prompt once."""
        for text in stream.texts:
            self._streams[text] = stream
        # The copies fork the pages of the first once its prompt is read.
        first, *copies = stream.texts
        since = stream.submitted
        self._scheduler.add(first, copies, priority=priority, client=client, since=since)

    def end(self, stream: AnswerStream, error: Exception | None = None) -> None:
        """Remove a request in any state, and pass it the reason."""
        for text in stream.texts:
            if self._streams.pop(text, None) is not None:
                self._scheduler.cancel(text)
        stream.end(error)
        self._changed.add(stream)

    def step(self) -> bool:
        """Run the model once; return whether it did.

        If texts of other schedulers leave no room, the step must be tried again. A failed step is
        also repeated, after some attempts without its running texts.
        """
        try:
            grown = self._scheduler.step()
        except CacheBudgetError:
            return False
        except Exception as error:
            self._failures += 1
            # The first failure may be an interrupt or a temporary lack of memory, so repeat the
            # step.
            if self._failures >= _ATTEMPTS:
                self._give_up(error)
            return True
        self._failures = 0
        for text, piece in grown:
            self._grow(text, piece)
        return True

    def end_overdue(self, now: float, most_wait: float | None) -> None:
        """End requests past their time limit, and those that have waited `most_wait` seconds."""
        for stream in self.streams:
            seconds = now - stream.submitted
            if stream.time_limit is not None and seconds >= stream.time_limit:
                told = f"the answer was not whole after {stream.time_limit:g} s, its time limit"
                self.end(stream, TimeLimitError(told))
            elif most_wait is not None and seconds >= most_wait and not stream.has_begun:
                error = EngineBusyError(
                    f"the request has waited for {most_wait:g} s, the longest that one may",
                    hint="try again later",
                )
                # All requests waiting now will precede it if it is sent again.
                forecast = self.seconds_for(self.waiting)
                error.retry_after = most_wait if forecast is None else forecast
                self.end(stream, error)

    def changed(self) -> set[AnswerStream]:
        """Return the requests that changed since the last call."""
        changed, self._changed = self._changed, set()
        return changed

    def _grow(self, text: GeneratedText, piece: str) -> None:
        stream = self._streams.get(text)
        if stream is not None:
            stream.grow(text, piece)
            self._changed.add(stream)
            if text.ended:
                self._ends.append(time.perf_counter())
                del self._streams[text]

    def _failed(self, text: GeneratedText, error: Exception) -> None:
        stream = self._streams.get(text)
        if stream is not None:
            self.end(stream, error)

    def _give_up(self, error: Exception) -> None:
        """End the running texts, since one may cause the failures. Waiting texts continue."""
        if not isinstance(error, GptrsError):
            _logger.error("a step of `%s` failed", self.family.models[0].name, exc_info=error)
        self._failures = 0
        running = {self._streams[t] for t in self._scheduler.running if t in self._streams}
        for stream in running:
            self.end(stream, error)


# The thread of an engine: accepts requests, runs steps of all models in turn, notifies waiters.


_LOOK_S = 0.1
"""Seconds between checks for overdue requests."""
_PAUSE_S = 0.005
"""Seconds to wait if generations outside the engine leave no room in the cache."""


class EngineLoop:
    """Runs the lanes of an engine in a thread that ends after `stop`.

    Other threads submit work with `call`, which runs between two steps.
    """

    def __init__(
        self, lanes: Sequence[Lane], masks: MasksBeside, most_wait: float | None = None
    ) -> None:
        self._lanes = list(lanes)
        self._most_wait = most_wait
        self._looked = 0.0
        self._masks = masks
        # `append` and `popleft` of a deque are atomic, so other threads need no lock.
        self._calls: deque[Callable[[], None]] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self.steps = 0
        self.fault: Exception | None = None
        """The error that ended the thread; None while it runs and after `stop`."""
        self._thread = threading.Thread(target=self._run, name="gptrs engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def add(self, lane: Lane) -> None:
        """Run a further lane."""
        self.call(lambda: self._lanes.append(lane))

    def drop(self, lane: Lane) -> None:
        """Run a lane no more, after its requests have ended; called in the thread."""
        self._lanes.remove(lane)
        _tell(lane.changed())

    def call(self, work: Callable[[], None]) -> None:
        """Have `work` done in the thread before the next step."""
        self._calls.append(work)
        self._wake.set()

    def stop(self) -> None:
        """End the thread after the step that runs; every request that has not ended is cancelled.

        Waits for the thread, unless called by it.
        """
        self._stopping = True
        self._wake.set()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join()

    @property
    def alive(self) -> bool:
        """Whether requests are served."""
        return self._thread.is_alive() and not self._stopping

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
        except Exception as problem:  # a fault of the engine itself: no caller may wait forever
            _logger.critical("the engine has stopped", exc_info=problem)
            self.fault = problem
        finally:
            self._stopping = True
            self._masks.close()
            # After `_stopping` is set: requests that arrived meanwhile get an error instead of
            # waiting.
            self._do_calls()
            for lane in self._lanes:
                for stream in lane.streams:
                    lane.end(stream, self.fault)
                _tell(lane.changed())

    def _turn(self) -> None:
        self._do_calls()
        busy = self._due()
        stepped = [lane.step() for lane in busy]
        self.steps += sum(stepped)
        now = time.perf_counter()
        if now - self._looked >= _LOOK_S:
            self._looked = now
            for lane in busy:
                lane.end_overdue(now, self._most_wait)
        for lane in self._lanes:
            _tell(lane.changed())
        if not any(stepped):
            self._wake.wait(_PAUSE_S if busy else None)
        # Work queued after the wait and before this is not lost: the next turn runs `_do_calls`
        # first.
        self._wake.clear()

    def _due(self) -> list[Lane]:
        """Return the busy lanes that take the next step: of those with a watch, one in turn."""
        busy = [lane for lane in self._lanes if lane.busy]
        # Each request may bring a watch of its own: if all stepped in every turn, a few clients
        # would slow everybody else down many times over.
        first = next((lane for lane in busy if lane.watch is not None), None)
        if first is None:
            return busy
        self._lanes.remove(first)
        self._lanes.append(first)
        return [lane for lane in busy if lane.watch is None or lane is first]

    def _do_calls(self) -> None:
        while self._calls:
            self._calls.popleft()()


def _tell(streams: Iterable[AnswerStream]) -> None:
    """Wake the threads and tasks that wait for `streams`, those of an event loop in one call."""
    tasks: dict[asyncio.AbstractEventLoop, list[AnswerStream]] = {}
    for stream in streams:
        loop = stream.wake()
        if loop is not None:
            tasks.setdefault(loop, []).append(stream)
    for loop, waiting in tasks.items():
        try:
            loop.call_soon_threadsafe(_wake_tasks, waiting)
        except RuntimeError:  # the event loop is closed: nobody will read these
            for stream in waiting:
                stream.cancel()


def _wake_tasks(streams: Sequence[AnswerStream]) -> None:
    for stream in streams:
        stream.wake_task()
