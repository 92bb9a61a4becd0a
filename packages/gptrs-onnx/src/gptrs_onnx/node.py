"""A node of an ONNX graph as its converter sees it: attributes with checks, names for errors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NoReturn, Protocol, TypeAlias, cast

import numpy as np
import onnx
import onnx_ir as ir
from onnx.defs import SchemaError, get_schema

from gptrs.api import ModelError, UnsupportedError
from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs.api.programs import DType, dtypes
from gptrs_onnx.element_types import ONNX_TYPES, dtype_of

# The values of an ONNX graph while it is converted: known, or tensors of the program.
#
# Known values are NumPy arrays: small constants, and sizes. The shape of a tensor with free sizes
# is an array of objects, integers and polynomials over the symbols of the program. Operators that
# need numbers, such as the shape of `Reshape`, get them from known values.


Known: TypeAlias = np.ndarray[Any, np.dtype[Any]]
"""An array whose elements are known: numbers, or sizes (dtype object) that may be symbolic."""
Value: TypeAlias = Tensor | Known

SMALL: Final = 4096
"""Most elements of a constant that is known; larger ones are weights."""


def is_number(size: object, number: int | None = None) -> bool:
    """Return whether a size is a number, or that number, without asking about its symbols."""
    return isinstance(size, int) and number in (None, size)


def is_symbolic(known: Known) -> bool:
    """Return whether some element is a polynomial over symbols."""
    return known.dtype == object and not all(map(is_number, known.flat))


def settled(known: Known) -> Known:
    """Return sizes as si64 numbers where no symbol is among them, anything else as it is."""
    if known.dtype == object and not is_symbolic(known):
        return known.astype(np.int64)
    return known


def sizes(values: Sequence[int]) -> Known:
    """Return sizes as a known vector, of objects if some are symbolic."""
    made = np.empty(len(values), dtype=object)
    made[:] = list(values)
    return settled(made)


def numbers(known: Known) -> list[int]:
    """Return the elements in order as Python integers or polynomials."""
    return [each if known.dtype == object else int(each) for each in known.reshape(-1)]


def as_tensor(value: Value) -> Tensor:
    """Return the value as a tensor; what is known becomes a constant, symbols become computed."""
    if isinstance(value, Tensor):
        return value
    if not is_symbolic(value):
        return constant(settled(value))
    elements = [_size_tensor(each) for each in value.reshape(-1)]
    return F.reshape(F.stack(elements, 0), value.shape)


def constant(array: Known) -> Tensor:
    """Return an array as a constant of the program."""
    return primitives.constant(array)


def _size_tensor(size: int) -> Tensor:
    """Return a size as an si64 scalar: the sum of as many ones, if it is symbolic."""
    if is_number(size):
        return primitives.constant(np.int64(size))
    return F.sum(F.ones([size], dtypes.si64))


def scalar(value: float, dtype: DType) -> Tensor:
    """Return a number as a scalar of `dtype`, rounded to it."""
    with np.errstate(over="ignore"):
        return primitives.constant(np.asarray(value).astype(dtype.numpy))


DAMAGE: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""The errors that the library raises for damaged files, among others those of its assertions."""


def stored_array(tensor: ir.TensorProtocol, what: str) -> Known:
    """Return the elements of a tensor in a file; ModelError that names `what` if it is damaged."""
    try:
        return cast("Known", np.asarray(tensor.numpy()))
    except DAMAGE as error:
        raise ModelError(f"{what} cannot be read: {shown(error)}") from error


Origins = frozenset[str]
"""The inputs of the graph that a value is computed from."""


class Scope(Protocol):
    """The graph being converted, as converters of nodes with graphs of their own use it."""

    def bind(self, value: ir.Value, found: Value, origins: Origins = ...) -> None:
        """Give a value of the graph, and the inputs that it is computed from."""
        ...

    def run(self, graph: ir.Graph) -> list[Value]:
        """Convert all nodes of a graph whose inputs are bound; return its outputs."""
        ...

    def origins_of(self, values: Sequence[ir.Value | None]) -> Origins:
        """Return the inputs of the graph that any of these values is computed from."""
        ...

    def known(self, value: ir.Value, why: str) -> Known:
        """Return a value as an array; NeedsKnownError if it depends on inputs that are not."""
        ...


MAX_COMPUTED: Final = 2**26
"""Most numbers that a converter makes by itself, such as the weights of a resize."""
MAX_SHOWN: Final = 60
"""Most characters of a name out of a file that a message shows."""


def shown(name: object) -> str:
    """Return a name out of a file as a message shows it: escaped and cut."""
    text = ascii(str(name))[1:-1]
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


