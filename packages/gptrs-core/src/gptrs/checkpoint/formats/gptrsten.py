"""`GPTRSTEN` v2, an archive of named tensors of any dtype: reading hostile files, and writing.

The magic `GPTRSTEN`, u32 version 2, u32 length of the index, the index, the data, all numbers
little-endian; `tensor_index` has the layout of the index. Elements are row-major
in their NumPy storage format, but for 4-bit integers, which are packed two a byte, and padded with
0 to a whole byte.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from gptrs.checkpoint.files.open_file import read_at
from gptrs.checkpoint.formats.mapped_tensors import MappedTensors
from gptrs.checkpoint.formats.outgoing_tensor import OutgoingTensor, write_data
from gptrs.checkpoint.formats.safetensors_header import DAMAGED, TensorEntry
from gptrs.checkpoint.formats.tensor_index import MAX_INDEX_BYTES, make_index, read_index
from gptrs.errors import CheckpointError
from gptrs.quoting import quoted

MAGIC = b"GPTRSTEN"
VERSION = 2
_PREFIX = struct.Struct("<8sII")


def open_gptrsten(path: Path, descriptor: int) -> MappedTensors:
    """Check the index of `descriptor`, which stays the caller's, and map its tensors.

    CheckpointError says what is wrong with it.
    """
    size = os.fstat(descriptor).st_size
    return MappedTensors(path, descriptor, size, _read_entries(str(path), descriptor, size))


def write_gptrsten(file: BinaryIO, tensors: Sequence[OutgoingTensor]) -> None:
    """Write the archive of these tensors, in order."""
    index = make_index({tensor.name: tensor.type for tensor in tensors}, _PREFIX.size, ids=False)
    file.write(_PREFIX.pack(MAGIC, VERSION, len(index.data)) + index.data)
    for tensor in tensors:
        write_data(file, tensor)


def _read_entries(file: str, descriptor: int, size: int) -> dict[str, TensorEntry]:
    prefix = read_at(descriptor, _PREFIX.size, 0)
    if len(prefix) < _PREFIX.size:
        raise _refused(file, f"it ends after {len(prefix)} bytes, within its header")
    magic, version, length = _PREFIX.unpack(prefix)
    if magic != MAGIC or version != VERSION:
        raise _refused(file, f"it is version {version} of the format, only {VERSION} is read")
    left = size - _PREFIX.size
    if length > min(left, MAX_INDEX_BYTES):
        raise _refused(file, f"it declares an index of {length} bytes, {left} bytes follow")
    data = read_at(descriptor, length, _PREFIX.size)
    return read_index(data, file, _PREFIX.size + length, size, ids=False)


def _refused(file: str, problem: str) -> CheckpointError:
    return CheckpointError(f"{quoted(file, 200)}: {problem}", hint=DAMAGED)
