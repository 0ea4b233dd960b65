"""Barriers in the data plane: random jobs over simulated slots and a simulated network, with checkpoints.

A JobManager that is only as clever as it must be triggers checkpoints with rising ids, several at a time,
gives some up, hears that some could not be stored, and tells all slots.  Each slot hears it in order, but when it
likes.  What must hold:

* **A consistent cut.** Of a checkpoint that all subtasks have acknowledged: what a vertex has taken before its
  snapshots, and what is in flight to it where barriers overtake, is what the vertices before it had given before
  theirs, record by record.  So no record is on both sides of a barrier, or on none, on any channel.
* Nothing is lost or doubled by barriers, and what sinks prepare is acknowledged once.
* Each subtask acknowledges in the order of ids, and hears of what became of a checkpoint.
* When faults are over a checkpoint is complete, and the job ends: with a final checkpoint, if it wants one.
"""

from __future__ import annotations

import pickle
import random
from collections import Counter, deque
from typing import Any, Iterable, Optional

from flinkish.datastream import partitioners
from flinkish.graph.execution_graph import slots_needed
from flinkish.jobmanager.checkpoint_plan import CheckpointedVertex, subtasks_to_trigger
from flinkish.messages.checkpoints import (
    AcknowledgeCheckpoint,
    Bytes,
    CheckpointAborted,
    CheckpointComplete,
    CheckpointFailureReason,
    CheckpointOptions,
    DeclineCheckpoint,
    InFlightPart,
    InFlightRestore,
    NotifyEndOfData,
    SnapshotKind,
    TriggerCheckpoint,
)
from flinkish.messages.control import SinkCommittables
from flinkish.messages.deployment import ExecutionAttemptID
from flinkish.messages.elements import RowBatch
from flinkish.operators.output import open_inline
from flinkish.taskmanager import task as task_module
from flinkish.taskmanager.barrier_aligner import BarrierAligner
from flinkish.taskmanager.in_flight import element_of, read_frames
from flinkish.testing.scripted_chain import ScriptLog
from flinkish.testing.simulated_slots import SimulatedSlots
from tests.simulation.random_jobs import RandomJob

_OVER = ("FINISHED", "FAILED", "CANCELED")


