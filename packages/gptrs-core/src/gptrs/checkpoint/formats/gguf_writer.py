"""Writing GGUF files of version 3, tensor by tensor; `gguf_header` describes the layout."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import BinaryIO

import numpy as np
from msgspec import Struct

from gptrs.checkpoint.formats import gptrschk
from gptrs.checkpoint.formats.foreign_files import OutgoingTensor, write_data
from gptrs.checkpoint.formats.gguf_header import (
    MAX_HEADER_BYTES,
    MAX_KEY_BYTES,
    MetadataValue,
)
from gptrs.checkpoint.formats.gguf_types import GGUF_TYPES
from gptrs.errors import CheckpointError
from gptrs.quoting import quoted

ALIGNMENT = 32
"""Each tensor begins at a multiple of these bytes: the default of the format."""
LONGEST_NAME = 63
"""Most bytes of the name of a tensor that llama.cpp takes."""

_NUMBERS = {type_.name: number for number, type_ in GGUF_TYPES.items()}
_U32, _F32, _BOOL, _STRING, _ARRAY, _U64 = 4, 6, 7, 8, 9, 10
_OF_ARRAYS = {"<u4": 4, "<i4": 5, "<f4": 6}


class GgufOutgoing(Struct, frozen=True):
    """A tensor as bytes ui8 `data`, which are blocks of the type called `type_name`.

    `shape` has the fastest axis last.
    """

    data: OutgoingTensor
    type_name: str
    shape: tuple[int, ...]


def write_gguf(
    file: BinaryIO, metadata: Mapping[str, MetadataValue], tensors: Sequence[GgufOutgoing]
) -> None:
    """Write a whole file; CheckpointError for content that no reader accepts.

    Integers are u32, or u64 where that is too small; floats are f32; arrays are of strings, or of
    NumPy's i32, u32 and f32.
    """
    for tensor in tensors:
        if len(tensor.data.name.encode("utf-8")) > LONGEST_NAME:
            raise CheckpointError(
                f"the name {quoted(tensor.data.name)} has more than {LONGEST_NAME} bytes, the limit"
                " of GGUF"
            )
    parts = [gptrschk.GGUF, struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    parts += [_key(key) + _value(key, value) for key, value in metadata.items()]
    offset = 0
    for tensor in tensors:
        parts.append(_declared(tensor, offset))
        offset += _padded(tensor.data.type.size)
    header = b"".join(parts)
    if len(header) > MAX_HEADER_BYTES:
        raise CheckpointError(
            f"settings and tokenizer take {len(header)} bytes, the limit is {MAX_HEADER_BYTES}"
        )
    file.write(header + bytes(_padded(len(header)) - len(header)))
    for tensor in tensors:
        size = write_data(file, tensor.data)
        file.write(bytes(_padded(size) - size))


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _declared(tensor: GgufOutgoing, offset: int) -> bytes:
    rank = len(tensor.shape)
    dims = struct.pack(f"<I{rank}Q", rank, *reversed(tensor.shape))
    number = _NUMBERS[tensor.type_name]
    return _text(tensor.data.name) + dims + struct.pack("<IQ", number, offset)


def _key(key: str) -> bytes:
    assert len(key) <= MAX_KEY_BYTES, "keys are ours"
    return _text(key)


def _text(text: str) -> bytes:
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def _value(key: str, value: MetadataValue) -> bytes:
    """Return the number of the type of a value, and the value."""
    if isinstance(value, bool):
        return struct.pack("<I?", _BOOL, value)
    if isinstance(value, int):
        if not 0 <= value < 2**64:
            raise CheckpointError(f"{quoted(key)} cannot be stored: {value} is not a u64")
        small = value < 2**32
        return struct.pack("<II", _U32, value) if small else struct.pack("<IQ", _U64, value)
    if isinstance(value, float):
        return struct.pack("<If", _F32, value)
    if isinstance(value, str):
        return struct.pack("<I", _STRING) + _text(value)
    if isinstance(value, np.ndarray):
        dense = np.ascontiguousarray(value)
        kind = _OF_ARRAYS[dense.dtype.newbyteorder("<").str]
        return struct.pack("<IIQ", _ARRAY, kind, dense.size) + dense.tobytes()
    return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(_text, value))
