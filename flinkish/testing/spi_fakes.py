"""What the engine hands to sources and sinks, as plain objects for unit tests.

They do what ``flinkish.connectors.spi`` promises, on one thread, and record what happens.
"""

from __future__ import annotations

import pickle
from collections import deque
from typing import Any, Callable, Optional

import cloudpickle

from flinkish.connectors.spi import (
    ReaderInfo,
    ReaderOutput,
    Sink,
    SinkCoordinatorContext,
    SinkWriter,
    Source,
    SourceOutput,
    SourceReaderContext,
    SplitEnumerator,
    SplitEnumeratorContext,
    WriterInitContext,
)


class RecordingSourceOutput(SourceOutput[Any]):
    """Keeps what is collected: ``records`` are (value, timestamp), ``events`` all in order.

    A column batch is also taken apart into dicts, so that the same comparisons do."""

    def __init__(self) -> None:
        self.records: list[tuple[Any, Optional[int]]] = []
        self.events: list[tuple[str, Any]] = []
        self.column_batches: list[Any] = []

    @property
    def values(self) -> list[Any]:
        return [value for value, _ in self.records]

    def _keep(self, value: Any, timestamp_ms: Optional[int]) -> None:
        self.records.append((value, timestamp_ms))
        self.events.append(("record", value))

    def collect(self, value: Any, timestamp_ms: Optional[int] = None) -> None:
        self._keep(value, timestamp_ms)

    def collect_batch(self, values: list[Any], timestamps_ms: Any = None) -> None:
        assert type(values) is list and values, "collect_batch takes a list that is not empty"
        if timestamps_ms is None:
            timestamps_ms = [None] * len(values)
        assert len(values) == len(timestamps_ms), "values and timestamps differ in length"
        for value, timestamp_ms in zip(values, timestamps_ms):
            self._keep(value, timestamp_ms)

    def collect_columns(self, columns: Any, timestamps_ms: Any = None) -> None:
        self.column_batches.append(columns)
        times = [None] * columns.num_rows if timestamps_ms is None else timestamps_ms.tolist()
        assert len(times) == columns.num_rows, "columns and timestamps differ in length"
        for value, timestamp_ms in zip(columns.to_pylist(), times):
            self._keep(value, timestamp_ms)

    def emit_watermark(self, timestamp_ms: int) -> None:
        self.events.append(("watermark", timestamp_ms))

    def mark_idle(self) -> None:
        self.events.append(("idle", None))

    def mark_active(self) -> None:
        self.events.append(("active", None))


class RecordingReaderOutput(RecordingSourceOutput, ReaderOutput[Any]):
    """``room`` is what the test gives by ``give_room``, less what was collected since."""

    def __init__(self, room: int = 1 << 30):
        super().__init__()
        self._room = room
        self.overdraft = 0
        self._split_outputs: dict[str, _SplitOutput] = {}
        self.released: list[str] = []

    @property
    def room(self) -> int:
        return max(self._room, 0)

    def give_room(self, room: int) -> None:
        self._room = room

    def _keep(self, value: Any, timestamp_ms: Optional[int]) -> None:
        super()._keep(value, timestamp_ms)
        self._room -= 1
        self.overdraft = max(self.overdraft, -self._room)

    def create_output_for_split(self, split_id: str) -> SourceOutput[Any]:
        if split_id not in self._split_outputs:
            self._split_outputs[split_id] = _SplitOutput(self)
        return self._split_outputs[split_id]

    def release_output_for_split(self, split_id: str) -> None:
        assert split_id in self._split_outputs, f"no output was made for split {split_id}"
        del self._split_outputs[split_id]
        self.released.append(split_id)

    @property
    def open_splits(self) -> list[str]:
        return sorted(self._split_outputs)


class _SplitOutput(RecordingSourceOutput):
    def __init__(self, reader_output: RecordingReaderOutput):
        super().__init__()
        self._reader_output = reader_output

    def _keep(self, value: Any, timestamp_ms: Optional[int]) -> None:
        super()._keep(value, timestamp_ms)
        self._reader_output._keep(value, timestamp_ms)

    def collect_columns(self, columns: Any, timestamps_ms: Any = None) -> None:
        super().collect_columns(columns, timestamps_ms)
        self._reader_output.column_batches.append(columns)


