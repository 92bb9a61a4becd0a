"""Trace sinks of plugins: which listen, for how long, and what happens when they are no good."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from gptrs.capture import events
from gptrs.capture.events import CompileStart, RunEnd, RunStart
from gptrs.errors import PluginError, UsageError
from gptrs.ir import parse_program
from gptrs.plugins.descriptions import TraceSinkPlugin
from gptrs.plugins.manager import configure, manager
from gptrs.plugins.trace_sinks import install_from_environment, listening, names_from_environment

HERE = Path(__file__).parent
GROUP = "gptrs.trace_sinks"
SOURCE = """
from gptrs.plugins.descriptions import TraceSinkPlugin
from gptrs.capture.events import ExecutionTraceSink
from gptrs.errors import UsageError

def describe(name):
    return TraceSinkPlugin(name=name, summary="s", factory=f"sinks:{name}", api="0.1")

SEEN = []

class Sink(ExecutionTraceSink):
    def before_run(self, event):
        SEEN.append(event.number)

def good():
    return Sink()

def fails():
    raise SystemExit("no licence")

def other():
    return "a sink"

def asks():
    raise UsageError("set SINK_FILE")

class Stumbling(Sink):
    def after_run(self, event):
        raise ZeroDivisionError("oops")

def stumbles():
    return Stumbling()

GOOD, FAILS, OTHER, ASKS, STUMBLES = map(describe, ("good", "fails", "other", "asks", "stumbles"))
ABSENT = TraceSinkPlugin(name="absent", summary="s", factory="no_such_module:create", api="0.1")
"""
NAMES = ("good", "fails", "other", "asks", "stumbles", "absent")
PROGRAM = """
ptir.v0.5
func @main(%x: f32[2]) -> f32[2] {
  %0 = tanh %x : f32[2]
  return %0
}
"""


@pytest.fixture(autouse=True)
def _nothing_named(monkeypatch):
    monkeypatch.delenv("GPTRS_TRACE_SINKS", raising=False)
    yield
    assert not events.sinks()


@pytest.fixture
def seen(install):
    entries = {name: f"sinks:{name.upper()}" for name in NAMES}
    install("some-sinks", {GROUP: entries}, {"sinks": SOURCE})
    configure()
    import sinks  # pyright: ignore[reportMissingImports]

    return sinks.SEEN


def tell_of_a_run(number):
    for sink in events.sinks():
        sink.before_run(RunStart(number, False))
        sink.after_run(RunEnd(number, 0.5, None))


def state(name):
    (record,) = [r for r in manager().records(TraceSinkPlugin) if r.name == name]
    return record.state, record.reason


def refused(*names):
    with pytest.raises(PluginError) as caught, listening(names):
        pass
    assert not events.sinks()
    return str(caught.value)


def test_those_named_listen_within_the_scope(seen):
    tell_of_a_run(1)
    with listening(["good", "good"]):
        tell_of_a_run(2)
        with listening(["good"]):
            tell_of_a_run(3)
        tell_of_a_run(4)
    tell_of_a_run(5)
    assert seen == [2, 3, 4]
    assert state("good") == ("loaded", None)


def test_those_of_the_environment_listen_to_the_end_and_once(seen, monkeypatch):
    monkeypatch.setenv("GPTRS_TRACE_SINKS", " good,,good ")
    assert names_from_environment() == ["good"]
    with listening():
        install_from_environment()
        tell_of_a_run(1)
    tell_of_a_run(2)
    install_from_environment()
    install_from_environment()
    with listening(["good"]):
        tell_of_a_run(3)
    tell_of_a_run(4)
    assert seen == [1, 3, 4]
    for sink in events.sinks():
        events.uninstall(sink)
    from gptrs.plugins import trace_sinks

    trace_sinks._active.clear()


def test_nothing_is_made_where_nothing_is_named(seen):
    with listening():
        install_from_environment()
        assert not events.sinks()
    assert state("good") == ("available", None)


def test_an_unknown_one_lists_what_there_is(seen):
    assert refused("god") == (
        "there is no trace sink `god`; did you mean `good`? available: `absent`, `asks`, `fails`,"
        " `good`, `other`, `stumbles`; others come with the package that has them"
    )


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("absent", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("fails", "SystemExit: no licence"),
        ("other", "its factory made a `str`, an `ExecutionTraceSink` is needed"),
    ],
)
def test_one_that_cannot_be_made_is_broken_and_says_why(seen, name, reason):
    assert f"trace sink `{name}` (from some-sinks 1.0) is broken: {reason}" in refused("good", name)
    assert state(name) == ("broken", reason)


def test_a_mistake_of_the_user_is_not_the_fault_of_the_plugin(seen):
    with pytest.raises(UsageError, match="set SINK_FILE"), listening(["asks"]):
        pass
    assert state("asks")[0] == "loaded"


def test_one_that_stumbles_is_told_of_nothing_more_and_programs_go_on(seen, caplog):
    caplog.set_level(logging.WARNING, "gptrs")
    with listening(["stumbles"]):
        tell_of_a_run(1)
        tell_of_a_run(2)
    assert seen == [1]
    assert caplog.messages == [
        "trace sink `stumbles` (from some-sinks 1.0) is broken: ZeroDivisionError: oops;"
        " it gets no more events"
    ]
    assert state("stumbles") == ("broken", "ZeroDivisionError: oops")


def test_one_that_stumbles_is_an_error_to_the_strict(seen, monkeypatch):
    monkeypatch.setenv("GPTRS_PLUGIN_STRICT", "1")
    configure()
    with listening(["stumbles"]), pytest.raises(PluginError, match="ZeroDivisionError: oops"):
        tell_of_a_run(1)


def test_every_event_reaches_the_sink(seen, monkeypatch):
    import sinks  # pyright: ignore[reportMissingImports]

    heard = []
    names = [
        name for name in vars(events.ExecutionTraceSink) if name.startswith(("before", "after"))
    ]
    for name in names:
        monkeypatch.setattr(sinks.Sink, name, lambda _, event: heard.append(event), raising=False)
    program = parse_program(PROGRAM)
    with listening(["good"]):
        (sink,) = events.sinks()
        event = CompileStart(0, "flush", program, (), "ref", "new")
        for name in names:
            getattr(sink, name)(event)
    assert heard == [event] * len(names)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder into which pip has installed the example beside this file."""
    target = tmp_path_factory.mktemp("sink") / "installed"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    offline = ["--no-index", "--no-deps", "--no-build-isolation", "--target", str(target)]
    subprocess.run([*pip, *offline, str(HERE / "run_times")], check=True, timeout=300)
    return target


