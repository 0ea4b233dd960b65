"""Timers of one keyed operator: event time and processing time, one per (time, key, namespace).

States of a timer: *registered* (in its bucket), then *fired* or *deleted* (gone from it).
Invariants (`TimerQueue.check`):

* the heap holds each time that has a bucket, once; a bucket may be empty, until the heap is looked at;
* timers fire in order of time, and within one time in the order of registration.

A timer that is registered while others fire, at or below the time that has been reached, fires in
the same advance, as in Flink; so does one registered for the very time that is firing.

Many timers share a time (windows, minutes), so the heap holds times, not timers: registering one
more for a known time is two dict operations.  Measured (CPython 3.11): register 0.18 us (0.27 for a
time of its own), fire 0.2 us (0.65), beside the user's ``on_timer``.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Any, Callable, Iterator, Optional

from flinkish.datastream.timerservice import TimerService
from flinkish.messages.checkpoints import KeyGroupRange
from flinkish.messages.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from flinkish.state.keyed_snapshot import KeyedSnapshotReader, StateEntries, StateKind, StateMeta

#: Name of the state.
EVENT_TIMERS = "_timer_state/event-time"

_EVENT_TIMERS = StateMeta(EVENT_TIMERS, StateKind.TIMERS)
_PROCESSING_TIMERS = StateMeta("_timer_state/processing-time", StateKind.TIMERS)


class TimerQueue:
    """Timers of one time domain.

    >>> queue = TimerQueue()
    >>> queue.register(20, "a"), queue.register(10, "b"), queue.register(10, "b")
    (True, True, False)
    >>> list(queue.fire(15)), len(queue), queue.next_time
    ([(10, 'b')], 1, 20)
    """

    __slots__ = ("_buckets", "_heap", "_empty", "_count")

    def __init__(self) -> None:
        self._buckets: dict[int, dict[Any, None]] = {}
        self._heap: list[int] = []
        self._empty = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def register(self, timestamp: int, key: Any) -> bool:
        """Add a timer; False when it was there already.  ``key`` includes the namespace if any."""
        bucket = self._buckets.get(timestamp)
        if bucket is None:
            self._buckets[timestamp] = {key: None}
            heappush(self._heap, timestamp)
        elif not bucket:
            bucket[key] = None
            self._empty -= 1
        elif key in bucket:
            return False
        else:
            bucket[key] = None
        self._count += 1
        return True

    def delete(self, timestamp: int, key: Any) -> bool:
        """Remove a timer; False when there was none."""
        bucket = self._buckets.get(timestamp)
        if bucket is None or key not in bucket:
            return False
        del bucket[key]
        self._count -= 1
        if not bucket:
            self._empty += 1
            if self._empty > 64 and 2 * self._empty > len(self._heap):
                self._buckets = {time: keys for time, keys in self._buckets.items() if keys}
                self._heap = sorted(self._buckets)
                self._empty = 0
        return True

    @property
    def next_time(self) -> Optional[int]:
        """Time of the first timer, or None."""
        while self._heap:
            timestamp = self._heap[0]
            if self._buckets[timestamp]:
                return timestamp
            heappop(self._heap)
            del self._buckets[timestamp]
            self._empty -= 1
        return None

    def fire(self, limit: int) -> Iterator[tuple[int, Any]]:
        """Take out and yield the timers at or below ``limit``, in order, until none is left.

        The caller may register and delete between two of them; whoever stops in the middle loses
        nothing, because each timer is taken out just before it is yielded."""
        while True:
            timestamp = self.next_time
            if timestamp is None or timestamp > limit:
                return
            bucket = self._buckets[timestamp]
            if len(bucket) == 1:
                key, _ = bucket.popitem()
                heappop(self._heap)
                del self._buckets[timestamp]
                self._count -= 1
                yield timestamp, key
                continue
            for key in list(bucket):
                if key not in bucket:  # deleted since, or fired by an inner round
                    continue
                if self._heap[0] < timestamp:  # one was registered for an earlier time: it comes first
                    yield from self.fire(timestamp - 1)
                    if key not in bucket:
                        continue
                del bucket[key]
                self._count -= 1
                if not bucket:
                    self._empty += 1  # its entry in the heap goes with the next look at it
                yield timestamp, key

    def quiesce(self) -> None:
        """Until `resume` no timer can be registered; those that are there fire and may be deleted."""
        self.__class__ = QuiescedTimerQueue  # so that others pay nothing

    def resume(self) -> None:
        self.__class__ = TimerQueue

    def timers(self) -> Iterator[tuple[int, Any]]:
        """All, in the order in which they would fire."""
        for timestamp in sorted(self._buckets):
            for key in self._buckets[timestamp]:
                yield timestamp, key

    def snapshot(self) -> tuple[list[Any], list[int]]:
        """Keys and times of all, in the order in which they would fire."""
        keys: list[Any] = []
        times: list[int] = []
        for timestamp in sorted(self._buckets):
            bucket = self._buckets[timestamp]
            keys += bucket
            times += [timestamp] * len(bucket)
        return keys, times

    def check(self) -> None:
        """Assert the invariants."""
        assert sorted(self._heap) == sorted(self._buckets)
        assert self._empty == sum(not bucket for bucket in self._buckets.values())
        assert self._count == sum(map(len, self._buckets.values()))


class QuiescedTimerQueue(TimerQueue):
    """One that takes no timers."""

    __slots__ = ()

    def register(self, timestamp: int, key: Any) -> bool:
        return False


class KeyedTimerService(TimerService):
    """What user code sees: timers of the current key.

    Args:
        scope: has ``current_key`` (the operator's state backend).
        now_ms: processing time.

    A timer for processing time T is due at T + ``delay_ms``: a record that comes within the millisecond T belongs before
    it, as one with event time T comes before watermark T.  Source: Flink's ``ProcessingTimeServiceUtil``.
    """

    delay_ms = 1

    def __init__(self, scope: Any, now_ms: Callable[[], int]):
        self._scope = scope
        self._now_ms = now_ms
        self.event_time = TimerQueue()
        self.processing_time = TimerQueue()
        self.watermark = MIN_WATERMARK_MS

    def snapshot_states(self) -> Iterator[StateEntries]:
        """Timers as states of a keyed snapshot, beside those of the backend."""
        for meta, queue in ((_EVENT_TIMERS, self.event_time), (_PROCESSING_TIMERS, self.processing_time)):
            keys, times = queue.snapshot()
            yield StateEntries(meta, keys, times)

    def restore(self, reader: KeyedSnapshotReader, key_groups: Optional[KeyGroupRange] = None) -> None:
        """Register the timers of ``key_groups`` (default: all of the file) from one handle.

        Timers of one time fire in the order of registration for each key group; between key groups no
        order is kept, as in Flink."""
        for name, queue in self.queues():
            for block in reader.read(name, key_groups):
                for key, timestamp in zip(block.keys, block.values):
                    queue.register(timestamp, key)

    def queues(self) -> tuple[tuple[str, TimerQueue], ...]:
        """Both, by the names of their states."""
        return (_EVENT_TIMERS.name, self.event_time), (_PROCESSING_TIMERS.name, self.processing_time)

    def current_processing_time(self) -> int:
        return self._now_ms()

    def current_watermark(self) -> int:
        return self.watermark

    def register_processing_time_timer(self, timestamp: int) -> None:
        self.processing_time.register(_whole(timestamp), self._scope.current_key)

    def register_event_time_timer(self, timestamp: int) -> None:
        if timestamp.__class__ is not int or not MIN_WATERMARK_MS <= timestamp <= MAX_WATERMARK_MS:
            timestamp = _whole(timestamp)
        self.event_time.register(timestamp, self._scope.current_key)

    def delete_processing_time_timer(self, timestamp: int) -> None:
        self.processing_time.delete(_whole(timestamp), self._scope.current_key)

    def delete_event_time_timer(self, timestamp: int) -> None:
        self.event_time.delete(_whole(timestamp), self._scope.current_key)


class UnkeyedTimerService(TimerService):
    """Times can be read on every stream; timers need a key."""

    def __init__(self, now_ms: Callable[[], int]):
        self._now_ms = now_ms
        self.watermark = MIN_WATERMARK_MS

    def current_processing_time(self) -> int:
        return self._now_ms()

    def current_watermark(self) -> int:
        return self.watermark

    def register_processing_time_timer(self, timestamp: int) -> None:
        raise UnsupportedTimerError("setting")

    def register_event_time_timer(self, timestamp: int) -> None:
        raise UnsupportedTimerError("setting")

    def delete_processing_time_timer(self, timestamp: int) -> None:
        raise UnsupportedTimerError("deleting")

    def delete_event_time_timer(self, timestamp: int) -> None:
        raise UnsupportedTimerError("deleting")


class UnsupportedTimerError(Exception):
    """Raised inside user code, like Flink's UnsupportedOperationException."""

    def __init__(self, action: str):
        super().__init__(f"{action} timers needs a keyed stream: call key_by(...) before process(...)")


def _whole(timestamp: Any) -> int:
    """Timers are ms: an int, or what is equal to one (numpy ints, floats without a fraction)."""
    whole = int(timestamp)
    if whole != timestamp:
        raise ValueError(f"a timer needs whole milliseconds, got {timestamp!r}")
    if not MIN_WATERMARK_MS <= whole <= MAX_WATERMARK_MS:
        raise ValueError(f"the time of a timer must fit in 64 bits, got {whole}")
    return whole
