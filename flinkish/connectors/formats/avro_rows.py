"""Avro: schemas, records as dicts (Avro's "generic records") or Rows, and their bytes.

``fastavro`` reads and writes the bytes (``pip install flinkish[avro]``): it is compiled, kept up and depends on
nothing; Avro's own library for Python is not compiled.

Source: Flink's ``AvroRowDeserializationSchema``, ``AvroRowSerializationSchema`` and ``AvroSchemaConverter``.
"""

from __future__ import annotations

import datetime as dt
import io
import json
import uuid
from typing import Any, Callable, Mapping, Optional

from flinkish.common.arguments import check_argument
from flinkish.common.basic_types import TypeInformation
from flinkish.common.typeinfo import RowTypeInfo, Types
from flinkish.common.types import Row
from flinkish.connectors.row_columns import short_repr
from flinkish.errors import InvalidJobError, UserError

__all__ = ["AvroRowReader", "AvroRowWriter", "AvroSchema", "fastavro_module", "type_of_avro"]

Convert = Callable[[Any], Any]


def fastavro_module() -> Any:
    try:
        import fastavro
    except ImportError as error:
        raise InvalidJobError(
            "could not read or write Avro",
            why="the package fastavro is not installed",
            do="pip install 'flinkish[avro]' where the driver and the slots run",
        ) from error
    return fastavro


class AvroSchema:
    """A schema of Avro.

    Args:
        schema: as parsed from JSON.
    """

    def __init__(self, schema: Any):
        self.schema = schema
        self._parsed: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"schema": self.schema, "_parsed": None}

    @property
    def parsed(self) -> Any:
        """As fastavro takes it."""
        if self._parsed is None:
            try:
                self._parsed = fastavro_module().parse_schema(self.schema)
            except Exception as error:  # fastavro's errors have no common class
                if isinstance(error, InvalidJobError):
                    raise
                raise InvalidJobError("could not use the Avro schema", why=f"{error}") from error
        return self._parsed

    @staticmethod
    def parse_string(json_schema: str) -> "AvroSchema":
        """Raises: InvalidJobError: it is no schema."""
        check_argument(json_schema, str, "parse_string()", "json_schema")
        try:
            schema = AvroSchema(json.loads(json_schema))
        except ValueError as error:
            raise InvalidJobError("could not use the Avro schema", why=f"it is no JSON: {error}") from error
        schema.parsed
        return schema

    @staticmethod
    def parse_file(file_path: str) -> "AvroSchema":
        try:
            with open(file_path, encoding="utf-8") as file:
                return AvroSchema.parse_string(file.read())
        except OSError as error:
            raise InvalidJobError(f"could not read the Avro schema {file_path}", why=str(error)) from error

    def __str__(self) -> str:
        return json.dumps(self.schema, separators=(",", ":"))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AvroSchema) and self.schema == other.schema

    def __hash__(self) -> int:
        return hash(str(self))

    @property
    def fields(self) -> list[Mapping[str, Any]]:
        """Raises: InvalidJobError: it describes no record."""
        if (
            not isinstance(self.schema, Mapping)
            or self.schema.get("type") != "record"
            or not isinstance(self.schema.get("fields"), list)
        ):
            raise InvalidJobError("could not use the Avro schema", why="it describes no record")
        return self.schema["fields"]


# ---- types --------------------------------------------------------------------------------------


class _Schemas:
    """Finds types by name: Avro defines a type where it is first used, and names it afterwards.  In parsed schemas
    names are full ones, with their namespace."""

    def __init__(self) -> None:
        self._named: dict[str, Any] = {}
        self._made: dict[str, list] = {}  # record name -> its converter, when it is made

    def find(self, schema: Any) -> Any:
        if isinstance(schema, str):
            return self._named.get(schema, schema)
        if isinstance(schema, Mapping) and schema.get("type") in ("record", "enum", "fixed"):
            self._named[schema["name"]] = schema
        return schema

    def of_record(self, schema: Any, make: Callable[[Any, "_Schemas"], Convert]) -> Convert:
        """The converter of a record, which may hold records of its own kind."""
        made = self._made.get(schema["name"])
        if made is None:
            made = self._made[schema["name"]] = []
            made.append(make(schema, self))
        return made[0] if made else lambda value: made[0](value)


def _not_null(schema: Any) -> Any:
    """The one type of a union beside null; a union of several as it is."""
    if isinstance(schema, list):
        others = [branch for branch in schema if branch != "null"]
        if len(others) == 1:
            return others[0]
    return schema


