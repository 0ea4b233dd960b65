"""JSON objects as Rows, Rows as JSON objects, and the row type that a JSON schema describes.

Times are in UTC and end with "Z" (RFC 3339), bytes are base64.

Source: Flink's ``JsonRowDeserializationSchema``, ``JsonRowSerializationSchema`` and ``JsonRowSchemaConverter``.
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import json
import math
from typing import Any, Callable, Mapping, Optional

from flinkish.common.basic_types import (
    BasicType,
    BasicTypeInfo,
    DateTypeInfo,
    TimestampTypeInfo,
    TimeTypeInfo,
    TypeInformation,
    expected,
)
from flinkish.common.flink_text import flink_text, float_text, in_utc
from flinkish.common.typeinfo import MapTypeInfo, RowTypeInfo, TupleTypeInfo, Types, _ElementsTypeInfo
from flinkish.common.types import Row
from flinkish.connectors.formats.text_values import (
    is_bytes,
    of_digits,
    parser,
    time_of,
    timestamp_of,
    unsupported,
    without_zone,
)
from flinkish.connectors.row_columns import short_repr
from flinkish.errors import InvalidJobError, UserError

Convert = Callable[[Any], Any]


# ---- reading ------------------------------------------------------------------------------------


class JsonRowReader:
    """Messages as Rows of ``row_type``; a field that the message lacks is null.

    Args:
        fail_on_missing: a field that the message lacks is an error.
        ignore_errors: what cannot be read becomes null, a message that is no JSON is dropped.
    """

    def __init__(self, row_type: RowTypeInfo, fail_on_missing: bool = False, ignore_errors: bool = False):
        if fail_on_missing and ignore_errors:
            raise InvalidJobError(
                "could not read JSON",
                why="fail_on_missing_field and ignore_parse_errors exclude each other",
                do="choose one",
            )
        self.row_type, self.fail_on_missing, self.ignore_errors = row_type, fail_on_missing, ignore_errors
        self._convert = self._nullable(row_type)

    def row(self, message: bytes) -> Optional[Row]:
        try:
            return self._convert(json.loads(message, parse_float=decimal.Decimal, parse_constant=_no_number))
        except (ValueError, TypeError, RecursionError) as error:  # the last of arrays nested a thousand deep
            if self.ignore_errors:
                return None
            raise UserError(
                "could not read a message as JSON",
                where=short_repr(message),
                why=str(error),
                do="correct the declared type, or ignore_parse_errors()",
            ) from error

    def _nullable(self, type_info: TypeInformation) -> Convert:
        convert, ignore = self._converter(type_info), self.ignore_errors

        def nullable(node: Any) -> Any:
            if node is None:
                return None
            try:
                return convert(node)
            except (ValueError, TypeError):
                if not ignore:
                    raise
                return None

        return nullable

    def _converter(self, type_info: TypeInformation) -> Convert:
        type_info = without_zone(type_info)
        if isinstance(type_info, RowTypeInfo):
            return self._row(type_info)
        if isinstance(type_info, MapTypeInfo):
            key, value = self._nullable(type_info.key_type_info), self._nullable(type_info.value_type_info)
            return lambda node: {key(k): value(v) for k, v in _of(dict, node).items()}
        if isinstance(type_info, _ElementsTypeInfo) and not is_bytes(type_info):
            item = self._nullable(type_info.elem_type)
            return lambda node: [item(element) for element in _of(list, node)]
        if isinstance(type_info, TimeTypeInfo):
            return _time
        if isinstance(type_info, TimestampTypeInfo):
            return _timestamp
        if isinstance(type_info, BasicTypeInfo):
            basic = type_info.basic_type
            if basic is BasicType.BOOLEAN:
                return lambda node: node if isinstance(node, bool) else _text(node).strip().lower() == "true"
            if basic in (BasicType.INT, BasicType.LONG):
                convert = type_info.convert
                return lambda node: convert(_whole(node))
        parse = parser(type_info, "JSON")
        return lambda node: parse(_text(node))

    def _row(self, row_type: RowTypeInfo) -> Convert:
        names = row_type.get_field_names()
        fields = [(name, self._nullable(kind)) for name, kind in zip(names, row_type.get_field_types())]
        fail_on_missing = self.fail_on_missing

        def row(node: Any) -> Row:
            if isinstance(node, list) and len(node) == len(fields):  # an array whose items differ in type
                return Row.of_fields(names, [convert(item) for (_, convert), item in zip(fields, node)])
            node = _of(dict, node)
            if fail_on_missing:
                for name in names:
                    if name not in node:
                        raise ValueError(f'it has no field "{name}"')
            return Row.of_fields(names, [convert(node.get(name)) for name, convert in fields])

        return row


def _no_number(name: str) -> None:
    """NaN and Infinity, which Python takes for JSON."""
    raise ValueError(f"{name} is no JSON")


def _of(kind: type, node: Any) -> Any:
    if not isinstance(node, kind):
        raise ValueError(f"expected {'an object' if kind is dict else 'an array'}, got {short_repr(node)}")
    return node


def _text(node: Any) -> str:
    """As Jackson's ``asText``; objects and arrays as JSON."""
    if isinstance(node, str):
        return node
    if isinstance(node, bool):
        return "true" if node else "false"
    if isinstance(node, (dict, list)):
        return json.dumps(node, default=float, separators=(",", ":"), ensure_ascii=False)
    return str(node)


