"""Writing a file whole or not at all: whatever happens meanwhile, the old file or the new is there.

The bytes go to a file without a name in the same folder, are brought to the disk, and only then get
a name. A process that dies before that leaves nothing behind. An existing file is replaced by
`rename`, for which the new one needs a name of its own for an instant; `partial_names` says what
becomes of it when the writer is killed in that very instant. Where the file system has no nameless
files, the file has such a name all along.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from gptrs.checkpoint.files.open_file import kind_of
from gptrs.checkpoint.files.temporary_names import (
    LitterGuard,
    is_same_file,
    new_partial_name,
    remove_abandoned,
)
from gptrs.errors import CheckpointError, GptrsError
from gptrs.quoting import quoted

_UNABLE = frozenset({errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT})
"""How file systems and old kernels answer that they have no nameless files."""


@contextmanager
def atomic_file(
    path: str | os.PathLike[str], error: type[GptrsError] = CheckpointError
) -> Generator[BinaryIO]:
    """Scope in which the new content of the file `path` is written; it appears at the end, at once.

    An exception in the scope, a full disk or a killed process leave what was there before. A link
    stays and the file it leads to is replaced, with its permissions. Of two writers the one that
    ends last wins. `error` says why the file cannot be written.
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
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        with contextlib.ExitStack() as stack:
            stack.callback(os.close, folder)
            remove_abandoned(folder)
            staged = stack.enter_context(StagedFile(folder, target.name, guarded=True))
            yield staged.file
            staged.publish(mode)
            os.fsync(folder)
    except OSError as problem:
        raise error(f"cannot write {shown}: {problem.strerror or problem}") from problem


class StagedFile:
    """The new file while it is written: locked, and without its final name in the open `folder`.

    `guarded` has its other name removed even if this process is killed.
    """

    def __init__(self, folder: int, name: str, *, guarded: bool = False) -> None:
        self._folder = folder
        self._name = name
        self._guarded = guarded
        self._guard: LitterGuard | None = None
        self._partial: str | None = None
        unnamed = open_unnamed(folder)
        self._descriptor = self._open_partial() if unnamed is None else unnamed
        self.file: BinaryIO = os.fdopen(self._descriptor, "wb")
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)

    def __enter__(self) -> StagedFile:
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            if self._partial is not None:
                os.unlink(self._partial, dir_fd=self._folder)
        finally:
            if self._guard is not None:
                self._guard.release()
            with contextlib.suppress(OSError):  # what could not be written was reported by `flush`
                self.file.close()

    def publish(self, mode: int | None) -> None:
        """Give the file its name, and the permissions `mode` of the one that it replaces."""
        self.file.flush()
        if mode is not None:
            os.fchmod(self._descriptor, stat.S_IMODE(mode))
        os.fsync(self._descriptor)
        if self._partial is None:
            try:
                link_unnamed(self._descriptor, self._folder, self._name)
            except FileExistsError:
                partial = self._new_partial()
                link_unnamed(self._descriptor, self._folder, partial)
                self._partial = partial
            else:
                return
        os.rename(self._partial, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        self._partial = None

    def _new_partial(self) -> str:
        """A name, under the eyes of a guard where there is to be one."""
        name = new_partial_name()
        if self._guarded:
            self._guard = LitterGuard(self._folder, name)
        return name

    def _open_partial(self) -> int:
        """A new file with a name of its own, locked."""
        partial = self._new_partial()
        while True:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL
            descriptor = os.open(partial, flags, 0o666, dir_fd=self._folder)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if is_same_file(self._folder, partial, descriptor):
                self._partial = partial
                return descriptor
            os.close(descriptor)  # another writer took it for abandoned before it was locked


def open_unnamed(folder: int) -> int | None:
    """A new file without a name in the open `folder`, None where there are none."""
    if not hasattr(os, "O_TMPFILE") or not os.path.isdir("/proc/self/fd"):
        return None
    try:
        return os.open(".", os.O_TMPFILE | os.O_RDWR, 0o666, dir_fd=folder)
    except OSError as problem:
        if problem.errno in _UNABLE:
            return None
        raise


def link_unnamed(descriptor: int, folder: int, name: str) -> None:
    """Give a file without a name that of `name` in the open `folder`, if nothing has it."""
    source = f"/proc/self/fd/{descriptor}"
    os.link(source, name, dst_dir_fd=folder, follow_symlinks=True)


def _mode(path: Path) -> int | None:
    """The type and permissions of the file, None if there is none."""
    try:
        return os.stat(path, follow_symlinks=False).st_mode
    except FileNotFoundError:
        return None
