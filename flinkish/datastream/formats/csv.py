"""CSV: files read and written by a ``CsvSchema``, messages as Rows.

    schema = CsvSchema.builder().add_number_column("id", Types.INT()).add_string_column("name").build()
    source = FileSource.for_record_stream_format(CsvReaderFormat.for_schema(schema), "in.csv").build()
    sink = FileSink.for_bulk_format("out", CsvBulkWriters.for_schema(schema)).build()
"""

from __future__ import annotations

from typing import Any, Optional

from flinkish.common.arguments import check_argument
from flinkish.common.basic_types import BasicTypeInfo, TypeInformation
from flinkish.common.serialization import DeserializationSchema, SerializationSchema
from flinkish.common.typeinfo import RowTypeInfo, Types
from flinkish.common.types import Row
from flinkish.connectors.files.csv_format import CsvFormat, CsvPart
from flinkish.connectors.formats.csv_rows import CsvDialect, CsvRowReader, CsvRowWriter, check_row_type
from flinkish.errors import InvalidJobError

__all__ = [
    "CsvBulkWriters",
    "CsvReaderFormat",
    "CsvRowDeserializationSchema",
    "CsvRowSerializationSchema",
    "CsvSchema",
    "CsvSchemaBuilder",
]


class CsvSchema:
    """What the columns of CSV files are, and how lines look; made by ``CsvSchema.builder()``."""

    def __init__(
        self,
        row_type: RowTypeInfo,
        dialect: CsvDialect,
        use_header: bool = False,
        strict_headers: bool = False,
        skip_first_data_row: bool = False,
    ):
        self._row_type, self._dialect = row_type, dialect
        self._use_header, self._strict_headers = use_header, strict_headers
        self._skip_first_data_row = skip_first_data_row

    @staticmethod
    def builder() -> "CsvSchemaBuilder":
        return CsvSchemaBuilder()

    def size(self) -> int:
        """Number of columns."""
        return len(self._row_type.get_field_names())

    def __len__(self) -> int:
        return self.size()

    def __str__(self) -> str:
        types = zip(self._row_type.get_field_names(), self._row_type.get_field_types())
        return f"CsvSchema({', '.join(f'{name}: {kind}' for name, kind in types)})"

    def __repr__(self) -> str:
        return str(self)


