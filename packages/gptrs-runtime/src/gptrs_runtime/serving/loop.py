"""The thread of an engine: takes requests in, runs steps of all models in turn, tells who waits."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence

from gptrs_runtime.serving.answers import AnswerStream
from gptrs_runtime.serving.lane import Lane

_logger = logging.getLogger("gptrs")

_PAUSE_S = 0.005
"""How long to wait where generations besides the engine leave no room in the cache."""


class EngineLoop:
    """Runs the lanes of an engine in a thread that ends after `stop`.

    Other threads give it work by `call`; what they call runs between two steps.
    """

    def __init__(self, lanes: Sequence[Lane]) -> None:
        self._lanes = lanes
        self._calls: deque[Callable[[], None]] = deque()
        self._wake = threading.Event()
        self._stopping = False
        self.steps = 0
        self._thread = threading.Thread(target=self._run, name="gptrs engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def call(self, work: Callable[[], None]) -> None:
        """Have `work` done in the thread before the next step."""
        self._calls.append(work)
        self._wake.set()

    def stop(self) -> None:
        """End the thread after the step that runs; every request that has not ended is cancelled.

        Waits for the thread, unless it is the one that calls.
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
        error: Exception | None = None
        try:
            while not self._stopping:
                self._turn()
        except Exception as problem:  # a fault of the engine itself: nobody may wait for ever
            _logger.critical("the engine has stopped", exc_info=problem)
            error = problem
        finally:
            self._stopping = True
            self._do_calls()
            for lane in self._lanes:
                for stream in lane.streams:
                    lane.end(stream, error)
                _tell(lane.changed())

    def _turn(self) -> None:
        self._do_calls()
        busy = [lane for lane in self._lanes if lane.busy]
        stepped = [lane.step() for lane in busy]
        self.steps += sum(stepped)
        for lane in self._lanes:
            _tell(lane.changed())
        if not any(stepped):
            self._wake.wait(_PAUSE_S if busy else None)
        self._wake.clear()

    def _do_calls(self) -> None:
        while self._calls:
            self._calls.popleft()()


def _tell(streams: Iterable[AnswerStream]) -> None:
    """Wake the threads and tasks that wait for `streams`; of an event loop all at once."""
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
