"""Weights of torch as a source of parameters without copies, and the detection of changes."""

from __future__ import annotations

import ctypes
import logging
import mmap
import os
import platform
import struct
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from fcntl import ioctl
from itertools import starmap
from operator import attrgetter, is_
from typing import Final, TypeAlias

import numpy as np
import torch
from blake3 import blake3

from gptrs.api import CheckpointError
from gptrs.api.programs import TensorType
from gptrs_torch.archive import array_of, dtype_of, parts_of

# Which pages of memory were written to, by an interface of Linux 6.7 and later.
#
# In its asynchronous mode, `userfaultfd` protects pages; the kernel removes the protection on the
# first write, and `PAGEMAP_SCAN` lists the pages without one. This covers every write by this
# process: torch, NumPy, C, a system call. It misses writes by other processes to shared memory, so
# shared mappings are refused. See `userfaultfd(2)`, and `Documentation/admin-guide/mm/pagemap.rst`
# in the kernel's sources for the constants.


Range: TypeAlias = tuple[int, int]
"""A range of whole pages: the address of the first byte, and of the one after the last."""
PAGE: Final = mmap.PAGESIZE
_USERFAULTFD: Final = {"x86_64": 323, "aarch64": 282}
"""The number of the system call by machine."""
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
"""Regions of written pages per call; a region is two addresses and its categories."""


class WrittenPages:
    """Ranges of memory that are watched together; `written` once any of them was written to.

    The creator keeps the memory alive and mapped. Raises OSError if the system cannot tell: not
    Linux, an older kernel, a sandbox without `userfaultfd`, or memory shared with other processes.
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
        """Whether these pages were, or may have been, written to since this was created."""
        scan = self._scan
        try:
            return self._stale or any(ioctl(scan, _PAGEMAP_SCAN, each) for each in self._questions)
        except OSError:  # mapped again, and thus unwatched
            return True

    def tell(self, written: Range) -> None:
        """Record pages that were written to, before another watch protects them again."""
        start, end = written
        if any(first < end and start < last for first, last in self._ranges):
            self._stale = True

    def forget(self) -> None:
        """Count as written: a forked process has the pages, but not the watch."""
        self._stale = True


class _Tracker:
    """The watch on the pages of this process; opened on first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: int | None = None
        self._pages = -1
        self._watches: weakref.WeakSet[WrittenPages] = weakref.WeakSet()

    def protect(self, watch: WrittenPages) -> int:
        """Protect the pages of a watch; return the descriptor for queries."""
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
            raise OSError("this system cannot tell which pages were written to")
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
        """Start over in a forked child, where the descriptors refer to the parent's memory."""
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
    """Return a request for at most `most` (0: all) written pages in a range."""
    start, end = pages
    return bytearray(
        _SCAN.pack(
            _SCAN.size, flags, start, end, 0, ctypes.addressof(found), regions, most,
            0, _WRITTEN, 0, _WRITTEN,
        )
    )  # fmt: skip


def _refuse_shared(ranges: Sequence[Range]) -> None:
    """Raise OSError if another process may write to a range."""
    with open("/proc/self/maps", encoding="ascii", errors="replace") as file:
        for line in file:
            where, modes = line.split(maxsplit=2)[:2]
            if modes[3] == "s":
                start, end = (int(each, 16) for each in where.split("-"))
                if any(first < end and start < last for first, last in ranges):
                    raise OSError("memory that is shared with other processes")


Watch: TypeAlias = "Callable[[Sequence[torch.Tensor]], WeightWatch]"
"""Returns a watch on weights."""
_logger = logging.getLogger("gptrs")
_DIGESTED: Final = (
    "each call reads the %.0f MB of the model's weights to see whether they have changed, as the"
    ' system does not tell (%s); with `options={"weights": "frozen"}` it does not'
)
_LEAST_WATCHED: Final = 4 * PAGE
"""Bytes from which asking the system is quicker than comparing."""
_LEAST_TOLD: Final = 1 << 24
"""Bytes that take a few milliseconds to read."""
_threads: Final = [blake3.AUTO]
"""Threads of the digest: one in a forked child, which would wait for workers that only its parent
has."""
os.register_at_fork(after_in_child=lambda: _threads.__setitem__(0, 1))
_COUNTED: Final = (torch.Tensor.data_ptr, attrgetter("_version"))
_LAYOUT: Final = (torch.Tensor.stride, attrgetter("shape"), attrgetter("dtype"))


