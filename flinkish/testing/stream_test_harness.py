"""StreamTestHarness: a piece of pipeline, run deterministically in the process of a test.

The piece goes the whole way of a job (stream graph, job graph, chains, channels) and runs through
the same operators and generated loops as in a slot; only the sockets, Spark and the clock are left
out.  Time stands still until the test moves it.

    def per_key(stream):
        return stream.key_by(lambda r: r[0]).process(RunningSum())

    with StreamTestHarness(per_key) as harness:
        harness.process_element(("a", 1), timestamp=10)
        harness.process_watermark(20)
        assert harness.output == [StreamRecord(("a", 1), 10), Watermark(20)]

A snapshot is a savepoint, in the format of a job's; it can be restored with another parallelism, and with
changed code:

        snapshot = harness.snapshot()
    with StreamTestHarness.restore(per_key, snapshot, parallelism=3) as harness:
        harness.process_element(("a", 1), timestamp=30)

`StreamTestHarness.end_input` ends the inputs; with ``execution.runtime-mode: BATCH`` in its configuration that is when
results come, and there are no snapshots.

With ``execution.checkpointing.dir`` in its configuration, `StreamTestHarness.checkpoint` takes one in files instead,
which refers to earlier ones where the state backend does so (rocksdb, or a changelog).
"""

from __future__ import annotations

import inspect
import io
import itertools
import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Any, Callable, Mapping, Optional, Sequence, Union

import cloudpickle

from flinkish.common import options as config
from flinkish.common.configuration import Configuration
from flinkish.common.options import CHECKPOINT_DIRECTORY, CHECKPOINTING_INTERVAL, EXECUTION_RUNTIME_MODE
from flinkish.common.time import TimeLike, to_milliseconds
from flinkish.common.watermark_strategy import WatermarkStrategy
from flinkish.connectors.spi import (
    Boundedness,
    InputStatus,
    Sink,
    SinkWriter,
    Source,
    SourceReader,
    SourceSplit,
    SplitEnumerator,
)
from flinkish.datastream.data_stream import DataStream
from flinkish.datastream.output_tag import OutputTag
from flinkish.datastream.stream_execution_environment import StreamExecutionEnvironment
from flinkish.datastream.transformations import SourceOperator
from flinkish.errors import InvalidJobError
from flinkish.graph.execution_graph import build_deployments, pickle_chains
from flinkish.graph.job_graph_generator import create_job_graph
from flinkish.jobmanager.checkpoint_plan import checkpointed_vertices, subtasks_to_trigger
from flinkish.jobmanager.pending_checkpoint import PendingCheckpoint
from flinkish.jobmanager.restore_decision import adopt_max_parallelism, deal_out_checkpoint, decide_restore
from flinkish.messages.checkpoints import (
    JOB_MANAGER_STORAGE,
    AcknowledgeCheckpoint,
    CheckpointComplete,
    CheckpointOptions,
    CompletedCheckpoint,
    DeclineCheckpoint,
    InFlightPart,
    InlineBytes,
    KeyedStateHandle,
    SnapshotKind,
    TriggerCheckpoint,
)
from flinkish.messages.control import DeployTasks, OperatorEvent, SourceAddSplits
from flinkish.messages.deployment import ExecutionAttemptID
from flinkish.messages.elements import Watermark, WatermarkStatus
from flinkish.operators.chain import OperatorChain
from flinkish.operators.snapshots import TaskSnapshot
from flinkish.shell.event_loop import EventLoop
from flinkish.shell.snapshot_executor import SnapshotExecutor
from flinkish.storage.checkpoint_storage import CheckpointStorage
from flinkish.storage.metadata import decode_metadata, encode_metadata
from flinkish.taskmanager.slot_core import SlotCore
from flinkish.testing.manual_calls import ManualCallRunner
from flinkish.testing.manual_clock import ManualClock, timers_at_their_time

_SLOT = "harness"
_STORED_WITHIN_MS = 60_000
_END = object()  # of an input
_numbers = itertools.count(1)
_harnesses: dict[int, "StreamTestHarness"] = {}  # found again by sources and sinks after pickle


@dataclass(frozen=True)
class StreamRecord:
    """A record of the output; ``timestamp`` in ms, or None when it has none."""

    value: Any
    timestamp: Optional[int] = None


