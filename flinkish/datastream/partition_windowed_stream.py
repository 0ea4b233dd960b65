"""PartitionWindowedStream: each partition of a bounded stream as one window, which fires when the input has ended.

(Java's; PyFlink has none.)  A partition is a key of a keyed stream, else what one subtask gets.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Any, Callable, Optional, Union

from flinkish.common.typeinfo import TypeInformation
from flinkish.datastream.data_stream import DataStream
from flinkish.datastream.fields import Field
from flinkish.datastream.function_adapters import (
    DelegatingFunction,
    check_function,
    check_type,
    key_selector_of,
    require_function,
)
from flinkish.datastream.functions import AggregateFunction, ReduceFunction, WindowFunction
from flinkish.datastream.join_functions import MapPartitionFunction
from flinkish.datastream.transformations import PartitionWindowOperator
from flinkish.datastream.triggers import PurgingTrigger
from flinkish.datastream.window_assigners import GlobalWindows
from flinkish.datastream.windowed_stream import WindowedStream
from flinkish.errors import InvalidJobError

if TYPE_CHECKING:
    from flinkish.datastream.keyed_stream import KeyedStream

__all__ = ["KeyedPartitionWindowedStream", "NonKeyedPartitionWindowedStream", "Order", "PartitionWindowedStream"]


class Order(enum.Enum):
    """Of `PartitionWindowedStream.sort_partition`.  Records that are equal in it stay in the order in which they came.
    """

    ASCENDING = "ascending"
    DESCENDING = "descending"


class PartitionWindowedStream:
    """Made by ``stream.full_window_partition()``.

    Nothing comes out before the input has ended, and a stream that never ends gives nothing.  All records are state
    until then, except of `reduce` and `aggregate`, which keep one value for each partition.
    """

    def __init__(self, stream: DataStream):
        self._stream = stream

    def map_partition(
        self,
        map_partition_function: Union[Callable, MapPartitionFunction],
        output_type: Optional[TypeInformation] = None,
    ) -> DataStream:
        """A MapPartitionFunction, or a callable of ``(values)``: any number of results for all records together."""
        function = check_function(map_partition_function, MapPartitionFunction, "map_partition")
        return self._map("MapPartition", function, check_type(output_type, "map_partition"))

    def sort_partition(self, field: Union[Field, Callable], order: Order) -> DataStream:
        """The records of each partition, sorted.

        Args:
            field: position or name of a field, a KeySelector or a callable: what is compared.
        """
        if not isinstance(order, Order):
            raise InvalidJobError(
                f"sort_partition() takes an Order, not {order!r}", do="give Order.ASCENDING or Order.DESCENDING"
            )
        output_type = self._stream.transformation.output_type
        selector, _, _ = key_selector_of(field, None, output_type, "sort_partition")
        return self._map("SortPartition", _Sort(selector, order is Order.DESCENDING), output_type)

    def reduce(self, reduce_function: Union[Callable, ReduceFunction]) -> DataStream:
        """One value for each partition that has records."""
        raise NotImplementedError

    def aggregate(
        self, aggregate_function: AggregateFunction, output_type: Optional[TypeInformation] = None
    ) -> DataStream:
        """One result for each partition; of a subtask also when it has no records."""
        raise NotImplementedError

    def _map(self, name: str, function: Any, output_type: Optional[TypeInformation]) -> DataStream:
        raise NotImplementedError


class NonKeyedPartitionWindowedStream(PartitionWindowedStream):
    """A partition is what one subtask gets.  Results have no event time."""

    def reduce(self, reduce_function):
        function = check_function(reduce_function, ReduceFunction, "reduce")
        return self._apply("PartitionReduce", "reduce", function, self._stream.transformation.output_type)

    def aggregate(self, aggregate_function, output_type=None):
        function = require_function(aggregate_function, AggregateFunction, "aggregate")
        return self._apply("PartitionAggregate", "aggregate", function, check_type(output_type, "aggregate"))

    def _map(self, name, function, output_type):
        return self._apply(name, "map", function, output_type)

    def _apply(self, name: str, kind: str, function: Any, output_type: Optional[TypeInformation]) -> DataStream:
        return self._stream._apply(name, PartitionWindowOperator(kind, function), output_type)


class KeyedPartitionWindowedStream(PartitionWindowedStream):
    """A partition is a key."""

    _stream: "KeyedStream"

    def _windowed(self) -> WindowedStream:
        """Purged when it fires: a savepoint behind the end would give the results again."""
        assigner = GlobalWindows.create_with_end_of_stream_trigger()
        return self._stream.window(assigner).trigger(PurgingTrigger.of(assigner.get_default_trigger(None)))

    def reduce(self, reduce_function):
        return self._windowed().reduce(reduce_function)

    def aggregate(self, aggregate_function, output_type=None):
        return self._windowed().aggregate(aggregate_function, output_type=output_type)

    def _map(self, name, function, output_type):
        return self._windowed().apply(_OfWindow(function), output_type).name(name)


class _Sort:
    """All records of a partition, sorted."""

    def __init__(self, selector: Callable[[Any], Any], descending: bool):
        self._selector, self._descending = selector, descending

    def __call__(self, values: list) -> list:
        return sorted(values, key=self._selector, reverse=self._descending)


class _OfWindow(DelegatingFunction, WindowFunction):
    """What is done with a partition, as the window function of its key."""

    def apply(self, key, window, inputs):
        function = self._func
        return (function.map_partition if isinstance(function, MapPartitionFunction) else function)(inputs)
