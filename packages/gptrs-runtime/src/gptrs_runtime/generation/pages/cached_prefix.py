"""The longest start of a prompt whose keys and values are in pages already."""

from __future__ import annotations

from collections.abc import Sequence

from gptrs.quick_dataclass import dataclass
from gptrs_runtime.generation.pages.page_group import PageGroup
from gptrs_runtime.generation.pages.prefix_index import Block, PrefixIndex


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """Whole `blocks`, and the first `count` tokens of the block `partial`, if there is one."""

    blocks: list[Block]
    partial: Block | None
    count: int


def cached_prefix(
    index: PrefixIndex,
    groups: Sequence[PageGroup],
    tokens: Sequence[int],
    page_size: int,
    family: int = 0,
) -> CachedPrefix:
    """Return the longest start of `tokens` after which each group has all that is seen next."""
    parent = index.root(family)
    blocks: list[Block] = []
    for start in range(0, len(tokens) - page_size + 1, page_size):
        parent = index.child(parent, tokens[start : start + page_size])
        blocks.append(parent)
    del blocks[_complete(groups, blocks) :]
    while blocks and not _has(groups, blocks, page_size):
        blocks.pop()
    parent = blocks[-1] if blocks else index.root(family)
    partial, count = index.longest_start(parent, tokens[len(blocks) * page_size :])
    whole = any(group.layout.whole for group in groups)
    if whole and partial is not None and count < len(partial.tokens):
        partial, count = None, 0
    return CachedPrefix(blocks, partial, count)


def _complete(groups: Sequence[PageGroup], blocks: Sequence[Block]) -> int:
    """Return how many of the first blocks all groups without a window have."""
    whole = [number for number, group in enumerate(groups) if group.layout.window is None]
    has = (None not in [block.pages[number] for number in whole] for block in blocks)
    return next((i for i, is_there in enumerate(has) if not is_there), len(blocks))


def _has(groups: Sequence[PageGroup], blocks: Sequence[Block], page_size: int) -> bool:
    """Whether each group has the pages of `blocks` that the next position sees."""
    end = len(blocks) * page_size
    return all(
        block.pages[number] is not None
        for number, group in enumerate(groups)
        for block in blocks[group.layout.first_seen(end, page_size) :]
    )
