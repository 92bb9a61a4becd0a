"""The source of the values of parameters: one mapped file, or several shards as one."""

from __future__ import annotations

import difflib
import itertools
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final, Protocol, cast, runtime_checkable

import numpy as np
from msgspec import Struct

from gptrs.backend.sharding import Axes
from gptrs.backend.weight_identity import WeightIdentity
from gptrs.checkpoint.formats.mapped_tensors import MappedTensors
from gptrs.checkpoint.formats.safetensors import SafetensorsFile
from gptrs.checkpoint.formats.safetensors_header import TensorEntry
from gptrs.errors import CheckpointError, ModelError
from gptrs.ir.dtypes import DType
from gptrs.ir.tensor_type import TensorType
from gptrs.quoting import counted, listed, quoted, shown_value

_logger = logging.getLogger("gptrs")


class ParamSource(Protocol):
    """Named tensors, read one at a time and on demand; may be used by several threads."""

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
        """Return the identity of the stored tensor; None if unknown."""
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
        """Yield the elements in order, as flat arrays; raises the same errors as `load`."""
        ...


@runtime_checkable
class WatchedSource(Protocol):
    """A source that knows whether its files are those that it opened."""

    def require_unchanged(self) -> None:
        """CheckpointError if an opened file was cut or written to."""
        ...


@runtime_checkable
class ComparingSource(Protocol):
    """A source that knows which of its tensors are copies."""

    def is_copy(self, name: str, other: str) -> bool:
        """Return whether two tensors have the same type and values; may miss a copy."""
        ...


@runtime_checkable
class PartialSource(Protocol):
    """A source that reads parts of tensors."""

    def read_slice(self, name: str, index: tuple[slice, ...]) -> np.ndarray:
        """Return a part of a tensor, a slice for each axis; raises the same errors as `load`.

        Little more than this part of the file is in memory at any time.
        """
        ...


class FileSource:
    """Tensors in one or more mapped files, each opened on first use of a tensor in it.

    `shard_of` maps each tensor to the name of its file, `open_shard` opens a file by that name, and
    `origin` names the source of the mapping in errors.
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
        """Return the identity of the tensor, as `MappedTensors.identity_of` does."""
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

    def is_copy(self, name: str, other: str) -> bool:
        """Return whether two tensors have the same type and bits; reads both until they differ."""
        if self.type_of(name) != self.type_of(other):
            return False
        pairs = zip(self.parts(name), self.parts(other), strict=True)
        return all(one.tobytes() == two.tobytes() for one, two in pairs)

    def locate(self, name: str) -> tuple[MappedTensors, TensorEntry]:
        """Return the file of a tensor and its entry; CheckpointError if there is none."""
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
        """Raise unless the file holds the tensors mapped to it; note others that are elsewhere."""
        for name in self._names_in[shard]:
            if name not in file.entries:
                raise CheckpointError(
                    f"{quoted(self.origin, 200)} places tensor {quoted(name)} in {quoted(shard)},"
                    f" but {quoted(shard)} does not have it",
                    hint="the index and the shards are not of one model, download all of them"
                    " again",
                )
        others = [name for name in file.entries if self._shard_of.get(name, shard) != shard]
        if others:
            # Some models replace a few tensors of another one by a further shard and the index.
            _logger.warning(
                "%s places %s in other files than %s, whose %s ignored: %s",
                *(quoted(self.origin, 200), counted(len(others), "tensor"), quoted(shard)),
                *("copy is" if len(others) == 1 else "copies are", listed(others, 3)),
            )


# A tensor of a checkpoint as users see it: its type now, its value when they ask for it.


class StoredTensor(Struct, frozen=True):
    """A tensor by its name in the checkpoint, as stored."""

    name: str
    type: TensorType
    source: ParamSource

    def __repr__(self) -> str:
        return f"StoredTensor(name={self.name!r}, type={self.type!r})"

    def __eq__(self, other: object) -> bool:
        """Return whether name and type are equal, wherever the tensors are stored."""
        return (
            isinstance(other, StoredTensor) and self.name == other.name and self.type == other.type
        )

    def __hash__(self) -> int:
        return hash((self.name, self.type))

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the sizes of its axes."""
        return tuple(int(size) for size in self.type.shape)

    @property
    def dtype(self) -> DType:
        """Return its element type."""
        return self.type.dtype

    def numpy(self) -> np.ndarray:
        """Read the value, a view of mapped memory where the file allows it; do not write to it."""
        return self.source.load(self.name)


