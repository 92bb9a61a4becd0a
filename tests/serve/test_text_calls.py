"""Texts of several clients are joined while a model is busy, and each gets what it asked for."""

import asyncio
import threading

import pytest

from gptrs.errors import EngineBusyError, UsageError
from gptrs_serve.accounts import Ledger
from gptrs_serve.text_calls import MOST_TEXTS, TextCalls


class Reader:
    """Work that says what it was called with, and waits for `go` in its first call."""

    def __init__(self):
        self.calls = []
        self.go = threading.Event()

    def __call__(self, texts):
        self.calls.append(list(texts))
        assert self.go.wait(120)
        for number, text in enumerate(texts):
            if not text:
                raise UsageError(f"text {number} is empty")
        return [text.upper() for text in texts]


def run(scenario, most_requests=100):
    async def go():
        calls = TextCalls(Ledger(most_requests))
        try:
            return await asyncio.wait_for(scenario(calls), 120)
        finally:
            calls.close()

    return asyncio.run(go())


async def begun(reader):
    while not reader.calls:
        await asyncio.sleep(0.001)


def test_calls_that_wait_are_joined_by_their_key():
    reader = Reader()

    async def scenario(calls):
        first = asyncio.create_task(calls.run("a", ["x"], reader))
        await begun(reader)
        waiting = [
            asyncio.create_task(calls.run(key, texts, reader))
            for key, texts in [("a", ["b", "c"]), ("b", ["d"]), ("a", ["e"])]
        ]
        await asyncio.sleep(0)
        assert calls._ledger.requests == 4
        reader.go.set()
        return [await task for task in (first, *waiting)], calls._ledger.requests

    assert run(scenario) == ([["X"], ["B", "C"], ["D"], ["E"]], 0)
    assert reader.calls == [["x"], ["b", "c", "e"], ["d"]]


def test_an_error_is_told_to_those_alone_who_made_it():
    reader = Reader()

    async def scenario(calls):
        first = asyncio.create_task(calls.run("a", ["x"], reader))
        await begun(reader)
        others = [
            asyncio.create_task(calls.run("a", texts, reader))
            for texts in (["b"], ["c", "d", ""], ["e"])
        ]
        await asyncio.sleep(0)
        reader.go.set()
        return await asyncio.gather(first, *others, return_exceptions=True)

    found = run(scenario)
    assert found[:2] == [["X"], ["B"]]
    assert str(found[2]) == "text 2 is empty"
    assert found[3] == ["E"]


def test_who_went_away_is_not_read():
    reader = Reader()

    async def scenario(calls):
        first = asyncio.create_task(calls.run("a", ["x"], reader))
        await begun(reader)
        gone = asyncio.create_task(calls.run("a", ["gone"], reader))
        stays = asyncio.create_task(calls.run("a", ["stays"], reader))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        reader.go.set()
        return await first, await stays

    assert run(scenario) == (["X"], ["STAYS"])
    assert reader.calls == [["x"], ["stays"]]


def test_many_texts_let_others_in_between_and_keep_their_numbers():
    reader = Reader()
    texts = [f"t{n}" for n in range(2 * MOST_TEXTS + 3)]

    async def scenario(calls):
        many = asyncio.create_task(calls.run("a", texts, reader))
        await begun(reader)
        few = asyncio.create_task(calls.run("b", ["few"], reader))
        await asyncio.sleep(0)
        reader.go.set()
        with pytest.raises(UsageError, match=f"text {2 * MOST_TEXTS} is empty"):
            await calls.run("a", [*texts[: 2 * MOST_TEXTS], ""], reader)
        return await many, await few

    assert run(scenario) == ([text.upper() for text in texts], ["FEW"])
    lengths = [len(call) for call in reader.calls]
    assert lengths.index(1) < len(lengths) - 1
    assert reader.calls[1] == ["few"]


def test_a_call_without_texts_is_an_error_in_any_company():
    def work(texts):
        if not texts:
            raise UsageError("no text")
        return texts

    async def scenario(calls):
        return await asyncio.gather(
            calls.run("a", ["b"], work), calls.run("a", [], work), return_exceptions=True
        )

    found = run(scenario)
    assert found[0] == ["b"]
    assert str(found[1]) == "no text"


def test_beyond_the_most_requests_clients_are_told_to_come_again():
    reader = Reader()

    async def scenario(calls):
        first = asyncio.create_task(calls.run("a", ["x"], reader))
        alone = asyncio.create_task(calls.alone(lambda: 7))
        await begun(reader)
        with pytest.raises(EngineBusyError, match="2 requests"):
            await calls.run("a", ["y"], reader)
        reader.go.set()
        return await first, await alone, await calls.run("a", ["y"], reader)

    assert run(scenario, most_requests=2) == (["X"], 7, ["Y"])


def test_a_fault_of_the_program_reaches_all_who_wait_and_ends_nothing():
    def broken(texts):
        raise ZeroDivisionError

    async def scenario(calls):
        failed = await asyncio.gather(
            *(calls.run("a", ["b"], broken) for _ in range(3)), return_exceptions=True
        )
        return [type(error) for error in failed], await calls.run("a", ["c"], list)

    assert run(scenario) == ([ZeroDivisionError] * 3, ["c"])
