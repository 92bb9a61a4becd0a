"""Reads the text form of programs: recursive descent, each error at the place that caused it."""

from __future__ import annotations

from gptrs.errors import ProgramError
from gptrs.ir import dtypes
from gptrs.ir.lexer import Lexer, Token
from gptrs.ir.op_text import Annotation, OpText
from gptrs.ir.program import VERSION, Function, Instruction, Program, Region, Value
from gptrs.ir.tensor_type import MAX_RANK, TensorType
from gptrs.ir.value_tree import Node, read_value
from gptrs.ir.verifier import require_bounded

MAX_SPLAT_BYTES = 2**28
"""Most bytes that the `splat` literals of one text may unfold to, so that a short text stays cheap.
"""


def parse_program(text: str) -> Program:
    """The program written in `text`, checked as `verify` does.

    ParseError, with line and column, for anything that is not PTIR: another version, a malformed
    line, unknown ops, dtypes and attributes, values that are undefined or defined twice, types
    that differ from what the op infers or from what the function declares.
    """
    return _Reader(text).program()


class _Reader:
    def __init__(self, text: str) -> None:
        self._lexer = Lexer(text)
        self._scope: dict[str, Value] = {}
        self._splat_bytes_left = MAX_SPLAT_BYTES

    def program(self) -> Program:
        self._version()
        functions: dict[str, Function] = {}
        while self._lexer.token.kind != "end":
            word = self._lexer.token
            if word.text != "func":
                raise self._lexer.expected("`func`")
            self._lexer.advance()
            name = self._lexer.take("symbol", "a function name such as `@main`")
            if name.text in functions:
                raise name.error(f"function {name} is defined twice")
            functions[name.text] = self._function(name)
        if "@main" not in functions:
            raise self._lexer.token.error("a program needs a function called `@main`")
        return Program(tuple(functions.values()))

    def _version(self) -> None:
        token = self._lexer.token
        if not token.text.startswith("ptir."):
            raise self._lexer.expected(f"the version line `{VERSION}`")
        if token.text != VERSION:
            raise token.error(f"version {token} is not supported, this release reads `{VERSION}`")
        self._lexer.advance()

    def _function(self, name: Token) -> Function:
        self._scope = {}
        params = self._params()
        self._lexer.take("->", "`->` and the result type")
        declared = self._types()
        self._lexer.take("{", "`{`")
        instructions: list[Instruction] = []
        while self._lexer.token.kind == "value":
            instructions.append(self._instruction())
        if self._lexer.token.text != "return":
            raise self._lexer.expected("an instruction `%name = op ...` or `return`")
        results = self._return(name, declared)
        self._lexer.take("}", "`}`")
        region = Region(params, tuple(instructions), results)
        return Function(name.text.removeprefix("@"), region)

    def _params(self) -> tuple[Value, ...]:
        self._lexer.take("(", "`(`")
        params: list[Value] = []
        while not self._lexer.skip(")"):
            if params:
                self._lexer.take(",", "`,` or `)`")
            token = self._lexer.take("value", "a parameter such as `%x: f32[2]`")
            self._lexer.take(":", "`:` and a type")
            name = token.text.removeprefix("%")
            value = Value(self._type(), None if name.isdigit() else name)
            self._define(token, value)
            params.append(value)
        return tuple(params)

    def _return(self, function: Token, declared: tuple[Annotation, ...]) -> tuple[Value, ...]:
        keyword = self._lexer.advance()
        operands = self._operands()
        if len(operands) != len(declared):
            raise keyword.error(f"{function} returns {len(declared)} values, got {len(operands)}")
        for index, ((token, value), (_, type_)) in enumerate(zip(operands, declared, strict=True)):
            if value.type != type_:
                what = f"result {index} of {function} is declared as `{type_}`"
                raise token.error(f"{what}, got `{value.type}`")
        return tuple(value for _, value in operands)

    def _instruction(self) -> Instruction:
        targets = [self._lexer.advance()]
        while self._lexer.skip(","):
            targets.append(self._lexer.take("value", "another result such as `%1`"))
        self._lexer.take("=", "`=` or `,`")
        text = OpText(self._lexer.take("word", "the name of an op"))
        operands = self._operands()
        if self._lexer.token.kind == "{":
            text.attributes = self._attributes()
        self._lexer.take(":", "an operand, `{` and attributes, or `:` and the result type")
        annotated = self._types()
        self._splat_bytes_left -= text.splat_bytes(annotated)
        if self._splat_bytes_left < 0:
            raise text.name.error(f"the splats of the text exceed {MAX_SPLAT_BYTES} bytes")
        op = text.resolve(annotated, [value.type for _, value in operands])
        if len(targets) != len(annotated):
            what = f"{text.name} has {len(annotated)} results"
            raise targets[0].error(f"{what}, got names for {len(targets)}")
        results = tuple(Value(type_) for _, type_ in annotated)
        for token, value in zip(targets, results, strict=True):
            self._define(token, value)
        return Instruction(op, tuple(value for _, value in operands), results)

    def _attributes(self) -> dict[str, tuple[Token, Node]]:
        self._lexer.take("{", "`{`")
        found: dict[str, tuple[Token, Node]] = {}
        while not self._lexer.skip("}"):
            if found:
                self._lexer.take(",", "`,` or `}`")
            name = self._lexer.take("word", "the name of an attribute")
            if name.text in found:
                raise name.error(f"attribute {name} is given twice")
            self._lexer.take("=", "`=`")
            found[name.text] = (name, read_value(self._lexer))
        return found

    def _operands(self) -> list[tuple[Token, Value]]:
        operands: list[tuple[Token, Value]] = []
        if self._lexer.token.kind != "value":
            return operands
        while True:
            token = self._lexer.take("value", "a value such as `%0`")
            if token.text not in self._scope:
                raise token.error(f"value {token} is not defined")
            operands.append((token, self._scope[token.text]))
            if not self._lexer.skip(","):
                return operands

    def _define(self, token: Token, value: Value) -> None:
        if token.text in self._scope:
            raise token.error(f"value {token} is defined twice")
        self._scope[token.text] = value

    def _types(self) -> tuple[Annotation, ...]:
        if not self._lexer.skip("("):
            return ((self._lexer.token, self._type()),)
        types: list[Annotation] = []
        while not self._lexer.skip(")"):
            if types:
                self._lexer.take(",", "`,` or `)`")
            types.append((self._lexer.token, self._type()))
        return tuple(types)

    def _type(self) -> TensorType:
        name = self._lexer.take("word", "a type such as `f32[2, 3]`")
        try:
            dtype = dtypes.by_name(name.text)
        except ProgramError as error:
            raise name.error(f"unknown dtype {name}; {error.hint}") from None
        self._lexer.take("[", "`[` and the dims of the type")
        dims: list[int] = []
        while not self._lexer.skip("]"):
            if dims:
                self._lexer.take(",", "`,` or `]`")
            if len(dims) == MAX_RANK:
                raise self._lexer.token.error(f"a type has at most {MAX_RANK} dims")
            dims.append(self._dim())
        try:
            type_ = TensorType(dtype, tuple(dims))
            require_bounded(type_)
        except ProgramError as error:
            raise name.error(str(error)) from None
        return type_

    def _dim(self) -> int:
        token = self._lexer.token
        if token.kind == "?":
            raise token.error("symbolic dims (`?N`) are not read; write the size as a number")
        if not token.text.isdigit() or len(token.text) > 20:
            raise self._lexer.expected("a dim, a whole number of at most 20 digits")
        self._lexer.advance()
        return int(token.text)
