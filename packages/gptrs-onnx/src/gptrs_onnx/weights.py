"""The large initializers of an ONNX file as a source of parameters, read where they lie.

External data is mapped as the weights of all files are, guarded against files that are cut. Each
has an identity, under which what is made of a weight is kept for later processes: that of its file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import onnx_ir as ir

from gptrs.api import CheckpointError, ModelError
from gptrs.api.backends import WeightIdentity
from gptrs.api.programs import TensorType
from gptrs.backend.weight_identity import WeightFile
from gptrs.checkpoint.files.open_file import open_regular
from gptrs.checkpoint.formats.mapped_tensors import MappedTensors
from gptrs.checkpoint.formats.safetensors_header import TensorEntry
from gptrs_onnx.element_types import dtype_of
from gptrs_onnx.node import shown, stored_array


class InitializerSource:
    """Initializers by name; those in other files are mapped, others are views of the model.

    `own` is the file of the model as it was when it was read, None if that is not known.
    """

    def __init__(self, stored: dict[str, ir.TensorProtocol], own: WeightFile | None = None) -> None:
        self._stored = stored
        self._own = own
        self._files = _mapped(stored)

    def names(self) -> Sequence[str]:
        """Return the names of all initializers."""
        return tuple(self._stored)

    def type_of(self, name: str) -> TensorType:
        """Return the element type and shape; CheckpointError if there is no such initializer."""
        return _type_of(name, self._tensor(name))

    def identity_of(self, name: str) -> WeightIdentity | None:
        """Return what tells an initializer from all others; None if its file is too new."""
        file = self._files.get(name)
        if file is not None:
            return file.identity_of(name)
        type_ = self.type_of(name)
        place = repr(("inside", name, str(type_)))
        return None if self._own is None else WeightIdentity.of(place.encode(), self._own)

    def load(self, name: str) -> np.ndarray:
        """Return the elements; ModelError where the file does not hold them."""
        file = self._files.get(name)
        return self._inner(name) if file is None else file.read(name)

    def view(self, name: str) -> np.ndarray:
        """Return what `load` does, as a view of the mapped file where it can be one."""
        file = self._files.get(name)
        return self._inner(name) if file is None else file.view(name)

    def parts(self, name: str) -> Iterator[np.ndarray]:
        """Yield the elements in order, as flat arrays; errors are those of `load`."""
        file = self._files.get(name)
        if file is None:
            yield self._inner(name).reshape(-1)
        else:
            yield from file.parts(name)

    def _inner(self, name: str) -> np.ndarray:
        """Return the elements of an initializer that the message itself holds."""
        wanted = self.type_of(name)
        found = stored_array(self._tensor(name), f"the initializer `{shown(name)}`")
        if found.shape != wanted.shape:
            raise CheckpointError(f"the initializer `{shown(name)}` is {found.shape}, not {wanted}")
        return found

    def _tensor(self, name: str) -> ir.TensorProtocol:
        found = self._stored.get(name)
        if found is None:
            raise CheckpointError(f"the model has no initializer `{shown(name)}`")
        return found


def _type_of(name: str, tensor: ir.TensorProtocol) -> TensorType:
    sizes = tuple(int(size) for size in tensor.shape)  # pyright: ignore[reportArgumentType]
    return TensorType(dtype_of(tensor.dtype, f"the initializer `{shown(name)}`"), sizes)


def _mapped(stored: Mapping[str, ir.TensorProtocol]) -> dict[str, MappedTensors]:
    """Return the mapped file of each initializer in another file; ModelError for a broken one."""
    entries: dict[Path, dict[str, TensorEntry]] = {}
    for name, tensor in stored.items():
        if isinstance(tensor, ir.ExternalTensor):
            folder, file = cast("str", tensor.base_dir), cast("str", tensor.location)
            place = Path(os.fspath(folder)) / os.fspath(file)
            entries.setdefault(place.resolve(), {})[name] = _entry(name, tensor)
    found: dict[str, MappedTensors] = {}
    for path, inside in entries.items():
        descriptor = open_regular(path)
        try:
            file = MappedTensors(path, descriptor, os.fstat(descriptor).st_size, inside)
        finally:
            os.close(descriptor)
        _require_inside(file, inside)
        found.update(dict.fromkeys(inside, file))
    return found


def _entry(name: str, tensor: ir.ExternalTensor) -> TensorEntry:
    type_ = _type_of(name, tensor)
    nbytes = (type_.size + 1) // 2 if type_.dtype.bits == 4 else type_.nbytes
    if tensor.length not in (None, nbytes):
        raise ModelError(
            f"the initializer `{shown(name)}` has {tensor.length} bytes, `{type_}` takes {nbytes}"
        )
    return TensorEntry(name, str(type_.dtype), type_.dtype, type_.shape, tensor.offset or 0, nbytes)


def _require_inside(file: MappedTensors, entries: Mapping[str, TensorEntry]) -> None:
    """ModelError for an initializer beyond the end of a file that was cut since it was checked."""
    for name, entry in entries.items():
        if entry.offset + entry.nbytes > file.size:
            raise ModelError(
                f"the initializer `{shown(name)}` ends at byte {entry.offset + entry.nbytes},"
                f" its file has {file.size}"
            )
