"""Damage to the files of a cache: as disks, copies and curious hands do it."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from pathlib import Path

Damage = Callable[[random.Random, Sequence[Path]], None]


def damage(dice: random.Random, folder: Path) -> str:
    """Damage some files of the cache in `folder`, in one or two ways; say how they differ now.

    They stay private.
    """
    before = _contents(folder)
    for _ in range(dice.choice([1, 1, 2])):  # the second way meets what the first one left
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
        modes = [path.stat().st_mode for path in files]
        _make_writable(files)
        dice.choice(_DAMAGES)(dice, files)
        for path, mode in zip(files, modes, strict=True):
            if path.exists():
                path.chmod(mode)
    now = _contents(folder)
    changed = [path for path, content in before.items() if now.get(path) != content]
    return ", ".join(str(path.relative_to(folder)) for path in changed) or "nothing"


def _contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _make_writable(files: Sequence[Path]) -> None:
    for path in files:
        if path.exists():
            path.chmod(0o600)


def _exchanged(dice: random.Random, files: Sequence[Path]) -> None:
    """Give the files of a folder, or two files anywhere, the contents of each other."""
    one = dice.choice(files)
    chosen = [path for path in files if path.parent == one.parent]
    if len(chosen) == 1 or dice.random() < 0.3:
        chosen = dice.sample(files, 2)
    contents = [path.read_bytes() for path in chosen if path.exists()]
    dice.shuffle(contents)
    for path, content in zip(chosen, contents, strict=False):
        path.write_bytes(content)


def _changed(dice: random.Random, files: Sequence[Path]) -> None:
    """Change a part of one file: flip a bit, write zeros, cut it, add to it."""
    path = dice.choice([path for path in files if path.exists()])
    data = bytearray(path.read_bytes())
    at = dice.randrange(len(data)) if data else 0
    way = dice.choice(["bit", "zeros", "cut", "more"])
    if way == "bit" and data:
        data[at] ^= 1 << dice.randrange(8)
    elif way == "zeros":
        end = min(len(data), at + dice.choice([1, 16, 4096]))
        data[at:end] = bytes(end - at)
    elif way == "cut":
        del data[at:]
    else:
        data += os.urandom(dice.randrange(1, 100))
    path.write_bytes(data)


def _removed(dice: random.Random, files: Sequence[Path]) -> None:
    """Remove a file, or put an empty one in its place."""
    path = dice.choice(files)
    if dice.random() < 0.5:
        path.write_bytes(b"")
    else:
        path.unlink(missing_ok=True)


_DAMAGES: tuple[Damage, ...] = (_exchanged, _changed, _changed, _changed, _removed)
