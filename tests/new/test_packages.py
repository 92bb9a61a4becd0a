"""`gptrs new` as an author uses it: each kind is made, installed, and passes its own tests."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from gptrs.api import API_VERSION, UsageError
from gptrs.api.models import functionals as F
from gptrs.functionals.dispatch.registry import functional_names
from gptrs_new.package import Kind, Names, rendered

pytestmark = pytest.mark.long
NAME = "acme-x2"
WHOLE = "acme-x2-whole"
"""A backend that computes functionals, too."""
FILES_TO_TOUCH = 3


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a package of each kind, all of them installed into its folder `installed`."""
    root = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        root = root.parent  # what the workers have in common
    folder, done = root / "made", root / "made.done"
    with FileLock(root / "made.lock"):
        if not done.exists():
            whole = (Kind.BACKEND, WHOLE, "--with-composites")
            functional = (Kind.FUNCTIONAL, f"gelu.{NAME}")
            for words in (*((kind, NAME) for kind in Kind), whole, functional):
                command = [sys.executable, "-m", "gptrs_cli", "new", *words]
                subprocess.run([*command, "--into", str(folder)], check=True, timeout=60)
            pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
            offline = ["--no-index", "--no-deps", "--no-build-isolation"]
            sources = [str(path) for path in folder.iterdir()]
            target = ["--target", str(folder / "installed")]
            subprocess.run([*pip, *offline, *target, *sources], check=True, timeout=300)
            done.touch()
    return folder


def environment(made: Path) -> dict[str, str]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith("GPTRS_")}
    cache = {"GPTRS_CACHE_DIR": str(made / "cache"), "GPTRS_BACKEND": "ref"}
    paths = [str(made / "installed"), os.environ.get("PYTHONPATH", "")]
    return {**plain, **cache, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", Kind)
def test_its_own_tests_pass(made: Path, kind: Kind) -> None:
    _require_own_tests(made, Names(kind, NAME))


@pytest.mark.exhaustive
def test_an_implementation_of_a_chosen_functional_passes_its_own_tests(made: Path) -> None:
    ran = _require_own_tests(made, Names.of(Kind.FUNCTIONAL, f"gelu.{NAME}", False))
    assert "skipped" not in ran, ran


@pytest.mark.exhaustive
def test_any_functional_can_be_implemented(tmp_path: Path) -> None:
    for name in functional_names():
        files = rendered(Names.of(Kind.FUNCTIONAL, f"{name}.x", False))
        path = next(path for path in files if path.endswith("implementation.py"))
        run: dict[str, Any] = {}
        exec(compile(files[path], path, "exec"), run)
        made, portable = (inspect.signature(each) for each in (run[name], getattr(F, name)))
        plain = [p.replace(annotation=p.empty) for p in portable.parameters.values()]
        assert list(made.parameters.values()) == plain, name
        (tmp_path / f"{name}.py").write_text(files[path])
    ruff = shutil.which("ruff")
    if ruff is not None:
        command = [ruff, "format", "--check", "--isolated", "--line-length", "100", str(tmp_path)]
        assert subprocess.run(command, timeout=60).returncode == 0


@pytest.mark.exhaustive
def test_a_backend_with_composites_passes_its_own_tests(made: Path) -> None:
    ran = _require_own_tests(made, Names(Kind.BACKEND, WHOLE), "-k", "claim or needs or logits")
    assert "10 passed" in ran, ran


def _require_own_tests(made: Path, names: Names, *chosen: str) -> str:
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", "error", *chosen]
    folder = made / names.distribution
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=folder, env=environment(made), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout
    assert " passed" in run.stdout
    return run.stdout


@pytest.mark.parametrize(
    "kind",
    [
        # That of functionals runs the kit on every backend.
        pytest.param(kind, marks=[pytest.mark.exhaustive] if kind is Kind.FUNCTIONAL else [])
        for kind in Kind
    ],
)
def test_the_check_of_plugins_finds_nothing_wrong(made: Path, kind: Kind) -> None:
    names = Names(kind, NAME)
    command = [sys.executable, "-m", "gptrs_cli", "plugins", "check", names.distribution]
    # The kit of backends has a test of its own below.
    options = ["--no-conformance"] if kind is Kind.BACKEND else ["--seconds", "60"]
    run = subprocess.run(
        [*command, *options],
        env=environment(made), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (0, "")
    states = [line[0] for line in run.stdout.splitlines()[1:] if not line.startswith("  ")]
    assert set(states) == {"✓"}, run.stdout


@pytest.mark.parametrize("kind", [Kind.COMMAND, Kind.IMPORTER, Kind.EXPORTER, Kind.MODEL])
def test_the_last_step_that_it_prints_works_as_printed(
    made: Path, tmp_path: Path, kind: Kind
) -> None:
    command = [sys.executable, "-m", "gptrs_cli", "new", kind, f"{NAME}-y", "--json"]
    run = subprocess.run(
        [*command, "--into", str(tmp_path)],
        capture_output=True, check=True, text=True, timeout=60,
    )  # fmt: skip
    last = json.loads(run.stdout)["next"][-1].replace(f"{NAME}-y", NAME).replace("x2y", "x2")
    python = f'gptrs() {{ "{sys.executable}" -m gptrs_cli "$@"; }}'
    run = subprocess.run(
        ["bash", "-c", f"{python}\n{last}"],
        cwd=tmp_path, env=environment(made), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout


def test_the_backend_passes_the_core_of_the_kit(made: Path) -> None:
    command = [sys.executable, "-m", "gptrs_cli", "conformance", "run", "--backend", NAME]
    run = subprocess.run(
        [*command, "--level", "core", "--sample", "1200"],
        env=environment(made), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout
    assert " 0 failed, " in run.stdout


@pytest.mark.skipif(shutil.which("ruff") is None, reason="needs ruff")
def test_the_code_is_formatted(made: Path) -> None:
    for words in (["format", "--check"], ["check", "--select", "E,F,B,UP"]):
        run = subprocess.run(
            ["ruff", *words, "--isolated", "--no-cache", "--line-length", "100", "."],
            cwd=made, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert run.returncode == 0, run.stdout


def test_only_backends_compute_composites() -> None:
    plain = rendered(Names(Kind.BACKEND, NAME))
    assert "composites" not in "".join((*plain, *plain.values()))
    with pytest.raises(UsageError, match="a model computes no composites"):
        Names(Kind.MODEL, NAME, composites=True)


def test_a_backend_is_three_files_to_change() -> None:
    files = rendered(Names(Kind.BACKEND, NAME))
    readme = files["README.md"]
    named = [path for path in files if f"| `{path}` |" in readme]
    assert len(named) == FILES_TO_TOUCH
    assert files["src/gptrs_backend_acme_x2/plugin.py"].count(f'api="{API_VERSION}"') == 1
    assert {".gitignore", ".github/workflows/ci.yml", "README.md", "pyproject.toml"} <= set(files)
