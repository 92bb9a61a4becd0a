"""The file format of one compiled kernel, and the checks before a file is trusted."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from gptrs.private_files import OPEN_FLAGS, SEAL_BYTES, read_own, sealed, unsealed

_MAGIC = b"gptrs kernel 3\n"
_START = len(_MAGIC) + SEAL_BYTES
"""Where the version begins."""
_LONGEST_VERSION = 512
_LARGEST = 64 << 20
"""Bytes of a file that is read at all; kernels take some 10 to 200 KiB."""


class DamagedEntryError(Exception):
    """An error for a file that is not a whole entry; the text says why."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The machine code of a kernel, and one line on what it was made by and for."""

    version: str
    body: bytes


def encoded(name: str, entry: Entry) -> bytes:
    """Return the content of the file `name`: a seal, the version, the code."""
    return _MAGIC + sealed(name, entry.version.encode() + b"\n" + entry.body)


def decoded(name: str, data: bytes) -> Entry:
    """Return the entry in the file `name`.

    DamagedEntryError unless it is whole, and was written under this name.
    """
    content = unsealed(name, data[len(_MAGIC) :]) if data.startswith(_MAGIC) else None
    if content is None:
        raise DamagedEntryError("it is damaged, or the file of another kernel")
    version, _, body = content.partition(b"\n")
    return Entry(version.decode(), body)


def read_entry(path: Path) -> Entry:
    """Read an entry that nobody but this user can have written, and note that it was used.

    PermissionError for a file that is another user's or open to them, DamagedEntryError for one
    that is not whole, other OSErrors as `open` raises them.
    """
    data = read_own(path, _LARGEST)
    if data is None:
        raise DamagedEntryError("it is no kernel")
    return decoded(path.name, data)


def version_of(path: Path) -> str | None:
    """Return the version that an entry states, unchecked; None if it states none."""
    try:
        with os.fdopen(os.open(path, OPEN_FLAGS), "rb") as file:
            head = file.read(_START + _LONGEST_VERSION)
    except OSError:
        return None
    version, end, _ = head[_START:].partition(b"\n")
    if not head.startswith(_MAGIC) or not end:
        return None
    return version.decode(errors="replace")
