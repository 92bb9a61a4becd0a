"""The messages of a conversation, as chat templates read them."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol, cast

from msgspec import Struct

from gptrs.errors import ModelError, UsageError
from gptrs.quoting import listed, quoted, shown_value

Message = Mapping[str, object]
"""An object such as `{"role": "user", "content": "Hello"}`; templates may read further keys."""

IMAGES: Final = ("image", "image_url")
"""The types of parts that are images."""
_TEXTS: Final = {"text": "text", "refusal": "refusal"}
"""The types of text parts, and the keys of their text."""
_ADVICE: Final = ("cache_control", "detail")
"""Further keys of parts and images that are accepted and ignored, since they change no answer
here."""
_REASONING: Final = ("reasoning_content", "thinking", "reasoning")
"""Keys of a message's thoughts; the first found counts. Templates read the first two."""


def checked_messages(value: object) -> list[Message]:
    """Return `value`; UsageError unless it is a list of objects, each with a role."""
    messages = cast("Sequence[object]", value) if isinstance(value, list | tuple) else ()
    if not messages:
        raise UsageError("messages must be a list of at least one message")
    for number, message in enumerate(messages):
        if not isinstance(message, Mapping) or not _has_role(cast("Message", message)):
            shown = shown_value(cast("object", message))
            raise UsageError(f"message {number} must be an object with a `role`, got {shown}")
    return cast("list[Message]", list(messages))


def read_messages(value: object) -> list[Message]:
    """Return the messages of OpenAI's API as templates read them; UsageError for malformed ones.

    Parts that are all texts become one text; arguments of calls given as JSON text become objects.
    Nulls and advisory keys are dropped.
    """
    return [_read(number, message) for number, message in enumerate(checked_messages(value))]


def _object(value: object) -> Message:
    """Return an object, empty for other values."""
    return cast("Message", value) if isinstance(value, Mapping) else dict[str, object]()


def _has_role(message: Message) -> bool:
    return isinstance(message.get("role"), str)


def _read(number: int, message: Message) -> Message:
    read = {key: value for key, value in message.items() if value is not None}
    if "tool_calls" in read:
        read["tool_calls"] = _calls(number, read["tool_calls"])
    content = read.get("content", read.pop("refusal", None))
    if isinstance(content, list | tuple):
        content = _joined([_part(number, part) for part in cast("Sequence[object]", content)])
    elif content is not None and not isinstance(content, str):
        raise UsageError(
            f"`content` of message {number} must be a text or a list of parts, got"
            f" {shown_value(content)}"
        )
    return read if content is None else {**read, "content": content}


def _joined(parts: list[Message]) -> object:
    """Return parts as one text, or unchanged if one is an image."""
    texts = [part["text"] for part in parts if part["type"] == "text"]
    return "".join(cast("list[str]", texts)) if len(texts) == len(parts) else parts


def _part(number: int, part: object) -> Message:
    """Return a part without keys that have no effect."""
    stated = _object(part)
    kind = stated.get("type")
    known = {key: each for key, each in stated.items() if each is not None and key not in _ADVICE}
    text = known.get(_TEXTS.get(kind, "")) if isinstance(kind, str) else None
    if isinstance(text, str) and len(known) == 2:
        return {"type": "text", "text": text}
    image = known.get(kind) if isinstance(kind, str) and kind in IMAGES else None
    if isinstance(image, Mapping):
        fields = cast("Message", image)
        image = {key: each for key, each in fields.items() if key not in _ADVICE}
        image = image if image.keys() == {"url"} else None
    if image is None or len(known) != 2:
        raise UsageError(
            f"message {number} has a part that is neither text nor an image, {_shown(part)}",
            hint='parts are {"type": "text", "text": ...}, {"type": "image", "image": ...} and'
            ' {"type": "image_url", "image_url": {"url": "data:..."}}',
        )
    return {"type": kind, str(kind): image}


def _shown(part: object) -> str:
    """Return only the keys of a part, for errors: an image is long."""
    if not isinstance(part, Mapping):
        return f"got {shown_value(part)}"
    found = cast("Message", part)
    kind = shown_value(found.get("type"))
    return f"of type {kind}, got the keys {listed(sorted(map(str, found)), 8)}"


def _calls(number: int, calls: object) -> list[Message]:
    if not isinstance(calls, list | tuple):
        raise _no_call(number)
    return [_call(number, call) for call in cast("Sequence[object]", calls)]


def _call(number: int, call: object) -> Message:
    stated = _object(call)
    function = stated.get("function")
    known = _object(function)
    given = known.get("arguments")
    if isinstance(given, str):
        try:
            given = cast("object", json.loads(given.strip() or "{}"))
        except (ValueError, RecursionError) as error:
            raise _no_call(number) from error
    if not isinstance(given, Mapping) or not isinstance(known.get("name"), str):
        raise _no_call(number)
    return {**stated, "function": {**known, "arguments": cast("object", given)}}


def _no_call(number: int) -> UsageError:
    return UsageError(
        f"message {number} has a tool call that is not of the form"
        ' {"id": ..., "type": "function", "function": {"name": ..., "arguments": "{...}"}}'
    )


