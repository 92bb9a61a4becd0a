"""Operators that the standard itself defines by simpler ones: their bodies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Protocol, cast

import onnx
import onnx_ir as ir
from onnx.defs import SchemaError, get_schema

from gptrs.api.models import Tensor
from gptrs_onnx.element_types import ONNX_TYPES
from gptrs_onnx.node import Node
from gptrs_onnx.values import Value, is_number

_INT64 = int(ir.DataType.INT64)


class _Schema(Protocol):
    """The part of an operator's description that the stubs of its library leave out."""

    has_function: bool
    has_context_dependent_function: bool
    context_dependent_function_opset_versions: Sequence[int]

    def get_context_dependent_function(self, node: bytes, types: Sequence[bytes], /) -> bytes: ...

    def get_context_dependent_function_with_opset_version(
        self, version: int, node: bytes, types: Sequence[bytes], /
    ) -> bytes: ...


def body_of(
    node: Node, values: Sequence[Value | None]
) -> tuple[ir.Function, Mapping[str, int]] | None:
    """Return the body of an operator, and the operator sets that it is written in; None if none."""
    try:
        found = get_schema(node.op_type, node.version, node.domain)
    except SchemaError:
        return None
    schema = cast("_Schema", found)
    if schema.has_function:
        body = found.function_body
    elif schema.has_context_dependent_function:
        body = onnx.FunctionProto.FromString(_written_for(schema, node, values))
    else:
        return None
    if not body.node:
        return None
    for name in tuple(body.attribute):
        default = found.attributes[name].default_value
        if default.type:
            body.attribute.remove(name)
            body.attribute_proto.append(default)
    return _parsed(body.SerializeToString())


def _written_for(schema: _Schema, node: Node, values: Sequence[Value | None]) -> bytes:
    """Return the body that the standard writes for a node with inputs of these types."""
    versions = [
        each for each in schema.context_dependent_function_opset_versions if each <= node.version
    ]
    types = [_type_of(value).SerializeToString() for value in values]
    proto = node.proto().SerializeToString()
    if not versions:
        return schema.get_context_dependent_function(proto, types)
    return schema.get_context_dependent_function_with_opset_version(max(versions), proto, types)


def _type_of(value: Value | None) -> onnx.TypeProto:
    made = onnx.TypeProto()
    if value is None:
        return made
    if isinstance(value, Tensor):
        made.tensor_type.elem_type = int(ONNX_TYPES[value.dtype])
    elif value.dtype == object:
        made.tensor_type.elem_type = _INT64
    else:
        made.tensor_type.elem_type = int(ir.DataType.from_numpy(value.dtype))
    for size in value.shape:
        dim = made.tensor_type.shape.dim.add()
        if is_number(size):
            dim.dim_value = size
    return made


@lru_cache(maxsize=256)
def _parsed(written: bytes) -> tuple[ir.Function, Mapping[str, int]]:
    proto = onnx.FunctionProto.FromString(written)
    computed = {name for node in proto.node for name in node.output}.union(proto.input)
    for name in proto.output:
        if name not in computed:  # an optional output that the node does not ask for
            proto.node.append(onnx.helper.make_node("Constant", [], [name], value_int=0))
    function = ir.serde.deserialize_function(proto)
    return function, dict(function.opset_imports)
