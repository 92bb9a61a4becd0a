"""A node of an ONNX graph as its converter sees it: attributes with checks, names for errors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NoReturn, Protocol, TypeAlias, cast

import numpy as np
import onnx
from msgspec import Struct
from onnx.defs import SchemaError, get_schema
from typing_extensions import override

from gptrs.api import ModelError, UnsupportedError, importers
from gptrs.api.importers import DAMAGE, is_number, size_tensor
from gptrs.api.models import Tensor, primitives
from gptrs.api.models import functionals as F
from gptrs_onnx.element_types import ONNX_TYPES, dtype_of, stored_dtype
from gptrs_onnx.onnx_ir import ir
from gptrs_onnx.search import SMALL, Origins, shown

# The values of an ONNX graph while it is converted: known, or tensors of the program.
#
# Known values are NumPy arrays: small constants, and sizes. The shape of a tensor with free sizes
# is an array of objects, integers and polynomials over the symbols of the program. Operators that
# need numbers, such as the shape of `Reshape`, get them from known values.


Known: TypeAlias = np.ndarray[Any, np.dtype[Any]]
"""An array whose elements are known: numbers, or sizes (dtype object) that may be symbolic."""
Sizes: TypeAlias = list[int]
"""The elements of a known value in order, integers and polynomials over symbols."""
Value: TypeAlias = Tensor | Known


_CODES = (
    *(ir.DataType.INT2, ir.DataType.UINT2, ir.DataType.INT4, ir.DataType.UINT4),
    *(ir.DataType.INT8, ir.DataType.UINT8),
)


def is_weight(stored: ir.TensorProtocol) -> bool:
    """Return whether an initializer is a parameter of programs: a large one, or a matrix of codes.

    Small codes, as depthwise convolutions have them, would be folded to floats as constants are,
    and kernels for integers read codes.
    """
    rank = len(stored.shape)  # pyright: ignore[reportArgumentType]
    if stored.dtype == ir.DataType.STRING:
        return False
    return stored.size > SMALL or (rank > 1 and stored.size > 1 and stored.dtype in _CODES)


def is_symbolic(known: Known) -> bool:
    """Return whether some element is a polynomial over symbols."""
    return known.dtype == object and not all(map(is_number, known.flat))


def settled(known: Known) -> Known:
    """Return sizes without symbols as si64 numbers, anything else unchanged."""
    # Numbers are kept in si64, so that NumPy computes with them instead of Python objects.
    if known.dtype == object and not is_symbolic(known):
        return known.astype(np.int64)
    return known


def sizes(values: Sequence[int]) -> Known:
    """Return sizes as a known vector, of objects if some are symbolic."""
    # Filled afterwards: `np.array` would try to see a sequence in a polynomial.
    made = np.empty(len(values), dtype=object)
    made[:] = list(values)
    return settled(made)


def numbers(known: Known) -> list[int]:
    """Return the elements in order as Python integers or polynomials."""
    return [each if known.dtype == object else int(each) for each in known.reshape(-1)]


def as_tensor(value: Bound) -> Tensor:
    """Return the value as a tensor; known numbers become a constant, symbols are computed."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Items):
        refuse_sequence("a value of the graph")
    if is_strings(value):
        raise UnsupportedError("a value of the graph consists of strings, and numbers are needed")
    if isinstance(value, Narrow):
        raise UnsupportedError(
            f"a value of the graph is of type {value.type.name}, and tensors are computed with",
            hint="cast it to a wider type in the graph",
        )
    if not is_symbolic(value):
        return constant(settled(value))
    elements = [size_tensor(each) for each in value.reshape(-1)]
    return F.reshape(F.stack(elements, 0), value.shape)


def constant(array: Known) -> Tensor:
    """Return an array as a constant of the program."""
    return primitives.constant(array)


def stored_array(tensor: ir.TensorProtocol, what: str) -> Known:
    """Return the elements of a tensor in a file; ModelError that names `what` if it is damaged."""
    try:
        return cast("Known", np.asarray(tensor.numpy()))
    except DAMAGE as error:
        raise ModelError(f"{what} cannot be read: {shown(error)}") from error


class Items(Struct, frozen=True):
    """The tensors of a sequence, in order; how many is known while a graph is converted."""

    values: tuple[Value, ...]


class Narrow(Struct, frozen=True):
    """Numbers of an element type that PTIR lacks, in the type that holds them (`HELD_IN`).

    Strings are held as their codes.

    Operators that only move numbers work on `values`; casts and quantization read and make them.
    """

    values: Tensor
    type: ir.DataType


class Lookup(Struct, frozen=True):
    """Numbers, or codes of strings, that a node looks up in its table, and fails for others."""

    node: str
    wanted: Tensor
    table: Known
    are_strings: bool


Bound: TypeAlias = Value | Items | Narrow
"""Whatever a name of a graph stands for."""
Numbers: TypeAlias = Tensor | Narrow
"""A parameter of converters that take tensors of narrow types, too."""


def strings(x: Tensor | Known) -> Narrow:
    """Return codes as the strings that they stand for."""
    return Narrow(x if isinstance(x, Tensor) else constant(x), ir.DataType.STRING)


