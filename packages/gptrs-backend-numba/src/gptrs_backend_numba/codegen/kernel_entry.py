"""The file format of one compiled kernel, and the checks before a file is trusted."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from gptrs.private_files import OPEN_FLAGS, read_own

_MAGIC = b"gptrs kernel 2\n"
_DIGEST = hashlib.sha256().digest_size
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


def encoded(entry: Entry) -> bytes:
    """Return the content of the file: a checksum, the version, the code."""
    content = entry.version.encode() + b"\n" + entry.body
    return _MAGIC + hashlib.sha256(content).digest() + content


def decoded(data: bytes) -> Entry:
    """Return the entry in the content of a file; raise DamagedEntryError unless it is whole."""
    start = len(_MAGIC) + _DIGEST
    content = data[start:]
    if data[:start] != _MAGIC + hashlib.sha256(content).digest():
        raise DamagedEntryError("it is damaged")
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
    return decoded(data)


def version_of(path: Path) -> str | None:
    """Return the version that an entry states, unchecked; None if it states none."""
    try:
        with os.fdopen(os.open(path, OPEN_FLAGS), "rb") as file:
            head = file.read(len(_MAGIC) + _DIGEST + _LONGEST_VERSION)
    except OSError:
        return None
    version, end, _ = head[len(_MAGIC) + _DIGEST :].partition(b"\n")
    if not head.startswith(_MAGIC) or not end:
        return None
    return version.decode(errors="replace")
