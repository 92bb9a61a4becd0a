"""The source files of kernels as they were when this process began: digest and text."""

from __future__ import annotations

import ast
import hashlib
from functools import cache
from pathlib import Path

_FOLDERS = ("codegen", "kernels")


def read_sources(package: Path) -> dict[str, bytes]:
    """Return the files of `package` that decide what machine code kernels become, by path.

    These are `codegen` and `kernels` with all their subfolders.
    """
    paths = (path for folder in _FOLDERS for path in (package / folder).rglob("*.py"))
    return {str(path): path.read_bytes() for path in sorted(paths)}


def sources_digest(sources: dict[str, bytes]) -> bytes:
    """Return a digest of files: a stored kernel made from other sources must never be used."""
    return hashlib.blake2b(b"".join(sources.values()), digest_size=20).digest()


# Read at import, together with the code that they stand for: a kernel is rebuilt from its source
# when it is compiled, perhaps hours later, and the files may have been replaced by then.
_SOURCES = read_sources(Path(__file__).parent.parent)
SOURCES_DIGEST = sources_digest(_SOURCES)
"""Digest of the sources of this package."""


@cache
def foreign_digest(filename: str) -> str:
    """Return a digest of a file with kernels outside of this package, empty for one inside."""
    if filename in _SOURCES:
        return ""
    _SOURCES[filename] = Path(filename).read_bytes()
    return hashlib.blake2b(_SOURCES[filename], digest_size=16).hexdigest()


@cache
def syntax_tree(filename: str) -> ast.Module:
    """Return the parsed file; its nodes are shared, so copy what you change."""
    return ast.parse(_SOURCES[filename], filename)
