"""The program cache compiles a program once, keeps within its budget, and never mixes two up."""

from __future__ import annotations

import gc
import weakref

import pytest

import gptrs
from capture.made_keys import made_key
from gptrs.capture import execute, primitives
from gptrs.capture.caching import program_key
from gptrs.capture.caching.program_cache import (
    BYTES_PER_INSTRUCTION,
    DEFAULT_BUDGET,
    VARIABLE,
    ProgramCache,
)
from gptrs.errors import UsageError
from gptrs.memory_cache import Lookup

KEYS = {name: made_key(literal=name) for name in "abcdef"}


class Compiled:
    """Stands for an executable that may report what it holds."""

    def __init__(self, nbytes: object = None) -> None:
        if nbytes is not None:
            self.nbytes = nbytes


def _served(cache: ProgramCache[str], names: str) -> str:
    """The programs, by name, that had to be compiled to serve all of `names`."""
    return "".join(name for name in names if not cache.find_or_make(KEYS[name], str).hit)


def test_a_program_is_compiled_once():
    cache = ProgramCache[object]()
    value = object()
    missed = cache.find_or_make(KEYS["a"], lambda reason: value)
    hit = cache.find_or_make(made_key(literal="a"), lambda reason: object())
    assert missed == Lookup(value, False, "first")
    assert hit == Lookup(value, True, None)


def test_compile_is_told_the_reason():
    cache = ProgramCache[str]()
    assert cache.find_or_make(KEYS["a"], str).value == "first"
    assert cache.find_or_make(KEYS["b"], str).value == "literal"


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
    cache.find_or_make(made_key(instructions=2), str)
    assert (cache.statistics.entries, cache.statistics.evictions) == (2, 4)


def test_an_entry_counts_with_instructions_literals_and_what_it_reports():
    cache = ProgramCache[Compiled]()
    key = made_key(instructions=3, literal_bytes=50)
    cache.find_or_make(key, lambda reason: Compiled(nbytes=7))
    assert cache.statistics.bytes == 3 * BYTES_PER_INSTRUCTION + 57


@pytest.mark.parametrize("nbytes", [None, "many", -5, 1.5])
def test_a_senseless_report_counts_as_nothing(nbytes):
    cache = ProgramCache[Compiled]()
    cache.find_or_make(made_key(), lambda reason: Compiled(nbytes))
    assert cache.statistics.bytes == BYTES_PER_INSTRUCTION


def test_what_is_over_the_budget_alone_is_returned_and_not_kept():
    cache = ProgramCache[Compiled](budget_bytes=2 * BYTES_PER_INSTRUCTION)
    small, large = made_key(), made_key(literal=1)
    cache.find_or_make(small, lambda reason: Compiled())
    lookups = [
        cache.find_or_make(large, lambda reason: Compiled(2 * BYTES_PER_INSTRUCTION))
        for _ in range(2)
    ]
    assert [(lookup.hit, lookup.reason) for lookup in lookups] == [
        (False, "literal"),
        (False, "evicted"),
    ]
    assert cache.find_or_make(small, lambda reason: Compiled()).hit
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
    assert cache.find_or_make(KEYS["a"], str) == Lookup("first", False, "first")


def test_dropped_programs_are_freed():
    cache = ProgramCache[Compiled](capacity=1)
    made: list[weakref.ref[Compiled]] = []

    def compile_it(reason: str) -> Compiled:
        compiled = Compiled()
        made.append(weakref.ref(compiled))
        return compiled

    cache.find_or_make(KEYS["a"], compile_it)
    cache.find_or_make(KEYS["b"], compile_it)
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
        cache.find_or_make(KEYS["a"], fail)
    assert cache.find_or_make(KEYS["a"], str) == Lookup("first", False, "first")
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
        cache.find_or_make(KEYS["a"], compiled.append)
    assert compiled == []


@pytest.mark.parametrize(("budget", "capacity"), [(-1, 1), (1, 0)])
def test_senseless_limits_are_errors(budget, capacity):
    with pytest.raises(UsageError, match="needs a capacity >= 1 and a budget >= 0"):
        ProgramCache[str](budget, capacity)