class FakeEnumeratorContext(SplitEnumeratorContext[Any]):
    """Queues assignments for ``deliver``; splits and events travel as pickles, as in a cluster."""

    def __init__(self, parallelism: int):
        self._parallelism = parallelism
        self._readers: dict[int, ReaderInfo] = {}
        self.outbox: deque[tuple[int, str, Any]] = deque()
        self.calls: deque[tuple[Callable[[], Any], Callable[[Any, Optional[BaseException]], None]]]
        self.calls = deque()

    def register(self, subtask_id: int) -> None:
        self._readers[subtask_id] = ReaderInfo(subtask_id, "localhost")

    def current_parallelism(self) -> int:
        return self._parallelism

    def registered_readers(self) -> dict[int, ReaderInfo]:
        return dict(self._readers)

    def assign_split(self, split: Any, subtask_id: int) -> None:
        assert subtask_id in self._readers, f"reader {subtask_id} has not registered"
        self.outbox.append((subtask_id, "split", cloudpickle.dumps(split)))

    def signal_no_more_splits(self, subtask_id: int) -> None:
        assert subtask_id in self._readers, f"reader {subtask_id} has not registered"
        self.outbox.append((subtask_id, "no more splits", b""))

    def send_event_to_source_reader(self, subtask_id: int, event: Any) -> None:
        self.outbox.append((subtask_id, "event", cloudpickle.dumps(event)))

    def call_async(self, call: Any, handler: Any, period_ms: Optional[int] = None) -> None:
        self.calls.append((call, handler))

    def run_calls(self) -> None:
        while self.calls:
            call, handler = self.calls.popleft()
            try:
                result = call()
            except Exception as error:  # the handler decides, as in a cluster
                handler(None, error)
            else:
                handler(result, None)


class FakeReaderContext(SourceReaderContext):
    """``requests`` counts split requests that the enumerator has not answered; ``wakeups`` counts."""

    def __init__(self, subtask: int = 0, parallelism: int = 1, configuration: Any = None):
        self._subtask, self._parallelism = subtask, parallelism
        self._configuration = configuration or {}
        self.requests = 0
        self.events: deque[Any] = deque()
        self.wakeups = 0
        self.found_accumulators: dict[str, Any] = {}
        self.on_wakeup: Callable[[], None] = lambda: None

    def index_of_subtask(self) -> int:
        return self._subtask

    def current_parallelism(self) -> int:
        return self._parallelism

    def host(self) -> str:
        return "localhost"

    def configuration(self) -> Any:
        return self._configuration

    def metric_group(self) -> Any:
        return None

    def accumulators(self) -> dict[str, Any]:
        return self.found_accumulators

    def send_split_request(self) -> None:
        self.requests += 1

    def send_source_event(self, event: Any) -> None:
        self.events.append(cloudpickle.dumps(event))

    def wakeup(self) -> None:
        self.wakeups += 1
        self.on_wakeup()


class SourceRun:
    """A source in the test's process: one enumerator and ``parallelism`` readers.

    ``source`` is pickled first, as on its way to the slots.  ``step`` turns a reader once;
    ``run_until_end`` all of them.
    """

    def __init__(
        self,
        source: Source[Any, Any],
        parallelism: int = 1,
        enumerator_state: Any = None,
        restored_splits: Optional[dict[int, list[Any]]] = None,
    ):
        self.source = cloudpickle.loads(cloudpickle.dumps(source))
        self.context = FakeEnumeratorContext(parallelism)
        if enumerator_state is None:
            self.enumerator: SplitEnumerator[Any] = source.create_enumerator(self.context)
        else:
            self.enumerator = source.restore_enumerator(self.context, enumerator_state)
        self.enumerator.start()
        self.reader_contexts = [FakeReaderContext(i, parallelism) for i in range(parallelism)]
        self.readers = [self.source.create_reader(context) for context in self.reader_contexts]
        self.outputs = [RecordingReaderOutput(0) for _ in range(parallelism)]
        self.statuses: list[Any] = [None] * parallelism
        for subtask, reader in enumerate(self.readers):
            splits = (restored_splits or {}).get(subtask, [])
            if splits:
                reader.add_splits(pickle.loads(pickle.dumps(splits)))
            self.context.register(subtask)
            self.enumerator.add_reader(subtask)
            reader.start()

    def deliver(self) -> None:
        """Everything that enumerator and readers have sent to each other."""
        while True:
            self.context.run_calls()
            busy = False
            for subtask, context in enumerate(self.reader_contexts):
                while context.events:
                    busy = True
                    event = cloudpickle.loads(context.events.popleft())
                    self.enumerator.handle_source_event(subtask, event)
                while context.requests:
                    busy = True
                    context.requests -= 1
                    self.enumerator.handle_split_request(subtask, "localhost")
            while self.context.outbox:
                busy = True
                subtask, kind, data = self.context.outbox.popleft()
                reader = self.readers[subtask]
                if kind == "split":
                    reader.add_splits([cloudpickle.loads(data)])
                elif kind == "event":
                    reader.handle_source_event(cloudpickle.loads(data))
                else:
                    reader.notify_no_more_splits()
            if not busy:
                return

    def step(self, subtask: int, room: int) -> Any:
        self.deliver()
        output = self.outputs[subtask]
        output.give_room(room)
        self.statuses[subtask] = self.readers[subtask].poll_next(output)
        return self.statuses[subtask]

    def run_until_end(self, room: int = 1_000, max_steps: int = 1_000_000) -> "SourceRun":
        """Turns the readers in turn until each has reported END_OF_INPUT."""
        for _ in range(max_steps):
            waiting = [i for i, status in enumerate(self.statuses) if _name(status) != "END_OF_INPUT"]
            if not waiting:
                self.deliver()
                return self
            for subtask in waiting:
                self.step(subtask, room)
        raise AssertionError(f"readers {waiting} did not reach the end in {max_steps} turns")

    def snapshot(self) -> tuple[Any, list[Any]]:
        """The enumerator's state, and the splits of all readers: coordinators snapshot first."""
        self.deliver()
        state = pickle.loads(pickle.dumps(self.enumerator.snapshot_state(1)))
        splits = [split for reader in self.readers for split in reader.snapshot_state(1)]
        return state, pickle.loads(pickle.dumps(splits))

    @property
    def values(self) -> list[Any]:
        """Of all readers, one reader after the other."""
        return [value for output in self.outputs for value in output.values]

    def close(self) -> None:
        for reader in self.readers:
            reader.close()
        self.enumerator.close()


