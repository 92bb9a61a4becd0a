"""Results on the way: a folder with one whole file for each slice of rows, and what they are of.

A file of results appears whole or not at all, so that a run that ended in any way goes on with the
slices that are missing. When all are there they are joined into one file, which appears at once.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from gptrs.checkpoint.files.atomic_write import atomic_file
from gptrs.checkpoint.files.open_file import read_whole
from gptrs.quoting import quoted
from gptrs.strict_json import parse_object
from gptrs_ray.failures import OutputRowsError
from gptrs_ray.records import join, write_rows
from gptrs_ray.tasks import Row

_RUN: Final = "run.json"
_LOCK: Final = "lock"
_PART: Final = re.compile(r"part-(\d{8})\.(jsonl|parquet)")
_MOST_BYTES: Final = 1 << 20


class Parts:
    """The folder `OUT.parts` beside `out`; use it as a context manager, which locks it.

    `run` says what the results are of: a run of something else is refused. OutputRowsError where
    the folder cannot be written, is used by another process, or `out` is there without parts.
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
        """OutputRowsError if results that are there are of another model."""
        known = self._run.setdefault("model_identity", identity)
        if known != identity:
            raise OutputRowsError(
                f"the results in {self._shown} are of the model as it was before it changed",
                hint="remove the folder to begin anew",
            )
        self._write_run()

    def write(self, number: int, rows: list[Row]) -> None:
        """Keep the results of a slice."""
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
                    f"the results in {self._shown} are of a run with another `{name}`",
                    hint="run the same command to go on, or remove the folder to begin anew",
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
