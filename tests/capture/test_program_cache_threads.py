"""Threads share the program cache: a program is compiled by one, and the others wait for it."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from capture.made_keys import made_key
from gptrs.capture.caching.program_cache import BYTES_PER_INSTRUCTION, ProgramCache
from gptrs.memory_cache import Lookup

KEYS = {name: made_key(literal=name) for name in "abcdef"}


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
            cache.find_or_make(KEYS[name], lambda _, name=name: compile_it(name)).value
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

    lookups: list[Lookup[object, str]] = []
    others += [
        threading.Thread(
            target=lambda: lookups.append(
                cache.find_or_make(KEYS["a"], lambda reason: pytest.fail("compiled twice"))
            )
        )
        for _ in range(3)
    ]
    mine = cache.find_or_make(KEYS["a"], compile_it)
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
            return cache.find_or_make(KEYS["a"], compile_it).value
        except ValueError:
            return "failed"

    with ThreadPoolExecutor(4) as pool:
        served = sorted(pool.map(serve, range(4)))
    assert served == ["failed", "failed", "made", "made"]
    assert next(attempts) == 3


def test_different_keys_are_compiled_in_parallel():
    cache, both = ProgramCache[str](), threading.Barrier(2, timeout=120)

    def compile_it(reason: str) -> str:
        both.wait()  # breaks unless the other one is being compiled too
        return "made"

    with ThreadPoolExecutor(2) as pool:
        lookups = list(pool.map(lambda name: cache.find_or_make(KEYS[name], compile_it), "ab"))
    assert [lookup.value for lookup in lookups] == ["made", "made"]


def test_a_thread_does_not_wait_for_itself():
    cache = ProgramCache[str]()

    def outer(reason: str) -> str:
        return "outer of " + cache.find_or_make(KEYS["a"], lambda _: "inner").value

    assert cache.find_or_make(KEYS["a"], outer).value == "outer of inner"
    assert cache.statistics.entries == 1
    assert cache.statistics.bytes == BYTES_PER_INSTRUCTION


def test_what_was_being_compiled_when_the_cache_was_cleared_is_not_kept():
    cache = ProgramCache[str]()

    def compile_it(reason: str) -> str:
        cache.clear()
        return "made"

    assert cache.find_or_make(KEYS["a"], compile_it).value == "made"
    assert (cache.statistics.entries, cache.statistics.bytes) == (0, 0)


def _waiting(cache: ProgramCache[object]) -> int:
    """How many threads wait for compilations now."""
    compilations = list(cache._making.values())
    conditions = [vars(each.done)["_cond"] for each in compilations]
    return sum(len(condition._waiters) for condition in conditions)


def _until(condition) -> None:
    for _ in range(10_000):
        if condition():
            return
        threading.Event().wait(0.001)
    pytest.fail("it never came to that")
