"""Finding the model that a user names: a path that exists, else one of the Hugging Face hub."""

from __future__ import annotations

import os

from gptrs.checkpoint.models.hub import HubModel, download
from gptrs.checkpoint.models.model_source import ModelSource
from gptrs.checkpoint.models.open_model import open_model


def find_model(name: str | os.PathLike[str]) -> ModelSource:
    """Open the model at a path or, where nothing is there, of a hub id `ORG/NAME[@REVISION]`.

    ModelError says why there is no such model, or what is wrong with it.
    """
    wanted = None if os.path.lexists(name) else HubModel.parse(os.fspath(name))
    if wanted is None:
        return open_model(name)
    source = open_model(download(wanted))
    source.name = wanted.repository
    return source
