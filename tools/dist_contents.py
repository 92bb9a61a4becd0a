"""What the files of our distributions hold, and what their metadata must say."""

from __future__ import annotations

import re
import tarfile
import tomllib
import zipfile
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

META = "gptrs"
"""The distribution that brings all the others; its sdist is the whole repository."""
NUMBA = "packages/gptrs-backend-numba"
"""The folder of the package that has a wheel with packs of kernels beside the one without."""
_PACK = re.compile(r"gptrs_backend_numba/pack/[a-z0-9_]+\.kernels")
_LINK = re.compile(r"\]\((?!https?://|#)([^)]+)\)")
_IN_EVERY_SDIST = frozenset({"LICENSE", "CHANGELOG.md", "PKG-INFO", "pyproject.toml", "README.md"})
_IN_THE_META_SDIST = ("docs/ptir.md", "tests/conftest.py", "tools/dist.py", "Makefile")
NOT_IN_SDISTS = (".gitignore", ".ci", ".editorconfig", ".pre-commit-config.yaml")
"""What only a clone has use for."""
_KEYS = ("authors", "classifiers", "description", "keywords", "license", "readme")
_MINORS = range(11, 15)


@dataclass(frozen=True)
class Project:
    """A folder with a pyproject.toml, and its `project` table."""

    folder: Path
    table: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of the distribution."""
        return self.table["name"]

    @property
    def stem(self) -> str:
        """How the names of its files begin."""
        return f"{self.name.replace('-', '_')}-{self.table['version']}"


def projects(root: Path) -> list[Project]:
    """Return the packages and, as the last one, the meta-distribution."""
    files = [*sorted(root.glob("packages/*/pyproject.toml")), root / "pyproject.toml"]
    return [
        Project(file.parent, tomllib.loads(file.read_text(encoding="utf-8"))["project"])
        for file in files
    ]


def metadata_problems(project: Project) -> Iterator[str]:
    """Yield a line for each thing that an index shows, or pip reads, and that is not in order."""
    table, name = project.table, project.name
    for key in _KEYS:
        if not table.get(key):
            yield f"{name}: no `{key}`"
    classifiers = table.get("classifiers", ())
    for minor in _MINORS:
        if f"Programming Language :: Python :: 3.{minor}" not in classifiers:
            yield f"{name}: no classifier of Python 3.{minor}"
    for extra, requirements in table.get("optional-dependencies", {}).items():
        for requirement in requirements:
            if "==" in requirement and not requirement.startswith("gptrs"):
                yield f"{name}: the extra `{extra}` pins `{requirement}`, which users install"
    readme = (project.folder / table.get("readme", "README.md")).read_text(encoding="utf-8")
    for target in _LINK.findall(readme):
        yield f"{name}: the readme links to `{target}`, which only the repository has"


def content_problems(
    root: Path, built: Iterable[Project], dist: Path, tracked: Collection[PurePosixPath]
) -> Iterator[str]:
    """Yield a line for each file that a distribution in `dist` lacks, or should not have."""
    for project in built:
        yield from metadata_problems(project)
        held = sdist_names(dist / f"{project.stem}.tar.gz")
        yield from (f"{project.stem}.tar.gz lacks {name}" for name in _IN_EVERY_SDIST - held)
        yield from _sdist_problems(root, project, held, tracked)
        for wheel in (
            dist / f"{project.stem}-py3-none-any.whl",
            *dist.glob(f"{project.stem}-py3-none-*linux*.whl"),
        ):
            yield from _wheel_problems(root, project, wheel, tracked)


def sdist_names(file: Path) -> set[str]:
    """Return the paths in an sdist, its one folder left out."""
    with tarfile.open(file) as archive:
        return {member.name.partition("/")[2] for member in archive if member.isfile()}


def _sdist_problems(
    root: Path, project: Project, held: set[str], tracked: Collection[PurePosixPath]
) -> Iterator[str]:
    folder = project.folder.relative_to(root)
    known = {str(path.relative_to(folder)) for path in tracked if path.is_relative_to(folder)}
    known |= {str(path) for path in tracked}  # what was brought from the root
    for name in sorted(held - known - {"PKG-INFO"}):
        yield f"{project.stem}.tar.gz holds {name}, which git does not track"
    for name in held:
        if PurePosixPath(name).parts[0] in NOT_IN_SDISTS:
            yield f"{project.stem}.tar.gz holds {name}, of which nobody has use"
    if project.name == META:
        for name in _IN_THE_META_SDIST:
            if name not in held:
                yield f"{project.stem}.tar.gz lacks {name}"


def _wheel_problems(
    root: Path, project: Project, wheel: Path, tracked: Collection[PurePosixPath]
) -> Iterator[str]:
    source = project.folder.relative_to(root) / "src"
    wanted = {str(path.relative_to(source)) for path in tracked if path.is_relative_to(source)}
    if project.name == META:  # its wheel brings the pages, which `gptrs docs` shows
        pages = (path for path in tracked if path.is_relative_to("docs"))
        wanted = {str("gptrs_docs" / path.relative_to("docs")) for path in pages}
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
        licenses = [name for name in archive.namelist() if name.endswith("/licenses/LICENSE")]
    for name in sorted(wanted - held):
        yield f"{wheel.name} lacks {name}"
    packs = {name for name in held if _PACK.fullmatch(name)}
    if bool(packs) != ("linux" in wheel.name):
        yield f"{wheel.name} holds {len(packs)} packs of kernels"
    for name in sorted(held - wanted - packs):
        yield f"{wheel.name} holds {name}, which git does not track"
    if not licenses:
        yield f"{wheel.name} lacks LICENSE"
