"""A thread that has the system read weights from their file while others are computed with."""

from __future__ import annotations

import contextlib
import queue
import threading
import weakref
from collections.abc import Sequence

from gptrs.capture.parameter import Parameter
from gptrs.errors import GptrsError

try:
    import resource
except ImportError:  # where there is no such system call
    resource = None

_Queue = queue.Queue[Sequence[weakref.ref[Parameter]] | None]
_MOST_WAITING = 8
"""Groups of weights; a thread that is further behind than that only gets in the way."""


class Prefetcher:
    """Its thread starts with the first `prefetch` in each process, and ends with this object.

    It works only while this process makes the disk work: advice on pages that the system has in
    its cache takes time from the computation and gains nothing.
    """

    def __init__(self) -> None:
        self._reads: int | None = None
        self._waiting: _Queue = queue.Queue(_MOST_WAITING)
        self._thread: threading.Thread | None = None

    def prefetch(self, weights: Sequence[Parameter]) -> None:
        """Have the files of these weights read, unless the thread is behind already."""
        before, self._reads = self._reads, _disk_reads()
        if before is not None and before == self._reads:
            return
        if self._thread is None or not self._thread.is_alive():  # as after a fork
            self._start()
        with contextlib.suppress(queue.Full):
            self._waiting.put_nowait([weakref.ref(weight) for weight in weights])

    def _start(self) -> None:
        self._waiting = queue.Queue(_MOST_WAITING)
        arguments = (self._waiting,)
        self._thread = threading.Thread(
            target=_serve, args=arguments, name="gptrs-prefetch", daemon=True
        )
        self._thread.start()
        # At exit nobody waits for the thread; in a forked child the queue may be locked for good.
        weakref.finalize(self, _stop, self._waiting).atexit = False


def _disk_reads() -> int | None:
    """Return a number that grows when this process reads from a disk, None if it is unknown."""
    if resource is None:
        return None
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_inblock + usage.ru_majflt


def _serve(waiting: _Queue) -> None:
    while (weights := waiting.get()) is not None:
        for reference in weights:
            _prefetch(reference())


def _prefetch(weight: Parameter | None) -> None:
    if weight is not None and not weight.loaded:
        # An error in the file is reported when the weight is loaded.
        with contextlib.suppress(GptrsError, OSError, ValueError):
            weight.prefetch()


def _stop(waiting: _Queue) -> None:
    """End the thread, and drop the weights that still wait."""
    with contextlib.suppress(queue.Empty):
        while True:
            waiting.get_nowait()
    waiting.put(None)
