"""Canonical keys from their bytes: the other direction of `key_encoding`, for backends that keep keys as bytes."""

from __future__ import annotations

import datetime as dt
import importlib
import struct
import uuid
from decimal import Decimal
from fractions import Fraction
from typing import Any, Callable

from flinkish.common.types import Row, RowKind
from flinkish.errors import CorruptSnapshotError, StateMigrationError
from flinkish.state.canonical_key import NAN, dataclass_default, dataclass_plan

_EPOCH = dt.datetime(1970, 1, 1)
_EPOCH_UTC = _EPOCH.replace(tzinfo=dt.timezone.utc)
_EPOCH_ORDINAL = dt.date(1970, 1, 1).toordinal()
_DAY_US = 86_400_000_000


def decode_key(data: bytes, at: int = 0) -> tuple[Any, int]:
    """The key whose encoding begins at ``at``, and where it ends.

    Raises:
        CorruptSnapshotError: there is no encoding at ``at``.
        StateMigrationError: the class of the key is gone.

    >>> decode_key(b"S\\x01a")
    ('a', 3)
    """
    tag = data[at]
    if tag == 0x53:  # S
        size = data[at + 1]
        if size < 0x80:
            end = at + 2 + size
            return data[at + 2 : end].decode("utf-8", "surrogatepass"), end
    elif tag == 0x69:  # i
        return int.from_bytes(data[at + 1 : at + 9], "big", signed=True), at + 9
    decoder = _DECODERS.get(tag)
    if decoder is None:
        raise CorruptSnapshotError("could not read a key", why=f"there is no key with the tag {bytes([tag])!r}")
    return decoder(data, at + 1)


def _length(data: bytes, at: int) -> tuple[int, int]:
    size = shift = 0
    while True:
        byte = data[at]
        at += 1
        size |= (byte & 0x7F) << shift
        if byte < 0x80:
            return size, at
        shift += 7


