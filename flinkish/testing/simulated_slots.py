"""Several slots in one thread, joined by a simulated network: for tests of the data plane.

Everything random comes from one seed: which slot runs next, when a frame arrives, how long things
take.  Frames of one pair of slots arrive in order, those of different pairs in any order::

    slots = SimulatedSlots(seed=7, slot_ids=["a", "b"])
    slots.deploy(job_graph, configuration={})
    slots.start()
    slots.run_until_quiet()
    assert set(slots.states.values()) == {"FINISHED"}
"""

from __future__ import annotations

import random
from collections import Counter, deque
from dataclasses import dataclass, replace
from typing import Any, Callable, Collection, Mapping, Optional, Sequence, Union

import cloudpickle

from flinkish.errors import CheckpointStorageError
from flinkish.graph.execution_graph import build_deployments
from flinkish.graph.job_graph import JobGraph
from flinkish.messages.checkpoints import CheckpointOptions, InFlightPart, InlineBytes, TriggerCheckpoint
from flinkish.messages.control import DeployTasks, OperatorEvent
from flinkish.messages.deployment import ExecutionAttemptID, TaskRestore
from flinkish.operators.snapshots import TaskSnapshot
from flinkish.taskmanager import wire
from flinkish.taskmanager.slot_core import SlotCore


class SimulatedNetwork:
    """Carries frames; ``deliver`` hands over the oldest one of a connection: of a pair of slots, for an attempt."""

    def __init__(self) -> None:
        self.pairs: dict[tuple[str, str, int], deque[tuple[int, int, bytes]]] = {}
        self.frames_sent: Counter[int] = Counter()
        self.bytes_in_flight_max = 0

    def send(self, pair: tuple[str, str, int], kind: int, channel_id: int, buffers: list) -> None:
        payload = b"".join(bytes(buffer) for buffer in buffers)
        self.pairs.setdefault(pair, deque()).append((kind, channel_id, payload))
        self.frames_sent[kind] += 1
        self.bytes_in_flight_max = max(self.bytes_in_flight_max, self.pending_bytes(pair))

    def pending_bytes(self, pair: tuple[str, str, int]) -> int:
        return sum([len(frame[2]) for frame in self.pairs.get(pair, ())])

    def waiting(self) -> list[tuple[str, str, int]]:
        return sorted(pair for pair, frames in self.pairs.items() if frames)


class _Transport:
    def __init__(self, network: SimulatedNetwork, slot_id: str, attempt: int = -1):
        self.network, self.slot_id, self.attempt = network, slot_id, attempt

    def for_attempt(self, attempt: int) -> "_Transport":
        return _Transport(self.network, self.slot_id, attempt)

    def send(self, peer_slot: str, kind: int, channel_id: int, buffers: list) -> None:
        self.network.send((self.slot_id, peer_slot, self.attempt), kind, channel_id, buffers)

    def flush(self) -> None:
        """What was sent is on its way."""

    def pending_bytes(self, peer_slot: str) -> int:
        return self.network.pending_bytes((self.slot_id, peer_slot, self.attempt))


@dataclass(frozen=True)
class InFlightWrite:
    """What a barrier has overtaken, on its way to the storage."""

    execution: ExecutionAttemptID
    checkpoint_id: int
    data: bytes
    parts: tuple[InFlightPart, ...]


