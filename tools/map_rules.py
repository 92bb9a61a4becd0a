"""Rules for docs/architecture.md: three screens, all folders of core, nothing that is not there."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path, PurePosixPath

MAP = PurePosixPath("docs/architecture.md")
CORE = PurePosixPath("packages/gptrs-core/src/gptrs")
MOST_LINES = 150
"""Three screens."""
_TREE = re.compile(r"^(gptrs\w*)/(.*\n(?:(?!gptrs|```).*\n)*)", re.M)
_ENTRIES = re.compile(r"( +)((?:[\w.]+(?:/|\.py)(?:, )?)+) ")
# Names of modules, but not the first half of a pattern such as `atomic_*`.
_MODULE = re.compile(r"\b[a-z0-9]+(?:_[a-z0-9]+)+\b(?!\*)")
_PATH = re.compile(r"`([a-z0-9_]+(?:/[a-z0-9_]+)*(?:/|\.py))`")


def map_problems(root: Path, files: Iterable[PurePosixPath]) -> Iterator[str]:
    """Yield a line for each difference between the map and the sources."""
    packaged = [path for path in files if path.parts[0] == "packages"]
    sources = [path for path in packaged if path.suffix == ".py"]
    if not any(path.is_relative_to(CORE) for path in sources):
        return
    text = (root / MAP).read_text(encoding="utf-8")
    if (count := text.count("\n")) > MOST_LINES:
        yield f"{MAP}: {count} lines, more than {MOST_LINES}; it is to fit on three screens"
    trees = dict(_TREE.findall(text))
    if "gptrs" not in trees:
        yield f"{MAP}: the tree of `gptrs/` is not there"
    for package, tree in trees.items():
        modules = [each for path in sources if (each := _within(path, package)) is not None]
        yield from _tree_problems(package, tree, modules)
    known = {f"/{path}" for path in sources}
    known |= {f"/{folder}/" for path in packaged for folder in path.parents}
    for name in sorted(set(_PATH.findall(text))):
        if not any(path.endswith(f"/{name}") for path in known):
            yield f"{MAP}: it names `{name}`, which does not exist"


def _within(path: PurePosixPath, package: str) -> PurePosixPath | None:
    """Return the path of a source below the import package, None for those of others."""
    inside = path.parts[3:4] == (package,)
    return PurePosixPath(*path.parts[4:]) if inside else None


def _tree_problems(package: str, tree: str, modules: Collection[PurePosixPath]) -> Iterator[str]:
    """Compare the tree of a package with its modules; that of core has all folders."""
    folders = {folder for path in modules for folder in path.parents} - {PurePosixPath()}
    there = folders | {path for path in modules if len(path.parts) == 1}
    there.discard(PurePosixPath("__init__.py"))
    drawn = set(_entries(tree))
    for path in sorted(there - drawn) if package == CORE.name else ():
        yield f"{MAP}: its tree lacks `{path}`"
    for path in sorted(drawn - there):
        yield f"{MAP}: its tree has `{path}`, which does not exist"
    names = {part for path in modules for part in (*path.parent.parts, path.stem)}
    for name in sorted(set(_MODULE.findall(tree)) - names):
        yield f"{MAP}: its tree names `{name}`, and no module or folder of `{package}` is called so"


def _entries(tree: str) -> Iterator[PurePosixPath]:
    """Yield the folders and modules of a tree: two spaces a level, the names, what they are for."""
    open_folders: list[str] = []
    for line in tree.splitlines():
        if entry := _ENTRIES.match(line):
            del open_folders[len(entry[1]) // 2 - 1 :]
            names = entry[2].split(", ")
            yield from (PurePosixPath(*open_folders, name) for name in names)
            open_folders.append(names[-1].rstrip("/"))
