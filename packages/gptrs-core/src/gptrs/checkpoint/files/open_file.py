"""Opening a file of a model: regular files only, without following links, whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from gptrs.errors import GptrsError, ModelError
from gptrs.quoting import quoted


def open_regular(path: Path, error: type[GptrsError] = ModelError) -> int:
    """Return a descriptor of the regular file at the resolved `path`, else raise `error`."""
    try:
        mode = os.stat(path, follow_symlinks=False).st_mode
        if not stat.S_ISREG(mode):
            raise error(f"{quoted(str(path), 200)} is {kind_of(mode)}, a regular file is needed")
        # The file may have been swapped since: never follow a link, never wait for a pipe.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise error(f"cannot open {quoted(str(path), 200)}: {reason}") from problem
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise error(f"{quoted(str(path), 200)} changed while it was opened")
    return descriptor


def resolved(path: str | os.PathLike[str], error: type[GptrsError] = ModelError) -> Path:
    """Return `path` with all links resolved; `error` for a path that no file can have."""
    try:
        return Path(os.path.realpath(path))
    except (OSError, ValueError) as problem:
        raise error(f"cannot open {quoted(str(path), 200)}: {problem}") from problem


def read_at(descriptor: int, size: int, offset: int) -> bytes:
    """`size` bytes at `offset`, fewer only where the file ends."""
    parts: list[bytes] = []
    # Linux reads at most 2 GiB in one call, and any call may be short.
    while size > 0:
        part = os.pread(descriptor, size, offset)
        if not part:
            break
        parts.append(part)
        offset += len(part)
        size -= len(part)
    return b"".join(parts)


def read_whole(path: Path, limit: int, error: type[GptrsError] = ModelError) -> bytes:
    """Return the bytes of a regular file of at most `limit` bytes."""
    descriptor = open_regular(path, error)
    try:
        # One byte more than allowed, so that a file exactly at the limit passes and a growing one
        # does not.
        data = read_at(descriptor, limit + 1, 0)
    except OSError as problem:
        reason = problem.strerror or str(problem)
        raise error(f"cannot read {quoted(str(path), 200)}: {reason}") from problem
    finally:
        os.close(descriptor)
    if len(data) > limit:
        raise error(f"{quoted(str(path), 200)} is larger than {limit} bytes")
    return data


def kind_of(mode: int) -> str:
    """Return a name for a file of this mode that is not a regular file."""
    if stat.S_ISDIR(mode):
        return "a folder"
    if stat.S_ISLNK(mode):
        return "a link"
    return "a device, pipe or socket"


def is_plain(name: str) -> bool:
    """Return whether `name` can only mean a file directly inside a folder."""
    return name not in ("", ".", "..") and not any(char in name for char in "/\\\0")
