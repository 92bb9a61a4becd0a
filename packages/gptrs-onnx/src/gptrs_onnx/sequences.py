"""Sequences of as many tensors as the graph says: tuples while it is converted.

Exporters write them for `torch.split`, `chunk`, `stack` and lists in scripted code. Of a sequence
that is an input, an output, or part of a loop nobody knows the length: it is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from gptrs.api.models import functionals as F
from gptrs_onnx.node import Known, Node, Value, as_tensor, is_number, numbers, sizes

MAX_ITEMS: Final = 4096
"""Most tensors that one node puts into a sequence."""


@dataclass(frozen=True)
class Items:
    """The tensors of a sequence, in order."""

    values: tuple[Value, ...]


Given: TypeAlias = "Sequence[Value | Items | None]"
KnownInput: TypeAlias = Callable[[int], Known]
"""Returns an input, by position, as an array."""


def _split(node: Node, given: Given, known: KnownInput) -> Items:
    x, axis = as_tensor(_value(node, given, 0)), node.integer("axis", 0)
    size = x.shape[axis]
    if len(given) > 1 and given[1] is not None:
        told = known(1)
        lengths = numbers(told) if told.ndim else _equal(node, size, numbers(told)[0])
        return Items(tuple(F.split(x, lengths, axis)))
    parts = F.split(x, _equal(node, size, 1), axis)
    keeps = node.flag("keepdims", 1)
    return Items(tuple(part if keeps else F.squeeze(part, axis) for part in parts))


def _equal(node: Node, size: int, each: int) -> list[int]:
    """Return the lengths of parts of `each` elements; the last one may be shorter."""
    if not is_number(size):
        node.refuse("splits an axis of a free size into a sequence, whose length nobody knows")
    if each < 1:
        node.malformed(f"splits into parts of {each} elements")
    if size > each * MAX_ITEMS:
        node.refuse(f"makes a sequence of more than {MAX_ITEMS} tensors")
    return [min(each, size - start) for start in range(0, size, each)]


def _construct(node: Node, given: Given, known: KnownInput) -> Items:
    del known
    return Items(tuple(_value(node, given, position) for position in range(len(given))))


def _empty(node: Node, given: Given, known: KnownInput) -> Items:
    del node, given, known
    return Items(())


def _at(node: Node, given: Given, known: KnownInput) -> Value:
    items = _items(node, given)
    return items[_place(node, items, known(1), 0)]


def _insert(node: Node, given: Given, known: KnownInput) -> Items:
    items, value = list(_items(node, given)), _value(node, given, 1)
    ends = len(given) < 3 or given[2] is None
    items.insert(len(items) if ends else _place(node, items, known(2), 1), value)
    return Items(tuple(items))


def _erase(node: Node, given: Given, known: KnownInput) -> Items:
    items = list(_items(node, given))
    ends = len(given) < 2 or given[1] is None
    place = len(items) - 1 if ends else _place(node, items, known(1), 0)
    if not items:
        node.malformed("takes an element out of an empty sequence")
    return Items(tuple(items[:place] + items[place + 1 :]))


def _length(node: Node, given: Given, known: KnownInput) -> Value:
    del known
    return sizes([len(_items(node, given))]).reshape(())


def _concat(node: Node, given: Given, known: KnownInput) -> Value:
    del known
    parts = [as_tensor(each) for each in _items(node, given)]
    if not parts:
        node.malformed("joins an empty sequence")
    join = F.stack if node.flag("new_axis", 0) else F.concat
    return join(parts, node.integer("axis"))


SEQUENCES: dict[str, Callable[[Node, Given, KnownInput], Value | Items]] = {
    "ConcatFromSequence": _concat,
    "SequenceAt": _at,
    "SequenceConstruct": _construct,
    "SequenceEmpty": _empty,
    "SequenceErase": _erase,
    "SequenceInsert": _insert,
    "SequenceLength": _length,
    "SplitToSequence": _split,
}
"""Operators on sequences, each called with its inputs; `known` gives one of them as numbers."""


def _items(node: Node, given: Given) -> tuple[Value, ...]:
    first = given[0] if given else None
    if not isinstance(first, Items):
        node.malformed("takes a sequence, and its first input is none")
    return first.values


def _value(node: Node, given: Given, position: int) -> Value:
    found = given[position] if position < len(given) else None
    if found is None or isinstance(found, Items):
        node.malformed(f"takes a tensor as input {position}")
    return found


def _place(node: Node, items: Sequence[Value], told: Known, beyond: int) -> int:
    """Return a position, counted from the end if negative; one past the end is `beyond`."""
    (place,) = numbers(told)
    if not (is_number(place) and -len(items) <= place < len(items) + beyond):
        node.malformed(f"asks for element {place} of a sequence of {len(items)}")
    return place + len(items) if place < 0 else place
