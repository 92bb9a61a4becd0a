"""Parquet files of rows; pyarrow is untyped, so only this module uses it."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import pyarrow
import pyarrow.parquet

from gptrs.quoting import quoted
from gptrs_ray.cluster import InputRowsError
from gptrs_ray.tasks import Row

_ARROW: Final[Any] = pyarrow
_PARQUET: Final[Any] = pyarrow.parquet
_PROBLEMS: Final = (cast("type[Exception]", _ARROW.ArrowException), OSError)


def parquet_rows(path: Path, file: BinaryIO, count: int) -> Iterator[Row]:
    """Yield the rows of an open file, `count` at a time; InputRowsError if it is damaged."""
    with _read(path):
        for batch in _PARQUET.ParquetFile(file).iter_batches(batch_size=count):
            yield from cast("list[Row]", batch.to_pylist())


def parquet_count(path: Path, file: BinaryIO) -> int:
    """Return the number of rows of an open file; InputRowsError if it is damaged."""
    with _read(path):
        return cast("int", _PARQUET.ParquetFile(file).metadata.num_rows)


def write_parquet(file: BinaryIO, rows: list[Row]) -> None:
    """Write rows as a complete file; column types are inferred from the values."""
    _PARQUET.write_table(_ARROW.Table.from_pylist(rows), file)


def join_parquet(parts: list[Path], file: BinaryIO) -> None:
    """Join files of rows into one; columns that a file lacks are null."""
    schemas = [_PARQUET.read_schema(part) for part in parts]
    schema = _ARROW.unify_schemas(schemas, promote_options="permissive")
    with _PARQUET.ParquetWriter(file, schema) as writer:
        for part in parts:
            writer.write_table(_fitted(_PARQUET.read_table(part), schema))


def _fitted(table: Any, schema: Any) -> Any:
    """Return a table with all columns of `schema`; missing ones are null."""
    for field in schema:
        if field.name not in table.column_names:
            table = table.append_column(field, _ARROW.nulls(len(table), field.type))
    return table.select(schema.names).cast(schema)


@contextmanager
def _read(path: Path) -> Generator[None]:
    """Scope that reads a file; InputRowsError if it is invalid."""
    try:
        yield
    except _PROBLEMS as error:
        said = (str(error).strip() or "it is no Parquet file").splitlines()[0]
        raise InputRowsError(f"cannot read {quoted(str(path), 200)}: {said}") from error