class Node:
    """One node: its operator, the version of the operator set, and its attributes.

    `attributes` are those of the node with references to a function's attributes resolved.
    """

    def __init__(
        self,
        source: ir.Node,
        version: int,
        attributes: Mapping[str, ir.Attr],
        conversion: Scope,
    ) -> None:
        self.source = source
        self.domain = "" if source.domain == "ai.onnx" else source.domain
        self.op_type = source.op_type
        self.version = version
        self.conversion = conversion
        self._attributes = attributes

    def __str__(self) -> str:
        domain = f"{shown(self.domain)}." if self.domain else ""
        name = f" `{shown(self.source.name)}`" if self.source.name else ""
        return f"`{domain}{shown(self.op_type)}`{name}"

    def __contains__(self, attribute: str) -> bool:
        return attribute in self._attributes

    def proto(self) -> onnx.NodeProto:
        """Return the node as the standard writes it, its attributes resolved."""
        plain = ir.Node(
            self.domain,
            self.op_type,
            [ir.Value(name=each.name if each else "") for each in self.source.inputs],
            list(self._attributes.values()),
            outputs=[ir.Value(name=each.name) for each in self.source.outputs],
        )
        return ir.serde.serialize_node(plain)

    @property
    def outputs(self) -> int:
        """The number of outputs, with those that nobody names."""
        return len(self.source.outputs)

    def wants(self, position: int) -> bool:
        """Return whether the output at `position` has a name, so that somebody may read it."""
        outputs = self.source.outputs
        return position < len(outputs) and bool(outputs[position].name)

    def refuse(self, reason: str) -> NoReturn:
        """Raise UnsupportedError: `reason` says what the node asks for that is not done."""
        raise UnsupportedError(f"{self} {reason}")

    def malformed(self, reason: str) -> NoReturn:
        """Raise ModelError: `reason` says what of the node breaks the standard."""
        raise ModelError(f"{self} {reason}")

    def attribute(self, name: str) -> ir.Attr | None:
        """Return an attribute of any type, None if the node does not have it."""
        return self._attributes.get(name)

    def require_bounded(self, *sizes: int) -> None:
        """Refuse a node whose converter would make an array of these sizes that is too large."""
        if math.prod(sizes) > MAX_COMPUTED:
            self.refuse(
                f"needs {math.prod(sizes)} numbers at once, at most {MAX_COMPUTED} are made"
            )

    def integer(self, name: str, default: int | None = None) -> int:
        """Return an integer attribute."""
        found = self._get(name, ir.AttributeType.INT, default)
        return cast("int", found)

    def flag(self, name: str, default: int = 0) -> bool:
        """Return an integer attribute as truth."""
        return bool(self.integer(name, default))

    def number(self, name: str, default: float | None = None) -> float:
        """Return a floating-point attribute."""
        return cast("float", self._get(name, ir.AttributeType.FLOAT, default))

    def text(self, name: str, default: str | None = None) -> str:
        """Return a string attribute."""
        return cast("str", self._get(name, ir.AttributeType.STRING, default))

    def integers(self, name: str, default: Sequence[int] | None = None) -> list[int]:
        """Return a list of integers."""
        return list(cast("Sequence[int]", self._get(name, ir.AttributeType.INTS, default)))

    def numbers(self, name: str, default: Sequence[float] | None = None) -> list[float]:
        """Return a list of floats."""
        return list(cast("Sequence[float]", self._get(name, ir.AttributeType.FLOATS, default)))

    def texts(self, name: str, default: Sequence[str] | None = None) -> list[str]:
        """Return a list of strings."""
        return list(cast("Sequence[str]", self._get(name, ir.AttributeType.STRINGS, default)))

    def array(self, name: str) -> Known:
        """Return a tensor attribute as an array; UnsupportedError for strings."""
        found = cast("ir.TensorProtocol", self._get(name, ir.AttributeType.TENSOR, None))
        dtype_of(found.dtype, f"the attribute `{name}` of {self}")
        return stored_array(found, f"the attribute `{name}` of {self}")

    def graph(self, name: str) -> ir.Graph:
        """Return a graph attribute."""
        return cast("ir.Graph", self._get(name, ir.AttributeType.GRAPH, None))

    def dtype(self, name: str, default: ir.DataType | None = None) -> DType:
        """Return an attribute that is the number of an element type."""
        number = self.integer(name, None if default is None else int(default))
        return dtype_of(number, f"the attribute `{name}` of {self}")

    def _get(self, name: str, kind: ir.AttributeType, default: object) -> object:
        found = self._attributes.get(name)
        if found is None:
            if default is None:
                self.malformed(f"lacks the attribute `{name}`")
            return default
        if found.type != kind:
            self.malformed(f"has an attribute `{name}` of type {found.type.name}, not {kind.name}")
        return found.value


# Operators that the standard itself defines by simpler ones: their bodies.


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