class CsvSchemaBuilder:
    """Each method returns the builder.

    Types of columns are ``Types.INT()`` and the like; numbers are LONG, elements of arrays STRING when none is given.
    """

    def __init__(self) -> None:
        self._columns: dict[str, TypeInformation] = {}
        self._array_separators: dict[str, str] = {}
        self._dialect = CsvDialect()
        self._use_header = self._strict_headers = self._skip_first_data_row = False

    def build(self) -> CsvSchema:
        if not self._columns:
            raise InvalidJobError("could not build a CSV schema", why="it has no columns")
        return CsvSchema(
            RowTypeInfo(list(self._columns.values()), list(self._columns)),
            self._dialect.with_(array_separators=dict(self._array_separators)),
            self._use_header,
            self._strict_headers,
            self._skip_first_data_row,
        )

    # ---- columns --------------------------------------------------------------------------------

    def _add(self, name: str, type_info: TypeInformation) -> "CsvSchemaBuilder":
        check_argument(name, str, "CsvSchemaBuilder", "name")
        if name in self._columns:
            raise InvalidJobError(f'could not add the column "{name}"', why="there is one of that name")
        self._columns[name] = type_info
        return self

    def add_array_column(
        self, name: str, separator: str = ";", element_type: Optional[TypeInformation] = None
    ) -> "CsvSchemaBuilder":
        check_argument(separator, str, "add_array_column()", "separator")
        element = _type_of(element_type, Types.STRING(), "add_array_column()", "element_type")
        self._add(name, Types.LIST(element))
        self._array_separators[name] = separator
        return self

    def add_boolean_column(self, name: str) -> "CsvSchemaBuilder":
        return self._add(name, Types.BOOLEAN())

    def add_number_column(
        self, name: str, number_type: Optional[TypeInformation] = None
    ) -> "CsvSchemaBuilder":
        number = _type_of(number_type, Types.LONG(), "add_number_column()", "number_type")
        if not (isinstance(number, BasicTypeInfo) and number.is_numeric()):
            raise InvalidJobError(f'could not add the column "{name}"', why=f"{number} is no type of numbers")
        return self._add(name, number)

    def add_string_column(self, name: str) -> "CsvSchemaBuilder":
        return self._add(name, Types.STRING())

    def add_columns_from(self, schema: CsvSchema) -> "CsvSchemaBuilder":
        check_argument(schema, CsvSchema, "add_columns_from()", "schema")
        for name, kind in zip(schema._row_type.get_field_names(), schema._row_type.get_field_types()):
            self._add(name, kind)
            if name in schema._dialect.array_separators:
                self._array_separators[name] = schema._dialect.array_separators[name]
        return self

    def clear_columns(self) -> "CsvSchemaBuilder":
        self._columns, self._array_separators = {}, {}
        return self

    def size(self) -> int:
        return len(self._columns)

    def __len__(self) -> int:
        return self.size()

    # ---- lines ----------------------------------------------------------------------------------

    def _with(self, **changes: Any) -> "CsvSchemaBuilder":
        self._dialect = self._dialect.with_(**changes)
        return self

    def set_allow_comments(self, allow: bool = True) -> "CsvSchemaBuilder":
        """Lines that begin with ``#`` are no records."""
        return self._with(comments=bool(allow))

    def set_any_property_name(self, name: str) -> "CsvSchemaBuilder":
        """In Flink a line with more fields than the schema is refused whatever the name of the rest is; so here."""
        check_argument(name, str, "set_any_property_name()", "name")
        return self

    def disable_array_element_separator(self) -> "CsvSchemaBuilder":
        """Arrays are not taken apart: they have one element, the whole text."""
        self._array_separators = dict.fromkeys(self._array_separators, "")
        return self._with(array_separator="")

    def remove_array_element_separator(self, index: int) -> "CsvSchemaBuilder":
        """The array column number ``index`` (from 0) is not taken apart."""
        self._array_separators[self._column(index, "remove_array_element_separator()")] = ""
        return self

    def set_array_element_separator(self, separator: str) -> "CsvSchemaBuilder":
        """Of all array columns so far."""
        check_argument(separator, str, "set_array_element_separator()", "separator")
        self._array_separators = dict.fromkeys(self._array_separators, separator)
        return self._with(array_separator=separator)

    def _column(self, index: int, call: str) -> str:
        check_argument(index, int, call, "index")
        names = list(self._columns)
        if not 0 <= index < len(names) or names[index] not in self._array_separators:
            raise InvalidJobError(f"{call} cannot use {index} as index", why="there is no array column of it")
        return names[index]

    def set_column_separator(self, char: str) -> "CsvSchemaBuilder":
        return self._with(separator=char)

    def disable_escape_char(self) -> "CsvSchemaBuilder":
        return self._with(escape=None)

    def set_escape_char(self, char: str) -> "CsvSchemaBuilder":
        return self._with(escape=_character(char, "set_escape_char()"))

    def set_line_separator(self, separator: str) -> "CsvSchemaBuilder":
        r"""Of lines that are written; ``\n``, ``\r`` and ``\r\n`` are read."""
        return self._with(line_separator=separator)

    def set_null_value(self, null_value: str) -> "CsvSchemaBuilder":
        """The text that stands for null."""
        return self._with(null_value=check_argument(null_value, str, "set_null_value()", "null_value"))

    def disable_quote_char(self) -> "CsvSchemaBuilder":
        return self._with(quote=None)

    def set_quote_char(self, char: str) -> "CsvSchemaBuilder":
        return self._with(quote=_character(char, "set_quote_char()"))

    def set_skip_first_data_row(self, skip: bool = True) -> "CsvSchemaBuilder":
        self._skip_first_data_row = bool(skip)
        return self

    def set_strict_headers(self, strict: bool = True) -> "CsvSchemaBuilder":
        """With ``set_use_header()``: the header must name the columns of the schema, in their order."""
        self._strict_headers = bool(strict)
        return self

    def set_use_header(self, use: bool = True) -> "CsvSchemaBuilder":
        """The first line names the columns: it is no record when read, and is written."""
        self._use_header = bool(use)
        return self


def _type_of(given: Any, default: TypeInformation, call: str, parameter: str) -> TypeInformation:
    if given is None:
        return default
    return check_argument(given, TypeInformation, call, parameter, do="give for example Types.INT()")


def _character(char: Any, call: str) -> str:
    return check_argument(char, str, call, "char")


class CsvReaderFormat(CsvFormat):
    """CSV files for ``FileSource.for_record_stream_format``; records are Rows, or columns where operators take them."""

    @staticmethod
    def for_schema(schema: CsvSchema) -> "CsvReaderFormat":
        check_argument(schema, CsvSchema, "CsvReaderFormat.for_schema()", "schema")
        return CsvReaderFormat(
            schema._row_type,
            schema._dialect,
            header=schema._use_header,
            strict_header=schema._use_header and schema._strict_headers,
            skip_first_row=schema._skip_first_data_row,
        )


