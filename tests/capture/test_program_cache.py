"""The program cache compiles a program once, keeps within its budget, and never mixes two up."""

from __future__ import annotations

import gc
import itertools
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import gptrs
from capture.made_keys import made_key
from gptrs.capture import execute, primitives, program_key
from gptrs.capture.parameter import Parameter
from gptrs.capture.program_cache import DEFAULT_BUDGET, VARIABLE, Lookup, ProgramCache
from gptrs.capture.program_store import BYTES_PER_INSTRUCTION
from gptrs.capture.tensor import Tensor
from gptrs.errors import UsageError
from gptrs.ir.tensor_type import TensorType

KEYS = {name: made_key(literal=name) for name in "abcdef"}


class Compiled:
    """Stands for an executable that may report what it holds."""

    def __init__(self, nbytes: object = None) -> None:
        if nbytes is not None:
            self.nbytes = nbytes


def _served(cache: ProgramCache[str], names: str) -> str:
    """The programs, by name, that had to be compiled to serve all of `names`."""
    return "".join(name for name in names if not cache.find_or_compile(KEYS[name], str).hit)


def test_a_program_is_compiled_once():
    cache = ProgramCache[object]()
    value = object()
    missed = cache.find_or_compile(KEYS["a"], lambda reason: value)
    hit = cache.find_or_compile(made_key(literal="a"), lambda reason: object())
    assert missed == Lookup(value, False, "first")
    assert hit == Lookup(value, True, None)


def test_compile_is_told_the_reason():
    cache = ProgramCache[str]()
    assert cache.find_or_compile(KEYS["a"], str).value == "first"
    assert cache.find_or_compile(KEYS["b"], str).value == "literal"


def test_least_recently_used_is_dropped():
    cache = ProgramCache[str](capacity=2)
    assert _served(cache, "abacab") == "abcb"
    statistics = cache.statistics
    assert (statistics.entries, statistics.evictions) == (2, 2)
    assert statistics.misses_by_reason["evicted"] == 1


def test_the_budget_holds():
    cache = ProgramCache[str](budget_bytes=3 * BYTES_PER_INSTRUCTION)
    assert _served(cache, "abcabc") == "abc"
    assert cache.statistics.bytes == 3 * BYTES_PER_INSTRUCTION
    assert _served(cache, "dbca") == "da"
    assert cache.statistics.bytes == 3 * BYTES_PER_INSTRUCTION
    cache.find_or_compile(made_key(instructions=2), str)
    assert (cache.statistics.entries, cache.statistics.evictions) == (2, 4)


def test_an_entry_counts_with_instructions_literals_and_what_it_reports():
    cache = ProgramCache[Compiled]()
    key = made_key(instructions=3, literal_bytes=50)
    cache.find_or_compile(key, lambda reason: Compiled(nbytes=7))
    assert cache.statistics.bytes == 3 * BYTES_PER_INSTRUCTION + 57


@pytest.mark.parametrize("nbytes", [None, "many", -5, 1.5])
def test_a_senseless_report_counts_as_nothing(nbytes):
    cache = ProgramCache[Compiled]()
    cache.find_or_compile(made_key(), lambda reason: Compiled(nbytes))
    assert cache.statistics.bytes == BYTES_PER_INSTRUCTION


def test_what_is_over_the_budget_alone_is_returned_and_not_kept():
    cache = ProgramCache[Compiled](budget_bytes=2 * BYTES_PER_INSTRUCTION)
    small, large = made_key(), made_key(literal=1)
    cache.find_or_compile(small, lambda reason: Compiled())
    lookups = [
        cache.find_or_compile(large, lambda reason: Compiled(2 * BYTES_PER_INSTRUCTION))
        for _ in range(2)
    ]
    assert [(lookup.hit, lookup.reason) for lookup in lookups] == [
        (False, "literal"),
        (False, "evicted"),
    ]
    assert cache.find_or_compile(small, lambda reason: Compiled()).hit
    statistics = cache.statistics
    assert (statistics.refused, statistics.evictions, statistics.entries) == (2, 0, 1)


def test_clear_forgets_programs_and_counts():
    cache = ProgramCache[str](capacity=1)
    _served(cache, "aab")
    cache.clear()
    statistics = cache.statistics
    assert (statistics.hits, statistics.misses, statistics.entries) == (0, 0, 0)
    assert (statistics.bytes, statistics.evictions) == (0, 0)
    assert set(statistics.misses_by_reason.values()) == {0}
    assert cache.find_or_compile(KEYS["a"], str) == Lookup("first", False, "first")


