"""`gptrs bench`: measures the speed of a model, and compares it with the limits of the machine."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

from gptrs import __version__
from gptrs.errors import ModelError, UsageError
from gptrs.plugins.references import reference_names, reference_of
from gptrs.quoting import quoted
from gptrs_cli.bench.serving import serve
from gptrs_cli.commands import doctor
from gptrs_cli.generate.options import CacheDtypeOption
from gptrs_cli.imported.inspection import SizeOptions, importer_for, loaded_import
from gptrs_cli.loading import adapter_of, loaded_model
from gptrs_cli.options.declare import option
from gptrs_cli.options.groups import command_options
from gptrs_cli.options.settings import LOAD, AdapterOption, ModelOption, Settings
from gptrs_cli.options.text_input import parse_integers
from gptrs_cli.plain_commands import Application
from gptrs_cli.terminal.failures import Waiting
from gptrs_cli.terminal.json_result import print_result
from gptrs_cli.terminal.streams import note
from gptrs_cli.terminal.tables import print_table
from gptrs_observe.measure.bench import ModelBench, imported_rows
from gptrs_observe.measure.bench_cases import require_room
from gptrs_observe.measure.step_work import MachineLimits, Row, measure_limits
from gptrs_observe.results import Bench
from gptrs_runtime.generation.step_times import cache_dtype as checked_dtype
from gptrs_runtime.imported.batch import named_sizes, random_batch
from gptrs_runtime.imported.scores import LoadedImport
from gptrs_runtime.loaded_model import LoadedModel
from gptrs_runtime.model_inputs import InputChoice, batch_of

# `gptrs bench forward` for imported models.


class Work(Struct, frozen=True):
    """The size of a run, and how many rounds are measured."""

    batch: int
    tokens: int
    rounds: int


def measured_import(
    path: Path, importer: str, work: Work, sizes: SizeOptions, settings: Settings
) -> tuple[LoadedImport, MachineLimits, list[Row]]:
    """Measure a model on random inputs; return the model, the machine limits and the figures."""
    given = named_sizes(sizes.symbols)
    with Waiting(f"reading `{path}`") as waiting:
        loaded = loaded_import(path, importer, settings)
        arrays = random_batch(loaded.model, 0, given, work.batch, work.tokens)
        waiting.now("measuring the machine")
        limits = measure_limits(loaded.backend)
        waiting.now("measuring runs")
        threads = settings.load.threads or limits.threads
        rows = imported_rows(loaded, arrays, work.rounds, limits, threads)
    return loaded, limits, rows


app = Application(
    "Measure a model on a backend, and the limits of the machine.",
    add_completion=False,
)
app.command()(serve)
_RoundsOption = Annotated[
    int, typer.Option("--rounds", metavar="N", min=1, help="Take the median of N rounds.")
]
_GapsOption = Annotated[
    int,
    typer.Option(
        "--gaps", metavar="N", min=0, help="Report the gaps between N tokens of one text."
    ),
]


_ThreadCountsOption = Annotated[
    str | None,
    typer.Option(
        "--thread-counts",
        metavar="1,2,4",
        help="Measure with each of these numbers of threads.",
    ),
]


@app.command()
@command_options(*LOAD)
def generate(
    *,
    model: ModelOption = None,
    prompt_lengths: Annotated[
        str,
        typer.Option("--prompt-lengths", metavar="128,512", help="Prompt lengths in tokens."),
    ] = "128",
    context_length: Annotated[
        int,
        typer.Option(
            "--context", metavar="N", min=1, help="Tokens of context before the generated ones."
        ),
    ] = 128,
    new_tokens: Annotated[
        int, typer.Option("--new-tokens", metavar="N", min=1, help="Tokens to generate.")
    ] = 32,
    new_lengths: Annotated[
        int,
        typer.Option(
            "--new-lengths",
            metavar="N",
            min=0,
            help="Read N prompts of lengths that were not seen before.",
        ),
    ] = 0,
    texts: Annotated[
        str | None,
        typer.Option(
            "--texts", metavar="8,32", help="Also generate these numbers of texts at once."
        ),
    ] = None,
    gaps: _GapsOption = 0,
    rounds: _RoundsOption = 5,
    thread_counts: _ThreadCountsOption = None,
    cache_dtype: CacheDtypeOption = None,
    adapter: AdapterOption = None,
    settings: Settings,
) -> None:
    """Measure loading, compiling, prompts and the generation of text."""
    lengths = parse_integers(prompt_lengths, "--prompt-lengths", "numbers of tokens")
    together = [] if texts is None else parse_integers(texts, "--texts", "numbers of texts")

    def rows(bench: ModelBench) -> list[Row]:
        _require_generation(bench.model)
        found = bench.generation(lengths, context_length, new_tokens)
        for number in together:
            found += bench.decode(context_length, new_tokens, number)
        found += bench.new_lengths(new_lengths) if new_lengths else []
        return found + (bench.gaps(context_length, gaps) if gaps else [])

    _measure_each(model, rounds, settings, rows, adapter, thread_counts, cache_dtype)


@app.command()
@command_options(*LOAD)
def forward(
    *,
    model: ModelOption = None,
    tokens: Annotated[
        int,
        typer.Option("--tokens", metavar="N", min=1, help="Tokens per text."),
    ] = 128,
    batch: Annotated[
        int, typer.Option("--batch", metavar="N", min=1, help="Texts or images per run.")
    ] = 1,
    rounds: _RoundsOption = 5,
    thread_counts: _ThreadCountsOption = None,
    adapter: AdapterOption = None,
    reference: Annotated[
        str | None,
        option(
            "--reference",
            "Also measure this reference of a plugin, such as `torch`, in turns, with as many "
            "threads.",
            metavar="NAME",
            names=reference_names,
        ),
    ] = None,
    sizes: SizeOptions,
    settings: Settings,
) -> None:
    """Measure one run of a model of any kind.

    Language models and embedders get texts, classifiers get images, imported models get the inputs
    of their file; all of them are random.
    """
    importer = importer_for(model, sizes)
    if model is not None and importer is not None:
        if adapter is not None:
            raise UsageError("`--adapter` is for models of gptrs", hint="leave it out")
        if reference is not None:
            raise UsageError("`--reference` is for models of gptrs", hint="leave it out")
        if thread_counts is not None:
            raise UsageError("`--thread-counts` is for models of gptrs", hint="give --threads N")
        measured = measured_import(model, importer, Work(batch, tokens, rounds), sizes, settings)
        imported, limits, found = measured
        named = _Measured(imported.name, imported.backend.name, imported.precision, UNSET)
        _print(named, limits, found, settings)
        return

    def rows(bench: ModelBench) -> list[Row]:
        if "image_classifier" not in bench.model.capabilities:
            # Image classifiers have no context. For others, this error names the limit, before any
            # run.
            require_room(bench.model.token_reader().context_length, tokens)
        choice = InputChoice(count=batch, length=tokens)
        references = {} if reference is None else dict([reference_of(bench.model, reference)])
        for each in references.values():
            if bench.threads:
                each.use_threads(bench.threads)
        return bench.forward(batch_of(bench.model, choice).array, references)

    _measure_each(model, rounds, settings, rows, adapter, thread_counts)


def _require_generation(model: LoadedModel) -> None:
    """Raise ModelError for a model that generates no text."""
    if "causal_lm" not in model.capabilities:
        raise ModelError(
            f"{quoted(model.name)} generates no text", hint="`gptrs bench forward` measures it"
        )


def machine_fields(limits: MachineLimits) -> dict[str, object]:
    """Return the machine that a result is from: names, versions, and its measured limits."""
    name, features = doctor.processor()
    return {
        "processor": name,
        "features": features,
        "cores": doctor.cores(),
        "memory": doctor.memory(),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "gptrs": __version__,
        # A result from a busy machine is of little use; readers can only know if it is stated.
        "load_average": os.getloadavg()[0],
        "read_gb_per_s": limits.read_gb_per_s,
        "gflop_per_s": limits.gflop_per_s,
        "limits_measured_by": limits.measured_by,
        "threads": limits.threads,
    }


def _measure_each(
    path: Path | None,
    rounds: int,
    settings: Settings,
    rows_of: Callable[[ModelBench], list[Row]],
    adapter: Path | None,
    thread_counts: str | None,
    cache_dtype: str | None = None,
) -> None:
    """Measure with the threads of the settings, or with each number; print one table."""
    counts: list[int | None] = [settings.load.threads]
    if thread_counts is not None:
        if settings.load.threads is not None:
            raise UsageError("`--threads` and `--thread-counts` exclude each other")
        counts = [*parse_integers(thread_counts, "--thread-counts", "numbers of threads")]
        if 0 in counts:
            raise UsageError("`--thread-counts` needs numbers of threads, got 0")
    found: list[tuple[_Measured, MachineLimits, list[Row]]] = []
    for count in counts:
        # A model is compiled and packed for its threads, so it is loaded for each number.
        settings.load = replace(settings.load, threads=count)
        found.append(_measure(path, rounds, settings, rows_of, adapter, cache_dtype))
    measured, limits, _ = found[-1]
    _print(measured, limits, [row for *_, rows in found for row in rows], settings)


def _measure(
    path: Path | None,
    rounds: int,
    settings: Settings,
    rows_of: Callable[[ModelBench], list[Row]],
    adapter: Path | None,
    cache_dtype: str | None = None,
) -> tuple[_Measured, MachineLimits, list[Row]]:
    # Before the model is loaded, which may take minutes.
    checked_dtype(cache_dtype)
    with Waiting("loading the model") as waiting:
        model = loaded_model(path, settings, adapter)
        waiting.now("measuring the machine")
        # Measured on the backend of the model, in this process: the limits then hold for the same
        # number of threads and the same load of the machine as the figures beside them.
        limits = measure_limits(model.backend)
        threads = settings.load.threads or limits.threads
        bench = ModelBench(
            model,
            threads,
            rounds,
            limits,
            step=lambda name: waiting.now(f"measuring {name}"),
            cache_dtype=cache_dtype,
        )
        rows = rows_of(bench)
    measured = _Measured(model.name, model.backend.name, model.precision, adapter_of(model))
    return measured, limits, rows


class _Measured(Struct, frozen=True):
    """A measured model, and the folder of its adapter."""

    name: str
    backend: str
    precision: str
    adapter: str | UnsetType


def _print(
    measured: _Measured, limits: MachineLimits, rows: Sequence[Row], settings: Settings
) -> None:
    threads = settings.load.threads or limits.threads
    if settings.json:
        result = Bench(
            machine=machine_fields(limits),
            model=measured.name,
            backend=measured.backend,
            precision=measured.precision,
            adapter=measured.adapter,
            rows=list(rows),
        )
        return print_result(result)
    columns = ["work", "figure", "GB/s", "GFLOP/s", "of limit", "beside"]
    several = len({row.threads for row in rows}) > 1
    cells = [[*([str(row.threads)] if several else []), *_cells(row)] for row in rows]
    print_table([*(["threads"] if several else []), *columns], cells)
    note(
        f"{measured.name} on {measured.backend} in {measured.precision},"
        f" {threads or 'its own number of'} threads; with them, the machine reads"
        f" {limits.read_gb_per_s:.1f} GB/s and computes"
        f" {limits.gflop_per_s:.0f} GFLOP/s (by {limits.measured_by}), load"
        f" {os.getloadavg()[0]:.1f}"
    )


def _cells(row: Row) -> list[str]:
    figure = f"{row.ours:.4g} {row.unit}"
    rates = (row.gb_per_s, row.gflop_per_s)
    share = "" if row.share_of_limit is None else f"{row.share_of_limit:.0%}"
    shown = ["" if rate is None else f"{rate:.1f}" for rate in rates]
    beside = "" if row.peer is None else f"{row.ratio:.2f}x {row.peer_name}, {row.peer:.4g}"
    return [row.work, figure, *shown, share, beside]
