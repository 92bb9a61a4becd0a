"""The identity of a weight, which outlives the process.

Caches on disk name weights by it: packed weights by `WeightIdentity`, prompt caches by the digest
of all bytes (`gptrs_runtime.content_digest`), which is itself cached under `WeightFile.digest`.
Programs on disk hold no weights: these are inputs.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct

WeightOrigin = Literal["mapped", "read", "computed"]
"""The origin of elements: a view of a file, elements decoded from a file, or programs."""
_SETTLED_NS = 2_000_000_000
"""Age from which a change of a file cannot go unnoticed: clocks of file systems are coarse."""


def file_digest(status: os.stat_result) -> bytes:
    """Return 16 bytes that change with every change of a file, wherever the file is moved.

    They are a digest of inode, size, and the times of the last change of the content and of the
    inode. The last one cannot be set by programs, so that not even `touch -d` hides a change.
    Reading the content instead would take as long as the work that is saved.
    """
    numbers = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return hashlib.blake2b(repr(numbers).encode(), digest_size=16).digest()


class WeightFile(Struct, frozen=True):
    """A file of weights as it was when it was opened."""

    digest: bytes
    """The `file_digest` of then."""
    path: str
    unchanged: Callable[[], bool]
    """Whether the file has the same digest now."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WeightFile) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @classmethod
    def of(cls, path: str, descriptor: int, is_open: Callable[[], bool]) -> WeightFile | None:
        """Return the file behind a descriptor; None if it was changed just now.

        A second change within the resolution of its clock could leave its digest unchanged.
        `unchanged` is false once the descriptor is not open.
        """
        status = os.fstat(descriptor)
        changed = max(status.st_mtime_ns, status.st_ctime_ns)
        if time.time_ns() - changed < _SETTLED_NS:
            return None
        digest = file_digest(status)

        def unchanged() -> bool:
            return is_open() and file_digest(os.fstat(descriptor)) == digest

        return cls(digest, os.path.abspath(path), unchanged)


class WeightIdentity(Struct, frozen=True):
    """The elements of a weight, by a name for them: equal digests mean equal elements.

    They do so in all processes, as long as the weight's `files` are unchanged.
    """

    digest: bytes
    files: tuple[WeightFile, ...]
    is_slow: bool = False
    """Whether the elements take much longer to make than their bytes take to read."""

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, WeightIdentity)
            and self.digest == other.digest
            and self.files == other.files
        )

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def unchanged(self) -> bool:
        """Return whether all files are as they were when opened."""
        return all(file.unchanged() for file in self.files)

    @classmethod
    def of(cls, content: bytes, *files: WeightFile) -> WeightIdentity:
        """Return the identity of the part of `files` that `content` identifies."""
        parts = b"".join(file.digest for file in files) + content
        return cls(hashlib.blake2b(parts, digest_size=16).digest(), files)

    def computed(self, recipe: str, *others: WeightIdentity) -> WeightIdentity:
        """Return the identity of what a deterministic `recipe` computes of these weights."""
        sources = (self, *others)
        parts = b"".join(source.digest for source in sources) + recipe.encode()
        files = dict.fromkeys(file for source in sources for file in source.files)
        slow = any(source.is_slow for source in sources)
        return WeightIdentity(hashlib.blake2b(parts, digest_size=16).digest(), tuple(files), slow)

    def made_slowly(self) -> WeightIdentity:
        """Return the same identity for backends to keep small forms of these elements, too."""
        return WeightIdentity(self.digest, self.files, is_slow=True)


def identity_of_computed(
    recipe: str, sources: Sequence[WeightIdentity | None]
) -> WeightIdentity | None:
    """Return `WeightIdentity.computed`, None unless all sources have an identity."""
    known = [source for source in sources if source is not None]
    if not known or len(known) < len(sources):
        return None
    return known[0].computed(recipe, *known[1:])
