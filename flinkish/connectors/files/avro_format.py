"""Avro files, and Parquet files whose records are described by an Avro schema.  Records are dicts, as Avro's Python
libraries have them."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Callable, Iterator, Optional, Sequence

import pyarrow as pa

from flinkish.common.arguments import check_argument
from flinkish.common.arrow_types import arrow_type_of
from flinkish.common.basic_types import TypeInformation
from flinkish.connectors.files.file_system import FoundFile, open_file_system
from flinkish.connectors.files.formats import (
    FileSplit,
    ParquetFormat,
    ParquetReader,
    StreamFormat,
    naming,
    one_split_a_file,
    refuse_changed,
)
from flinkish.connectors.files.part_writer import ParquetPart, PartFile, PartFormat, refuse_unwritable
from flinkish.connectors.formats.avro_rows import (
    TIMESTAMPS,
    AvroSchema,
    avro_of_rows,
    fastavro_module,
    not_written,
    type_of_avro,
    type_of_avro_field,
)
from flinkish.connectors.spi import SourceReader, SourceReaderContext
from flinkish.connectors.split_assignment import SequentialSplitReader
from flinkish.errors import FlinkishError, UserError

_READ_BATCH = 1_000


class GenericRecordAvroTypeInfo(TypeInformation):
    """Records of an Avro schema, as dicts."""

    def __init__(self, schema: AvroSchema):
        self._schema = check_argument(schema, AvroSchema, "GenericRecordAvroTypeInfo()", "schema")

    def _mismatch(self, value: Any) -> str:
        return "" if hasattr(value, "keys") else f"expected a dict, got {type(value).__name__}"

    def to_text(self, value: Any) -> str:
        """JSON, as Avro's own records in Java."""
        return json.dumps(value, ensure_ascii=False, default=str)

    def _parts(self) -> tuple:
        return (str(self._schema),)

    def __repr__(self) -> str:
        return f"avro<{self._schema.schema.get('name', 'record')}>"


class AvroFormat(StreamFormat):
    """Avro's container files; a file is read by one reader.

    >>> source = FileSource("rides/*.avro", format=AvroFormat(AvroSchema.parse_file("ride.avsc")))

    Args:
        schema: what the records are read as (Avro's schema resolution: other names, defaults, wider numbers); None:
            as they were written.
    """

    def __init__(self, schema: Optional[AvroSchema] = None):
        if schema is not None:
            check_argument(schema, AvroSchema, "AvroFormat()", "schema")
        self.schema = schema
        fastavro_module()

    def produced_type(self) -> Any:
        return None if self.schema is None else GenericRecordAvroTypeInfo(self.schema)

    def find_splits(self, files: Sequence[FoundFile], parallelism: int) -> list[FileSplit]:
        return one_split_a_file(files)

    def create_reader(self, context: SourceReaderContext) -> SourceReader[Any, FileSplit]:
        return _AvroReader(context, self)


@contextmanager
def _naming(uri: str, where: Callable[[], str]) -> Iterator[None]:
    """As ``naming``; what is no Avro makes fastavro raise errors of every class, and schemas that do not fit one of its own."""
    try:
        with naming(uri, "Avro", where):
            yield
    except FlinkishError:
        raise
    except Exception as error:
        raise UserError(
            f"could not read {uri} as Avro",
            where=where(),
            why=f"{type(error).__name__}: {error}",
            do="see that the file was copied in full, and that the schema it is read by fits the one it was written by",
        ) from error


