"""Opening a model wherever it lies: a folder, or a file, told apart by what they are."""

from __future__ import annotations

import os
from pathlib import Path

from gptrs.checkpoint.files.open_file import open_regular, read_at, resolved
from gptrs.checkpoint.formats import gptrschk
from gptrs.checkpoint.models.gptrschk_model import GptrschkModel
from gptrs.checkpoint.models.hf_directory import HfDirectory
from gptrs.checkpoint.models.model_source import ModelSource
from gptrs.errors import ModelError
from gptrs.quoting import quoted


def open_model(path: str | os.PathLike[str]) -> ModelSource:
    """Read the settings of the model at `path`: a model folder or a `GPTRSCHK` file.

    ModelError says what is wrong with the path, or which file is missing or malformed.
    """
    if is_checkpoint(path):
        return GptrschkModel.open(path)
    if os.path.isfile(path):
        parent = quoted(str(Path(path).parent), 200)
        raise ModelError(
            f"{quoted(str(path), 200)} is a file, but not in the format of a `.gptrschk` file",
            hint=f"a model is a folder or such a file; did you mean {parent}?",
        )
    return HfDirectory.open(path)


def is_checkpoint(path: str | os.PathLike[str]) -> bool:
    """Whether there is a regular file that begins as a `GPTRSCHK` file does."""
    try:
        descriptor = open_regular(resolved(path))
    except ModelError:
        return False
    try:
        return read_at(descriptor, len(gptrschk.MAGIC), 0) == gptrschk.MAGIC
    except OSError:
        return False
    finally:
        os.close(descriptor)
