"""The backend asked for by name, or the best that works: one object for a choice, or an error."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading

import pytest

import gptrs
from gptrs.api import BackendError, BackendPlugin, PluginError, UsageError
from gptrs.api.backends import Backend
from gptrs.capture.execute import chosen_backend
from gptrs.plugins.manager import configure, get_backend, manager

GROUP = "gptrs.backends"
MODULE = """
import time
from gptrs import api
from gptrs.api import BackendPlugin, UsageError
P = BackendPlugin(
    name="{name}", summary="s", priority={priority}, factory="{factory}", api="0.1"
)
MADE = []
class Backend(api.backends.Backend):
    name = "{name}"
    refusal = compile = to_device = to_host = print
def create(threads):
    time.sleep(0.01)
    backend = Backend()
    backend.threads = threads
    MADE.append(backend)
    return backend
def fail(threads):
    raise RuntimeError("no such device")
def leave(threads):
    raise SystemExit("bye")
def misuse(threads):
    raise UsageError("2 threads at most")
def lack(threads):
    try:
        raise {lack}
    except Exception:
        raise OSError("the library cannot be loaded, or something else is wrong")
def wrong(threads):
    return object()
def misnamed(threads):
    Backend.name = "someone"
    return Backend()
NUMBER = 3
"""


@pytest.fixture
def backends(install):
    """`backends(name, priority, factory)` installs a backend in a distribution of its own."""

    def add(
        name: str, priority: int = 1, factory: str = "create", lack: str = "MemoryError"
    ) -> None:
        module = f"{name}_module"
        reference = factory if ":" in factory else f"{module}:{factory}"
        source = MODULE.format(name=name, priority=priority, factory=reference, lack=lack)
        install(f"{name}-dist", {GROUP: {name: f"{module}:P"}}, {module: source})

    return add


def threads_of(backend: Backend) -> int | None:
    return vars(backend)["threads"]


def state_of(name: str) -> str:
    return next(r.state for r in manager().records(BackendPlugin) if r.name == name)


def test_the_highest_priority_is_the_default_and_of_equals_the_first_by_name(backends):
    backends("low", 1)
    backends("b", 20)
    backends("a", 20)
    configure()
    assert get_backend().name == "a"
    assert [state_of(name) for name in ("a", "b", "low")] == ["loaded", "available", "available"]


def test_a_name_is_obeyed(backends, monkeypatch):
    backends("low", 1)
    backends("high", 20)
    configure()
    assert get_backend("low").name == "low"
    monkeypatch.setenv("GPTRS_BACKEND", "low")
    assert get_backend().name == "low"
    assert get_backend("high").name == "high"
    monkeypatch.setenv("GPTRS_BACKEND", "lou")
    with pytest.raises(PluginError, match="there is no backend `lou`; did you mean `low`"):
        get_backend()


def test_the_same_name_and_threads_give_the_same_object(backends):
    backends("one")
    configure()
    assert get_backend() is get_backend("one") is get_backend()
    assert get_backend("one", 2) is get_backend(threads=2)
    assert get_backend("one", 2) is not get_backend("one")
    first = get_backend("one")
    configure()
    assert get_backend("one") is not first


def test_threads_are_the_argument_or_the_variable_or_left_to_the_backend(backends, monkeypatch):
    backends("one")
    configure()
    assert threads_of(get_backend()) is None
    monkeypatch.setenv("GPTRS_NUM_THREADS", "3")
    assert threads_of(get_backend()) == 3
    assert threads_of(get_backend(threads=2)) == 2


def test_functions_run_on_the_backend_that_the_variables_name_now(backends, monkeypatch):
    backends("low", 1)
    backends("high", 20)
    configure()
    assert chosen_backend() is chosen_backend() is get_backend("high")
    monkeypatch.setenv("GPTRS_NUM_THREADS", "3")
    assert chosen_backend() is get_backend("high", 3)
    monkeypatch.setenv("GPTRS_BACKEND", "low")
    assert chosen_backend() is get_backend("low", 3)
    monkeypatch.setenv("GPTRS_BACKEND", "lou")
    with pytest.raises(PluginError, match="did you mean `low`"):
        chosen_backend()
    monkeypatch.delenv("GPTRS_BACKEND")
    former = chosen_backend()
    configure()
    assert chosen_backend() is get_backend() is not former


@pytest.mark.parametrize("given", ["0", "-1", "two", "1.5", "²"])
def test_a_wrong_number_of_threads_is_a_usage_error(backends, monkeypatch, given):
    backends("one")
    configure()
    monkeypatch.setenv("GPTRS_NUM_THREADS", given)
    with pytest.raises(UsageError, match=f"must be from 1 to 256, got `{given}`"):
        get_backend()
    with pytest.raises(UsageError, match="`threads` must be from 1 to 256, got `0`"):
        get_backend("one", 0)


@pytest.mark.parametrize(
    ("factory", "reason"),
    [
        ("fail", "RuntimeError: no such device"),
        ("leave", "SystemExit: bye"),
        ("absent", "AttributeError: module 'bad_module' has no attribute 'absent'"),
        ("no_such_lib:create", "ModuleNotFoundError: No module named 'no_such_lib'"),
        ("NUMBER", "`bad_module:NUMBER` must be callable, it is a `int`"),
        (
            "wrong",
            "its factory made a `object`, which does not derive from `gptrs.api.backends.Backend`",
        ),
        ("misnamed", "its factory made a backend that calls itself `someone`"),
    ],
)
def test_a_backend_that_cannot_be_made_is_broken_and_the_next_one_is_taken(
    backends, caplog, factory, reason
):
    backends("bad", 99, factory)
    backends("good", 1)
    configure()
    with caplog.at_level(logging.WARNING, logger="gptrs"):
        assert get_backend().name == "good"
        assert get_backend(threads=5).name == "good"
    assert [r.getMessage() for r in caplog.records] == [f"backend `bad` is skipped: {reason}"]
    assert state_of("bad") == "broken"
    for _ in range(2):
        with pytest.raises(PluginError) as caught:
            get_backend("bad")
        assert caught.value.message == f"backend `bad` (from bad-dist 1.0) is broken: {reason}"
        assert caught.value.exit_code == 4
        assert caught.value.__cause__ is not None


def test_an_explicit_choice_of_a_broken_backend_is_never_replaced(backends):
    backends("bad", 99, "fail")
    backends("good", 1)
    configure()
    with pytest.raises(PluginError, match="no such device"):
        get_backend("bad")


def test_a_usage_error_of_a_factory_is_the_users_and_breaks_nothing(backends):
    backends("picky", 99, "misuse")
    backends("good", 1)
    configure()
    with pytest.raises(UsageError, match="2 threads at most"):
        get_backend(threads=3)
    assert state_of("picky") == "loaded"


def test_strict_does_not_fall_back(backends, monkeypatch):
    backends("bad", 99, "fail")
    backends("good", 1)
    monkeypatch.setenv("GPTRS_PLUGIN_STRICT", "1")
    configure()
    with pytest.raises(PluginError, match=r"backend `bad` .*no such device"):
        get_backend()


def test_a_disabled_backend_is_skipped_without_a_word(backends, caplog):
    backends("high", 99)
    backends("low", 1)
    configure(disabled=["high"])
    with caplog.at_level(logging.WARNING, logger="gptrs"):
        assert get_backend().name == "low"
    assert not caplog.records


def test_without_any_backend_the_error_says_what_to_install(install):
    configure()
    with pytest.raises(BackendError, match=r"no backend is available; .*gptrs-backend-numba`"):
        get_backend()
    with pytest.raises(PluginError, match="there is no backend `x`; available: none"):
        get_backend("x")


def test_a_factory_may_ask_for_another_backend(backends, install):
    backends("inner", 1)
    outer = """
