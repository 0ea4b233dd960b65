"""Columns to rows: one table that maps Arrow's types to Python's, so that no value changes.

| Arrow | Python | Arrow | Python |
| --- | --- | --- | --- |
| null, any null value | None | date32, date64 | datetime.date |
| bool | bool | timestamp s, ms, us | datetime.datetime (aware when it has a zone) |
| int8 .. uint64 | int | timestamp ns | pandas.Timestamp, which is a datetime |
| float16 .. float64 | float | time32, time64 | datetime.time |
| decimal32 .. decimal256 | decimal.Decimal | duration | datetime.timedelta (ns: pandas.Timedelta) |
| string, large, view | str | list, large, view, fixed size | list |
| binary, large, view, fixed size | bytes | map | dict |
| dictionary, run end encoded | as its values | struct | Row with names |

A NaN stays a NaN and is not a null.  Extension types are read as their storage, except uuid.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import pyarrow as pa

from flinkish.common.types import Row, RowKind
from flinkish.errors import UserError

Convert = Optional[Callable[[Any], Any]]  # of a value that is not None; None: it is right already

_INSERT = RowKind.INSERT
_new = object.__new__


def rows_of(columns: pa.RecordBatch) -> list[Row]:
    """The records of a batch as Row with the column names."""
    names = columns.schema.names
    if not names:
        return [_row(names, []) for _ in range(columns.num_rows)]
    rows: list[Row] = []
    append = rows.append
    for values in map(list, zip(*map(column_values, columns.columns))):
        row = _new(Row)  # as `_row`, without the call
        row._values, row._fields, row._row_kind = values, names, _INSERT
        append(row)
    return rows


def column_values(column: Any) -> list:
    """The values of an array, by the table above."""
    kind = column.type
    if not column.null_count and (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return column.to_numpy(zero_copy_only=False).tolist()  # much faster with older pyarrow
    try:
        if pa.types.is_dictionary(kind) and not pa.types.is_nested(kind.value_type):
            known = column_values(column.dictionary)  # 36 ns a value instead of 2,600 by to_pylist
            return [None if i is None else known[i] for i in column_values(column.indices)]
        if kind == _TIME_NS:
            column = column.cast(_TIME_US)  # refuses to lose nanoseconds, which to_pylist does not
        values = column.to_pylist(**_MAPS) if _has_map(kind) else column.to_pylist()
    except (TypeError, ValueError) as error:
        raise UserError(
            f"could not read a column of type {kind} as Python values",
            why=str(error),
            do="install pandas for nanoseconds, or cast the column",
        ) from error
    convert = _converter(kind)
    if convert is None:
        return values
    return [None if value is None else convert(value) for value in values]


def _row(names: list, values: list) -> Row:
    """``names`` may be shared: a Row replaces its list of names, it never changes it."""
    row = _new(Row)
    row._values, row._fields, row._row_kind = values, names, _INSERT
    return row


_TIME_NS, _TIME_US = pa.time64("ns"), pa.time64("us")

#: Without it a map is a list of pairs.
_MAPS = {"maps_as_pydicts": "lossy"}


def _has_map(kind: Any) -> bool:
    if pa.types.is_map(kind):
        return True
    return any(_has_map(kind.field(i).type) for i in range(kind.num_fields))


def _converter(kind: Any) -> Convert:
    """What is still to do after ``to_pylist``: structs become Rows, wherever they stand."""
    if isinstance(kind, pa.ExtensionType):
        return None if kind.extension_name == "arrow.uuid" else _converter(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _converter(kind.value_type)
    if pa.types.is_struct(kind):
        names = [kind.field(i).name for i in range(kind.num_fields)]
        parts = [_converter(kind.field(i).type) for i in range(kind.num_fields)]
        fields = list(zip(names, parts))
        return lambda value: _row(
            names,
            [
                value[name] if part is None or value[name] is None else part(value[name])
                for name, part in fields
            ],
        )
    if pa.types.is_map(kind):
        key, item = _converter(kind.key_type), _converter(kind.item_type)
        if key is None and item is None:
            return None
        return lambda value: {
            (k if key is None else key(k)): (v if item is None or v is None else item(v))
            for k, v in value.items()
        }
    if hasattr(kind, "value_type") and kind.num_fields == 1:  # every kind of list
        part = _converter(kind.value_type)
        if part is None:
            return None
        return lambda value: [None if element is None else part(element) for element in value]
    return None
