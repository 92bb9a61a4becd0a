"""Runs `gptrs` in this process or in one of its own, on a tiny model, in a plain environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import pytest

from cli.json_records import checked
from gptrs.backend.contract import Backend
from gptrs.plugins.manager import configure
from gptrs_cli.commands import bench, doctor
from gptrs_cli.main import main
from gptrs_observe import profile_files
from gptrs_observe.measure.step_work import MachineLimits, measure_limits
from runtime.tiny_gpt2 import save_tiny_gpt2


@dataclass(frozen=True)
class Outcome:
    """What a run of `gptrs` printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return checked(json.loads(self.out))

    @property
    def json_lines(self) -> list[Any]:
        return [checked(json.loads(line)) for line in self.out.splitlines()]


Run = Callable[..., Outcome]


@pytest.fixture(scope="session")
def model_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_gpt2(tmp_path_factory.mktemp("cli") / "tiny")


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("GPTRS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GPTRS_BACKEND", "ref")
    monkeypatch.setenv("GPTRS_WEIGHT_CACHE_BYTES", "0")  # as `tests/conftest.py` does
    monkeypatch.setenv("GPTRS_NUMBA_COMPILERS", "1")
    yield
    configure()


_measured: dict[str, MachineLimits] = {}
"""What this machine can do at most, as the backend called so finds."""


def _measured_once(backend: Backend) -> MachineLimits:
    if backend.name not in _measured:
        _measured[backend.name] = measure_limits(backend)
    return _measured[backend.name]


@pytest.fixture(autouse=True)
def _a_machine_that_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands in this process measure the machine once, not each anew for a second."""
    for module in (doctor, bench, profile_files):
        monkeypatch.setattr(module, "measure_limits", _measured_once)


@pytest.fixture
def gptrs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command line in this process: `gptrs("list", "models").out`; `stdin` may be given."""

    def run(*arguments: object, stdin: bytes | None = None) -> Outcome:
        capsys.readouterr()
        with monkeypatch.context() as patch, TemporaryFile() as file:
            if stdin is not None:
                file.write(stdin)
                file.seek(0)
                patch.setattr("sys.stdin", TextIOWrapper(file, encoding="utf-8"))
            code = main([str(argument) for argument in arguments])
        return Outcome(code, *capsys.readouterr())

    return run


@pytest.fixture
def gptrs_process() -> Run:
    """Run a command line in a process of its own, with `stdin` and more `environment`."""

    def run(
        *arguments: object,
        stdin: bytes = b"",
        environment: Mapping[str, str] | None = None,
    ) -> Outcome:
        result = subprocess.run(
            [sys.executable, "-m", "gptrs_cli", *map(str, arguments)],
            input=stdin,
            capture_output=True,
            env={**os.environ, **(environment or {})},
            check=False,
            timeout=120,
        )
        return Outcome(result.returncode, result.stdout.decode(), result.stderr.decode())

    return run