def is_strings(x: Bound) -> bool:
    """Return whether a value consists of strings."""
    return isinstance(x, Narrow) and x.type == ir.DataType.STRING


def codes_of(x: Numbers) -> Tensor:
    """Return strings as their codes, and numbers as they are."""
    return x.values if is_strings(x) and isinstance(x, Narrow) else values_of(x)


def values_of(x: Numbers) -> Tensor:
    """Return numbers as a tensor, narrow ones in the type that holds them."""
    if is_strings(x):
        raise UnsupportedError("a value of the graph consists of strings, and numbers are needed")
    return x.values if isinstance(x, Narrow) else x


MOVES: Final = frozenset(
    (
        *("Concat", "DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND"),
        *("Compress", "Pad", "Reshape", "ScatterElements", "ScatterND", "Slice", "SpaceToDepth"),
        *("Split", "Squeeze", "Tile", "Transpose", "Unsqueeze", "Where"),
        "ai.onnx.ml.ArrayFeatureExtractor",
    )
)
"""Operators that move numbers and compute none: they take any element type."""


class Scope(Protocol):
    """The graph being converted, as converters of nodes with graphs of their own use it."""

    def bind(self, value: ir.Value, found: Bound | None, origins: Origins = ...) -> None:
        """Bind a value of the graph, and the inputs that it is computed from."""
        ...

    def run(self, graph: ir.Graph, repeats: bool = ...) -> list[Bound]:
        """Convert all nodes of a graph whose inputs are bound; return its outputs.

        `repeats`: the program runs them in a loop.
        """
        ...

    def run_nodes(
        self, nodes: Sequence[ir.Node], graphs: Sequence[ir.Graph], wanted: ir.Value
    ) -> Value:
        """Convert some nodes of graphs, in order; return one of their results."""
        ...

    def origins_of(self, values: Sequence[ir.Value | None]) -> Origins:
        """Return the inputs of the graph that any of these values is computed from."""
        ...

    def known(self, value: ir.Value, why: str) -> Known:
        """Return a value as an array; NeedsKnownError if it depends on inputs that are not."""
        ...

    def from_sizes(self, value: ir.Value, why: str) -> Known | None:
        """Return a value as an array if it is one or follows from sizes, else None."""
        ...

    def codes(self, texts: Sequence[str]) -> Known:
        """Return strings of the file as their codes [count]."""
        ...

    repeats: int
    """How many loops of the program are being converted, one inside the other."""

    lookups: list[Lookup]
    """Nodes that fail for values that a table lacks."""

    def random_key(self, own: float | None) -> tuple[int, int] | None:
        """Return a new key and counter for random numbers; None without a seed."""
        ...


MAX_COMPUTED: Final = 2**26
"""Most numbers that a converter makes by itself, such as the weights of a resize."""


converts = importers.Converters("gptrs-onnx", "gptrs_onnx.supported_operators()")
"""Converters by operator, prefixed by its domain unless that is the standard's."""


