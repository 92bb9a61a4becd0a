"""`gptrs plugins check`: what its author wants to know of a plugin, whatever it does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gptrs.plugins.manager import configure
from gptrs_cli.commands.plugins import plugins_called

DESCRIPTION = """
from gptrs.api import BackendPlugin
PLUGIN = BackendPlugin(
    name="{name}", summary="s", priority=1, factory="{name}_work:make", api="{api}"
)
"""
BACKEND = """
import {heavy}
from gptrs import api
from gptrs.api.backends import OpTable, require_supported
from gptrs.api.programs import dtypes, ops

class Backend(api.backends.Backend):
    name = "{name}"
    table = OpTable(name)
    to_device = to_host = staticmethod(lambda array: array)
    def refusal(self, *types):
        return self.table.refusal(*types)
    def compile(self, program, roles):
        {compile}

def make(threads):
    return Backend()
"""
CLAIMS = "ops.elementwise.Add, dtypes=[dtypes.f32]"
SOURCES = {
    "hangs": ("import time\ntime.sleep(600)\n" + DESCRIPTION, ""),
    "exits": ("import os\nos._exit(3)\n" + DESCRIPTION, ""),
    "newer": (DESCRIPTION.replace("{api}", "9.0"), ""),
    "late": (DESCRIPTION, "import os\nos._exit(5)"),
    "heavy": ("import numpy\n" + DESCRIPTION, "raise OSError('no device')"),
    "refuser": (DESCRIPTION, BACKEND.format(heavy="numpy", name="refuser", compile="\n".join([
        "require_supported(self, program)"]))),
    "claims": (DESCRIPTION, BACKEND.format(heavy="numpy", name="claims",
        compile="raise ValueError('not done')").replace("def refusal", "\n".join([
        "table.register(" + CLAIMS + ")(max)", "    def refusal"]))),
    "dies": (DESCRIPTION, BACKEND.format(heavy="os", name="dies", compile="os._exit(9)")),
}  # fmt: skip
OTHERS = """
from gptrs.api import CommandPlugin, FunctionalPlugin, ModelPlugin, TraceSinkPlugin
def described(kind, name, **fields):
    return kind(name=name, summary="s", factory=f"others_work:{name}", api="0.1", **fields)
COMMAND = described(CommandPlugin, "greet")
MODEL = described(ModelPlugin, "nothing")
SINK = described(TraceSinkPlugin, "not_one")
SILU = described(FunctionalPlugin, "fast", functional="silu")
"""
OTHERS_WORK = """
def greet(name: str):
    print(name)
def not_one():
    return 3
def fast(x):
    return x
