"""The option that names a model, the same for all commands that run one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from gptrs.runtime.load import LoadedModel, load_model
from gptrs_cli.options.declare import option
from gptrs_cli.options.settings import Settings

ModelOption = Annotated[
    Path | None,
    option(
        "--model",
        "A directory as transformers saves it, a .gptrschk file, or ORG/NAME[@REVISION] of the"
        " Hugging Face hub, or `demo`, the bundled model, which is taken without it.",
        metavar="MODEL",
    ),
]


def model_shown(path: Path | None) -> str:
    """Return what messages call the model at `path`."""
    return f"`{path}`" if path else "the demo model"


def loaded_model(path: Path | None, settings: Settings) -> LoadedModel:
    """Load the model at `path` (None: the bundled demo model); raise what `load_model` raises."""
    return load_model(path, settings.backend, settings.threads, settings.weight_budget)
