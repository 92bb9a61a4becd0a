"""`gptrs doctor`: facts about machine and installation, and what is wrong with them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from gptrs.plugins.entry_points import Metadata
from gptrs.plugins.manager import PluginManager
from gptrs.plugins.state import PluginRecord
from gptrs_cli.commands import doctor
from gptrs_cli.commands.doctor import Startup, known_variables
from gptrs_cli.plugin_check.children import check_plugins


@pytest.fixture
def quick_startup(monkeypatch):
    """Leave out the processes that measure the start, which has tests of its own."""
    monkeypatch.setattr(doctor, "measure_startup", lambda _: Startup(0.1, ()))


_checked: dict[tuple[str, str], PluginRecord] = {}
"""What a process that tries all plugins found."""


@pytest.fixture(autouse=True)
def plugins_checked_once(monkeypatch):
    """Have the first run alone try plugins in a process, which has tests of its own."""

    def check(plugins: PluginManager) -> None:
        usable = [record for record in plugins.installed() if record.state.usable]
        names = [(record.kind, record.name) for record in usable]
        if set(names) <= _checked.keys():
            plugins.take_over([_checked[name] for name in names])
            return
        check_plugins(plugins)
        found = {(record.kind, record.name): record for record in plugins.installed()}
        if all(found[name].state.usable for name in names):  # a busy machine may be too slow
            _checked.update({name: found[name] for name in names})

    monkeypatch.setattr(doctor, "check_plugins", check)


@pytest.fixture
def checks(gptrs, quick_startup):
    """Exit code and checks by name of a run with these arguments."""

    def run(*arguments: object):
        result = gptrs("doctor", "--json", *arguments)
        report = result.json
        assert report["ok"] is (result.code == 0)
        found: dict[str, list[dict]] = {}
        for check in report["checks"]:
            found.setdefault(check["name"], []).append(check)
        return result.code, found

    return run


def test_a_sound_installation_passes(checks):
    code, found = checks()
    assert code == 0
    assert found["python"][0]["data"]["version"].startswith("3.")
    assert found["cores"][0]["data"]["machine"] == os.cpu_count()
    assert {"gptrs-core", "gptrs-conformance"} <= found["packages"][0]["data"].keys()
    assert found["libraries"][0]["data"]["numpy"]
    states = {check["data"]["name"]: check["data"]["state"] for check in found["backend"]}
    assert states["ref"] == "loaded", "backends are started"
    assert found["bundled model"][0]["state"] == "ok"
    assert found["environment"][0]["data"] == {
        "GPTRS_BACKEND": "ref",
        "GPTRS_NUMBA_COMPILERS": "1",
        "GPTRS_WEIGHT_CACHE_BYTES": "0",
    }
    assert found["startup"][0]["data"] == {"seconds": 0.1, "heavy_modules": []}


def test_text_has_a_mark_for_each_check(gptrs, quick_startup):
    result = gptrs("doctor")
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[-1].startswith(
        ("Everything that gptrs needs", "Nothing is broken; lines with `!`")
    )
    assert all(line[0] in "✓! " for line in lines[:-2])


def test_optional_libraries_and_what_they_are_for(checks, monkeypatch):
    find_spec = doctor.importlib.util.find_spec
    monkeypatch.setattr(
        doctor.importlib.util,
        "find_spec",
        lambda name: None if name == "PIL" else find_spec(name),
    )
    _, found = checks()
    by_module = {check["data"]["module"]: check for check in found["optional"]}
    assert by_module["PIL"]["detail"] == "PIL is not installed, for images"
    assert by_module["PIL"]["state"] == "note"
    assert "pillow" in by_module["PIL"]["hint"]
    assert by_module["jinja2"]["state"] == "ok"


def test_unknown_variables_are_notes_with_the_nearest_name(checks, monkeypatch):
    monkeypatch.setenv("GPTRS_BAKEND", "x")
    _, found = checks()
    (note,) = found["environment"][1:]
    assert (note["state"], note["hint"]) == ("note", "did you mean `GPTRS_BACKEND`?")


def test_every_variable_that_is_read_is_known():
    read = set()
    for package in ("gptrs", "gptrs_runtime", "gptrs_observe", "gptrs_cli", "gptrs_serve"):
        for file in Path(__file__).parents[2].glob(f"packages/*/src/{package}/**/*.py"):
            read |= set(re.findall(r'"(GPTRS_[A-Z_]*[A-Z])"', file.read_text(encoding="utf-8")))
    assert read - {"GPTRS_"} == known_variables()
    assert len(read) > 25


def test_threads_speed_and_missing_kinds_are_told(checks, monkeypatch):
    monkeypatch.setenv("GPTRS_NUM_THREADS", "1")
    _, found = checks("-p", "no:gptrs-models")
    assert found["threads"][0]["detail"] == "1: GPTRS_NUM_THREADS"
    assert "f32" in found["precision"][0]["detail"]
    assert found["speed"][0]["data"]["read_gb_per_s"] > 0
    assert found["models"][0]["state"] == "note"


def test_a_missing_library_is_broken(checks, monkeypatch):
    found_one = doctor.metadata_of
    monkeypatch.setattr(doctor, "metadata_of", lambda n: None if n == "numpy" else found_one(n))
    code, found = checks()
    assert code == 4
    assert found["libraries"][0]["hint"].endswith("pip install numpy`")


def test_metadata_that_cannot_be_read_is_broken(checks, monkeypatch):
    found_one = doctor.metadata_of
    monkeypatch.setattr(
        doctor, "metadata_of", lambda n: Metadata("", ()) if n == "numpy" else found_one(n)
    )
    code, found = checks()
    assert code == 4
    assert "numpy has metadata that cannot be read" in found["libraries"][0]["detail"]
    assert found["libraries"][0]["hint"] == "reinstall `numpy`"


def test_a_cache_that_cannot_be_written_is_a_note(checks, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("GPTRS_CACHE_DIR", str(tmp_path / "file" / "below"))
    code, found = checks()
    assert code == 0
    assert found["cache"][0]["state"] == "note"
    assert found["cache"][0]["data"]["writable"] is False
    assert "GPTRS_CACHE_DIR" in found["cache"][0]["hint"]


def test_without_a_bundled_model_there_is_a_note(checks):
    code, found = checks("-p", "no:demo")
    assert code == 0
    assert found["bundled model"][0]["state"] == "note"
    assert found["demo model"][0]["state"] == "note"


@pytest.mark.parametrize(
    ("startup", "state", "words"),
    [
        (Startup(0.2, ()), "ok", "takes 0.20 s and imports no heavy module"),
        (Startup(0.2, ("numpy",)), "note", "imports numpy"),
        (Startup(0.9, ()), "note", "takes 0.90 s"),
    ],
)
def test_a_slow_start_is_a_note(checks, monkeypatch, startup, state, words):
    monkeypatch.setattr(doctor, "measure_startup", lambda _: startup)
    monkeypatch.setattr(doctor.os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    code, found = checks()
    assert code == 0
    assert found["startup"][0]["state"] == state
    assert words in found["startup"][0]["detail"]
