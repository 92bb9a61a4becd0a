"""Rows that are chats: the forms that they have, and which of their tokens are answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import numpy as np
from msgspec.structs import replace

from gptrs.api import GptrsError, UsageError
from gptrs.quoting import listed, shown_value
from gptrs.strict_json import parse_list
from gptrs_runtime.chat.conversation import Conversation, conversation_of
from gptrs_runtime.chat.messages import Message
from gptrs_runtime.chat.template import ChatTemplateError
from gptrs_runtime.images.image_prompts import has_images


class DataError(GptrsError):
    """A file of data cannot be read, or has rows from which nothing can be learnt."""

    exit_code = 3
    code = "data"


class Example(NamedTuple):
    """A text: its tokens, si32 [N], and which of them are learnt, i1 [N]."""

    tokens: np.ndarray
    learnt: np.ndarray


class Chat(NamedTuple):
    """A row that is a chat."""

    where: str
    """The name of its line in messages."""
    fields: Mapping[str, object]
    """The fields of a conversation, as in OpenAI's format."""
    first: int = 0
    """The first message that may be learnt where prompts are masked: they end before it."""


Encode = Callable[[Sequence[Conversation]], list[list[int]]]
"""Tokens of conversations as the model's template renders them."""
_ENDINGS: Final = ("add_generation_prompt", "continue_final_message")
"""Fields of conversations that learning sets itself."""
_CHARACTERS: Final = 1_000_000
"""Characters of messages that are rendered at once: templates have a limit for all texts."""
TURNS: Final = "conversations"
"""The column of ShareGPT's format, whose messages have `from` and `value`."""
_ROLES: Final[Mapping[object, str]] = {
    "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant",
    "model": "assistant", "system": "system", "tool": "tool", "observation": "tool",
}  # fmt: skip
"""Roles by what `from` calls them."""
_PAIR: Final[Mapping[str, str]] = {"prompt": "user", "completion": "assistant"}
"""The columns of a pair, and the role of a text in each."""
_MARK: Final = "\u2042 \u2042"
"""A text in place of an answer: where it appears, the answer does."""


def chat_of(where: str, row: Mapping[str, object], *, templated: bool) -> Chat | None:
    """Return a row that is a chat; None for texts, and unless `templated` for pairs of texts."""
    for name in ("messages", TURNS):
        if name in row:
            return Chat(where, _fields(where, row, _turns(where, name, row[name])))
    if "prompt" not in row or "completion" not in row:
        return None
    chat = any(isinstance(row[name], list) for name in _PAIR)
    if not chat and ("text" in row or not templated):
        return None
    prompt, completion = (_part(where, row, *each) for each in _PAIR.items())
    fields = _fields(where, row, [*prompt, *completion])
    return Chat(where, fields, len(cast("list[object]", fields["messages"])) - len(completion))


def _part(where: str, row: Mapping[str, object], name: str, role: str) -> Sequence[object]:
    """Return the messages in a column of a pair; a text is one message."""
    if isinstance(row[name], list):
        return _turns(where, name, row[name])
    return [{"role": role, "content": text_of(where, row, name)}]


def ends_with_answer(messages: object) -> bool:
    """Return whether the value of a column is messages, and the last one the assistant's."""
    last = cast("list[object]", messages)[-1:] if isinstance(messages, list) else []
    return any(isinstance(each, Mapping) and _is_answer(cast("Message", each)) for each in last)


def _is_answer(message: Message) -> bool:
    return message.get("role") == "assistant"


def _turns(where: str, name: str, given: object) -> list[object]:
    """Return the messages in a column; those with `from` and `value` get a role and a content."""
    if not isinstance(given, list) or not given:
        shown = shown_value(cast("object", given))
        raise DataError(f"{where}: `{name}` must be a list of at least one message, got {shown}")
    return [_turn(where, each) for each in cast("list[object]", given)]


