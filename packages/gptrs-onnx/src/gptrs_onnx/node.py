"""A node of an ONNX graph as its converter sees it: attributes with checks, names for errors."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn, Protocol, cast

import numpy as np
import onnx
import onnx_ir as ir

from gptrs.api import ModelError, UnsupportedError
from gptrs.api.programs import DType
from gptrs_onnx.element_types import dtype_of
from gptrs_onnx.values import Known, Value

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
