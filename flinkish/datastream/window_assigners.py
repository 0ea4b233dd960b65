"""Window assigners: which windows a record belongs to.  All times are ms.

Source: Flink's ``org.apache.flink.streaming.api.windowing.assigners`` package.
"""

from __future__ import annotations

import abc
from typing import Any, Callable, Collection, Generic, Iterable, Optional, TypeVar, Union

from flinkish.common.arguments import check_argument
from flinkish.common.constants import MAX_LONG_VALUE
from flinkish.common.serializer import TypeSerializer
from flinkish.common.time import TimeLike, to_milliseconds
from flinkish.common.typeinfo import Types
from flinkish.datastream.function_adapters import check_parameters
from flinkish.datastream.state import ValueStateDescriptor
from flinkish.datastream.time_window import (
    CountWindow,
    CountWindowSerializer,
    GlobalWindow,
    GlobalWindowSerializer,
    TimeWindow,
    TimeWindowSerializer,
)
from flinkish.datastream.triggers import (
    CountTrigger,
    EndOfStreamTrigger,
    EventTimeTrigger,
    NeverTrigger,
    ProcessingTimeTrigger,
    PurgingTrigger,
    Trigger,
    require_event_time,
)
from flinkish.errors import InvalidJobError

T = TypeVar("T")
W = TypeVar("W")

__all__ = [
    "CountSlidingWindowAssigner",
    "CountTumblingWindowAssigner",
    "CumulativeEventTimeWindows",
    "CumulativeProcessingTimeWindows",
    "DynamicEventTimeSessionWindows",
    "DynamicProcessingTimeSessionWindows",
    "EventTimeSessionWindows",
    "GlobalWindows",
    "MergingWindowAssigner",
    "ProcessingTimeSessionWindows",
    "SessionWindowAssigner",
    "SessionWindowTimeGapExtractor",
    "SlidingEventTimeWindows",
    "SlidingProcessingTimeWindows",
    "TimeWindowAssigner",
    "TumblingEventTimeWindows",
    "TumblingProcessingTimeWindows",
    "WindowAssigner",
]


class WindowAssigner(abc.ABC, Generic[T, W]):
    class WindowAssignerContext(abc.ABC):
        @abc.abstractmethod
        def get_current_processing_time(self) -> int: ...

        @abc.abstractmethod
        def get_runtime_context(self) -> Any: ...

    @abc.abstractmethod
    def assign_windows(
        self, element: T, timestamp: int, context: "WindowAssigner.WindowAssignerContext"
    ) -> Collection[W]: ...

    @abc.abstractmethod
    def get_default_trigger(self, env: Any = None) -> Trigger[T, W]: ...

    @abc.abstractmethod
    def get_window_serializer(self) -> TypeSerializer[W]: ...

    @abc.abstractmethod
    def is_event_time(self) -> bool: ...


class MergingWindowAssigner(WindowAssigner[T, W]):
    """Windows of one key can grow together."""

    class MergeCallback(abc.ABC):
        @abc.abstractmethod
        def merge(self, to_be_merged: Iterable[Any], merge_result: Any) -> None: ...

    @abc.abstractmethod
    def merge_windows(self, windows: Iterable[W], callback: "MergingWindowAssigner.MergeCallback") -> None:
        """Report each group of windows that become one."""


class SessionWindowTimeGapExtractor(abc.ABC):
    @abc.abstractmethod
    def extract(self, element: Any) -> int:
        """How long after ``element`` its session stays open, ms."""


def _check_size(kind: str, size: int, offset: int, period: int, period_name: str) -> None:
    if size <= 0 or period <= 0:
        raise InvalidJobError(
            f"could not make {kind} windows of size {size} ms"
            + (f" and slide {period} ms" if period_name == "slide" else ""),
            why="both must be above 0" if period_name == "slide" else "the size must be above 0",
        )
    if max(size, period) > MAX_LONG_VALUE:
        raise InvalidJobError(
            f"could not make {kind} windows of size {max(size, period)} ms", why="times have 64 bits"
        )
    if abs(offset) >= period:
        raise InvalidJobError(
            f"could not make {kind} windows with offset {offset} ms",
            why=f"the offset must be less than the {period_name} of {period} ms, in either direction",
            do=f"give the offset modulo the {period_name}",
        )


