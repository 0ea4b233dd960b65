"""Triggers: when a window gives its result, and when it forgets its content.

Source: Flink's ``org.apache.flink.streaming.api.windowing.triggers`` package.
"""

from __future__ import annotations

import abc
from enum import Enum
from typing import Any, Generic, Optional, TypeVar

from flinkish.common.arguments import check_argument
from flinkish.common.constants import MAX_LONG_VALUE, MIN_LONG_VALUE
from flinkish.common.time import TimeLike, to_milliseconds
from flinkish.common.typeinfo import Types
from flinkish.datastream.delta_function import check_threshold, delta_of
from flinkish.datastream.functions import ReduceFunction
from flinkish.datastream.state import (
    MergingState,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from flinkish.datastream.time_window import CountWindow, GlobalWindow, TimeWindow
from flinkish.errors import InvalidJobError

T = TypeVar("T")
W = TypeVar("W")

__all__ = [
    "ContinuousEventTimeTrigger",
    "ContinuousProcessingTimeTrigger",
    "CountTrigger",
    "DeltaTrigger",
    "EndOfStreamTrigger",
    "EventTimeTrigger",
    "NeverTrigger",
    "ProcessingTimeTrigger",
    "ProcessingTimeoutTrigger",
    "PurgingTrigger",
    "Trigger",
    "TriggerResult",
]


def require_event_time(timestamp: Optional[int]) -> int:
    """``timestamp`` of a record for which event time decides.

    Raises:
        InvalidJobError: it has none."""
    if timestamp is None or timestamp == MIN_LONG_VALUE:
        raise InvalidJobError(
            "could not put a record into an event-time window",
            why="the record has no event time",
            do="give the source a WatermarkStrategy with a timestamp assigner, or call "
            "assign_timestamps_and_watermarks() before the window",
        )
    return timestamp


class TriggerResult(Enum):
    """(gives its result, forgets its content)"""

    CONTINUE = (False, False)
    FIRE_AND_PURGE = (True, True)
    FIRE = (True, False)
    PURGE = (False, True)

    def is_fire(self) -> bool:
        return self.value[0]

    def is_purge(self) -> bool:
        return self.value[1]


class Trigger(abc.ABC, Generic[T, W]):
    """Keeps no fields that change: what it remembers of a window is state of the context."""

    class TriggerContext(abc.ABC):
        @abc.abstractmethod
        def get_current_processing_time(self) -> int: ...

        @abc.abstractmethod
        def get_metric_group(self) -> Any: ...

        @abc.abstractmethod
        def get_current_watermark(self) -> int: ...

        @abc.abstractmethod
        def register_processing_time_timer(self, time: int) -> None: ...

        @abc.abstractmethod
        def register_event_time_timer(self, time: int) -> None: ...

        @abc.abstractmethod
        def delete_processing_time_timer(self, time: int) -> None: ...

        @abc.abstractmethod
        def delete_event_time_timer(self, time: int) -> None: ...

        @abc.abstractmethod
        def get_partitioned_state(self, state_descriptor: StateDescriptor) -> Any:
            """State of this key and window."""

    class OnMergeContext(TriggerContext):
        @abc.abstractmethod
        def merge_partitioned_state(self, state_descriptor: StateDescriptor) -> None: ...

    @abc.abstractmethod
    def on_element(
        self, element: T, timestamp: Optional[int], window: W, ctx: "Trigger.TriggerContext"
    ) -> TriggerResult:
        """A record has come into ``window``; its event time is None when it has none."""

    @abc.abstractmethod
    def on_processing_time(self, time: int, window: W, ctx: "Trigger.TriggerContext") -> TriggerResult: ...

    @abc.abstractmethod
    def on_event_time(self, time: int, window: W, ctx: "Trigger.TriggerContext") -> TriggerResult: ...

    def can_merge(self) -> bool:
        return False

    @abc.abstractmethod
    def on_merge(self, window: W, ctx: "Trigger.OnMergeContext") -> None:
        """Several windows have become ``window``."""

    @abc.abstractmethod
    def clear(self, window: W, ctx: "Trigger.TriggerContext") -> None:
        """Remove timers and state of a window that is dropped."""


def _nested(trigger: Any, call: str) -> Trigger:
    return check_argument(trigger, Trigger, call, "nested_trigger", "give a trigger, such as CountTrigger.of(10)")


class EventTimeTrigger(Trigger[T, TimeWindow]):
    """Fires when the watermark passes the end of the window; then for each late record."""

    def on_element(self, element, timestamp, window, ctx) -> TriggerResult:
        if window.max_timestamp() <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_processing_time(self, time, window, ctx) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time, window, ctx) -> TriggerResult:
        return TriggerResult.FIRE if time == window.max_timestamp() else TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window, ctx) -> None:
        if window.max_timestamp() > ctx.get_current_watermark():
            ctx.register_event_time_timer(window.max_timestamp())

    def clear(self, window, ctx) -> None:
        ctx.delete_event_time_timer(window.max_timestamp())

    @staticmethod
    def create() -> "EventTimeTrigger":
        return EventTimeTrigger()


