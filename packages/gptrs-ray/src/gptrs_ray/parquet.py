"""Parquet files of rows; pyarrow is untyped, so only this module uses it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import pyarrow
import pyarrow.parquet

from gptrs.quoting import quoted
from gptrs_ray.cluster import InputRowsError, OutputRowsError
from gptrs_ray.tasks import Row

_ARROW: Final[Any] = pyarrow
_PARQUET: Final[Any] = pyarrow.parquet
_AT_ONCE: Final = 1024
"""Rows in memory."""
_PROBLEMS: Final = (cast("type[Exception]", _ARROW.ArrowException), OSError)


def parquet_rows(path: Path, file: BinaryIO) -> Iterator[Row]:
    """Yield the rows of an open file; InputRowsError if it is damaged."""
    with _read(path):
        for batch in _PARQUET.ParquetFile(file).iter_batches(batch_size=_AT_ONCE):
            yield from cast("list[Row]", batch.to_pylist())


def write_parquet(file: BinaryIO, rows: Callable[[], Iterable[Row]]) -> None:
    """Write rows as a complete file; `rows` is called twice.

    Types are inferred from the values of all rows: a column may begin with nulls. Columns that a
    row lacks are null. OutputRowsError if a column has values of types that do not go together.
    """
    try:
        schemas = [table.schema for table in _tables(rows())]
        # `permissive` lets integers become floats where later rows have some; a column of a type
        # that only begins with nulls gets that type.
        schema = _ARROW.unify_schemas(schemas, promote_options="permissive")
        with _PARQUET.ParquetWriter(file, schema) as writer:
            for table in _tables(rows()):
                writer.write_table(_fitted(table, schema))
    except _ARROW.ArrowException as error:
        said = str(error).strip().splitlines()[0]
        raise OutputRowsError(
            f"the rows do not fit one table: {said}", hint="write .jsonl"
        ) from error


def _tables(rows: Iterable[Row]) -> Iterator[Any]:
    """Yield tables of some rows each; a table has the columns of all of its rows."""
    rest = iter(rows)
    while part := list(itertools.islice(rest, _AT_ONCE)):
        names = dict.fromkeys(name for row in part for name in row)
        yield _ARROW.table({name: [row.get(name) for row in part] for name in names})


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
        said = (str(error).strip() or "it is not a Parquet file").splitlines()[0]
        raise InputRowsError(f"cannot read {quoted(str(path), 200)}: {said}") from error
