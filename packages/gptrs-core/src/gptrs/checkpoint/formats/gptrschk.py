"""`GPTRSCHK` v2, a whole model in one file: reading hostile files, and writing in little memory.

The magic `GPTRSCHK`, u32 version 2, u32 length of the settings, the settings, u32 length of the
index, the index, the data, all numbers little-endian; `tensor_index` has the
layout of the index. The settings are a JSON object: `kind`, what kind of model it is, `config`, its
settings, and where there is anything to say `runtime`, how to run it. In `runtime`, `files` maps
the names of text files of the model to their contents.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, BinaryIO, Final, NamedTuple

from msgspec import Meta, Struct, field

from gptrs.checkpoint.files.open_file import is_plain, open_regular, read_at, resolved
from gptrs.checkpoint.formats.foreign_files import OutgoingTensor, write_data
from gptrs.checkpoint.formats.mapped_tensors import MappedTensors
from gptrs.checkpoint.formats.safetensors_header import DAMAGED, TensorEntry
from gptrs.checkpoint.formats.tensor_index import MAX_INDEX_BYTES, make_index, read_index
from gptrs.errors import CheckpointError
from gptrs.quoting import quoted, shown_value
from gptrs.strict_json import parse_object, record_of

# The first bytes of files that hold a whole model; cheap to import, as opening any model uses it.


GGUF: Final = b"GGUF"
GPTRSCHK: Final = b"GPTRSCHK"


VERSION = 2
MAX_SETTINGS_BYTES = 200_000_000
"""Most bytes of the settings, which hold a tokenizer as well."""
ALIGNMENT = 64
"""Alignment of tensors in written files, for vector instructions."""

_PREFIX = struct.Struct("<8sII")
_LENGTH = struct.Struct("<I")


class CheckpointSettings(Struct, frozen=True):
    """The settings of a model; `files` are texts by name, `FOLDER/NAME` at the deepest."""

    kind: str
    config: Mapping[str, object]
    runtime: Mapping[str, object] = field(default_factory=dict[str, object])
    files: Mapping[str, str] = field(default_factory=dict[str, str])


class GptrschkFile(MappedTensors):
    """An open checkpoint; `with GptrschkFile.open(path) as file` closes it at the end."""

    def __init__(self, path: Path, descriptor: int, header: _Header) -> None:
        super().__init__(path, descriptor, header.size, header.entries)
        self.settings = header.settings

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> GptrschkFile:
        """Map the file, check its settings and its index; CheckpointError describes any fault."""
        shown = Path(path)
        descriptor = open_regular(resolved(path, CheckpointError), CheckpointError)
        try:
            return cls(shown, descriptor, _read_header(descriptor, str(shown)))
        except OSError as problem:
            raise CheckpointError(f"cannot read {quoted(str(shown), 200)}: {problem}") from problem
        finally:
            os.close(descriptor)


class _Header(NamedTuple):
    """Return everything before the data, checked, and the size of the file."""

    settings: CheckpointSettings
    entries: dict[str, TensorEntry]
    size: int


def write_gptrschk(
    file: BinaryIO, settings: CheckpointSettings, tensors: Sequence[OutgoingTensor]
) -> None:
    """Write the checkpoint of these tensors, in order, with memory for a part of one at a time."""
    runtime: dict[str, object] = dict(settings.runtime)
    if settings.files:
        runtime["files"] = dict(settings.files)
    fields: dict[str, object] = {"kind": settings.kind, "config": dict(settings.config)}
    if runtime:
        fields["runtime"] = runtime
    text = json.dumps(fields, ensure_ascii=False, allow_nan=False).encode("utf-8")
    start = _PREFIX.size + len(text) + _LENGTH.size
    types = {tensor.name: tensor.type for tensor in tensors}
    index = make_index(types, start, ids=True, alignment=ALIGNMENT)
    file.write(_PREFIX.pack(GPTRSCHK, VERSION, len(text)) + text)
    file.write(_LENGTH.pack(len(index.data)) + index.data)
    position = start + len(index.data)
    for tensor, offset in zip(tensors, index.offsets, strict=True):
        file.write(bytes(offset - position))
        position = offset + write_data(file, tensor)


def _read_header(descriptor: int, file: str) -> _Header:
    size = os.fstat(descriptor).st_size
    prefix = read_at(descriptor, _PREFIX.size, 0)
    if len(prefix) < _PREFIX.size:
        raise _refused(file, f"it ends after {len(prefix)} bytes, within its header")
    first, version, length = _PREFIX.unpack(prefix)
    if first != GPTRSCHK:
        raise _refused(file, f"it is not a checkpoint: it starts with {first!r}")
    if version != VERSION:
        raise _refused(file, f"it is version {version} of the format, only {VERSION} is read")
    text = _read_block(descriptor, file, "settings", (_PREFIX.size, length), MAX_SETTINGS_BYTES)
    start = _PREFIX.size + length
    (length,) = _LENGTH.unpack(
        _read_block(descriptor, file, "length of an index", (start, _LENGTH.size), _LENGTH.size)
    )
    start += _LENGTH.size
    index = _read_block(descriptor, file, "an index", (start, length), MAX_INDEX_BYTES)
    entries = read_index(index, file, start + length, size, ids=True)
    return _Header(_settings(text, file), entries, size)


def _read_block(descriptor: int, file: str, what: str, span: tuple[int, int], limit: int) -> bytes:
    """Return the bytes at an offset; CheckpointError if they are too many, or not all there."""
    start, length = span
    left = max(0, os.fstat(descriptor).st_size - start)
    if length > min(left, limit):
        raise _refused(file, f"it declares {what} of {length} bytes, {left} bytes follow")
    data = read_at(descriptor, length, start)
    if len(data) != length:
        raise _refused(file, "it became shorter while it was read")
    return data


class _Stated(Struct, forbid_unknown_fields=True, frozen=True):
    """The settings as a file states them."""

    kind: Annotated[str, Meta(min_length=1)]
    config: dict[str, object]
    runtime: dict[str, object] = {}


def _settings(text: bytes, file: str) -> CheckpointSettings:
    where = quoted(file, 200)
    fields = parse_object(text, file, CheckpointError)
    stated = record_of(fields, _Stated, where, CheckpointError, hint=DAMAGED)
    runtime = dict(stated.runtime)
    given = {"files": runtime.pop("files", {})}
    files = record_of(given, dict[str, dict[str, str]], where, CheckpointError, hint=DAMAGED)
    for name in files["files"]:
        folder, slash, plain = name.rpartition("/")
        if not is_plain(plain) or (slash and not is_plain(folder)):
            problem = f"its `files` have {quoted(name)}, which is not `NAME` or `FOLDER/NAME`"
            raise _refused(file, problem)
    named = stated.config.get("model_type", stated.kind)
    if named != stated.kind:
        raise _refused(
            file, f"its `kind` is {quoted(stated.kind)}, its `config` says {shown_value(named)}"
        )
    return CheckpointSettings(stated.kind, dict(stated.config), runtime, files["files"])


def _refused(file: str, problem: str) -> CheckpointError:
    return CheckpointError(f"{quoted(file, 200)}: {problem}", hint=DAMAGED)


# `GPTRSTEN` v2, an archive of named tensors of any dtype: reading hostile files, and writing.
#
# The magic `GPTRSTEN`, u32 version 2, u32 length of the index, the index, the data, all numbers
# little-endian; `tensor_index` has the layout of the index. Elements are row-major in their NumPy
# storage format, except 4-bit integers, which are packed two a byte, and padded with 0 to a whole
# byte.


MAGIC = b"GPTRSTEN"


def open_gptrsten(path: Path, descriptor: int) -> MappedTensors:
    """Check the index of `descriptor`, which the caller still owns, and map its tensors.

    CheckpointError describes any fault.
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
