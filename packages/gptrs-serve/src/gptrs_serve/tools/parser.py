"""Calls of tools out of the text of an answer, as it grows."""

from __future__ import annotations

import json
import uuid
from collections.abc import Collection, Iterator
from typing import Literal, cast

from gptrs.quick_dataclass import dataclass
from gptrs_serve.tools.families import Family


@dataclass(frozen=True)
class TextDelta:
    """Text that is no call."""

    text: str


@dataclass(frozen=True)
class CallStart:
    """A call begins: the how-manieth it is, and what it calls."""

    index: int
    id: str
    name: str


@dataclass(frozen=True)
class CallArguments:
    """More of the arguments of a call: a piece of JSON."""

    index: int
    text: str


Delta = TextDelta | CallStart | CallArguments
_State = Literal["text", "head", "arguments", "tail", "after", "plain"]


class ObjectScanner:
    """Finds the end of a JSON object whose text comes in pieces."""

    def __init__(self, depth: int = 0) -> None:
        self._depth = depth
        self._in_string = False
        self._escaped = False

    def end(self, text: str) -> int | None:
        """Return how many characters of `text` belong to the object, None if it goes on."""
        for at, character in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == '"':
                    self._in_string = False
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return at + 1
        return None


class CallParser:
    """Splits the text of one answer into text and calls of `tools`, written as `family` does.

    What begins like a call and is none, or one of another tool, stays text. Without `several` all
    calls but the first are left out.
    """

    def __init__(self, family: Family, tools: Collection[str], *, several: bool = True) -> None:
        self._family = family
        self._tools = tools
        self._several = several
        self._state: _State = "text"
        self._held = ""
        """Text that nothing was made of yet; in `head`, with what the call began with."""
        self._read = 0
        """How much of it is what the call began with."""
        self._scanner = ObjectScanner()
        self.calls = 0

    def push(self, text: str) -> list[Delta]:
        """Return what `text` adds."""
        self._held += text
        deltas: list[Delta] = []
        while True:
            before = (self._state, len(self._held))
            deltas.extend(self._advance())
            if before == (self._state, len(self._held)):
                return [delta for delta in deltas if self._is_told(delta)]

    def finish(self) -> list[Delta]:
        """Return what was held back, once the answer has ended."""
        held, self._held = self._held, ""
        if self._state in ("tail", "after") or (self.calls and not held.strip()):
            return []
        return [TextDelta(held)] if held else []

    def _is_told(self, delta: Delta) -> bool:
        if isinstance(delta, TextDelta):
            return bool(delta.text)
        return self._several or delta.index == 0

    def _advance(self) -> Iterator[Delta]:
        if self._state == "text":
            return self._in_text()
        if self._state == "head":
            return self._in_head()
        if self._state == "arguments":
            return self._in_arguments()
        if self._state == "tail":
            return self._in_tail()
        return self._in_after() if self._state == "after" else self._in_plain()

    def _in_plain(self) -> Iterator[Delta]:
        told, self._held = self._held, ""
        yield TextDelta(told)

    def _in_text(self) -> Iterator[Delta]:
        mark = self._family.marks[0]
        at = self._held.find(mark)
        if self._family.bare and not self.calls:
            yield from self._in_bare()
            return
        if at >= 0:
            told, self._held = self._held[:at], self._held[at:]
            if told.strip():
                yield TextDelta(told)
            self._begin(len(mark))
            return
        kept = _start_length(self._held, mark)
        told = self._held[: len(self._held) - kept]
        if told.strip():  # space before a call is no text
            self._held = self._held[len(told) :]
            yield TextDelta(told)

    def _in_bare(self) -> Iterator[Delta]:
        """Tell by what the answer begins with whether it is a call."""
        mark, begun = self._family.marks[0], self._held.lstrip()
        if begun.startswith(mark):
            self._held = begun
            self._begin(len(mark))
        elif begun.startswith("{"):
            self._begin(0)
        elif begun and not mark.startswith(begun):
            self._state = "plain"
        yield from ()

    def _begin(self, read: int) -> None:
        self._state, self._read = "head", read

    def _in_head(self) -> Iterator[Delta]:
        rest = self._held[self._read :]
        opened = rest.lstrip()
        if self._family.end and not self.calls and opened.startswith("["):
            opened = opened[1:]
        found = self._family.head_pattern.match(opened)
        if found is not None and found[1] in self._tools:
            self._held = opened[found.end() :]
            self._state, self._scanner = "arguments", ObjectScanner()
            yield self._started(found[1])
            return
        whole = _whole_object(opened) if self._family.arguments_key else None
        if whole is not None:
            value, end = whole
            yield from self._whole_call(value, opened[end:])
        elif found is not None:
            self._state = "plain"

    def _whole_call(self, value: dict[str, object], rest: str) -> Iterator[Delta]:
        """Read a call whose keys come in another order, once it is whole."""
        name = value.get("name")
        given = value.get("arguments", value.get("parameters", {}))
        if name not in self._tools or not isinstance(given, dict | str):
            self._state = "plain"
            return
        self._held, self._state = rest, "after"
        yield self._started(cast("str", name))
        text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
        yield CallArguments(self.calls - 1, text)

    def _started(self, name: str) -> CallStart:
        number = uuid.uuid4().hex[: self._family.id_length]
        prefix = "call_" if self._family.id_length > 9 else ""  # Mistral's have nine characters
        self.calls += 1
        return CallStart(self.calls - 1, prefix + number, name)

    def _in_arguments(self) -> Iterator[Delta]:
        end = self._scanner.end(self._held)
        told = self._held if end is None else self._held[:end]
        self._held = self._held[len(told) :]
        if end is not None:
            self._state = "tail" if self._family.tail else "after"
            self._scanner = ObjectScanner(depth=1)
        if told:
            yield CallArguments(self.calls - 1, told)

    def _in_tail(self) -> Iterator[Delta]:
        """Pass over what follows the arguments in their object, such as an id."""
        end = self._scanner.end(self._held)
        self._held = "" if end is None else self._held[end:]
        if end is not None:
            self._state = "after"
        yield from ()

    def _in_after(self) -> Iterator[Delta]:
        rest = self._held.lstrip()
        closing, between = self._family.closing.strip(), self._family.between.strip()
        if not rest or (closing.startswith(rest) and rest != closing):
            return
        rest = rest.removeprefix(closing) if closing else rest
        if between and rest.startswith(between):
            self._held = rest[len(between) :]
            self._begin(0)
        else:
            self._held = rest.removeprefix(self._family.end)
            self._state = "text"
            if self._family.bare:
                self._state = "plain"
        yield from ()


def _start_length(text: str, mark: str) -> int:
    """Return the length of the longest end of `text` that `mark` begins with."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if mark.startswith(text[-length:]):
            return length
    return 0


def _whole_object(text: str) -> tuple[dict[str, object], int] | None:
    """Return the JSON object that `text` begins with and where it ends, None if there is none."""
    try:
        value, end = cast("tuple[object, int]", json.JSONDecoder().raw_decode(text))
    except (ValueError, RecursionError):
        return None
    return (cast("dict[str, object]", value), end) if isinstance(value, dict) else None
