"""Runs one conversion of a checkpoint and says what was written."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gptrs.checkpoint.converting.convert import Converted, convert
from gptrs_cli.inspect.checkpoint import byte_size, count
from gptrs_cli.terminal.progress import progress_bar
from gptrs_cli.terminal.stderr import note, printable

_STEP = 2**20
"""Bytes that a step of the progress bar stands for: terminals show no more."""


@dataclass(frozen=True)
class Request:
    """What the user asked for; None where the source or the name of the destination decides."""

    source: str
    destination: Path
    to: Literal["hf", "gptrschk"] | None
    dtype: str | None
    shard_size: int | None
    force: bool


def convert_and_print(request: Request, *, as_json: bool) -> None:
    """Convert, showing a progress bar on a terminal; then print what was written."""
    started = time.perf_counter()
    with progress_bar(f"writing {request.destination.name}") as step:

        def progress(done: int, total: int, name: str) -> None:
            if step is not None:
                step(done // _STEP, max(1, total // _STEP), printable(name))

        written = convert(
            request.source,
            request.destination,
            to=request.to,
            dtype=request.dtype,
            shard_size=request.shard_size,
            force=request.force,
            progress=progress,
        )
    seconds = time.perf_counter() - started
    if as_json:
        print(json.dumps(_fields(request, written, seconds), indent=2))
        return
    print(printable(_sentence(request, written)))
    if written.left_out:
        note(f"not carried over: {', '.join(written.left_out)}")


def _sentence(request: Request, written: Converted) -> str:
    what = "tensors" if written.kind is None else f"{written.kind} model"
    parts = f"{written.tensors} tensors, {count(written.parameters)} parameters"
    size = byte_size(written.nbytes)
    rounded = f", {written.rounded} rounded to {request.dtype}" if written.rounded else ""
    return f"wrote {request.destination}: {what}, {parts}, {size}{rounded}"


def _fields(request: Request, written: Converted, seconds: float) -> dict[str, object]:
    return {
        "source": request.source,
        "destination": str(request.destination),
        "format": written.form,
        "kind": written.kind,
        "files": list(written.files),
        "tensors": written.tensors,
        "parameters": written.parameters,
        "bytes": written.nbytes,
        "rounded": written.rounded,
        "left_out": list(written.left_out),
        "seconds": round(seconds, 3),
    }
