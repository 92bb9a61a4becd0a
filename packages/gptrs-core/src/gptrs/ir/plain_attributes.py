"""The kinds of attributes that need no context: flags, numbers, strings, dtypes, integer lists."""

from __future__ import annotations

import math
import typing

from typing_extensions import override

from gptrs.ir import dtypes
from gptrs.ir.attribute_kind import MAX_LENGTH, AttributeKind, SameInJson, misfit
from gptrs.ir.dtypes import DType
from gptrs.ir.lexer import IDENTIFIER, Token
from gptrs.ir.literal_text import (
    LITERAL_SCHEMA,
    Literal,
    literal_from_json,
    literal_to_json,
    parse_literal,
    print_literal,
)
from gptrs.ir.symbolic_dim import JSON_PATTERN, MAX_TEXT, SymbolicDim
from gptrs.ir.tensor_type import TensorType
from gptrs.ir.type_text import read_symbolic
from gptrs.ir.value_tree import JsonNode, SyntaxNode, SyntaxSequence, SyntaxType

_INTEGER_LIMIT = 2**63
_EXACT_INTEGERS = 2**53


class Flag(SameInJson):
    """true or false."""

    __slots__ = ()

    wanted = "true or false"
    written = "`true` or `false`"

    @override
    def accepts(self, value: object) -> bool:
        # Exactly this type: NumPy's bool would print as `True`, and 1 as a number.
        return type(value) is bool

    @override
    def print(self, value: bool) -> str:
        return "true" if value else "false"

    @override
    def parse(self, node: SyntaxNode, result: TensorType) -> object:
        if not isinstance(node, Token) or node.text not in ("true", "false"):
            raise misfit(self, node)
        return node.text == "true"

    @property
    @override
    def schema(self) -> dict[str, object]:
        return {"type": "boolean"}


class Integer(SameInJson):
    """An integer of 64 bits."""

    __slots__ = ()

    wanted = "an integer of 64 bits"
    written = "an integer of 64 bits"

    @override
    def accepts(self, value: object) -> bool:
        return type(value) is int and -_INTEGER_LIMIT <= value < _INTEGER_LIMIT

    @override
    def print(self, value: int) -> str:
        return str(value)

    @override
    def parse(self, node: SyntaxNode, result: TensorType) -> object:
        # 20 characters hold every 64-bit integer; longer digits would be converted in quadratic
        # time, and from 4,300 on int() refuses them with an error of its own.
        if (
            not isinstance(node, Token)
            or not node.text.removeprefix("-").isdigit()
            or len(node.text) > 20
            or not self.accepts(value := int(node.text))
        ):
            raise misfit(self, node)
        return value

    @property
    @override
    def schema(self) -> dict[str, object]:
        return {"type": "integer", "minimum": -_INTEGER_LIMIT, "maximum": _INTEGER_LIMIT - 1}


INTEGER = Integer()


class Dim(AttributeKind):
    """An integer of 64 bits, or a symbolic dim; in JSON the latter is a string."""

    __slots__ = ()

    wanted = "an integer of 64 bits or a symbolic dim"
    written = "an integer of 64 bits or symbols as in `2*?0+1`"

    @override
    def accepts(self, value: object) -> bool:
        return type(value) is SymbolicDim or INTEGER.accepts(value)

    @override
    def print(self, value: int) -> str:
        return str(value)

    @override
    def parse(self, node: SyntaxNode, result: TensorType) -> object:
        if isinstance(node, Token) and node.kind == "dim":
            return read_symbolic(node)
        return INTEGER.parse(node, result)

    @property
    @override
    def schema(self) -> dict[str, object]:
        symbolic = {"type": "string", "pattern": rf"^{JSON_PATTERN}$", "maxLength": MAX_TEXT}
        return {"anyOf": [INTEGER.schema, symbolic]}

    @override
    def to_json(self, value: int) -> object:
        return str(value) if isinstance(value, SymbolicDim) else value

    @override
    def from_json(self, node: JsonNode) -> object:
        return node.dim() if isinstance(node.value, str) else INTEGER.from_json(node)


DIM = Dim()


