"""Loads the model that a command runs, as the options of that run say."""

from __future__ import annotations

from pathlib import Path

from gptrs.runtime.load import LoadedModel, load_model
from gptrs_cli.options.settings import Settings


def loaded_model(path: Path | None, settings: Settings) -> LoadedModel:
    """The model at `path` (None: the bundled demo model); errors as those of `load_model`."""
    return load_model(path, settings.backend, settings.threads, settings.weight_budget)