class SimulatedSlots:
    """A world of slots; also the listener of each.

    Args:
        seed: of all that is random.
        slot_ids: in the order in which ``deploy`` fills them.
        chain_factory: as for ``SlotCore``.
        network_slow: chance that a step runs a slot although frames wait.
        on_operator_event: answers operators, in place of the coordinators of a JobManager.
        overdraft_max: records by which an output may be fuller than full; None: not checked.
        clock_ns: measures turns; None: they take what the seed says.
    """

    def __init__(
        self,
        seed: int,
        slot_ids: Sequence[str],
        chain_factory: Optional[Callable[..., Any]] = None,
        network_slow: float = 0.5,
        credits: int = 2,
        on_operator_event: Optional[Callable[[OperatorEvent], None]] = None,
        overdraft_max: Optional[int] = None,
        clock_ns: Optional[Callable[[], int]] = None,
    ):
        self.rng = random.Random(seed)
        self.network = SimulatedNetwork()
        self.network_slow = network_slow
        self.credits = credits
        self.overdraft_max = overdraft_max
        self.now_ms = 0
        self.now_ns = 0
        self.states: dict[ExecutionAttemptID, str] = {}
        self.failures: dict[ExecutionAttemptID, Any] = {}
        self.more = dict.fromkeys(slot_ids, False)
        self.events: list[OperatorEvent] = []
        self.on_operator_event = on_operator_event
        #: What tasks have told the JobManager about checkpoints.
        self.checkpoint_messages: list[Any] = []
        #: Snapshots that are being stored, by slot.
        self.storing: dict[str, list[Union[TaskSnapshot, InFlightWrite]]] = {slot_id: [] for slot_id in slot_ids}
        self._slot_of: dict[ExecutionAttemptID, str] = {}
        self.slots = {
            slot_id: SlotCore(
                slot_id,
                "host",
                lambda: self.now_ms,
                _Transport(self.network, slot_id),
                self,
                rng_seed=seed,
                clock_ns=clock_ns or self._clock_ns,
                chain_factory=chain_factory,
            )
            for slot_id in slot_ids
        }

    # ---- listener -------------------------------------------------------------------------------

    def task_state_changed(self, execution: ExecutionAttemptID, state: str, failure: Any) -> None:
        before = self.states.get(execution)
        assert before not in ("FINISHED", "FAILED", "CANCELED"), (execution, before, state)
        self.states[execution] = state
        if failure is not None:
            self.failures[execution] = failure.error

    def operator_event(self, event: OperatorEvent) -> None:
        self.events.append(event)
        if self.on_operator_event is not None:
            self.on_operator_event(event)

    def wakeup(self) -> None:
        for slot_id in self.more:
            self.more[slot_id] = True

    def checkpoint_message(self, message: Any) -> None:
        self.checkpoint_messages.append(message)

    def store_snapshot(self, snapshot: TaskSnapshot) -> None:
        self.storing[self._slot_of[snapshot.execution]].append(snapshot)

    def store_in_flight(
        self,
        execution: ExecutionAttemptID,
        checkpoint_id: int,
        options: CheckpointOptions,
        data: bytes,
        parts: tuple[InFlightPart, ...],
    ) -> None:
        written = InFlightWrite(execution, checkpoint_id, data, parts)
        self.storing[self._slot_of[execution]].append(written)

    def drop_snapshot(self, execution: ExecutionAttemptID, checkpoint_id: int) -> None:
        storing = self.storing[self._slot_of[execution]]
        dropped = (execution, checkpoint_id)
        storing[:] = [known for known in storing if (known.execution, known.checkpoint_id) != dropped]

    # ---- checkpoints ----------------------------------------------------------------------------

    def slot_of(self, execution: ExecutionAttemptID) -> str:
        return self._slot_of[execution]

    def tell(self, execution: ExecutionAttemptID, trigger: TriggerCheckpoint) -> None:
        slot_id = self._slot_of[execution]
        self.slots[slot_id].on_trigger_checkpoint(trigger)
        self.more[slot_id] = True

    def notify(self, slot_id: str, notice: Any) -> None:
        self.slots[slot_id].on_checkpoint_notice(notice)
        self.more[slot_id] = True

    def store_one(self, slot_id: str, fail: bool = False) -> None:
        """One of the snapshots of a slot, whichever, becomes durable, or does not."""
        snapshot = self.storing[slot_id].pop(self.rng.randrange(len(self.storing[slot_id])))
        slot, checkpoint_id = self.slots[slot_id], snapshot.checkpoint_id
        if fail:
            slot.snapshot_failed(snapshot.execution, checkpoint_id, CheckpointStorageError("the disk is full"))
        elif isinstance(snapshot, InFlightWrite):
            slot.in_flight_stored(snapshot.execution, checkpoint_id, InlineBytes(snapshot.data), snapshot.parts)
        else:
            slot.snapshot_stored(snapshot.execution, checkpoint_id, {})
        self.more[slot_id] = True

    # ---- moves ----------------------------------------------------------------------------------

    def deploy(
        self,
        job_graph: JobGraph,
        configuration: Mapping[str, Any],
        final_checkpoint: bool = False,
        restore: Optional[Mapping[tuple[str, int], TaskRestore]] = None,
        attempt: int = 0,
        beside: Optional[Collection[tuple[str, int]]] = None,
    ) -> None:
        """``restore``: by vertex id and subtask index.  ``beside``: these subtasks only, beside the others; their
        slots have ended those before them."""
        chains = {vertex.id: cloudpickle.dumps(vertex.chain) for vertex in job_graph.vertices}
        deployments = build_deployments(job_graph, attempt, list(self.slots), chains)
        for slot_id, tasks in deployments.items():
            if beside is not None:
                tasks = tuple(
                    task for task in tasks if (task.execution.vertex_id, task.execution.subtask_index) in beside
                )
                if not tasks:
                    continue
            if restore is not None:
                tasks = tuple(
                    replace(task, restore=restore[task.execution.vertex_id, task.execution.subtask_index])
                    for task in tasks
                )
            self._slot_of.update((task.execution, slot_id) for task in tasks)
            self.slots[slot_id].deploy(
                DeployTasks(
                    job_id=job_graph.job_id,
                    job_name=job_graph.job_name,
                    attempt=attempt,
                    tasks=tasks,
                    peers={},
                    configuration=configuration,
                    main_classes=b"",
                    sys_path=(),
                    initial_credits=self.credits,
                    final_checkpoint=final_checkpoint,
                    beside=beside is not None,
                )
            )

    def start(self, attempt: int = 0) -> None:
        for slot_id, slot in self.slots.items():
            slot.start(attempt)
            self.more[slot_id] = True

    def step(self) -> bool:
        """One random move; False when nothing can move."""
        self.now_ms += self.rng.choice((0, 0, 0, 1, 5))
        waiting = self.network.waiting()
        busy = [slot_id for slot_id, more in self.more.items() if more]
        if waiting and (not busy or self.rng.random() >= self.network_slow):
            self.deliver(*self.rng.choice(waiting))
            return True
        if busy:
            self.run(self.rng.choice(busy))
            return True
        return False

    def run(self, slot_id: str) -> None:
        self.more[slot_id] = self.slots[slot_id].run_round()

    def deliver(self, source: str, target: str, attempt: int) -> None:
        kind, channel_id, payload = self.network.pairs[source, target, attempt].popleft()
        # The connection hands over a view of a buffer that it uses again.
        buffer = bytearray(payload)
        self.slots[target].on_frame(attempt, source, kind, channel_id, memoryview(buffer))
        buffer[:] = bytes(len(buffer))
        self.more[target] = True

    def run_until_quiet(self, steps_max: int = 1_000_000, check_every: int = 50) -> int:
        """Step until nothing moves, also when time passes; returns the steps taken."""
        for count in range(steps_max):
            if count % check_every == 0:
                self.check()
            if not self.step():
                deadlines = [slot.next_deadline_ms() for slot in self.slots.values()]
                due = min(
                    [deadline for deadline in deadlines if deadline is not None], default=None
                )
                if due is None or all(slot.is_over for slot in self.slots.values()):
                    self.check()
                    return count
                self.now_ms = max(self.now_ms, due)
                self.wakeup()
        raise AssertionError(f"still moving after {steps_max} steps: {self.states}")

    def check(self) -> None:
        """Assert what holds between any two moves, for every channel of every slot."""
        in_flight: Counter[tuple[int, int]] = Counter()
        for (_, _, attempt), frames in self.network.pairs.items():
            for kind, channel_id, _ in frames:
                if kind in (wire.ROWS, wire.COLUMNS):
                    in_flight[attempt, channel_id] += 1
        for slot in self.slots.values():
            for task in slot.tasks.values():
                task.aligner.check()
                for gate in task.gates:
                    gate.valve.check()
                    for channel in gate.channels:
                        channel.check()
                        travelling = in_flight[task.execution.attempt, channel.channel_id]
                        assert channel.ledger.held + travelling <= self.credits
                for writer in task.writers:
                    for output in writer.channels:
                        output.check()
                        assert self.overdraft_max is None or output.room >= -self.overdraft_max

    def _clock_ns(self) -> int:
        self.now_ns += self.rng.choice((1_000, 10_000, 50_000, 300_000))
        return self.now_ns
