"""Types: how a program declares what its records are.

Declaring is optional.  A declared type is checked when the graph is built, lets records travel in a
faster form, and names the columns of a table.  None is a value of every type.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, Optional, Sequence, Union

from flinkish.common.basic_types import (
    BasicType,
    BasicTypeInfo,
    DateTypeInfo,
    InstantTypeInfo,
    LocalTimeTypeInfo,
    PickledBytesTypeInfo,
    SqlTimeTypeInfo,
    TimestampTypeInfo,
    TimeTypeInfo,
    TypeInformation,
    expected,
)
from flinkish.common.types import Row, RowKind
from flinkish.errors import InvalidJobError

__all__ = [
    "BasicArrayTypeInfo",
    "BasicType",
    "BasicTypeInfo",
    "DateTypeInfo",
    "ExternalTypeInfo",
    "InstantTypeInfo",
    "ListTypeInfo",
    "LocalTimeTypeInfo",
    "MapTypeInfo",
    "ObjectArrayTypeInfo",
    "PickledBytesTypeInfo",
    "PrimitiveArrayTypeInfo",
    "RowTypeInfo",
    "SqlTimeTypeInfo",
    "TimeTypeInfo",
    "TimestampTypeInfo",
    "TupleTypeInfo",
    "TypeInformation",
    "Types",
]


# ---- collections --------------------------------------------------------------------------------


def _require_type(value: Any, what: str) -> "TypeInformation":
    if not isinstance(value, TypeInformation):
        raise InvalidJobError(
            f"{what} must be a TypeInformation, not {value!r}", do="use flinkish.common.Types"
        )
    return value


class _ElementsTypeInfo(TypeInformation):
    """A list or array of one element type."""

    text = ""

    def __init__(self, element_type: TypeInformation):
        self._element_type = _require_type(element_type, "the element type")

    @property
    def elem_type(self) -> TypeInformation:
        return self._element_type

    def _mismatch(self, value: Any) -> str:
        if isinstance(value, (str, dict, set)) or not (
            hasattr(value, "__len__") and hasattr(value, "__iter__")
        ):
            return expected("a list", value)
        for position, element in enumerate(value):
            reason = self._element_type.mismatch(element)
            if reason:
                return f"element {position}: {reason}"
        return ""

    def convert(self, value: Any) -> Any:
        return None if value is None else [self._element_type.convert(element) for element in value]

    def converter(self) -> Optional[Callable[[Any], Any]]:
        element = self._element_type.converter()

        def convert(value: Any) -> Any:
            if type(value) is list and element is None or value is None:
                return value
            if isinstance(value, (str, bytes, dict, set)) or not hasattr(value, "__iter__"):
                raise TypeError(expected("a list", value))
            items = value.tolist() if hasattr(value, "tolist") else list(value)
            return items if element is None else [element(item) for item in items]

        return convert

    def need_conversion(self) -> bool:
        return self._element_type.need_conversion()

    def to_internal_type(self, obj: Any) -> Any:
        return None if obj is None else [self._element_type.to_internal_type(item) for item in obj]

    def from_internal_type(self, obj: Any) -> Any:
        return None if obj is None else [self._element_type.from_internal_type(item) for item in obj]

    def _parts(self) -> tuple:
        return (self._element_type,)

    def __repr__(self) -> str:
        return f"{self.text}<{self._element_type}>"


class ListTypeInfo(_ElementsTypeInfo):
    text = "list"


class ObjectArrayTypeInfo(_ElementsTypeInfo):
    text = "array"


class BasicArrayTypeInfo(_ElementsTypeInfo):
    text = "array"


class PrimitiveArrayTypeInfo(_ElementsTypeInfo):
    """An array of numbers; of BYTE it is ``bytes``."""

    text = "array"

    def is_bytes(self) -> bool:
        return self._element_type == BasicTypeInfo(BasicType.BYTE)

    def _mismatch(self, value: Any) -> str:
        if self.is_bytes():
            is_bytes = isinstance(value, (bytes, bytearray, memoryview))
            return "" if is_bytes else expected("bytes", value)
        return super()._mismatch(value)

    def convert(self, value: Any) -> Any:
        return bytes(value) if self.is_bytes() and value is not None else super().convert(value)

    def converter(self) -> Optional[Callable[[Any], Any]]:
        return _as_bytes if self.is_bytes() else super().converter()


def _as_bytes(value: Any) -> Any:
    if type(value) is bytes or value is None:
        return value
    if isinstance(value, int):  # bytes() would take it as a length
        raise TypeError(expected("bytes", value))
    return bytes(value)


class MapTypeInfo(TypeInformation):
    def __init__(self, key_type_info: TypeInformation, value_type_info: TypeInformation):
        self._key_type_info = _require_type(key_type_info, "the key type")
        self._value_type_info = _require_type(value_type_info, "the value type")

    @property
    def key_type_info(self) -> TypeInformation:
        return self._key_type_info

    @property
    def value_type_info(self) -> TypeInformation:
        return self._value_type_info

    def _mismatch(self, value: Any) -> str:
        if not isinstance(value, dict):
            return expected("a dict", value)
        for key, item in value.items():
            reason = self._key_type_info.mismatch(key) or self._value_type_info.mismatch(item)
            if reason:
                return f"entry {key!r}: {reason}"
        return ""

    def converter(self) -> Optional[Callable[[Any], Any]]:
        key, item = self._key_type_info.converter(), self._value_type_info.converter()
        keys, items = key or _same, item or _same
        stays = key is None and item is None

        def convert(value: Any) -> Any:
            if value is None:
                return None
            if not isinstance(value, Mapping):
                raise TypeError(expected("a dict", value))
            return value if stays else {keys(k): items(v) for k, v in value.items()}

        return convert

    def convert(self, value: Any) -> Any:
        return self.converter()(value)  # type: ignore[misc]

    def fits(self, value: str) -> Optional[str]:
        stays = self._key_type_info.converter() is None and self._value_type_info.converter() is None
        return f"type({value}) is dict" if stays else None

    def need_conversion(self) -> bool:
        return self._key_type_info.need_conversion() or self._value_type_info.need_conversion()

    def to_internal_type(self, obj: Any) -> Any:
        key, value = self._key_type_info.to_internal_type, self._value_type_info.to_internal_type
        return None if obj is None else {key(k): value(v) for k, v in obj.items()}

    def from_internal_type(self, obj: Any) -> Any:
        key, value = self._key_type_info.from_internal_type, self._value_type_info.from_internal_type
        return None if obj is None else {key(k): value(v) for k, v in obj.items()}

    def _parts(self) -> tuple:
        return self._key_type_info, self._value_type_info

    def __repr__(self) -> str:
        return f"map<{self._key_type_info}, {self._value_type_info}>"


def _same(value: Any) -> Any:
    return value


# ---- records ------------------------------------------------------------------------------------


class _FieldsTypeInfo(TypeInformation):
    """A record with a type for each field."""

    def __init__(self, field_types: Sequence[TypeInformation]):
        self._field_types = [_require_type(type_info, "a field type") for type_info in field_types]

    def get_field_types(self) -> list[TypeInformation]:
        return list(self._field_types)

    def get_arity(self) -> int:
        return len(self._field_types)

    def field_type(self, field: Union[int, str]) -> TypeInformation:
        """Type of a field by position or name.

        Raises:
            InvalidJobError: there is no such field."""
        position = self._find(field)
        if position is None:
            raise InvalidJobError(
                f"the type {self} has no field {field!r}",
                why=f"its fields are {', '.join(self._labels()) or 'none'}",
            )
        return self._field_types[position]

    def _find(self, field: Union[int, str]) -> Optional[int]:
        if isinstance(field, int) and -len(self._field_types) <= field < len(self._field_types):
            return field
        return None

    def _labels(self) -> list[str]:
        return [str(position) for position in range(len(self._field_types))]

    def _mismatch_of(self, values: Sequence[Any]) -> str:
        if len(values) != len(self._field_types):
            return f"expected {len(self._field_types)} fields, got {len(values)}"
        for label, type_info, value in zip(self._labels(), self._field_types, values):
            reason = type_info.mismatch(value)
            if reason:
                return f'field "{label}": {reason}'
        return ""

    def need_conversion(self) -> bool:
        return True

    def from_internal_type(self, obj: Any) -> Any:
        if obj is None:
            return None
        return self._make([t.from_internal_type(v) for t, v in zip(self._field_types, obj)])

    def _make(self, values: Sequence[Any]) -> Any:
        return tuple(values)

    def _fields_converter(self) -> Optional[Callable[[Sequence[Any]], Sequence[Any]]]:
        """Converts the fields' values, or returns them as they are; None when no field needs it."""
        converters = [(i, type_info.converter()) for i, type_info in enumerate(self._field_types)]
        needed = [(i, converter) for i, converter in converters if converter is not None]
        if not needed:
            return None

        def convert(values: Sequence[Any]) -> Sequence[Any]:
            converted = values
            for i, converter in needed:
                item = converter(values[i])
                if item is not values[i]:
                    if converted is values:
                        converted = list(values)
                    converted[i] = item  # type: ignore[index]
            return converted

        return _unless(self._fields_fit("value") or None, convert)

    def _fields_fit(self, values: str) -> Optional[str]:
        """As ``fits``, of the fields in the sequence that the source ``values`` gives."""
        checks = []
        for i, type_info in enumerate(self._field_types):
            if type_info.converter() is not None:
                check = type_info.fits(f"{values}[{i}]")
                if check is None:
                    return None
                checks.append(check)
        return " and ".join(checks)

    def _refuse(self, value: Any) -> None:
        reason = self.mismatch(value) or f"expected {len(self._field_types)} fields"
        raise TypeError(f"not of the declared type {self}: {reason}")


