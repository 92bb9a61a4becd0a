"""The identity of a weight across processes. Caches on disk name weights by it: packed weights by
`WeightIdentity`, prompt caches by the digest of all bytes (`gptrs_runtime.content_digest`), which
is itself cached under `WeightFile.digest`. Programs on disk hold no weights, which are inputs.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Literal

from gptrs.quick_dataclass import dataclass

WeightOrigin = Literal["mapped", "read", "computed"]
"""The origin of elements: a view of a file, elements decoded from a file, or programs."""
_SETTLED_NS = 2_000_000_000
"""Age from which any change of a file is noticed: file system clocks are coarse."""


def file_digest(status: os.stat_result) -> bytes:
    """Return 16 bytes that change with every change of a file, wherever the file is moved.

    A digest of inode, size, mtime and ctime. Programs cannot set the ctime, so not even `touch -d`
    hides a change. Hashing the content would take as long as the work that is saved.
    """
    numbers = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return hashlib.blake2b(repr(numbers).encode(), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class WeightFile:
    """A weight file in its state when opened."""

    digest: bytes
    """Its `file_digest` when opened."""
    path: str = field(compare=False)
    unchanged: Callable[[], bool] = field(compare=False)
    """Returns whether the file still has this digest."""

    @classmethod
    def of(cls, path: str, descriptor: int, is_open: Callable[[], bool]) -> WeightFile | None:
        """Return the file behind a descriptor; None if it was changed just now.

        A second change within the resolution of the file system's clock could leave the digest
        unchanged. `unchanged` returns False once the descriptor is closed.
        """
        status = os.fstat(descriptor)
        changed = max(status.st_mtime_ns, status.st_ctime_ns)
        if time.time_ns() - changed < _SETTLED_NS:
            return None
        digest = file_digest(status)

        def unchanged() -> bool:
            return is_open() and file_digest(os.fstat(descriptor)) == digest

        return cls(digest, os.path.abspath(path), unchanged)


@dataclass(frozen=True, slots=True)
class WeightIdentity:
    """A name for the elements of a weight: equal digests mean equal elements.

    They do so in all processes, as long as the weight's `files` are unchanged.
    """

    digest: bytes
    files: tuple[WeightFile, ...]
    is_slow: bool = field(default=False, compare=False)
    """Whether making the elements takes much longer than reading their bytes."""

    @property
    def unchanged(self) -> bool:
        """Return whether no file has changed since it was opened."""
        return all(file.unchanged() for file in self.files)

    @classmethod
    def of(cls, content: bytes, *files: WeightFile) -> WeightIdentity:
        """Return the identity of the part of `files` that `content` identifies."""
        parts = b"".join(file.digest for file in files) + content
        return cls(hashlib.blake2b(parts, digest_size=16).digest(), files)

    def computed(self, recipe: str, *others: WeightIdentity) -> WeightIdentity:
        """Return the identity of the result of a deterministic `recipe` on these weights."""
        sources = (self, *others)
        parts = b"".join(source.digest for source in sources) + recipe.encode()
        files = dict.fromkeys(file for source in sources for file in source.files)
        slow = any(source.is_slow for source in sources)
        return WeightIdentity(hashlib.blake2b(parts, digest_size=16).digest(), tuple(files), slow)

    def made_slowly(self) -> WeightIdentity:
        """Return this identity marked as slow to make, so that backends keep even small forms."""
        return WeightIdentity(self.digest, self.files, is_slow=True)


def identity_of_computed(
    recipe: str, sources: Sequence[WeightIdentity | None]
) -> WeightIdentity | None:
    """Return `WeightIdentity.computed`, None unless all sources have an identity."""
    known = [source for source in sources if source is not None]
    if not known or len(known) < len(sources):
        return None
    return known[0].computed(recipe, *known[1:])
