"""Plugins of strangers: installed for real for subprocesses, or laid out in a folder in-process."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from gptrs.plugins.manager import configure

HERE = Path(__file__).parent
STRANGERS = ("hello_backend", "broken_backend", "future_backend")
VARIABLES = (
    "GPTRS_BACKEND",
    "GPTRS_DISABLE_PLUGINS",
    "GPTRS_NUM_THREADS",
    "GPTRS_PLUGINS",
    "GPTRS_PLUGIN_STRICT",
)

Install = Callable[..., None]
Probe = Callable[..., dict[str, Any]]


@pytest.fixture(autouse=True)
def _own_manager() -> Iterator[None]:
    """What a test does to the manager of the process ends with it, after its environment."""
    yield
    configure()


@pytest.fixture(autouse=True)
def _plain_environment(_own_manager: None, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Lay out a distribution in a folder that is all this process sees of installed ones.

    `install(name, {group: {plugin: value}}, {module: source})`. Real metadata on disk, read by
    the real importlib.metadata.
    """
    find = partial(importlib.metadata.Distribution.discover, path=[str(tmp_path)])
    monkeypatch.setattr(importlib.metadata, "distributions", find)
    monkeypatch.setenv("GPTRS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)

    def add(
        name: str,
        groups: Mapping[str, Mapping[str, str]] | str,
        modules: Mapping[str, str] | None = None,
        version: str = "1.0",
    ) -> None:
        info = tmp_path / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        (info / "METADATA").write_text(metadata, encoding="utf-8")
        text = groups if isinstance(groups, str) else _entry_points_text(groups)
        (info / "entry_points.txt").write_text(text, encoding="utf-8")
        for module, source in (modules or {}).items():
            (tmp_path / f"{module}.py").write_text(source, encoding="utf-8")

    yield add
    for module in set(sys.modules) - before:
        if Path(getattr(sys.modules[module], "__file__", None) or "/").is_relative_to(tmp_path):
            del sys.modules[module]


def _entry_points_text(groups: Mapping[str, Mapping[str, str]]) -> str:
    lines: list[str] = []
    for group, plugins in groups.items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in plugins.items())]
    return "\n".join(lines)


@pytest.fixture(scope="session")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed `STRANGERS`."""
    return installed(tmp_path_factory, "strangers", STRANGERS)


def installed(factory: pytest.TempPathFactory, folder: str, names: Sequence[str]) -> Path:
    """A folder into which pip has installed distributions beside this file, once a session."""
    root = factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        root = root.parent  # what the workers have in common
    target, done = root / folder, root / f"{folder}.installed"
    with FileLock(root / f"{folder}.lock"):
        if not done.exists():
            pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
            offline = ["--no-index", "--no-deps", "--no-build-isolation"]
            sources = [str(HERE / name) for name in names]
            subprocess.run(
                [*pip, "install", *offline, "--target", str(target), *sources],
                check=True,
                timeout=300,
            )
            done.touch()
    return target


@pytest.fixture
def probe(strangers: Path) -> Probe:
    """Run code in a process that sees the strangers; returns its `answer`, and `stderr`."""
    return probe_of(strangers)


def probe_of(folder: Path) -> Probe:
    """What runs code in a process that sees the distributions in `folder`."""

    def run(code: str, **variables: str) -> dict[str, Any]:
        script = f"import json\n{code}\nprint(json.dumps(answer, default=str))"
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONPATH": str(folder), **variables},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        return {"answer": json.loads(done.stdout), "stderr": done.stderr}

    return run
