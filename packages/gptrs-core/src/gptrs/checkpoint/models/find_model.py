"""Opening the model that a user names: a folder, a `GPTRSCHK` or GGUF file, or one of the hub."""

from __future__ import annotations

import os
from pathlib import Path

from gptrs.checkpoint.files.open_file import open_regular, read_at, resolved
from gptrs.checkpoint.formats import gguf_header, gptrschk
from gptrs.checkpoint.formats.foreign_files import foreign_format
from gptrs.checkpoint.formats.tensor_archive import begins_archive, first_bytes
from gptrs.checkpoint.models.gguf_model import GgufModel
from gptrs.checkpoint.models.gptrschk_model import GptrschkModel
from gptrs.checkpoint.models.hf_directory import HfDirectory
from gptrs.checkpoint.models.hub import HubModel, download
from gptrs.checkpoint.models.model_source import ModelSource
from gptrs.errors import ModelError
from gptrs.quoting import quoted


def find_model(name: str | os.PathLike[str]) -> ModelSource:
    """Open the model at a path or, where nothing is there, of a hub id `ORG/NAME[@REVISION]`.

    Its settings are read. ModelError says why there is no such model, or which file is missing or
    malformed. No hub is asked for a name in a folder that exists, unless a revision is given.
    """
    wanted = None if os.path.lexists(name) else HubModel.parse(os.fspath(name))
    if wanted is not None:
        _require_no_folder(wanted)
        source = HfDirectory.open(download(wanted))
        source.name = wanted.repository
        return source
    magic = _magic(name)
    if magic.startswith(gptrschk.MAGIC):
        return GptrschkModel.open(name)
    if magic.startswith(gguf_header.MAGIC):
        return GgufModel.open(name)
    if os.path.isfile(name):
        raise _no_model(Path(name))
    return HfDirectory.open(name)


def _require_no_folder(wanted: HubModel) -> None:
    """ModelError for `models/gpt2` where there is a folder `models`: it is a path, mistyped."""
    parent = wanted.repository.partition("/")[0]
    if wanted.revision is None and os.path.isdir(parent):
        raise ModelError(
            f"{quoted(str(wanted))} does not exist in the folder {quoted(parent)}",
            hint=f"for the model of this name on the Hugging Face hub write `{wanted}@main`",
        )


def _no_model(path: Path) -> ModelError:
    """Return what to say of a file that is no model, by what it is."""
    shown = quoted(str(path), 200)
    meant = ""
    if os.path.isfile(path.parent / "config.json"):
        meant = f"; did you mean {quoted(str(path.parent), 200)}?"
    start = first_bytes(path)
    foreign = foreign_format(path, start)
    if foreign is not None:
        return ModelError(f"{shown} is {foreign.name}", hint=foreign.hint)
    if not begins_archive(path, start):
        return ModelError(
            f"{shown} is a file, but not in the format of a `.gptrschk` file",
            hint=f"a model is a folder or such a file{meant}",
        )
    return ModelError(
        f"{shown} is a file of tensors, without the settings of a model",
        hint=f"a model is a folder with `config.json` beside them{meant}",
    )


def is_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Return whether there is a regular file that begins as a `GPTRSCHK` or GGUF file does."""
    return _magic(path).startswith((gptrschk.MAGIC, gguf_header.MAGIC))


def _magic(path: str | os.PathLike[str]) -> bytes:
    """Return how a file begins, nothing where there is no regular file."""
    try:
        descriptor = open_regular(resolved(path))
    except ModelError:
        return b""
    try:
        return read_at(descriptor, len(gptrschk.MAGIC), 0)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