class TensorSource:
    """Tensors by name; `load` gives a view of the memory of torch.

    The parts of complex numbers are a last axis.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        self._tensors = tensors

    def names(self) -> Sequence[str]:
        """Return the names of all tensors."""
        return tuple(self._tensors)

    def type_of(self, name: str) -> TensorType:
        """Return the element type and shape; CheckpointError if there is no such tensor."""
        held = parts_of(self._tensor(name))
        return TensorType(dtype_of(held.dtype, f"the tensor `{name}`"), tuple(held.shape))

    def load(self, name: str) -> np.ndarray:
        """Return the elements, sharing torch's memory if they are in row-major order."""
        return array_of(parts_of(self._tensor(name)))

    def _tensor(self, name: str) -> torch.Tensor:
        found = self._tensors.get(name)
        if found is None:
            raise CheckpointError(f"the graph has no tensor `{name}`")
        return found


class WeightWatch:
    """Detects changes of weights since its creation.

    Each call compares the identity and address of the tensors, and torch's counts of changes. With
    `contents`, it also checks every byte, since torch does not count changes by `.data` and NumPy:
    small weights are compared with a copy, for others the system lists written pages; if it cannot,
    each call digests all their bytes. With `layouts`, types, shapes and strides are compared, too,
    which Dynamo does by itself.
    """

    def __init__(
        self, weights: Sequence[torch.Tensor], *, contents: bool = True, layouts: bool = False
    ) -> None:
        self._weights = weights
        self._methods = (*_COUNTED, *_LAYOUT) if layouts else _COUNTED
        self._told = self._asked(weights)
        self._held = [weight.detach() for weight in weights]  # or `.data = ` would free the memory
        self._pages: WrittenPages | None = None
        self._small: list[memoryview] = []
        self._large: list[memoryview] = []
        if contents:
            self._watch()
        # Copied once the pages are watched, so that a write in between is noticed.
        self._copy = b"".join(self._small)
        self._digest = self._digested()

    def differ(self, weights: Sequence[torch.Tensor]) -> bool:
        """Return whether these are other tensors, or have other contents."""
        return (
            not all(map(is_, weights, self._weights))
            or self._asked(weights) != self._told
            or b"".join(self._small) != self._copy  # their addresses, which are unchanged
            or (self._pages is not None and self._pages.written)
            or (bool(self._large) and self._digested() != self._digest)
        )

    def _asked(self, weights: Sequence[torch.Tensor]) -> list[list[object]]:
        return [list(map(method, weights)) for method in self._methods]

    def _watch(self) -> None:
        pages: list[Range] = []
        for start, end in map(_addresses, self._held):
            first, last = -(-start // PAGE) * PAGE, end // PAGE * PAGE
            if last - first < _LEAST_WATCHED:
                self._small.append(_bytes_at(start, end))
            else:
                pages.append((first, last))
                self._small += [_bytes_at(start, first), _bytes_at(last, end)]
        try:
            self._pages = WrittenPages(pages)
        except OSError as error:
            self._large = list(starmap(_bytes_at, pages))
            nbytes = sum(last - first for first, last in pages)
            if nbytes >= _LEAST_TOLD:
                _logger.warning(_DIGESTED, nbytes / 1e6, error.strerror or error)

    def _digested(self) -> bytes:
        digest = blake3(max_threads=_threads[0])
        for each in self._large:
            digest.update(each)
        return digest.digest()


def _addresses(tensor: torch.Tensor) -> Range:
    """Return the address of a tensor's first byte, and of the one after its last."""
    start = tensor.data_ptr()
    if not tensor.numel():
        return start, start
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in steps)
    return start, start + (last + 1) * tensor.element_size()


def _bytes_at(start: int, end: int) -> memoryview:
    memory = (ctypes.c_char * (end - start)).from_address(start)
    return np.frombuffer(memoryview(memory), np.uint8).data
