"""IntervalJoin: records of two keyed streams whose event times lie near each other.  (Java's; PyFlink has none.)"""

from __future__ import annotations

from typing import Any, Callable, Optional, Union

from flinkish.common.time import TimeLike, to_milliseconds
from flinkish.common.typeinfo import TypeInformation
from flinkish.datastream.data_stream import DataStream
from flinkish.datastream.function_adapters import check_type, process_join_function_of
from flinkish.datastream.join_functions import ProcessJoinFunction
from flinkish.datastream.keyed_stream import KeyedStream, common_key_type, with_key_type
from flinkish.datastream.missing_calls import WithMissingCalls
from flinkish.datastream.output_tag import OutputTag
from flinkish.datastream.transformations import IntervalJoinOperator, TwoInputTransformation
from flinkish.errors import InvalidJobError

__all__ = ["IntervalJoin", "IntervalJoined"]


class IntervalJoin(WithMissingCalls):
    """Made by ``keyed1.interval_join(keyed2)``; `between` says how near.

    Raises:
        InvalidJobError: the keys have different declared types."""

    _made_by = "interval_join()"
    _missing_calls = dict.fromkeys(
        ("lower_bound_exclusive", "process", "side_output_left_late_data", "side_output_right_late_data",
         "upper_bound_exclusive"),
        (
            "how near the records lie to each other is not known yet",
            "call between() before: keyed1.interval_join(keyed2).between(lower, upper).process(function)",
        ),
    )  # fmt: skip

    def __init__(self, left: KeyedStream, right: KeyedStream):
        key_type = common_key_type(left.key_type, right.key_type, "interval_join")
        self._left, self._right = with_key_type(left, key_type), with_key_type(right, key_type)

    def in_event_time(self) -> "IntervalJoin":
        """What it does anyway."""
        return self

    def in_processing_time(self) -> "IntervalJoin":
        raise InvalidJobError(
            "could not join by processing time",
            where="interval_join()",
            why="an interval join compares event times, in Flink too",
            do="connect() the keyed streams, and keep records in state with processing-time timers",
        )

    def between(self, lower_bound: TimeLike, upper_bound: TimeLike) -> "IntervalJoined":
        """Where the right record's time lies, seen from the left one's: ``left + lower <= right <= left + upper``.

        Args:
            lower_bound, upper_bound: lengths of time, which may be negative; both belong to the interval.
        Raises:
            InvalidJobError: the lower bound is above the upper one.

        Source: Flink's ``KeyedStream.IntervalJoin``."""
        lower_ms, upper_ms = to_milliseconds(lower_bound), to_milliseconds(upper_bound)
        if lower_ms > upper_ms:
            raise InvalidJobError(
                f"could not join between {lower_ms} ms and {upper_ms} ms",
                where="interval_join().between()",
                why="the lower bound is above the upper one, so nothing lies between",
                do=f"call between({upper_ms}, {lower_ms}), or with the right bounds",
            )
        return IntervalJoined(self._left, self._right, lower_ms, upper_ms)


class IntervalJoined:
    """What is left to say: whether bounds belong to it, where late records go, and `process`."""

    def __init__(self, left: KeyedStream, right: KeyedStream, lower_ms: int, upper_ms: int):
        self._left, self._right = left, right
        self._lower_ms, self._upper_ms = lower_ms, upper_ms
        self._exclusive = [False, False]
        self._late_tags: list[Optional[OutputTag]] = [None, None]

    def lower_bound_exclusive(self) -> "IntervalJoined":
        """``left + lower < right``."""
        self._exclusive[0] = True
        return self

    def upper_bound_exclusive(self) -> "IntervalJoined":
        """``right < left + upper``."""
        self._exclusive[1] = True
        return self

    def side_output_left_late_data(self, output_tag: OutputTag) -> "IntervalJoined":
        """Left records that are not above the watermark go to this side output, instead of being counted only."""
        return self._late(0, output_tag, "side_output_left_late_data")

    def side_output_right_late_data(self, output_tag: OutputTag) -> "IntervalJoined":
        return self._late(1, output_tag, "side_output_right_late_data")

    def _late(self, side: int, output_tag: OutputTag, method: str) -> "IntervalJoined":
        if not isinstance(output_tag, OutputTag):
            raise InvalidJobError(f"{method}() takes an OutputTag, not {output_tag!r}", do='give OutputTag("late")')
        self._late_tags[side] = output_tag
        return self

    def process(
        self, process_join_function: Union[Callable, ProcessJoinFunction], output_type: Optional[TypeInformation] =
        None
    ) -> DataStream:
        """A ProcessJoinFunction, or a callable of ``(left, right, ctx)``: any number of results for each pair, with the
        later of both times."""
        function: Any = process_join_function_of(process_join_function)
        left, right = self._left, self._right
        transformation = TwoInputTransformation(
            "Interval Join",
            check_type(output_type, "the interval join"),
            operator=IntervalJoinOperator(
                function,
                self._lower_ms + self._exclusive[0],
                self._upper_ms - self._exclusive[1],
                *self._late_tags,
            ),
            key_selectors=(left.key_selector, right.key_selector),
            key_type=left.key_type,
            input1=left.transformation,
            input2=right.transformation,
        )
        left.environment.add_operator(transformation)
        return DataStream(left.environment, transformation)
