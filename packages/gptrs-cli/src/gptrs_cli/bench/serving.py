"""`gptrs bench serve`: compares the engine in this process with a server under the same load."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer
from msgspec import Struct

from gptrs.errors import ExecutionError, UsageError
from gptrs.quoting import clipped, counted, quoted
from gptrs_cli.generate.options import CacheDtypeOption
from gptrs_cli.loading import loaded_model
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import LOAD, ModelOption, Settings
from gptrs_cli.options.text_input import parse_integers
from gptrs_cli.terminal.failures import Waiting
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.streams import note
from gptrs_cli.terminal.tables import print_table
from gptrs_observe.measure.bench_cases import require_room
from gptrs_observe.measure.http_stream import StreamClient
from gptrs_observe.measure.serving_load import (
    LoadFigures,
    LoadRequest,
    LoadRun,
    engine_client,
    figures,
    later_ms,
    load_requests,
    rate_ratio,
    run_load,
)
from gptrs_observe.results import BenchServe, LoadRatio
from gptrs_runtime.generation.step_times import cache_dtype as checked_dtype
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.serving.engine import MOST_RUNNING, Engine

# A server that is started for the measurement alone.


@contextmanager
def server(model: Path | None, options: Sequence[str]) -> Generator[str]:
    """Start `gptrs serve` on a free local port, yield its address, and stop it afterwards.

    Raises ExecutionError with the output of the server if it does not start.
    """
    named = "demo" if model is None else str(model)
    # A process of its own: in this one, client and server would share Python's lock, and the
    # figures would be of both. Port 0 takes a free one, so that benchmarks may run side by side.
    command = [sys.executable, "-m", "gptrs_cli", "serve", f"bench={named}", "--port", "0"]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            address = _address(process)
            # Until it ends: a server whose log fills the pipe would block, and so would the run.
            drain = threading.Thread(target=process.stderr.read, daemon=True)
            drain.start()
            try:
                yield address
            finally:
                process.terminate()
                drain.join()
        finally:
            process.terminate()
            process.wait()


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    # The first line comes once the models are loaded and the port is bound; at the end of the
    # stream it is empty.
    line = process.stderr.readline()
    address = line.split()[-1] if line.startswith("serving ") else ""
    if address:
        return address
    told = clipped((line + process.stderr.read()).strip(), 400)
    raise ExecutionError(f"`gptrs serve` does not start: {told}", hint="is gptrs-serve installed?")


ENGINE, SERVER = "engine", "http"
_KEY: Final = "GPTRS_SERVE_API_KEY"

_FEWEST_REQUESTS: Final = 8
"""Least requests of a run: with fewer, the draw of lengths and a moment's load would decide."""

Runs = dict[tuple[int, str], list[LoadRun]]
"""Results by (number of streams, engine or HTTP)."""

_RoundsOption = Annotated[
    int, typer.Option("--rounds", metavar="N", min=1, help="Take the median of N rounds.")
]


class Load(Struct, frozen=True):
    """The load of a measurement: the numbers of streams, and at least `each` requests a stream."""

    streams: Sequence[int]
    each: int
    prompt_tokens: int
    new_tokens: int
    cache_dtype: str | None = None

    def requests(self, streams: int, vocab_size: int, seed: int) -> list[LoadRequest]:
        """Return the requests of one run, the same for the same seed.

        Each number of streams has requests of its own: the engine would have cached repeated
        prompts.
        """
        count = max(streams * self.each, _FEWEST_REQUESTS)
        return load_requests(
            count, vocab_size, self.prompt_tokens, self.new_tokens, (seed, streams)
        )


@command_options(*LOAD)
def serve(
    *,
    model: ModelOption = None,
    streams: Annotated[
        str, typer.Option("--streams", metavar="1,16", help="Numbers of concurrent streams.")
    ] = "1,4,16,64",
    requests: Annotated[
        int,
        typer.Option("--requests", metavar="N", min=1, help="Least requests per stream."),
    ] = 2,
    prompt_tokens: Annotated[
        int,
        typer.Option("--prompt-tokens", metavar="N", min=1, help="Mean length of prompts."),
    ] = 32,
    new_tokens: Annotated[
        int, typer.Option("--new-tokens", metavar="N", min=2, help="Mean text length in tokens.")
    ] = 32,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help="Measure this server instead of starting one."),
    ] = None,
    rounds: _RoundsOption = 5,
    cache_dtype: CacheDtypeOption = None,
    settings: Settings,
) -> None:
    """Measure concurrent texts, alternating between the engine in this process and a server.

    Prompts are random; lengths vary between 0.5 and 1.5 times the mean. A round measures every
    number of streams, the engine and the server right after each other.
    """
    load = Load(parse_integers(streams, "--streams", "numbers of streams"), requests,
                prompt_tokens, new_tokens, cache_dtype)  # fmt: skip
    checked_dtype(cache_dtype)
    with Waiting("loading the model") as waiting:
        loaded = loaded_model(model, settings)
        # Lengths go up to 1.5 times the mean; twice the mean leaves room.
        most = 2 * (prompt_tokens + new_tokens)
        require_room(loaded.causal_lm().context_length, most)
        if not loaded.has_tokenizer:
            raise UsageError(
                f"{quoted(loaded.name)} has no tokenizer: a token counts when its text arrives",
                hint="put its tokenizer.json into the folder",
            )
        if url is not None:
            runs = asyncio.run(_measured(loaded, load, url, rounds, waiting.now))
        else:
            waiting.now("starting the server")
            with server(model, _server_options(settings, load)) as address:
                runs = asyncio.run(_measured(loaded, load, address, rounds, waiting.now))
    _print(loaded, load, runs, settings)


