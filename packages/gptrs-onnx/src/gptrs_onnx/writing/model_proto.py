"""A whole program as an ONNX model, without its weights, which come as names and types."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import onnx
from msgspec import Struct
from onnx import helper

from gptrs.api.importers import OutgoingModel
from gptrs.api.programs import TensorType
from gptrs.ir.specialize import lone_symbol
from gptrs.ir.symbolic_dim import symbols_of
from gptrs.quoting import quoted
from gptrs_onnx.element_types import ONNX_TYPES
from gptrs_onnx.writing.graph_writer import OPSET, GraphWriter, Ref
from gptrs_onnx.writing.instructions import region_results

_LOG = logging.getLogger("gptrs")
IR_VERSION: Final = 10
"""The version of the file format that came with the operator set."""


class Written(Struct, frozen=True):
    """A model, and the names that its weights have in it, in order."""

    model: onnx.ModelProto
    weights: tuple[str, ...]


def written_model(model: OutgoingModel) -> Written:
    """Return a program as an ONNX model; UnsupportedError for what ONNX cannot say."""
    body = model.program.main.body
    taken: set[str] = set()
    names = [_unused(each.name, taken) for each in model.inputs]
    results = [_unused(name, taken) for name in model.outputs]
    _note_renamed([*(each.name for each in model.inputs), *model.outputs], [*names, *results])
    names += [_unused(each.name, taken) for each in model.weights]
    w = GraphWriter(taken)
    values = [Ref(name, value.type) for name, value in zip(names, body.params, strict=True)]
    inputs = values[: len(model.inputs)]
    w.bind_symbols(inputs)
    found = region_results(w, body, values)
    for name, ref in zip(results, found, strict=True):
        w.op = f"the result {name}"
        w.nodes.append(helper.make_node("Identity", [ref.name], [name]))
    nodes = _used(w.nodes, results)
    read = _read(nodes)
    sizes = _size_names(model, inputs)
    graph = helper.make_graph(
        nodes,
        _graph_name(model.name),
        [_described(ref.name, ref.type, sizes) for ref in inputs],
        [_described(name, ref.type, sizes) for name, ref in zip(results, found, strict=True)],
        [each for each in w.constants if each.name in read],
    )
    made = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="gptrs",
    )
    return Written(made, tuple(names[len(inputs) :]))


def _used(nodes: Sequence[onnx.NodeProto], results: Sequence[str]) -> list[onnx.NodeProto]:
    """Return the nodes that the results need: elements that are repeated for nobody go."""
    needed = set(results)
    kept: list[onnx.NodeProto] = []
    for node in reversed(nodes):
        if needed.isdisjoint(node.output):
            continue
        for attribute in node.attribute:
            if attribute.HasField("g"):
                inner = attribute.g
                own = _used(inner.node, [each.name for each in inner.output])
                del inner.node[:]
                inner.node.extend(own)
        needed |= _read([node])
        kept.append(node)
    return kept[::-1]


def _read(nodes: Iterable[onnx.NodeProto]) -> set[str]:
    """Return all names that nodes read, those in their graphs as well."""
    found: set[str] = set()
    for node in nodes:
        found.update(node.input)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found |= _read(attribute.g.node)
                found.update(each.name for each in attribute.g.output)
    return found


def _unused(name: str, taken: set[str]) -> str:
    """Return a name, with a number behind it if something has it already."""
    found, number = name, 1
    while found in taken:
        number += 1
        found = f"{name}_{number}"
    taken.add(found)
    return found


def _note_renamed(asked: Sequence[str], given: Sequence[str]) -> None:
    """Warn of inputs and outputs with a name that another one has: in ONNX each has its own."""
    for name, other in zip(asked, given, strict=True):
        if name != other:
            _LOG.warning(
                "%s is called %s in the ONNX file: another input or output has its name",
                quoted(name),
                quoted(other),
            )


def _graph_name(name: str) -> str:
    return "".join(each if each.isalnum() else "_" for each in name) or "program"


def _size_names(model: OutgoingModel, inputs: Sequence[Ref]) -> dict[int, str]:
    """Return what free sizes are called, by the numbers of their symbols."""
    found: dict[int, str] = {}
    for stated, ref in zip(model.inputs, inputs, strict=True):
        for name, size in zip(stated.shape or (), ref.shape, strict=False):
            number = lone_symbol(size)
            if number is not None and isinstance(name, str):
                found.setdefault(number, name)
    return found


def _described(name: str, type_: TensorType, sizes: Mapping[int, str]) -> onnx.ValueInfoProto:
    """Return the name and type of an input or output, with the names of free sizes."""
    dims = [size if type(size) is int else _size_text(size, sizes) for size in type_.shape]
    return helper.make_tensor_value_info(name, int(ONNX_TYPES[type_.dtype]), dims)


def _size_text(size: int, sizes: Mapping[int, str]) -> str:
    """Return the name of a free size, or a polynomial over such names."""
    number = lone_symbol(size)
    if number is not None:
        return sizes.get(number, f"d{number}")
    text = str(size)
    for each in sorted(symbols_of([size]), reverse=True):
        text = text.replace(f"?{each}", sizes.get(each, f"d{each}"))
    return text
