"""`.npy` and `.npz` files through NumPy: checked before they take memory, and never unpickled."""

from __future__ import annotations

import io
import os
import tokenize
import zipfile
import zlib
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO, cast

import numpy as np
from numpy.lib import format as npy_format
from typing_extensions import override

from gptrs.checkpoint.formats.foreign_files import OutgoingTensor
from gptrs.errors import CheckpointError, GptrsError, ProgramError, UsageError
from gptrs.ir import dtypes
from gptrs.ir.tensor_type import TensorType
from gptrs.quoting import quoted

NPY_MAGIC = b"\x93NUMPY"
ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")
MAX_INFLATED = 2**32
"""Most bytes of a decompressed array; uncompressed arrays have no such limit."""
_MOST_DENSE = 1100
"""No deflated byte unfolds to more than 1032."""
_MAX_READ = 2**22
_LONGEST_NAME = 60_000
_SUFFIX = ".npy"
_DAMAGED = "the file is damaged, download or save it again"
_UNSTORABLE = (dtypes.bf16, dtypes.f8e4m3, dtypes.f8e5m2, dtypes.si4, dtypes.ui4)
"""NumPy saves their bytes without their type."""
_PROBLEMS = (
    zipfile.BadZipFile, zlib.error, OSError, EOFError, ValueError, KeyError, TypeError,
    NotImplementedError, RuntimeError, OverflowError, MemoryError, SyntaxError,
    tokenize.TokenError,
)  # fmt: skip
"""Exceptions of `zipfile` and NumPy for malformed files."""


class NumpyArchive:
    """The arrays of a `.npy` or `.npz` file; `descriptor` is of a regular file, `close` closes it.

    The only array of a `.npy` file is called as the file is, without the suffix.
    """

    def __init__(self, path: Path, descriptor: int, *, is_zip: bool) -> None:
        """Read the directory of an `.npz` file; CheckpointError describes any fault."""
        self._path = path
        self._file = _BoundedFile(descriptor, closefd=False)
        self._zip: zipfile.ZipFile | None = None
        self._members: dict[str, zipfile.ZipInfo] = {}
        if is_zip:
            with self._problems():
                self._zip = zipfile.ZipFile(self._file)
                self._members = _members(self._zip)

    def names(self) -> Sequence[str]:
        """Return the names of the arrays, in the order of the file."""
        return tuple(self._members) if self._zip else (self._path.name.removesuffix(_SUFFIX),)

    def type_of(self, name: str) -> TensorType:
        """Return dtype and shape of an array; CheckpointError if it is absent or malformed."""
        return self._header(name)[0]

    def read(self, name: str) -> np.ndarray:
        """Return an array in C order; CheckpointError if it is absent or malformed."""
        type_, left = self._header(name)
        with self._opened(name) as (file, _):
            if left != type_.nbytes:  # before NumPy allocates what the header declares
                raise CheckpointError(
                    f"`{type_}` takes {type_.nbytes} bytes, {left} follow its header"
                )
            # Never with pickles: an array of objects may run any code when it is read.
            array = np.asarray(npy_format.read_array(file, allow_pickle=False))
            # NumPy takes the bytes as they are; a true that is 2 would compare unequal to one that
            # is 1.
            if type_.dtype.is_bool and array.size and int(array.view(np.uint8).max()) > 1:
                raise CheckpointError("an element of i1 is neither 0 nor 1")
            return np.ascontiguousarray(array, type_.dtype.numpy).reshape(type_.shape)

    def close(self) -> None:
        """Close the file; arrays that were read remain valid."""
        os.close(self._file.fileno())

    def _header(self, name: str) -> tuple[TensorType, int]:
        """Return the type that the header of an array declares, and the bytes that follow it."""
        with self._opened(name) as (file, nbytes):
            return _declared_type(file), nbytes - file.tell()

    @contextmanager
    def _opened(self, name: str) -> Generator[tuple[IO[bytes], int]]:
        """Scope with the file of one array and the bytes of that; all problems are one error."""
        if name not in self.names():
            where = quoted(str(self._path), 200)
            raise CheckpointError(f"{where} has no tensor {quoted(name)}")
        size = os.fstat(self._file.fileno()).st_size
        with self._problems(name):
            if self._zip is None:
                # The position is shared: another array may have been read since.
                self._file.seek(0)
                yield cast("IO[bytes]", self._file), size
            else:
                info = self._members[name]
                _require_bounded(info, size)
                with self._zip.open(info) as file:
                    yield file, info.file_size

    @contextmanager
    def _problems(self, name: str | None = None) -> Generator[None]:
        of = "" if name is None else f"tensor {quoted(name)}: "
        try:
            yield
        except (GptrsError, *_PROBLEMS) as problem:
            own = problem if isinstance(problem, GptrsError) else None
            # Messages of the libraries may have several lines; errors of gptrs have one.
            text = own.message if own else " ".join(str(problem).split())
            shown = text if len(text) <= 300 else f"{text[:300]}..."
            hint = own.hint if own else None
            raise CheckpointError(
                f"{quoted(str(self._path), 200)}: {of}{shown}", hint=hint or _DAMAGED
            ) from problem