class ProcessingTimeTrigger(Trigger[T, TimeWindow]):
    """Fires when the machine's clock passes the end of the window."""

    def on_element(self, element, timestamp, window, ctx) -> TriggerResult:
        ctx.register_processing_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_processing_time(self, time, window, ctx) -> TriggerResult:
        return TriggerResult.FIRE

    def on_event_time(self, time, window, ctx) -> TriggerResult:
        return TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window, ctx) -> None:
        if window.max_timestamp() > ctx.get_current_processing_time():
            ctx.register_processing_time_timer(window.max_timestamp())

    def clear(self, window, ctx) -> None:
        ctx.delete_processing_time_timer(window.max_timestamp())

    @staticmethod
    def create() -> "ProcessingTimeTrigger":
        return ProcessingTimeTrigger()


class Min(ReduceFunction):
    def reduce(self, value1: int, value2: int) -> int:
        return min(value1, value2)


class Sum(ReduceFunction):
    def reduce(self, value1: int, value2: int) -> int:
        return value1 + value2


class _ContinuousTrigger(Trigger[T, TimeWindow]):
    """Fires at each multiple of the interval while the window has records."""

    def __init__(self, interval: TimeLike):
        self.interval_ms = to_milliseconds(interval)
        if self.interval_ms <= 0:
            raise InvalidJobError(
                f"the interval of a trigger must be above 0 ms, not {self.interval_ms}",
                do="give the time between two results of a window, e.g. Time.seconds(10)",
            )
        self.state_desc: ReducingStateDescriptor = ReducingStateDescriptor("fire-time", Min(), Types.LONG())

    def _register(self, ctx: Trigger.TriggerContext, time: int) -> None:
        raise NotImplementedError

    def _delete(self, ctx: Trigger.TriggerContext, time: int) -> None:
        raise NotImplementedError

    def register_next_fire_timestamp(
        self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext, fire_timestamp_state: MergingState
    ) -> None:
        """The state is of `state_desc`."""
        next_fire = self._next_fire(time, window, ctx)
        fire_timestamp_state.add(next_fire)
        self._register(ctx, next_fire)

    def _next_fire(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> int:
        return min(time + self.interval_ms, window.max_timestamp())

    def _start(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> None:
        state = ctx.get_partitioned_state(self.state_desc)
        if state.get() is None:
            self.register_next_fire_timestamp(time - time % self.interval_ms, window, ctx, state)

    def _fire_if_due(self, time: int, window: TimeWindow, ctx: Trigger.TriggerContext) -> TriggerResult:
        state = ctx.get_partitioned_state(self.state_desc)
        if state.get() != time:
            return TriggerResult.CONTINUE
        state.clear()
        self.register_next_fire_timestamp(time, window, ctx, state)
        return TriggerResult.FIRE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window, ctx) -> None:
        ctx.merge_partitioned_state(self.state_desc)
        next_fire = ctx.get_partitioned_state(self.state_desc).get()
        if next_fire is not None:
            self._register(ctx, next_fire)

    def clear(self, window, ctx) -> None:
        state = ctx.get_partitioned_state(self.state_desc)
        next_fire = state.get()
        if next_fire is not None:
            self._delete(ctx, next_fire)
            state.clear()


class ContinuousEventTimeTrigger(_ContinuousTrigger[T]):
    @staticmethod
    def of(interval: TimeLike) -> "ContinuousEventTimeTrigger":
        return ContinuousEventTimeTrigger(interval)

    def _register(self, ctx, time):
        ctx.register_event_time_timer(time)

    def _delete(self, ctx, time):
        ctx.delete_event_time_timer(time)

    def _next_fire(self, time, window, ctx):
        """At the end of event time a window that has none itself (a global one) fires once more, and not at each of
        the intervals until then."""
        if window.max_timestamp() >= MAX_LONG_VALUE <= ctx.get_current_watermark():
            return MAX_LONG_VALUE
        return super()._next_fire(time, window, ctx)

    def on_element(self, element, timestamp, window, ctx) -> TriggerResult:
        if window.max_timestamp() <= ctx.get_current_watermark():
            return TriggerResult.FIRE
        ctx.register_event_time_timer(window.max_timestamp())
        self._start(require_event_time(timestamp), window, ctx)
        return TriggerResult.CONTINUE

    def on_processing_time(self, time, window, ctx) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time, window, ctx) -> TriggerResult:
        if time == window.max_timestamp():
            return TriggerResult.FIRE
        return self._fire_if_due(time, window, ctx)

    def clear(self, window, ctx) -> None:
        ctx.delete_event_time_timer(window.max_timestamp())
        super().clear(window, ctx)


