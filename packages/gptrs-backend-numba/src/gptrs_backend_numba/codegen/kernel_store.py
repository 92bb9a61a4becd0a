"""Compiled kernels on disk: a private directory, entries checked before they are trusted."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from gptrs.cache_files import keep_within
from gptrs.private_files import ELSEWHERE, private_folder, whole_file, write_all
from gptrs_backend_numba.codegen.kernel_entry import DamagedEntryError, Entry, encoded, read_entry
from gptrs_backend_numba.codegen.kernel_inventory import NAMES, budget_bytes

_LOG = logging.getLogger("gptrs")
_LOCK_FILE = ".lock"
_WAIT_S = 120.0
"""Longest wait for a kernel that another process compiles, before this one compiles it."""
_LOOK_S = 0.02


class KernelStore:
    """Entries of bytes by key in `folder`; without a folder nothing is found or kept.

    An entry is code for this process, so `folder` must belong to the user and be closed to others
    (see `open_store`). One that is damaged, or that somebody else may have written, counts as
    absent; the log says so once in a process, as it does of the first entry that cannot be kept,
    after which no more are. `version` is what entries are made by and for, `budget` the most bytes
    that they may take together.
    """

    def __init__(self, folder: Path | None, version: str, budget: int) -> None:
        self.folder = folder
        self.version = version
        self.budget = budget
        self.keeps = folder is not None and budget > 0
        """False without a folder or a budget, and once saving has failed."""
        self._unseen = 0
        """Bytes that may be saved before the folder is looked at again, which takes long."""
        self._warned: set[str] = set()

    def load(self, key: str) -> bytes | None:
        """Return the entry stored under `key`, None if there is none that can be trusted."""
        if self.folder is None:
            return None
        path = self.folder / key
        try:
            return read_entry(path).body
        except FileNotFoundError:
            return None
        except DamagedEntryError as error:
            self.discard(key, str(error))
        except OSError as error:
            self._warn("refused", f"cached kernel `{path}` is not used: {error.strerror}")
        return None

    def has(self, key: str) -> bool:
        """Return whether there is an entry under `key`, which nobody has looked at."""
        return self.folder is not None and (self.folder / key).exists()

    def discard(self, key: str, reason: str) -> None:
        """Remove the entry under `key`, which turned out to be of no use."""
        assert self.folder is not None, "nothing was loaded"
        path = self.folder / key
        self._warn("damaged", f"cached kernel `{path}` is compiled again: {reason}")
        try:
            path.unlink(missing_ok=True)
        except OSError:  # a directory, or one that is read-only: the next process looks again
            return

    def save(self, key: str, body: bytes) -> None:
        """Store `body` under `key` atomically; a full or read-only disk is only logged, once."""
        if self.folder is None or not self.keeps:
            return
        try:
            with whole_file(self.folder / key) as descriptor:
                write_all(descriptor, encoded(key, Entry(self.version, body)))
            self._unseen -= len(body)
            if self._unseen <= 0:
                free = keep_within(self.folder, NAMES, self.budget)
                # Other processes save as well.
                self._unseen = max(free // 4, self.budget // 64)
        except OSError as error:
            self.keeps = False
            problem = f"kernels cannot be cached in `{self.folder}`: {error.strerror}"
            self._warn("full", f"{problem}; {ELSEWHERE}")

    @contextmanager
    def alone(self, key: str) -> Generator[None]:
        """Scope in which no other process is, that wants to compile the kernel under `key`.

        For one thread of a process at a time. Where files cannot be locked, and when the other
        process takes very long, the scope is entered all the same: work is done twice then, but
        nothing goes wrong.
        """
        descriptor = self._open_lock()
        if descriptor is None:
            yield
            return
        try:
            _lock_key(descriptor, key, _WAIT_S)
            yield
        finally:
            os.close(descriptor)  # which ends the lock

    @contextmanager
    def alone_if_free(self, key: str) -> Generator[bool]:
        """Scope as `alone`, entered at once: it gives False if another process is in it."""
        descriptor = self._open_lock()
        if descriptor is None:
            yield True
            return
        try:
            yield _lock_key(descriptor, key, 0.0)
        finally:
            os.close(descriptor)

    def _open_lock(self) -> int | None:
        if self.folder is None or not self.keeps:
            return None
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            return os.open(self.folder / _LOCK_FILE, flags, 0o600)
        except OSError:  # saving will fail as well, and say why
            return None

    def _warn(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            _LOG.warning("%s", text)


def open_store(version: str) -> KernelStore:
    """Return the store below `GPTRS_CACHE_DIR`, else below the user's cache directory.

    The directory is made with mode 0700. One that belongs to somebody else, is a link, or cannot
    be made private is not used: the log says so and kernels are compiled in every process.
    UsageError if `GPTRS_CACHE_BYTES` is no number.
    """
    budget = budget_bytes()
    try:
        folder = private_folder("numba")
    except OSError as error:
        problem = f"nothing is kept in `{error.filename}`: {error.strerror}"
        _LOG.warning("%s; %s", problem, ELSEWHERE)
        return KernelStore(None, version, budget)
    return KernelStore(folder, version, budget)


def _lock_key(descriptor: int, key: str, wait_s: float) -> bool:
    """Lock the byte of the file that stands for `key`; the system lets go of it with the process.

    Return False if another process has it for `wait_s` seconds from now. Files of their own for
    the locks would have to be removed, which cannot be done without a race.
    """
    digest = hashlib.blake2b(key.encode(), digest_size=7).digest()
    offset, end = int.from_bytes(digest, "little"), time.monotonic() + wait_s
    while True:
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, offset)
        except (BlockingIOError, PermissionError):  # which of them depends on the system
            if time.monotonic() >= end:
                return False
            time.sleep(_LOOK_S)
        except OSError:  # a file system without locks
            return True
        else:
            return True