class TimeWindowAssigner(WindowAssigner[T, TimeWindow]):
    """Base of the assigners of time windows, in event time unless ``_event_time`` is False."""

    _event_time = True

    def get_default_trigger(self, env: Any = None) -> Trigger[T, TimeWindow]:
        return EventTimeTrigger() if self._event_time else ProcessingTimeTrigger()

    def get_window_serializer(self) -> TypeSerializer[TimeWindow]:
        return TimeWindowSerializer()

    def is_event_time(self) -> bool:
        return self._event_time

    def _time(self, timestamp: Optional[int], context: WindowAssigner.WindowAssignerContext) -> int:
        return require_event_time(timestamp) if self._event_time else context.get_current_processing_time()

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value}" for name, value in vars(self).items() if name[0] != "_")
        return f"{type(self).__name__}({values})"


class _TumblingWindows(TimeWindowAssigner[T]):
    def __init__(self, size: TimeLike, offset: TimeLike = 0):
        self.size_ms = to_milliseconds(size)
        self.offset_ms = to_milliseconds(offset)
        _check_size("tumbling", self.size_ms, self.offset_ms, self.size_ms, "size")

    @classmethod
    def of(cls, size: TimeLike, offset: Optional[TimeLike] = None):
        """Windows of ``size``; they start at multiples of it after ``offset`` (UTC)."""
        return cls(size, 0 if offset is None else offset)

    def assign_windows(self, element: T, timestamp: int, context) -> list[TimeWindow]:
        time = self._time(timestamp, context)
        start = TimeWindow.get_window_start_with_offset(time, self.offset_ms, self.size_ms)
        return [TimeWindow(start, start + self.size_ms)]


class TumblingEventTimeWindows(_TumblingWindows[T]):
    """Windows of one size, one after another, by event time."""


class TumblingProcessingTimeWindows(_TumblingWindows[T]):
    _event_time = False


class _SlidingWindows(TimeWindowAssigner[T]):
    def __init__(self, size: TimeLike, slide: TimeLike, offset: TimeLike = 0):
        self.size_ms = to_milliseconds(size)
        self.slide_ms = to_milliseconds(slide)
        self.offset_ms = to_milliseconds(offset)
        _check_size("sliding", self.size_ms, self.offset_ms, self.slide_ms, "slide")

    @classmethod
    def of(cls, size: TimeLike, slide: TimeLike, offset: Optional[TimeLike] = None):
        """Windows of ``size``, a new one at each ``slide``."""
        return cls(size, slide, 0 if offset is None else offset)

    def assign_windows(self, element: T, timestamp: int, context) -> list[TimeWindow]:
        """Latest window first, as in Flink."""
        time, size = self._time(timestamp, context), self.size_ms
        last = TimeWindow.get_window_start_with_offset(time, self.offset_ms, self.slide_ms)
        return [TimeWindow(start, start + size) for start in range(last, time - size, -self.slide_ms)]


class SlidingEventTimeWindows(_SlidingWindows[T]):
    pass


class SlidingProcessingTimeWindows(_SlidingWindows[T]):
    _event_time = False


