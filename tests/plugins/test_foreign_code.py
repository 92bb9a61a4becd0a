"""Imports of plugins: who is waited for is said, and the output stays open."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import subprocess
import sys

import pytest

from gptrs.api import BackendPlugin
from gptrs.errors import PluginError
from gptrs.plugins import foreign_code
from gptrs.plugins.manager import configure

BACKEND = """
from gptrs.api import BackendPlugin
P = BackendPlugin(name="x", summary="s", priority=1, factory="{factory}", api="0.1")
"""
CLOSES = {
    "stream": ("import sys\nsys.stdout.close()", "it closed `sys.stdout` when it was imported"),
    "descriptor": ("import os\nos.close(1)", "it closed `sys.stdout` when it was imported"),
    "errors": ("import sys\nsys.stderr.close()", "it closed `sys.stderr` when it was imported"),
}


# The timer of the warning has ended.
UNTIL_NAMED = """
import threading, time
def wait():
    while any(isinstance(each, threading.Timer) for each in threading.enumerate()):
        time.sleep(0.01)
"""


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(foreign_code, "PATIENCE_S", 0.05)


@pytest.mark.parametrize("where", ["description", "factory"])
def test_a_slow_import_is_named(install, impatient, caplog, where):
    slow = f"{UNTIL_NAMED}\nwait()\ndef make(threads): pass\n"
    source = BACKEND.format(factory="slow_work:make")
    modules = {"slow_x": source, "slow_work": slow}
    if where == "description":
        modules = {"slow_x": slow + source, "slow_work": "def make(threads): pass"}
    install("slow-dist", {"gptrs.backends": {"x": "slow_x:P"}}, modules)
    manager = configure()
    with caplog.at_level(logging.WARNING, logger="gptrs"):
        manager.factory(BackendPlugin, "x")
    assert [record.getMessage() for record in caplog.records] == [
        "still importing the backend `x` (from slow-dist 1.0); to leave it out:"
        " `-p no:backend:x`, or `GPTRS_DISABLE_PLUGINS=backend:x`"
    ]


def test_a_quick_import_is_not(install, caplog):
    install("dist", {"gptrs.backends": {"x": "x:P"}}, {"x": BACKEND.format(factory="a:b")})
    with caplog.at_level(logging.WARNING, logger="gptrs"):
        assert [record.state for record in configure().records()] == ["available"]
    assert caplog.records == []


def run_beside(folder, source: str, code: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a process where the module of the backend `x` begins with `source`."""
    info = folder / "closer-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: closer\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[gptrs.backends]\nx = closer_x:P\n")
    (folder / "closer_x.py").write_text(f"{source}\n{BACKEND.format(factory='closer_work:b')}")
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=60
    )


@pytest.mark.parametrize("where", ["description", "factory"])
@pytest.mark.parametrize("how", ["SIGSEGV", "SIGABRT", "SIGFPE", "SIGILL", "SIGBUS"])
def test_a_plugin_that_crashes_the_process_is_named(tmp_path, where, how):
    crash = f"import os, signal\nos.kill(os.getpid(), signal.{how})"
    (tmp_path / "closer_work.py").write_text(f"{crash}\ndef b(threads): pass\n")
    code = (
        "from gptrs.plugins.manager import manager\nfrom gptrs.api import BackendPlugin\n"
        "manager().factory(BackendPlugin, 'x')"
    )
    done = run_beside(tmp_path, crash if where == "description" else "", code)
    assert done.returncode == -signal.Signals[how]
    assert "importing the backend `x` (from closer 1.0); to leave it out:" in done.stderr
    assert "`-p no:backend:x`" in done.stderr


def test_a_factory_that_crashes_the_process_is_named(tmp_path):
    crash = "def b(threads):\n    import os\n    os.abort()\n"
    (tmp_path / "closer_work.py").write_text(crash)
    done = run_beside(tmp_path, "", "import gptrs\ngptrs.get_backend('x')")
    assert done.returncode == -signal.SIGABRT
    assert "starting the backend `x` (from closer 1.0); to leave it out:" in done.stderr


def test_a_slow_factory_is_named(install, impatient, caplog):
    slow = f"{UNTIL_NAMED}\ndef make(threads): wait(); raise ValueError('no licence')\n"
    modules = {"slow_x": BACKEND.format(factory="slow_work:make"), "slow_work": slow}
    install("slow-dist", {"gptrs.backends": {"x": "slow_x:P"}}, modules)
    with (
        caplog.at_level(logging.WARNING, logger="gptrs"),
        pytest.raises(PluginError, match="no licence"),
    ):
        configure().get_backend("x")
    assert "still starting the backend `x` (from slow-dist 1.0)" in caplog.text


def test_crashes_after_an_import_are_not_taken_for_the_plugin(install):
    install("dist", {"gptrs.backends": {"x": "x:P"}}, {"x": BACKEND.format(factory="a:b")})
    faulthandler.disable()
    try:
        assert [record.state for record in configure().records()] == ["available"]
        assert not faulthandler.is_enabled()
    finally:
        faulthandler.enable(2)


@pytest.mark.parametrize("how", CLOSES)
def test_output_that_a_plugin_closes_is_opened_again(tmp_path, how):
    source, reason = CLOSES[how]
    code = (
        "import sys\nfrom gptrs.plugins.manager import manager\n"
        "print('before')\n"
        "found = {r.name: r for r in manager().records()}\n"
        "print(found['x'].state, found['x'].reason, found['ref'].state)\n"
        "print('after', file=sys.stderr)"
    )
    done = run_beside(tmp_path, source, code)
    assert (done.returncode, done.stderr) == (0, "after\n")
    assert done.stdout == f"before\nbroken {reason} available\n"


def test_what_a_plugin_prints_is_no_data(tmp_path):
    source = "import sys\nkept = sys.stdout\nprint('hello')"
    code = (
        "from gptrs.plugins.manager import manager\n"
        "print([r.state for r in manager().records() if r.name == 'x'])\n"
        "import sys\nfor each in list(sys.modules.values()):\n"
        "    kept = vars(each).get('kept')\n"
        "    if kept: print('later', file=kept)"
    )
    done = run_beside(tmp_path, source, code)
    assert (done.returncode, done.stdout.splitlines()[1:]) == (0, ["later"])
    assert "hello" in done.stderr
    assert "(from closer 1.0) prints when it is imported" in done.stderr


def test_a_thread_that_keeps_the_process_is_named(install, caplog):
    source = (
        "import threading\nstop = threading.Event()\n"
        "for name, daemon in (('stays', False), ('ends', True)):\n"
        "    threading.Thread(target=stop.wait, name=name, daemon=daemon).start()\n"
    )
    modules = {"x_plugin": BACKEND.format(factory="x_work:make"), "x_work": source + "make = int\n"}
    install("x-dist", {"gptrs.backends": {"x": "x_plugin:P"}}, modules)
    manager = configure()
    try:
        with caplog.at_level(logging.WARNING, logger="gptrs"):
            manager.factory(BackendPlugin, "x")
    finally:
        sys.modules["x_work"].stop.set()
    assert [record.getMessage() for record in caplog.records] == [
        "the backend `x` (from x-dist 1.0) started the thread `stays`, which the end of the process"
        " waits for: make it a daemon"
    ]