class Node(importers.Node):
    """One node: its operator, the version of the operator set, and its attributes.

    `given` are those of the node with references to a function's attributes resolved.
    """

    def __init__(
        self, source: ir.Node, version: int, given: Mapping[str, ir.Attr], conversion: Scope
    ) -> None:
        self.source = source
        # Both names stand for the standard's operators, and exporters mix them within one file.
        self.domain = "" if source.domain == "ai.onnx" else source.domain
        self.op_type = source.op_type
        self.name = f"{self.domain}.{self.op_type}" if self.domain else self.op_type
        self.version = version
        self.given = given
        self.attributes = {name: each.value for name, each in given.items()}
        self.conversion = conversion
        self.moved: ir.DataType | None = None
        """The narrow type of the operands that the node moves, None if it is none."""

    @override
    def __str__(self) -> str:
        name = f" `{shown(self.source.name)}`" if self.source.name else ""
        return f"`{shown(self.name)}`{name}"

    @override
    def operand(self, index: int, kind: str, value: object) -> object:
        """Return an input: `Known` as an array, `Sizes` as integers, `Value` as it is.

        `Items` are those of a sequence, `Bound` is anything, and `Numbers` are tensors and narrow
        ones; anything else is a tensor.
        """
        if value is None or kind == "Bound":
            return value
        if kind == "Items":
            if not isinstance(value, Items):
                self.malformed(f"takes a sequence, but its input {index} is not one")
            return value
        if isinstance(value, Items):
            name = self.source.inputs[index]
            refuse_sequence(f"`{shown(None if name is None else name.name)}`, an input of {self},")
        if isinstance(value, Narrow):
            return value if kind == "Numbers" else self._moved(value)
        if kind in ("Known", "Sizes"):
            return self.known(index) if kind == "Known" else numbers(self.known(index))
        return value if kind == "Value" else as_tensor(cast("Value", value))

    def _moved(self, value: Narrow) -> Tensor:
        """Return numbers of a narrow type for an operator that moves them."""
        if self.name not in MOVES and value.type == ir.DataType.STRING:
            self.refuse(
                "computes with strings, which only encoders and operators that move them take"
            )
        if self.name not in MOVES:
            self.refuse(
                f"computes with numbers of type {value.type.name}, which are only cast, quantized"
                " and moved",
                hint="cast them to a wider type in the graph",
            )
        if self.moved not in (None, value.type):
            self.malformed("has operands of different types")
        self.moved = value.type
        return value.values

    def known(self, index: int) -> Known:
        """Return an input as an array; NeedsKnownError if it depends on inputs that are not."""
        held = self.source.inputs[index] if index < len(self.source.inputs) else None
        if held is None:
            self.malformed(f"lacks input {index}")
        return settled(self.conversion.known(held, f"input {index} of {self}"))

    def proto(self) -> onnx.NodeProto:
        """Return the node as the standard writes it, its attributes resolved."""
        plain = ir.Node(
            self.domain,
            self.op_type,
            [ir.Value(name=each.name if each else "") for each in self.source.inputs],
            list(self.given.values()),
            outputs=[ir.Value(name=each.name) for each in self.source.outputs],
        )
        return ir.serde.serialize_node(plain)

    @property
    def outputs(self) -> int:
        """The number of outputs, including those without a name."""
        return len(self.source.outputs)

    def wants(self, position: int) -> bool:
        """Return whether the output at `position` has a name, so that a node may read it."""
        outputs = self.source.outputs
        return position < len(outputs) and bool(outputs[position].name)

    def require_bounded(self, *sizes: int) -> None:
        """Refuse a node whose converter would make an array of these sizes that is too large."""
        if math.prod(sizes) > MAX_COMPUTED:
            self.refuse(
                f"needs {math.prod(sizes)} numbers at once, at most {MAX_COMPUTED} are allowed"
            )

    @override
    def attribute(self, name: str, kind: str) -> Any:
        """Return an attribute, among others a `DType`, an array (`Known`) or a `Graph`."""
        what = f"the attribute `{name}` of {self}"
        if kind == "DType":
            return dtype_of(self.integer(name), what)
        if kind not in ("Known", "Graph"):
            return super().attribute(name, kind)
        wanted = ir.AttributeType.GRAPH if kind == "Graph" else ir.AttributeType.TENSOR
        found = self.given.get(name)
        if found is None or found.type != wanted:
            self.malformed(f"lacks the attribute `{name}`, a {wanted.name.lower()}")
        if kind == "Graph":
            return found.value
        stored = cast("ir.TensorProtocol", found.value)
        stored_dtype(stored.dtype, what)
        return stored_array(stored, what)


def cut_before(node: Node) -> str:
    """Return how to get the model without the part that begins with a node."""
    names = [each.name for each in node.source.inputs if each is not None and each.name]
    listed = ", ".join(f"'{shown(name)}'" for name in names[:2])
    return (
        "cut the model before it, `onnx.utils.extract_model(file, cut_file, inputs,"
        f" [{listed}])`, and compute the rest of these outputs in Python"
    )


def refuse_sequence(what: str) -> NoReturn:
    """Raise UnsupportedError for a sequence where a tensor is needed."""
    raise UnsupportedError(
        f"{what} is a sequence, and tensors are computed with",
        hint="stack its tensors into one, or return each as its own output",
    )


# Operators that the standard itself defines by simpler ones: their bodies.


_INT64 = int(ir.DataType.INT64)


class _Schema(Protocol):
    """The part of an operator's description that its library's stubs omit."""

    has_function: bool
    has_context_dependent_function: bool
    context_dependent_function_opset_versions: Sequence[int]

    def get_context_dependent_function(self, node: bytes, types: Sequence[bytes], /) -> bytes: ...

    def get_context_dependent_function_with_opset_version(
        self, version: int, node: bytes, types: Sequence[bytes], /
    ) -> bytes: ...


def has_body(domain: str, op_type: str, version: int) -> bool:
    """Return whether the standard defines an operator by others, for some inputs at least."""
    try:
        found = get_schema(op_type, version, domain)
    except SchemaError:
        return False
    schema = cast("_Schema", found)
    return schema.has_function or schema.has_context_dependent_function


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
        # Bodies such as that of SoftmaxCrossEntropyLoss depend on which inputs are there and on
        # their types, so the library writes one for each node.
        body = onnx.FunctionProto.FromString(_written_for(schema, node, values))
    else:
        return None
    if not body.node:
        return None
    for name in tuple(body.attribute):
        default = found.attributes[name].default_value
        if default.type:
            # The library leaves defaults of attributes to the caller, and a reference without a
            # value drops the attribute from the inner node.
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


# A network has the same operator many times, with the same body.
@lru_cache(maxsize=256)
def _parsed(written: bytes) -> tuple[ir.Function, Mapping[str, int]]:
    proto = onnx.FunctionProto.FromString(written)
    computed = {name for node in proto.node for name in node.output}.union(proto.input)
    for name in proto.output:
        if name not in computed:  # an optional output that the node does not ask for
            proto.node.append(onnx.helper.make_node("Constant", [], [name], value_int=0))
    function = ir.serde.deserialize_function(proto)
    return function, dict(function.opset_imports)
