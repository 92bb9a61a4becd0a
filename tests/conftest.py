"""One test body for every backend: the `backend` fixture and the `--backends` option."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

import pytest

from gptrs.backend.protocol import Backend
from gptrs.plugins.references import load_reference

# Tests import what they share as `backends.op_runner`: there are no test packages.
sys.path.insert(0, str(Path(__file__).parent))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backends",
        metavar="NAMES",
        help="comma list of the backends that `backend` stands for (default: each installed one)",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for fixture, indirect in (("backend", True), ("backend_name", False)):
        if fixture in metafunc.fixturenames:
            names = _chosen(metafunc.config.getoption("backends"))
            metafunc.parametrize(fixture, names, indirect=indirect, scope="session")


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> Backend:
    """A backend as its plugin creates it; tests that ask for it run once for each."""
    description = _installed()[request.param].load()
    return load_reference(description.factory)(threads=None)


def _chosen(option: str | None) -> Sequence[str]:
    installed = sorted(_installed())
    if option is None:
        return installed
    names = [name.strip() for name in option.split(",") if name.strip()]
    for name in names:
        if name not in installed:
            raise pytest.UsageError(f"unknown backend `{name}`; installed: {', '.join(installed)}")
    return names


def _installed() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group="gptrs.backends")}