@pytest.fixture
def run(installed, tmp_path):
    path = tmp_path / "p.ptir"
    path.write_text(PROGRAM, encoding="utf-8")
    arguments = ["run", str(path), "--random-seed", "1", "--backend", "ref"]

    def run(*options, before=(), **variables):
        return subprocess.run(
            [sys.executable, "-m", "gptrs_cli", *before, *arguments, *options],
            env={**os.environ, "PYTHONPATH": str(installed), **variables},
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


REPORT = re.compile(r"\d+\.\d{6} s  program \d+, run_program\n", re.MULTILINE)


@pytest.mark.exhaustive
@pytest.mark.long
def test_a_stranger_installed_for_real_listens_when_it_is_named(run):
    assert not REPORT.search(run().stderr)
    named = [
        run("--trace-sink", "run-times"),
        run(before=["--trace-sink", "run-times"]),
        run(GPTRS_TRACE_SINKS="run-times"),
        run("--trace-sink", "run-times", GPTRS_TRACE_SINKS="run-times"),
    ]
    for done in named:
        assert done.returncode == 0, done.stderr
        assert len(REPORT.findall(done.stderr)) == 1, done.stderr


def test_a_stranger_is_refused_with_what_is_installed(run):
    done = run("--trace-sink", "run-time")
    assert done.returncode == 4
    assert "there is no trace sink `run-time`; did you mean `run-times`?" in done.stderr


def test_a_stranger_is_listed(installed):
    done = subprocess.run(
        [sys.executable, "-m", "gptrs_cli", "list", "plugins"],
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert re.search(r"trace_sink +run-times +available +0\.1 +run-times +0\.2", done.stdout)


def test_the_example_knows_public_names_only():
    files = sorted((HERE / "run_times").glob("*.py"))
    lines = [line for path in files for line in path.read_text(encoding="utf-8").splitlines()]
    ours = {line.split()[1] for line in lines if line.startswith(("import ", "from "))}
    assert {name for name in ours if name.startswith("gptrs")} == {
        "gptrs.api",
        "gptrs.api.programs",
    }
