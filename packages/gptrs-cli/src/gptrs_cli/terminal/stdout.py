"""Standard output that a command can rely on: it encodes everything and writes all of it."""

from __future__ import annotations

import io
import select
import sys
from typing import BinaryIO, TextIO, cast

from typing_extensions import Buffer, override


def make_stdout_reliable() -> None:
    """Have characters that the encoding lacks become question marks, and no write be a part of one.

    Unbuffered (`PYTHONUNBUFFERED`), Python drops what the system did not take of a text: on a full
    disk the last line would be torn without an error. Which errors are of this stream is kept, too.
    """
    stream = sys.stdout
    if not isinstance(stream, io.TextIOWrapper):
        return
    stream.reconfigure(errors="replace")
    below: object = cast("TextIO", stream).buffer
    if isinstance(below, io.RawIOBase):
        raw = cast("BinaryIO", _WholeWrites(stream.fileno(), "w", closefd=False))
        sys.stdout = io.TextIOWrapper(raw, stream.encoding, "replace", write_through=True)
    elif type(_raw(below)) is io.FileIO:
        stream.flush()
        buffered = io.BufferedWriter(_WholeWrites(stream.fileno(), "w", closefd=False))
        sys.stdout = io.TextIOWrapper(
            buffered, stream.encoding, "replace", line_buffering=stream.line_buffering
        )


def is_of_stdout(error: OSError) -> bool:
    """Return whether an error came from writing to standard output."""
    below: object = getattr(sys.stdout, "buffer", None)
    raw = _raw(below) or below
    return isinstance(raw, _WholeWrites) and raw.failed == error.errno


def _raw(below: object) -> object:
    """Return the file below a buffer, None where there is no buffer."""
    return getattr(below, "raw", None)


class _WholeWrites(io.FileIO):
    """A file whose `write` returns when the system has taken all that it was given.

    `io.BufferedWriter` would do so too, but even with a buffer of one byte it keeps a lone newline.
    """

    failed: int | None = None
    """The number of the error that the last write ended with."""

    @override
    def write(self, data: Buffer, /) -> int:
        left = memoryview(data).cast("B")
        size = left.nbytes
        while left.nbytes:
            try:
                taken = super().write(left)
            except OSError as error:
                self.failed = error.errno
                raise
            if taken is None:  # pyright: ignore[reportUnnecessaryComparison]  # a full pipe
                select.select([], [self], [])
            else:
                left = left[taken:]
        return size
