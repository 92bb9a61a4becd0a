"""Load a server at random, some of it hostile: answers must be right, and nothing may be left."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn

import gptrs
from gptrs_observe.measure.http_stream import HttpAnswer
from gptrs_runtime.serving.engine import Engine
from gptrs_serve.app import Access, new_app
from gptrs_serve.connections import http_protocol
from gptrs_serve.residence import Residence
from gptrs_serve.served import Served
from soak import MAY_GROW, State, state

CLIENTS = 12
WARM = 0.3
"""The part of the time after which nothing may grow."""
PROMPTS = ("def add(a, b):\n", "import os\n\n", "class Stack:\n    def", "x = [", "# a list of")
ROUTES = ("/v1/completions", "/v1/chat/completions", "/tokenize", "/v1/nothing", "/metrics")


@dataclass
class Counts:
    """What was asked, and what was wrong."""

    done: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list)


class Expected:
    """The texts of requests as the library gives them, each asked for once."""

    def __init__(self, model: gptrs.LoadedModel) -> None:
        self._model = model
        self._known: dict[str, str] = {}

    def text(self, body: Mapping[str, object]) -> str:
        """Return the text for a completion."""
        key = json.dumps(body, sort_keys=True)
        if key not in self._known:
            fields: dict[str, Any] = {
                name: body[name] for name in ("max_tokens", "temperature", "seed")
            }
            made = gptrs.generate(self._model, str(body["prompt"]), **fields)
            self._known[key] = made.text
        return self._known[key]


@contextmanager
def served(model: gptrs.LoadedModel) -> Generator[tuple[int, Engine]]:
    """Serve a model on a free port, in a thread; yield the port and the engine."""
    engine = Engine({"soak": model}, most_running=8)
    held = Served({"soak": model}, engine, 200)
    held.residence = Residence(held, gptrs.load_model, drain_seconds=5)
    app = new_app(held, Access())
    config = uvicorn.Config(app, port=0, log_level="critical", ws="none", http=http_protocol())
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        yield server.servers[0].sockets[0].getsockname()[1], engine
    finally:
        server.should_exit = True
        thread.join()


def completion(dice: random.Random) -> dict[str, object]:
    """Return one of a few hundred requests whose text is known."""
    return {
        "prompt": dice.choice(PROMPTS),
        "max_tokens": dice.choice((1, 4, 16)),
        "temperature": dice.choice((0, 1)),
        "seed": dice.randrange(8),
    }


def request(path: str, body: bytes, *more: str) -> bytes:
    """Return an HTTP request."""
    lines = (f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json",
             "Connection: close", f"Content-Length: {len(body)}", *more)  # fmt: skip
    return "\r\n".join([*lines, "", ""]).encode() + body


def events_of(told: bytes) -> list[bytes]:
    """Return the data of the events in an answer; none of what no blank line ends."""
    answer = HttpAnswer()
    *whole, rest = answer.feed(told).split(b"\n\n")
    if rest or not answer.complete:
        return []
    return [event.removeprefix(b"data: ") for event in whole]


async def exchange(port: int, data: bytes) -> bytes:
    """Return the whole answer to a request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        return await asyncio.wait_for(reader.read(), 60)
    finally:
        writer.close()


