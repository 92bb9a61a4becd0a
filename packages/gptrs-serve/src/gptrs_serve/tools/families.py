"""How models write calls of tools: each family as its chat template has it."""

from __future__ import annotations

import json
import re
from functools import cached_property
from typing import Final

from gptrs.quick_dataclass import dataclass
from gptrs_serve.problems import RequestError


@dataclass(frozen=True)
class Family:
    """The text of calls: `begin`, calls with `between` in between, and `end`.

    A call is `opening`, a head that names the tool, its arguments as JSON, a tail and `closing`.
    With an `arguments_key` head and tail make a JSON object of it, else the name stands by itself
    before `name_end`. `marks` may be special tokens. The first of them is where calls begin, and
    with `bare` it may be missing: then an answer that begins with an object is a call.
    """

    name: str
    marks: tuple[str, ...]
    begin: str = ""
    opening: str = ""
    arguments_key: str = ""
    name_end: str = ""
    closing: str = ""
    between: str = ""
    end: str = ""
    bare: bool = False
    id_length: int = 24

    def head(self, tool: str) -> str:
        """Return what stands before the arguments of a call."""
        if self.arguments_key:
            return f'{{"name": {json.dumps(tool)}, "{self.arguments_key}": '
        return f"{tool}{self.name_end}"

    @property
    def tail(self) -> str:
        """The text after the arguments of a call."""
        return "}" if self.arguments_key else ""

    @cached_property
    def head_pattern(self) -> re.Pattern[str]:
        """A head as models may write it; its group is the name."""
        if self.arguments_key:
            key = "(?:arguments|parameters)"
            return re.compile(rf'\s*\{{\s*"name"\s*:\s*"([\w.-]+)"\s*,\s*"{key}"\s*:\s*(?=\{{)')
        return re.compile(rf"\s*([\w.-]+)\s*{re.escape(self.name_end)}\s*(?=\{{)")


HERMES: Final = Family(
    "hermes",
    ("<tool_call>", "</tool_call>"),
    opening="<tool_call>\n",
    arguments_key="arguments",
    closing="\n</tool_call>",
    between="\n",
)
LLAMA: Final = Family(
    "llama3",
    ("<|python_tag|>",),
    arguments_key="parameters",
    between="; ",
    bare=True,
)
MISTRAL: Final = Family(
    "mistral",
    ("[TOOL_CALLS]",),
    begin="[TOOL_CALLS] [",
    arguments_key="arguments",
    between=", ",
    end="]",
    id_length=9,
)
MISTRAL_NAMED: Final = Family(
    "mistral-args",
    ("[TOOL_CALLS]", "[ARGS]"),
    opening="[TOOL_CALLS]",
    name_end="[ARGS]",
    id_length=9,
)
GRANITE: Final = Family(
    "granite",
    ("<|tool_call|>",),
    begin="<|tool_call|>[",
    arguments_key="arguments",
    between=", ",
    end="]",
)
_BY_MARK: Final = (
    ("[ARGS]", MISTRAL_NAMED),
    ("[TOOL_CALLS]", MISTRAL),
    ("<function=", None),
    ("<tool_call>", HERMES),
    ("<|tool_call|>", GRANITE),
    ("<|python_tag|>", LLAMA),
    ('"parameters": dictionary', LLAMA),
)
"""Words of templates, the first found decides; None for a family that is not known."""


def family_of(template: str, model: str) -> Family:
    """Return how a model with a chat template writes calls; RequestError if that is not known."""
    if "tools" not in template:
        raise RequestError(
            f"`{model}` was not made for tools: its chat template does not read them",
            param="tools",
            code="tools_not_supported",
        )
    found = next((family for mark, family in _BY_MARK if mark in template), None)
    if found is None:
        known = "Hermes and Qwen, Llama 3, Mistral, and Granite"
        raise RequestError(
            f"the chat template of `{model}` writes calls of tools in a form that this server does"
            f" not know; it knows those of {known}",
            param="tools",
            code="tools_not_supported",
        )
    return found
