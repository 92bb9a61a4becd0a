"""All that is stored of a model or a file of tensors, on its way into another format."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import partial
from pathlib import Path

import numpy as np

from gptrs.checkpoint.formats.outgoing_tensor import OutgoingTensor
from gptrs.checkpoint.formats.tensor_archive import TensorArchive, open_archive
from gptrs.errors import ModelError
from gptrs.quick_dataclass import dataclass
from gptrs_runtime.sources.find_model import find_model, is_checkpoint
from gptrs_runtime.sources.model_source import MAX_TOKENIZER_BYTES, ModelSource

CARRIED = (".json", ".jinja", ".txt", ".md", ".model")
"""Suffixes of the files that belong to a model beside its weights: settings, texts, tokenizers."""


@dataclass(frozen=True)
class StoredModel:
    """The tensors (`FOLDER/NAME` for those of a subfolder) and files by name that are carried over.

    `config` is None for a file of tensors without a model. `left_out` names files that are not of
    a kind that belongs to a model. `path` is where it lies.
    """

    path: Path
    tensors: Sequence[OutgoingTensor]
    config: Mapping[str, object] | None = None
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    left_out: Sequence[str] = ()


def open_stored(name: str | os.PathLike[str]) -> StoredModel:
    """Return the model, or the file of tensors, that `name` means: a path or a hub id.

    Tensors are read when they are written. ModelError or CheckpointError says what is wrong.
    """
    if os.path.isfile(name) and not is_checkpoint(name):
        archive = open_archive(name)
        return StoredModel(Path(name), [_of_archive(archive, tensor) for tensor in archive.names()])
    return stored_model(find_model(name))


def _of_archive(archive: TensorArchive, name: str) -> OutgoingTensor:
    def whole() -> tuple[np.ndarray]:
        return (archive.read(name),)

    return OutgoingTensor(name, archive.type_of(name), whole)


def stored_model(source: ModelSource) -> StoredModel:
    """Return all that is stored of a model that was opened."""
    files: dict[str, bytes] = {}
    left_out: list[str] = []
    for name in source.file_names():
        data = _carried(source, name)
        if data is None:
            left_out.append(name)
        else:
            files[name] = data
    weights = source.weights
    tensors = [
        OutgoingTensor(name, weights.type_of(name), partial(weights.parts, name))
        for name in weights.names()
    ]
    for subfolder in source.tensor_folders():
        for name, array in (source.tensors_in(subfolder) or {}).items():
            tensors.append(OutgoingTensor.of(f"{subfolder}/{name}", array))
    return StoredModel(source.path, tensors, source.config, files, left_out)


def _carried(source: ModelSource, name: str) -> bytes | None:
    """Return the content of a file of the model; None for any other, or a link out of it."""
    if not name.lower().endswith(CARRIED):
        return None
    subfolder, _, plain = name.rpartition("/")
    try:
        return source.read_bytes(plain, subfolder, MAX_TOKENIZER_BYTES)
    except ModelError:
        return None
