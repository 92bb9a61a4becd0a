"""`.npy` and `.npz` files: hostile ones are read in bounded memory, nothing is ever unpickled."""

from __future__ import annotations

import io
import os
import tokenize
import zipfile
import zlib
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol, cast

import numpy as np
from numpy.lib import format as npy_format

from gptrs.checkpoint.formats.outgoing_tensor import OutgoingTensor
from gptrs.errors import CheckpointError, GptrsError, ProgramError, UsageError
from gptrs.ir import dtypes
from gptrs.ir.tensor_type import TensorType
from gptrs.quoting import quoted

NPY_MAGIC = b"\x93NUMPY"
ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")
MAX_INFLATED = 2**32
"""Most bytes that a compressed array may unfold to; one stored as it is has no such limit."""
_MAX_READ = 2**22
"""Most bytes read at once; the directory of an archive is, which bounds the number of entries."""
_CHUNK = 2**20
_MOST_DENSE = 1100
"""No deflated byte unfolds to more than 1032."""
_LONGEST_NAME = 60_000
_SUFFIX = ".npy"
_DAMAGED = "the file is damaged, download or save it again"
_UNSTORABLE = (dtypes.bf16, dtypes.f8e4m3, dtypes.f8e5m2, dtypes.si4, dtypes.ui4)
"""What NumPy saves as bytes without saying what they are."""
_PROBLEMS = (
    zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, KeyError, TypeError,
    NotImplementedError, RuntimeError, OverflowError, MemoryError, SyntaxError,
    tokenize.TokenError,
)  # fmt: skip
"""What `zipfile` and NumPy raise for malformed files."""


@dataclass(frozen=True, slots=True)
class _Stored:
    """An array in `.npy` format: where to read it from, and its bytes, the header included."""

    file: BinaryIO
    nbytes: int


@dataclass(frozen=True, slots=True)
class _Layout:
    """What the header of an array says: `stored` is the dtype in its byte order."""

    type: TensorType
    stored: np.dtype[np.generic]
    is_fortran: bool


class _Container(Protocol):
    """Where the arrays of a file are."""

    def names(self) -> Sequence[str]: ...
    def open(self, name: str) -> _Stored: ...


class NumpyArchive:
    """The arrays of a `.npy` or `.npz` file; `descriptor` is of a regular file, `close` closes it.

    The only array of a `.npy` file is called as the file is, without the suffix.
    """

    def __init__(self, path: Path, descriptor: int, *, is_zip: bool) -> None:
        """Read the directory of an `.npz` file; CheckpointError says what is wrong with it."""
        self._path = path
        self._descriptor = descriptor
        file = os.fdopen(descriptor, "rb", closefd=False)
        with self._problems():
            self._arrays: _Container = _Members(file) if is_zip else _Single(path, file)

    def names(self) -> Sequence[str]:
        """As in TensorArchive."""
        return self._arrays.names()

    def type_of(self, name: str) -> TensorType:
        """As in TensorArchive."""
        with self._problems(name):
            stored = self._arrays.open(name)
            return _read_layout(stored).type

    def read(self, name: str) -> np.ndarray:
        """As in TensorArchive."""
        with self._problems(name):
            return _read_array(self._arrays.open(name))

    def close(self) -> None:
        """As in TensorArchive."""
        os.close(self._descriptor)

    @contextmanager
    def _problems(self, name: str | None = None) -> Generator[None]:
        """Scope in which whatever a malformed file leads to is a CheckpointError."""
        if name is not None and name not in self._arrays.names():
            where = quoted(str(self._path), 200)
            raise CheckpointError(f"{where} has no tensor {quoted(name)}")
        try:
            yield
        except GptrsError as problem:
            raise self._error(name, problem.message, problem.hint or _DAMAGED) from problem
        except _PROBLEMS as problem:
            raise self._error(name, " ".join(str(problem).split()), _DAMAGED) from problem

    def _error(self, name: str | None, problem: str, hint: str) -> CheckpointError:
        of = "" if name is None else f"tensor {quoted(name)}: "
        shown = problem if len(problem) <= 300 else f"{problem[:300]}..."
        return CheckpointError(f"{quoted(str(self._path), 200)}: {of}{shown}", hint=hint)