def _turn(where: str, given: object) -> object:
    if not isinstance(given, Mapping):
        return given
    turn = cast("Message", given)
    if "role" in turn or not turn.keys() >= {"from", "value"}:
        return turn
    role = _ROLES.get(cast("object", turn["from"]) if isinstance(turn["from"], str) else None)
    if role is None:
        raise DataError(
            f"{where}: a message is `from` {shown_value(turn['from'])}; known are"
            f" {listed([str(each) for each in _ROLES], 8)}",
            hint="write calls of tools as `tool_calls` of `messages`, as in OpenAI's format",
        )
    rest = {name: value for name, value in turn.items() if name not in ("from", "value")}
    return {**rest, "role": role, "content": turn["value"]}


def _fields(
    where: str, row: Mapping[str, object], messages: Sequence[object]
) -> Mapping[str, object]:
    """Return the fields of a conversation, with the columns `system` and `tools` read as meant."""
    fields = {name: value for name, value in row.items() if name not in _ENDINGS}
    if isinstance(tools := fields.get("tools"), str):
        # A column of a table has one type, so tools of several kinds are JSON in a text there.
        told = f"{where}: `tools`"
        fields["tools"] = parse_list(tools.encode(), told, DataError) if tools.strip() else None
    if "system" in row and (text := text_of(where, row, "system", may_be_empty=True)):
        messages = [{"role": "system", "content": text}, *messages]
    return {**fields, "messages": messages}


def text_of(where: str, row: Mapping[str, object], name: str, *, may_be_empty: bool = False) -> str:
    """Return the text in a column; DataError for anything else, and for an empty one."""
    value = row[name]
    if not isinstance(value, str):
        raise DataError(f"{where}: `{name}` must be a text, got {shown_value(value)}")
    if not value and name != "prompt" and not may_be_empty:
        raise DataError(f"{where}: `{name}` is empty")
    return value


def chat_examples(chats: Sequence[Chat], encode: Encode, *, mask_prompt: bool) -> list[Example]:
    """Return chats as tokens; with `mask_prompt` only the answers of the assistant are learnt.

    DataError names the line of a chat that is malformed, or that the template refuses.
    """
    stated = [_stated(chat) for chat in chats]
    answers = [_answers(chat, each, mask_prompt) for chat, each in zip(chats, stated, strict=True)]

    def rendered(parts: Sequence[_Part]) -> Iterator[np.ndarray]:
        texts = [
            (chats[at].where, replace(stated[at], messages=part, add_generation_prompt=opened))
            for at, part, opened in parts
        ]
        return _rendered(texts, encode)

    wholes = rendered([_Part(at, each.messages) for at, each in enumerate(stated)])
    found = [Example(tokens, np.full(len(tokens), not mask_prompt)) for tokens in wholes]
    asked = [
        _Asked(at, stated[at].messages, number)
        for at, numbers in enumerate(answers) for number in numbers
    ]  # fmt: skip
    befores = rendered([_Part(at, part[:number], True) for at, part, number in asked if number])
    afters = _up_to(asked, [found[at].tokens for at, _, _ in asked], rendered)
    changed: list[tuple[_Asked, np.ndarray | None, np.ndarray]] = []
    for each, after in zip(asked, afters, strict=True):
        # Found by rendering the chat up to and with the answer, as nothing else locates its tokens
        # for every template. Few render a chat of no messages, before an answer that begins one.
        (whole, learnt), number = found[each.at], each.number
        before = next(befores) if number else None
        same, end = 0 if before is None else shared(whole, before), shared(whole, after)
        # After the result of a tool, an answer may make the template drop thoughts before the call.
        asks = number > 0 and each.messages[number - 1]["role"] == "user"
        if before is not None and (asks or same == len(before)) and end == len(after):
            learnt[same:end] = True
        else:
            changed.append((each, before, after))
    for each, place in _changed_places(changed, found, rendered):
        if place.start == place.stop:
            raise DataError(
                f"{chats[each.at].where}: the chat template leaves out message {each.number}, which"
                " is to be learnt",
                hint='give the message `"weight": 0`, or end the chat with it',
            )
        found[each.at].learnt[place] = True
    return found


