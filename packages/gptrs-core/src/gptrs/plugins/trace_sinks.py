"""Trace sinks of plugins: those that the environment or the command line names listen."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from functools import partial

from gptrs.capture.events import ExecutionTraceSink, install, uninstall
from gptrs.errors import PluginError, UsageError
from gptrs.plugins.descriptions import TraceSinkPlugin
from gptrs.plugins.manager import PluginManager, manager

VARIABLE = "GPTRS_TRACE_SINKS"
"""A comma list of the sinks that listen to every program of the process."""

_LOG = logging.getLogger("gptrs")
_active: dict[str, ExecutionTraceSink] = {}
_lock = threading.RLock()


def names_from_environment() -> list[str]:
    """Return the names in `GPTRS_TRACE_SINKS`, each once."""
    parts = (part.strip() for part in os.environ.get(VARIABLE, "").split(","))
    return list(dict.fromkeys(part for part in parts if part))


def make_trace_sink(name: str) -> ExecutionTraceSink:
    """Return a new sink of the plugin called `name`, which nothing listens through yet.

    PluginError, which lists what is installed, when there is none, or with the real cause when it
    is disabled, incompatible or broken. A sink that fails later is taken out with a warning and
    counts as broken; programs go on, unless the selection of plugins is strict.
    """
    plugins = manager()
    factory = plugins.factory(TraceSinkPlugin, name)
    # A usage error is one of the user, not of the plugin.
    with plugins.code_of(TraceSinkPlugin, name, UsageError):
        return _Guarded(plugins, name, _checked(factory()))


def install_from_environment() -> None:
    """Let the sinks of `GPTRS_TRACE_SINKS` listen to the end of the process; twice is once.

    Raises as `make_trace_sink` does.
    """
    names = names_from_environment()
    if any(name not in _active for name in names):
        _activate(names)


@contextmanager
def listening(names: Iterable[str] = ()) -> Generator[None]:
    """Scope in which the sinks called `names` and those of the environment listen to every thread.

    One that listens already is left as it is. Raises as `make_trace_sink` does.
    """
    added = _activate([*names_from_environment(), *names])
    try:
        yield
    finally:
        with _lock:
            for name in added:
                uninstall(_active.pop(name))


def _activate(names: Iterable[str]) -> list[str]:
    """Let those that do not listen yet do so, all or none; returns their names."""
    with _lock:
        missing = [name for name in dict.fromkeys(names) if name not in _active]
        made = {name: make_trace_sink(name) for name in missing}
        for sink in made.values():
            install(sink)
        _active.update(made)
        return missing


def _checked(made: object) -> ExecutionTraceSink:
    if not isinstance(made, ExecutionTraceSink):
        found = type(made).__name__
        raise PluginError(f"its factory made a `{found}`, an `ExecutionTraceSink` is needed")
    return made


class _Guarded(ExecutionTraceSink):
    """Hands events on to the sink of a plugin until that fails."""

    def __init__(self, plugins: PluginManager, name: str, sink: ExecutionTraceSink) -> None:
        self._plugins = plugins
        self._name = name
        self._failed = False
        self.wants_kernels = sink.wants_kernels
        for method in vars(ExecutionTraceSink):
            if method.startswith(("before_", "after_")):
                setattr(self, method, partial(self._tell, getattr(sink, method)))

    def _tell(self, listen: Callable[[object], None], event: object) -> None:
        if self._failed:
            return
        try:
            listen(event)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit, too: a plugin must not end the program
            self._failed = True
            broken = self._plugins.broken(TraceSinkPlugin, self._name, error)
            if self._plugins.selection.strict:
                raise broken from error
            _LOG.warning("%s; it gets no more events", broken.message)
