"""The metrics a function can make, as interfaces."""

from __future__ import annotations

import abc
from typing import Callable, Optional

__all__ = ["Counter", "Distribution", "Meter", "Metric", "MetricGroup"]


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
