"""Runs over a file of rows: workers process slices, and their results are joined into one file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final, cast

import ray
from msgspec import Struct
from msgspec.structs import asdict, replace
from ray.data import ActorPoolStrategy, Dataset

from gptrs.api import GptrsError, UsageError
from gptrs.progress import Progress
from gptrs.quoting import quoted
from gptrs_ray.cluster import InputRowsError, RemoteError, Room, joined, room_beside, room_for
from gptrs_ray.pool import Outcome, Pool, Slice
from gptrs_ray.records import Results, format_of, records
from gptrs_ray.tasks import ERROR, Row, task_named
from gptrs_ray.worker import BatchWorker, Failed, WorkerSettings
from gptrs_runtime.load_options import LoadOptions
from gptrs_runtime.option_fields import option_fields

ROWS: Final = 256
"""Rows per slice, the work that is repeated when a worker is lost."""


class BatchResult(Struct, frozen=True):
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

    Both are .jsonl or .parquet. Results keep the order of the rows. A run that was interrupted, or
    that a bad row has ended, continues if it is called again with the same model, task and options;
    rows may have been edited, and `skip_bad` and `rows` may be others. Raises UsageError for
    invalid arguments, InputRowsError, OutputRowsError, ClusterError, and RemoteError with the error
    of a worker, which names the row.
    """
    if rows < 1:
        raise UsageError(f"a slice has at least 1 row, got {rows}")
    format_of(out)
    if source.resolve() == out.resolve():
        raise UsageError("the results would replace the rows", hint="name another file")
    task = task_named(settings.task)
    task.require_options(settings.options)
    settings.require()
    with Results(out, _of_results(settings)) as results:
        run = _Run(results, settings.skip_bad, progress)
        # Read once before any worker starts: an error in the last row should not come after hours,
        # and the counts are needed for the progress.
        run.look(source)
        room = Room(0, 0)
        if run.done < run.total:
            with joined(address):
                room = room_for(workers, cpus)
                threads = settings.loading.threads or room.cpus
                loading = replace(settings.loading, threads=threads)
                run.work(replace(settings, loading=loading), room, source, rows)
        # The rows are read again instead of kept: a file may be larger than memory.
        results.publish(
            lambda: records(source), task.empty(skip_bad=settings.skip_bad), bad=settings.skip_bad
        )
    return BatchResult(run.total, run.before, run.bad, run.lost, room.workers, room.cpus)


class _Run:
    """The progress of a run: counts of rows, and their results."""

    def __init__(self, results: Results, skip_bad: bool, progress: Progress) -> None:
        self._results = results
        self._skip_bad = skip_bad
        self._progress = progress
        self.total = self.before = self.done = self.bad = self.lost = 0

    def look(self, source: Path) -> None:
        """Count the rows, and those with results; InputRowsError for a line that is not a row."""
        for record in records(source):
            self.total += 1
            if record.problem is not None and not self._skip_bad:
                raise InputRowsError(record.problem, hint="one object a line; or skip bad rows")
            found = self._results.find(record.key, bad=self._skip_bad)
            self.before += found is not None
            self.bad += found is not None and ERROR in found
        if not self.total:
            raise InputRowsError(f"{quoted(str(source), 200)} has no rows")
        self.done = self.before

    def work(self, settings: WorkerSettings, room: Room, source: Path, rows: int) -> None:
        """Have workers run the rows that have no results yet, `rows` in a slice."""
        with Pool(settings, room) as pool:
            self._results.require_model(pool.identity())
            self._progress(self.done, self.total)
            try:
                for part, outcomes in pool.run(self._slices(source, rows)):
                    self._keep(part, outcomes)
            # A bad row ends the run, but slices that other workers have finished by now are paid
            # for.
            except GptrsError:
                for part, outcomes in pool.finished():
                    with suppress(RemoteError):
                        self._keep(part, outcomes)
                raise
            finally:
                self.lost = pool.lost

    def _slices(self, source: Path, rows: int) -> Iterator[Slice]:
        find = self._results.find
        todo = (each for each in records(source) if find(each.key, bad=self._skip_bad) is None)
        while part := list(islice(todo, rows)):
            unread = {each.key: {ERROR: each.problem} for each in part if each.problem is not None}
            self._write(unread)
            if left := [each for each in part if each.problem is None]:
                yield Slice(left)

    def _keep(self, part: Slice, outcomes: Sequence[Outcome]) -> None:
        """Write the results of a slice; RemoteError for a bad row, unless they are skipped."""
        failed = None
        found: dict[bytes, Row] = {}
        for record, outcome in zip(part.records, outcomes, strict=True):
            if isinstance(outcome, Failed):
                failed = failed or RemoteError(outcome, f"{record}: ")
                if self._skip_bad:
                    found[record.key] = {ERROR: outcome.message}
            elif outcome is not None:
                found[record.key] = outcome
        self._write(found)
        if failed is not None and not self._skip_bad:
            raise failed

    def _write(self, found: Mapping[bytes, Row]) -> None:
        self._results.write(found)
        self.bad += sum(ERROR in row for row in found.values())
        self.done += len(found)
        self._progress(self.done, self.total)


def _of_results(settings: WorkerSettings) -> dict[str, object]:
    """Return the settings that affect results: neither threads, nor what becomes of bad rows."""
    fields = {**asdict(settings), **dict(settings.loading.given())}
    # The rest is the identity of a run: a run that continues with another backend or type of
    # weights would mix results of two models in one file.
    return {name: fields[name] for name in fields.keys() - {"loading", "threads", "skip_bad"}}


# A model over a dataset of Ray Data.


def map_batches(
    dataset: Dataset,
    model: str | None,
    task: str = "generate",
    *,
    column: str | None = None,
    workers: int | tuple[int, int] = 1,
    cpus: int | None = None,
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
    `embedding`; `output`. `workers` is the number of actors, or a range; each has `cpus` threads
    (by default the CPUs of the smallest node, 4 at most) and reserves as many CPUs. Where actors
    would reserve all CPUs, they leave one to the reads of Ray Data. Actors of a host share the
    weights in memory. `options` are those of `gptrs.generate` or `gptrs.embed`, and of
    `gptrs.load_model`. With `skip_bad`, a row that cannot be run has nulls, and the reason in
    `error`.

    As always in Ray Data, nothing runs before the dataset is read. Raises UsageError for unknown
    tasks and options, and for more workers than the cluster has CPUs for; other errors are raised
    when it runs.
    """
    loading: dict[str, Any] = {"backend": backend, "weights": weights, "precision": precision}
    known = option_fields(LoadOptions)
    loading |= {name: options.pop(name) for name in list(options) if name in known}
    task_named(task).require_options(options)
    least, most = (workers, workers) if isinstance(workers, int) else workers
    threads, share = room_beside(least, cpus)
    loading.setdefault("threads", threads)
    settings = WorkerSettings(
        model=model,
        task=task,
        column=column,
        options=options,
        skip_bad=skip_bad,
        loading=LoadOptions(**loading),
    )
    settings.require()
    found = cast("Any", dataset).map_batches(
        BatchWorker,
        fn_constructor_args=(settings,),
        batch_size=batch_size,
        batch_format="numpy",
        num_cpus=share,
        compute=ActorPoolStrategy(min_size=least, max_size=most),
    )
    return cast("ray.data.Dataset", found)