class Clients:
    """What clients do: each is one request, of one kind."""

    def __init__(self, port: int, expected: Expected, counts: Counts, dice: random.Random) -> None:
        self._port, self._expected, self._counts, self._dice = port, expected, counts, dice
        self.kinds: Mapping[str, Callable[[], Awaitable[None]]] = {
            "right": self.right,
            "stream": self.stream,
            "gone": self.gone,
            "garbage": self.garbage,
            "mutated": self.mutated,
            "many": self.many,
            "form": self.form,
            "scored": self.scored,
            "changed": self.changed,
        }
        self.change = asyncio.Lock()

    async def right(self) -> None:
        """Ask for a text, which must be the known one."""
        body = completion(self._dice)
        told = await exchange(self._port, request(ROUTES[0], json.dumps(body).encode()))
        answer = json.loads(told.partition(b"\r\n\r\n")[2])
        found = answer["choices"][0]["text"] if "choices" in answer else str(answer)
        self._compare(body, found)

    async def stream(self) -> None:
        """Ask for a text in pieces."""
        body = completion(self._dice)
        data = json.dumps({**body, "stream": True}).encode()
        told = await exchange(self._port, request(ROUTES[0], data))
        events = events_of(told)
        if not events or events[-1] != b"[DONE]":
            self._counts.wrong.append(f"a stream without an end: {told[-200:]!r}")
        else:
            found = [json.loads(event)["choices"][0]["text"] for event in events[:-1]]
            self._compare(body, "".join(found))

    async def gone(self) -> None:
        """Go away at a random moment, whatever the server does at the time."""
        body = {**completion(self._dice), "max_tokens": 200, "ignore_eos": True,
                "stream": self._dice.random() < 0.5}  # fmt: skip
        _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        data = request(ROUTES[0], json.dumps(body).encode())
        writer.write(data[: self._dice.choice((len(data), len(data), 40))])
        await asyncio.sleep(self._dice.random() ** 3 / 5)
        if self._dice.random() < 0.5:
            writer.transport.abort()
        writer.close()

    async def garbage(self) -> None:
        """Send bytes that are no request."""
        data = self._dice.randbytes(self._dice.randrange(1, 300))
        if self._dice.random() < 0.5:
            data = b"GET / HTTP/1.1\r\nX: " + b"a" * self._dice.randrange(100_000)
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            writer.write(data)
            await asyncio.wait_for(reader.read(200), 0.2)
        except (TimeoutError, OSError):
            pass
        finally:
            writer.close()

    async def mutated(self) -> None:
        """Send a body with a byte changed, which is answered, or refused in OpenAI's form."""
        body = bytearray(json.dumps(completion(self._dice)).encode())
        body[self._dice.randrange(len(body))] = self._dice.randrange(256)
        told = await exchange(self._port, request(self._dice.choice(ROUTES), bytes(body)))
        status = told.split(b" ", 2)[1] if told else b""
        if status not in (b"200", b"400", b"404", b"405"):
            self._counts.wrong.append(f"{bytes(body)!r}: {told[:200]!r}")

    async def many(self) -> None:
        """Ask for several answers, of which the first is the known one."""
        body = completion(self._dice)
        answer = await self._answer({**body, "n": self._dice.choice((2, 9, 24)), "logprobs": 3})
        self._compare(body, answer["choices"][0]["text"])

    async def form(self) -> None:
        """Ask for a text of a form, which it must have."""
        pattern = self._dice.choice((r"[a-c]{2,9};", r"(yes|no)!", r"\d{1,4}(\.\d)?x"))
        asked = {**completion(self._dice), "regex": pattern, "max_tokens": 60}
        (choice,) = (await self._answer(asked))["choices"]
        if choice["finish_reason"] == "stop" and not re.fullmatch(pattern, choice["text"]):
            self._counts.wrong.append(f"{pattern}: {choice['text']!r}")

    async def scored(self) -> None:
        """Ask for the scores of a prompt and an answer: as many as there are tokens."""
        asked = {**completion(self._dice), "echo": True, "logprobs": 2}
        answer = await self._answer(asked)
        scores = answer["choices"][0]["logprobs"]["token_logprobs"]
        if len(scores) != answer["usage"]["total_tokens"]:
            self._counts.wrong.append(f"{len(scores)} scores: {answer['usage']}")

    async def changed(self) -> None:
        """Load a second model, ask it while others ask the first, and unload it again."""
        async with self.change:
            await self._answer({"model": "more=demo"}, "/models/load")
            body = completion(self._dice)
            answer = await self._answer({**body, "model": "more"})
            await self._answer({"model": "more"}, "/models/unload")
        self._compare(body, answer["choices"][0]["text"])

    async def _answer(self, body: Mapping[str, object], path: str = ROUTES[0]) -> dict[str, Any]:
        told = await exchange(self._port, request(path, json.dumps(body).encode()))
        answer = json.loads(told.partition(b"\r\n\r\n")[2])
        if "error" in answer:
            raise ValueError(f"{body}: {answer}")
        return answer

    def _compare(self, body: Mapping[str, object], found: str) -> None:
        expected = self._expected.text(body)
        if found != expected:
            self._counts.wrong.append(f"{body}: {found!r} is not {expected!r}")


