"""The header of a GGUF file: metadata and the offsets of tensors, bounded and checked.

Layout of versions 2 and 3, all numbers little-endian: the magic `GGUF`, u32 version, u64 number of
tensors, u64 number of metadata; each metadata is a key, a u32 type and a value; each tensor is a
name, u32 rank, u64 dims with the fastest first, u32 type, u64 offset in the data. A string is a u64
length and UTF-8, an array a u32 type of its elements, a u64 length and these. The data begins at
the next multiple of `general.alignment` (32 without it), and so does each tensor.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gptrs.backend.weight_identity import file_digest
from gptrs.checkpoint.files.open_file import read_at
from gptrs.checkpoint.formats import gptrschk
from gptrs.checkpoint.formats.gguf_types import GGUF_TYPES, GgufType, name_of_type
from gptrs.checkpoint.formats.safetensors_header import DAMAGED, refused
from gptrs.errors import CheckpointError
from gptrs.ir.tensor_type import MAX_ELEMENTS
from gptrs.quoting import listed, quoted

VERSIONS = (2, 3)
MAX_HEADER_BYTES = 256_000_000
"""Largest header: 20 times as large as for a model with 256 thousand tokens."""
MAX_KEY_BYTES = 65_535
"""Longest key, a limit of the format itself."""
MAX_NAME_BYTES = 1024
"""Longest name of a tensor; llama.cpp has 64."""
MAX_STRINGS = 4_000_000
"""Largest total of keys, strings and names, to bound their memory."""
MAX_TENSORS = 100_000
"""Most tensors; the largest models have a few thousand."""
MAX_RANK = 4
"""Most axes of a tensor, a limit of the format itself."""
MAX_ALIGNMENT = 2**16
MAX_EXPERTS = 4096
"""Most experts of a layer; the limit of llama.cpp is a few hundred."""

Scalar = bool | int | float | str
MetadataValue = Scalar | Sequence[str] | np.ndarray
"""Arrays are NumPy arrays; arrays of strings are sequences."""

_NUMBERS: Mapping[int, str] = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?",
    10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_F32, _STRING, _ARRAY = 6, 8, 9
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_CHUNK = 2**22
_STACK = 3
"""The rank of the matrices of all experts."""


class GgufTensor(Struct, frozen=True):
    """A tensor as the file declares it: `shape` has the fastest axis last, as NumPy has it."""

    name: str
    type: GgufType
    shape: tuple[int, ...]
    offset: int
    nbytes: int


class GgufHeader(Struct, frozen=True):
    """The metadata by key and the tensors in the order of their data, experts one by one."""

    metadata: Mapping[str, MetadataValue]
    tensors: Sequence[GgufTensor]
    size: int
    digest: bytes
    """The `file_digest` of the file."""


def read_gguf_header(descriptor: int, file: str) -> GgufHeader:
    """Read and check everything before the data; CheckpointError describes any fault.

    Each type is one of `GGUF_TYPES`, and tensors lie within the file, aligned, without overlap.
    """
    digest = file_digest(os.fstat(descriptor))
    reader = _Reader(descriptor, file)
    if reader.take(4) != gptrschk.GGUF:
        raise reader.error("it is not a GGUF file: it does not start with `GGUF`")
    version = reader.u32()
    if version not in VERSIONS:
        big = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
        found = "of a big-endian machine" if big else f"version {version} of the format"
        raise reader.error(f"it is {found}, only little-endian versions 2 and 3 are read")
    tensors, keys = reader.u64(), reader.u64()
    reader.require_room(keys, 13, "metadata")
    metadata: dict[str, MetadataValue] = {}
    for _ in range(keys):
        key = reader.text(MAX_KEY_BYTES, "a key")
        # Readers disagree on which of two equal keys counts, so a checker and a loader could see
        # different models.
        if key in metadata:
            raise reader.error(f"it has the key {quoted(key)} twice")
        metadata[key] = reader.value(reader.u32(), key)
    reader.require_room(tensors, 24, "tensors")
    if tensors > MAX_TENSORS:
        raise reader.error(f"it declares {tensors} tensors, the limit is {MAX_TENSORS}")
    declared = [_declared(reader) for _ in range(tensors)]
    start = _aligned(reader.position, alignment := _alignment(metadata, reader))
    placed = _placed(declared, start, alignment, reader)
    return GgufHeader(metadata, placed, reader.size, digest)


class _Reader:
    """Reads the file from its start, a chunk at a time."""

    def __init__(self, descriptor: int, file: str) -> None:
        self.size = os.fstat(descriptor).st_size
        self.position = 0
        self.file = file
        self._descriptor = descriptor
        self._data = b""
        self._strings = 0

    def error(self, problem: str) -> CheckpointError:
        return CheckpointError(f"cannot read {quoted(self.file, 200)}: {problem}", hint=DAMAGED)

    def require_room(self, count: int, least: int, what: str) -> None:
        """CheckpointError if `count` things of `least` bytes each cannot follow."""
        left = min(self.size, MAX_HEADER_BYTES) - self.position
        if count * least > left:
            raise self.error(f"it declares {count} {what}, {max(0, left)} bytes are left for them")

    def take(self, count: int) -> bytes:
        start = self.position
        if start + count > len(self._data):
            self._read_on(start + count)
        self.position = start + count
        return self._data[start : self.position]

    def _read_on(self, end: int) -> bytes:
        """Return the bytes read so far, at least `end`."""
        if end > min(self.size, MAX_HEADER_BYTES):
            limit = "the file ends" if end > self.size else f"the limit is {MAX_HEADER_BYTES} bytes"
            raise self.error(f"its header does not end: {limit}")
        # Grow by half each time, because the bytes read before are copied.
        more = max(end - len(self._data), _CHUNK, len(self._data) // 2)
        self._data += read_at(self._descriptor, more, len(self._data))
        if len(self._data) < end:
            raise self.error("it became shorter while it was read")
        return self._data

    def u32(self) -> int:
        return int(_U32.unpack(self.take(4))[0])

    def u64(self) -> int:
        return int(_U64.unpack(self.take(8))[0])

    def text(self, limit: int, what: str) -> str:
        length = self.u64()
        self._strings += 1
        if self._strings > MAX_STRINGS:
            raise self.error(f"it has more than {MAX_STRINGS} strings")
        if length > limit:
            raise self.error(f"it has {what} of {length} bytes, the limit is {limit}")
        return self._decoded(self.take(length), what)

    def value(self, kind: int, key: str) -> MetadataValue:
        if kind == _ARRAY:
            return self._array(key)
        if kind == _STRING:
            return self.text(MAX_HEADER_BYTES, quoted(key))
        number = self._numbers(kind, 1, key)[0]
        # 1e-05 as f32 is 9.999999747378752e-06 as f64: the shortest form is the number meant.
        return float(str(number)) if kind == _F32 else number.item()

    def _array(self, key: str) -> MetadataValue:
        kind, count = self.u32(), self.u64()
        if kind == _ARRAY:
            raise self.error(f"{quoted(key)} is an array of arrays")
        if kind != _STRING:
            return self._numbers(kind, count, key)
        self.require_room(count, 8, f"strings in {quoted(key)}")
        return self._texts(count, key)

    def _texts(self, count: int, key: str) -> list[str]:
        """Read strings one after another: there are some 100 thousand in a tokenizer."""
        self._strings += count
        if self._strings > MAX_STRINGS:
            raise self.error(f"it has more than {MAX_STRINGS} strings")
        texts: list[str] = []
        position, data, length_at = self.position, self._data, _U64.unpack_from
        try:
            for _ in range(count):
                start = position + 8
                if start > len(data):
                    data = self._read_on(start)
                position = start + length_at(data, start - 8)[0]
                if position > len(data):
                    data = self._read_on(position)
                texts.append(data[start:position].decode("utf-8"))
        except UnicodeDecodeError:
            raise self.error(f"{quoted(key)} is not valid UTF-8") from None
        self.position = position
        return texts

    def _numbers(self, kind: int, count: int, key: str) -> np.ndarray:
        if kind not in _NUMBERS:
            raise self.error(f"{quoted(key)} is of the unknown type {kind}")
        dtype = np.dtype(_NUMBERS[kind])
        self.require_room(count, dtype.itemsize, f"numbers in {quoted(key)}")
        raw = np.frombuffer(self.take(count * dtype.itemsize), np.uint8)
        if dtype.kind == "b" and raw.size and int(raw.max()) > 1:
            raise self.error(f"{quoted(key)} is neither true nor false")
        return raw.view(dtype)

    def _decoded(self, data: bytes, what: str) -> str:
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError:
            raise self.error(f"{what} is not valid UTF-8") from None


def _alignment(metadata: Mapping[str, MetadataValue], reader: _Reader) -> int:
    found = metadata.get("general.alignment", 32)
    if type(found) is not int or not 1 <= found <= MAX_ALIGNMENT or found & (found - 1):
        problem = f"`general.alignment` must be a power of 2 up to {MAX_ALIGNMENT}"
        raise reader.error(f"{problem}, found {str(found)[:40]}")
    return found


def _declared(reader: _Reader) -> GgufTensor:
    """Read one tensor; its offset counts from the start of the data."""
    name = reader.text(MAX_NAME_BYTES, "the name of a tensor")
    rank = reader.u32()
    if rank > MAX_RANK:
        problem = f"has {rank} axes, at most {MAX_RANK} are supported"
        raise refused(reader.file, name, problem)
    shape = tuple([reader.u64() for _ in range(rank)])[::-1]
    number, offset = reader.u32(), reader.u64()
    # Zero-sized dims must not hide an overflow in the others: strides are computed from them.
    if math.prod(dim for dim in shape if dim) > MAX_ELEMENTS:
        raise refused(reader.file, name, f"shape {list(shape)} has more than 2^48 elements")
    type_ = GGUF_TYPES.get(number)
    if type_ is None:
        problem = f"is of the type {name_of_type(number)}, which gptrs does not read"
        known = [each.name for each in GGUF_TYPES.values()]
        raise refused(reader.file, name, problem, f"the types that are read: {listed(known, 99)}")
    row = shape[-1] if shape else 1
    if row % type_.block:
        problem = f"its rows of {row} are not made of blocks of {type_.block}, as {type_.name} is"
        raise refused(reader.file, name, problem)
    nbytes = math.prod(shape) // type_.block * type_.block_bytes
    return GgufTensor(name, type_, shape, offset, nbytes)


def _placed(
    declared: Sequence[GgufTensor], start: int, alignment: int, reader: _Reader
) -> Sequence[GgufTensor]:
    """Return the tensors in order, with offsets in the file; CheckpointError for bad ones."""
    cursor, names, placed = start, set[str](), list[GgufTensor]()
    # By offset, so that each tensor only needs comparing with the one before. Empty ones come first
    # at their offset, and overlap nothing.
    for each in sorted(declared, key=lambda tensor: (tensor.offset, tensor.nbytes)):
        offset = start + each.offset
        if each.name in names:
            raise refused(reader.file, each.name, "is there twice")
        if each.offset % alignment:
            problem = f"its offset {each.offset} is not a multiple of the alignment {alignment}"
            raise refused(reader.file, each.name, problem)
        if offset < cursor:
            raise refused(reader.file, each.name, f"overlaps tensor {quoted(placed[-1].name)}")
        cursor = offset + each.nbytes
        if cursor > reader.size:
            problem = f"ends at byte {cursor}, the file has {reader.size}"
            raise refused(reader.file, each.name, problem)
        names.add(each.name)
        placed.append(GgufTensor(each.name, each.type, each.shape, offset, each.nbytes))
    return _without_stacks(placed, reader)


def _without_stacks(placed: Sequence[GgufTensor], reader: _Reader) -> Sequence[GgufTensor]:
    """Return the tensors with stacks of experts split; CheckpointError for too many."""
    names, found = set[str](), list[GgufTensor]()
    for each in placed:
        for part in _apart(each):
            if part.name in names:
                raise refused(reader.file, part.name, "is there twice")
            names.add(part.name)
            found.append(part)
        if len(found) > MAX_STRINGS:
            raise reader.error(f"it has more than {MAX_STRINGS} tensors")
    return found


def _apart(tensor: GgufTensor) -> Sequence[GgufTensor]:
    """Return the matrices of a stack of experts, under the names that they had before stacks.

    A gate of one output is a vector in a file, here it is the matrix of one row that it stands for.
    """
    layer, dot, stem = tensor.name.rpartition(".ffn_")
    kind, stacked, suffix = stem.partition("_exps.")
    if dot and stem == "gate_inp_shexp.weight" and len(tensor.shape) == 1:
        return [replace(tensor, shape=(1, *tensor.shape))]
    if not dot or not stacked or len(tensor.shape) != _STACK or tensor.shape[0] > MAX_EXPERTS:
        return [tensor]
    count, nbytes = tensor.shape[0], tensor.nbytes // max(1, tensor.shape[0])
    return [
        GgufTensor(
            f"{layer}.ffn_{kind}.{number}.{suffix}",
            tensor.type,
            tensor.shape[1:],
            tensor.offset + number * nbytes,
            nbytes,
        )
        for number in range(count)
    ]


def _aligned(position: int, alignment: int) -> int:
    return -(-position // alignment) * alignment