class _BoundedFile(io.FileIO):
    """A file that refuses large reads, such as that of the whole directory by `zipfile`."""

    @override
    def read(self, size: int | None = -1, /) -> bytes:
        wanted = _MAX_READ + 1 if size is None or size < 0 else min(size, _MAX_READ + 1)
        data = super().read(wanted) or b""
        if len(data) > _MAX_READ:
            raise CheckpointError(f"its directory takes more than {_MAX_READ} bytes")
        return data


def write_npy(file: IO[bytes], array: np.ndarray) -> None:
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
            # By a `ZipInfo`, whose time is constant: by name, the time of writing would be in the
            # file.
            member = zipfile.ZipInfo(f"{name}{_SUFFIX}")
            # The size is not known beforehand, and may exceed 4 GiB.
            with archive.open(member, "w", force_zip64=True) as stream:
                write_npy(stream, tensor.whole())


def _members(archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return the arrays of a zip archive by name; CheckpointError if it is not one."""
    found: dict[str, zipfile.ZipInfo] = {}
    for info in archive.infolist():
        name = info.filename.removesuffix(_SUFFIX)
        if name == info.filename:
            raise CheckpointError(f"it holds {quoted(name)}, which is not a `{_SUFFIX}` file")
        # A zip archive may hold two members of one name, which readers choose from differently.
        if name in found:
            raise CheckpointError(f"two of its arrays are called {quoted(name)}")
        found[name] = info
    return found


def _require_bounded(info: zipfile.ZipInfo, size: int) -> None:
    """CheckpointError for a member that cannot unfold to the size it declares."""
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise CheckpointError(f"it is compressed by the method {info.compress_type}, not 8")
    # The directory of a damaged or hostile archive may declare anything.
    most = min(info.compress_size, size)
    if info.compress_type == zipfile.ZIP_DEFLATED:
        most = min(most * _MOST_DENSE, MAX_INFLATED)
    if info.compress_size > size or info.file_size > most:
        declared = f"{info.compress_size} bytes that unfold to {info.file_size}"
        raise CheckpointError(f"it declares {declared}, at most {most} can be read")


def _declared_type(file: IO[bytes]) -> TensorType:
    version = npy_format.read_magic(file)
    if version == (1, 0):
        shape, _, dtype = npy_format.read_array_header_1_0(file)
    elif version == (2, 0):
        shape, _, dtype = npy_format.read_array_header_2_0(file)
    else:
        raise CheckpointError(f"version {version[0]}.{version[1]} of the format is not read")
    if dtype.hasobject:
        raise CheckpointError(
            "it is an array of Python objects, which are never read: that can run any code",
            hint="save an array of numbers",
        )
    try:
        return TensorType(dtypes.from_numpy(dtype), shape)
    except ProgramError as problem:
        if dtype.kind != "V":
            raise
        raise CheckpointError(
            f"{problem.message}: NumPy files do not record dtypes such as bf16",
            hint="save it as `.safetensors` or `.gptrsten`",
        ) from problem
