"""Where a model is written anew: a folder, one file, or tensors alone; whole or not at all."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, Literal

import numpy as np

from gptrs.checkpoint.files.atomic_write import atomic_file
from gptrs.checkpoint.formats import gptrschk
from gptrs.checkpoint.formats.foreign_files import OutgoingTensor
from gptrs.checkpoint.formats.safetensors import require_storable, write_safetensors
from gptrs.checkpoint.formats.tensor_archive import ARCHIVE_SUFFIXES, require_writable
from gptrs.checkpoint.formats.tensor_index import stored_bytes
from gptrs.errors import ModelError, UsageError
from gptrs.progress import StepProgress
from gptrs.quick_dataclass import dataclass
from gptrs.quoting import listed, quoted
from gptrs_runtime.converting.atomic_folder import StagedFolder, atomic_folder
from gptrs_runtime.converting.model_content import StoredModel, index_text, split
from gptrs_runtime.sources.gptrschk_model import settings_of
from gptrs_runtime.sources.hf_directory import INDEX, WEIGHTS
from gptrs_runtime.sources.model_source import CONFIG

Form = Literal["hf", "gptrschk", "tensors"]
"""A folder as Hugging Face libraries save it, one file for all, or tensors alone."""


_OF_MODELS: Final = re.compile(r"\d+_\w+|additional_chat_templates")
"""Folders in those of models: of the modules of sentence-transformers, and of chat templates."""


@dataclass(frozen=True)
class Destination:
    """A destination and how to write to it."""

    path: Path
    shard_size: int | None
    replace: bool


Written = tuple[list[str], Sequence[str]]
"""The names of the files that were written, and of those that were left out."""


def require_free(path: Path, form: Form, force: bool) -> None:
    """UsageError unless nothing is at `path` that would be lost unasked, or that is no model."""
    shown = quoted(str(path), 200)
    if form != "hf":
        if path.is_file() and path.stat().st_size and not force:
            raise UsageError(f"{shown} exists", hint="`--force` replaces it")
        return
    if path.exists() and not path.is_dir():
        raise UsageError(f"{shown} is a file, a folder is to be written")
    names = os.listdir(path) if path.exists() else []
    if names and not force:
        raise UsageError(f"the folder {shown} is not empty", hint="`--force` replaces a model")
    if names and CONFIG not in names:
        raise UsageError(
            f"the folder {shown} holds no model that could be replaced: it has no `{CONFIG}`",
            hint="choose another folder, or remove it yourself",
        )
    _require_no_others(path, names)


def _require_no_others(path: Path, names: Sequence[str]) -> None:
    """UsageError if a folder of a model holds folders of something else: they would be lost."""
    folders = (name for name in names if (path / name).is_dir() and not _OF_MODELS.fullmatch(name))
    if found := sorted(folders):
        raise UsageError(
            f"the folder {quoted(str(path), 200)} holds more than a model, which replacing it would"
            f" remove: the {'folders' if found[1:] else 'folder'} {listed(found, 4)}",
            hint="choose another folder, or remove it yourself",
        )


def require_apart(source: Path, destination: Path) -> None:
    """UsageError if the source would vanish with the folder that the destination replaces."""
    if Path(os.path.realpath(destination)) in Path(os.path.realpath(source)).parents:
        raise UsageError(
            f"{quoted(str(source), 200)} lies in {quoted(str(destination), 200)}, which is to be"
            " written anew",
            hint="choose another folder",
        )


def watched(
    tensors: Sequence[OutgoingTensor], progress: StepProgress | None
) -> Sequence[OutgoingTensor]:
    """Return the same tensors; each part that is read moves the progress."""
    if progress is None:
        return tensors
    total = sum(stored_bytes(tensor.type) for tensor in tensors)
    done = 0

    def parts(tensor: OutgoingTensor) -> Iterator[np.ndarray]:
        nonlocal done
        for part in tensor.parts():
            progress(done, total, tensor.name)
            yield part
            done += stored_bytes(tensor.type.with_shape((part.size,)))
        progress(done, total, "")

    return [replace(tensor, parts=partial(parts, tensor)) for tensor in tensors]


def _write_folder(model: StoredModel, destination: Destination) -> Written:
    config = _require_config(model)
    own = [tensor for tensor in model.tensors if "/" not in tensor.name]
    for tensor in own:
        require_storable(tensor)
    weights = {**split(own, destination.shard_size), **_of_subfolders(model.tensors)}
    texts = {name: data for name, data in model.files.items() if name not in (CONFIG, INDEX)}
    texts[CONFIG] = json.dumps(dict(config), indent=2, ensure_ascii=False).encode("utf-8")
    shards = {name: group for name, group in weights.items() if "/" not in name}
    if len(shards) > 1:
        texts[INDEX] = index_text(shards).encode("utf-8")
    with atomic_folder(destination.path, replace=destination.replace) as folder:
        for name, data in texts.items():
            with folder.file(name) as file:
                file.write(data)
        _write_weights(folder, weights)
    return sorted([*texts, *weights]), model.left_out


def _write_weights(folder: StagedFolder, weights: Mapping[str, Sequence[OutgoingTensor]]) -> None:
    for name, group in weights.items():
        with folder.file(name) as file:
            write_safetensors(file, group, {"format": "pt"})


def _of_subfolders(tensors: Sequence[OutgoingTensor]) -> dict[str, list[OutgoingTensor]]:
    """Return the tensors called `FOLDER/NAME`, by the file in which they are called `NAME`."""
    found: dict[str, list[OutgoingTensor]] = {}
    for tensor in tensors:
        subfolder, slash, name = tensor.name.rpartition("/")
        if slash:
            found.setdefault(f"{subfolder}/{WEIGHTS}", []).append(replace(tensor, name=name))
    return found


def _write_checkpoint(model: StoredModel, destination: Destination) -> Written:
    config = _require_config(model)
    texts: dict[str, str] = {}
    left_out = list(model.left_out)
    for name, data in model.files.items():
        try:
            texts[name] = data.decode("utf-8")
        except UnicodeDecodeError:
            left_out.append(name)
    settings = settings_of(config, texts)
    with atomic_file(destination.path) as file:
        gptrschk.write_gptrschk(file, settings, model.tensors)
    return [destination.path.name], left_out


def _write_tensors(model: StoredModel, destination: Destination) -> Written:
    write = require_writable(destination.path)
    with atomic_file(destination.path) as file:
        write(file, model.tensors)
    return [destination.path.name], [*model.files, *model.left_out]


def _require_config(model: StoredModel) -> Mapping[str, object]:
    if model.config is None:
        raise ModelError(
            f"{quoted(str(model.path), 200)} holds tensors without the settings of a model",
            hint=f"name a model folder, or a destination that ends in {' '.join(ARCHIVE_SUFFIXES)}",
        )
    return model.config


WRITERS: Mapping[Form, Callable[[StoredModel, Destination], Written]] = {
    "hf": _write_folder,
    "gptrschk": _write_checkpoint,
    "tensors": _write_tensors,
}
