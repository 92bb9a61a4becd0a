"""A single run of a model on the input of a command: load, read, run, write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
from msgspec import Struct

from gptrs.checkpoint.formats.tensor_archive import require_writable, write_archive
from gptrs_cli.loading import loaded_model
from gptrs_cli.options.settings import Settings, model_shown
from gptrs_cli.terminal.failures import Waiting
from gptrs_cli.terminal.progress import compilation_shown
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.model_inputs import Batch, InputChoice, batch_of

Result = TypeVar("Result")


class SingleRun(Struct, Generic[Result], frozen=True):
    """A model, its input, and the result."""

    model: LoadedModel
    batch: Batch
    result: Result


def run_once(
    model: Path | None,
    choice: InputChoice,
    settings: Settings,
    run: Callable[[LoadedModel, Batch], Result],
    out: tuple[Path, Callable[[Result], Mapping[str, np.ndarray]]] | None,
) -> SingleRun[Result]:
    """Run a model on the chosen input; write the arrays of the result to the file of `out`.

    An unwritable file is refused before any work.
    """
    if out is not None:
        require_writable(out[0])
    with Waiting(f"loading {model_shown(model)}") as waiting:
        loaded = loaded_model(model, settings)
        waiting.now("reading the input")
        batch = batch_of(loaded, choice)
        waiting.now(f"running on {loaded.backend.name}")
        with compilation_shown(loaded.backend, waiting):
            result = run(loaded, batch)
        if out is not None:
            path, arrays = out
            waiting.now(f"writing `{path}`")
            write_archive(path, arrays(result))
    return SingleRun(loaded, batch, result)
