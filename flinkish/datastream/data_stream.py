"""DataStream: what a program does with records; each call adds a transformation.

Operators without declared types take any Python object as a record.  The other streams
(``KeyedStream``, ``ConnectedStreams``, ...) can be imported from here, as in PyFlink.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any, Callable, Optional, TypeVar, Union

from flinkish.common._lazy import lazy_exports
from flinkish.common.arguments import check_argument
from flinkish.common.constants import WINDOW_STATE_NAME as WINDOW_STATE_NAME
from flinkish.common.execution_config import check_max_parallelism, check_parallelism
from flinkish.common.time import TimeLike, to_milliseconds
from flinkish.common.typeinfo import TypeInformation, Types
from flinkish.common.watermark_strategy import WatermarkStrategy
from flinkish.datastream.checkpointing_mode import CheckpointingMode
from flinkish.datastream.fields import Field, Projection, check_field, declared_field_type
from flinkish.datastream.function_adapters import (
    CallableSinkFunction,
    check_function,
    check_type,
    key_selector_of,
    partitioner_of,
    process_function_of,
)
from flinkish.datastream.functions import FilterFunction, FlatMapFunction, MapFunction, SinkFunction
from flinkish.datastream.missing_calls import WithMissingCalls
from flinkish.datastream.output_tag import OutputTag
from flinkish.datastream.partitioners import (
    BroadcastPartitioner,
    CustomPartitioner,
    ForwardPartitioner,
    GlobalPartitioner,
    RebalancePartitioner,
    RescalePartitioner,
    ShufflePartitioner,
    StreamPartitioner,
)
from flinkish.datastream.transformations import (
    ChainingStrategy,
    FilterOperator,
    FlatMapOperator,
    MapOperator,
    OneInputTransformation,
    Operator,
    PartitionTransformation,
    PhysicalTransformation,
    ProcessOperator,
    SideOutputTransformation,
    SinkOperator,
    SinkTransformation,
    TimestampsAndWatermarksOperator,
    Transformation,
    UnionTransformation,
)
from flinkish.errors import InvalidJobError

if TYPE_CHECKING:
    from flinkish.common.execution_config import ExecutionConfig
    from flinkish.datastream.broadcast_stream import BroadcastConnectedStream, BroadcastStream
    from flinkish.datastream.cached_data_stream import CachedDataStream
    from flinkish.datastream.closeable_iterator import CloseableIterator
    from flinkish.datastream.co_grouped_streams import CoGroupedStreams
    from flinkish.datastream.connected_streams import ConnectedStreams
    from flinkish.datastream.joined_streams import JoinedStreams
    from flinkish.datastream.keyed_stream import KeyedStream
    from flinkish.datastream.partition_windowed_stream import PartitionWindowedStream
    from flinkish.datastream.slot_sharing_group import SlotSharingGroup
    from flinkish.datastream.stream_execution_environment import StreamExecutionEnvironment
    from flinkish.datastream.windowed_stream import AllWindowedStream

__all__ = [  # noqa: F822 (the lazy ones are below)
    "AllWindowedStream",
    "BroadcastConnectedStream",
    "BroadcastStream",
    "CachedDataStream",
    "CloseableIterator",
    "ConnectedStreams",
    "DataStream",
    "DataStreamSink",
    "KeyedStream",
    "WindowedStream",
]

_, __getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "flinkish.datastream.broadcast_stream": ["BroadcastConnectedStream", "BroadcastStream"],
        "flinkish.datastream.cached_data_stream": ["CachedDataStream"],
        "flinkish.datastream.closeable_iterator": ["CloseableIterator"],
        "flinkish.datastream.connected_streams": ["ConnectedStreams"],
        "flinkish.datastream.keyed_stream": ["KeyedStream"],
        "flinkish.datastream.windowed_stream": ["AllWindowedStream", "WindowedStream"],
    },
)


#: What only a KeyedStream has.
_NEEDS_KEY = dict.fromkeys(
    ("count_window", "interval_join", "max", "max_by", "min", "min_by", "pre_aggregate", "reduce", "sum",
     "window"),
    ("it needs a key", "call key_by(...) first (map() and others drop the key)"),
)  # fmt: skip

S = TypeVar("S", bound="_OperatorSettings")


class _OperatorSettings:
    """Settings of the operator behind a stream or a sink; each method returns the same object."""

    transformation: Transformation
    environment: "StreamExecutionEnvironment"

    def _operator(self, setting: str) -> PhysicalTransformation:
        transformation = self.transformation
        if not isinstance(transformation, PhysicalTransformation):
            raise InvalidJobError(
                f"could not set {setting} of this stream",
                why=f"{transformation.name} is no operator, only a way that records take",
                do=f"set {setting} on the operator before or behind it",
            )
        return transformation

    def name(self: S, name: str) -> S:
        self._operator("the name").name = check_argument(name, str, "name()", "name")
        return self

    def uid(self: S, uid: str) -> S:
        """A name that is unique in the job and stays when the program changes: state is found by it."""
        if not isinstance(uid, str) or not uid:
            raise InvalidJobError(f"a uid must be a text, not {uid!r}")
        self._operator("the uid").uid = uid
        return self

    def set_uid_hash(self: S, uid_hash: str) -> S:
        """The operator id itself, 32 hex digits, to find state of a program without uids."""
        check_argument(uid_hash, str, "set_uid_hash()", "uid_hash")
        if len(uid_hash) != 32 or set(uid_hash.lower()) - set("0123456789abcdef"):
            raise InvalidJobError(f"a uid hash must be 32 hex digits, not {uid_hash!r}")
        self._operator("the uid hash").uid_hash = uid_hash.lower()
        return self

    def set_description(self: S, description: str) -> S:
        check_argument(description, str, "set_description()", "description")
        self._operator("the description").description = description
        return self

    def set_parallelism(self: S, parallelism: int) -> S:
        operator = self._operator("the parallelism")
        limit = operator.max_parallelism
        if limit is None:
            limit = self.environment.get_max_parallelism()
        runs = getattr(operator.operator, "source", None) or getattr(operator.operator, "sink", None)
        fixed = getattr(runs, "fixed_parallelism", None)
        if fixed is not None and parallelism != fixed:
            raise InvalidJobError(
                f'could not set the parallelism of "{operator.name}" to {parallelism}',
                why=f"a {type(runs).__name__} has parallelism {fixed}",
                do="put rebalance() between it and the parallel operators",
            )
        operator.parallelism = check_parallelism(parallelism, limit, f'"{operator.name}"')
        return self

    def set_max_parallelism(self: S, max_parallelism: int) -> S:
        operator = self._operator("the max parallelism")
        check_max_parallelism(max_parallelism, f'"{operator.name}"')
        if operator.parallelism is not None:
            check_parallelism(operator.parallelism, max_parallelism, f'"{operator.name}"')
        operator.max_parallelism = max_parallelism
        return self

    def disable_chaining(self: S) -> S:
        """Never run in one loop with its neighbours."""
        self._operator("the chaining").chaining_strategy = ChainingStrategy.NEVER
        return self

    def slot_sharing_group(self: S, slot_sharing_group: "Union[str, SlotSharingGroup]") -> S:
        """Operators of different groups run in different slots."""
        from flinkish.datastream.slot_sharing_group import SlotSharingGroup

        if isinstance(slot_sharing_group, SlotSharingGroup):
            self.environment.register_slot_sharing_group(slot_sharing_group)
            slot_sharing_group = slot_sharing_group.get_name()
        check_argument(
            slot_sharing_group, (str, SlotSharingGroup), "slot_sharing_group()", "slot_sharing_group"
        )
        self._operator("the slot sharing group").slot_sharing_group = slot_sharing_group
        return self


class DataStream(_OperatorSettings, WithMissingCalls):
    """A stream of records.

    Args:
        environment: the program that it belongs to.
        transformation: what produces its records.
    """

    _missing_calls = _NEEDS_KEY

    def __init__(self, environment: "StreamExecutionEnvironment", transformation: Transformation):
        self.environment = environment
        self.transformation = transformation

    # ---- settings -------------------------------------------------------------------------------

    def get_name(self) -> str:
        return self.transformation.name

    def get_type(self) -> TypeInformation:
        """The declared type; PICKLED_BYTE_ARRAY (any object) when nothing is declared."""
        return self.transformation.output_type or Types.PICKLED_BYTE_ARRAY()

    def get_execution_environment(self) -> "StreamExecutionEnvironment":
        return self.environment

    def get_execution_config(self) -> "ExecutionConfig":
        return self.environment.get_config()

    def force_non_parallel(self) -> "DataStream":
        """Parallelism 1, now and after every rescale."""
        operator = self._operator("the parallelism")
        operator.parallelism = operator.max_parallelism = 1
        return self

    def set_buffer_timeout(self, timeout_millis: TimeLike) -> "DataStream":
        """Longest wait of a record in an open batch; -1: only full batches are sent."""
        timeout_ms = to_milliseconds(timeout_millis)
        if timeout_ms < -1:
            raise InvalidJobError(f"a buffer timeout must be at least -1 ms, not {timeout_ms}")
        self._operator("the buffer timeout").buffer_timeout_ms = timeout_ms
        return self

    def start_new_chain(self) -> "DataStream":
        """Do not run in one loop with the operator before."""
        self._operator("the chaining").chaining_strategy = ChainingStrategy.HEAD
        return self

    # ---- one record -----------------------------------------------------------------------------

    def _key_selectors(self, function: Any) -> tuple:
        """Key selector of the operator; only a KeyedStream has one."""
        return ()

    def _key_type(self) -> Optional[TypeInformation]:
        return None

    def _apply(
        self,
        name: str,
        operator: Operator,
        output_type: Optional[TypeInformation],
        key_selectors: tuple = (),
    ) -> "DataStream":
        transformation = OneInputTransformation(
            name,
            output_type,
            operator=operator,
            key_selectors=key_selectors,
            key_type=self._key_type() if key_selectors else None,
            input=self.transformation,
        )
        self.environment.add_operator(transformation)
        return DataStream(self.environment, transformation)

    def map(
        self, func: Union[Callable, MapFunction], output_type: Optional[TypeInformation] = None
    ) -> "DataStream":
        """One result for each record."""
        func = check_function(func, MapFunction, "map")
        check_type(output_type, "map")
        return self._apply("Map", MapOperator(func), output_type, self._key_selectors(func))

    def flat_map(
        self, func: Union[Callable, FlatMapFunction], output_type: Optional[TypeInformation] = None
    ) -> "DataStream":
        """Any number of results for each record: an iterable, a generator or None."""
        func = check_function(func, FlatMapFunction, "flat_map")
        check_type(output_type, "flat_map")
        return self._apply("Flat Map", FlatMapOperator(func), output_type, self._key_selectors(func))

    def filter(self, func: Union[Callable, FilterFunction]) -> "DataStream":
        """Keep the records for which ``func`` is true."""
        func = check_function(func, FilterFunction, "filter")
        return self._apply(
            "Filter", FilterOperator(func), self.transformation.output_type, self._key_selectors(func)
        )

    def process(self, func: Any, output_type: Optional[TypeInformation] = None) -> "DataStream":
        """A ProcessFunction, or a callable of ``(value, ctx)``: times and side outputs."""
        func = process_function_of(func)
        return self._apply("Process", ProcessOperator(func), check_type(output_type, "process"))

    def project(self, *field_indexes: Field) -> "DataStream":
        """Some fields of each record, by position or name, in the order given."""
        if not field_indexes:
            raise InvalidJobError("project() needs at least one field")
        projection = Projection(tuple(check_field(field, "project") for field in field_indexes))
        output_type = projection.output_type(self.transformation.output_type)
        return self._apply("Projection", MapOperator(projection), output_type)

    def assign_timestamps_and_watermarks(self, watermark_strategy: WatermarkStrategy) -> "DataStream":
        """Give records new event times, and the stream new watermarks."""
        check_watermark_strategy(watermark_strategy, self.transformation.output_type)
        if watermark_strategy.alignment is not None:
            raise InvalidJobError(
                "could not align the watermarks of a stream that is read already",
                where="assign_timestamps_and_watermarks()",
                why="alignment lets sources wait for each other, and between source and here nothing can wait",
                do="give the strategy with its alignment to from_source()",
            )
        return self._apply(
            "Timestamps/Watermarks",
            TimestampsAndWatermarksOperator(watermark_strategy),
            self.transformation.output_type,
        )

    # ---- several streams ------------------------------------------------------------------------

    def key_by(
        self,
        key_selector: Union[Callable, Any, int, str],
        key_type: Optional[TypeInformation] = None,
    ) -> "KeyedStream":
        """Bring equal keys together.

        Args:
            key_selector: a callable, a KeySelector, or the position or name of a field.
            key_type: declared type of the key; keys are converted to it.
        """
        from flinkish.datastream.keyed_stream import KeyedStream

        selector, key_type, field = key_selector_of(key_selector, key_type, self.transformation.output_type)
        return KeyedStream(self, selector, key_type, field)

    def union(self, *streams: "DataStream") -> "DataStream":
        """Records of this stream and the others, of the same type."""
        inputs = [self.transformation]
        for stream in streams:
            if not isinstance(stream, DataStream):
                raise InvalidJobError(f"union() takes streams, not {stream!r}")
            self._same_environment(stream, "union")
            inputs.append(stream.transformation)
        types = [transformation.output_type for transformation in inputs]
        declared = [type_info for type_info in types if type_info is not None]
        for type_info in declared[1:]:
            if type_info != declared[0]:
                raise InvalidJobError(
                    "could not union streams of different types",
                    why=f"one has the declared type {declared[0]}, another {type_info}",
                    do="map() them to one type",
                )
        if not streams:
            return self
        output_type = declared[0] if len(declared) == len(types) else None
        return DataStream(
            self.environment, UnionTransformation("Union", output_type, union_inputs=tuple(inputs))
        )

    def connect(
        self, ds: "Union[DataStream, BroadcastStream]"
    ) -> "Union[ConnectedStreams, BroadcastConnectedStream]":
        """Two streams, of any types, into one operator."""
        from flinkish.datastream.broadcast_stream import BroadcastConnectedStream, BroadcastStream
        from flinkish.datastream.connected_streams import ConnectedStreams

        if isinstance(ds, BroadcastStream):
            self._same_environment(ds.input_stream, "connect")
            return BroadcastConnectedStream(self, ds, ds.broadcast_state_descriptors)
        return ConnectedStreams(self, self._other(ds, "connect"))

    def join(self, other_stream: "DataStream") -> "JoinedStreams":
        """Pairs of records with equal keys in one window."""
        from flinkish.datastream.joined_streams import JoinedStreams

        return JoinedStreams(self, self._other(other_stream, "join"))

    def co_group(self, other_stream: "DataStream") -> "CoGroupedStreams":
        """The records of both streams with equal keys in one window."""
        from flinkish.datastream.co_grouped_streams import CoGroupedStreams

        return CoGroupedStreams(self, self._other(other_stream, "co_group"))

    def full_window_partition(self) -> "PartitionWindowedStream":
        """What each subtask gets as one window, which fires when the input has ended."""
        from flinkish.datastream.partition_windowed_stream import NonKeyedPartitionWindowedStream

        return NonKeyedPartitionWindowedStream(self)

    def _other(self, stream: "DataStream", what: str) -> "DataStream":
        if not isinstance(stream, DataStream):
            raise InvalidJobError(f"{what}() takes a stream, not {stream!r}")
        self._same_environment(stream, what)
        return stream

    def _same_environment(self, other: "DataStream", what: str) -> None:
        if other.environment is not self.environment:
            raise InvalidJobError(
                f"{what}() cannot take a stream of another environment",
                do="make both streams with one StreamExecutionEnvironment",
            )

    def get_side_output(self, output_tag: OutputTag) -> "DataStream":
        """The records that the operator before yielded with ``output_tag``."""
        if not isinstance(output_tag, OutputTag):
            raise InvalidJobError(f"get_side_output() takes an OutputTag, not {output_tag!r}")
        operator = self._operator("a side output")
        return DataStream(
            self.environment,
            SideOutputTransformation(
                f"Side Output {output_tag.tag_id}",
                check_type(output_tag.type_info, repr(output_tag)),
                input=operator,
                output_tag=output_tag,
            ),
        )

    # ---- partitions -----------------------------------------------------------------------------

    def _partition(self, partitioner: StreamPartitioner) -> "DataStream":
        return DataStream(
            self.environment,
            PartitionTransformation(
                f"Partition {partitioner.name}",
                self.transformation.output_type,
                input=self.transformation,
                partitioner=partitioner,
            ),
        )

    def shuffle(self) -> "DataStream":
        """A random subtask for each record."""
        return self._partition(ShufflePartitioner())

    def rebalance(self) -> "DataStream":
        """All subtasks in turn."""
        return self._partition(RebalancePartitioner())

    def rescale(self) -> "DataStream":
        """The neighbouring subtasks in turn."""
        return self._partition(RescalePartitioner())

    def forward(self) -> "DataStream":
        """The subtask of the same number; both operators need the same parallelism."""
        return self._partition(ForwardPartitioner())

    def global_(self) -> "DataStream":
        """The first subtask."""
        return self._partition(GlobalPartitioner())

    def broadcast(self, *broadcast_state_descriptors: Any) -> "Union[DataStream, BroadcastStream]":
        """Every record to all subtasks; with descriptors, to be connected as broadcast state."""
        stream = self._partition(BroadcastPartitioner())
        if not broadcast_state_descriptors:
            return stream
        from flinkish.datastream.broadcast_stream import BroadcastStream

        return BroadcastStream(stream, *broadcast_state_descriptors)

    def partition_custom(self, partitioner: Any, key_selector: Any) -> "DataStream":
        """The subtask that ``partitioner(key, number of subtasks)`` names."""
        selector, _, _ = key_selector_of(
            key_selector, None, self.transformation.output_type, "partition_custom"
        )
        return self._partition(CustomPartitioner(partitioner_of(partitioner), selector))

    def window_all(self, window_assigner: Any) -> "AllWindowedStream":
        """Windows over the whole stream."""
        from flinkish.datastream.windowed_stream import AllWindowedStream

        return AllWindowedStream(self, window_assigner)

    def count_window_all(self, size: int, slide: int = 0) -> "AllWindowedStream":
        from flinkish.datastream.windowed_stream import AllWindowedStream, count_assigner

        return AllWindowedStream(self, count_assigner(size, slide))

    # ---- results --------------------------------------------------------------------------------

    def _sink(self, name: str, sink: Any) -> "DataStreamSink":
        fixed = getattr(sink, "fixed_parallelism", None)
        transformation = SinkTransformation(
            name,
            parallelism=fixed,
            max_parallelism=fixed,
            operator=SinkOperator(sink),
            key_selectors=self._key_selectors(sink),
            key_type=self._key_type(),
            input=self.transformation,
        )
        self.environment.add_operator(transformation)
        return DataStreamSink(self.environment, transformation)

    def add_sink(self, sink_func: Any) -> "DataStreamSink":
        """A SinkFunction, or a callable of ``(value)``."""
        from flinkish.connectors.spi import Sink

        if isinstance(sink_func, Sink):
            return self.sink_to(sink_func)
        sink_func = check_function(sink_func, SinkFunction, "add_sink")
        if not isinstance(sink_func, SinkFunction):
            sink_func = CallableSinkFunction(sink_func)
        return self._sink("Unnamed", sink_func)

    def sink_to(self, sink: Any) -> "DataStreamSink":
        """A ``flinkish.connectors.spi.Sink``."""
        from flinkish.connectors.spi import Sink

        if not isinstance(sink, Sink):
            raise InvalidJobError(
                f"sink_to() takes a Sink, not a {type(sink).__name__}",
                do="use add_sink() for a SinkFunction or a callable",
            )
        record_type = self.transformation.output_type
        if record_type is not None:
            sink = sink.with_record_type(record_type)
        return self._sink(type(sink).__name__, sink)

    def print(self, sink_identifier: Optional[str] = None) -> "DataStreamSink":
        """Print each record on the driver's standard output."""
        from flinkish.connectors.print_sink import PrintSink

        if sink_identifier is not None:
            check_argument(sink_identifier, str, "print()", "sink_identifier")
        return self.sink_to(PrintSink(sink_identifier or "")).name("Print to Std. Out")

    def execute_and_collect(
        self, job_execution_name: Optional[str] = None, limit: Optional[int] = None
    ) -> "Union[CloseableIterator, list]":
        """Run the job and read this stream in the driver.

        Args:
            limit: return a list of at most that many records, and cancel what is left of the job.
        Returns:
            a list with ``limit``, else an iterator over the records while the job runs; close it
            (``with``), which cancels a job that still runs.  With checkpoints records come with each complete one.
        """
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 0):
            raise InvalidJobError(f"the limit must be an int of at least 0, not {limit!r}")
        if job_execution_name is not None:
            call, do = "execute_and_collect()", "give a text, or limit=... for so many records"
            check_argument(job_execution_name, str, call, "job_execution_name", do)
        records = self.collect_async()
        self.environment.execute_async(job_execution_name or "DataStream Collect")
        if limit is None:
            return records
        with records:
            return list(itertools.islice(records, limit))

    def collect_async(self) -> "CloseableIterator":
        """The records of this stream, in the driver, of the next job of the environment: start it with
        ``execute_async()``, then iterate.  (``execute()`` would wait for its end, and a job whose records nobody reads
        stops after some thousands.)

        >>> squares = env.from_sequence(1, 10).map(lambda n: n * n).collect_async()
        >>> client = env.execute_async()
        >>> list(squares)
        """
        from flinkish.datastream.closeable_iterator import CloseableIterator

        results = collect_sink_of(self, "Data stream collect sink")
        records: CloseableIterator = CloseableIterator(results)

        def begin(job_client: Any) -> None:
            records.attach(job_client)

            def end_with(job: Any) -> None:  # a job that fails early never gets to closing its sinks
                if job.exception() is not None:
                    results.fail(job.exception())

            job_client.get_job_execution_result().add_done_callback(end_with)

        self.environment.before_job(begin)
        return records

    def cache(self) -> "CachedDataStream":
        """This stream, its records kept in the driver for the jobs after the next one."""
        from flinkish.datastream.cached_data_stream import CachedDataStream

        return self.environment.add_cache(CachedDataStream(self))


