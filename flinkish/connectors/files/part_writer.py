"""Writes the part files of a file sink or a Delta sink: Parquet or lines of text."""

from __future__ import annotations

import abc
import copy
import io
from typing import Any, Callable, Optional, Union

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from flinkish.common.arrow_types import row_type_of_schema
from flinkish.common.flink_text import flink_text
from flinkish.common.serialization import (
    BulkWriterFactory,
    Encoder,
    RowDataBulkWriterFactory,
    SimpleStringEncoder,
)
from flinkish.common.typeinfo import RowTypeInfo
from flinkish.connectors.files.file_system import open_file_system
from flinkish.connectors.row_columns import RowsToColumns, fit_columns, short_repr
from flinkish.connectors.spi import SinkWriter, each_encoded
from flinkish.errors import ExternalError, InvalidJobError, UserError

_ROW_GROUP_ROWS = 128 * 1024
_BUFFER_ROWS = 2 * 1024


class PartFormat(BulkWriterFactory):
    """What a file sink asks of a format.  ``suffix`` ends the names of the files."""

    suffix = ""
    takes_columns = False

    @abc.abstractmethod
    def open(self, stream: Any) -> "PartFile":
        """Begin a file on a writable binary stream."""

    def with_record_type(self, record_type: Any) -> "PartFormat":
        """The format for records of this declared type."""
        return self


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

    def abort(self) -> None:
        """The file is given up and removed.  Called at most once, instead of ``close`` or after it has
        failed; the stream is closed by the caller afterwards."""


class PartSinkWriter(SinkWriter[Any]):
    """Writes one file after the other into the folder behind ``uri``.

    A subclass writes ``next_name``, calls ``finish_file`` where a file ends, and commits it.
    """

    def __init__(self, uri: str, part_format: PartFormat):
        self._format = part_format
        self._system, self._folder = open_file_system(uri)
        self._name = ""
        self._stream: Any = None
        self._file: Optional[PartFile] = None
        # Rows are kept until there are enough for a batch of columns; a line is written at once.
        self.keeps_values = part_format.takes_columns

    @abc.abstractmethod
    def next_name(self) -> str:
        """Of the file that is about to begin."""

    def written(self) -> None:
        """Called after each write to the open file; may finish it."""

    def _open(self) -> PartFile:
        self._name = self.next_name()
        self._system.create_dir(self._folder, recursive=True)
        self._stream = self._system.open_output_stream(f"{self._folder}/{self._name}")
        self._file = self._format.open(self._stream)
        return self._file

    def write(self, value: Any, timestamp_ms: Optional[int], watermark_ms: int) -> None:
        self.write_batch([value], None, watermark_ms)

    def write_batch(self, values: list[Any], timestamps_ms: Any, watermark_ms: int) -> None:
        if values:
            try:
                (self._file or self._open()).write_rows(values)
            except OSError as error:  # encoders are the user's; what they raise comes as a RecordError
                raise self._not_written(error) from error
            self.written()

    def write_columns(self, columns: Any, timestamps_ms: Any, watermark_ms: int) -> None:
        if columns.num_rows:
            try:
                (self._file or self._open()).write_columns(columns)
            except OSError as error:
                raise self._not_written(error) from error
            self.written()

    def _not_written(self, error: OSError) -> ExternalError:
        return ExternalError(
            f"could not write {self._folder}/{self._name}",
            why=str(error),
            do="see whether the disk is full, and whether the user that the slots run as may write there",
        )

    def finish_file(self) -> int:
        """Complete the open file; the next record begins another.  Returns its number of rows."""
        assert self._file is not None
        try:
            self._file.close()
            self._stream.close()
        except OSError as error:
            raise self._not_written(error) from error
        rows = self._file.rows
        self._file = self._stream = None
        return rows

    def close(self) -> None:
        """An unfinished file is removed; prepared ones are the committer's."""
        if self._stream is None:
            return
        stream, file, self._stream, self._file = self._stream, self._file, None, None
        path = f"{self._folder}/{self._name}"
        try:
            if file is not None:
                file.abort()
            stream.close()
        finally:
            if self._system.get_file_info(path).type == fs.FileType.File:  # abort may have come first
                self._system.delete_file(path)


def refuse_unwritable(part: PartFormat, kind: str) -> None:
    """Write an empty file into memory: types that the format has not, and options that it does not know, are refused in
    the driver.

    Raises:
        InvalidJobError: says which."""
    try:
        part.open(io.BytesIO()).close()
    except (pa.ArrowException, OSError, TypeError, ValueError) as error:
        raise InvalidJobError(
            f"could not write {kind} files", why=str(error), do="change the types of the schema, or the options"
        ) from error


