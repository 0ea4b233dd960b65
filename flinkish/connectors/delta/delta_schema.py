"""What a Delta table can hold, and whether a sink may write into one that is there.

Files are added to a table without anybody looking at them, so what does not fit would be null for readers, or make the
table unreadable: it is found out before the job begins.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from flinkish.errors import InvalidJobError

_APPEND_ONLY, _COLUMN_MAPPING = "delta.appendOnly", "delta.columnMapping.mode"
_CONSTRAINT = "delta.constraints."
#: Of a field: its values are checked or made by who writes.
_COMPUTED = ("delta.generationExpression", "delta.invariants", "delta.identity.start")


def delta_schema(schema: pa.Schema) -> pa.Schema:
    """The schema of the files of a table whose records have ``schema``: times in microseconds, in UTC where they have a
    zone; signed integers that hold the unsigned ones.

    Raises:
        InvalidJobError: Delta has no such type, or two columns differ in case only.
    """
    from deltalake import Schema

    if not len(schema):
        raise InvalidJobError("could not use the schema of the sink", why="it has no columns")
    names: dict[str, str] = {}
    fields = []
    for field in schema:
        other = names.setdefault(field.name.lower(), field.name)
        if other != field.name:
            raise InvalidJobError(
                f"could not use the schema of the sink: {other!r} and {field.name!r}",
                why="Delta does not tell them apart: names of columns are the same in upper and lower case",
                do="rename one of them",
            )
        found = field.with_type(_delta_type(field.type))
        try:
            Schema.from_arrow(pa.schema([found]))
        except Exception as error:  # what the binding raises has no class of its own
            raise _no_such_type(field) from error
        if _has_uint64(found.type):
            raise _no_such_type(field)
        fields.append(found)
    return pa.schema(fields)


def _no_such_type(field: pa.Field) -> InvalidJobError:
    return InvalidJobError(
        f"could not use the column {field.name!r} in a Delta table",
        why=f"it is {field.type}, and Delta has no such type",
        do="map() it to another one before the sink: int64, float64, string, binary, date32, timestamp or decimal128",
    )


_SIGNED = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64()}


def _delta_type(type_: pa.DataType) -> pa.DataType:
    types = pa.types
    if types.is_timestamp(type_):
        return pa.timestamp("us", "UTC" if type_.tz else None)
    if types.is_struct(type_):
        return pa.struct([field.with_type(_delta_type(field.type)) for field in type_])
    if types.is_map(type_):
        return pa.map_(_delta_type(type_.key_type), _delta_type(type_.item_type))
    if types.is_list(type_) or types.is_large_list(type_):
        make = pa.list_ if types.is_list(type_) else pa.large_list
        return make(type_.value_field.with_type(_delta_type(type_.value_type)))
    return _SIGNED.get(type_, type_)


def _has_uint64(type_: pa.DataType) -> bool:
    return type_ == pa.uint64() or any(_has_uint64(type_.field(n).type) for n in range(type_.num_fields))


# ---- a table that is there ----------------------------------------------------------------------


def check_table(table: Any, uri: str, schema: pa.Schema, overwrite: bool) -> None:
    """Refuse a ``DeltaTable`` that files of ``schema`` do not fit into.

    Args:
        schema: by `delta_schema`.
        overwrite: what the table holds is replaced, with its columns.
    Raises:
        InvalidJobError: they do not.
    """
    metadata = table.metadata()
    why, do = _why_not(metadata, overwrite)
    if not why and not overwrite:
        why, do = _misfit(table.schema(), schema)
    if why:
        raise InvalidJobError(f"could not write to the Delta table {uri}", why=why, do=do)


def _why_not(metadata: Any, overwrite: bool) -> tuple[str, str]:
    configuration = metadata.configuration
    another = "name another folder"
    if metadata.partition_columns:
        columns = ", ".join(metadata.partition_columns)
        return f"it is partitioned by {columns}, and this sink writes no partitions", another
    mapping = configuration.get(_COLUMN_MAPPING, "none")
    if mapping != "none":
        return f"its columns have other names in its files ({_COLUMN_MAPPING}: {mapping})", another
    if overwrite and configuration.get(_APPEND_ONLY) == "true":
        return f"nothing may be removed from it ({_APPEND_ONLY})", f'use mode="append", or {another}'
    if not overwrite:
        checked = [key[len(_CONSTRAINT) :] for key in configuration if key.startswith(_CONSTRAINT)]
        if checked:
            return f"it has constraints, which this sink does not check: {', '.join(sorted(checked))}", another
    return "", ""


def _misfit(there: Any, schema: pa.Schema) -> tuple[str, str]:
    """Why files of ``schema`` cannot be added to a table with the columns ``there``, a ``deltalake.Schema``."""
    from deltalake import Schema

    computed = next((f.name for f in there.fields if any(key in f.metadata for key in _COMPUTED)), None)
    if computed is not None:
        return f"the values of its column {computed!r} are made or checked by who writes, and this sink does not", (
            "name another folder"
        )
    columns = {field.name: field for field in pa.schema(there.to_arrow())}
    ours = pa.schema(Schema.from_arrow(schema).to_arrow())
    for field in ours:
        column = columns.get(field.name)
        if column is None:
            return (
                f"it has no column {field.name!r}, only {', '.join(columns)}",
                "leave it out of the schema, or add the column to the table first",
            )
        if not _same_type(column.type, field.type):
            return (
                f"its column {field.name!r} is {column.type}, the sink's schema has {schema.field(field.name).type}",
                "declare the type that the table has",
            )
    for column in columns.values():
        given = ours.field(column.name) if column.name in ours.names else None
        if not column.nullable and (given is None or given.nullable):
            said = "does not have it" if given is None else "allows it to be null"
            return (
                f"its column {column.name!r} is never null, and the sink's schema {said}",
                f"give pyarrow.field({column.name!r}, ..., nullable=False) in the schema",
            )
    return "", ""


def _same_type(one: pa.DataType, other: pa.DataType) -> bool:
    """Whatever may be null inside, and whatever the elements of lists are called."""
    types = pa.types
    if types.is_struct(one) and types.is_struct(other):
        names = [field.name for field in one]
        return names == [field.name for field in other] and all(
            _same_type(one.field(name).type, other.field(name).type) for name in names
        )
    if types.is_list(one) and types.is_list(other):
        return _same_type(one.value_type, other.value_type)
    if types.is_map(one) and types.is_map(other):
        return _same_type(one.key_type, other.key_type) and _same_type(one.item_type, other.item_type)
    return bool(one == other)
