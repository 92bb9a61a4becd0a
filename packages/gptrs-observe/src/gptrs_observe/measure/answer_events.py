"""The events of an answer of `/v1/completions`: when text came, and how many tokens."""

from __future__ import annotations

import json
from typing import Any, Final, cast

from gptrs.errors import ExecutionError
from gptrs.quoting import clipped

_DONE: Final = "[DONE]"


class AnswerEvents:
    """Notes when events with text came; lines may end in LF, CR LF or CR, and be comments.

    Bytes are kept as they come, and read when something is asked: a client that shares processors
    with the server takes none of its time meanwhile.
    """

    def __init__(self) -> None:
        self._portions: list[tuple[bytes, float]] = []
        self._came: list[float] = []
        self._done = False
        self._held = b""
        self._lines: list[str] = []
        """The data of an event that is not complete."""
        self._last = 0.0
        self._tokens: int | None = None
        self._reason: object = None

    def feed(self, data: bytes, now: float) -> None:
        """Add bytes that came at the time `now`."""
        self._portions.append((data, now))

    @property
    def done(self) -> bool:
        """Whether the event `[DONE]` has come; ExecutionError for an event of an error."""
        self._read()
        return self._done

    def _read(self) -> None:
        portions, self._portions = self._portions, []
        for data, now in portions:
            self._read_portion(data, now)

    def _read_portion(self, data: bytes, now: float) -> None:
        data = self._held + data
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        self._held = data[cut:]
        for line in data[:cut].splitlines():
            field, _, value = line.decode(errors="replace").partition(":")
            if field == "data":
                self._lines.append(value.removeprefix(" "))
            elif field == "error":
                raise _told(value)
            elif not line and self._lines:
                self._take("\n".join(self._lines), now)
                self._lines.clear()

    def end(self) -> None:
        """Read what is left: the last event may lack the empty line after it.

        ExecutionError for an event of an error.
        """
        self._read()
        self._read_portion(b"\n\n", self._last)

    def tokens(self, asked: int) -> int:
        """Return how many tokens the answer has, of `asked` ones.

        ExecutionError if its events tell neither that nor that it is as long as asked.
        """
        if self._tokens is not None:
            return self._tokens
        if self._reason == "length":
            return asked
        raise ExecutionError("the server does not tell how many tokens an answer has, in `usage`")

    def times(self) -> list[float]:
        """Return when texts came; the time of the last event if none did."""
        return self._came or [self._last]

    def _take(self, data: str, now: float) -> None:
        if data == _DONE:
            self._done = True
            return
        event = _object(data)
        if event.get("error"):
            raise _told(event["error"])
        self._last = now
        for choice in event.get("choices") or ():
            if choice.get("text"):
                self._came.append(now)
            self._reason = choice.get("finish_reason") or self._reason
        usage: Any = event.get("usage")
        if usage:
            self._tokens = usage["completion_tokens"]


def _object(data: str) -> dict[str, Any]:
    try:
        event: object = json.loads(data)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise ExecutionError(f"the server sends an event that is no object: {clipped(data, 80)}")
    return cast("dict[str, Any]", event)


def _told(error: object) -> ExecutionError:
    return ExecutionError(f"the server tells of an error: {clipped(str(error).strip(), 300)}")