class ParquetPart(PartFormat, RowDataBulkWriterFactory):
    """Parquet files, for ``FileSink.for_bulk_format``; ``ParquetSink`` is the short form.

    >>> sink = FileSink.for_bulk_format("out", ParquetPart({"name": pa.string(), "n": pa.int64()})).build()

    Args:
        schema: of the records: a ``pyarrow.Schema`` or a dict name -> type.
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
        refuse_unwritable(self, "Parquet")

    def get_row_type(self) -> RowTypeInfo:
        return row_type_of_schema(self.schema)

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

    def abort(self) -> None:
        # Else ``ParquetWriter.__del__`` writes a footer to a stream that is closed by then, and Python
        # prints that it could not.
        self._writer.is_open = False
        del self._writer


def row_format(encoder: Any) -> PartFormat:
    """The format of a callable (record to text or bytes: a line), of a PyFlink ``Encoder``, or of None:
    the record as text."""
    if isinstance(encoder, SimpleStringEncoder):
        return TextPart(None, encoder.charset)
    if isinstance(encoder, type) and issubclass(encoder, Encoder):
        raise InvalidJobError(
            f"could not use {encoder.__name__} as an encoder",
            why="it is a class",
            do=f"give an object: {encoder.__name__}()",
        )
    return EncoderPart(encoder) if isinstance(encoder, Encoder) else TextPart(encoder)


class TextPart(PartFormat):
    """A line a record.

    >>> sink = FileSink("out", TextPart(json.dumps))

    Args:
        encoder: makes text or bytes of a record: a callable, or an object with ``encode``; None:
            ``str``, and Flink's form for records of a declared type.
    """

    suffix = ""

    def __init__(self, encoder: Any = None, charset: str = "utf-8"):
        encode = encoder if callable(encoder) else getattr(encoder, "encode", None)
        if isinstance(encoder, str) or not (encoder is None or callable(encode)):
            raise InvalidJobError(
                f"could not use {encoder!r} as an encoder",
                why=f"it is of type {type(encoder).__name__}",
                do="give an Encoder, or a callable that makes text or bytes of a record",
            )
        self.encode: Optional[Callable[[Any], Union[str, bytes]]] = encode
        self.charset = charset
        self.record_type: Any = None

    def with_record_type(self, record_type: Any) -> "TextPart":
        typed = copy.copy(self)
        typed.record_type = record_type
        return typed

    def open(self, stream: Any) -> PartFile:
        return _TextFile(self, stream)


class _TextFile(PartFile):
    def __init__(self, part: TextPart, stream: Any):
        self._encode, self._charset = part.encode or flink_text(part.record_type), part.charset
        self._stream = stream

    def write_rows(self, rows: list[Any]) -> None:
        lines = each_encoded(self._encode, rows)
        charset = self._charset
        try:
            data = [line if isinstance(line, bytes) else line.encode(charset) for line in lines]
        except (AttributeError, UnicodeEncodeError):
            raise _no_line(rows, lines, charset) from None
        self._stream.write(b"\n".join(data) + b"\n")
        self.rows += len(rows)

    def close(self) -> None:
        """Every line is written already."""


def _no_line(rows: list[Any], lines: list[Any], charset: str) -> UserError:
    """What is wrong with the first of the lines that are no text or not of the charset."""
    for row, line in zip(rows, lines):
        try:
            if not isinstance(line, (str, bytes)):
                raise TypeError(f"the encoder made a {type(line).__name__} of it, not text or bytes")
            line if isinstance(line, bytes) else line.encode(charset)
        except (TypeError, UnicodeEncodeError) as error:
            return UserError(
                "could not write a record as a line of text",
                where=f"record {short_repr(row)}",
                why=str(error),
                do="let the encoder return text that the charset has, or bytes",
            )
    raise AssertionError("every line can be written")


class EncoderPart(PartFormat):
    """Records as a PyFlink ``Encoder`` of the user's writes them."""

    def __init__(self, encoder: Encoder):
        self.encoder = encoder

    def open(self, stream: Any) -> PartFile:
        return _EncodedFile(self.encoder, stream)


class _EncodedFile(PartFile):
    def __init__(self, encoder: Encoder, stream: Any):
        self._encode, self._stream = encoder.encode, stream

    def write_rows(self, rows: list[Any]) -> None:
        buffer = io.BytesIO()
        each_encoded(lambda row: self._encode(row, buffer), rows)
        self._stream.write(buffer.getvalue())
        self.rows += len(rows)

    def close(self) -> None:
        """Every record is written already."""


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

