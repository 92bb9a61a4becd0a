"""One cache for models that differ by their adapters, whose texts run in one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

import numpy as np
from typing_extensions import override

from gptrs.errors import ModelError
from gptrs.ir.dtypes import DType
from gptrs.nn.cache_spec import cache_groups
from gptrs.nn.page_buffers import PageBuffers
from gptrs.nn.ragged_step import RaggedStep, own_pages, ragged_step
from gptrs_runtime.generation.paged_cache import LONG, PagedCache
from gptrs_runtime.generation.step_times import StepShapes
from gptrs_runtime.generation.text_cache import Row
from gptrs_runtime.loaded_model import LoadedModel


class AdaptedSteps(Protocol):
    """A model whose linear layers have several adapters."""

    def adapted_step(
        self, step: RaggedStep, adapters: np.ndarray, buffers: PageBuffers
    ) -> np.ndarray:
        """Run a step whose row n is of adapter `adapters[n]`, si32 [N], the first is 1."""
        ...


def adapted_steps(models: Sequence[LoadedModel]) -> AdaptedSteps:
    """Return the base of `models` with the adapters of all of them, for steps that they share.

    ModelError if layers of the model cannot tell rows apart: a step of two texts is tried.
    """
    base = models[0].base
    adapters = [model.adapter for model in models if model.adapter is not None]
    assert base is not None, "each was made by `with_adapter`"
    made = base.with_several(adapters)
    if not hasattr(made, "adapted_step"):
        raise ModelError(f"`{base.name}` has no steps for several adapters")
    together = cast("AdaptedSteps", made)
    lm, table = base.causal_lm(), own_pages(2, 1)
    groups = len(cache_groups(lm.cache_specs()))
    step = StepShapes(base.backend).padded(ragged_step([[0], [0]], [0, 0], [table] * groups))
    pages = lm.new_buffers([table.size] * groups)
    together.adapted_step(step, _padded([1, 2], len(step.tokens)), pages)
    return together


class FamilyCache(PagedCache):
    """The pages of all texts of `models`, which differ by their adapters: families 1, 2, ...

    A step of one family runs its model; one of several runs `together`, where each row gets the
    product of its own adapter and is the same to the bit. Texts share pages with those of their
    own family only.
    """

    def __init__(
        self,
        models: Sequence[LoadedModel],
        together: AdaptedSteps,
        dtype: DType,
        budget: int | None,
    ) -> None:
        super().__init__(models[0].causal_lm(), models[0].backend, dtype, budget)
        self._members = [model.causal_lm() for model in models]
        self._together = together

    @property
    @override
    def steps_at_once(self) -> int:
        return 1

    def _logits(self, rows: Sequence[Row], step: RaggedStep) -> np.ndarray:
        families = [
            row.text.family % LONG for row in rows for _ in range(len(row.tokens) + len(row.guess))
        ]
        if len(set(families)) == 1:
            return self._members[families[0] - 1].step(step, self.buffers)
        numbers = _padded(families, len(step.tokens))
        return self._together.adapted_step(step, numbers, self.buffers)


def _padded(families: Sequence[int], rows: int) -> np.ndarray:
    """Return the family of each row, si32; those that are added are of none, 0."""
    made = np.zeros(rows, np.int32)
    made[: len(families)] = families
    return made