def _server_options(settings: Settings, load: Load) -> list[str]:
    # As the engine beside it, so that only HTTP differs. The limit of output is out of the way.
    options = ["--most-running", str(_most_running(load)), "--most-output", "100000"]
    if load.cache_dtype is not None:
        options += ["--cache-dtype", load.cache_dtype]
    return [*options, *settings.load.command_line()]


def _most_running(load: Load) -> int:
    return max(MOST_RUNNING, *load.streams)


async def _measured(
    model: LoadedModel, load: Load, url: str, rounds: int, tell: Callable[[str], None]
) -> Runs:
    """Return all runs. Rounds alternate the order of the streams, and of the two sides."""
    most = _most_running(load)
    runs: Runs = {(count, over): [] for count in load.streams for over in (ENGINE, SERVER)}
    # One connection a stream, kept open: opening them is not what is measured.
    servers = [StreamClient(url, key=os.environ.get(_KEY)) for _ in range(max(load.streams))]
    with Engine(
        model,
        most_running=most,
        token_budget=max(256, 2 * most),
        cache_dtype=load.cache_dtype,
    ) as engine:
        asking = {ENGINE: [engine_client(engine)] * most, SERVER: [each.ask for each in servers]}
        for number in range(-1, rounds):  # the first round compiles, and is not counted
            # The server first: whether it answers is known before the engine has compiled.
            # Every other round goes backwards, so that a machine that slows down or warms up does
            # not favor one side.
            for count, over in list(runs)[:: -1 if number % 2 else 1]:
                tell(f"measuring {counted(count, 'stream')}, round {max(0, number) + 1}")
                # The seed changes with the round: repeated prompts would come from the cache of
                # prefixes.
                asked = load.requests(count, model.causal_lm().vocab_size, number + 1)
                run = await run_load(asked, asking[over][:count])
                if number >= 0:
                    runs[count, over].append(run)
    for client in servers:
        client.close()
    return runs


def _print(model: LoadedModel, load: Load, runs: Runs, settings: Settings) -> None:
    found = [figures(over, count, each) for (count, over), each in runs.items()]
    rounds = len(next(iter(runs.values())))
    if settings.json:
        result = BenchServe(
            model=model.name,
            backend=model.backend.name,
            precision=model.precision,
            rounds=rounds,
            prompt_tokens=load.prompt_tokens,
            new_tokens=load.new_tokens,
            rows=found,
            ratios=_ratios(runs),
        )
        return print_result(result)
    columns = ["streams", "over", "requests", "req/s", "tok/s", "middle half", "first token ms"]
    print_table([*columns, "99 %", "gap ms", "99 %"], [_cells(each) for each in found])
    note(
        f"medians of {counted(rounds, 'round')}, engine and HTTP in turn; prompts of"
        f" {counted(load.prompt_tokens, 'token')} and texts of {load.new_tokens} on average"
    )
    for ratio in _ratios(runs):
        note(_line(ratio))


def _line(ratio: LoadRatio) -> str:
    more, share, later = ratio.of_fewest, ratio.of_engine, ratio.later_ms
    return (
        f"{counted(ratio.streams, 'stream')}: {more.median:.2f}x ({more.low:.2f} to"
        f" {more.high:.2f}) of the fewest; HTTP {share.median:.1%} ({share.low:.1%} to"
        f" {share.high:.1%}) of the engine's tok/s, first tokens {later.median:+.1f} ms"
        f" ({later.low:+.1f} to {later.high:+.1f})"
    )


def _ratios(runs: Runs) -> list[LoadRatio]:
    counts = list(dict.fromkeys(count for count, _ in runs))
    fewest = runs[min(counts), ENGINE]
    return [
        LoadRatio(
            count,
            rate_ratio(runs[count, ENGINE], fewest),
            rate_ratio(runs[count, SERVER], runs[count, ENGINE]),
            later_ms(runs[count, SERVER], runs[count, ENGINE]),
        )
        for count in counts
    ]


def _cells(each: LoadFigures) -> list[str]:
    times = (each.first_token_ms, each.first_token_ms_99, each.gap_ms, each.gap_ms_99)
    half = f"{each.tokens_per_s_25:.1f} to {each.tokens_per_s_75:.1f}"
    rates = [f"{each.requests_per_s:.2f}", f"{each.tokens_per_s:.1f}", half]
    return [str(each.streams), each.over, str(each.requests), *rates, *(f"{t:.1f}" for t in times)]
