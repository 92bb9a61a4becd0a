"""Gives each intermediate a place in the scratch memory, shared by those not alive together."""

from __future__ import annotations

from collections.abc import Sequence

from gptrs_backend_numba.schedule import Call
from gptrs_backend_numba.views import Place, Storage

_ALIGNMENT = 64


def place_scratch(calls: Sequence[Call]) -> int:
    """Set the byte offset of every scratch storage; returns the bytes needed in all.

    Each is placed at the lowest offset that is free from the first call that touches it to the
    last one; in the order of the calls, the larger first where they begin together.
    """
    spans: dict[Storage, list[int]] = {}
    for position, call in enumerate(calls):
        for view in call.views:
            if view.storage.place is Place.SCRATCH:
                spans.setdefault(view.storage, [position, position])[1] = position
    placed: list[tuple[int, Storage]] = []
    needed = 0
    for storage, (first, last) in sorted(
        spans.items(), key=lambda item: (item[1][0], -item[0].nbytes)
    ):
        placed = [(end, other) for end, other in placed if end >= first]
        storage.index = _lowest_gap(storage.nbytes, [other for _, other in placed])
        placed.append((last, storage))
        needed = max(needed, storage.index + storage.nbytes)
    return needed


def _lowest_gap(nbytes: int, others: Sequence[Storage]) -> int:
    offset = 0
    for other in sorted(others, key=lambda other: other.index):
        if offset + nbytes <= other.index:
            break
        end = other.index + other.nbytes
        offset = max(offset, -(-end // _ALIGNMENT) * _ALIGNMENT)
    return offset