from gptrs import api
from gptrs.api import BackendPlugin
from gptrs.plugins.manager import get_backend
P = BackendPlugin(name="outer", summary="s", priority=5, factory="outer:create", api="0.1")
class Backend(api.backends.Backend):
    name = "outer"
    refusal = compile = to_device = to_host = print
def create(threads):
    backend = Backend()
    backend.inner = get_backend("inner", threads)
    return backend
"""
    install("outer-dist", {GROUP: {"outer": "outer:P"}}, {"outer": outer})
    configure()
    assert vars(get_backend())["inner"] is get_backend("inner")


def test_threads_that_ask_at_once_get_one_object(backends):
    backends("one")
    configure()
    barrier = threading.Barrier(8)
    found = []

    def ask(name):
        barrier.wait()
        found.append(get_backend(name))

    workers = [threading.Thread(target=ask, args=(n,)) for n in ("one", None) * 4]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    import one_module

    assert len(one_module.MADE) == 1
    assert len(found) == 8
    assert set(map(id, found)) == {id(one_module.MADE[0])}


@pytest.mark.parametrize(
    "error",
    [
        "MemoryError()",
        "ImportError('libx.so: failed to map segment from shared object')",
        "OSError(12, 'Cannot allocate memory')",
    ],
)
def test_a_lack_of_memory_is_told_as_one(backends, error):
    backends("low", 1)
    backends("high", 9, "lack", error)
    configure()
    with pytest.raises(MemoryError, match="no memory is left to load the backend `high`"):
        get_backend()


@pytest.mark.sample(1)
@pytest.mark.skipif(sys.platform != "linux", reason="limits of address space are those of Linux")
@pytest.mark.parametrize("mebibytes", [220, 260, 300])
def test_a_process_with_little_memory_says_so(mebibytes):
    script = f"""
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({mebibytes} << 20,) * 2)
from gptrs_cli.__main__ import main
sys.exit(main())
"""
    command = [sys.executable, "-c", script, "generate", "--max-tokens", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    *notes, last = done.stderr.splitlines()
    assert last == "error: out of memory; close other programs or use a smaller model"
    assert all(note.startswith(("continues", "backend `numba`: compiling")) for note in notes)


def test_a_scope_takes_the_name_of_a_backend():
    with gptrs.use_backend("ref") as backend:
        assert backend is gptrs.get_backend("ref")
        assert gptrs.ones([2]).sum().item() == 2.0
    with pytest.raises(PluginError, match="nunba"), gptrs.use_backend("nunba"):
        pass