class _CumulativeWindows(TimeWindowAssigner[T]):
    """Windows that begin at multiples of ``max_size`` and end at each ``step`` after that: a running total that
    begins anew when ``max_size`` is full."""

    def __init__(self, max_size: TimeLike, step: TimeLike, offset: TimeLike = 0):
        self.max_size_ms, self.step_ms = to_milliseconds(max_size), to_milliseconds(step)
        self.offset_ms = to_milliseconds(offset)
        _check_size("cumulative", self.max_size_ms, self.offset_ms, self.max_size_ms, "size")
        if self.step_ms <= 0 or self.max_size_ms % self.step_ms:
            raise InvalidJobError(
                f"could not make cumulative windows of at most {self.max_size_ms} ms with steps of {self.step_ms} ms",
                why="the size must be a multiple of the step, which is above 0",
            )

    @classmethod
    def of(cls, max_size: TimeLike, step: TimeLike, offset: Optional[TimeLike] = None):
        """``max_size`` is a multiple of ``step``; ``offset`` shifts both."""
        return cls(max_size, step, 0 if offset is None else offset)

    def assign_windows(self, element: T, timestamp: int, context) -> list[TimeWindow]:
        """Shortest window first."""
        time, step = self._time(timestamp, context), self.step_ms
        start = TimeWindow.get_window_start_with_offset(time, self.offset_ms, self.max_size_ms)
        first = start + (time - start) // step * step + step
        return [TimeWindow(start, end) for end in range(first, start + self.max_size_ms + 1, step)]


class CumulativeEventTimeWindows(_CumulativeWindows[T]):
    pass


class CumulativeProcessingTimeWindows(_CumulativeWindows[T]):
    _event_time = False


GapExtractor = Union[SessionWindowTimeGapExtractor, Callable[[Any], int]]


class SessionWindowAssigner(MergingWindowAssigner[T, TimeWindow], TimeWindowAssigner[T]):
    """A window from each record to the end of its gap; windows that meet become one."""

    def _gap(self, element: T) -> int:
        raise NotImplementedError

    def assign_windows(self, element: T, timestamp: int, context) -> list[TimeWindow]:
        time = self._time(timestamp, context)
        return [TimeWindow(time, time + self._gap(element))]

    def merge_windows(self, windows: Iterable[TimeWindow], callback) -> None:
        TimeWindow.merge_windows(windows, callback)


def _no_gap(gap_ms: int) -> InvalidJobError:
    return InvalidJobError(
        f"the gap of a session must be above 0 ms, not {gap_ms}",
        do="give how long after a record its session stays open, e.g. Time.minutes(5)",
    )


class _FixedGap(SessionWindowAssigner[T]):
    def __init__(self, session_gap: TimeLike):
        self.gap_ms = to_milliseconds(session_gap)
        if self.gap_ms <= 0:
            raise _no_gap(self.gap_ms)

    @classmethod
    def with_gap(cls, size: TimeLike):
        return cls(size)

    def _gap(self, element: T) -> int:
        return self.gap_ms


class _DynamicGap(SessionWindowAssigner[T]):
    def __init__(self, session_window_time_gap_extractor: GapExtractor):
        extractor = self.extractor = session_window_time_gap_extractor
        if isinstance(extractor, SessionWindowTimeGapExtractor):
            return
        if isinstance(extractor, type) or not callable(extractor):
            raise InvalidJobError(
                f"with_dynamic_gap() cannot use {extractor!r}",
                do="give a SessionWindowTimeGapExtractor, or a callable of (record) that gives a length of time",
            )
        check_parameters(extractor, ("element",), "with_dynamic_gap")

    @classmethod
    def with_dynamic_gap(cls, extractor: GapExtractor):
        """``extractor``: a SessionWindowTimeGapExtractor, or a function of the record."""
        return cls(extractor)

    def _gap(self, element: T) -> int:
        extractor = self.extractor
        gap = extractor.extract if isinstance(extractor, SessionWindowTimeGapExtractor) else extractor
        gap_ms = to_milliseconds(gap(element))
        if gap_ms <= 0:
            raise _no_gap(gap_ms)
        return gap_ms


class DynamicEventTimeSessionWindows(_DynamicGap[T]):
    pass


class DynamicProcessingTimeSessionWindows(_DynamicGap[T]):
    _event_time = False


class EventTimeSessionWindows(_FixedGap[T]):
    @staticmethod
    def with_dynamic_gap(extractor: GapExtractor) -> DynamicEventTimeSessionWindows:
        return DynamicEventTimeSessionWindows(extractor)


