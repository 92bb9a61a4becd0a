"""Pages found again by the tokens before them: a tree of blocks, indexed by a chained hash."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

_MOST_COMPARED = 64
"""Blocks of one parent and first token that are compared with a prompt: the latest ones."""


class Block:
    """Tokens of one page, after those of `parent`; `pages` holds them in each cache group.

    A page of None was never kept or has been evicted. A block of fewer tokens than a page is the
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
        """Whether the tokens before this block are those up to the end of `parent`."""
        one, other = self.parent, parent
        while one is not other:
            if one is None or other is None or one.tokens != other.tokens:
                return False
            one, other = one.parent, other.parent
        return True


class PrefixIndex:
    """The blocks with a page in any of `groups` cache groups.

    `identity` tells the model and its settings from all others; it begins each chain of hashes.
    Texts of another `family` have other keys and values for the same tokens, and a tree of their
    own.
    """

    def __init__(self, identity: bytes, groups: int) -> None:
        self._identity = identity
        self._groups = groups
        self._blocks: dict[bytes, Block] = {}
        self._roots: dict[int, Block] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def root(self, family: int) -> Block:
        """Return the block before the first tokens of the texts of a family."""
        if family not in self._roots:
            told = self._identity + family.to_bytes(8, "little")
            digest = hashlib.blake2b(told, digest_size=16).digest()
            self._roots[family] = Block(None, (-1 - family,), digest, self._groups)
        return self._roots[family]

    def child(self, parent: Block, tokens: Sequence[int]) -> Block:
        """Return the block of these tokens after `parent`; an empty one where none is known.

        A hash that another text has, too, is no match: tokens are compared up to the root.
        """
        told = tuple(tokens)
        digest = block_digest(parent.digest, told)
        found = self._blocks.get(digest)
        if found is not None and found.tokens == told and found.follows(parent):
            return found
        return Block(parent, told, digest, self._groups)

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
    """Return the hash of the tokens of a block, chained to that of the block before it."""
    return hashlib.blake2b(parent + np.array(tokens, np.int64).tobytes(), digest_size=16).digest()


def shared_tokens(one: Sequence[int], other: Sequence[int]) -> int:
    """Return with how many tokens both begin."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))
