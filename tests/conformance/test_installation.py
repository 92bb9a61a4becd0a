"""The kit needs no pytest, and whoever calls it without having it is told what to install."""

from __future__ import annotations

import subprocess
import sys

IMPORT_ALL = """
import importlib, pkgutil, sys
sys.modules["pytest"] = None
import gptrs_conformance
for module in pkgutil.walk_packages(gptrs_conformance.__path__, "gptrs_conformance."):
    if not module.name.endswith(("suite", "suites")):  # classes of pytest
        importlib.import_module(module.name)
"""
WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "gptrs_conformance":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
"""
CALL = f"""{WITHOUT}
from gptrs import api
from gptrs_backend_ref.backend import create
for call in (
    api.backends.run_conformance, api.backends.op_support, api.backends.composite_support
):
    try:
        call(create(None))
    except api.GptrsError as error:
        assert error.exit_code == 4
        print(error, error.hint, sep="; ")
"""
COMMAND = f"""{WITHOUT}
from gptrs_cli.__main__ import main
sys.argv = ["gptrs", "conformance", "run", "--backend", "ref"]
sys.exit(main())
"""


def python(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_every_module_but_the_suite_imports_without_pytest():
    run = python(IMPORT_ALL)
    assert run.returncode == 0, run.stderr


def test_the_calls_of_the_api_name_the_package_that_is_missing():
    run = python(CALL)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert len(lines) == 3
    assert all("gptrs-conformance`" in line for line in lines)


def test_the_command_names_the_package_that_is_missing():
    run = python(COMMAND)
    assert run.returncode == 4
    assert "gptrs-conformance`" in run.stderr
    assert "Traceback" not in run.stderr
