"""The function classes that users derive from.

Wherever one of these is taken, a plain callable is too (a lambda, a def, a generator function for
``flat_map``).  The classes add `open` and `close`, state and timers.  All methods of one function
run on one thread; the runtime opens it before the first record and always closes it.

Functions with several results (flat_map, process, on_timer) return any iterable, yield, or return
None.  ``yield tag, value`` with an ``OutputTag`` first sends the value to that side output.
"""

from __future__ import annotations

import abc
from enum import Enum
from typing import Any, Callable, Generic, Iterable, Mapping, Optional, TypeVar, Union

from flinkish.common.accumulators import Accumulator, DoubleCounter, Histogram, IntCounter, LongCounter
from flinkish.common.arguments import check_argument
from flinkish.common._lazy import lazy_exports
from flinkish.datastream.state import (
    AggregatingState,
    AggregatingStateDescriptor,
    BroadcastState,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    OperatorStateStore,
    ReadOnlyBroadcastState,
    ReducingState,
    ReducingStateDescriptor,
    State,
    StateDescriptor,
    ValueState,
    ValueStateDescriptor,
)
from flinkish.datastream.time_domain import TimeDomain
from flinkish.datastream.timerservice import TimerService
from flinkish.errors import UserError

W = TypeVar("W")
W2 = TypeVar("W2")
IN = TypeVar("IN")
IN1 = TypeVar("IN1")
IN2 = TypeVar("IN2")
OUT = TypeVar("OUT")
KEY = TypeVar("KEY")

__all__ = [
    "AggregateFunction",
    "AllWindowFunction",
    "AsyncFunction",
    "AsyncFunctionDescriptor",
    "AsyncRetryPredicate",
    "AsyncRetryStrategy",
    "BaseBroadcastProcessFunction",
    "BroadcastProcessFunction",
    "CheckpointListener",
    "CheckpointedFunction",
    "CoFlatMapFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "FilterFunction",
    "FlatMapFunction",
    "Function",
    "FunctionInitializationContext",
    "FunctionSnapshotContext",
    "FunctionWrapper",
    "KeySelector",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStateFunction",
    "KeyedStateStore",
    "MapFunction",
    "NullByteKeySelector",
    "ParallelSourceFunction",
    "Partitioner",
    "ProcessAllWindowFunction",
    "ProcessFunction",
    "ProcessWindowFunction",
    "ReduceFunction",
    "ReduceFunctionWrapper",
    "RuntimeContext",
    "SinkFunction",
    "SourceFunction",
    "WindowFunction",
]


# ---- what functions can ask ---------------------------------------------------------------------


class KeyedStateStore(abc.ABC):
    """State of the current key.  Asking again with an equal descriptor returns the same state."""

    @abc.abstractmethod
    def get_state(self, state_descriptor: ValueStateDescriptor) -> ValueState: ...

    @abc.abstractmethod
    def get_list_state(self, state_descriptor: ListStateDescriptor) -> ListState: ...

    @abc.abstractmethod
    def get_map_state(self, state_descriptor: MapStateDescriptor) -> MapState: ...

    @abc.abstractmethod
    def get_reducing_state(self, state_descriptor: ReducingStateDescriptor) -> ReducingState: ...

    @abc.abstractmethod
    def get_aggregating_state(self, state_descriptor: AggregatingStateDescriptor) -> AggregatingState: ...


