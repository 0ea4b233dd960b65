"""The bytes of a canonical key: the same in every process, run and Python version.

One tag byte, then content that tells its own length, so that no encoding is the beginning of
another and nested ones need no separator::

    N None   n NaN   i int64, 8 bytes   I longer int   F float   D decimal   Q fraction   C complex
    S str, UTF-8   B bytes   T tuple   Z frozenset, parts sorted   U UUID
    d date, days   t naive and u aware datetime, ns since 1970 (UTC)   h, H time, us   l timedelta, ns
    E enum: module, class, member   G flag: module, class, value   O dataclass   R Row

This format is on disk: never change it.  ``tests/unit/state/test_key_encoding.py`` holds a table.
"""

from __future__ import annotations

import datetime as dt
import enum
import struct
import uuid
from decimal import Decimal
from fractions import Fraction
from typing import Any, Callable

from flinkish.common.types import Row
from flinkish.state.canonical_key import (
    NAN,
    canonical_and_storable,
    canonical_key,
    dataclass_plan,
    refuse_unknown,
    time_of_day_us,
    with_operator,
)

__all__ = ["NAN", "canonical_and_storable", "canonical_key", "encode_key", "with_operator"]

_EPOCH = dt.datetime(1970, 1, 1)
_EPOCH_ORDINAL = dt.date(1970, 1, 1).toordinal()
_MICROSECOND = dt.timedelta(microseconds=1)


def encode_key(canonical: Any) -> bytes:
    """The bytes of a canonical key: equal for equal keys, different for others, in every process.

    >>> encode_key("a")
    b'S\\x01a'
    """
    cls = type(canonical)
    if cls is str:  # the two shapes that are nearly all keys
        data = canonical.encode("utf-8", "surrogatepass")
        return b"S" + _length(len(data)) + data
    if cls is int and -0x8000000000000000 <= canonical < 0x8000000000000000:
        return b"i" + canonical.to_bytes(8, "big", signed=True)
    out = bytearray()
    if cls is tuple:
        _encode_tuple(canonical, out)
    else:
        _encode(canonical, out)
    return bytes(out)


def _length(n: int) -> bytes:
    if n < 0x80:
        return _LENGTHS[n]
    out = bytearray()
    while n >= 0x80:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


_LENGTHS = [bytes([n]) for n in range(0x80)]


def _encode(key: Any, out: bytearray) -> None:
    encoder = _ENCODERS.get(type(key))
    if encoder is not None:
        encoder(key, out)
    elif isinstance(key, dt.datetime):  # pandas, with nanoseconds
        _encode_datetime(key, out)
    elif isinstance(key, dt.timedelta):
        _encode_timedelta(key, out)
    elif isinstance(key, enum.Flag):
        _encode_class(b"G", type(key), out)
        _encode_int(key._value_, out)
    elif isinstance(key, enum.Enum):
        _encode_class(b"E", type(key), out)
        _encode_str(key._name_, out)
    elif isinstance(key, Row):
        names = key.get_field_names()
        out += b"R"
        _encode_str(key.get_row_kind().name, out)
        _encode(None if names is None else tuple(names), out)
        _encode_tuple(tuple(key), out)
    else:
        plan = dataclass_plan(type(key))
        if plan is None:
            raise refuse_unknown(key)
        _encode_class(b"O", plan.cls, out)
        out += _length(len(plan.compared))
        for name in plan.compared:
            _encode_str(name, out)
            _encode(getattr(key, name), out)


def _encode_class(tag: bytes, cls: type, out: bytearray) -> None:
    out += tag
    _encode_str(cls.__module__, out)
    _encode_str(cls.__qualname__, out)


def _encode_str(key: str, out: bytearray) -> None:
    data = key.encode("utf-8", "surrogatepass")
    out += b"S"
    out += _length(len(data))
    out += data


def _encode_bytes(key: bytes, out: bytearray) -> None:
    out += b"B"
    out += _length(len(key))
    out += key