def _unless(fits: Optional[str], convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """``convert``, but what fits (source of a condition on ``value``) is returned at once: most results have their
    form, and one expression sees it in 70 ns where the loop over two fields takes 300."""
    if fits is None:
        return convert
    scope: dict[str, Any] = {"convert": convert, "Row": Row}
    exec(f"def quick(value):\n    return value if {fits} else convert(value)", scope)
    return scope["quick"]


class TupleTypeInfo(_FieldsTypeInfo):
    def _mismatch(self, value: Any) -> str:
        if not isinstance(value, (tuple, list, Row)):
            return expected("a tuple", value)
        return self._mismatch_of(tuple(value))

    def convert(self, value: Any) -> Any:
        if value is None:
            return None
        return tuple(t.convert(v) for t, v in zip(self._field_types, value, strict=True))

    def converter(self) -> Optional[Callable[[Any], Any]]:
        """A NamedTuple is a tuple, so it stays one."""
        arity, fields, refuse = len(self._field_types), self._fields_converter(), self._refuse

        def convert(value: Any) -> Any:
            if not isinstance(value, tuple):
                if value is None:
                    return None
                if not isinstance(value, (list, Row)):
                    refuse(value)
                value = tuple(value)
            if len(value) != arity:
                refuse(value)
            converted = value if fields is None else fields(value)
            if converted is value:
                return value
            return value._make(converted) if hasattr(value, "_make") else tuple(converted)

        return _unless(self.fits("value"), convert)

    def fits(self, value: str) -> Optional[str]:
        fields = self._fields_fit(value)
        if fields is None:
            return None
        shape = f"type({value}) is tuple and len({value}) == {len(self._field_types)}"
        return f"({shape} and {fields})" if fields else f"({shape})"

    def to_internal_type(self, obj: Any) -> Any:
        if obj is None:
            return None
        return tuple(t.to_internal_type(v) for t, v in zip(self._field_types, obj))

    def _parts(self) -> tuple:
        return tuple(self._field_types)

    def __repr__(self) -> str:
        return f"tuple<{', '.join(map(str, self._field_types))}>"


class RowTypeInfo(_FieldsTypeInfo):
    """Names are f0, f1, ... when none are given."""

    def __init__(self, field_types: Sequence[TypeInformation], field_names: Optional[Sequence[str]] = None):
        super().__init__(field_types)
        if field_names is not None and len(field_names) != len(self._field_types):
            raise InvalidJobError(
                "a row type needs one name for each field",
                why=f"it has {len(self._field_types)} types and {len(field_names)} names",
            )
        self._named = field_names is not None
        self._field_names = (
            list(field_names)
            if field_names is not None
            else [f"f{position}" for position in range(len(self._field_types))]
        )
        if len(set(self._field_names)) != len(self._field_names):
            raise InvalidJobError(f"the field names of a row type repeat: {self._field_names}")

    def get_field_names(self) -> list[str]:
        return list(self._field_names)

    def get_field_index(self, field_name: str) -> int:
        """-1 when there is no such field."""
        return self._field_names.index(field_name) if field_name in self._field_names else -1

    def _find(self, field: Union[int, str]) -> Optional[int]:
        if isinstance(field, str):
            position = self.get_field_index(field)
            return None if position < 0 else position
        return super()._find(field)

    def _labels(self) -> list[str]:
        return self._field_names

    def _values(self, value: Any) -> Sequence[Any]:
        """Values of a Row, dict or tuple in the order of the fields."""
        if isinstance(value, dict):
            return [value.get(name) for name in self._field_names]
        if isinstance(value, Row):
            return value.get_fields_by_names(self._field_names) if self._named else list(value)
        return value

    def _mismatch(self, value: Any) -> str:
        if not isinstance(value, (Row, tuple, list, dict)):
            return expected("a Row", value)
        names = value if isinstance(value, dict) else isinstance(value, Row) and value.get_field_names()
        if names and self._named:
            unknown = [str(name) for name in names if name not in self._field_names]
            missing = [name for name in self._field_names if name not in names]
            if unknown or (missing and not isinstance(value, dict)):
                return f"field names differ: unknown {unknown}, missing {missing}"
        return self._mismatch_of(self._values(value))

    def convert(self, value: Any) -> Any:
        if value is None:
            return None
        values = [t.convert(v) for t, v in zip(self._field_types, self._values(value), strict=True)]
        return self._make(values)

    def converter(self) -> Optional[Callable[[Any], Any]]:
        arity, fields, refuse = len(self._field_types), self._fields_converter(), self._refuse
        names, values_of, named, of_fields = self._field_names, self._values, self._named, Row.of_fields
        known = frozenset(names)

        def convert(value: Any) -> Any:
            kind = RowKind.INSERT
            if isinstance(value, Row):
                own, kind = value._fields, value._row_kind
                if own is names and fields is None:  # made here
                    return value
                reorder = named and own is not None and list(own) != names
                if reorder and not (len(own) == arity and known.issuperset(own)):
                    refuse(value)
                values = values_of(value) if reorder else value._values
            elif value is None:
                return None
            elif isinstance(value, (tuple, list, dict)):
                if isinstance(value, dict) and not known.issuperset(value):
                    refuse(value)
                values = values_of(value)
            else:
                refuse(value)
            if len(values) != arity:
                refuse(value)
            if fields is not None:
                converted = fields(values)
                if converted is values and isinstance(value, Row) and value._fields is names:
                    return value
                values = converted
            return of_fields(names, values, kind)

        return convert

    def to_internal_type(self, obj: Any) -> Any:
        """A tuple; of a Row its kind comes first."""
        if obj is None:
            return None
        values = tuple(t.to_internal_type(v) for t, v in zip(self._field_types, self._values(obj)))
        return (obj.get_row_kind().value, *values) if isinstance(obj, Row) else values

    def from_internal_type(self, obj: Any) -> Any:
        if obj is None or isinstance(obj, Row):
            return obj
        kind = 0
        if len(obj) == len(self._field_types) + 1:
            kind, *obj = obj
        row = super().from_internal_type(obj)
        row.set_row_kind(type(row.get_row_kind())(kind))
        return row

    def _make(self, values: Sequence[Any]) -> Row:
        return Row.of_fields(self._field_names, values)

    def _parts(self) -> tuple:
        return tuple(self._field_names), tuple(self._field_types)

    def __repr__(self) -> str:
        fields = (f"{n}: {t}" for n, t in zip(self._field_names, self._field_types))
        return f"row<{', '.join(fields)}>"


class ExternalTypeInfo(TypeInformation):
    """A type of the Table API, seen from outside."""

    def __init__(self, type_info: TypeInformation):
        self._type_info = _require_type(type_info, "the type")

    def _mismatch(self, value: Any) -> str:
        return self._type_info._mismatch(value)

    def convert(self, value: Any) -> Any:
        return self._type_info.convert(value)

    def need_conversion(self) -> bool:
        return self._type_info.need_conversion()

    def to_internal_type(self, obj: Any) -> Any:
        return self._type_info.to_internal_type(obj)

    def from_internal_type(self, obj: Any) -> Any:
        return self._type_info.from_internal_type(obj)

    def _parts(self) -> tuple:
        return (self._type_info,)

    def __repr__(self) -> str:
        return repr(self._type_info)


class Types:
    """Names every type: ``Types.ROW_NAMED(["id", "price"], [Types.LONG(), Types.DOUBLE()])``."""

    STRING = staticmethod(BasicTypeInfo.STRING_TYPE_INFO)
    BYTE = staticmethod(BasicTypeInfo.BYTE_TYPE_INFO)
    BOOLEAN = staticmethod(BasicTypeInfo.BOOLEAN_TYPE_INFO)
    SHORT = staticmethod(BasicTypeInfo.SHORT_TYPE_INFO)
    INT = staticmethod(BasicTypeInfo.INT_TYPE_INFO)
    LONG = staticmethod(BasicTypeInfo.LONG_TYPE_INFO)
    FLOAT = staticmethod(BasicTypeInfo.FLOAT_TYPE_INFO)
    DOUBLE = staticmethod(BasicTypeInfo.DOUBLE_TYPE_INFO)
    CHAR = staticmethod(BasicTypeInfo.CHAR_TYPE_INFO)
    BIG_INT = staticmethod(BasicTypeInfo.BIG_INT_TYPE_INFO)
    BIG_DEC = staticmethod(BasicTypeInfo.BIG_DEC_TYPE_INFO)
    INSTANT = staticmethod(BasicTypeInfo.INSTANT_TYPE_INFO)
    SQL_DATE = staticmethod(SqlTimeTypeInfo.DATE)
    SQL_TIME = staticmethod(SqlTimeTypeInfo.TIME)
    SQL_TIMESTAMP = staticmethod(SqlTimeTypeInfo.TIMESTAMP)

    @staticmethod
    def PICKLED_BYTE_ARRAY() -> PickledBytesTypeInfo:
        """Any Python object."""
        return PickledBytesTypeInfo()

    @staticmethod
    def ROW(field_types: Sequence[TypeInformation]) -> RowTypeInfo:
        return RowTypeInfo(field_types)

    @staticmethod
    def ROW_NAMED(field_names: Sequence[str], field_types: Sequence[TypeInformation]) -> RowTypeInfo:
        return RowTypeInfo(field_types, field_names)

    @staticmethod
    def TUPLE(field_types: Sequence[TypeInformation]) -> TupleTypeInfo:
        return TupleTypeInfo(field_types)

    @staticmethod
    def PRIMITIVE_ARRAY(element_type: TypeInformation) -> PrimitiveArrayTypeInfo:
        return PrimitiveArrayTypeInfo(element_type)

    @staticmethod
    def BASIC_ARRAY(element_type: TypeInformation) -> BasicArrayTypeInfo:
        return BasicArrayTypeInfo(element_type)

    @staticmethod
    def OBJECT_ARRAY(element_type: TypeInformation) -> ObjectArrayTypeInfo:
        return ObjectArrayTypeInfo(element_type)

    @staticmethod
    def MAP(key_type_info: TypeInformation, value_type_info: TypeInformation) -> MapTypeInfo:
        return MapTypeInfo(key_type_info, value_type_info)

    @staticmethod
    def LIST(element_type_info: TypeInformation) -> ListTypeInfo:
        return ListTypeInfo(element_type_info)
