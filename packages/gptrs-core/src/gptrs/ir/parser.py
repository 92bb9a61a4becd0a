"""Reads the text form of programs by recursive descent; each error points at its cause."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from gptrs.errors import ParseError, ProgramError
from gptrs.ir import dtypes
from gptrs.ir.attribute_kind import AttributeKind
from gptrs.ir.bounds import MAX_NESTING
from gptrs.ir.builder import WrittenOp
from gptrs.ir.lexer import Lexer, Token
from gptrs.ir.literal_text import parse_literal
from gptrs.ir.op import Signature
from gptrs.ir.ops.creation import Constant
from gptrs.ir.program import (
    VERSION,
    Function,
    Instruction,
    Program,
    Region,
    Value,
    unknown_version,
    verify,
)
from gptrs.ir.tensor_type import TensorType
from gptrs.ir.type_text import Annotation, read_type, read_types
from gptrs.ir.value_tree import SyntaxCall, SyntaxNode, read_names, read_value
from gptrs.ir.versions import VERSIONS

MAX_SPLAT_BYTES = 2**28
"""Most bytes that the `splat` literals of one text may expand to, so that a short text costs little
memory.
"""
_DTYPE_NAMES = frozenset(dtype.name for dtype in dtypes.ALL)


def parse_program(text: str) -> Program:
    """Return the program written in `text`, checked as `verify` does.

    ParseError, with line and column, for anything that is not PTIR: another version, a malformed
    line, unknown ops, dtypes and attributes, values that are undefined or defined twice, types
    that differ from what the op infers or from what the function declares.
    """
    return _Reader(text).program()


class _Scope(Struct):
    """The region being read: its names and instructions so far."""

    names: dict[str, Value] = field(default_factory=dict[str, Value])
    instructions: list[Instruction] = field(default_factory=list[Instruction])

    def define(self, token: Token, value: Value) -> None:
        if token.text in self.names:
            raise token.error(f"value {token} is defined twice")
        self.names[token.text] = value


class _Written(Struct, frozen=True):
    """A value in the text form written for an attribute."""

    node: SyntaxNode

    def read(self, kind: AttributeKind, result: TensorType) -> object:
        return kind.parse(self.node, result)

    def error(self, message: str) -> ParseError:
        return self.node.error(message)


class _Reader:
    def __init__(self, text: str) -> None:
        self._lexer = Lexer(text)
        self._scope = _Scope()
        self._nesting = 0
        self._signatures: dict[str, Signature] = {}
        self._version = VERSIONS[VERSION]
        self._splat_bytes_left = MAX_SPLAT_BYTES

    def program(self) -> Program:
        self._version_line()
        functions: list[Function] = []
        while self._lexer.token.kind != "end":
            word = self._lexer.token
            if word.text != "func":
                raise self._lexer.expected("`func`")
            self._lexer.advance()
            token = self._lexer.take("symbol", "a function name such as `@main`")
            name = token.text.removeprefix("@")
            if name in self._signatures:
                raise token.error(f"function {token} is defined twice")
            function = Function(name, self._function(token))
            # After its body: a function calls only those above it, so that there is no recursion.
            self._signatures[name] = function.body.signature
            functions.append(function)
        if "main" not in self._signatures:
            raise self._lexer.token.error("a program needs a function called `@main`")
        program = Program(tuple(functions))
        try:
            # Operations are checked above, each with its place; this checks what concerns the
            # whole.
            verify(program)
        except ProgramError as error:
            raise self._lexer.token.error(str(error)) from None
        return program

    def _version_line(self) -> None:
        token = self._lexer.token
        if not token.text.startswith("ptir."):
            raise self._lexer.expected(f"the version line `{VERSION}`")
        if token.text not in VERSIONS:
            raise token.error(unknown_version(token.text))
        self._version = VERSIONS[token.text]
        self._lexer.words = self._version.dtype_names
        self._lexer.advance()

    def _function(self, name: Token) -> Region:
        self._scope = _Scope()
        params = self._params()
        self._lexer.take("->", "`->` and the result type")
        declared = read_types(self._lexer)
        keyword, results = self._block()
        if len(results) != len(declared):
            raise keyword.error(f"{name} returns {len(declared)} values, got {len(results)}")
        for index, ((token, value), (_, type_)) in enumerate(zip(results, declared, strict=True)):
            if value.type != type_:
                what = f"result {index} of {name} is declared as `{type_}`"
                raise token.error(f"{what}, got `{value.type}`")
        return self._finished(params, results)

    def _region(self, name: str) -> Region:
        """Return a region of an instruction, which is isolated from the enclosing one."""
        token = self._lexer.take("word", f"the region `{name}(...)`")
        if token.text != name:
            raise token.error(f"expected the region `{name}(...)`, found {token}")
        # Recursive descent: deeper nesting would end in a RecursionError of Python.
        if self._nesting == MAX_NESTING:
            raise token.error(f"regions are nested deeper than {MAX_NESTING}")
        # Regions are isolated: names of the enclosing one are not visible in them.
        outer, self._scope = self._scope, _Scope()
        self._nesting += 1
        params = self._params()
        _, results = self._block()
        region = self._finished(params, results)
        self._nesting -= 1
        self._scope = outer
        return region

    def _finished(self, params: Sequence[Value], results: Sequence[tuple[Token, Value]]) -> Region:
        values = tuple(value for _, value in results)
        return Region(tuple(params), tuple(self._scope.instructions), values)

    def _params(self) -> tuple[Value, ...]:
        self._lexer.take("(", "`(`")
        params: list[Value] = []
        while not self._lexer.skip(")"):
            if params:
                self._lexer.take(",", "`,` or `)`")
            token = self._lexer.take("value", "a parameter such as `%x: f32[2]`")
            self._lexer.take(":", "`:` and a type")
            name = token.text.removeprefix("%")
            value = Value(read_type(self._lexer), None if name.isdigit() else name)
            self._scope.define(token, value)
            params.append(value)
        return tuple(params)

    def _block(self) -> tuple[Token, list[tuple[Token, Value]]]:
        """Parse `{`, instructions, `return` and the returned values, `}`."""
        self._lexer.take("{", "`{`")
        while self._lexer.token.kind == "value":
            self._instruction()
        if self._lexer.token.text != "return":
            raise self._lexer.expected("an instruction `%name = op ...` or `return`")
        keyword = self._lexer.advance()
        results = self._operands()
        self._lexer.take("}", "`}`")
        return keyword, results

    def _instruction(self) -> None:
        targets = [self._lexer.advance()]
        while self._lexer.skip(","):
            targets.append(self._lexer.take("value", "another result such as `%1`"))
        self._lexer.take("=", "`=` or `,`")
        name = self._lexer.take("word", "the name of an op")
        text = WrittenOp(name.text, name, self._version.change(name.text))
        operands = self._operands()
        nodes = read_names(self._lexer).items if self._lexer.token.kind == "{" else {}
        text.attributes = {key: (token, _Written(node)) for key, (token, node) in nodes.items()}
        regions = tuple(self._region(name) for name in text.region_names)
        wanted = "an operand, `{` and attributes, or `:` and the result type"
        self._lexer.take(":", "`:` and the result type" if regions else wanted)
        annotated = read_types(self._lexer)
        if annotated:
            self._unfold(name, _count_splats(nodes), annotated[0][1])
        regions = text.upgraded(regions)
        types = [value.type for _, value in operands]
        signatures = [region.signature for region in regions]
        op = text.resolve(annotated, types, signatures, self._signatures)
        results = self._results(targets, name, annotated)
        values = tuple(value for _, value in operands)
        self._scope.instructions.append(Instruction(op, values, results, regions))

    def _results(
        self, targets: Sequence[Token], op: Token, annotated: Sequence[Annotation]
    ) -> tuple[Value, ...]:
        if len(targets) != len(annotated):
            what = f"{op} has {len(annotated)} results"
            raise targets[0].error(f"{what}, got names for {len(targets)}")
        results = tuple(Value(type_) for _, type_ in annotated)
        for token, value in zip(targets, results, strict=True):
            self._scope.define(token, value)
        return results

    def _operands(self) -> list[tuple[Token, Value]]:
        operands: list[tuple[Token, Value]] = []
        token = self._lexer.token
        if token.kind != "value" and token.text not in _DTYPE_NAMES:
            return operands
        while True:
            operands.append(self._operand())
            if not self._lexer.skip(","):
                return operands

    def _operand(self) -> tuple[Token, Value]:
        token = self._lexer.token
        if token.kind == "word":
            return token, self._inline_literal()
        self._lexer.take("value", "a value such as `%0`, or a literal such as `f32[] 1.0`")
        if token.text not in self._scope.names:
            raise token.error(f"value {token} is not defined")
        return token, self._scope.names[token.text]

    def _inline_literal(self) -> Value:
        """Return `f32[2] splat(1.0)` for an operand: a `constant` in front of the instruction."""
        type_: TensorType = read_type(self._lexer)
        node: SyntaxNode = read_value(self._lexer)
        if isinstance(node, SyntaxCall) and node.word.text == "splat":
            self._unfold(node.word, 1, type_)
        value = Value(type_)
        op = Constant(parse_literal(node, type_))
        # In front of the instruction that reads it, which is appended afterwards.
        self._scope.instructions.append(Instruction(op, (), (value,)))
        return value

    def _unfold(self, at: Token, splats: int, type_: TensorType) -> None:
        if not type_.is_static:  # refused where the literal is read
            return
        # Before anything is allocated: 20 characters can ask for any amount of memory.
        self._splat_bytes_left -= splats * type_.nbytes
        if self._splat_bytes_left < 0:
            raise at.error(f"the splats of the text exceed {MAX_SPLAT_BYTES} bytes")


def _count_splats(attributes: dict[str, tuple[Token, SyntaxNode]]) -> int:
    nodes = (node for _, node in attributes.values())
    return sum(isinstance(node, SyntaxCall) and node.word.text == "splat" for node in nodes)
