"""Workers: processes in the cluster that hold a model and process rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct, field

from gptrs.api import BackendPlugin, GptrsError, UsageError
from gptrs.plugins.manager import manager
from gptrs_ray.tasks import Row, Rows, Task, row_results, run_rows, task_named
from gptrs_runtime.generation.text_cache import model_identity
from gptrs_runtime.load import load
from gptrs_runtime.load_options import LoadOptions
from gptrs_runtime.loaded_model import LoadedModel


class WorkerSettings(Struct, frozen=True):
    """The model, how it runs, and the task; plain values, since they travel to other hosts.

    `model` is an argument of `load_model`: a path that exists on each host, or a name on the hub.
    """

    model: str | None
    task: str
    column: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    skip_bad: bool = False
    loading: LoadOptions = LoadOptions()

    def require(self) -> None:
        """Raise UsageError for settings with which no host could load a model."""
        self.loading.require_known()
        if isinstance(self.loading.backend, str):
            manager().find(BackendPlugin, self.loading.backend, UsageError)

    def load(self) -> LoadedModel:
        """Return the model; raises the errors of `load_model`."""
        return load(self.model, self.loading)


class Failed(Struct, frozen=True):
    """An error of gptrs in a form that pickles; exceptions with other arguments do not."""

    message: str
    hint: str | None
    exit_code: int
    code: str


class RowWorker:
    """The actor: loads the model on request, and processes rows."""

    def __init__(self, settings: WorkerSettings) -> None:
        self._settings = settings
        self._task: Task = task_named(settings.task)
        self._model: LoadedModel | None = None

    def load(self) -> str | Failed:
        """Load the model and return its identity."""
        try:
            self._model = self._settings.load()
            return model_identity(self._model)
        except GptrsError as error:
            return _failed(error)

    def run(self, rows: Rows) -> list[Row | Failed | None] | Failed:
        """Return the results of each row, as of `row_results`."""
        try:
            found = row_results(
                self._loaded(),
                self._task,
                rows,
                column=self._settings.column,
                options=self._settings.options,
                stops=not self._settings.skip_bad,
            )
        except GptrsError as error:
            return _failed(error)
        return [_failed(each) if isinstance(each, GptrsError) else each for each in found]

    def _loaded(self) -> LoadedModel:
        # Ray Data calls an actor without a call of `load` before. `RowWorker` loads apart from
        # rows, so that a host without memory is not blamed on a row.
        if self._model is None:
            self._model = self._settings.load()
        return self._model


class BatchWorker(RowWorker):
    """The worker for Ray Data, which passes columns."""

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, Any]:
        """Return the columns of a batch and its results; raises errors."""
        names = list(batch)
        rows: list[Row] = [
            dict(zip(names, values, strict=True)) for values in zip(*batch.values(), strict=True)
        ]
        settings = self._settings
        done = run_rows(
            self._loaded(),
            self._task,
            rows,
            column=settings.column,
            options=settings.options,
            skip_bad=settings.skip_bad,
        )
        return {name: _column([row[name] for row in done]) for name in (done[0] if done else ())}


def _column(values: list[Any]) -> Any:
    """Return results as a column; vectors of one length become one array."""
    try:
        array = np.asarray(values)
    except ValueError:  # rows of several lengths
        return values
    # One array is one tensor column in Arrow; a list of lists is converted number by number.
    return array.astype(np.float32) if array.ndim == 2 and array.dtype.kind == "f" else values


def _failed(error: GptrsError) -> Failed:
    return Failed(error.message, error.hint, error.exit_code, error.code)