def _sized(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _length(data, at)
    return data[at : at + size], at + size


def _str(data: bytes, at: int) -> tuple[str, int]:
    text, at = _sized(data, at)
    return text.decode("utf-8", "surrogatepass"), at


def _long_int(data: bytes, at: int) -> tuple[int, int]:
    content, at = _sized(data, at)
    return int.from_bytes(content, "big", signed=True), at


def _float(data: bytes, at: int) -> tuple[float, int]:
    return struct.unpack_from(">d", data, at)[0], at + 8


def _decimal(data: bytes, at: int) -> tuple[Decimal, int]:
    sign = int(data[at : at + 1] == b"-")
    digits, at = _sized(data, at + 1)
    exponent, at = decode_key(data, at)
    return Decimal((sign, tuple(digits), exponent)), at


def _fraction(data: bytes, at: int) -> tuple[Fraction, int]:
    numerator, at = decode_key(data, at)
    denominator, at = decode_key(data, at)
    return Fraction(numerator, denominator), at


def _complex(data: bytes, at: int) -> tuple[complex, int]:
    return complex(*struct.unpack_from(">dd", data, at)), at + 16


def _tuple(data: bytes, at: int) -> tuple[tuple, int]:
    size, at = _length(data, at)
    parts = []
    for _ in range(size):
        part, at = decode_key(data, at)
        parts.append(part)
    return tuple(parts), at


def _frozenset(data: bytes, at: int) -> tuple[frozenset, int]:
    parts, at = _tuple(data, at)
    return frozenset(parts), at


def _uuid(data: bytes, at: int) -> tuple[uuid.UUID, int]:
    return uuid.UUID(bytes=bytes(data[at : at + 16])), at + 16


def _date(data: bytes, at: int) -> tuple[dt.date, int]:
    days, at = decode_key(data, at)
    return dt.date.fromordinal(days + _EPOCH_ORDINAL), at


def _datetime(epoch: dt.datetime) -> Callable[[bytes, int], tuple[Any, int]]:
    def decode(data: bytes, at: int) -> tuple[Any, int]:
        nanos, at = decode_key(data, at)
        micros, rest = divmod(nanos, 1000)
        if rest:
            import pandas  # slow to import, and hardly any job has such keys

            return pandas.Timestamp(nanos, unit="ns", tz=epoch.tzinfo and "UTC"), at
        return epoch + dt.timedelta(microseconds=micros), at

    return decode


def _naive_time(data: bytes, at: int) -> tuple[dt.time, int]:
    micros, at = decode_key(data, at)
    return (_EPOCH + dt.timedelta(microseconds=micros)).time(), at


def _aware_time(data: bytes, at: int) -> tuple[dt.time, int]:
    micros, at = decode_key(data, at)  # may lie outside of the day, see `canonical_key`
    zone_us = _DAY_US - 1 if micros < 0 else 1 - _DAY_US if micros >= _DAY_US else 0
    zone = dt.timezone(dt.timedelta(microseconds=zone_us)) if zone_us else dt.timezone.utc
    return (_EPOCH + dt.timedelta(microseconds=micros + zone_us)).time().replace(tzinfo=zone), at


def _timedelta(data: bytes, at: int) -> tuple[Any, int]:
    nanos, at = decode_key(data, at)
    micros, rest = divmod(nanos, 1000)
    if rest:
        import pandas

        return pandas.Timedelta(nanos, unit="ns"), at
    return dt.timedelta(microseconds=micros), at


def _class(data: bytes, at: int) -> tuple[Any, int]:
    module, at = decode_key(data, at)
    name, at = decode_key(data, at)
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise StateMigrationError(
            f"could not restore a key: {module}.{name} is gone",
            why=f"keys have the class {module}.{name}, which the program does not have ({error})",
            do="keep the class under its name: keys are found by it",
        ) from error
    return found, at


def _enum(data: bytes, at: int) -> tuple[Any, int]:
    cls, at = _class(data, at)
    name, at = decode_key(data, at)
    return _member(cls, cls.__getitem__, name), at


def _flag(data: bytes, at: int) -> tuple[Any, int]:
    cls, at = _class(data, at)
    value, at = decode_key(data, at)
    return _member(cls, cls, value), at


def _member(cls: Any, find: Callable[[Any], Any], sought: Any) -> Any:
    try:
        return find(sought)
    except (KeyError, ValueError) as error:
        name = f"{cls.__module__}.{cls.__qualname__}"
        raise StateMigrationError(
            f"could not restore a key: {name} has no member {sought!r} any more",
            why=f"a key was saved as that member, and the {name} of the program does not have it",
            do="keep the member",
        ) from error


def _dataclass(data: bytes, at: int) -> tuple[Any, int]:
    cls, at = _class(data, at)
    size, at = _length(data, at)
    key = object.__new__(cls)
    for _ in range(size):
        name, at = decode_key(data, at)
        value, at = decode_key(data, at)
        object.__setattr__(key, name, value)
    plan = dataclass_plan(cls)
    for field in () if plan is None else plan.reset:
        object.__setattr__(key, field.name, dataclass_default(field))
    return key, at


def _row(data: bytes, at: int) -> tuple[Row, int]:
    kind, at = decode_key(data, at)
    names, at = decode_key(data, at)
    values, at = decode_key(data, at)
    fields = None if names is None else list(names)
    return Row.of_fields(fields, list(values), RowKind[kind]), at  # type: ignore[arg-type]


_DECODERS: dict[int, Callable[[bytes, int], tuple[Any, int]]] = {
    ord(tag): decoder
    for tag, decoder in {
        "N": lambda data, at: (None, at),
        "n": lambda data, at: (NAN, at),
        "S": _str,
        "I": _long_int,
        "F": _float,
        "D": _decimal,
        "Q": _fraction,
        "C": _complex,
        "B": lambda data, at: _sized(data, at),
        "T": _tuple,
        "Z": _frozenset,
        "U": _uuid,
        "d": _date,
        "t": _datetime(_EPOCH),
        "u": _datetime(_EPOCH_UTC),
        "h": _naive_time,
        "H": _aware_time,
        "l": _timedelta,
        "E": _enum,
        "G": _flag,
        "O": _dataclass,
        "R": _row,
    }.items()
}
