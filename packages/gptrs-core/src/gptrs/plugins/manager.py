"""The plugins of this process: backends, model kinds and demo models by name."""

from __future__ import annotations

import importlib.resources
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from gptrs.errors import ModelError, PluginError
from gptrs.plugins.backends import Backends
from gptrs.plugins.catalog import PluginCatalog
from gptrs.plugins.descriptions import DemoModelPlugin, ModelPlugin
from gptrs.plugins.selection import Selection

if TYPE_CHECKING:
    from gptrs.backend.protocol import Backend
    from gptrs.checkpoint.params import Params

ModelFactory = Callable[[Mapping[str, object], "Params"], object]
"""Makes a model from the settings of config.json and its weights."""


class PluginManager(PluginCatalog):
    """The catalog of installed plugins, and what they make."""

    def __init__(self, selection: Selection) -> None:
        super().__init__(selection)
        self._backends = Backends(self)

    def get_backend(self, name: str | None = None, threads: int | None = None) -> Backend:
        """The backend called `name`, else that of `GPTRS_BACKEND`, else the best that works.

        Without a name the usable one of the highest priority is taken; broken ones are skipped with
        a warning of one line each. `threads` defaults to `GPTRS_NUM_THREADS`, else to the choice of
        the backend. The same name and threads give the same object. PluginError when the one asked
        for is unknown, disabled, incompatible or broken; UsageError for threads out of range.
        """
        return self._backends.get(name, threads)

    def model_plugin(self, model_type: str) -> ModelPlugin:
        """The plugin for models of the kind `model_type`; ModelError lists the known kinds."""
        return self.find(ModelPlugin, model_type, unknown=ModelError)

    def model_factory(self, model_type: str) -> ModelFactory:
        """What makes models of the kind `model_type`; raises as `model_plugin` does."""
        return cast("ModelFactory", self.factory(ModelPlugin, model_type, unknown=ModelError))

    def demo_model_path(self, name: str | None = None) -> Path:
        """The directory of the demo model called `name`, else of the first by name.

        PluginError when there is none, or its directory is missing.
        """
        if name is None:
            names = [plugin.name for plugin in self.descriptions(DemoModelPlugin)]
            # One that cannot be used is looked up all the same, for the reason.
            names = names or [record.name for record in self.records(DemoModelPlugin)]
            if not names:
                raise PluginError(
                    "no demo model is installed",
                    hint="name a model directory, or `pip install gptrs`, which brings one",
                )
            name = names[0]
        plugin = self.find(DemoModelPlugin, name)
        try:
            return _resource_directory(plugin.path)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit, too: a plugin must not end the program
            raise self.broken(DemoModelPlugin, name, error) from error


def _resource_directory(reference: str) -> Path:
    package, _, folder = reference.partition(":")
    found = importlib.resources.files(package).joinpath(folder)
    if not isinstance(found, Path) or not found.is_dir():
        raise PluginError(f"`{reference}` is not a directory of an installed package")
    return found


_process: list[PluginManager] = []
_lock = threading.Lock()


def manager() -> PluginManager:
    """The plugins of this process, made with the selection of the environment when first asked."""
    with _lock:
        if not _process:
            _process.append(PluginManager(Selection.from_environment()))
        return _process[0]


def get_backend(name: str | None = None, threads: int | None = None) -> Backend:
    """The backend called `name`, or the default one; see `PluginManager.get_backend`."""
    return manager().get_backend(name, threads)


def configure(disabled: Iterable[str] = ()) -> PluginManager:
    """Start over, with the plugins in `disabled` excluded: for `-p no:NAME`, and for tests.

    Backends made so far stay with those who hold them.
    """
    with _lock:
        _process[:] = [PluginManager(Selection.from_environment(disabled))]
        return _process[0]
