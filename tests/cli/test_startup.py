"""Starting is quick: help and lists import nothing that computes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from gptrs import __version__
from gptrs.plugins.manager import manager
from gptrs_cli.commands.doctor import measure_startup

KERNELS = {"numba", "llvmlite", "scipy", "torch", "transformers"}
"""No command imports these to show its help."""
HEAVY = {*KERNELS, "numpy", "tokenizers", "ml_dtypes", "rich.table", "rich.progress", "pydantic"}
"""Nothing that lists commands or plugins imports these, nor does what `generate` refuses."""
COLD = {
    *("numba", "scipy", "torch", "pydantic", "numpy.random", "rich.progress"),
    *("gptrs.capture.optimization", "gptrs.optimizer.pipeline", "gptrs.optimizer.rewrite.driver"),
    *("gptrs.functionals.matching", "gptrs_backend_numba.fusion.passes"),
    *("gptrs_backend_numba.codegen.numba_compiler", "llvmlite.binding", "asyncio", "jinja2"),
    *("gptrs_observe.profile", "gptrs_runtime.programs", "html"),
    *("email.parser", "PIL", "onnx", "pandas", "sympy", "gptrs_models.llama"),
}
"""A model whose kernels and programs are in the caches needs none of these for greedy text."""
PROBE = """
import sys
from gptrs_cli.main import main
code = main(sys.argv[1:])
print(*sys.modules, file=sys.stderr)
sys.exit(code)
"""


def imported_by(*arguments: str) -> set[str]:
    result = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments], capture_output=True, text=True, timeout=300
    )
    imported = set(result.stderr.splitlines()[-1].split())
    assert "gptrs_cli.main" in imported
    return imported


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["--no-such-option"], ["list", "plugins"], ["list", "backends", "--json"]],
)
def test_nothing_heavy_is_imported(arguments):
    imported = imported_by(*arguments)
    assert imported.isdisjoint(HEAVY)
    assert not [name for name in imported if name.startswith("gptrs_cli.commands.generate")]


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--greedy", "--top-k", "2"], ["--prompt-ids", "1", "--chat"]]
)
def test_generate_refuses_before_anything_heavy_is_imported(arguments):
    assert imported_by("generate", *arguments).isdisjoint(HEAVY)


@pytest.mark.long
def test_a_warm_generate_imports_what_it_runs_only(model_directory, monkeypatch):
    monkeypatch.setenv("GPTRS_BACKEND", "numba")
    options = ("--prompt-ids", "5,9,2", "--greedy", "--max-tokens", "2")
    command = ("generate", "--model", str(model_directory), *options)
    imported_by(*command)  # its kernels are compiled, its programs optimized
    imported = imported_by(*command)
    assert "gptrs_backend_numba.run.executable" in imported
    assert sorted(imported & COLD) == []
    assert not [name for name in imported if name.startswith(("gptrs.optimizer.passes.", "numba."))]


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    "words",
    [
        "embed --text a --text b --batch-size 4",
        "transcribe a.wav",
        "run a.onnx --input b --input c",
    ],
)
def test_options_of_plain_types_are_read_without_pydantic(words):
    model = () if words.startswith("run") else ("--model", "no/such/model")
    assert "pydantic" not in imported_by(*words.split(), *model)


@pytest.mark.sample(1)
@pytest.mark.parametrize("command", ["generate", "doctor", "validate", "conformance", "bench"])
def test_the_help_of_a_command_imports_no_kernels(command):
    assert imported_by(command, "--help").isdisjoint(KERNELS)


def test_the_measurement_finds_no_heavy_module():
    startup = measure_startup(manager().records(), runs=1)
    assert startup.heavy_modules == ()
    assert 0 < startup.seconds < 30


def test_the_measurement_finds_a_heavy_module(monkeypatch, tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, types\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'gptrs_cli.main':\n"
        "            sys.modules['weighty'] = types.ModuleType('weighty')\n"
        "sys.meta_path.insert(0, Finder())\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert measure_startup(manager().records(), runs=1).heavy_modules == ("weighty",)


def test_help_names_every_command_and_the_exit_codes(gptrs):
    result = gptrs("--help")
    assert (result.code, result.err) == (0, "")
    for word in ("generate", "list", "inspect", "doctor", "--backend", "130 interrupted"):
        assert word in result.out
    assert gptrs("-h").out == result.out


def test_the_version_is_that_of_the_package(gptrs):
    assert gptrs("--version").out == gptrs("-V").out == f"gptrs {__version__}\n"
