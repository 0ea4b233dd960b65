"""flinkish: stream processing in Python, with Flink's model, inside a Spark application.

Everyday names can be imported from here; all names stand under PyFlink's module paths, with
``flinkish`` in the place of ``pyflink``.
"""

from typing import TYPE_CHECKING

from flinkish.common._lazy import lazy_exports

if TYPE_CHECKING:  # what `lazy_exports` does, for type checkers and editors
    from flinkish.common.configuration import Configuration as Configuration
    from flinkish.common.job_client import JobClient as JobClient
    from flinkish.common.job_execution_result import JobExecutionResult as JobExecutionResult
    from flinkish.common.job_status import JobStatus as JobStatus
    from flinkish.common.restart_strategy import RestartStrategies as RestartStrategies
    from flinkish.common.serialization import (
        Encoder as Encoder,
        SimpleStringSchema as SimpleStringSchema,
    )
    from flinkish.common.time import Duration as Duration, Instant as Instant, Time as Time
    from flinkish.common.typeinfo import TypeInformation as TypeInformation, Types as Types
    from flinkish.common.types import Row as Row, RowKind as RowKind
    from flinkish.common.watermark_strategy import (
        TimestampAssigner as TimestampAssigner,
        WatermarkGenerator as WatermarkGenerator,
        WatermarkStrategy as WatermarkStrategy,
    )
    from flinkish.datastream.data_stream import (
        ConnectedStreams as ConnectedStreams,
        DataStream as DataStream,
        KeyedStream as KeyedStream,
    )
    from flinkish.datastream.execution_mode import RuntimeExecutionMode as RuntimeExecutionMode
    from flinkish.datastream.functions import (
        AggregateFunction as AggregateFunction,
        CoFlatMapFunction as CoFlatMapFunction,
        CoMapFunction as CoMapFunction,
        CoProcessFunction as CoProcessFunction,
        FilterFunction as FilterFunction,
        FlatMapFunction as FlatMapFunction,
        KeyedCoProcessFunction as KeyedCoProcessFunction,
        KeyedProcessFunction as KeyedProcessFunction,
        KeySelector as KeySelector,
        MapFunction as MapFunction,
        Partitioner as Partitioner,
        ProcessFunction as ProcessFunction,
        ProcessWindowFunction as ProcessWindowFunction,
        ReduceFunction as ReduceFunction,
        RuntimeContext as RuntimeContext,
        SinkFunction as SinkFunction,
        SourceFunction as SourceFunction,
        WindowFunction as WindowFunction,
    )
    from flinkish.datastream.output_tag import OutputTag as OutputTag
    from flinkish.datastream.state import (
        AggregatingStateDescriptor as AggregatingStateDescriptor,
        ListStateDescriptor as ListStateDescriptor,
        MapStateDescriptor as MapStateDescriptor,
        ReducingStateDescriptor as ReducingStateDescriptor,
        StateTtlConfig as StateTtlConfig,
        ValueStateDescriptor as ValueStateDescriptor,
    )
    from flinkish.datastream.stream_execution_environment import (
        StreamExecutionEnvironment as StreamExecutionEnvironment,
    )
    from flinkish.datastream.time_domain import TimeDomain as TimeDomain
    from flinkish.datastream.window import (
        EventTimeSessionWindows as EventTimeSessionWindows,
        EventTimeTrigger as EventTimeTrigger,
        SlidingEventTimeWindows as SlidingEventTimeWindows,
        TimeWindow as TimeWindow,
        TumblingEventTimeWindows as TumblingEventTimeWindows,
    )

__version__ = "0.1.0"

_EXPORTS = {
    "flinkish.common": [
        "Configuration",
        "Duration",
        "Encoder",
        "Instant",
        "JobClient",
        "JobExecutionResult",
        "JobStatus",
        "RestartStrategies",
        "Row",
        "RowKind",
        "SimpleStringSchema",
        "Time",
        "TimestampAssigner",
        "TypeInformation",
        "Types",
        "WatermarkGenerator",
        "WatermarkStrategy",
    ],
    "flinkish.datastream": [
        "AggregateFunction",
        "CoFlatMapFunction",
        "CoMapFunction",
        "CoProcessFunction",
        "ConnectedStreams",
        "DataStream",
        "FilterFunction",
        "FlatMapFunction",
        "KeySelector",
        "KeyedCoProcessFunction",
        "KeyedProcessFunction",
        "KeyedStream",
        "MapFunction",
        "OutputTag",
        "Partitioner",
        "ProcessFunction",
        "ProcessWindowFunction",
        "ReduceFunction",
        "RuntimeContext",
        "RuntimeExecutionMode",
        "SinkFunction",
        "SourceFunction",
        "StreamExecutionEnvironment",
        "TimeDomain",
        "TimeWindow",
        "WindowFunction",
    ],
    "flinkish.datastream.state": [
        "AggregatingStateDescriptor",
        "ListStateDescriptor",
        "MapStateDescriptor",
        "ReducingStateDescriptor",
        "StateTtlConfig",
        "ValueStateDescriptor",
    ],
    "flinkish.datastream.window": [
        "EventTimeSessionWindows",
        "EventTimeTrigger",
        "SlidingEventTimeWindows",
        "TumblingEventTimeWindows",
    ],
}

__all__, __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
__all__ += ["__version__"]
