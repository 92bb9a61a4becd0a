"""The tensors of an open file: read, as a whole or in parts; or views of a memory mapping."""

from __future__ import annotations

import errno
import mmap
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Self

import numpy as np

from gptrs.backend.mapped_files import MAPPED_FILES
from gptrs.backend.weight_identity import WeightFile, WeightIdentity
from gptrs.checkpoint.files.open_file import read_at
from gptrs.checkpoint.formats.safetensors_header import DTYPES, TensorEntry, refused
from gptrs.errors import CheckpointError, UsageError
from gptrs.ir.dtypes import unpack_int4
from gptrs.ir.tensor_type import TensorType
from gptrs.quoting import quoted

_PART_BYTES = 2**24
"""Most bytes of one read, a multiple of the size of any element."""


def changed_in_use(path: str, before: int, now: int) -> CheckpointError:
    """Return the error for a file of weights that was written to while a model used it."""
    sizes = f": it had {before} bytes when it was opened, now {now}" if now != before else ""
    return CheckpointError(
        f"{quoted(path, 200)} was changed while the model was in use{sizes}",
        hint="load the model again; replace a file by renaming a new one, not by writing to it",
    )


class MappedTensors:
    """An open file; `entries` says where its tensors lie. A scope closes it at its end.

    Arrays remain valid after `close`; those that `view` returned keep the mapping alive. If the
    file shrinks, the next read raises an error. Only to read what `view` has handed out ends the
    process by SIGBUS, except within runs of backends that handle it: others get no views, see
    `gptrs.backend.mapped_files`. `stamp` identifies the file as it was when opened, None if it had
    been changed just before.
    """

    def __init__(
        self, path: Path, descriptor: int, size: int, entries: Mapping[str, TensorEntry]
    ) -> None:
        """Map the `size` bytes of the regular file `descriptor`, which the caller still owns.

        `path` names the file in errors; CheckpointError if the file cannot be mapped, MemoryError
        for lack of address space.
        """
        self.path = path
        self.size = size
        self._written_ns = os.fstat(descriptor).st_mtime_ns
        self._entries = dict(entries)
        try:
            mapping = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
            # A descriptor of our own: the caller closes its one, and reopening by path could find
            # another file.
            self._descriptor = os.dup(descriptor)
        except (OSError, ValueError) as problem:
            if isinstance(problem, OSError) and problem.errno == errno.ENOMEM:
                raise MemoryError(f"no address space is left for `{path}`") from problem
            raise CheckpointError(f"cannot map {quoted(str(path), 200)}: {problem}") from problem
        self._mapping: mmap.mmap | None = mapping
        MAPPED_FILES.add(mapping, str(path))
        # Not `__del__`: the finalizer also tells, by `alive`, whether the descriptor is still open.
        release = self._release = weakref.finalize(self, os.close, self._descriptor)
        self.stamp = WeightFile.of(str(path), self._descriptor, lambda: release.alive)

    @property
    def entries(self) -> Mapping[str, TensorEntry]:
        """Every tensor by name, in a fixed order."""
        return MappingProxyType(self._entries)

    @property
    def header_bytes(self) -> int:
        """The bytes of the file that are not tensors: what opening it reads."""
        return self.size - sum(entry.nbytes for entry in self._entries.values())

    def names(self) -> Sequence[str]:
        """Return the names of all tensors, in the same order."""
        return tuple(self._entries)

    def entry(self, name: str) -> TensorEntry:
        """Return the entry called `name`; CheckpointError if there is none."""
        try:
            return self._entries[name]
        except KeyError:
            raise CheckpointError(
                f"{quoted(str(self.path), 200)} has no tensor {quoted(name)}"
            ) from None

    def type_of(self, name: str) -> TensorType:
        """Return dtype and shape; CheckpointError if absent or of an unknown dtype."""
        entry = self.entry(name)
        if entry.dtype is None:
            raise refused(
                str(self.path),
                name,
                f"dtype {quoted(entry.tag)} is not supported",
                f"convert the tensor to one of {' '.join(DTYPES)}",
            )
        return TensorType(entry.dtype, entry.shape)

    def identity_of(self, name: str) -> WeightIdentity | None:
        """Return the identity of the stored tensor; None if its file is too new.

        CheckpointError if there is no such tensor.
        """
        entry = self.entry(name)
        if self.stamp is None:
            return None
        location = (name, entry.tag, entry.shape, entry.offset, entry.nbytes)
        return WeightIdentity.of(repr(location).encode(), self.stamp)

    def read(self, name: str) -> np.ndarray:
        """Return the tensor as a read-only array of its stored dtype, in separate memory.

        CheckpointError if it is absent, of an unknown dtype, holds what its dtype does not have, or
        if the file changed its size since it was opened.
        """
        type = self.type_of(name)
        self._require_same_size(name, self._opened(name).size())
        raw, start = np.empty(self._entries[name].nbytes, np.uint8), 0
        for part in self.byte_parts(name, _PART_BYTES):
            raw[start : start + part.size] = part
            start += part.size
        array = self._elements(name, raw, type)
        # One weight may be bound to several models and programs.
        array.flags.writeable = False
        return array

    def read_slice(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """Return a part of a tensor, a slice for each axis, in separate memory.

        The rows of the part are read, at most 16 MiB at a time. Errors as of `parts`.
        """
        type, entry = self.type_of(name), self.entry(name)
        if type.rank == 0 or type.dtype.bits == 4 or not type.size:  # two elements share a byte
            return self.read(name)[index]
        self._opened(name)
        rows, row_bytes = range(*index[0].indices(type.shape[0])), entry.nbytes // type.shape[0]
        shape = np.broadcast_to(np.empty((), np.bool_), type.shape)[index].shape
        made, step = np.empty(shape, type.dtype.numpy), max(1, _PART_BYTES // row_bytes)
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            raw = self._bytes_at(name, len(part) * row_bytes, part[0] * row_bytes)
            array = self._elements(name, raw, type.with_shape((len(part), *type.shape[1:])))
            made[start : start + len(part)] = array[(slice(None), *index[1:])]
        return made

    def view(self, name: str) -> np.ndarray:
        """Return the tensor as `read` does, but as a view of the mapping where it can be one.

        It is one of floats that the file holds aligned. Raises the same errors as `read`.
        """
        type, entry = self.type_of(name), self._entries[name]
        # Integers and bools are read instead: bools are checked, and codes repacked anyway.
        can_be = type.dtype.is_float and type.size and entry.offset % type.dtype.itemsize == 0
        if not can_be:
            return self.read(name)
        mapping = self._opened(name)
        self._require_same_size(name, mapping.size())
        raw = np.frombuffer(mapping, np.uint8, entry.nbytes, entry.offset)
        return self._elements(name, raw, type)

    def parts(self, name: str) -> Iterator[np.ndarray]:
        """Yield the elements in order, as flat arrays of at most 16 MiB of the file.

        They are read and not mapped, so that a file which shrinks meanwhile is a CheckpointError
        at any time. Raises the same errors as `read`.
        """
        type, start = self.type_of(name), 0
        for raw in self.byte_parts(name, _PART_BYTES):
            if type.dtype.bits == 4:
                count = min(2 * raw.size, type.size - 2 * start)
            else:
                count = raw.size // type.dtype.itemsize
            yield self._elements(name, raw, type.with_shape((count,)))
            start += raw.size

    def byte_parts(self, name: str, most: int) -> Iterator[np.ndarray]:
        """Yield the bytes in order, `most` at a time, like `parts`, with the same errors."""
        self._opened(name)
        entry = self.entry(name)
        for start in range(0, entry.nbytes, most):
            yield self._bytes_at(name, min(most, entry.nbytes - start), start)

    def _bytes_at(self, name: str, size: int, start: int) -> np.ndarray:
        """Return `size` bytes of a tensor, from its byte `start` on."""
        try:
            data = read_at(self._descriptor, size, self.entry(name).offset + start)
        except OSError as problem:
            raise refused(str(self.path), name, str(problem.strerror)) from problem
        # A short read is the end of the file: it shrank after it was opened.
        if len(data) != size:
            self._require_same_size(name, os.fstat(self._descriptor).st_size)
            raise refused(str(self.path), name, "the file became shorter while it was read")
        return np.frombuffer(data, np.uint8)

    def require_unchanged(self) -> None:
        """CheckpointError if the file was cut, grown or written to since it was opened.

        Otherwise results computed from its arrays are, or will be, wrong. A closed file is not
        checked.
        """
        if self._mapping is None:
            return
        status = os.fstat(self._descriptor)
        # The ctime would also change when the file is renamed, or replaced by a renamed one, which
        # does no harm: the mapping keeps the old content.
        if (status.st_size, status.st_mtime_ns) != (self.size, self._written_ns):
            raise changed_in_use(str(self.path), self.size, status.st_size)

    def close(self) -> None:
        """Refuse further reads; the memory is unmapped once no array uses it."""
        self._mapping = None
        self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _opened(self, name: str) -> mmap.mmap:
        if self._mapping is None:
            raise UsageError(f"{quoted(str(self.path), 200)} was closed before {quoted(name)}")
        return self._mapping

    def _require_same_size(self, name: str, found: int) -> None:
        if found != self.size:
            problem = f"the file had {self.size} bytes when it was opened, now {found}"
            raise refused(str(self.path), name, problem, "load the model again")

    def _elements(self, name: str, raw: np.ndarray, type: TensorType) -> np.ndarray:
        """Return the elements in the bytes `raw`, checked where not all bytes are elements."""
        dtype = type.dtype
        if dtype.bits == 4:
            try:
                return np.asarray(unpack_int4(raw, dtype, type.shape))
            except UsageError as problem:
                raise refused(str(self.path), name, problem.message) from problem
        # Any other byte in an array of bools is undefined behaviour in compiled code.
        if dtype.is_bool and raw.size and int(raw.max()) > 1:
            tag = self._entries[name].tag
            raise refused(str(self.path), name, f"an element of {tag} is neither 0 nor 1")
        return raw.view(dtype.numpy).reshape(type.shape)
