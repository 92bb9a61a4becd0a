"""Read an answer over HTTP/1.1 from portions of bytes, whatever frames it."""

from __future__ import annotations

from enum import Enum
from typing import Final

from gptrs.errors import ExecutionError
from gptrs.quoting import clipped

_MOST_HEAD: Final = 65_536
_END: Final = b"\r\n\r\n"


class _Part(Enum):
    """Names the next bytes."""

    HEAD = 0
    SIZE = 1
    """The line before a chunk that says how long it is."""
    CHUNK = 2
    TRAILER = 3
    COUNTED = 4
    """A body of a stated length."""
    TO_THE_END = 5
    """A body that ends with the connection."""
    DONE = 6


class HttpAnswer:
    """Reads an answer; `status` is 0 until its head has come.

    `headers` have lower-case names. `kept` says whether the connection may be used again, once the
    answer is `complete`.
    """

    def __init__(self) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.kept = False
        self._part = _Part.HEAD
        self._held = b""
        """Bytes of a head or a line that is not complete."""
        self._left = 0
        """How many bytes of the body, or of the chunk and the line end after it, are to come."""

    @property
    def complete(self) -> bool:
        """Whether all of the answer has come."""
        return self._part is _Part.DONE

    @property
    def ends_with_connection(self) -> bool:
        """Whether the answer ends with the connection only."""
        return self._part is _Part.TO_THE_END

    def feed(self, data: bytes) -> bytes:
        """Read bytes; return those of the body. ExecutionError if they are no HTTP."""
        if self._part is _Part.SIZE and not self._held:
            line, _, rest = data.partition(b"\r\n")
            if line.isalnum() and len(rest) > 2 and len(rest) == _size(line) + 2:
                return rest[:-2]  # one chunk, as most portions are
        data = self._held + data if self._held else data
        self._held = b""
        body: list[bytes] = []
        while data:
            if self._part is _Part.HEAD:
                data = self._head(data)
            elif self._part in (_Part.SIZE, _Part.TRAILER):
                data = self._line(data)
            elif self._part is _Part.CHUNK:
                portion, data = data[: self._left], data[self._left :]
                body.append(portion[: max(0, self._left - 2)])
                self._left -= len(portion)
                if not self._left:
                    self._part = _Part.SIZE
            elif self._part is _Part.COUNTED:
                body.append(data[: self._left])
                self._left -= len(body[-1])
                self._part = self._part if self._left else _Part.DONE
                data = b""
            else:
                body.append(data if self.ends_with_connection else b"")
                data = b""
        return b"".join(body)

    def end(self) -> None:
        """Note that the connection has ended."""
        if self.ends_with_connection:
            self._part = _Part.DONE

    def _head(self, data: bytes) -> bytes:
        """Read a head if it is complete; return the bytes that follow."""
        head, end, rest = data.partition(_END)
        if not end and len(data) <= _MOST_HEAD:
            self._held = data
            return b""
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, told = first.partition(" ")
        if not end or not version.startswith("HTTP/1.") or not told[:3].isdigit():
            raise ExecutionError(f"the server does not speak HTTP/1.1: {clipped(first, 80)}")
        if told.startswith("1"):  # the answer proper follows
            return rest
        self.status = int(told[:3])
        pairs = (line.partition(":") for line in lines)
        self.headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
        self._frame(version)
        return rest

    def _frame(self, version: str) -> None:
        connection = self.headers.get("connection", "").lower()
        self.kept = connection == "keep-alive" if version == "HTTP/1.0" else connection != "close"
        length = self.headers.get("content-length", "")
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            self._part = _Part.SIZE
        elif length.isdigit():
            self._left = int(length)
            self._part = _Part.COUNTED if self._left else _Part.DONE
        else:
            self.kept = False
            self._part = _Part.TO_THE_END

    def _line(self, data: bytes) -> bytes:
        """Read the size of a chunk, or a trailer after the last; return the bytes that follow."""
        line, end, rest = data.partition(b"\n")
        if not end:
            self._held = data
            return b""
        line = line.strip()
        if self._part is _Part.TRAILER:
            self._part = self._part if line else _Part.DONE
            return rest
        size = _size(line)
        self._left = size + 2
        self._part = _Part.CHUNK if size else _Part.TRAILER
        return rest


def _size(line: bytes) -> int:
    """Return the size before a chunk; ExecutionError if there is none."""
    try:
        return int(line.partition(b";")[0], 16)
    except ValueError:
        raise ExecutionError(f"the server sends a chunk of no size: {line[:40]!r}") from None
