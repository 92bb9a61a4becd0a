"""Commands that install missing parts here: from a clone, from wheels, or from an index.

pip records where a distribution came from if not from an index (PEP 610); the record of gptrs-core
locates its siblings. Third-party libraries are named as they are, since every index has them.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import unquote, urlsplit

from gptrs.lazy_module import lazy_module
from gptrs.metadata_library import metadata

if TYPE_CHECKING:
    import tomllib
else:
    tomllib = lazy_module("tomllib")

_ALL: Final = "gptrs"
"""The distribution that brings all the others."""
_FROM_WHEELS: Final = "with `--find-links FOLDER` if gptrs came from wheels in a folder"
_OPTIONAL: Final = re.compile(
    r"(?P<name>[\w.-]+)(\[(?P<extras>[^]]*)\])?(?P<bound>[^;]*);.*extra\s*==\s*['\"](?P<of>[\w-]+)"
)


def install_own(distribution: str) -> str:
    """Return how to install a distribution of gptrs: "run `COMMAND`", plus conditions if any."""
    origin = _origin("gptrs-core")
    if origin is None:
        return f"run `{_pip_install()} {distribution}`, {_FROM_WHEELS}"
    if origin.suffix == ".whl":
        return f"run `{_pip_install()} --find-links {_shown(origin.parent)} {distribution}`"
    root = origin.parents[1]
    if distribution == _ALL:
        folders = [*(root / "packages" / name for name in _parts(root)), root]
        return f"run `{_pip_install()} {' '.join(map(_shown, folders))}`"
    return f"run `{_pip_install()} {_shown(root / 'packages' / distribution)}`"


def install_extra(distribution: str, extra: str) -> str:
    """Return how to install the libraries of an extra of an installed distribution of gptrs."""
    needed = [shlex.quote(text) for text in _libraries(distribution, extra)]
    if not needed:  # no metadata, as where a folder of sources is on the path
        return install_own(shlex.quote(f"{distribution}[{extra}]"))
    return install_libraries(needed)


def find_links() -> str:
    """Return the option with which pip finds the parts of gptrs here, with a space; else "".

    Only wheels in a folder need one: an index and an installed clone are found without.
    """
    origin = _origin("gptrs-core")
    if origin is None or origin.suffix != ".whl":
        return ""
    return f"--find-links {_shown(origin.parent)} "


def install_libraries(requirements: Iterable[str]) -> str:
    """Return how to install third-party libraries."""
    return f"run `{_pip_install()} {' '.join(requirements)}`"


def _pip_install() -> str:
    """Return the pip command for this Python; a bare `pip` on PATH may belong to another one."""
    # Only by the path: the finder of setuptools warns if pip is looked up after `distutils`.
    if PathFinder.find_spec("pip") is None and shutil.which("uv"):
        return f"uv pip install --python {_shown(Path(sys.executable))}"
    found = shutil.which("pip")
    if found and Path(found).parent == Path(sys.executable).parent:
        return "pip install"
    return f"{_shown(Path(sys.executable))} -m pip install"


def _shown(path: Path) -> str:
    """Return a path quoted for a shell, relative if it is below the current folder."""
    try:
        path = path.relative_to(Path.cwd())
    except (OSError, ValueError):  # the folder is gone, or the path is elsewhere
        return shlex.quote(str(path))
    return shlex.quote(f"{os.curdir}{os.sep}{path}" if path.parts else os.curdir)


def _origin(distribution: str) -> Path | None:
    """Return the wheel or the clone's folder from which the distribution was installed, if it
    exists."""
    try:
        record = metadata.distribution(distribution).read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return None
    if record is None:
        return None
    url = urlsplit(cast("dict[str, str]", json.loads(record))["url"])
    origin = Path(unquote(url.path))
    projects = (origin / "pyproject.toml", origin.parent.parent / "pyproject.toml")
    is_clone = origin.parent.name == "packages" and all(map(Path.is_file, projects))
    is_wheel = origin.suffix == ".whl" and origin.is_file()
    return origin if url.scheme == "file" and (is_clone or is_wheel) else None


def _parts(root: Path) -> list[str]:
    """Return the distributions of a clone that `gptrs` depends on.

    Not every folder in `packages`: gptrs-torch, gptrs-ray and gptrs-backend-jax would bring torch
    with its CUDA libraries, Ray and JAX.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = (re.split(r"[^\w.-]", text, maxsplit=1)[0] for text in project["dependencies"])
    return [name for name in names if (root / "packages" / name / "pyproject.toml").is_file()]


def _libraries(distribution: str, extra: str) -> list[str]:
    """Return the requirements of an extra, including those of our extras that it names."""
    try:
        texts = metadata.requires(distribution) or []
    except metadata.PackageNotFoundError:
        return []
    found: list[str] = []
    for match in filter(None, map(_OPTIONAL.match, texts)):
        if match["of"] != extra:
            continue
        if match["name"].startswith("gptrs"):
            for name in (match["extras"] or "").split(","):
                found += _libraries(match["name"], name)
        else:
            found.append(match["name"] + match["bound"].strip())
    return found
