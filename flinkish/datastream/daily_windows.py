"""Windows of a calendar day in a time zone: 23, 24 or 25 hours long."""

from __future__ import annotations

import datetime as dt
from typing import Optional, TypeVar, Union
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from flinkish.common.arguments import check_argument
from flinkish.common.time import to_epoch_milliseconds
from flinkish.datastream.time_window import TimeWindow
from flinkish.datastream.window_assigners import TimeWindowAssigner
from flinkish.errors import InvalidJobError

T = TypeVar("T")

__all__ = ["DailyEventTimeWindows", "DailyProcessingTimeWindows"]

_DAY = dt.timedelta(days=1)
_MILLISECOND = dt.timedelta(milliseconds=1)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)


class _DailyWindows(TimeWindowAssigner[T]):
    """From one local midnight (or another time of day) to the next.

    Where clocks jump over that time of day, the window begins when they jump; where they pass it twice, at the
    first time."""

    def __init__(self, time_zone: Union[str, dt.tzinfo], start: Union[str, dt.time] = dt.time(0)):
        self.time_zone = _zone(time_zone)
        self.start = _time_of_day(start)
        if self.start.tzinfo is not None:
            raise InvalidJobError(
                f"could not begin days at {self.start}", why="it has a time zone of its own", do="leave its tzinfo out"
            )
        self._window: Optional[tuple[int, int]] = None  # that was asked for last

    @classmethod
    def of(cls, time_zone: Union[str, dt.tzinfo], start: Union[str, dt.time] = dt.time(0)):
        """``time_zone``: a name such as "Europe/Berlin", or a tzinfo.  ``start``: local time at which a day
        begins, e.g. ``"06:00"``."""
        return cls(time_zone, start)

    def assign_windows(self, element: T, timestamp: int, context) -> list[TimeWindow]:
        time = self._time(timestamp, context)
        window = self._window
        if window is None or not window[0] <= time < window[1]:
            window = self._window = self._day_of(time)
        return [TimeWindow(*window)]

    def _day_of(self, time: int) -> tuple[int, int]:
        try:
            day = (_EPOCH + time * _MILLISECOND).astimezone(self.time_zone).date()
            start, end = self._start_of(day), self._start_of(day + _DAY)
            while time < start:  # before the day's beginning, or clocks went back over it
                day, end = day - _DAY, start
                start = self._start_of(day)
            while time >= end:
                day, start = day + _DAY, end
                end = self._start_of(day + _DAY)
        except OverflowError as error:
            raise InvalidJobError(
                f"could not tell the day of the event time {time} ms",
                why=f"it is outside of the years 1 to 9999: {error}",
                do="check the timestamp assigner: times are ms since 1970",
            ) from error
        return start, end

    def _start_of(self, day: dt.date) -> int:
        first = dt.datetime.combine(day, self.start, self.time_zone)
        second = first.replace(fold=1)  # another one where clocks go back over it
        if first.utcoffset() >= second.utcoffset():  # type: ignore[operator]
            return to_epoch_milliseconds(first)
        return self._jump(to_epoch_milliseconds(second), to_epoch_milliseconds(first))

    def _jump(self, before: int, after: int) -> int:
        """When clocks jump, between two instants around that: there is no such time on that day."""
        offset_before = self._offset(before)
        while after - before > 1:
            middle = (before + after) // 2
            if self._offset(middle) == offset_before:
                before = middle
            else:
                after = middle
        return after

    def _offset(self, time: int) -> Optional[dt.timedelta]:
        return (_EPOCH + time * _MILLISECOND).astimezone(self.time_zone).utcoffset()


def _time_of_day(start: Union[str, dt.time]) -> dt.time:
    check_argument(start, (str, dt.time), "a window of a day", "start", 'give a time of day such as "06:00"')
    try:
        return dt.time.fromisoformat(start) if isinstance(start, str) else start
    except ValueError as error:
        raise InvalidJobError(
            f"could not begin days at {start!r}", why=str(error), do='give a time of day such as "06:00"'
        ) from None


def _zone(time_zone: Union[str, dt.tzinfo]) -> dt.tzinfo:
    if isinstance(time_zone, dt.tzinfo):
        return time_zone
    try:
        return ZoneInfo(time_zone)
    except (ZoneInfoNotFoundError, TypeError, ValueError) as error:
        raise InvalidJobError(
            f"could not find the time zone {time_zone!r}",
            why=f"{type(error).__name__}: {error}",
            do='give a name of the IANA database such as "Europe/Berlin", or a tzinfo; where the system has none, '
            "pip install tzdata",
        ) from None


class DailyEventTimeWindows(_DailyWindows[T]):
    pass


class DailyProcessingTimeWindows(_DailyWindows[T]):
    _event_time = False
