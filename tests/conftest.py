"""One test body for every backend, and the tiers of tests: `long` ones and `--exhaustive`."""

from __future__ import annotations

import gc
import itertools
import os
import re
import signal
import time
import zlib
from collections import defaultdict
from collections.abc import Hashable, Iterator
from datetime import date
from functools import cache
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from gptrs.backend.contract import Backend
from gptrs.capture.caching import source_identity
from gptrs.capture.execute import use_backend
from gptrs.functionals.dispatch import registry
from gptrs.plugins.descriptions import BackendPlugin
from gptrs.plugins.manager import PluginManager
from gptrs.plugins.selection import Selection

# OpenMP's threads wait actively: on cores that another worker uses, those of torch take ten times
# what they compute. Workers and processes of tests inherit it.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# LLVM's optimizations take a quarter of what tests of the JAX backend cost. What is tested is what
# XLA is given; the children of `backend_jax/test_mesh.py` have its own settings.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
# What tests expect to be compiled must not depend on whether `make kernels` was run here.
os.environ.setdefault("GPTRS_NUMBA_PACK", "0")
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
    parser.addoption(
        "--exhaustive",
        metavar="PART",
        default="none",
        help="exhaustive cases to run besides the others: `none` (default), `all`, `K/N` for one of"
        " N parts, or `today` for the part that the date names",
    )
    parser.addoption(
        "--share",
        metavar="K/N",
        default="1/1",
        help="run one of N shares of what is chosen; K may be `today`, by the date",
    )


def pytest_configure(config: pytest.Config) -> None:
    _settle_sources()
    # Resolved before xdist copies the options, so that all workers take one part past midnight.
    if config.option.exhaustive == "today":
        config.option.exhaustive = f"{date.today().toordinal() % _DAYS + 1}/{_DAYS}"
    day, _, shares = config.option.share.partition("/")
    if day == "today" and shares.isdecimal() and int(shares) > 0:
        config.option.share = f"{date.today().toordinal() % int(shares) + 1}/{shares}"
    _part(config)
    _one_of("--share", config.option.share, "K/N or today/N")
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
    chosen = _chosen(metafunc.config)
    if "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", chosen, indirect=True, scope="session")
    if "compiling" in metafunc.fixturenames:
        names = [name for name in chosen if name != "ref"]
        metafunc.parametrize("compiling", names or [None], indirect=True, scope="session")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark `long` the tests of folders whose oracle is a library that takes seconds to import."""
    folder, name = item.path.parts[-2:]
    if folder in _BESIDE_OTHERS and name not in _IN_MAKE_TEST:
        item.add_marker(pytest.mark.long)


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


def pytest_report_header(config: pytest.Config) -> str:
    """Say which exhaustive cases and which share run, in words that repeat the run."""
    share = f" --share {config.option.share}" if config.option.share != "1/1" else ""
    return f"exhaustive cases: --exhaustive {config.option.exhaustive}{share}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark all but a sample of the cases of each test, and leave out what is not asked for.

    A test keeps an eighth of its cases, at least `_ENOUGH`; on `ref` and without a backend, all. If
    it is `long`, it keeps an eighth, at least one, each case on one of its backends. Where the
    cases are a product of parameters the sample grows until each value of each parameter occurs.
    `sample(N)` sets another number, and keeps all on `ref`; `whole` keeps all. The others are
    marked `exhaustive`, as some are already, the same ones in every process.
    """
    cases: defaultdict[tuple[str, str], list[pytest.Function]] = defaultdict(list)
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if isinstance(item, pytest.Function) and marks.isdisjoint(("whole", "exhaustive")):
            # A case of a long test finds most faults on any backend: they need not all run it.
            together = "long" in marks and "sample" not in marks
            backend = "" if together else _backend(item)
            cases[item.nodeid.partition("[")[0], backend].append(item)
    for (_, backend), of_one_test in cases.items():
        _sample(of_one_test, backend)
    part, parts = _part(config)
    share, shares = _one_of("--share", config.option.share, "K/N or today/N")
    found: dict[bool, list[pytest.Item]] = {True: [], False: []}
    for item in items:
        # The exhaustive cases of a day are all in its share where N divides `_DAYS`.
        of_share = zlib.crc32(item.nodeid.encode()) % shares == share
        found[of_share and _runs(item, part, parts)].append(item)
    if found[False]:
        config.hook.pytest_deselected(items=found[False])
        items[:] = found[True]


def _runs(item: pytest.Item, part: int, parts: int) -> bool:
    if isinstance(item, pytest.Function) and _parameters(item).get("compiling", "") is None:
        return False  # no backend that compiles was chosen
    if item.get_closest_marker("exhaustive") is None:
        return True
    return parts > 0 and zlib.crc32(item.nodeid.encode()) % parts == part


def _part(config: pytest.Config) -> tuple[int, int]:
    """Return which of how many parts of the exhaustive cases runs; of 0 parts, none does."""
    asked: str = config.option.exhaustive
    if asked in ("none", "all"):
        return 0, int(asked == "all")
    return _one_of("--exhaustive", asked, "`none`, `all`, `today` or K/N")


