"""Writing a folder of files whole or not at all, as `atomic_write` does for one file.

The files have no names while they are written. At the end a folder with a partial name gets all of
them, and then the name of the folder: by `rename`, or where there is one already by exchanging the
two, after which the old one is removed.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from gptrs.checkpoint.files.atomic_write import link_unnamed, open_unnamed
from gptrs.checkpoint.files.temporary_names import (
    LitterGuard,
    is_same_file,
    new_partial_name,
    remove,
    remove_abandoned,
)
from gptrs.errors import CheckpointError, GptrsError
from gptrs.quoting import quoted

_EXCHANGE = 2
"""Linux's flag `RENAME_EXCHANGE`."""
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


@contextmanager
def atomic_folder(
    path: str | os.PathLike[str], *, replace: bool, error: type[GptrsError] = CheckpointError
) -> Generator[StagedFolder]:
    """Scope in which a folder is filled with new files; it appears at `path` at the end, at once.

    An exception in the scope, a full disk or a killed process leave what was there before. With
    `replace`, a folder that is not empty is replaced as a whole, without it that is an error.
    `error` says why the folder cannot be written.
    """
    shown = quoted(str(path), 200)
    try:
        target = Path(os.path.realpath(path))
        parent = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, parent)
            remove_abandoned(parent)
            staged = stack.enter_context(StagedFolder(parent, target.name))
            yield staged
            staged.publish(replace=replace)
    except ValueError as problem:
        raise error(f"cannot write {shown}: {problem}") from problem
    except OSError as problem:
        raise error(f"cannot write {shown}: {problem.strerror or problem}") from problem


class StagedFolder:
    """The new folder while it is filled, in the open folder `parent`."""

    def __init__(self, parent: int, name: str) -> None:
        self._parent = parent
        self._name = name
        self._stack = contextlib.ExitStack()
        self._unnamed: list[tuple[str, int]] = []
        self._partial: str | None = None
        self._folder = -1

    def __enter__(self) -> StagedFolder:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._partial is not None:
            remove(self._parent, self._partial)
        self._stack.close()

    @contextmanager
    def file(self, name: str) -> Generator[BinaryIO]:
        """Scope in which the file `NAME` or `FOLDER/NAME` of the folder is written, to the disk."""
        descriptor = self._open(name)
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            yield file
        os.fsync(descriptor)

    def publish(self, *, replace: bool) -> None:
        """Give the folder its name; OSError if there is one that is not to be replaced."""
        folder = self._opened()
        for name, descriptor in self._unnamed:
            self._make_subfolder(name)
            link_unnamed(descriptor, folder, name)
        self._sync_folders(folder)
        assert self._partial is not None
        if replace and _has_entries(self._parent, self._name):
            exchange(self._parent, self._partial, self._name)
            os.fsync(self._parent)
            remove(self._parent, self._partial)
        else:
            directories = {"src_dir_fd": self._parent, "dst_dir_fd": self._parent}
            os.rename(self._partial, self._name, **directories)
        self._partial = None
        os.fsync(self._parent)

    def _open(self, name: str) -> int:
        descriptor = open_unnamed(self._parent)
        if descriptor is None:
            folder = self._opened()
            self._make_subfolder(name)
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
            descriptor = os.open(name, flags, 0o666, dir_fd=folder)
        else:
            self._unnamed.append((name, descriptor))
        self._stack.callback(os.close, descriptor)
        return descriptor

    def _opened(self) -> int:
        """The folder under its partial name, which exists from the first call on, and is locked."""
        while self._partial is None:
            partial = new_partial_name()
            guard = LitterGuard(self._parent, partial)
            self._stack.callback(guard.release)
            os.mkdir(partial, dir_fd=self._parent)
            self._partial = partial
            self._folder = os.open(partial, _OPEN_FOLDER, dir_fd=self._parent)
            self._stack.callback(os.close, self._folder)
            fcntl.flock(self._folder, fcntl.LOCK_EX)
            if not is_same_file(self._parent, partial, self._folder):
                self._partial = None  # another writer took it for abandoned before it was locked
        return self._folder

    def _make_subfolder(self, name: str) -> None:
        subfolder, slash, _ = name.rpartition("/")
        if slash:
            with contextlib.suppress(FileExistsError):
                os.mkdir(subfolder, dir_fd=self._folder)

    def _sync_folders(self, folder: int) -> None:
        for entry in os.listdir(folder):
            with contextlib.suppress(NotADirectoryError):
                descriptor = os.open(entry, _OPEN_FOLDER, dir_fd=folder)
                os.fsync(descriptor)
                os.close(descriptor)
        os.fsync(folder)


def exchange(folder: int, one: str, other: str) -> None:
    """Exchange two names in the open `folder` at once; OSError where the system cannot."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except AttributeError:
        raise OSError("the C library cannot exchange folders: remove the old one first") from None
    if renameat2(folder, os.fsencode(one), folder, os.fsencode(other), _EXCHANGE) != 0:
        number = ctypes.get_errno()
        reason = f"{os.strerror(number)}, while the old folder was to be exchanged for the new one"
        raise OSError(number, reason)


def _has_entries(parent: int, name: str) -> bool:
    try:
        descriptor = os.open(name, _OPEN_FOLDER, dir_fd=parent)
    except FileNotFoundError:
        return False
    try:
        return bool(os.listdir(descriptor))
    finally:
        os.close(descriptor)
