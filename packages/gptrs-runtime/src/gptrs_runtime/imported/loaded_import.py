"""A model out of a file of another format, on a backend, with what it raises under control."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import cast

import numpy as np

from gptrs.backend.contract import Backend, Precision
from gptrs.capture.execute import use_backend
from gptrs.errors import GptrsError, UnsupportedError
from gptrs.ir.program import Program
from gptrs.plugins.descriptions import ImporterPlugin
from gptrs.plugins.exporters import ImportedModel, import_model
from gptrs.plugins.manager import backend_of, manager
from gptrs.quick_dataclass import dataclass
from gptrs.spans import span


@dataclass(frozen=True)
class LoadedImport:
    """A model that the plugin `importer` read from `path`, ready to run on `backend`."""

    path: Path
    importer: str
    model: ImportedModel
    backend: Backend
    load_seconds: float

    @property
    def name(self) -> str:
        """The name of the file."""
        return self.path.name

    @property
    def precision(self) -> Precision:
        """The precision of products."""
        return self.backend.precision

    def run(self, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs by name.

        Errors of gptrs pass through; any other one, and what is no table of arrays, is a
        PluginError that names the importer.
        """
        try:
            with use_backend(self.backend):
                found = cast("object", self.model(**arrays))
            return _arrays(found)
        except (KeyboardInterrupt, GptrsError):
            raise
        except BaseException as error:
            raise manager().broken(ImporterPlugin, self.importer, error) from error

    def program(self, arrays: Mapping[str, np.ndarray]) -> Program:
        """Return the program for inputs like these, before it is optimized.

        UnsupportedError where the importer makes models without one.
        """
        make = getattr(self.model, "program", None)
        if make is None:
            raise UnsupportedError(f"models of the importer `{self.importer}` show no program")
        try:
            with use_backend(self.backend):
                found = make(**arrays)
            if not isinstance(found, Program):
                raise TypeError(f"`program` gave a `{type(found).__name__}`")
        except (KeyboardInterrupt, GptrsError):
            raise
        except BaseException as error:
            raise manager().broken(ImporterPlugin, self.importer, error) from error
        return found


def load_import(
    path: Path,
    importer: str,
    backend: str | Backend | None = None,
    threads: int | None = None,
    precision: Precision | None = None,
) -> LoadedImport:
    """Return the model in a file; `backend`, `threads` and `precision` as in `load_model`.

    Errors as those of `import_model`.
    """
    started = time.perf_counter()
    with span("load model"):
        engine = backend_of(backend, threads).with_precision(precision)
        model = import_model(path, importer, engine)
    return LoadedImport(path, importer, model, engine, time.perf_counter() - started)


def _arrays(found: object) -> dict[str, np.ndarray]:
    """Return outputs that are arrays by name; TypeError for anything else."""
    if not isinstance(found, dict):
        raise TypeError(f"its model gave a `{type(found).__name__}`, arrays by name are needed")
    for name, value in cast("dict[object, object]", found).items():
        if not isinstance(name, str) or not isinstance(value, np.ndarray):
            raise TypeError(f"its model gave a `{type(value).__name__}` as {name!r:.60}")
    return cast("dict[str, np.ndarray]", found)
