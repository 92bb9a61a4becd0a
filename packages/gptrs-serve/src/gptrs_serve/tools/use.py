"""The tools of a request: as its template reads them, and the form of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from gptrs.quick_dataclass import dataclass
from gptrs.quoting import listed
from gptrs_runtime.chat.answer_reader import AnswerForm
from gptrs_runtime.chat.marks import CallFamily
from gptrs_runtime.generation.chat_answers import answer_form
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_serve.bodies import (
    ChatBody,
    Function,
    JsonObject,
    JsonSchema,
    NamedTool,
    TokenizeBody,
)
from gptrs_serve.problems import RequestError
from gptrs_serve.tools.families import family_of
from gptrs_serve.tools.grammar import CallGrammar


@dataclass(frozen=True)
class ToolUse:
    """The functions that an answer may call, and must where `calls_only`.

    With `several` it may call more than one at once, or one more than once.
    """

    model: LoadedModel
    family: CallFamily
    functions: Sequence[Function]
    several: bool
    calls_only: bool

    @property
    def _is_bound(self) -> bool:
        """Whether a grammar keeps the answer to its form."""
        return self.calls_only or not self.several or any(each.strict for each in self.functions)

    @cached_property
    def form(self) -> AnswerForm:
        """How the answer is read."""
        tools = [_told(function) for function in self.functions]
        return answer_form(self.model, tools, several=self.several, certain=self._is_bound)

    def grammar(self, *, opened: bool) -> str | None:
        """Return the grammar that answers keep to, after thoughts that the prompt has `opened`.

        None where the model may write what it likes.
        """
        if not self._is_bound:
            return None
        thoughts = self.form.thoughts
        made = CallGrammar(self.model, self.family, self.functions, thoughts, opened=opened)
        if self.calls_only:
            return made.calls(several=self.several)
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
    if isinstance(choice, NamedTool):
        named = [each for each in functions if each.name == choice.function.name]
        if not named:
            raise RequestError(
                f"`tool_choice` names `{choice.function.name[:64]}`, which is none of the tools:"
                f" there are {listed([each.name for each in functions], 8)}",
                param="tool_choice",
            )
        functions, several = named, False
    if body.regex or body.grammar or isinstance(body.response_format, JsonObject | JsonSchema):
        raise RequestError("an answer with `tools` cannot have another form", param="tools")
    family = family_of(template.source, model.name)
    return ToolUse(model, family, functions, several, choice not in (None, "auto"))


def _require_tools(body: ChatBody, functions: Sequence[Function]) -> None:
    names = [function.name for function in functions]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise RequestError(f"two tools are called `{twice}`", param="tools")
    if functions:
        return
    if body.tool_choice not in (None, "none", "auto"):
        raise RequestError("`tool_choice` asks for a call, and there are no `tools`",
                           param="tool_choice")  # fmt: skip


def told_tools(body: ChatBody | TokenizeBody) -> list[dict[str, Any]] | None:
    """Return the tools as templates read them, None if the model is not to know of any."""
    if not body.tools or body.tool_choice == "none":
        return None
    return [{"type": "function", "function": _told(tool.function)} for tool in body.tools]


def _told(function: Function) -> dict[str, Any]:
    told: dict[str, Any] = {"name": function.name}
    if function.description is not None:
        told["description"] = function.description
    told["parameters"] = function.parameters or {"type": "object", "properties": {}}
    return told
