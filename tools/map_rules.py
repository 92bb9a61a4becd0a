"""Rules for the map: the tree in docs/architecture.md has every folder of core, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

MAP = PurePosixPath("docs/architecture.md")
CORE = PurePosixPath("packages/gptrs-core/src/gptrs")
_TREE = re.compile(r"^```text\ngptrs/\n(.*?)^```", re.S | re.M)
_ENTRY = re.compile(r"( +)([\w.]+(?:/|\.py)) ")
# Names of modules, but not the first half of a pattern such as `atomic_*`.
_MODULE = re.compile(r"\b[a-z0-9]+(?:_[a-z0-9]+)+\b(?!\*)")


def map_problems(root: Path, files: Iterable[PurePosixPath]) -> Iterator[str]:
    """Yield a line for each difference between the tree of the map and the sources of core."""
    modules = [
        path.relative_to(CORE)
        for path in files
        if path.suffix == ".py" and path.is_relative_to(CORE)
    ]
    if not modules:
        return
    tree = _TREE.search((root / MAP).read_text(encoding="utf-8"))
    if tree is None:
        yield f"{MAP}: the tree of `gptrs/` is not there"
        return
    folders = {folder for path in modules for folder in path.parents} - {PurePosixPath()}
    wanted = folders | {path for path in modules if len(path.parts) == 1}
    wanted.discard(PurePosixPath("__init__.py"))
    drawn = set(_entries(tree[1]))
    for path in sorted(wanted - drawn):
        yield f"{MAP}: its tree lacks `{path}`"
    for path in sorted(drawn - wanted):
        yield f"{MAP}: its tree has `{path}`, which does not exist"
    names = {part for path in modules for part in (*path.parent.parts, path.stem)}
    for name in sorted(set(_MODULE.findall(tree[1])) - names):
        yield f"{MAP}: its tree names `{name}`, and no module or folder of core is called so"


def _entries(tree: str) -> Iterator[PurePosixPath]:
    """Yield the folders and modules of a tree: two spaces a level, the name, what it is for."""
    open_folders: list[str] = []
    for line in tree.splitlines():
        if entry := _ENTRY.match(line):
            del open_folders[len(entry[1]) // 2 - 1 :]
            open_folders.append(entry[2].rstrip("/"))
            yield PurePosixPath(*open_folders)
