"""One subtask: moves elements from its input through its operator chain, a turn at a time.

States of the work inside RUNNING, and what a step of a turn does::

    suspended   a generator of the chain has yielded: resume it; of the chain nothing else is called
                meanwhile but the handlers of coordinators' events, which emit nothing
    batch       a batch is partly processed: take its next slice
    open        take a due timer, the next element of a gate, or poll the source
    at its end  all data have ended and the chain has finished, but checkpoints are to come: barriers are
                taken as before, and the last word on the outputs is EndOfData
    stopped     behind the barrier of a savepoint that stops the job: nothing until its fate is known
    draining    wait until the outputs, EndOfInput the last of them, are sent and snapshots are stored

A step is taken only while every writer and every sink has room, otherwise the subtask is
backpressured.  Without input it is idle: then the sinks are flushed and all open buffers sent.  A
turn ends after about ``budget_ns``; a slice holds as many records as the measured cost per record
allows.  Where the chain cannot suspend by itself, a slice is also bounded by the room of the
writers; where it can, what one go makes of a record, timer or window is bounded by ``chain.budget_max``,
which follows the measured time.

**Checkpoints.** Barriers go through the `BarrierAligner`, whose effects are carried out one by one between two
steps.  A snapshot is: what operators give before the barrier, the barrier on every output behind all
records, the synchronous part of each operator; the rest is `on_snapshot`'s.  A source puts the barrier
behind what it has collected and polls only after that.  From the order until then, events of its coordinator
wait: the coordinator's own snapshot has what they bring.

A barrier that overtakes finds a task that is most often backpressured.  Between two records it goes through at once;
the rest of the batch in work and what the gates hold are in flight.  In the middle of a record's output the
chain first finishes its slice, and may overdraw its outputs up to OVERDRAFT_RECORDS; one that makes more holds the
barrier up, as a blocked record does in Flink.  So does what a source has collected, which is little more than what it can process in two turns.
What is in flight goes to ``on_in_flight`` when it is complete, after the snapshot.

Nothing here waits, and nothing here reads a clock that was not passed in.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import Any, Callable, Iterable, Iterator, Optional, Sequence, Union

from flinkish.errors import FlinkishError, InternalError, TaskCancelled, UserError
from flinkish.messages.checkpoints import (
    CheckpointAborted,
    CheckpointComplete,
    CheckpointFailureReason,
    CheckpointMetrics,
    SnapshotKind,
)
from flinkish.messages.deployment import TaskDeploymentDescriptor
from flinkish.messages.elements import (
    MAX_WATERMARK_MS,
    MIN_WATERMARK_MS,
    CancelCheckpointMarker,
    CheckpointBarrier,
    ColumnBatch,
    Element,
    EndOfInput,
    LatencyMarker,
    RowBatch,
    Watermark,
    WatermarkStatus,
)
from flinkish.metrics import names
from flinkish.operators.codegen import BUDGET_MAX
from flinkish.operators.snapshots import TaskSnapshot
from flinkish.taskmanager.backpressure import BACKPRESSURED, BUSY, IDLE, TaskTimes
from flinkish.taskmanager.barrier_aligner import (
    AlignerEffect,
    BarrierAligner,
    GiveUp,
    InFlightComplete,
    Resume,
    StopPersisting,
    TakeSnapshot,
)
from flinkish.taskmanager.in_flight import InFlightData, Replayed
from flinkish.taskmanager.in_flight_collector import InFlightCollector
from flinkish.taskmanager.input_channel import InputChannel
from flinkish.taskmanager.input_gate import InputGate
from flinkish.taskmanager.record_writer import ChannelWriter
from flinkish.taskmanager.source_input import POLL_ROWS_MAX, SourceInput
from flinkish.taskmanager.task_failure import as_failure
from flinkish.taskmanager.watermark_report import WatermarkReporter

TURN_NS = 1_000_000
SLICE_RECORDS_FIRST = 1  # doubles with each slice that ends in time: a record may cost a second
SLICE_RECORDS_MAX = 4096
SURELY_SLOW_NS = 16 * TURN_NS  # a slice that took less may just have lost the CPU to other processes
SLICE_ROWS_MIN = 256  # of columns: a smaller slice costs as much
SLICE_ROWS_MAX = 64 * 1024
OVERDRAFT_RECORDS = 8192  # that an output takes above its room while a barrier waits to overtake
SINK_RETRY_MS = 5  # a sink without room and without a descriptor is asked again after this

_WORKED, _IDLE, _BLOCKED, _ENDED = range(4)

@dataclass(frozen=True)
class _EndOutputs:
    """An order that is none of the aligner's."""


_Order = Union[AlignerEffect, _EndOutputs]

