"""Writes the part files of a file sink or a Delta sink: Parquet or lines of text."""

from __future__ import annotations

import abc
from typing import Any, Callable, Union

import pyarrow as pa
import pyarrow.parquet as pq

from flinkish.connectors.row_columns import RowsToColumns, fit_columns
from flinkish.errors import InvalidJobError

_ROW_GROUP_ROWS = 128 * 1024
_BUFFER_ROWS = 2 * 1024


class PartFormat(abc.ABC):
    """What a file sink asks of a format.  ``suffix`` ends the names of the files."""

    suffix = ""
    takes_columns = False

    @abc.abstractmethod
    def open(self, stream: Any) -> "PartFile":
        """Begin a file on a writable binary stream."""


class PartFile(abc.ABC):
    """One file that is being written."""

    rows = 0

    @abc.abstractmethod
    def write_rows(self, rows: list[Any]) -> None: ...

    def write_columns(self, columns: pa.RecordBatch) -> None:
        raise TypeError("this format takes no columns")

    @abc.abstractmethod
    def close(self) -> None:
        """Complete the file.  The stream is closed by the caller."""


class ParquetPart(PartFormat):
    """Parquet files.

    Args:
        schema: of the records.
        file_schema: of the files, when it has other types (Delta: timestamps in microseconds).
        options: for ``pyarrow.parquet.ParquetWriter``.
    """

    suffix = ".parquet"
    takes_columns = True

    def __init__(
        self, schema: Any, compression: str = "snappy", file_schema: Any = None, **options: Any
    ):
        self.schema = as_schema(schema)
        self.file_schema = self.schema if file_schema is None else as_schema(file_schema)
        RowsToColumns(self.schema)  # refuses a bad schema in the driver
        self.options = {"compression": compression, **options}

    def open(self, stream: Any) -> PartFile:
        return _ParquetFile(self, stream)


class _ParquetFile(PartFile):
    """Rows become columns ``_BUFFER_ROWS`` at a time, columns a row group of ``_ROW_GROUP_ROWS``."""

    def __init__(self, part: ParquetPart, stream: Any):
        self._schema = part.file_schema
        self._convert = RowsToColumns(part.schema).convert
        self._writer = pq.ParquetWriter(stream, part.file_schema, **part.options)
        self._rows: list[Any] = []
        self._batches: list[pa.RecordBatch] = []
        self._batch_rows = 0

    def write_rows(self, rows: list[Any]) -> None:
        self._rows += rows
        self.rows += len(rows)
        if len(self._rows) >= _BUFFER_ROWS:
            self._convert_rows()

    def _convert_rows(self) -> None:
        if self._rows:
            rows, self._rows = self._rows, []
            self._add(fit_columns(self._convert(rows), self._schema))

    def write_columns(self, columns: pa.RecordBatch) -> None:
        self._convert_rows()  # keeps the order
        self.rows += columns.num_rows
        self._add(fit_columns(columns, self._schema))

    def _add(self, batch: pa.RecordBatch) -> None:
        self._batches.append(batch)
        self._batch_rows += batch.num_rows
        if self._batch_rows >= _ROW_GROUP_ROWS:
            self._write_row_group()

    def _write_row_group(self) -> None:
        if self._batches:
            table = pa.Table.from_batches(self._batches, self._schema)
            self._writer.write_table(table, row_group_size=_ROW_GROUP_ROWS)
            self._batches, self._batch_rows = [], 0

    def close(self) -> None:
        self._convert_rows()
        self._write_row_group()
        self._writer.close()


class TextPart(PartFormat):
    """A line a record.

    Args:
        encoder: makes text or bytes of a record: a callable, or an object with ``encode``; None:
            ``str``.  A PyFlink ``Encoder`` with ``charset_name`` does too.
    """

    suffix = ""

    def __init__(self, encoder: Any = None, charset: str = "utf-8"):
        self.encode: Callable[[Any], Union[str, bytes]] = getattr(encoder, "encode", encoder) or str
        self.charset = charset

    def open(self, stream: Any) -> PartFile:
        return _TextFile(self, stream)


class _TextFile(PartFile):
    def __init__(self, part: TextPart, stream: Any):
        self._encode, self._charset = part.encode, part.charset
        self._stream = stream

    def write_rows(self, rows: list[Any]) -> None:
        lines = map(self._encode, rows)
        charset = self._charset
        data = [line if isinstance(line, bytes) else line.encode(charset) for line in lines]
        self._stream.write(b"\n".join(data) + b"\n")
        self.rows += len(rows)

    def close(self) -> None:
        """Every line is written already."""


def as_schema(schema: Any) -> pa.Schema:
    """A ``pyarrow.Schema`` from one, from a mapping name -> type, or from (name, type) pairs."""
    if isinstance(schema, pa.Schema):
        return schema
    try:
        return pa.schema(schema)
    except (TypeError, ValueError, pa.ArrowException) as error:
        raise InvalidJobError(
            "could not use the schema of the sink",
            why=f"{type(error).__name__}: {error}",
            do='give a pyarrow.schema, or a dict such as {"name": pyarrow.string()}',
        ) from error

