"""`gptrs batch`: a model over a file of rows, on a Ray cluster or on this machine."""

from __future__ import annotations

import json
import sys
import time
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from msgspec.structs import asdict

from gptrs.api import UsageError
from gptrs_ray.batch import ROWS, BatchResult, run_batch
from gptrs_ray.tasks import TASKS
from gptrs_ray.worker import WorkerSettings
from gptrs_runtime.load_options import LoadOptions, MachineOptions
from gptrs_runtime.option_fields import OptionsOf, in_own_words, option_fields

_SECONDS: Final = 5.0
"""Seconds between lines of progress."""

_In = Annotated[Path, typer.Argument(metavar="IN", help="Rows: .jsonl or .parquet.")]
_Out = Annotated[
    Path, typer.Argument(metavar="OUT", help="The rows with results: .jsonl or .parquet.")
]
_Model = Annotated[
    str,
    typer.Option("--model", metavar="MODEL", help="A path that exists on each host, or ORG/NAME."),
]
_TaskName = Annotated[
    str, typer.Option("--task", metavar="TASK", help=f"{', '.join(TASKS)}: done with each row.")
]
_Column = Annotated[
    str | None,
    typer.Option(
        "--column", metavar="NAME", help="Input column; default: `prompt`, `text` or `input`."
    ),
]
_Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help="An option of the task, such as max_tokens=64; repeatable.",
    ),
]
_Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="ADDRESS",
        help="Cluster: auto, HOST:6379, ray://HOST:10001; default: here.",
    ),
]
_Workers = Annotated[
    int | None,
    typer.Option(
        "--workers", metavar="N", min=1, help="Number of workers; default: as many as fit."
    ),
]
_Cpus = Annotated[
    int | None, typer.Option("--cpus", metavar="N", min=1, help="CPUs and threads per worker.")
]
_Rows = Annotated[
    int, typer.Option("--rows", metavar="N", min=1, help="Rows per slice, the unit of work.")
]
_SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Report rows that cannot be run in the column `error`.")
]
_FIELDS: Final = option_fields(LoadOptions)
_Loading = Annotated[
    dict[str, Any],
    OptionsOf(
        in_own_words(
            LoadOptions,
            _FIELDS["backend"].reworded("Backend to run the model on."),
            _FIELDS["weights"].reworded("Quantize on loading: q8, q4.", metavar="TYPE", parsed=str),
            _FIELDS["precision"].reworded(
                "Arithmetic of products: f32, bf16, int8.", metavar="TYPE", parsed=str
            ),
            # The cluster decides on threads and devices.
            without=[*option_fields(MachineOptions), "weight_budget", "adapter"],
        )
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]


def batch(
    source: _In,
    out: _Out,
    *,
    model: _Model = "demo",
    task: _TaskName = "generate",
    column: _Column = None,
    option: _Options = None,
    ray: _Ray = None,
    workers: _Workers = None,
    cpus: _Cpus = None,
    rows: _Rows = ROWS,
    skip_bad: _SkipBad = False,
    loading: _Loading,
    as_json: _Json = False,
) -> None:
    """Run a model over a file of rows, on a Ray cluster.

    Without --ray, the run uses this machine. OUT has all rows and columns of IN in order, and the
    columns of the task. Run the same command again to continue an interrupted run: finished results
    are kept in OUT.parts.
    """
    settings = WorkerSettings(
        model=model,
        task=task,
        column=column,
        options=_task_options(option or []),
        skip_bad=skip_bad,
        loading=LoadOptions(**loading),
    )
    with redirect_stdout(sys.stderr):  # the logger of lost hosts in Ray
        result = run_batch(
            source,
            out,
            settings,
            address=ray,
            workers=workers,
            cpus=cpus,
            rows=rows,
            progress=_Progress().tell,
        )
    if as_json:
        print(json.dumps({"schema": "gptrs.batch/1", **asdict(result)}))
    print(_summary(result, out), file=sys.stderr)
    if result.bad:
        raise typer.Exit(1)


def _task_options(given: list[str]) -> dict[str, Any]:
    """Return options by name; values that are not JSON are texts."""
    options: dict[str, Any] = {}
    for each in given:
        name, separator, value = each.partition("=")
        if not separator or not name:
            raise UsageError(f"--option: `{each}` is not NAME=VALUE")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


class _Progress:
    """Lines of progress on standard error, every few seconds."""

    def __init__(self) -> None:
        self._started: float | None = None
        self._before = 0
        self._told = 0.0

    def tell(self, done: int, total: int) -> None:
        """Print the number of finished rows, the speed, and the time left."""
        now = time.monotonic()
        if self._started is None:
            self._started, self._before = now, done
        if now - self._told < _SECONDS or done == total:
            return
        self._told = now
        # Rows of earlier runs are in `done`, but took none of this run's time.
        rate = (done - self._before) / max(now - self._started, 1e-9)
        left = f", {rate:.0f} rows/s, about {(total - done) / rate:.0f} s left" if rate else ""
        print(f"{done} of {total} rows{left}", file=sys.stderr, flush=True)


def _summary(result: BatchResult, out: Path) -> str:
    parts = [f"{result.rows} rows are in {out}"]
    if result.before:
        parts.append(f"{result.before} of them were done before")
    # As grep and pytest do: the file is whole, and scripts see that some rows in it failed.
    if result.bad:
        parts.append(f"{result.bad} could not be run, see the column `error`")
    if result.lost:
        parts.append(f"{result.lost} workers were lost and replaced")
    return ", ".join(parts)
