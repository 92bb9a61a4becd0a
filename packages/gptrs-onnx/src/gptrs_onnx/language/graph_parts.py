"""The parts of a language model's graph: the states of tokens, and the logits from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from gptrs_onnx.language.decoder_graph import BRANCH, LOGITS, DecoderGraph
from gptrs_onnx.onnx_ir import ir

_PRODUCTS: Final = frozenset(
    ("MatMul", "Gemm", "FusedMatMul", "MatMulNBits", "MatMulIntegerToFloat")
)
_ELEMENTWISE: Final = frozenset(("Add", "Cast", "Div", "Identity", "Mul", "Sub", "Tanh"))
_DEPTH: Final = 16
"""Nodes between a weight and its use."""


class GraphParts(Struct, frozen=True):
    """Nodes in order: `body` computes the value `states`, `head` the value `logits` of it.

    They lie in `graphs`. Only the last token of each text needs the head, which is a large product.
    """

    graphs: tuple[ir.Graph, ...]
    body: tuple[ir.Node, ...]
    states: ir.Value
    head: tuple[ir.Node, ...]
    logits: ir.Value


def graph_parts(decoder: DecoderGraph) -> GraphParts:
    """Return the parts of a graph; if it branches on a past, those with a past."""
    graph = decoder.model.graph
    logits = next(each for each in graph.outputs if each.name == LOGITS)
    nodes: list[ir.Node] = list(graph)
    graphs = [graph]
    choice = logits.producer()
    if choice is not None and _is_choice(choice):
        branch = choice.attributes["then_branch"].as_graph()
        logits = branch.outputs[choice.outputs.index(logits)]
        graphs.append(branch)
        nodes = [*(node for node in nodes if node is not choice), *branch]
    states = _before_head(logits)
    behind = _ancestors(logits, states)
    before = _ancestors(states, None)
    head = tuple(node for node in nodes if node in behind)
    return GraphParts(
        tuple(graphs), tuple(node for node in nodes if node in before), states, head, logits
    )


def _is_choice(node: ir.Node) -> bool:
    first = node.inputs[0] if node.inputs else None
    return node.op_type == "If" and first is not None and first.name == BRANCH


def _before_head(logits: ir.Value) -> ir.Value:
    """Return what the last product of the graph reads; the logits themselves without one."""
    value = logits
    while True:
        node = value.producer()
        if node is None:
            return logits
        varying = [each for each in node.inputs if each is not None and not _is_constant(each)]
        if len(varying) != 1:
            return logits
        if node.op_type in _PRODUCTS:
            # Weights on the left mean another layout, in which rows of tokens could not be taken
            # out.
            return varying[0] if varying[0] is node.inputs[0] else logits
        if node.op_type not in _ELEMENTWISE:
            return logits
        value = varying[0]


def _is_constant(value: ir.Value, depth: int = 0) -> bool:
    """Return whether a value is a weight, or computed from weights alone."""
    if value.const_value is not None:
        return True
    node = value.producer()
    # A bound, since graphs may be deep, and this runs at each step towards the head.
    if node is None or depth > _DEPTH:
        return not value.name
    inputs = [each for each in node.inputs if each is not None]
    return all(_is_constant(each, depth + 1) for each in inputs)


def _ancestors(value: ir.Value, end: ir.Value | None) -> set[ir.Node]:
    """Return the nodes that a value needs, without those before the value `end`."""
    found = set[ir.Node]()
    waiting = [value]
    while waiting:
        each = waiting.pop()
        node = None if each is end else each.producer()
        if node is not None and node not in found:
            found.add(node)
            waiting.extend(_read(node))
    return found


def _read(node: ir.Node) -> Sequence[ir.Value]:
    """Return the values that a node and the graphs inside it read."""
    read = [each for each in node.inputs if each is not None]
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
            inner = attribute.as_graph()
            read += [each for one in inner.all_nodes() for each in one.inputs if each is not None]
            # A branch may return a value of the outer graph without a node.
            read += inner.outputs
    return read
