"""Compiled kernels on disk, each compiled by one process while the others wait for it."""

from __future__ import annotations

import ast
import fcntl
import hashlib
import logging
import os
import re
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np

from gptrs.disk_cache import DiskCache, EntryFormat, budget_bytes
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.private_files import ELSEWHERE, private_folder, shared_folder
from gptrs_backend_numba.codegen.conversion import wrapped
from gptrs_backend_numba.codegen.elements import Unary
from gptrs_backend_numba.codegen.inlining import named, register_jitable
from gptrs_backend_numba.codegen.machine import choose

_LOG = logging.getLogger("gptrs")
_LOCK_FILE = ".lock"
_WAIT_S = 120.0
"""Longest wait for a kernel that another process compiles, before this one compiles it."""
_LOOK_S = 0.02


KERNELS = EntryFormat("kernel", "compiled", 4, re.compile(r"[0-9a-f]{40}"), 64 << 20)
"""Kernels take some 1 to 100 KiB."""


class KernelStore(DiskCache):
    """The cache of machine code by key, with locks between the processes that compile it."""

    def __init__(
        self, folder: Path | None, version: str, budget: int, shared: Path | None = None
    ) -> None:
        super().__init__(folder, KERNELS, budget, version, shared)

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
    be made private is not used: the log says so and kernels are compiled in every process. A
    `shared_folder` is read, too. UsageError if `GPTRS_CACHE_BYTES` is not a number.
    """
    budget = budget_bytes()
    try:
        folder = private_folder("numba")
    except OSError as error:
        problem = f"nothing is kept in `{error.filename}`: {error.strerror}"
        _LOG.warning("%s; %s", problem, ELSEWHERE)
        return KernelStore(None, version, budget, shared_folder("numba"))
    return KernelStore(folder, version, budget, shared_folder("numba"))


def _lock_key(descriptor: int, key: str, wait_s: float) -> bool:
    """Lock the byte of the file that belongs to `key`; the system unlocks it when the process ends.

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


# Integers that compare as elements do, for sorting and for argmax and argmin.


_GREATEST = np.int64(2**63 - 1)
_LEAST = np.int64(-(2**63))


@cache
def key_of(dtype: DType, *, nan_is_least: bool = False) -> Unary:
    """Return the function from the bits of an element to an int64 that orders as the values do.

    The bits are loaded as `bits_of_width(dtype.itemsize)`; the type is real or `i1`. -0.0 equals
    0.0. NaN is greater than all else, or less, and equal to NaN.
    """
    if dtype.is_float:
        made = _float_key(dtype, _LEAST if nan_is_least else _GREATEST)
    else:
        made = _integer_key(dtype)
    return register_jitable(named(f"key_of_{dtype}{'_nan_least' * nan_is_least}")(made))


def _float_key(dtype: DType, nan: np.int64) -> Unary:
    sign = np.int64(-1) << np.int64(dtype.bits - 1)
    greatest = _greatest_bits(dtype)

    def of_float(bits):
        return float_key(wrapped(bits, np.int64), sign, greatest, nan)

    return of_float


def _integer_key(dtype: DType) -> Unary:
    type_ = dtype.numpy.type
    if dtype.bits <= 4:  # `i1` and 4 bits; the rest of the byte may hold anything
        used, sign = 2**dtype.bits - 1, 8 if dtype.kind == "signed" else 0

        def of_bits(bits):
            return ((wrapped(bits, np.int64) & used) ^ sign) - sign

        return of_bits
    if dtype.kind == "signed":

        def of_signed(bits):
            return wrapped(wrapped(bits, type_), np.int64)

        return of_signed
    # From 0 up is from the least number up when the sign bit is flipped.
    flipped = _LEAST if dtype.bits == 64 else np.int64(0)

    def of_unsigned(bits):
        return wrapped(bits, np.int64) ^ flipped

    return of_unsigned


def _greatest_bits(dtype: DType) -> int:
    """Return the bits of the greatest positive value; those above are NaN."""
    greatest = 448.0 if dtype is dtypes.f8e4m3 else np.inf
    return int(np.array(greatest).astype(dtype.numpy).view(f"u{dtype.itemsize}"))


@register_jitable
def float_key(bits, sign, greatest, nan):
    """Return sign and magnitude as one number; `sign` has the sign bit and all above it."""
    magnitude = bits & ~np.int64(sign)
    number = choose((bits & np.int64(sign)) != 0, -magnitude, magnitude)
    return choose(magnitude > np.int64(greatest), np.int64(nan), number)


# The source files of kernels as they were when this process began: digest and text.


_FOLDERS = ("codegen", "kernels")


def read_sources(package: Path) -> dict[str, bytes]:
    """Return the files of `package` that decide what machine code kernels become, by path.

    These are `codegen` and `kernels` with all their subfolders.
    """
    paths = (path for folder in _FOLDERS for path in (package / folder).rglob("*.py"))
    return {str(path): path.read_bytes() for path in sorted(paths)}


def sources_digest(sources: dict[str, bytes]) -> bytes:
    """Return a digest of files: a stored kernel made from other sources must never be used."""
    return hashlib.blake2b(b"".join(sources.values()), digest_size=20).digest()


# Read at import, together with the code that they stand for: a kernel is rebuilt from its source
# when it is compiled, perhaps hours later, and the files may have been replaced by then.
_SOURCES = read_sources(Path(__file__).parent.parent)
SOURCES_DIGEST = sources_digest(_SOURCES)
"""Digest of the sources of this package."""


@cache
def foreign_digest(filename: str) -> str:
    """Return a digest of a file with kernels outside of this package, empty for one inside."""
    if filename in _SOURCES:
        return ""
    _SOURCES[filename] = Path(filename).read_bytes()
    return hashlib.blake2b(_SOURCES[filename], digest_size=16).hexdigest()


@cache
def syntax_tree(filename: str) -> ast.Module:
    """Return the parsed file; its nodes are shared, so copy what you change."""
    return ast.parse(_SOURCES[filename], filename)
