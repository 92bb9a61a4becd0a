"""Which models of an engine take steps together: those that differ by their adapters."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from typing import Final

from gptrs.errors import ModelError
from gptrs.quick_dataclass import dataclass
from gptrs_runtime.generation.cache_budget import cache_budget, cache_dtype
from gptrs_runtime.generation.family_cache import AdaptedSteps, FamilyCache, adapted_steps
from gptrs_runtime.generation.options import GenerationOptions
from gptrs_runtime.loaded_model import LoadedModel

_logger = logging.getLogger("gptrs")

MOST_ADAPTERS: Final = 8
"""Adapters of one step: each of its rows is multiplied by the factors of all of them."""


@dataclass(frozen=True)
class Family:
    """A model that steps by itself, or several that differ by their adapters, and step `together`.

    `names` are those that requests call them by.
    """

    models: Sequence[LoadedModel]
    names: Sequence[str]
    together: AdaptedSteps | None = None

    def new_cache(self, options: GenerationOptions) -> FamilyCache | None:
        """Return a cache for all of them; None for one model, which has one already."""
        if self.together is None:
            return None
        dtype, budget = cache_dtype(options.cache_dtype), cache_budget(options.cache_budget)
        return FamilyCache(self.models, self.together, dtype, budget)

    def number(self, model: LoadedModel) -> int:
        """Return the number of a model in the cache, 0 where it is alone."""
        return 0 if self.together is None else 1 + list(self.models).index(model)


def families(models: Mapping[str, LoadedModel]) -> list[Family]:
    """Return which of the models take steps together: up to `MOST_ADAPTERS` adapters of one.

    They change the same layers: a product of zeros would round what follows it in another way. All
    others take steps by themselves, and so do adapters of a model whose layers cannot tell rows
    apart.
    """
    alike: dict[Hashable, dict[str, LoadedModel]] = {}
    for name, model in models.items():
        changed = () if model.adapter is None else model.adapter.modules
        alike.setdefault((id(model.base or model), frozenset(changed)), {})[name] = model
    return [family for named in alike.values() for family in _of_equal_layers(named)]


def _of_equal_layers(models: Mapping[str, LoadedModel]) -> list[Family]:
    """Return the families of names whose models share their weights and change the same layers."""
    adapted = list({id(model): model for model in models.values() if model.base}.values())
    found = [Family((model,), (name,)) for name, model in models.items()]
    for start in range(0, len(adapted) - 1, MOST_ADAPTERS):
        members = adapted[start : start + MOST_ADAPTERS]
        try:
            together = adapted_steps(members)
        except ModelError as error:
            _logger.warning("adapters take steps of their own: %s", error)
            break
        names = [name for name, model in models.items() if any(model is m for m in members)]
        found = [each for each in found if each.names[0] not in names]
        found.append(Family(members, names, together))
    return found