def test_dropped_programs_are_freed():
    cache = ProgramCache[Compiled](capacity=1)
    made: list[weakref.ref[Compiled]] = []

    def compile_it(reason: str) -> Compiled:
        compiled = Compiled()
        made.append(weakref.ref(compiled))
        return compiled

    cache.find_or_compile(KEYS["a"], compile_it)
    cache.find_or_compile(KEYS["b"], compile_it)
    gc.collect()
    assert [reference() is None for reference in made] == [True, False]
    cache.clear()
    gc.collect()
    assert made[1]() is None


def test_a_compilation_that_fails_leaves_nothing():
    cache = ProgramCache[str]()

    def fail(reason: str) -> str:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cache.find_or_compile(KEYS["a"], fail)
    assert cache.find_or_compile(KEYS["a"], str) == Lookup("first", False, "first")
    assert cache.statistics.misses == 2


def test_equal_digests_do_not_share_a_program(monkeypatch, backend):
    monkeypatch.setattr(program_key, "digest_of", lambda hashes: 0)
    execute.program_cache.clear()
    x = gptrs.tensor([1.0, 4.0])
    graphs = [primitives.neg, primitives.sqrt, primitives.abs, primitives.sign]
    for _ in range(2):
        with gptrs.use_backend(backend):
            values = [op(x).numpy().tolist() for op in graphs]
        assert values == [[-1, -4], [1, 2], [1, 4], [1, 1]]
    statistics = execute.program_cache.statistics
    assert (statistics.hits, statistics.misses) == (4, 4)
    execute.program_cache.clear()  # its keys would have other digests from now on


def test_the_environment_sets_the_budget(monkeypatch):
    monkeypatch.setenv("GPTRS_PROGRAM_CACHE_BYTES", "12345")
    assert ProgramCache[str]().budget_bytes == 12345
    assert ProgramCache[str](budget_bytes=7).budget_bytes == 7
    monkeypatch.delenv(VARIABLE)
    assert ProgramCache[str]().budget_bytes == DEFAULT_BUDGET


@pytest.mark.parametrize("text", ["many", "-1", "1e6", "1 GB", "9" * 30])
def test_a_bad_budget_is_an_error_before_anything_is_compiled(monkeypatch, text):
    monkeypatch.setenv(VARIABLE, text)
    cache, compiled = ProgramCache[str](), []
    with pytest.raises(UsageError, match=f"`{VARIABLE}` must be a number of bytes, got `{text}`"):
        cache.find_or_compile(KEYS["a"], compiled.append)
    assert compiled == []


@pytest.mark.parametrize(("budget", "capacity"), [(-1, 1), (1, 0)])
def test_senseless_limits_are_errors(budget, capacity):
    with pytest.raises(UsageError, match="needs a capacity >= 1 and a budget >= 0"):
        ProgramCache[str](budget, capacity)


def test_threads_that_miss_a_key_at_once_share_one_compilation():
    cache, barrier = ProgramCache[object](), threading.Barrier(8)
    compiled: list[str] = []

    def compile_it(name: str) -> object:
        compiled.append(name)
        # Others come and wait meanwhile.
        threading.Event().wait(0.01)
        return object()

    def serve(_: int) -> list[object]:
        barrier.wait()
        return [
            cache.find_or_compile(KEYS[name], lambda _, name=name: compile_it(name)).value
            for name in "abcdef"
        ]

    with ThreadPoolExecutor(8) as pool:
        served = list(pool.map(serve, range(8)))
    assert sorted(compiled) == list("abcdef")
    assert all(values == served[0] for values in served)
    statistics = cache.statistics
    assert (statistics.hits, statistics.misses, statistics.entries) == (42, 6, 6)


def test_those_who_wait_get_a_program_that_is_not_kept():
    cache = ProgramCache[object](budget_bytes=0)
    started, others = threading.Event(), []

    def compile_it(reason: str) -> object:
        started.set()
        for thread in others:
            thread.start()
        _until(lambda: _waiting(cache) == len(others))
        return object()

    lookups: list[Lookup[object]] = []
    others += [
        threading.Thread(
            target=lambda: lookups.append(
                cache.find_or_compile(KEYS["a"], lambda reason: pytest.fail("compiled twice"))
            )
        )
        for _ in range(3)
    ]
    mine = cache.find_or_compile(KEYS["a"], compile_it)
    for thread in others:
        thread.join()
    assert [(lookup.value, lookup.hit) for lookup in lookups] == [(mine.value, True)] * 3
    assert cache.statistics.entries == 0


