"""A JobMaster with the enumerator of its source, whose tasks are regions of their own: they fail, and restart while the
others run on.

Each task reads splits that the enumerator hands out on demand, and prepares what it has read since the last barrier as
one hidden file.  What is published must be each record once, however splits go back and forth.  Slots, the enumerator's
thread, the storage and the committers have a queue each, in order and none in step with another.  A slot that dies takes
along what is on its way from and to it.
"""

from __future__ import annotations

import pickle
import random
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Any, Callable, Optional

from flinkish.common.job_status import JobStatus
from flinkish.connectors.split_assignment import OnDemandSplitEnumerator, RangeSplit
from flinkish.errors import ExternalError, SlotLostError, UserFunctionError
from flinkish.graph.job_graph import ChainedOperator, JobGraph, JobVertex, OperatorChainSpec
from flinkish.jobmanager import events as e
from flinkish.jobmanager.checkpoint_coordinator import CheckpointConfiguration
from flinkish.jobmanager.job_description import CheckpointSettings, JobDescription
from flinkish.jobmanager.job_master import JobMaster
from flinkish.jobmanager.restart_strategy import FixedDelayRestart
from flinkish.jobmanager.restore_decision import deal_out_checkpoint
from flinkish.jobmanager.source_coordinator import SourceCoordinator
from flinkish.jobmanager.split_assignment_tracker import SplitAssignmentTracker
from flinkish.messages import checkpoints as m
from flinkish.messages import control as c
from flinkish.messages.deployment import ExecutionAttemptID, SlotAddress, TaskFailure, TaskRestore

JOB, OPERATOR, VERTEX = "j", "op", "v"
STEPS = 260
TICKS_TO_HEAL = 600
HEALED = "-- no more faults"
SPLIT_RECORDS = 6


class _Source:
    """As much of a Source as a SourceCoordinator needs."""

    def __init__(self, splits: int):
        self.splits = [RangeSplit(n * 100, n * 100 + SPLIT_RECORDS, n * 100) for n in range(splits)]

    def create_enumerator(self, context):
        return OnDemandSplitEnumerator(context, lambda: [], self.splits)

    def restore_enumerator(self, context, state):
        return OnDemandSplitEnumerator(context, lambda: [], state)


@dataclass
class Task:
    execution: ExecutionAttemptID
    restore: Optional[TaskRestore]
    state: str = "DEPLOYING"
    splits: list[RangeSplit] = field(default_factory=list)
    read: list[int] = field(default_factory=list)  # since the last barrier
    unsent: list[tuple] = field(default_factory=list)  # prepared, and in no acknowledgement
    asked: bool = False
    no_more: bool = False
    ended_after: Optional[int] = None  # the last barrier before the end of its data
    passed: int = 0  # the last barrier


@dataclass
class Slot:
    address: SlotAddress
    inbox: deque = field(default_factory=deque)
    outbox: deque = field(default_factory=deque)
    tasks: dict[int, Task] = field(default_factory=dict)


