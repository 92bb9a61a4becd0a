"""The plugins of this process and their backends; `PluginRegistry` knows which are installed.

`get_backend` goes the whole way from an entry point to a backend: `discover` finds entry points,
`find` reads a description, `factory` imports its factory, and calling that creates the backend.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from msgspec.structs import replace

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
from gptrs.plugins.foreign_code import foreign_import
from gptrs.plugins.refusals import memory_is_there
from gptrs.plugins.registry import PluginRegistry
from gptrs.plugins.selection import Selection, is_own
from gptrs.plugins.state import PluginRecord, PluginState, described
from gptrs.quoting import quoted
from gptrs.variables import Variables

if TYPE_CHECKING:
    from gptrs.backend import contract
    from gptrs.backend.contract import Backend
    from gptrs.checkpoint.params import Params
else:
    contract = lazy_module("gptrs.backend.contract")

_BACKEND = Variables("GPTRS_BACKEND")
ModelFactory = Callable[[Mapping[str, object], "Params"], object]
"""Makes a model from the settings of config.json and its weights."""


class PluginManager(PluginRegistry):
    """The plugins of a process, and the backends they created."""

    def __init__(self, selection: Selection) -> None:
        super().__init__(selection)
        self._backends: dict[tuple[str | None, BackendSettings], Backend] = {}
        # Reentrant: the factory of a backend that wraps another one requests it.
        self._making = threading.RLock()

    def record_of(self, backend: Backend) -> PluginRecord | None:
        """Return the plugin that created `backend`; None if no plugin did."""
        for (name, _), made in list(self._backends.items()):
            if made is backend and name is not None:
                return self.record(BackendPlugin, name)
        return None

    def threads_of(self, backend: Backend) -> int | None:
        """Return the requested threads of `backend`; None if the choice was left to it."""
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
        """Return the backend `name`, by default that of `GPTRS_BACKEND` or the best that works.

        Without a name, it is the usable one with the highest priority; broken ones are skipped with
        a warning. `threads` defaults to those of `settings`, then to `GPTRS_NUM_THREADS`, then to
        the choice of the backend. Equal names and settings return the same object. Raises
        PluginError if the requested one is unknown, disabled, incompatible or broken; UsageError
        for threads out of range, and for settings that it does not take.
        """
        name = name or _BACKEND.values()[0] or None
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
        """Return the factory of models of the kind `model_type`; raises as `model_plugin` does."""
        self._require_kind(model_type)
        return cast("ModelFactory", self.factory(ModelPlugin, model_type, unknown=ModelError))

    def relatives(self) -> dict[str, str]:
        """Return kinds without a plugin, each with the installed kind of nearest architecture."""
        installed = {record.name for record in self.records(ModelPlugin)}
        return {
            name: plugin.name
            for plugin in self.descriptions(ModelPlugin)
            for name in plugin.relatives
            if name not in installed
        }

    def _require_kind(self, model_type: str) -> None:
        """Raise ModelError for a kind without a plugin, naming the nearest kind if known."""
        if self.plugin(ModelPlugin, model_type) is not None or ":" in model_type:
            return
        nearest = self.relatives().get(model_type)
        if nearest is not None:
            raise ModelError(
                f"there is no model kind {quoted(model_type)}; the nearest architecture is "
                f"`{nearest}`, but gptrs must not load it as that",
                hint="docs/recipes/add_a_model_kind.md shows how to add it as a plugin of two "
                "files, docs/torch.md how to run an export of torch; `gptrs list models --all` "
                "shows all known kinds",
            )

    def demo_model_path(self, name: str | None = None) -> Path:
        """Return the directory of the demo model `name`, by default of the first by name.

        Models of gptrs itself come first.

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
            # An unusable one is looked up, too, to raise its reason.
            name = next(usable, names[0])
        plugin = self.find(DemoModelPlugin, name)
        with self.code_of(DemoModelPlugin, name):
            return resource_directory(plugin.path)

    def _is_usable(self, point: type[PluginDescription], name: str) -> bool:
        try:
            plugin = self.plugin(point, name)
        except PluginError:  # the name is contested
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
            # A usage error is one of the user, not of the plugin.
            with self.code_of(BackendPlugin, name, UsageError):
                given = settings if takes else settings.threads
                made = foreign_import(plugin.record, lambda: factory(given), "starting")
                backend = _checked_backend(made, plugin.record.name)
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
                continue  # its record now has the reason
            self._warn_of_skipped()
            return backend
        self._warn_of_skipped()
        raise BackendError(
            "no backend is available",
            hint="`gptrs list plugins` says why; to install one of gptrs, "
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
    """Return the plugins of this process, selected by the environment at the first call."""
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

    `device`, `options` (a mapping or texts NAME=VALUE), a `mesh` such as `data=2,tensor=4`, and
    `processes` are for backends that take them; others raise UsageError.
    """
    grid = Mesh.parse(mesh) if isinstance(mesh, str) else mesh
    settings = BackendSettings(threads, device, parsed_options(options), grid, processes)
    return manager().get_backend(name, settings=settings)


def backend_of(backend: str | Backend | None, threads: int | None = None) -> Backend:
    """Return a backend by name, or the given one; UsageError for threads beside that."""
    if backend is None or isinstance(backend, str):
        return manager().get_backend(backend, threads)
    backend = contract.required_backend(backend)
    if threads is not None:
        raise UsageError(
            f"the backend `{backend.name}` exists and has its threads, got `threads={threads}`",
            hint=f'pass them to `gptrs.get_backend("{backend.name}", {threads})`',
        )
    return backend


def origin_of(backend: Backend) -> str:
    """Return a backend with its distribution, or else with its class, for messages."""
    found = manager().record_of(backend)
    if found is not None:
        return described(found)
    made_by = type(backend)
    return f"backend `{backend.name}` (`{made_by.__module__}.{made_by.__qualname__}`)"


def configure(disabled: Iterable[str] = ()) -> PluginManager:
    """Start over, with the plugins in `disabled` excluded: for `-p no:NAME`, and for tests.

    Existing backends remain usable.
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
