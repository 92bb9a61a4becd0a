"""Execution dumps: every compiled program, the effect of passes, and each of its runs."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import secrets
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from io import FileIO
from pathlib import Path
from typing import Literal, get_args

import numpy as np
from msgspec import Struct
from typing_extensions import override

from gptrs.capture.events import (
    CompileEnd,
    CompileStart,
    ExecutionTraceSink,
    ImplementationChoice,
    PassEvent,
    RunEnd,
    RunStart,
    WeightsBound,
    install,
    uninstall,
)
from gptrs.checkpoint.formats.foreign_files import OutgoingTensor
from gptrs.checkpoint.formats.tensor_archive import write_archive, write_tensors
from gptrs.errors import GptrsError, UsageError
from gptrs.fork_safe_lock import ForkSafeLock
from gptrs.ir.tensor_type import TensorType
from gptrs.operating_system import lock_file
from gptrs.quoting import quoted
from gptrs_observe.dump_records import (
    ProgramRecord,
    choice_fields,
    error_fields,
    json_text,
    part_file,
    pass_fields,
    program_text,
    rounded,
    utc_now,
)

# The folder of an execution dump, and the plain files in it; docs/dumps.md shows the layout.


MARKER = "gptrs-dump.json"
"""The file that marks a folder as a dump."""
VERSION = 1
"""The version of the layout."""

_MARK = json_text({"format": "gptrs-dump", "version": VERSION}).encode()
_PROGRAM = re.compile(r"program-([0-9]{6,12})-.*", re.DOTALL)
_MAX_SLUG = 40
_CHOOSE = "name a new or empty folder, or one of an earlier dump"


class DumpError(GptrsError):
    """A file of a dump cannot be written."""

    exit_code = 3
    code = "file"


class DumpFolder:
    """A folder for dumps, created if missing; several dumps may write to it concurrently.

    UsageError for a folder with anything but an earlier dump; DumpError if the system refuses an
    operation, here and in every method.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with self._reported():
            self._root = self.path.absolute()  # the program may change its directory
            if self._root.exists() and not self._root.is_dir():
                raise UsageError(
                    f"a dump needs a folder, {quoted(str(path), 200)} is a file", hint=_CHOOSE
                )
            self._root.parent.mkdir(parents=True, exist_ok=True)
            made = not self._root.exists()
            self._root.mkdir(mode=0o700, exist_ok=True)  # programs may hold private literals
            try:
                self._claim()
            except OSError:
                if made:
                    with suppress(OSError):  # another process may have begun a dump there
                        self._root.rmdir()
                raise

    def new_program(self, origin: str) -> tuple[int, str]:
        """Make the folder of a program; return its number, larger than any before, and its name."""
        with self._reported(), (self._root / MARKER).open("rb") as marker:
            lock_file(marker.fileno(), wait=True)  # one process at a time takes a number
            # From the folder, not from a counter: a later process adds to the same dump.
            number = 1 + max(map(_number_of, os.listdir(self._root)), default=-1)
            name = f"program-{number:06}-{_slug(origin)}"
            (self._root / name).mkdir()
        return number, name

    def write(self, folder: str, name: str, text: str) -> None:
        """Write the file `name` of the program folder `folder`, whole or not at all."""
        path = self._root / folder / name
        with self._reported(folder, name):
            try:
                path.write_text(text, encoding="utf-8", errors="replace")
            except OSError:
                with suppress(OSError):
                    if path.is_file():
                        path.unlink()
                    path.parent.rmdir()  # it is kept if it has other files
                raise

    def write_arrays(self, folder: str, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Write the file `name` of tensors, whole or not at all; CheckpointError if it cannot."""
        write_archive(self._root / folder / name, arrays)

    def write_tensors(
        self, folder: str, name: str, tensors: Sequence[OutgoingTensor], like: str
    ) -> None:
        """Write the file `name` of tensors, or link it to that of another folder, `like`."""
        path, other = self._root / folder / name, self._root / like / name
        if like != folder:
            with suppress(OSError):  # not every file system has links
                os.link(other, path)
                return
        write_tensors(path, tensors)

    def append(self, name: str, fields: Mapping[str, object]) -> None:
        """Add a JSON object as a line to the file `name`."""
        line = f"{json.dumps(fields)}\n".encode()
        # One system call per line, so that lines of several processes do not mix.
        with self._reported(name), (self._root / name).open("ab", buffering=0) as file:
            _write_whole(file, line)

    def _claim(self) -> None:
        """Mark an empty folder as a dump; UsageError unless it is empty or one already."""
        shown = quoted(str(self.path), 200)
        empty = not any(self._root.iterdir())
        if not empty and not (self._root / MARKER).exists():
            problem = "is neither empty nor an earlier dump, nothing was written"
            raise UsageError(f"{shown} {problem}", hint=_CHOOSE)
        with (self._root / MARKER).open("a+b", buffering=0) as marker:
            lock_file(marker.fileno(), wait=True)  # another process may be starting a dump here
            marker.seek(0)
            found = marker.read()
            if not found:
                try:
                    _write_whole(marker, _MARK)
                except OSError:
                    (self._root / MARKER).unlink()
                    raise
            elif found != _MARK:
                raise UsageError(f"{shown} is not a dump of version {VERSION}", hint=_CHOOSE)

    @contextmanager
    def _reported(self, *inside: str) -> Generator[None]:
        try:
            yield
        except (OSError, ValueError) as problem:
            code = problem.errno if isinstance(problem, OSError) else None
            reason = os.strerror(code) if code else str(problem)
            raise DumpError(
                f"cannot write the dump {quoted(str(self.path.joinpath(*inside)), 200)}: {reason}",
                hint="make room or name another folder"
                if code in (errno.ENOSPC, errno.EDQUOT)
                else None,
            ) from problem


def _write_whole(file: FileIO, data: bytes) -> None:
    """Append `data` to a file without a buffer, completely or not at all; OSError on failure."""
    written = 0
    try:
        while written < len(data):
            written += file.write(data[written:])
    except OSError:
        size = os.fstat(file.fileno()).st_size
        if written and file.tell() == size:  # no other process wrote behind it
            file.truncate(size - written)
        raise


def _number_of(name: str) -> int:
    """Return the number of the program with the folder `name`, -1 if it is not one."""
    found = _PROGRAM.fullmatch(name)
    return int(found[1]) if found else -1


def _slug(origin: str) -> str:
    """Return `origin` with letters, digits and hyphens only: it holds the name of a function."""
    return re.sub(r"[^A-Za-z0-9_]+", "-", origin)[:_MAX_SLUG].strip("-") or "unnamed"


DumpMode = Literal["all", "compile"]
"""`compile` leaves out the executions that succeed."""

_LOG = logging.getLogger("gptrs")


@contextmanager
def dumping(
    directory: str | os.PathLike[str],
    mode: DumpMode = "all",
    *,
    inputs: bool = False,
    weights: bool = False,
) -> Generator[ProgramDump]:
    """Dump the programs that any thread compiles and runs in this scope into `directory`.

    The folder is created if missing; a dump into the folder of an earlier one adds to it. Its
    layout: docs/dumps.md. With `mode` "compile", executions are left out unless they fail. With
    `inputs`, the inputs of the first run of each program, except weights, are written, so that
    `gptrs run` can run it again; with `weights`, these inputs and the weights, so that it runs
    where the model is not. UsageError for a folder that holds something else, DumpError when
    a file cannot be written; while a program fails, its own error is raised, and the failure to
    write is logged.
    """
    dump = ProgramDump(directory, mode, inputs=inputs, weights=weights)
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


class _Running(Struct, frozen=True):
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
        self,
        directory: str | os.PathLike[str],
        mode: DumpMode = "all",
        *,
        inputs: bool = False,
        weights: bool = False,
    ) -> None:
        if mode not in get_args(DumpMode):
            raise UsageError(f"the mode of a dump is `all` or `compile`, got {quoted(str(mode))}")
        self._folder = DumpFolder(directory)
        self._with_runs = mode == "all"
        self._with_inputs = inputs or weights
        self._with_weights = weights
        self._written: dict[bytes, str] = {}
        """The folder of the first program with these weights, by a digest of them."""
        self._run = f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
        self._records: dict[int, ProgramRecord] = {}
        self._choices: set[ImplementationChoice] = set()
        self._runs = _Runs()
        # Programs are compiled by several threads, and a forked child inherits a lock in whatever
        # state it was.
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
            record = ProgramRecord.of(event, number, folder, self._run)
            self._records[event.number] = record
            symbolic = None if event.symbolic is None else self._records.get(event.symbolic)
            if symbolic is not None:
                record.bound = symbolic.bound
                record.meta["symbolic"] = symbolic.number
            # Before anything else: if a pass or the backend ends the process, this file is what
            # remains to look at.
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
            for number, part in enumerate(event.parts):
                self._folder.write(
                    record.folder, part_file(number, part), program_text(part.program)
                )
            self._write_stats(record)

    @override
    def after_choice(self, choice: ImplementationChoice) -> None:
        with self._lock:
            if not self._closed and choice not in self._choices:
                self._choices.add(choice)
                self._folder.append("choices.jsonl", {"run": self._run, **choice_fields(choice)})

    @override
    def after_binding(self, event: WeightsBound) -> None:
        with self._lock:
            record = self._record(event.number)
            if record is not None and self._with_weights:
                names = record.parameters
                record.bound = {names[at]: weight for at, weight in event.weights.items()}

    @override
    def before_run(self, event: RunStart) -> None:
        if self._with_inputs:
            with self._lock:
                record = self._record(event.number)
                if record is not None and not record.has_inputs:
                    record.has_inputs = True
                    self._write_inputs(record, event)
                    if self._with_weights:
                        self._write_weights(record, event)
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
        """Return the record of a program; None if it began before or after the dump."""
        return None if self._closed else self._records.get(number)

    def _end_of(self, number: int) -> _Running | None:
        """Return the run that ends in this thread, None if it began before the dump."""
        stack = self._runs.stack
        # Runs that an exception ended have left no event of their own; they are dropped with the
        # first that ends around them.
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
        # The only format with all element types.
        self._folder.write_arrays(record.folder, "inputs.gptrsten", arrays)

    def _write_weights(self, record: ProgramRecord, event: RunStart) -> None:
        """Write the weights of the program before any pass, once for all programs with the same."""

        def reading(name: str) -> Callable[[], np.ndarray]:
            if name in record.bound:
                return partial(record.bound[name].host_value, keep=False)
            return partial(event.weight, record.inputs.index(name))

        # Programs without parameter folding have no bound weights, and keep their inputs.
        names = [name for name in record.weights if name in record.bound or name in record.inputs]
        sources = {name: reading(name) for name in names}
        tensors: list[OutgoingTensor] = []
        digest = hashlib.blake2b(digest_size=32)
        for name, read in sources.items():
            array = read()
            digest.update(f"{name} {TensorType.of(array)}\0".encode())
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            # Read again when it is written: a model may not fit into memory twice.
            parts = partial(_parts, read)
            tensors.append(OutgoingTensor(name, TensorType.of(array), parts))
        first = self._written.setdefault(digest.digest(), record.folder)
        self._folder.write_tensors(record.folder, "weights.gptrsten", tensors, like=first)

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


def _parts(read: Callable[[], np.ndarray]) -> tuple[np.ndarray]:
    return (read(),)


@contextmanager
def _second_to(error: BaseException | None) -> Generator[None]:
    """Log a failure of this scope instead of raising it if `error` is about to be raised."""
    try:
        yield
    except GptrsError as problem:
        if error is None:
            raise
        _LOG.warning("the dump is incomplete: %s", problem)
