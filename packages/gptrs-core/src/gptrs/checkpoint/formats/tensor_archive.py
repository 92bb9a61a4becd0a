"""Files of named tensors in any of the formats that are read: `.safetensors`, NumPy's, GPTRSTEN."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np

from gptrs.checkpoint.files.atomic_write import atomic_file
from gptrs.checkpoint.files.open_file import open_regular, read_at, resolved
from gptrs.checkpoint.formats import gptrschk, numpy_archive
from gptrs.checkpoint.formats.foreign_files import (
    FIRST_BYTES,
    PICKLE_SUFFIXES,
    OutgoingTensor,
    foreign_format,
)
from gptrs.checkpoint.formats.safetensors import SafetensorsFile, write_safetensors
from gptrs.errors import CheckpointError, UsageError
from gptrs.ir.tensor_type import TensorType
from gptrs.quoting import quoted

_MAGICS = (gptrschk.MAGIC, numpy_archive.NPY_MAGIC, *numpy_archive.ZIP_MAGICS)


Writer = Callable[[BinaryIO, Sequence[OutgoingTensor]], None]
"""Writes a file in one of the formats."""


class TensorArchive(Protocol):
    """An open file of named tensors, which are read on demand."""

    def names(self) -> Sequence[str]:
        """Return the names of all tensors, in the order of the file."""
        ...

    def type_of(self, name: str) -> TensorType:
        """Return dtype and shape, reading no data; CheckpointError if absent or unreadable."""
        ...

    def read(self, name: str) -> np.ndarray:
        """Return the tensor, perhaps read-only; CheckpointError if it is absent or damaged."""
        ...

    def close(self) -> None:
        """Close the file; arrays that were read remain valid."""
        ...


def open_archive(path: str | os.PathLike[str]) -> TensorArchive:
    """Open a tensor archive, recognized by its first bytes, and check its header.

    CheckpointError if there is no such file, if it is of another format, or if it is damaged.
    The array of an `.npy` file is called as the file is, without the suffix.
    """
    named, real = Path(path), resolved(path, CheckpointError)
    descriptor = open_regular(real, CheckpointError)
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, descriptor)
        start = _start(named, descriptor)
        if not begins_archive(named, start):
            raise _no_archive(named, start)
        if start.startswith(gptrschk.MAGIC):
            return gptrschk.open_gptrsten(named, descriptor)
        is_zip = start.startswith(numpy_archive.ZIP_MAGICS)
        if is_zip or start.startswith(numpy_archive.NPY_MAGIC):
            archive = numpy_archive.NumpyArchive(named, descriptor, is_zip=is_zip)
            stack.pop_all()  # the archive owns the descriptor from now on
            return archive
    return SafetensorsFile.open(real, shown_as=named)


def is_other_archive(path: str | os.PathLike[str]) -> bool:
    """Return whether a file begins as a NumPy or GPTRSTEN file does, and not as safetensors."""
    try:
        descriptor = open_regular(Path(os.path.realpath(path)), CheckpointError)
    except (CheckpointError, ValueError):
        return False
    try:
        return read_at(descriptor, FIRST_BYTES, 0).startswith(_MAGICS)
    except OSError:
        return False
    finally:
        os.close(descriptor)


def require_archive(path: str | os.PathLike[str]) -> None:
    """Raise CheckpointError, with the actual format, unless a file begins like an archive."""
    named, start = Path(path), first_bytes(path)
    if not begins_archive(named, start):
        raise _no_archive(named, start)


def first_bytes(path: str | os.PathLike[str]) -> bytes:
    """Return the first bytes of a regular file; CheckpointError if it cannot be read."""
    descriptor = open_regular(resolved(path, CheckpointError), CheckpointError)
    try:
        return _start(Path(path), descriptor)
    finally:
        os.close(descriptor)


def begins_archive(path: Path, start: bytes) -> bool:
    """Return whether a file called `path` begins as one of the formats does."""
    if start.startswith(numpy_archive.ZIP_MAGICS):
        return path.suffix.lower() not in PICKLE_SUFFIXES  # torch, too, writes zip files
    return start.startswith(_MAGICS) or start[8:9] == b"{"


def write_archive(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray]) -> None:
    """Write named arrays to a file, whole or not at all; the suffix of `path` says in what format.

    UsageError for an unknown suffix and for names, dtypes or numbers of arrays that the format does
    not have: `.safetensors` lacks `si4`, `ui4` and `cf64`, `.npz` and `.npy` lack `si4`, `ui4`,
    `f8e4m3`, `f8e5m2` and `bf16`, `.gptrsten` has all. CheckpointError if the file cannot be
    written.
    """
    for name, array in arrays.items():
        if array.dtype == object:
            raise UsageError(
                f"{quoted(name)} consists of strings, which files of tensors do not hold"
            )
    write_tensors(path, [OutgoingTensor.of(name, array) for name, array in arrays.items()])


def write_tensors(path: str | os.PathLike[str], tensors: Sequence[OutgoingTensor]) -> None:
    """Write tensors to a file, as `write_archive` does, reading the elements one after another."""
    write = require_writable(path)
    for tensor in tensors:
        try:
            tensor.name.encode("utf-8")
        except UnicodeEncodeError:
            reason = f"a tensor cannot be called {quoted(tensor.name)}: it has no UTF-8"
            raise UsageError(reason) from None
    with atomic_file(path) as file:
        write(file, tensors)


def require_writable(path: str | os.PathLike[str]) -> Writer:
    """Return the writer of the format that the suffix of `path` names.

    UsageError if it names none, CheckpointError if there is no folder for the file: checks that are
    possible before anything is written.
    """
    if not Path(path).parent.is_dir():
        raise CheckpointError(f"cannot write {quoted(str(path), 200)}: its folder does not exist")
    try:
        return _WRITERS[Path(path).suffix.lower()]
    except KeyError:
        raise UsageError(
            f"the suffix of {quoted(str(path), 200)} names no format of tensors",
            hint=f"use one of {' '.join(ARCHIVE_SUFFIXES)}",
        ) from None


def _start(path: Path, descriptor: int) -> bytes:
    try:
        return read_at(descriptor, FIRST_BYTES, 0)
    except OSError as problem:
        shown = quoted(str(path), 200)
        raise CheckpointError(f"cannot read {shown}: {problem.strerror}") from problem


def _no_archive(path: Path, start: bytes) -> CheckpointError:
    foreign = foreign_format(path, start)
    if foreign is not None:
        return CheckpointError(f"{quoted(str(path), 200)} is {foreign.name}", hint=foreign.hint)
    found = f"it starts with {start[:8]!r}" if start else "it is empty"
    return CheckpointError(
        f"{quoted(str(path), 200)} is not a file of tensors: {found}",
        hint="`.safetensors`, `.npz`, `.npy` and `.gptrsten` files are read",
    )


def _write_npy(file: BinaryIO, tensors: Sequence[OutgoingTensor]) -> None:
    if len(tensors) != 1:
        raise UsageError(
            f"a `.npy` file holds one array, got {len(tensors)}", hint="write a `.npz` file"
        )
    for tensor in tensors:
        numpy_archive.write_npy(file, tensor.whole())


_WRITERS: dict[str, Writer] = {
    ".safetensors": write_safetensors,
    ".npz": numpy_archive.write_npz,
    ".npy": _write_npy,
    ".gptrsten": gptrschk.write_gptrsten,
}
ARCHIVE_SUFFIXES = tuple(_WRITERS)
"""The suffixes of files of tensors."""