def _whole(node: Any) -> int:
    """A fraction is cut off, as Jackson does."""
    if isinstance(node, decimal.Decimal):
        if node.adjusted() > _DIGITS_MAX:  # 1e999999999 as an int would fill the memory
            raise ValueError(f"{node} does not fit into 64 bits")
        return int(node)
    return node if type(node) is int else int(of_digits(_text(node)))


_DIGITS_MAX = 20


def _time(node: Any) -> dt.time:
    value = time_of(_in_utc(_text(node)))
    if value.microsecond:
        raise ValueError(f"{node!r} has a fraction of a second")
    return value


def _timestamp(node: Any) -> dt.datetime:
    return timestamp_of(_in_utc(_text(node)))


def _in_utc(text: str) -> str:
    for zone in ("Z", "+00:00"):
        text = text.removesuffix(zone)
    if any(sign in text[10:] for sign in "+-"):
        raise ValueError(f"{text!r} is not in UTC")
    return text


# ---- writing ------------------------------------------------------------------------------------


class JsonRowWriter:
    """Rows of ``row_type`` as JSON, without blanks and without a line end."""

    def __init__(self, row_type: RowTypeInfo):
        self.row_type = row_type
        self._as_row = row_type.converter()
        self._encode = _encoder(row_type)

    def message(self, record: Any) -> bytes:
        """Raises: UserError: the record is not of the declared type."""
        try:
            return self._encode(self._as_row(record)).encode("utf-8")  # type: ignore[misc]
        except (TypeError, ValueError, AttributeError, KeyError) as error:
            raise UserError(
                "could not write a record as JSON",
                where=f"record {short_repr(record)}",
                why=str(error),
                do="map() the records to the declared type before",
            ) from error


def _encoder(type_info: TypeInformation) -> Callable[[Any], str]:
    """From a value to its JSON text."""
    encode = _encoder_of_value(without_zone(type_info))
    return lambda value: "null" if value is None else encode(value)


def _quoted(text: Any) -> str:
    if not isinstance(text, str):
        raise TypeError(expected("a str", text))
    return json.dumps(text, ensure_ascii=False)


