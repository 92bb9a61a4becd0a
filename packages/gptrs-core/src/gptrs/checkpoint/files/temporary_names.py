"""Temporary files and folders next to an output, and their removal.

A file or folder `.gptrs-*.partial` belongs to a writer that holds a lock on it. The system drops
the lock when that process ends in any way; the next writer in the same folder removes unlocked
ones.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil

from gptrs.operating_system import lock_file

_PREFIX = ".gptrs-"
_SUFFIX = ".partial"
OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def new_temporary(folder: int, *, is_folder: bool = False) -> tuple[str, int]:
    """Make an empty file or folder in the open `folder`: its unique name, a locked descriptor."""
    while True:
        name = f"{_PREFIX}{secrets.token_hex(8)}{_SUFFIX}"
        if is_folder:
            os.mkdir(name, dir_fd=folder)
        try:
            # O_EXCL: a link that another user put there is not followed.
            flags = OPEN_FOLDER if is_folder else os.O_RDWR | os.O_CREAT | os.O_EXCL
            descriptor = os.open(name, flags, 0o666, dir_fd=folder)
        except FileNotFoundError:
            if is_folder:  # another writer took it for abandoned before it was opened
                continue
            raise
        lock_file(descriptor, wait=True)
        if _is_same_file(folder, name, descriptor):
            return name, descriptor
        os.close(descriptor)  # or before it was locked


def remove_abandoned(folder: int) -> None:
    """Remove files that dead writers left in the open `folder`; never those still being written."""
    for name in os.listdir(folder):
        if name.startswith(_PREFIX) and name.endswith(_SUFFIX):
            with contextlib.suppress(OSError):  # in use, gone meanwhile, or another user's
                _remove_unlocked(folder, name)


def remove(folder: int, name: str) -> None:
    """Remove the file or whole folder `name` in the open `folder`, as far as that is possible."""
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=folder)
        return
    shutil.rmtree(name, ignore_errors=True, dir_fd=folder)


def _remove_unlocked(folder: int, name: str) -> None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
    descriptor = os.open(name, flags, dir_fd=folder)
    try:
        lock_file(descriptor)
        if _is_same_file(folder, name, descriptor):
            remove(folder, name)
    finally:
        os.close(descriptor)


def _is_same_file(folder: int, name: str, descriptor: int) -> bool:
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(descriptor))
