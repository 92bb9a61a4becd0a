"""What stands for all kernels, and what lists all lowerings, follows folders."""

import importlib
import pkgutil
import shutil
from pathlib import Path

import pytest

import gptrs_backend_numba
from gptrs_backend_numba import compiler, lowering
from gptrs_backend_numba.codegen.kernel_store import read_sources, sources_digest

PACKAGE = Path(gptrs_backend_numba.__file__).parent
NESTED = [
    path.relative_to(PACKAGE)
    for folder in ("codegen", "kernels")
    for path in sorted((PACKAGE / folder).rglob("*.py"))
]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources whose files may be changed."""
    folder = tmp_path_factory.mktemp("sources") / "package"
    shutil.copytree(PACKAGE, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def test_some_kernels_lie_in_folders() -> None:
    assert any(len(path.parts) > 2 for path in NESTED)


@pytest.mark.parametrize("path", NESTED, ids=str)
def test_a_change_of_any_kernel_source_changes_the_digest(copy: Path, path: Path) -> None:
    before = sources_digest(read_sources(copy))
    file = copy / path
    text = file.read_text()
    file.write_text(f"{text}# changed\n")
    assert sources_digest(read_sources(copy)) != before
    file.write_text(text)
    assert sources_digest(read_sources(copy)) == before


def test_lowerings_in_folders_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nested = tmp_path / "family"
    nested.mkdir()
    (nested / "__init__.py").write_text('"""A family."""\n')
    (nested / "one.py").write_text('"""One lowering."""\n')
    monkeypatch.setattr(lowering, "__path__", [*lowering.__path__, str(tmp_path)])
    try:
        found = {module.__name__ for module in importlib.reload(compiler).LOWERINGS}
    finally:
        monkeypatch.undo()
        importlib.reload(compiler)
    assert f"{lowering.__name__}.family.one" in found
    everything = {
        module.name for module in pkgutil.walk_packages(lowering.__path__, f"{lowering.__name__}.")
    }
    assert {module.__name__ for module in compiler.LOWERINGS} == everything
