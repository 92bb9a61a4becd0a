"""Memory behind arrays that are views of mapped files: pages are prefetched, and given back."""

from __future__ import annotations

import mmap
from typing import cast

import numpy as np

_PAGE = mmap.PAGESIZE
_PREFETCH_BYTES = 1 << 17
"""Bytes of one request: Linux reads little more than its read-ahead window (128 KiB) for one."""


def release_pages(array: np.ndarray) -> None:
    """Let the system take back the memory behind an array that is a part of a mapped file.

    The next read brings it in again. Any other array is left alone.
    """
    _advise(array, getattr(mmap, "MADV_DONTNEED", None), None)


def prefetch_pages(array: np.ndarray) -> None:
    """Have the system read the part of a mapped file that an array is, without waiting for it.

    The bytes go to the cache of the system, not to the memory of this process. Any other array is
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
    """Return the read-only mapping that the array is a view of, None if there is none."""
    base: object = array
    while isinstance(base, (np.ndarray, memoryview)):
        base = cast("object", base.base if isinstance(base, np.ndarray) else base.obj)
    # MADV_DONTNEED on a writable private mapping would throw changes away.
    return base if isinstance(base, mmap.mmap) and memoryview(base).readonly else None
