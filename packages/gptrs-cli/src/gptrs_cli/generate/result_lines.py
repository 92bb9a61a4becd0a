"""Results as JSON lines: to standard output, or to a file that a later run continues."""

from __future__ import annotations

import fcntl
import os
import stat
import sys
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from gptrs.errors import GptrsError
from gptrs.private_files import write_all
from gptrs.quoting import quoted, shown_value
from gptrs.strict_json import parse_object
from gptrs_cli.generate.prompt_lines import Id
from gptrs_cli.terminal.failures import OutputFileError
from gptrs_cli.terminal.json_result import as_line
from gptrs_runtime.results import GenerateLine


class ResultLines:
    """A writer of one record a line; use it as a context manager.

    Each line is written at once, unbuffered; all are on the disk when the scope ends. A file at
    `path` is appended to; `done` holds the ids that it has already. A torn last line, which a
    killed run leaves, is removed. The file is locked against a second run. OutputFileError for a
    file that cannot be written, is locked, or has lines other than results of `model`.
    """

    def __init__(self, path: Path | None, model: str) -> None:
        self._shown = "" if path is None else quoted(str(path), 200)
        self._model = model
        self.done: frozenset[Id] = frozenset()
        self._file: BinaryIO | None = None
        if path is not None:
            try:
                self._file = _opened(path, self._shown)
                self.done = self._resumed(self._file)
            except OSError as error:
                self._close()
                raise self._unwritable(error) from error
            except OutputFileError:
                self._close()
                raise

    def __enter__(self) -> ResultLines:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            try:
                os.fsync(self._file.fileno())
            except OSError as problem:
                raise self._unwritable(problem) from problem
            finally:
                self._close()

    def write(self, result: GenerateLine) -> None:
        """Append a result as a line; OutputFileError if the file takes no more."""
        line = as_line(result)
        if self._file is None:
            sys.stdout.write(line)
            sys.stdout.flush()
            return
        try:
            write_all(self._file.fileno(), line.encode())
        except OSError as error:
            raise self._unwritable(error) from error

    def _resumed(self, file: BinaryIO) -> frozenset[Id]:
        """Return the ids of the whole lines, and truncate the file after the last of them."""
        ids: set[Id] = set()
        end, torn = 0, False
        with os.fdopen(os.dup(file.fileno()), "rb") as reader:
            for number, line in enumerate(reader, start=1):
                torn = not line.endswith(b"\n")
                record = self._parsed(line, number, torn)
                if record is None:
                    torn = False
                    break
                ids.add(self._checked_id(record, number))
                end += len(line)
        file.truncate(end)
        file.seek(end)
        if torn:
            write_all(file.fileno(), b"\n")
        return frozenset(ids)

    def _parsed(self, line: bytes, number: int, torn: bool) -> dict[str, object] | None:
        """Return the object on a line, None if the line is torn."""
        try:
            return parse_object(line, f"line {number} of {self._shown}", OutputFileError)
        except GptrsError as error:
            if torn:
                return None
            raise OutputFileError(
                f"{error.message}: the file holds other things than results",
                hint="name another file with --out",
            ) from error

    def _checked_id(self, record: dict[str, object], number: int) -> Id:
        found, model = record.get("id"), record.get("model")
        if isinstance(found, bool) or not isinstance(found, str | int):
            raise OutputFileError(
                f"line {number} of {self._shown} is no result: it has no `id`",
                hint="name another file with --out",
            )
        if model != self._model:
            raise OutputFileError(
                f"line {number} of {self._shown} is a result of the model {shown_value(model)},"
                f" not of `{self._model}`",
                hint="name another file with --out",
            )
        return found

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _unwritable(self, error: OSError) -> OutputFileError:
        return OutputFileError(f"cannot write {self._shown}: {error.strerror or error}")


def _opened(path: Path, shown: str) -> BinaryIO:
    """Open the regular file at `path`, made if missing, locked and unbuffered."""
    flags = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK
    file = os.fdopen(os.open(path, flags, 0o666), "r+b", buffering=0)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OutputFileError(f"cannot write {shown}: it is no regular file")
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise OutputFileError(f"another process writes to {shown}") from error
    return file
