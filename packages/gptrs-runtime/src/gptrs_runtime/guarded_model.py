"""A model of somebody else's package: what its methods raise names it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NoReturn

from gptrs.checkpoint.params import Params
from gptrs.errors import GptrsError
from gptrs.plugins.descriptions import ModelPlugin
from gptrs.plugins.manager import ModelFactory, manager
from gptrs.plugins.refusals import failure
from gptrs.plugins.selection import is_own
from gptrs.plugins.state import PluginRecord

_PASSED_ON = (GptrsError, KeyboardInterrupt, MemoryError)


def model_factory(kind: str) -> ModelFactory:
    """Return what makes models of a kind; what it raises names the plugin.

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


def guarded(model: object, kind: str) -> object:
    """Return `model`, guarded unless its kind is one of gptrs itself, or of no plugin."""
    records = manager().installed(ModelPlugin)
    if all(is_own(record.distribution) for record in records if record.name == kind):
        return model
    return GuardedModel(model, manager().record(ModelPlugin, kind))


class GuardedModel:
    """A model whose methods raise errors of gptrs only; everything else is as the model has it.

    What else they raise becomes a PluginError that names the plugin.
    """

    def __init__(self, model: object, record: PluginRecord) -> None:
        self._model = model
        self._record = record

    def __getattr__(self, name: str) -> object:
        """Return attribute `name` of the model; methods are guarded, and kept for later calls."""
        try:
            found: object = getattr(self._model, name)
        except AttributeError:
            raise
        except BaseException as error:
            _blame(self._record, f"`{name}`", error)
        if not callable(found):
            return found

        @functools.wraps(found)
        def call(*args: object, **kwargs: object) -> object:
            try:
                return found(*args, **kwargs)
            except BaseException as error:
                _blame(self._record, f"`{name}`", error)

        self.__dict__[name] = call
        return call


def _blame(record: PluginRecord, what: str, error: BaseException) -> NoReturn:
    """Raise `error` itself if it is meant for the user, else a PluginError that names the plugin.

    SystemExit becomes one, too: a plugin must not end the program.
    """
    if isinstance(error, _PASSED_ON):
        raise error
    raise failure(record, what, error) from error
