"""Plugins that fail while they are used: one line that names them, exit code 4, never success."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

PLUGIN = """
from gptrs.api import BackendPlugin, CommandPlugin, ModelPlugin
def described(kind, name, **fields):
    return kind(name=name, summary="s", factory=f"faulty_work:{name}", api="0.1", **fields)
BACKEND = described(BackendPlugin, "quitter", priority=0)
BUILD = described(ModelPlugin, "quits_early")
STEP = described(ModelPlugin, "quits_late")
QUIT = described(CommandPlugin, "quit")
CRASH = described(CommandPlugin, "crash")
END = described(CommandPlugin, "end")
"""
WORK = """
import typer
from gptrs_backend_ref.backend import RefBackend

class Quitter(RefBackend):
    name = "quitter"
    def compile(self, program, roles):
        raise SystemExit(0)

class Model:
    capabilities = frozenset({"causal_lm"})
    context_length, vocab_size = 16, 8
    def forward(self, tokens):
        raise SystemExit(0)
    step = new_buffers = forward
    def cache_specs(self):
        raise SystemExit(0)

def quitter(threads):
    return Quitter()

def quits_early(config, params):
    raise SystemExit(0)

def quits_late(config, params):
    return Model()

def quit():
    raise SystemExit(0)

def crash():
    raise TypeError("no such thing")

def end():
    raise typer.Exit(7)
"""
ENTRIES = """
[gptrs.backends]
quitter = faulty_plugin:BACKEND
[gptrs.models]
quits_early = faulty_plugin:BUILD
quits_late = faulty_plugin:STEP
[gptrs.commands]
quit = faulty_plugin:QUIT
crash = faulty_plugin:CRASH
end = faulty_plugin:END
"""


@pytest.fixture
def faulty(tmp_path, gptrs_process):
    """Run `gptrs` in a process that sees a distribution of which everything fails."""
    info = tmp_path / "faulty-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: faulty\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRIES)
    (tmp_path / "faulty_plugin.py").write_text(PLUGIN)
    (tmp_path / "faulty_work.py").write_text(WORK)

    def run(*arguments: object):
        return gptrs_process(*arguments, environment={"PYTHONPATH": str(tmp_path)})

    return run


@pytest.fixture
def model_of(tmp_path):
    def make(kind: str):
        folder = tmp_path / kind
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"model_type": kind}))
        save_file({"x": np.ones(3, np.float32)}, folder / "model.safetensors")
        return folder

    return make


def require_named(result, text: str) -> None:
    assert (result.code, result.out) == (4, "")
    assert text in result.err
    assert "Traceback" not in result.err
    # On a busy machine a line before it says that the import takes long.
    assert result.err.count("error: ") == 1


def test_a_model_factory_that_exits_is_no_success(faulty, model_of):
    folder = model_of("quits_early")
    result = faulty("generate", "--model", folder, "--prompt-ids", "1,2", "--max-tokens", "3")
    require_named(result, "model kind `quits_early` (from faulty 1.0) failed in its factory: Sys")


def test_a_model_that_exits_in_a_method_is_no_success(faulty, model_of):
    folder = model_of("quits_late")
    result = faulty("generate", "--model", folder, "--prompt-ids", "1,2", "--max-tokens", "3")
    require_named(result, "model kind `quits_late` (from faulty 1.0) failed in `")


@pytest.mark.long
def test_a_backend_that_exits_in_compile_is_no_success(faulty):
    result = faulty("generate", "hello", "--max-tokens", "3", "--backend", "quitter")
    require_named(result, "backend `quitter` (from faulty 1.0) failed in `compile`: SystemExit: 0")
    debug = faulty("generate", "hello", "--max-tokens", "3", "--backend", "quitter", "--debug")
    assert "raise SystemExit(0)" in debug.err


MEMBERS = {
    "run": """
    def compile(self, program, roles):
        executable = super().compile(program, roles)
        executable.run = lambda *inputs, **more: sys.exit(0)
        return executable
""",
    "to_device": """
    def to_device(self, array):
        sys.exit(0)
""",
    "to_host": """
    def to_host(self, buffer):
        sys.exit(0)
""",
}


@pytest.mark.long
@pytest.mark.parametrize("member", MEMBERS)
def test_a_backend_that_exits_in_a_method_is_no_success(tmp_path, faulty, member):
    work = (tmp_path / "faulty_work.py").read_text()
    old = "\n    def compile(self, program, roles):\n        raise SystemExit(0)\n"
    changed = work.replace(old, MEMBERS[member]).replace("import typer", "import sys\nimport typer")
    (tmp_path / "faulty_work.py").write_text(changed)
    result = faulty("generate", "hello", "--max-tokens", "3", "--backend", "quitter")
    named = f"backend `quitter` (from faulty 1.0) failed in `{member}`: SystemExit: 0"
    require_named(result, named)


def test_the_factory_of_a_backend_that_exits_is_no_success(tmp_path, faulty):
    work = (tmp_path / "faulty_work.py").read_text()
    (tmp_path / "faulty_work.py").write_text(
        work.replace("    return Quitter()", "    raise SystemExit(0)")
    )
    result = faulty("generate", "hello", "--max-tokens", "3", "--backend", "quitter")
    require_named(result, "backend `quitter` (from faulty 1.0) is broken: SystemExit: 0")


def test_a_command_that_exits_or_crashes_is_named(faulty):
    named = "command `{}` (from faulty 1.0) failed in its command: {}"
    require_named(faulty("quit"), named.format("quit", "SystemExit: 0"))
    require_named(faulty("crash"), named.format("crash", "TypeError: no such thing"))
    assert faulty("end").code == 7


def test_the_conformance_kit_reports_a_backend_that_exits(faulty):
    result = faulty("conformance", "run", "--backend", "quitter", "--op", "tanh", "--json")
    assert result.code == 1, result.err
    assert "raised SystemExit" in result.out


def test_the_conformance_kit_goes_on_after_a_backend_that_ends_the_process(tmp_path, faulty):
    work = (tmp_path / "faulty_work.py").read_text()
    (tmp_path / "faulty_work.py").write_text(
        work.replace("def compile(self, program, roles):\n        raise SystemExit(0)",
                     "def compile(self, program, roles):\n        import os; os._exit(0)")
    )  # fmt: skip
    result = faulty("conformance", "run", "--backend", "quitter", "--op", "tanh", "--op", "neg")
    assert result.code == 1, result.err
    assert "2 failures:\n  neg si4 (" in result.out
    assert "): it ended the process with exit code 0; the cases of `tanh` after" in result.out


def test_an_interrupt_at_import_names_the_plugin(tmp_path, faulty):
    (tmp_path / "faulty_plugin.py").write_text("raise KeyboardInterrupt")
    result = faulty("list", "plugins")
    assert result.code == 130
    assert "interrupted while backend `quitter` (from faulty 1.0) was imported" in result.err
