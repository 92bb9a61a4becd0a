"""`gptrs batch`: a model over a file of rows, on a Ray cluster or on this machine."""

from __future__ import annotations

import json
import sys
import time
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from gptrs.api import UsageError
from gptrs_ray.batch import ROWS, BatchResult, run_batch
from gptrs_ray.tasks import TASKS
from gptrs_ray.worker import WorkerSettings

_SECONDS: Final = 5.0
"""Between two lines of progress."""

_In = Annotated[Path, typer.Argument(metavar="IN", help="Rows: .jsonl or .parquet.")]
_Out = Annotated[Path, typer.Argument(metavar="OUT", help="The rows with results, likewise.")]
_Model = Annotated[
    str,
    typer.Option("--model", metavar="MODEL", help="As each host finds it: a path, or ORG/NAME."),
]
_TaskName = Annotated[
    str, typer.Option("--task", metavar="TASK", help=f"{', '.join(TASKS)}: done with each row.")
]
_Column = Annotated[
    str | None,
    typer.Option(
        "--column", metavar="NAME", help="What to read; else `prompt`, `text` or `input`."
    ),
]
_Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help="An option of the task: max_tokens=64, temperature=0.7; repeatable.",
    ),
]
_Ray = Annotated[
    str | None,
    typer.Option(
        "--ray", metavar="ADDRESS", help="A cluster: auto, HOST:6379, ray://HOST:10001; else here."
    ),
]
_Workers = Annotated[
    int | None, typer.Option("--workers", metavar="N", min=1, help="As many as fit, unless told.")
]
_Cpus = Annotated[
    int | None, typer.Option("--cpus", metavar="N", min=1, help="CPUs and threads of a worker.")
]
_Rows = Annotated[
    int, typer.Option("--rows", metavar="N", min=1, help="Rows of a slice, done or not as one.")
]
_SkipBad = Annotated[
    bool, typer.Option("--skip-bad", help="Say in the column `error` why a row cannot be run.")
]
_Backend = Annotated[
    str | None, typer.Option("--backend", metavar="NAME", help="Run the model on it.")
]
_Weights = Annotated[
    str | None, typer.Option("--weights", metavar="TYPE", help="Quantize at load: q8, q4.")
]
_Precision = Annotated[
    str | None, typer.Option("--precision", metavar="TYPE", help="Of products: f32, bf16, int8.")
]
_Json = Annotated[bool, typer.Option("--json", help="Print how it ended as JSON.")]


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
    backend: _Backend = None,
    weights: _Weights = None,
    precision: _Precision = None,
    as_json: _Json = False,
) -> None:
    """Run a model over a file of rows, on a Ray cluster.

    Without --ray the cluster is this machine. OUT has all columns of IN, in the same order, and
    those of the task. What was ended goes on with the same command: results wait in OUT.parts.
    """
    settings = WorkerSettings(
        model=model,
        task=task,
        column=column,
        options=_task_options(option or []),
        skip_bad=skip_bad,
        backend=backend,
        weights=weights,
        precision=precision,
    )
    with redirect_stdout(sys.stderr):  # where Ray tells of lost hosts
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
    """Return options by name; values are JSON, or texts where they are not."""
    options: dict[str, Any] = {}
    for each in given:
        name, separator, value = each.partition("=")
        if not separator or not name:
            raise UsageError(f"--option: `{each}` is no NAME=VALUE")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    return options


class _Progress:
    """Lines on standard error, one every few seconds."""

    def __init__(self) -> None:
        self._started: float | None = None
        self._before = 0
        self._told = 0.0

    def tell(self, done: int, total: int) -> None:
        """Print how many rows are done, how fast, and how long the others take."""
        now = time.monotonic()
        if self._started is None:
            self._started, self._before = now, done
        if now - self._told < _SECONDS or done == total:
            return
        self._told = now
        rate = (done - self._before) / max(now - self._started, 1e-9)
        left = f", {rate:.0f} rows/s, about {(total - done) / rate:.0f} s left" if rate else ""
        print(f"{done} of {total} rows{left}", file=sys.stderr, flush=True)


def _summary(result: BatchResult, out: Path) -> str:
    parts = [f"{result.rows} rows are in {out}"]
    if result.before:
        parts.append(f"{result.before} of them were done before")
    if result.bad:
        parts.append(f"{result.bad} could not be run, see the column `error`")
    if result.lost:
        parts.append(f"{result.lost} workers were lost and replaced")
    return ", ".join(parts)
