"""TypeInformation and the types of single values: numbers, texts, dates and times.

Users take them from ``flinkish.common.typeinfo``.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
import numbers
import struct
from enum import Enum
from typing import Any, Callable, Optional

from flinkish.common.time import Instant
from flinkish.errors import InvalidJobError

__all__ = [
    "BasicType",
    "BasicTypeInfo",
    "DateTypeInfo",
    "InstantTypeInfo",
    "LocalTimeTypeInfo",
    "PickledBytesTypeInfo",
    "SqlTimeTypeInfo",
    "TimeTypeInfo",
    "TimestampTypeInfo",
    "TypeInformation",
]


class TypeInformation:
    """Base of all types.  Equal types compare equal; the text is for people."""

    def mismatch(self, value: Any) -> str:
        """Why ``value`` is not of this type, or an empty text when it is."""
        return "" if value is None else self._mismatch(value)

    def check(self, value: Any, what: str = "value") -> None:
        """Raise InvalidJobError when ``value`` is not of this type."""
        reason = self.mismatch(value)
        if reason:
            raise InvalidJobError(
                f"{what} is not of the declared type {self}",
                why=reason,
                do="correct the declared type or the value",
            )

    def convert(self, value: Any) -> Any:
        """``value`` as this type's own Python form (an int for LONG, a float for DOUBLE).

        Used on keys, so that 1, 1.0 and True are one key of a LONG.

        Raises:
            ValueError, TypeError: there is no such value."""
        return value

    def converter(self) -> Optional[Callable[[Any], Any]]:
        """What gives a function's result the form of its declared type (a tuple declared as ROW becomes
        a Row), or None when results of this type stay as they are.

        The converter raises TypeError or ValueError on what is not of the type.  It never changes
        its argument, and returns it when it has the form already."""
        return None

    def fits(self, value: str) -> Optional[str]:
        """Python source that is true when what the source ``value`` gives needs no `converter`; None: only
        the converter can tell.  Records of several fields are looked at by one such expression."""
        return None

    def _mismatch(self, value: Any) -> str:
        return ""

    def to_text(self, value: Any) -> str:
        """What Flink writes for a value, where no other text is known (``flinkish.common.flink_text``)."""
        return str(value)

    def need_conversion(self) -> bool:
        """Whether `to_internal_type` changes anything."""
        return False

    def to_internal_type(self, obj: Any) -> Any:
        """The form of plain numbers and tuples (dates as days, times as microseconds)."""
        return obj

    def from_internal_type(self, obj: Any) -> Any:
        return obj

    def _parts(self) -> tuple:
        return ()

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._parts() == other._parts()  # type: ignore[union-attr]

    def __hash__(self) -> int:
        return hash((type(self).__name__, self._parts()))

    def __repr__(self) -> str:
        return type(self).__name__.removesuffix("TypeInfo").lower()


def expected(what: str, value: Any) -> str:
    text = repr(value)
    return f"expected {what}, got {type(value).__name__} {text if len(text) <= 80 else text[:77] + '...'}"


# ---- single values ------------------------------------------------------------------------------


class BasicType(Enum):
    STRING = "String"
    BYTE = "Byte"
    BOOLEAN = "Boolean"
    SHORT = "Short"
    INT = "Integer"
    LONG = "Long"
    FLOAT = "Float"
    DOUBLE = "Double"
    CHAR = "Character"
    BIG_INT = "BigInteger"
    BIG_DEC = "BigDecimal"
    INSTANT = "Instant"


_BITS = {BasicType.BYTE: 8, BasicType.SHORT: 16, BasicType.INT: 32, BasicType.LONG: 64}
_LIMITS: dict[BasicType, tuple[float, float]] = {
    **{basic: (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) for basic, bits in _BITS.items()},
    BasicType.BIG_INT: (-math.inf, math.inf),
}
_INTEGERS = set(_LIMITS)
_FLOATS = {BasicType.FLOAT, BasicType.DOUBLE}
_NUMERIC = {*_INTEGERS, *_FLOATS, BasicType.BIG_DEC}


class BasicTypeInfo(TypeInformation):
    """A number, a text, a boolean."""

    def __init__(self, basic_type: BasicType):
        self._basic_type = basic_type

    @property
    def basic_type(self) -> BasicType:
        return self._basic_type

    def is_numeric(self) -> bool:
        return self._basic_type in _NUMERIC

    def _mismatch(self, value: Any) -> str:
        basic = self._basic_type
        if basic in _INTEGERS:
            if _is_bool(value) or not isinstance(value, numbers.Integral):
                return expected("an int", value)
            bits = _BITS.get(basic)
            if bits and not -(1 << (bits - 1)) <= int(value) < 1 << (bits - 1):
                return f"{value} does not fit into {bits} bits"
        elif basic in _FLOATS:
            if _is_bool(value) or not isinstance(value, numbers.Real):
                return expected("a float", value)
        elif basic is BasicType.BOOLEAN:
            if not _is_bool(value):
                return expected("a bool", value)
        elif basic is BasicType.BIG_DEC:
            if not isinstance(value, decimal.Decimal):
                return expected("a Decimal", value)
        elif basic is BasicType.INSTANT:
            if not isinstance(value, (Instant, dt.datetime)):
                return expected("an Instant or a datetime", value)
        elif not isinstance(value, str):
            return expected("a str", value)
        elif basic is BasicType.CHAR and len(value) != 1:
            return expected("one character", value)
        return ""

    def convert(self, value: Any) -> Any:
        basic = self._basic_type
        if value is None:
            return None
        if basic in _INTEGERS:
            return _as_whole(value, *_LIMITS[basic])
        if basic in _CONVERTERS:
            return _CONVERTERS[basic](value)
        reason = self._mismatch(value)
        if reason:
            raise TypeError(reason)
        return value

    def converter(self) -> Optional[Callable[[Any], Any]]:
        basic = self._basic_type
        if basic in _INTEGERS:
            low, high = _LIMITS[basic]

            def convert(value: Any) -> Any:
                if type(value) is int and low <= value <= high or value is None:
                    return value
                return _as_whole(value, low, high)

            return convert
        return _CONVERTERS.get(basic)

    def fits(self, value: str) -> Optional[str]:
        basic = self._basic_type
        if basic in _BITS:
            low, high = _LIMITS[basic]
            return f"(type({value}) is int and {low} <= {value} <= {high})"
        kind = _FORMS.get(basic)
        return f"type({value}) is {kind}" if kind else None

    def _parts(self) -> tuple:
        return (self._basic_type,)

    def __repr__(self) -> str:
        return self._basic_type.name.lower()

    @staticmethod
    def STRING_TYPE_INFO() -> "BasicTypeInfo":
        return BasicTypeInfo(BasicType.STRING)

    @staticmethod
    def BOOLEAN_TYPE_INFO() -> "BasicTypeInfo":
        return BasicTypeInfo(BasicType.BOOLEAN)

    @staticmethod
    def BYTE_TYPE_INFO() -> "BasicTypeInfo":
        return BasicTypeInfo(BasicType.BYTE)

    @staticmethod
    def SHORT_TYPE_INFO() -> "BasicTypeInfo":
        return BasicTypeInfo(BasicType.SHORT)

    @staticmethod
    def INT_TYPE_INFO() -> "BasicTypeInfo":
        return BasicTypeInfo(BasicType.INT)

    @staticmethod
    def LONG_TYPE_INFO() -> "BasicTypeInfo":
        return BasicTypeInfo(BasicType.LONG)

    @staticmethod
    def FLOAT_TYPE_INFO() -> "BasicTypeInfo":
        return BasicTypeInfo(BasicType.FLOAT)

    @staticmethod
    def DOUBLE_TYPE_INFO() -> "BasicTypeInfo":
        return BasicTypeInfo(BasicType.DOUBLE)

    @staticmethod
    def CHAR_TYPE_INFO() -> "BasicTypeInfo":
        return BasicTypeInfo(BasicType.CHAR)

    @staticmethod
    def BIG_INT_TYPE_INFO() -> "BasicTypeInfo":
        return BasicTypeInfo(BasicType.BIG_INT)

    @staticmethod
    def BIG_DEC_TYPE_INFO() -> "BasicTypeInfo":
        return BasicTypeInfo(BasicType.BIG_DEC)

    @staticmethod
    def INSTANT_TYPE_INFO() -> "BasicTypeInfo":
        return InstantTypeInfo(BasicType.INSTANT)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool) or type(value).__name__ in ("bool_", "bool") and hasattr(value, "dtype")


def _as_whole(value: Any, low: float, high: float) -> int:
    if isinstance(value, _TEXTS):  # int() would read them
        raise TypeError(expected("an int", value))
    try:
        number = int(value)
    except OverflowError:
        raise ValueError(f"{value!r} is not a whole number") from None
    if number != value:
        raise ValueError(f"{value!r} is not a whole number")
    if not low <= number <= high:
        raise ValueError(f"{number} does not fit into {int(high).bit_length() + 1} bits")
    return number


def _as_float(value: Any) -> Any:
    if type(value) is float or value is None:
        return value
    if isinstance(value, _TEXTS):  # float() would read them
        raise TypeError(expected("a float", value))
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"a whole number of {int(value).bit_length()} bits does not fit into a float") from None


_TEXTS = (str, bytes, bytearray)
_FLOAT32 = struct.Struct("f")


def float32(value: float) -> float:
    """The nearest number of 32 bits, as a Python float; infinite where it is too large, as in Java and C.

    >>> float32(110.1), float32(-1e39)
    (110.0999984741211, -inf)
    """
    try:
        return _FLOAT32.unpack(_FLOAT32.pack(value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def _as_float32(value: Any) -> Any:
    return None if value is None else float32(_as_float(value))


def _as_bool(value: Any) -> Any:
    if type(value) is bool or value is None:
        return value
    if _is_bool(value) or value in (0, 1):
        return bool(value)
    raise TypeError(expected("a bool", value))


def _as_decimal(value: Any) -> Any:
    """By the number's text, so that 0.1 is 0.1, as in PyFlink."""
    if isinstance(value, decimal.Decimal) or value is None:
        return value
    if _is_bool(value) or not isinstance(value, numbers.Real):
        raise TypeError(expected("a Decimal", value))
    return decimal.Decimal(int(value) if isinstance(value, numbers.Integral) else str(float(value)))


