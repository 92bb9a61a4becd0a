"""`gptrs bench forward` of a model that an importer reads."""

from __future__ import annotations

from pathlib import Path

from gptrs.quick_dataclass import dataclass
from gptrs_cli.imported.options import SizeOptions, loaded_import
from gptrs_cli.options.settings import Settings
from gptrs_cli.terminal.waiting import Waiting
from gptrs_observe.measure.imported_bench import imported_rows
from gptrs_observe.measure.machine_limits import MachineLimits, measure_limits
from gptrs_observe.measure.rows import Row
from gptrs_runtime.imported.batch import random_batch
from gptrs_runtime.imported.loaded_import import LoadedImport
from gptrs_runtime.imported.sizes import named_sizes


@dataclass(frozen=True)
class Work:
    """How much one run does, and how often it is measured."""

    batch: int
    tokens: int
    rounds: int


def measured_import(
    path: Path, importer: str, work: Work, sizes: SizeOptions, settings: Settings
) -> tuple[LoadedImport, MachineLimits, list[Row]]:
    """Measure a model on made-up inputs; return it, what the machine can do, and the figures."""
    given = named_sizes(sizes.symbols)
    with Waiting(f"reading `{path}`") as waiting:
        loaded = loaded_import(path, importer, settings)
        arrays = random_batch(loaded.model, 0, given, work.batch, work.tokens)
        waiting.now("measuring the machine")
        limits = measure_limits(loaded.backend)
        waiting.now("measuring runs")
        threads = settings.threads or limits.threads
        rows = imported_rows(loaded, arrays, work.rounds, limits, threads)
    return loaded, limits, rows