def _name(status: Any) -> str:
    return getattr(status, "name", "")


# ---- sinks --------------------------------------------------------------------------------------


class FakeWriterContext(WriterInitContext):
    """``sent`` holds what the writer sent to its coordinator, after a trip through pickle."""

    def __init__(
        self, subtask: int = 0, parallelism: int = 1, attempt: int = 0, job_id: str = "job0" * 8
    ):
        self._subtask, self._parallelism = subtask, parallelism
        self._attempt, self._job_id = attempt, job_id
        self.sent: deque[Any] = deque()
        self.found_accumulators: dict[str, Any] = {}

    def index_of_subtask(self) -> int:
        return self._subtask

    def current_parallelism(self) -> int:
        return self._parallelism

    def attempt_number(self) -> int:
        return self._attempt

    def job_id(self) -> str:
        return self._job_id

    def operator_id(self) -> str:
        return "0123456789abcdef0123456789abcdef"

    def configuration(self) -> Any:
        return {}

    def metric_group(self) -> Any:
        return None

    def accumulators(self) -> dict[str, Any]:
        return self.found_accumulators

    def send_to_coordinator(self, payload: Any) -> None:
        self.sent.append(pickle.loads(pickle.dumps(payload)))


class SinkRun(SinkCoordinatorContext):
    """A sink in the test's process: ``parallelism`` writers, its coordinator and its committer."""

    def __init__(self, sink: Sink[Any], parallelism: int = 1, job_id: str = "job0" * 8):
        self.contexts = [FakeWriterContext(i, parallelism, 0, job_id) for i in range(parallelism)]
        self._sink = sink.for_operator(job_id, self.contexts[0].operator_id())
        self._sink.validate()
        self.coordinator = sink.create_coordinator(self)
        self.to_writers: deque[tuple[int, Any]] = deque()
        travelled = cloudpickle.loads(cloudpickle.dumps(sink))
        self.writers: list[SinkWriter[Any]] = [travelled.create_writer(c) for c in self.contexts]
        self.committables: list[Any] = []

    def send_to_writer(self, subtask: int, payload: Any) -> None:
        self.to_writers.append((subtask, pickle.loads(pickle.dumps(payload))))

    def deliver(self) -> None:
        """Everything that writers and coordinator have sent to each other."""
        for subtask, context in enumerate(self.contexts):
            while context.sent:
                payload = context.sent.popleft()
                assert self.coordinator is not None, "the sink has no coordinator"
                self.coordinator.handle(subtask, 0, payload)
        while self.to_writers:
            subtask, payload = self.to_writers.popleft()
            self.writers[subtask].handle_coordinator_event(payload)

    def write(self, values: list[Any], subtask: int = 0) -> None:
        self.writers[subtask].write_batch(list(values), None, -(2**63))

    def prepare(self) -> list[Any]:
        """What each writer does at the end of its input."""
        for writer in self.writers:
            writer.flush(True)
            while not writer.flushed:
                assert not writer.has_room, "a writer that still pushes out has no room"
            self.committables += writer.prepare_commit()
        self.deliver()
        return self.committables

    def finish(self) -> None:
        """The job ends well: prepare, close, commit."""
        self.prepare()
        for writer in self.writers:
            writer.close()
        committer = self._sink.create_committer()
        if committer is not None:
            committer.commit(cloudpickle.loads(cloudpickle.dumps(self.committables)))
            committer.close()
        if self.coordinator is not None:
            self.coordinator.close(None)

    def fail(self, error: Optional[BaseException] = None) -> None:
        """The job fails: close, then abort what was prepared."""
        for writer in self.writers:
            writer.close()
        committer = self._sink.create_committer()
        if committer is not None:
            committer.abort(self.committables)
            committer.remove_leftovers(())
            committer.close()
        if self.coordinator is not None:
            self.coordinator.close(error or RuntimeError("the job failed"))