async def load(clients: Clients, counts: Counts, dice: random.Random,
               more: Callable[[], bool]) -> None:  # fmt: skip
    """Have several clients ask for one thing after the other while there is `more` to do."""
    clients.change = asyncio.Lock()  # of this event loop

    async def work() -> None:
        while more():
            kind = dice.choice(list(clients.kinds))
            try:
                await clients.kinds[kind]()
            except Exception as error:
                counts.wrong.append(f"{kind}: {type(error).__name__}: {error}")
            counts.done[kind] += 1

    await asyncio.gather(*(work() for _ in range(CLIENTS)))


def left_over(engine: Engine) -> str | None:
    """Return what an engine still holds once all clients have gone, None if nothing."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        now = engine.state()
        if not (now.requests or now.running or now.waiting or now.pages_held):
            return None
        time.sleep(0.05)
    return str(engine.state())


def tell(counts: Counts, engine: Engine, started: float, gap: float) -> Callable[[], None]:
    """Print every `gap` seconds what was done so far, until the function that it returns is called.

    A run that is ended before its time has told that much.
    """
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(gap):
            told = f"{time.monotonic() - started:.0f} s: {sum(counts.done.values())} requests"
            print(f"{told}, {len(counts.wrong)} wrong, {state()}, {engine.state()}", flush=True)

    thread = threading.Thread(target=work)
    thread.start()

    def end() -> None:
        ended.set()
        thread.join()

    return end


def run(seconds: float, disconnects: int, seed: int, gap: float) -> int:
    """Load a server for so long, or until so many clients have gone; return the exit code."""
    dice, counts = random.Random(seed), Counts()
    model = gptrs.load_model("demo")
    expected = Expected(model)
    started, before = time.monotonic(), None
    with served(model) as (port, engine):
        clients = Clients(port, expected, counts, dice)

        def part(share: float) -> Callable[[], bool]:
            end = started + seconds * share
            gone = disconnects * share
            return lambda: time.monotonic() < end or counts.done["gone"] < gone

        now = state()
        for share in (WARM, 1.0):
            end = tell(counts, engine, started, gap)
            try:
                asyncio.run(load(clients, counts, dice, part(share)))
            finally:
                end()
            problem = left_over(engine)
            if problem:
                counts.wrong.append(f"left: {problem}")
            gc.collect()
            now = state()
            before = before or now
    assert before is not None, "it was warm at some time"
    return report(counts, before, now, time.monotonic() - started)


def report(counts: Counts, before: State, now: State, seconds: float) -> int:
    """Print what was done, what was wrong, and what grew; return the exit code."""
    pairs = zip(vars(now).items(), vars(before).values(), vars(MAY_GROW).values(), strict=True)
    grown = [name for (name, have), had, most in pairs if have - had > most]
    for problem in counts.wrong[:20]:
        print(f"WRONG {problem}")
    asked = ", ".join(f"{count} {kind}" for kind, count in sorted(counts.done.items()))
    print(
        f"{sum(counts.done.values())} requests in {seconds:.0f} s ({asked}): {len(counts.wrong)}"
        f" wrong; from {before} to {now}; {'grew: ' + ', '.join(grown) if grown else 'flat'}"
    )
    return int(bool(counts.wrong or grown))


def main(arguments: Sequence[str] | None = None) -> int:
    """Do as `arguments` say; 1 if something was wrong, lost or left."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1800)
    parser.add_argument("--disconnects", type=int, default=1000, help="at least so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--tell", type=float, default=60, help="print counts every so many seconds")
    options = parser.parse_args(arguments)
    return run(options.seconds, options.disconnects, options.seed, options.tell)


if __name__ == "__main__":
    sys.exit(main())
