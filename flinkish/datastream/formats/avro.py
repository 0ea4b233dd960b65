"""Avro: files and messages, by a schema.  Records are dicts ("generic records") in files, Rows in messages."""

from __future__ import annotations

from typing import Any, Optional

from flinkish.common.arguments import check_argument
from flinkish.common.io import InputFormat
from flinkish.common.serialization import DeserializationSchema, SerializationSchema
from flinkish.common.typeinfo import RowTypeInfo
from flinkish.common.types import Row
from flinkish.connectors.files.avro_format import AvroFormat, AvroPart, GenericRecordAvroTypeInfo
from flinkish.connectors.files.file_source import FileSource
from flinkish.connectors.formats.avro_rows import AvroRowReader, AvroRowWriter, AvroSchema, type_of_avro
from flinkish.datastream.utils import ResultTypeQueryable
from flinkish.errors import InvalidJobError

__all__ = [
    "AvroBulkWriters",
    "AvroInputFormat",
    "AvroRowDeserializationSchema",
    "AvroRowSerializationSchema",
    "AvroSchema",
    "GenericRecordAvroTypeInfo",
]


class AvroInputFormat(InputFormat, ResultTypeQueryable):
    """Avro files for ``env.create_input``.

    >>> env.create_input(AvroInputFormat("in/*.avro", AvroSchema.parse_string(SCHEMA)))
    """

    def __init__(self, path: str, schema: AvroSchema):
        self._path = path
        self._schema = check_argument(schema, AvroSchema, "AvroInputFormat()", "schema")

    def create_source(self) -> FileSource:
        return FileSource(self._path, AvroFormat(self._schema))

    def get_produced_type(self) -> GenericRecordAvroTypeInfo:
        return GenericRecordAvroTypeInfo(self._schema)


class AvroBulkWriters:
    """Avro files for ``FileSink.for_bulk_format``; records are dicts, Rows or tuples."""

    @staticmethod
    def for_generic_record(schema: AvroSchema) -> AvroPart:
        return AvroPart(schema)


def _schema(record_class: Any, avro_schema_string: Optional[str], name: str) -> AvroSchema:
    if record_class is not None:
        raise InvalidJobError(
            f"{name}() cannot use a record_class",
            why="it names a class of Java, and there is no JVM in a slot",
            do="give avro_schema_string",
        )
    if avro_schema_string is None:
        raise InvalidJobError(f"{name}() needs a schema", do="give avro_schema_string")
    schema = AvroSchema.parse_string(avro_schema_string)
    type_of_avro(schema)  # refuses here what no Row can hold
    return schema


class AvroRowDeserializationSchema(DeserializationSchema[Row]):
    """Messages, each the bare bytes of one record, as Rows."""

    def __init__(self, record_class: Optional[str] = None, avro_schema_string: Optional[str] = None):
        self._schema = _schema(record_class, avro_schema_string, "AvroRowDeserializationSchema")
        self._reader: Optional[AvroRowReader] = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_schema": self._schema, "_reader": None}

    def deserialize(self, message: bytes) -> Row:
        if self._reader is None:
            self._reader = AvroRowReader(self._schema)
        return self._reader.row(message)

    def get_produced_type(self) -> RowTypeInfo:
        return AvroRowReader(self._schema).row_type


class AvroRowSerializationSchema(SerializationSchema[Row]):
    """Rows as messages, each the bare bytes of one record."""

    def __init__(self, record_class: Optional[str] = None, avro_schema_string: Optional[str] = None):
        self._schema = _schema(record_class, avro_schema_string, "AvroRowSerializationSchema")
        self._writer: Optional[AvroRowWriter] = None

    def __getstate__(self) -> dict[str, Any]:
        return {"_schema": self._schema, "_writer": None}

    def serialize(self, element: Row) -> bytes:
        if self._writer is None:
            self._writer = AvroRowWriter(self._schema)
        return self._writer.message(element)
