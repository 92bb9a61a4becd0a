"""`gptrs doctor` and `gptrs list plugins --check` survive whatever a plugin does."""

from __future__ import annotations

from pathlib import Path

import pytest

from gptrs.plugins.manager import PluginManager, configure
from gptrs.plugins.state import PluginRecord
from gptrs_cli.commands import doctor
from gptrs_cli.commands.doctor import Startup
from gptrs_cli.plugin_check import children
from gptrs_cli.plugin_check.children import check_plugins

DESCRIPTION = """
from gptrs.api import BackendPlugin
PLUGIN = BackendPlugin(
    name="{name}", summary="s", priority=1, factory="{name}_work:make", api="0.1"
)
"""
BAD = {
    "hangs": ("import time\ntime.sleep(600)", "its import takes longer than 2 s"),
    "exits": ("import os\nos._exit(3)", "its import ended the process with exit code 3"),
    "leaves": ("raise SystemExit(0)", "SystemExit: 0"),
    "crashes": (
        "import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)",
        "its import was ended by SIGSEGV",
    ),
    "closes": ("import os\nos.closerange(0, 100)", "its import "),
    "mutes": ("import sys\nsys.stdout.close()", "it closed `sys.stdout` when it was imported"),
    "chats": ("print('x' * 100_000)\nraise ValueError('no')", "ValueError: no"),
}

SLOW = ("hangs", "late")


@pytest.fixture
def strangers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A distribution with a backend for each misbehaviour, at the import of its description."""
    info = tmp_path / "strangers-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: strangers\nVersion: 1.0\n")
    entries = [f"{name} = {name}_plugin:PLUGIN" for name in [*BAD, "sound", "late"]]
    (info / "entry_points.txt").write_text("\n".join(["[gptrs.backends]", *entries]))
    for name, (source, _) in BAD.items():
        (tmp_path / f"{name}_plugin.py").write_text(f"{source}\n{DESCRIPTION.format(name=name)}")
    for name in ("sound", "late"):
        (tmp_path / f"{name}_plugin.py").write_text(DESCRIPTION.format(name=name))
    (tmp_path / "late_work.py").write_text("import time\ntime.sleep(600)")
    (tmp_path / "sound_work.py").write_text(
        "from gptrs.api.backends import Backend\n"
        "class Sound(Backend):\n"
        "    name = 'sound'\n"
        "    refusal = compile = to_device = to_host = lambda *a: None\n"
        "def make(threads):\n"
        "    return Sound()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def by_name(plugins: PluginManager) -> dict[str, PluginRecord]:
    return {record.name: record for record in plugins.installed() if record.kind == "backend"}


@pytest.mark.exhaustive
def test_each_misbehaviour_is_the_state_of_that_plugin(strangers):
    # What does not hang may take long on a busy machine.
    plugins = configure(SLOW)
    check_plugins(plugins, seconds=60)
    hanging = configure([r.name for r in plugins.installed() if r.name not in SLOW])
    check_plugins(hanging, seconds=2)
    records = by_name(plugins) | {name: by_name(hanging)[name] for name in SLOW}
    for name, (_, reason) in BAD.items():
        assert records[name].state == "broken", name
        assert str(records[name].reason).startswith(reason), name
        assert records[name].hint, name
    assert str(records["late"].reason).startswith("its import takes longer than 2 s")
    assert {records[name].state for name in ("sound", "ref", "numba")} == {"loaded"}
    assert all(r.state.usable for r in plugins.installed() if r.distribution != "strangers")
    assert records["sound"].summary == "s"


@pytest.mark.exhaustive
def test_doctor_and_the_list_say_it(strangers, gptrs, monkeypatch):
    monkeypatch.setattr(doctor, "measure_startup", lambda _: Startup(0.1, ()))
    monkeypatch.setattr(children.check_plugins, "__defaults__", (5.0,))
    result = gptrs("doctor", "--json", "-p", "no:late", "-p", "no:closes")
    assert result.code == 4
    checks = {check["data"].get("name"): check for check in result.json["checks"]}
    assert "takes longer than 5 s" in checks["hangs"]["detail"]
    assert "`-p no:backend:exits`" in checks["exits"]["hint"]
    assert checks["ref"]["state"] == "ok"
    excluded = [word for name in ("late", "hangs", "closes") for word in ("-p", f"no:{name}")]
    listed = gptrs("list", "plugins", "--check", "--json", *excluded)
    states = {record["name"]: record["state"] for record in listed.json["plugins"]}
    assert (listed.code, states["crashes"], states["sound"]) == (0, "broken", "loaded")
