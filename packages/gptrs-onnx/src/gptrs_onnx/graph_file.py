"""A graph in a file, as a model sees it: its declaration, its weights, the findings of calls.

All three are kept on disk. A later process reads no ONNX, until it is called with new sizes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
from msgspec import Struct, field
from typing_extensions import override

from gptrs.api import CheckpointError, ExecutionError, GptrsError
from gptrs.api.backends import Backend, WeightIdentity
from gptrs.api.importers import ImportRecord, ModelInput
from gptrs.api.models import Tensor
from gptrs.api.programs import DType, TensorType
from gptrs.backend.weight_identity import WeightFile, file_digest
from gptrs.checkpoint.files.open_file import open_regular, resolved
from gptrs.checkpoint.formats.mapped_tensors import MappedTensors
from gptrs.checkpoint.formats.safetensors_header import TensorEntry
from gptrs.checkpoint.param_source import FileSource, IdentifyingSource, ParamSource
from gptrs_onnx.search import NeedsKnownError, shown
from gptrs_onnx.size_facts import Facts

if TYPE_CHECKING:
    from gptrs_onnx.inputs import Border


class NarrowType(Struct, frozen=True):
    """An element type that PTIR lacks: its numbers are held in those of another NumPy type."""

    name: str
    held: np.dtype[Any]
    own: np.dtype[Any]

    @property
    def is_strings(self) -> bool:
        """Whether the numbers are codes of strings."""
        return self.own.kind == "O"


class Convertible(Protocol):
    """A graph that was read."""

    def convert(
        self,
        known: Mapping[str, np.ndarray],
        free: Mapping[str, Tensor],
        weight: Callable[[str], Tensor],
        symbols: Mapping[int, int],
        assume: Callable[[], None],
        seed: int | None,
    ) -> tuple[Tensor, ...]:
        """Return the outputs, those of narrow types in the types that hold them.

        `known` and `free` are the inputs that are given. `symbols` of the program have these
        numbers in the graph: with any, `assume` is called before the conversion, and errors are
        SymbolsRefusedErrors. Random numbers follow from the seed; without one they are refused.
        """
        ...

    def unknown(
        self,
        known: Mapping[str, np.ndarray],
        free: Mapping[str, Tensor],
        weight: Callable[[str], Tensor],
        seed: int | None,
        others: Sequence[str],
    ) -> ExecutionError | None:
        """Return the error for a category that a node does not know; None if they know all.

        `others` are the strings of the call that the file lacks.
        """
        ...


class Weights(ParamSource, IdentifyingSource, Protocol):
    """The large initializers of a graph."""

    @property
    def data_files(self) -> Mapping[str, bytes] | None:
        """The digests of the files beside the model, by path; None if one was changed just now."""
        ...

    def places(self) -> Places | None:
        """Return where all weights are; None if one lies in no file as it is."""
        ...

    def require_unchanged(self) -> None:
        """CheckpointError if a file that is mapped was cut or written to."""
        ...


class GraphFile(Struct, frozen=True, dict=True):
    """A graph before it is known where it runs.

    `border` is None where inputs and outputs are tensors of numbers. `findings` are those of
    earlier processes, `stamp` tells its file; None for one in memory. `part` tells a stage of the
    graph from others, "" for all of it.
    """

    inputs: tuple[ModelInput, ...]
    outputs: tuple[str, ...]
    open_weights: Callable[[], Weights]
    read: Callable[[], Convertible]
    narrow: Mapping[str, NarrowType] = field(default_factory=dict[str, NarrowType])
    border: Border | None = None
    stamp: FileStamp | None = None
    findings: Findings | None = None
    part: str = ""

    @property
    def slots(self) -> tuple[ModelInput, ...]:
        """The inputs of the program, which are those of calls without a border."""
        return self.inputs if self.border is None else self.border.slots

    @cached_property
    def weights(self) -> Weights:
        """The weights, opened once."""
        return self.open_weights()

    @cached_property
    def graph(self) -> Convertible:
        """The graph itself, read where it was not; ModelError if its file is another one now."""
        return self.read()


class Findings(Struct, frozen=True):
    """Facts about the sizes of a graph, found by calls of it."""

    learnt: tuple[Facts, ...] = ()
    known: Mapping[str, NeedsKnownError] = field(default_factory=dict[str, NeedsKnownError])
    """Inputs whose values are known, and what asks for them."""
    is_static: bool = False
    """Whether symbols were refused, once and for all."""

    def plain(self) -> object:
        """Return them as tuples."""
        facts = [(dict(e.pinned), dict(e.same), e.equal, e.static) for e in self.learnt]
        known = {name: (tuple(each.origins), str(each)) for name, each in self.known.items()}
        return tuple(facts), known, self.is_static

    @classmethod
    def of(cls, plain: object) -> Findings:
        """Return those that `plain` gave."""
        facts, known, is_static = cast("tuple[Any, Any, bool]", plain)
        needs = {
            name: NeedsKnownError(frozenset(origins), why) for name, (origins, why) in known.items()
        }
        return cls(tuple([Facts(*each) for each in facts]), needs, is_static)


class FileStamp(Struct, frozen=True):
    """A file as it was when its model was loaded, and the record of what is found in it."""

    path: Path
    own: WeightFile
    record: ImportRecord

    @classmethod
    def of(cls, path: str | os.PathLike[str], backend: Backend) -> FileStamp | None:
        """Return the stamp of a file; None if it was changed just now, or nothing is kept."""
        file = Path(path)
        try:
            real = resolved(file)
            own = stamp_of(real)
        except (GptrsError, OSError):  # its reader raises a better error
            return None
        if own is None:
            return None
        # The folder: files beside the model are looked for there.
        known = "onnx", os.path.abspath(file.parent), own.path, own.digest
        record = ImportRecord.of(known, backend, ["gptrs_onnx"])
        return None if record is None else cls(file, own, record)

    def find(self, read: Callable[[], Convertible]) -> GraphFile | None:
        """Return what an earlier process kept of the file, which `read` reads where it must be.

        None if there is nothing, or a file beside it changed.
        """
        content = self.record.find()
        if content is None:
            return None
        slots, outputs, names, files, findings = cast("tuple[Any, ...]", content)
        if any(not _is_same(path, digest) for path, (digest, _) in files.items()):
            return None
        weights = KeptWeights(self.own, names, files)
        inputs = tuple([ModelInput(*each) for each in slots])
        found = Findings.of(findings)
        return GraphFile(inputs, outputs, lambda: weights, read, stamp=self, findings=found)

    def keep(self, file: GraphFile, places: Places, findings: Findings) -> None:
        """Keep what a graph declares, where its weights are, and what was found out."""
        slots = [(each.name, each.dtype, each.shape, each.optional) for each in file.inputs]
        names = tuple(file.weights.names())
        self.record.keep((tuple(slots), file.outputs, names, dict(places), findings.plain()))


Place = tuple[DType, tuple[int, ...], int, int]
"""Element type, shape, offset and bytes of a weight in a file."""
Places = Mapping[str, tuple[bytes, Mapping[str, Place]]]
"""By the path of a file, its digest and the weights in it."""


class KeptWeights(FileSource):
    """The weights of a graph where an earlier process found them, in `own` and beside it."""

    def __init__(self, own: WeightFile, names: tuple[str, ...], files: Places) -> None:
        self._own = own
        self._files = files
        path_of = {name: path for path, (_, inside) in files.items() for name in inside}
        super().__init__({name: path_of[name] for name in names}, self._opened_file, own.path)
        self._type_of = {
            name: TensorType(dtype, shape)
            for _, inside in files.values()
            for name, (dtype, shape, *_) in inside.items()
        }

    @property
    def data_files(self) -> Mapping[str, bytes]:
        """The digests of the files beside the model, by path."""
        return {path: digest for path, (digest, _) in self._files.items() if path != self._own.path}

    def places(self) -> Places:
        """Return where all weights are."""
        return self._files

    @override
    def type_of(self, name: str) -> TensorType:
        # Known without opening the file.
        found = self._type_of.get(name)
        return super().type_of(name) if found is None else found

    @override
    def identity_of(self, name: str) -> WeightIdentity | None:
        if name in self._files.get(self._own.path, (b"", {}))[1]:
            return identity_inside(name, self.type_of(name), self._own)
        return super().identity_of(name)

    def _opened_file(self, path: str) -> MappedTensors:
        digest, inside = self._files[path]
        entries = {
            name: TensorEntry(name, str(dtype), dtype, shape, offset, nbytes)
            for name, (dtype, shape, offset, nbytes) in inside.items()
        }
        descriptor = open_regular(Path(path), CheckpointError)
        try:
            status = os.fstat(descriptor)
            if file_digest(status) != digest:
                raise CheckpointError(
                    f"`{shown(path)}` was changed since the model was loaded",
                    hint="load the model again",
                )
            return MappedTensors(Path(path), descriptor, status.st_size, entries)
        finally:
            os.close(descriptor)


def identity_inside(name: str, type_: TensorType, own: WeightFile) -> WeightIdentity:
    """Return what tells a weight that the file of its model holds from all others."""
    return WeightIdentity.of(repr(("inside", name, str(type_))).encode(), own)


def place_in(data: bytes, wanted: bytes, start: int) -> int:
    """Return where `data` has `wanted`, looked for from `start` on at first; -1 without it."""
    # Weights mostly lie one after the other, a few bytes of names apart. The other search takes
    # nanoseconds a byte, but no longer where many places begin like the weight.
    place = data.find(wanted[:_HEAD], start, start + _GAP)
    if place >= 0 and data.startswith(wanted, place):
        return place
    return data.find(wanted)


_HEAD = 64
_GAP = 1 << 16


def stamp_of(file: Path) -> WeightFile | None:
    """Return the content of a file, unaffected by later changes; None if it is too new."""
    descriptor = open_regular(file)
    try:
        found = WeightFile.of(str(file), descriptor, lambda: True)
    finally:
        os.close(descriptor)
    if found is None:
        return None
    return WeightFile(found.digest, found.path, lambda: _is_same(found.path, found.digest))


def _is_same(path: str, digest: bytes) -> bool:
    try:
        return file_digest(os.stat(path)) == digest
    except OSError:
        return False
