"""Evictors: which records a window forgets before or after its function sees them.

A window with an evictor keeps all of its records, also for ``reduce`` and ``aggregate``.

Source: Flink's ``org.apache.flink.streaming.api.windowing.evictors`` package.
"""

from __future__ import annotations

import abc
from typing import Any, Generic, Optional, TypeVar

from flinkish.common.arguments import check_argument
from flinkish.common.time import TimeLike, to_milliseconds
from flinkish.datastream.delta_function import check_threshold, delta_of
from flinkish.errors import InvalidJobError

T = TypeVar("T")
W = TypeVar("W")

__all__ = ["CountEvictor", "DeltaEvictor", "Evictor", "TimeEvictor", "TimestampedValue"]


class TimestampedValue(Generic[T]):
    """A record as an evictor sees it."""

    __slots__ = ("_value", "_timestamp")

    def __init__(self, value: T, timestamp: Optional[int] = None):
        self._value, self._timestamp = value, timestamp

    def get_value(self) -> T:
        return self._value

    def get_timestamp(self) -> Optional[int]:
        """Event time, ms; None when it has none."""
        return self._timestamp

    def has_timestamp(self) -> bool:
        return self._timestamp is not None

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, TimestampedValue)
            and self._value == other._value
            and self._timestamp == other._timestamp
        )

    def __hash__(self) -> int:
        return hash((self._value, self._timestamp))

    def __repr__(self) -> str:
        return f"TimestampedValue({self._value!r}, {self._timestamp})"


class Evictor(abc.ABC, Generic[T, W]):
    """Both methods change ``elements`` in place: what they remove is gone from the window for good."""

    class EvictorContext(abc.ABC):
        @abc.abstractmethod
        def get_current_processing_time(self) -> int: ...

        @abc.abstractmethod
        def get_metric_group(self) -> Any: ...

        @abc.abstractmethod
        def get_current_watermark(self) -> int: ...

    @abc.abstractmethod
    def evict_before(
        self, elements: list[TimestampedValue[T]], size: int, window: W, evictor_context: "Evictor.EvictorContext"
    ) -> None:
        """Remove what the window function is not to see.  Called each time the window fires.

        Args:
            elements: in the order in which they came.
            size: their number.
        """

    @abc.abstractmethod
    def evict_after(
        self, elements: list[TimestampedValue[T]], size: int, window: W, evictor_context: "Evictor.EvictorContext"
    ) -> None:
        """Remove what the next firing is not to see."""


class _BuiltInEvictor(Evictor[T, W]):
    """Evicts before, or after, as ``do_evict_after`` says."""

    def __init__(self, do_evict_after: bool):
        self.do_evict_after: bool = check_argument(do_evict_after, bool, f"{type(self).__name__}()", "do_evict_after")

    def _evict(self, elements: list[TimestampedValue[T]], size: int) -> None:
        raise NotImplementedError

    def evict_before(self, elements, size, window, evictor_context) -> None:
        if not self.do_evict_after:
            self._evict(elements, size)

    def evict_after(self, elements, size, window, evictor_context) -> None:
        if self.do_evict_after:
            self._evict(elements, size)


class CountEvictor(_BuiltInEvictor[T, W]):
    """Keeps the last ``max_count`` records."""

    def __init__(self, max_count: int, do_evict_after: bool = False):
        super().__init__(do_evict_after)
        self.max_count: int = check_argument(max_count, int, "CountEvictor()", "max_count")
        if self.max_count < 0:
            raise InvalidJobError(
                f"CountEvictor() cannot keep {self.max_count} records", do="give how many of the last it keeps, 0 or more"
            )

    @staticmethod
    def of(max_count: int, do_evict_after: bool = False) -> "CountEvictor":
        return CountEvictor(max_count, do_evict_after)

    def _evict(self, elements, size) -> None:
        if size > self.max_count:
            del elements[: size - self.max_count]


class TimeEvictor(_BuiltInEvictor[T, W]):
    """Keeps records that are younger than the youngest minus ``window_size``.  Does nothing when the first has no
    event time."""

    def __init__(self, window_size: TimeLike, do_evict_after: bool = False):
        super().__init__(do_evict_after)
        self.window_size_ms = to_milliseconds(window_size)
        if self.window_size_ms < 0:
            raise InvalidJobError(
                f"TimeEvictor() cannot keep the last {self.window_size_ms} ms", do="give a length of time, 0 or more"
            )

    @staticmethod
    def of(window_size: TimeLike, do_evict_after: bool = False) -> "TimeEvictor":
        return TimeEvictor(window_size, do_evict_after)

    def _evict(self, elements, size) -> None:
        if not elements or not elements[0].has_timestamp():
            return
        times = [time for element in elements if (time := element.get_timestamp()) is not None]
        cutoff = max(times) - self.window_size_ms
        elements[:] = [
            element for element in elements if not element.has_timestamp() or element.get_timestamp() > cutoff
        ]


class DeltaEvictor(_BuiltInEvictor[T, W]):
    """Removes records that differ by ``threshold`` or more from the last one.

    Args:
        delta_function: a `DeltaFunction`, or a callable of ``(record, last record)`` that gives a number.
    """

    def __init__(self, threshold: float, delta_function: Any, do_evict_after: bool = False):
        super().__init__(do_evict_after)
        self.threshold = check_threshold(threshold, "DeltaEvictor")
        self.get_delta = delta_of(delta_function, "DeltaEvictor")

    @staticmethod
    def of(threshold: float, delta_function: Any, do_evict_after: bool = False) -> "DeltaEvictor":
        return DeltaEvictor(threshold, delta_function, do_evict_after)

    def _evict(self, elements, size) -> None:
        if elements:
            last, get_delta = elements[-1].get_value(), self.get_delta
            elements[:] = [
                element for element in elements if get_delta(element.get_value(), last) < self.threshold
            ]
