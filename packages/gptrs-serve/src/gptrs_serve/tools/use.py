"""The tools of a request: their form for its template, and the form of its answer."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

from msgspec import Struct

from gptrs.quoting import listed
from gptrs_runtime.chat.answer_reader import (
    AnswerForm,
)
from gptrs_runtime.chat.messages import (
    CallFamily,
    ThoughtMarks,
    shown_marks,
)
from gptrs_runtime.generation.chat_session import answer_form
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_serve.bodies import (
    AllowedChoice,
    ChatBody,
    Conversing,
    Function,
    NamedTool,
)
from gptrs_serve.forms import AskedForm, as_rule, asked_form, bounded_schema
from gptrs_serve.problems import RequestError
from gptrs_serve.tools.families import family_of

# The grammar of calls: Lark, as llguidance reads it.


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
        """Return the grammar of an answer that is one call, or `several`."""
        family = self._family
        more = f"({self._text(family.between)} call)*" if several else ""
        calls = f"{self._text(family.begin)} call {more} {self._text(family.end)}"
        lines = [f"answer: {calls}", *self._rules("call", family.opening)]
        return self._whole([*self._start(self._opened), *lines])

    def form_or_calls(self, form: AskedForm, *, several: bool) -> str:
        """Return the grammar of an answer that has a form, or is calls."""
        family = self._family
        more = f"({self._text(family.between)} call)*" if several else ""
        calls = f"{self._text(family.begin)} call {more} {self._text(family.end)}"
        # A terminal, which has an upper-case name, is what a regex is.
        name = "FORMED" if form[0] == "regex" else "formed"
        lines = [f"answer: {calls} | {name}", f"{name}: {as_rule(form)}"]
        start = self._start(self._thoughts is not None)
        return self._whole([*start, *lines, *self._rules("call", family.opening)])

    def text_and_calls(self, *, several: bool) -> str:
        """Return the grammar of an answer that is text, optionally followed by calls."""
        family, mark = self._family, self._family.marks[0]
        more = f"({self._text(family.between)} call)*" if several else ""
        start = self._start(self._thoughts is not None)
        if family.bare:
            marked = f"({self._text(mark)})?" if mark in self._special else ""
            # A bare call begins with `{`, so text must not: the grammar could not tell them apart.
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
            # Lazy: it ends at the first mark. A greedy one would swallow the first call into the
            # text and keep to the form of the last.
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
        """Return a terminal for text that matches a pattern and does not begin with thoughts."""
        begin = "" if self._thoughts is None else self._thoughts.begin
        if not begin or self._text(begin) != json.dumps(begin):
            return f"/{pattern}/"
        return rf"/{pattern}/ & ~/\s*{_escaped(begin)}{_ANY}/"

    def _rules(self, name: str, opening: str) -> list[str]:
        """Return the rules of one call of any of the functions."""
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
        # Longest first (see `_special`), as a mark may be the beginning of another. `(?!)` matches
        # nothing; an empty pattern would split at every character.
        pattern = "|".join(re.escape(mark) for mark in self._special) or r"(?!)"
        parts = re.split(f"({pattern})", text)
        return " ".join(
            f"<[{self._tokens[part]}]>" if part in self._tokens else json.dumps(part)
            for part in parts
            if part
        )


def _escaped(text: str) -> str:
    """Return the pattern of a text, for use within the slashes of Lark."""
    return re.sub(r"[][\\/|.*+?(){}^$]", r"\\\g<0>", text, flags=re.ASCII).replace("\n", r"\n")


class ToolUse(Struct, frozen=True, dict=True):
    """The functions that an answer may call, and must where `calls_only`.

    With `several` it may call more than one at once, or one more than once. Where it is of a
    `text_form` instead, or the functions `are_some` of those that the template names,
    a grammar keeps it to that.
    """

    model: LoadedModel
    family: CallFamily
    functions: Sequence[Function]
    several: bool
    calls_only: bool
    are_some: bool = False
    text_form: AskedForm | None = None

    @property
    def _is_bound(self) -> bool:
        """Whether a grammar enforces the form of the answer."""
        asked = self.calls_only or self.are_some or self.text_form is not None
        return asked or not self.several or any(each.strict for each in self.functions)

    @cached_property
    def form(self) -> AnswerForm:
        """The reader of the answer."""
        tools = [_told(function) for function in self.functions]
        return answer_form(self.model, tools, several=self.several, certain=self._is_bound)

    def grammar(self, *, opened: bool) -> str | None:
        """Return the grammar of answers, after thoughts that the prompt has `opened`.

        None if the model may write anything.
        """
        if not self._is_bound:
            return None
        thoughts = self.form.thoughts
        made = CallGrammar(self.model, self.family, self.functions, thoughts, opened=opened)
        if self.calls_only:
            return made.calls(several=self.several)
        if self.text_form is not None:
            return made.form_or_calls(self.text_form, several=self.several)
        return made.text_and_calls(several=self.several)


def tool_use(body: ChatBody, model: LoadedModel) -> ToolUse | None:
    """Return how an answer uses tools, None if it does not.

    RequestError for a choice that does not fit the tools, and for a model whose calls cannot be
    read.
    """
    functions = [tool.function for tool in body.tools or ()]
    choice = body.tool_choice
    _require_tools(body, functions)
    if not functions or choice == "none":
        return None
    template = model.chat_template(with_tools=True)
    several = body.parallel_tool_calls is not False
    chosen, must = functions, choice not in (None, "auto")
    if isinstance(choice, NamedTool):
        chosen, several = _named([choice], functions), False
    elif isinstance(choice, AllowedChoice):
        chosen = _named(choice.allowed_tools.tools, functions)
        must = choice.allowed_tools.mode == "required"
    family = family_of(template.source, model.name)
    form = None if must else asked_form(body)
    if form is not None:
        as_rule(form)  # a grammar cannot stand beside calls
    are_some = len(chosen) < len(functions)
    return ToolUse(model, family, chosen, several, must, are_some, form)


def _named(tools: Sequence[NamedTool], functions: Sequence[Function]) -> list[Function]:
    """Return the functions that a choice names; RequestError for an unknown one."""
    known = {each.name: each for each in functions}
    for tool in tools:
        if tool.function.name not in known:
            raise RequestError(
                f"`tool_choice` names `{tool.function.name[:64]}`, which is not among the tools:"
                f" there are {listed(list(known), 8)}",
                param="tool_choice",
            )
    names = {tool.function.name for tool in tools}
    return [each for each in functions if each.name in names]


def _require_tools(body: ChatBody, functions: Sequence[Function]) -> None:
    names = [function.name for function in functions]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise RequestError(f"two tools have the name `{twice}`", param="tools")
    if functions:
        return
    if body.tool_choice not in (None, "none", "auto"):
        raise RequestError("`tool_choice` asks for a call, but there are no `tools`",
                           param="tool_choice")  # fmt: skip


def told_tools(body: ChatBody | Conversing) -> list[dict[str, Any]] | None:
    """Return the tools in the form of templates; None if the model should not know any."""
    if not body.tools or body.tool_choice == "none":
        return None
    return [{"type": "function", "function": _told(tool.function)} for tool in body.tools]


def _told(function: Function) -> dict[str, Any]:
    told: dict[str, Any] = {"name": function.name}
    if function.description is not None:
        told["description"] = function.description
    told["parameters"] = function.parameters or {"type": "object", "properties": {}}
    return told