class StreamTestHarness:
    """Runs ``build(stream, ...)`` over what the test feeds in.

    Args:
        build: takes one DataStream per input and returns one, or a list of several.
        state_backend: "hashmap" or "rocksdb".
        parallelism: of the operators that ``build`` makes; inputs and outputs have one subtask.
        inputs: how many streams ``build`` takes; default: its positional parameters.
        configuration: options of the job.
        snapshot: what to go on from, see `restore`.
        allow_non_restored_state: drop what the snapshot has of operators that ``build`` does not make.
    Raises:
        what the job raises: errors of the graph here, ``UserFunctionError`` from the call that
        made user code run.
    """

    def __init__(
        self,
        build: Callable[..., Any],
        state_backend: str = "hashmap",
        parallelism: int = 1,
        *,
        inputs: Optional[int] = None,
        configuration: Union[Configuration, dict, None] = None,
        snapshot: Optional[CompletedCheckpoint] = None,
        allow_non_restored_state: bool = False,
    ):
        self._snapshot = snapshot
        self._allow_non_restored_state = allow_non_restored_state
        self._checkpoint_messages: list[Any] = []
        self._number = next(_numbers)
        self._clock = ManualClock()
        self._calls: list[ManualCallRunner] = []  # of asynchronous functions
        self._error: Optional[BaseException] = None
        self._closed = False
        options = dict(
            configuration.to_dict() if isinstance(configuration, Configuration) else configuration or {}
        )
        options["state.backend.type"] = state_backend
        self._files: Optional[_CheckpointFiles] = None
        if options.get(CHECKPOINT_DIRECTORY.key) is not None:
            options.setdefault(CHECKPOINTING_INTERVAL.key, "1 h")  # a job without one keeps no files to refer to
            self._files = _CheckpointFiles(self, options)
        env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(options))
        env.set_parallelism(parallelism)
        count = inputs if inputs is not None else _positional_parameters(build)
        self._feeds: list[deque] = [deque() for _ in range(count)]
        self._ended: set[int] = set()
        self._wakeups: list[Optional[Callable[[], None]]] = [None] * count
        streams = [
            env.from_source(
                _HarnessSource(self._number, index, options.get(EXECUTION_RUNTIME_MODE.key) == "BATCH"),
                WatermarkStrategy.no_watermarks(),
                f"input {index}",
            )
            for index in range(count)
        ]
        built = build(*streams)
        results = list(built) if isinstance(built, (list, tuple)) else [built]
        for result in results or [None]:
            if not isinstance(result, DataStream):
                raise InvalidJobError(
                    "could not build the pipeline under test",
                    why=f"build returned a {type(result).__name__}, not a stream",
                    do="return the stream to look at, or a list of several, without a sink",
                )
        #: One list per stream that ``build`` returned: StreamRecord and Watermark.
        self.outputs: list[list] = [[] for _ in results]
        self._side_outputs: dict[str, list] = {}
        for index, stream in enumerate(results):
            stream.sink_to(_HarnessSink(self._number, index)).name(f"output {index}")
        _harnesses[self._number] = self
        try:
            self._start(env)
        except BaseException:
            self.close()
            raise

    # ---- snapshots ------------------------------------------------------------------------------

    def snapshot(self) -> CompletedCheckpoint:
        """All state as it is now, as a savepoint in the canonical format; the harness goes on.

        Sinks of ``build`` flush and prepare, listeners hear nothing (a savepoint commits nothing).

        Raises:
            what user code or the state makes the tasks fail with."""
        location = f"{JOB_MANAGER_STORAGE}/harness-{self._number}"
        return self._take(CheckpointOptions(SnapshotKind.SAVEPOINT, location, location))

    def checkpoint(self) -> CompletedCheckpoint:
        """A checkpoint as a job takes them, in files below ``execution.checkpointing.dir``; the harness goes on, and
        listeners hear that it is complete.  One that is restored goes on in its folder.  The files of older ones stay.

        Raises:
            ValueError: the harness has no such folder.
            what user code or the state makes the tasks fail with."""
        if self._files is None:
            raise ValueError(f"checkpoint() needs {CHECKPOINT_DIRECTORY.key} in the configuration of the harness")
        location, shared = self._files.locations(self._job.job_id, self._checkpoint_id + 1)
        completed = self._take(CheckpointOptions(SnapshotKind.CHECKPOINT, location, shared))
        self._core.on_checkpoint_notice(CheckpointComplete(self._job.job_id, completed.checkpoint_id))
        self._run()
        return completed

    def _take(self, options: CheckpointOptions) -> CompletedCheckpoint:
        if self._closed:
            raise ValueError("the harness is closed")
        if self._job.configuration[EXECUTION_RUNTIME_MODE.key] == "BATCH":
            raise ValueError("a batch job has no snapshots")
        if self._ended:
            raise ValueError("an input has ended")
        self._checkpoint_id += 1
        vertices = checkpointed_vertices(self._job)
        now_ms, location = self._clock.now_ms(), options.location
        executions = {
            (execution.vertex_id, execution.subtask_index): execution for execution in self._core.tasks
        }
        pending = PendingCheckpoint(
            self._checkpoint_id, options.kind, location, now_ms, now_ms,
            [executions[subtask] for subtask in subtasks_to_trigger(vertices, executions.keys())],
            set(executions.values()), set(), frozenset(), frozenset(),
        )  # fmt: skip
        for execution in pending.trigger:
            trigger = TriggerCheckpoint(execution, pending.checkpoint_id, now_ms, options)
            self._core.on_trigger_checkpoint(trigger)
        self._run()
        if self._files is not None:
            self._files.wait(lambda: len(self._checkpoint_messages) >= len(pending.waiting))
        messages, self._checkpoint_messages = self._checkpoint_messages, []
        for message in messages:
            if isinstance(message, DeclineCheckpoint):
                raise message.failure.error
            assert isinstance(message, AcknowledgeCheckpoint), message
            pending.states[message.execution] = message.state
        if pending.states.keys() != pending.waiting and any(runner.outstanding for runner in self._calls):
            raise TimeoutError(
                "the barrier of the snapshot waits behind records for which an asynchronous function has no room: let calls "
                "answer first (set_processing_time(), wait_for_async_calls()), or give it more capacity"
            )
        assert pending.states.keys() == pending.waiting, "a subtask has not taken its snapshot"
        completed = CompletedCheckpoint(
            self._job.job_id, self._job.job_name, "harness", pending.checkpoint_id, now_ms, now_ms, options.kind,
            location, pending.operator_snapshots(vertices), flinkish_version="harness",
        )  # fmt: skip
        return decode_metadata(encode_metadata(completed), location)

    @classmethod
    def restore(
        cls,
        build: Callable[..., Any],
        snapshot: CompletedCheckpoint,
        parallelism: int = 1,
        state_backend: str = "hashmap",
        **options: Any,
    ) -> "StreamTestHarness":
        """A harness that goes on from ``snapshot``, at its time.  Inputs tell their watermarks again, as restored
        sources do, so ``output`` may begin with one.

        Args:
            options: as of the class.
        Raises:
            StateMigrationError: ``build`` does not fit to it.
        """
        return cls(build, state_backend, parallelism, snapshot=snapshot, **options)

    # ---- feeding --------------------------------------------------------------------------------

    def process_element(self, value: Any, timestamp: Optional[int] = None, input: int = 0) -> None:
        """Feed one record and run until nothing moves any more."""
        self._feed(input, StreamRecord(value, timestamp))

    def process_elements(self, records: Sequence[tuple[Any, Optional[int]]], input: int = 0) -> None:
        """Feed many (value, timestamp) as one batch, as a busy source would."""
        self._feed(input, *(StreamRecord(value, timestamp) for value, timestamp in records))

    def process_watermark(self, timestamp: int, input: int = 0) -> None:
        """Feed a watermark (ms): event-time timers and windows at or below it fire."""
        self._feed(input, Watermark(timestamp))

    def process_watermark_status(self, idle: bool, input: int = 0) -> None:
        self._feed(input, WatermarkStatus(idle))

    def end_input(self, input: Optional[int] = None) -> None:
        """No more elements of this input, by default of all: event time goes to its end, and where all have ended the
        operators finish."""
        for index in range(len(self._feeds)) if input is None else [input]:
            if index not in self._ended:
                self._feed(index, _END)
                self._ended.add(index)

    def set_processing_time(self, ms: int) -> None:
        """Move the clock to ``ms``, never backwards; timers up to then fire.

        A timer that is registered afterwards for ``ms`` itself waits for the next call, as in Flink's test harness; in a
        slot it fires when its millisecond is over."""
        with timers_at_their_time(self._core.chains()):
            while self._calls:  # coroutines that sleep, timeouts and attempts: each at its own time
                timers = [chain.calls.next_time_ms for chain in self._core.chains()]
                timers += [runner.next_timer_ms for runner in self._calls]
                due = [timer for timer in timers if timer is not None and self._clock.now_ms() < timer < ms]
                if not due:
                    break
                self._clock.set(min(due))
                self._run()
            self._clock.set(ms)
            self._run()

    def wait_for_async_calls(self, timeout: TimeLike = 10_000) -> None:
        """Run until no call of an asynchronous function is outstanding that waits for the world outside of the test: a
        socket, a thread.  The clock stands still.

        Raises:
            TimeoutError: some are outstanding after ``timeout`` (ms, or any length of time)."""
        deadline_s = time.monotonic() + to_milliseconds(timeout) / 1000
        self._run()
        while outstanding := sum(runner.outstanding for runner in self._calls):
            if time.monotonic() >= deadline_s:
                raise TimeoutError(f"{outstanding} calls have not answered")
            for runner in self._calls:
                if runner.outstanding:
                    runner.wait(deadline_s)
                    self._run()

    # ---- looking --------------------------------------------------------------------------------

    @property
    def output(self) -> list:
        """What came out of the (first) stream, in order: StreamRecord and Watermark."""
        return self.outputs[0]

    def side_output(self, tag: OutputTag) -> list[StreamRecord]:
        """Records that any operator has sent to ``tag`` and that ``build`` did not take itself."""
        return self._side_outputs.setdefault(tag.tag_id, [])

    def clear_output(self) -> None:
        for output in (*self.outputs, *self._side_outputs.values()):
            output.clear()

    def num_keyed_state_entries(self) -> int:
        return sum(chain.num_keyed_state_entries() for chain in self._core.chains())

    def num_event_time_timers(self) -> int:
        return sum(chain.num_event_time_timers() for chain in self._core.chains())

    def num_processing_time_timers(self) -> int:
        return sum(chain.num_processing_time_timers() for chain in self._core.chains())

    # ---- life -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the operators; a second call does nothing."""
        if self._closed:
            return
        self._closed = True
        _harnesses.pop(self._number, None)
        core = getattr(self, "_core", None)
        if core is not None:
            core.dispose()
        if self._files is not None:
            self._files.close()

    def __enter__(self) -> "StreamTestHarness":
        return self

    def __exit__(self, *exc) -> None:
        self.close()

    # ---- inside ---------------------------------------------------------------------------------

    def _start(self, env: StreamExecutionEnvironment) -> None:
        graph = env.get_stream_graph("harness", clear_transformations=True)  # its sinks run here: no warning at the end
        snapshot = self._snapshot
        recovers = snapshot is not None and not snapshot.kind.is_savepoint
        job = self._job = create_job_graph(graph, snapshot.job_id if snapshot is not None and recovers else None)
        if snapshot is not None:
            adopt_max_parallelism(job, snapshot)
        self._checkpoint_id = 0
        width = max(vertex.parallelism for vertex in job.vertices)
        groups = len({vertex.slot_sharing_group for vertex in job.vertices})
        deployments = build_deployments(job, 0, [_SLOT] * (width * groups), pickle_chains(job))
        tasks = deployments[_SLOT]
        if snapshot is not None:
            ignores = config.read(job.configuration, config.STATE_RECOVERY_IGNORE_UNCLAIMED)
            refusal = decide_restore(job, snapshot).refusal(ignores or self._allow_non_restored_state)
            if refusal is not None:
                raise refusal
            dealt = deal_out_checkpoint(job, snapshot)
            tasks = tuple(
                replace(task, restore=dealt[task.execution.vertex_id, task.execution.subtask_index])
                for task in tasks
            )
            self._checkpoint_id = snapshot.checkpoint_id
            self._clock.set(snapshot.timestamp_ms)
        self._core = self._create_core()
        self._core.deploy(
            DeployTasks(
                job_id=job.job_id,
                job_name=job.job_name,
                attempt=0,
                tasks=tasks,
                peers={},
                configuration=job.configuration,
                main_classes=b"",
                sys_path=(),
                initial_credits=4,
            )
        )
        self._core.start(attempt=0)
        self._raise()
        for task in tasks:
            vertex = next(v for v in job.vertices if v.id == task.execution.vertex_id)
            head = vertex.chain.operators[0]
            restored = task.restore is not None and head.operator_id in task.restore.operators
            if isinstance(head.operator, SourceOperator) and not restored:
                splits = cloudpickle.dumps([_HarnessSplit()])
                event = OperatorEvent(task.execution, head.operator_id, SourceAddSplits(splits))
                self._core.on_operator_event(event)
        self._run()

    def _create_core(self) -> SlotCore:
        return SlotCore(
            _SLOT,
            host=_SLOT,
            now_ms=self._clock.now_ms,
            clock_ns=lambda: 0,  # slices by count alone, so that each run is the same
            transport=_NoTransport(),
            listener=self,
            chain_factory=self._create_chain,
            **({} if self._files is None else self._files.for_core()),
        )

    def _create_chain(self, spec, environment, writers, fused) -> OperatorChain:
        environment.collect_side_output = self._collect_side_output
        environment.create_call_runner = self._create_call_runner
        return OperatorChain(spec, environment, writers, fused)

    def _create_call_runner(self, invoke, on_answer, capacity, name, copies) -> ManualCallRunner:
        self._calls.append(ManualCallRunner(invoke, on_answer, copies, self._clock))
        return self._calls[-1]

    def _collect_side_output(self, tag_id: str, value: Any, timestamp: Optional[int]) -> None:
        self._side_outputs.setdefault(tag_id, []).append(StreamRecord(value, timestamp))

    def _feed(self, input: int, *elements: Any) -> None:
        if self._closed:
            raise ValueError("the harness is closed")
        if not 0 <= input < len(self._feeds):
            raise ValueError(f"there is no input {input}: build takes {len(self._feeds)}, from 0 on")
        if input in self._ended:
            raise ValueError(f"input {input} has ended")
        self._feeds[input].extend(elements)
        wakeup = self._wakeups[input]
        assert wakeup is not None, "the source of this input has not started"
        wakeup()
        self._run()

    def _run(self) -> None:
        answered = True
        while answered:
            while self._core.run_round():
                self._raise()
            self._raise()
            answered = any([runner.step() for runner in self._calls])

    def _raise(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            self.close()
            cause = error.__cause__
            if cause is not None and not isinstance(cause, Exception):
                raise cause  # Ctrl-C, or pytest.fail() in user code: the test's own business
            raise error

    # ---- what the slot calls --------------------------------------------------------------------

    def task_state_changed(self, execution, state, failure=None) -> None:
        if failure is not None and self._error is None:
            self._error = failure.error

    def operator_event(self, event: OperatorEvent) -> None:
        """Split requests and sink payloads need no answer: the splits are given at the start."""

    def checkpoint_message(self, message: Any) -> None:
        self._checkpoint_messages.append(message)

    def store_snapshot(self, snapshot: TaskSnapshot) -> None:
        if self._files is not None and not snapshot.options.is_inline:
            self._files.executor.store(snapshot)
            return
        handles = {}
        for operator_id, part in snapshot.keyed.items():
            out = io.BytesIO()
            part.write(out)
            handles[operator_id] = (KeyedStateHandle(part.key_groups, InlineBytes(out.getvalue())),)
        self._core.snapshot_stored(snapshot.execution, snapshot.checkpoint_id, handles)

    def store_in_flight(
        self,
        execution: ExecutionAttemptID,
        checkpoint_id: int,
        options: CheckpointOptions,
        data: bytes,
        parts: tuple[InFlightPart, ...],
    ) -> None:
        self._core.in_flight_stored(execution, checkpoint_id, InlineBytes(data), parts)

    def drop_snapshot(self, execution: ExecutionAttemptID, checkpoint_id: int) -> None:
        """It is stored already."""

    def wakeup(self) -> None:
        """The test's own thread runs the slot, after each thing that it feeds."""


def _positional_parameters(build: Callable[..., Any]) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(build).parameters.values()
    count = sum(p.kind in kinds and p.default is inspect.Parameter.empty for p in parameters)
    if not count:
        raise InvalidJobError(
            "could not build the pipeline under test",
            why="build takes no positional parameter, so there is nothing to feed",
            do="write build(stream), build(first, second) ..., or pass inputs=",
        )
    return count


class _CheckpointFiles:
    """The threads and children of a slot that store checkpoints, and the loop that hears of them."""

    def __init__(self, harness: StreamTestHarness, configuration: Mapping[str, Any]):
        self._loop = EventLoop()
        self._storage = CheckpointStorage(configuration[CHECKPOINT_DIRECTORY.key], configuration)
        self.executor = SnapshotExecutor(
            self._loop,
            lambda *stored: harness._core.snapshot_stored(*stored),
            lambda *failed: harness._core.snapshot_failed(*failed),
            lambda *stored: harness._core.in_flight_stored(*stored),
        )
        self.executor.configure(configuration)

    def for_core(self) -> dict[str, Any]:
        return {"open_content": self.executor.open_content, "materialiser": self.executor.materialiser}

    def locations(self, job_id: str, checkpoint_id: int) -> tuple[str, str]:
        return self._storage.checkpoint_location(job_id, checkpoint_id), self._storage.shared_location(job_id)

    def run_once(self, timeout_ms: float) -> None:
        self._loop.run_once(timeout_ms)

    def wait(self, until: Callable[[], bool]) -> None:
        if not self._loop.run_until(until, _STORED_WITHIN_MS):
            raise TimeoutError(f"a checkpoint was not stored within {_STORED_WITHIN_MS} ms")

    def close(self) -> None:
        self.executor.close()
        self._loop.close()


class _NoTransport:
    """All subtasks are in one slot, so nothing is ever sent."""

    def for_attempt(self, attempt: int) -> "_NoTransport":
        return self

    def send(self, peer_slot, kind, channel_id, buffers):
        raise AssertionError("a harness has no peers")

    def flush(self) -> None:
        """There is nothing."""

    def pending_bytes(self, peer_slot) -> int:
        return 0


class _HarnessSplit(SourceSplit):
    def split_id(self) -> str:
        return "feed"


class _HarnessEnumerator(SplitEnumerator):
    def handle_split_request(self, subtask_id, host):
        raise AssertionError("the harness assigns the split itself")


class _HarnessSource(Source):
    fixed_parallelism = 1

    def __init__(self, number: int, index: int, bounded: bool):
        self.number, self.index, self.bounded = number, index, bounded

    def boundedness(self):
        return Boundedness.BOUNDED if self.bounded else Boundedness.CONTINUOUS_UNBOUNDED

    def create_enumerator(self, context):
        return _HarnessEnumerator()

    def create_reader(self, context):
        harness = _harnesses[self.number]
        harness._wakeups[self.index] = context.wakeup
        return _HarnessReader(harness._feeds[self.index])


class _HarnessReader(SourceReader):
    """By way of a split, so that a snapshot has its watermark."""

    def __init__(self, feed: deque):
        self.feed = feed
        self.splits: list[_HarnessSplit] = []

    def add_splits(self, splits):
        self.splits += splits

    def snapshot_state(self, checkpoint_id):
        return self.splits

    def poll_next(self, output):
        if not self.splits:
            return InputStatus.NOTHING_AVAILABLE
        feed, room_of = self.feed, output
        output = output.create_output_for_split(self.splits[0].split_id())
        while feed and room_of.room > 0:
            element = feed.popleft()
            if isinstance(element, StreamRecord):
                output.collect(element.value, element.timestamp)
            elif isinstance(element, Watermark):
                output.emit_watermark(element.timestamp)
            elif element is _END:
                return InputStatus.END_OF_INPUT
            elif element.idle:
                output.mark_idle()
            else:
                output.mark_active()
        return InputStatus.MORE_AVAILABLE if feed else InputStatus.NOTHING_AVAILABLE


class _HarnessSink(Sink):
    fixed_parallelism = 1

    def __init__(self, number: int, index: int):
        self.number, self.index = number, index

    def create_writer(self, context):
        return _HarnessWriter(_harnesses[self.number].outputs[self.index])


class _HarnessWriter(SinkWriter):
    def __init__(self, output: list):
        self.output = output

    def write(self, value, timestamp_ms, watermark_ms):
        self.output.append(StreamRecord(value, timestamp_ms))

    def write_watermark(self, watermark_ms):
        self.output.append(Watermark(watermark_ms))
