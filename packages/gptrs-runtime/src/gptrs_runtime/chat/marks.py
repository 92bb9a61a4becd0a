"""How models mark thoughts and calls of tools in their answers: a row a family.

A model belongs to the first family whose marks its chat template has.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Final, Protocol

from gptrs.errors import ModelError
from gptrs.quick_dataclass import dataclass


@dataclass(frozen=True)
class ThoughtMarks:
    """Thoughts stand between `begin` and `end`.

    `around` are marks of the answer itself, such as where it begins after the thoughts: they are no
    text.
    """

    begin: str
    end: str
    around: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        """Every mark."""
        return (self.begin, self.end, *self.around)


THINK: Final = ThoughtMarks("<think>", "</think>")
THOUGHTS: Final = (
    ThoughtMarks(
        "<|channel|>analysis<|message|>",
        "<|end|>",
        (
            *("<|start|>assistant", "<|channel|>final<|message|>"),
            *("<|channel|>commentary<|message|>", "<|end|>"),
        ),
    ),
    ThoughtMarks(
        "<|START_THINKING|>", "<|END_THINKING|>", ("<|START_RESPONSE|>", "<|END_RESPONSE|>")
    ),
    ThoughtMarks("<think>", "</think>", ("<answer>", "</answer>")),
    ThoughtMarks("<think>", "</think>", ("<response>", "</response>")),
    ThoughtMarks("<|channel>thought\n", "<channel|>"),
    ThoughtMarks("[THINK]", "[/THINK]"),
    ThoughtMarks("<seed:think>", "</seed:think>"),
    ThoughtMarks("◁think▷", "◁/think▷"),
    ThoughtMarks("<thought>", "</thought>"),
    ThoughtMarks("<|inner_prefix|>", "<|inner_suffix|>"),
    ThoughtMarks("Here is my thought process:", "Here is my response:"),
    THINK,
)


class Vocabulary(Protocol):
    """The entries of a tokenizer."""

    def number(self, piece: str) -> int | None:
        """Return the token that is an entry of the vocabulary, None for an unknown one."""
        ...


def thought_marks(template: str, vocabulary: Vocabulary) -> ThoughtMarks | None:
    """Return the marks that a chat template has, else the tokens of the vocabulary.

    None for a model that knows none: what looks like thoughts is text then.
    """
    for marks in THOUGHTS:
        first = marks.around[:1] or (marks.end,)
        if first[0] in template and (marks.begin in template or not marks.around):
            return marks
    for marks in THOUGHTS:
        if not marks.around and None not in map(vocabulary.number, (marks.begin, marks.end)):
            return marks
    return None


@dataclass(frozen=True)
class CallFamily:
    """The text of calls: `begin`, calls with `between` in between, and `end`.

    A call is `opening`, a head that names the tool, its arguments as JSON, a tail and `closing`.
    With an `arguments_key` head and tail make a JSON object of it, else the name stands by itself
    before `name_end`. `marks` may be special tokens. The first of them is where calls begin, and
    with `bare` it may be missing: then an answer that begins with an object is a call.
    """

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


TAGGED: Final = CallFamily(
    ("<tool_call>", "</tool_call>"),
    opening="<tool_call>\n",
    arguments_key="arguments",
    closing="\n</tool_call>",
    between="\n",
)
BARE: Final = CallFamily(
    ("<|python_tag|>",),
    arguments_key="parameters",
    between="; ",
    bare=True,
)
LISTED: Final = CallFamily(
    ("[TOOL_CALLS]",),
    begin="[TOOL_CALLS] [",
    arguments_key="arguments",
    between=", ",
    end="]",
    id_length=9,
)
NAMED: Final = CallFamily(
    ("[TOOL_CALLS]", "[ARGS]"),
    opening="[TOOL_CALLS]",
    name_end="[ARGS]",
    id_length=9,
)
PIPED: Final = CallFamily(
    ("<|tool_call|>",),
    begin="<|tool_call|>[",
    arguments_key="arguments",
    between=", ",
    end="]",
)
_BY_MARK: Final = (
    ("[ARGS]", NAMED),
    ("[TOOL_CALLS]", LISTED),
    ("<function=", None),
    ("<tool_call>", TAGGED),
    ("<|tool_call|>", PIPED),
    ("<|python_tag|>", BARE),
    ('"parameters": dictionary', BARE),
)
"""Words of templates, the first found decides; None for a family that is not known."""


def call_family(template: str, model: str) -> CallFamily:
    """Return how a model with a chat template writes calls; ModelError if that is not known."""
    if "tools" not in template:
        raise ModelError(f"`{model}` was not made for tools: its chat template does not read them")
    found = next((family for mark, family in _BY_MARK if mark in template), None)
    if found is None:
        known = ", ".join(f"`{family.marks[0]}`" for family in (TAGGED, LISTED, PIPED, BARE))
        raise ModelError(
            f"the chat template of `{model}` writes calls of tools in a form that gptrs does not"
            f" know; it knows those that begin with {known}"
        )
    return found


def shown_marks(
    special: Collection[str], thoughts: ThoughtMarks | None, calls: CallFamily | None
) -> frozenset[str]:
    """Return those of the `special` tokens that marks are made of: texts must show them."""
    marks = (thoughts.all if thoughts else ()) + (calls.marks if calls else ())
    return frozenset(piece for piece in special if piece and any(piece in mark for mark in marks))
