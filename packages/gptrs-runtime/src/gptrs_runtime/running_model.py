"""The running module of a loaded model: applies overrides, attributes errors, watches files."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from types import FunctionType
from typing import NoReturn

from gptrs.checkpoint.param_source import FileSource
from gptrs.checkpoint.params import Params
from gptrs.errors import GptrsError
from gptrs.functionals.dispatch.active_overrides import Choice, entered
from gptrs.plugins.capabilities import PROTOCOLS, RepeatingLM, members_of
from gptrs.plugins.descriptions import ModelPlugin
from gptrs.plugins.manager import ModelFactory, manager
from gptrs.plugins.refusals import failure
from gptrs.plugins.selection import is_own
from gptrs.plugins.state import PluginRecord
from gptrs.spans import span

_Method = Callable[..., object]
_PASSED_ON = (GptrsError, KeyboardInterrupt, MemoryError)
_ABOUT = frozenset({"cache_specs", "new_buffers", "image_prompt", "frame_count"})
"""Methods of capabilities that do not compute with weights."""
_COMPUTING = {"adapted_step", "stated_step", "guided_step"} | {
    name
    for protocol in (*PROTOCOLS.values(), RepeatingLM)
    for name in members_of(protocol)
    if isinstance(getattr(protocol, name), FunctionType) and name not in _ABOUT
}
_IDLE_S = 0.01
"""After this many seconds without a call, the files are also checked before the next call."""


def model_factory(kind: str) -> ModelFactory:
    """Return the factory for models of a kind; its errors name the plugin.

    ModelError for an unknown kind, PluginError for a plugin that is not usable.
    """
    plugins = manager()
    factory = plugins.model_factory(kind)

    def make(config: Mapping[str, object], params: Params) -> object:
        try:
            return factory(config, params)
        except BaseException as error:
            _blame(plugins.record(ModelPlugin, kind), "its factory", error)

    return make


class RunningModel:
    """A module of `kind` whose methods run under the conditions of a loaded model.

    - `choices` of overrides hold in each.
    - A module of somebody else's package raises errors of gptrs only: what else it raises becomes a
      PluginError that names the plugin.
    - Methods that compute raise CheckpointError if an open file of `weights` has changed: weights
      are mapped files, and what another process writes to them would silently be computed with. It
      costs microseconds a call. They look after each call, and before one after a pause.

    Everything else is passed through to the module.
    """

    def __init__(
        self, module: object, kind: str, weights: FileSource, choices: Mapping[str, Choice]
    ) -> None:
        self._module = module
        self._weights = weights
        self._choices = choices
        self._blamed = _stranger(kind)
        self._looked = -math.inf

    def __getattr__(self, name: str) -> object:
        """Return attribute `name` of the module; methods are kept for later calls."""
        found = self._read(name)
        if not callable(found):
            return found
        # A method gets only the wrappers with an effect, since each adds a frame to every step.
        call = found
        if self._blamed is not None:
            call = _blaming(call, self._blamed, name)
        if self._choices:
            call = _overridden(call, self._choices)
        if name in _COMPUTING:
            call = self._watched(call, name)
        if call is not found:
            self.__dict__[name] = call
        return call

    def _read(self, name: str) -> object:
        try:
            with entered(self._choices) if self._choices else nullcontext():
                return getattr(self._module, name)
        except AttributeError:
            raise
        except BaseException as error:
            if self._blamed is None:
                raise
            _blame(self._blamed, f"`{name}`", error)

    def _watched(self, method: _Method, name: str) -> _Method:
        @functools.wraps(method)
        def call(*args: object, **kwargs: object) -> object:
            # Reading a truncated mapping ends the process, unless the backend handles the signal.
            if time.monotonic() - self._looked > _IDLE_S:
                self._weights.require_unchanged()
            with span("model", name):
                result = method(*args, **kwargs)
            self._weights.require_unchanged()  # the data read belongs to the file that was opened
            self._looked = time.monotonic()
            return result

        return call


def _overridden(method: _Method, choices: Mapping[str, Choice]) -> _Method:
    @functools.wraps(method)
    def call(*args: object, **kwargs: object) -> object:
        with entered(choices):
            return method(*args, **kwargs)

    return call


def _blaming(method: _Method, record: PluginRecord, name: str) -> _Method:
    @functools.wraps(method)
    def call(*args: object, **kwargs: object) -> object:
        try:
            return method(*args, **kwargs)
        except BaseException as error:
            _blame(record, f"`{name}`", error)

    return call


def _stranger(kind: str) -> PluginRecord | None:
    """Return the third-party plugin of a kind, None for gptrs's own or if there is none."""
    records = manager().installed(ModelPlugin)
    if all(is_own(record.distribution) for record in records if record.name == kind):
        return None
    return manager().record(ModelPlugin, kind)


def _blame(record: PluginRecord, what: str, error: BaseException) -> NoReturn:
    """Raise `error` itself if it is meant for the user, else a PluginError that names the plugin.

    SystemExit becomes one, too: a plugin must not end the program.
    """
    if isinstance(error, _PASSED_ON):
        raise error
    raise failure(record, what, error) from error
