"""Makes backends of their plugins: the one asked for by name, or the best that works."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, cast

from gptrs.backend.process_limits import requested_threads
from gptrs.errors import BackendError, PluginError, UsageError
from gptrs.plugins.catalog import PluginCatalog
from gptrs.plugins.descriptions import BackendPlugin
from gptrs.plugins.state import PluginState

if TYPE_CHECKING:
    from gptrs.backend.protocol import Backend

_LOG = logging.getLogger("gptrs")
_MEMBERS = ("name", "refusal", "compile", "to_device", "to_host")


class Backends:
    """The backends of one process: one instance for each name and number of threads."""

    def __init__(self, catalog: PluginCatalog) -> None:
        self._catalog = catalog
        self._made: dict[tuple[str | None, int | None], Backend] = {}
        self._warned: set[str] = set()
        # Reentrant: the factory of a backend that wraps another one asks for that.
        self._lock = threading.RLock()

    def get(self, name: str | None, threads: int | None) -> Backend:
        """The backend called `name`, else that of `GPTRS_BACKEND`, else the best that works."""
        name = name or os.environ.get("GPTRS_BACKEND") or None
        threads = requested_threads(threads)
        found = self._made.get((name, threads))
        if found is not None:
            return found
        with self._lock:
            if (name, threads) not in self._made:
                self._made[name, threads] = (
                    self._best(threads) if name is None else self._make(name, threads)
                )
            return self._made[name, threads]

    def _make(self, name: str, threads: int | None) -> Backend:
        if (name, threads) in self._made:
            return self._made[name, threads]
        factory = self._catalog.factory(BackendPlugin, name)
        try:
            backend = _checked(factory(threads), name)
        except (KeyboardInterrupt, UsageError):
            raise  # the user's, not the plugin's
        except BaseException as error:
            raise self._catalog.broken(BackendPlugin, name, error) from error
        self._made[name, threads] = backend
        return backend

    def _best(self, threads: int | None) -> Backend:
        usable = self._catalog.descriptions(BackendPlugin)
        for plugin in sorted(usable, key=lambda plugin: -plugin.priority):
            try:
                backend = self._make(plugin.name, threads)
            except PluginError:
                if self._catalog.selection.strict:
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
        for record in self._catalog.records(BackendPlugin):
            failed = record.state in (PluginState.BROKEN, PluginState.INCOMPATIBLE)
            if failed and record.name not in self._warned:
                self._warned.add(record.name)
                _LOG.warning("backend `%s` is skipped: %s", record.name, record.reason)


def _checked(made: object, name: str) -> Backend:
    missing = [member for member in _MEMBERS if not hasattr(made, member)]
    if missing:
        listed = ", ".join(f"`{member}`" for member in missing)
        raise BackendError(f"its factory made a `{type(made).__name__}`, which lacks {listed}")
    backend = cast("Backend", made)
    if backend.name != name:
        raise BackendError(f"its factory made a backend that calls itself `{backend.name}`")
    return backend