def as_templates_read(message: Message) -> dict[str, object]:
    """Return the message without nulls, its thoughts under both keys that templates read."""
    stated = {key: value for key, value in message.items() if value is not None}
    thoughts = next((stated[name] for name in _REASONING if name in stated), None)
    if thoughts is None:
        return stated
    return {"thinking": thoughts, **stated, "reasoning_content": thoughts}


def read_tools(value: object) -> list[Message] | None:
    """Return tools as templates read them, None if empty; UsageError for other than functions."""
    if value is None:
        return None
    if not isinstance(value, list | tuple):
        raise UsageError(f"tools must be a list of functions, got {shown_value(value)}")
    tools = cast("Sequence[object]", value)
    return [_tool(number, tool) for number, tool in enumerate(tools)] or None


def _tool(number: int, tool: object) -> Message:
    stated = _object(tool)
    function = stated.get("function")
    known = _object(function)
    name, text, parameters = (known.get(key) for key in ("name", "description", "parameters"))
    ok = stated.get("type", "function") == "function" and isinstance(name, str)
    ok = ok and isinstance(text, str | None) and isinstance(parameters, Mapping | None)
    if not ok:
        raise UsageError(
            f"tool {number} is not of the form"
            ' {"type": "function", "function": {"name": ..., "description": ...,'
            ' "parameters": {...}}}'
        )
    # Always in this order, because templates print objects in their order.
    ordered: dict[str, object] = {"name": name}
    if text is not None:
        ordered["description"] = text
    ordered["parameters"] = parameters or {"type": "object", "properties": {}}
    for key, each in known.items():
        if each is not None and key not in (*ordered, "strict"):
            ordered[key] = each
    return {"type": "function", "function": ordered}


def least_text(messages: Sequence[Message]) -> str:
    """Return texts that templates surely write: those of users and tools, without outer space."""
    # Templates drop thoughts from earlier answers, and some have no instructions.
    kept = [message.get("content") for message in messages if message["role"] in ("user", "tool")]
    return "".join(text.strip() for text in kept if isinstance(text, str))


def require_free_names(variables: Mapping[str, object], taken: Sequence[str]) -> None:
    """Raise UsageError for variables whose names are invalid or reserved by the template."""
    for name in variables:
        if not name.isidentifier():
            raise UsageError(f"a variable of a template has a name, got {quoted(name)}")
        if name in _OWN or name in taken or name in _SPECIAL:
            raise UsageError(
                f"`{name}` cannot be set as a variable: the template receives it anyway",
                hint="leave it out",
            )


_SPECIAL: Final = tuple(
    f"{word}_token" for word in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
)
_OWN: Final = frozenset(
    {"messages", "tools", "add_generation_prompt", "continue_final_message"}
    | {"raise_exception", "strftime_now", "dict", "namespace", "range"}
)
"""Names that chat templates get in addition to their variables."""


# How models mark thoughts and calls of tools in their answers: a row a family.
#
# A model belongs to the first family whose marks its chat template has.


class ThoughtMarks(Struct, frozen=True):
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
        """Return the token of a vocabulary entry, None for an unknown one."""
        ...


def thought_marks(template: str, vocabulary: Vocabulary) -> ThoughtMarks | None:
    """Return the marks that a chat template has, else the tokens of the vocabulary.

    None for a model without such marks: then apparent thoughts are text.
    """
    for marks in THOUGHTS:
        first = marks.around[:1] or (marks.end,)
        if first[0] in template and (marks.begin in template or not marks.around):
            return marks
    for marks in THOUGHTS:
        if not marks.around and None not in map(vocabulary.number, (marks.begin, marks.end)):
            return marks
    return None


class CallFamily(Struct, frozen=True):
    """The text of calls: `begin`, calls with `between` in between, and `end`.

    A call is `opening`, a head that names the tool, its arguments as JSON, a tail and `closing`.
    With an `arguments_key`, head and tail complete a JSON object, else the name ends at `name_end`.
    `marks` may be special tokens. Calls begin with the first of them; with `bare` it may be
    missing: then an answer that begins with an object is a call.
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
"""Words of templates, the first match decides; None for an unknown family."""


def call_family(template: str, model: str) -> CallFamily:
    """Return how a model with a chat template writes calls; ModelError if that is not known."""
    if "tools" not in template:
        raise ModelError(f"`{model}` was not made for tools: its chat template does not read them")
    found = next((family for mark, family in _BY_MARK if mark in template), None)
    if found is None:
        known = ", ".join(f"`{family.marks[0]}`" for family in (TAGGED, LISTED, PIPED, BARE))
        raise ModelError(
            f"the chat template of `{model}` writes tool calls in a form that gptrs does not"
            f" know; it reads those that begin with {known}"
        )
    return found


def shown_marks(
    special: Collection[str], thoughts: ThoughtMarks | None, calls: CallFamily | None
) -> frozenset[str]:
    """Return the `special` tokens in marks, which texts must show."""
    marks = (thoughts.all if thoughts else ()) + (calls.marks if calls else ())
    return frozenset(piece for piece in special if piece and any(piece in mark for mark in marks))
