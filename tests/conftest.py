"""One test body for every backend: the `backend` fixture and the `--backends` option.

Products of many parameters are sampled: all but some of their cases are marked `slow`, `long` or
`exhaustive`.
"""

from __future__ import annotations

import gc
import itertools
import os
import signal
import time
import zlib
from collections import defaultdict
from collections.abc import Hashable, Iterator
from functools import cache
from pathlib import Path

import pytest

from gptrs.backend.protocol import Backend
from gptrs.capture.caching import source_identity
from gptrs.plugins.descriptions import BackendPlugin
from gptrs.plugins.manager import PluginManager
from gptrs.plugins.selection import Selection

# OpenMP's threads wait actively: on cores that another worker uses, those of torch take ten times
# what they compute. Workers and processes of tests inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# The workers of the tests take all cores: nobody compiles for them.
os.environ.setdefault("GPTRS_NUMBA_COMPILERS", "1")
# A shell has its background jobs ignore Ctrl-C, and so would each process that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--backends",
        metavar="NAMES",
        help="comma list of the backends that `backend` stands for (default: numba and ref)",
    )


def pytest_configure(config: pytest.Config) -> None:
    _settle_sources()
    for name in _chosen(config):
        if name not in _installed():
            listed = ", ".join(_installed())
            raise pytest.UsageError(f"`--backends`: unknown backend `{name}`; installed: {listed}")


def _settle_sources() -> None:
    """Wait until every source file counts as unchanged since this process began.

    Programs are kept on disk only then, which tests expect also right after a file was saved.
    """
    root = Path(__file__).parents[1]
    changed = max(
        (
            max(status.st_mtime_ns, status.st_ctime_ns)
            for folder in ("packages", "tests", "tools")
            for path in root.joinpath(folder).rglob("*.py")
            if (status := path.stat())
        ),
        default=0,  # of a copy of this file elsewhere
    )
    settled = changed + source_identity.SETTLED_NS
    time.sleep(max(0, min(settled - time.time_ns(), source_identity.SETTLED_NS)) / 1e9)
    source_identity.BEGAN_NS = time.time_ns()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", _chosen(metafunc.config), indirect=True, scope="session")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without the garbage collector: all of the objects stay, and it looks at them often.

    It takes more than half of the CPU time of a collection of 27,000 tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out cases of a test that has many, the same ones in every process.

    On one backend most of them compile alike kernels: of more than `_ENOUGH` a part stays, at least
    `_ENOUGH`, the others are marked `slow`; the part is a sixth on `ref`, which compiles nothing,
    and a sixteenth on others, of at least `_FEWER`. Of products there CI runs four times as many,
    with each value of each parameter: the others are marked `exhaustive`. Of a test marked `many`
    all but some are marked `long`. A test marked `whole` keeps all, since each of its cases is the
    only one of its subject, unless it is marked `alike`, too: then CI runs each value once. One
    marked `few(N)` keeps N, and on `ref` all, since other tests hold it to the same.
    """
    cases: defaultdict[tuple[str, str], list[pytest.Function]] = defaultdict(list)
    alike: defaultdict[tuple[str, str], list[pytest.Function]] = defaultdict(list)
    many: defaultdict[str, list[pytest.Function]] = defaultdict(list)
    for item in items:
        if not isinstance(item, pytest.Function):
            continue
        test = item.nodeid.partition("[")[0]
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if "backend" in parameters and not item.get_closest_marker("whole"):
            cases[test, str(parameters["backend"])].append(item)
        elif item.get_closest_marker("few"):
            cases[test, "the backend of the test"].append(item)
        if item.get_closest_marker("many"):
            many[test].append(item)
        if item.get_closest_marker("alike"):
            alike[test, str(parameters["backend"])].append(item)
    for (_, backend), of_one_test in cases.items():
        _leave_out(of_one_test, backend)
    for (_, backend), of_one_test in alike.items():
        _leave_out_alike(of_one_test, backend)
    for of_one_test in many.values():
        _mark_rest(of_one_test, max(_SOME, len(of_one_test) // 8), pytest.mark.long)


def _leave_out(cases: list[pytest.Function], backend: str) -> None:
    few = cases[0].get_closest_marker("few")
    if few is None:
        enough, part = (_ENOUGH, 6) if backend == "ref" else (_FEWER, 16)
        kept = max(enough, len(cases) // part)
        _mark_rest(cases, kept, pytest.mark.slow)
        if backend != "ref":
            _mark_alike(cases, _MORE_IN_CI * kept)
    elif backend != "ref":
        _mark_rest(cases, few.args[0], pytest.mark.slow)
        _mark_alike(cases, _MORE_IN_CI * few.args[0])


def _leave_out_alike(cases: list[pytest.Function], backend: str) -> None:
    if backend != "ref":
        cases.sort(key=lambda item: item.get_closest_marker("slow") is not None)
        _mark_alike(cases, sum(not item.get_closest_marker("slow") for item in cases))


def _mark_rest(items: list[pytest.Function], kept: int, mark: pytest.MarkDecorator) -> None:
    items.sort(key=lambda item: zlib.crc32(item.name.encode()))
    for item in items[kept:]:
        item.add_marker(mark)


def _mark_alike(items: list[pytest.Function], kept: int) -> None:
    """Mark all but `kept` cases of a product `exhaustive`, and those that bring a new value.

    Where a parameter has a value of its own for each case, each is the only one of its subject.
    """
    values = [_values(item) for item in items]
    if any(len({each[name] for each in values}) == len(items) for name in values[0]):
        return
    seen = {pair for each in values[:kept] for pair in each.items()}
    for item, each in zip(items[kept:], values[kept:], strict=True):
        if seen.issuperset(each.items()):
            item.add_marker(pytest.mark.exhaustive)
        seen.update(each.items())


def _values(item: pytest.Function) -> dict[str, tuple[type, Hashable]]:
    """Return the parameters of a case by name, what cannot be hashed by its identity."""
    return {
        name: (type(value), value if _hashable(value) else id(value))
        for name, value in item.callspec.params.items()
    }


def _hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


@pytest.fixture(scope="session", autouse=True)
def _no_packed_weights_on_disk() -> Iterator[None]:
    """Keep the weights of tests out of the user's cache; tests of that cache say otherwise."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPTRS_WEIGHT_CACHE_BYTES", "0")
        yield


@pytest.fixture(scope="session")
def backend(request: pytest.FixtureRequest) -> Backend:
    """A backend as its plugin creates it; tests that ask for it run once for each."""
    return _plugins().get_backend(request.param)


@pytest.fixture
def without_amx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have products of many rows round as those of few do: see docs/backends/numba.md."""
    monkeypatch.setenv("GPTRS_NUMBA_AMX", "0")


_ENOUGH, _FEWER = 16, 6
_MORE_IN_CI = 4
_SOME = 3
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
    """What is asked for, else all but `jax`: XLA compiles each program for too long.

    `tests/backend_jax` runs a part of the kit and of the models on it.
    """
    option = config.getoption("backends")
    if option is None:
        return [name for name in _installed() if name != "jax"]
    return [name.strip() for name in option.split(",") if name.strip()]
