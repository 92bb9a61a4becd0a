"""The files that were read whole since the system started, and had the bytes of their digests.

To read them again in each process would make the start slow. A mark holds for a file until anything
changes it: it covers inode, size, and the times of the last changes of content and inode. No
program can set the latter back. Marks are appended to one file a folder.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from gptrs.private_files import read_own, write_all

CHECKED = "checked"
"""The name of the file of marks."""
_MARK = 16
_MOST_BYTES = 1 << 20
"""Bytes of marks after which a folder begins anew."""
_known: dict[Path, tuple[int, frozenset[bytes]]] = {}
"""The marks of each folder, with the size that its file had when they were read."""


def is_checked(path: Path, status: os.stat_result, boot: bytes) -> bool:
    """Return whether the file was found whole, and has not changed since."""
    return _mark(path, status, boot) in _marks(path.with_name(CHECKED))


def note_checked(path: Path, status: os.stat_result, boot: bytes) -> None:
    """Note that a file was found whole with this status; without a mark it is read once more."""
    marks = path.with_name(CHECKED)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    with suppress(OSError):
        descriptor = os.open(marks, flags, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            if size % _MARK or size >= _MOST_BYTES:  # a mark was torn, or there are many old ones
                os.ftruncate(descriptor, 0)
            write_all(descriptor, _mark(path, status, boot))
        finally:
            os.close(descriptor)


def _mark(path: Path, status: os.stat_result, boot: bytes) -> bytes:
    times = status.st_mtime_ns, status.st_ctime_ns
    text = f"{path.name} {status.st_dev} {status.st_ino} {status.st_size} {times}"
    return hashlib.blake2b(text.encode() + boot, digest_size=_MARK).digest()


def _marks(file: Path) -> frozenset[bytes]:
    try:
        size = os.lstat(file).st_size
        found = _known.get(file)
        if found is None or found[0] != size:
            data = read_own(file, _MOST_BYTES + _MARK) or b""
            parts = (data[at : at + _MARK] for at in range(0, len(data), _MARK))
            found = _known[file] = size, frozenset(parts)
    except OSError:  # there is none, or it is not ours alone
        return frozenset()
    return found[1]
