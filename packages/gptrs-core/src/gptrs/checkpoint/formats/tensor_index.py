"""The index of `GPTRSTEN` and `GPTRSCHK` files: tensors by name, with their types and locations.

All numbers are little-endian, without alignment: u32 number of tensors, and for each u32 length of
the name, the name in UTF-8, in a checkpoint u128 id (0: not stored), u32 rank, u64 each dim, u32
dtype tag, u8 reserved (0), u64 offset from the start of the file, u64 length of the data in bytes.
Tensors must not overlap; up to 4095 bytes of padding may precede one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gptrs.checkpoint.formats.safetensors_header import DAMAGED, TensorEntry, refused
from gptrs.checkpoint.parameter_ids import base_param_id
from gptrs.errors import CheckpointError, ProgramError
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.tensor_type import MAX_RANK, TensorType
from gptrs.quoting import quoted

MAX_INDEX_BYTES = 100_000_000
_MAX_PADDING = 4095
_NUMBER = struct.Struct("<I")
_ID_BYTES = 16

TAGS: Mapping[int, DType] = {
    0: dtypes.f32, 1: dtypes.f16, 2: dtypes.bf16, 3: dtypes.si32,
    4: dtypes.i1, 5: dtypes.si4, 6: dtypes.ui4, 7: dtypes.si8, 8: dtypes.ui8,
    9: dtypes.si16, 10: dtypes.ui16, 11: dtypes.ui32, 12: dtypes.si64, 13: dtypes.ui64,
    14: dtypes.f8e4m3, 15: dtypes.f8e5m2, 16: dtypes.f64, 17: dtypes.cf32, 18: dtypes.cf64,
}  # fmt: skip
"""The dtype of each tag; other programs with these formats read and write 0 to 3."""
_TAG_OF = {dtype: tag for tag, dtype in TAGS.items()}


class Indexed(NamedTuple):
    """An index ready to be written, and the offset of each tensor, in the order of the index."""

    data: bytes
    offsets: tuple[int, ...]


def stored_bytes(type_: TensorType) -> int:
    """Return bytes that a tensor takes in a file."""
    return (type_.size + 1) // 2 if type_.dtype.bits == 4 else type_.nbytes


def make_index(
    types: Mapping[str, TensorType], start: int, *, ids: bool, alignment: int = 1
) -> Indexed:
    """Return the index of the tensors that follow it, beginning at byte `start` of the file.

    Each tensor begins at a multiple of `alignment` bytes, at most 4096.
    """
    names = {name: name.encode("utf-8") for name in types}
    fixed = 29 + (_ID_BYTES if ids else 0)
    position = start + _NUMBER.size
    position += sum(fixed + len(names[name]) + 8 * type_.rank for name, type_ in types.items())
    parts = [_NUMBER.pack(len(types))]
    offsets: list[int] = []
    for name, type_ in types.items():
        position += -position % alignment
        parts += [_NUMBER.pack(len(names[name])), names[name]]
        if ids:
            parts.append(base_param_id(name).to_bytes(_ID_BYTES, "little"))
        nbytes = stored_bytes(type_)
        parts.append(struct.pack(f"<I{type_.rank}Q", type_.rank, *type_.shape))
        parts.append(struct.pack("<IBQQ", _TAG_OF[type_.dtype], 0, position, nbytes))
        offsets.append(position)
        position += nbytes
    return Indexed(b"".join(parts), tuple(offsets))


def read_index(
    data: bytes, file: str, start: int, size: int, *, ids: bool
) -> dict[str, TensorEntry]:
    """Return the tensors of an index that ends at byte `start` of a `file` of `size` bytes.

    CheckpointError unless every name is there once, every type fills the range of its data, the
    ranges lie in the file behind the index without overlap or hole, and every id is that of its
    name.
    """
    reader = _IndexReader(file, data, ids)
    count = reader.number()
    entries: dict[str, TensorEntry] = {}
    for _ in range(count):  # each takes bytes of the index, which bounds a false count
        name = reader.name()
        if name in entries:
            raise _damaged(file, f"two tensors are called {quoted(name)}")
        entries[name] = reader.entry(name)
    if reader.left:
        raise _damaged(file, f"{reader.left} bytes at the end of its index belong to no tensor")
    _check_offsets(file, entries.values(), start, size)
    return entries


class _IndexReader:
    """Takes the index apart from front to back."""

    def __init__(self, file: str, data: bytes, has_ids: bool) -> None:
        self._file = file
        self._data = data
        self._has_ids = has_ids
        self._position = 0

    @property
    def left(self) -> int:
        """Bytes that were not taken yet."""
        return len(self._data) - self._position

    def number(self) -> int:
        """Return the u32 that comes next."""
        return self._take("<I")[0]

    def name(self) -> str:
        """Return the name that comes next."""
        try:
            return self._bytes(self.number()).decode("utf-8")
        except UnicodeDecodeError:
            raise _damaged(self._file, "the name of a tensor is not UTF-8") from None

    def entry(self, name: str) -> TensorEntry:
        """Return the entry after the name of a tensor, checked except for its location."""
        if self._has_ids:
            self._check_id(name)
        rank = self.number()
        if rank > MAX_RANK:
            problem = f"has {rank} axes, at most {MAX_RANK} are supported"
            raise refused(self._file, name, problem)
        shape = self._take(f"<{rank}Q")
        tag, reserved, offset, nbytes = self._take("<IBQQ")
        if tag not in TAGS:
            problem = f"has the dtype tag {tag}, known are 0 to {max(TAGS)}"
            raise refused(self._file, name, problem)
        if reserved:
            problem = f"has {reserved} in its reserved byte, which must be 0"
            raise refused(self._file, name, problem)
        try:
            type_ = TensorType(TAGS[tag], shape)
        except ProgramError as problem:
            raise refused(self._file, name, problem.message) from problem
        if nbytes != stored_bytes(type_):
            needed = f"`{type_}` takes {stored_bytes(type_)} bytes"
            raise refused(self._file, name, f"{needed}, the index gives {nbytes}")
        return TensorEntry(name, type_.dtype.name, type_.dtype, type_.shape, offset, nbytes)

    def _check_id(self, name: str) -> None:
        stored = int.from_bytes(self._bytes(_ID_BYTES), "little")
        if stored not in (0, base_param_id(name)):
            problem = f"has the id {stored:#034x}, its name stands for {base_param_id(name):#034x}"
            raise refused(self._file, name, problem)

    def _take(self, layout: str) -> tuple[int, ...]:
        return struct.unpack(layout, self._bytes(struct.calcsize(layout)))

    def _bytes(self, count: int) -> bytes:
        if count > self.left:
            raise _damaged(self._file, "its index ends within the description of a tensor")
        taken = self._data[self._position : self._position + count]
        self._position += count
        return taken


def _check_offsets(file: str, entries: Iterable[TensorEntry], start: int, size: int) -> None:
    """Raise unless each tensor is inside the data, after the previous one and close to it."""
    previous = start
    for entry in sorted(entries, key=lambda entry: (entry.offset, entry.nbytes)):
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
        raise refused(file, entry.name, problem)
    if size > previous + _MAX_PADDING:
        raise _damaged(file, f"{size - previous} bytes at its end belong to no tensor")


def _damaged(file: str, problem: str) -> CheckpointError:
    return CheckpointError(f"{quoted(file, 200)}: {problem}", hint=DAMAGED)
