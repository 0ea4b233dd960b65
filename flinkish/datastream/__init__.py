"""Streams and what runs on them; PyFlink's ``pyflink.datastream``."""

from typing import TYPE_CHECKING

from flinkish.common._lazy import lazy_exports

if TYPE_CHECKING:  # what `lazy_exports` does, for type checkers and editors
    from flinkish.datastream.async_data_stream import AsyncDataStream as AsyncDataStream
    from flinkish.datastream.checkpoint_config import CheckpointConfig as CheckpointConfig
    from flinkish.datastream.checkpoint_storage import (
        CheckpointStorage as CheckpointStorage,
        FileSystemCheckpointStorage as FileSystemCheckpointStorage,
        JobManagerCheckpointStorage as JobManagerCheckpointStorage,
    )
    from flinkish.datastream.checkpointing_mode import CheckpointingMode as CheckpointingMode
    from flinkish.datastream.co_grouped_streams import CoGroupedStreams as CoGroupedStreams
    from flinkish.datastream.data_stream import (
        BroadcastConnectedStream as BroadcastConnectedStream,
        BroadcastStream as BroadcastStream,
        ConnectedStreams as ConnectedStreams,
        DataStream as DataStream,
        DataStreamSink as DataStreamSink,
        KeyedStream as KeyedStream,
        WindowedStream as WindowedStream,
    )
    from flinkish.datastream.execution_mode import RuntimeExecutionMode as RuntimeExecutionMode
    from flinkish.datastream.externalized_checkpoint_retention import (
        ExternalizedCheckpointCleanup as ExternalizedCheckpointCleanup,
        ExternalizedCheckpointRetention as ExternalizedCheckpointRetention,
    )
    from flinkish.datastream.functions import (
        AggregateFunction as AggregateFunction,
        AsyncFunction as AsyncFunction,
        AsyncRetryPredicate as AsyncRetryPredicate,
        AsyncRetryStrategy as AsyncRetryStrategy,
        BroadcastProcessFunction as BroadcastProcessFunction,
        CoFlatMapFunction as CoFlatMapFunction,
        CoMapFunction as CoMapFunction,
        CoProcessFunction as CoProcessFunction,
        FilterFunction as FilterFunction,
        FlatMapFunction as FlatMapFunction,
        KeyedBroadcastProcessFunction as KeyedBroadcastProcessFunction,
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
    from flinkish.datastream.join_functions import (
        CoGroupFunction as CoGroupFunction,
        FlatJoinFunction as FlatJoinFunction,
        JoinFunction as JoinFunction,
        MapPartitionFunction as MapPartitionFunction,
        ProcessJoinFunction as ProcessJoinFunction,
    )
    from flinkish.datastream.joined_streams import JoinedStreams as JoinedStreams
    from flinkish.datastream.output_tag import OutputTag as OutputTag
    from flinkish.datastream.partition_windowed_stream import (
        Order as Order,
        PartitionWindowedStream as PartitionWindowedStream,
    )
    from flinkish.datastream.slot_sharing_group import (
        MemorySize as MemorySize,
        SlotSharingGroup as SlotSharingGroup,
    )
    from flinkish.datastream.state_backend import (
        EmbeddedRocksDBStateBackend as EmbeddedRocksDBStateBackend,
        HashMapStateBackend as HashMapStateBackend,
        PredefinedOptions as PredefinedOptions,
        StateBackend as StateBackend,
    )
    from flinkish.datastream.stream_execution_environment import (
        StreamExecutionEnvironment as StreamExecutionEnvironment,
    )
    from flinkish.datastream.time_domain import TimeDomain as TimeDomain
    from flinkish.datastream.timerservice import TimerService as TimerService
    from flinkish.datastream.window import (
        CountWindow as CountWindow,
        GlobalWindow as GlobalWindow,
        MergingWindowAssigner as MergingWindowAssigner,
        TimeWindow as TimeWindow,
        Trigger as Trigger,
        TriggerResult as TriggerResult,
        Window as Window,
        WindowAssigner as WindowAssigner,
    )

_EXPORTS = {
    "async_data_stream": ["AsyncDataStream"],
    "checkpoint_config": ["CheckpointConfig"],
    "checkpoint_storage": [
        "CheckpointStorage",
        "FileSystemCheckpointStorage",
        "JobManagerCheckpointStorage",
    ],
    "checkpointing_mode": ["CheckpointingMode"],
    "co_grouped_streams": ["CoGroupedStreams"],
    "data_stream": [
        "BroadcastConnectedStream",
        "BroadcastStream",
        "ConnectedStreams",
        "DataStream",
        "DataStreamSink",
        "KeyedStream",
        "WindowedStream",
    ],
    "execution_mode": ["RuntimeExecutionMode"],
    "externalized_checkpoint_retention": ["ExternalizedCheckpointCleanup", "ExternalizedCheckpointRetention"],
    "functions": [
        "AggregateFunction",
        "AsyncFunction",
        "AsyncRetryPredicate",
        "AsyncRetryStrategy",
        "BroadcastProcessFunction",
        "CoFlatMapFunction",
        "CoMapFunction",
        "CoProcessFunction",
        "FilterFunction",
        "FlatMapFunction",
        "KeySelector",
        "KeyedBroadcastProcessFunction",
        "KeyedCoProcessFunction",
        "KeyedProcessFunction",
        "MapFunction",
        "Partitioner",
        "ProcessFunction",
        "ProcessWindowFunction",
        "ReduceFunction",
        "RuntimeContext",
        "SinkFunction",
        "SourceFunction",
        "WindowFunction",
    ],
    "join_functions": [
        "CoGroupFunction",
        "FlatJoinFunction",
        "JoinFunction",
        "MapPartitionFunction",
        "ProcessJoinFunction",
    ],
    "joined_streams": ["JoinedStreams"],
    "output_tag": ["OutputTag"],
    "partition_windowed_stream": ["Order", "PartitionWindowedStream"],
    "slot_sharing_group": ["MemorySize", "SlotSharingGroup"],
    "state_backend": [
        "EmbeddedRocksDBStateBackend",
        "HashMapStateBackend",
        "PredefinedOptions",
        "StateBackend",
    ],
    "stream_execution_environment": ["StreamExecutionEnvironment"],
    "time_domain": ["TimeDomain"],
    "timerservice": ["TimerService"],
    "window": [
        "CountWindow",
        "GlobalWindow",
        "MergingWindowAssigner",
        "TimeWindow",
        "Trigger",
        "TriggerResult",
        "Window",
        "WindowAssigner",
    ],
}

__all__, __getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
