"""The places of intermediates in scratch memory, shared by those not alive together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gptrs.ir.size_guards import active_guards, greatest
from gptrs.ir.symbolic_dim import symbols_of
from gptrs.quick_dataclass import dataclass
from gptrs_backend_numba.jumps import Jump, Label, Next
from gptrs_backend_numba.schedule import ScheduleStep
from gptrs_backend_numba.views import MemorySpace, Storage

_ALIGNMENT = 64


def place_scratch(steps: Sequence[ScheduleStep], shared: bool = True) -> int:
    """Set the byte offset of every scratch storage; return the bytes needed in all.

    Each is placed at the lowest offset that is free from the first step that touches it to the
    last one; in the order of the steps, the larger first where they begin together. What a loop
    shares with the steps around it is needed as long as the loop lasts.

    Symbolic sizes cannot be compared: such storages share places as large as the largest of them.
    Unless memory is `shared`, each has a place of its own for the whole run.
    """
    spans = _spans(steps)
    if not shared:
        spans = dict.fromkeys(spans, (0, len(steps)))
    if symbols_of(storage.nbytes for storage in spans):
        return _place_symbolic(spans)
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


@dataclass(slots=True)
class _Place:
    """Memory for storages that are never needed at the same time."""

    nbytes: int
    last: int
    """The last step that uses it."""
    storages: list[Storage]


def _place_symbolic(spans: Mapping[Storage, tuple[int, int]]) -> int:
    places: list[_Place] = []
    for storage, (first, last) in sorted(spans.items(), key=lambda item: item[1][0]):
        free = [place for place in places if place.last < first]
        place = next((place for place in free if place.nbytes == storage.nbytes), None)
        if place is None and free:
            # Sizes change, their order hardly ever does: the place that grows least now is taken.
            place = min(free, key=lambda place: _growth(place.nbytes, storage.nbytes))
        if place is None:
            place = _Place(storage.nbytes, last, [])
            places.append(place)
        place.nbytes = greatest(place.nbytes, storage.nbytes)
        place.last = last
        place.storages.append(storage)
    offset = 0
    for place in places:
        for storage in place.storages:
            storage.index = offset
        offset += -(-place.nbytes // _ALIGNMENT) * _ALIGNMENT
    return offset


def _growth(nbytes: int, wanted: int) -> tuple[int, int]:
    """Return the bytes that a place of `nbytes` lacks for `wanted`, and those that it wastes."""
    has, needs = active_guards().example_size(nbytes), active_guards().example_size(wanted)
    return max(needs - has, 0), max(has - needs, 0)


def _spans(steps: Sequence[ScheduleStep]) -> dict[Storage, tuple[int, int]]:
    """Return the first and the last step at which each scratch storage is used."""
    touched: dict[Storage, tuple[int, int]] = {}
    for position, step in enumerate(steps):
        for view in step.views:
            root = view.storage.root
            if root.space is MemorySpace.SCRATCH:
                touched[root] = touched.get(root, (position, position))[0], position
    loops = _loops(steps)
    return {storage: _through_loops(span, loops) for storage, span in touched.items()}


def _loops(steps: Sequence[ScheduleStep]) -> list[tuple[int, int]]:
    """Return the first and the last step of each loop, inner loops before those around them."""
    labels: dict[Label, int] = {}
    loops: list[tuple[int, int]] = []
    for position, step in enumerate(steps):
        if isinstance(step, Label):
            labels[step] = position
        elif isinstance(step, (Jump, Next)) and step.target in labels:
            loops.append((labels[step.target], position))
    return loops


def _through_loops(span: tuple[int, int], loops: Sequence[tuple[int, int]]) -> tuple[int, int]:
    first, last = span
    for begin, end in loops:
        overlaps = first <= end and begin <= last
        if overlaps and not (begin <= first and last <= end):
            first, last = min(first, begin), max(last, end)
    return first, last


def _lowest_gap(nbytes: int, others: Sequence[Storage]) -> int:
    offset = 0
    for other in sorted(others, key=lambda other: other.index):
        if offset + nbytes <= other.index:
            break
        end = other.index + other.nbytes
        offset = max(offset, -(-end // _ALIGNMENT) * _ALIGNMENT)
    return offset
