"""The file of one form of a weight: its bytes, then a trailer; it is mapped read-only.

The bytes come first, so that large pages of the file are large pages of memory. A file that was not
brought to the disk yet may be damaged by a loss of power; it counts until the system restarts. The
trailer has a digest of the bytes: they are read and compared before the file is first used after
the system was started, or after anything changed it; see `checked_files`.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np
from blake3 import blake3

from gptrs.backend.mapped_files import MAPPED_FILES, prefetch_pages
from gptrs.private_files import OPEN_FLAGS, read_own, require_own, whole_file, write_all

# The files that were read whole since the system started, and had the bytes of their digests.
#
# To read them again in each process would make the start slow. A mark holds for a file until
# anything changes it: it covers inode, size, and the times of the last changes of content and
# inode. No program can set the latter back. Marks are appended to one file a folder.


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


_MAGIC = b"gptrs weight 3\n\0"
_BOOT = 16
_DIGEST = 16
TRAILER = len(_MAGIC) + _BOOT + 2 * _DIGEST
"""Bytes after those of the weight: start of the system, digest of the bytes, seal of all that."""
USED_S = 60.0
"""A file that was marked as used so many seconds ago is not marked again."""
_CHUNK = 1 << 23
"""Bytes of one write: Linux makes large pages of them, and a stop is noticed soon."""
_ON_DISK = 0o400
"""The mode of a file that no loss of power can damage any more."""
_TICK_S = 0.1
"""Two changes of a file within a tick of the clock of the system may have the same time."""


class UnusableFileError(Exception):
    """An error for a file that is not a whole form of a weight; the text says why."""


class StoppedError(Exception):
    """An error for a file that was not written to its end, since the process ends."""


def map_weight(path: Path, nbytes: int) -> tuple[np.ndarray, bool]:
    """Return the bytes of a weight as a read-only array over the file; and if it is on the disk.

    The file is marked as used. PermissionError for one that another user may have written,
    UnusableFileError for one that is not whole, other OSErrors as `open` raises them.
    """
    descriptor = os.open(path, OPEN_FLAGS)
    try:
        status = os.fstat(descriptor)
        require_own(status)
        if not stat.S_ISREG(status.st_mode) or status.st_size != nbytes + TRAILER:
            raise UnusableFileError("it has another size")
        on_disk = stat.S_IMODE(status.st_mode) == _ON_DISK
        digest = _check(os.pread(descriptor, TRAILER, nbytes), _full_name(path), on_disk)
        _check_bytes(descriptor, path, status, digest)
        mapping = mmap.mmap(descriptor, status.st_size, access=mmap.ACCESS_READ)
    finally:
        os.close(descriptor)
    MAPPED_FILES.add(mapping, str(path))
    _prefer_large_pages(mapping)
    return np.frombuffer(mapping, np.uint8, nbytes), on_disk


def _check_bytes(descriptor: int, path: Path, status: os.stat_result, digest: bytes) -> None:
    """Mark a file as used; UnusableFileError if it was not checked, and has another digest."""
    fresh = not is_checked(path, status, _boot())
    if fresh and _digest_of(descriptor, status.st_size - TRAILER) != digest:
        raise UnusableFileError("it is damaged")
    if time.time() - status.st_mtime > USED_S:
        if os.fstat(descriptor).st_ctime_ns != status.st_ctime_ns:
            return  # it was changed meanwhile: the next process reads it again
        os.utime(descriptor)
        note_checked(path, os.fstat(descriptor), _boot())
    elif fresh and time.time() - status.st_ctime > _TICK_S:
        note_checked(path, status, _boot())


def _digest_of(descriptor: int, nbytes: int) -> bytes:
    """Return the digest of the first bytes: read, as a mapped page may be gone."""
    digest = blake3()
    for start in range(0, nbytes, _CHUNK):
        digest.update(os.pread(descriptor, min(_CHUNK, nbytes - start), start))
    return digest.digest(length=_DIGEST)


def write_weight(path: Path, array: np.ndarray, stopped: Callable[[], bool]) -> None:
    """Write the bytes of a contiguous array as the file `path`, which appears once it is whole.

    StoppedError as soon as `stopped`. Where it cannot be told whether the system was restarted, the
    file is brought to the disk first.
    """
    data = memoryview(cast("bytearray", array.reshape(-1).view(np.uint8)))
    digest = blake3()
    with whole_file(path) as descriptor:
        for start in range(0, data.nbytes, _CHUNK):
            if stopped():
                raise StoppedError
            write_all(descriptor, data[start : start + _CHUNK])
            digest.update(data[start : start + _CHUNK])
        content = digest.digest(length=_DIGEST)
        write_all(descriptor, _trailer(_full_name(path), _boot(), content))
        if not any(_boot()):
            _bring_to_disk(descriptor)
    note_checked(path, os.stat(path, follow_symlinks=False), _boot())


def bring_to_disk(path: Path) -> None:
    """Have a file survive a loss of power; OSError if it is gone or the disk fails."""
    descriptor = os.open(path, OPEN_FLAGS)
    try:
        checked = is_checked(path, os.fstat(descriptor), _boot())
        _bring_to_disk(descriptor)
        if checked:
            note_checked(path, os.fstat(descriptor), _boot())
    finally:
        os.close(descriptor)


def prefetch_file(path: Path) -> None:
    """Have the system read a file, without waiting for it; one that is gone is left alone."""
    with suppress(OSError, ValueError):  # ValueError: it is empty
        descriptor = os.open(path, OPEN_FLAGS)
        try:
            mapping = mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
        prefetch_pages(np.frombuffer(mapping, np.uint8))


def _bring_to_disk(descriptor: int) -> None:
    os.fsync(descriptor)
    os.fchmod(descriptor, _ON_DISK)


def _full_name(path: Path) -> str:
    """Return what decides the content: the version, the file of weights, and the form."""
    return "/".join(path.parts[-3:])


def _trailer(name: str, boot: bytes, digest: bytes) -> bytes:
    """Return what ends the file `name` of a digest, written since the system started as `boot`."""
    head = _MAGIC + boot + digest
    return head + hashlib.blake2b(head + name.encode(), digest_size=_DIGEST).digest()


def _check(trailer: bytes, name: str, on_disk: bool) -> bytes:
    """Return the digest of the bytes; UnusableFileError unless this ends a file `name`."""
    boot, digest = trailer[len(_MAGIC) :][:_BOOT], trailer[len(_MAGIC) + _BOOT :][:_DIGEST]
    if trailer != _trailer(name, boot, digest):
        raise UnusableFileError("it is damaged")
    if not on_disk and boot != _boot():
        raise UnusableFileError("it was not on the disk yet when the system stopped")
    return digest


@cache
def _boot() -> bytes:
    """Return the boot id of the system; zeros outside Linux."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        return bytes.fromhex(text.strip().replace("-", "")).ljust(_BOOT, b"\0")[:_BOOT]
    except (OSError, ValueError):
        return bytes(_BOOT)


