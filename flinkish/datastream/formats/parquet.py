"""Parquet files: as columns by a row type, or as dicts by an Avro schema."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Sequence

from flinkish.common.arrow_types import arrow_schema_of
from flinkish.common.typeinfo import RowTypeInfo
from flinkish.connectors.files.avro_format import AvroParquetFormat, parquet_part_of_avro
from flinkish.connectors.files.formats import ParquetFormat
from flinkish.connectors.files.part_writer import ParquetPart
from flinkish.connectors.formats.avro_rows import AvroSchema
from flinkish.connectors.formats.csv_rows import check_row_type
from flinkish.errors import InvalidJobError

__all__ = ["AvroParquetReaders", "AvroParquetWriters", "ParquetBulkWriters", "ParquetColumnarRowInputFormat"]


class AvroParquetReaders:
    """Parquet files for ``FileSource.for_record_stream_format``; records are dicts."""

    @staticmethod
    def for_generic_record(schema: AvroSchema) -> AvroParquetFormat:
        return AvroParquetFormat(schema)


class AvroParquetWriters:
    """Parquet files for ``FileSink.for_bulk_format``, with the columns of an Avro schema; records are dicts or Rows."""

    @staticmethod
    def for_generic_record(schema: AvroSchema) -> ParquetPart:
        return parquet_part_of_avro(schema)


class ParquetColumnarRowInputFormat(ParquetFormat):
    """Parquet files for ``FileSource.for_bulk_file_format``; records are Rows, or columns where operators take them.

    Args:
        row_type: the columns to read, ``Types.ROW_NAMED``; others in the files are left out, and those that a file
            lacks are null, with a warning.
        hadoop_config: settings of a Java library; there is none here, so it must be empty.
        batch_size: rows of a batch at most.
        is_utc_timestamp: of files that hold times of the writer's zone (INT96); times here are in UTC, so the values
            are the same whatever is given.
        is_case_sensitive: False: a column is found whatever the case of its letters.
    """

    def __init__(
        self,
        row_type: RowTypeInfo,
        hadoop_config: Optional[Mapping[str, Any]] = None,
        batch_size: int = 2048,
        is_utc_timestamp: bool = False,
        is_case_sensitive: bool = True,
    ):
        self._row_type = check_row_type(row_type, "ParquetColumnarRowInputFormat()")
        for key in hadoop_config or ():
            raise _no_hadoop(key, "ParquetColumnarRowInputFormat()")
        super().__init__(
            self._row_type.get_field_names(),
            batch_size,
            schema=arrow_schema_of(self._row_type),
            case_sensitive=is_case_sensitive,
        )

    def produced_type(self) -> RowTypeInfo:
        return self._row_type


class ParquetBulkWriters:
    """Parquet files for ``FileSink.for_bulk_format``.

    >>> ParquetBulkWriters.for_row_type(Types.ROW_NAMED(["name", "n"], [Types.STRING(), Types.LONG()]))
    """

    @staticmethod
    def for_row_type(
        row_type: RowTypeInfo,
        hadoop_config: Optional[Mapping[str, Any]] = None,
        utc_timestamp: bool = False,
    ) -> ParquetPart:
        """
        Args:
            row_type: of the records, ``Types.ROW_NAMED``.
            hadoop_config: ``parquet.compression`` ("SNAPPY" when it is not given) and
                ``parquet.enable.dictionary`` are known.
            utc_timestamp: times are written as they are, in UTC, whatever is given.
        """
        schema = arrow_schema_of(check_row_type(row_type, "ParquetBulkWriters.for_row_type()"))
        options = known_options(
            hadoop_config,
            {
                "parquet.compression": ("compression", _compression),
                "parquet.enable.dictionary": ("use_dictionary", _as_bool),
            },
            "ParquetBulkWriters.for_row_type()",
        )
        return ParquetPart(schema, **options)


def known_options(
    given: Optional[Mapping[str, Any]], known: Mapping[str, tuple[str, Any]], call: str
) -> dict[str, Any]:
    """Settings of Java's writers as options of Arrow's.

    Args:
        known: key -> (name of the option, what makes its value).
    Raises:
        InvalidJobError: a key is not known."""
    options = {}
    for key, value in (given or {}).items():
        if key not in known:
            raise _no_hadoop(key, call, known)
        name, convert = known[key]
        options[name] = convert(value)
    return options


def _compression(value: Any) -> str:
    return {"uncompressed": "none"}.get(str(value).lower(), str(value).lower())


def _as_bool(value: Any) -> bool:
    return str(value).lower() == "true"


def _no_hadoop(key: str, call: str, known: Sequence[str] | Mapping[str, Any] = ()) -> InvalidJobError:
    return InvalidJobError(
        f"{call} cannot use the setting {key!r}",
        why="it is one of a Java library, and files are read and written by Arrow here",
        do=f"known are {', '.join(known)}" if known else "leave it out",
    )
