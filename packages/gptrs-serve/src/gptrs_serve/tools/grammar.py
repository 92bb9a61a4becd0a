"""The grammar of calls: Lark, as llguidance reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

from gptrs.runtime.chat.marks import CallFamily, ThoughtMarks, shown_marks
from gptrs.runtime.loaded_model import LoadedModel
from gptrs_serve.bodies import Function
from gptrs_serve.forms import bounded_schema

_COMPACT: Final = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
"""JSON as `tojson` writes it in templates."""
_TEXT: Final = r"TEXT: /(.|\n)*/"


class CallGrammar:
    """The grammar of answers of `model` that call `functions`, in the form of `family`.

    Thoughts are free: an answer begins within them where the prompt has `opened` them, and may
    begin with some where text is allowed before a call.
    """

    def __init__(
        self,
        model: LoadedModel,
        family: CallFamily,
        functions: Sequence[Function],
        thoughts: ThoughtMarks | None,
        *,
        opened: bool,
    ) -> None:
        self._family = family
        self._functions = functions
        self._thoughts = thoughts
        self._opened = opened and thoughts is not None
        self._special = sorted(
            shown_marks(model.tokenizer.special_pieces(), thoughts, family), key=len, reverse=True
        )
        self._tokens = {mark: model.tokenizer.number(mark) for mark in self._special}

    def calls(self, *, several: bool) -> str:
        """Return the grammar of an answer that is a call, or `several` ones."""
        family = self._family
        more = f"({self._text(family.between)} call)*" if several else ""
        calls = f"{self._text(family.begin)} call {more} {self._text(family.end)}"
        lines = [f"start: thoughts {calls}", *self._thought_rules()] if self._opened else []
        return self._whole([*(lines or [f"start: {calls}"]), *self._rules("call", family.opening)])

    def text_and_calls(self, *, several: bool) -> str:
        """Return the grammar of an answer that is text, perhaps with calls after it."""
        family, mark = self._family, self._family.marks[0]
        more = f"({self._text(family.between)} call)*" if several else ""
        if family.bare:
            marked = f"({self._text(mark)})?" if mark in self._special else ""
            lines = [f"answer: {marked} call {more} | TEXT", r"TEXT: /([^{](.|\n)*)?/"]
            lines += self._start()
            return self._whole([*lines, *self._rules("call", family.opening)])
        begin = family.begin.removeprefix(mark)
        opening = family.opening if family.begin else family.opening.removeprefix(mark)
        calls = f"{self._text(begin)} first {more} {self._text(family.end)}"
        if mark in self._special:
            lines = [f"answer: TEXT ({self._text(mark)} {calls})?"]
        else:
            lines = [f"answer: TEXT | begun {calls}", f"begun[lazy]: TEXT {json.dumps(mark)}"]
        lines += self._start()
        rules = [*self._rules("first", opening), *self._rules("call", family.opening)]
        return self._whole([*lines, _TEXT, *rules])

    def _start(self) -> list[str]:
        """Return the rules of an answer after thoughts, if there are any."""
        if self._thoughts is None:
            return ["start: answer"]
        if self._opened:
            return ["start: thoughts answer", *self._thought_rules()]
        begin = self._text(self._thoughts.begin)
        return [f"start: answer | {begin} thoughts answer", *self._thought_rules()]

    def _thought_rules(self) -> list[str]:
        """Return the rules of what follows the mark where thoughts begin."""
        assert self._thoughts is not None
        end = self._thoughts.end
        if self._text(end) == json.dumps(end):
            return [rf"thoughts[lazy]: /(.|\n)*{re.escape(end)}\s*/".replace("</", r"<\/")]
        return [f"thoughts: THOUGHTS {self._text(end)}", r"THOUGHTS: /(.|\n)*/"]

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