class _Part(NamedTuple):
    """Messages of the chat number `at`, and whether the template begins an answer behind them."""

    at: int
    messages: Sequence[Message]
    opened: bool = False


class _Asked(NamedTuple):
    """The message of a `number` in the chat number `at`, whose place is to be found."""

    at: int
    messages: Sequence[Message]
    number: int


_Rendered = Callable[[Sequence[_Part]], Iterator[np.ndarray]]


def _up_to(
    asked: Sequence[_Asked], wholes: Sequence[np.ndarray], rendered: _Rendered
) -> Iterator[np.ndarray]:
    """Yield the tokens of chats up to and with a message; one that ends with it is in `wholes`."""
    inner = [each for each in asked if each.number + 1 < len(each.messages)]
    parts = rendered([_Part(at, messages[: number + 1]) for at, messages, number in inner])
    for (_, messages, number), whole in zip(asked, wholes, strict=True):
        yield next(parts) if number + 1 < len(messages) else whole


def _changed_places(
    changed: Sequence[tuple[_Asked, np.ndarray | None, np.ndarray]],
    found: Sequence[Example],
    rendered: _Rendered,
) -> Iterator[tuple[_Asked, slice]]:
    """Yield answers with their places in `found`, where templates render the end of a chat unlike
    its middle: Qwen3's drop the thoughts of earlier answers, Mistral's move instructions to the
    last question.

    Each comes with its chat `before` it and `after` it, as of `_place`.
    """
    again = [
        _Asked(at, _marked(messages, number), number) for (at, messages, number), _, _ in changed
    ]
    marked = list(rendered([_Part(at, messages) for at, messages, _ in again]))
    ended = _up_to(again, marked, rendered)
    for (each, before, after), *others in zip(changed, marked, ended, strict=True):
        yield each, _place(found[each.at].tokens, before, after, *others)


def _place(
    whole: np.ndarray,
    before: np.ndarray | None,
    after: np.ndarray,
    marked: np.ndarray,
    ended: np.ndarray,
) -> slice:
    """Return the place of an answer in a whole chat that does not begin with the chat up to it.

    `before` and `after` are the chat up to and with it, `before` None if nothing is; `marked` and
    `ended` are the whole chat and `after` with another text in its place. Empty if the template
    leaves it out.
    """
    begin, end = _differing(whole, marked)
    if begin == len(whole):
        return slice(begin, begin)
    first, behind = _differing(after, ended)
    if before is not None and shared(whole, after) >= (own := _opened(before, after[:first])):
        begin = own  # what the template writes before an answer counts, too
    # So do the marks, and the calls of tools, behind it: they are the same in both.
    return slice(begin, end + shared(whole[end:], after[behind:]))


def _opened(before: np.ndarray, prefix: np.ndarray) -> int:
    """Return where an answer begins in a chat up to its text: behind the end of `before`.

    They may differ earlier, where thoughts were dropped.
    """
    same = shared(before, prefix)
    if same == len(before):
        return same
    backwards = before[::-1]
    return max(range(same, len(prefix) + 1), key=lambda end: shared(backwards, prefix[:end][::-1]))


def _differing(one: np.ndarray, other: np.ndarray) -> tuple[int, int]:
    """Return where the part of one text begins and ends that is another one in the other."""
    begin = shared(one, other)
    # If nothing stands there, the ends of both may share a token too many.
    return begin, max(begin, len(one) - shared(one[::-1], other[::-1]))


def _marked(messages: Sequence[Message], number: int) -> list[Message]:
    return [_with_mark(each) if at == number else each for at, each in enumerate(messages)]


