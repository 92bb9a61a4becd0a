"""A graph in two stages, where sizes follow from data: what comes before, and the rest."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from gptrs_onnx.conversion import outer_values
from gptrs_onnx.known_ops import is_known
from gptrs_onnx.onnx_ir import ir
from gptrs_onnx.search import NeedsKnownError

_SIZED_BY_DATA: Final = frozenset(("Compress", "NonMaxSuppression", "NonZero", "Unique"))
"""Operators that are computed between the stages, as they make as many results as data asks for."""


class Part(Struct, frozen=True):
    """Nodes of a graph in order, the values that they take, and those that are wanted."""

    nodes: tuple[ir.Node, ...]
    inputs: tuple[ir.Value, ...]
    outputs: tuple[ir.Value, ...]

    @property
    def name(self) -> str:
        """The names of all that it makes and takes, which no other part of its graph has."""
        made = [each.name for node in self.nodes for each in node.outputs]
        return repr((made, [each.name for each in (*self.inputs, *self.outputs)]))


class Cut(Struct, frozen=True):
    """Two parts of a graph; `between` is a node that takes results of the first.

    The first part gives nothing if that node takes only inputs.
    """

    first: Part
    between: ir.Node | None
    second: Part


def cut(whole: Part, need: NeedsKnownError) -> Cut | None:
    """Return a graph cut where a value must be known; None if that is inside of another graph.

    The second part repeats moves and sums of sizes, so that these remain formulas, and takes
    everything else from the first.
    """
    node, value = need.node, need.value
    maker = {each: node for node in whole.nodes for each in node.outputs}
    between = None
    if isinstance(node, ir.Node) and node.op_type in _SIZED_BY_DATA and node in whole.nodes:
        between, wanted = node, _used([node])
    elif isinstance(value, ir.Value) and value in maker:
        wanted = [value]
    else:
        return None
    before = _behind(wanted, maker)
    given = dict.fromkeys(wanted if between is None else between.outputs)
    later, crossing = _rest(whole, before, between, maker, given)
    if between is not None:
        crossing |= dict.fromkeys(each for each in wanted if maker.get(each) in before)
    first = tuple(each for each in whole.nodes if each in before)
    used = set(_used(later)) | set(whole.outputs)
    takes = [*whole.inputs, *crossing, *(each for each in given if each not in crossing)]
    return Cut(
        Part(first, _only(whole.inputs, _used(first)), tuple(crossing)),
        between,
        Part(later, _only(takes, used), whole.outputs),
    )


def _rest(
    whole: Part,
    before: set[ir.Node],
    between: ir.Node | None,
    maker: Mapping[ir.Value, ir.Node],
    given: Mapping[ir.Value, None],
) -> tuple[tuple[ir.Node, ...], dict[ir.Value, None]]:
    """Return the nodes of the second part, and the values that it takes from the first."""
    own = {each for each in whole.nodes if each not in before and each is not between}
    crossing = {each: None for each in given if maker[each] in before}
    waiting = [*whole.outputs, *_used(own)]
    while waiting:
        value = waiting.pop()
        node = maker.get(value)
        if node is None or node in own or node is between or value in given:
            continue
        if is_known(node.op_type) and node.domain in ("", "ai.onnx"):
            own.add(node)
            waiting += _used([node])
        else:
            crossing[value] = None
    return tuple(each for each in whole.nodes if each in own), crossing


def _behind(wanted: Iterable[ir.Value], maker: Mapping[ir.Value, ir.Node]) -> set[ir.Node]:
    """Return all nodes that values are computed by."""
    found, waiting = set[ir.Node](), list(wanted)
    while waiting:
        node = maker.get(waiting.pop())
        if node is not None and node not in found:
            found.add(node)
            waiting += _used([node])
    return found


def _used(nodes: Iterable[ir.Node]) -> list[ir.Value]:
    """Return the values that nodes read, also inside of graphs of their own."""
    return [
        each
        for node in nodes
        for each in (*node.inputs, *outer_values(node))
        if each is not None and each.name
    ]


def _only(values: Sequence[ir.Value], used: Iterable[ir.Value]) -> tuple[ir.Value, ...]:
    wanted = set(used)
    return tuple(each for each in values if each in wanted)