def _one_of(option: str, asked: str, expected: str) -> tuple[int, int]:
    """Return which, from 0, of how many parts `asked` names."""
    found = re.fullmatch(r"([0-9]+)/([0-9]+)", asked)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise pytest.UsageError(f"`{option}`: expected {expected} with 1 <= K <= N, got `{asked}`")
    return int(found[1]) - 1, int(found[2])


def _sample(items: list[pytest.Function], backend: str) -> None:
    """Mark `exhaustive` what is beyond the sample, in which each value of a parameter occurs.

    Where a parameter has a value of its own for each case, values say nothing about coverage. Nor
    does a `seed`: one draws as much as another.
    """
    mark = items[0].get_closest_marker("sample")
    long = items[0].get_closest_marker("long") is not None
    compiles = backend not in ("", "ref")
    if (mark and backend == "ref") or not (mark or compiles or long):
        return
    # By a hash: neighbours in a table are alike, and each process has to find the same.
    items.sort(key=lambda item: zlib.crc32(item.name.encode()))
    cases: dict[Hashable, pytest.Function] = {}
    for item in items:
        if cases.setdefault(frozenset(_values(item).items()), item) is not item:
            item.add_marker(pytest.mark.exhaustive)  # another backend has it
    kept: int = mark.args[0] if mark else max(1 if long else _ENOUGH, len(cases) // _SHARE)
    values = [_values(item) for item in cases.values()]
    for each in values:
        each.pop("seed", None)
    product = all(len({each[k] for each in values}) < len(cases) for k in values[0])
    numbers = dict.fromkeys(_covering(values) if product and kept else [])
    for number in range(len(values)):
        if len(numbers) < kept:
            numbers[number] = None
    for number, item in enumerate(cases.values()):
        if number not in numbers:
            item.add_marker(pytest.mark.exhaustive)


def _covering(values: list[dict[str, tuple[type, Hashable]]]) -> list[int]:
    """Return the numbers of cases in which each value of each parameter occurs, of few ones."""
    left = {pair for each in values for pair in each.items()}
    found: list[int] = []
    while left:
        found.append(max(range(len(values)), key=lambda n: len(left & values[n].items())))
        left -= values[found[-1]].items()
    return found


def _backend(item: pytest.Function) -> str:
    """Return the name of the backend that a case runs on; of most tests, that is none."""
    parameters = _parameters(item)
    return str(parameters.get("backend", parameters.get("compiling", "")))


def _values(item: pytest.Function) -> dict[str, tuple[type, Hashable]]:
    """Return the parameters of a case by name, what cannot be hashed by its identity.

    The backend is none of them.
    """
    return {
        name: (type(value), value if _hashable(value) else id(value))
        for name, value in _parameters(item).items()
        if name not in ("backend", "compiling")
    }


def _parameters(item: pytest.Function) -> dict[str, object]:
    return item.callspec.params if hasattr(item, "callspec") else {}


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


@pytest.fixture(scope="session")
def compiling(request: pytest.FixtureRequest) -> Backend:
    """A backend that compiles each program; tests of what `ref` defines run once for each."""
    return _plugins().get_backend(request.param)


@pytest.fixture(scope="session")
def reference() -> Backend:
    """The backend that defines what PTIR means; other libraries are its oracle."""
    return _plugins().get_backend("ref")


@pytest.fixture
def on_backend(backend: Backend) -> Iterator[None]:
    """Run the test on each backend: `pytestmark = pytest.mark.usefixtures("on_backend")`."""
    with use_backend(backend):
        yield


@pytest.fixture
def on_reference(reference: Backend) -> Iterator[None]:
    """Run the test on the reference backend."""
    with use_backend(reference):
        yield


@pytest.fixture
def without_amx(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have products of many rows round as those of few do: see docs/backends/numba.md."""
    monkeypatch.setenv("GPTRS_NUMBA_AMX", "0")


_BESIDE_OTHERS = {"backend_jax", "jax_import", "models", "torch_import"}
_IN_MAKE_TEST = {"test_bert.py", "test_llama.py", "test_llama_config.py", "test_vit.py"}
"""Of the models, one of each build, so that `make test` notices what breaks them all."""
_ENOUGH, _SHARE = 6, 8
"""Of the cases of a test one in `_SHARE` runs every day, and at least so many."""
_DAYS = 28
"""In so many days all exhaustive cases come round in `make check`."""
_finished = itertools.count(1)
# Seconds of a loaded machine say nothing. The rest is of the profile that Hypothesis chose.
settings.register_profile(
    "any load", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any load")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """Compiled kernels stay for good: the collector need not look at them again and again.

    A functional that a test defined must not stay: another one would find it.
    """
    if next(_finished) % 200 == 0:
        gc.collect()
        gc.freeze()
    yield
    stays = [
        name
        for name, known in registry._implementations.items()
        if "<locals>" in known[registry.PORTABLE].function.__qualname__
    ]
    for name in stays:
        del registry._implementations[name]
    assert not stays, f"define {stays} with `functionals.temporary`"


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