#: Orders that are carried out also in the middle of a record's output.
_WITHOUT_CHAIN = (Resume, StopPersisting, InFlightComplete)

#: What reaches a subtask between two steps: an event (operator id, payload) of a coordinator, the order to
#: put a barrier, or what became of a checkpoint.
Mail = Union[tuple[str, Any], CheckpointBarrier, CheckpointComplete, CheckpointAborted]


class Task:
    """One subtask of a slot.

    Args:
        descriptor: what was deployed.
        chain: ``operators.chain.OperatorChain`` (or anything with its methods).
        gates: one for each input index, empty for a source.
        writers: one for each output edge.
        now_ms: processing time.
        on_state: called with the new state's name and the error, if any.
        on_snapshot: takes a snapshot over; keyed state in it may change as soon as this returns.
        on_in_flight: takes what the barrier of an unaligned checkpoint has overtaken here, or hears that it is dropped.
        on_declined: called with the id of a checkpoint that this subtask gives up, and why.
        on_end_of_data: called when all data have ended and the subtask stays.
        final_checkpoint: as in ``DeployTasks``.
        open_replay: reads what was in flight in the checkpoint from which the job goes on.
    """

    def __init__(
        self,
        descriptor: TaskDeploymentDescriptor,
        chain: Any,
        gates: Sequence[InputGate],
        writers: Sequence[ChannelWriter],
        now_ms: Callable[[], int],
        clock_ns: Callable[[], int],
        on_state: Callable[[Task, str, Optional[FlinkishError]], None],
        on_snapshot: Callable[[Task, TaskSnapshot], None],
        on_in_flight: Callable[[Task, InFlightData], None],
        on_declined: Callable[[Task, int, CheckpointFailureReason], None],
        on_end_of_data: Callable[[Task], None],
        final_checkpoint: bool = False,
        open_replay: Callable[[], Iterable[Replayed]] = tuple,
    ):
        self.descriptor = descriptor
        self.execution = descriptor.execution
        self.chain = chain
        self.gates = list(gates)
        self.writers = list(writers)
        self.now_ms = now_ms
        self.clock_ns = clock_ns
        self.on_state = on_state
        self.on_snapshot = on_snapshot
        self.open_replay = open_replay
        self.on_declined = on_declined
        self.on_end_of_data = on_end_of_data
        self.final_checkpoint = final_checkpoint
        self.state = "DEPLOYING"
        self.source = chain.source
        self._input = None if self.source is None else SourceInput(self.source, now_ms, clock_ns, 2 * TURN_NS)
        self.times = TaskTimes(clock_ns())

        self._room = 0
        self._suspended: Optional[Iterator[None]] = None
        self._batch: Optional[RowBatch | ColumnBatch] = None
        self._batch_input = self.gates[0].input_index if self.gates else 0
        self._batch_at = 0
        self._draining = False
        self._was_finished = descriptor.restore is not None and descriptor.restore.finished

        self._attention = False  # something below can be attended to
        self._mail: deque[Mail] = deque()
        self._held: deque[Mail] = deque()  # mail that waits for a barrier of the source, or for the chain
        self._orders: deque[_Order] = deque()
        self._barriers_queued = 0  # in the queue of the source
        self._records_due = False  # before the next of them
        self._channels = {channel.channel_id: (gate, channel) for gate in self.gates for channel in gate.channels}
        self.aligner = BarrierAligner(self._channels)
        for gate in self.gates:
            gate.on_closed = self._channel_closed
            gate.on_announced = self._announced
        self._announcements: deque[tuple[InputChannel, Element]] = deque()
        #: Whether barriers may overtake on its inputs.
        self._unaligned = any(
            channel.edge is not None and channel.edge.unaligned for gate in self.gates for channel in gate.channels
        )
        self._in_flight = InFlightCollector(
            self.execution.subtask_index, self.gates, self.writers, lambda data: on_in_flight(self, data)
        )
        self._latest_sent = 0  # id of the last barrier or marker that has gone out
        self._hurries = False  # a barrier waits to overtake: outputs may be overdrawn
        self._watermark_reporter = WatermarkReporter(self.gates, self.source, lambda: chain.watermark_generators())
        #: Snapshots that are not stored yet; the slot counts them.
        self.unstored = 0
        self._at_end = False
        self._first_at_end: Optional[int] = None  # id of the first snapshot since then
        self._stopping: Optional[int] = None  # id of the savepoint that stops the job
        self._ending = False  # the outputs have got their end, or are about to
        self._halted = False  # stopped or draining: no step

        self._next_gate = 0
        self._dirty = False  # has worked since it was idle last
        self._unsent = False  # flushed, and something could not leave

        self._cost_ns = 1_000.0  # of a record; the limit below is what counts at first
        self._last_cost_ns = float("inf")  # of a record in the last slice
        self._slice_rows = 4096
        self._slice_limit = SLICE_RECORDS_FIRST
        self._slice_records = 0  # of the slice in work, 0: none
        self._slice_is_columns = False
        self._slice_ns = 0

        chain.budget_max = SLICE_RECORDS_FIRST

    @property
    def name(self) -> str:
        subtask = f"{self.execution.subtask_index + 1}/{self.descriptor.parallelism}"
        return f"{self.descriptor.task_name} ({subtask})"

    @property
    def is_over(self) -> bool:
        return self.state in ("FINISHED", "FAILED", "CANCELED")

    # ---- life -----------------------------------------------------------------------------------

    def start(self) -> None:
        """Take over what was saved and open the operators: user code runs from here on."""
        assert self.state == "DEPLOYING", self.state
        if self._was_finished:  # before the checkpoint from which the job goes on
            self._become("RUNNING")
            self._at_end = True
            for writer in self.writers:
                writer.emit_watermark(MAX_WATERMARK_MS)
            self._end_outputs()
            return
        try:
            for replayed in self.open_replay():
                gate = next(gate for gate in self.gates if gate.input_index == replayed.edge.input_index)
                gate.replay.append(replayed)
            self.chain.open()
        except BaseException as error:
            self._end_with(error)
            return
        self._become("RUNNING")

    def cancel(self) -> None:
        """End between two records; the operators are closed."""
        if self.is_over:
            return
        self._become("CANCELING")
        error = self._release()
        self._become("CANCELED", error)

    def fail(self, error: BaseException) -> None:
        """Something outside the chain makes it impossible to go on (a peer is gone)."""
        if not self.is_over:
            self._end_with(error)

    def deliver(self, mail: Mail) -> None:
        """Handed on between two steps."""
        self._mail.append(mail)
        self._attention = True
        if isinstance(mail, CheckpointBarrier) and mail.options.unaligned:
            self._hurry()

    def handle_operator_event(self, operator_id: str, payload: Any) -> None:
        """From the coordinator of an operator of this subtask."""
        self.deliver((operator_id, payload))

    def _become(self, state: str, error: Optional[FlinkishError] = None) -> None:
        self.state = state
        self.on_state(self, state, error)

    def _end_with(self, error: BaseException) -> None:
        closing_error = self._release()
        if isinstance(error, TaskCancelled):
            self._become("CANCELED")
            return
        failure = self._as_failure(error)
        if closing_error is not None and "suppressed" not in failure.fields:
            failure.fields["suppressed"] = str(closing_error)
        self._become("FAILED", failure)

    def _release(self) -> Optional[FlinkishError]:
        """Close the chain and drop all queues; returns what went wrong."""
        first: Optional[FlinkishError] = None
        suspended, self._suspended = self._suspended, None
        for action in (getattr(suspended, "close", None), self._close_chain):
            if action is None:
                continue
            try:
                action()
            except BaseException as error:
                first = first or self._as_failure(error)
        for gate in self.gates:
            gate.close()
        for writer in self.writers:
            writer.discard()
        self._batch = None
        if self._input is not None:
            self._input.drop()
        self._mail.clear()
        self._held.clear()
        self._orders.clear()
        self._announcements.clear()
        return first

    def _close_chain(self) -> None:
        if not self._was_finished:
            self.chain.close()

    def _as_failure(self, error: BaseException) -> FlinkishError:
        return as_failure(error, self.name, self.descriptor)

    # ---- a turn ---------------------------------------------------------------------------------

    def run_turn(self, budget_ns: int = TURN_NS) -> bool:
        """Work for about ``budget_ns``, or until there is no input or no room.

        Returns:
            Whether it stopped only because its time was used up.
        """
        if self.state != "RUNNING":
            return False
        clock_ns, waited = self.clock_ns, self.times.state
        if self._input is not None:
            self._input.look = self._input.look or self._has_reason_to_look()
            self._input.begin_turn()
        if self._barrier_is_due():
            self._attention = True
        start = now = clock_ns()
        self.times.switch(waited, start)
        # A step that would begin in the last quarter waits for the next turn, so that turns neither
        # end in slices of a few records nor run twice as long.
        last_start = start + budget_ns - budget_ns // 4
        worked = False
        try:
            while True:
                outcome = self._step(budget_ns - (now - start))
                before, now = now, clock_ns()
                if self._slice_records:
                    self._slice_ns += now - before
                    if self._suspended is None:
                        self._learn_cost()
                if outcome is _WORKED:
                    worked = self._dirty = True
                    if self.chain.expanding:
                        self._learn_budget(now - before)
                    if now >= last_start:
                        now_ms = self.now_ms()
                        for writer in self.writers:
                            writer.pump_busy(now_ms)
                        break
                    if not self._has_run_dry():
                        continue
                    outcome = _IDLE
                if outcome is _BLOCKED:
                    if self._dirty and self._held_by_calls():
                        self._dirty = self.chain.on_idle()
                    self._flush_writers()
                    if not self._has_room():
                        break
                    if now >= last_start:
                        outcome = _WORKED
                        break
                elif outcome is _IDLE:
                    if self._dirty:
                        self._dirty = self.chain.on_idle()
                    self._flush_writers()
                    break
                else:
                    self._flush_writers()
                    if not self.unstored and all([writer.is_empty for writer in self.writers]):
                        self._finish()
                    break
        except BaseException as error:
            self._end_with(error)
            outcome = _IDLE
        now = clock_ns()
        if worked:
            self.times.state = BUSY  # what has passed since the start was work
        state = BUSY if outcome is _WORKED else BACKPRESSURED if outcome is _BLOCKED else IDLE
        if self._draining and not self.is_over:
            state = BACKPRESSURED
        self.times.switch(state, now)
        return outcome is _WORKED

    def _step(self, left_ns: int) -> int:
        if self._attention:
            self._attend()
        if self._halted:
            return _ENDED if self._draining else _IDLE
        if not self._has_room():
            self._records_given()
            return _BLOCKED
        if self._suspended is not None:
            self._resume()
            return _WORKED
        due = self.chain.next_processing_time()
        if due is not None and not self._at_end:
            now_ms = self.now_ms()
            if due <= now_ms:
                self._run(self.chain.on_processing_time(now_ms))
                return _WORKED
        if self._batch is None:
            element = self._next_element()
            if element is None:
                self._records_given()
                return _IDLE
            self._take(element)
            if self._batch is None or self.chain.calls.room <= 0:
                return _WORKED
        self._run_slice(left_ns)
        return _WORKED

    def _has_room(self) -> bool:
        room = POLL_ROWS_MAX
        for writer in self.writers:
            writer_room = writer.make_room()
            if writer_room < room:
                room = writer_room
        if self._hurries:
            room += OVERDRAFT_RECORDS
        self._room = room
        if room <= 0 or not self.chain.sinks_have_room():
            return False
        return not self._held_by_calls()

    def _held_by_calls(self) -> bool:
        """Whether nothing is to be done before an asynchronous operator of the chain has an answer.  One whose calls are as many
        as may be stops records, and not what comes between them."""
        calls = self.chain.calls
        if self._suspended is not None:
            return calls.hold_suspended
        if calls.room > 0 or calls.are_due:
            return False
        return self._batch is not None or (self._input is not None and not self._input.has_collected)

    def _run(self, generator: Iterator[None]) -> None:
        """Start a generator of the chain; it may suspend."""
        self._suspended = generator
        self._resume()

    def _resume(self) -> None:
        generator = self._suspended
        for _ in generator:  # type: ignore[union-attr]
            return
        self._suspended = None
        if self._orders or self._held or self._mail or self._hurries:
            self._attention = True

    def _run_slice(self, left_ns: int) -> None:
        batch, start = self._batch, self._batch_at
        self._records_given()
        columns = type(batch) is ColumnBatch
        if columns:
            count = self._slice_rows
        else:
            count = max(1, min(self._slice_limit, int(left_ns / self._cost_ns)))
        if not self.chain.expanding and count > self._room:
            count = self._room
        count = min(count, self.chain.calls.room)  # a barrier waits for the records of a slice, and calls take long
        total = len(batch if columns else batch.values)  # type: ignore[union-attr,arg-type]
        stop = min(total, start + count)
        if stop == total:
            self._batch = None
        else:
            self._batch_at = stop
        self._slice_records, self._slice_is_columns, self._slice_ns = stop - start, columns, 0
        self._run(self.chain.process_batch(self._batch_input, batch, start, stop))

    def _learn_cost(self) -> None:
        records, spent = self._slice_records, self._slice_ns
        self._slice_records = 0
        if self._slice_is_columns:
            # A batch has a price of its own, so the cost of a row says little: grow while it is cheap.
            if spent > 4 * TURN_NS:
                self._slice_rows = max(SLICE_ROWS_MIN, records // 2)
            elif spent < 2 * TURN_NS and 2 * records > self._slice_rows:
                self._slice_rows = min(SLICE_ROWS_MAX, 2 * self._slice_rows)
            return
        cost = max(1.0, spent / records)
        # One dear slice says little where processes compete for the cores, two in a row do.
        last, self._last_cost_ns = self._last_cost_ns, cost
        if spent < SURELY_SLOW_NS:
            cost = min(cost, last)
        self._cost_ns = (self._cost_ns + cost) / 2
        if cost * records > 2 * TURN_NS:
            self._slice_limit = max(1, records // 2)
        elif 2 * records > self._slice_limit:
            self._slice_limit = min(SLICE_RECORDS_MAX, 2 * records)

    def _learn_budget(self, spent: int) -> None:
        """What one record expands into is cut by time too: each result may cost 10 ms further down the
        chain, or take 16 MB."""
        chain = self.chain
        if spent > 2 * TURN_NS:
            chain.budget_max = max(1, chain.budget_max * TURN_NS // spent)
        elif spent < TURN_NS // 2:
            chain.budget_max = min(BUDGET_MAX, 2 * chain.budget_max)

    # ---- input ----------------------------------------------------------------------------------

    def _next_element(self) -> Any:
        gates = self.gates
        if self._input is not None:  # a barrier waits for what slow functions make of the records
            records_max = 2 * self._slice_limit
            calls_room = self.chain.calls.room
            return self._input.next_element(self._room, min(records_max, calls_room), self._at_end or calls_room <= 0)
        try:
            if len(gates) == 1:
                return gates[0].next_element()
            for _ in gates:  # two inputs take turns
                gate = gates[self._next_gate]
                self._next_gate = (self._next_gate + 1) % len(gates)
                element = gate.next_element()
                if element is not None:
                    self._batch_input = gate.input_index
                    return element
        except UserError as error:
            raise self.chain.input_error(error) from error.__cause__
        return None

    def _take(self, element: Any) -> None:
        kind = type(element)
        if kind is RowBatch or kind is ColumnBatch:
            if element.values if kind is RowBatch else len(element):  # type: ignore[union-attr,arg-type]
                self._batch, self._batch_at = element, 0
            return
        chain, index = self.chain, self._batch_input
        if kind is Watermark:
            self._run(chain.process_watermark(index, element.timestamp))
        elif kind is WatermarkStatus:
            self._run(chain.process_watermark_status(index, element.idle))
        elif kind is EndOfInput:
            self._run(self._end_input(index))
        elif kind is LatencyMarker:
            for writer in self.writers:
                writer.emit_latency_marker(element)
        elif kind is tuple:
            self._take_checkpoint_event(*element)
        elif kind is CheckpointBarrier:  # of a source
            self._obey(self.aligner.ordered(element, self.now_ms()))
            self._barriers_queued -= 1
            self._records_due = self._attention = True
        else:
            raise InternalError("could not process an element", why=f"unknown kind {kind.__name__}")

    def _end_input(self, index: int) -> Iterator[None]:
        yield from self.chain.end_input(index)
        if all([gate.ended for gate in self.gates]):
            self._at_end = True
            stays = self.final_checkpoint or self._stopping is not None
            if stays or not all([gate.closed for gate in self.gates]):
                for writer in self.writers:
                    writer.emit_end_of_data()
                self.on_end_of_data(self)
            else:
                self._end_outputs()

    def _end_outputs(self) -> None:
        """Nothing more comes from here; a snapshot that is due goes first."""
        if not self._ending:
            self._ending = True
            self._obey([_EndOutputs()])

    # ---- checkpoints ----------------------------------------------------------------------------

    def _attend(self) -> None:
        """Carry out what the aligner has decided, then read the mail, each as far as it may be now."""
        if self._barrier_is_due():
            now_ms = self.now_ms()
            self._in_flight.tick(now_ms)
            self._obey(self.aligner.tick(now_ms))
        while True:
            is_open = self._suspended is None
            if self._announcements:
                self._read_announcement(*self._announcements.popleft())
                continue
            if self._orders and (is_open or type(self._orders[0]) in _WITHOUT_CHAIN):
                self._carry_out(self._orders.popleft())
                continue
            if self._held and is_open and not self._barriers_queued:
                self._mail.extendleft(reversed(self._held))
                self._held.clear()
            if not self._mail or self._comes_behind_records(self._mail[0]):
                break
            mail = self._mail.popleft()
            # Handlers of coordinators' events emit nothing, and it may be this event that makes room (the
            # coordinator of a sink has acknowledged), so they are called also while the chain is suspended.
            if type(mail) is tuple and not self._is_of_source(mail[0]):
                self.chain.handle_operator_event(*mail)
            elif self._held or not is_open or self._barriers_queued:
                self._held.append(mail)
            else:
                self._read(mail)
        if self._hurries and self._suspended is None and not (self._orders or self._held or self._barriers_queued):
            self._hurries, self.chain.overdraft = False, 0
        self._attention = False

    def _comes_behind_records(self, mail: Mail) -> bool:
        """Between two barriers a source gives some records, if it has any and there is room for them, as in Flink: else
        nothing but checkpoints would come of several at once whose snapshots take longer than their interval."""
        if not self._records_due or self._halted or self._at_end or self._ending:
            return False
        return isinstance(mail, CheckpointBarrier)

    def _records_given(self) -> None:
        """Or none can be, now."""
        if self._records_due:
            self._records_due = False
            self._attention = self._attention or bool(self._mail)

    def _is_of_source(self, operator_id: str) -> bool:
        return self.source is not None and self.source.operator_id == operator_id

    def _read(self, mail: Mail) -> None:
        if type(mail) is tuple:
            self.chain.handle_operator_event(*mail)
        elif isinstance(mail, CheckpointBarrier):
            self._put_barrier(mail)
        elif isinstance(mail, CheckpointComplete):
            self._checkpoint_complete(mail.checkpoint_id)
        elif isinstance(mail, CheckpointAborted):
            self._in_flight.drop(mail.checkpoint_id)
            self._obey(self.aligner.aborted(mail.checkpoint_id))
            self.chain.notify_checkpoint_aborted(mail.checkpoint_id)
            if self._stopping == mail.checkpoint_id and not self._ending:
                self._stopping, self._halted = None, False

    def _put_barrier(self, barrier: CheckpointBarrier) -> None:
        if self._halted or self._ending:
            self.on_declined(self, barrier.checkpoint_id, CheckpointFailureReason.TASK_CLOSING)
            return
        if self._input is None:
            if barrier.options.unaligned and not self._unaligned:
                barrier = replace(barrier, options=replace(barrier.options, forced_aligned=True))
            self._obey(self.aligner.ordered(barrier, self.now_ms()))
            return
        self._input.take_collected()
        if barrier.options.kind is SnapshotKind.SAVEPOINT_TERMINATE and not self._at_end:
            self._stopping = barrier.checkpoint_id
            self._input.end()
        self._input.put(barrier)
        self._barriers_queued += 1

    def _take_checkpoint_event(
        self, channel: InputChannel, event: Union[CheckpointBarrier, CancelCheckpointMarker]
    ) -> None:
        if isinstance(event, CheckpointBarrier):
            self._obey(self.aligner.barrier(channel.channel_id, event, self.now_ms()))
        else:
            self._obey(self.aligner.cancelled(channel.channel_id, event.checkpoint_id))

    def _channel_closed(self, channel: InputChannel) -> None:
        self._obey(self.aligner.ended(channel.channel_id, self.now_ms()))
        if self._at_end and not self.final_checkpoint and all([gate.closed for gate in self.gates]):
            self._end_outputs()

    def _announced(self, channel: InputChannel, event: Element) -> None:
        self._announcements.append((channel, event))
        self._attention = True

    def _read_announcement(self, channel: InputChannel, event: Element) -> None:
        if channel.channel_id not in self.aligner.open:
            return
        if isinstance(event, CheckpointBarrier):
            self._obey(self.aligner.announced(channel.channel_id, event, self.now_ms()))
        else:
            self._obey(self.aligner.end_announced(channel.channel_id, self.now_ms()))

    def _obey(self, orders: Sequence[_Order]) -> None:
        if orders:
            self._orders.extend(orders)
            self._attention = True
            if any([isinstance(order, TakeSnapshot) and order.barrier.options.unaligned for order in orders]):
                self._hurry()

    def _hurry(self) -> None:
        self._hurries, self.chain.overdraft = True, OVERDRAFT_RECORDS

    def _carry_out(self, order: _Order) -> None:
        if isinstance(order, TakeSnapshot):
            self._run(self._snapshot(order))
        elif isinstance(order, StopPersisting):
            self._in_flight.channel_complete(order.checkpoint_id, order.channel)
        elif isinstance(order, InFlightComplete):
            self._in_flight.inputs_complete(order.checkpoint_id)
        elif isinstance(order, Resume):
            for channel_id in order.channels:
                gate, channel = self._channels[channel_id]
                gate.resume(channel)
        elif isinstance(order, _EndOutputs):
            for writer in self.writers:
                writer.emit_end_of_input()
            self._draining = self._halted = True
        else:
            assert isinstance(order, GiveUp), order
            self._in_flight.drop(order.checkpoint_id)
            # Who has got the barrier or the marker of a younger one has given this one up.
            if order.checkpoint_id > self._latest_sent:
                self._latest_sent = order.checkpoint_id
                marker = CancelCheckpointMarker(order.checkpoint_id)
                for writer in self.writers:
                    writer.emit_marker(marker)
            self.on_declined(self, order.checkpoint_id, order.reason)

    def _snapshot(self, order: TakeSnapshot) -> Iterator[None]:
        barrier, begun = order.barrier, self.clock_ns()
        checkpoint_id, kind = barrier.checkpoint_id, barrier.options.kind
        yield from self.chain.prepare_snapshot_pre_barrier(checkpoint_id)
        in_flight = self._in_flight.send_barrier(order, self._rest_of_batch())
        self._latest_sent = checkpoint_id
        parts = self.chain.snapshot_state(checkpoint_id, barrier.timestamp_ms, barrier.options)
        metrics = CheckpointMetrics(
            alignment_duration_ms=order.alignment_ms,
            start_delay_ms=max(0, self.now_ms() - order.alignment_ms - barrier.timestamp_ms),
            sync_duration_ms=(self.clock_ns() - begun) // 1_000_000,
            unaligned=order.unaligned,
        )
        snapshot = TaskSnapshot(
            self.execution,
            checkpoint_id,
            barrier.options,
            {part.operator_id: part.keyed for part in parts if part.keyed is not None},
            {part.operator_id: part.operator for part in parts if part.operator is not None},
            {part.operator_id: part.committables for part in parts if part.committables is not None},
            self._at_end,
            metrics,
            in_flight is not None,
        )
        if self._at_end and self._first_at_end is None:
            self._first_at_end = checkpoint_id
        if kind.stops:
            self._stopping = checkpoint_id
            self._halted = self._halted or kind is SnapshotKind.SAVEPOINT_SUSPEND
        self.on_snapshot(self, snapshot)
        if in_flight is not None:
            self._in_flight.begin(in_flight)

    def _rest_of_batch(self) -> Optional[tuple[InputGate, RowBatch | ColumnBatch]]:
        batch, start = self._batch, self._batch_at
        if batch is None or not self.gates:
            return None
        gate = next(gate for gate in self.gates if gate.input_index == self._batch_input)
        times = None if batch.timestamps is None else batch.timestamps[start:]
        if isinstance(batch, RowBatch):
            return gate, RowBatch(batch.values[start:], times)
        return gate, ColumnBatch(batch.columns.slice(start), times)

    def _overtakes_at_ms(self) -> Optional[int]:
        """When a barrier that waits here overtakes."""
        if not self.aligner.pending:
            return self._in_flight.overtakes_at_ms
        times = (self.aligner.deadline_ms, self._in_flight.overtakes_at_ms)
        return min([time for time in times if time is not None], default=None)

    def _barrier_is_due(self) -> bool:
        """Whether one that waits here is to overtake now."""
        if not self.aligner.pending and self._in_flight.data is None:
            return False
        overtakes_at_ms = self._overtakes_at_ms()
        return overtakes_at_ms is not None and self.now_ms() >= overtakes_at_ms

    def _checkpoint_complete(self, checkpoint_id: int) -> None:
        self.chain.notify_checkpoint_complete(checkpoint_id)
        final = self._first_at_end if self.final_checkpoint else None
        if self._stopping == checkpoint_id or (final is not None and checkpoint_id >= final):
            self._end_outputs()

    # ---- output ---------------------------------------------------------------------------------

    def _flush_writers(self) -> None:
        self._unsent = False
        for writer in self.writers:
            writer.pump(flush=True)
            if not writer.is_empty:
                self._unsent = True
        self._in_flight.outputs_moved()

    def move_outputs(self) -> None:
        """Between turns: what credits allow now, also of a subtask that has stopped."""
        try:
            if self._unsent if self.times.state != BUSY else not self._has_room():
                self._flush_writers()
        except BaseException as error:  # a record that cannot be sent is this subtask's failure
            self._end_with(error)

    def _finish(self) -> None:
        error: Optional[BaseException] = None
        try:
            self._close_chain()
        except BaseException as raised:
            error = raised
        for gate in self.gates:
            gate.close()
        if error is None:
            self._become("FINISHED")
        else:
            self._become("FAILED", self._as_failure(error))

    # ---- what the slot asks ---------------------------------------------------------------------

    def look(self) -> None:
        """Poll the source again, although it had nothing: something may have come since."""
        if self._input is not None:
            self._input.look = True

    def needs_turn(self) -> bool:
        """Whether a turn may do something: all but an idle subtask to which nothing has come."""
        return self._has_reason_to_look() or self._has_work()

    def _has_reason_to_look(self) -> bool:
        """Whether anything has happened to the subtask since its source had nothing."""
        if self.times.state != IDLE or self._attention or self._dirty or self._barrier_is_due():
            return True
        return self._input is not None and self._input.is_to_be_asked()

    def wants_turn(self) -> bool:
        """Whether a turn now would go on with something."""
        if self.state != "RUNNING":
            return False
        if self._attention:
            return True
        if self._draining:
            sent = not self._unsent or all([writer.is_empty for writer in self.writers])
            return sent and not self.unstored
        # One whose time was up may have nothing left, and has not told its sinks and outputs so.
        return (self.times.state == BUSY or self._has_work()) and self._has_room()

    def _has_run_dry(self) -> bool:
        """Whether another step of this turn would find nothing.  Asked after each, so that what a single
        record makes leaves before anything else is looked at."""
        if self._attention or self._halted:
            return False
        if self._input is not None and self._input.may_have_more(self._at_end):
            return False
        return not self._has_work() and self.chain.sinks_have_room()

    def _has_work(self) -> bool:
        if self._suspended is not None or self._batch is not None:
            return True
        if self._halted:
            return False
        if self._input is not None and self._input.has_input:
            return True
        for gate in self.gates:
            if gate.has_input:
                return True
        due = self.chain.next_processing_time()
        return due is not None and not self._at_end and due <= self.now_ms()

    @property
    def waits_for_source(self) -> bool:
        return (
            self.state == "RUNNING"
            and self.source is not None
            and not self._halted
            and not self._at_end
            and not self.source.is_paused
            and self.times.state == IDLE
        )

    @property
    def waits_to_send(self) -> bool:
        """Whether records that could go wait for credit or for a connection."""
        return self._unsent or self.times.state == BACKPRESSURED

    def next_deadline_ms(self) -> Optional[int]:
        """When a turn is due although nothing arrives, as processing time."""
        if self.state != "RUNNING":
            return None
        first = self._overtakes_at_ms()
        if self._halted:
            return first
        if self._suspended is None and not self._at_end and self.times.state != BACKPRESSURED:
            first = _earlier(first, self.chain.next_processing_time())
        elif self.times.state == BACKPRESSURED and self._held_by_calls():
            first = _earlier(first, self.chain.calls.next_time_ms)
        if self.waits_for_source:
            first = _earlier(first, self._input.next_poll_ms)
        if self._waits_for_sinks:
            first = _earlier(first, self.now_ms() + SINK_RETRY_MS)
        return first

    def descriptors(self) -> dict[int, str]:
        """Descriptors that this subtask waits for."""
        if self.state != "RUNNING":
            return {}
        found = {fd: "w" for fd in self.chain.sink_descriptors()} if self._waits_for_sinks else {}
        if self.waits_for_source:
            fd = self.source.fileno()
            if fd is not None:
                found[fd] = "r"
        return found

    @property
    def _waits_for_sinks(self) -> bool:
        """Whether they can take no more, or hold what could not leave when the input ran dry."""
        if self.times.state == IDLE:
            return self._dirty
        if self.times.state != BACKPRESSURED:
            return False
        return not self.chain.sinks_have_room() or (self._dirty and self._held_by_calls())

    def watermarks(self) -> dict[str, Any]:
        """How far event time is, and what holds it back, see ``watermark_report``."""
        return self._watermark_reporter.report(self.now_ms())

    def metrics(self) -> dict[str, Any]:
        """Flink's metric names, see ``flinkish.metrics.names``."""
        watermark = min(
            [gate.valve.output_watermark for gate in self.gates], default=MIN_WATERMARK_MS
        )
        records_in = sum([gate.records_in for gate in self.gates])
        if self._input is not None:
            records_in += self._input.records_in
        usages_in = [gate.pool_usage for gate in self.gates]
        usages_out = [writer.pool_usage for writer in self.writers]
        return {
            **self.chain.metrics(),
            **self.chain.environment.metric_group.snapshot(),
            **self.times.rates(self.clock_ns()),
            **self.times.totals(),
            names.IN_POOL_USAGE: max(usages_in, default=0.0),
            names.OUT_POOL_USAGE: max(usages_out, default=0.0),
            names.NUM_RECORDS_IN: records_in,
            names.NUM_RECORDS_OUT: sum([writer.records_out for writer in self.writers]),
            names.NUM_BYTES_IN: sum([c.bytes_in for gate in self.gates for c in gate.channels]),
            names.NUM_BYTES_OUT: sum([writer.bytes_out for writer in self.writers]),
            names.CURRENT_INPUT_WATERMARK: watermark,
        }


def _earlier(one: Optional[int], other: Optional[int]) -> Optional[int]:
    """The earlier of two times, None being never."""
    if one is None or other is None:
        return other if one is None else one
    return one if one <= other else other