class CsvBulkWriters:
    """CSV files for ``FileSink.for_bulk_format``."""

    @staticmethod
    def for_schema(schema: CsvSchema) -> CsvPart:
        check_argument(schema, CsvSchema, "CsvBulkWriters.for_schema()", "schema")
        return CsvPart(schema._row_type, schema._dialect, header=schema._use_header)


# ---- messages -----------------------------------------------------------------------------------


class CsvRowDeserializationSchema(DeserializationSchema[Row]):
    """Messages of one CSV line each as Rows.

    >>> schema = CsvRowDeserializationSchema.Builder(Types.ROW([Types.STRING(), Types.INT()])).build()
    >>> schema.deserialize(b"a,1")
    Row(f0='a', f1=1)
    """

    def __init__(self, reader: CsvRowReader):
        self._reader = reader

    def deserialize(self, message: bytes) -> Optional[Row]:
        return self._reader.row(message)

    def get_produced_type(self) -> RowTypeInfo:
        return self._reader.row_type

    class Builder:
        def __init__(self, type_info: TypeInformation):
            self._row_type = check_row_type(type_info, "CsvRowDeserializationSchema.Builder()")
            self._dialect = CsvDialect()
            self._ignore = False

        def _with(self, **changes: Any) -> "CsvRowDeserializationSchema.Builder":
            self._dialect = self._dialect.with_(**changes)
            return self

        def set_field_delimiter(self, delimiter: str) -> "CsvRowDeserializationSchema.Builder":
            return self._with(separator=delimiter)

        def set_allow_comments(self, allow_comments: bool) -> "CsvRowDeserializationSchema.Builder":
            return self._with(comments=bool(allow_comments))

        def set_array_element_delimiter(self, delimiter: str) -> "CsvRowDeserializationSchema.Builder":
            return self._with(array_separator=delimiter)

        def set_quote_character(self, c: str) -> "CsvRowDeserializationSchema.Builder":
            return self._with(quote=c)

        def set_escape_character(self, c: str) -> "CsvRowDeserializationSchema.Builder":
            return self._with(escape=c)

        def set_null_literal(self, null_literal: str) -> "CsvRowDeserializationSchema.Builder":
            return self._with(null_value=null_literal)

        def set_ignore_parse_errors(self, ignore_parse_errors: bool) -> "CsvRowDeserializationSchema.Builder":
            """A field that cannot be read is null; a message that is no CSV is dropped."""
            self._ignore = bool(ignore_parse_errors)
            return self

        def build(self) -> "CsvRowDeserializationSchema":
            return CsvRowDeserializationSchema(CsvRowReader(self._row_type, self._dialect, self._ignore))


class CsvRowSerializationSchema(SerializationSchema[Row]):
    """Rows as messages of one CSV line each, its line end included.

    >>> schema = CsvRowSerializationSchema.Builder(Types.ROW([Types.STRING(), Types.INT()])).build()
    >>> schema.serialize(Row("a b", 1))
    b'"a b",1\\n'
    """

    def __init__(self, writer: CsvRowWriter):
        self._writer = writer

    def serialize(self, element: Row) -> bytes:
        return self._writer.line(element).encode("utf-8")

    class Builder:
        def __init__(self, type_info: TypeInformation):
            self._row_type = check_row_type(type_info, "CsvRowSerializationSchema.Builder()")
            self._dialect = CsvDialect()

        def _with(self, **changes: Any) -> "CsvRowSerializationSchema.Builder":
            self._dialect = self._dialect.with_(**changes)
            return self

        def set_field_delimiter(self, c: str) -> "CsvRowSerializationSchema.Builder":
            return self._with(separator=c)

        def set_line_delimiter(self, delimiter: str) -> "CsvRowSerializationSchema.Builder":
            return self._with(line_separator=delimiter)

        def set_array_element_delimiter(self, delimiter: str) -> "CsvRowSerializationSchema.Builder":
            return self._with(array_separator=delimiter)

        def disable_quote_character(self) -> "CsvRowSerializationSchema.Builder":
            return self._with(quote=None)

        def set_quote_character(self, c: str) -> "CsvRowSerializationSchema.Builder":
            return self._with(quote=c)

        def set_escape_character(self, c: str) -> "CsvRowSerializationSchema.Builder":
            return self._with(escape=c)

        def set_null_literal(self, s: str) -> "CsvRowSerializationSchema.Builder":
            return self._with(null_value=s)

        def build(self) -> "CsvRowSerializationSchema":
            return CsvRowSerializationSchema(CsvRowWriter(self._row_type, self._dialect))
