"""A chain without operators, for tests of the data plane alone: `ScriptedChain`.

It stands in for ``operators.chain.OperatorChain``.  What it does with a record is a plain function
in its `ChainScript`; what it saw goes to a `ScriptLog`, by task::

    log = ScriptLog()
    slots = SimulatedSlots(seed, ["a", "b"], chain_factory=log.chain)
    ...
    log.records("sink", 0)
"""

from __future__ import annotations

import pickle
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Optional, Sequence

from flinkish.connectors.spi import InputStatus
from flinkish.graph.job_graph import OutputEdge
from flinkish.messages.checkpoints import DistributionMode, OperatorStateHandle
from flinkish.messages.elements import (
    MIN_WATERMARK_MS,
    ColumnBatch,
    Element,
    RowBatch,
    Watermark,
    WatermarkStatus,
)
from flinkish.operators.async_io.chain_calls import ChainCalls
from flinkish.operators.codegen import BUDGET_MAX, CodeWriter
from flinkish.operators.output import RecordWriter, TaskEnvironment
from flinkish.operators.snapshots import OperatorPart


@dataclass(frozen=True)
class ChainScript:
    """``outputs``: as in ``OperatorChainSpec``.

    ``source(subtask, parallelism)`` gives the polls of a source: each item is a list of elements;
    ``process(subtask, value)`` the output values of one record, an iterable.
    ``committables``: the chain is one of a sink that prepares each record it takes.
    ``emit``: "one" calls ``writer.emit``, "batch" ``emit_batch``, "fused" the code of ``generate``.
    """

    outputs: tuple[OutputEdge, ...] = ()
    source: Optional[Callable[[int, int], Sequence[list[Element]]]] = None
    process: Optional[Callable[[int, Any], Any]] = None
    inputs: int = 1
    expanding: bool = False
    emit: str = "one"
    committables: bool = False


