"""A thread that lets the system read weights from their file while others are computed with."""

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

_Requests = queue.Queue[Sequence[weakref.ref[Parameter]] | None]
_MOST_WAITING = 8
"""Requests; a thread that is further behind than that only gets in the way."""


class Prefetcher:
    """Its thread starts with the first request, in each process, and ends with this object.

    Requests count as long as this process makes the disk work: to ask for what the system has in
    its cache takes time that the computation lacks.
    """

    def __init__(self) -> None:
        self._reads: int | None = None
        self._requests: _Requests = queue.Queue(_MOST_WAITING)
        self._thread: threading.Thread | None = None

    def ask_for(self, weights: Sequence[Parameter]) -> None:
        """Have the files of these weights read ahead, unless the thread is behind already."""
        before, self._reads = self._reads, _disk_reads()
        if before is not None and before == self._reads:
            return
        if self._thread is None or not self._thread.is_alive():  # as after a fork
            self._start()
        with contextlib.suppress(queue.Full):
            self._requests.put_nowait([weakref.ref(weight) for weight in weights])

    def _start(self) -> None:
        self._requests = queue.Queue(_MOST_WAITING)
        arguments = (self._requests,)
        self._thread = threading.Thread(
            target=_serve, args=arguments, name="gptrs-prefetch", daemon=True
        )
        self._thread.start()
        # At exit nobody waits for the thread; in a forked child the queue may be locked for good.
        weakref.finalize(self, _stop, self._requests).atexit = False


def _disk_reads() -> int | None:
    """A number that grows when this process reads from a disk, None where that is not known."""
    if resource is None:
        return None
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_inblock + usage.ru_majflt


def _serve(requests: _Requests) -> None:
    while (weights := requests.get()) is not None:
        for reference in weights:
            _ask_ahead(reference())


def _ask_ahead(weight: Parameter | None) -> None:
    if weight is not None and not weight.loaded:
        # Whatever is wrong with the file is said when the weight is loaded.
        with contextlib.suppress(GptrsError, OSError, ValueError):
            weight.ask_ahead()


def _stop(requests: _Requests) -> None:
    """End the thread; what still waits is no longer wanted."""
    with contextlib.suppress(queue.Empty):
        while True:
            requests.get_nowait()
    requests.put(None)
