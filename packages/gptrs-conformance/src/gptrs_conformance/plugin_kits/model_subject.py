"""Models under test: what their author gives, and what their checks share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, TypeVar, cast

import numpy as np
from msgspec import Struct, field

from gptrs.backend.contract import Backend
from gptrs.checkpoint.params import Params
from gptrs.nn.ragged_step import PAGE_SIZE
from gptrs.plugins.capabilities import capabilities_of
from gptrs.plugins.descriptions import ModelPlugin
from gptrs.plugins.manager import manager
from gptrs_conformance.plugin_kits.subject import absent
from gptrs_runtime.sources.find_model import find_model

MOST = 2 * PAGE_SIZE + 5
"""Tokens of a text: three pages, the last of them in part."""

Settings = Mapping[str, object]
Load = Callable[[Settings, Params], object]
Kind = TypeVar("Kind")


class ReadsTokens(Protocol):
    """A model of texts as token ids."""

    @property
    def context_length(self) -> int:
        """The largest number of positions of a text."""
        ...

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        ...


class Model(Struct, frozen=True, kw_only=True):
    """A model under test: the factory of its kind, with the settings and weights that it takes.

    Without `params`, only refusals of settings are tried. `folder` has the files of the model.
    """

    load: Load
    settings: Settings = field(default_factory=dict[str, object])
    params: Callable[[Backend], Params] | None = None
    folder: Path | None = None

    def made(self, backend: Backend) -> object:
        """Return the model on a backend; UnsupportedError without weights."""
        if self.params is None:
            raise absent("no model of the kind is given")
        return self.load(self.settings, self.params(backend))


def model_in(folder: str | Path) -> Model:
    """Return the model in a folder or file; ModelError as in `find_model`."""
    path = Path(folder)
    source = find_model(path)

    def params(backend: Backend) -> Params:
        return Params(source.weights, backend=backend)

    load = manager().model_factory(source.model_type)
    return Model(load=load, settings=source.config, params=params, folder=path)


def kind_alone(name: str) -> Model:
    """Return a kind without any model: only its refusals can be tried."""
    load = cast("Load", manager().factory(ModelPlugin, name))
    return Model(load=load, settings={"model_type": name})


def able(subject: Model, backend: Backend, capability: str, kind: type[Kind]) -> Kind:
    """Return the model if it has a capability."""
    made = subject.made(backend)
    if capability not in capabilities_of(made):
        raise absent(f"it does not have the capability `{capability}`")
    return cast("Kind", made)


def tokens_of(model: ReadsTokens, texts: int, seed: int = 3, most: int = MOST) -> np.ndarray:
    """Return tokens si64 [texts, T], as long as the context allows, at most `most`."""
    length = min(most, model.context_length)
    return np.random.default_rng(seed).integers(0, model.vocab_size, (texts, length))
