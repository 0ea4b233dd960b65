"""Lengths of time and points in time, and one helper that reads every form of them.

Wherever flinkish asks for a length of time, ``Time``, ``Duration``, ``datetime.timedelta``, a text
such as ``"200 ms"`` and an int of milliseconds do; `to_milliseconds` is the one place that knows.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta, timezone
from functools import total_ordering
from typing import Union

from flinkish.errors import InvalidJobError

__all__ = ["Duration", "Instant", "Time", "to_milliseconds", "to_epoch_milliseconds", "parse_duration"]

_NANOS = {
    "d": 86_400_000_000_000,
    "day": 86_400_000_000_000,
    "days": 86_400_000_000_000,
    "h": 3_600_000_000_000,
    "hour": 3_600_000_000_000,
    "hours": 3_600_000_000_000,
    "m": 60_000_000_000,
    "min": 60_000_000_000,
    "minute": 60_000_000_000,
    "minutes": 60_000_000_000,
    "s": 1_000_000_000,
    "sec": 1_000_000_000,
    "secs": 1_000_000_000,
    "second": 1_000_000_000,
    "seconds": 1_000_000_000,
    "ms": 1_000_000,
    "milli": 1_000_000,
    "millis": 1_000_000,
    "millisecond": 1_000_000,
    "milliseconds": 1_000_000,
    "µs": 1_000,
    "us": 1_000,
    "micro": 1_000,
    "micros": 1_000,
    "microsecond": 1_000,
    "microseconds": 1_000,
    "ns": 1,
    "nano": 1,
    "nanos": 1,
    "nanosecond": 1,
    "nanoseconds": 1,
}
_TEXT = re.compile(r"\s*([+-]?\d+)\s*([^\W\d]*)\s*")
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_MILLISECOND = timedelta(milliseconds=1)


@total_ordering
class _Length:
    """Shared by ``Time`` and ``Duration``: an exact number of nanoseconds."""

    __slots__ = ("_nanos",)

    def __init__(self, nanos: int):
        self._nanos = nanos

    def to_milliseconds(self) -> int:
        """Whole milliseconds, rounded down."""
        return self._nanos // 1_000_000

    def to_timedelta(self) -> timedelta:
        return timedelta(microseconds=self._nanos // 1_000)

    def __eq__(self, other):
        return isinstance(other, _Length) and self._nanos == other._nanos

    def __lt__(self, other):
        return self._nanos < other._nanos if isinstance(other, _Length) else NotImplemented

    def __hash__(self):
        return hash(self._nanos)

    def __reduce__(self):
        return _rebuild_length, (type(self), self._nanos)

    def __repr__(self):
        if self._nanos % 1_000_000:
            return f"{type(self).__name__}({self._nanos} ns)"
        return f"{type(self).__name__}({self._nanos // 1_000_000} ms)"


def _rebuild_length(cls, nanos):
    length = cls.__new__(cls)
    length._nanos = nanos
    return length


class Time(_Length):
    """A length of time in milliseconds.

    >>> Time.minutes(2).to_milliseconds()
    120000
    """

    __slots__ = ()

    def __init__(self, milliseconds: int):
        super().__init__(round(milliseconds * 1_000_000))

    @staticmethod
    def milliseconds(milliseconds: int) -> "Time":
        return Time(milliseconds)

    @staticmethod
    def seconds(seconds: int) -> "Time":
        return Time(seconds * 1_000)

    @staticmethod
    def minutes(minutes: int) -> "Time":
        return Time(minutes * 60_000)

    @staticmethod
    def hours(hours: int) -> "Time":
        return Time(hours * 3_600_000)

    @staticmethod
    def days(days: int) -> "Time":
        return Time(days * 86_400_000)


class Duration(_Length):
    """A length of time, exact to the nanosecond."""

    __slots__ = ()

    @staticmethod
    def of_days(days: int) -> "Duration":
        return Duration(round(days * 86_400_000_000_000))

    @staticmethod
    def of_hours(hours: int) -> "Duration":
        return Duration(round(hours * 3_600_000_000_000))

    @staticmethod
    def of_minutes(minutes: int) -> "Duration":
        return Duration(round(minutes * 60_000_000_000))

    @staticmethod
    def of_seconds(seconds: int) -> "Duration":
        return Duration(round(seconds * 1_000_000_000))

    @staticmethod
    def of_millis(millis: int) -> "Duration":
        return Duration(round(millis * 1_000_000))

    @staticmethod
    def of_nanos(nanos: int) -> "Duration":
        return Duration(round(nanos))


@total_ordering
class Instant:
    """A point in time: seconds since the epoch (UTC) and nanoseconds within the second.

    >>> Instant.of_epoch_milli(-1)
    Instant<-1, 999000000>
    """

    __slots__ = ("seconds", "nanos")

    def __init__(self, seconds: int, nanos: int = 0):
        self.seconds = seconds
        self.nanos = nanos

    def to_epoch_milli(self) -> int:
        return self.seconds * 1_000 + self.nanos // 1_000_000

    @staticmethod
    def of_epoch_milli(epoch_milli: int) -> "Instant":
        seconds, millis = divmod(epoch_milli, 1_000)
        return Instant(seconds, millis * 1_000_000)

    def __eq__(self, other):
        return isinstance(other, Instant) and (self.seconds, self.nanos) == (other.seconds, other.nanos)

    def __lt__(self, other):
        if not isinstance(other, Instant):
            return NotImplemented
        return (self.seconds, self.nanos) < (other.seconds, other.nanos)

    def __hash__(self):
        return hash((self.seconds, self.nanos))

    def __reduce__(self):
        return Instant, (self.seconds, self.nanos)

    def __repr__(self):
        return f"Instant<{self.seconds}, {self.nanos}>"


TimeLike = Union[Time, Duration, timedelta, int, str]


def parse_duration(text: str) -> Duration:
    """Read Flink's form of a duration: a whole number and a unit; without a unit, milliseconds.

    >>> parse_duration("3 min").to_milliseconds()
    180000
    """
    match = _TEXT.fullmatch(text)
    nanos = _NANOS.get(match[2].lower() or "ms") if match else None
    if match is None or nanos is None:
        raise InvalidJobError(
            f"could not read {text!r} as a length of time",
            why="a whole number and a unit are needed",
            do='write for example "200 ms", "10 s", "5 min", "1 h" or "7 d"',
        )
    return Duration(int(match[1]) * nanos)


def to_milliseconds(value: TimeLike) -> int:
    """A length of time in whole ms.

    Args:
        value: ``Time``, ``Duration``, ``timedelta``, int ms, or a text such as ``"200 ms"``.
    Raises:
        InvalidJobError: ``value`` is none of these.
    """
    if isinstance(value, (bool, type)):
        pass
    elif isinstance(value, int):
        return value
    elif isinstance(value, _Length):
        return value.to_milliseconds()
    elif isinstance(value, timedelta):
        return value // _MILLISECOND
    elif isinstance(value, str):
        return parse_duration(value).to_milliseconds()
    elif hasattr(value, "__index__"):  # numpy integers
        return value.__index__()
    raise InvalidJobError(
        f"{value!r} is not a length of time",
        why=f"it is of type {type(value).__name__}",
        do="give a Time, Duration, datetime.timedelta or an int of milliseconds",
    )


def to_epoch_milliseconds(value: Union[int, datetime, Instant]) -> int:
    """A point in time in ms since the epoch (UTC).  A ``datetime`` without zone is taken as UTC.

    >>> to_epoch_milliseconds(datetime(1970, 1, 1, 0, 0, 1))
    1000
    """
    if isinstance(value, datetime):
        if value.tzinfo is None:
            value = value.replace(tzinfo=timezone.utc)
        return (value - _EPOCH) // _MILLISECOND
    if isinstance(value, Instant):
        return value.to_epoch_milli()
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"a point in time must be an int of ms since the epoch, a datetime or an Instant, got {value!r}")
    return value.__index__()
