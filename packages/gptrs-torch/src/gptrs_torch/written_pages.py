"""Which pages of memory were written to, as Linux 6.7 and later tell a process of its own.

`userfaultfd` protects pages in its asynchronous mode: the first write to one takes the protection
off, in the kernel, and `PAGEMAP_SCAN` lists the pages that have none. Both count every write of
this process, whoever does it: torch, NumPy, C, a system call. One of another process to memory
that is shared is not among them, so shared mappings are refused. See `userfaultfd(2)`, and
`Documentation/admin-guide/mm/pagemap.rst` in the kernel's sources for the constants.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import struct
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from fcntl import ioctl
from typing import Final, TypeAlias

Range: TypeAlias = tuple[int, int]
"""The addresses of a range of whole pages: the first byte, and the one after the last."""
PAGE: Final = mmap.PAGESIZE
_USERFAULTFD: Final = {"x86_64": 323, "aarch64": 282}
"""The number of the system call."""
_USER_MODE_ONLY: Final = 1
_UFFDIO_API: Final = 0xC018AA3F
_API: Final = 0xAA
_WP_ASYNC: Final = 1 << 15
_UFFDIO_REGISTER: Final = 0xC020AA00
_MODE_WP: Final = 1 << 1
_PAGEMAP_SCAN: Final = 0xC0606610
_PROTECT: Final = 1 << 0
_REQUIRE_ASYNC: Final = 1 << 1
_WRITTEN: Final = 1 << 1
_SCAN: Final = struct.Struct("12Q")
"""`struct pm_scan_arg`: size, flags, start, end, walk_end, vec, vec_len, max_pages, and 4 masks."""
_WALK_END: Final = 4
_REGIONS: Final = 256
"""Regions of written pages that one call lists, each as its two addresses and its categories."""


class WrittenPages:
    """Ranges of memory that are looked at together; `written` after any of them was written to.

    Whoever makes one holds the memory, so that it stays what it is. OSError where the system does
    not tell: another one than Linux, an older kernel, a sandbox without `userfaultfd`, or memory
    that is shared with other processes.
    """

    def __init__(self, ranges: Sequence[Range]) -> None:
        self._ranges = ranges
        self._stale = False
        self._scan = -1
        found = (ctypes.c_uint64 * 3)()
        self._found = found
        self._questions = [_question(_REQUIRE_ASYNC, each, found, 1, 1) for each in ranges]
        if ranges:
            self._scan = _TRACKER.protect(self)

    @property
    def written(self) -> bool:
        """Whether a byte of these pages was written to since this was made, or may have been."""
        scan = self._scan
        try:
            return self._stale or any(ioctl(scan, _PAGEMAP_SCAN, each) for each in self._questions)
        except OSError:  # mapped anew: that memory is not watched
            return True

    def tell(self, written: Range) -> None:
        """Take note of pages that were written to, before another one protects them again."""
        start, end = written
        if any(first < end and start < last for first, last in self._ranges):
            self._stale = True

    def forget(self) -> None:
        """Count as written: a forked process has the pages, but not what watches them."""
        self._stale = True


class _Tracker:
    """Watches the pages of this process; opened for the first that asks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: int | None = None
        self._pages = -1
        self._watches: weakref.WeakSet[WrittenPages] = weakref.WeakSet()

    def protect(self, watch: WrittenPages) -> int:
        """Protect the pages of a watch; return the descriptor that tells which were written to."""
        ranges = watch._ranges  # pyright: ignore[reportPrivateUsage]
        with self._lock:
            if self._faults is None:
                self._open()
            assert self._faults is not None
            _refuse_shared(ranges)
            for start, end in ranges:
                given = bytearray(struct.pack("4Q", start, end - start, _MODE_WP, 0))
                ioctl(self._faults, _UFFDIO_REGISTER, given)
            for each in ranges:
                self._protect_range(each)
            self._watches.add(watch)
            return self._pages

    def _protect_range(self, pages: Range) -> None:
        start, end = pages
        found = (ctypes.c_uint64 * (3 * _REGIONS))()
        while start < end:
            asked = _question(_PROTECT | _REQUIRE_ASYNC, (start, end), found, _REGIONS, 0)
            count = ioctl(self._pages, _PAGEMAP_SCAN, asked)
            for region in range(count):
                for other in list(self._watches):
                    other.tell((found[3 * region], found[3 * region + 1]))
            start = _SCAN.unpack(asked)[_WALK_END]

    def _open(self) -> None:
        number = _USERFAULTFD.get(platform.machine())
        if number is None or platform.system() != "Linux":
            raise OSError("this system does not tell which pages were written to")
        library = ctypes.CDLL(None, use_errno=True)
        faults = library.syscall(number, os.O_CLOEXEC | os.O_NONBLOCK | _USER_MODE_ONLY)
        if faults < 0:
            raise OSError(ctypes.get_errno(), "userfaultfd")
        try:
            ioctl(faults, _UFFDIO_API, bytearray(struct.pack("3Q", _API, _WP_ASYNC, 0)))
            self._pages = os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            os.close(faults)
            raise
        self._faults = faults

    def begin_anew(self) -> None:
        """In a forked child: the descriptors are those of the parent's memory."""
        self._lock = threading.Lock()
        for watch in list(self._watches):
            watch.forget()
        if self._faults is not None:
            for each in (self._faults, self._pages):
                with suppress(OSError):
                    os.close(each)
        self._faults, self._watches = None, weakref.WeakSet()


_TRACKER: Final = _Tracker()
os.register_at_fork(after_in_child=_TRACKER.begin_anew)


def _question(
    flags: int, pages: Range, found: ctypes.Array[ctypes.c_uint64], regions: int, most: int
) -> bytearray:
    """Return a request for the written pages in a range, `most` of them; 0: all."""
    start, end = pages
    return bytearray(
        _SCAN.pack(
            _SCAN.size, flags, start, end, 0, ctypes.addressof(found), regions, most,
            0, _WRITTEN, 0, _WRITTEN,
        )
    )  # fmt: skip


def _refuse_shared(ranges: Sequence[Range]) -> None:
    """OSError if a range lies in memory that another process may write to."""
    with open("/proc/self/maps", encoding="ascii", errors="replace") as file:
        for line in file:
            where, modes = line.split(maxsplit=2)[:2]
            if modes[3] == "s":
                start, end = (int(each, 16) for each in where.split("-"))
                if any(first < end and start < last for first, last in ranges):
                    raise OSError("memory that is shared with other processes")