def _with_mark(message: Message) -> Message:
    """Return a message with another text, or other arguments of its calls and its text, if any.

    Templates refuse a text beside calls and thoughts, or leave it out. The names of tools stay:
    gpt-oss's template repeats them before their results.
    """
    calls = cast("Sequence[Mapping[str, Any]] | None", message.get("tool_calls"))
    text = {"content": _MARK} if message.get("content") or not calls else {}
    if not calls:
        return {**message, **text}
    other = {"arguments": {_MARK: _MARK}}
    marked = [{**each, "function": {**each["function"], **other}} for each in calls]
    return {**message, **text, "tool_calls": marked}


def _stated(chat: Chat) -> Conversation:
    try:
        stated = conversation_of(chat.fields)
    except UsageError as error:
        raise DataError(f"{chat.where}: {error.message}", hint=error.hint) from None
    if has_images(stated.messages):
        raise DataError(f"{chat.where} has an image: only texts are learnt")
    if any("function_call" in each for each in stated.messages):
        raise DataError(
            f"{chat.where} has a `function_call`, which chat templates do not read",
            hint="write it as one of `tool_calls`, and `functions` as `tools`",
        )
    return stated


def _answers(chat: Chat, stated: Conversation, mask_prompt: bool) -> list[int]:
    """Return the messages of a chat that are learnt if prompts are masked."""
    where = chat.where
    counted = [_counts(where, number, each) for number, each in enumerate(stated.messages)]
    if not mask_prompt:
        if not all(counted):
            raise DataError(
                f"{where} has a message that does not count, but all messages are learnt",
                hint="learn only answers, with --mask-prompt, or remove `weight` and `train`",
            )
        return []
    for number, message in enumerate(stated.messages):
        if message.get("train") is True and message["role"] != "assistant":
            raise DataError(
                f"{where}: `train` of message {number} is true, but only answers are learnt",
                hint="remove it, or learn all messages, without --mask-prompt",
            )
    answers = [
        number
        for number, message in enumerate(stated.messages)
        if _is_answer(message) and number >= chat.first and counted[number]
    ]
    if not answers:
        raise DataError(f"{where} has no message of the assistant that counts: nothing is learnt")
    return answers


def _counts(where: str, number: int, message: Message) -> bool:
    """Return whether a message counts in the loss.

    By the `weight` of OpenAI's format, and `train` as in axolotl's.
    """
    if message.get("train_detail") is not None:
        raise DataError(
            f"{where}: message {number} has `train_detail`: parts of messages are not chosen",
            hint="remove it, or say `train` of the whole message",
        )
    train = message.get("train")
    train = True if train is None else train  # tables of messages have nulls for what some lack
    if not isinstance(train, bool):
        raise DataError(
            f"{where}: `train` of message {number} must be true or false, got {shown_value(train)}"
        )
    weight = message.get("weight", 1)
    if weight not in (0, 1):
        raise DataError(
            f"{where}: `weight` of message {number} must be 0 or 1, got {shown_value(weight)}"
        )
    return weight == 1 and train


def _rendered(texts: Sequence[tuple[str, Conversation]], encode: Encode) -> Iterator[np.ndarray]:
    """Yield the tokens of conversations, each with the name of its line, a group at a time."""
    start = 0
    while start < len(texts):
        end, room = start, _CHARACTERS
        while end < len(texts) and (room > 0 or end == start):
            conversation = texts[end][1]
            room -= sum(len(str(each)) for each in conversation.messages)
            room -= len(str(conversation.tools or ""))
            end += 1
        try:
            found = encode([each for _, each in texts[start:end]])
        except ChatTemplateError as error:
            number = error.conversation
            if number is None:
                raise
            raise DataError(f"{texts[start + number][0]}: {error.message}") from None
        yield from (np.array(tokens, np.int32) for tokens in found)
        start = end


def shared(one: np.ndarray, other: np.ndarray) -> int:
    """Return how many first tokens two texts share: a template may change what follows."""
    size = min(len(one), len(other))
    differs = np.flatnonzero(one[:size] != other[:size])
    return int(differs[0]) if len(differs) else size