class ScriptLog:
    """What the chains of one test saw: ``seen[task_name, subtask]`` holds (kind, input, value,
    timestamp); ``chains`` the chains themselves."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, int], list[tuple[str, int, Any, Any]]] = defaultdict(list)
        self.chains: dict[tuple[str, int], ScriptedChain] = {}

    def chain(
        self,
        spec: ChainScript,
        environment: TaskEnvironment,
        writers: dict[int, RecordWriter],
        fused: bool = True,
    ) -> ScriptedChain:
        """The ``chain_factory`` of a slot."""
        chain = ScriptedChain(spec, environment, writers, self)
        self.chains[chain.key] = chain
        return chain

    def records(self, task_name: str, subtask: int) -> list[Any]:
        return [value for kind, _, value, _ in self.seen[task_name, subtask] if kind == "record"]


class ScriptedChain:
    """See the module."""

    def __init__(
        self,
        spec: ChainScript,
        environment: TaskEnvironment,
        writers: dict[int, RecordWriter],
        log: ScriptLog,
    ):
        self.spec = spec
        self.log = log
        self.environment = environment
        self.key = (environment.task_name, environment.subtask_index)
        self.writers = list(writers.values())
        self.expanding = spec.expanding
        self.budget_max = BUDGET_MAX
        self.overdraft = 0
        self.calls = ChainCalls((), *[None] * 3)  # type: ignore[arg-type]
        self.number_of_inputs = 0 if spec.source is not None else spec.inputs
        self.source = ScriptedSource(spec, environment) if spec.source is not None else None
        self.watermarks = [MIN_WATERMARK_MS] * spec.inputs
        self.watermark = MIN_WATERMARK_MS
        self.ended: set[int] = set()
        self.idle_calls = 0
        self.opened = self.closed = False
        self.sink_room = True
        self.sink_holds = False  # what it could not push out
        self.source_text = ""
        self._fused = _fused_loops(self.writers) if spec.emit == "fused" else {}
        self._prepared = 0  # up to this record

    def open(self) -> None:
        self.opened = True

    # A snapshot says how many entries of the log lie before the barrier.

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> Iterator[None]:
        yield from ()

    def snapshot_state(self, checkpoint_id: int, timestamp_ms: int, options: Any = None) -> list[OperatorPart]:
        self._see("snapshot", 0, checkpoint_id, None)
        position = (checkpoint_id, len(self.log.seen[self.key]))
        handle = OperatorStateHandle({"position": (DistributionMode.SPLIT, (pickle.dumps(position),))})
        committables = None
        if self.spec.committables:
            records = self.log.records(*self.key)
            committables = pickle.dumps(records[self._prepared :])
            self._prepared = len(records)
        return [OperatorPart(self.key[0], None, handle, committables)]

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._see("complete", 0, checkpoint_id, None)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self._see("aborted", 0, checkpoint_id, None)

    def close(self) -> None:
        self.closed = True

    def process_batch(self, index: int, batch: Any, start: int, stop: int) -> Iterator[None]:
        if type(batch) is ColumnBatch:
            columns = batch.columns.slice(start, stop - start)
            times = None if batch.timestamps is None else batch.timestamps[start:stop]
            for value in columns.to_pylist():
                self._see("column", index, value, None)
            for writer in self.writers:
                writer.emit_columns(columns, times)
            return
        values = batch.values[start:stop]
        timestamps = None if batch.timestamps is None else batch.timestamps[start:stop]
        process, subtask = self.spec.process, self.environment.subtask_index
        if process is None and not self.expanding:
            for i, value in enumerate(values):
                self._see("record", index, value, timestamps[i] if timestamps else None)
            self._emit_all(values, timestamps)
            return
        made = 0  # since the last suspension
        for i, value in enumerate(values):
            timestamp = timestamps[i] if timestamps else None
            self._see("record", index, value, timestamp)
            for result in (value,) if process is None else process(subtask, value):
                while self.expanding and (self.room <= 0 or made >= self.budget_max):
                    yield
                    made = 0
                made += 1
                self._emit_all([result], None if timestamps is None else [timestamp])

    @property
    def room(self) -> int:
        return min([writer.room + self.overdraft for writer in self.writers], default=2048)

    def process_watermark(self, index: int, timestamp: int) -> Iterator[None]:
        self._see("watermark", index, timestamp, None)
        assert timestamp > self.watermarks[index], (self.key, timestamp, self.watermarks)
        self.watermarks[index] = timestamp
        if min(self.watermarks) > self.watermark:
            self.watermark = min(self.watermarks)
            for writer in self.writers:
                writer.emit_watermark(self.watermark)
        yield from ()

    def process_watermark_status(self, index: int, idle: bool) -> Iterator[None]:
        self._see("status", index, idle, None)
        for writer in self.writers:
            writer.emit_watermark_status(idle)
        yield from ()

    def end_input(self, index: int) -> Iterator[None]:
        assert index not in self.ended
        self.ended.add(index)
        self._see("end", index, None, None)
        yield from ()

    def on_processing_time(self, now_ms: int) -> Iterator[None]:
        yield from ()

    def next_processing_time(self) -> Optional[int]:
        return None

    def sinks_have_room(self) -> bool:
        return self.sink_room

    def sink_descriptors(self) -> list[int]:
        return []

    def on_idle(self) -> bool:
        self.idle_calls += 1
        return self.sink_holds

    def input_error(self, error: BaseException) -> BaseException:
        return error

    def handle_operator_event(self, operator_id: str, payload: Any) -> None:
        self._see("event", 0, (operator_id, payload), None)

    def metrics(self) -> dict[str, int]:
        return {}

    def _see(self, kind: str, index: int, value: Any, timestamp: Any) -> None:
        self.log.seen[self.key].append((kind, index, value, timestamp))

    def _emit_all(self, values: list, timestamps: Optional[list]) -> None:
        for writer in self.writers:
            if self._fused:
                timed = timestamps is not None
                arguments = (values, timestamps) if timed else (values,)
                self._fused[id(writer), timed](*arguments)
            elif self.spec.emit == "batch":
                writer.emit_batch(values, timestamps)
            else:
                for i, value in enumerate(values):
                    writer.emit(value, timestamps[i] if timestamps else None)


class ScriptedSource:
    """Plays the polls of a script; a poll with nothing in it reports NOTHING_AVAILABLE once."""

    poll_interval_ms = 1

    def __init__(self, spec: ChainScript, environment: TaskEnvironment):
        self.reader = self
        self.operator_id = environment.task_name
        self.is_paused = False
        self.polls = deque(spec.source(environment.subtask_index, environment.parallelism))
        self.taken: list[Element] = []
        self.rooms: list[int] = []

    def fileno(self) -> Optional[int]:
        return None

    def poll(self, room: int) -> InputStatus:
        assert room > 0
        self.rooms.append(room)
        if not self.polls:
            return InputStatus.END_OF_INPUT
        elements = self.polls.popleft()
        self.taken += elements
        return InputStatus.MORE_AVAILABLE if elements else InputStatus.NOTHING_AVAILABLE

    def done(self) -> None:
        """The task has finished an element."""

    @property
    def has_collected(self) -> bool:
        return bool(self.taken)

    def take(self) -> list[Element]:
        taken, self.taken = self.taken, []
        return taken


def source_of_numbers(
    count: int, batch: int, watermark_every: int = 0, timed: bool = True, idle: bool = False
) -> Callable[[int, int], Sequence[list[Element]]]:
    """Polls that give ``(subtask, number)`` at event time ``number``, and watermarks in between."""

    def polls(subtask: int, parallelism: int) -> list[list[Element]]:
        made: list[list[Element]] = []
        for start in range(0, count, batch):
            numbers = range(start, min(count, start + batch))
            values = [(subtask, number) for number in numbers]
            elements: list[Element] = [RowBatch(values, list(numbers) if timed else None)]
            if watermark_every and (start // batch) % watermark_every == 0:
                elements.append(Watermark(numbers[-1]))
            if idle and (start // batch) % 5 == 4:
                elements += [WatermarkStatus(True)]
                made += [elements, [], [WatermarkStatus(False)]]
                continue
            made.append(elements)
        return made

    return polls


def _fused_loops(writers: Sequence[RecordWriter]) -> dict[tuple[int, bool], Callable[..., None]]:
    code = CodeWriter("scripted", room=lambda: min([writer.room for writer in writers]))
    names: dict[str, tuple[int, bool]] = {}
    for number, writer in enumerate(writers):
        for timed in (False, True):
            name = f"rows_{number}_{int(timed)}"
            names[name] = (id(writer), timed)
            if timed:
                with code.function(name, "values, timestamps"):
                    with code.block("for v, t in zip(values, timestamps):"):
                        writer.generate(code, "v", "t")
            else:
                with code.function(name, "values"):
                    with code.block("for v in values:"):
                        writer.generate(code, "v", None)
    return {names[name]: function for name, function in code.build().items()}
