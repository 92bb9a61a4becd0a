"""The plugins of this process: which there are, in which state, and what they make.

`get_backend` is the whole way from an entry point to a running backend: `discover` finds the entry
points, `find` reads the description of one, `factory` imports what that names, and the call makes
the backend.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from gptrs.backend.process_limits import requested_threads
from gptrs.errors import BackendError, GptrsError, ModelError, PluginError, UsageError
from gptrs.plugins.descriptions import (
    BackendPlugin,
    CommandPlugin,
    DemoModelPlugin,
    FactoryPlugin,
    ModelPlugin,
    PluginDescription,
)
from gptrs.plugins.discovery import DISTRIBUTION, Plugin, discover, known_names
from gptrs.plugins.foreign_code import foreign_import
from gptrs.plugins.hookspecs import EXTENSION_POINTS
from gptrs.plugins.reading import read
from gptrs.plugins.references import load_reference, resource_directory
from gptrs.plugins.selection import Selection
from gptrs.plugins.state import PluginRecord, PluginState
from gptrs.quoting import did_you_mean, quoted

if TYPE_CHECKING:
    from gptrs.backend.protocol import Backend
    from gptrs.checkpoint.params import Params

ModelFactory = Callable[[Mapping[str, object], "Params"], object]
"""Makes a model from the settings of config.json and its weights."""
Description = TypeVar("Description", bound=PluginDescription)
Factory = TypeVar("Factory", bound=FactoryPlugin)

_LOG = logging.getLogger("gptrs")
_KINDS = {point.description: point.kind for point in EXTENSION_POINTS}
_UNMATCHED = "no plugin or distribution is called `%s`, the name selects nothing"
_PROBLEMS = (PluginState.DUPLICATE, PluginState.INCOMPATIBLE, PluginState.BROKEN)
_BACKEND_MEMBERS = ("name", "refusal", "compile", "to_device", "to_host")


class PluginManager:
    """The plugins that `selection` wants, discovered when first asked for; used from any thread.

    A strict selection makes every access raise PluginError while some plugin is broken,
    incompatible or a duplicate, or a name in the selection fits none. A `quiet` one leaves the
    warnings to another one.
    """

    def __init__(self, selection: Selection, quiet: bool = False) -> None:
        self.selection = selection
        self._quiet = quiet
        self._plugins: list[Plugin] | None = None
        self._reading = False
        self._lock = threading.RLock()
        self._backends: dict[tuple[str | None, int | None], Backend] = {}
        self._warned: set[str] = set()
        # Reentrant: the factory of a backend that wraps another one asks for that.
        self._making = threading.RLock()

    def discover(self) -> None:
        """Find the plugins now rather than on first use; a second call does nothing."""
        self._discovered()

    def installed(self, point: type[PluginDescription] | None = None) -> list[PluginRecord]:
        """Return all plugins, or those of a kind, as far as they are known: nothing is imported.

        Those whose descriptions were not read yet count as available, and have no summary.
        """
        records = [plugin.record for plugin in self._discovered()]
        return [r for r in records if point is None or r.kind == _KINDS[point]]

    def summaries(self, point: type[PluginDescription]) -> dict[str, str]:
        """Return what is known of the plugins of a kind without importing them, by name.

        That is the summary if a process read the description before, else whose plugin it is.
        Disabled and duplicate ones are left out, and those known to be unusable.
        """
        plugins = [p for p in self._discovered() if p.record.kind == _KINDS[point]]
        usable = [plugin for plugin in plugins if plugin.record.state.usable]
        unread = [plugin.unread for plugin in usable if plugin.unread is not None]
        foreign = [candidate for candidate in unread if not candidate.built_in]
        kept: dict[str, str] = _summaries().remembered(foreign) if foreign else {}
        return {
            record.name: record.summary
            or kept.get(record.name)
            or f"From {record.distribution} {record.version}."
            for record in (plugin.record for plugin in usable)
        }

    def records(self, point: type[PluginDescription] | None = None) -> list[PluginRecord]:
        """Return all plugins, or those described by `point`, by kind, name and distribution.

        Their descriptions are imported, and so are they for the methods below.
        """
        return [plugin.record for plugin in self._read(None if point is None else _KINDS[point])]

    def described(self, point: type[Description]) -> list[tuple[PluginRecord, Description | None]]:
        """Return all plugins of a kind, also unusable ones; None where no description was read."""
        return [
            (plugin.record, cast("Description | None", plugin.description))
            for plugin in self._read(_KINDS[point])
        ]

    def take_over(self, records: Iterable[PluginRecord]) -> None:
        """Believe what another process found of plugins that were not read here yet.

        One that is broken there is not imported here any more.
        """
        found = {(r.kind, r.name, r.distribution): r for r in records}
        with self._lock:
            for plugin in self._discovered():
                key = plugin.record.kind, plugin.record.name, plugin.record.distribution
                if plugin.unread is not None and key in found:
                    plugin.record = found[key]
                    plugin.unread = plugin.unread if plugin.record.state.usable else None

    def descriptions(self, point: type[Description]) -> list[Description]:
        """Return the descriptions of the usable plugins of a kind, by name."""
        found = [plugin for record, plugin in self.described(point) if record.state.usable]
        return [description for description in found if description is not None]

    def find(
        self,
        point: type[Description],
        name: str,
        unknown: type[GptrsError] = PluginError,
    ) -> Description:
        """Return the description of the usable plugin called `name`.

        PluginError with the real cause when it is disabled, incompatible or broken; an `unknown`
        that lists the installed ones when there is none.
        """
        plugin = self._plugin(point, name)
        if plugin is None:
            raise self._unknown(point, name, unknown)
        if not plugin.record.state.usable:
            raise _refusal(plugin.record) from plugin.cause
        return cast("Description", plugin.description)

    def factory(
        self,
        point: type[Factory],
        name: str,
        unknown: type[GptrsError] = PluginError,
    ) -> Callable[..., object]:
        """Import the factory of the plugin called `name`, and mark the plugin as loaded.

        Raises as `find` does, and PluginError when the import fails: the plugin is then broken.
        """
        description = self.find(point, name, unknown)
        plugin = cast("Plugin", self._plugin(point, name))
        try:
            with foreign_import(plugin.record):
                factory = load_reference(description.factory)
            if not callable(factory):
                found = type(factory).__name__
                raise PluginError(f"`{description.factory}` must be callable, it is a `{found}`")
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit, too: a plugin must not end the program
            raise self.broken(point, name, error) from error
        with self._lock:
            plugin.record = replace(plugin.record, state=PluginState.LOADED)
        return factory

    def broken(
        self, point: type[PluginDescription], name: str, error: BaseException
    ) -> PluginError:
        """Mark the plugin called `name` as broken by `error`; return the error to raise for it."""
        with self._lock:
            plugin = cast("Plugin", self._plugin(point, name))
            plugin.break_by(error)
            return _refusal(plugin.record)

    def _plugin(self, point: type[PluginDescription], name: str) -> Plugin | None:
        """Return the plugin that has the name; a disabled or duplicate one for want of another."""
        found = [
            plugin
            for plugin in self._discovered()
            if (plugin.record.kind, plugin.record.name) == (_KINDS[point], name)
        ]
        passed_over = (PluginState.DISABLED, PluginState.DUPLICATE)
        chosen = min(found, key=lambda p: p.record.state in passed_over, default=None)
        if chosen is not None:
            self._read_one(chosen)
        return chosen

    def _discovered(self) -> list[Plugin]:
        """Return the plugins, unread; none to a plugin that asks while it is being read."""
        with self._lock:
            if self._reading:
                return []
            if self._plugins is None:
                self._plugins = discover(self.selection)
                if not self._quiet:
                    self._warn_of_damage(self._plugins)
            if self.selection.strict:
                self._require_flawless(self._plugins)
            return self._plugins

    def _read(self, kind: str | None) -> list[Plugin]:
        wanted = [p for p in self._discovered() if kind is None or p.record.kind == kind]
        for plugin in wanted:
            self._read_one(plugin)
        return wanted

    def _read_one(self, plugin: Plugin) -> None:
        with self._lock:
            if plugin.unread is None:
                return
            self._reading = True
            candidate = plugin.unread
            try:
                read(plugin, candidate)
            finally:
                self._reading = False
            plugin.unread = None  # not after an interrupt: the next try starts over
            summary = plugin.record.summary
            if summary and candidate.point.description is CommandPlugin and not candidate.built_in:
                _summaries().remember(candidate, summary)

    def _warn_of_damage(self, plugins: list[Plugin]) -> None:
        for record in (plugin.record for plugin in plugins):
            if record.kind == DISTRIBUTION:
                _LOG.warning("`%s` is skipped: %s; %s", record.name, record.reason, record.hint)
        for name in self.selection.unmatched(known_names(plugins)):
            _LOG.warning(_UNMATCHED, name)

    def _require_flawless(self, plugins: list[Plugin]) -> None:
        for name in self.selection.unmatched(known_names(plugins)):
            raise PluginError(_UNMATCHED % name)
        for plugin in plugins:
            self._read_one(plugin)
            if plugin.record.state in _PROBLEMS:
                raise _refusal(plugin.record) from plugin.cause

    def _unknown(
        self, point: type[PluginDescription], name: str, error: type[GptrsError]
    ) -> GptrsError:
        known = [record.name for record in self.records(point) if record.state.usable]
        listed = ", ".join(f"`{name}`" for name in known) or "none"
        return error(
            f"there is no {_label(_KINDS[point])} {quoted(name)}",
            hint=f"{did_you_mean(name, known)}available: {listed};"
            " others come with the package that has them",
        )

    def get_backend(self, name: str | None = None, threads: int | None = None) -> Backend:
        """Return the backend called `name`, else that of `GPTRS_BACKEND`, else the best that works.

        Without a name the usable one of the highest priority is taken; broken ones are skipped with
        a warning of one line each. `threads` defaults to `GPTRS_NUM_THREADS`, else to the choice of
        the backend. The same name and threads give the same object. PluginError when the one asked
        for is unknown, disabled, incompatible or broken; UsageError for threads out of range.
        """
        name = name or os.environ.get("GPTRS_BACKEND") or None
        threads = requested_threads(threads)
        found = self._backends.get((name, threads))
        if found is not None:
            return found
        with self._making:
            if (name, threads) not in self._backends:
                self._backends[name, threads] = (
                    self._best_backend(threads)
                    if name is None
                    else self._make_backend(name, threads)
                )
            return self._backends[name, threads]

    def model_plugin(self, model_type: str) -> ModelPlugin:
        """Return the plugin for models of the kind `model_type`; ModelError if there is none."""
        return self.find(ModelPlugin, model_type, unknown=ModelError)

    def model_factory(self, model_type: str) -> ModelFactory:
        """Return what makes models of the kind `model_type`; raises as `model_plugin` does."""
        return cast("ModelFactory", self.factory(ModelPlugin, model_type, unknown=ModelError))

    def demo_model_path(self, name: str | None = None) -> Path:
        """Return the directory of the demo model called `name`, else of the first by name.

        PluginError when there is none, or its directory is missing.
        """
        if name is None:
            names = [record.name for record in self.installed(DemoModelPlugin)]
            usable = (name for name in names if self._is_usable(DemoModelPlugin, name))
            if not names:
                raise PluginError(
                    "no demo model is installed",
                    hint="name a model directory, or `pip install gptrs`, which brings one",
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
        plugin = self._plugin(point, name)
        return plugin is not None and plugin.record.state.usable

    def _make_backend(self, name: str, threads: int | None) -> Backend:
        if (name, threads) in self._backends:
            return self._backends[name, threads]
        factory = self.factory(BackendPlugin, name)
        try:
            backend = _checked_backend(factory(threads), name)
        except (KeyboardInterrupt, UsageError):
            raise  # the user's, not the plugin's
        except BaseException as error:
            raise self.broken(BackendPlugin, name, error) from error
        self._backends[name, threads] = backend
        return backend

    def _best_backend(self, threads: int | None) -> Backend:
        usable = self.descriptions(BackendPlugin)
        for plugin in sorted(usable, key=lambda plugin: -plugin.priority):
            try:
                backend = self._make_backend(plugin.name, threads)
            except PluginError:
                if self.selection.strict:
                    raise
                continue  # its record now says why
            self._warn_of_skipped()
            return backend
        self._warn_of_skipped()
        raise BackendError(
            "no backend is available",
            hint="`gptrs list plugins` says why; `pip install gptrs` brings those of gptrs itself",
        )

    def _warn_of_skipped(self) -> None:
        for record in self.records(BackendPlugin):
            failed = record.state in (PluginState.BROKEN, PluginState.INCOMPATIBLE)
            if failed and record.name not in self._warned:
                self._warned.add(record.name)
                _LOG.warning("backend `%s` is skipped: %s", record.name, record.reason)


def _summaries() -> Any:
    # Imported where a stranger has commands: the start is quick without a cache.
    return importlib.import_module("gptrs.plugins.summaries")


_process: list[PluginManager] = []
_lock = threading.Lock()


def manager() -> PluginManager:
    """Return the plugins of this process, as the environment selects them at the first call."""
    with _lock:
        if not _process:
            _process.append(PluginManager(Selection.from_environment()))
        return _process[0]


def get_backend(name: str | None = None, threads: int | None = None) -> Backend:
    """Return the backend called `name`, or the default one; see `PluginManager.get_backend`."""
    return manager().get_backend(name, threads)


def configure(disabled: Iterable[str] = ()) -> PluginManager:
    """Start over, with the plugins in `disabled` excluded: for `-p no:NAME`, and for tests.

    Backends made so far stay with those who hold them.
    """
    with _lock:
        _process[:] = [PluginManager(Selection.from_environment(disabled))]
        return _process[0]


def _checked_backend(made: object, name: str) -> Backend:
    missing = [member for member in _BACKEND_MEMBERS if not hasattr(made, member)]
    if missing:
        listed = ", ".join(f"`{member}`" for member in missing)
        raise BackendError(f"its factory made a `{type(made).__name__}`, which lacks {listed}")
    backend = cast("Backend", made)
    if backend.name != name:
        raise BackendError(f"its factory made a backend that calls itself `{backend.name}`")
    return backend


def _refusal(record: PluginRecord) -> PluginError:
    source = f" (from {record.distribution} {record.version})"
    return PluginError(
        f"{_label(record.kind)} `{record.name}`{source} is {record.state}: {record.reason}",
        hint=record.hint,
    )


def _label(kind: str) -> str:
    return {"model": "model kind"}.get(kind, kind.replace("_", " "))
