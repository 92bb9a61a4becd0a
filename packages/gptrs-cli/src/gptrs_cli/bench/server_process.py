"""A server of its own, for a measurement."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from gptrs.errors import ExecutionError
from gptrs.quoting import clipped


@contextmanager
def server(model: Path | None, options: Sequence[str]) -> Generator[str]:
    """Start `gptrs serve` on a free port of this machine, and yield its address; end it after.

    ExecutionError with what it says if it does not start.
    """
    named = "demo" if model is None else str(model)
    command = [sys.executable, "-m", "gptrs_cli", "serve", f"bench={named}", "--port", "0"]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True) as process:
        try:
            yield _address(process)
        finally:
            process.terminate()
            if process.stderr is not None:
                process.stderr.read()
            process.wait()


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    line = process.stderr.readline()
    address = line.split()[-1] if line.startswith("serving ") else ""
    if address:
        return address
    told = clipped((line + process.stderr.read()).strip(), 400)
    raise ExecutionError(f"`gptrs serve` does not start: {told}", hint="is gptrs-serve installed?")
