"""Values of declared types from text and back, as Flink's text formats (CSV, JSON) read and write them.

Source: Flink's ``CsvRowDeserializationSchema`` and ``JsonRowDeserializationSchema`` (what trims, what parses).
"""

from __future__ import annotations

import base64
import datetime as dt
import decimal
import math
from typing import Any, Callable

from flinkish.common.basic_types import (
    BasicType,
    BasicTypeInfo,
    DateTypeInfo,
    LocalTimeTypeInfo,
    TimestampTypeInfo,
    TimeTypeInfo,
    TypeInformation,
)
from flinkish.common.typeinfo import PrimitiveArrayTypeInfo
from flinkish.errors import InvalidJobError

Parse = Callable[[str], Any]


def is_bytes(type_info: TypeInformation) -> bool:
    return isinstance(type_info, PrimitiveArrayTypeInfo) and type_info.is_bytes()


def without_zone(type_info: TypeInformation) -> TypeInformation:
    """LOCAL_DATE, LOCAL_TIME and LOCAL_DATE_TIME are read and written as SQL's types are."""
    return type_info._delegate if isinstance(type_info, LocalTimeTypeInfo) else type_info


def parser(type_info: TypeInformation, what: str) -> Parse:
    """From a text to a value; numbers, booleans and decimals may stand between blanks.

    The parser raises ValueError for a text that is none of the type's.

    Args:
        what: of the format, for the error: "CSV".
    Raises:
        InvalidJobError: the format has no such values.
    """
    type_info = without_zone(type_info)
    if is_bytes(type_info):
        return lambda text: base64.b64decode(text, validate=True)
    if isinstance(type_info, DateTypeInfo):
        return dt.date.fromisoformat
    if isinstance(type_info, TimeTypeInfo):
        return time_of
    if isinstance(type_info, TimestampTypeInfo):
        return timestamp_of
    if isinstance(type_info, BasicTypeInfo):
        basic = type_info.basic_type
        if basic in (BasicType.STRING, BasicType.CHAR):
            return str
        if basic is BasicType.BOOLEAN:
            return _boolean
        if basic is BasicType.BIG_DEC:
            return _decimal
        convert = type_info.convert
        if basic in (BasicType.FLOAT, BasicType.DOUBLE):
            return lambda text: convert(_floating(text))
        if basic is not BasicType.INSTANT:
            return lambda text: convert(int(of_digits(text)))
    raise unsupported(type_info, what)


def unsupported(type_info: TypeInformation, what: str) -> InvalidJobError:
    return InvalidJobError(
        f"could not read or write {type_info} as {what}",
        why=f"{what} has no form for it",
        do="declare numbers, texts, booleans, dates, times, bytes, or arrays and rows of them",
    )


def time_of(text: str) -> dt.time:
    return _without_offset(dt.time.fromisoformat(_in_microseconds(text)), text)


def timestamp_of(text: str) -> dt.datetime:
    return _without_offset(dt.datetime.fromisoformat(_in_microseconds(text)), text)


def _without_offset(value: Any, text: str) -> Any:
    if value.tzinfo is not None:
        raise ValueError(f"{text!r} names an offset from UTC, which the type has not")
    return value


def _in_microseconds(text: str) -> str:
    """A fraction of a second with the three or six digits that Python 3.10 reads; nanoseconds are cut off."""
    whole, dot, fraction = text.partition(".")
    return f"{whole}.{fraction[:6]:0<6}" if dot and fraction.isdigit() else text


def _boolean(text: str) -> bool:
    """Everything but "true", in any case, is false, as for Java's ``Boolean.parseBoolean``."""
    return text.strip().lower() == "true"


def _decimal(text: str) -> decimal.Decimal:
    try:
        return decimal.Decimal(of_digits(text).strip())
    except decimal.InvalidOperation:
        raise ValueError(f"{text!r} is no decimal number") from None


_WORDS = {"NaN": math.nan, "Infinity": math.inf, "+Infinity": math.inf, "-Infinity": -math.inf}


def _floating(text: str) -> float:
    word = _WORDS.get(text.strip())
    return float(of_digits(text)) if word is None else word


def of_digits(text: str) -> str:
    """``text`` without what Python reads as a number and Java does not: ``1_000``, ``nan``, ``inf``.

    Raises: ValueError: it has such."""
    if "_" in text or text.strip(" +-")[:1].isalpha():
        raise ValueError(f"{text!r} is no number")
    return text
