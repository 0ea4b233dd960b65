"""WindowedStream: a keyed stream cut into windows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Optional, Union

from flinkish.common.arguments import check_argument
from flinkish.common.time import TimeLike, to_milliseconds
from flinkish.common.typeinfo import TypeInformation
from flinkish.datastream.data_stream import DataStream
from flinkish.datastream.function_adapters import (
    check_function,
    check_type,
    require_function,
    window_function_of,
)
from flinkish.datastream.functions import (
    AggregateFunction,
    ProcessWindowFunction,
    ReduceFunction,
    WindowFunction,
)
from flinkish.datastream.output_tag import OutputTag
from flinkish.datastream.transformations import WindowOperator
from flinkish.datastream.window import (
    CountSlidingWindowAssigner,
    CountTumblingWindowAssigner,
    EventTimeTrigger,
    TumblingEventTimeWindows,
    WindowAssigner,
)
from flinkish.errors import InvalidJobError

if TYPE_CHECKING:
    from flinkish.datastream.keyed_stream import KeyedStream
    from flinkish.datastream.stream_execution_environment import StreamExecutionEnvironment

__all__ = ["AllWindowedStream", "WindowedStream"]

_AVAILABLE = "key_by(...).window(TumblingEventTimeWindows.of(size, offset)) is available"


def count_assigner(size: int, slide: int) -> WindowAssigner:
    check_argument(size, int, "a count window", "size")
    check_argument(slide, int, "a count window", "slide")
    if slide:
        return CountSlidingWindowAssigner.of(size, slide)
    return CountTumblingWindowAssigner.of(size)


class WindowedStream:
    """Made by ``keyed_stream.window(assigner)``.

    A window gives its result when the watermark passes its end, and again for each late record
    within `allowed_lateness`.
    """

    def __init__(self, keyed_stream: "KeyedStream", window_assigner: WindowAssigner):
        if not isinstance(window_assigner, WindowAssigner):
            raise InvalidJobError(f"window() takes a WindowAssigner, not {window_assigner!r}")
        if type(window_assigner) is not TumblingEventTimeWindows:
            raise InvalidJobError(
                f"could not cut the stream into {type(window_assigner).__name__}",
                why="this version runs no such windows",
                do=_AVAILABLE,
            )
        self.keyed_stream = keyed_stream
        self.window_assigner = window_assigner
        self._trigger: Any = None
        self._allowed_lateness_ms = 0
        self._late_data_tag: Optional[OutputTag] = None

    def get_execution_environment(self) -> "StreamExecutionEnvironment":
        return self.keyed_stream.environment

    def get_input_type(self) -> TypeInformation:
        return self.keyed_stream.get_type()

    def trigger(self, trigger: Any) -> "WindowedStream":
        if type(trigger) is not EventTimeTrigger:
            raise InvalidJobError(
                f"could not use the trigger {type(trigger).__name__}",
                why="this version fires windows by event time only",
                do="leave trigger() out, or give EventTimeTrigger.create()",
            )
        self._trigger = trigger
        return self

    def allowed_lateness(self, time_ms: TimeLike) -> "WindowedStream":
        """How long after its end a window still takes late records."""
        lateness_ms = to_milliseconds(time_ms)
        if lateness_ms < 0:
            raise InvalidJobError(f"the allowed lateness must be at least 0 ms, not {lateness_ms}")
        self._allowed_lateness_ms = lateness_ms
        return self

    def side_output_late_data(self, output_tag: OutputTag) -> "WindowedStream":
        """Records that come too late for their window go to this side output."""
        if not isinstance(output_tag, OutputTag):
            raise InvalidJobError(f"side_output_late_data() takes an OutputTag, not {output_tag!r}")
        self._late_data_tag = output_tag
        return self

    def reduce(
        self,
        reduce_function: Union[Callable, ReduceFunction],
        window_function: Union[Callable, WindowFunction, ProcessWindowFunction, None] = None,
        output_type: Optional[TypeInformation] = None,
    ) -> DataStream:
        """Reduce the records of a window as they come.

        ``window_function`` gets the one result, with its key and window."""
        check_function(reduce_function, ReduceFunction, "reduce")
        if window_function is None:
            output_type = output_type or self.keyed_stream.transformation.output_type
        else:
            window_function = window_function_of(window_function, "reduce")
        return self._apply("reduce", reduce_function, window_function, output_type)

    def aggregate(
        self,
        aggregate_function: AggregateFunction,
        window_function: Union[Callable, WindowFunction, ProcessWindowFunction, None] = None,
        accumulator_type: Optional[TypeInformation] = None,
        output_type: Optional[TypeInformation] = None,
    ) -> DataStream:
        """Aggregate the records of a window as they come."""
        require_function(aggregate_function, AggregateFunction, "aggregate")
        check_type(accumulator_type, "the accumulator")
        if window_function is not None:
            window_function = window_function_of(window_function, "aggregate")
        return self._apply("aggregate", aggregate_function, window_function, output_type)

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

    def _apply(
        self, kind: str, function: Any, window_function: Any, output_type: Optional[TypeInformation]
    ) -> DataStream:
        check_type(output_type, f"the window {kind}")
        operator = WindowOperator(
            self.window_assigner,
            kind,
            function,
            window_function,
            self._trigger,
            self._allowed_lateness_ms,
            self._late_data_tag,
        )
        keyed = self.keyed_stream
        name = type(self.window_assigner).__name__
        return keyed._apply(name, operator, output_type, (keyed.key_selector,))


class AllWindowedStream(WindowedStream):
    """Windows over a whole stream, without keys."""

    def __init__(self, data_stream: DataStream, window_assigner: WindowAssigner):
        raise InvalidJobError(
            "could not cut a stream without keys into windows",
            why="this version runs windows of keyed streams only",
            do=f"{_AVAILABLE}; a key selector such as `lambda record: 0` makes one key of all records",
        )
