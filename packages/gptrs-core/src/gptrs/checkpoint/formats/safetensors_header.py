"""The header of a safetensors file, checked against the size of its data."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import cast

from msgspec import Struct

from gptrs.errors import CheckpointError
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.ir.tensor_type import MAX_ELEMENTS
from gptrs.quoting import clipped, quoted, shown_value
from gptrs.strict_json import parse_object

MAX_HEADER_BYTES = 100_000_000
"""Largest header, a limit of the format itself."""
MAX_RANK = 32
"""Most axes of a tensor, the smallest limit of the NumPy versions we run on."""
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
            f"{quoted(file, 200)} is no safetensors file: its header does not start with `{{`",
            hint=DAMAGED,
        )
    fields = parse_object(text, file, CheckpointError)
    metadata = _metadata(fields.pop("__metadata__", None), file)
    start = 8 + len(text)
    entries = [_entry(name, value, file, start, data_size) for name, value in fields.items()]
    entries.sort(key=lambda entry: (entry.offset, entry.nbytes))
    _check_cover(entries, file, start, data_size)
    return Header({entry.name: entry for entry in entries}, metadata)


def refused(file: str, name: str, problem: str, hint: str = DAMAGED) -> CheckpointError:
    """Return the error for one tensor of a file."""
    return CheckpointError(f"{quoted(file, 200)}: tensor {quoted(name)}: {problem}", hint=hint)


def _metadata(value: object, file: str) -> dict[str, str]:
    if value is None:
        return {}
    found = shown_value(value)
    if isinstance(value, dict):
        strings = cast("dict[str, object]", value)
        if all(isinstance(item, str) for item in strings.values()):
            return cast("dict[str, str]", strings)
    raise CheckpointError(
        f"{quoted(file, 200)}: `__metadata__` must map strings to strings, found {found}",
        hint=DAMAGED,
    )


def _entry(name: str, value: object, file: str, start: int, data_size: int) -> TensorEntry:
    if not isinstance(value, dict):
        raise refused(file, name, f"must be described by an object, found {shown_value(value)}")
    fields = cast("dict[str, object]", value)
    if fields.keys() != {"dtype", "shape", "data_offsets"}:
        found = shown_value(sorted(fields))
        raise refused(file, name, f"needs `dtype`, `shape` and `data_offsets`, found {found}")
    tag = fields["dtype"]
    if not isinstance(tag, str):
        raise refused(file, name, f"`dtype` must be a string, found {shown_value(tag)}")
    shape = _shape(fields["shape"], file, name)
    begin, end = _offsets(fields["data_offsets"], file, name, data_size)
    entry = TensorEntry(name, tag, DTYPES.get(tag), shape, start + begin, end - begin)
    if entry.dtype is not None:
        needed = math.prod(shape) * entry.dtype.itemsize
        if needed != entry.nbytes:
            problem = f"{clipped(str(entry))} takes {needed} bytes, `data_offsets` give"
            raise refused(file, name, f"{problem} {entry.nbytes}")
    return entry


def _shape(value: object, file: str, name: str) -> tuple[int, ...]:
    dims = _naturals(value)
    if dims is None:
        problem = f"`shape` must be a list of integers >= 0, found {shown_value(value)}"
        raise refused(file, name, problem)
    if len(dims) > MAX_RANK:
        raise refused(file, name, f"has {len(dims)} axes, at most {MAX_RANK} are supported")
    # Zero-sized dims must not hide an overflow in the others: strides are computed from them.
    if math.prod(dim for dim in dims if dim) > MAX_ELEMENTS:
        raise refused(file, name, f"shape {shown_value(list(dims))} has more than 2^48 elements")
    return dims


def _offsets(value: object, file: str, name: str, data_size: int) -> tuple[int, int]:
    offsets = _naturals(value)
    if offsets is None or len(offsets) != 2:
        problem = f"`data_offsets` must be two integers >= 0, found {shown_value(value)}"
        raise refused(file, name, problem)
    begin, end = offsets
    if not begin <= end <= data_size:
        problem = f"`data_offsets` {shown_value(value)} do not lie in the {data_size} bytes of data"
        raise refused(file, name, problem)
    return begin, end


def _naturals(value: object) -> tuple[int, ...] | None:
    """Return a list of integers >= 0 as a tuple, None for anything else."""
    if not isinstance(value, list):
        return None
    items = cast("list[object]", value)
    if all(type(item) is int and item >= 0 for item in items):
        return tuple(cast("list[int]", items))
    return None


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
