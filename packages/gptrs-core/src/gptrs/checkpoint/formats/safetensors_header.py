"""The header of a safetensors file, checked against the size of its data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Annotated

from msgspec import Meta, Struct

from gptrs.errors import CheckpointError
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.tensor_type import MAX_ELEMENTS
from gptrs.quoting import clipped, quoted, shown_value
from gptrs.strict_json import parse_object, record_of

MAX_HEADER_BYTES = 100_000_000
"""Largest header, a limit of the format itself."""
MAX_RANK = 32
"""Most axes of a tensor, the smallest limit of the NumPy versions we run on."""
_Natural = Annotated[int, Meta(ge=0)]
DAMAGED = "the file is damaged, download or save it again"

DTYPES: Mapping[str, DType] = {
    "F64": dtypes.f64, "F32": dtypes.f32, "F16": dtypes.f16, "BF16": dtypes.bf16,
    "F8_E4M3": dtypes.f8e4m3, "F8_E5M2": dtypes.f8e5m2,
    "I64": dtypes.si64, "I32": dtypes.si32, "I16": dtypes.si16, "I8": dtypes.si8,
    "U64": dtypes.ui64, "U32": dtypes.ui32, "U16": dtypes.ui16, "U8": dtypes.ui8,
    "BOOL": dtypes.i1, "C64": dtypes.cf32,
}  # fmt: skip
"""The dtype tags of the format that can be read."""


class TensorEntry(Struct, frozen=True):
    """The location of a tensor in its file: `nbytes` at `offset` from the start of the file.

    `dtype` is None for a dtype tag without a PTIR type; such a tensor can only be listed.
    """

    name: str
    tag: str
    dtype: DType | None
    shape: tuple[int, ...]
    offset: int
    nbytes: int

    def __str__(self) -> str:
        return f"{self.dtype or self.tag}[{', '.join(map(str, self.shape))}]"


class Header(Struct, frozen=True):
    """The tensors of a file in order of offset, and the free-form strings of `__metadata__`."""

    entries: dict[str, TensorEntry]
    metadata: dict[str, str]


def parse_header(text: bytes, file: str, data_size: int) -> Header:
    """Read and check a header that is followed by `data_size` bytes of tensor data.

    CheckpointError unless every tensor has a shape and dtype that fill its byte range, and the
    ranges cover the data exactly, without overlap or hole.
    """
    if not text.startswith(b"{"):
        raise CheckpointError(
            f"{quoted(file, 200)} is not a safetensors file: its header does not start with `{{`",
            hint=DAMAGED,
        )
    fields = parse_object(text, file, CheckpointError)
    where = f"{quoted(file, 200)}: `__metadata__`"
    stated = fields.pop("__metadata__", None)
    metadata = record_of({} if stated is None else stated, dict[str, str], where, CheckpointError,
                         hint=DAMAGED)  # fmt: skip
    start = 8 + len(text)
    entries = [_entry(name, value, file, start, data_size) for name, value in fields.items()]
    entries.sort(key=lambda entry: (entry.offset, entry.nbytes))
    _check_cover(entries, file, start, data_size)
    return Header({entry.name: entry for entry in entries}, metadata)


def refused(file: str, name: str, problem: str, hint: str = DAMAGED) -> CheckpointError:
    """Return the error for one tensor of a file."""
    return CheckpointError(f"{quoted(file, 200)}: tensor {quoted(name)}: {problem}", hint=hint)


class _Stated(Struct, forbid_unknown_fields=True, frozen=True):
    """A tensor as a header states it."""

    dtype: str
    shape: tuple[_Natural, ...]
    data_offsets: tuple[_Natural, _Natural]


def _entry(name: str, value: object, file: str, start: int, data_size: int) -> TensorEntry:
    where = f"{quoted(file, 200)}: tensor {quoted(name)}"
    stated = record_of(value, _Stated, where, CheckpointError, hint=DAMAGED)
    begin, end = stated.data_offsets
    if not begin <= end <= data_size:
        problem = f"`data_offsets` {shown_value([begin, end])} do not lie in the {data_size} bytes"
        raise refused(file, name, f"{problem} of data")
    shape = stated.shape
    if len(shape) > MAX_RANK:
        raise refused(file, name, f"has {len(shape)} axes, at most {MAX_RANK} are supported")
    # Zero-sized dims must not hide an overflow in the others: strides are computed from them.
    if math.prod(dim for dim in shape if dim) > MAX_ELEMENTS:
        raise refused(file, name, f"shape {shown_value(list(shape))} has more than 2^48 elements")
    tag = stated.dtype
    entry = TensorEntry(name, tag, DTYPES.get(tag), shape, start + begin, end - begin)
    if entry.dtype is not None:
        needed = math.prod(shape) * entry.dtype.itemsize
        if needed != entry.nbytes:
            problem = f"{clipped(str(entry))} takes {needed} bytes, `data_offsets` give"
            raise refused(file, name, f"{problem} {entry.nbytes}")
    return entry


def _check_cover(entries: Iterable[TensorEntry], file: str, start: int, data_size: int) -> None:
    """Entries in order of offset must follow each other from the first data byte to the last."""
    cursor = start
    previous = ""
    for entry in entries:
        if entry.offset < cursor:
            raise refused(file, entry.name, f"overlaps tensor {quoted(previous)}")
        if entry.offset > cursor:
            gap = f"{entry.offset - cursor} bytes before it belong to no tensor"
            raise refused(file, entry.name, gap)
        cursor += entry.nbytes
        previous = entry.name
    rest = start + data_size - cursor
    if rest:
        raise CheckpointError(
            f"{quoted(file, 200)}: {rest} bytes at its end belong to no tensor", hint=DAMAGED
        )
