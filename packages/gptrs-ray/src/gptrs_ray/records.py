"""Files of rows (JSON lines, Parquet), read and written in slices."""

from __future__ import annotations

import fcntl
import hashlib
import io
import itertools
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final

from gptrs.api import UsageError
from gptrs.checkpoint.files.atomic_write import atomic_file
from gptrs.checkpoint.files.open_file import open_regular, read_whole
from gptrs.quoting import quoted
from gptrs.strict_json import parse_object
from gptrs_ray.cluster import InputRowsError, OutputRowsError
from gptrs_ray.parquet import join_parquet, parquet_count, parquet_rows, write_parquet
from gptrs_ray.tasks import Row

LONGEST_LINE: Final = 16 << 20
"""Bytes."""
SUFFIXES: Final = (".jsonl", ".parquet")


def format_of(path: Path) -> str:
    """Return `.jsonl` or `.parquet`; UsageError for other suffixes."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(
            f"{_shown(path)} is neither .jsonl nor .parquet", hint="give the file such a name"
        )
    return suffix


def digest_of(path: Path) -> str:
    """Return a digest of the contents of a file; InputRowsError if it cannot be read."""
    with _opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def slices(path: Path, rows: int) -> Iterator[list[Row]]:
    """Yield the rows of a file in order, `rows` at a time; the last slice may be shorter.

    Raises InputRowsError if the file cannot be read, or a line is no object.
    """
    found = _json_rows(path) if format_of(path) == ".jsonl" else _parquet_rows(path, rows)
    while part := list(itertools.islice(found, rows)):
        yield part


def count_rows(path: Path) -> int:
    """Return the number of rows of a file; raises the errors of `slices`."""
    if format_of(path) == ".parquet":
        with _opened(path) as file:
            return parquet_count(path, file)
    with _opened(path) as file:
        return sum(1 for line in file if line.strip())


def write_rows(file: BinaryIO, suffix: str, rows: list[Row]) -> None:
    """Write rows as a complete file of the format `suffix`."""
    if suffix == ".jsonl":
        file.writelines(map(_line, rows))
        return
    write_parquet(file, rows)


def join(parts: list[Path], suffix: str, file: BinaryIO) -> None:
    """Join `parts`, files of rows in the format `suffix`, into one."""
    if suffix == ".jsonl":
        for part in parts:
            with part.open("rb") as rows:
                while block := rows.read(1 << 20):
                    file.write(block)
        return
    join_parquet(parts, file)


def _line(row: Row) -> bytes:
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise OutputRowsError(
            f"a row cannot be represented in JSON: {error}", hint="write .parquet"
        ) from error


def _json_rows(path: Path) -> Iterator[Row]:
    with _opened(path) as file:
        for number in itertools.count(1):
            line = file.readline(LONGEST_LINE + 1)
            if not line:
                return
            where = f"line {number} of {_shown(path)}"
            if len(line) > LONGEST_LINE:
                raise InputRowsError(
                    f"{where} has more than {LONGEST_LINE} bytes", hint="one object a line"
                )
            if line.strip():
                yield parse_object(line, where, InputRowsError, hint="one object a line")


def _parquet_rows(path: Path, rows: int) -> Iterator[Row]:
    with _opened(path) as file:
        yield from parquet_rows(path, file, rows)


def _opened(path: Path) -> io.BufferedReader:
    return open(open_regular(path, InputRowsError), "rb")


def _shown(path: Path) -> str:
    return quoted(str(path), 200)


# Intermediate results: a folder with a file for each slice of rows, and the identity of the run.
#
# Each file is written atomically, so that a run that ended in any way continues with the missing
# slices. In the end, all are joined into one file, again atomically.


_RUN: Final = "run.json"
_LOCK: Final = "lock"
_PART: Final = re.compile(r"part-(\d{8})\.(jsonl|parquet)")
_MOST_BYTES: Final = 1 << 20


class Parts:
    """The folder `OUT.parts` beside `out`; use it as a context manager, which locks it.

    `run` identifies the run: results of another one are refused. Raises OutputRowsError if the
    folder cannot be written, is used by another process, or if `out` exists without parts.
    """

    def __init__(self, out: Path, run: Mapping[str, Any]) -> None:
        self._out = out
        self._run = dict(run)
        self._folder = out.with_name(out.name + ".parts")
        self._shown = quoted(str(self._folder), 200)
        self._lock: int | None = None
        self.done: set[int] = set()

    def __enter__(self) -> Parts:
        if self._out.exists() and not self._folder.exists():
            raise OutputRowsError(
                f"{quoted(str(self._out), 200)} is there already", hint="name another file"
            )
        try:
            self._folder.mkdir(exist_ok=True)
            self._lock = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self._unlock()
            raise OutputRowsError(f"another process writes to {self._shown}") from error
        except OSError as error:
            raise OutputRowsError(f"cannot write {self._shown}: {error.strerror}") from error
        try:
            self._check_run()
        except BaseException:
            self._unlock()
            raise
        found = map(_PART.fullmatch, os.listdir(self._folder))
        self.done = {int(match[1]) for match in found if match}
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._unlock()

    def require_model(self, identity: str) -> None:
        """Raise OutputRowsError if existing results are from another model."""
        known = self._run.setdefault("model_identity", identity)
        if known != identity:
            raise OutputRowsError(
                f"the results in {self._shown} are from the model before it was changed",
                hint="remove the folder to start over",
            )
        self._write_run()

    def write(self, number: int, rows: list[Row]) -> None:
        """Write the results of a slice."""
        with atomic_file(self._part(number), OutputRowsError) as file:
            write_rows(file, self._out.suffix.lower(), rows)
        self.done.add(number)

    def publish(self, count: int) -> None:
        """Join the results of all `count` slices into the file, and remove the folder."""
        parts = [self._part(number) for number in range(count)]
        with atomic_file(self._out, OutputRowsError) as file:
            join(parts, self._out.suffix.lower(), file)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _check_run(self) -> None:
        path = self._folder / _RUN
        if not path.exists():
            self._write_run()
            return
        data = read_whole(path, _MOST_BYTES, OutputRowsError)
        found = parse_object(data, quoted(str(path), 200), OutputRowsError)
        identity = found.pop("model_identity", None)
        for name in sorted({*found, *self._run}):
            if found.get(name) != self._run.get(name):
                raise OutputRowsError(
                    f"the results in {self._shown} are from a run with another `{name}`",
                    hint="run the same command to continue, or remove the folder to start over",
                )
        if identity is not None:
            self._run["model_identity"] = identity

    def _write_run(self) -> None:
        with atomic_file(self._folder / _RUN, OutputRowsError) as file:
            file.write(json.dumps(self._run, sort_keys=True).encode())

    def _part(self, number: int) -> Path:
        return self._folder / f"part-{number:08}{self._out.suffix.lower()}"

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