class Float(AttributeKind):
    """A Python float, printed so that it reads back the same."""

    __slots__ = ()

    wanted = "a float"
    written = "a number, `inf`, `-inf` or `nan`"

    @override
    def accepts(self, value: object) -> bool:
        return type(value) is float

    @override
    def print(self, value: float) -> str:
        # `repr` gives the shortest text that reads back as the same number.
        return repr(value)

    @override
    def parse(self, node: SyntaxNode, result: TensorType) -> object:
        if not isinstance(node, Token) or node.kind != "number":
            raise misfit(self, node)
        return float(node.text)

    @property
    @override
    def schema(self) -> dict[str, object]:
        return {"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]}

    @override
    def to_json(self, value: float) -> object:
        # JSON has no NaN and infinities; Python would write words that other readers refuse.
        return value if math.isfinite(value) else repr(value)

    @override
    def from_json(self, node: JsonNode) -> object:
        value = node.value
        # JSON of other languages writes 1.0 as 1; a larger integer may not be a float exactly.
        if isinstance(value, float) or (type(value) is int and abs(value) <= _EXACT_INTEGERS):
            return float(value)
        if isinstance(value, str) and value in ("nan", "inf", "-inf"):
            return float(value)
        raise misfit(self, node)


class Text(SameInJson):
    """A string of printable characters without double quotes, written in double quotes."""

    __slots__ = ()

    wanted = f'a string of at most {MAX_LENGTH} printable characters without `"`'
    written = 'a string in double quotes such as `"name"`'

    @override
    def accepts(self, value: object) -> bool:
        return (
            type(value) is str
            and len(value) <= MAX_LENGTH
            and value.isprintable()
            and '"' not in value
        )

    @override
    def print(self, value: str) -> str:
        return f'"{value}"'

    @override
    def parse(self, node: SyntaxNode, result: TensorType) -> object:
        if (
            not isinstance(node, Token)
            or node.kind != "string"
            or not self.accepts(node.text[1:-1])
        ):
            raise misfit(self, node)
        return node.text[1:-1]

    @property
    @override
    def schema(self) -> dict[str, object]:
        return {"type": "string", "maxLength": MAX_LENGTH, "pattern": '^[^"]*$'}


class ElementType(AttributeKind):
    """A dtype."""

    __slots__ = ()

    wanted = "a dtype"
    written = f"one of the dtypes {', '.join(str(dtype) for dtype in dtypes.ALL)}"

    @override
    def accepts(self, value: object) -> bool:
        return any(value is dtype for dtype in dtypes.ALL)

    @override
    def print(self, value: DType) -> str:
        return value.name

    @override
    def parse(self, node: SyntaxNode, result: TensorType) -> object:
        for dtype in dtypes.ALL:
            if isinstance(node, Token) and node.text == dtype.name:
                return dtype
        raise misfit(self, node)

    @property
    @override
    def schema(self) -> dict[str, object]:
        return {"$ref": "#/$defs/dtype"}

    @override
    def to_json(self, value: DType) -> object:
        return value.name

    @override
    def from_json(self, node: JsonNode) -> object:
        name = node.dtype_name()
        for dtype in dtypes.ALL:
            if dtype.name == name:
                return dtype
        raise misfit(self, node)


class Integers(AttributeKind):
    """A tuple of integers, usually one per axis."""

    __slots__ = ()

    wanted = f"a tuple of at most {MAX_LENGTH} integers of 64 bits"
    written = f"a list of at most {MAX_LENGTH} integers such as `[0, 1]`"

    @override
    def accepts(self, value: object) -> bool:
        if type(value) is not tuple:
            return False
        items = typing.cast("tuple[object, ...]", value)
        return len(items) <= MAX_LENGTH and all(map(DIM.accepts, items))

    @override
    def print(self, value: tuple[int, ...]) -> str:
        return f"[{', '.join(map(str, value))}]"

    @override
    def parse(self, node: SyntaxNode, result: TensorType) -> object:
        if not isinstance(node, SyntaxSequence) or not node.is_list or len(node.items) > MAX_LENGTH:
            raise misfit(self, node)
        return tuple(DIM.parse(item, result) for item in node.items)

    @property
    @override
    def schema(self) -> dict[str, object]:
        return {"type": "array", "maxItems": MAX_LENGTH, "items": DIM.schema}

    @override
    def to_json(self, value: tuple[int, ...]) -> object:
        return [DIM.to_json(item) for item in value]

    @override
    def from_json(self, node: JsonNode) -> object:
        if len(node.list()) > MAX_LENGTH:
            raise misfit(self, node)
        return tuple(DIM.from_json(item) for item in node.items())


# The kinds of attributes that refer to PTIR: literals, types, functions.


class Tensor(AttributeKind):
    """A whole literal, of the type of the first result."""

    __slots__ = ()

    wanted = "a gptrs.ir.Literal"
    written = 'a literal, `splat(x)` or `hex("...")`'

    @override
    def accepts(self, value: object) -> bool:
        return type(value) is Literal

    @override
    def print(self, value: Literal) -> str:
        return print_literal(value)

    @override
    def parse(self, node: SyntaxNode, result: TensorType) -> object:
        return parse_literal(node, result)

    @property
    @override
    def schema(self) -> dict[str, object]:
        return LITERAL_SCHEMA

    @override
    def to_json(self, value: Literal) -> object:
        return literal_to_json(value)

    @override
    def from_json(self, node: JsonNode) -> object:
        return literal_from_json(node)


class Scalar(AttributeKind):
    """One element, of the element type of the first result."""

    __slots__ = ()

    wanted = "a gptrs.ir.Literal of rank 0"
    written = "one element such as `0.0`"

    @override
    def accepts(self, value: object) -> bool:
        return type(value) is Literal and value.type.rank == 0

    @override
    def print(self, value: Literal) -> str:
        return print_literal(value)

    @override
    def parse(self, node: SyntaxNode, result: TensorType) -> object:
        return parse_literal(node, result.with_shape(()))

    @property
    @override
    def schema(self) -> dict[str, object]:
        return LITERAL_SCHEMA

    @override
    def to_json(self, value: Literal) -> object:
        return literal_to_json(value)

    @override
    def from_json(self, node: JsonNode) -> object:
        value = literal_from_json(node)
        if not self.accepts(value):
            raise node.error(f"needs a literal of rank 0, got `{value.type}`")
        return value


class FunctionReference(AttributeKind):
    """The name of a function of the same program."""

    __slots__ = ()

    wanted = "the name of a function, without `@`"
    written = "a function such as `@name`"

    @override
    def accepts(self, value: object) -> bool:
        return type(value) is str and IDENTIFIER.fullmatch(value) is not None

    @override
    def print(self, value: str) -> str:
        return f"@{value}"

    @override
    def parse(self, node: SyntaxNode, result: TensorType) -> object:
        if not isinstance(node, Token) or node.kind != "symbol":
            raise misfit(self, node)
        return node.text.removeprefix("@")

    @property
    @override
    def schema(self) -> dict[str, object]:
        return {"type": "string", "pattern": f"^@{IDENTIFIER.pattern}$"}

    @override
    def to_json(self, value: str) -> object:
        return f"@{value}"

    @override
    def from_json(self, node: JsonNode) -> object:
        text = node.string(self.written)
        if not text.startswith("@") or not self.accepts(text[1:]):
            raise misfit(self, node)
        return text[1:]


class Types(AttributeKind):
    """A tuple of tensor types."""

    __slots__ = ()

    wanted = f"a tuple of at most {MAX_LENGTH} tensor types"
    written = f"a list of at most {MAX_LENGTH} types such as `[f32[2, 3]]`"

    @override
    def accepts(self, value: object) -> bool:
        if type(value) is not tuple:
            return False
        items = typing.cast("tuple[object, ...]", value)
        return len(items) <= MAX_LENGTH and all(type(item) is TensorType for item in items)

    @override
    def print(self, value: tuple[TensorType, ...]) -> str:
        return f"[{', '.join(map(str, value))}]"

    @override
    def parse(self, node: SyntaxNode, result: TensorType) -> object:
        if not isinstance(node, SyntaxSequence) or not node.is_list or len(node.items) > MAX_LENGTH:
            raise misfit(self, node)
        for item in node.items:
            if not isinstance(item, SyntaxType):
                raise item.error(f"expected a type such as `f32[2, 3]`, found {item}")
        return tuple(item.type for item in node.items if isinstance(item, SyntaxType))

    @property
    @override
    def schema(self) -> dict[str, object]:
        return {"type": "array", "maxItems": MAX_LENGTH, "items": {"$ref": "#/$defs/type"}}

    @override
    def to_json(self, value: tuple[TensorType, ...]) -> object:
        return [str(type_) for type_ in value]

    @override
    def from_json(self, node: JsonNode) -> object:
        if len(node.list()) > MAX_LENGTH:
            raise misfit(self, node)
        return tuple(item.type() for item in node.items())
