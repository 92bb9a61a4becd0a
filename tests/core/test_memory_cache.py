"""Values in memory by key: the first that is kept stands, and the one used last goes last."""

from __future__ import annotations

from gptrs.memory_cache import Lookup, MemoryCache


def test_what_was_kept_first_stands():
    cache = MemoryCache[str, int](2)
    assert cache.find("a") is None
    assert cache.keep("a", 1) == 1
    assert cache.keep("a", 2) == 1, "another thread was faster"
    assert cache.find_or_make("a", lambda _: 3) == Lookup(1, True, None)


def test_the_one_that_was_not_used_for_longest_makes_room():
    cache = MemoryCache[str, int](2)
    cache.keep("a", 1)
    cache.keep("b", 2)
    assert cache.find("a") == 1
    assert cache.find_or_make("c", lambda _: 3) == Lookup(3, False, None)
    assert cache.values() == [1, 3]
    cache.capacity = 1
    cache.keep("d", 4)
    assert cache.values() == [4]


class Weighed(MemoryCache[str, int]):
    """A cache whose values weigh what they are, with a budget of 10."""

    @property
    def budget_bytes(self) -> float:
        return 10

    def size_of(self, key: str, value: int) -> int:
        return value


def test_entries_stay_within_the_budget_whichever_way_they_came():
    cache = Weighed(8)
    assert cache.keep("too heavy", 11) == 11
    assert cache.values() == []
    cache.keep("a", 4)
    cache.find_or_make("b", lambda _: 5)
    cache.keep("c", 2)
    assert cache.values() == [5, 2]
