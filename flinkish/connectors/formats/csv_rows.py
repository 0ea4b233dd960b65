"""CSV lines: how a row is written as one, and a line read as a row.

A text is quoted when it is longer than 24 characters or holds a character that does not sort behind the separator,
the quote and the line separator: ``12`` stays ``12``, ``a b`` becomes ``"a b"`` with ``,`` as separator.  Quotes inside
of a quoted text are doubled, escape characters too.

Source: Jackson's ``CsvEncoder`` and ``CsvSchema``, which Flink's CSV formats use.
"""

from __future__ import annotations

import base64
import csv
import io
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Mapping, Optional, Sequence

from flinkish.common.arguments import check_argument
from flinkish.common.basic_types import BasicType, BasicTypeInfo, TypeInformation
from flinkish.common.flink_text import flink_text
from flinkish.common.typeinfo import RowTypeInfo, _ElementsTypeInfo
from flinkish.common.types import Row
from flinkish.connectors.formats.text_values import Parse, is_bytes, parser, without_zone
from flinkish.connectors.row_columns import short_repr
from flinkish.errors import InvalidJobError, UserError

#: Of a field, in characters: Python's module alone takes 131,072.
csv.field_size_limit(2**31 - 1)

_UNCHECKED_LENGTH = 24
_LINE_SEPARATORS = ("\n", "\r", "\r\n", "")


@dataclass(frozen=True)
class CsvDialect:
    """How lines look.  ``quote`` and ``escape`` None: there is none.  ``null_value`` None: no text means null, and null
    is written as an empty one.  ``array_separators``: of single columns; "" means that the column's arrays are not
    taken apart."""

    separator: str = ","
    quote: Optional[str] = '"'
    escape: Optional[str] = None
    line_separator: str = "\n"
    null_value: Optional[str] = None
    comments: bool = False
    array_separator: str = ";"
    array_separators: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("separator", "quote", "escape"):
            value = getattr(self, name)
            if value is None and name != "separator":
                continue
            if not isinstance(value, str) or len(value) != 1 or value in "\r\n":
                raise InvalidJobError(
                    f"the {name} of CSV cannot be {value!r}", why="it must be one character that ends no line"
                )
        if self.separator in (self.quote, self.escape):
            raise InvalidJobError(
                f"the separator of CSV cannot be {self.separator!r}", why="it is the quote or the escape character too"
            )
        for text in (self.null_value or "", self.array_separator):
            check_argument(text, str, "CSV", "a text for null or a separator of elements")
        if self.line_separator not in _LINE_SEPARATORS:
            raise InvalidJobError(
                f"the line separator of CSV cannot be {self.line_separator!r}",
                why='it must be "\\n", "\\r", "\\r\\n" or ""',
            )

    def with_(self, **changes: Any) -> "CsvDialect":
        return replace(self, **changes)

    def separator_of(self, column: str) -> str:
        return self.array_separators.get(column, self.array_separator)

    def fields_of(self, text: str) -> list[str]:
        """The fields of the first line of ``text`` that is no comment; none of an empty text.

        Raises:
            ValueError: it is no CSV."""
        lines = list(io.StringIO(text, newline=""))  # str.splitlines would also cut at U+2028, form feeds and the like
        while self.comments and lines and lines[0].startswith("#"):
            del lines[0]
        quoting = csv.QUOTE_MINIMAL if self.quote else csv.QUOTE_NONE
        try:
            return next(
                csv.reader(
                    lines,
                    delimiter=self.separator,
                    quotechar=self.quote or '"',
                    quoting=quoting,  # type: ignore[arg-type]
                    escapechar=self.escape,
                ),
                [],
            )
        except csv.Error as error:
            raise ValueError(str(error)) from error


# ---- writing ------------------------------------------------------------------------------------


class CsvRowWriter:
    """Rows of ``row_type`` as lines; a line ends with the dialect's line separator."""

    def __init__(self, row_type: RowTypeInfo, dialect: CsvDialect):
        self.row_type, self.dialect = row_type, dialect
        self._quoted = _quoting(dialect)
        names, types = row_type.get_field_names(), row_type.get_field_types()
        self._columns = [self._column(kind, dialect.separator_of(name)) for name, kind in zip(names, types)]
        # Gives a tuple, Row, NamedTuple or dict the fields in order, and the values their form.
        self._as_row = row_type.converter()
        self._null = dialect.null_value or ""

    def _column(self, type_info: TypeInformation, separator: str) -> Callable[[Any], str]:
        text, raw = self._text(type_info, separator)
        return text if raw else lambda value: self._quoted(text(value))

    def _text(self, type_info: TypeInformation, separator: str) -> tuple[Callable[[Any], str], bool]:
        """The text of a value, and whether it goes without quotes whatever it holds (numbers and booleans)."""
        type_info = without_zone(type_info)
        if is_bytes(type_info):
            return lambda value: base64.b64encode(value).decode(), False
        if isinstance(type_info, RowTypeInfo):
            parts = [self._text(kind, separator)[0] for kind in type_info.get_field_types()]
            return lambda row: separator.join(self._or_null(part, v) for part, v in zip(parts, row)), False
        if isinstance(type_info, _ElementsTypeInfo):
            item = self._text(type_info.elem_type, separator)[0]
            return lambda values: separator.join(self._or_null(item, v) for v in values), False
        parser(type_info, "CSV")  # refuses what has no form
        numeric = isinstance(type_info, BasicTypeInfo) and (
            type_info.is_numeric() or type_info.basic_type is BasicType.BOOLEAN
        )
        return flink_text(type_info), numeric

    def _or_null(self, text: Callable[[Any], str], value: Any) -> str:
        return self._null if value is None else text(value)

    def line(self, record: Any) -> str:
        """Raises: UserError: the record is not of the declared type."""
        try:
            row = self._as_row(record)  # type: ignore[misc]
            texts = [self._null if v is None else column(v) for column, v in zip(self._columns, row)]
        except (TypeError, ValueError, AttributeError, KeyError) as error:
            raise UserError(
                "could not write a record as CSV",
                where=f"record {short_repr(record)}",
                why=str(error),
                do="map() the records to the declared type before",
            ) from error
        return self.dialect.separator.join(texts) + self.dialect.line_separator


