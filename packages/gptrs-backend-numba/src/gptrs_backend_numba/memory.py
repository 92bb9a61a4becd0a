"""Addresses of NumPy arrays, arrays that begin at a cache line, and what fresh memory holds."""

from __future__ import annotations

import atexit
import ctypes
import os
import struct
import sys
import threading
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import cache

import numpy as np

from gptrs.errors import UsageError
from gptrs.quoting import quoted
from gptrs_backend_numba.codegen.compiled import compiled
from gptrs_backend_numba.codegen.machine_code import Kernel
from gptrs_backend_numba.codegen.tasks import (
    STATE_WORDS,
    run_tasks_kernel,
    stop_kernel,
    worker_kernel,
)

VARIABLE = "GPTRS_NUMBA_FILL"
"""A byte that all fresh memory is filled with; results must not depend on it."""
_M_PERTURB = -6
"""The option of glibc that fills what `malloc` returns with the complement of a byte."""
_ALIGNMENT = 64
"""Bytes of a cache line; vectors that straddle two are slower."""
_BLOCK = 1 << 26
"""Bytes of a block of an arena. Of those that nothing was written to, none is taken."""


def _interface_address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _interface_dense_address(array: np.ndarray) -> int | None:
    flags = array.flags
    return _interface_address(array) if flags.c_contiguous and flags.aligned else None


def _object_address(array: np.ndarray) -> int:
    return _fields(_OBJECTS, id(array))[0]


def _object_dense_address(array: np.ndarray) -> int | None:
    address, flags = _fields(_OBJECTS, id(array))
    return address if flags & _DENSE == _DENSE else None


_HEAD = object.__basicsize__
"""Bytes of the head of an object of CPython."""
_OBJECTS = memoryview((ctypes.c_char * (sys.maxsize - _HEAD)).from_address(_HEAD))
"""All memory, which the `id` of an object points to behind its head."""
_fields = struct.Struct("P 40x i").unpack_from
"""Of the fields of an array the address of the elements and the flags: NumPy's C interface promises
where they are, and extensions are compiled for it."""
_DENSE = 0x101
"""The flags of an array whose elements are contiguous in C's order, and aligned."""


def _is_known() -> bool:
    """Whether the fields of arrays are what NumPy tells of them.

    NumPy's description of an array takes 2.4 us on a Zen 3, as long as a small kernel; this 0.15.
    """
    if sys.implementation.name != "cpython":
        return False
    whole = np.empty((3, 4), np.float32)
    odd = np.empty(9, np.uint8)[1:].view(np.int64)
    return all(
        _object_address(x) == _interface_address(x)
        and _object_dense_address(x) == _interface_dense_address(x)
        for x in (whole, whole[1:, 2:], whole.T, odd)
    )


_KNOWN = _is_known()
address_of: Callable[[np.ndarray], int] = _object_address if _KNOWN else _interface_address
"""Where the first element of an array lies; the caller must keep the array alive."""
dense_address: Callable[[np.ndarray], int | None] = (
    _object_dense_address if _KNOWN else _interface_dense_address
)
"""The same, None for an array that is not dense and aligned, as kernels need it."""


def aligned(nbytes: int) -> np.ndarray:
    """Return an uninitialized byte array that begins at a cache line; see `fill_byte`."""
    raw = np.empty(nbytes + _ALIGNMENT, np.uint8)
    start = -address_of(raw) % _ALIGNMENT
    piece = raw[start : start + nbytes]
    byte = fill_byte()
    if byte is not None:
        piece.fill(byte)
    return piece


def fill_byte() -> int | None:
    """Return the byte of `GPTRS_NUMBA_FILL` that fresh memory is filled with, None if it is unset.

    A value that nobody has written then shows in results, and changes with the byte. UsageError for
    anything but a number from 0 to 255.
    """
    text = os.environ.get(VARIABLE, "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and int(text) < 256):
        raise UsageError(f"`{VARIABLE}` must be a byte, 0 to 255, got {quoted(text)}")
    return int(text)


@contextmanager
def kernel_memory_filled(byte: int) -> Generator[None]:
    """Scope in which kernels take memory that is filled: with `byte`, for 255 with 254.

    Only by glibc, and only pieces of more than 1 KiB: it keeps small ones for each thread.
    """
    option = _mallopt()
    if option is None:
        yield
        return
    option(_M_PERTURB, ~byte & 0xFF or 1)  # 0 ends it
    try:
        yield
    finally:
        option(_M_PERTURB, 0)


@cache
def _mallopt() -> Callable[[int, int], int] | None:
    return getattr(ctypes.CDLL(None), "mallopt", None)


class Arena:
    """Makes arrays that stay: pieces of blocks that are large enough for large pages.

    To read through matrices in small pages takes a fifth longer. A block goes with its last piece.
    """

    def __init__(self) -> None:
        self._block = weakref.ref(np.empty(0, np.uint8))
        self._used = 0

    def aligned(self, nbytes: int) -> np.ndarray:
        """As the function of this name."""
        if nbytes > _BLOCK // 4 or fill_byte() is not None:
            return aligned(nbytes)
        block = self._block()
        if block is None or self._used + nbytes > block.nbytes:
            block = np.empty(_BLOCK, np.uint8)
            self._block, self._used = weakref.ref(block), -address_of(block) % _ALIGNMENT
        piece = block[self._used : self._used + nbytes]
        self._used += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
        return piece


# The worker threads of this process: Python threads that stay in compiled code without the GIL.


class Pool:
    """Workers that wait for jobs; see `gptrs_backend_numba.codegen.tasks`.

    Only one thread may run a job at a time.
    """

    def __init__(self) -> None:
        self._state = aligned(8 * STATE_WORDS)
        self._state[:] = np.zeros(8 * STATE_WORDS, np.uint8)
        self._workers: list[threading.Thread] = []

    @property
    def address(self) -> int:
        """Where the shared state lies: the first argument of `run_tasks`."""
        return address_of(self._state)

    def grow(self, threads: int) -> None:
        """Start workers until there are `threads - 1` beside the calling thread."""
        while len(self._workers) < threads - 1:
            number = len(self._workers) + 1
            worker = threading.Thread(
                target=compiled(worker_kernel),
                args=(self.address, number),
                name=f"gptrs-numba-{number}",
                daemon=True,
            )
            worker.start()
            self._workers.append(worker)
            if number == 1:
                # The interpreter frees compiled code when it ends; nobody may be in it by then.
                atexit.register(self._stop, compiled(stop_kernel))

    def forget_workers(self) -> None:
        """Forget all workers in a forked child, which has none of the threads."""
        self._state[:] = 0
        self._workers = []

    def _stop(self, stop: Kernel) -> None:
        stop(self.address)
        for worker in self._workers:
            worker.join(timeout=1.0)


def run_tasks() -> Kernel:
    """Return the kernel that runs a job; compiled on first use."""
    return compiled(run_tasks_kernel)


POOL = Pool()
"""The workers of this process."""
