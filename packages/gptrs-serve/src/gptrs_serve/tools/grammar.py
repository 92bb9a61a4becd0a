"""The grammar of calls: Lark, as llguidance reads it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

from gptrs_runtime.chat.marks import CallFamily, ThoughtMarks, shown_marks
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_serve.bodies import Function
from gptrs_serve.forms import bounded_schema

_COMPACT: Final = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
"""JSON as `tojson` writes it in templates."""
_ANY: Final = r"(.|\n)*"


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
        lines = [f"answer: {calls}", *self._rules("call", family.opening)]
        return self._whole([*self._start(self._opened), *lines])

    def text_and_calls(self, *, several: bool) -> str:
        """Return the grammar of an answer that is text, perhaps with calls after it."""
        family, mark = self._family, self._family.marks[0]
        more = f"({self._text(family.between)} call)*" if several else ""
        start = self._start(self._thoughts is not None)
        if family.bare:
            marked = f"({self._text(mark)})?" if mark in self._special else ""
            text = self._free(r"(\s*[^{\s](.|\n)*)?")
            lines = [f"answer: {marked} call {more} | TEXT", f"TEXT: {text}"]
            return self._whole([*start, *lines, *self._rules("call", family.opening)])
        begin = family.begin.removeprefix(mark)
        opening = family.opening if family.begin else family.opening.removeprefix(mark)
        calls = f"{self._text(begin)} first {more} {self._text(family.end)}"
        if mark in self._special:
            lines = [f"answer: TEXT ({self._text(mark)} {calls})?"]
        else:
            begun = self._free(_ANY + _escaped(mark))
            lines = [f"answer: TEXT | begun {calls}", "begun[lazy]: BEGUN", f"BEGUN: {begun}"]
        rules = [*self._rules("first", opening), *self._rules("call", family.opening)]
        return self._whole([*start, *lines, f"TEXT: {self._free(_ANY)}", *rules])

    def _start(self, thinks: bool) -> list[str]:
        """Return the rules of an answer, which may begin with thoughts if it `thinks`."""
        thoughts = self._thoughts
        if thoughts is None or not thinks:
            return ["start: answer"]
        before = "" if self._opened else f"answer | {self._text(thoughts.begin)} "
        rules = [f"start: {before} thoughts BLANKS answer", r"BLANKS: /\s*/"]
        if self._text(thoughts.end) == json.dumps(thoughts.end):
            return [*rules, f"thoughts[lazy]: /{_ANY}{_escaped(thoughts.end)}/"]
        return [*rules, f"thoughts: THOUGHTS {self._text(thoughts.end)}", f"THOUGHTS: /{_ANY}/"]

    def _free(self, pattern: str) -> str:
        """Return a terminal for text of a pattern that does not begin with thoughts."""
        begin = "" if self._thoughts is None else self._thoughts.begin
        if not begin or self._text(begin) != json.dumps(begin):
            return f"/{pattern}/"
        return rf"/{pattern}/ & ~/\s*{_escaped(begin)}{_ANY}/"

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


def _escaped(text: str) -> str:
    """Return a pattern, within the slashes of Lark, of a text."""
    return re.sub(r"[][\\/|.*+?(){}^$]", r"\\\g<0>", text, flags=re.ASCII).replace("\n", r"\n")
