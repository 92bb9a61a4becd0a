"""The memory of the key/value cache: how much, in which element type, split among its groups."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from gptrs.backend.memory import memory_bytes
from gptrs.errors import UsageError
from gptrs.ir import dtypes
from gptrs.ir.dtypes import DType
from gptrs.nn.cache_spec import CacheGroup
from gptrs.nn.ragged_step import PAGE_SIZE
from gptrs.plugins.capabilities import CausalLM
from gptrs.quoting import shown_value
from gptrs_runtime.byte_sizes import parsed_bytes, shown_bytes
from gptrs_runtime.generation.pages.page_group import GroupLayout

BUDGET: Final = "GPTRS_CACHE_BUDGET"
DTYPE: Final = "GPTRS_CACHE_DTYPE"
CACHE_DTYPES: Final[dict[str, DType]] = {
    "f32": dtypes.f32,
    "bf16": dtypes.bf16,
    "f16": dtypes.f16,
    "q8": dtypes.si8,
}
"""The element types by their names; q8 are codes of 8 bits with a scale for each vector."""

_CONTEXTS = 8
"""Whole contexts that the default budget holds at most."""
_SHARE_OF_MEMORY = 2


def cache_dtype(name: str | None) -> DType:
    """Return the element type of the cache: `name`, else `GPTRS_CACHE_DTYPE`, else f32.

    UsageError for any other than f32, bf16, f16 and q8.
    """
    stated = name or os.environ.get(DTYPE, "").strip() or dtypes.f32.name
    if stated not in CACHE_DTYPES:
        raise UsageError(
            f"a key/value cache has elements of {', '.join(CACHE_DTYPES)}, got"
            f" {shown_value(stated)}"
        )
    return CACHE_DTYPES[stated]


def cache_budget(budget: int | str | None) -> int | None:
    """Return the bytes of `budget`, else of `GPTRS_CACHE_BUDGET`; None where neither says.

    A number of bytes, or a text: `2GB`, `512MiB`, `25%` of the memory. UsageError for others.
    """
    stated = os.environ.get(BUDGET, "").strip() or None if budget is None else budget
    if stated is None:
        return None
    found = parsed_bytes(stated, memory_bytes())
    if found is None:
        raise UsageError(
            f"the budget of the key/value cache must be a size above 0, found"
            f" {shown_value(stated)}",
            hint="give bytes, a size such as `2GB` or `512MiB`, or a share of the memory: `25%`",
        )
    return found


def group_layouts(
    lm: CausalLM, groups: Sequence[CacheGroup], page_bytes: Sequence[int], budget: int | None
) -> list[GroupLayout]:
    """Return the cache groups of `lm` with the pages that each may have within `budget` bytes.

    Groups get the shares that a text of the whole context has of them. `budget` None stands for
    half of the memory, and 8 contexts at most. UsageError for a budget below a page for each group.
    """
    context = lm.context_length
    whole = [
        GroupLayout(group.window, 0, 0).pages_of_text(context, PAGE_SIZE, PAGE_SIZE)
        for group in groups
    ]
    of_context = sum(count * size for count, size in zip(whole, page_bytes, strict=True))
    if budget is None:
        memory = memory_bytes()
        budget = _CONTEXTS * of_context + sum(page_bytes)
        budget = budget if memory is None else min(budget, memory // _SHARE_OF_MEMORY)
    texts = (budget - sum(page_bytes)) / of_context  # each group has a page 0 besides
    most = [int(texts * count) for count in whole]
    if min(most) < 1:
        raise UsageError(
            f"a key/value cache of {shown_bytes(budget)} holds no page of {PAGE_SIZE} positions,"
            f" which takes {shown_bytes(sum(page_bytes))}",
            hint="raise --cache-budget, or take a smaller --cache-dtype",
        )
    return [
        GroupLayout(group.window, size, pages, group.whole)
        for group, size, pages in zip(groups, page_bytes, most, strict=True)
    ]
