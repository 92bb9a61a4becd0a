"""The paged key/value cache as lists of pages: admit, extend, commit, fork, rewind, release."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from msgspec import Struct, field

from gptrs.errors import CacheBudgetError
from gptrs_runtime.generation.pages.page_group import Block, GroupLayout, PageGroup, PrefixIndex

# The longest prefix of a prompt whose keys and values are cached.


class CachedPrefix(Struct, frozen=True):
    """Whole `blocks`, then the first `count` tokens of the block `partial`, if any."""

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
    """Return the longest prefix of `tokens` after which every group has all pages visible to the
    next position.
    """
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
    """Return how many leading blocks are present in all groups without a window."""
    whole = [number for number, group in enumerate(groups) if group.layout.window is None]
    has = (None not in [block.pages[number] for number in whole] for block in blocks)
    return next((i for i, is_there in enumerate(has) if not is_there), len(blocks))


def _has(groups: Sequence[PageGroup], blocks: Sequence[Block], page_size: int) -> bool:
    """Return whether every group has the pages of `blocks` visible to the next position."""
    end = len(blocks) * page_size
    return all(
        block.pages[number] is not None
        for number, group in enumerate(groups)
        for block in blocks[group.layout.first_seen(end, page_size) :]
    )


class PageCopy(NamedTuple):
    """A page to be copied before the next call of the pool."""

    group: int
    source: int
    target: int


class TextPages(Struct, eq=False):
    """The pages of one text: `tables[g][i]` holds the positions from `i * page_size` on, group g.

    Entry 0 marks a page that no later position sees. `tokens` are those with keys and values in the
    pages, computed by the model `family`. A text holds up to `limits[g]` pages, the first
    `discounts[g]` of them reserved by another text. `lost` means that the pool was abandoned: admit
    the text again.
    """

    limits: tuple[int, ...] = ()
    tables: list[list[int]] = field(default_factory=list[list[int]])
    discounts: list[int] = field(default_factory=list[int])
    tokens: list[int] = field(default_factory=list[int])
    blocks: list[Block] = field(default_factory=list[Block])
    lost: bool = False
    family: int = 0

    @property
    def length(self) -> int:
        """Number of cached positions."""
        return len(self.tokens)


class PagePool:
    """Allocates the pages of each cache group, and finds cached pages of known prefixes.

    A text is admitted with an upper bound of its positions, which `grow` can raise, and up to
    `step` new ones per step; within these bounds no allocation fails. `identity` identifies the
    model and its settings, see `PrefixIndex`. This class handles no tensors: the caller, which runs
    the model, performs the copies.
    """

    def __init__(
        self, layouts: Sequence[GroupLayout], page_size: int, identity: bytes = b""
    ) -> None:
        self.page_size = page_size
        self.index = PrefixIndex(identity, len(layouts))
        self.groups = tuple(
            PageGroup(number, layout, self.index) for number, layout in enumerate(layouts)
        )
        self._texts: set[TextPages] = set()

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of pages of each group, including page 0; it never shrinks."""
        return tuple(group.count + 1 for group in self.groups)

    def limits(self, positions: int, step: int) -> tuple[int, ...]:
        """Return the most pages of each group that such a text holds.

        CacheBudgetError if they exceed the budget.
        """
        found = tuple(
            group.layout.pages_of_text(positions, step, self.page_size) for group in self.groups
        )
        if not all(
            pages <= group.layout.most_pages
            for pages, group in zip(found, self.groups, strict=True)
        ):
            raise CacheBudgetError(
                f"a text of {positions} positions takes {self._bytes(found)} bytes of the key/value"
                f" cache, and {self._most_bytes()} are the most there may be",
                hint="raise --cache-budget, ask for fewer tokens, or take a smaller --cache-dtype",
            )
        return found

    def admit(
        self, tokens: Sequence[int], positions: int, step: int, family: int = 0
    ) -> tuple[TextPages, list[PageCopy]] | None:
        """Return the pages of a text of up to `positions`, and the copies to make; None without
        room.

        They include cached pages of `tokens` by texts of the same `family`, at most all except the
        last token. CacheBudgetError if the text would not fit even alone.
        """
        limits = self.limits(positions, step)
        # The last token is always read, since its step computes the first logits.
        known = tokens[: len(tokens) - 1]
        prefix = cached_prefix(self.index, self.groups, known, self.page_size, family)
        discounts = [self._shared(prefix.blocks, group) for group in range(len(self.groups))]
        if not self._reserve(limits, discounts):
            return None
        text = self._new_text(limits, [[] for _ in self.groups], discounts, family)
        for number, group in enumerate(self.groups):
            first = group.layout.first_seen(len(prefix.blocks) * self.page_size, self.page_size)
            for position, block in enumerate(prefix.blocks):
                page = block.pages[number] if position >= first else None
                if page is not None:
                    group.hold(page, discounted=position < discounts[number])
                text.tables[number].append(page or 0)
        text.blocks = list(prefix.blocks)
        # Only whole blocks are shared so far; `_copied_start` adds the tokens of a partial one.
        text.tokens = list(tokens[: len(prefix.blocks) * self.page_size])
        return text, self._copied_start(text, prefix)

    def restore(
        self, tokens: Sequence[int], firsts: Sequence[int], family: int = 0
    ) -> TextPages | None:
        """Return a text with pages for `tokens`, from page `firsts[g]` on; None without room.

        The caller writes their content, then calls `commit`. Such a text has no room for more
        tokens; release it so that others find its pages.
        """
        pages = -(-len(tokens) // self.page_size)
        limits = tuple(pages - first for first in firsts)
        if not self._reserve(limits, [0] * len(limits)):
            return None
        tables = [
            [0] * first + [group.allocate() for _ in range(pages - first)]
            for group, first in zip(self.groups, firsts, strict=True)
        ]
        return self._new_text(limits, tables, [0] * len(limits), family)

    def grow(self, text: TextPages, positions: int, step: int) -> bool:
        """Let a text grow to `positions`, more than so far; return False, changing nothing, without
        room.

        CacheBudgetError if it would not fit even alone.
        """
        limits = self.limits(positions, step)
        limits = tuple(max(pair) for pair in zip(limits, text.limits, strict=True))
        if not self._reserve(limits, text.limits):
            return False
        text.limits = limits
        return True

    def extend(self, text: TextPages, count: int) -> list[PageCopy]:
        """Make room for `count` more positions; return the shared pages to copy before."""
        copies: list[PageCopy] = []
        begun = text.length // self.page_size
        needed = -(-(text.length + count) // self.page_size)
        for number, group in enumerate(self.groups):
            table = text.tables[number]
            # The last page is partly filled: other texts, or the index, may refer to its content.
            if begun < len(table):
                copies += self._own(number, table, begun)
            while len(table) < needed:
                table.append(group.allocate())
        return copies

    def commit(self, text: TextPages, tokens: Sequence[int]) -> None:
        """Record that the pages hold the keys and values of these tokens, the next ones."""
        text.tokens += tokens
        while len(text.blocks) < text.length // self.page_size:
            self._remember(text, len(text.blocks))
        for number, group in enumerate(self.groups):
            table = text.tables[number]
            # Pages before the window: backward until one that an earlier step released already.
            position = group.layout.first_seen(text.length, self.page_size) - 1
            while position >= 0 and table[position]:
                group.release(table[position])
                table[position] = 0
                position -= 1

    def fork(self, text: TextPages) -> TextPages | None:
        """Return a text that shares all pages; None without room."""
        whole = text.length // self.page_size
        discounts = [whole if group.layout.window is None else 0 for group in self.groups]
        if not self._reserve(text.limits, discounts):
            return None
        held = -(-text.length // self.page_size)
        tables = [table[:held] for table in text.tables]
        for number, group in enumerate(self.groups):
            for position, page in enumerate(tables[number]):
                if page:
                    group.hold(page, discounted=position < discounts[number])
        made = self._new_text(text.limits, tables, discounts, text.family)
        made.tokens, made.blocks = list(text.tokens), list(text.blocks)
        return made

    def rewind(self, text: TextPages, length: int) -> list[PageCopy]:
        """Drop all positions after the first `length`; return the copies to make first.

        Drops all positions if a window has released pages visible to the next position, or if there
        is no state after `length` positions. CacheBudgetError, changing nothing, if there is no
        room for the remaining shared pages.
        """
        # Windows release pages irrevocably, and states exist only at some positions; then the text
        # must be read from its start.
        if not self._sees(text, length) or not self._ends_at(text, length):
            length = 0
        whole = length // self.page_size
        shared = self._charge_shared(text, whole)
        text.tokens, text.blocks = text.tokens[:length], text.blocks[:whole]
        copies: list[PageCopy] = []
        for number, group in enumerate(self.groups):
            table = text.tables[number]
            # From the end, so that later pages are evicted before the prefix they depend on.
            for page in reversed(table[-(-length // self.page_size) :]):
                if page:
                    group.release(page)
            del table[-(-length // self.page_size) :]
            if whole < len(table):
                copies += self._own(number, table, whole)
            group.reserve(-shared[number])
        return copies

    def release(self, text: TextPages) -> None:
        """Release all pages; complete ones can be found again."""
        self._remember_end(text)
        self._give_back(text)

    def abandon(self) -> None:
        """Mark all texts as `lost`; the pool is unusable afterwards."""
        for text in self._texts:
            text.lost = True

    def _new_text(
        self,
        limits: tuple[int, ...],
        tables: list[list[int]],
        discounts: list[int],
        family: int = 0,
    ) -> TextPages:
        text = TextPages(limits, tables, discounts, family=family)
        self._texts.add(text)
        return text

    def _give_back(self, text: TextPages) -> None:
        for number, group in enumerate(self.groups):
            table = text.tables[number]
            for position in reversed(range(len(table))):  # the end of a text is evicted first
                if table[position]:
                    group.release(table[position], discounted=position < text.discounts[number])
            group.reserve(text.discounts[number] - text.limits[number])
        text.tables, text.tokens, text.blocks = [[] for _ in self.groups], [], []
        self._texts.discard(text)

    def _reserve(self, limits: Sequence[int], discounts: Sequence[int]) -> bool:
        """Reserve the pages of a text in all groups or in none."""
        # Check all groups before changing any, so that a refusal leaves nothing to undo.
        pages = [limit - shared for limit, shared in zip(limits, discounts, strict=True)]
        if not all(group.fits(count) for group, count in zip(self.groups, pages, strict=True)):
            return False
        for group, count in zip(self.groups, pages, strict=True):
            group.reserve(count)
        return True

    def _shared(self, blocks: Sequence[Block], number: int) -> int:
        """Return how many leading blocks have a page in the group that some text holds."""
        group = self.groups[number]
        if group.layout.window is not None:
            return 0  # it will be released while others hold it
        held = (group.holders(block.pages[number] or 0) > 0 for block in blocks)
        return next((i for i, is_held in enumerate(held) if not is_held), len(blocks))

    def _sees(self, text: TextPages, length: int) -> bool:
        """Return whether the text still has every page that the query at `length` sees."""
        held = -(-length // self.page_size)
        return all(
            all(table[group.layout.first_seen(length, self.page_size) : held])
            for group, table in zip(self.groups, text.tables, strict=True)
        )

    def _ends_at(self, text: TextPages, length: int) -> bool:
        """Return whether all pages are usable for the position after the first `length`."""
        whole = any(group.layout.whole for group in self.groups)
        return not whole or length == text.length or length % self.page_size == 0

    def _copied_start(self, text: TextPages, prefix: CachedPrefix) -> list[PageCopy]:
        """Copy the first tokens of a cached page that diverges later."""
        block = prefix.partial
        if block is None:
            return []
        sources = [page for page in block.pages if page is not None]
        for group, page in zip(self.groups, sources, strict=True):
            group.hold(page)  # held until there is a page to copy to
        copies: list[PageCopy] = []
        if all(group.available() for group in self.groups):
            for number, group in enumerate(self.groups):
                target = group.allocate()
                text.tables[number].append(target)
                copies.append(PageCopy(number, sources[number], target))
            text.tokens += block.tokens[: prefix.count]
        for group, page in zip(self.groups, sources, strict=True):
            group.release(page)
        return copies

    def _own(self, number: int, table: list[int], position: int) -> list[PageCopy]:
        """Make a page writable: copy it if shared, else remove it from the index."""
        group, page = self.groups[number], table[position]
        if group.holders(page) > 1:
            table[position] = group.allocate()
            group.release(page)
            return [PageCopy(number, page, table[position])]
        if group.block_of(page) is not None:
            group.unlink(page)
        return []

    def _remember(self, text: TextPages, position: int) -> None:
        """Index a complete page; if another text has indexed the same block, hold that page
        instead."""
        start = position * self.page_size
        parent = text.blocks[-1] if text.blocks else self.index.root(text.family)
        block = self.index.child(parent, text.tokens[start : start + self.page_size])
        text.blocks.append(block)
        pages = [table[position] for table in text.tables]
        if not any(pages) or not (any(block.pages) or self.index.add(block)):
            return
        for group, table, page, known in zip(
            self.groups, text.tables, pages, block.pages, strict=True
        ):
            if known is None and page and group.block_of(page) is None:
                group.link(page, block)
            elif known is not None and page and known != page:
                group.hold(known)
                group.release(page)
                table[position] = known

    def _remember_end(self, text: TextPages) -> None:
        """Index the last page of a text that ends within it, unless it is shared."""
        start = text.length // self.page_size * self.page_size
        tail = text.tokens[start:]
        if not tail:
            return
        pages = [table[start // self.page_size] for table in text.tables]
        alone = all(
            group.holders(page) == 1 and group.block_of(page) is None
            for group, page in zip(self.groups, pages, strict=True)
        )
        parent = text.blocks[-1] if text.blocks else self.index.root(text.family)
        if not alone or self.index.longest_start(parent, tail)[1] == len(tail):
            return
        block = self.index.child(parent, tail)
        if not any(block.pages) and self.index.add(block):
            for group, page in zip(self.groups, pages, strict=True):
                group.link(page, block)

    def _charge_shared(self, text: TextPages, whole: int) -> list[int]:
        """Reserve for this text the pages that it shares from page `whole` on; CacheBudgetError
        without room.

        Return the pages of each group that are reserved twice until the text releases them.
        """
        lost = [max(0, discount - whole) for discount in text.discounts]
        shared = [
            sum(group.holders(page) > 1 for page in table[whole:])
            for group, table in zip(self.groups, text.tables, strict=True)
        ]
        needed = [a + b for a, b in zip(lost, shared, strict=True)]
        if not self._reserve(needed, [0] * len(needed)):
            raise CacheBudgetError(
                f"no room for pages that a text of {text.length} positions shares and would need"
                f" for itself from position {whole * self.page_size} on",
                hint="raise --cache-budget, or let other texts end first",
            )
        for number, group in enumerate(self.groups):
            for page in text.tables[number][whole : text.discounts[number]]:
                group.charge(page)
            text.discounts[number] -= lost[number]
        return shared

    def _bytes(self, pages: Sequence[int]) -> int:
        return sum(
            count * group.layout.page_bytes for count, group in zip(pages, self.groups, strict=True)
        )

    def _most_bytes(self) -> int:
        return self._bytes([group.layout.most_pages for group in self.groups])
