"""An ONNX graph while it is written: nodes in order, constants, and sizes that are computed."""

from __future__ import annotations

from collections.abc import Container, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from itertools import count
from typing import Final, NoReturn, cast

import numpy as np
import onnx
from msgspec import Struct
from onnx import helper

from gptrs.api import UnsupportedError
from gptrs.api.programs import DType, TensorType, Value, dtypes
from gptrs.ir.dtypes import pack_int4
from gptrs.ir.specialize import lone_symbol
from gptrs.ir.symbolic_dim import Atom, SymbolicDim
from gptrs_onnx.element_types import ONNX_TYPES

OPSET: Final = 21
"""The operator set of what is written: the first with 4-bit integers."""
Attribute = int | float | str | Sequence[int] | onnx.GraphProto | onnx.TensorProto


class Ref(Struct, frozen=True):
    """A value of the graph: its name, and its type in PTIR."""

    name: str
    type: TensorType

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.type.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes, some perhaps symbolic."""
        return self.type.shape

    @property
    def rank(self) -> int:
        """The number of axes."""
        return self.type.rank


class GraphWriter:
    """The nodes of a graph, and of the graphs inside it; `op` names what is written in errors.

    Inputs, outputs and weights have the names that are `taken`.
    """

    def __init__(self, taken: Container[str]) -> None:
        self._taken = taken
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.values: dict[Value, Ref] = {}
        self.op = "the program"
        self._known: dict[tuple[str, tuple[int, ...], bytes], Ref] = {}
        self._elements: dict[str, np.ndarray] = {}
        self._symbols: dict[int, Ref] = {}
        self._sizes: list[dict[tuple[int, ...], Ref]] = [{}]
        self._sources: dict[str, Ref] = {}
        self._numbers = count()

    def fresh(self, stem: str = "v") -> str:
        """Return a name that nothing has."""
        names = (f"{stem}_{number}" for number in self._numbers)
        return next(name for name in names if name not in self._taken)

    def refuse(self, reason: str) -> NoReturn:
        """Refuse the op that is being written."""
        raise UnsupportedError(f"`{self.op}` cannot be written as ONNX: {reason}")

    def node(
        self,
        op_type: str,
        *inputs: Ref | None,
        type: TensorType | None = None,
        dtype: DType | None = None,
        shape: Sequence[int] | None = None,
        **attributes: Attribute,
    ) -> Ref:
        """Add a node of one result: of `type`, else of that of the first input but for the rest."""
        made = type
        if made is None:
            first = next(each for each in inputs if each is not None)
            made = TensorType(dtype or first.dtype, first.shape if shape is None else tuple(shape))
        (result,) = self.node_of(op_type, inputs, [made], **attributes)
        return result

    def node_of(
        self,
        op_type: str,
        inputs: Sequence[Ref | None],
        types: Sequence[TensorType],
        **attributes: Attribute,
    ) -> list[Ref]:
        """Add a node with results of these types; UnsupportedError for inputs that it lacks."""
        for position, each in enumerate(inputs):
            if each is not None:
                self._require_taken(op_type, position, each.dtype)
        results = [Ref(self.fresh(), type_) for type_ in types]
        names = ["" if each is None else each.name for each in inputs]
        while names and not names[-1]:  # ONNX Runtime 1.32 crashes on some that are left out so
            names.pop()
        # An empty list has no element type, which `make_attribute` needs; absent means the same.
        given = {name: each for name, each in attributes.items() if each != []}
        made = helper.make_node(op_type, names, [each.name for each in results])
        made.attribute.extend(helper.make_attribute(name, each) for name, each in given.items())
        self.nodes.append(made)
        return results

    def _require_taken(self, op_type: str, position: int, dtype: DType) -> None:
        taken = _taken_types(op_type)
        if taken and type_text(dtype) not in taken[min(position, len(taken) - 1)]:
            self.refuse(f"ONNX's `{op_type}` takes no {dtype}")

    def constant(self, array: np.ndarray) -> Ref:
        """Return a constant; equal ones are one initializer."""
        type_ = TensorType.of(array)
        data = np.ascontiguousarray(array)
        # By bytes: -0 equals 0, and NaN equals nothing.
        key = (type_.dtype.name, type_.shape, data.tobytes())
        if key not in self._known:
            name = self.fresh("c")
            self.constants.append(tensor_proto(name, data, type_))
            self._known[key] = Ref(name, type_)
            self._elements[name] = data
        return self._known[key]

    def elements(self, x: Ref) -> np.ndarray | None:
        """Return the elements of a constant, None for anything else."""
        return self._elements.get(x.name)

    def scalar(self, value: complex, dtype: DType) -> Ref:
        """Return a number as a constant without axes."""
        return self.constant(np.full((), value).astype(dtype.numpy))

    def vector(self, values: Sequence[int]) -> Ref:
        """Return sizes as an si64 vector: a constant, or computed where some are symbolic."""
        if not any(isinstance(each, SymbolicDim) for each in values):
            return self.constant(np.asarray(values, np.int64).reshape(len(values)))
        key = tuple(values)
        # Sizes of outer graphs are seen inside, but not the other way round.
        known = next((scope[key] for scope in self._sizes if key in scope), None)
        if known is None:
            parts = [
                self._size(values[0]) if len(values) == 1 else self.vector([each])
                for each in values
            ]
            known = parts[0]
            if len(parts) > 1:
                known = self.node("Concat", *parts, shape=(len(parts),), axis=0)
            self._sizes[-1][key] = known
        return known

    def bind_symbols(self, inputs: Sequence[Ref]) -> None:
        """Compute the size of each symbol from an input that has it alone as a size."""
        for ref in inputs:
            for axis, size in enumerate(ref.shape):
                number = lone_symbol(size)
                # From the first input that has it: the others have the same size, by the rules of a
                # program.
                if number is not None and number not in self._symbols:
                    self._symbols[number] = self.node(
                        "Shape", ref, type=VECTOR_OF_ONE, start=axis, end=axis + 1
                    )

    def _size(self, size: int) -> Ref:
        """Return a size as an si64 vector of one element."""
        if not isinstance(size, SymbolicDim):
            return self.constant(np.asarray([size], np.int64))
        total: Ref | None = None
        for monomial, factor in size.terms:
            term: Ref | None = None
            for atom in monomial:
                own = self._atom(atom)
                term = own if term is None else self.node("Mul", term, own)
            if term is None or factor != 1:
                scale = self.constant(np.asarray([factor], np.int64))
                term = scale if term is None else self.node("Mul", term, scale)
            total = term if total is None else self.node("Add", total, term)
        assert total is not None, "a symbolic size has a term"
        return total

    def _atom(self, atom: Atom) -> Ref:
        """Return a symbol or a quotient, which is of numbers >= 0, as such a vector."""
        if not isinstance(atom, int):
            divisor = self.constant(np.asarray([atom.divisor], np.int64))
            # ONNX divides integers toward zero; of numbers >= 0 that is PTIR's quotient.
            return self.node("Div", self._size(cast("int", atom.dividend)), divisor)
        found = self._symbols.get(atom)
        if found is None:
            self.refuse(f"no input has the size `?{atom}` alone on an axis")
        return found

    @contextmanager
    def inner(self) -> Generator[list[onnx.NodeProto]]:
        """Scope in which nodes go into a graph inside this one, which sees the values so far."""
        outer, self.nodes = self.nodes, []
        self._sizes.append({})
        try:
            yield self.nodes
        finally:
            self.nodes = outer
            self._sizes.pop()

    def cast(self, x: Ref, dtype: DType) -> Ref:
        """Return `x` by ONNX's `Cast`: integers wrap, floats of 8 bits do not saturate."""
        if x.dtype is dtype:
            return x
        if x.dtype.is_complex or dtype.is_complex:
            self.refuse(f"ONNX does not convert {x.dtype} to {dtype}")
        to = int(ONNX_TYPES[dtype])
        if dtype.name.startswith("f8"):
            # The default of ONNX saturates, which PTIR does not.
            return self.node("Cast", x, dtype=dtype, to=to, saturate=0)
        return self.node("Cast", x, dtype=dtype, to=to)

    def reshape(self, x: Ref, shape: Sequence[int]) -> Ref:
        """Return `x` with other sizes."""
        if tuple(shape) == x.shape:
            return x
        # With `allowzero`: otherwise a size of 0 would mean the size of the input there.
        return self.node("Reshape", x, self.vector(shape), shape=shape, allowzero=1)

    def transpose(self, x: Ref, permutation: Sequence[int]) -> Ref:
        """Return `x` with its axes in another order."""
        if list(permutation) == list(range(x.rank)):
            return x
        shape = [x.shape[axis] for axis in permutation]
        return self.node("Transpose", x, shape=shape, perm=list(permutation))

    def expand(self, x: Ref, shape: Sequence[int]) -> Ref:
        """Return `x` repeated to a shape."""
        if tuple(shape) == x.shape:
            return x
        made = self.node("Expand", x, self.vector(shape), shape=shape)
        self._sources[made.name] = x
        return made

    def lean(self, *operands: Ref) -> list[Ref]:
        """Return operands of one shape without what repeats their elements: operators do that.

        One of them stays as it is, so that the result has the shape.
        """
        sources = [self._sources.get(each.name, each) for each in operands]
        if all(source is not each for source, each in zip(sources, operands, strict=True)):
            sources[0] = operands[0]
        return sources

    def where(self, condition: Ref, x: Ref, y: Ref) -> Ref:
        """Return `x` where the condition is true, else `y`; some of these may be scalars."""
        shape = max((condition.shape, x.shape, y.shape), key=len)
        sources = self.lean(condition, x, y)
        return self.node("Where", *sources, dtype=x.dtype, shape=shape)


