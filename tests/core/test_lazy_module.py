"""Modules that are imported when something of them is first used."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from gptrs import lazy_module as lazily
from gptrs.lazy_module import lazy_module


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
