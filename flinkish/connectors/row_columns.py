"""Makes column batches of records: tuples, NamedTuples, lists, Rows, dicts and dataclasses."""

from __future__ import annotations

import dataclasses
import decimal
from operator import attrgetter
from typing import Any, Callable, Iterable, Optional, Sequence

import pyarrow as pa

from flinkish.common.arrow_types import instant_count
from flinkish.common.time import Instant
from flinkish.common.types import Row
from flinkish.errors import InvalidJobError, UserError

_Convert = Callable[[Any], Any]


class RowsToColumns:
    """Converts batches of records to ``pyarrow.RecordBatch`` of one schema.

    Records without names (tuples, lists, unnamed Rows) are taken by position, the others by name.  They
    have exactly the fields of the schema: a slip of the pen must not become a column of nulls.  A field
    is null where the record says None and the schema allows it.  The same holds for the structs inside
    of a record.

    Args:
        schema: of the column batches.
        place: of these fields in the record, when they are those of a struct: ``"address."``.
    """

    def __init__(self, schema: pa.Schema, place: str = ""):
        self.schema = schema
        self._place = place
        self._names = schema.names
        self._name_set = frozenset(self._names)
        if len(self._name_set) != len(self._names):
            raise InvalidJobError(
                "could not use the schema", why="two of its columns have the same name"
            )
        self._attributes = attrgetter(*self._names) if len(self._names) > 1 else None
        converter = _item if place else _converter
        self._converters = [converter(field.type, f"{place}{field.name}") for field in schema]
        self._dataclasses: set[type] = set()  # those that fit

    def convert(self, rows: Sequence[Any]) -> pa.RecordBatch:
        """Raises: UserError: a record or a value does not fit; names it."""
        if not rows:
            columns: list[Any] = [[] for _ in self._names]
        elif set(map(type, rows)) == {tuple}:
            columns = self._by_position(rows, rows)
        else:
            columns = self._by_position([self._tuple(row) for row in rows], rows)
        arrays = [
            self._array(field, convert, column, rows)
            for field, convert, column in zip(self.schema, self._converters, columns)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _by_position(self, rows: Sequence[tuple], given: Sequence[Any]) -> list[Any]:
        """``given``: what the user gave instead of ``rows``, for errors."""
        width = len(self._names)
        if set(map(len, rows)) != {width}:
            index, row = next((index, row) for index, row in enumerate(rows) if len(row) != width)
            why = f"it has {len(row)} fields, the schema has {width}: {self._listed()}"
            raise self._other_fields(given[index], why)
        return list(zip(*rows))

    def struct_values(self, value: Any) -> Optional[tuple]:
        """A struct inside of a record as Arrow takes it: its values in the order of the schema."""
        if value is None:
            return None
        values = self._tuple(value)
        self._by_position([values], [value])
        converted = []
        for field, convert, item in zip(self.schema, self._converters, values):
            if item is None and not field.nullable:
                raise self._null(field, value)
            converted.append(item if convert is None else convert(item))
        return tuple(converted)

    def _listed(self) -> str:
        return ", ".join(self._names)

    def _other_fields(self, row: Any, why: str) -> UserError:
        within = f" into the field {self._place[:-1]!r}" if self._place else ""
        return UserError(
            f"could not write a record{within}",
            where=f"record {short_repr(row)}",
            why=why,
            do="map() the records to these fields before the sink, or change the schema",
        )

    def _null(self, field: pa.Field, row: Any) -> UserError:
        return UserError(
            f"could not write null to the field {self._place + field.name!r}",
            where=f"record {short_repr(row)}",
            why="the schema says that it is never null",
            do="filter() such records out before the sink, or make the field nullable",
        )

    def _tuple(self, row: Any) -> tuple:
        if isinstance(row, tuple) and not hasattr(row, "_fields"):
            return row
        if isinstance(row, dict):
            return self._of_mapping(row, row)
        if isinstance(row, tuple):  # a NamedTuple
            return self._of_mapping(dict(zip(row._fields, row)), row)
        if isinstance(row, Row):
            named = row.get_field_names() is not None
            return self._of_mapping(row.as_dict(), row) if named else tuple(row)
        if dataclasses.is_dataclass(row) and not isinstance(row, type):
            return self._of_attributes(row)
        if isinstance(row, list):
            return tuple(row)
        if len(self._names) == 1:
            return (row,)
        raise UserError(
            "could not write a record",
            where=f"record {short_repr(row)}",
            why=f"a {type(row).__name__} has no fields",
            do=f"give tuples, Rows, dicts, NamedTuples or dataclasses with {self._listed()}",
        )

    def _of_mapping(self, values: Any, row: Any) -> tuple:
        if len(values) != len(self._names) or not self._name_set.issuperset(values):
            self._check_names(values, row)
        return tuple(map(values.get, self._names))

    def _check_names(self, names: Iterable[Any], row: Any) -> None:
        unknown = next((name for name in names if name not in self._name_set), None)
        if unknown is not None:
            raise self._other_fields(row, f"the schema has no field {unknown!r}, it has {self._listed()}")
        missing = next((name for name in self._names if name not in names), None)
        if missing is not None:
            raise self._other_fields(
                row, f"it has no field {missing!r} (None makes a null); the schema has {self._listed()}"
            )

    def _of_attributes(self, row: Any) -> tuple:
        if type(row) not in self._dataclasses:
            self._check_names([field.name for field in dataclasses.fields(row)], row)
            self._dataclasses.add(type(row))
        if self._attributes is not None:
            return self._attributes(row)
        return tuple(getattr(row, name) for name in self._names)

    def _array(
        self, field: pa.Field, convert: Optional[_Convert], column: Any, rows: Sequence[Any]
    ) -> pa.Array:
        try:
            array = _to_arrow(field.type, convert, column)
        except (pa.ArrowException, TypeError, ValueError, OverflowError, UserError) as error:
            raise self._misfit(field, convert, column, rows, error) from error
        if array.null_count and not field.nullable:
            raise self._null(field, next(row for row, value in zip(rows, array) if not value.is_valid))
        return array

    def _misfit(
        self,
        field: pa.Field,
        convert: Optional[_Convert],
        column: Any,
        rows: Sequence[Any],
        error: BaseException,
    ) -> UserError:
        for value, row in zip(column, rows):
            try:
                _to_arrow(field.type, convert, [value])
            except UserError as reason:  # of a struct inside
                return UserError(
                    reason.what, where=f"record {short_repr(row)}", why=reason.why, do=reason.do
                )
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as reason:
                return UserError(
                    f"could not write {short_repr(value)} to the field {field.name!r}",
                    where=f"record {short_repr(row)}",
                    why=f"the field is {field.type}: {reason}",
                    do="convert the value before the sink, or change the schema",
                )
        return UserError(
            f"could not write the field {field.name!r}",
            why=f"the field is {field.type}: {error}",
            do="convert the values before the sink, or change the schema",
        )


def _to_arrow(kind: pa.DataType, convert: Optional[_Convert], column: Any) -> pa.Array:
    if convert is not None:
        column = list(map(convert, column))
    elif _is_whole(kind):
        column = _as_whole(kind, column)
    return pa.array(column, type=kind)


def _converter(kind: pa.DataType, place: str) -> Optional[_Convert]:
    """Makes of a value what Arrow takes for ``kind``, and checks what Arrow would pass over in silence:
    fields of structs and fractions inside of lists.  None: the value itself does, unlooked at."""
    types = pa.types
    if types.is_struct(kind):
        fields = [kind.field(index) for index in range(kind.num_fields)]
        return RowsToColumns(pa.schema(fields), f"{place}.").struct_values
    if types.is_map(kind):
        return _map_converter(_item(kind.key_type, place), _item(kind.item_type, place))
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        item = _item(kind.value_type, place)
        if item is not None:
            return lambda values: None if values is None else list(map(item, values))
    return None


def _item(kind: pa.DataType, place: str) -> Optional[_Convert]:
    """As ``_converter``, for the parts of a value; ``_to_arrow`` looks at whole columns."""
    return (lambda value: _as_whole(kind, (value,))[0]) if _is_whole(kind) else _converter(kind, place)


def _map_converter(key: Optional[_Convert], item: Optional[_Convert]) -> Optional[_Convert]:
    if key is None and item is None:
        return None

    def convert(value: Any) -> Any:
        if value is None:
            return None
        pairs = value.items() if isinstance(value, dict) else value
        return [(k if key is None else key(k), v if item is None else item(v)) for k, v in pairs]

    return convert


def _is_whole(kind: pa.DataType) -> bool:
    types = pa.types
    return types.is_integer(kind) or types.is_temporal(kind)


def _as_whole(kind: pa.DataType, column: Any) -> Any:
    """pyarrow cuts 1.5 down to 1 without a word, we refuse it; and it knows no Instant.  Types are looked at at C speed."""
    for found in set(map(type, column)):
        if issubclass(found, (float, decimal.Decimal)):
            for value in column:
                if isinstance(value, (float, decimal.Decimal)) and value % 1 != 0:
                    raise ValueError("the value has a fraction")
        elif found is Instant and pa.types.is_timestamp(kind):
            column = [instant_count(value, kind) if type(value) is Instant else value for value in column]
    return column


def fit_columns(columns: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """``columns`` with the columns of ``schema``, by name, cast without loss.

    Raises: UserError: a column is missing, unknown, does not fit or holds null where the schema has none.
    """
    if columns.schema.equals(schema) and all(field.nullable for field in schema):
        return columns
    if set(columns.schema.names) != set(schema.names):
        raise UserError(
            "could not write the columns",
            why=f"they are {', '.join(columns.schema.names)}, the schema has {', '.join(schema.names)}",
            do="select or rename the columns before the sink, or change the schema",
        )
    arrays = []
    for field in schema:
        array = columns.column(field.name)
        if array.null_count and not field.nullable:
            raise UserError(
                f"could not write null to the field {field.name!r}",
                why=f"{array.null_count} of {len(array)} rows hold one, the schema says that it is never null",
                do="filter() such records out before the sink, or make the field nullable",
            )
        try:
            arrays.append(array if array.type.equals(field.type) else array.cast(field.type))
        except pa.ArrowException as error:
            raise UserError(
                f"could not write the column {field.name!r}",
                why=f"it is {array.type}, the schema has {field.type}: {error}",
                do="cast the column before the sink, or change the schema",
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def short_repr(value: Any, limit: int = 200) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
