"""Runs the measurements of `gptrs bench` and prints them, as a table or as JSON."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path

from gptrs import __version__
from gptrs.runtime.measure.bench import ModelBench, Row
from gptrs.runtime.measure.bench_cases import require_room, tokens_of
from gptrs.runtime.measure.machine_limits import MachineLimits, measure_limits
from gptrs_cli.doctor import machine
from gptrs_cli.model_loading import loaded_model
from gptrs_cli.options.settings import Settings
from gptrs_cli.terminal.stderr import Waiting, note
from gptrs_cli.terminal.tables import print_table


def measure_generation(
    path: Path | None,
    prompt_lengths: Sequence[int],
    context: int,
    new_tokens: int,
    rounds: int,
    settings: Settings,
) -> None:
    """Measure and print `gptrs bench generate`."""

    def rows(bench: ModelBench) -> list[Row]:
        return bench.generation(prompt_lengths, context, new_tokens)

    _measure(path, rounds, settings, rows)


def measure_forward(path: Path | None, tokens: int, rounds: int, settings: Settings) -> None:
    """Measure and print `gptrs bench forward`."""

    def rows(bench: ModelBench) -> list[Row]:
        lm = bench.model.causal_lm()
        require_room(lm.context_length, tokens)
        return bench.forward(tokens_of(tokens, lm.vocab_size))

    _measure(path, rounds, settings, rows)


def machine_fields(limits: MachineLimits) -> dict[str, object]:
    """What a result says of the machine: names, versions, and the limits that were measured."""
    name, features = machine.processor()
    return {
        "processor": name,
        "features": features,
        "cores": machine.cores(),
        "memory": machine.memory(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "gptrs": __version__,
        "load_average": os.getloadavg()[0],
        "read_gb_per_s": limits.read_gb_per_s,
        "gflop_per_s": limits.gflop_per_s,
        "limits_measured_by": limits.measured_by,
        "threads": limits.threads,
    }


def _measure(
    path: Path | None,
    rounds: int,
    settings: Settings,
    rows_of: Callable[[ModelBench], list[Row]],
) -> None:
    with Waiting("loading the model") as waiting:
        model = loaded_model(path, settings)
        waiting.now("measuring the machine")
        limits = measure_limits(model.backend)
        threads = settings.threads or limits.threads
        bench = ModelBench(
            model, threads, rounds, limits, step=lambda name: waiting.now(f"measuring {name}")
        )
        rows = rows_of(bench)
    if settings.json:
        fields = {"model": model.name, "backend": model.backend.name}
        listed = [row.as_json() for row in rows]
        print(json.dumps({"machine": machine_fields(limits), **fields, "rows": listed}, indent=2))
        return
    print_table(["work", "figure", "GB/s", "GFLOP/s", "of limit"], [_cells(row) for row in rows])
    note(
        f"{model.name} on {model.backend.name}, {threads or 'its own number of'} threads; the"
        f" machine reads {limits.read_gb_per_s:.1f} GB/s and computes"
        f" {limits.gflop_per_s:.0f} GFLOP/s (by {limits.measured_by}), load"
        f" {os.getloadavg()[0]:.1f}"
    )


def _cells(row: Row) -> list[str]:
    figure = f"{row.ours:.4g} {row.unit}"
    rates = (row.gb_per_s, row.gflop_per_s)
    share = "" if row.share_of_limit is None else f"{row.share_of_limit:.0%}"
    return [row.work, figure, *("" if rate is None else f"{rate:.1f}" for rate in rates), share]