def _encode_int(key: int, out: bytearray) -> None:
    if -0x8000000000000000 <= key < 0x8000000000000000:
        out += b"i"
        out += key.to_bytes(8, "big", signed=True)
    else:
        data = key.to_bytes(key.bit_length() // 8 + 1, "big", signed=True)
        out += b"I"
        out += _length(len(data))
        out += data


def _encode_float(key: float, out: bytearray) -> None:
    out += b"F"
    out += struct.pack(">d", key)


def _encode_decimal(key: Decimal, out: bytearray) -> None:
    sign, digits, exponent = key.as_tuple()
    out += b"D-" if sign else b"D+"
    out += _length(len(digits))
    out += bytes(digits)
    _encode_int(exponent, out)  # type: ignore[arg-type]


def _encode_fraction(key: Fraction, out: bytearray) -> None:
    out += b"Q"
    _encode_int(key.numerator, out)
    _encode_int(key.denominator, out)


def _encode_complex(key: complex, out: bytearray) -> None:
    out += b"C"
    out += struct.pack(">dd", key.real, key.imag)


def _encode_tuple(key: tuple, out: bytearray) -> None:
    out += b"T"
    out += _length(len(key))
    for part in key:
        if type(part) is str:
            data = part.encode("utf-8", "surrogatepass")
            out += b"S" + _length(len(data)) + data
        else:
            _encode(part, out)


def _encode_frozenset(key: frozenset, out: bytearray) -> None:
    out += b"Z"
    out += _length(len(key))
    for part in sorted(map(encode_key, key)):
        out += part


def _encode_datetime(key: dt.datetime, out: bytearray) -> None:
    if key.tzinfo is None:
        out += b"t"
        micros = (_plain(key) - _EPOCH) // _MICROSECOND
    else:
        out += b"u"
        micros = (_plain(key) - _EPOCH) // _MICROSECOND  # canonical ones are in UTC
    _encode_int(micros * 1000 + getattr(key, "nanosecond", 0), out)


def _plain(key: dt.datetime) -> dt.datetime:
    return dt.datetime(key.year, key.month, key.day, key.hour, key.minute, key.second,
                       key.microsecond)


def _encode_date(key: dt.date, out: bytearray) -> None:
    out += b"d"
    _encode_int(key.toordinal() - _EPOCH_ORDINAL, out)


def _encode_time(key: dt.time, out: bytearray) -> None:
    offset = key.utcoffset()
    if offset is None:
        out += b"h"
        _encode_int(time_of_day_us(key), out)
    else:
        out += b"H"
        _encode_int(time_of_day_us(key) - offset // _MICROSECOND, out)


def _encode_timedelta(key: dt.timedelta, out: bytearray) -> None:
    out += b"l"
    micros = (key.days * 86_400 + key.seconds) * 1_000_000 + key.microseconds
    _encode_int(micros * 1000 + getattr(key, "nanoseconds", 0), out)


def _encode_constant(data: bytes) -> Callable[[Any, bytearray], None]:
    def encode(key: Any, out: bytearray) -> None:
        out += data

    return encode


def _encode_uuid(key: uuid.UUID, out: bytearray) -> None:
    out += b"U"
    out += key.bytes


_ENCODERS: dict[type, Callable[[Any, bytearray], None]] = {
    type(None): _encode_constant(b"N"),
    type(NAN): _encode_constant(b"n"),
    str: _encode_str,
    bytes: _encode_bytes,
    int: _encode_int,
    float: _encode_float,
    Decimal: _encode_decimal,
    Fraction: _encode_fraction,
    complex: _encode_complex,
    tuple: _encode_tuple,
    frozenset: _encode_frozenset,
    dt.datetime: _encode_datetime,
    dt.date: _encode_date,
    dt.time: _encode_time,
    dt.timedelta: _encode_timedelta,
    uuid.UUID: _encode_uuid,
}
