"""Sequences of tensors whose number the graph determines: tuples during conversion.

Exporters write them for `torch.split`, `chunk`, `stack` and lists in scripted code. A sequence that
is an input, an output, or carried by a loop has no known length and is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from gptrs.api.importers import is_number
from gptrs.api.models import Tensor
from gptrs.api.models import functionals as F
from gptrs_onnx.node import (
    Bound,
    Items,
    Known,
    Node,
    Value,
    as_tensor,
    converts,
    numbers,
    sizes,
)
from gptrs_onnx.onnx_ir import ir

MAX_ITEMS: Final = 4096
"""Most tensors that one node puts into a sequence."""


@converts("SplitToSequence")
def split_to_sequence(
    node: Node, x: Tensor, lengths: Known | None = None, *, axis: int = 0, keepdims: bool = True
) -> Items:
    """Return the parts of x along an axis: of given lengths, of one length, or of 1 element."""
    size = x.shape[axis]
    if lengths is None:
        parts = F.split(x, _equal(node, size, 1), axis)
        return Items(tuple(part if keepdims else F.squeeze(part, axis) for part in parts))
    given = numbers(lengths)
    parts = given if lengths.ndim else _equal(node, size, given[0])
    return Items(tuple(F.split(x, parts, axis)))


def _equal(node: Node, size: int, each: int) -> list[int]:
    """Return the lengths of parts of `each` elements; the last one may be shorter."""
    if not is_number(size):
        node.refuse("splits an axis of a free size into a sequence, whose length is unknown")
    if each < 1:
        node.malformed(f"splits into parts of {each} elements")
    if size > each * MAX_ITEMS:
        node.refuse(f"makes a sequence of more than {MAX_ITEMS} tensors")
    return [min(each, size - start) for start in range(0, size, each)]


@converts("SequenceConstruct")
def construct(*values: Value) -> Items:
    """Return tensors as a sequence."""
    return Items(values)


@converts("SequenceEmpty")
def empty() -> Items:
    """Return an empty sequence."""
    return Items(())


@converts("SequenceAt")
def at(node: Node, items: Items, position: Known) -> Value:
    """Return a tensor of a sequence."""
    return items.values[_index(node, items.values, position, 0)]


@converts("SequenceInsert")
def insert(node: Node, items: Items, value: Value, position: Known | None = None) -> Items:
    """Return a sequence with one more tensor, by default at its end."""
    values = list(items.values)
    end = len(values)
    values.insert(end if position is None else _index(node, values, position, 1), value)
    return Items(tuple(values))


@converts("SequenceErase")
def erase(node: Node, items: Items, position: Known | None = None) -> Items:
    """Return a sequence without one of its tensors, by default the last one."""
    values = items.values
    if not values:
        node.malformed("takes an element from an empty sequence")
    index = len(values) - 1 if position is None else _index(node, values, position, 0)
    return Items(values[:index] + values[index + 1 :])


@converts("SequenceLength")
def length(items: Items) -> Value:
    """Return the number of tensors."""
    return sizes([len(items.values)]).reshape(())


@converts("ConcatFromSequence")
def concat(node: Node, items: Items, *, axis: int, new_axis: bool = False) -> Value:
    """Return the tensors of a sequence one after another, or along a new axis."""
    parts = [as_tensor(each) for each in items.values]
    if not parts:
        node.malformed("joins an empty sequence")
    return (F.stack if new_axis else F.concat)(parts, axis)


@converts("SequenceMap")
def mapped(node: Node, first: Items, *more: Bound, body: ir.Graph) -> list[Items]:
    """Return what a graph gives for each element; tensors among the inputs are the same for all."""
    results: list[tuple[Value, ...]] = []
    origins = node.conversion.origins_of(node.source.inputs)
    for index in range(len(first.values)):
        for formal, actual in zip(body.inputs, (first, *more), strict=True):
            if isinstance(actual, Items):
                if len(actual.values) != len(first.values):
                    node.malformed("has sequences of different lengths")
                actual = actual.values[index]
            node.conversion.bind(formal, actual, origins)
        results.append(tuple(map(_element, node.conversion.run(body))))
    columns = zip(*results, strict=True) if results else [()] * len(body.outputs)
    return [Items(tuple(each)) for each in columns]


def _element(found: Bound) -> Value:
    return found if isinstance(found, np.ndarray) else as_tensor(found)


def _index(node: Node, values: Sequence[Value], given: Known, beyond: int) -> int:
    """Return a position counted from the start; one past the end is `beyond`."""
    (index,) = numbers(given)
    if not (is_number(index) and -len(values) <= index < len(values) + beyond):
        node.malformed(f"asks for element {index} of a sequence of {len(values)}")
    return index + len(values) if index < 0 else index
