"""The training text: the source files of the running Python's standard library, split by file."""

from __future__ import annotations

import hashlib
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

HELD_OUT_PERCENT = 3
# Tests and tables are text, but not text worth imitating; the rest is no part of the library.
EXCLUDED_DIRECTORIES = frozenset(
    {"test", "tests", "idlelib", "pydoc_data", "encodings", "site-packages", "dist-packages"}
)
# What the build of an interpreter generates, and what names paths of the machine it ran on.
EXCLUDED_PATTERNS = ("_sysconfigdata*.py", "config-*/*", "html/entities.py", "re/_casefix.py")


@dataclass(frozen=True)
class SourceFile:
    """One source file: its path relative to the library, with `/`, and its text."""

    name: str
    text: str


@dataclass(frozen=True)
class Corpus:
    """The files to train on and the files held out of training, each sorted by name."""

    train: tuple[SourceFile, ...]
    held_out: tuple[SourceFile, ...]


def standard_library_corpus() -> Corpus:
    """Return the corpus of the running Python's standard library."""
    return split_by_file(source_files(Path(sysconfig.get_paths()["stdlib"])))


def source_files(root: Path) -> Iterator[SourceFile]:
    """Yield the files below `root` that belong to the corpus, by name, each text once.

    A file that is not UTF-8, or is blank, is left out. Line ends become `\\n`.
    """
    seen: set[str] = set()
    for name in sorted(path.relative_to(root).as_posix() for path in root.rglob("*.py")):
        if is_excluded(PurePosixPath(name)):
            continue
        try:
            text = (root / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        if text.strip() and text not in seen:
            seen.add(text)
            yield SourceFile(name, text)


def is_excluded(name: PurePosixPath) -> bool:
    """Return whether the file `name`, relative to the library, is no part of the corpus."""
    if not EXCLUDED_DIRECTORIES.isdisjoint(name.parts[:-1]):
        return True
    return any(name.match(pattern) for pattern in EXCLUDED_PATTERNS)


def split_by_file(files: Iterable[SourceFile]) -> Corpus:
    """Return `files` split by a hash of each name, which no other file's presence can change."""
    train: list[SourceFile] = []
    held_out: list[SourceFile] = []
    for file in files:
        digest = hashlib.sha256(file.name.encode()).digest()
        bucket = int.from_bytes(digest[:8], "big") % 100
        (held_out if bucket < HELD_OUT_PERCENT else train).append(file)
    return Corpus(tuple(train), tuple(held_out))
