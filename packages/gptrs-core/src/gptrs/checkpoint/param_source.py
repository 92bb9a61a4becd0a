"""The source of the values of parameters: one mapped file, or several shards as one."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from gptrs.backend.weight_identity import WeightIdentity
from gptrs.checkpoint.formats.mapped_tensors import MappedTensors
from gptrs.checkpoint.formats.safetensors import SafetensorsFile
from gptrs.checkpoint.formats.safetensors_header import TensorEntry
from gptrs.errors import CheckpointError
from gptrs.ir.tensor_type import TensorType
from gptrs.quoting import counted, quoted


class ParamSource(Protocol):
    """Named tensors, read one at a time and only when asked for; may be used by several threads."""

    def names(self) -> Sequence[str]:
        """Return the names of all tensors, in a fixed order."""
        ...

    def type_of(self, name: str) -> TensorType:
        """Return the stored dtype and shape; CheckpointError if absent or unreadable."""
        ...

    def load(self, name: str) -> np.ndarray:
        """Return the tensor in its stored dtype, perhaps read-only; CheckpointError without it."""
        ...


@runtime_checkable
class IdentifyingSource(Protocol):
    """A source whose tensors can be recognized in other processes."""

    def identity_of(self, name: str) -> WeightIdentity | None:
        """Return what tells the stored tensor from all others; None if that is not known."""
        ...


@runtime_checkable
class MappedSource(Protocol):
    """A source whose tensors lie in files."""

    def view(self, name: str) -> np.ndarray:
        """Return what `load` does, perhaps as a view of a mapped file.

        Who reads it must be ready for a file that is cut, see `gptrs.backend.mapped_files`.
        """
        ...

    def parts(self, name: str) -> Iterator[np.ndarray]:
        """Yield the elements in order, as flat arrays; errors are those of `load`."""
        ...


@runtime_checkable
class PartialSource(Protocol):
    """A source that reads parts of tensors."""

    def read_slice(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """Return a part of a tensor, a slice for each axis; errors are those of `load`.

        Little more of the file than the part is in memory at once.
        """
        ...


class FileSource:
    """Tensors in one or more mapped files, each opened when a tensor in it is asked for.

    `shard_of` maps each tensor to the name of its file, `open_shard` opens a file by that name, and
    `origin` says in errors where the mapping is from.
    """

    def __init__(
        self,
        shard_of: Mapping[str, str],
        open_shard: Callable[[str], MappedTensors],
        origin: str,
    ) -> None:
        self.origin = origin
        self._shard_of = dict(shard_of)
        self._open_shard = open_shard
        self._opened: dict[str, MappedTensors] = {}
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        tensors, files = len(self._shard_of), len(self.files)
        parts = f"{counted(tensors, 'tensor')} in {counted(files, 'file')}"
        return f"<FileSource {self.origin}: {parts}>"

    @classmethod
    def of_file(cls, path: str | os.PathLike[str], *, shown_as: Path | None = None) -> FileSource:
        """Return the tensors of one file; CheckpointError if it is not a sound safetensors file."""
        file = SafetensorsFile.open(path, shown_as=shown_as)
        return cls(dict.fromkeys(file.entries, file.path.name), lambda _: file, str(file.path))

    @property
    def files(self) -> tuple[str, ...]:
        """The names of all files that hold tensors, opened or not."""
        return tuple(dict.fromkeys(self._shard_of.values()))

    def open_files(self) -> Sequence[MappedTensors]:
        """Return all files that hold tensors, opened; CheckpointError for one that is not sound."""
        firsts = {shard: name for name, shard in reversed(self._shard_of.items())}
        return tuple(self._file_of(firsts[shard]) for shard in self.files)

    def require_unchanged(self) -> None:
        """CheckpointError if an opened file was cut or written to, see `MappedTensors`."""
        for file in tuple(self._opened.values()):
            file.require_unchanged()

    def names(self) -> Sequence[str]:
        """Return the names of all tensors, in the order of the file or the index."""
        return tuple(self._shard_of)

    def type_of(self, name: str) -> TensorType:
        """Return the stored dtype and shape; CheckpointError if absent or unreadable."""
        return self._file_of(name).type_of(name)

    def identity_of(self, name: str) -> WeightIdentity | None:
        """Return what tells the tensor from all others, as `MappedTensors.identity_of` does."""
        return self._file_of(name).identity_of(name)

    def load(self, name: str) -> np.ndarray:
        """Return a read-only array, as `MappedTensors.read` does."""
        return self._file_of(name).read(name)

    def view(self, name: str) -> np.ndarray:
        """Return a read-only array over the mapped file, as `MappedTensors.view` does."""
        return self._file_of(name).view(name)

    def parts(self, name: str) -> Iterator[np.ndarray]:
        """Yield the elements of a tensor in order, as `MappedTensors.parts` does."""
        return self._file_of(name).parts(name)

    def read_slice(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """Return a part of a tensor, as `MappedTensors.read_slice` does."""
        return self._file_of(name).read_slice(name, index)

    def locate(self, name: str) -> tuple[MappedTensors, TensorEntry]:
        """Return the file of a tensor and its place there; CheckpointError if there is none."""
        file = self._file_of(name)
        return file, file.entry(name)

    @cached_property
    def _names_in(self) -> dict[str, list[str]]:
        grouped: dict[str, list[str]] = {}
        for name, shard in self._shard_of.items():
            grouped.setdefault(shard, []).append(name)
        return grouped

    def _file_of(self, name: str) -> MappedTensors:
        shard = self._shard_of.get(name)
        if shard is None:
            raise CheckpointError(f"{quoted(self.origin, 200)} has no tensor {quoted(name)}")
        with self._lock:
            file = self._opened.get(shard)
            if file is None:
                file = self._open_shard(shard)
                self._check_shard(shard, file)
                self._opened[shard] = file
        return file

    def _check_shard(self, shard: str, file: MappedTensors) -> None:
        """Raise unless the file holds what is mapped to it, and nothing mapped to another one."""
        for name in self._names_in[shard]:
            if name not in file.entries:
                raise self._mismatch(name, shard, f"{quoted(shard)} does not have it")
        for name in file.entries:
            mapped = self._shard_of.get(name, shard)
            if mapped != shard:
                raise self._mismatch(name, mapped, f"{quoted(shard)} has a tensor of that name too")

    def _mismatch(self, name: str, shard: str, problem: str) -> CheckpointError:
        return CheckpointError(
            f"{quoted(self.origin, 200)} places tensor {quoted(name)} in {quoted(shard)},"
            f" but {problem}",
            hint="the index and the shards are not of one model, download all of them again",
        )