class _Single:
    """A file that is one array."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._name = path.name.removesuffix(_SUFFIX)
        self._file = file

    def names(self) -> Sequence[str]:
        return (self._name,)

    def open(self, name: str) -> _Stored:
        self._file.seek(0)
        return _Stored(self._file, os.fstat(self._file.fileno()).st_size)


class _Members:
    """A zip archive of arrays."""

    def __init__(self, file: BinaryIO) -> None:
        bounded = cast("BinaryIO", _BoundedReads(file))
        self._zip = zipfile.ZipFile(bounded)
        self._size = os.fstat(file.fileno()).st_size
        self._infos: dict[str, zipfile.ZipInfo] = {}
        for info in self._zip.infolist():
            name = info.filename.removesuffix(_SUFFIX)
            if name == info.filename:
                raise CheckpointError(f"it holds {quoted(name)}, which is not a `{_SUFFIX}` file")
            if name in self._infos:
                raise CheckpointError(f"two of its arrays are called {quoted(name)}")
            self._infos[name] = info

    def names(self) -> Sequence[str]:
        return tuple(self._infos)

    def open(self, name: str) -> _Stored:
        info = self._infos[name]
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise CheckpointError(f"it is compressed by the method {info.compress_type}, not 8")
        dense = info.compress_type == zipfile.ZIP_DEFLATED
        most = min(info.compress_size * _MOST_DENSE, MAX_INFLATED) if dense else info.compress_size
        if info.compress_size > self._size or info.file_size > most:
            declared = f"{info.compress_size} bytes that unfold to {info.file_size}"
            limit = min(most, self._size) if info.compress_size > self._size else most
            raise CheckpointError(f"it declares {declared}, at most {limit} can be read")
        return _Stored(cast("BinaryIO", self._zip.open(info)), info.file_size)


class _BoundedReads(io.BufferedIOBase):
    """A file that refuses to read much at once."""

    def __init__(self, file: BinaryIO) -> None:
        self._source = file

    def read(self, size: int | None = -1, /) -> bytes:
        wanted = _MAX_READ + 1 if size is None or size < 0 else size
        data = self._source.read(min(wanted, _MAX_READ + 1))
        if len(data) > _MAX_READ:
            raise CheckpointError(f"its directory takes more than {_MAX_READ} bytes")
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        return self._source.seek(offset, whence)

    def tell(self) -> int:
        return self._source.tell()

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True


def write_npy(file: BinaryIO, array: np.ndarray) -> None:
    """Write one array; UsageError for a dtype that the format cannot name."""
    found = TensorType.of(array)
    if found.dtype in _UNSTORABLE:
        raise UsageError(
            f"a NumPy file cannot hold `{found}`: it does not record the dtype {found.dtype}",
            hint="write a `.gptrsten` file, which holds every dtype",
        )
    dense = np.ascontiguousarray(array).reshape(array.shape)
    npy_format.write_array(file, dense, allow_pickle=False)


def write_npz(file: BinaryIO, tensors: Sequence[OutgoingTensor]) -> None:
    """Write the tensors, not compressed and with no times in them, so that equal ones give equal
    files; UsageError for a dtype or name that the format cannot hold."""
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for tensor in tensors:
            name = tensor.name
            if "\0" in name or len(name.encode("utf-8")) > _LONGEST_NAME:
                raise UsageError(f"an array in a `.npz` file cannot be called {quoted(name)}")
            member = zipfile.ZipInfo(f"{name}{_SUFFIX}")
            with archive.open(member, "w", force_zip64=True) as stream:
                write_npy(cast("BinaryIO", stream), tensor.whole())


def _read_layout(stored: _Stored) -> _Layout:
    version = npy_format.read_magic(stored.file)
    if version == (1, 0):
        shape, is_fortran, dtype = npy_format.read_array_header_1_0(stored.file)
    elif version == (2, 0):
        shape, is_fortran, dtype = npy_format.read_array_header_2_0(stored.file)
    else:
        raise CheckpointError(f"version {version[0]}.{version[1]} of the format is not read")
    if dtype.hasobject:
        raise CheckpointError(
            "it is an array of Python objects, which are never read: that can run any code",
            hint="save an array of numbers",
        )
    try:
        return _Layout(TensorType(dtypes.from_numpy(dtype), shape), dtype, is_fortran)
    except ProgramError as problem:
        if dtype.kind != "V":
            raise
        raise CheckpointError(
            f"{problem.message}: NumPy files do not record dtypes such as bf16",
            hint="save it as `.safetensors` or `.gptrsten`",
        ) from problem


def _read_array(stored: _Stored) -> np.ndarray:
    layout = _read_layout(stored)
    type_ = layout.type
    left = stored.nbytes - stored.file.tell()
    if left != type_.nbytes:
        raise CheckpointError(f"`{type_}` takes {type_.nbytes} bytes, {left} follow its header")
    raw = np.empty(type_.nbytes, np.uint8)
    for start in range(0, raw.size, _CHUNK):
        _read_into(raw[start : start + _CHUNK], stored.file)
    if stored.file.read(1):  # at its end, a compressed member checks its sum
        raise CheckpointError("more bytes than declared follow its header")
    if type_.dtype.is_bool and raw.size and int(raw.max()) > 1:
        raise CheckpointError("an element of i1 is neither 0 nor 1")
    array = raw.view(layout.stored)
    if layout.is_fortran:
        array = array.reshape(type_.shape[::-1]).transpose()
    return np.ascontiguousarray(array, type_.dtype.numpy).reshape(type_.shape)


def _read_into(part: np.ndarray, file: BinaryIO) -> None:
    filled = 0
    while filled < part.size:
        data = file.read(part.size - filled)
        if not data:
            raise CheckpointError("it ends within its elements")
        part[filled : filled + len(data)] = np.frombuffer(data, np.uint8)
        filled += len(data)
