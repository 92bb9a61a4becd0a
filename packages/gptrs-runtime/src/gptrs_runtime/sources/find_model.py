"""Opening of models by name: a folder, a `GPTRSCHK` or GGUF file, or a model of the hub."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gptrs.checkpoint.files.open_file import open_regular, read_at, resolved
from gptrs.checkpoint.formats import gptrschk
from gptrs.checkpoint.formats.foreign_files import foreign_format
from gptrs.errors import ModelError
from gptrs.lazy_module import lazy_module
from gptrs.quoting import quoted
from gptrs_runtime.sources.hf_directory import WEIGHTS, HfDirectory
from gptrs_runtime.sources.model_source import CONFIG, ModelSource

if TYPE_CHECKING:
    from gptrs.checkpoint.formats import tensor_archive
    from gptrs_runtime.sources import (
        gguf_choice,
        gguf_model,
        hub,
        imported_folder,
        model_source,
        recommended,
    )
else:
    tensor_archive = lazy_module("gptrs.checkpoint.formats.tensor_archive")
    gguf_choice = lazy_module("gptrs_runtime.sources.gguf_choice")
    gguf_model = lazy_module("gptrs_runtime.sources.gguf_model")
    model_source = lazy_module("gptrs_runtime.sources.model_source")
    hub = lazy_module("gptrs_runtime.sources.hub")
    recommended = lazy_module("gptrs_runtime.sources.recommended")
    imported_folder = lazy_module("gptrs_runtime.sources.imported_folder")


_MOST_NAMED: Final = 4
"""Most models of a folder that an error names."""


def find_model(name: str | os.PathLike[str]) -> ModelSource:
    """Open the model at a path or, if that does not exist, of a hub id.

    The id is `ORG/NAME[@REVISION][:QUANTIZATION]`. A folder may also hold one GGUF model, or the
    file of an importer, which may be named itself. Reads the settings. ModelError says why there is
    no such model, or which file is missing or malformed.
    The hub is not asked for a name in an existing folder, unless it has a revision.
    """
    wanted = None if os.path.lexists(name) else hub.HubModel.parse(os.fspath(name))
    if wanted is not None:
        _require_no_folder(wanted)
        path = hub.download(wanted)
        source = gguf_model.GgufModel.open(path) if path.is_file() else HfDirectory.open(path)
        source.name = wanted.name
        return source
    if os.path.isfile(name):
        return _in_file(Path(name))
    if os.path.isdir(name):
        return _in_folder(name)
    _guess_short_name(os.fspath(name))
    return HfDirectory.open(name)


def _in_file(path: Path) -> ModelSource:
    start = _magic(path)
    if start.startswith(gptrschk.GPTRSCHK):
        return model_source.GptrschkModel.open(path)
    if start.startswith(gptrschk.GGUF):
        return gguf_model.GgufModel.open(path)
    if imported_folder.is_language_file(path):
        return imported_folder.ImportedFolder(path)
    raise _no_model(path)


def _in_folder(name: str | os.PathLike[str]) -> ModelSource:
    if not os.path.lexists(os.path.join(name, WEIGHTS)):
        graph = imported_folder.language_file_in(name)
        if graph is not None:
            return imported_folder.ImportedFolder(graph)
    if not os.path.lexists(os.path.join(name, CONFIG)):
        found = gguf_choice.variants(gguf_choice.files_below(name))
        if found:
            return gguf_model.GgufModel.open(Path(name, _only(found, Path(name))))
    return HfDirectory.open(name)


def _guess_short_name(name: str) -> None:
    """Raise ModelError if a name that is not a path is almost that of a recommended model."""
    guess = recommended.short_name_like(name)
    if guess:
        raise ModelError(
            f"{quoted(name, 200)} does not exist",
            hint=f"{guess}`gptrs models recommended` explains the short names",
        )


def _only(found: Sequence[gguf_choice.GgufVariant], folder: Path) -> str:
    """Return the file of the only model in a folder; ModelError names them if there are several."""
    if len(found) > 1:
        names = ", ".join(quoted(str(folder / each.parts[0]), 200) for each in found[:_MOST_NAMED])
        more = len(found) - _MOST_NAMED
        raise ModelError(
            f"{quoted(str(folder), 200)} has {len(found)} GGUF models",
            hint=f"name one of {names}{f' and {more} more' if more > 0 else ''}",
        )
    return found[0].parts[0]


def _require_no_folder(wanted: hub.HubModel) -> None:
    """Raise ModelError for `models/NAME` if there is a folder `models`: it is a mistyped path."""
    parent = wanted.repository.partition("/")[0]
    if wanted.revision is None and os.path.isdir(parent):
        forced = hub.HubModel(wanted.repository, "main", wanted.quantization)
        raise ModelError(
            f"{quoted(str(wanted))} does not exist in the folder {quoted(parent)}",
            hint=f"for the model of this name on the Hugging Face hub, write `{forced}`",
        )


def _no_model(path: Path) -> ModelError:
    """Return the error for a file that is not a model, by its format."""
    shown = quoted(str(path), 200)
    meant = ""
    if os.path.isfile(path.parent / "config.json"):
        meant = f"; did you mean {quoted(str(path.parent), 200)}?"
    start = tensor_archive.first_bytes(path)
    foreign = foreign_format(path, start)
    if foreign is not None:
        return ModelError(f"{shown} is {foreign.name}", hint=foreign.hint)
    if not tensor_archive.begins_archive(path, start):
        return ModelError(
            f"{shown} is a file, but not in the format of a `.gptrschk` file",
            hint=f"a model is a folder or such a file{meant}",
        )
    return ModelError(
        f"{shown} is a file of tensors, without the settings of a model",
        hint=f"a model is a folder with `config.json` beside them{meant}",
    )


def is_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Return whether the path is a regular file that begins like a `GPTRSCHK` or GGUF file."""
    return _magic(path).startswith((gptrschk.GPTRSCHK, gptrschk.GGUF))


def is_model_file(path: str | os.PathLike[str]) -> bool:
    """Return whether the path is a file that `find_model` opens, perhaps with files beside it."""
    return is_checkpoint(path) or imported_folder.is_language_file(path)


def _magic(path: str | os.PathLike[str]) -> bytes:
    """Return the first bytes of a file; empty if it is not a regular file."""
    try:
        descriptor = open_regular(resolved(path))
    except ModelError:
        return b""
    try:
        return read_at(descriptor, len(gptrschk.GPTRSCHK), 0)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
