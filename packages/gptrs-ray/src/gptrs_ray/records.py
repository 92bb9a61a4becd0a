"""Files of rows: JSON lines and Parquet, read and written in slices."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from gptrs.api import UsageError
from gptrs.checkpoint.files.open_file import open_regular
from gptrs.quoting import quoted
from gptrs.strict_json import parse_object
from gptrs_ray.failures import InputRowsError, OutputRowsError
from gptrs_ray.parquet import join_parquet, parquet_count, parquet_rows, write_parquet
from gptrs_ray.tasks import Row

LONGEST_LINE: Final = 16 << 20
"""Bytes."""
SUFFIXES: Final = (".jsonl", ".parquet")


def format_of(path: Path) -> str:
    """Return `.jsonl` or `.parquet`; UsageError for a name that ends otherwise."""
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise UsageError(
            f"{_shown(path)} is neither .jsonl nor .parquet", hint="give the file such a name"
        )
    return suffix


def digest_of(path: Path) -> str:
    """Return what tells the content of a file from any other; InputRowsError if it has none."""
    with _opened(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def slices(path: Path, rows: int) -> Iterator[list[Row]]:
    """Yield the rows of a file in order, `rows` at a time, the last ones maybe fewer.

    InputRowsError for a file that cannot be read or a line that is no object.
    """
    found = _json_rows(path) if format_of(path) == ".jsonl" else _parquet_rows(path, rows)
    while part := list(itertools.islice(found, rows)):
        yield part


def count_rows(path: Path) -> int:
    """Return how many rows a file has; errors as those of `slices`."""
    if format_of(path) == ".parquet":
        with _opened(path) as file:
            return parquet_count(path, file)
    with _opened(path) as file:
        return sum(1 for line in file if line.strip())


def write_rows(file: BinaryIO, suffix: str, rows: list[Row]) -> None:
    """Write rows as a whole file of the format `suffix`."""
    if suffix == ".jsonl":
        file.writelines(map(_line, rows))
        return
    write_parquet(file, rows)


def join(parts: list[Path], suffix: str, file: BinaryIO) -> None:
    """Write the rows of `parts`, files of the format `suffix`, as one file of it."""
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
            f"a row is nothing that JSON can say: {error}", hint="write .parquet"
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
