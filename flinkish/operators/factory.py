"""From the description of an operator to the operator that runs."""

from __future__ import annotations

from flinkish.connectors.spi import Sink
from flinkish.datastream import transformations as described
from flinkish.errors import InternalError
from flinkish.graph.job_graph import ChainedOperator
from flinkish.operators.broadcast import CoBroadcastWithKeyedOperator, CoBroadcastWithNonKeyedOperator
from flinkish.operators.async_io.async_wait import AsyncWaitOperator
from flinkish.operators.co_map import CoStreamFlatMap, CoStreamMap
from flinkish.operators.co_process import CoProcessOperator, KeyedCoProcessOperator
from flinkish.operators.columns_to_rows import ColumnsToRowsOperator
from flinkish.operators.filter import StreamFilter
from flinkish.operators.flat_map import StreamFlatMap
from flinkish.operators.interval_join import IntervalJoinOperator
from flinkish.operators.keyed_process import KeyedProcessOperator
from flinkish.operators.local_aggregation import LocalAggregationOperator
from flinkish.operators.map import StreamMap
from flinkish.operators.operator import RuntimeOperator
from flinkish.operators.output import TaskEnvironment
from flinkish.operators.partition_window import PartitionWindowOperator
from flinkish.operators.process import ProcessOperator
from flinkish.operators.reduce import BatchGroupedReduce, StreamGroupedReduce
from flinkish.operators.sink import SinkFunctionOperator, SinkWriterOperator
from flinkish.operators.source import SourceOperator
from flinkish.operators.timestamps_and_watermarks import TimestampsAndWatermarksOperator
from flinkish.operators.window import AlignedWindowOperator
from flinkish.operators.windowing.base import WindowOperatorBase
from flinkish.operators.windowing.column_windows import ColumnWindowOperator
from flinkish.operators.windowing.window_operator import WindowOperator

_OPERATORS: dict[type, type[RuntimeOperator]] = {
    described.MapOperator: StreamMap,
    described.FilterOperator: StreamFilter,
    described.FlatMapOperator: StreamFlatMap,
    described.ProcessOperator: ProcessOperator,
    described.KeyedProcessOperator: KeyedProcessOperator,
    described.ReduceOperator: StreamGroupedReduce,
    described.CoMapOperator: CoStreamMap,
    described.CoFlatMapOperator: CoStreamFlatMap,
    described.CoProcessOperator: CoProcessOperator,
    described.KeyedCoProcessOperator: KeyedCoProcessOperator,
    described.BroadcastProcessOperator: CoBroadcastWithNonKeyedOperator,
    described.KeyedBroadcastProcessOperator: CoBroadcastWithKeyedOperator,
    described.IntervalJoinOperator: IntervalJoinOperator,
    described.LocalAggregationOperator: LocalAggregationOperator,
    described.PartitionWindowOperator: PartitionWindowOperator,
    described.AsyncWaitOperator: AsyncWaitOperator,
    described.TimestampsAndWatermarksOperator: TimestampsAndWatermarksOperator,
    described.ColumnsToRowsOperator: ColumnsToRowsOperator,
    described.SourceOperator: SourceOperator,
}


def create_operator(spec: ChainedOperator, environment: TaskEnvironment) -> RuntimeOperator:
    """The runtime operator of ``spec``, not yet open."""
    description = spec.operator
    if isinstance(description, described.SinkOperator):
        kind: type[RuntimeOperator] = (
            SinkWriterOperator if isinstance(description.sink, Sink) else SinkFunctionOperator
        )
        return kind(spec, environment)
    if isinstance(description, described.WindowOperator):
        return window_operator_class(description, environment.is_batch)(spec, environment)
    if isinstance(description, described.ReduceOperator) and environment.is_batch:
        return BatchGroupedReduce(spec, environment)
    found = _OPERATORS.get(type(description))
    if found is None:
        raise InternalError(
            f"no operator runs a {type(description).__name__}", where=f'operator "{spec.name}"'
        )
    return found(spec, environment)


def window_operator_class(description: described.WindowOperator, is_batch: bool) -> type[WindowOperatorBase]:
    """What runs the windows of ``description``."""
    if description.on_columns:
        return ColumnWindowOperator
    aligned = description.is_aligned and not is_batch  # one key at a time shares no windows
    return AlignedWindowOperator if aligned else WindowOperator
