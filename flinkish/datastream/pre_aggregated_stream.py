"""PreAggregatedStream: a keyed stream whose records are combined before they are sent to the subtask of their key.

(Flink SQL's two-phase aggregation with mini-batches; its DataStream API has none.)
"""

from __future__ import annotations

import copy
import math
import operator
from typing import Any, Callable, Optional, Union

from flinkish.common.arguments import check_argument
from flinkish.common.time import TimeLike, to_milliseconds
from flinkish.common.typeinfo import TypeInformation
from flinkish.datastream.aggregations import field_aggregation
from flinkish.datastream.data_stream import DataStream
from flinkish.datastream.fields import Field
from flinkish.datastream.function_adapters import check_function
from flinkish.datastream.functions import AggregateFunction, Function, ReduceFunction
from flinkish.datastream.keyed_stream import KeyedStream
from flinkish.datastream.output_tag import OutputTag
from flinkish.datastream.transformations import LocalAggregationOperator, WindowOperator
from flinkish.datastream.window_assigners import WindowAssigner
from flinkish.datastream.windowed_stream import WindowedStream
from flinkish.errors import InvalidJobError

__all__ = ["PreAggregatedStream", "PreAggregatedWindowedStream"]


class PreAggregatedStream:
    """Made by ``keyed_stream.pre_aggregate(...)``; its methods are as of the keyed stream.

    Raises:
        InvalidJobError: the size or the latency is not positive."""

    def __init__(self, keyed_stream: KeyedStream, size: int, latency: TimeLike):
        self._keyed_stream = keyed_stream
        self._size = check_argument(size, int, "pre_aggregate()", "size")
        self._latency_ms = to_milliseconds(latency)
        if self._size < 1 or self._latency_ms < 1:
            raise InvalidJobError(
                f"could not pre-aggregate {self._size} records within {self._latency_ms} ms",
                why="both must be at least 1",
                do="give for example size=1000, latency=Time.milliseconds(100)",
            )

    def reduce(self, func: Union[Callable, ReduceFunction]) -> DataStream:
        """The reduction of each key so far, once for each batch instead of for each record.

        Args:
            func: must be associative: it also reduces values that are reduced already."""
        function = check_function(func, ReduceFunction, "reduce")
        partial = self._combined("Local Reduce", "reduce", function)
        reduced = partial._reduce("Keyed Reduce", _ReducePartial(function))
        return reduced.map(operator.itemgetter(1), self._keyed_stream.transformation.output_type)

    def sum(self, position_to_sum: Field = 0) -> DataStream:
        """The sum of a field so far, once for each batch; the same for those below."""
        return self._of_field("sum", position_to_sum)

    def min(self, position_to_min: Field = 0) -> DataStream:
        return self._of_field("min", position_to_min)

    def max(self, position_to_max: Field = 0) -> DataStream:
        return self._of_field("max", position_to_max)

    def min_by(self, position_to_min_by: Field = 0) -> DataStream:
        return self._of_field("min_by", position_to_min_by)

    def max_by(self, position_to_max_by: Field = 0) -> DataStream:
        return self._of_field("max_by", position_to_max_by)

    def _of_field(self, method: str, field: Field) -> DataStream:
        return self.reduce(field_aggregation(method, field, self._keyed_stream.transformation.output_type))

    def window(self, window_assigner: WindowAssigner) -> "PreAggregatedWindowedStream":
        """Tumbling or sliding windows of event time, which the watermark fires."""
        return PreAggregatedWindowedStream(self, window_assigner)

    def _combined(
        self, name: str, kind: str, function: Any, pane_ms: Optional[int] = None, offset_ms: int = 0
    ) -> KeyedStream:
        """Pairs of key and reduced value or accumulator."""
        keyed = self._keyed_stream
        original, key_type = keyed.original, keyed.key_type
        local = LocalAggregationOperator(
            kind, function, keyed.key_selector, key_type, self._size, self._latency_ms, pane_ms, offset_ms
        )
        combined = original._apply(name, local, None)
        combined.transformation.parallelism = original.transformation.parallelism  # so that they are chained
        return KeyedStream(combined, operator.itemgetter(0), key_type)