class BarrierWorld:
    """``aligner``: class under test.  ``unaligned``: whether barriers may overtake, with or without patience."""

    unaligned = False
    counts: tuple[int, ...] = (1, 8, 24)
    frame_records: tuple[int, ...] = (1, 3, 16)
    steps_max = 100_000  # a random job with two broadcasts in a row has taken 20,675

    def __init__(self, seed: int, aligner: type[BarrierAligner] = BarrierAligner):
        self.rng = rng = random.Random(seed)
        self.aligner = aligner
        self.log = ScriptLog()
        self.events: list[str] = []
        self.exactly_once = self.unaligned or rng.random() < 0.7
        self.aligned_timeout_ms = rng.choice((None, 0, 5, 60)) if self.unaligned else None
        self.final = rng.random() < 0.5
        self.concurrent_max = 1 if self.unaligned else rng.choice((1, 1, 2, 4))
        self.harshness = rng.choice((0.0, 0.3, 1.0))
        self.job = RandomJob(rng, counts=self.counts, committables=True)
        self.vertices = [
            CheckpointedVertex(
                vertex.id, vertex.parallelism, vertex.max_parallelism, (),
                tuple((edge.source_vertex_id, edge.partitioner.pointwise) for edge in vertex.inputs),
            )
            for vertex in self.job.vertices
        ]  # fmt: skip
        slot_ids = [f"s{index}" for index in range(slots_needed(self.job.graph))]
        self.slots = SimulatedSlots(
            seed, slot_ids, self.log.chain, network_slow=rng.random(), credits=rng.randint(1, 3)
        )
        self.inboxes: dict[str, deque] = {slot_id: deque() for slot_id in slot_ids}
        self.executions: set[ExecutionAttemptID] = set()
        self.at_end: set[ExecutionAttemptID] = set()
        self.next_id = 1
        self.pending: dict[int, set[ExecutionAttemptID]] = {}
        self.complete: list[int] = []
        self.acknowledged: dict[ExecutionAttemptID, list[AcknowledgeCheckpoint]] = {}
        self.declined: Counter[CheckpointFailureReason] = Counter()
        self.in_flight_seen = 0

    # ---- a run ----------------------------------------------------------------------------------

    def run(self) -> None:
        original, task_module.BarrierAligner = task_module.BarrierAligner, self.aligner
        try:
            self._deploy()
        finally:
            task_module.BarrierAligner = original
        quiet_until = self.rng.randint(0, 400)
        for step in range(self.steps_max):
            if step % 50 == 0:
                self.slots.check()
            if self._is_over():
                break
            self._move(faults=step < quiet_until)
        else:
            raise AssertionError(f"no end after {self.steps_max} steps: {self.slots.states}")
        self._drain()
        self._check_end()

    def story(self) -> Iterable[str]:
        return [f"{'exactly' if self.exactly_once else 'at least'} once, final={self.final}", *self.events[-80:]]

    def _deploy(self) -> None:
        rng = self.rng
        self.slots.deploy(
            self.job.graph,
            {
                "taskmanager.network.max-records-per-batch": str(rng.choice(self.frame_records)),
                "taskmanager.network.max-pending-bytes": str(rng.choice((200, 5_000))),
                "execution.buffer-timeout": str(rng.choice((-1, 0, 3))),
            },
            self.final,
        )
        self.slots.start()
        self.executions = set(self.slots.states)

    def _move(self, faults: bool) -> None:
        rng, chance = self.rng, self.rng.random()
        if chance < 0.06:
            self._trigger()
        elif chance < 0.2:
            self._deliver_one()
        elif chance < 0.32:
            self._read_messages()
        elif chance < 0.45:
            busy = [slot_id for slot_id, storing in self.slots.storing.items() if storing]
            if busy:
                self.slots.store_one(rng.choice(busy), faults and rng.random() < 0.2 * self.harshness)
        elif chance < 0.46 and faults and self.pending and rng.random() < self.harshness:
            self._give_up(rng.choice(sorted(self.pending)), "expired")
        elif not self.slots.step():
            self.slots.now_ms += 1
            self.slots.wakeup()
            self._trigger()

    def _drain(self) -> None:
        """All tasks are over: what they have said is still to be read."""
        self._read_messages()

    # ---- the JobManager -------------------------------------------------------------------------

    @property
    def _running(self) -> set[ExecutionAttemptID]:
        return {execution for execution in self.executions if self.slots.states[execution] not in _OVER}

    def _trigger(self) -> None:
        running = self._running
        if not running or len(self.pending) >= self.concurrent_max:
            return
        checkpoint_id = self.next_id
        self.next_id += self.rng.choice((1, 1, 3))
        by_subtask = {(execution.vertex_id, execution.subtask_index): execution for execution in running}
        chosen = subtasks_to_trigger(self.vertices, by_subtask.keys())
        self.events.append(f"trigger {checkpoint_id} at {chosen}")
        self.pending[checkpoint_id] = set(running)
        savepoint = self.unaligned and self.rng.random() < 0.2  # these are always aligned
        options = CheckpointOptions(
            SnapshotKind.SAVEPOINT if savepoint else SnapshotKind.CHECKPOINT,
            "file:/chk",
            "file:/shared",
            self.exactly_once,
            self.unaligned and not savepoint,
            None if savepoint else self.aligned_timeout_ms,
        )
        for subtask in chosen:
            execution = by_subtask[subtask]
            trigger = TriggerCheckpoint(execution, checkpoint_id, self.slots.now_ms, options)
            self.inboxes[self.slots.slot_of(execution)].append(trigger)

    def _deliver_one(self) -> None:
        waiting = [slot_id for slot_id, inbox in self.inboxes.items() if inbox]
        if not waiting:
            return
        slot_id = self.rng.choice(sorted(waiting))
        message = self.inboxes[slot_id].popleft()
        if isinstance(message, TriggerCheckpoint):
            self.slots.tell(message.execution, message)
        else:
            self.slots.notify(slot_id, message)

    def _read_messages(self) -> None:
        messages, self.slots.checkpoint_messages = self.slots.checkpoint_messages, []
        for message in messages:
            match message:
                case AcknowledgeCheckpoint():
                    self._acknowledge(message)
                case DeclineCheckpoint(execution, checkpoint_id, _, reason):
                    self.declined[reason] += 1
                    if checkpoint_id in self.pending:
                        self._give_up(checkpoint_id, f"{execution} declined: {reason.name}")
                case NotifyEndOfData(execution):
                    assert execution not in self.at_end
                    self.at_end.add(execution)
        for checkpoint_id, waiting in list(self.pending.items()):
            if any(self.slots.states[execution] in _OVER for execution in waiting):
                self._give_up(checkpoint_id, "a task has ended")

    def _acknowledge(self, message: AcknowledgeCheckpoint) -> None:
        before = self.acknowledged.setdefault(message.execution, [])
        assert not before or before[-1].checkpoint_id < message.checkpoint_id, "out of order"
        before.append(message)
        waiting = self.pending.get(message.checkpoint_id)
        if waiting is None:
            return
        waiting.discard(message.execution)
        if waiting:
            return
        checkpoint_id = message.checkpoint_id
        del self.pending[checkpoint_id]
        self.events.append(f"complete {checkpoint_id}")
        self.complete.append(checkpoint_id)
        self._check_cut(checkpoint_id)
        self._tell_all(CheckpointComplete("job", checkpoint_id))
        for older in [known for known in self.pending if known < checkpoint_id]:
            self._give_up(older, "subsumed")

    def _give_up(self, checkpoint_id: int, why: str) -> None:
        self.events.append(f"give up {checkpoint_id}: {why}")
        del self.pending[checkpoint_id]
        self._tell_all(CheckpointAborted("job", checkpoint_id, max(self.complete, default=0)))

    def _tell_all(self, notice: Any) -> None:
        for inbox in self.inboxes.values():
            inbox.append(notice)

    def _is_over(self) -> bool:
        for error in self.slots.failures.values():
            raise AssertionError(f"{error}\n{error.fields}")
        return all(state in _OVER for state in self.slots.states.values())

    # ---- what must hold -------------------------------------------------------------------------

    def _before(self, vertex_id: str, parallelism: int, checkpoint_id: Optional[int]) -> list[tuple[int, Any, int]]:
        """(input, record, subtask) that a vertex has taken before its snapshots, all that it has taken of a
        subtask that had ended before and took none."""
        taken = []
        for subtask in range(parallelism):
            for kind, index, value, _ in self.log.seen[vertex_id, subtask]:
                if kind == "snapshot" and value == checkpoint_id:
                    break
                if kind == "record":
                    taken.append((index, value, subtask))
        return taken

    def _in_flight(self, checkpoint_id: int) -> dict[int, list[Any]]:
        """Records in flight in a checkpoint, by edge id, in the order in which they would be taken."""
        found: dict[int, list[Any]] = {}
        for content, part in self._in_flight_parts(checkpoint_id):
            restore = InFlightRestore(part.edge.edge_id, None, content, part.offset, part.length, part.checksum)
            for frame in read_frames(open_inline(content), restore):
                element = element_of(frame)
                if isinstance(element, RowBatch):
                    found.setdefault(part.edge.edge_id, []).extend(element.values)
        return found

    def _in_flight_parts(self, checkpoint_id: int) -> list[tuple[Bytes, InFlightPart]]:
        return [
            (handle.content, part)
            for _, messages in sorted(self.acknowledged.items())
            for message in messages
            if message.checkpoint_id == checkpoint_id
            for handle in message.state.in_flight
            for part in handle.parts
        ]

    def _check_cut(self, checkpoint_id: int) -> None:
        in_flight = self._in_flight(checkpoint_id)
        self.in_flight_seen += sum(map(len, in_flight.values()))
        parallelism = {vertex.id: vertex.parallelism for vertex in self.job.vertices}
        given: dict[str, Counter] = {}
        for vertex in self.job.vertices:
            taken = self._before(vertex.id, vertex.parallelism, checkpoint_id)
            process = vertex.chain.process  # type: ignore[attr-defined]
            given[vertex.id] = Counter(
                result
                for _, value, subtask in taken
                for result in ((value,) if process is None else process(subtask, value))
            )
            for index in {edge.input_index for edge in vertex.inputs}:
                expected: Counter = Counter()
                for edge in vertex.inputs:
                    if edge.input_index == index:
                        broadcast = isinstance(edge.partitioner, partitioners.BroadcastPartitioner)
                        for value, count in given[edge.source_vertex_id].items():
                            expected[value] += count * (parallelism[vertex.id] if broadcast else 1)
                found = Counter(value for number, value, _ in taken if number == index)
                for edge in vertex.inputs:
                    if edge.input_index == index:
                        found.update(in_flight.get(edge.id, ()))
                if self.exactly_once:
                    assert found == expected, (
                        f"checkpoint {checkpoint_id}, input {index} of {vertex.id}: "
                        f"lost {list((expected - found).items())[:3]}, too many {list((found - expected).items())[:3]}"
                    )
                else:  # records may be on both sides, but none on neither
                    assert not expected - found, f"checkpoint {checkpoint_id} has lost {expected - found}"

    def _check_end(self) -> None:
        assert set(self.slots.states.values()) == {"FINISHED"}
        expected = self.job.expected()
        leftovers: Counter = Counter()
        for event in self.slots.events:
            if isinstance(event.payload, SinkCommittables):
                leftovers.update(pickle.loads(event.payload.committables))
        prepared: Counter = Counter()
        taken: Counter = Counter()
        for vertex in self.job.vertices:
            for subtask in range(vertex.parallelism):
                records = self.log.records(vertex.id, subtask)
                expected[vertex.id] -= len(records)
                if vertex.chain.committables:  # type: ignore[attr-defined]
                    taken.update(records)
        assert not any(expected.values()), expected
        for messages in self.acknowledged.values():
            for message in messages:
                for blob in message.state.committables.values():
                    prepared.update(pickle.loads(blob))
        # Without a final checkpoint, what came behind the last barrier goes the way of operators (here: none).
        assert not (prepared + leftovers) - taken, "prepared twice"
        if self.final:
            assert self.complete, "tasks have ended without their final checkpoint"
            assert prepared + leftovers == taken, "prepared and lost"
            assert self.at_end == self.executions
        for execution in self.executions:
            self._check_notices(execution)

    def _check_notices(self, execution: ExecutionAttemptID) -> None:
        seen = self.log.seen[execution.vertex_id, execution.subtask_index]
        snapshots = [value for kind, _, value, _ in seen if kind == "snapshot"]
        assert snapshots == sorted(set(snapshots)), "ids go back, or one was taken twice"
        told = [value for kind, _, value, _ in seen if kind in ("complete", "aborted")]
        assert len(told) == len(set(told)), "told twice"
