"""Watermarks inside an operator: combined over inputs or splits, made by generators, idleness.

Source: Flink's ``CombinedWatermarkStatus``, ``IndexedCombinedWatermarkStatus``, ``WatermarksWithIdleness``.
"""

from __future__ import annotations

import itertools
from typing import Any, Callable, Hashable, Iterator, Optional

from flinkish.common.watermark_strategy import (
    AscendingTimestampsWatermarks,
    BoundedOutOfOrdernessWatermarks,
    NoWatermarksGenerator,
    WatermarkStrategy,
)
from flinkish.messages.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from flinkish.operators.inlining import over_batch

#: Generators that need only the largest event time of a batch.
_BATCH_GENERATORS = (
    BoundedOutOfOrdernessWatermarks,
    AscendingTimestampsWatermarks,
    NoWatermarksGenerator,
)


class CombinedWatermark:
    """The least watermark over the parts that are not idle.

    When all parts are idle nothing is held back any more, so the largest of them counts: then the
    result does not depend on the order in which they went idle.  The combined watermark never goes
    back; a part that wakes up behind it is waited for again once it has caught up.

    >>> both = CombinedWatermark([0, 1])
    >>> both.update(0, 5), both.update(1, 4)
    (False, True)
    >>> both.set_idle(0, True), both.set_idle(1, True), both.watermark, both.idle
    (False, True, 5, True)
    """

    __slots__ = ("parts", "watermark", "idle")

    def __init__(self, parts: Any = ()):
        #: part -> [watermark, idle]
        self.parts: dict[Hashable, list] = {part: [MIN_WATERMARK_MS, False] for part in parts}
        self.watermark = MIN_WATERMARK_MS
        self.idle = False

    def add(self, part: Hashable) -> None:
        if part not in self.parts:
            self.parts[part] = [MIN_WATERMARK_MS, False]
            self._combine()

    def remove(self, part: Hashable) -> bool:
        """Returns whether the combined watermark went up; so do all the others."""
        self.parts.pop(part, None)
        return self._combine()

    def update(self, part: Hashable, watermark: int) -> bool:
        state = self.parts[part]
        state[1] = False
        if watermark > state[0]:
            state[0] = watermark
        return self._combine()

    def set_idle(self, part: Hashable, idle: bool) -> bool:
        self.parts[part][1] = idle
        return self._combine()

    def _combine(self) -> bool:
        if not self.parts:
            return False
        active = [watermark for watermark, idle in self.parts.values() if not idle]
        self.idle = not active
        least = min(active) if active else max(watermark for watermark, _ in self.parts.values())
        if least > self.watermark:
            self.watermark = least
            return True
        return False


class IdleTimer:
    """Whether a split has had no record for ``timeout_ms`` of processing time.

    >>> timer = IdleTimer(100)
    >>> timer.check(0, 0), timer.check(0, 99), timer.check(0, 100), timer.check(1, 500)
    (False, False, True, False)
    """

    __slots__ = ("timeout_ms", "_count", "_since_ms")

    def __init__(self, timeout_ms: int):
        self.timeout_ms = timeout_ms
        self._count = -1
        self._since_ms: Optional[int] = None

    def restart(self) -> None:
        self._since_ms = None

    def check(self, records: int, now_ms: int) -> bool:
        """``records``: how many have come so far."""
        if records != self._count or self._since_ms is None:
            self._count, self._since_ms = records, now_ms
            return False
        return now_ms - self._since_ms >= self.timeout_ms


class EventTimeAssigner:
    """A watermark strategy at work on one stream or split.

    Args:
        strategy: the user's.
        output: a WatermarkOutput; may be called from `on_event` and `on_periodic`.
    """

    def __init__(self, strategy: WatermarkStrategy, output: Any):
        self.output = output
        self.generator = strategy.create_watermark_generator()
        #: None: `on_event` must be called for each record.
        self.on_batch: Optional[Callable[[int], None]] = None
        if type(self.generator) in _BATCH_GENERATORS:
            self.on_batch = self.generator.on_batch
        self.makes_watermarks = type(self.generator) is not NoWatermarksGenerator
        self.idle_timer = (
            None if strategy.idle_timeout_ms is None else IdleTimer(strategy.idle_timeout_ms)
        )
        self.records = 0
        self.idle = False  # by the timeout

    def wake(self) -> None:
        """A record has come after the timeout.  (Without this call the next interval notices.)"""
        self.idle = False
        self.output.mark_active()

    def on_periodic(self, active_ms: int, paused: bool = False) -> None:
        """Once an interval.

        Args:
            active_ms: processing time without that in which the subtask could not take records, because nothing
                had room downstream: its silence was not the input's (FLINK-35886).
            paused: nothing is read, on purpose, so silence is not idleness."""
        if self.idle_timer is not None:
            if paused:
                self.idle_timer.restart()
            elif self.idle_timer.check(self.records, active_ms):
                if not self.idle:
                    self.idle = True
                    self.output.mark_idle()
                return
            if self.idle:
                self.wake()
        self.generator.on_periodic_emit(self.output)


def timestamp_caller(strategy: WatermarkStrategy) -> Optional[Callable[[Any, Optional[int]], int]]:
    """``assign(value, record_timestamp)`` of a strategy, or None when it assigns none."""
    found = strategy.timestamp_function()
    if found is None:
        return None
    function, takes_record_timestamp = found
    if takes_record_timestamp:
        return function
    return lambda value, record_timestamp: function(value)


def batch_timestamp_caller(strategy: WatermarkStrategy) -> Optional[Callable[[Iterator, Optional[list]], list]]:
    """``assign(values, record_timestamps)`` for an iterator over records, or None like `timestamp_caller`."""
    found = strategy.timestamp_function()
    if found is None:
        return None
    function, takes_record_timestamp = found
    if takes_record_timestamp:
        none = itertools.repeat(None)
        return lambda values, times: [function(value, time) for value, time in zip(values, none if times is None else times)]
    each = over_batch(function)
    return lambda values, times: each(values)


def checked_timestamp(timestamp: Any) -> int:
    """What user code gave as an event time, as int ms.  The least number of 64 bits is none (Flink's mark
    for a record without time)."""
    if type(timestamp) is int and MIN_WATERMARK_MS < timestamp <= MAX_WATERMARK_MS:
        return timestamp
    if isinstance(timestamp, bool) or not hasattr(timestamp, "__index__"):
        raise TypeError(
            f"an event time must be an int of milliseconds since the epoch, got {timestamp!r}"
        )
    whole = timestamp.__index__()
    if not MIN_WATERMARK_MS < whole <= MAX_WATERMARK_MS:
        raise ValueError(f"an event time must lie between -2**63 and 2**63 - 1 ms, got {whole}")
    return whole


def checked_watermark(watermark: Any) -> int:
    """What a generator or a source gave as a watermark, as int ms."""
    if type(watermark) is int and MIN_WATERMARK_MS <= watermark <= MAX_WATERMARK_MS:
        return watermark
    if isinstance(watermark, bool) or not hasattr(watermark, "__index__"):
        raise TypeError(f"a watermark must be an int of milliseconds since the epoch, got {watermark!r}")
    whole = watermark.__index__()
    if not MIN_WATERMARK_MS <= whole <= MAX_WATERMARK_MS:
        raise ValueError(f"a watermark must fit in 64 bits, got {whole}")
    return whole
