"""JSON messages as Rows, and Rows as JSON."""

from __future__ import annotations

from typing import Optional

from flinkish.common.basic_types import TypeInformation
from flinkish.common.serialization import DeserializationSchema, SerializationSchema
from flinkish.common.typeinfo import RowTypeInfo
from flinkish.common.types import Row
from flinkish.connectors.formats.csv_rows import check_row_type
from flinkish.connectors.formats.json_rows import JsonRowReader, JsonRowWriter, row_type_of_json_schema
from flinkish.errors import InvalidJobError

__all__ = ["JsonRowDeserializationSchema", "JsonRowSerializationSchema"]


class JsonRowDeserializationSchema(DeserializationSchema[Row]):
    """Messages of one JSON object each as Rows; fields that the type does not name are left out.

    >>> from flinkish.common import Types
    >>> schema = (
    ...     JsonRowDeserializationSchema.builder().type_info(Types.ROW_NAMED(["n"], [Types.INT()])).build()
    ... )
    >>> schema.deserialize(b'{"n": 1, "other": true}')
    Row(n=1)
    """

    def __init__(self, reader: JsonRowReader):
        self._reader = reader

    @staticmethod
    def builder() -> "JsonRowDeserializationSchema.Builder":
        return JsonRowDeserializationSchema.Builder()

    def deserialize(self, message: bytes) -> Optional[Row]:
        return self._reader.row(message)

    def get_produced_type(self) -> RowTypeInfo:
        return self._reader.row_type

    class Builder:
        def __init__(self) -> None:
            self._row_type: Optional[RowTypeInfo] = None
            self._fail_on_missing = self._ignore = False

        def type_info(self, type_info: TypeInformation) -> "JsonRowDeserializationSchema.Builder":
            self._row_type = check_row_type(type_info, "type_info()")
            return self

        def json_schema(self, json_schema: str) -> "JsonRowDeserializationSchema.Builder":
            """The type that a JSON schema (draft 7 and before) describes; its numbers are BIG_DEC."""
            self._row_type = row_type_of_json_schema(json_schema)
            return self

        def fail_on_missing_field(self) -> "JsonRowDeserializationSchema.Builder":
            """A field that a message lacks is an error; else it is null."""
            self._fail_on_missing = True
            return self

        def ignore_parse_errors(self) -> "JsonRowDeserializationSchema.Builder":
            """What cannot be read is null; a message that is no JSON is dropped."""
            self._ignore = True
            return self

        def build(self) -> "JsonRowDeserializationSchema":
            row_type = _given(self._row_type, "type_info() or json_schema()")
            return JsonRowDeserializationSchema(JsonRowReader(row_type, self._fail_on_missing, self._ignore))


class JsonRowSerializationSchema(SerializationSchema[Row]):
    """Rows as messages of one JSON object each."""

    def __init__(self, writer: JsonRowWriter):
        self._writer = writer

    @staticmethod
    def builder() -> "JsonRowSerializationSchema.Builder":
        return JsonRowSerializationSchema.Builder()

    def serialize(self, element: Row) -> bytes:
        return self._writer.message(element)

    class Builder:
        def __init__(self) -> None:
            self._row_type: Optional[RowTypeInfo] = None

        def with_type_info(self, type_info: TypeInformation) -> "JsonRowSerializationSchema.Builder":
            self._row_type = check_row_type(type_info, "with_type_info()")
            return self

        def build(self) -> "JsonRowSerializationSchema":
            return JsonRowSerializationSchema(JsonRowWriter(_given(self._row_type, "with_type_info()")))


def _given(row_type: Optional[RowTypeInfo], call: str) -> RowTypeInfo:
    if row_type is None:
        raise InvalidJobError("could not build the JSON schema", why="it has no type", do=f"call {call}")
    return row_type