class ContinuousProcessingTimeTrigger(_ContinuousTrigger[T]):
    @staticmethod
    def of(interval: TimeLike) -> "ContinuousProcessingTimeTrigger":
        return ContinuousProcessingTimeTrigger(interval)

    def _register(self, ctx, time):
        ctx.register_processing_time_timer(time)

    def _delete(self, ctx, time):
        ctx.delete_processing_time_timer(time)

    def _next_fire(self, time, window, ctx):
        """The clock may be behind the end of an event-time window that is open: it goes on firing (FLINK-35069)."""
        if time >= window.max_timestamp():
            return time + self.interval_ms
        return super()._next_fire(time, window, ctx)

    def on_element(self, element, timestamp, window, ctx) -> TriggerResult:
        self._start(ctx.get_current_processing_time(), window, ctx)
        return TriggerResult.CONTINUE

    def on_processing_time(self, time, window, ctx) -> TriggerResult:
        result = self._fire_if_due(time, window, ctx)
        return TriggerResult.FIRE if time == window.max_timestamp() else result

    def on_event_time(self, time, window, ctx) -> TriggerResult:
        return TriggerResult.CONTINUE


class PurgingTrigger(Trigger[T, W]):
    """Fires as another trigger does, and forgets the content each time."""

    def __init__(self, nested_trigger: Trigger[T, W]):
        self.nested_trigger = _nested(nested_trigger, "PurgingTrigger()")

    @staticmethod
    def of(nested_trigger: Trigger[T, W]) -> "PurgingTrigger":
        return PurgingTrigger(nested_trigger)

    @staticmethod
    def _purging(result: TriggerResult) -> TriggerResult:
        return TriggerResult.FIRE_AND_PURGE if result.is_fire() else result

    def on_element(self, element, timestamp, window, ctx) -> TriggerResult:
        return self._purging(self.nested_trigger.on_element(element, timestamp, window, ctx))

    def on_event_time(self, time, window, ctx) -> TriggerResult:
        return self._purging(self.nested_trigger.on_event_time(time, window, ctx))

    def on_processing_time(self, time, window, ctx) -> TriggerResult:
        return self._purging(self.nested_trigger.on_processing_time(time, window, ctx))

    def clear(self, window, ctx) -> None:
        self.nested_trigger.clear(window, ctx)

    def can_merge(self) -> bool:
        return self.nested_trigger.can_merge()

    def on_merge(self, window, ctx) -> None:
        self.nested_trigger.on_merge(window, ctx)