class RuntimeContext(KeyedStateStore):
    """What a function can know of the subtask that runs it; handed to `Function.open`."""

    @abc.abstractmethod
    def get_task_name(self) -> str: ...

    @abc.abstractmethod
    def get_number_of_parallel_subtasks(self) -> int: ...

    @abc.abstractmethod
    def get_max_number_of_parallel_subtasks(self) -> int: ...

    @abc.abstractmethod
    def get_index_of_this_subtask(self) -> int:
        """From 0."""

    @abc.abstractmethod
    def get_attempt_number(self) -> int:
        """0 in the first run, one more after each restart."""

    @abc.abstractmethod
    def get_task_name_with_subtasks(self) -> str:
        """``name (index + 1/parallelism)``."""

    @abc.abstractmethod
    def get_job_parameter(self, key: str, default_value: Optional[str] = None) -> Optional[str]: ...

    @abc.abstractmethod
    def get_metrics_group(self) -> Any:
        """The operator's ``flinkish.metrics.MetricGroup``."""

    @abc.abstractmethod
    def _accumulators(self) -> dict[str, Accumulator]:
        """Of the subtask, by name; see ``flinkish.common.accumulators``."""

    def add_accumulator(self, name: str, accumulator: Accumulator) -> None:
        """Raises: UserError: the subtask has one of that name; it may be another operator's of the chain."""
        check_argument(accumulator, Accumulator, "add_accumulator()", "accumulator")
        known = self._accumulators()
        if check_argument(name, str, "add_accumulator()", "name") in known:
            raise UserError(
                f'could not add the accumulator "{name}"', why=f"there is a {type(known[name]).__name__} of that name"
            )
        known[name] = accumulator

    def get_accumulator(self, name: str) -> Optional[Accumulator]:
        """None when there is none of that name."""
        return self._accumulators().get(name)

    def _counter(self, name: str, kind: type) -> Any:
        accumulator = self._accumulators().setdefault(name, kind())
        if type(accumulator) is not kind:
            raise UserError(
                f'could not get the {kind.__name__} "{name}"',
                why=f"there is a {type(accumulator).__name__} of that name",
                do="choose another name",
            )
        return accumulator

    def get_int_counter(self, name: str) -> IntCounter:
        """The accumulator of that name; made when there is none."""
        return self._counter(name, IntCounter)

    def get_long_counter(self, name: str) -> LongCounter:
        return self._counter(name, LongCounter)

    def get_double_counter(self, name: str) -> DoubleCounter:
        return self._counter(name, DoubleCounter)

    def get_histogram(self, name: str) -> Histogram:
        return self._counter(name, Histogram)


class Function(abc.ABC):
    """Base of all user functions."""

    def open(self, runtime_context: RuntimeContext) -> None:
        """Called once before the first record: get state and connections here."""

    def close(self) -> None:
        """Called once at the end, also after a failure."""


# ---- checkpoints --------------------------------------------------------------------------------


class FunctionSnapshotContext(abc.ABC):
    @abc.abstractmethod
    def get_checkpoint_id(self) -> int: ...

    @abc.abstractmethod
    def get_checkpoint_timestamp(self) -> int:
        """When the JobManager began the checkpoint, ms since the epoch."""


class FunctionInitializationContext(abc.ABC):
    @abc.abstractmethod
    def is_restored(self) -> bool:
        """Whether the job goes on from a checkpoint or savepoint."""

    @abc.abstractmethod
    def get_restored_checkpoint_id(self) -> Optional[int]: ...

    @abc.abstractmethod
    def get_operator_state_store(self) -> OperatorStateStore: ...

    @abc.abstractmethod
    def get_keyed_state_store(self) -> KeyedStateStore:
        """Of an operator on a keyed stream; others have none, and say so when state is asked for."""


class CheckpointedFunction(abc.ABC):
    """Beside a function class: state of the subtask, without a key.  (Flink has it for Java; the names are
    its names.)

    >>> class Numbering(MapFunction, CheckpointedFunction): ...
    """

    @abc.abstractmethod
    def snapshot_state(self, context: FunctionSnapshotContext) -> None:
        """Put what must be kept into the states that `initialize_state` got.  Called at each barrier, between
        two records, on the slot's thread; what it raises fails the task."""

    @abc.abstractmethod
    def initialize_state(self, context: FunctionInitializationContext) -> None:
        """Called once, before `Function.open`: get states, and take over what was restored in them."""


