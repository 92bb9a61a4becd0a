"""`gptrs bench serve`: the engine in this process and a server, under the same load."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Annotated, Final

import typer

from gptrs.errors import UsageError
from gptrs.quick_dataclass import dataclass
from gptrs.quoting import counted, quoted
from gptrs.runtime.generation.cache_budget import cache_dtype as checked_dtype
from gptrs.runtime.loaded_model import LoadedModel
from gptrs.runtime.measure.bench_cases import require_room
from gptrs.runtime.measure.http_stream import StreamClient
from gptrs.runtime.measure.serving_load import (
    LoadFigures,
    LoadRequest,
    TextTimes,
    engine_client,
    figures,
    load_requests,
    run_load,
)
from gptrs.runtime.serving.engine import MOST_RUNNING, Engine
from gptrs_cli.bench.server_process import server
from gptrs_cli.loading import loaded_model
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.inputs import parse_integers
from gptrs_cli.options.model import CacheDtypeOption, ModelOption
from gptrs_cli.options.settings import LOAD, Settings
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.stderr import note
from gptrs_cli.terminal.tables import print_table
from gptrs_cli.terminal.waiting import Waiting

ENGINE, SERVER = "engine", "http"
_KEY: Final = "GPTRS_SERVE_API_KEY"

Runs = dict[tuple[str, int], list[tuple[float, list[TextTimes]]]]

_RoundsOption = Annotated[
    int, typer.Option("--rounds", metavar="N", min=1, help="Take the median of N rounds.")
]


@dataclass(frozen=True)
class Load:
    """The requests of a measurement: of so many streams each, `each` a stream."""

    streams: Sequence[int]
    each: int
    prompt_tokens: int
    new_tokens: int
    cache_dtype: str | None = None

    def requests(self, streams: int, vocab_size: int, seed: int) -> list[LoadRequest]:
        """Return the requests of one run, the same for the same seed."""
        count = streams * self.each
        return load_requests(count, vocab_size, self.prompt_tokens, self.new_tokens, seed)


@command_options(*LOAD)
def serve(
    *,
    model: ModelOption = None,
    streams: Annotated[
        str, typer.Option("--streams", metavar="1,16", help="So many streams at once.")
    ] = "1,4,16,64",
    requests: Annotated[
        int, typer.Option("--requests", metavar="N", min=1, help="Requests of each stream.")
    ] = 2,
    prompt_tokens: Annotated[
        int, typer.Option("--prompt-tokens", metavar="N", min=1, help="Mean length of prompts.")
    ] = 32,
    new_tokens: Annotated[
        int, typer.Option("--new-tokens", metavar="N", min=2, help="Mean length of texts.")
    ] = 32,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help="Measure the server there, not one of its own."),
    ] = None,
    rounds: _RoundsOption = 3,
    cache_dtype: CacheDtypeOption = None,
    settings: Settings,
) -> None:
    """Measure streams of texts, from the engine in this process and from a server in turn.

    Requests have random prompts; lengths are between half and one and a half of the mean.
    """
    load = Load(parse_integers(streams, "--streams", "numbers of streams"), requests,
                prompt_tokens, new_tokens, cache_dtype)  # fmt: skip
    checked_dtype(cache_dtype)
    with Waiting("loading the model") as waiting:
        loaded = loaded_model(model, settings)
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
    found = [figures(over, count, each) for (over, count), each in runs.items()]
    _print(loaded, found, settings)


def _server_options(settings: Settings, load: Load) -> list[str]:
    options = ["--most-running", str(_most_running(load)), "--most-output", "100000"]
    stated = {
        "--backend": settings.backend,
        "--threads": settings.threads,
        "--device": settings.device,
        "--mesh": settings.mesh,
        "--cache-dtype": load.cache_dtype,
        "--weight-budget": settings.weight_budget,
        "--weights": settings.weights and settings.weights.value,
        "--precision": settings.precision and settings.precision.value,
    }
    for name, value in stated.items():
        if value is not None:
            options += [name, str(value)]
    for option in settings.backend_options:
        options += ["--backend-option", option]
    return options


def _most_running(load: Load) -> int:
    return max(MOST_RUNNING, *load.streams)


async def _measured(
    model: LoadedModel, load: Load, url: str, rounds: int, tell: Callable[[str], None]
) -> Runs:
    """Return all runs: of each number of streams the engine and the server, in turn."""
    most = _most_running(load)
    runs: Runs = {}
    with Engine(
        model,
        most_running=most,
        token_budget=max(256, 2 * most),
        cache_dtype=load.cache_dtype,
    ) as engine:
        for count in load.streams:
            clients = [StreamClient(url, key=os.environ.get(_KEY)) for _ in range(count)]
            asking = {ENGINE: [engine_client(engine)] * count, SERVER: [c.ask for c in clients]}
            for number in range(-1, rounds):  # the first is for what is compiled
                tell(f"measuring {counted(count, 'stream')}, round {max(0, number) + 1}")
                for over, ask in asking.items():
                    asked = load.requests(count, model.causal_lm().vocab_size, number + 1)
                    run = await run_load(asked, ask)
                    if number >= 0:
                        runs.setdefault((over, count), []).append(run)
            for client in clients:
                client.close()
    return runs


def _print(model: LoadedModel, found: Sequence[LoadFigures], settings: Settings) -> None:
    if settings.json:
        fields: dict[str, object] = {"model": model.name, "backend": model.backend.name}
        rows = [each.as_json() for each in found]
        print_result("bench.serve", {**fields, "precision": model.precision, "rows": rows})
        return
    columns = ["streams", "over", "req/s", "tok/s", "first token ms", "99 %", "gap ms", "99 %"]
    print_table(columns, [_cells(each) for each in found])
    for engine, over in zip(found[::2], found[1::2], strict=True):
        share = over.tokens_per_s / engine.tokens_per_s
        later = over.first_token_ms - engine.first_token_ms
        note(
            f"{counted(engine.streams, 'stream')}: HTTP gives {share:.1%} of the engine's tok/s,"
            f" first tokens {later:+.1f} ms"
        )


def _cells(each: LoadFigures) -> list[str]:
    times = (each.first_token_ms, each.first_token_ms_99, each.gap_ms, each.gap_ms_99)
    rates = [f"{each.requests_per_s:.2f}", f"{each.tokens_per_s:.1f}"]
    return [str(each.streams), each.over, *rates, *(f"{value:.1f}" for value in times)]
