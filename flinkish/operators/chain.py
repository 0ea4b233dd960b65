"""OperatorChain: the operators of one task, run as one generated loop or, for reference, one by one.

A chain is a tree of nodes: the head gets the task's input, each node hands its output to writers and
to chained nodes.  Everything that may take long is a generator: each ``yield`` means "no room, or my
share is used up: resume me when every writer has room".  A suspended generator keeps its place in the
middle of a record's output; nothing else of the chain may be called meanwhile.

Order within a chain, as in Flink: a record goes all the way down before the next; a watermark
reaches an operator, fires its timers, whose output goes down the rest of the chain, and only then
goes to the next operator; open and close go from the tail to the head, finish from head to tail.
"""

from __future__ import annotations

import functools
from typing import Any, Iterable, Iterator, NoReturn, Optional

import cloudpickle

from flinkish.common.user_traceback import is_raised_by_user_code, let_pass
from flinkish.datastream.functions import Function
from flinkish.datastream.transformations import (
    BroadcastProcessOperator,
    CoFlatMapOperator,
    CoMapOperator,
    CoProcessOperator,
    IntervalJoinOperator,
    KeyedBroadcastProcessOperator,
    KeyedCoProcessOperator,
)
from flinkish.errors import InternalError
from flinkish.graph.job_graph import ChainedOperator, OperatorChainSpec
from flinkish.messages.checkpoints import CheckpointOptions
from flinkish.messages.elements import MAX_WATERMARK_MS, ColumnBatch, Watermark
from flinkish.operators.async_io.async_wait import AsyncWaitOperator
from flinkish.operators.async_io.chain_calls import ChainCalls
from flinkish.operators.chain_compiler import CompiledChain, compile_chain
from flinkish.operators.codegen import BUDGET_MAX
from flinkish.operators.columns import rows_of
from flinkish.operators.columns_to_rows import ColumnsToRowsOperator
from flinkish.operators.factory import create_operator
from flinkish.operators.interpreter import InterpretedChain
from flinkish.operators.node import Node, Target
from flinkish.operators.operator import Item, RuntimeOperator, SnapshotContext
from flinkish.operators.output import RecordWriter, TaskEnvironment
from flinkish.operators.sink import SinkFunctionOperator, SinkWriterOperator
from flinkish.operators.snapshots import OperatorPart
from flinkish.operators.sorted_input import SortedInput, sorted_input_of
from flinkish.operators.source import SourceOperator
from flinkish.operators.timestamps_and_watermarks import TimestampsAndWatermarksOperator
from flinkish.operators.user_errors import travel_error, user_error
from flinkish.operators.watermarks import CombinedWatermark
from flinkish.operators.window import AlignedWindowOperator
from flinkish.operators.windowing.column_windows import ColumnWindowOperator

_TWO_INPUTS = (
    BroadcastProcessOperator,
    CoFlatMapOperator,
    CoMapOperator,
    CoProcessOperator,
    IntervalJoinOperator,
    KeyedBroadcastProcessOperator,
    KeyedCoProcessOperator,
)


