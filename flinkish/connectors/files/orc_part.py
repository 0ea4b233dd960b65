"""ORC files of a file sink."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyarrow import orc

from flinkish.common.arrow_types import row_type_of_schema
from flinkish.common.serialization import RowDataBulkWriterFactory
from flinkish.common.typeinfo import RowTypeInfo
from flinkish.connectors.files.part_writer import PartFile, PartFormat, as_schema, refuse_unwritable
from flinkish.connectors.row_columns import RowsToColumns, fit_columns

_BUFFER_ROWS = 2 * 1024


class OrcPart(PartFormat, RowDataBulkWriterFactory):
    """ORC files, for ``FileSink.for_bulk_format``.

    >>> sink = FileSink.for_bulk_format("out", OrcPart({"name": pa.string(), "n": pa.int64()})).build()

    Args:
        schema: of the records: a ``pyarrow.Schema`` or a dict name -> type.
        compression: "uncompressed", "zlib", "snappy", "lz4" or "zstd".
        options: for ``pyarrow.orc.ORCWriter``.
    """

    suffix = ".orc"
    takes_columns = True

    def __init__(self, schema: Any, compression: str = "zlib", **options: Any):
        self.schema = as_schema(schema)
        RowsToColumns(self.schema)  # refuses a bad schema in the driver
        self.options = {"compression": compression, **options}
        refuse_unwritable(self, "ORC")

    def get_row_type(self) -> RowTypeInfo:
        return row_type_of_schema(self.schema)

    def open(self, stream: Any) -> PartFile:
        return _OrcFile(self, stream)


class _OrcFile(PartFile):
    """Rows become columns ``_BUFFER_ROWS`` at a time; ORC gathers them into stripes itself."""

    def __init__(self, part: OrcPart, stream: Any):
        self._schema = part.schema
        self._convert = RowsToColumns(part.schema).convert
        self._writer = orc.ORCWriter(stream, **part.options)
        self._rows: list[Any] = []

    def write_rows(self, rows: list[Any]) -> None:
        self._rows += rows
        self.rows += len(rows)
        if len(self._rows) >= _BUFFER_ROWS:
            self._convert_rows()

    def _convert_rows(self) -> None:
        if self._rows:
            rows, self._rows = self._rows, []
            self._write(self._convert(rows))

    def write_columns(self, columns: pa.RecordBatch) -> None:
        self._convert_rows()  # keeps the order
        self.rows += columns.num_rows
        self._write(columns)

    def _write(self, columns: pa.RecordBatch) -> None:
        self._writer.write(pa.Table.from_batches([fit_columns(columns, self._schema)]))

    def close(self) -> None:
        self._convert_rows()
        if not self.rows:
            self._writer.write(self._schema.empty_table())  # the columns, in a file without rows
        self._writer.close()
