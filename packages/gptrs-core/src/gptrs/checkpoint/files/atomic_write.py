"""Atomic writing of files: at any time either the old file or the new one is there.

The bytes go to a temporary file in the same folder, are brought to the disk, and replace the old
file by `os.replace`.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from gptrs.checkpoint.files.open_file import kind_of
from gptrs.checkpoint.files.temporary_names import new_temporary, remove, remove_abandoned
from gptrs.errors import CheckpointError, GptrsError
from gptrs.quoting import quoted


@contextmanager
def atomic_file(
    path: str | os.PathLike[str], error: type[GptrsError] = CheckpointError
) -> Generator[BinaryIO]:
    """Scope in which the new content of the file `path` is written; it appears atomically at the
    end.

    An exception in the scope, a full disk or a killed process leaves the old file. A link is kept
    and its target is replaced, with the same permissions. Of two writers the one that ends last
    wins. `error` says why the file cannot be written.
    """
    shown = quoted(str(path), 200)
    try:
        target = Path(os.path.realpath(path))
    except ValueError as problem:
        raise error(f"cannot write {shown}: {problem}") from problem
    try:
        mode = _mode(target)
        if mode is not None and not stat.S_ISREG(mode):
            raise error(f"cannot write {shown}: it is {kind_of(mode)}, a regular file is needed")
        # By descriptor from here on: a folder that is renamed meanwhile stays the same one.
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, folder)
            # Killed writers leave files of gigabytes; the next writer is the one who needs the
            # room.
            remove_abandoned(folder)
            yield stack.enter_context(_staged(folder, target.name, mode))
    except OSError as problem:
        raise error(f"cannot write {shown}: {problem.strerror or problem}") from problem


@contextmanager
def _staged(folder: int, name: str, mode: int | None) -> Generator[BinaryIO]:
    """Scope in which a temporary file is written that becomes `name`, with permissions `mode`."""
    temporary, descriptor = new_temporary(folder)
    file = os.fdopen(descriptor, "wb")
    try:
        yield file
        file.flush()
        if mode is not None:
            os.fchmod(descriptor, stat.S_IMODE(mode))
        # The content before the name: after a power failure, the name must never mean a part of the
        # file.
        os.fsync(descriptor)
        os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        # The new name is an entry of the folder, which is flushed separately.
        os.fsync(folder)
    except BaseException:
        remove(folder, temporary)
        raise
    finally:
        with contextlib.suppress(OSError):  # `flush` reported it already
            file.close()


def _mode(path: Path) -> int | None:
    """Return the type and permissions of the file, None if there is none."""
    try:
        return os.stat(path, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None
