"""A lock for data that must be consistent on both sides of a fork."""

from __future__ import annotations

import os
import threading
import weakref
from types import TracebackType


class ForkSafeLock:
    """Lock that forks wait for; hold it in `with`, and only briefly.

    A fork copies the memory in its current state, but only one of the threads. Data that another
    thread was changing would remain half changed in the child, behind a lock that is never
    released.
    """

    def __init__(self) -> None:
        self.inner = threading.Lock()
        """The lock itself, which is faster in `with`: for paths that every call takes."""
        _locks.add(self)

    def __enter__(self) -> None:
        self.inner.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.inner.release()


_locks = weakref.WeakSet[ForkSafeLock]()
_held: list[ForkSafeLock] = []


def _hold_all() -> None:
    for lock in list(_locks):
        lock.__enter__()
        _held.append(lock)


def _release_all() -> None:
    while _held:
        _held.pop().__exit__(None, None, None)


os.register_at_fork(before=_hold_all, after_in_parent=_release_all, after_in_child=_release_all)
