"""A package rendered from its templates, and written whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import jinja2

from gptrs.api import API_VERSION, UsageError
from gptrs_new.kinds import Names

_SHARED = "shared"
_SUFFIX = ".jinja"


def rendered(names: Names) -> dict[str, str]:
    """Return the files of a package by their paths in it."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("gptrs_new"),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # the templates are code
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    major, minor = map(int, API_VERSION.split("."))
    values = {
        "names": names,
        "kind": names.kind.value,
        "api": API_VERSION,
        "core": f"gptrs-core>={API_VERSION},<{major}.{minor + 1}",
    }
    files: dict[str, str] = {}
    for folder in (_SHARED, names.kind.value):
        for template in environment.list_templates(filter_func=_is_in(folder)):
            path = template.removeprefix(f"{folder}/").removesuffix(_SUFFIX)
            path = path.replace("MODULE", names.module).replace("dot-", ".")
            files[path] = environment.get_template(template).render(values)
    return files


def write_package(names: Names, parent: Path) -> list[Path]:
    """Write the package below `parent` and return its files; UsageError where that cannot be."""
    folder = parent / names.distribution
    if os.path.lexists(folder):
        raise UsageError(
            f"`{folder}` exists already", hint="take another name, or --into another folder"
        )
    try:
        parent.mkdir(parents=True, exist_ok=True)
        staged = Path(tempfile.mkdtemp(prefix=f".{names.distribution}-", dir=parent))
    except OSError as error:
        raise UsageError(f"`{parent}` cannot be written: {error.strerror}") from error
    try:
        for path, text in rendered(names).items():
            target = staged / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        staged.chmod(0o755)
        staged.rename(folder)
    except OSError as error:
        raise UsageError(f"`{folder}` cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _is_in(folder: str) -> Callable[[str], bool]:
    return lambda name: name.startswith(f"{folder}/") and name.endswith(_SUFFIX)
