"""Runs over a file of rows: workers process slices, and their results are joined into one file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, cast

import ray
from ray.data import ActorPoolStrategy, Dataset

from gptrs.api import UsageError
from gptrs.progress import Progress
from gptrs_ray.cluster import MOST_CPUS, InputRowsError, joined, room_for
from gptrs_ray.pool import Pool, Slice
from gptrs_ray.records import Parts, count_rows, digest_of, format_of, slices
from gptrs_ray.tasks import ERROR, task_named
from gptrs_ray.worker import BatchWorker, WorkerSettings

ROWS: Final = 256
"""Rows of a slice: the work that is repeated when a worker is lost."""


@dataclass(frozen=True)
class BatchResult:
    """The result of a run: all rows, rows done by earlier runs, and bad rows that were skipped.

    `lost` workers ended early, and others repeated their rows.
    """

    rows: int
    before: int
    bad: int
    lost: int
    workers: int
    cpus: int


def run_batch(
    source: Path,
    out: Path,
    settings: WorkerSettings,
    *,
    address: str | None = None,
    workers: int | None = None,
    cpus: int | None = None,
    rows: int = ROWS,
    progress: Progress = lambda done, total: None,
) -> BatchResult:
    """Run a model over the rows of `source`, and write them with their results to `out`.

    Both are .jsonl or .parquet. Results keep the order of the rows. An interrupted run continues if
    it is called again with the same arguments. Raises UsageError for invalid arguments,
    InputRowsError, OutputRowsError, ClusterError, and RemoteError with the error of a worker.
    """
    if rows < 1:
        raise UsageError(f"a slice has at least 1 row, got {rows}")
    format_of(source)
    format_of(out)
    if source.resolve() == out.resolve():
        raise UsageError("the results would replace the rows", hint="name another file")
    task = task_named(settings.task)
    task.require_options(settings.options)
    total = count_rows(source)
    if not total:
        raise InputRowsError(f"`{source}` has no rows")
    run = {"input": digest_of(source), "rows": rows, **_of_results(settings)}
    bad = 0
    with Parts(out, run) as parts, joined(address):
        before = sum(min(rows, total - number * rows) for number in parts.done)
        done = before
        room = room_for(workers, cpus)
        lost = 0
        if done < total:
            with Pool(replace(settings, threads=settings.threads or room.cpus), room) as pool:
                parts.require_model(pool.identity())
                progress(done, total)
                todo = (each for each in _slices(source, rows) if each.number not in parts.done)
                for part, results in pool.run(todo):
                    parts.write(part.number, results)
                    bad += sum(row.get(ERROR) is not None for row in results)
                    done += len(results)
                    progress(done, total)
                lost = pool.lost
        parts.publish(-(-total // rows))
    return BatchResult(total, before, bad, lost, room.workers, room.cpus)


def _slices(source: Path, rows: int) -> Iterator[Slice]:
    for number, part in enumerate(slices(source, rows)):
        yield Slice(number, number * rows + 1, part)


def _of_results(settings: WorkerSettings) -> dict[str, object]:
    """Return the settings that affect results (threads do not)."""
    fields = asdict(settings)
    del fields["threads"]
    return fields


# A model over a dataset of Ray Data.


def map_batches(
    dataset: Dataset,
    model: str | None,
    task: str = "generate",
    *,
    column: str | None = None,
    workers: int | tuple[int, int] = 1,
    cpus: int = MOST_CPUS,
    batch_size: int = 64,
    skip_bad: bool = False,
    backend: str | None = None,
    weights: str | None = None,
    precision: str | None = None,
    **options: Any,
) -> Dataset:
    """Return `dataset` with columns that `model` adds: `generate`, `embed` or `forward` each row.

    `column` is the input column: a text, tokens or messages for `generate` (default: `prompt`,
    `prompt_ids` or `messages`), a text for `embed` (default: `text`), numbers for `forward`
    (default: `input`). Result columns are `generated`, `generated_token_ids` and `finish_reason`;
    `embedding`; `output`. `workers` is the number of actors, or a range; each has `cpus` CPUs and
    as many threads, and actors of a host share the weights in memory. `options` are those of
    `gptrs.generate` or `gptrs.embed`. With `skip_bad`, a row that cannot be run has nulls, and the
    reason in `error`.

    As always in Ray Data, nothing runs before the dataset is read. Raises UsageError for unknown
    tasks and options; other errors are raised when it runs.
    """
    task_named(task).require_options(options)
    settings = WorkerSettings(
        model=model,
        task=task,
        column=column,
        options=options,
        skip_bad=skip_bad,
        backend=backend,
        threads=cpus,
        weights=weights,
        precision=precision,
    )
    least, most = (workers, workers) if isinstance(workers, int) else workers
    found = cast("Any", dataset).map_batches(
        BatchWorker,
        fn_constructor_args=(settings,),
        batch_size=batch_size,
        batch_format="numpy",
        num_cpus=cpus,
        compute=ActorPoolStrategy(min_size=least, max_size=most),
    )
    return cast("ray.data.Dataset", found)