def _encoder_of_value(type_info: TypeInformation) -> Callable[[Any], str]:
    if isinstance(type_info, RowTypeInfo):
        names = type_info.get_field_names()
        fields = [(_quoted(n) + ":", _encoder(t)) for n, t in zip(names, type_info.get_field_types())]
        return lambda row: "{" + ",".join([key + encode(v) for (key, encode), v in zip(fields, row)]) + "}"
    if is_bytes(type_info):
        return lambda value: f'"{base64.b64encode(value).decode()}"'
    if isinstance(type_info, _ElementsTypeInfo):
        item = _encoder(type_info.elem_type)
        return lambda values: f"[{','.join(map(item, values))}]"
    if isinstance(type_info, TupleTypeInfo):
        parts = [_encoder(kind) for kind in type_info.get_field_types()]
        return lambda values: f"[{','.join([part(v) for part, v in zip(parts, values)])}]"
    if isinstance(type_info, MapTypeInfo):
        of_key, of_value = _name_of_key(type_info.key_type_info), _encoder(type_info.value_type_info)
        return lambda value: "{" + ",".join([f"{of_key(k)}:{of_value(v)}" for k, v in value.items()]) + "}"
    if isinstance(type_info, DateTypeInfo):
        return lambda value: f'"{value.isoformat()}"'
    if isinstance(type_info, TimeTypeInfo):
        return lambda value: f'"{value.isoformat("seconds")}Z"'
    if isinstance(type_info, TimestampTypeInfo):
        return _timestamp_text
    if isinstance(type_info, BasicTypeInfo):
        basic = type_info.basic_type
        if basic in (BasicType.FLOAT, BasicType.DOUBLE):
            text = float_text(type_info)
            return lambda value: text(value) if math.isfinite(value) else f'"{text(value)}"'
        if basic is BasicType.BOOLEAN:
            return lambda value: "true" if value else "false"
        if basic is BasicType.BIG_DEC:
            return _decimal_text
        if type_info.is_numeric():
            return str
        if basic in (BasicType.STRING, BasicType.CHAR):
            return _quoted
    raise unsupported(type_info, "JSON")


def _name_of_key(key_type: TypeInformation) -> Callable[[Any], str]:
    """Names are texts in JSON, whatever the keys are."""
    text = flink_text(key_type)

    def name(key: Any) -> str:
        if key is None:
            raise ValueError("a key of the map is null")
        return _quoted(text(key))

    return name


def _decimal_text(value: decimal.Decimal) -> str:
    if not value.is_finite():
        raise ValueError(f"{value} is no JSON")
    return str(value)


def _timestamp_text(value: dt.datetime) -> str:
    value = in_utc(value)
    fraction = f".{value.microsecond:06d}".rstrip("0") if value.microsecond else ""
    return f'"{value.replace(microsecond=0).isoformat()}{fraction}Z"'


# ---- JSON schema --------------------------------------------------------------------------------


def row_type_of_json_schema(json_schema: str) -> RowTypeInfo:
    """The type that a JSON schema (draft 7 and before) describes.

    Numbers and integers are BIG_DEC; arrays of one type arrays, of several types rows; a type "or null" is the type.

    Raises:
        InvalidJobError: it is no JSON, no object, or has unions or references that Flink does not read either.
    """
    try:
        root = json.loads(json_schema)
    except (TypeError, ValueError) as error:
        raise InvalidJobError("could not read the JSON schema", why=str(error)) from error
    try:
        found = _type_of(root, root, "<root>", ())
    except (AttributeError, TypeError) as error:  # a text where an object must stand, and the like
        raise InvalidJobError("could not use the JSON schema", why=f"a part of it is no schema: {error}") from error
    if not isinstance(found, RowTypeInfo):
        raise InvalidJobError("could not use the JSON schema", why=f"it describes {found}, not an object")
    return found


def _refuse(place: str, why: str) -> InvalidJobError:
    return InvalidJobError("could not use the JSON schema", where=place, why=why)