def test_an_error_goes_to_the_thread_that_compiled_and_the_next_tries_itself():
    cache, barrier, attempts = ProgramCache[str](), threading.Barrier(4), itertools.count()

    def compile_it(reason: str) -> str:
        if next(attempts) < 2:
            _until(lambda: _waiting(cache) > 0)
            raise ValueError("no")
        return "made"

    def serve(_: int) -> str:
        barrier.wait()
        try:
            return cache.find_or_compile(KEYS["a"], compile_it).value
        except ValueError:
            return "failed"

    with ThreadPoolExecutor(4) as pool:
        served = sorted(pool.map(serve, range(4)))
    assert served == ["failed", "failed", "made", "made"]
    assert next(attempts) == 3


def test_different_keys_are_compiled_in_parallel():
    cache, both = ProgramCache[str](), threading.Barrier(2, timeout=10)

    def compile_it(reason: str) -> str:
        both.wait()  # breaks unless the other one is being compiled too
        return "made"

    with ThreadPoolExecutor(2) as pool:
        lookups = list(pool.map(lambda name: cache.find_or_compile(KEYS[name], compile_it), "ab"))
    assert [lookup.value for lookup in lookups] == ["made", "made"]


def test_a_thread_does_not_wait_for_itself():
    cache = ProgramCache[str]()

    def outer(reason: str) -> str:
        return "outer of " + cache.find_or_compile(KEYS["a"], lambda _: "inner").value

    assert cache.find_or_compile(KEYS["a"], outer).value == "outer of inner"
    assert cache.statistics.entries == 1
    assert cache.statistics.bytes == BYTES_PER_INSTRUCTION


def test_what_was_being_compiled_when_the_cache_was_cleared_is_not_kept():
    cache = ProgramCache[str]()

    def compile_it(reason: str) -> str:
        cache.clear()
        return "made"

    assert cache.find_or_compile(KEYS["a"], compile_it).value == "made"
    assert (cache.statistics.entries, cache.statistics.bytes) == (0, 0)


def _waiting(cache: ProgramCache[object]) -> int:
    """How many threads wait for compilations now."""
    compilations = list(cache._compiling.values())
    return sum(len(each.done._cond._waiters) for each in compilations)


def _until(condition) -> None:
    for _ in range(10_000):
        if condition():
            return
        threading.Event().wait(0.001)
    pytest.fail("it never came to that")


def _parameter(array: np.ndarray, name: str, backend: object) -> Tensor:
    parameter = Parameter(TensorType.of(array), hash(name), name, lambda: array, backend)
    return Tensor.of_parameter(parameter)


def test_operands_are_tied_to_inputs(backend):
    """(x @ p1) @ p2 and (x @ p2) @ p1 have the same ops and types, and different values."""
    rng = np.random.default_rng(0)
    x, p1, p2 = (rng.standard_normal((4, 4), np.float32) for _ in range(3))
    first, second = _parameter(p1, "p1", backend), _parameter(p2, "p2", backend)
    with gptrs.use_backend(backend):
        a = ((gptrs.tensor(x) @ first) @ second).numpy()
        b = ((gptrs.tensor(x) @ second) @ first).numpy()
    np.testing.assert_allclose(a, x @ p1 @ p2, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(b, x @ p2 @ p1, rtol=1e-4, atol=1e-4)


def test_one_input_twice_is_not_two_inputs(backend):
    with gptrs.use_backend(backend):
        a, b = gptrs.tensor([1.0, 2.0]), gptrs.tensor([5.0, 7.0])
        assert primitives.sub(a, a).numpy().tolist() == [0, 0]
        assert primitives.sub(a, b).numpy().tolist() == [-4, -5]


def test_equal_structures_hit_and_results_are_new(backend):
    """Capturing a structure again after a flush computes anew, from the inputs of now."""
    execute.program_cache.clear()
    with gptrs.use_backend(backend):
        kept = [gptrs.tensor([value]) * 2 for value in (1.0, 2.0, 3.0)]
        for value, tensor in zip((1.0, 2.0, 3.0), kept, strict=True):
            again = gptrs.tensor([value + 10]) * 2
            assert (tensor.item(), again.item()) == (2 * value, 2 * value + 20)
        assert [tensor.item() for tensor in kept] == [2, 4, 6]
    statistics = execute.program_cache.statistics
    assert (statistics.hits, statistics.misses) == (5, 1)


def test_threads_that_flush_one_structure_compile_it_once(backend):
    execute.program_cache.clear()
    barrier = threading.Barrier(8)

    def compute(value: int) -> float:
        with gptrs.use_backend(backend):
            x = gptrs.tensor([float(value)])
            barrier.wait()
            return primitives.neg(primitives.abs(x)).item()

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(compute, range(8))) == [-value for value in range(8)]
    statistics = execute.program_cache.statistics
    assert (statistics.hits, statistics.misses) == (7, 1)
