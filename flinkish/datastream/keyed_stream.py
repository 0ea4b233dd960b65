"""KeyedStream: a stream whose records with equal keys meet in one subtask."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

from flinkish.common.time import Time, TimeLike
from flinkish.common.typeinfo import TypeInformation
from flinkish.datastream.aggregations import field_aggregation
from flinkish.datastream.data_stream import DataStream
from flinkish.datastream.fields import Field
from flinkish.datastream.function_adapters import check_function, check_type, keyed_process_function_of
from flinkish.datastream.functions import Function, ReduceFunction
from flinkish.datastream.partitioners import KeyGroupPartitioner
from flinkish.datastream.transformations import (
    KeyedProcessOperator,
    PartitionTransformation,
    ReduceOperator,
)
from flinkish.errors import InvalidJobError

if TYPE_CHECKING:
    from flinkish.datastream.interval_join import IntervalJoin
    from flinkish.datastream.partition_windowed_stream import PartitionWindowedStream
    from flinkish.datastream.pre_aggregated_stream import PreAggregatedStream
    from flinkish.datastream.windowed_stream import WindowedStream

__all__ = ["KeyedStream"]


class KeyedStream(DataStream):
    """Made by ``stream.key_by(...)``.

    Args:
        original: the stream before ``key_by``.
        key_selector: the key of a record.
        key_type: declared type of the key, or None.
        key_field: the field that is the key, when it is just one field.
    """

    class AccumulateType(Enum):
        MIN = 1
        MAX = 2
        MIN_BY = 3
        MAX_BY = 4
        SUM = 5

    def __init__(
        self,
        original: DataStream,
        key_selector: Callable[[Any], Any],
        key_type: Optional[TypeInformation] = None,
        key_field: Optional[Field] = None,
    ):
        super().__init__(
            original.environment,
            PartitionTransformation(
                "Partition HASH",
                original.transformation.output_type,
                input=original.transformation,
                partitioner=KeyGroupPartitioner(key_selector, key_type, key_field),
            ),
        )
        self.original = original
        self.key_selector = key_selector
        self.key_type = key_type

    def _key_selectors(self, function: Any) -> tuple:
        """Only function objects can ask for state; for plain callables no key is computed."""
        return (self.key_selector,) if isinstance(function, Function) else ()

    def _key_type(self) -> Optional[TypeInformation]:
        return self.key_type

    # ---- keyed operators ------------------------------------------------------------------------

    def process(self, func: Any, output_type: Optional[TypeInformation] = None) -> DataStream:
        """A KeyedProcessFunction, or a callable of ``(value, ctx)``: state and timers of the key."""
        check_type(output_type, "process")
        operator = KeyedProcessOperator(keyed_process_function_of(func))
        return self._apply("KeyedProcess", operator, output_type, (self.key_selector,))

    def reduce(self, func: Union[Callable, ReduceFunction]) -> DataStream:
        """For each record, the reduction of its key so far."""
        return self._reduce("Keyed Reduce", check_function(func, ReduceFunction, "reduce"))

    def _reduce(self, name: str, function: Any) -> DataStream:
        output_type = self.transformation.output_type
        return self._apply(name, ReduceOperator(function), output_type, (self.key_selector,))

    def sum(self, position_to_sum: Field = 0) -> DataStream:
        """The sum of a field (position or name); other fields are those of the key's first record."""
        return self._accumulate(position_to_sum, KeyedStream.AccumulateType.SUM)

    def min(self, position_to_min: Field = 0) -> DataStream:
        """The smallest value of a field; other fields are those of the key's first record."""
        return self._accumulate(position_to_min, KeyedStream.AccumulateType.MIN)

    def max(self, position_to_max: Field = 0) -> DataStream:
        return self._accumulate(position_to_max, KeyedStream.AccumulateType.MAX)

    def min_by(self, position_to_min_by: Field = 0) -> DataStream:
        """The whole record with the smallest value of a field; the first one on ties."""
        return self._accumulate(position_to_min_by, KeyedStream.AccumulateType.MIN_BY)

    def max_by(self, position_to_max_by: Field = 0) -> DataStream:
        return self._accumulate(position_to_max_by, KeyedStream.AccumulateType.MAX_BY)

    def _accumulate(self, field: Field, kind: "KeyedStream.AccumulateType") -> DataStream:
        function = field_aggregation(kind.name.lower(), field, self.transformation.output_type)
        return self._reduce("Keyed Aggregation", function)

    def pre_aggregate(
        self, size: int = 1000, latency: TimeLike = Time.milliseconds(100)
    ) -> "PreAggregatedStream":
        """Combine records of equal keys before they are sent to the key's subtask, as Flink SQL does with mini-batches
        (`docs/skew.md`).  Against skew: a frequent key then costs its subtask one value for each batch.

        Args:
            size: records, >= 1, after which a producer sends what it has combined.
            latency: how long a record waits for that at most, >= 1 ms.
        """
        from flinkish.datastream.pre_aggregated_stream import PreAggregatedStream

        return PreAggregatedStream(self, size, latency)

    def window(self, window_assigner: Any) -> "WindowedStream":
        from flinkish.datastream.windowed_stream import WindowedStream

        return WindowedStream(self, window_assigner)

    def count_window(self, size: int, slide: int = 0) -> "WindowedStream":
        from flinkish.datastream.windowed_stream import WindowedStream, count_assigner

        return WindowedStream(self, count_assigner(size, slide))

    def full_window_partition(self) -> "PartitionWindowedStream":
        """Each key as one window, which fires when the input has ended."""
        from flinkish.datastream.partition_windowed_stream import KeyedPartitionWindowedStream

        return KeyedPartitionWindowedStream(self)

    def interval_join(self, other_stream: "KeyedStream") -> "IntervalJoin":
        """Join records of equal keys whose event times lie near each other."""
        from flinkish.datastream.interval_join import IntervalJoin

        if not isinstance(other_stream, KeyedStream):
            raise InvalidJobError(
                f"interval_join() takes a KeyedStream, not a {type(other_stream).__name__}",
                do="call key_by(...) on the other stream too",
            )
        self._same_environment(other_stream, "interval_join")
        return IntervalJoin(self, other_stream)

    # ---- what a key changes ---------------------------------------------------------------------

    def key_by(self, key_selector: Any, key_type: Optional[TypeInformation] = None) -> "KeyedStream":
        return self.original.key_by(key_selector, key_type)

    def project(self, *field_indexes: Field) -> DataStream:
        return super().project(*field_indexes)

    def _partition(self, partitioner: Any) -> DataStream:
        raise InvalidJobError(
            f"could not partition a keyed stream by {partitioner.name.lower()}",
            why="key_by() has chosen the subtask of each record",
            do="partition the stream before key_by(), or leave key_by() out",
        )


def with_key_type(stream: KeyedStream, key_type: Optional[TypeInformation]) -> KeyedStream:
    """The same stream, keys converted to that type."""
    if key_type == stream.key_type:
        return stream
    field = stream.transformation.partitioner.key_field  # type: ignore[attr-defined]
    return KeyedStream(stream.original, stream.key_selector, key_type, field)


def common_key_type(
    first: Optional[TypeInformation], second: Optional[TypeInformation], method: str
) -> Optional[TypeInformation]:
    """The declared key type of two streams that meet by key; one may leave it to the other.

    Raises:
        InvalidJobError: they differ."""
    if None not in (first, second) and first != second:
        raise InvalidJobError(
            f"could not {method}() streams with keys of different types",
            why=f"the first key is {first}, the second {second}",
            do="choose keys of one type, or give key_type",
        )
    return first or second