def type_of_avro(schema: AvroSchema) -> RowTypeInfo:
    """The row type of a record schema.  Unions of several types are PICKLED_BYTE_ARRAY, "any object"."""
    schema.fields  # refuses what is no record
    return _type_of(schema.parsed, _Schemas(), ())  # type: ignore[return-value]


def type_of_avro_field(schema: Any) -> TypeInformation:
    """Of one type of a union; it may not refer to types outside."""
    return _type_of(schema, _Schemas(), ())


_PRIMITIVES: dict[str, Callable[[], TypeInformation]] = {
    "string": Types.STRING,
    "enum": Types.STRING,
    "boolean": Types.BOOLEAN,
    "int": Types.INT,
    "long": Types.LONG,
    "float": Types.FLOAT,
    "double": Types.DOUBLE,
    "bytes": lambda: Types.PRIMITIVE_ARRAY(Types.BYTE()),
    "fixed": lambda: Types.PRIMITIVE_ARRAY(Types.BYTE()),
    "null": Types.PICKLED_BYTE_ARRAY,
}
_LOGICAL: dict[str, Callable[[], TypeInformation]] = {
    "date": Types.SQL_DATE,
    "time-millis": Types.SQL_TIME,
    "time-micros": Types.SQL_TIME,
    "timestamp-millis": Types.SQL_TIMESTAMP,
    "timestamp-micros": Types.SQL_TIMESTAMP,
    "local-timestamp-millis": Types.SQL_TIMESTAMP,
    "local-timestamp-micros": Types.SQL_TIMESTAMP,
    "decimal": Types.BIG_DEC,
    "uuid": Types.STRING,
}


def _type_of(schema: Any, schemas: _Schemas, within: tuple[str, ...]) -> TypeInformation:
    """Args: within: names of the records around it."""
    schema = schemas.find(_not_null(schema))
    if isinstance(schema, list):
        return Types.PICKLED_BYTE_ARRAY()
    kind = schema if isinstance(schema, str) else schema["type"]
    if isinstance(schema, Mapping):
        if schema.get("logicalType") in _LOGICAL:
            return _LOGICAL[schema["logicalType"]]()
        if kind == "record":
            fields, name = schema["fields"], schema["name"]
            if name in within:
                raise InvalidJobError(
                    "could not use the Avro schema",
                    why=f"{name} contains itself, and no declared type does",
                    do="read and write files of dicts with it: AvroFormat, AvroBulkWriters",
                )
            return Types.ROW_NAMED(
                [field["name"] for field in fields],
                [_type_of(field["type"], schemas, (*within, name)) for field in fields],
            )
        if kind == "array":
            return Types.OBJECT_ARRAY(_type_of(schema["items"], schemas, within))
        if kind == "map":
            return Types.MAP(Types.STRING(), _type_of(schema["values"], schemas, within))
        if not isinstance(kind, str):  # {"type": {"type": "string"}}
            return _type_of(kind, schemas, within)
    if kind not in _PRIMITIVES:
        raise InvalidJobError("could not use the Avro schema", why=f'there is no type "{kind}"')
    return _PRIMITIVES[kind]()


# ---- rows ---------------------------------------------------------------------------------------


def _to_row(schema: Any, schemas: _Schemas) -> Optional[Convert]:
    """Makes of what fastavro reads what Flink's rows hold; None: it is that already."""
    schema = schemas.find(_not_null(schema))
    if not isinstance(schema, Mapping):
        return None
    logical, kind = schema.get("logicalType", ""), schema["type"]
    if logical in TIMESTAMPS:
        return lambda value: value.astimezone(dt.timezone.utc).replace(tzinfo=None)
    if logical == "uuid":
        return str
    if kind == "record":
        return schemas.of_record(schema, _row_of)
    if kind in ("array", "map"):
        part = _to_row(schema["items" if kind == "array" else "values"], schemas)
        if part is None:
            return None
        if kind == "array":
            return lambda values: [None if value is None else part(value) for value in values]
        return lambda values: {k: None if value is None else part(value) for k, value in values.items()}
    return None if isinstance(kind, str) else _to_row(kind, schemas)


def _row_of(schema: Any, schemas: _Schemas) -> Convert:
    names = [field["name"] for field in schema["fields"]]
    parts = [(field["name"], _to_row(field["type"], schemas)) for field in schema["fields"]]
    return lambda record: Row.of_fields(
        names,
        [record[name] if part is None or record[name] is None else part(record[name]) for name, part in parts],
    )