class CountTrigger(Trigger[T, CountWindow]):
    """Fires whenever ``window_size`` records have come."""

    def __init__(self, window_size: int):
        self.window_size: int = check_argument(window_size, int, "CountTrigger()", "window_size")
        if self.window_size < 1:
            raise InvalidJobError(
                f"CountTrigger() cannot fire for every {self.window_size} records", do="give a count of 1 or more"
            )
        self.count_state_descriptor: ReducingStateDescriptor = ReducingStateDescriptor(
            "count", Sum(), Types.LONG()
        )

    @staticmethod
    def of(window_size: int) -> "CountTrigger":
        return CountTrigger(window_size)

    def on_element(self, element, timestamp, window, ctx) -> TriggerResult:
        state = ctx.get_partitioned_state(self.count_state_descriptor)
        state.add(1)
        if state.get() < self.window_size:
            return TriggerResult.CONTINUE
        state.clear()
        return TriggerResult.FIRE

    def on_processing_time(self, time, window, ctx) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time, window, ctx) -> TriggerResult:
        return TriggerResult.CONTINUE

    def can_merge(self) -> bool:
        return True

    def on_merge(self, window, ctx) -> None:
        ctx.merge_partitioned_state(self.count_state_descriptor)

    def clear(self, window, ctx) -> None:
        ctx.get_partitioned_state(self.count_state_descriptor).clear()


class DeltaTrigger(Trigger[T, W]):
    """Fires when a record differs by more than ``threshold`` from the one that it fired for last, or from the
    first one.

    Args:
        delta_function: a `DeltaFunction`, or a callable of ``(old record, new record)`` that gives a number.
        state_type: declared type of the records.
    """

    def __init__(self, threshold: float, delta_function: Any, state_type: Any = None):
        self.threshold, self.get_delta = check_threshold(threshold, "DeltaTrigger"), delta_of(delta_function, "DeltaTrigger")
        self.state_desc: ValueStateDescriptor = ValueStateDescriptor("last-element", state_type)

    @staticmethod
    def of(threshold: float, delta_function: Any, state_type: Any = None) -> "DeltaTrigger":
        return DeltaTrigger(threshold, delta_function, state_type)

    def on_element(self, element, timestamp, window, ctx) -> TriggerResult:
        last = ctx.get_partitioned_state(self.state_desc)
        known = last.value()
        if known is None:
            last.update(element)
        elif self.get_delta(known, element) > self.threshold:
            last.update(element)
            return TriggerResult.FIRE
        return TriggerResult.CONTINUE

    def on_processing_time(self, time, window, ctx) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time, window, ctx) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_merge(self, window, ctx) -> None: ...

    def clear(self, window, ctx) -> None:
        ctx.get_partitioned_state(self.state_desc).clear()