class PreAggregatedWindowedStream(WindowedStream):
    """Made by ``pre_aggregated_stream.window(assigner)``: results are those of the windows without pre-aggregation."""

    def __init__(self, stream: PreAggregatedStream, window_assigner: WindowAssigner):
        super().__init__(stream._keyed_stream, window_assigner)
        self._pre_aggregated = stream

    def side_output_late_data(self, output_tag: OutputTag) -> "PreAggregatedWindowedStream":
        raise InvalidJobError(
            "could not give late records of a pre-aggregated stream to a side output",
            why="they have been combined when the window finds that they are late",
            do="leave pre_aggregate() out, or leave out side_output_late_data()",
        )

    def _apply(
        self, kind: str, function: Any, window_function: Any, output_type: Optional[TypeInformation]
    ) -> DataStream:
        assigner: Any = self.window_assigner
        described = WindowOperator(assigner, kind, trigger=self._trigger, evictor=self._evictor)
        if not described.is_aligned or function is None:
            raise InvalidJobError(
                f"could not pre-aggregate {kind}() of {type(assigner).__name__}",
                why="only reduce and aggregate can be split in two, and only in tumbling or sliding windows of event "
                "time without a trigger or evictor of their own",
                do="leave pre_aggregate() out",
            )
        slide_ms = getattr(assigner, "slide_ms", assigner.size_ms)
        pane_ms = math.gcd(assigner.size_ms, slide_ms)
        name = f"Local {type(assigner).__name__}"
        partial = self._pre_aggregated._combined(name, kind, function, pane_ms, assigner.offset_ms)
        merging = (_ReduceOfWindow if kind == "reduce" else _AggregateOfWindow)(function, pane_ms < assigner.size_ms)
        windowed = WindowedStream(partial, assigner)
        windowed._allowed_lateness_ms = self._allowed_lateness_ms
        return windowed._apply("aggregate", merging, window_function, output_type)


# ---- the global half ----------------------------------------------------------------------------


class _OfFunction(Function):
    """Opens and closes the user's function."""

    def __init__(self, function: Any):
        self.function = function

    def open(self, runtime_context):
        if isinstance(self.function, Function):
            self.function.open(runtime_context)

    def close(self):
        if isinstance(self.function, Function):
            self.function.close()


class _ReducePartial(_OfFunction, ReduceFunction):
    """Of pairs of key and reduced value."""

    def __init__(self, function: Any):
        super().__init__(function)
        self.of_values = getattr(function, "reduce", function)

    def reduce(self, value1, value2):
        return value1[0], self.of_values(value1[1], value2[1])


class _OfWindow(_OfFunction, AggregateFunction):
    """``shared``: several windows get the same partial value, and user code may change it."""

    def __init__(self, function: Any, shared: bool):
        super().__init__(function)
        self.shared = shared

    def add(self, value, accumulator):
        partial = value[1]
        return self.with_partial(accumulator, copy.deepcopy(partial) if self.shared else partial)


class _ReduceOfWindow(_OfWindow):
    """An accumulator is () or (reduced value,)."""

    def __init__(self, function: Any, shared: bool):
        super().__init__(function, shared)
        self.of_values = getattr(function, "reduce", function)

    def create_accumulator(self):
        return ()

    def with_partial(self, accumulator, partial):
        return (self.of_values(accumulator[0], partial),) if accumulator else (partial,)

    def get_result(self, accumulator):
        return accumulator[0]

    def merge(self, acc_a, acc_b):
        return self.with_partial(acc_a, *acc_b) if acc_b else acc_a


class _AggregateOfWindow(_OfWindow):
    def create_accumulator(self):
        return self.function.create_accumulator()

    def with_partial(self, accumulator, partial):
        return self.function.merge(accumulator, partial)

    def get_result(self, accumulator):
        return self.function.get_result(accumulator)

    def merge(self, acc_a, acc_b):
        return self.function.merge(acc_a, acc_b)
