"""Modules that are imported when something of them is first used."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from gptrs import lazy_module as lazily
from gptrs.lazy_module import imported_when_used, lazy_module


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "seldom_needed.py").write_text("VALUE = 7\n\ndef twice(x):\n    return 2 * x\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "seldom_needed", raising=False)
    return "seldom_needed"


def test_a_module_is_imported_when_a_name_is_read(name: str) -> None:
    module = lazy_module(name)
    assert name not in sys.modules
    assert module.twice(4) == 8
    assert sys.modules[name].VALUE == module.VALUE == 7
    del sys.modules[name]


def test_a_module_that_is_there_is_given_itself() -> None:
    assert lazy_module("gptrs.lazy_module") is lazily


def test_what_is_put_in_its_place_is_found_there(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = lazy_module(name)
    with monkeypatch.context() as patch:
        patch.setattr(module, "VALUE", 8)
        assert module.VALUE == 8
    assert module.VALUE == sys.modules[name].VALUE == 7
    del sys.modules[name]


def test_inspecting_it_imports_nothing(name: str) -> None:
    module = lazy_module(name)
    assert not hasattr(module, "__wrapped__")
    assert name not in sys.modules


def test_a_name_that_is_missing_is_an_error_of_the_module(name: str) -> None:
    with pytest.raises(AttributeError, match=r"seldom_needed.*thrice"):
        _ = lazy_module(name).thrice
    del sys.modules[name]


def test_modules_that_a_library_imports_and_seldom_needs_are_imported_when_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "large_algebra.py").write_text("def double(x):\n    return 2 * x\n")
    (tmp_path / "used_at_the_top.py").write_text("VALUE = 7\n")
    (tmp_path / "small_library.py").write_text(
        "import large_algebra\nimport used_at_the_top\nSEVEN = used_at_the_top.VALUE\n"
        "def four():\n    return large_algebra.double(2)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    names = ("large_algebra", "used_at_the_top", "small_library")
    try:
        with imported_when_used("large_algebra", "used_at_the_top"):
            library = importlib.import_module("small_library")
        assert "large_algebra" not in sys.modules
        assert library.SEVEN == 7
        assert library.four() == 4
        assert sys.modules["large_algebra"].double(3) == 6
        with imported_when_used("large_algebra"):
            assert importlib.import_module("large_algebra") is sys.modules["large_algebra"]
        assert "large_algebra" in sys.modules, "it had been imported before"
    finally:
        for name in names:
            sys.modules.pop(name, None)
