"""Rewrites a model or tensors in another format, type, or split into files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Literal, cast

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from gptrs.checkpoint.files.atomic_write import atomic_file
from gptrs.checkpoint.formats import gptrschk
from gptrs.checkpoint.formats.foreign_files import ForeignFormat, OutgoingTensor, foreign_format
from gptrs.checkpoint.formats.safetensors import require_storable, write_safetensors
from gptrs.checkpoint.formats.tensor_archive import ARCHIVE_SUFFIXES, require_writable
from gptrs.checkpoint.formats.tensor_index import stored_bytes
from gptrs.errors import ModelError, UsageError
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.progress import StepProgress
from gptrs.quoting import listed, quoted
from gptrs_runtime.converting.atomic_folder import StagedFolder, atomic_folder
from gptrs_runtime.converting.model_content import (
    StoredModel,
    in_dtype,
    index_text,
    open_stored,
    split,
)
from gptrs_runtime.results import Converted
from gptrs_runtime.sources.hf_directory import INDEX, WEIGHTS
from gptrs_runtime.sources.model_source import CONFIG, settings_of

# Destinations of a rewritten model: a folder, a file, or a file of tensors only; written
# atomically.


Form = Literal["hf", "gptrschk", "tensors"]
"""A folder as Hugging Face libraries save it, one file for everything, or only tensors."""


_OF_MODELS: Final = re.compile(r"\d+_\w+|additional_chat_templates")
"""Subfolders that belong to models: modules of sentence-transformers, and chat templates."""


class Destination(Struct, frozen=True):
    """A destination and how to write to it."""

    path: Path
    shard_size: int | None
    replace: bool


Written = tuple[list[str], Sequence[str]]
"""The names of the files that were written, and of those that were left out."""


def require_free(path: Path, form: Form, force: bool) -> None:
    """Raise UsageError if `path` exists and may not be replaced, or is not a model."""
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
    """UsageError if a model's folder contains foreign folders, which would be lost."""
    folders = (name for name in names if (path / name).is_dir() and not _OF_MODELS.fullmatch(name))
    if found := sorted(folders):
        raise UsageError(
            f"the folder {quoted(str(path), 200)} holds more than a model, which replacing it would"
            f" remove: the {'folders' if found[1:] else 'folder'} {listed(found, 4)}",
            hint="choose another folder, or remove it yourself",
        )


def require_apart(source: Path, destination: Path) -> None:
    """UsageError if the source lies in the folder that the destination replaces."""
    if Path(os.path.realpath(destination)) in Path(os.path.realpath(source)).parents:
        raise UsageError(
            f"{quoted(str(source), 200)} lies in {quoted(str(destination), 200)}, which would"
            " be overwritten",
            hint="choose another folder",
        )


def watched(
    tensors: Sequence[OutgoingTensor], progress: StepProgress | None
) -> Sequence[OutgoingTensor]:
    """Return the same tensors with progress reported as parts are read."""
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
    texts[CONFIG] = json.dumps(dict(config), indent=2, ensure_ascii=False).encode("utf-8") + b"\n"
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
    """Return the tensors called `FOLDER/NAME`, by the file that has them as `NAME`."""
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
    for tensor in model.tensors:
        # An `.npy` file names its array by the name of the file, whose bytes may be anything.
        if any("\ud800" <= letter <= "\udfff" for letter in tensor.name):
            raise UsageError(
                f"the tensor {quoted(tensor.name)} has a name that is not UTF-8, as files need it",
                hint="rename the file that it comes from" if model.path.is_file() else None,
            )
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


CHECKPOINT_SUFFIX = ".gptrschk"
_DTYPE_KEYS = ("dtype", "torch_dtype")
_DTYPE_NAMES = {dtypes.f32: "float32", dtypes.f16: "float16", dtypes.bf16: "bfloat16"}
"""The names in config.json of the types that weights are rounded to."""