class CheckpointListener(abc.ABC):
    """Beside a function class, a reader or a sink writer: told what became of a checkpoint.  A notice may
    be lost (the task failed before), so the next one must do for those before it."""

    @abc.abstractmethod
    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """It is durable.  Called on the slot's thread between two records; what it raises fails the task."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """It was given up."""


# ---- one record ---------------------------------------------------------------------------------


class MapFunction(Function):
    @abc.abstractmethod
    def map(self, value: Any) -> Any:
        """One result for each record."""


class FlatMapFunction(Function):
    @abc.abstractmethod
    def flat_map(self, value: Any) -> Optional[Iterable[Any]]:
        """Any number of results."""


class FilterFunction(Function):
    @abc.abstractmethod
    def filter(self, value: Any) -> bool:
        """True keeps the record."""


class CoMapFunction(Function):
    @abc.abstractmethod
    def map1(self, value: Any) -> Any: ...

    @abc.abstractmethod
    def map2(self, value: Any) -> Any: ...


class CoFlatMapFunction(Function):
    @abc.abstractmethod
    def flat_map1(self, value: Any) -> Optional[Iterable[Any]]: ...

    @abc.abstractmethod
    def flat_map2(self, value: Any) -> Optional[Iterable[Any]]: ...


class ReduceFunction(Function):
    @abc.abstractmethod
    def reduce(self, value1: Any, value2: Any) -> Any:
        """Combine the result so far with the next record; of the records' type."""


class AggregateFunction(Function):
    """Adds records to an accumulator of its own type."""

    @abc.abstractmethod
    def create_accumulator(self) -> Any: ...

    @abc.abstractmethod
    def add(self, value: Any, accumulator: Any) -> Any:
        """The accumulator with ``value`` in it; may be the same object, changed."""

    @abc.abstractmethod
    def get_result(self, accumulator: Any) -> Any: ...

    @abc.abstractmethod
    def merge(self, acc_a: Any, acc_b: Any) -> Any:
        """Needed where windows merge."""


# ---- keys and partitions ------------------------------------------------------------------------


class KeySelector(Function):
    @abc.abstractmethod
    def get_key(self, value: Any) -> Any:
        """The key of a record; the same each time it is asked."""


class NullByteKeySelector(KeySelector):
    """Gives every record the same key."""

    def get_key(self, value: Any) -> int:
        return 0


class Partitioner(Function):
    @abc.abstractmethod
    def partition(self, key: Any, num_partitions: int) -> int:
        """The consumer of ``key``, from 0 to ``num_partitions - 1``."""


# ---- wrappers of plain callables ----------------------------------------------------------------


class FunctionWrapper(Function):
    """A plain callable as a Function."""

    def __init__(self, func: Any):
        self._func = func


