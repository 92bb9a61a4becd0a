"""Standard output that a command can rely on: it encodes everything and writes all of it."""

from __future__ import annotations

import io
import sys
from typing import TextIO, cast


def make_stdout_reliable() -> None:
    """Have characters that the encoding lacks become question marks, and no write be a part of one.

    Unbuffered (`PYTHONUNBUFFERED`), Python drops what the system did not take of a text: on a full
    disk the last line would be torn without an error.
    """
    stream = sys.stdout
    if not isinstance(stream, io.TextIOWrapper):
        return
    stream.reconfigure(errors="replace")
    below: object = cast("TextIO", stream).buffer
    if isinstance(below, io.RawIOBase):
        raw = io.FileIO(stream.fileno(), "w", closefd=False)
        buffer = io.BufferedWriter(raw, 1)  # writes all of what is given, at once
        sys.stdout = io.TextIOWrapper(buffer, stream.encoding, "replace", write_through=True)
