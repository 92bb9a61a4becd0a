"""Prompts in a file: an object on each line, checked before anything is generated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from gptrs.errors import UsageError
from gptrs.quoting import quoted, shown_value
from gptrs.runtime.chat.messages import Message, checked_messages
from gptrs.strict_json import parse_object
from gptrs_cli.terminal.failures import InputFileError

_KEYS: Final = ("prompt", "prompt_ids", "messages")

Id = str | int


@dataclass(frozen=True)
class PromptLine:
    """A prompt: one of `text`, `tokens` and `messages`, to continue by at most `max_tokens`.

    `where` names the line in errors; `id` is that of the object, else the number of its line.
    """

    where: str
    id: Id
    text: str | None
    tokens: list[int] | None
    messages: list[Message] | None
    max_tokens: int | None


def read_prompt_lines(path: Path) -> list[PromptLine]:
    """Return the prompts in a file of JSON lines, of which other keys are ignored.

    InputFileError for a file that cannot be read or has no prompts, and, with the number of the
    line, for a malformed line or an id that occurs twice.
    """
    shown = quoted(str(path), 200)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputFileError(f"cannot read the prompts from {shown}: {error.strerror}") from error
    lines = list(_lines(data, shown))
    if not lines:
        raise InputFileError(
            f"{shown} has no prompts", hint='a line is an object such as {"prompt": "Once"}'
        )
    seen: dict[Id, str] = {}
    for line in lines:
        if line.id in seen:
            raise InputFileError(
                f"{line.where}: the id {shown_value(line.id)} is that of {seen[line.id]}, too",
                hint="give each prompt an `id` of its own, or none of them",
            )
        seen[line.id] = line.where
    return lines


def _lines(data: bytes, shown: str) -> Iterator[PromptLine]:
    for number, line in enumerate(data.split(b"\n"), start=1):
        if line.strip():
            where = f"line {number} of {shown}"
            record = parse_object(line, where, InputFileError, hint="one object a line")
            yield _prompt_line(record, number, where)


def _prompt_line(record: dict[str, object], number: int, where: str) -> PromptLine:
    stated = [key for key in _KEYS if record.get(key) is not None]
    if len(stated) != 1:
        found = " and ".join(f"`{key}`" for key in stated) or "none of them"
        raise InputFileError(
            f"{where} needs one of `prompt`, `prompt_ids` and `messages`, found {found}"
        )
    return PromptLine(
        where=where,
        id=_id(record.get("id", number), where),
        text=_text(record.get("prompt"), where),
        tokens=_tokens(record.get("prompt_ids"), where),
        messages=_messages(record.get("messages"), where),
        max_tokens=_max_tokens(record.get("max_tokens"), where),
    )


def _id(value: object, where: str) -> Id:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise _malformed(where, "id", "a string or an integer", value)
    return value


def _text(value: object, where: str) -> str | None:
    if value is not None and not isinstance(value, str):
        raise _malformed(where, "prompt", "a string", value)
    return value


def _tokens(value: object, where: str) -> list[int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not all(map(_is_token, cast("list[object]", value))):
        raise _malformed(where, "prompt_ids", "a list of tokens", cast("object", value))
    return cast("list[int]", value)


def _is_token(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _messages(value: object, where: str) -> list[Message] | None:
    if value is None:
        return None
    try:
        return checked_messages(value)
    except UsageError as error:
        raise InputFileError(f"{where}: {error.message}") from error


def _max_tokens(value: object, where: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise _malformed(where, "max_tokens", "an integer >= 1", value)
    return value


def _malformed(where: str, key: str, need: str, value: object) -> InputFileError:
    return InputFileError(f"{where}: `{key}` must be {need}, found {shown_value(value)}")
