"""WindowedStream: a keyed stream cut into windows; AllWindowedStream: a stream without keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Optional, TypeVar, Union

from flinkish.common.arguments import check_argument
from flinkish.common.time import TimeLike, to_milliseconds
from flinkish.common.typeinfo import TypeInformation
from flinkish.datastream.aggregations import field_aggregation
from flinkish.datastream.data_stream import DataStream
from flinkish.datastream.evictors import Evictor
from flinkish.datastream.field_aggregates import KEY, Description, FieldAggregates, NamedResult, described
from flinkish.datastream.fields import Field
from flinkish.datastream.function_adapters import (
    all_window_function_of,
    check_function,
    check_type,
    require_function,
    window_function_of,
)
from flinkish.datastream.functions import (
    AggregateFunction,
    AllWindowFunction,
    NullByteKeySelector,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    ReduceFunction,
    WindowFunction,
)
from flinkish.datastream.output_tag import OutputTag
from flinkish.datastream.transformations import WindowOperator
from flinkish.datastream.triggers import Trigger
from flinkish.datastream.window_assigners import (
    CountSlidingWindowAssigner,
    CountTumblingWindowAssigner,
    MergingWindowAssigner,
    WindowAssigner,
)
from flinkish.errors import InvalidJobError

if TYPE_CHECKING:
    from flinkish.datastream.keyed_stream import KeyedStream
    from flinkish.datastream.stream_execution_environment import StreamExecutionEnvironment

__all__ = ["AllWindowedStream", "WindowedStream"]

S = TypeVar("S", bound="_WindowedStream")


def count_assigner(size: int, slide: int) -> WindowAssigner:
    if check_argument(slide, int, "a count window", "slide"):
        return CountSlidingWindowAssigner.of(size, slide)
    return CountTumblingWindowAssigner.of(size)


class _WindowedStream:
    """What both kinds have.

    A window gives its result when its trigger says so: by default when the watermark (or the clock) passes its
    end, and again for each late record within `allowed_lateness`.
    """

    def __init__(self, keyed_stream: "KeyedStream", window_assigner: WindowAssigner, method: str):
        if not isinstance(window_assigner, WindowAssigner):
            given = repr(window_assigner)
            if isinstance(window_assigner, type):
                given = f"the class {window_assigner.__name__}"
            raise InvalidJobError(
                f"{method}() takes a WindowAssigner, not {given}",
                do="give for example TumblingEventTimeWindows.of(Time.seconds(10))",
            )
        serializer = window_assigner.get_window_serializer()
        if not (hasattr(serializer, "serialize") and hasattr(serializer, "deserialize")):
            raise _wrong_assigner(window_assigner, "get_window_serializer", serializer, "a TypeSerializer")
        self._keyed_stream = keyed_stream
        self.window_assigner = window_assigner
        self._trigger: Optional[Trigger] = None
        self._evictor: Optional[Evictor] = None
        self._allowed_lateness_ms = 0
        self._late_data_tag: Optional[OutputTag] = None

    def get_execution_environment(self) -> "StreamExecutionEnvironment":
        return self._keyed_stream.environment

    def get_input_type(self) -> TypeInformation:
        return self._keyed_stream.get_type()

    # ---- settings -------------------------------------------------------------------------------

    def trigger(self: S, trigger: Trigger) -> S:
        """When windows give their results, instead of the assigner's own trigger."""
        if not isinstance(trigger, Trigger):
            raise InvalidJobError(
                f"trigger() takes a Trigger, not {trigger!r}", do="give an object, e.g. CountTrigger.of(10)"
            )
        _check_merges(trigger, self.window_assigner)
        self._trigger = trigger
        return self

    def evictor(self: S, evictor: Evictor) -> S:
        """What a window forgets before or after its function runs.  It then keeps all of its records."""
        if not isinstance(evictor, Evictor):
            raise InvalidJobError(
                f"evictor() takes an Evictor, not {evictor!r}", do="give an object, e.g. CountEvictor.of(10)"
            )
        self._evictor = evictor
        return self

    def allowed_lateness(self: S, time_ms: TimeLike) -> S:
        """How long after its end a window still takes late records."""
        lateness_ms = to_milliseconds(time_ms)
        if lateness_ms < 0:
            raise InvalidJobError(
                f"the allowed lateness must be at least 0 ms, not {lateness_ms}",
                do="give how long a window is kept behind its end",
            )
        self._allowed_lateness_ms = lateness_ms
        return self

    def side_output_late_data(self: S, output_tag: OutputTag) -> S:
        """Records that come too late for their window go to this side output."""
        if not isinstance(output_tag, OutputTag):
            raise InvalidJobError(
                f"side_output_late_data() takes an OutputTag, not {output_tag!r}", do='give OutputTag("late")'
            )
        self._late_data_tag = output_tag
        return self

    # ---- fields ---------------------------------------------------------------------------------

    def sum(self, position_to_sum: Field = 0) -> DataStream:
        """The sum of a field (position or name); other fields are those of the window's first record."""
        return self._of_field("sum", position_to_sum)

    def min(self, position_to_min: Field = 0) -> DataStream:
        """The smallest value of a field; other fields are those of the window's first record."""
        return self._of_field("min", position_to_min)

    def max(self, position_to_max: Field = 0) -> DataStream:
        return self._of_field("max", position_to_max)

    def min_by(self, position_to_min_by: Field = 0, first: bool = True) -> DataStream:
        """The whole record with the smallest value of a field; of several the first, or the last one."""
        return self._of_field("min_by", position_to_min_by, first)

    def max_by(self, position_to_max_by: Field = 0, first: bool = True) -> DataStream:
        return self._of_field("max_by", position_to_max_by, first)

    def aggregate_fields(self, **aggregates: Description) -> DataStream:
        """Several aggregates of fields at once, by the names that they get in the result::

            trades.key_by("symbol").window(...).aggregate_fields(
                volume=("amount", "sum"), highest=("price", "max"), trades="count")

        gives a Row of ``symbol`` (``key`` where the key is not one named field), ``window_start``, ``window_end`` (ms
        since the epoch), ``volume``, ``highest`` and ``trades`` for each key and window.  Nulls are left out, as in SQL.
        Where the records are columns (a DataFrame, Parquet files), no Python code runs for each of them.

        Args:
            aggregates: ``(field, kind)``, the field by position or name, the kind one of avg, count, max, min and sum;
                or ``"count"``: of the records.
        Raises:
            InvalidJobError: an aggregate is unknown, its name is taken, or the declared record has no such field or one
                that cannot be added up.
        """
        key_field = self._keyed_stream.transformation.partitioner.key_field
        key_name = key_field if isinstance(key_field, str) else KEY
        record_type = self._keyed_stream.transformation.output_type
        function = FieldAggregates(described(aggregates, key_name, record_type), key_field)
        return self._apply("aggregate", function, NamedResult(function), None)

    def _of_field(self, method: str, field: Field, first: bool = True) -> DataStream:
        record_type = self._keyed_stream.transformation.output_type
        return self._apply("reduce", field_aggregation(method, field, record_type, first), None, record_type)

    # ---- inside ---------------------------------------------------------------------------------

    @staticmethod
    def _window_function(function: Any, method: str) -> Any:
        raise NotImplementedError

    def _reduced(self, function: Any, window_function: Any, output_type: Optional[TypeInformation]) -> DataStream:
        check_function(function, ReduceFunction, "reduce")
        if window_function is None:
            output_type = output_type or self._keyed_stream.transformation.output_type
        else:
            window_function = self._window_function(window_function, "reduce")
        return self._apply("reduce", function, window_function, output_type)

    def _aggregated(
        self,
        function: Any,
        window_function: Any,
        accumulator_type: Optional[TypeInformation],
        output_type: Optional[TypeInformation],
    ) -> DataStream:
        require_function(function, AggregateFunction, "aggregate")
        check_type(accumulator_type, "the accumulator")
        if window_function is not None:
            window_function = self._window_function(window_function, "aggregate")
        return self._apply("aggregate", function, window_function, output_type)

    def _apply(
        self, kind: str, function: Any, window_function: Any, output_type: Optional[TypeInformation]
    ) -> DataStream:
        check_type(output_type, f"the window {kind}")
        if self._trigger is None:
            trigger = self.window_assigner.get_default_trigger(self.get_execution_environment())
            if not isinstance(trigger, Trigger):
                raise _wrong_assigner(self.window_assigner, "get_default_trigger", trigger, "a Trigger")
            _check_merges(trigger, self.window_assigner)
        operator = WindowOperator(
            self.window_assigner,
            kind,
            function,
            window_function,
            self._trigger,
            self._allowed_lateness_ms,
            self._late_data_tag,
            self._evictor,
        )
        keyed = self._keyed_stream
        name = type(self.window_assigner).__name__
        return keyed._apply(name, operator, output_type, (keyed.key_selector,))


