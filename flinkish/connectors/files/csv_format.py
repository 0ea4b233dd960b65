"""CSV files: read as columns by Arrow, written line by line.

    FileSource("in/*.csv", format="csv", columns={"key": Types.STRING(), "n": Types.LONG()}, header=True)
    FileSource.for_record_stream_format(CsvReaderFormat.for_schema(schema), "in.csv").build()      # PyFlink's
"""

from __future__ import annotations

import base64
import codecs
import decimal
import io
from typing import Any, Iterator, Mapping, Optional, Sequence, Union

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from flinkish.common.arguments import check_argument
from flinkish.common.arrow_types import arrow_schema_of
from flinkish.common.serialization import RowDataBulkWriterFactory
from flinkish.common.typeinfo import RowTypeInfo, Types
from flinkish.connectors.files.file_system import FoundFile, open_file_system
from flinkish.connectors.files.formats import (
    ColumnBatchReader,
    FileSplit,
    StreamFormat,
    compression_of,
    is_event_time,
    naming,
    one_split_a_file,
    refuse_changed,
)
from flinkish.connectors.files.part_writer import PartFile, PartFormat
from flinkish.connectors.formats.csv_rows import CsvDialect, CsvRowWriter, check_row_type
from flinkish.connectors.spi import SourceReader, SourceReaderContext, each_encoded
from flinkish.errors import InvalidJobError, UserError

_BLOCK_BYTES = 1 << 20
_BLOCK_BYTES_MAX = 1 << 30  # Arrow's is below 2 GB


class CsvFormat(StreamFormat):
    """CSV files as column batches; a file is read by one reader.

    >>> source = FileSource("in/*.csv", format=CsvFormat({"key": Types.STRING(), "n": Types.LONG()}, header=True))

    Args:
        columns: what stands in the files, in this order: a ``RowTypeInfo``, or name -> type.
        dialect: separators, quotes, nulls; None: ``a,"b"`` with no text for null.
        header: the first line names the columns and is no record.
        strict_header: and must be ``columns``.
        skip_first_row: leave out the first line behind the header.
        timestamp_column: a timestamp or integer (ms) column that gives the event times.
        block_bytes: of text that become a batch; more where a line is longer, up to 1 GB.
    Raises:
        InvalidJobError: columns are missing or of types that lines cannot hold.
    """

    gives_columns = True

    def __init__(
        self,
        columns: Union[RowTypeInfo, Mapping[str, Any], None] = None,
        dialect: Optional[CsvDialect] = None,
        header: bool = False,
        strict_header: bool = False,
        skip_first_row: bool = False,
        timestamp_column: Optional[str] = None,
        block_bytes: int = _BLOCK_BYTES,
    ):
        if isinstance(columns, Mapping):
            columns = RowTypeInfo(list(columns.values()), list(columns))
        self.row_type = check_row_type(columns, "CsvFormat()")
        if not self.row_type.get_field_names():
            raise InvalidJobError("could not read CSV", why="no columns are declared", do="name them with their types")
        self.dialect = check_argument(dialect or CsvDialect(), CsvDialect, "CsvFormat()", "dialect")
        self.header, self.strict_header = header or strict_header, strict_header
        self.skip_first_row = skip_first_row
        self.timestamp_column, self.block_bytes = timestamp_column, block_bytes
        names = self.row_type.get_field_names()
        if timestamp_column is not None and timestamp_column not in names:
            raise InvalidJobError(
                f"could not find the column {timestamp_column!r}", why=f"the columns are {', '.join(names)}"
            )
        for field in arrow_schema_of(self.row_type):  # refuses in the driver what has no column
            if pa.types.is_struct(field.type) or pa.types.is_map(field.type):
                raise InvalidJobError(
                    f'could not read the column "{field.name}" of CSV as {field.type}',
                    do="declare a number, text, boolean, date, time, bytes or an array of them",
                )
            if field.name == timestamp_column and not is_event_time(field.type):
                raise InvalidJobError(
                    f"could not take the event times from the column {timestamp_column!r}",
                    why=f"its type is {field.type}",
                    do="use a timestamp, a date, or whole numbers of ms since the epoch",
                )

    def produced_type(self) -> RowTypeInfo:
        return self.row_type

    def find_splits(self, files: Sequence[FoundFile], parallelism: int) -> list[FileSplit]:
        return one_split_a_file(files)

    def create_reader(self, context: SourceReaderContext) -> SourceReader[Any, FileSplit]:
        return _CsvReader(context, self)


