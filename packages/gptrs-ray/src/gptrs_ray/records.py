"""Files of rows (JSON lines, Parquet), and the folder that keeps results until all are there."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, cast

from msgspec import Struct

from gptrs.api import UsageError
from gptrs.checkpoint.files.atomic_write import atomic_file
from gptrs.checkpoint.files.open_file import open_regular, read_whole
from gptrs.operating_system import lock_file
from gptrs.quoting import quoted
from gptrs.strict_json import parse_object
from gptrs_ray.cluster import InputRowsError, OutputRowsError
from gptrs_ray.parquet import parquet_rows, write_parquet
from gptrs_ray.tasks import ERROR, Row, plain_row

LONGEST_LINE: Final = 16 << 20
"""Bytes."""
SUFFIXES: Final = (".jsonl", ".parquet")


class Record(Struct, frozen=True):
    """A row of the input: where it is, what identifies it in later runs, and its columns.

    `key` is a digest of the columns and the number of equal rows before this one, so that a later
    run finds the results wherever the row has moved to. A line that is not a row has a `problem`.
    """

    where: str
    key: bytes
    row: Row
    problem: str | None = None

    def __str__(self) -> str:
        name = self.row.get("id")
        return f"{self.where} (id {name!r:.80})" if isinstance(name, str | int) else self.where


def format_of(path: Path) -> str:
    """Return `.jsonl` or `.parquet`; UsageError for other suffixes."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(
            f"{_shown(path)} is neither .jsonl nor .parquet", hint="give the file such a name"
        )
    return suffix


def records(path: Path) -> Iterator[Record]:
    """Yield the rows of a file in order; InputRowsError if it cannot be read.

    Equal rows are counted, so memory grows by some hundred bytes a row.
    """
    equal = Counter[bytes]()
    shown = _shown(path)
    with open(open_regular(path, InputRowsError), "rb") as file:
        if format_of(path) == ".jsonl":
            found = _json_rows(file, shown)
        else:
            rows = enumerate(parquet_rows(path, file), 1)
            found = ((f"row {number}", row, None) for number, row in rows)
        for place, row, problem in found:
            # Sorted keys: an editor or a database may write the columns in another order.
            text = json.dumps([plain_row(row), problem], sort_keys=True, default=str)
            digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
            # Equal rows may have different results (sampling), so each keeps its own.
            key = digest + equal[digest].to_bytes(4, "big")
            equal[digest] += 1
            yield Record(f"{place} of {shown}", key, row, problem)


def _json_rows(file: io.BufferedReader, shown: str) -> Iterator[tuple[str, Row, str | None]]:
    """Yield the number of each line that is not blank, and its object or why it is not one."""
    for number in itertools.count(1):
        line = file.readline(LONGEST_LINE + 1)
        if not line:
            return
        where = f"line {number}"
        if len(line) > LONGEST_LINE:
            # Skipped in pieces: the rest of the line may be as large as the file.
            while line and not line.endswith(b"\n"):
                line = file.readline(LONGEST_LINE)
            yield where, {}, f"the line has more than {LONGEST_LINE} bytes"
        elif line.strip():
            try:
                row = parse_object(line, f"{where} of {shown}", InputRowsError)
            except InputRowsError as error:
                yield where, {}, error.message
            else:
                yield where, row, None


def write_rows(file: BinaryIO, suffix: str, rows: Callable[[], Iterable[Row]]) -> None:
    """Write rows as a complete file of the format `suffix`.

    Parquet reads `rows` twice: a file begins with the types of its columns. OutputRowsError for
    numbers that JSON lacks.
    """
    if suffix == ".jsonl":
        file.writelines(map(_line, rows()))
    else:
        write_parquet(file, rows)


def _line(row: Row) -> bytes:
    try:
        # `NaN` and `Infinity`, which Python would write, are no JSON, and other readers stop at
        # them.
        return json.dumps(row, ensure_ascii=False, allow_nan=False).encode() + b"\n"
    except (TypeError, ValueError) as error:
        raise OutputRowsError(
            f"a row cannot be represented in JSON: {error}", hint="write .parquet"
        ) from error


def _shown(path: Path) -> str:
    return quoted(str(path), 200)


# Intermediate results: a folder with a database of the results of each row, by its key, and the
# identity of the run. A run that ended in any way continues with the rows that have no result, even
# if rows were edited, added or moved meanwhile. In the end, one file is written, atomically.


