"""A process that writes the part of a library for one kind of processors."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Final

import msgspec
from msgspec import Struct

from gptrs import errors
from gptrs.backend.contract import WrittenLibrary
from gptrs.backend.settings import Precision
from gptrs.errors import ExecutionError, GptrsError
from gptrs.progress import StepProgress

_CODE: Final = "from gptrs_runtime.libraries.write import serve_part; serve_part()"


class PartRequest(Struct, frozen=True, kw_only=True):
    """The arguments of `compile_library`, all of them data."""

    source: str
    folder: str
    name: str
    backend: str
    threads: int
    precision: Precision | None = None
    weights: str | None = None
    symbols: tuple[str, ...] = ()
    overrides: tuple[str, ...] = ()


class WrittenPart(Struct, frozen=True, kw_only=True):
    """A part, and what its header tells of the library."""

    name: str
    kind: str
    is_step: bool
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    written: WrittenLibrary


class _Told(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A line that the process writes: its progress, its result, or its error."""

    done: int = 0
    total: int = 0
    kernel: str = ""
    part: WrittenPart | None = None
    error: str = ""
    message: str = ""
    hint: str | None = None


def written_part(
    request: PartRequest, variables: dict[str, str], target: str, progress: StepProgress | None
) -> WrittenPart:
    """Have a process write a part; the errors of gptrs that it raises are raised here."""
    # What this process has of the same library, such as its own processor, is for this one alone.
    families = tuple({f"{name.partition('_')[0]}_" for name in variables})
    ours = {name: value for name, value in os.environ.items() if not name.startswith(families)}
    environment = {**ours, **variables, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    running = subprocess.Popen(
        [sys.executable, "-c", _CODE],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert running.stdin is not None
    assert running.stdout is not None
    with running:
        running.stdin.write(msgspec.json.encode(request))
        running.stdin.close()
        for line in running.stdout:
            told = msgspec.json.decode(line, type=_Told)
            if told.part is not None:
                return told.part
            if told.error:
                kind = getattr(errors, told.error, ExecutionError)
                raise kind(f"for target `{target}`, {told.message}", hint=told.hint)
            if progress is not None:
                progress(told.done, told.total, told.kernel)
    raise ExecutionError(
        f"the process that compiles for target `{target}` ended with {running.returncode}",
        hint="a target near the processor of this machine may work; `gptrs doctor` shows it",
    )


def read_request() -> PartRequest:
    """Return what this process is to write."""
    return msgspec.json.decode(sys.stdin.buffer.read(), type=PartRequest)


class Teller:
    """Writes what a process tells, past what others print."""

    def __init__(self) -> None:
        self._file = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)

    def step(self, done: int, total: int, kernel: str) -> None:
        """Tell of progress."""
        self._tell(_Told(done=done, total=total, kernel=kernel))

    def part(self, part: WrittenPart) -> None:
        """Tell the result."""
        self._tell(_Told(part=part))

    def error(self, error: GptrsError) -> None:
        """Tell an error."""
        self._tell(_Told(error=type(error).__name__, message=error.message, hint=error.hint))

    def _tell(self, told: _Told) -> None:
        self._file.write(msgspec.json.encode(told) + b"\n")
