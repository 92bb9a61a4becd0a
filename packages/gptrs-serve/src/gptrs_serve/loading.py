"""The models that a server answers with, by the names that its clients call them by."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence

from gptrs.api import UsageError
from gptrs.api.backends import Backend
from gptrs_runtime.load import load_model
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_serve.served import SERVED


def load_models(
    models: Sequence[str], load: Callable[[str], LoadedModel]
) -> dict[str, LoadedModel]:
    """Load [NAME=]MODEL... by `load`; UsageError for two of one name, or one that serves nothing.

    A terminal is told of each beforehand.
    """
    loaded: dict[str, LoadedModel] = {}
    for given in models:
        name, separator, path = given.partition("=")
        if not (path if separator else given):
            raise UsageError(
                f"`{given}` names no model", hint="write NAME=MODEL, with a path or id"
            )
        if sys.stderr.isatty():  # large ones take a while
            print(f"loading {path if separator else given}", file=sys.stderr, flush=True)
        model = load(path if separator else given)
        name = name if separator else model.name
        if name in loaded or not name:
            raise UsageError(
                f"two models are called `{name}`" if name else f"`{given}` names no model",
                hint="write NAME=MODEL",
            )
        if not set(SERVED) & set(model.capabilities):
            raise UsageError(f"`{name}` neither writes, embeds nor classifies texts")
        loaded[name] = model
    return loaded


def load_drafts(
    given: Sequence[str], names: Sequence[str], backend: Backend
) -> dict[str, LoadedModel]:
    """Load [NAME=]MODEL... by the models that they draft for; UsageError for two of one model."""
    drafts: dict[str, LoadedModel] = {}
    for each in given:
        name, separator, path = each.partition("=")
        name = name if separator else names[0]
        if name in drafts:
            raise UsageError(f"two drafts are given for `{name}`", hint="write NAME=MODEL")
        drafts[name] = load_model(path if separator else each, backend)
    return drafts


def with_adapters(
    loaded: Mapping[str, LoadedModel], given: Sequence[str]
) -> dict[str, LoadedModel]:
    """Add models with adapters, [MODEL:]NAME=DIR; UsageError for names that do not suit."""
    served = dict(loaded)
    for each in given:
        names, _, path = each.partition("=")
        base, separator, name = names.rpartition(":")
        base = base if separator else next(iter(loaded))
        if not name or not path:
            raise UsageError(f"--adapter: `{each}` is no [MODEL:]NAME=DIR")
        if base not in loaded or name in served:
            problem = f"two models are called `{name}`"
            if base not in loaded:
                problem = f"there is no model `{base}` to adapt"
            raise UsageError(f"--adapter: {problem}", hint=f"models are {', '.join(loaded)}")
        served[name] = loaded[base].with_adapter(path, name)
    return served
