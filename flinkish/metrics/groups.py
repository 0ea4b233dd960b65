"""Metrics as a slot keeps them: plain numbers on the mailbox thread, no locks."""

from __future__ import annotations

import numbers
import time
from collections import deque
from typing import Any, Callable, Optional

from flinkish.common.arguments import check_argument
from flinkish.errors import UserError
from flinkish.metrics.metricbase import (
    Counter,
    Distribution,
    Histogram,
    HistogramStatistics,
    Meter,
    Metric,
    MetricGroup,
)

__all__ = ["OperatorMetricGroup", "SimpleCounter", "SimpleDistribution", "SimpleHistogram", "SimpleMeter"]


class SimpleCounter(Counter):
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def inc(self, n: int = 1) -> None:
        self.count += n

    def dec(self, n: int = 1) -> None:
        self.count -= n

    def get_count(self) -> int:
        return self.count

    def snapshot(self) -> int:
        return self.count


class SimpleMeter(Meter):
    """Rate over the last ``time_span_in_seconds``; a sample is taken when the rate is asked for."""

    __slots__ = ("count", "_span_ms", "_now_ms", "_samples")

    def __init__(self, time_span_in_seconds: int, now_ms: Callable[[], int]):
        self.count = 0
        self._span_ms = time_span_in_seconds * 1_000
        self._now_ms = now_ms
        self._samples: deque[tuple[int, int]] = deque([(now_ms(), 0)])

    def mark_event(self, value: int = 1) -> None:
        self.count += value

    def get_count(self) -> int:
        return self.count

    def get_rate(self) -> float:
        now, samples = self._now_ms(), self._samples
        if now - samples[-1][0] >= 1_000:
            samples.append((now, self.count))
        while len(samples) > 2 and samples[1][0] <= now - self._span_ms:
            samples.popleft()
        since, count = samples[0]
        return (self.count - count) * 1_000 / max(now - since, 1)

    def snapshot(self) -> dict[str, Any]:
        return {"count": self.count, "rate": self.get_rate()}


class SimpleDistribution(Distribution):
    __slots__ = ("count", "sum", "min", "max")

    def __init__(self) -> None:
        self.count = 0
        self.sum = 0
        self.min: Optional[int] = None
        self.max: Optional[int] = None

    def update(self, value: int) -> None:
        self.count += 1
        self.sum += value
        if self.min is None or value < self.min:
            self.min = value
        if self.max is None or value > self.max:
            self.max = value

    def snapshot(self) -> dict[str, Any]:
        mean = self.sum / self.count if self.count else None
        return {"count": self.count, "sum": self.sum, "min": self.min, "max": self.max, "mean": mean}


class SimpleHistogram(Histogram):
    """Source: Flink's ``DescriptiveStatisticsHistogram``."""

    __slots__ = ("count", "_values")

    def __init__(self, window_size: int):
        self.count = 0
        self._values: deque[int] = deque(maxlen=window_size)

    def update(self, value: int) -> None:
        self.count += 1
        self._values.append(value)

    def get_count(self) -> int:
        return self.count

    def get_statistics(self) -> HistogramStatistics:
        return HistogramStatistics(self._values)

    def snapshot(self) -> dict[str, Any]:
        """By the names that Flink's reporters use."""
        found = self.get_statistics()
        figures = {"count": self.count, "min": found.get_min(), "max": found.get_max()}
        if found.size():
            figures.update(mean=found.get_mean(), stddev=found.get_std_dev())
            figures.update({name: found.get_quantile(share) for name, share in _QUANTILES.items()})
        return figures


_QUANTILES = {"median": 0.5, "p75": 0.75, "p95": 0.95, "p98": 0.98, "p99": 0.99, "p999": 0.999}

_PLAIN = frozenset((int, float, bool, type(None)))
_TEXT_MAX = 200


def _number_or_text(value: Any) -> Any:
    for kind, convert in ((numbers.Integral, int), (numbers.Real, float)):
        if isinstance(value, kind):
            return convert(value)
    return str(value)[:_TEXT_MAX]


class _Gauge(Metric):
    __slots__ = ("read",)

    def __init__(self, read: Callable[[], Any]):
        self.read = read

    def snapshot(self) -> Any:
        try:
            value = self.read()
            # Anything else might not pickle on its way to the JobManager, or be huge.
            return value if type(value) in _PLAIN else _number_or_text(value)
        except Exception as error:  # user code; one bad gauge must not take the others with it
            return f"{type(error).__name__}: {error}"[:_TEXT_MAX]


def _positive(value: Any, call: str, parameter: str) -> int:
    if check_argument(value, int, call, parameter) < 1:
        raise UserError(f"{call} cannot use {value} as {parameter}", do="give at least 1")
    return int(value)


class OperatorMetricGroup(MetricGroup):
    """The metrics of one operator of one subtask.

    Args:
        now_ms: the slot's clock.
    """

    def __init__(self, now_ms: Optional[Callable[[], int]] = None):
        self._now_ms = now_ms or (lambda: time.monotonic_ns() // 1_000_000)
        self._prefix = ""
        self._metrics: dict[str, Any] = {}

    def _get(self, name: str, kind: type, make: Callable[[], Any]) -> Any:
        path = self._prefix + check_argument(name, str, "MetricGroup", "name of a metric")
        metric = self._metrics.get(path)
        if metric is None:
            metric = self._metrics[path] = make()
        elif not isinstance(metric, kind):
            raise UserError(
                f"could not make the metric {path!r}",
                why=f"there is a {type(metric).__name__} of that name",
                do="choose another name",
            )
        return metric

    def add_group(self, name: str, extra: Optional[str] = None) -> "OperatorMetricGroup":
        for part in (name, "" if extra is None else extra):
            check_argument(part, str, "add_group()", "name of a group")
        group = OperatorMetricGroup(self._now_ms)
        group._metrics = self._metrics
        group._prefix = f"{self._prefix}{name}." + (f"{extra}." if extra is not None else "")
        return group

    def counter(self, name: str) -> SimpleCounter:
        return self._get(name, SimpleCounter, SimpleCounter)

    def gauge(self, name: str, obj: Callable[[], int]) -> None:
        if not callable(obj):
            raise UserError(
                f"gauge() cannot use {obj!r:.80}",
                why=f"it is of type {type(obj).__name__}, and is not asked again when it changes",
                do="give a function that returns the number: lambda: self.size",
            )
        self._get(name, _Gauge, lambda: _Gauge(obj)).read = obj  # of one name the newest

    def meter(self, name: str, time_span_in_seconds: int = 60) -> SimpleMeter:
        span_s = _positive(time_span_in_seconds, "meter()", "time_span_in_seconds")
        return self._get(name, SimpleMeter, lambda: SimpleMeter(span_s, self._now_ms))

    def distribution(self, name: str) -> SimpleDistribution:
        return self._get(name, SimpleDistribution, SimpleDistribution)

    def histogram(self, name: str, window_size: int = 500) -> SimpleHistogram:
        size = _positive(window_size, "histogram()", "window_size")
        return self._get(name, SimpleHistogram, lambda: SimpleHistogram(size))

    def snapshot(self) -> dict[str, Any]:
        """The figures of this group and those below it, by dotted name from the operator on."""
        return {
            path: metric.snapshot() for path, metric in self._metrics.items() if path.startswith(self._prefix)
        }
