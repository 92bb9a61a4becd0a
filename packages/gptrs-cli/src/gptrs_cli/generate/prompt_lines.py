"""Prompts in a file: an object on each line, read and checked a part at a time."""

from __future__ import annotations

import itertools
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, BinaryIO, Final

from msgspec import Meta, Struct, field

from gptrs.errors import UsageError
from gptrs.quoting import quoted, shown_value
from gptrs.strict_json import parse_object, record_of
from gptrs_cli.terminal.failures import InputFileError
from gptrs_runtime.chat.conversation import FIELDS, Conversation, conversation_of
from gptrs_runtime.generation.chat_session import conversation

LONGEST_LINE: Final = 16 << 20
"""In bytes: about four million tokens."""
PART_BYTES: Final = 64 << 20
"""Bytes of prompts that are held and checked together; bounded, since a pipe may never end."""
_TOKEN_BYTES: Final = 36
"""Bytes of an integer and of its slot in a list."""
_STDIN: Final = "-"
_KEYS: Final = ("prompt", "prompt_ids", "messages")

Id = str | int
Bad = Callable[[InputFileError], None]
"""Called with the error of a line: raises it, or reports it, and the line is skipped."""


class PromptLine(Struct, frozen=True):
    """A prompt: one of `text`, `tokens` and `conversation`, to continue by at most `max_tokens`.

    `where` names the line in errors; `id` defaults to the line number. `told` has variables of the
    chat template, if a text becomes a message.
    """

    where: str
    id: Id
    text: str | None
    tokens: list[int] | None
    conversation: Conversation | None
    max_tokens: int | None
    told: Mapping[str, object] = field(default_factory=dict[str, object])

    def as_message(self, system: str | None) -> Conversation:
        """Return the text as a message of the user, after the system message if there is one."""
        return _conversation(
            {**self.told, "messages": conversation(system, self.text or "")}, self.where
        )


def refuse(error: InputFileError) -> None:
    """Raise the error."""
    raise error


def prompt_parts(path: Path, bad: Bad = refuse) -> Iterator[list[PromptLine]]:
    """Yield the prompts in a file, pipe or, for `-`, standard input of JSON lines.

    A part has about PART_BYTES, so most files are one part. Unknown keys are ignored. Raises
    InputFileError if the file cannot be read or has no prompts. `bad` gets one, with the line
    number, for a line that is malformed or longer than LONGEST_LINE bytes, and for a repeated id.
    """
    shown = "standard input" if str(path) == _STDIN else quoted(str(path), 200)
    seen: dict[Id, int] = {}
    try:
        with _opened(path, shown) as file:
            for part in _parts(_lines(file, shown, bad)):
                yield [line for number, line in part if _is_new(line, number, seen, shown, bad)]
    except OSError as error:
        raise InputFileError(f"cannot read the prompts from {shown}: {error.strerror}") from error
    if not seen:
        raise InputFileError(
            f"{shown} has no prompts", hint='a line is an object such as {"prompt": "Once"}'
        )


def _parts(
    lines: Iterator[tuple[int, int, PromptLine]],
) -> Iterator[list[tuple[int, PromptLine]]]:
    """Yield the numbered lines in parts of about PART_BYTES."""
    part: list[tuple[int, PromptLine]] = []
    held = 0
    for number, size, line in lines:
        part.append((number, line))
        held += size
        if held > PART_BYTES:
            yield part
            part, held = [], 0
    if part:
        yield part


def _is_new(line: PromptLine, number: int, seen: dict[Id, int], shown: str, bad: Bad) -> bool:
    if line.id in seen:
        bad(
            InputFileError(
                f"{line.where}: the id {shown_value(line.id)} is also the id of line"
                f" {seen[line.id]} of {shown}",
                hint="give each prompt an `id` of its own, or none of them",
            )
        )
        return False
    seen[line.id] = number
    return True


def _opened(path: Path, shown: str) -> BinaryIO:
    if str(path) == _STDIN:
        # The descriptor stays open: a chat in the same process may read on.
        return open(sys.stdin.fileno(), "rb", closefd=False)
    # Opening a device may block or have effects, and `/dev/zero` has no end. Folders pass, since
    # the error of `open` names them well.
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISFIFO(mode) or stat.S_ISDIR(mode)):
        raise InputFileError(
            f"cannot read the prompts from {shown}: it is a device or socket",
            hint="name a file or a pipe, or `-` for standard input",
        )
    return path.open("rb")


def _lines(file: BinaryIO, shown: str, bad: Bad) -> Iterator[tuple[int, int, PromptLine]]:
    """Yield the line number of each prompt, its size in bytes, and the prompt."""
    for number in itertools.count(1):
        # One byte more than allowed: a line of exactly the limit is told from a longer one, and a
        # file without line breaks does not fill the memory.
        line = file.readline(LONGEST_LINE + 1)
        if not line:
            return
        try:
            prompt = _parsed(line, number, f"line {number} of {shown}")
        except InputFileError as error:
            bad(error)
            # The rest of the long line is passed over, so that the next one is read from its
            # beginning.
            while len(line) > LONGEST_LINE and not line.endswith(b"\n"):
                line = file.readline(LONGEST_LINE + 1) or b"\n"
            continue
        if prompt is not None:
            # A list of tokens takes far more memory than its text in the file.
            yield number, len(line) + _TOKEN_BYTES * len(prompt.tokens or ()), prompt


def _parsed(line: bytes, number: int, where: str) -> PromptLine | None:
    """Return the prompt of a line, None for an empty one."""
    if len(line) > LONGEST_LINE:
        raise InputFileError(
            f"{where} has more than {LONGEST_LINE} bytes", hint="one object a line"
        )
    if not line.strip():
        return None
    record = parse_object(line, where, InputFileError, hint="one object a line")
    return _prompt_line(record, number, where)


class _Stated(Struct, frozen=True):
    """The fields of a line, whose messages are checked as those of a chat; others are ignored.

    `true`, an integer in Python, is none here: it would equal the id 1.
    """

    id: Id | None = None
    prompt: str | None = None
    prompt_ids: list[int] | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None


def _prompt_line(record: dict[str, object], number: int, where: str) -> PromptLine:
    stated = [key for key in _KEYS if record.get(key) is not None]
    if len(stated) != 1:
        found = " and ".join(f"`{key}`" for key in stated) or "none of them"
        raise InputFileError(
            f"{where} needs one of `prompt`, `prompt_ids` and `messages`, found {found}"
        )
    fields = record_of(record, _Stated, where, InputFileError)
    return PromptLine(
        where=where,
        id=number if fields.id is None else fields.id,
        text=fields.prompt,
        tokens=fields.prompt_ids,
        conversation=None if record.get("messages") is None else _conversation(record, where),
        max_tokens=fields.max_tokens,
        told={name: record[name] for name in FIELDS if name in record},
    )


def _conversation(record: Mapping[str, object], where: str) -> Conversation:
    try:
        return conversation_of(record)
    except UsageError as error:
        raise InputFileError(f"{where}: {error.message}") from error
