"""`GPTRSTEN` v2, an archive of named tensors of any dtype: reading hostile files, and writing.

All numbers are little-endian, without alignment: the magic `GPTRSTEN`, u32 version 2, u32 length of
the index, the index, the data. The index: u32 number of tensors, and for each u32 length of the
name, the name in UTF-8, u32 rank, u64 each dim, u32 dtype tag, u8 reserved (0), u64 offset from
the start of the file, u64 length of the data in bytes. Tensors must not overlap; up to 4095 bytes
of padding may precede one. Elements are row-major in their NumPy storage format, but for 4-bit
integers, which are packed two a byte, and padded with 0 to a whole byte.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from gptrs.checkpoint.regular_file import read_at
from gptrs.errors import CheckpointError, ProgramError, UsageError
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.packed_int4 import pack_int4, unpack_int4
from gptrs.ir.tensor_type import MAX_RANK, TensorType
from gptrs.quoting import quoted

MAGIC = b"GPTRSTEN"
VERSION = 2
MAX_INDEX_BYTES = 100_000_000
_MAX_PADDING = 4095
_PREFIX = struct.Struct("<8sII")
_DAMAGED = "the file is damaged, download or save it again"

TAGS: Mapping[int, DType] = {
    0: dtypes.f32, 1: dtypes.f16, 2: dtypes.bf16, 3: dtypes.si32,
    4: dtypes.i1, 5: dtypes.si4, 6: dtypes.ui4, 7: dtypes.si8, 8: dtypes.ui8,
    9: dtypes.si16, 10: dtypes.ui16, 11: dtypes.ui32, 12: dtypes.si64, 13: dtypes.ui64,
    14: dtypes.f8e4m3, 15: dtypes.f8e5m2, 16: dtypes.f64, 17: dtypes.cf32, 18: dtypes.cf64,
}  # fmt: skip
"""The dtype of each tag; 0 to 3 are what other programs that know the format read and write."""
_TAG_OF = {dtype: tag for tag, dtype in TAGS.items()}


@dataclass(frozen=True, slots=True)
class _Entry:
    """Where the data of a tensor lies, in bytes from the start of the file."""

    type: TensorType
    offset: int
    nbytes: int


class GptrstenArchive:
    """An open archive; `descriptor` is of a regular file, which `close` closes."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """Read and check the whole index; CheckpointError says what is wrong with it."""
        self._path = path
        self._descriptor = descriptor
        self._size = os.fstat(descriptor).st_size
        self._entries = _read_index(path, descriptor, self._size)

    def names(self) -> Sequence[str]:
        """As in TensorArchive."""
        return tuple(self._entries)

    def type_of(self, name: str) -> TensorType:
        """As in TensorArchive."""
        return self._entry(name).type

    def read(self, name: str) -> np.ndarray:
        """As in TensorArchive."""
        entry = self._entry(name)
        if os.fstat(self._descriptor).st_size != self._size:
            raise self._error(name, "the file changed its size since it was opened")
        data = read_at(self._descriptor, entry.nbytes, entry.offset)
        if len(data) != entry.nbytes:
            raise self._error(name, "the file became shorter while it was read")
        raw, dtype = np.frombuffer(data, np.uint8), entry.type.dtype
        if dtype.bits == 4:
            try:
                return unpack_int4(raw, dtype, entry.type.shape)
            except UsageError as problem:
                raise self._error(name, problem.message) from problem
        if dtype.is_bool and raw.size and int(raw.max()) > 1:
            raise self._error(name, "an element of i1 is neither 0 nor 1")
        return raw.view(dtype.numpy).reshape(entry.type.shape)

    def close(self) -> None:
        """As in TensorArchive."""
        os.close(self._descriptor)

    def _entry(self, name: str) -> _Entry:
        try:
            return self._entries[name]
        except KeyError:
            where = quoted(str(self._path), 200)
            raise CheckpointError(f"{where} has no tensor {quoted(name)}") from None

    def _error(self, name: str, problem: str) -> CheckpointError:
        return _refused(self._path, f"tensor {quoted(name)}: {problem}")


def write_gptrsten(file: BinaryIO, arrays: Mapping[str, np.ndarray]) -> None:
    """Write the archive of these arrays, in order."""
    index = struct.pack("<I", len(arrays))
    names = [name.encode("utf-8") for name in arrays]
    types = [TensorType.of(array) for array in arrays.values()]
    entries = sum(29 + len(name) + 8 * t.rank for name, t in zip(names, types, strict=True))
    offset = _PREFIX.size + len(index) + entries
    for name, type_ in zip(names, types, strict=True):
        nbytes = stored_bytes(type_)
        index += struct.pack("<I", len(name)) + name
        index += struct.pack(f"<I{type_.rank}Q", type_.rank, *type_.shape)
        index += struct.pack("<IBQQ", _TAG_OF[type_.dtype], 0, offset, nbytes)
        offset += nbytes
    file.write(_PREFIX.pack(MAGIC, VERSION, len(index)) + index)
    for array, type_ in zip(arrays.values(), types, strict=True):
        packed = pack_int4(array) if type_.dtype.bits == 4 else array
        dense = np.ascontiguousarray(packed, TensorType.of(packed).dtype.numpy)
        file.write(dense.reshape(-1).view(np.uint8).data)


def stored_bytes(type_: TensorType) -> int:
    """Bytes that a tensor takes in a file."""
    return (type_.size + 1) // 2 if type_.dtype.bits == 4 else type_.nbytes


def _read_index(path: Path, descriptor: int, size: int) -> dict[str, _Entry]:
    prefix = read_at(descriptor, _PREFIX.size, 0)
    if len(prefix) < _PREFIX.size:
        raise _refused(path, f"it ends after {len(prefix)} bytes, within its header")
    magic, version, length = _PREFIX.unpack(prefix)
    if magic != MAGIC or version != VERSION:
        raise _refused(path, f"it is version {version} of the format, only {VERSION} is read")
    left = size - _PREFIX.size
    if length > min(left, MAX_INDEX_BYTES):
        raise _refused(path, f"it declares an index of {length} bytes, {left} bytes follow")
    reader = _IndexReader(path, read_at(descriptor, length, _PREFIX.size))
    (count,) = reader.take("<I")
    entries: dict[str, _Entry] = {}
    for _ in range(count):  # each takes bytes of the index, which is what ends a false count
        name = reader.name()
        if name in entries:
            raise _refused(path, f"two tensors are called {quoted(name)}")
        entries[name] = reader.entry(name)
    if reader.left:
        raise _refused(path, f"{reader.left} bytes at the end of its index belong to no tensor")
    _check_places(path, entries, _PREFIX.size + length, size)
    return entries


class _IndexReader:
    """Takes the index apart from front to back."""

    def __init__(self, path: Path, data: bytes) -> None:
        self._path = path
        self._data = data
        self._position = 0

    @property
    def left(self) -> int:
        """Bytes that were not taken yet."""
        return len(self._data) - self._position

    def take(self, layout: str) -> tuple[int, ...]:
        """The next numbers, laid out as the `struct` module writes it."""
        return struct.unpack(layout, self._bytes(struct.calcsize(layout)))

    def name(self) -> str:
        """The name that comes next."""
        (length,) = self.take("<I")
        try:
            return self._bytes(length).decode("utf-8")
        except UnicodeDecodeError:
            raise _refused(self._path, "the name of a tensor is not UTF-8") from None

    def entry(self, name: str) -> _Entry:
        """What follows the name of a tensor, checked apart from its place."""
        (rank,) = self.take("<I")
        if rank > MAX_RANK:
            raise self._error(name, f"has {rank} axes, at most {MAX_RANK} are supported")
        shape = self.take(f"<{rank}Q")
        tag, reserved, offset, nbytes = self.take("<IBQQ")
        if tag not in TAGS:
            raise self._error(name, f"has the dtype tag {tag}, known are 0 to {max(TAGS)}")
        if reserved:
            raise self._error(name, f"has {reserved} in its reserved byte, which must be 0")
        try:
            type_ = TensorType(TAGS[tag], shape)
        except ProgramError as problem:
            raise self._error(name, problem.message) from problem
        if nbytes != stored_bytes(type_):
            needed = f"`{type_}` takes {stored_bytes(type_)} bytes"
            raise self._error(name, f"{needed}, the index gives {nbytes}")
        return _Entry(type_, offset, nbytes)

    def _bytes(self, count: int) -> bytes:
        if count > self.left:
            raise _refused(self._path, "its index ends within the description of a tensor")
        taken = self._data[self._position : self._position + count]
        self._position += count
        return taken

    def _error(self, name: str, problem: str) -> CheckpointError:
        return _refused(self._path, f"tensor {quoted(name)}: {problem}")


def _check_places(path: Path, entries: Mapping[str, _Entry], start: int, size: int) -> None:
    """Each tensor must lie in the data, after the one before it and close to it."""
    previous = start
    for name, entry in _by_offset(entries):
        end = entry.offset + entry.nbytes
        if entry.offset < previous:
            problem = f"its data at byte {entry.offset} overlaps what ends at {previous}"
        elif entry.offset > previous + _MAX_PADDING:
            problem = f"{entry.offset - previous} bytes before it belong to no tensor"
        elif end > size:
            problem = f"its data ends at byte {end}, the file at {size}"
        else:
            previous = end
            continue
        raise _refused(path, f"tensor {quoted(name)}: {problem}")
    if size > previous + _MAX_PADDING:
        raise _refused(path, f"{size - previous} bytes at its end belong to no tensor")


def _by_offset(entries: Mapping[str, _Entry]) -> Iterable[tuple[str, _Entry]]:
    return sorted(entries.items(), key=lambda item: (item[1].offset, item[1].nbytes))


def _refused(path: Path, problem: str) -> CheckpointError:
    return CheckpointError(f"{quoted(str(path), 200)}: {problem}", hint=_DAMAGED)
