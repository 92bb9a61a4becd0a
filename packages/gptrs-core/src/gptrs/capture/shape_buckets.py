"""Buckets for growing sizes, so that few programs are compiled as a size grows."""

from __future__ import annotations

from gptrs.errors import UsageError


def bucket(size: int, first: int = 64, limit: int | None = None) -> int:
    """Return the smallest of `first`, `2 * first`, ... that holds `size`, at most `limit`.

    A program is compiled for the shapes of its inputs. A buffer that grows by single elements needs
    a program per size; one that grows by buckets needs a number of programs logarithmic in its
    final size. UsageError beyond `limit`, which is itself the last bucket, and for a negative size
    or a first bucket below 1.

    >>> [bucket(size, first=4, limit=10) for size in (0, 4, 5, 8, 9)]
    [4, 4, 8, 8, 10]
    """
    if size < 0 or first < 1:
        raise UsageError(
            f"`bucket` needs a size >= 0 and a first bucket >= 1, got {size} and {first}"
        )
    if limit is not None and size > limit:
        raise UsageError(f"a size of {size} is beyond the last bucket, {limit}")
    doublings = max(0, (size - 1) // first).bit_length()
    found = first << doublings
    return found if limit is None else min(found, limit)
