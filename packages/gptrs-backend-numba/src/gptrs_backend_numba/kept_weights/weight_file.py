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
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np
from blake3 import blake3

from gptrs.backend.mapped_files import MAPPED_FILES, prefetch_pages
from gptrs.private_files import OPEN_FLAGS, require_own, whole_file, write_all
from gptrs_backend_numba.kept_weights.checked_files import is_checked, note_checked

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
    """Return the version, the file of weights, and the form: all that decides the content."""
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
    """Return the id of this run of the system; zeros where there is none, as outside Linux."""
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