def convert(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    to: Literal["hf", "gptrschk"] | None = None,
    dtype: str | None = None,
    shard_size: int | None = None,
    force: bool = False,
    progress: StepProgress | None = None,
) -> Converted:
    """Write the model or file of tensors `source` to `destination`, whole or not at all.

    Without `to`, the destination's suffix decides: `.gptrschk` writes one file for everything, the
    suffix of a tensor format only tensors, any other a folder. Weights are rounded to `dtype`, f32,
    f16 or bf16, and those of a folder split into files of `shard_size` bytes. `force` replaces an
    existing file, or a folder that contains a model.

    UsageError for arguments that do not fit together, and for a destination that exists; ModelError
    and CheckpointError for sources that cannot be read and destinations that cannot be written.
    """
    form = _form(destination, to, shard_size)
    wanted = None if dtype is None else _weight_dtype(dtype)
    require_free(Path(destination), form, force)
    stored = open_stored(source)
    require_apart(stored.path, Path(destination))
    tensors = [tensor if wanted is None else in_dtype(tensor, wanted) for tensor in stored.tensors]
    rounded = sum(a.type != b.type for a, b in zip(tensors, stored.tensors, strict=True))
    config = stored.config
    if config is not None and wanted is not None:
        config = _with_dtype(config, _DTYPE_NAMES[wanted])
    tensors = watched(tensors, progress)
    ready = replace(stored, tensors=tensors, config=config)
    target = Destination(Path(destination), shard_size, force)
    files, left_out = WRITERS[form](ready, target)
    return Converted(
        form=form,
        kind=cast("str | None", config.get("model_type") if config else None),
        files=tuple(files),
        tensors=len(tensors),
        parameters=sum(tensor.type.size for tensor in tensors),
        nbytes=sum(stored_bytes(tensor.type) for tensor in tensors),
        rounded=rounded,
        left_out=tuple(left_out),
    )


def _weight_dtype(name: str) -> DType:
    """Return the type called `name`; UsageError unless weights can be rounded to it."""
    for dtype in _DTYPE_NAMES:
        if dtype.name == name:
            return dtype
    known = " ".join(dtype.name for dtype in _DTYPE_NAMES)
    raise UsageError(f"weights cannot be converted to {quoted(name)}", hint=f"choose from {known}")


def _form(path: str | os.PathLike[str], to: str | None, shard_size: int | None) -> Form:
    suffix = Path(path).suffix.lower()
    foreign = foreign_format(path)
    if foreign is not None and to is None:
        raise _not_written_here(path, foreign)
    form: Form = "hf"
    if suffix in ARCHIVE_SUFFIXES:
        form = "tensors"
    elif to == "gptrschk" or (to is None and suffix == CHECKPOINT_SUFFIX):
        form = "gptrschk"
    if to not in (None, form):
        raise UsageError(
            f"{quoted(str(path), 200)} names a file of tensors, `--to {to}` asks for a model",
            hint="leave out `--to`, or choose another name",
        )
    if shard_size is not None and form != "hf":
        raise UsageError(
            "only a model folder has several files of weights",
            hint="leave out `--shard-size`, or use `--to hf`",
        )
    return form


def _not_written_here(path: str | os.PathLike[str], found: ForeignFormat) -> UsageError:
    what = found.name.partition(",")[0]  # so that no importer needs to be loaded
    command = found.written_by
    if command is not None and found.missing:
        return UsageError(
            f"{quoted(str(path), 200)} would be {what}, which `{found.package}` writes",
            hint=found.missing,
        )
    if command is not None:
        return UsageError(
            f"{quoted(str(path), 200)} would be {what}, which another command writes",
            hint=f"`{command}`",
        )
    return UsageError(
        f"{quoted(str(path), 200)} would be {what}, which gptrs does not write",
        hint="`.gptrschk` writes one file, `.safetensors` tensors alone, a name without suffix a"
        " model folder, and so does `--to hf`, whatever the name",
    )


def _with_dtype(config: Mapping[str, object], name: str) -> dict[str, object]:
    """Return the config with the new type of its weights wherever it states one."""
    changed: dict[str, object] = {}
    for key, value in config.items():
        if key in _DTYPE_KEYS and value in _DTYPE_NAMES.values():
            changed[key] = name
        elif isinstance(value, dict):
            changed[key] = _with_dtype(cast("dict[str, object]", value), name)
        else:
            changed[key] = value
    return changed
