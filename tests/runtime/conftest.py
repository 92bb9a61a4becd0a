"""A tiny model, loaded once on the backend that defines what programs mean."""

from __future__ import annotations

from pathlib import Path

import pytest

from gptrs_runtime.load import load_model
from gptrs_runtime.loaded_model import LoadedModel
from runtime.tiny_gpt2 import save_tiny_gpt2


@pytest.fixture(scope="session")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_gpt2(tmp_path_factory.mktemp("runtime") / "tiny")


@pytest.fixture(scope="session")
def model(directory: Path) -> LoadedModel:
    return load_model(directory, backend="ref")
