"""Reading safetensors files through a memory mapping: tensors are views that copy nothing."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Self

import numpy as np

from gptrs.checkpoint.regular_file import open_regular, read_at
from gptrs.checkpoint.safetensors_header import (
    DAMAGED,
    DTYPES,
    MAX_HEADER_BYTES,
    Header,
    TensorEntry,
    parse_header,
    refused,
)
from gptrs.errors import CheckpointError, UsageError
from gptrs.ir.tensor_type import TensorType
from gptrs.quoting import quoted


class SafetensorsFile:
    """An open safetensors file; `with SafetensorsFile.open(path) as file` closes it at the end.

    Arrays that `read` returned stay valid after `close` and keep the mapping alive. A file must not
    shrink while arrays over it are in use: a tensor that was not read yet is then refused, but one
    already handed out is memory that is gone.
    """

    def __init__(self, path: Path, mapping: mmap.mmap, header: Header) -> None:
        self.path = path
        self.size = len(mapping)
        self._entries = header.entries
        self._metadata = header.metadata
        self._mapping: mmap.mmap | None = mapping

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, shown_as: Path | None = None) -> SafetensorsFile:
        """Map the file and check its whole header; CheckpointError says what is wrong with it.

        `shown_as` is the path to speak of where `path` is only where a link led to.
        """
        named = shown_as or Path(path)
        descriptor = open_regular(_resolved(path), CheckpointError)
        try:
            header, size = _read_header(descriptor, str(named))
            mapping = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
        except (OSError, ValueError) as problem:
            raise CheckpointError(f"cannot map {quoted(str(named), 200)}: {problem}") from problem
        finally:
            os.close(descriptor)  # the mapping has a descriptor of its own
        return cls(named, mapping, header)

    @property
    def entries(self) -> Mapping[str, TensorEntry]:
        """Every tensor by name, in order of offset."""
        return MappingProxyType(self._entries)

    @property
    def metadata(self) -> Mapping[str, str]:
        """The strings under `__metadata__`."""
        return MappingProxyType(self._metadata)

    def entry(self, name: str) -> TensorEntry:
        """The entry called `name`; CheckpointError if there is none."""
        try:
            return self._entries[name]
        except KeyError:
            raise CheckpointError(
                f"{quoted(str(self.path), 200)} has no tensor {quoted(name)}"
            ) from None

    def type_of(self, name: str) -> TensorType:
        """Dtype and shape of a tensor; CheckpointError if it is absent or of an unknown dtype."""
        entry = self.entry(name)
        if entry.dtype is None:
            raise refused(
                str(self.path),
                name,
                f"dtype {quoted(entry.tag)} is not supported",
                f"convert the tensor to one of {' '.join(DTYPES)}",
            )
        return TensorType(entry.dtype, entry.shape)

    def read(self, name: str) -> np.ndarray:
        """The tensor as a read-only array of its stored dtype: a view of the mapping.

        It is copied only where the file holds it unaligned. CheckpointError if it is absent, of an
        unknown dtype, or if the file changed its size since it was opened.
        """
        type = self.type_of(name)
        mapping = self._mapping
        if mapping is None:
            raise UsageError(f"{quoted(str(self.path), 200)} was closed before {quoted(name)}")
        found = mapping.size()
        if found != self.size:
            problem = f"the file had {self.size} bytes when it was opened, now {found}"
            raise refused(str(self.path), name, problem, "load the model again")
        array = _view(mapping, type, self._entries[name].offset)
        # Any other byte in an array of bools is undefined behaviour in compiled code.
        if type.dtype.is_bool and type.size and int(array.view(np.uint8).max()) > 1:
            raise refused(str(self.path), name, "a BOOL element is neither 0 nor 1")
        return array

    def close(self) -> None:
        """Refuse further reads; the memory is unmapped once no array uses it."""
        self._mapping = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _resolved(path: str | os.PathLike[str]) -> Path:
    try:
        return Path(os.path.realpath(path))
    except (OSError, ValueError) as problem:
        raise CheckpointError(f"cannot open {quoted(str(path), 200)}: {problem}") from problem


def _read_header(descriptor: int, file: str) -> tuple[Header, int]:
    """The checked header and the size of the file."""
    size = os.fstat(descriptor).st_size
    prefix = read_at(descriptor, 8, 0)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8:
        problem = f"has {size} bytes, a safetensors file starts with 8 bytes of header length"
    elif length > MAX_HEADER_BYTES:
        problem = f"declares a header of {length} bytes, the limit is {MAX_HEADER_BYTES}"
    elif length > size - 8:
        problem = f"declares a header of {length} bytes, but has only {size - 8} after its length"
    else:
        text = read_at(descriptor, length, 8)
        if len(text) == length:
            return parse_header(text, file, size - 8 - length), size
        problem = "became shorter while it was read"
    raise CheckpointError(f"{quoted(file, 200)} {problem}", hint=DAMAGED)


def _view(mapping: mmap.mmap, type: TensorType, offset: int) -> np.ndarray:
    if type.size == 0:
        array = np.empty(type.shape, type.dtype.numpy)
    elif offset % type.dtype.itemsize == 0:
        flat = np.frombuffer(mapping, type.dtype.numpy, type.size, offset)
        return flat.reshape(type.shape)
    else:
        raw = np.frombuffer(mapping, np.uint8, type.nbytes, offset)
        array = raw.copy().view(type.dtype.numpy).reshape(type.shape)
    array.flags.writeable = False
    return array
