"""One test body for every backend: the `backend` fixture and the `--backends` option.

Products of many parameters are sampled: all but some of their cases are marked `slow`.
"""

from __future__ import annotations

import gc
import itertools
import zlib
from collections import defaultdict
from functools import cache

import pytest

from gptrs.backend.protocol import Backend
from gptrs.plugins.descriptions import BackendPlugin
from gptrs.plugins.manager import PluginManager
from gptrs.plugins.selection import Selection


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backends",
        metavar="NAMES",
        help="comma list of the backends that `backend` stands for (default: each installed one)",
    )


def pytest_configure(config: pytest.Config) -> None:
    for name in _chosen(config):
        if name not in _installed():
            listed = ", ".join(_installed())
            raise pytest.UsageError(f"`--backends`: unknown backend `{name}`; installed: {listed}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", _chosen(metafunc.config), indirect=True, scope="session")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark cases of a test `slow` where a backend has many: most of them compile alike kernels.

    Of more than `_ENOUGH` cases a quarter stays, at least `_ENOUGH`, the same in every process.
    A test marked `whole` keeps all, since each of its cases is the only one of its subject.
    """
    cases: defaultdict[tuple[str, str], list[pytest.Function]] = defaultdict(list)
    for item in items:
        if isinstance(item, pytest.Function) and not item.get_closest_marker("whole"):
            parameters = item.callspec.params if hasattr(item, "callspec") else {}
            if "backend" in parameters:
                test = item.nodeid.partition("[")[0]
                cases[test, str(parameters["backend"])].append(item)
    for of_one_test in cases.values():
        if len(of_one_test) > _ENOUGH:
            of_one_test.sort(key=lambda item: zlib.crc32(item.name.encode()))
            for item in of_one_test[max(_ENOUGH, len(of_one_test) // 4) :]:
                item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> Backend:
    """A backend as its plugin creates it; tests that ask for it run once for each."""
    return _plugins().get_backend(request.param)


_ENOUGH = 20
_finished = itertools.count(1)


def pytest_runtest_teardown() -> None:
    """Compiled kernels stay for good: the collector need not look at them again and again."""
    if next(_finished) % 200 == 0:
        gc.collect()
        gc.freeze()


@cache
def _plugins() -> PluginManager:
    """All that is installed, whatever the environment selects and tests configure."""
    return PluginManager(Selection())


def _installed() -> list[str]:
    """The names of the backends; a broken one counts, so that tests of it fail."""
    return [record.name for record in _plugins().records(BackendPlugin)]


def _chosen(config: pytest.Config) -> list[str]:
    option = config.getoption("backends")
    if option is None:
        return _installed()
    return [name.strip() for name in option.split(",") if name.strip()]
