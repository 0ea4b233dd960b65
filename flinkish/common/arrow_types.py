"""The one table between declared types and Arrow's.  pyarrow is imported when it is first used.

A column stream has a ROW_NAMED type made by `row_type_of_schema`; `arrow_schema_of` is the way back.
Arrow types without an entry (dictionaries, unions, durations) become PICKLED_BYTE_ARRAY,
"any Python object", and are refused on the way back.
"""

from __future__ import annotations

from typing import Any

from flinkish.common.basic_types import (
    BasicType,
    BasicTypeInfo,
    DateTypeInfo,
    InstantTypeInfo,
    LocalTimeTypeInfo,
    TimestampTypeInfo,
    TimeTypeInfo,
    TypeInformation,
)
from flinkish.common.typeinfo import (
    BasicArrayTypeInfo,
    ExternalTypeInfo,
    ListTypeInfo,
    MapTypeInfo,
    ObjectArrayTypeInfo,
    PrimitiveArrayTypeInfo,
    RowTypeInfo,
    TupleTypeInfo,
    Types,
)
from flinkish.common.time import Instant
from flinkish.errors import InvalidJobError

#: Basic type to the name of Arrow's factory function.
_BASIC = {
    BasicType.STRING: "string",
    BasicType.CHAR: "string",
    BasicType.BOOLEAN: "bool_",
    BasicType.BYTE: "int8",
    BasicType.SHORT: "int16",
    BasicType.INT: "int32",
    BasicType.LONG: "int64",
    BasicType.FLOAT: "float32",
    BasicType.DOUBLE: "float64",
}
_LISTS = (ListTypeInfo, ObjectArrayTypeInfo, BasicArrayTypeInfo, PrimitiveArrayTypeInfo)


def arrow_type_of(type_info: TypeInformation) -> Any:
    """The ``pyarrow.DataType`` of a declared type.

    Raises:
        InvalidJobError: Arrow has no column of it."""
    import pyarrow as pa

    if isinstance(type_info, ExternalTypeInfo):
        return arrow_type_of(type_info._type_info)
    if isinstance(type_info, InstantTypeInfo):
        return pa.timestamp("ns", "UTC")
    if isinstance(type_info, BasicTypeInfo):
        factory = _BASIC.get(type_info.basic_type)
        if factory is not None:
            return getattr(pa, factory)()
        if type_info.basic_type is BasicType.BIG_DEC:
            return pa.decimal128(38, 18)
    if isinstance(type_info, LocalTimeTypeInfo):
        type_info = type_info._delegate
    if isinstance(type_info, DateTypeInfo):
        return pa.date32()
    if isinstance(type_info, TimeTypeInfo):
        return pa.time64("us")
    if isinstance(type_info, TimestampTypeInfo):
        return pa.timestamp("us")
    if isinstance(type_info, PrimitiveArrayTypeInfo) and type_info.is_bytes():
        return pa.binary()
    if isinstance(type_info, _LISTS):
        return pa.list_(arrow_type_of(type_info.elem_type))
    if isinstance(type_info, MapTypeInfo):
        return pa.map_(arrow_type_of(type_info.key_type_info), arrow_type_of(type_info.value_type_info))
    if isinstance(type_info, (RowTypeInfo, TupleTypeInfo)):
        return pa.struct(list(arrow_schema_of(type_info)))
    raise InvalidJobError(
        f"there is no column of type {type_info}", do="declare a basic type, a list, a map or a row"
    )


def arrow_schema_of(type_info: TypeInformation) -> Any:
    """The ``pyarrow.Schema`` of a row or tuple type; fields of a tuple are named f0, f1, ..."""
    import pyarrow as pa

    if isinstance(type_info, ExternalTypeInfo):
        return arrow_schema_of(type_info._type_info)
    if isinstance(type_info, TupleTypeInfo):
        type_info = RowTypeInfo(type_info.get_field_types())
    if not isinstance(type_info, RowTypeInfo):
        raise InvalidJobError(f"{type_info} has no columns", do="declare Types.ROW_NAMED(names, types)")
    return pa.schema(
        [
            pa.field(name, arrow_type_of(field_type))
            for name, field_type in zip(type_info.get_field_names(), type_info.get_field_types())
        ]
    )


_NANOS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}


def instant_count(instant: Instant, data_type: Any) -> int:
    """What a timestamp column holds for an Instant, which pyarrow does not know.

    Raises:
        ValueError: it lies between two values of the column's unit.

    >>> import pyarrow as pa
    >>> instant_count(Instant(1, 5_000), pa.timestamp("us"))
    1000005
    """
    count, rest = divmod(instant.seconds * _NANOS["s"] + instant.nanos, _NANOS[data_type.unit])
    if rest:
        raise ValueError(f"{instant} is not a whole number of {data_type.unit}")
    return int(count)


def type_of_arrow(data_type: Any) -> TypeInformation:
    """The declared type of the values that ``to_pylist`` gives for a column."""
    import pyarrow as pa

    is_ = pa.types
    if is_.is_boolean(data_type):
        return Types.BOOLEAN()
    if is_.is_integer(data_type):
        return _integer(data_type)
    if is_.is_float64(data_type):
        return Types.DOUBLE()
    if is_.is_floating(data_type):
        return Types.FLOAT()
    if is_.is_string(data_type) or is_.is_large_string(data_type):
        return Types.STRING()
    if is_.is_binary(data_type) or is_.is_large_binary(data_type) or is_.is_fixed_size_binary(data_type):
        return Types.PRIMITIVE_ARRAY(Types.BYTE())
    if is_.is_decimal(data_type):
        return Types.BIG_DEC()
    if is_.is_date(data_type):
        return Types.SQL_DATE()
    if is_.is_time(data_type):
        return Types.SQL_TIME()
    if is_.is_timestamp(data_type):
        return Types.SQL_TIMESTAMP()
    if is_.is_map(data_type):
        return Types.MAP(type_of_arrow(data_type.key_type), type_of_arrow(data_type.item_type))
    if is_.is_list(data_type) or is_.is_large_list(data_type) or is_.is_fixed_size_list(data_type):
        return Types.LIST(type_of_arrow(data_type.value_type))
    if is_.is_struct(data_type):
        fields = [data_type.field(number) for number in range(data_type.num_fields)]
        return Types.ROW_NAMED(
            [field.name for field in fields], [type_of_arrow(field.type) for field in fields]
        )
    return Types.PICKLED_BYTE_ARRAY()


def row_type_of_schema(schema: Any) -> RowTypeInfo:
    """The ROW_NAMED type of a ``pyarrow.Schema``."""
    return RowTypeInfo([type_of_arrow(field.type) for field in schema], list(schema.names))


def _integer(data_type: Any) -> TypeInformation:
    """Unsigned types take the next larger signed one."""
    import pyarrow as pa

    bits = data_type.bit_width * (2 if pa.types.is_unsigned_integer(data_type) else 1)
    types = {8: Types.BYTE, 16: Types.SHORT, 32: Types.INT, 64: Types.LONG}
    return types[bits]() if bits in types else Types.BIG_INT()
