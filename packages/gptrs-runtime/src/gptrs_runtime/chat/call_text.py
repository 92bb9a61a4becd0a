"""A tool call as a model writes it, parsed while its text grows: complete, or not a call."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final, Literal, cast

from gptrs_runtime.chat.messages import CallFamily

_State = Literal["open", "whole", "broken"]
_BLANKS: Final = re.compile(r"[ \t\n\r]*")
_NAME: Final = re.compile(r"[ \t\n\r]*([\w.-]*)[ \t\n\r]*")
_IN_STRING: Final = re.compile(
    r'[^"\\\x00-\x1f]*(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*)*'
)
_PART_OF_ESCAPE: Final = re.compile(r"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_WORD: Final = re.compile(r"[-+.0-9A-Za-z]+")
_VALUE: Final = re.compile(r"true|false|null|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
_BEGIN_OF_VALUE: Final = re.compile(
    r"t(?:r(?:ue?)?)?|f(?:a(?:l(?:se?)?)?)?|n(?:u(?:ll?)?)?"
    r"|-?(?:0|[1-9][0-9]*)?(?:\.[0-9]*)?(?:[eE][-+]?[0-9]*)?"
)


class ObjectScanner:
    """Finds the end of a JSON object at `begin` of a growing text, or that there is none.

    Each character is read once. `fields` maps keys to the ranges of their values, the first of
    equal keys; `key` and `value_begin` belong to the incomplete value.
    """

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.at = begin
        self.state: _State = "open"
        self.fields: dict[str, tuple[int, int]] = {}
        self.key = ""
        self.value_begin = -1
        self._open: str = ""
        """The brackets that are open."""
        self._next = "{"
        """The kind of the next piece: a key, a value, or one of the marks `:,}]`."""
        self._string_begin = -1
        """Start of the string in which the text ends, -1 outside a string."""

    def read(self, text: str) -> None:
        """Continue; `text` begins with the text of earlier calls."""
        while self.state == "open" and self.at < len(text) and self._goes_on(text):
            pass

    def _goes_on(self, text: str) -> bool:
        """Read a token; return False without reading it if it may continue in later text."""
        if self._string_begin >= 0:
            return self._string(text)
        self.at = _end_of(_BLANKS, text, self.at)
        if self.at == len(text):
            return False
        begins = self._next[0]
        mark = text[self.at]
        if mark == '"' and begins in "kv":
            self._begins()
            self._string_begin = self.at
            self.at += 1
        elif mark in "{[" and (begins == "v" or (mark == self._next)):
            self._begins()
            self._open += mark
            self._next = "k}" if mark == "{" else "v]"
            self.at += 1
        elif mark in "}]" and mark in self._next:
            self._open = self._open[:-1]
            self.at += 1
            self._ended(text)
        elif mark in ":," and begins == mark:
            self._next = "v" if mark == ":" or self._open[-1] == "[" else "k"
            self.at += 1
        elif begins == "v":
            return self._word(text)
        else:
            self.state = "broken"
        return True

    def _begins(self) -> None:
        if self._next[0] == "v" and self._open == "{":
            self.value_begin = self.at

    def _string(self, text: str) -> bool:
        self.at = _end_of(_IN_STRING, text, self.at)
        if self.at == len(text):
            return False
        if text[self.at] != '"':
            # The escape may continue with the next piece of text.
            if _PART_OF_ESCAPE.match(text, self.at):
                return False
            self.state = "broken"
            return True
        self.at += 1
        begin, self._string_begin = self._string_begin, -1
        if self._next[0] == "k":
            if self._open == "{":
                self.key = cast("str", json.loads(text[begin : self.at]))
            self._next = ":"
        else:
            self._ended(text)
        return True

    def _word(self, text: str) -> bool:
        self._begins()
        found = _WORD.match(text, self.at)
        if found is None:
            self.state = "broken"
        # `12` may become `123`, and `tru` may become `true`: only what follows ends a word.
        elif found.end() == len(text) and _BEGIN_OF_VALUE.fullmatch(found[0]):
            return False
        elif _VALUE.fullmatch(found[0]):
            self.at = found.end()
            self._ended(text)
        else:
            self.state = "broken"
        return True

    def _ended(self, text: str) -> None:
        """Record the end of a value."""
        if not self._open:
            self.state = "whole"
            return
        self._next = ",}" if self._open[-1] == "{" else ",]"
        if self._open == "{":
            # The first of equal keys: what was sent to the client of a stream cannot be taken back.
            self.fields.setdefault(self.key, (self.value_begin, self.at))
            self.value_begin = -1


class CallText:
    """Text after a mark of `begin` characters that may be a call of one of `tools`, in the format
    of `family`.

    `tools` maps names to whether a tool needs arguments. `state` tells whether there is a JSON
    object. With `in_list`, the bracket of a list may come first.
    """

    def __init__(
        self, family: CallFamily, tools: Mapping[str, bool], begin: int, *, in_list: bool
    ) -> None:
        self.begin = begin
        self.state: _State = "open"
        self._tools = tools
        self._family = family
        self._in_list = in_list
        self._name: str | None = None
        """The name where it stands before the object."""
        self._scanner: ObjectScanner | None = None

    @property
    def end(self) -> int:
        """The end of the object; the reading position while it is incomplete."""
        return self.begin if self._scanner is None else self._scanner.at

    def read(self, text: str) -> None:
        """Continue; `text` begins with the text of earlier calls."""
        if self._scanner is None:
            at = self._head(text)
            if at == len(text):
                return
            if text[at] != "{":
                self.state = "broken"
                return
            self._scanner = ObjectScanner(at)
        self._scanner.read(text)
        self.state = self._scanner.state

    def _head(self, text: str) -> int:
        """Return the start of the object; the end of the text if it may start later."""
        if self._family.arguments_key:
            at = _end_of(_BLANKS, text, self.begin)
            if self._in_list and text.startswith("[", at):
                at = _end_of(_BLANKS, text, at + 1)
            return at
        found = _NAME.match(text, self.begin)
        assert found is not None  # it matches the empty text
        name_end, rest = self._family.name_end, text[found.end() :]
        if rest.startswith(name_end) and found[1]:
            self._name = found[1]
            return _end_of(_BLANKS, text, found.end() + len(name_end))
        may_come = name_end.startswith(rest) and (found[1] or not rest)
        return len(text) if may_come else found.end()

    def call(self, text: str) -> tuple[str, str] | None:
        """Return the tool and its arguments, JSON of an object; None if it is not a call."""
        name = self._known_name(text)
        assert self._scanner is not None
        if name is None:
            return None
        if self._name is not None:
            return name, text[self._scanner.begin : self._scanner.at]
        fields = self._scanner.fields
        begin, end = fields.get("arguments") or fields.get("parameters") or (0, 0)
        arguments = _arguments(text[begin:end], needed=self._tools[name])
        return None if arguments is None else (name, arguments)

    def begun(self, text: str) -> tuple[str, str] | None:
        """Return the tool and its arguments so far; None before they begin."""
        name, scanner = self._known_name(text), self._scanner
        if name is None or scanner is None:
            return None
        if self._name is not None:
            return name, text[scanner.begin : scanner.at]
        begin, end = scanner.value_begin, scanner.at
        if begin < 0 or scanner.key not in ("arguments", "parameters"):
            begin, end = scanner.fields.get(self._family.arguments_key, (-1, -1))
        return (name, text[begin:end]) if text.startswith("{", begin) else None

    def _known_name(self, text: str) -> str | None:
        if self._name is not None:
            return self._name if self._name in self._tools else None
        begin, end = (0, 0) if self._scanner is None else self._scanner.fields.get("name", (0, 0))
        if not text.startswith('"', begin) or end == 0:
            return None
        name = cast("str", json.loads(text[begin:end]))
        return name if name in self._tools else None


def _arguments(text: str, *, needed: bool) -> str | None:
    """Return `text`, JSON of any value, as JSON of an object; None if that is impossible.

    Some models write a string of JSON, or null for no arguments.
    """
    if text.startswith("{"):
        return text
    if text in ("", "null"):
        return None if needed else "{}"
    try:
        inner: object = json.loads(text)
        # `encode` raises for lone surrogates, which JSON can spell and UTF-8 cannot send.
        if isinstance(inner, str) and inner.encode() and isinstance(json.loads(inner), dict):
            return inner
    # Models write anything, among it lists nested a thousand deep.
    except (ValueError, RecursionError):
        pass
    return None


def _end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    assert found is not None  # these patterns match the empty text
    return found.end()