class OperatorChain:
    """The operators of one subtask.

    Args:
        spec: operators in topological order, and how they are connected.
        environment: of the task.
        writers: one for each output edge, by edge id.
        fused: False runs the interpreted form, which does the same.
    """

    def __init__(
        self,
        spec: OperatorChainSpec,
        environment: TaskEnvironment,
        writers: dict[int, RecordWriter],
        fused: bool = True,
    ):
        self.environment = environment
        self.fused = fused
        self._writers = list(writers.values())
        self.nodes = _build_nodes(spec, environment, writers)
        self.head = self.nodes[0]
        operators = [node.operator for node in self.nodes]
        self._sinks = [o for o in operators if isinstance(o, (SinkWriterOperator, SinkFunctionOperator))]
        #: In a batch job event time stands still until the input ends.
        self._batch = environment.is_batch
        self._sorted: Optional[SortedInput] = None
        if self._batch and not isinstance(self.head.operator, SourceOperator):
            self._sorted = sorted_input_of(self.head.operator, _inputs_of(spec.operators[0]))
        timed = self.nodes if self._sorted is None else self.nodes[1:]  # timers of a key fire when it is over
        self._timed = [node for node in timed if _uses_clock(node.operator)]
        #: Of asynchronous operators.
        self.calls = ChainCalls(self.nodes, self._drain, self._advance_after, self._send_status_after)
        for node in self.nodes:
            if isinstance(node.operator, TimestampsAndWatermarksOperator):
                node.operator.flush_pending = functools.partial(self.flush_pending, node)
        self._databases = [o.backend for o in operators if hasattr(o.backend, "between_batches")]
        self.source: Optional[SourceOperator] = None
        if isinstance(self.head.operator, SourceOperator):
            self.source = self.head.operator
        self.number_of_inputs = 0 if self.source is not None else _inputs_of(spec.operators[0])
        self._inputs = CombinedWatermark(range(self.number_of_inputs))
        self._ended: set[int] = set()
        self.expanding = any(operator.expanding for operator in operators)
        #: Records that may be produced in one go; the task lowers it where they take long.
        self.budget_max = BUDGET_MAX
        #: Records by which outputs may be fuller than full, while a barrier waits for the end of a record's output.
        self.overdraft = 0
        self._code: CompiledChain | InterpretedChain | None = None
        self._closed = False

    @property
    def source_text(self) -> str:
        """The generated code; empty before `open` and in an interpreted chain."""
        return self._code.source_text if isinstance(self._code, CompiledChain) else ""

    # ---- life -----------------------------------------------------------------------------------

    def open(self) -> None:
        for node in reversed(self.nodes):
            node.operator.initialize_state()
            node.operator.open()
        # Only now: the code depends on what the operators found when they opened (a writer's form).
        if self.fused:
            self._code = compile_chain(self)
        else:
            self._code = InterpretedChain(self)

    def close(self) -> None:
        """Close every operator, also after a failure; raises the first error once all are closed."""
        if self._closed:
            return
        self._closed = True
        failure: Optional[BaseException] = None
        for node in reversed(self.nodes):
            try:
                node.operator.close()
            except BaseException as error:
                failure = failure or error
        if self._sorted is not None:
            self._sorted.close()
        if self._code is not None:
            self._code.forget()
        if failure is not None:
            raise failure

    # ---- records --------------------------------------------------------------------------------

    def process_batch(self, input_index: int, batch: Any, start: int, stop: int) -> Iterator[None]:
        """Records [start, stop) of a RowBatch or ColumnBatch."""
        for backend in self._databases:
            backend.between_batches()
        whole = start == 0 and stop == len(batch)
        timestamps = batch.timestamps
        if timestamps is not None and not whole:
            timestamps = timestamps[start:stop]
        if self._sorted is not None and self._sorted.keeps(input_index):
            if type(batch) is ColumnBatch:
                values = rows_of(batch.columns.slice(start, stop - start))
                timestamps = None if timestamps is None else timestamps.tolist()
            else:
                values = batch.values if whole else batch.values[start:stop]
            yield from self._guarded(self._sorted.add(input_index, values, timestamps))
        elif type(batch) is ColumnBatch:
            columns = batch.columns if whole else batch.columns.slice(start, stop - start)
            yield from self._guarded(self._process_columns(columns, timestamps))
        else:
            values = batch.values if whole else batch.values[start:stop]
            try:
                run = self._code.rows(self.head, input_index, values, timestamps)
                if run is not None:
                    yield from run
            except BaseException as error:
                self._fail(error)
        if self.source is not None and stop == len(batch):
            self.source.done()

    def _process_columns(self, columns: Any, timestamps: Any) -> Iterator[None]:
        if self.source is None:
            yield from self._columns_into(self.head, columns, timestamps)
        else:
            yield from self._columns_after(self.head, columns, timestamps)

    def _columns_into(self, node: Node, columns: Any, timestamps: Any) -> Iterator[None]:
        operator = node.operator
        if isinstance(operator, ColumnsToRowsOperator):
            times = None if timestamps is None else timestamps.tolist()
            run = self._code.rows(node, 0, operator.rows(columns), times)
            if run is not None:
                yield from run
        elif isinstance(operator, SinkWriterOperator):
            operator.write_columns(columns, timestamps)
        elif isinstance(operator, ColumnWindowOperator):
            operator.process_columns(columns, timestamps)
        else:
            raise InternalError(f'operator "{operator.name}" got columns, and takes rows')

    def _columns_after(self, node: Node, columns: Any, timestamps: Any) -> Iterator[None]:
        for target in node.main:
            if target.writer is not None:
                self._emit_columns(node, target, columns, timestamps)
            else:
                yield from self._columns_into(target.node, columns, timestamps)

    def _emit_columns(self, node: Node, target: Target, columns: Any, timestamps: Any) -> None:
        writer: Any = target.writer
        before = writer.records_out
        try:
            writer.emit_columns(columns, timestamps)
        except BaseException as error:
            let_pass(error)
            if not is_raised_by_user_code(error):
                raise
            # A selector or partitioner of the user's takes rows, one after the other.
            (record,) = rows_of(columns.slice(writer.records_out - before, 1))
            raise node.operator.error(error, record, target.role) from error

    def run_rows(self, input_index: int, values: list, timestamps: list) -> Iterator[None]:
        """Records that were kept back, into the head."""
        times: Optional[list] = timestamps
        if timestamps.count(None) == len(timestamps):
            times = None
        if self.expanding:
            run = self._code.rows(self.head, input_index, values, times)
            if run is not None:
                yield from run
            return
        start = 0
        while start < len(values):
            stop = start + self.room()
            if stop <= start:
                yield
                continue
            part = None if times is None else times[start:stop]
            run = self._code.rows(self.head, input_index, values[start:stop], part)
            if run is not None:
                yield from run
            start = stop

    def drain_head(self, items: Iterable[Item]) -> Iterator[None]:
        return self._drain(self.head, items)

    # ---- time -----------------------------------------------------------------------------------

    def process_watermark(self, input_index: int, timestamp: int) -> Iterator[None]:
        if self._batch and (timestamp < MAX_WATERMARK_MS or self._sorted is not None):
            pass  # the end of event time comes behind what has been sorted
        elif self.number_of_inputs > 1:
            was_idle = self._inputs.idle
            advanced = self._inputs.update(input_index, timestamp)
            if was_idle != self._inputs.idle:
                yield from self._guarded(self._send_status(self.head, self._inputs.idle))
            if advanced:
                yield from self._guarded(self._advance(self.head, self._inputs.watermark))
        else:
            yield from self._guarded(self._advance(self.head, timestamp))
        if self.source is not None:
            self.source.done()

    def process_watermark_status(self, input_index: int, idle: bool) -> Iterator[None]:
        if self._batch:
            pass  # nothing waits for a watermark
        elif self.number_of_inputs > 1:
            was_idle = self._inputs.idle
            advanced = self._inputs.set_idle(input_index, idle)
            if was_idle and not self._inputs.idle:
                yield from self._guarded(self._send_status(self.head, False))
            if advanced:  # the watermark goes before the status that says it will stand still
                yield from self._guarded(self._advance(self.head, self._inputs.watermark))
            if not was_idle and self._inputs.idle:
                yield from self._guarded(self._send_status(self.head, True))
        else:
            yield from self._guarded(self._send_status(self.head, idle))
        if self.source is not None:
            self.source.done()

    def _advance(self, node: Node, watermark: int) -> Iterator[None]:
        """The watermark reaches ``node``."""
        operator = node.operator
        items = None
        if watermark > operator.current_watermark:  # else it was restored, and the sources catch up
            items = operator.fire(watermark)
        if items is not None:
            yield from self._drain(node, items)
        if operator.forwards_watermark(watermark):
            yield from self._advance_after(node, watermark)

    def _advance_after(self, node: Node, watermark: int) -> Iterator[None]:
        for target in node.targets:
            if target.writer is not None:
                target.writer.emit_watermark(watermark)
            else:
                yield from self._advance(target.node, watermark)

    def _drain(self, node: Node, items: Iterable[Item]) -> Iterator[None]:
        if node.operator.fires_columns:
            return self._drain_columns(node, items)
        run = self._code.drain(node, items)
        return iter(()) if run is None else run

    def _drain_columns(self, node: Node, items: Iterable[Any]) -> Iterator[None]:
        for columns, timestamps in items:
            yield from self._columns_after(node, columns, timestamps)
            while self.room() <= 0:
                yield

    def _send_status(self, node: Node, idle: bool) -> Iterator[None]:
        """The status reaches ``node``; operators that make watermarks of their own keep it."""
        items = node.operator.before_idle() if idle else None
        if items is not None:
            yield from self._drain(node, items)
        if node.operator.forwards_watermark_status(idle):
            yield from self._send_status_after(node, idle)

    def _send_status_after(self, node: Node, idle: bool) -> Iterator[None]:
        for target in node.targets:
            if target.writer is not None:
                target.writer.emit_watermark_status(idle)
            else:
                yield from self._send_status(target.node, idle)

    def flush_pending(self, node: Node) -> Iterator[None]:
        """Send on what the watermark generator of ``node`` has emitted."""
        operator: Any = node.operator
        pending, operator.pending = operator.pending, []
        if self._batch:
            return
        for kind, value in pending:
            if kind == "watermark":
                operator.current_watermark = value
                yield from self._advance_after(node, value)
            else:
                yield from self._send_status_after(node, value)

    def on_processing_time(self, now_ms: int) -> Iterator[None]:
        """Fire what is due at ``now_ms``: timers and periodic watermarks."""
        yield from self._guarded(self._on_processing_time(now_ms))

    def _on_processing_time(self, now_ms: int) -> Iterator[None]:
        for node in self._timed:
            operator: Any = node.operator
            if isinstance(operator, SourceOperator):
                if operator.tick(now_ms):
                    for element in operator.take():
                        if self._batch:
                            pass
                        elif isinstance(element, Watermark):
                            yield from self._advance(node, element.timestamp)
                        else:
                            yield from self._send_status(node, element.idle)
                        operator.done()
            elif isinstance(operator, TimestampsAndWatermarksOperator):
                if operator.tick(now_ms):
                    yield from self.flush_pending(node)
            elif isinstance(operator, AsyncWaitOperator):
                yield from self.calls.send(node, now_ms)
            else:
                items = operator.fire_processing_time(now_ms)
                if items is not None:
                    yield from self._drain(node, items)

    def next_processing_time(self) -> Optional[int]:
        """When `on_processing_time` has something to do; None: not before a record comes."""
        first = None
        for node in self._timed:
            time = node.operator.next_processing_time
            if time is not None and (first is None or time < first):
                first = time
        return first

    # ---- checkpoints ----------------------------------------------------------------------------

    def prepare_snapshot_pre_barrier(self, checkpoint_id: int) -> Iterator[None]:
        """Before the barrier goes on, head to tail; it may emit."""
        yield from self._guarded(self._prepare_snapshot(checkpoint_id))

    def _prepare_snapshot(self, checkpoint_id: int) -> Iterator[None]:
        for node in self.nodes:
            items = node.operator.prepare_snapshot_pre_barrier(checkpoint_id)
            if items is not None:
                yield from self._drain(node, items)

    def snapshot_state(
        self, checkpoint_id: int, timestamp_ms: int, options: Optional[CheckpointOptions] = None
    ) -> list[OperatorPart]:
        """The synchronous part of each operator, tail to head, as in Flink.

        Args:
            options: None: as for a savepoint.
        """
        context = SnapshotContext(checkpoint_id, timestamp_ms, options)
        return [node.operator.snapshot_state(context) for node in reversed(self.nodes)]

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        for node in reversed(self.nodes):
            node.operator.notify_checkpoint_complete(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        for node in reversed(self.nodes):
            node.operator.notify_checkpoint_aborted(checkpoint_id)

    # ---- end ------------------------------------------------------------------------------------

    def end_input(self, input_index: int) -> Iterator[None]:
        """One input has ended; the last one finishes the operators, head to tail."""
        self._ended.add(input_index)
        at_end = len(self._ended) >= max(1, self.number_of_inputs)
        if self._sorted is not None:
            if self._sorted.end(input_index):
                yield from self._guarded(self._sorted.release(self))
            if at_end:
                yield from self._guarded(self._advance(self.head, MAX_WATERMARK_MS))
        if at_end:
            for node in self.nodes:
                yield from self._guarded(node.operator.finish())

    # ---- sinks ----------------------------------------------------------------------------------

    def sinks_have_room(self) -> bool:
        for sink in self._sinks:
            if not sink.has_room:
                return False
        return True

    def sink_descriptors(self) -> list[int]:
        """Descriptors of sinks without room, or with something that must still leave, to be waited for until
        writable."""
        found = [sink.fileno() for sink in self._sinks if not (sink.has_room and sink.flushed)]
        return [descriptor for descriptor in found if descriptor is not None]

    def on_idle(self) -> bool:
        """The input has run dry: sinks push out what they hold.  True: not all of it could leave."""
        held = False
        for sink in self._sinks:
            sink.on_idle()
            held = held or not sink.flushed
        return held

    def handle_operator_event(self, operator_id: str, payload: Any) -> None:
        for node in self.nodes:
            if node.operator.spec.operator_id == operator_id and hasattr(node.operator, "handle_event"):
                node.operator.handle_event(payload)
                return
        raise InternalError(
            f"an event {type(payload).__name__} came for operator {operator_id}",
            where=f'task "{self.environment.task_name}"',
            why="no operator of this chain has that id and takes events",
        )

    # ---- figures --------------------------------------------------------------------------------

    def num_keyed_state_entries(self) -> int:
        return sum(node.operator.num_keyed_state_entries for node in self.nodes)

    def num_event_time_timers(self) -> int:
        return sum(node.operator.num_event_time_timers for node in self.nodes)

    def num_processing_time_timers(self) -> int:
        return sum(node.operator.num_processing_time_timers for node in self.nodes)

    def watermark_generators(self) -> list[tuple[str, int, bool]]:
        """(operator name, watermark, idle) of those in mid-stream."""
        return [
            (node.operator.name, node.operator.emitted, node.operator.idle)
            for node in self.nodes
            if isinstance(node.operator, TimestampsAndWatermarksOperator)
        ]

    def metrics(self) -> dict[str, int]:
        """Figures of the operators, summed by name."""
        total: dict[str, int] = {} if self._sorted is None else self._sorted.metrics()
        for node in self.nodes:
            for name, value in node.operator.metrics().items():
                total[name] = total.get(name, 0) + value
        return total

    # ---- inside ---------------------------------------------------------------------------------

    def room(self) -> int:
        """Records that may be produced before the next suspension."""
        room = self.budget_max
        for writer in self._writers:
            writer_room = writer.room + self.overdraft
            if writer_room < room:
                room = writer_room
        for sink in self._sinks:
            if not sink.has_room:
                return 0
        return room

    def input_error(self, error: BaseException) -> BaseException:
        """What to raise for ``error`` of reading the records that this chain is sent."""
        return travel_error(error, self.head.operator.name, self.environment, "input")

    def _guarded(self, run: Iterator[None]) -> Iterator[None]:
        try:
            yield from run
        except BaseException as error:
            self._fail(error)

    def _fail(self, error: BaseException) -> NoReturn:
        """Raise what ``error`` is to the job: a UserFunctionError when it came out of user code."""
        let_pass(error)
        for sink in self._sinks:
            try:
                sink.write_pending()  # records before the one that failed have been emitted
            except BaseException as sink_error:
                let_pass(sink_error)
                error.__context__ = error.__context__ or sink_error
        failure = self._code.user_error(error)
        if failure is error:  # an operator has named it, and its cause
            raise error
        raise failure from error


def _build_nodes(
    spec: OperatorChainSpec, environment: TaskEnvironment, writers: dict[int, RecordWriter]
) -> list[Node]:
    nodes: dict[int, Node] = {}
    seen: set[int] = set()
    for chained in spec.operators:
        try:
            operator = create_operator(_with_own_functions(chained, seen), environment)
        except BaseException as error:  # copies functions, makes watermark generators
            if not is_raised_by_user_code(error):
                raise
            raise user_error(error, chained.name, environment, "creation") from error
        nodes[chained.node_id] = Node(operator)
    for output in spec.outputs:  # writers first: the last consumer, chained, needs no copy then
        target = Target(writer=writers[output.edge_id], partitioner=output.partitioner)
        nodes[output.source_id].add(output.output_tag, target)
    for edge in spec.edges:
        nodes[edge.source_id].add(edge.output_tag, Target(node=nodes[edge.target_id]))
    return list(nodes.values())


def _with_own_functions(chained: ChainedOperator, seen: set[int]) -> ChainedOperator:
    """Function objects hold state, so two operators that were given the same one get one each (as if
    they ran in different tasks)."""
    functions = [value for value in vars(chained.operator).values() if isinstance(value, Function)]
    if any(id(function) in seen for function in functions):
        return cloudpickle.loads(cloudpickle.dumps(chained))
    seen.update(map(id, functions))
    return chained


def _inputs_of(head: ChainedOperator) -> int:
    return 2 if isinstance(head.operator, _TWO_INPUTS) else 1


def _uses_clock(operator: RuntimeOperator) -> bool:
    if isinstance(operator, (SourceOperator, TimestampsAndWatermarksOperator)):
        return True
    return operator.fires and not isinstance(operator, AlignedWindowOperator)
