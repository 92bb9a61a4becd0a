"""Outputs of a graph that are views of inputs, or of other outputs: torch makes them itself."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import fx

from gptrs_torch.conversion import NUMERIC


def view_outputs(outputs: Sequence[object]) -> dict[fx.Node, list[fx.Node]]:
    """Return the outputs that are views, each with the nodes that make it, in order.

    What these read in turn are inputs, and outputs that are no views.
    """
    bases = {node for node in outputs if isinstance(node, fx.Node) and not _is_view(node)}
    found: dict[fx.Node, list[fx.Node]] = {}
    for node in outputs:
        if isinstance(node, fx.Node) and _is_view(node):
            nodes: dict[fx.Node, None] = {}
            if _gather(node, bases, nodes):
                found[node] = list(nodes)
    return found


def evaluated_node(node: fx.Node, known: Mapping[object, object]) -> object:
    """Return what torch computes for a node whose arguments are `known`."""

    def value(argument: fx.Node) -> Any:
        return known[argument]

    args = fx.map_arg(node.args, value)
    kwargs = fx.map_arg(node.kwargs, value)
    return cast("Any", node.target)(*cast("Any", args), **cast("Any", kwargs))


def _gather(node: fx.Node, bases: set[fx.Node], nodes: dict[fx.Node, None]) -> bool:
    """Add to `nodes` what makes a node, in order; False if that takes more than views."""
    if node.op == "placeholder" or node in bases or node in nodes:
        return True
    if not (_is_view(node) or _is_number(node)):
        return False
    if not all(_gather(each, bases, nodes) for each in node.all_input_nodes):
        return False
    nodes[node] = None
    return True


def _is_view(node: fx.Node) -> bool:
    """Return whether a node gives a view of what its first argument is, or several."""
    if node.op != "call_function":
        return False
    if node.target is operator.getitem:
        source = node.args[0]
        return isinstance(source, fx.Node) and _is_view(source)
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.arguments:
        return False
    alias = schema.arguments[0].alias_info
    return alias is not None and not alias.is_write


def _is_number(node: fx.Node) -> bool:
    held = cast("object", node.meta.get("val"))
    known = node.target in NUMERIC or node.target is torch.ops.aten.sym_size.int
    return node.op == "call_function" and known and isinstance(held, (int, torch.SymInt))
