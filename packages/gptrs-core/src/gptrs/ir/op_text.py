"""Turns an op as written, a name and attributes, into a checked instance of the op class."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from gptrs.errors import ParseError, ProgramError
from gptrs.ir.lexer import Token
from gptrs.ir.op import OPS, Op, Signature
from gptrs.ir.tensor_type import TensorType
from gptrs.ir.type_text import Annotation
from gptrs.ir.value_tree import Call, Node

_LONGEST_GUESS = 64


class OpText:
    """The name of an op and its attributes, each with the token of its name."""

    def __init__(self, name: Token) -> None:
        if name.text not in OPS:
            raise name.error(f"unknown op {name}{_suggestion(name.text)}")
        self.name = name
        self.attributes: dict[str, tuple[Token, Node]] = {}
        self._class = OPS[name.text]

    @property
    def region_names(self) -> tuple[str, ...]:
        """The regions that the op carries."""
        return self._class.region_names

    def splat_bytes(self, annotated: Sequence[Annotation]) -> int:
        """How many bytes its `splat(x)` literals, if any, unfold to."""
        splats = [
            node
            for _, node in self.attributes.values()
            if isinstance(node, Call) and node.word.text == "splat"
        ]
        return len(splats) * annotated[0][1].nbytes if annotated else 0

    def resolve(
        self,
        annotated: Sequence[Annotation],
        operands: Sequence[TensorType],
        regions: Sequence[Signature],
        functions: Mapping[str, Signature],
    ) -> Op:
        """The op with these attributes; ParseError if it does not infer the annotated types."""
        if not annotated:
            raise self.name.error(f"{self.name} has at least one result, `()` is none")
        op = self._make(annotated[0][1])
        for name in op.callees():
            if name not in functions:
                raise self.name.error(
                    f"{self.name} needs `@{name}`, no function above has the name"
                )
        try:
            inferred = op.result_types(
                operands, (*regions, *(functions[name] for name in op.callees()))
            )
        except ProgramError as error:
            raise self.name.error(str(error)) from None
        if len(inferred) != len(annotated):
            what = f"{self.name} has {len(inferred)} results"
            raise annotated[0][0].error(f"{what}, got types for {len(annotated)}")
        for (token, written), type_ in zip(annotated, inferred, strict=True):
            if written != type_:
                raise token.error(f"{self.name} gives `{type_}` here, not `{written}`")
        return op

    def _make(self, result: TensorType) -> Op:
        kinds = self._class.attribute_kinds
        values: dict[str, object] = {}
        for name, (token, node) in self.attributes.items():
            if name not in kinds:
                has = f"it has {', '.join(kinds)}" if kinds else "it has none"
                raise token.error(f"{self.name} has no attribute {token}; {has}")
            values[name] = kinds[name].parse(node, result)
        for field in dataclasses.fields(cast("Any", self._class)):
            if field.default is dataclasses.MISSING and field.name not in values:
                raise self._missing(field.name)
        return cast("Callable[..., Op]", self._class)(**values)

    def _missing(self, attribute: str) -> ParseError:
        written = self._class.attribute_kinds[attribute].written
        return self.name.error(f"{self.name} needs attribute `{attribute}`, {written}")


def _suggestion(name: str) -> str:
    # Comparing takes quadratic time, and no op has a long name.
    close = difflib.get_close_matches(name[:_LONGEST_GUESS], OPS)
    return f"; did you mean {' or '.join(f'`{guess}`' for guess in close)}?" if close else ""
