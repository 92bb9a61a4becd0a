"""The grammar of calls: Lark, as llguidance reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

from gptrs.runtime.loaded_model import LoadedModel
from gptrs_serve.bodies import Function
from gptrs_serve.forms import bounded_schema
from gptrs_serve.tools.families import Family

_COMPACT: Final = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
"""JSON as `tojson` writes it in templates."""
_TEXT: Final = r"TEXT: /(.|\n)*/"


class CallGrammar:
    """The grammar of answers of `model` that call `functions`, in the form of `family`."""

    def __init__(self, model: LoadedModel, family: Family, functions: Sequence[Function]) -> None:
        self._family = family
        self._functions = functions
        special = model.tokenizer.special_pieces()
        self._special = [mark for mark in family.marks if mark in special]
        self._tokens = {mark: model.tokenizer.number(mark) for mark in self._special}

    def calls(self, *, several: bool) -> str:
        """Return the grammar of an answer that is a call, or `several` ones."""
        family = self._family
        more = f"({self._text(family.between)} call)*" if several else ""
        start = f"start: {self._text(family.begin)} call {more} {self._text(family.end)}"
        return self._whole([start, *self._rules("call", family.opening)])

    def text_and_calls(self, *, several: bool) -> str:
        """Return the grammar of an answer that is text, perhaps with calls after it."""
        family, mark = self._family, self._family.marks[0]
        more = f"({self._text(family.between)} call)*" if several else ""
        if family.bare:
            marked = f"({self._text(mark)})?" if mark in self._special else ""
            lines = [f"start: {marked} call {more} | TEXT", r"TEXT: /([^{](.|\n)*)?/"]
            return self._whole([*lines, *self._rules("call", family.opening)])
        begin = family.begin.removeprefix(mark)
        opening = family.opening if family.begin else family.opening.removeprefix(mark)
        calls = f"{self._text(begin)} first {more} {self._text(family.end)}"
        if mark in self._special:
            lines = [f"start: TEXT ({self._text(mark)} {calls})?"]
        else:
            lines = [f"start: TEXT | begun {calls}", f"begun[lazy]: TEXT {json.dumps(mark)}"]
        rules = [*self._rules("first", opening), *self._rules("call", family.opening)]
        return self._whole([*lines, _TEXT, *rules])

    def _rules(self, name: str, opening: str) -> list[str]:
        """Return the rules of one call, of any of the functions."""
        family = self._family
        numbers = range(len(self._functions))
        lines = [f"{name}: {' | '.join(f'{name}_{number}' for number in numbers)}"]
        for number, function in enumerate(self._functions):
            before = self._text(opening + family.head(function.name))
            after = self._text(family.tail + family.closing)
            lines.append(f"{name}_{number}: {before} arguments_{number} {after}")
        return lines

    def _whole(self, lines: Sequence[str]) -> str:
        schemas = [
            {**(function.parameters or {"type": "object"}), "x-guidance": _COMPACT}
            for function in self._functions
        ]
        arguments = [
            f"arguments_{number}: %json {bounded_schema(schema, 'tools')}"
            for number, schema in enumerate(schemas)
        ]
        return "\n".join(["%llguidance {}", *lines, *arguments, ""])

    def _text(self, text: str) -> str:
        """Return Lark for a text, in which marks that are special tokens are tokens."""
        pattern = "|".join(re.escape(mark) for mark in self._special) or r"(?!)"
        parts = re.split(f"({pattern})", text)
        return " ".join(
            f"<[{self._tokens[part]}]>" if part in self._tokens else json.dumps(part)
            for part in parts
            if part
        )
