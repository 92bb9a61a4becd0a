"""Compiled kernels on disk: a private directory, entries checked before they are trusted."""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

import platformdirs

_MAGIC = b"gptrs kernel 1\n"
_LOG = logging.getLogger("gptrs")


@dataclass(frozen=True, slots=True)
class KernelStore:
    """Entries of bytes by key in `folder`; without a folder nothing is found or kept.

    An entry is code for this process, so `folder` must belong to the user and be closed to others
    (see `open_store`). A damaged entry is reported once in the log, removed and counts as absent.
    """

    folder: Path | None

    def load(self, key: str) -> bytes | None:
        """The entry stored under `key`, None if there is none that is whole."""
        if self.folder is None:
            return None
        path = self.folder / key
        try:
            data = _read_own(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            _LOG.warning("cannot read cached kernel `%s`: %s", path, error.strerror)
            return None
        header = len(_MAGIC) + hashlib.sha256().digest_size
        body = data[header:]
        if data[:header] == _MAGIC + hashlib.sha256(body).digest():
            return body
        _LOG.warning("cached kernel `%s` is damaged; compiling it again", path)
        path.unlink(missing_ok=True)
        return None

    def save(self, key: str, body: bytes) -> None:
        """Store `body` under `key` atomically; a full or read-only disk is only logged."""
        if self.folder is None:
            return
        temporary = None
        try:
            descriptor, temporary = tempfile.mkstemp(dir=self.folder, prefix=".new-")
            with os.fdopen(descriptor, "wb") as file:
                file.write(_MAGIC + hashlib.sha256(body).digest() + body)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self.folder / key)
        except OSError as error:
            _LOG.warning("cannot cache a kernel in `%s`: %s", self.folder, error.strerror)
            if temporary is not None:
                Path(temporary).unlink(missing_ok=True)


def open_store() -> KernelStore:
    """The store below `GPTRS_CACHE_DIR`, else the user's cache directory.

    The directory is made with mode 0700. One that belongs to somebody else, is a link, or cannot
    be made private is not used: the log says so and kernels are compiled in every process.
    """
    root = os.environ.get("GPTRS_CACHE_DIR") or platformdirs.user_cache_dir("gptrs")
    folder = Path(root) / "numba"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise PermissionError(0, "it must be a directory that belongs to this user")
        if stat.S_IMODE(found.st_mode) != 0o700:
            folder.chmod(0o700)
    except OSError as error:
        _LOG.warning("compiled kernels are not cached in `%s`: %s", folder, error.strerror)
        return KernelStore(None)
    return KernelStore(folder)


def _read_own(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if os.fstat(descriptor).st_uid != os.geteuid():
            raise PermissionError(0, "it belongs to another user")
        return file.read()
