"""The pages of one cache group: free, held by texts, or cached until evicted."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from gptrs.capture.shape_buckets import bucket

# Prefix index: a tree of token blocks, indexed by chained hashes, that finds cached pages.


_MOST_COMPARED = 64
"""Most blocks with one parent and first token compared with a prompt, the latest ones."""


class Block:
    """The tokens of one page, following `parent`; `pages` has its page in each cache group.

    None means the page was never kept or was evicted. A block with fewer tokens than a page is the
    end of a text.
    """

    __slots__ = ("children", "digest", "pages", "parent", "tokens")

    def __init__(
        self, parent: Block | None, tokens: tuple[int, ...], digest: bytes, groups: int
    ) -> None:
        self.parent = parent
        self.tokens = tokens
        self.digest = digest
        self.pages: list[int | None] = [None] * groups
        self.children: dict[int, list[Block]] = {}

    def follows(self, parent: Block) -> bool:
        """Return whether the tokens before this block equal those up to the end of `parent`."""
        one, other = self.parent, parent
        while one is not other:
            if one is None or other is None or one.tokens != other.tokens:
                return False
            one, other = one.parent, other.parent
        return True


class PrefixIndex:
    """The blocks with a page in any of `groups` cache groups.

    `identity` identifies the model and its settings and seeds each hash chain. Texts of another
    `family` have other keys and values for the same tokens, hence a separate tree.
    """

    def __init__(self, identity: bytes, groups: int) -> None:
        self._identity = identity
        self._groups = groups
        self._blocks: dict[bytes, Block] = {}
        self._roots: dict[int, Block] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def root(self, family: int) -> Block:
        """Return the root block of a family."""
        if family not in self._roots:
            content = self._identity + family.to_bytes(8, "little")
            digest = hashlib.blake2b(content, digest_size=16).digest()
            self._roots[family] = Block(None, (-1 - family,), digest, self._groups)
        return self._roots[family]

    def child(self, parent: Block, tokens: Sequence[int]) -> Block:
        """Return the block of these tokens after `parent`; a new one without pages if unknown.

        Equal hashes are not enough for a match: tokens are compared up to the root.
        """
        content = tuple(tokens)
        digest = block_digest(parent.digest, content)
        found = self._blocks.get(digest)
        if found is not None and found.tokens == content and found.follows(parent):
            return found
        return Block(parent, content, digest, self._groups)

    def add(self, block: Block) -> bool:
        """Index a block that got its first page; False if another text has the same hash."""
        known = self._blocks.setdefault(block.digest, block)
        if known is not block:
            return False
        if block.parent is not None:
            block.parent.children.setdefault(block.tokens[0], []).append(block)
        return True

    def remove(self, block: Block) -> None:
        """Forget a block that lost its last page."""
        del self._blocks[block.digest]
        if block.parent is not None:
            siblings = block.parent.children[block.tokens[0]]
            siblings.remove(block)
            if not siblings:
                del block.parent.children[block.tokens[0]]

    def longest_start(self, parent: Block, tokens: Sequence[int]) -> tuple[Block | None, int]:
        """Return the child of `parent` that shares most of the first `tokens`, and how many."""
        if not tokens:
            return None, 0
        best, most = None, 0
        for block in parent.children.get(tokens[0], [])[-_MOST_COMPARED:]:
            count = shared_tokens(block.tokens, tokens)
            if count > most and None not in block.pages:
                best, most = block, count
        return best, most


def block_digest(parent: bytes, tokens: tuple[int, ...]) -> bytes:
    """Return the hash of the tokens of a block, chained to that of the previous block."""
    return hashlib.blake2b(parent + np.array(tokens, np.int64).tobytes(), digest_size=16).digest()


def shared_tokens(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


FIRST_PAGES: Final = 64
"""Initial number of pages, including page 0; it doubles as needed. Doubling, since backends without
symbols compile each step again when the number grows.
"""


class GroupLayout(Struct, frozen=True):
    """A cache group: layers whose positions see the last `window` positions, None for all.

    `page_bytes` is the size of a page's keys and values in all layers of the group; `most_pages`
    limits the number of pages. With `whole`, pages are usable only after their last position.
    """

    window: int | None
    page_bytes: int
    most_pages: int
    whole: bool = False

    def pages_of_text(self, positions: int, step: int, page_size: int) -> int:
        """Return how many pages a text of `positions` holds at most, with up to `step` new
        positions per step.
        """
        pages = -(-positions // page_size)
        if self.window is None:
            return pages
        seen = self.window - 1 + step
        return min(pages, (seen + page_size - 2) // page_size + 1)

    def first_seen(self, position: int, page_size: int) -> int:
        """Return the first page visible to queries at `position` and later."""
        return 0 if self.window is None else max(0, position - self.window + 1) // page_size


class PageGroup:
    """Allocates page numbers from 1; page 0 belongs to no text.

    Any number of texts may hold a page. A page without a holder is free or, while part of a block,
    cached; the page released first is evicted first.

    Texts reserve the pages that they may hold, so that no allocation fails: `reserved` never
    exceeds `layout.most_pages`. A full page shared with another text need not be reserved twice;
    such a hold is `discounted`. A page whose holders are all discounted is an *orphan*: the text
    that paid for it has ended. At most `reserved` pages are ever held.
    """

    def __init__(self, number: int, layout: GroupLayout, index: PrefixIndex) -> None:
        self.layout = layout
        self.count = 0
        """Number of existing pages."""
        self._number = number
        self._index = index
        self._used = 0
        """Number of pages ever held: larger page numbers are free."""
        self._free: list[int] = []
        self._holds: dict[int, int] = {}
        self._discounts: dict[int, int] = {}
        self._blocks: dict[int, Block] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._promised = 0
        self._orphans = 0

    @property
    def reserved(self) -> int:
        """Number of pages that texts hold or may hold."""
        return self._promised + self._orphans

    @property
    def held(self) -> int:
        """Number of pages with a holder."""
        return len(self._holds)

    @property
    def cached(self) -> int:
        """Number of pages without a holder that can be found again."""
        return len(self._cached)

    def fits(self, pages: int) -> bool:
        """Return whether `pages` more pages can be reserved."""
        return self.reserved + pages <= self.layout.most_pages

    def reserve(self, pages: int) -> None:
        """Reserve pages for a text, or release a negative number; `count` grows as needed."""
        # Cached pages count as well: growing the buffers keeps prefixes that eviction would lose.
        self._promised += pages
        wanted = min(self.reserved + self.cached, self.layout.most_pages)
        if wanted > self.count:
            self.count = bucket(wanted + 1, FIRST_PAGES, self.layout.most_pages + 1) - 1

    def allocate(self) -> int:
        """Return a page without other holders; the caller must have reserved it."""
        # Free pages first, then unused ones, and cached pages last: evicting one may cost a later
        # prompt its prefix.
        if self._free:
            page = self._free.pop()
        elif self._used < self.count:
            self._used += 1
            page = self._used
        else:
            page, _ = self._cached.popitem(last=False)
            self.unlink(page)
        self._holds[page] = 1
        return page

    def available(self) -> bool:
        """Return whether `allocate` finds a page."""
        return bool(self._free or self._cached) or self._used < self.count

    def holders(self, page: int) -> int:
        """Return how many texts hold a page."""
        return self._holds.get(page, 0)

    def hold(self, page: int, *, discounted: bool = False) -> None:
        """Add a holder to a page that has one or is cached."""
        was = self._is_orphan(page)
        # A held page must not be evicted; it is cached again when its last holder lets go.
        self._cached.pop(page, None)
        self._holds[page] = self.holders(page) + 1
        if discounted:
            self._discounts[page] = self._discounts.get(page, 0) + 1
        self._orphans += self._is_orphan(page) - was

    def release(self, page: int, *, discounted: bool = False) -> None:
        """Remove a holder; without holders the page becomes cached or free."""
        if discounted:
            self.charge(page)
        was = self._is_orphan(page)
        holders = self._holds.pop(page) - 1
        if holders:
            self._holds[page] = holders
        elif page in self._blocks:
            self._cached[page] = None
        else:
            self._free.append(page)
        self._orphans += self._is_orphan(page) - was

    def charge(self, page: int) -> None:
        """Turn a discounted hold into a reserved one."""
        was = self._is_orphan(page)
        left = self._discounts.pop(page) - 1
        if left:
            self._discounts[page] = left
        self._orphans += self._is_orphan(page) - was

    def block_of(self, page: int) -> Block | None:
        """Return the block under which a page is indexed, or None."""
        return self._blocks.get(page)

    def link(self, page: int, block: Block) -> None:
        """Index a held page as the page of `block` in this group."""
        block.pages[self._number] = page
        self._blocks[page] = block

    def unlink(self, page: int) -> None:
        """Remove a page from the index, and its block if it has no other page."""
        block = self._blocks.pop(page)
        block.pages[self._number] = None
        if not any(block.pages):
            self._index.remove(block)

    def _is_orphan(self, page: int) -> bool:
        holders = self.holders(page)
        return holders > 0 and self._discounts.get(page, 0) == holders
