"""Writes a folder of files completely or not at all, as `atomic_write` does for one file.

The files go to a temporary folder next to it, which gets its name by `rename` or, to replace a
folder of that name, by exchanging the two; then the old one is removed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from gptrs.checkpoint.files.temporary_names import (
    OPEN_FOLDER,
    new_temporary,
    remove,
    remove_abandoned,
)
from gptrs.errors import CheckpointError
from gptrs.quoting import quoted

_EXCHANGE = 2
"""The flag `RENAME_EXCHANGE` of Linux, `RENAME_SWAP` of macOS."""


@contextmanager
def atomic_folder(path: str | os.PathLike[str], *, replace: bool) -> Generator[StagedFolder]:
    """Scope in which a folder is filled with new files; it appears atomically at `path` at the end.

    An exception in the scope, a full disk or a killed process leaves the old state. With `replace`,
    a folder that is not empty is replaced as a whole, without it that is an error. CheckpointError
    if the folder cannot be written.
    """
    shown = quoted(str(path), 200)
    try:
        target = Path(os.path.realpath(path))
        parent = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, parent)
            remove_abandoned(parent)
            staged = stack.enter_context(StagedFolder(parent, target))
            yield staged
            staged.publish(replace=replace)
    except ValueError as problem:
        raise CheckpointError(f"cannot write {shown}: {problem}") from problem
    except OSError as problem:
        raise CheckpointError(f"cannot write {shown}: {problem.strerror or problem}") from problem


class StagedFolder:
    """The new folder while it is filled, in the open folder `parent`."""

    def __init__(self, parent: int, target: Path) -> None:
        self._parent = parent
        self._name = target.name
        self._temporary, self._folder = new_temporary(parent, is_folder=True)
        self.path = target.parent / self._temporary
        """For writers that take the name of a folder, until `publish`."""

    def __enter__(self) -> StagedFolder:
        return self

    def __exit__(self, *exception: object) -> None:
        # After a rename nothing is left under that name; after an exchange it is the old folder.
        remove(self._parent, self._temporary)
        os.close(self._folder)

    @contextmanager
    def file(self, name: str) -> Generator[BinaryIO]:
        """Scope in which the file `NAME` or `FOLDER/NAME` of the folder is written, to the disk."""
        subfolder, slash, _ = name.rpartition("/")
        if slash:
            with contextlib.suppress(FileExistsError):
                os.mkdir(subfolder, dir_fd=self._folder)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        descriptor = os.open(name, flags, 0o666, dir_fd=self._folder)
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(descriptor)

    def publish(self, *, replace: bool) -> None:
        """Move the folder to its name; OSError if a folder exists there that must not be
        replaced."""
        self._sync_entries()
        if replace and _has_entries(self._parent, self._name):
            exchange(self._parent, self._temporary, self._name)
        else:
            directories = {"src_dir_fd": self._parent, "dst_dir_fd": self._parent}
            os.rename(self._temporary, self._name, **directories)
        os.fsync(self._parent)

    def _sync_entries(self) -> None:
        for entry in os.listdir(self._folder):
            descriptor = os.open(entry, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=self._folder)
            os.fsync(descriptor)
            os.close(descriptor)
        os.fsync(self._folder)


def exchange(folder: int, one: str, other: str) -> None:
    """Exchange two names in the open `folder` atomically; OSError if the system cannot.

    A writer killed between two renames would leave neither folder under the name; Python has no
    function for this system call.
    """
    library = ctypes.CDLL(None, use_errno=True)
    # On Linux and macOS, with the same arguments and the same flag value.
    rename = getattr(library, "renameat2", None) or getattr(library, "renameatx_np", None)
    if rename is None:
        raise OSError("the C library cannot exchange folders: remove the old one first")
    if rename(folder, os.fsencode(one), folder, os.fsencode(other), _EXCHANGE) != 0:
        number = ctypes.get_errno()
        reason = f"{os.strerror(number)}, while the old folder was to be exchanged for the new one"
        raise OSError(number, reason)


def _has_entries(parent: int, name: str) -> bool:
    try:
        descriptor = os.open(name, OPEN_FOLDER, dir_fd=parent)
    except FileNotFoundError:
        return False
    try:
        return bool(os.listdir(descriptor))
    finally:
        os.close(descriptor)