class ProcessingTimeSessionWindows(_FixedGap[T]):
    _event_time = False

    @staticmethod
    def with_dynamic_gap(extractor: GapExtractor) -> DynamicProcessingTimeSessionWindows:
        return DynamicProcessingTimeSessionWindows(extractor)


class _CountWindows(WindowAssigner[T, CountWindow]):
    """Counts the records of a key in state, and numbers the windows by it."""

    def __init__(self) -> None:
        name = f"{type(self).__name__}-count"
        self._count_descriptor: ValueStateDescriptor = ValueStateDescriptor(name, Types.LONG())

    def _next_position(self, context: WindowAssigner.WindowAssignerContext) -> int:
        state = context.get_runtime_context().get_state(self._count_descriptor)
        position = state.value() or 0
        state.update(position + 1)
        return position

    def get_window_serializer(self) -> TypeSerializer[CountWindow]:
        return CountWindowSerializer()

    def is_event_time(self) -> bool:
        return False


class CountTumblingWindowAssigner(_CountWindows[T]):
    def __init__(self, window_size: int):
        window_size = check_argument(window_size, int, "a count window", "size")
        if window_size <= 0:
            raise InvalidJobError(
                f"the size of a count window must be above 0, not {window_size}", do="give how many records it takes"
            )
        super().__init__()
        self.window_size = window_size

    @staticmethod
    def of(window_size: int) -> "CountTumblingWindowAssigner":
        return CountTumblingWindowAssigner(window_size)

    def assign_windows(self, element: T, timestamp: int, context) -> list[CountWindow]:
        return [CountWindow(self._next_position(context) // self.window_size)]

    def get_default_trigger(self, env: Any = None) -> Trigger[T, CountWindow]:
        return PurgingTrigger.of(CountTrigger.of(self.window_size))


class CountSlidingWindowAssigner(_CountWindows[T]):
    def __init__(self, window_size: int, window_slide: int):
        window_size = check_argument(window_size, int, "a count window", "size")
        window_slide = check_argument(window_slide, int, "a count window", "slide")
        if window_size <= 0 or window_slide <= 0:
            raise InvalidJobError(
                f"size and slide of a count window must be above 0, not {window_size} and {window_slide}",
                do="give how many records a window takes, and after how many the next one begins",
            )
        super().__init__()
        self.window_size, self.window_slide = window_size, window_slide

    @staticmethod
    def of(window_size: int, window_slide: int) -> "CountSlidingWindowAssigner":
        return CountSlidingWindowAssigner(window_size, window_slide)

    def assign_windows(self, element: T, timestamp: int, context) -> list[CountWindow]:
        """Window n holds the records from n * slide on, ``window_size`` of them."""
        position = self._next_position(context)
        last = position // self.window_slide
        first = max(0, (position - self.window_size) // self.window_slide + 1)
        return [CountWindow(number) for number in range(first, last + 1)]

    def get_default_trigger(self, env: Any = None) -> Trigger[T, CountWindow]:
        return PurgingTrigger.of(CountTrigger.of(self.window_size))


class GlobalWindows(WindowAssigner[T, GlobalWindow]):
    """All records of a key in one window, which fires only by a trigger of your own."""

    def __init__(self, default_trigger: Optional[Trigger] = None):
        if default_trigger is None:
            default_trigger = NeverTrigger()
        self.default_trigger: Trigger = check_argument(default_trigger, Trigger, "GlobalWindows()", "default_trigger")

    @staticmethod
    def create_with_end_of_stream_trigger() -> "GlobalWindows":
        """Fires when the input has ended."""
        return GlobalWindows(EndOfStreamTrigger())

    @staticmethod
    def create() -> "GlobalWindows":
        return GlobalWindows()

    def assign_windows(self, element: T, timestamp: int, context) -> list[GlobalWindow]:
        return [GlobalWindow.get()]

    def get_default_trigger(self, env: Any = None) -> Trigger[T, GlobalWindow]:
        return self.default_trigger

    def get_window_serializer(self) -> TypeSerializer[GlobalWindow]:
        return GlobalWindowSerializer()

    def is_event_time(self) -> bool:
        return False
