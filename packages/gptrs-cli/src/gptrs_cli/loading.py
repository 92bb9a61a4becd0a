"""Loads the model of a command by its options."""

from __future__ import annotations

from pathlib import Path

from msgspec import UNSET, UnsetType

from gptrs.api.backends import Backend
from gptrs.plugins.manager import get_backend
from gptrs_cli.options.processes import group_of
from gptrs_cli.options.settings import Settings
from gptrs_runtime.bundled_models import model_path
from gptrs_runtime.load import load_model
from gptrs_runtime.loaded_model import LoadedModel


def loaded_model(path: Path | None, settings: Settings, adapter: Path | None = None) -> LoadedModel:
    """Load the model at `path` (None: the bundled demo model); raise what `load_model` raises."""
    weights = None if settings.weights is None else settings.weights.value
    precision = None if settings.precision is None else settings.precision.value
    model_path(path)  # where there is none, that is told before a backend is made
    return load_model(
        path,
        chosen_backend(settings),
        None,
        settings.weight_budget,
        weights,
        precision,
        adapter,
    )


def chosen_backend(settings: Settings) -> Backend:
    """Return the backend that the options ask for; raise what `get_backend` raises."""
    return get_backend(
        settings.backend,
        settings.threads,
        device=settings.device,
        options=settings.backend_options,
        mesh=settings.mesh,
        processes=group_of(settings),
    )


def adapter_of(model: LoadedModel) -> str | UnsetType:
    """Return the folder of the adapter of a model for a result, UNSET without one."""
    return UNSET if model.adapter is None else str(model.adapter.path)
