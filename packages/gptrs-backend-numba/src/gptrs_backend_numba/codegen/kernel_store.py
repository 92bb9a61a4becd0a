"""Compiled kernels on disk, each compiled by one process while the others wait for it."""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from gptrs.disk_cache import DiskCache, EntryFormat, budget_bytes
from gptrs.private_files import ELSEWHERE, private_folder

_LOG = logging.getLogger("gptrs")
_LOCK_FILE = ".lock"
_WAIT_S = 120.0
"""Longest wait for a kernel that another process compiles, before this one compiles it."""
_LOOK_S = 0.02


KERNELS = EntryFormat("kernel", "compiled", 3, re.compile(r"[0-9a-f]{40}"), 64 << 20)
"""Kernels take some 10 to 200 KiB."""


class KernelStore(DiskCache):
    """The cache of machine code by key, with locks between the processes that compile it."""

    def __init__(self, folder: Path | None, version: str, budget: int) -> None:
        super().__init__(folder, KERNELS, budget, version)

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
