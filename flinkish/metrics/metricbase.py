"""The metrics a function can make, as interfaces."""

from __future__ import annotations

import abc
import math
from typing import Callable, Iterable, Optional

__all__ = ["Counter", "Distribution", "Histogram", "HistogramStatistics", "Meter", "Metric", "MetricGroup"]


class MetricGroup(abc.ABC):
    """Makes metrics under a common name.  Asking again for a name returns the same metric."""

    @abc.abstractmethod
    def add_group(self, name: str, extra: Optional[str] = None) -> "MetricGroup":
        """A group below this one.  With ``extra`` the two are a key and its value."""

    @abc.abstractmethod
    def counter(self, name: str) -> "Counter": ...

    @abc.abstractmethod
    def gauge(self, name: str, obj: Callable[[], int]) -> None:
        """Report what ``obj()`` returns; called when figures are collected, must be quick."""

    @abc.abstractmethod
    def meter(self, name: str, time_span_in_seconds: int = 60) -> "Meter": ...

    @abc.abstractmethod
    def distribution(self, name: str) -> "Distribution": ...

    @abc.abstractmethod
    def histogram(self, name: str, window_size: int = 500) -> "Histogram":
        """``window_size``: how many of the newest values its statistics are about."""


class Metric(abc.ABC):
    """Base of all metrics."""


class Counter(Metric):
    @abc.abstractmethod
    def inc(self, n: int = 1) -> None: ...

    @abc.abstractmethod
    def dec(self, n: int = 1) -> None: ...

    @abc.abstractmethod
    def get_count(self) -> int: ...


class Meter(Metric):
    """Events per second."""

    @abc.abstractmethod
    def mark_event(self, value: int = 1) -> None: ...

    @abc.abstractmethod
    def get_count(self) -> int: ...


class Distribution(Metric):
    """Count, sum, smallest and largest of the values reported."""

    @abc.abstractmethod
    def update(self, value: int) -> None: ...


class Histogram(Metric):
    """How the newest of the values reported are spread (Flink has it for Java)."""

    @abc.abstractmethod
    def update(self, value: int) -> None: ...

    @abc.abstractmethod
    def get_count(self) -> int:
        """Values reported so far, also those that are no longer in the statistics."""

    @abc.abstractmethod
    def get_statistics(self) -> "HistogramStatistics": ...


class HistogramStatistics:
    """Figures of ``values`` at one moment; NaN and 0 where there are none, as in Flink."""

    def __init__(self, values: Iterable[float]):
        self._values = sorted(values)

    def get_quantile(self, quantile: float) -> float:
        """The value below which the share ``quantile`` (0 to 1) of the values lies, between two of them interpolated
        (as ``Percentile`` of Apache Commons Math, which Flink uses)."""
        values, count = self._values, len(self._values)
        if not values:
            return math.nan
        position = quantile * (count + 1)
        if position < 1:
            return values[0]
        if position >= count:
            return values[-1]
        below = math.floor(position)
        return values[below - 1] + (position - below) * (values[below] - values[below - 1])

    def get_values(self) -> list[float]:
        return list(self._values)

    def size(self) -> int:
        return len(self._values)

    def get_mean(self) -> float:
        return sum(self._values) / len(self._values) if self._values else math.nan

    def get_std_dev(self) -> float:
        """Of the sample, with n - 1."""
        count = len(self._values)
        if count < 2:
            return 0.0 if count else math.nan
        mean = self.get_mean()
        return math.sqrt(sum((value - mean) ** 2 for value in self._values) / (count - 1))

    def get_max(self) -> float:
        return self._values[-1] if self._values else 0

    def get_min(self) -> float:
        return self._values[0] if self._values else 0