VECTOR_OF_ONE: Final = TensorType(dtypes.si64, (1,))


@cache
def _taken_types(op_type: str) -> list[frozenset[str]]:
    """Return the types that each input of an operator takes, as ONNX writes them."""
    schema = onnx.defs.get_schema(op_type, OPSET)
    return [frozenset(map(str, each.types)) for each in schema.inputs]


_TEXT: Final[Mapping[str, str]] = {
    "i1": "bool", "bf16": "bfloat16", "f16": "float16", "f32": "float", "f64": "double",
    "f8e4m3": "float8e4m3fn", "f8e5m2": "float8e5m2", "cf32": "complex64", "cf64": "complex128",
}  # fmt: skip


def type_text(dtype: DType) -> str:
    """Return the name of an element type in ONNX's schemas, `tensor(float)`."""
    name = dtype.name.replace("si", "int").replace("ui", "uint")
    return f"tensor({_TEXT.get(dtype.name, name)})"


def tensor_proto(name: str, array: np.ndarray, type_: TensorType) -> onnx.TensorProto:
    """Return an array as a tensor of an ONNX file."""
    proto = onnx.TensorProto(name=name, data_type=int(ONNX_TYPES[type_.dtype]))
    proto.dims.extend(type_.shape)
    proto.raw_data = stored_bytes(array, type_.dtype)
    return proto


def stored_bytes(array: np.ndarray, dtype: DType) -> bytes:
    """Return the elements as ONNX files hold them: little-endian, two integers of 4 bits a byte."""
    if dtype.bits == 4:
        return pack_int4(array).tobytes()
    return np.ascontiguousarray(array).tobytes()