"""
ENTRIES = """
[gptrs.commands]
greet = others_plugin:COMMAND
[gptrs.models]
nothing = others_plugin:MODEL
[gptrs.trace_sinks]
not_one = others_plugin:SINK
[gptrs.functionals]
fast = others_plugin:SILU
"""


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gptrs):
    """Check one of the plugins above: its exit code, and what was found by the name of the step."""
    info = tmp_path / "strangers-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strangers\nVersion: 1.0\n")
    entries = [f"{name} = {name}_plugin:PLUGIN" for name in SOURCES]
    (info / "entry_points.txt").write_text("\n".join(["[gptrs.backends]", *entries]) + ENTRIES)
    for name, (description, work) in SOURCES.items():
        described = description.format(name=name, api="0.1")
        (tmp_path / f"{name}_plugin.py").write_text(described)
        (tmp_path / f"{name}_work.py").write_text(work)
    (tmp_path / "others_plugin.py").write_text(OTHERS)
    (tmp_path / "others_work.py").write_text(OTHERS_WORK)
    monkeypatch.syspath_prepend(tmp_path)

    def run(name: str, *words: str):
        result = gptrs("plugins", "check", name, "--seconds", "60", "--json", *words)
        (plugin,) = json.loads(result.out)["plugins"]
        return result.code, {found["name"]: found for found in plugin["checks"]}

    return run


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "step", "detail"),
    [
        ("hangs", "import", "importing its description takes longer than 0.2 s"),
        ("exits", "import", "importing its description ended the process with exit code 3"),
        ("newer", "api version", "written for plugin API 9.0, this gptrs has "),
        ("late", "start", "making the backend ended the process with exit code 5"),
        ("heavy", "start", "OSError: no device"),
        ("refuser", "conformance", "level smoke: 0 passed, 0 failed, 998 refused"),
        ("claims", "conformance", "level smoke: 0 passed, "),
        (
            "not_one",
            "start",
            "TypeError: its factory made a `int`, an `Exec",
        ),
        ("nothing", "start", "AttributeError: "),
    ],
)
def test_the_step_that_breaks_is_named(check, name: str, step: str, detail: str) -> None:
    # Nothing but the import that hangs has this limit; the others may be on a busy machine.
    words = ["--seconds", "0.2"] if name == "hangs" else []
    code, found = check(name, *words)
    assert code == 4
    assert (list(found)[-1], found[step]["state"]) == (step, "broken")
    assert found[step]["detail"].startswith(detail)
    assert found[step]["hint"]


def test_a_backend_that_ends_the_process_is_named_with_the_op(check) -> None:
    code, found = check("dies")
    assert code == 4
    assert found["conformance"]["state"] == "broken"
    assert "`abs`" in found["conformance"]["detail"]


@pytest.mark.parametrize("name", ["greet", "fast"])
def test_other_kinds_are_started(check, name: str) -> None:
    code, found = check(name, "--no-conformance")
    assert code == 0
    assert {step: one["state"] for step, one in found.items()} == {
        "metadata": "note",
        "import": "ok",
        "api version": "ok",
        "start": "ok",
    }
    assert found["metadata"]["data"]["missing"] == [
        "it has no summary",
        "it has no `Requires-Python`",
        "it does not require `gptrs-core`",
    ]


@pytest.mark.exhaustive
@pytest.mark.long
def test_the_kit_of_its_kind_is_the_last_step(check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPTRS_BACKEND", "ref")
    code, found = check("fast")
    assert (code, found["conformance"]["state"]) == (4, "broken")
    assert "gives the values of numpy: silu" in found["conformance"]["detail"]
    assert found["conformance"]["data"]["checks"]["gives the same again"] == "pass"
    code, found = check("greet")
    assert (code, found["conformance"]["state"]) == (0, "ok")
    assert "3 passed, 0 failed, 4 had nothing to work on" in found["conformance"]["detail"]
    assert found["conformance"]["data"]["checks"]["works"] == "refused"


def test_a_description_that_imports_a_library_is_noted(check) -> None:
    _, found = check("heavy")
    assert found["import"]["state"] == "note"
    assert "numpy" in found["import"]["data"]["packages"]
    assert found["import"]["data"]["seconds"] > 0


def test_our_backend_is_fine_and_each_step_is_a_line(gptrs) -> None:
    result = gptrs("plugins", "check", "backend:ref")
    assert (result.code, result.err) == (0, "")
    first, *lines = result.out.splitlines()
    assert first.startswith("backend `ref` (from gptrs-backend-ref ")
    steps = ["metadata", "import", "api version", "start", "conformance"]
    assert [line[2:16].strip() for line in lines] == steps
    assert "998 passed, 0 failed, 0 refused; 100.0%" in lines[-1]


def test_a_distribution_is_all_of_its_plugins() -> None:
    found = plugins_called(configure(), "gptrs-models")
    assert {"model", "demo_model"} == {record.kind for record in found}
    assert plugins_called(configure(), "model:gpt2") == [r for r in found if r.name == "gpt2"]


def test_an_unknown_name_is_an_error(gptrs) -> None:
    result = gptrs("plugins", "check", "reff")
    assert result.code == 4
    assert "no installed plugin or distribution is called `reff`; did you mean `ref`?" in result.err
