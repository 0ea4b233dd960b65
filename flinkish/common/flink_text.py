"""Records of a declared type as the text that Flink writes: ``(a,1)`` for a TUPLE, ``+I[a, 1]`` for a
ROW, ``true``, ``null``, ``[1, 2]``, ``{a=1}``.

Print sinks and text files use it, so that a PyFlink job gives the same lines here.  Records without a
declared type are written with ``str``.

Source: Java's ``toString`` of Flink's ``Tuple`` and ``Row`` (``StringUtils.arrayAwareToString``), of
lists, maps, ``Double``, ``java.sql.Timestamp``; PyFlink's ``DataStream.print``.
"""

from __future__ import annotations

import datetime as dt
from typing import Any, Callable, Optional

from flinkish.common.basic_types import (
    BasicType,
    BasicTypeInfo,
    SqlTimeTypeInfo,
    TimestampTypeInfo,
    TypeInformation,
    float32,
)
from flinkish.common.time import Instant
from flinkish.common.types import Row
from flinkish.common.typeinfo import MapTypeInfo, RowTypeInfo, TupleTypeInfo, _ElementsTypeInfo

__all__ = ["flink_text", "float_text", "printed_text"]

Text = Callable[[Any], str]


def printed_text(type_info: Optional[TypeInformation]) -> Text:
    """How ``print()`` shows a record: as `flink_text`, but a Row as PyFlink does it.

    >>> from flinkish.common import Row, Types
    >>> printed_text(Types.ROW([Types.STRING(), Types.INT()]))(Row("a", None))
    '+I[a,None]'
    """
    return _printed_row if isinstance(type_info, RowTypeInfo) else flink_text(type_info)


def _printed_row(value: Any) -> str:
    if value is None:
        return "null"
    return f"{_kind(value)}[{','.join(map(str, value))}]"


def _kind(record: Any) -> str:
    return str(record.get_row_kind()) if isinstance(record, Row) else "+I"


def flink_text(type_info: Optional[TypeInformation]) -> Text:
    """The function from a record of ``type_info`` to Flink's text.

    >>> from flinkish.common import Types
    >>> flink_text(Types.TUPLE([Types.STRING(), Types.DOUBLE(), Types.BOOLEAN()]))(("a", 2e7, None))
    '(a,2.0E7,null)'
    """
    if isinstance(type_info, TupleTypeInfo):
        fields = [flink_text(field) for field in type_info.get_field_types()]
        return _or_null(lambda value: f"({','.join([f(v) for f, v in zip(fields, value)])})")
    if isinstance(type_info, RowTypeInfo):
        columns = [flink_text(field) for field in type_info.get_field_types()]
        return _or_null(
            lambda row: f"{_kind(row)}[{', '.join([f(v) for f, v in zip(columns, row)])}]"
        )
    if isinstance(type_info, _ElementsTypeInfo):
        element = flink_text(type_info.elem_type)
        return _or_null(lambda value: f"[{', '.join(map(element, value))}]")
    if isinstance(type_info, MapTypeInfo):
        key, item = flink_text(type_info.key_type_info), flink_text(type_info.value_type_info)
        return _or_null(lambda value: f"{{{', '.join(f'{key(k)}={item(v)}' for k, v in value.items())}}}")
    if isinstance(type_info, BasicTypeInfo):
        return _or_null(_BASIC.get(type_info.basic_type, str))
    if isinstance(type_info, TimestampTypeInfo):
        return _or_null(_timestamp)
    if type_info == SqlTimeTypeInfo.TIME():
        return _or_null(lambda value: value.strftime("%H:%M:%S"))
    return str if type_info is None else _or_null(type_info.to_text)


def _or_null(text: Text) -> Text:
    return lambda value: "null" if value is None else text(value)


def _double(value: Any) -> str:
    """As Java: plain from 0.001 up to 10,000,000, else with an exponent.

    >>> [_double(x) for x in (1.0, 0.001, 9999999.0, 1e7, 1.25e-5, float("nan"), float("-inf"))]
    ['1.0', '0.001', '9999999.0', '1.0E7', '1.25E-5', 'NaN', '-Infinity']
    """
    value = float(value)
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return repr(value)
    sign, digits, exponent = _digits(value)
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent}"


def _digits(value: float) -> tuple[str, str, int]:
    """Sign, significant digits and the exponent of the first, of a number that is not 0."""
    text = repr(value)
    sign, text = ("-", text[1:]) if text.startswith("-") else ("", text)
    mantissa, _, exponent = text.partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = whole + ("" if fraction == "0" else fraction)
    first = len(whole) - 1 - (len(digits) - len(digits.lstrip("0")))
    return sign, digits.strip("0"), first + int(exponent or 0)


_SMALLEST_NORMAL = 2.0**-126


def _float(value: Any) -> str:
    """As Java's ``Float``: the shortest text that stands for the number of 32 bits.

    >>> [_float(x) for x in (110.1, 0.1, 3e38, 16777216, 1e39, 1e-45)]
    ['110.1', '0.1', '3.0E38', '1.6777216E7', 'Infinity', '1.4E-45']
    """
    value = float32(float(value))
    for digits in range(6 if abs(value) >= _SMALLEST_NORMAL else 2, 9):  # six digits of a normal one are no others
        shorter = float(f"{value:.{digits}g}")
        if float32(shorter) == value:
            return _double(shorter)
    return _double(float(f"{value:.9g}"))


def float_text(type_info: BasicTypeInfo) -> Text:
    """As ``flink_text``, of a FLOAT or DOUBLE that is not null."""
    return _float if type_info.basic_type is BasicType.FLOAT else _double


def _boolean(value: Any) -> str:
    return "true" if value else "false"


def _timestamp(value: dt.datetime) -> str:
    """In UTC, if it says where it is.

    >>> _timestamp(dt.datetime(1, 2, 3)), _timestamp(dt.datetime.fromisoformat("2024-01-02T01:00:00.5+02:00"))
    ('0001-02-03 00:00:00.0', '2024-01-01 23:00:00.5')
    """
    value = in_utc(value)
    fraction = f"{value.microsecond:06d}".rstrip("0") or "0"
    return f"{value.replace(microsecond=0).isoformat(' ')}.{fraction}"


def in_utc(value: dt.datetime) -> dt.datetime:
    """The datetime without zone, in UTC, for one with a zone; one without is taken as UTC."""
    return value if value.tzinfo is None else value.astimezone(dt.timezone.utc).replace(tzinfo=None)


def _instant(value: Instant) -> str:
    """As Java's ``Instant``: a fraction has 3, 6 or 9 digits.

    >>> _instant(Instant(5, 0)), _instant(Instant(-1, 120_000_000))
    ('1970-01-01T00:00:05Z', '1969-12-31T23:59:59.120Z')
    """
    fraction = f".{value.nanos:09d}" if value.nanos else ""
    while fraction.endswith("000"):
        fraction = fraction[:-3]
    return f"{(dt.datetime(1970, 1, 1) + dt.timedelta(seconds=value.seconds)).isoformat()}{fraction}Z"


_BASIC: dict[BasicType, Text] = {
    BasicType.BOOLEAN: _boolean,
    BasicType.DOUBLE: _double,
    BasicType.FLOAT: _float,
    BasicType.INSTANT: _instant,
}
