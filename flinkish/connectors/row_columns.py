"""Makes column batches of records: tuples, NamedTuples, lists, Rows, dicts and dataclasses."""

from __future__ import annotations

import dataclasses
import decimal
from operator import attrgetter
from typing import Any, Sequence

import pyarrow as pa

from flinkish.common.types import Row
from flinkish.errors import InvalidJobError, UserError


class RowsToColumns:
    """Converts batches of records to ``pyarrow.RecordBatch`` of one schema.

    Records without names (tuples, lists, unnamed Rows) are taken by position, the others by name.  In
    a dict a missing nullable field is null; a key that the schema lacks is refused, so that a slip of
    the pen does not become a column of nulls.
    """

    def __init__(self, schema: pa.Schema):
        self.schema = schema
        self._names = schema.names
        self._name_set = frozenset(self._names)
        if len(self._name_set) != len(self._names):
            raise InvalidJobError(
                "could not use the schema", why="two of its columns have the same name"
            )
        self._attributes = attrgetter(*self._names) if len(self._names) > 1 else None

    def convert(self, rows: Sequence[Any]) -> pa.RecordBatch:
        """Raises: UserError: a record or a value does not fit; names it."""
        if not rows:
            columns: list[Any] = [[] for _ in self._names]
        elif set(map(type, rows)) == {tuple}:
            columns = self._by_position(rows)
        else:
            columns = self._by_position([self._tuple(row) for row in rows])
        arrays = [
            self._array(field, column, rows) for field, column in zip(self.schema, columns)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _by_position(self, rows: Sequence[tuple]) -> list[Any]:
        width = len(self._names)
        if set(map(len, rows)) != {width}:
            row = next(row for row in rows if len(row) != width)
            raise UserError(
                "could not write a record",
                where=f"record {_short(row)}",
                why=f"it has {len(row)} fields, the schema has {width}: {', '.join(self._names)}",
                do="map() the records to these fields before the sink, or change the schema",
            )
        return list(zip(*rows))

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
            where=f"record {_short(row)}",
            why=f"a {type(row).__name__} has no fields",
            do=f"give tuples, Rows, dicts, NamedTuples or dataclasses with {', '.join(self._names)}",
        )

    def _of_mapping(self, values: Any, row: Any) -> tuple:
        if not self._name_set.issuperset(values):
            unknown = next(name for name in values if name not in self._name_set)
            raise UserError(
                "could not write a record",
                where=f"record {_short(row)}",
                why=f"the schema has no field {unknown!r}, it has {', '.join(self._names)}",
                do="map() the records to these fields before the sink, or change the schema",
            )
        return tuple(map(values.get, self._names))

    def _of_attributes(self, row: Any) -> tuple:
        try:
            if self._attributes is not None:
                return self._attributes(row)
            return (getattr(row, self._names[0]),)
        except AttributeError as error:
            raise UserError(
                "could not write a record",
                where=f"record {_short(row)}",
                why=f"{error}; the schema has {', '.join(self._names)}",
                do="map() the records to these fields before the sink, or change the schema",
            ) from None

    def _array(self, field: pa.Field, column: Any, rows: Sequence[Any]) -> pa.Array:
        try:
            if _is_whole(field.type):
                _check_whole(column)
            array = pa.array(column, type=field.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
            raise self._misfit(field, column, rows, error) from error
        if array.null_count and not field.nullable:
            index = next(i for i, value in enumerate(column) if value is None)
            raise UserError(
                f"could not write null to the field {field.name!r}",
                where=f"record {_short(rows[index])}",
                why="the schema says that it is never null",
                do="filter() such records out before the sink, or make the field nullable",
            )
        return array

    def _misfit(
        self, field: pa.Field, column: Any, rows: Sequence[Any], error: BaseException
    ) -> UserError:
        for value, row in zip(column, rows):
            try:
                if _is_whole(field.type):
                    _check_whole([value])
                pa.array([value], type=field.type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as reason:
                return UserError(
                    f"could not write {_short(value)} to the field {field.name!r}",
                    where=f"record {_short(row)}",
                    why=f"the field is {field.type}: {reason}",
                    do="convert the value before the sink, or change the schema",
                )
        return UserError(
            f"could not write the field {field.name!r}",
            why=f"the field is {field.type}: {error}",
            do="convert the values before the sink, or change the schema",
        )


def _is_whole(kind: pa.DataType) -> bool:
    types = pa.types
    return types.is_integer(kind) or types.is_temporal(kind)


def _check_whole(column: Any) -> None:
    """pyarrow cuts 1.5 down to 1 without a word; we refuse it.  Types are looked at at C speed."""
    for kind in set(map(type, column)):
        if issubclass(kind, (float, decimal.Decimal)):
            for value in column:
                if isinstance(value, (float, decimal.Decimal)) and value % 1 != 0:
                    raise ValueError("the value has a fraction")


def fit_columns(columns: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """``columns`` with the columns of ``schema``, by name, cast without loss.

    Raises: UserError: a column is missing, unknown or does not fit.
    """
    if columns.schema.equals(schema):
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
        try:
            arrays.append(array if array.type.equals(field.type) else array.cast(field.type))
        except pa.ArrowException as error:
            raise UserError(
                f"could not write the column {field.name!r}",
                why=f"it is {array.type}, the schema has {field.type}: {error}",
                do="cast the column before the sink, or change the schema",
            ) from error
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _short(value: Any, limit: int = 200) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