def _quoting(dialect: CsvDialect) -> Callable[[str], str]:
    quote, escape = dialect.quote, dialect.escape
    if quote is None:
        return lambda text: text
    highest = max(dialect.separator, quote, *dialect.line_separator)

    def quoted(text: str) -> str:
        plain = len(text) <= _UNCHECKED_LENGTH and (not text or min(text) > highest)
        if plain and (escape is None or escape not in text):
            return text
        text = text.replace(quote, quote + quote)
        if escape is not None and escape != quote:
            text = text.replace(escape, escape + escape)
        return f"{quote}{text}{quote}"

    return quoted


# ---- reading ------------------------------------------------------------------------------------


class CsvRowReader:
    """Lines as Rows of ``row_type``.

    Args:
        ignore_errors: a field that cannot be read becomes null, as does one that is missing; else reading fails.
    """

    def __init__(self, row_type: RowTypeInfo, dialect: CsvDialect, ignore_errors: bool = False):
        self.row_type, self.dialect, self.ignore_errors = row_type, dialect, ignore_errors
        self._names = row_type.get_field_names()
        self._columns: list[Parse] = [
            self._nullable(self._column(kind, dialect.separator_of(name)))
            for name, kind in zip(self._names, row_type.get_field_types())
        ]

    def _column(self, type_info: TypeInformation, separator: str) -> Parse:
        if not is_bytes(type_info) and isinstance(type_info, _ElementsTypeInfo):
            item = self._nullable(self._column(type_info.elem_type, separator))
            return lambda text: [item(part) for part in _parts(text, separator)]
        if isinstance(type_info, RowTypeInfo):
            names = type_info.get_field_names()
            items = [self._nullable(self._column(kind, separator)) for kind in type_info.get_field_types()]

            def row(text: str) -> Row:
                parts = self._of_length(_parts(text, separator), len(items))
                return Row.of_fields(names, [None if p is None else item(p) for item, p in zip(items, parts)])

            return row
        return parser(type_info, "CSV")

    def _nullable(self, parse: Parse) -> Parse:
        null = self.dialect.null_value

        def convert(text: str) -> Any:
            if text == null:
                return None
            try:
                return parse(text)
            except ValueError:
                if not self.ignore_errors:
                    raise
                return None

        return convert

    def _of_length(self, parts: Sequence[str], length: int) -> list[Optional[str]]:
        if len(parts) != length and not self.ignore_errors:
            raise ValueError(f"it has {len(parts)} fields, the declared row {length}")
        return [*parts[:length], *[None] * (length - len(parts))]

    def row(self, message: bytes) -> Optional[Row]:
        """None: the message is empty, or no CSV and errors are ignored."""
        try:
            fields = self.dialect.fields_of(str(message, "utf-8"))
        except (ValueError, TypeError) as error:
            if self.ignore_errors:
                return None
            raise self._unreadable(message, error) from error
        if not fields:
            return None
        values: list[Any] = []
        column = ""
        try:
            texts = self._of_length(fields, len(self._names))
            for column, parse, text in zip(self._names, self._columns, texts):
                values.append(None if text is None else parse(text))
        except ValueError as error:
            raise self._unreadable(message, error, column) from error
        return Row.of_fields(self._names, values)

    @staticmethod
    def _unreadable(message: bytes, error: Exception, column: str = "") -> UserError:
        return UserError(
            "could not read a CSV row",
            where=f"{short_repr(message)}" + (f', column "{column}"' if column else ""),
            why=str(error),
            do="correct the declared type or the separators, or set_ignore_parse_errors(True)",
        )


def _parts(text: str, separator: str) -> list[str]:
    if not text:
        return []
    return text.split(separator) if separator else [text]


def check_row_type(type_info: Any, call: str) -> RowTypeInfo:
    return check_argument(
        type_info, RowTypeInfo, call, "type_info", do="declare Types.ROW_NAMED(names, types)"
    )