class ProcessingTimeoutTrigger(Trigger[T, W]):
    """Fires as another trigger does, and when ``timeout`` has passed since the first record.

    Args:
        reset_timer_on_new_record: since the last record instead.
        should_clear_on_timeout: the other trigger begins anew after a timeout.
    """

    def __init__(
        self,
        nested_trigger: Trigger[T, W],
        timeout: TimeLike,
        reset_timer_on_new_record: bool = False,
        should_clear_on_timeout: bool = True,
    ):
        call = "ProcessingTimeoutTrigger()"
        self.nested_trigger, self.timeout_ms = _nested(nested_trigger, call), to_milliseconds(timeout)
        if self.timeout_ms <= 0:
            raise InvalidJobError(
                f"the timeout of a trigger must be above 0 ms, not {self.timeout_ms}",
                do="give how long the window waits for its trigger, e.g. Time.seconds(30)",
            )
        check_argument(reset_timer_on_new_record, bool, call, "reset_timer_on_new_record")
        check_argument(should_clear_on_timeout, bool, call, "should_clear_on_timeout")
        self.reset_timer_on_new_record = reset_timer_on_new_record
        self.should_clear_on_timeout = should_clear_on_timeout
        self.state_desc: ValueStateDescriptor = ValueStateDescriptor("timeout", Types.LONG())

    @staticmethod
    def of(
        nested_trigger: Trigger[T, W],
        timeout: TimeLike,
        reset_timer_on_new_record: bool = False,
        should_clear_on_timeout: bool = True,
    ) -> "ProcessingTimeoutTrigger":
        return ProcessingTimeoutTrigger(
            nested_trigger, timeout, reset_timer_on_new_record, should_clear_on_timeout
        )

    def on_element(self, element, timestamp, window, ctx) -> TriggerResult:
        result = self.nested_trigger.on_element(element, timestamp, window, ctx)
        if result.is_fire():
            self.clear(window, ctx)
            return result
        state = ctx.get_partitioned_state(self.state_desc)
        known = state.value()
        if known is not None and self.reset_timer_on_new_record:
            ctx.delete_processing_time_timer(known)
            known = None
        if known is None:
            due = ctx.get_current_processing_time() + self.timeout_ms
            state.update(due)
            ctx.register_processing_time_timer(due)
        return result

    def on_processing_time(self, time, window, ctx) -> TriggerResult:
        return self._timeout(self.nested_trigger.on_processing_time(time, window, ctx), window, ctx)

    def on_event_time(self, time, window, ctx) -> TriggerResult:
        return self._timeout(self.nested_trigger.on_event_time(time, window, ctx), window, ctx)

    def _timeout(self, result: TriggerResult, window: W, ctx: Trigger.TriggerContext) -> TriggerResult:
        if self.should_clear_on_timeout:
            self.clear(window, ctx)
        return TriggerResult.FIRE_AND_PURGE if result.is_purge() else TriggerResult.FIRE

    def on_merge(self, window, ctx) -> None: ...

    def clear(self, window, ctx) -> None:
        state = ctx.get_partitioned_state(self.state_desc)
        known = state.value()
        if known is not None:
            ctx.delete_processing_time_timer(known)
            state.clear()
        self.nested_trigger.clear(window, ctx)


class EndOfStreamTrigger(Trigger[T, GlobalWindow]):
    """Fires once, when the input has ended."""

    def on_element(self, element, timestamp, window, ctx) -> TriggerResult:
        ctx.register_event_time_timer(window.max_timestamp())
        return TriggerResult.CONTINUE

    def on_processing_time(self, time, window, ctx) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time, window, ctx) -> TriggerResult:
        return TriggerResult.FIRE if time == window.max_timestamp() else TriggerResult.CONTINUE

    def on_merge(self, window, ctx) -> None: ...

    def clear(self, window, ctx) -> None:
        ctx.delete_event_time_timer(window.max_timestamp())


class NeverTrigger(Trigger[T, GlobalWindow]):
    """Never fires: the default of ``GlobalWindows``."""

    def on_element(self, element, timestamp, window, ctx) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_processing_time(self, time, window, ctx) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_event_time(self, time, window, ctx) -> TriggerResult:
        return TriggerResult.CONTINUE

    def on_merge(self, window, ctx) -> None: ...

    def clear(self, window, ctx) -> None: ...