class _CsvReader(ColumnBatchReader):
    kind = "CSV"

    def __init__(self, context: SourceReaderContext, csv_format: CsvFormat):
        super().__init__(context, csv_format.timestamp_column)
        self._format = csv_format
        self._schema = arrow_schema_of(csv_format.row_type)
        self._stream: Any = None

    def open_batches(self, split: FileSplit) -> tuple[Iterator[Any], int]:
        with naming(split.uri, "CSV", lambda: "its first lines"):
            return self._open(split), split.skip

    def _open(self, split: FileSplit) -> Iterator[Any]:
        system, path = open_file_system(split.uri)
        size = system.get_file_info(path).size
        if split.file_bytes not in (-1, size):
            refuse_changed(split, "CSV", f"it had {split.file_bytes} bytes, now {size}")
        form = self._format
        if form.strict_header:
            self._check_header(system, path, split.uri)
        return self._batches_of(system, path, split.uri)

    def _batches_of(self, system: Any, path: str, uri: str) -> Iterator[pa.RecordBatch]:
        """A line that is longer than a block is read again with larger ones, behind the rows before it."""
        given, block_bytes = 0, self._format.block_bytes
        while True:
            try:
                known = given
                for batch in self._parsed(system, path, uri, block_bytes):
                    rows = batch.num_rows
                    if known < rows:
                        given += rows - known
                        yield self._typed(batch.slice(known))
                    known = max(known - rows, 0)
                return
            except ValueError as error:  # Arrow's are too
                if "straddling" in str(error) and block_bytes < _BLOCK_BYTES_MAX:
                    self.close_file()
                    block_bytes = min(16 * block_bytes, _BLOCK_BYTES_MAX)
                    continue
                if "conversion error" in str(error):
                    do = "declare for that column the type that its values have (a STRING takes any), or the text for null; or "
                    do += "correct the value in the file"
                else:
                    do = "correct the file, or what is declared: the columns and their types, the separator, quotes, the text "
                    do += "for null"
                raise UserError(f"could not read {uri} as CSV", where=self.place(), why=str(error), do=do) from error

    def _parsed(self, system: Any, path: str, uri: str, block_bytes: int) -> Iterator[pa.RecordBatch]:
        form = self._format
        self._stream = self._text(system, path, uri)
        dialect = form.dialect
        rows_before = int(form.header) + int(form.skip_first_row)
        try:
            return csv.open_csv(
                self._stream,
                csv.ReadOptions(
                    use_threads=False,
                    block_size=block_bytes,
                    column_names=self._schema.names,
                    skip_rows_after_names=rows_before,
                ),
                csv.ParseOptions(
                    delimiter=dialect.separator,
                    quote_char=dialect.quote or False,
                    escape_char=False if dialect.escape in (None, dialect.quote) else dialect.escape,
                    newlines_in_values=dialect.quote is not None,
                    ignore_empty_lines=len(self._schema) > 1,
                ),
                csv.ConvertOptions(
                    column_types={field.name: _read_as(field.type) for field in self._schema},
                    null_values=[] if dialect.null_value is None else [dialect.null_value],
                    strings_can_be_null=dialect.null_value is not None,
                    true_values=["true", "True", "TRUE"],
                    false_values=["false", "False", "FALSE"],
                ),
            )
        except pa.ArrowInvalid as error:
            if "Empty CSV file" in str(error):  # comments only
                return iter(())
            raise

    def _text(self, system: Any, path: str, uri: str) -> Any:
        stream = system.open_input_stream(path, compression=compression_of(uri))
        return pa.PythonFile(_WithoutComments(stream)) if self._format.dialect.comments else stream

    def _check_header(self, system: Any, path: str, uri: str) -> None:
        with self._text(system, path, uri) as stream:
            with io.TextIOWrapper(stream, "utf-8-sig", newline="") as lines:
                found = self._format.dialect.fields_of(lines.readline())
        if found != self._schema.names:
            raise UserError(
                f"could not read {uri} as CSV",
                where="its header",
                why=f"it names {', '.join(found)}, the schema {', '.join(self._schema.names)}",
                do="correct the schema, or leave strict headers out",
            )

    def _typed(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        dialect = self._format.dialect
        columns = [
            _as(column, field.type, dialect.separator_of(field.name), dialect.null_value)
            for column, field in zip(batch.columns, self._schema)
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def close_file(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


def _read_as(kind: pa.DataType) -> pa.DataType:
    """What Arrow's parser reads; the rest is made of texts by ``_as``."""
    special = pa.types.is_list(kind) or pa.types.is_decimal(kind) or pa.types.is_binary(kind)
    return pa.string() if special else kind


def _as(column: pa.Array, kind: pa.DataType, separator: str, null: Optional[str]) -> pa.Array:
    if column.type.equals(kind):
        return column
    if pa.types.is_list(kind):
        return _lists(column, kind, separator, null)
    if pa.types.is_decimal(kind):
        return pa.array([None if v is None else _decimal(v, kind.scale) for v in column.to_pylist()], kind)
    if pa.types.is_binary(kind):
        values = column.to_pylist()
        return pa.array([None if v is None else base64.b64decode(v, validate=True) for v in values], kind)
    return pc.utf8_trim_whitespace(column).cast(kind)


def _decimal(text: str, scale: int) -> decimal.Decimal:
    """Rounded half up to the digits of the column, as Flink does."""
    try:
        value = decimal.Decimal(text.strip())
        return value.quantize(decimal.Decimal(1).scaleb(-scale), decimal.ROUND_HALF_UP, _WIDE)
    except decimal.InvalidOperation:
        raise ValueError(f"{text!r} is no decimal number, or too large") from None


_WIDE = decimal.Context(prec=76)


def _lists(column: pa.Array, kind: pa.DataType, separator: str, null: Optional[str]) -> pa.Array:
    """Texts cut at the separator; an empty text is an empty list."""
    parts = pc.split_pattern(column, separator) if separator else pa.array([[v] for v in column.to_pylist()])
    items = parts.values
    empty = pc.equal(column, "")
    if pc.any(empty).as_py():
        rows = [[] if text == "" else row for text, row in zip(column.to_pylist(), parts.to_pylist())]
        parts = pa.array(rows, pa.list_(pa.string()))
        items = parts.values
    if null is not None:
        items = pc.if_else(pc.equal(items, null), None, items)
    typed = _as(items, kind.value_type, "", null)
    mask = column.is_null() if column.null_count else None
    return pa.ListArray.from_arrays(parts.offsets, typed, kind, mask=mask)


class _WithoutComments(io.RawIOBase):
    """Bytes of ``stream`` without the lines that begin with ``#``."""

    def __init__(self, stream: Any):
        buffered = io.BufferedReader(stream)
        if buffered.peek(3).startswith(codecs.BOM_UTF8):
            buffered.read(3)
        self._lines = iter(buffered.readline, b"")
        self._stream = stream
        self._rest = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            line = next(self._lines, None)
            if line is None:
                return 0
            if not line.startswith(b"#"):
                self._rest = line
        count = min(len(buffer), len(self._rest))
        buffer[:count], self._rest = self._rest[:count], self._rest[count:]
        return count

    def close(self) -> None:
        self._stream.close()
        super().close()


class CsvPart(PartFormat, RowDataBulkWriterFactory):
    """Records as lines of CSV, for ``FileSink.for_bulk_format``.

    >>> sink = FileSink.for_bulk_format("out", CsvPart({"key": Types.STRING(), "n": Types.LONG()})).build()

    Args:
        columns: a ``RowTypeInfo``, or name -> type.
        header: begin each file with the names of the columns.
    """

    suffix = ".csv"

    def __init__(
        self,
        columns: Union[RowTypeInfo, Mapping[str, Any]],
        dialect: Optional[CsvDialect] = None,
        header: bool = False,
    ):
        if isinstance(columns, Mapping):
            columns = RowTypeInfo(list(columns.values()), list(columns))
        self.row_type = check_row_type(columns, "CsvPart()")
        self.dialect, self.header = dialect or CsvDialect(), header
        CsvRowWriter(self.row_type, self.dialect)  # refuses bad types in the driver

    def get_row_type(self) -> RowTypeInfo:
        return self.row_type

    def open(self, stream: Any) -> PartFile:
        return _CsvFile(self, stream)


class _CsvFile(PartFile):
    def __init__(self, part: CsvPart, stream: Any):
        self._line, self._stream = CsvRowWriter(part.row_type, part.dialect).line, stream
        if part.header:
            names = part.row_type.get_field_names()
            texts = RowTypeInfo([Types.STRING()] * len(names), names)
            stream.write(CsvRowWriter(texts, part.dialect).line(tuple(names)).encode("utf-8"))

    def write_rows(self, rows: list[Any]) -> None:
        self._stream.write("".join(each_encoded(self._line, rows)).encode("utf-8"))
        self.rows += len(rows)

    def close(self) -> None:
        """Every line is written already."""
