"""Work in threads: results in order, no more of them than asked for, and the first error."""

from __future__ import annotations

import threading
import time

import pytest

from gptrs import generate, load_model
from gptrs_runtime.quantizing import tensor_rounding
from gptrs_runtime.quantizing.plan import in_threads


@pytest.mark.parametrize("threads", [1, 3])
def test_results_come_in_the_order_of_the_items(threads: int) -> None:
    def work(number: int) -> int:
        time.sleep(0.002 * (number % 3))
        return number

    assert list(in_threads(work, range(20), threads)) == list(range(20))


def test_items_are_taken_as_results_are_read() -> None:
    taken: list[int] = []

    def items():
        for number in range(100):
            taken.append(number)
            yield number

    results = in_threads(lambda number: number, items(), 2)
    assert next(results) == 0
    assert len(taken) == 3
    results.close()
    assert len(taken) == 3


def test_the_first_error_is_raised_and_all_threads_end() -> None:
    def work(number: int) -> int:
        if number >= 5:
            raise ValueError(str(number))
        return number

    found: list[int] = []
    with pytest.raises(ValueError, match="5"):
        found.extend(in_threads(work, range(20), 4))
    names = [thread.name for thread in threading.enumerate()]
    assert not any(name.startswith("gptrs-rounding") for name in names)


@pytest.mark.parametrize(("given", "variable", "expected"), [(3, "2", 3), (None, "2", 2)])
def test_weights_are_rounded_by_the_threads_of_the_load(
    monkeypatch: pytest.MonkeyPatch, given: int | None, variable: str, expected: int
) -> None:
    counts: set[int] = set()

    def counted(work, items, threads):
        counts.add(threads)
        return in_threads(work, items, threads)

    monkeypatch.setattr(tensor_rounding, "in_threads", counted)
    monkeypatch.setenv("GPTRS_NUM_THREADS", variable)
    generate(load_model(None, "ref", given, weights="q8"), "a", max_tokens=1)
    assert counts == {expected}
