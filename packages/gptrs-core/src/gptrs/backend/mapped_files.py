"""The mapped files that programs read: detects truncation, reads pages ahead and frees them.
Reading a page past the end of a truncated file ends the process by SIGBUS. A backend that compiles
machine code installs a signal handler that reads and writes `MAPPED_FILES`: it maps zeros for such
pages and counts them, and the backend fails the run when it ends. Its attribute
`reads_mapped_files` is True; all others get weights that are read into memory.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import weakref
from collections.abc import Iterable
from typing import cast

import numpy as np

from gptrs.errors import ModelError
from gptrs.quoting import quoted

RUNNING, NEW, EVER, COUNT, FIRST = range(5)
"""Word offsets in the table: whether a program runs, failed reads in this run and in total, the
number of slots, and the first slot."""
SLOT_WORDS = 3
"""Words of a slot: start address of a mapping, end address, failed reads."""
MOST_FILES = 4096
_PAGE = mmap.PAGESIZE
_PREFETCH_BYTES = 1 << 17
"""Bytes per request: Linux reads little more than its read-ahead window (128 KiB) for each."""


class MappedFiles:
    """A table of int64 words that a signal handler can read; its address never changes."""

    def __init__(self) -> None:
        words = (ctypes.c_int64 * (FIRST + SLOT_WORDS * MOST_FILES))()
        self.address = ctypes.addressof(words)
        """The address of the table."""
        self.table = memoryview(words).cast("B").cast("q")
        """The words of the table."""
        self._paths: dict[int, str] = {}
        self._free: list[int] = []
        """Slots below the count that are free again."""
        self._lock = threading.Lock()

    def add(self, mapping: mmap.mmap, path: str) -> None:
        """Record the address of a mapping during its lifetime; mappings beyond `MOST_FILES` are not
        recorded."""
        memory = np.frombuffer(mapping, np.uint8)
        start = memory.__array_interface__["data"][0]
        with self._lock:
            slot = self._free.pop() if self._free else self.table[COUNT]
            if slot == MOST_FILES:
                return
            self._paths[slot] = path
            self.table[COUNT] = max(self.table[COUNT], slot + 1)
        at = FIRST + SLOT_WORDS * slot
        self.table[at + 2] = 0
        self.table[at + 1] = start + memory.nbytes
        self.table[at] = start
        weakref.finalize(mapping, self._remove, slot).atexit = False

    def _remove(self, slot: int) -> None:
        at = FIRST + SLOT_WORDS * slot
        self.table[at] = self.table[at + 1] = self.table[at + 2] = 0
        del self._paths[slot]
        self._free.append(slot)

    def require_whole(self, arrays: Iterable[object]) -> None:
        """Raise ModelError if the running program read a missing page, or if `arrays` has views of
        a truncated file.
        """
        cut = [slot for slot in sorted(self._paths) if self.table[FIRST + SLOT_WORDS * slot + 2]]
        if self.table[NEW]:
            raise _cut([self._paths[slot] for slot in cut])
        if cut:
            starts = [cast("np.ndarray", each).__array_interface__["data"][0] for each in arrays]
            for slot in cut:
                at = FIRST + SLOT_WORDS * slot
                if any(self.table[at] <= value < self.table[at + 1] for value in starts):
                    raise _cut([self._paths[slot]])


def _cut(paths: list[str]) -> ModelError:
    which = quoted(paths[0], 200) if paths else "a file of weights"
    return ModelError(
        f"{which} became shorter, or cannot be read any more, while the model was in use",
        hint="load the model again; replace a file by renaming a new one, not by writing to it",
    )


MAPPED_FILES = MappedFiles()
"""The mapped files of this process."""


def release_pages(array: np.ndarray) -> None:
    """Let the system reclaim the memory behind an array that is a view of a mapped file.

    The next read loads it again. Other arrays are left alone.
    """
    _advise(array, getattr(mmap, "MADV_DONTNEED", None), None)


def prefetch_pages(array: np.ndarray) -> None:
    """Ask the system to read the part of a mapped file behind an array, without waiting.

    The bytes go to the system's page cache, not to the memory of this process. Other arrays are
    left alone.
    """
    _advise(array, getattr(mmap, "MADV_WILLNEED", None), _PREFETCH_BYTES)


def _advise(array: np.ndarray, advice: int | None, step: int | None) -> None:
    """Give `advice` on all whole pages of an array, `step` bytes at a time."""
    mapping = _mapping(array)
    if mapping is None or advice is None or not array.size:
        return
    start = _address(array) - _address(np.frombuffer(mapping, np.uint8))
    first, last = -(-start // _PAGE) * _PAGE, (start + array.nbytes) // _PAGE * _PAGE
    for begin in range(first, last, step or max(last - first, 1)):
        mapping.madvise(advice, begin, min(step or last - first, last - begin))


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _mapping(array: np.ndarray) -> mmap.mmap | None:
    """Return the read-only mapping under the array, None if it is not a view of one."""
    base: object = array
    while isinstance(base, (np.ndarray, memoryview)):
        base = cast("object", base.base if isinstance(base, np.ndarray) else base.obj)
    # MADV_DONTNEED on a writable private mapping would discard changes.
    return base if isinstance(base, mmap.mmap) and memoryview(base).readonly else None