def _check_merges(trigger: Trigger, assigner: WindowAssigner) -> None:
    if isinstance(assigner, MergingWindowAssigner) and not trigger.can_merge():
        raise InvalidJobError(
            f"could not use the trigger {type(trigger).__name__} for {type(assigner).__name__}",
            why="these windows merge, and the trigger's can_merge() says that it cannot",
            do="take another trigger, or write its can_merge() and on_merge()",
        )


def _wrong_assigner(assigner: WindowAssigner, method: str, given: Any, wanted: str) -> InvalidJobError:
    return InvalidJobError(
        f"could not use windows of {type(assigner).__name__}",
        why=f"its {method}() gave {given!r:.200}, not {wanted}",
        do=f"return {wanted} from it",
    )


class WindowedStream(_WindowedStream):
    """Made by ``keyed_stream.window(assigner)``."""

    def __init__(self, keyed_stream: "KeyedStream", window_assigner: WindowAssigner):
        super().__init__(keyed_stream, window_assigner, "window")

    @staticmethod
    def _window_function(function: Any, method: str) -> Any:
        return window_function_of(function, method)

    def reduce(
        self,
        reduce_function: Union[Callable, ReduceFunction],
        window_function: Union[Callable, WindowFunction, ProcessWindowFunction, None] = None,
        output_type: Optional[TypeInformation] = None,
    ) -> DataStream:
        """Reduce the records of a window as they come.

        ``window_function`` gets the one result, with its key and window."""
        return self._reduced(reduce_function, window_function, output_type)

    def aggregate(
        self,
        aggregate_function: AggregateFunction,
        window_function: Union[Callable, WindowFunction, ProcessWindowFunction, None] = None,
        accumulator_type: Optional[TypeInformation] = None,
        output_type: Optional[TypeInformation] = None,
    ) -> DataStream:
        """Aggregate the records of a window as they come."""
        return self._aggregated(aggregate_function, window_function, accumulator_type, output_type)

    def apply(
        self,
        window_function: Union[Callable, WindowFunction],
        output_type: Optional[TypeInformation] = None,
    ) -> DataStream:
        """A WindowFunction, or a callable of ``(key, window, inputs)``, over the kept records."""
        if isinstance(window_function, ProcessWindowFunction):
            raise InvalidJobError("apply() takes a WindowFunction", do="use process()")
        return self._apply("apply", None, window_function_of(window_function, "apply"), output_type)

    def process(
        self,
        process_window_function: ProcessWindowFunction,
        output_type: Optional[TypeInformation] = None,
    ) -> DataStream:
        require_function(process_window_function, ProcessWindowFunction, "process")
        return self._apply("process", None, process_window_function, output_type)


