"""Execution dumps: every compiled program, what the passes did to it, and each of its runs."""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Generator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, get_args

from typing_extensions import override

from gptrs.capture.events import (
    CompileEnd,
    CompileStart,
    ExecutionTraceSink,
    ImplementationChoice,
    PassEvent,
    RunEnd,
    RunStart,
    install,
    uninstall,
)
from gptrs.errors import GptrsError, UsageError
from gptrs.fork_safe_lock import ForkSafeLock
from gptrs.quick_dataclass import dataclass
from gptrs.quoting import quoted
from gptrs_observe.dump_files import DumpFolder
from gptrs_observe.dump_records import (
    ProgramRecord,
    choice_fields,
    error_fields,
    json_text,
    meta_fields,
    pass_fields,
    program_text,
    rounded,
    utc_now,
)

DumpMode = Literal["all", "compile"]
"""`compile` leaves out the executions that succeed."""

_LOG = logging.getLogger("gptrs")


@contextmanager
def dumping(
    directory: str | os.PathLike[str], mode: DumpMode = "all", *, inputs: bool = False
) -> Generator[ProgramDump]:
    """Dump the programs that any thread compiles and runs in this scope into `directory`.

    The folder is made if there is none; a dump into that of an earlier one adds to it. Its layout:
    docs/dumps.md. With `mode` "compile", executions are left out unless they fail. With
    `inputs`, the inputs of the first run of each program are written but for weights, so that
    `gptrs run` can run it again. UsageError for a
    folder that holds something else, GptrsError when a file cannot be written; while a program
    fails, its own error is raised, and the failure to write is logged.
    """
    dump = ProgramDump(directory, mode, inputs=inputs)
    error: BaseException | None = None
    install(dump)
    try:
        yield dump
    except BaseException as problem:
        error = problem
        raise
    finally:
        uninstall(dump)
        with _second_to(error):
            dump.close()


@dataclass(frozen=True, slots=True)
class _Running:
    """A run that has not ended yet."""

    number: int
    cached: bool
    time: str


class _Runs(threading.local):
    """The runs of this thread that have not ended yet, innermost last."""

    def __init__(self) -> None:
        self.stack: list[_Running] = []


class ProgramDump(ExecutionTraceSink):
    """The sink behind `dumping`: writes events into a folder until it is closed."""

    def __init__(
        self, directory: str | os.PathLike[str], mode: DumpMode = "all", *, inputs: bool = False
    ) -> None:
        if mode not in get_args(DumpMode):
            raise UsageError(f"the mode of a dump is `all` or `compile`, got {quoted(str(mode))}")
        self._folder = DumpFolder(directory)
        self._with_runs = mode == "all"
        self._with_inputs = inputs
        self._run = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
        self._records: dict[int, ProgramRecord] = {}
        self._choices: set[ImplementationChoice] = set()
        self._runs = _Runs()
        self._lock = ForkSafeLock()
        self._closed = False

    @property
    def path(self) -> Path:
        """The folder."""
        return self._folder.path

    @property
    def programs(self) -> int:
        """Number of programs dumped so far."""
        return len(self._records)

    @override
    def before_program(self, event: CompileStart) -> None:
        """Write the program before a pass or the backend can fail on it."""
        with self._lock:
            if self._closed:
                return
            number, folder = self._folder.new_program(event.origin)
            record = ProgramRecord(number, folder, meta_fields(event, number, self._run))
            self._records[event.number] = record
            self._folder.write(folder, "program.ptir", program_text(event.program))
            self._write_meta(record)

    @override
    def after_pass(self, event: PassEvent) -> None:
        with self._lock:
            record = self._record(event.number)
            if record is not None:
                record.passes.append(event)
                where = {"run": self._run, "program": record.number}
                self._folder.append("passes.jsonl", {**where, **pass_fields(event)})

    @override
    def after_program(self, event: CompileEnd) -> None:
        """Write the optimized program, and how the compilation ended."""
        with self._lock, _second_to(event.error):
            record = self._record(event.number)
            if record is None:
                return
            record.compiled(event)
            self._write_meta(record)
            if event.optimized is not None:
                text = program_text(event.optimized)
                self._folder.write(record.folder, "optimized.ptir", text)
            self._write_stats(record)

    @override
    def after_choice(self, choice: ImplementationChoice) -> None:
        with self._lock:
            if not self._closed and choice not in self._choices:
                self._choices.add(choice)
                self._folder.append("choices.jsonl", {"run": self._run, **choice_fields(choice)})

    @override
    def before_run(self, event: RunStart) -> None:
        if self._with_inputs:
            with self._lock:
                record = self._record(event.number)
                if record is not None and not record.has_inputs:
                    record.has_inputs = True
                    self._write_inputs(record, event)
        self._runs.stack.append(_Running(event.number, event.cached, utc_now()))

    @override
    def after_run(self, event: RunEnd) -> None:
        running = self._end_of(event.number)
        with self._lock, _second_to(event.error):
            if self._closed:
                return
            record = self._records.get(event.number)
            if record is not None:
                record.runs.add(event.seconds, failed=event.error is not None)
            if self._with_runs or event.error is not None:
                self._write_run(record, running, event)
            if record is not None and event.error is not None:
                record.run_failed(event.error)
                self._write_meta(record)
                self._write_stats(record)

    def close(self) -> None:
        """Write how often each program ran; ignore later events."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for record in self._records.values():
                if record.runs.count:
                    self._write_stats(record)

    def _record(self, number: int) -> ProgramRecord | None:
        """Return the record of a program; None if it began before the dump or after its end."""
        return None if self._closed else self._records.get(number)

    def _end_of(self, number: int) -> _Running | None:
        """Return the run that ends in this thread, None if it began before the dump."""
        stack = self._runs.stack
        while stack:
            running = stack.pop()
            if running.number == number:
                return running
        return None

    def _write_inputs(self, record: ProgramRecord, event: RunStart) -> None:
        arrays = {
            name: array
            for name, array in zip(record.inputs, event.read(), strict=False)
            if array is not None
        }
        # The one format that has all element types.
        self._folder.write_arrays(record.folder, "inputs.gptrsten", arrays)

    def _write_meta(self, record: ProgramRecord) -> None:
        self._folder.write(record.folder, "meta.json", json_text(record.meta))

    def _write_stats(self, record: ProgramRecord) -> None:
        self._folder.write(record.folder, "stats.json", json_text(record.stats()))

    def _write_run(
        self, record: ProgramRecord | None, running: _Running | None, event: RunEnd
    ) -> None:
        fields: dict[str, object] = {
            "run": self._run,
            "program": record.number if record else None,
            "cached": running.cached if running else None,
            "time": running.time if running else None,
            "seconds": rounded(event.seconds),
            "error": error_fields(event.error) if event.error else None,
        }
        self._folder.append("executions.jsonl", fields)


@contextmanager
def _second_to(error: BaseException | None) -> Generator[None]:
    """Log a failure of this scope instead of raising it if `error` is about to be raised."""
    try:
        yield
    except GptrsError as problem:
        if error is None:
            raise
        _LOG.warning("the dump is incomplete: %s", problem)