class ReduceFunctionWrapper(FunctionWrapper, ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return self._func(value1, value2)


# ---- sources and sinks of the older kind --------------------------------------------------------


class SourceContext(abc.ABC, Generic[OUT]):
    """Where a SourceFunction puts its records."""

    @abc.abstractmethod
    def collect(self, value: OUT) -> None: ...

    @abc.abstractmethod
    def collect_with_timestamp(self, value: OUT, timestamp: int) -> None: ...

    @abc.abstractmethod
    def emit_watermark(self, timestamp: int) -> None: ...

    @abc.abstractmethod
    def mark_as_temporarily_idle(self) -> None: ...

    @abc.abstractmethod
    def get_checkpoint_lock(self) -> Any:
        """Hold it (``with``) while records are emitted and the state that says where you are changes."""


class SourceFunction(Function, Generic[OUT]):
    """A source as one method; new sources are better written with ``flinkish.connectors.spi``.

    If `run` is a generator function, each value that it yields is a record and it is resumed when
    there is room; it must not block.  Otherwise it runs in a thread of its own, may block, and
    hands records to ``ctx``, which blocks while downstream has no room.  Runs with parallelism 1.
    """

    @abc.abstractmethod
    def run(self, ctx: SourceContext[OUT]) -> Optional[Iterable[OUT]]:
        """Produce records until there are no more or `cancel` was called."""

    @abc.abstractmethod
    def cancel(self) -> None:
        """Make `run` return soon.  Called from another thread."""


class ParallelSourceFunction(SourceFunction[OUT]):
    """A SourceFunction that each subtask runs; `open` tells it which one it is."""


class SinkContext(abc.ABC):
    """What a SinkFunction can know of the record that it is given."""

    @abc.abstractmethod
    def current_processing_time(self) -> int: ...

    @abc.abstractmethod
    def current_watermark(self) -> int: ...

    @abc.abstractmethod
    def timestamp(self) -> Optional[int]: ...


class SinkFunction(Function, Generic[IN]):
    """A sink as one method."""

    Context = SinkContext

    @abc.abstractmethod
    def invoke(self, value: IN, context: SinkContext) -> None:
        """Write one record."""


# ---- process functions --------------------------------------------------------------------------


class _TimeContext(abc.ABC):
    @abc.abstractmethod
    def timer_service(self) -> TimerService: ...

    @abc.abstractmethod
    def timestamp(self) -> Optional[int]:
        """Event time of the record, or of the timer; None when there is none."""


class _KeyContext(_TimeContext):
    @abc.abstractmethod
    def get_current_key(self) -> Any: ...


class ProcessFunction(Function):
    """Full access to the record's time and side outputs, without a key."""

    class Context(_TimeContext):
        pass

    @abc.abstractmethod
    def process_element(self, value: Any, ctx: "ProcessFunction.Context") -> Optional[Iterable[Any]]: ...


class KeyedProcessFunction(Function):
    """State and timers of the record's key."""

    class Context(_KeyContext):
        pass

    class OnTimerContext(Context):
        @abc.abstractmethod
        def time_domain(self) -> TimeDomain: ...

    @abc.abstractmethod
    def process_element(self, value: Any, ctx: "KeyedProcessFunction.Context") -> Optional[Iterable[Any]]: ...

    def on_timer(self, timestamp: int, ctx: "KeyedProcessFunction.OnTimerContext") -> Optional[Iterable[Any]]:
        """A timer has fired; the context has the key that it was registered with."""
        return None


class CoProcessFunction(Function):
    class Context(_TimeContext):
        pass

    @abc.abstractmethod
    def process_element1(self, value: Any, ctx: "CoProcessFunction.Context") -> Optional[Iterable[Any]]: ...

    @abc.abstractmethod
    def process_element2(self, value: Any, ctx: "CoProcessFunction.Context") -> Optional[Iterable[Any]]: ...


class KeyedCoProcessFunction(Function):
    """Two keyed inputs that share state and timers."""

    class Context(_KeyContext):
        pass

    class OnTimerContext(Context):
        @abc.abstractmethod
        def time_domain(self) -> TimeDomain: ...

    @abc.abstractmethod
    def process_element1(
        self, value: Any, ctx: "KeyedCoProcessFunction.Context"
    ) -> Optional[Iterable[Any]]: ...

    @abc.abstractmethod
    def process_element2(
        self, value: Any, ctx: "KeyedCoProcessFunction.Context"
    ) -> Optional[Iterable[Any]]: ...

    def on_timer(
        self, timestamp: int, ctx: "KeyedCoProcessFunction.OnTimerContext"
    ) -> Optional[Iterable[Any]]:
        return None


# ---- windows ------------------------------------------------------------------------------------


class WindowFunction(Function, Generic[IN, OUT, KEY, W]):
    @abc.abstractmethod
    def apply(self, key: KEY, window: W, inputs: Iterable[IN]) -> Optional[Iterable[OUT]]:
        """Results of one window of one key, when it fires."""


class AllWindowFunction(Function, Generic[IN, OUT, W]):
    @abc.abstractmethod
    def apply(self, window: W, inputs: Iterable[IN]) -> Optional[Iterable[OUT]]: ...


class ProcessWindowFunction(Function, Generic[IN, OUT, KEY, W]):
    class Context(abc.ABC, Generic[W2]):
        @abc.abstractmethod
        def window(self) -> W2: ...

        @abc.abstractmethod
        def current_processing_time(self) -> int: ...

        @abc.abstractmethod
        def current_watermark(self) -> int: ...

        @abc.abstractmethod
        def window_state(self) -> KeyedStateStore:
            """State of this key and window; clear it in `ProcessWindowFunction.clear`."""

        @abc.abstractmethod
        def global_state(self) -> KeyedStateStore:
            """State of this key, shared by its windows."""

    @abc.abstractmethod
    def process(
        self, key: KEY, context: "ProcessWindowFunction.Context", elements: Iterable[IN]
    ) -> Optional[Iterable[OUT]]: ...

    def clear(self, context: "ProcessWindowFunction.Context") -> None:
        """The window is being dropped."""


class ProcessAllWindowFunction(Function, Generic[IN, OUT, W]):
    class Context(abc.ABC, Generic[W2]):
        @abc.abstractmethod
        def window(self) -> W2: ...

        @abc.abstractmethod
        def window_state(self) -> KeyedStateStore: ...

        @abc.abstractmethod
        def global_state(self) -> KeyedStateStore: ...

    @abc.abstractmethod
    def process(
        self, context: "ProcessAllWindowFunction.Context", elements: Iterable[IN]
    ) -> Optional[Iterable[OUT]]: ...

    def clear(self, context: "ProcessAllWindowFunction.Context") -> None: ...


# ---- broadcast state ----------------------------------------------------------------------------


class BaseBroadcastProcessFunction(Function):
    class BaseContext(abc.ABC):
        @abc.abstractmethod
        def timestamp(self) -> Optional[int]: ...

        @abc.abstractmethod
        def current_processing_time(self) -> int: ...

        @abc.abstractmethod
        def current_watermark(self) -> int: ...

    class Context(BaseContext):
        @abc.abstractmethod
        def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> BroadcastState: ...

    class ReadOnlyContext(BaseContext):
        @abc.abstractmethod
        def get_broadcast_state(self, state_descriptor: MapStateDescriptor) -> ReadOnlyBroadcastState: ...


class BroadcastProcessFunction(BaseBroadcastProcessFunction, Generic[IN1, IN2, OUT]):
    class Context(BaseBroadcastProcessFunction.Context):
        pass

    class ReadOnlyContext(BaseBroadcastProcessFunction.ReadOnlyContext):
        pass

    @abc.abstractmethod
    def process_element(
        self, value: IN1, ctx: "BroadcastProcessFunction.ReadOnlyContext"
    ) -> Optional[Iterable[OUT]]: ...

    @abc.abstractmethod
    def process_broadcast_element(
        self, value: IN2, ctx: "BroadcastProcessFunction.Context"
    ) -> Optional[Iterable[OUT]]: ...


class KeyedStateFunction(abc.ABC):
    """What `KeyedBroadcastProcessFunction.Context.apply_to_keyed_state` does with the state of each key.  (Flink has it
    for Java; a plain callable does too.)"""

    @abc.abstractmethod
    def process(self, key: Any, state: State) -> None:
        """``state`` is that of ``key``, which may be read, changed and cleared."""


class KeyedBroadcastProcessFunction(BaseBroadcastProcessFunction, Generic[KEY, IN1, IN2, OUT]):
    class Context(BaseBroadcastProcessFunction.Context):
        @abc.abstractmethod
        def apply_to_keyed_state(
            self, state_descriptor: StateDescriptor, function: Union[KeyedStateFunction, Callable[[Any, Any], None]]
        ) -> None:
            """Call ``function(key, state)`` for each key of this subtask that has something in that keyed state, in no
            particular order.  For maintenance: it reads all of it while everything else waits."""

    class ReadOnlyContext(BaseBroadcastProcessFunction.ReadOnlyContext):
        @abc.abstractmethod
        def timer_service(self) -> TimerService: ...

        @abc.abstractmethod
        def get_current_key(self) -> Any: ...

    class OnTimerContext(ReadOnlyContext):
        @abc.abstractmethod
        def time_domain(self) -> TimeDomain: ...

    @abc.abstractmethod
    def process_element(
        self, value: IN1, ctx: "KeyedBroadcastProcessFunction.ReadOnlyContext"
    ) -> Optional[Iterable[OUT]]: ...

    @abc.abstractmethod
    def process_broadcast_element(
        self, value: IN2, ctx: "KeyedBroadcastProcessFunction.Context"
    ) -> Optional[Iterable[OUT]]: ...

    def on_timer(
        self, timestamp: int, ctx: "KeyedBroadcastProcessFunction.OnTimerContext"
    ) -> Optional[Iterable[OUT]]:
        return None


# ---- asynchronous I/O ---------------------------------------------------------------------------


class AsyncRetryPredicate(abc.ABC):
    """When a call is worth another try; a method that returns None asks for none."""

    @abc.abstractmethod
    def result_predicate(self) -> Optional[Callable[[Any], bool]]: ...

    @abc.abstractmethod
    def exception_predicate(self) -> Optional[Callable[[BaseException], bool]]: ...


class AsyncRetryStrategy(abc.ABC):
    @abc.abstractmethod
    def can_retry(self, current_attempts: int) -> bool: ...

    @abc.abstractmethod
    def get_backoff_time_millis(self, current_attempts: int) -> int: ...

    @abc.abstractmethod
    def get_retry_predicate(self) -> AsyncRetryPredicate: ...

    @staticmethod
    def no_restart() -> "AsyncRetryStrategy":
        from flinkish.datastream.async_retry_strategies import NoRetryStrategy

        return NoRetryStrategy()

    @staticmethod
    def fixed_delay(
        max_attempts: int,
        backoff_time_millis: int,
        result_predicate: Optional[Callable[[Any], bool]] = None,
        exception_predicate: Optional[Callable[[BaseException], bool]] = None,
    ) -> "AsyncRetryStrategy":
        from flinkish.datastream.async_retry_strategies import FixedDelayRetryStrategy

        return FixedDelayRetryStrategy(
            max_attempts, backoff_time_millis, result_predicate, exception_predicate
        )

    @staticmethod
    def exponential_backoff(
        max_attempts: int,
        initial_delay: int,
        max_retry_delay: int,
        multiplier: float,
        result_predicate: Optional[Callable[[Any], bool]] = None,
        exception_predicate: Optional[Callable[[BaseException], bool]] = None,
    ) -> "AsyncRetryStrategy":
        from flinkish.datastream.async_retry_strategies import ExponentialBackoffDelayRetryStrategy

        return ExponentialBackoffDelayRetryStrategy(
            max_attempts, initial_delay, max_retry_delay, multiplier, result_predicate, exception_predicate
        )


class AsyncFunction(Function, Generic[IN, OUT]):
    @abc.abstractmethod
    async def async_invoke(self, value: IN) -> list[OUT]: ...

    def timeout(self, value: IN) -> list[OUT]:
        """Results in place of a call that took too long; by default the job fails."""
        raise TimeoutError(f"async_invoke took too long on {value!r}")


class AsyncFunctionDescriptor:
    """How an AsyncFunction is to be run."""

    class OutputMode(Enum):
        ORDERED = 0
        UNORDERED = 1

    def __init__(
        self,
        async_function: AsyncFunction,
        timeout: Any,
        capacity: int,
        async_retry_strategy: AsyncRetryStrategy,
        output_mode: "AsyncFunctionDescriptor.OutputMode",
    ):
        self.async_function = async_function
        self.timeout = timeout
        self.capacity = capacity
        self.async_retry_strategy = async_retry_strategy
        self.output_mode = output_mode


JobParameters = Mapping[str, str]
FunctionLike = Union[Function, Callable[..., Any]]

#: Those of joins can be imported from here too.
_, __getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "flinkish.datastream.join_functions": [
            "CoGroupFunction",
            "FlatJoinFunction",
            "JoinFunction",
            "MapPartitionFunction",
            "ProcessJoinFunction",
        ]
    },
)