#: With a zone; of logical types that are not known fastavro gives and takes the numbers.
TIMESTAMPS = ("timestamp-millis", "timestamp-micros")


def _from_row(schema: Any, schemas: _Schemas) -> Optional[Convert]:
    """The way back: Rows, tuples and dicts as dicts, times with their zone, ints that fit (fastavro cuts off fractions
    and writes more bits than the schema says)."""
    schema = schemas.find(_not_null(schema))
    if not isinstance(schema, Mapping):
        return _INTEGERS.get(schema) if isinstance(schema, str) else None
    logical, kind = schema.get("logicalType", ""), schema["type"]
    if logical in TIMESTAMPS:
        return _with_zone
    if logical == "uuid":
        return lambda value: str(uuid.UUID(str(value)))
    if kind == "record":
        return schemas.of_record(schema, _record_of)
    if kind in _INTEGERS and logical not in _LOGICAL:
        return _INTEGERS[kind]
    if kind in ("array", "map"):
        part = _from_row(schema["items" if kind == "array" else "values"], schemas)
        if part is None:
            return None
        if kind == "array":
            return lambda values: [None if value is None else part(value) for value in values]
        return lambda values: {k: None if value is None else part(value) for k, value in values.items()}
    return None if isinstance(kind, str) else _from_row(kind, schemas)


_INTEGERS = {"int": Types.INT().converter(), "long": Types.LONG().converter()}


def _with_zone(value: Any) -> Any:
    if isinstance(value, dt.datetime) and value.tzinfo is None:
        return value.replace(tzinfo=dt.timezone.utc)
    return value


def _record_of(schema: Any, schemas: _Schemas) -> Convert:
    fields = [(field["name"], _from_row(field["type"], schemas)) for field in schema["fields"]]
    names = [name for name, _ in fields]

    def record(row: Any) -> dict[str, Any]:
        if isinstance(row, Mapping):  # for what it lacks there may be a default
            return {
                name: row[name] if part is None or row[name] is None else part(row[name])
                for name, part in fields
                if name in row
            }
        values = row.get_fields_by_names(names) if isinstance(row, Row) and _named(row, names) else row
        if len(values) != len(names):
            raise ValueError(f"it has {len(values)} fields, the schema {len(names)}")
        return {
            name: value if part is None or value is None else part(value)
            for (name, part), value in zip(fields, values)
        }

    return record


def _named(row: Row, names: list[str]) -> bool:
    own = row.get_field_names()
    return own is not None and set(own) == set(names)


def rows_of_avro(schema: AvroSchema) -> Convert:
    """From generic records to Rows."""
    return _to_row(schema.parsed, _Schemas()) or (lambda record: record)


def avro_of_rows(schema: AvroSchema) -> Convert:
    """From Rows, tuples or dicts to generic records."""
    return _from_row(schema.parsed, _Schemas()) or (lambda record: record)


class AvroRowReader:
    """Messages, each the bare bytes of one record, as Rows."""

    def __init__(self, schema: AvroSchema):
        self.row_type = type_of_avro(schema)
        self._schema = schema.parsed
        self._read, self._as_row = fastavro_module().schemaless_reader, rows_of_avro(schema)

    def row(self, message: bytes) -> Row:
        try:
            return self._as_row(self._read(io.BytesIO(message), self._schema, None))
        except (EOFError, ValueError, TypeError, IndexError, KeyError, OverflowError, StopIteration) as error:
            raise UserError(
                "could not read a message as Avro",
                where=short_repr(message),
                why=f"{type(error).__name__}: {error}",
                do="give the schema with which it was written",
            ) from error


class AvroRowWriter:
    """Rows as the bare bytes of one record each."""

    def __init__(self, schema: AvroSchema):
        self.row_type = type_of_avro(schema)
        self._schema = schema.parsed
        self._write, self._as_record = fastavro_module().schemaless_writer, avro_of_rows(schema)

    def message(self, record: Any) -> bytes:
        buffer = io.BytesIO()
        try:
            self._write(buffer, self._schema, self._as_record(record))
        except (ValueError, TypeError, AttributeError, KeyError, OverflowError) as error:
            raise not_written(record, error) from error
        return buffer.getvalue()


def not_written(record: Any, error: BaseException) -> UserError:
    return UserError(
        "could not write a record as Avro",
        where=f"record {short_repr(record)}",
        why=f"{type(error).__name__}: {error}",
        do="map() the records to the schema before the sink, or change the schema",
    )