# Plans of transformers for parallel weights, `base_model_tp_plan`, as names of axes.


PLAN: Final = "base_model_tp_plan"
"""The key in config.json."""
_OUTPUTS: Final = ("colwise", "colwise_rep", "colwise_gather_output", "embedding_rowwise")
_INPUTS: Final = ("rowwise", "rowwise_rep", "rowwise_split_input")


class TensorPlan:
    """A plan: patterns of module names, `layers.*.mlp.up_proj`, and how their weights are split.

    ModelError for a plan that is not a mapping of texts, and for a style that is unknown of a
    module with weights.
    """

    def __init__(self, plan: object, origin: str) -> None:
        given = cast("Mapping[object, object]", plan) if isinstance(plan, Mapping) else None
        entries: Mapping[object, object] = {"": None} if given is None else given
        self._styles: list[tuple[re.Pattern[str], str]] = []
        self._origin = origin
        for pattern, style in entries.items():
            if not isinstance(pattern, str) or not isinstance(style, str):
                found = shown_value(cast("object", plan))
                raise ModelError(f"`{PLAN}` in {origin} must map modules to styles, got {found}")
            form = re.escape(pattern).replace(r"\*", r"[^.]+")
            self._styles.append((re.compile(rf"(?:.+\.)?{form}"), style))

    def axes(self, name: str, rank: int, use: str | None) -> Axes:
        """Return the axes of the weight or bias `name`, all whole if the plan is silent."""
        module = name.rpartition(".")[0]
        style = next((style for form, style in self._styles if form.fullmatch(module)), None)
        whole: Axes = (None,) * rank
        if style is None or style == "replicated_with_grad_allreduce" or rank == 0:
            return whole
        if style not in _OUTPUTS and style not in _INPUTS:
            raise ModelError(
                f"`{PLAN}` in {self._origin} splits {quoted(module)} by `{style}`, which is not"
                " supported",
                hint=f"supported are {', '.join((*_OUTPUTS, *_INPUTS))}",
            )
        outputs = style in _OUTPUTS
        if rank == 1:
            return ("tensor",) if outputs else whole
        first = outputs != (use == "turned")
        return ("tensor", *whole[1:]) if first else (None, "tensor", *whole[2:])


# The hint for a tensor that a checkpoint lacks: the names that come closest.


_MOST_COMPARED = 2000
_LONGEST_COMPARED = 200


def suggest(name: str, names: Sequence[str]) -> str:
    """Return a line on the names closest to the missing `name`, in time linear in `names`."""
    if not names:
        return "it has no tensors at all"
    moved = [other for other in names if _differ_by_prefix(name, other)]
    close = moved or _similar(name, names)
    if close:
        return f"did you mean {listed(close, 3)}?"
    prefix, below = _deepest_prefix(name, names)
    if below:
        return f"below {quoted(prefix)} it has {listed(below)}"
    return f"it has {listed(names)}"


def _differ_by_prefix(name: str, other: str) -> bool:
    return name.endswith(f".{other}") or other.endswith(f".{name}")


def _similar(name: str, names: Sequence[str]) -> list[str]:
    if len(name) > _LONGEST_COMPARED:
        return []
    short = (other for other in names if len(other) <= _LONGEST_COMPARED)
    compared = list(itertools.islice(short, _MOST_COMPARED))
    return difflib.get_close_matches(name, compared, n=3, cutoff=0.85)


def _deepest_prefix(name: str, names: Sequence[str]) -> tuple[str, list[str]]:
    """Return the longest dotted prefix of `name` that other names share, and those names."""
    parts = name.split(".")
    depths = [_shared(parts, other.split(".")) for other in names]
    deepest = max(depths)
    below = [other for other, depth in zip(names, depths, strict=True) if depth == deepest]
    return (".".join(parts[:deepest]), below) if deepest else ("", [])


def _shared(parts: list[str], others: list[str]) -> int:
    equal = (part == other for part, other in zip(parts, others, strict=False))
    return sum(itertools.takewhile(bool, equal))