def _prefer_large_pages(mapping: mmap.mmap) -> None:
    """Have what is read from the disk come in large pages, where the file system has them."""
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is not None:
        with suppress(OSError):
            mapping.madvise(advice)


# A thread of the lowest priority that writes files while programs run, and at exit for a while.


Job = Callable[[Callable[[], bool]], None]
"""Is told how to ask whether it should stop, and raises nothing."""

_QUIET_S = 0.3
"""Nothing is written until so long after the last job came: first programs get their weights."""
_LONG_QUIET_S = 20.0
"""The same for jobs that are not urgent: by then Linux has written most files to the disk."""
_LOWEST = 19
_CLEANUP_S = 0.5
"""The longest wait for a stopped job to remove its partial file."""


class BackgroundWriter:
    """Runs jobs one at a time, the newest first, whose weights are most likely still in memory.

    Jobs that are not `urgent` wait until nothing else was asked for in a while.
    """

    def __init__(self) -> None:
        self._jobs: list[Job] = []
        self._later: list[Job] = []
        self._added = 0.0
        self._hurry = False
        self._stop = False
        self._busy = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def begin_anew(self) -> None:
        """Forget the thread and all jobs in a forked child: they are those of its parent."""
        self.__init__()

    def add(self, job: Job, *, urgent: bool = True) -> None:
        """Have the thread do `job`; one that is not `urgent` is left when the process ends."""
        with self._changed:
            (self._jobs if urgent else self._later).append(job)
            self._added = time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._serve, name="gptrs-weights", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def finish(self, seconds: float | None = None) -> None:
        """Wait until all urgent jobs are done, or until the time is over."""
        with self._changed:
            self._hurry = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: not (self._jobs or self._busy), seconds)
            self._hurry = False

    def end(self, seconds: float) -> None:
        """`finish`, then have the thread stop; for the exit of the process. Ctrl-C ends it."""
        if self._thread is None or self._process != os.getpid():
            return
        with suppress(KeyboardInterrupt), _interruptible():
            self.finish(seconds)
        self._stop = True
        with self._changed:
            self._changed.notify_all()
        if self._busy:
            self._thread.join(_CLEANUP_S)

    def _serve(self) -> None:
        _lower_priority()
        while (job := self._next()) is not None:
            job(lambda: self._stop)
            del job
            with self._changed:
                self._busy = False
                self._changed.notify_all()

    def _next(self) -> Job | None:
        """Wait for the next job and return it; None to stop."""
        with self._changed:
            while not self._stop:
                jobs, quiet = (
                    (self._jobs, 0 if self._hurry else _QUIET_S)
                    if self._jobs
                    else (self._later, _LONG_QUIET_S)
                )
                wait = self._added + quiet - time.monotonic()
                if jobs and wait <= 0:
                    self._busy = jobs is self._jobs
                    return jobs.pop()
                self._changed.wait(wait if jobs else None)
            return None


@contextmanager
def _interruptible() -> Generator[None]:
    """Let Ctrl-C end a wait, also where it is ignored by then, as at the end of a command."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _lower_priority() -> None:
    """Give way to all other threads, where the system has priorities of threads."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST)