class AllWindowedStream(_WindowedStream):
    """Made by ``stream.window_all(assigner)``: windows over a whole stream, in one subtask."""

    def __init__(self, data_stream: DataStream, window_assigner: WindowAssigner):
        super().__init__(data_stream.key_by(NullByteKeySelector()), window_assigner, "window_all")

    @staticmethod
    def _window_function(function: Any, method: str) -> Any:
        return all_window_function_of(function, method)

    def _apply(
        self, kind: str, function: Any, window_function: Any, output_type: Optional[TypeInformation]
    ) -> DataStream:
        return super()._apply(kind, function, window_function, output_type).force_non_parallel()

    def reduce(
        self,
        reduce_function: Union[Callable, ReduceFunction],
        window_function: Union[Callable, AllWindowFunction, ProcessAllWindowFunction, None] = None,
        output_type: Optional[TypeInformation] = None,
    ) -> DataStream:
        """As of a `WindowedStream`; ``window_function`` gets the one result, with its window."""
        return self._reduced(reduce_function, window_function, output_type)

    def aggregate(
        self,
        aggregate_function: AggregateFunction,
        window_function: Union[Callable, AllWindowFunction, ProcessAllWindowFunction, None] = None,
        accumulator_type: Optional[TypeInformation] = None,
        output_type: Optional[TypeInformation] = None,
    ) -> DataStream:
        return self._aggregated(aggregate_function, window_function, accumulator_type, output_type)

    def apply(
        self,
        window_function: Union[Callable, AllWindowFunction],
        output_type: Optional[TypeInformation] = None,
    ) -> DataStream:
        """An AllWindowFunction, or a callable of ``(window, inputs)``, over the kept records."""
        if isinstance(window_function, ProcessAllWindowFunction):
            raise InvalidJobError("apply() takes an AllWindowFunction", do="use process()")
        return self._apply("apply", None, all_window_function_of(window_function, "apply"), output_type)

    def process(
        self,
        process_window_function: ProcessAllWindowFunction,
        output_type: Optional[TypeInformation] = None,
    ) -> DataStream:
        require_function(process_window_function, ProcessAllWindowFunction, "process")
        return self._apply("process", None, all_window_function_of(process_window_function, "process"), output_type)