def collect_sink_of(stream: DataStream, name: str) -> Any:
    """Add a sink that brings the records to the driver; its ``CollectResults``."""
    from flinkish.connectors.collect_sink import CheckpointedCollectSink, CollectSink

    checkpoints = stream.environment.get_checkpoint_config()
    exactly_once = checkpoints.get_checkpointing_mode() is CheckpointingMode.EXACTLY_ONCE
    by_checkpoints = checkpoints.is_checkpointing_enabled() and exactly_once
    sink: CollectSink = CheckpointedCollectSink() if by_checkpoints else CollectSink()
    collected = stream.sink_to(sink).name(name)
    parallelism = _common_parallelism(stream.transformation)
    if parallelism is not None:  # the records of one subtask stay in order
        collected.set_parallelism(parallelism)
    return sink.results()


class DataStreamSink(_OperatorSettings):
    """The end of a stream."""

    def __init__(self, environment: "StreamExecutionEnvironment", transformation: SinkTransformation):
        self.environment = environment
        self.transformation = transformation

    def get_transformation(self) -> SinkTransformation:
        return self.transformation  # type: ignore[return-value]


def _common_parallelism(transformation: Transformation) -> Optional[int]:
    """Parallelism of the operators that give a stream its records: 1 where they differ, None where all
    have the job's default."""
    if isinstance(transformation, PhysicalTransformation):
        return transformation.parallelism
    found = {_common_parallelism(parent) for parent in transformation.inputs}
    return found.pop() if len(found) == 1 else 1


def check_watermark_strategy(
    watermark_strategy: Any, record_type: Optional[TypeInformation]
) -> WatermarkStrategy:
    """A strategy; the field of its timestamps must be in the declared type."""
    if not isinstance(watermark_strategy, WatermarkStrategy):
        raise InvalidJobError(
            f"{watermark_strategy!r} is not a WatermarkStrategy",
            do="use WatermarkStrategy.for_bounded_out_of_orderness(...) or .no_watermarks()",
        )
    if watermark_strategy.timestamp_field is not None:
        declared_field_type(record_type, watermark_strategy.timestamp_field, "the timestamp assigner")
    return watermark_strategy
