"""The memory of several key/value caches out of one budget."""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.backend.memory import memory_bytes
from gptrs.ir.dtypes import DType
from gptrs.plugins.capabilities import CausalLM
from gptrs_runtime.generation.cache_budget import cache_budget, cache_dtype
from gptrs_runtime.loaded_model import LoadedModel

_CONTEXTS = 8
_SHARE_OF_MEMORY = 2


def shared_budget(
    models: Sequence[LoadedModel], budget: int | str | None, dtype: str | None
) -> list[int | None]:
    """Return how many bytes the cache of each model may take, so that all hold as many contexts.

    `budget` is that of all together, as in `GenerationOptions`; None, for one model, leaves its
    default, for several half of the memory at most, and 8 contexts of each. UsageError for a
    malformed one, ModelError for a model that cannot generate.
    """
    total = cache_budget(budget)
    contexts = [_context_bytes(model.causal_lm(), cache_dtype(dtype)) for model in models]
    if len(models) == 1:
        return [total]
    if total is None:
        memory = memory_bytes()
        total = _CONTEXTS * sum(contexts)
        total = total if memory is None else min(total, memory // _SHARE_OF_MEMORY)
    return [total * size // sum(contexts) for size in contexts]


def _context_bytes(lm: CausalLM, dtype: DType) -> int:
    """Return the bytes of the keys and values of a whole context."""
    return (
        sum(
            2
            * spec.n_kv_heads
            * spec.head_dim
            * min(spec.window or lm.context_length, lm.context_length)
            for spec in lm.cache_specs()
        )
        * dtype.numpy.itemsize
    )