class _AvroReader(SequentialSplitReader[Any, FileSplit]):
    def __init__(self, context: SourceReaderContext, avro_format: AvroFormat):
        super().__init__(context)
        self._schema = None if avro_format.schema is None else avro_format.schema.parsed
        self._file: Any = None
        self._records: Iterator[Any] = iter(())
        self._given = 0

    def _where(self) -> str:
        return f"after record {self._given}"

    def open_split(self, split: FileSplit) -> None:
        system, path = open_file_system(split.uri)
        self._given = 0
        with _naming(split.uri, lambda: "its header"):
            self._file = system.open_input_file(path)
            size = self._file.size()
            if split.file_bytes not in (-1, size):
                refuse_changed(split, "Avro", f"it had {split.file_bytes} bytes, now {size}")
            blocks = fastavro_module().block_reader(self._file, self._schema)
        self._records = self._behind(blocks, split.skip)
        self._given = split.skip

    @staticmethod
    def _behind(blocks: Any, skip: int) -> Iterator[Any]:
        """Whole blocks are passed over without being decoded."""
        for block in blocks:
            if skip >= block.num_records:
                skip -= block.num_records
                continue
            for record in block:
                if skip:
                    skip -= 1
                else:
                    yield record

    def read(self, output: Any, room: int) -> bool:
        batch: list[Any] = []
        limit = min(room, _READ_BATCH)
        with _naming(self._current.uri, self._where):
            for record in self._records:
                batch.append(record)
                if len(batch) == limit:
                    break
        if not batch:
            return False
        output.collect_batch(batch)
        self._given += len(batch)
        return True

    def position(self) -> FileSplit:
        return replace(self._current, skip=self._given)

    def close_split(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        self._records = iter(())


class AvroPart(PartFormat):
    """Avro's container files, for ``FileSink.for_bulk_format``; takes dicts, Rows and tuples.

    >>> sink = FileSink.for_bulk_format("out", AvroPart(AvroSchema.parse_file("ride.avsc"))).build()

    Args:
        codec: how blocks are compressed: "null", "deflate" ...; "snappy" and "zstandard" need their packages.
    """

    suffix = ".avro"

    def __init__(self, schema: AvroSchema, codec: str = "null"):
        self.schema = check_argument(schema, AvroSchema, "AvroPart()", "schema")
        schema.fields  # refuses in the driver what is no record
        self.codec = codec
        refuse_unwritable(self, "Avro")

    def open(self, stream: Any) -> PartFile:
        return _AvroFile(self, stream)


class _AvroFile(PartFile):
    def __init__(self, part: AvroPart, stream: Any):
        self._record = avro_of_rows(part.schema)
        self._writer = fastavro_module().write.Writer(stream, part.schema.parsed, codec=part.codec)

    def write_rows(self, rows: list[Any]) -> None:
        writer = self._writer
        for row in rows:
            try:
                writer.write(self._record(row))
            except (ValueError, TypeError, AttributeError, KeyError, OverflowError) as error:
                raise not_written(row, error) from error
        self.rows += len(rows)

    def close(self) -> None:
        self._writer.flush()


# ---- Parquet by an Avro schema ------------------------------------------------------------------


class AvroParquetFormat(StreamFormat):
    """Parquet files as dicts with the fields of ``schema``."""

    def __init__(self, schema: AvroSchema):
        self.schema = check_argument(schema, AvroSchema, "AvroParquetReaders.for_generic_record()", "schema")
        self._parquet = ParquetFormat(columns=[field["name"] for field in schema.fields])

    def produced_type(self) -> Any:
        return GenericRecordAvroTypeInfo(self.schema)

    def find_splits(self, files: Sequence[FoundFile], parallelism: int) -> list[FileSplit]:
        return self._parquet.with_whole_files(self.whole_files).find_splits(files, parallelism)

    def create_reader(self, context: SourceReaderContext) -> SourceReader[Any, FileSplit]:
        return _AvroParquetReader(context, self._parquet, list(_unions(self.schema)))


class _AvroParquetReader(ParquetReader):
    def __init__(self, context: SourceReaderContext, parquet_format: ParquetFormat, unions: list[str]):
        super().__init__(context, parquet_format)
        self._unions = unions

    def emit(self, batch: Any, times: Any, output: Any) -> None:
        # An option of pyarrow 19: it is asked for only where it is needed.
        options = {"maps_as_pydicts": "lossy"} if any(_has_map(field.type) for field in batch.schema) else {}
        records = pa.Table.from_batches([batch]).to_pylist(**options)
        for name in self._unions:
            for record in records:
                if record[name] is not None:
                    record[name] = next((value for value in record[name].values() if value is not None), None)
        output.collect_batch(records)


def _has_map(kind: pa.DataType) -> bool:
    return pa.types.is_map(kind) or any(_has_map(kind.field(i).type) for i in range(kind.num_fields))


def parquet_part_of_avro(schema: AvroSchema) -> ParquetPart:
    """Parquet files with the columns of ``schema``."""
    row_type = type_of_avro(check_argument(schema, AvroSchema, "for_generic_record()", "schema"))
    columns = pa.schema([_field(t, spec) for t, spec in zip(row_type.get_field_types(), schema.fields)])
    return _UnionParquetPart(columns, schema) if _unions(schema) else ParquetPart(columns)


def _unions(schema: AvroSchema) -> dict[str, list]:
    """Fields of several types -> these types, without null."""
    kinds = {field["name"]: field["type"] for field in schema.fields}
    branches = {name: [b for b in kind if b != "null"] for name, kind in kinds.items() if isinstance(kind, list)}
    return {name: found for name, found in branches.items() if len(found) > 1}


class _UnionParquetPart(ParquetPart):
    """With unions as Java's ``parquet-avro`` writes them: a struct with a member for each type, of which one is not null."""

    takes_columns = False

    def __init__(self, columns: pa.Schema, schema: AvroSchema):
        self._avro = schema
        super().__init__(columns)

    def open(self, stream: Any) -> PartFile:
        return _UnionFile(super().open(stream), self._avro)


class _UnionFile(PartFile):
    def __init__(self, parquet: PartFile, schema: AvroSchema):
        self._parquet, self._record = parquet, avro_of_rows(schema)
        self._unions = _unions(AvroSchema(schema.parsed))
        self._is_of = fastavro_module().validation.validate

    def write_rows(self, rows: list[Any]) -> None:
        self._parquet.write_rows([self._with_members(row) for row in rows])
        self.rows += len(rows)

    def _with_members(self, row: Any) -> dict:
        try:
            record = self._record(row)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise not_written(row, error) from error
        for name, branches in self._unions.items():
            value = record.get(name)
            if value is not None:
                fits = [self._is_of(value, branch, raise_errors=False) for branch in branches]
                if True not in fits:
                    raise not_written(row, TypeError(f"{name} is {value!r:.80}, none of {branches}"))
                record[name] = {f"member{i}": value if i == fits.index(True) else None for i in range(len(fits))}
        return record

    def close(self) -> None:
        self._parquet.close()


def _field(type_info: TypeInformation, spec: Any) -> pa.Field:
    """With the precision of decimals, the units of timestamps and nullness that Avro declares."""
    kind = spec["type"]
    if kind == "null":
        return pa.field(spec["name"], pa.null())
    branches = [branch for branch in kind if branch != "null"] if isinstance(kind, list) else []
    if len(branches) > 1:
        members = [
            _field(type_of_avro_field(branch), {"name": f"member{i}", "type": ["null", branch]})
            for i, branch in enumerate(branches)
        ]
        return pa.field(spec["name"], pa.struct(members), nullable="null" in kind)
    nullable = isinstance(kind, list) and "null" in kind
    if isinstance(kind, list):
        kind = next((branch for branch in kind if branch != "null"), "null")
    arrow = arrow_type_of(type_info)
    logical = kind.get("logicalType", "") if isinstance(kind, dict) else ""
    if logical == "decimal":
        arrow = pa.decimal128(kind["precision"], kind.get("scale", 0))
    elif logical in TIMESTAMPS:
        arrow = pa.timestamp("ms" if logical.endswith("millis") else "us", "UTC")
    return pa.field(spec["name"], arrow, nullable=nullable)