class RegionWorld:
    """``master``, ``tracker``: classes under test."""

    def __init__(
        self,
        seed: int,
        master: type[JobMaster] = JobMaster,
        tracker: type[SplitAssignmentTracker] = SplitAssignmentTracker,
    ):
        self.rng = rng = random.Random(seed)
        self.tracker = tracker
        self.now_ms = 0
        self.chaos = True
        self.harshness = rng.choice((0.3, 1.0, 2.0))
        self.log: list[tuple[int, Any]] = []
        self.parallelism = rng.randint(2, 4)
        self.source = _Source(rng.randint(2, 8))
        chain = OperatorChainSpec((ChainedOperator(0, OPERATOR, "numbers", None),), (), ())  # type: ignore[arg-type]
        self.graph = JobGraph(JOB, "regions", [JobVertex(VERTEX, VERTEX, chain, self.parallelism, 128, "default")])
        configuration = CheckpointConfiguration(
            "file:/chk",
            interval_ms=rng.choice((20, 60)),
            timeout_ms=200,
            max_concurrent=rng.choice((1, 2)),
            tolerable_failures=10**6,
            final_checkpoint=True,
        )
        self.master = master(
            JobDescription(
                self.graph,
                ((OPERATOR, VERTEX),),
                commits=True,
                cancellation_interval_ms=0,
                cancellation_timeout_ms=rng.choice((0, 60)),
                checkpoints=CheckpointSettings(configuration, frozenset({OPERATOR}), "run"),
                restart_strategy=FixedDelayRestart(10**6, rng.choice((0, 30))),
                recovery_timeout_ms=10**9,
                region_failover=True,
            ),
            random.Random(seed),
        )
        # the outside
        self.hidden: set[tuple] = set()  # files that were prepared
        self.published: dict[tuple, list[int]] = {}
        # the driver's workers and the slots
        self.events: deque = deque()
        self.threads: list[deque] = []  # of enumerators, the newest last
        self.coordinator: Optional[SourceCoordinator] = None
        self.storing: deque = deque()
        self.committing: deque = deque()
        self.slots: dict[str, Slot] = {}
        self.wanted = 0
        self.slots_made = 0
        self.checkpoint: Optional[m.CompletedCheckpoint] = None
        self.restarts_of_regions = 0
        self._carry_out(self.master.start(0))

    def fault(self, chance: float) -> bool:
        return self.chaos and self.rng.random() < chance * self.harshness

    # ---- the driver -----------------------------------------------------------------------------

    def step(self, event: Any) -> None:
        self.log.append((self.now_ms, event))
        effects = self.master.step(event, self.now_ms)
        self.master.check()
        self._carry_out(effects)

    def _carry_out(self, effects: list) -> None:
        for effect in effects:
            if not isinstance(effect, (e.ExecutionChanged, e.Inform)):
                self.log.append((self.now_ms, effect))
            self.carry_out(effect)

    def carry_out(self, effect: Any) -> None:
        match effect:
            case e.RequestSlots(count=count):
                self.wanted += count
            case e.KillSlots(_, slot_ids):
                for slot_id in slot_ids:
                    self.lose(slot_id)
            case e.SendToSlot(_, slot_id, message):
                if slot_id in self.slots:
                    self.slots[slot_id].inbox.append(message)
            case e.StartCoordinators(_, _, checkpoint):
                self.checkpoint = checkpoint
                self.start_coordinator(checkpoint)
            case e.ResetSubtasks(_, _, subtasks, checkpoint):
                self.checkpoint = checkpoint
                self.restarts_of_regions += 1
                assert self.coordinator is not None
                checkpoint_id = 0 if checkpoint is None else checkpoint.checkpoint_id
                for _, index in sorted(subtasks):
                    self.threads[-1].append((self.coordinator.reset_subtask, index, checkpoint_id))
            case e.StopCoordinators():
                self.coordinator = None
            case e.DeployToSlot(_, attempt, index, slots, beside):
                self.deploy(attempt, slots[index].slot_id, beside)
            case e.ToCoordinator(_, event):
                if self.coordinator is not None:
                    id_ = event.execution
                    call = (self.coordinator.handle, id_.subtask_index, id_.attempt, event.payload)
                    self.threads[-1].append(call)
            case e.CheckpointEffect(_, order):
                self.carry_out_order(order)
            case e.CommitSinks(_, attempt, prepared, kept):
                for blobs in prepared.values():
                    self.publish(blobs)
                if kept is not None:
                    self.remove_leftovers(kept)
                self.events.append(e.Committed(JOB, attempt))
            case e.AbortSinks(_, attempt, kept):
                assert not any(t.state == "RUNNING" for s in self.slots.values() for t in s.tasks.values())
                self.remove_leftovers(kept)
                self.events.append(e.Aborted(JOB, attempt))

    def carry_out_order(self, order: Any) -> None:
        match order:
            case e.SnapshotCoordinators(_, checkpoint_id, _):
                assert self.coordinator is not None
                self.threads[-1].append((self.snapshot_coordinator, self.coordinator, checkpoint_id))
            case e.NotifyCoordinators(_, checkpoint_id, True):
                if self.coordinator is not None:
                    self.threads[-1].append((self.coordinator.notify_checkpoint_complete, checkpoint_id))
            case e.StoreMetadata():
                self.storing.append(order)
            case e.CommitCheckpoint() | e.AbortCommittables():
                self.committing.append(order)

    def start_coordinator(self, checkpoint: Optional[m.CompletedCheckpoint]) -> None:
        """The thread of the one before may still do what it was told."""
        self.threads = [*self.threads[-1:], deque()]
        saved = None if checkpoint is None else checkpoint.operators[OPERATOR].coordinator
        coordinator = self.coordinator = SourceCoordinator(
            self.source,  # type: ignore[arg-type]
            "numbers",
            self.parallelism,
            lambda subtask, attempt, payload: self.events.append(
                e.CoordinatorSaid(JOB, attempt, OPERATOR, subtask, payload)
            ),
            None,  # type: ignore[arg-type]
            saved,
            tracks_splits=True,
        )
        coordinator._tracker = self.tracker()
        self.threads[-1].append((coordinator.start,))

    def snapshot_coordinator(self, coordinator: SourceCoordinator, checkpoint_id: int) -> None:
        snapshotted = e.CoordinatorSnapshotted(checkpoint_id, OPERATOR, coordinator.snapshot(checkpoint_id))
        self.events.append(e.CheckpointEvent(JOB, snapshotted))

    # ---- sinks ----------------------------------------------------------------------------------

    def publish(self, blobs: tuple[bytes, ...]) -> None:
        for blob in blobs:
            for name, records in pickle.loads(blob):
                if name in self.published:
                    continue  # a repeated commit
                assert name in self.hidden, f"{name} was removed and is to be published"
                self.hidden.discard(name)
                self.published[name] = records

    def remove_leftovers(self, kept: Any) -> None:
        needed = {name for blobs in kept.values() for blob in blobs for name, _ in pickle.loads(blob)}
        self.hidden &= needed

    # ---- slots ----------------------------------------------------------------------------------

    def deploy(self, attempt: int, slot_id: str, beside: Any) -> None:
        if slot_id not in self.slots:
            return
        dealt = {} if self.checkpoint is None else deal_out_checkpoint(self.graph, self.checkpoint)
        tasks = [
            Task(execution.execution, dealt.get(key))
            for key, execution in self.master.executions.items()
            if execution.slot_id == slot_id and (beside is None or key in beside)
        ]
        self.slots[slot_id].inbox.append((attempt, tasks))

    def lose(self, slot_id: str) -> None:
        if self.slots.pop(slot_id, None) is not None:
            self.events.append(e.SlotLost(JOB, slot_id, SlotLostError(f"lost slot {slot_id}")))

    def bring_slot(self) -> None:
        if self.wanted:
            self.wanted -= 1
            self.slots_made += 1
            address = SlotAddress(f"s{self.slots_made}", "host", None, ("127.0.0.1", 1))
            self.slots[address.slot_id] = Slot(address)
            self.step(e.SlotsAllocated(JOB, (address,)))

    def slot_receives(self, slot: Slot) -> None:
        if not slot.inbox:
            return
        message = slot.inbox.popleft()
        match message:
            case (attempt, tasks):
                for task in tasks:
                    before = slot.tasks.get(task.execution.subtask_index)
                    assert before is None or before.state in ("FINISHED", "CANCELED", "FAILED"), "two at once"
                    slot.tasks[task.execution.subtask_index] = task
                slot.outbox.append(c.TasksDeployed(JOB, attempt))
            case c.StartTasks(_, attempt):
                for task in slot.tasks.values():
                    if task.execution.attempt == attempt and task.state == "DEPLOYING":
                        self.start(slot, task)
            case c.CancelTasks(_, executions):
                for task in slot.tasks.values():
                    if task.execution in executions and task.state in ("DEPLOYING", "RUNNING"):
                        self.become(slot, task, "CANCELED")
            case c.OperatorEvent(execution, _, payload):
                task = slot.tasks[execution.subtask_index]
                if task.execution == execution and task.state == "RUNNING":
                    task.asked = False
                    if isinstance(payload, c.SourceAddSplits):
                        task.splits += pickle.loads(payload.splits)
                    else:
                        task.no_more = True
            case m.TriggerCheckpoint(execution, checkpoint_id):
                task = slot.tasks[execution.subtask_index]
                if task.execution == execution and task.state == "RUNNING":
                    self.snapshot(slot, task, checkpoint_id)
            case m.CheckpointComplete(_, checkpoint_id):
                for task in slot.tasks.values():
                    after_the_end = task.ended_after is not None and task.ended_after < checkpoint_id <= task.passed
                    if task.state == "RUNNING" and after_the_end:
                        self.become(slot, task, "FINISHED")

    def start(self, slot: Slot, task: Task) -> None:
        self.become(slot, task, "RUNNING")
        restore = task.restore
        if restore is not None and restore.finished:
            self.become(slot, task, "FINISHED")
            return
        for saved in restore.operators.get(OPERATOR, ()) if restore is not None else ():
            if saved.operator is not None:
                task.splits += [pickle.loads(entry) for entry in saved.operator.states["splits"][1]]
        slot.outbox.append(c.OperatorEvent(task.execution, OPERATOR, c.SourceRegister("host")))

    def become(self, slot: Slot, task: Task, state: Any, failure: Optional[TaskFailure] = None) -> None:
        task.state = state
        slot.outbox.append(c.TaskStateChanged(task.execution, state, failure))

    def task_goes_on(self, slot: Slot, task: Task) -> None:
        if task.state != "RUNNING":
            return
        if self.fault(0.03):
            self.become(slot, task, "FAILED", TaskFailure(UserFunctionError("boom")))
        elif task.splits:
            split = task.splits[0]
            task.read.append(split.position)
            split = RangeSplit(split.start, split.end, split.position + 1)
            task.splits[:1] = [] if split.position == split.end else [split]
        elif not task.no_more and not task.asked:
            task.asked = True
            slot.outbox.append(c.OperatorEvent(task.execution, OPERATOR, c.SourceRequestSplit("host")))
        elif task.no_more and task.ended_after is None:
            task.ended_after = task.passed
            slot.outbox.append(m.NotifyEndOfData(task.execution))

    def snapshot(self, slot: Slot, task: Task, checkpoint_id: int) -> None:
        task.passed = checkpoint_id
        if task.read:
            name = (task.execution.attempt, task.execution.subtask_index, checkpoint_id)
            self.hidden.add(name)
            task.unsent.append((name, task.read))
            task.read = []
        if self.fault(0.03):
            failure = TaskFailure(UserFunctionError("cannot be pickled"))
            slot.outbox.append(m.DeclineCheckpoint(task.execution, checkpoint_id, failure))
            return
        splits = tuple(pickle.dumps(split) for split in task.splits)
        operator = m.OperatorStateHandle({"splits": (m.DistributionMode.SPLIT, splits)})
        state = m.SubtaskState(
            {OPERATOR: m.OperatorSubtaskState((), operator)},
            committables={OPERATOR: pickle.dumps(task.unsent)} if task.unsent else {},
            finished=task.ended_after is not None,
        )
        task.unsent = []
        slot.outbox.append(m.AcknowledgeCheckpoint(task.execution, checkpoint_id, state))

    # ---- moves ----------------------------------------------------------------------------------

    def some_slot(self) -> None:
        if not self.slots:
            return
        slot = self.slots[self.rng.choice(sorted(self.slots))]
        for _ in range(self.rng.randint(1, 3)):
            self.slot_receives(slot)
        for task in slot.tasks.values():
            self.task_goes_on(slot, task)
        self.slot_says(slot)

    def slot_says(self, slot: Slot) -> None:
        if slot.outbox and slot.address.slot_id in self.slots:
            self.step(e.FromSlot(slot.address.slot_id, slot.outbox.popleft()))

    def some_thread(self) -> None:
        threads = [thread for thread in self.threads if thread]
        if threads:
            call, *arguments = self.rng.choice(threads).popleft()
            call(*arguments)

    def handle_event(self) -> None:
        if self.events:
            self.step(self.events.popleft())

    def store_something(self) -> None:
        if self.storing:
            checkpoint_id = self.storing.popleft().checkpoint.checkpoint_id
            error = ExternalError("storage is down") if self.fault(0.05) else None
            self.events.append(e.CheckpointEvent(JOB, e.MetadataStored(checkpoint_id, error)))

    def commit_something(self) -> None:
        if not self.committing:
            return
        order = self.committing.popleft()
        if isinstance(order, e.AbortCommittables):
            aborted = {name for blobs in order.committables.values() for b in blobs for name, _ in pickle.loads(b)}
            assert not aborted & self.published.keys(), "what is published is to be removed"
            self.hidden -= aborted
            return
        fails = self.fault(0.05)
        if not fails or self.rng.random() < 0.5:
            for blobs in order.commit.committables.values():
                self.publish(blobs)
        error = ExternalError("the service is down") if fails else None
        committed = e.CheckpointCommitted(order.commit.run_id, order.commit.checkpoint_id, error)
        self.events.append(e.CheckpointEvent(JOB, committed))

    def tick(self) -> None:
        self.now_ms += 10
        if self.fault(0.01) and self.slots:
            self.lose(self.rng.choice(sorted(self.slots)))
        if self.fault(0.003):
            attempt = self.master.coordinators_attempt
            self.step(e.CoordinatorFailed(JOB, attempt, UserFunctionError("enumerator")))
        self.step(e.Tick())

    # ---- a run ----------------------------------------------------------------------------------

    def run(self) -> None:
        moves: tuple[Callable[[], None], ...] = (
            *[self.some_slot] * 5, *[self.handle_event] * 3, self.some_thread, self.some_thread, self.store_something,
            self.commit_something, self.bring_slot, self.tick,
        )  # fmt: skip
        for _ in range(STEPS):
            if not self.master.ended:
                self.rng.choice(moves)()
        self.chaos = False
        self.log.append((self.now_ms, HEALED))
        for _ in range(TICKS_TO_HEAL):
            if self.master.ended:
                break
            self.tick()
            for move in moves:
                move()
            for slot in list(self.slots.values()):
                self.slot_says(slot)
        assert self.master.status is JobStatus.FINISHED, f"no progress: {self.master.describe()}"
        counts = Counter(record for records in self.published.values() for record in records)
        wanted = Counter(record for split in self.source.splits for record in range(split.start, split.end))
        assert counts == wanted, f"lost {wanted - counts}, twice {counts - wanted}"
        while self.committing:
            self.commit_something()
        assert not self.hidden, "files were left"

    def story(self) -> list[str]:
        return [f"{now_ms:6} {entry if isinstance(entry, str) else repr(entry)[:160]}" for now_ms, entry in self.log[-150:]]
