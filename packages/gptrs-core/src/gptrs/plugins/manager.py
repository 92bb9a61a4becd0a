"""The plugins of this process and what they make; `PluginRegistry` knows which there are.

`get_backend` is the whole way from an entry point to a running backend: `discover` finds the entry
points, `find` reads the description of one, `factory` imports what that names, and the call makes
the backend.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from gptrs.backend.process_limits import requested_threads
from gptrs.backend.settings import BackendSettings, Mesh, ProcessGroup, parsed_options
from gptrs.errors import BackendError, ModelError, PluginError, UsageError
from gptrs.install_hints import install_own
from gptrs.lazy_module import lazy_module
from gptrs.plugins.descriptions import (
    BackendPlugin,
    DemoModelPlugin,
    ModelPlugin,
    PluginDescription,
)
from gptrs.plugins.discovery import Plugin
from gptrs.plugins.entry_points import resource_directory
from gptrs.plugins.refusals import memory_is_there
from gptrs.plugins.registry import PluginRegistry
from gptrs.plugins.selection import Selection, is_own
from gptrs.plugins.state import PluginRecord, PluginState, described
from gptrs.quoting import quoted

if TYPE_CHECKING:
    from gptrs.backend import contract
    from gptrs.backend.contract import Backend
    from gptrs.checkpoint.params import Params
else:
    contract = lazy_module("gptrs.backend.contract")

ModelFactory = Callable[[Mapping[str, object], "Params"], object]
"""Makes a model from the settings of config.json and its weights."""


class PluginManager(PluginRegistry):
    """The plugins of a process, and the backends that they made."""

    def __init__(self, selection: Selection, quiet: bool = False) -> None:
        super().__init__(selection, quiet)
        self._backends: dict[tuple[str | None, BackendSettings], Backend] = {}
        # Reentrant: the factory of a backend that wraps another one asks for that.
        self._making = threading.RLock()

    def record_of(self, backend: Backend) -> PluginRecord | None:
        """Return the plugin that made `backend`, None if that was something else."""
        for (name, _), made in list(self._backends.items()):
            if made is backend and name is not None:
                return self.record(BackendPlugin, name)
        return None

    def threads_of(self, backend: Backend) -> int | None:
        """Return the threads that `backend` was asked for; None if they were left to it."""
        for (_, settings), made in list(self._backends.items()):
            if made is backend:
                return settings.threads
        return None

    def get_backend(
        self,
        name: str | None = None,
        threads: int | None = None,
        settings: BackendSettings | None = None,
    ) -> Backend:
        """Return the backend called `name`, else that of `GPTRS_BACKEND`, else the best that works.

        Without a name the usable one of the highest priority is taken; broken ones are skipped with
        a warning of one line each. `threads` defaults to those of `settings`, to
        `GPTRS_NUM_THREADS`, else to the choice of the backend. The same name and settings give the
        same object. PluginError when the one asked for is unknown, disabled, incompatible or
        broken; UsageError for threads out of range, and for settings that it does not take.
        """
        name = name or os.environ.get("GPTRS_BACKEND") or None
        settings = settings or BackendSettings()
        threads = requested_threads(settings.threads if threads is None else threads)
        settings = replace(settings, threads=threads)
        found = self._backends.get((name, settings))
        if found is not None:
            return found
        with self._making:
            if (name, settings) not in self._backends:
                self._backends[name, settings] = (
                    self._best_backend(settings)
                    if name is None
                    else self._make_backend(name, settings)
                )
            return self._backends[name, settings]

    def model_plugin(self, model_type: str) -> ModelPlugin:
        """Return the plugin for models of the kind `model_type`; ModelError if there is none."""
        self._require_kind(model_type)
        return self.find(ModelPlugin, model_type, unknown=ModelError)

    def model_factory(self, model_type: str) -> ModelFactory:
        """Return what makes models of the kind `model_type`; raises as `model_plugin` does."""
        self._require_kind(model_type)
        return cast("ModelFactory", self.factory(ModelPlugin, model_type, unknown=ModelError))

    def relatives(self) -> dict[str, str]:
        """Return kinds that no plugin has, each with the installed one of nearest architecture."""
        installed = {record.name for record in self.records(ModelPlugin)}
        return {
            name: plugin.name
            for plugin in self.descriptions(ModelPlugin)
            for name in plugin.relatives
            if name not in installed
        }

    def _require_kind(self, model_type: str) -> None:
        """ModelError for a kind that no plugin has, with what is nearest, if a plugin knows."""
        if self.plugin(ModelPlugin, model_type) is not None or ":" in model_type:
            return
        nearest = self.relatives().get(model_type)
        if nearest is not None:
            raise ModelError(
                f"there is no model kind {quoted(model_type)}; nearest by architecture is"
                f" `{nearest}`, which it must not be loaded as",
                hint="docs/recipes/add_a_model_kind.md tells how to add it as a plugin of two"
                " files, docs/torch.md how to run what torch exports; `gptrs list models --all`"
                " shows all kinds that are known",
            )

    def demo_model_path(self, name: str | None = None) -> Path:
        """Return the directory of the demo model called `name`, else of the first by name.

        Those of gptrs itself come first.

        PluginError when there is none, or its directory is missing.
        """
        if name is None:
            known = self.installed(DemoModelPlugin)
            known.sort(key=lambda record: not is_own(record.distribution))
            names = [record.name for record in known]
            usable = (name for name in names if self._is_usable(DemoModelPlugin, name))
            if not names:
                raise PluginError(
                    "no demo model is installed",
                    hint=f"name a model folder, or for one {install_own('gptrs-models')}",
                )
            # One that cannot be used is looked up all the same, for the reason.
            name = next(usable, names[0])
        plugin = self.find(DemoModelPlugin, name)
        try:
            return resource_directory(plugin.path)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit, too: a plugin must not end the program
            raise self.broken(DemoModelPlugin, name, error) from error

    def _is_usable(self, point: type[PluginDescription], name: str) -> bool:
        try:
            plugin = self.plugin(point, name)
        except PluginError:  # several have the name
            return False
        return plugin is not None and plugin.record.state.usable

    def _make_backend(self, name: str, settings: BackendSettings) -> Backend:
        takes = self.find(BackendPlugin, name).takes
        settings.require_taken(name, takes)
        plugin = cast("Plugin", self.plugin(BackendPlugin, name))
        key = plugin.qualified, settings
        if key in self._backends:
            return self._backends[key]
        with memory_is_there(f"the backend `{name}`"):
            factory = self.factory(BackendPlugin, name)
            try:
                made = factory(settings if takes else settings.threads)
                backend = _checked_backend(made, plugin.record.name)
            except (KeyboardInterrupt, UsageError):
                raise  # the user's, not the plugin's
            except BaseException as error:
                raise self.broken(BackendPlugin, name, error) from error
        for text in backend.ignored:
            self.warn_once(f"{name}: {text}", f"backend `{name}`: {text}")
        self._backends[key] = backend
        return backend

    def _best_backend(self, settings: BackendSettings) -> Backend:
        usable = self.descriptions(BackendPlugin)
        for plugin in sorted(usable, key=lambda plugin: -plugin.priority):
            try:
                backend = self._make_backend(plugin.name, settings)
            except PluginError:
                if self.selection.strict:
                    raise
                continue  # its record now says why
            self._warn_of_skipped()
            return backend
        self._warn_of_skipped()
        raise BackendError(
            "no backend is available",
            hint="`gptrs list plugins` says why; for that of gptrs "
            + install_own("gptrs-backend-numba"),
        )

    def _warn_of_skipped(self) -> None:
        held = {record.name for record, _ in self.described(BackendPlugin)}
        for record in self.records(BackendPlugin):
            failed = record.state in (PluginState.BROKEN, PluginState.INCOMPATIBLE)
            if failed or (record.state is PluginState.DUPLICATE and record.name not in held):
                text = f"backend `{record.name}` is skipped: {record.reason}"
                self.warn_once(record.name, text)


_process: list[PluginManager] = []
_lock = threading.Lock()


def manager() -> PluginManager:
    """Return the plugins of this process, as the environment selects them at the first call."""
    with _lock:
        if not _process:
            _process.append(PluginManager(Selection.from_environment()))
        return _process[0]


def get_backend(
    name: str | None = None,
    threads: int | None = None,
    *,
    device: str | None = None,
    options: Mapping[str, str] | Sequence[str] = (),
    mesh: str | Mesh | None = None,
    processes: ProcessGroup | None = None,
) -> Backend:
    """Return the backend called `name`, or the default one; see `PluginManager.get_backend`.

    `device`, `options`, a mapping or texts NAME=VALUE, and a `mesh` such as `data=2,tensor=4`, of
    several `processes` even, are for backends that take them; others raise UsageError.
    """
    grid = Mesh.parse(mesh) if isinstance(mesh, str) else mesh
    settings = BackendSettings(threads, device, parsed_options(options), grid, processes)
    return manager().get_backend(name, settings=settings)


def backend_of(backend: str | Backend | None, threads: int | None = None) -> Backend:
    """Return the backend of a name, or one that is made; UsageError for threads beside that
    and for what is no backend."""
    if backend is None or isinstance(backend, str):
        return manager().get_backend(backend, threads)
    backend = contract.required_backend(backend)
    if threads is not None:
        raise UsageError(
            f"the backend `{backend.name}` is there and has its threads, got `threads={threads}`",
            hint=f'give them to `gptrs.get_backend("{backend.name}", {threads})`',
        )
    return backend


def origin_of(backend: Backend) -> str:
    """Return a backend with the distribution that brought it, for messages; else with its class."""
    found = manager().record_of(backend)
    if found is not None:
        return described(found)
    made_by = type(backend)
    return f"backend `{backend.name}` (`{made_by.__module__}.{made_by.__qualname__}`)"


def configure(disabled: Iterable[str] = ()) -> PluginManager:
    """Start over, with the plugins in `disabled` excluded: for `-p no:NAME`, and for tests.

    Backends made so far stay with those who hold them.
    """
    with _lock:
        _process[:] = [PluginManager(Selection.from_environment(disabled))]
        return _process[0]


def _checked_backend(made: object, name: str) -> Backend:
    if not isinstance(made, contract.Backend):
        kind = type(made).__name__
        raise BackendError(
            f"its factory made a `{kind}`, which does not derive from `gptrs.api.backends.Backend`"
        )
    own = getattr(made, "name", None)
    if own != name:
        raise BackendError(f"its factory made a backend that calls itself `{own}`")
    return made
