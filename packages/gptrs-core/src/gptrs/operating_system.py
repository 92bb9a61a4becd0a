"""Differences between operating systems: locks of files, and the peak memory of a process."""

from __future__ import annotations

import fcntl
import resource
import sys


def lock_file(descriptor: int, *, wait: bool = False) -> None:
    """Lock an open file or folder against other processes until it is closed, or this one ends.

    BlockingIOError if another process has it, unless it is to `wait`; OSError on file systems
    without locks.
    """
    fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)


def peak_memory() -> int:
    """Return the most bytes of memory that this process has had at a time."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