def _type_of(node: Any, root: Any, place: str, seen: tuple[str, ...]) -> Optional[TypeInformation]:
    """None: only null."""
    if not isinstance(node, Mapping):
        raise _refuse(place, f"{short_repr(node)} is no schema")
    for word in ("allOf", "anyOf", "not", "extends", "disallow"):
        if word in node:
            raise _refuse(place, f'"{word}" has no type')
    reference = node.get("$ref")
    target = None if reference is None else _resolve(reference, root, place, seen)
    seen = seen if reference is None else (*seen, reference)
    found: list[TypeInformation] = []
    known = False
    kinds = node.get("type")
    if kinds is not None:
        for kind in kinds if isinstance(kinds, list) else [kinds]:
            known = True
            _add(found, _type_named(kind, node, root, place, seen))
    elif target is not None and "type" in target:
        known = True
        _add(found, _type_of(target, root, str(reference), seen))
    choices = node.get("oneOf", target.get("oneOf") if target is not None else None)
    for index, choice in enumerate(choices or ()):
        known = True
        _add(found, _type_of(choice, root, f"{place}/oneOf[{index}]", seen))
    if not known:
        raise _refuse(place, "it has no type")
    if len(found) > 1:
        raise _refuse(place, f"it is one of {', '.join(map(str, found))}; only a type or null can be read")
    return found[0] if found else None


def _add(found: list[TypeInformation], type_info: Optional[TypeInformation]) -> None:
    if type_info is not None and type_info not in found:
        found.append(type_info)


def _resolve(reference: str, root: Any, place: str, seen: tuple[str, ...]) -> Any:
    if reference in seen:
        raise _refuse(place, f'"{reference}" refers to itself')
    if not reference.startswith("#"):
        raise _refuse(place, f'"{reference}" lies in another document')
    node = root
    for part in reference[1:].split("/")[1:]:
        part = part.replace("~1", "/").replace("~0", "~")
        if not isinstance(node, Mapping) or part not in node:
            raise _refuse(place, f'there is no "{reference}"')
        node = node[part]
    return node


def _type_named(
    kind: str, node: Any, root: Any, place: str, seen: tuple[str, ...]
) -> Optional[TypeInformation]:
    match kind:
        case "null":
            return None
        case "boolean":
            return Types.BOOLEAN()
        case "number" | "integer":
            return Types.BIG_DEC()
        case "string":
            return _string_type(node, place)
        case "array":
            return _array_type(node, root, place, seen)
        case "object":
            if node.get("additionalProperties") is True:
                raise _refuse(place, "it has additionalProperties, which have no names")
            fields = {
                name: _type_of(field, root, f"{place}/{name}", seen) or Types.STRING()
                for name, field in node.get("properties", {}).items()
            }
            return Types.ROW_NAMED(list(fields), list(fields.values()))
    raise _refuse(place, f'there is no type "{kind}"')


def _string_type(node: Any, place: str) -> TypeInformation:
    formats = {"date": Types.SQL_DATE, "time": Types.SQL_TIME, "date-time": Types.SQL_TIMESTAMP}
    if "format" in node:
        return formats.get(node["format"], Types.STRING)()
    encoding = node.get("contentEncoding")
    if encoding not in (None, "base64"):
        raise _refuse(place, f'the contentEncoding "{encoding}" cannot be read')
    return Types.STRING() if encoding is None else Types.PRIMITIVE_ARRAY(Types.BYTE())


def _array_type(node: Any, root: Any, place: str, seen: tuple[str, ...]) -> TypeInformation:
    items = node.get("items")
    if isinstance(items, Mapping):
        element = _type_of(items, root, f"{place}/items", seen) or Types.STRING()
        return Types.OBJECT_ARRAY(element)
    if not isinstance(items, list):
        raise _refuse(place, 'an array needs "items"')
    if node.get("additionalItems") is True:
        raise _refuse(place, "it has additionalItems, which have no types")
    types = [_type_of(item, root, f"{place}/items[{i}]", seen) or Types.STRING() for i, item in enumerate(items)]
    return Types.ROW(types)