def _as_instant(value: Any) -> Any:
    if isinstance(value, Instant) or value is None:
        return value
    if isinstance(value, dt.datetime):
        return _instant(value)
    raise TypeError(expected("an Instant or a datetime", value))


def _instant(value: dt.datetime) -> Instant:
    micros = _micros(value)
    return Instant(micros // 1_000_000, micros % 1_000_000 * 1_000)


#: STRING and CHAR are not here: a text stays as it is, at no cost for each record.
_CONVERTERS: dict[BasicType, Callable[[Any], Any]] = {
    BasicType.FLOAT: _as_float32,
    BasicType.DOUBLE: _as_float,
    BasicType.BOOLEAN: _as_bool,
    BasicType.BIG_DEC: _as_decimal,
    BasicType.INSTANT: _as_instant,
}
_FORMS = {BasicType.DOUBLE: "float", BasicType.BOOLEAN: "bool"}

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_MICROSECOND = dt.timedelta(microseconds=1)


def _micros(value: dt.datetime) -> int:
    """Microseconds since the epoch; a datetime without zone is taken as UTC."""
    if value.tzinfo is None:
        value = value.replace(tzinfo=dt.timezone.utc)
    return (value - _EPOCH) // _MICROSECOND


class InstantTypeInfo(BasicTypeInfo):
    def need_conversion(self) -> bool:
        return True

    def to_internal_type(self, obj: Optional[Instant]) -> Optional[int]:
        """Microseconds since the epoch."""
        return None if obj is None else obj.seconds * 1_000_000 + obj.nanos // 1_000

    def from_internal_type(self, obj: Optional[int]) -> Optional[Instant]:
        return None if obj is None else Instant(obj // 1_000_000, obj % 1_000_000 * 1_000)


class PickledBytesTypeInfo(TypeInformation):
    """Any Python object."""

    def __repr__(self) -> str:
        return "object"


class _PythonTypeInfo(TypeInformation):
    """A type that is a Python class."""

    python_type: Any = object
    excluded: Any = ()
    text = ""

    def _mismatch(self, value: Any) -> str:
        if not isinstance(value, self.python_type) or isinstance(value, self.excluded):
            return expected(f"a {self.python_type.__name__}", value)
        return ""

    def need_conversion(self) -> bool:
        return True

    def __repr__(self) -> str:
        return self.text


class SqlTimeTypeInfo(TypeInformation):
    """The types of SQL's dates and times."""

    @staticmethod
    def DATE() -> "DateTypeInfo":
        return DateTypeInfo()

    @staticmethod
    def TIME() -> "TimeTypeInfo":
        return TimeTypeInfo()

    @staticmethod
    def TIMESTAMP() -> "TimestampTypeInfo":
        return TimestampTypeInfo()


class DateTypeInfo(_PythonTypeInfo):
    EPOCH_ORDINAL = dt.date(1970, 1, 1).toordinal()
    python_type, excluded, text = dt.date, dt.datetime, "date"

    def converter(self) -> Optional[Callable[[Any], Any]]:
        """A datetime loses its time of day."""
        return self.convert

    def convert(self, value: Any) -> Any:
        return value.date() if isinstance(value, dt.datetime) else value

    def to_internal_type(self, d: Optional[dt.date]) -> Optional[int]:
        """Days since the epoch."""
        return None if d is None else d.toordinal() - self.EPOCH_ORDINAL

    def from_internal_type(self, v: Optional[int]) -> Optional[dt.date]:
        return None if v is None else dt.date.fromordinal(v + self.EPOCH_ORDINAL)


class TimeTypeInfo(_PythonTypeInfo):
    EPOCH_ORDINAL = dt.date(1970, 1, 1).toordinal()
    python_type, text = dt.time, "time"

    def to_internal_type(self, t: Optional[dt.time]) -> Optional[int]:
        """Microseconds since midnight."""
        if t is None:
            return None
        return ((t.hour * 60 + t.minute) * 60 + t.second) * 1_000_000 + t.microsecond

    def from_internal_type(self, t: Optional[int]) -> Optional[dt.time]:
        if t is None:
            return None
        seconds, micros = divmod(t, 1_000_000)
        minutes, second = divmod(seconds, 60)
        return dt.time(*divmod(minutes, 60), second, micros)


class TimestampTypeInfo(_PythonTypeInfo):
    python_type, text = dt.datetime, "timestamp"

    def to_internal_type(self, dt: Optional[dt.datetime]) -> Optional[int]:
        """Microseconds since the epoch."""
        return None if dt is None else _micros(dt)

    def from_internal_type(self, ts: Optional[int]) -> Optional[dt.datetime]:
        """A datetime without zone, in UTC."""
        return None if ts is None else (_EPOCH + ts * _MICROSECOND).replace(tzinfo=None)


class LocalTimeTypeInfo(TypeInformation):
    """Dates and times of the Table API, without a zone."""

    class TimeType(Enum):
        LOCAL_DATE = 0
        LOCAL_TIME = 1
        LOCAL_DATE_TIME = 2

    def __init__(self, time_type: "LocalTimeTypeInfo.TimeType"):
        self._time_type = time_type
        self._delegate = (DateTypeInfo, TimeTypeInfo, TimestampTypeInfo)[time_type.value]()

    @property
    def time_type(self) -> "LocalTimeTypeInfo.TimeType":
        return self._time_type

    def _mismatch(self, value: Any) -> str:
        return self._delegate._mismatch(value)

    def need_conversion(self) -> bool:
        return True

    def to_internal_type(self, obj: Any) -> Any:
        return self._delegate.to_internal_type(obj)

    def from_internal_type(self, obj: Any) -> Any:
        return self._delegate.from_internal_type(obj)

    def _parts(self) -> tuple:
        return (self._time_type,)

    def __repr__(self) -> str:
        return self._time_type.name.lower()