_RUN: Final = "run.json"
_LOCK: Final = "lock"
_DATABASE: Final = "results.sqlite"
_MOST_BYTES: Final = 1 << 20
_START_OVER: Final = "remove the folder to start over"


class Results:
    """The folder `OUT.parts` beside `out`; use it as a context manager, which locks it.

    `run` identifies the run: results of another one are refused. Raises OutputRowsError if the
    folder cannot be written, is used by another process, or if `out` exists without results.
    """

    def __init__(self, out: Path, run: Mapping[str, Any]) -> None:
        self._out = out
        self._run = dict(run)
        self._folder = out.with_name(out.name + ".parts")
        self._shown = _shown(self._folder)
        self._lock: int | None = None
        self._database: sqlite3.Connection | None = None

    def __enter__(self) -> Results:
        if self._out.exists() and not self._folder.exists():
            raise OutputRowsError(f"{_shown(self._out)} already exists", hint="name another file")
        try:
            self._folder.mkdir(exist_ok=True)
            self._lock = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            # Released by the kernel even if the process is killed, so no stale lock remains.
            lock_file(self._lock)
        except BlockingIOError as error:
            self._close()
            raise OutputRowsError(f"another process writes to {self._shown}") from error
        except OSError as error:
            raise OutputRowsError(f"cannot write {self._shown}: {error.strerror}") from error
        try:
            self._check_run()
            with self._opened() as database:
                database.execute(
                    "CREATE TABLE IF NOT EXISTS results"
                    " (key BLOB PRIMARY KEY, bad INTEGER NOT NULL, result TEXT NOT NULL)"
                )
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def require_model(self, identity: str) -> None:
        """Raise OutputRowsError if existing results are from another model."""
        known = self._run.setdefault("model_identity", identity)
        if known != identity:
            raise OutputRowsError(
                f"the results in {self._shown} are from the model before it was changed",
                hint=_START_OVER,
            )
        self._write_run()

    def write(self, results: Mapping[bytes, Row]) -> None:
        """Keep results by the keys of their rows, all or none."""
        rows = [(key, ERROR in row, json.dumps(row)) for key, row in results.items()]
        with self._opened() as database:
            database.executemany("INSERT OR REPLACE INTO results VALUES (?, ?, ?)", rows)

    def find(self, key: bytes, *, bad: bool) -> Row | None:
        """Return the result of a row; None without one, or for a `bad` row unless asked for."""
        # `bad` is 0 or 1: `<=` finds good results always, errors only when asked for them, so a run
        # without --skip-bad tries bad rows again.
        asked = "SELECT result FROM results WHERE key = ? AND bad <= ?"
        with self._opened() as database:
            found = database.execute(asked, (key, bad)).fetchone()
        return None if found is None else cast("Row", json.loads(found[0]))

    def publish(self, source: Callable[[], Iterable[Record]], empty: Row, *, bad: bool) -> None:
        """Write each row of `source` with its result over `empty` to the file; remove the folder.

        InputRowsError for a row without a result: the file was changed while it was read.
        """

        def rows() -> Iterator[Row]:
            for record in source():
                found = self.find(record.key, bad=bad)
                if found is None:
                    raise InputRowsError(f"{record} was changed while the run read the file")
                yield {**record.row, **empty, **found}

        # The folder is removed after the file has its name: a kill between the two leaves both, and
        # the next run publishes again.
        with atomic_file(self._out, OutputRowsError) as file:
            write_rows(file, self._out.suffix.lower(), rows)
        self._close_database()
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
                    hint=f"run the same command to continue, or {_START_OVER}",
                )
        if identity is not None:
            self._run["model_identity"] = identity

    def _write_run(self) -> None:
        with atomic_file(self._folder / _RUN, OutputRowsError) as file:
            file.write(json.dumps(self._run, sort_keys=True).encode())

    @contextmanager
    def _opened(self) -> Generator[sqlite3.Connection]:
        """Scope of one transaction; OutputRowsError if the database cannot be written or read."""
        try:
            if self._database is None:
                self._database = sqlite3.connect(self._folder / _DATABASE)
            with self._database as database:
                yield database
        except sqlite3.Error as error:
            raise OutputRowsError(
                f"the results in {self._shown} cannot be used: {error}",
                hint=f"make room on the disk, or {_START_OVER}",
            ) from error

    def _close_database(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _close(self) -> None:
        self._close_database()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
