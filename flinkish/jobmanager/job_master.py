"""One job: its status, its attempts, what happens when something fails, and its end.

Status, Flink's ``JobStatus``::

    CREATED -> RUNNING ──all tasks FINISHED, all published──> FINISHED
               │  ^  │
               │  │  └──a failure that ends the job──> FAILING ──all tasks ended, sinks aborted──> FAILED
               │  │                                       ^
               │  └──next attempt deployed── RESTARTING ──┘
               │                                 ^
               ├──a failure──────────────────────┘
               └──cancel (from RESTARTING too)──> CANCELLING ──all tasks ended, sinks aborted──> CANCELED

The states of its executions are in ``flinkish.graph.execution_graph``.

It is written in chapters (``job_state``): ``job_deployment`` brings an attempt into its slots, ``job_failures`` says
what restarts after a failure, ``job_rescaling`` gives the job another parallelism, ``job_end`` publishes what is ready
before the job ends.  Here events reach them.

A restart replaces all tasks or some.  Those that it leaves alone keep their attempt, so a message of a task counts when
its execution is the present one of its subtask.

**Events of coordinators** (enumerators) to readers go out in order.  From a coordinator's snapshot on they are
held until the readers have been told of the checkpoint: then what the snapshot does not have, comes behind the barrier.

Invariants, see ``check``: a job that has ended has only executions that have ended, FINISHED only FINISHED ones;
FAILED, FAILING and RESTARTING (unless for rescaling) have a cause; sinks are committed and aborted only after the
last task; a job that waits for its next attempt holds or has asked for all slots it needs; every wait for tasks
is bounded; each execution is of an attempt that the job has had, and those on their way are of the newest.

Source: Flink's ``DefaultScheduler``, ``SubtaskGatewayImpl``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from flinkish.common.job_status import JobStatus
from flinkish.errors import ConnectionLostError, InternalError
from flinkish.graph.execution_graph import ExecutionState, ExecutionVertex
from flinkish.jobmanager.events import (
    Aborted,
    CancelRequested,
    CheckpointEffect,
    CheckpointEvent,
    Committed,
    CommitterStarted,
    CoordinatorFailed,
    CoordinatorSaid,
    CoordinatorSnapshotted,
    DiscardCheckpoint,
    FailJob,
    FromSlot,
    Inform,
    ReleaseCoordinators,
    RescaleRequested,
    RestoreFrom,
    SendToAllTasks,
    SendToExecution,
    SendToSlot,
    SlotLost,
    SlotsAllocated,
    SlotsFree,
    SlotsRefused,
    SlotStandsStill,
    SnapshotResult,
    TaskFinished,
    TasksRunning,
    Tick,
    ToCoordinator,
    Warn,
)
from flinkish.jobmanager.job_deployment import JobDeployment
from flinkish.jobmanager.job_details import describe_job
from flinkish.jobmanager.job_end import JobEnd
from flinkish.jobmanager.job_failures import JobFailures
from flinkish.jobmanager.job_rescaling import JobRescaling
from flinkish.jobmanager.job_state import RESCALE_SNAPSHOT, Closing
from flinkish.jobmanager.recovery import FOR_EVER_MS, NextAttempt
from flinkish.messages.checkpoints import (
    JOB_MANAGER_STORAGE,
    AcknowledgeCheckpoint,
    CompletedCheckpoint,
    DeclineCheckpoint,
    NotifyEndOfData,
)
from flinkish.messages.control import (
    OperatorEvent,
    SlotFailed,
    SourceReportedWatermark,
    SourceWatermarkAlignment,
    TasksDeployed,
    TaskStateChanged,
)
from flinkish.messages.deployment import ExecutionAttemptID

_BEFORE_RUNNING = frozenset(
    (ExecutionState.CREATED, ExecutionState.SCHEDULED, ExecutionState.DEPLOYING, ExecutionState.INITIALIZING)
)


@dataclass
class JobMaster(JobDeployment, JobRescaling, JobFailures, JobEnd):
    """``rng``: for the restart strategy's jitter."""

    # ---- events --------------------------------------------------------------------------------------

    def start(self, now_ms: int) -> list:
        """The first step: ask for slots."""
        self.status_times_ms[JobStatus.CREATED.name] = now_ms
        self.recovery.next_attempt = NextAttempt(self.all_subtasks, now_ms)
        effects = [
            *self._move(JobStatus.RUNNING, now_ms),
            *self._all_to(ExecutionState.SCHEDULED),
            *self._request_slots(),
        ]
        if self.job.checkpoints.restored is not None:
            self.recovery.begin(now_ms, now_ms)
        return effects + self._go_on(now_ms)

    def step(self, event, now_ms: int) -> list:
        """Apply one event; return what must be done, in order."""
        if self.ended:
            return []
        self.story.add(now_ms, event)
        match event:
            case SlotsAllocated(_, slots):
                self.requested -= len(slots)
                self.held.update((slot.slot_id, slot) for slot in slots)
                return self._rescaling_goes_on(now_ms) + self._go_on(now_ms)
            case SlotsRefused(_, error):
                self.requested = 0
                return self._refused(error, now_ms)
            case FromSlot(slot_id, message):
                return self._slot_said(slot_id, message, now_ms)
            case SlotLost(_, slot_id, error):
                return self._slot_lost(slot_id, error, now_ms)
            case SlotStandsStill():
                return self._slot_stands_still(event)
            case CoordinatorSaid():
                return self._coordinator_said(event) if self.gateways.pass_on(event) else []
            case CoordinatorFailed(_, attempt, error) if attempt == self.coordinators_attempt:
                return [] if self.closing else self._fail(error, now_ms)
            case CheckpointEvent(_, for_checkpoints):
                return self._checkpoint_event(for_checkpoints, now_ms)
            case CancelRequested():
                return self._cancel(now_ms)
            case RescaleRequested():
                return self._rescale(event, now_ms)
            case SlotsFree(_, count):
                return self._slots_free(count, now_ms)
            case CommitterStarted(_, attempt, sink) if attempt == self.attempt:
                self.committing = sink
                return []
            case Committed(_, attempt, error) if attempt == self.attempt:
                return self._committed(error, now_ms)
            case Aborted(_, attempt) if attempt == self.attempt and self.closing is Closing.ABORTING:
                return self._aborted(now_ms)
            case Tick():
                return self._tick(event, now_ms)
        return []  # of another attempt

    def _slot_said(self, slot_id: str, message, now_ms: int) -> list:
        match message:
            case TasksDeployed(_, attempt) if attempt == self.attempt:
                return self._tasks_deployed(slot_id)
            case TaskStateChanged(execution, state, failure) if self.is_present(execution):
                return self._task_changed(execution, ExecutionState[state], failure, now_ms)
            case SlotFailed():
                return self._slot_failed(slot_id, message, now_ms)
            case OperatorEvent(execution, operator_id, SourceReportedWatermark(watermark_ms)):
                if self.is_present(execution):
                    self.aligner.reported(operator_id, execution, watermark_ms)
            case OperatorEvent(execution) if self.is_present(execution):
                return [ToCoordinator(self.job.job_id, message)]
            case NotifyEndOfData(execution) if self.is_present(execution) and not self.all_run:
                self.ended_early.append(message)
            case AcknowledgeCheckpoint() | DeclineCheckpoint() | NotifyEndOfData():
                return self._checkpoints(message, now_ms)
        return []

    def _coordinator_said(self, event: CoordinatorSaid) -> list:
        """On to the subtask: held until it runs, so that operators are open; dropped once it ended."""
        subtask = self._vertex_of[event.operator_id], event.subtask
        execution = self.executions.get(subtask)
        if execution is None or execution.state.is_terminal:
            return []
        if event.attempt is not None and event.attempt != execution.execution.attempt:
            return []
        message = OperatorEvent(execution.execution, event.operator_id, event.payload)
        if execution.state in _BEFORE_RUNNING:
            self.held_events.setdefault(subtask, []).append(message)
            return []
        return [SendToSlot(self.job.job_id, execution.slot_id, message)]

    def _slot_stands_still(self, event: SlotStandsStill) -> list:
        tasks = ", ".join(
            execution.name_with_subtask
            for execution in self.executions.values()
            if execution.slot_id == event.slot_id and not execution.state.is_terminal
        )
        if not tasks:
            return []
        return [
            Warn(
                f"a slot stands still, user code or a library that it calls does not return job={self.job.job_id} "
                f"slot={event.slot_id} pid={event.pid} age_ms={event.age_ms} tasks={tasks!r}"
            )
        ]

    def _tick(self, event: Tick, now_ms: int) -> list:
        late_ms = event.late_ms
        effects = self._checkpoints(event, now_ms)
        effects += self._tick_recovery(late_ms, now_ms)
        if self.ended:
            return effects
        if self.closing is not None:
            return effects + self._tick_closing(late_ms, now_ms)
        if self.cancellation.is_running:
            return effects + self._tick_cancelling(late_ms, now_ms)
        return effects + self._align_watermarks(now_ms) + self._go_on(now_ms)

    def _align_watermarks(self, now_ms: int) -> list:
        """Tell sources how far they may read, see ``watermark_alignment``."""
        if not self.aligner.sources:
            return []
        running: dict[str, dict[ExecutionAttemptID, str]] = {operator_id: {} for operator_id in self.aligner.sources}
        for execution in self.executions.values():
            for operator_id, slots in running.items():
                if self._vertex_of[operator_id] == execution.execution.vertex_id:
                    if execution.state is ExecutionState.RUNNING:
                        slots[execution.execution] = execution.slot_id
        return [
            SendToSlot(
                self.job.job_id,
                running[operator_id][execution],
                OperatorEvent(execution, operator_id, SourceWatermarkAlignment(watermark_ms)),
            )
            for operator_id, execution, watermark_ms in self.aligner.announce(running, now_ms)
        ]

    # ---- checkpoints ---------------------------------------------------------------------------------

    def _checkpoint_event(self, event, now_ms: int) -> list:
        """Of the shell."""
        if isinstance(event, CoordinatorSnapshotted) and event.error is None:
            pending = self.checkpoints.pending.get(event.checkpoint_id)
            if pending is not None and event.operator_id in pending.waiting_coordinators:
                self.gateways.close(event.operator_id)
        effects = self._checkpoints(event, now_ms)
        if self.closing is Closing.PUBLISHING and not self._publishes():
            self.closing = None
            self.closing_deadline_ms = self.closing_warn_ms = FOR_EVER_MS
            effects += self._end_if_over(now_ms)
        return effects

    def _checkpoints(self, event, now_ms: int) -> list:
        """Give the CheckpointCoordinator an event; carry out what it says, or have it carried out."""
        effects: list = []
        rescale = False
        for effect in self.checkpoints.step(event, now_ms):
            match effect:
                case SnapshotResult(request_id, _, error) if request_id == RESCALE_SNAPSHOT:
                    if error is not None:  # now, for the job may fail with it in the same step
                        effects += self._give_rescaling_up(error)
                    rescale = error is None  # when all that its completion means has been carried out
                case SendToExecution(message):
                    id_ = message.execution
                    execution = self.executions[id_.vertex_id, id_.subtask_index]
                    effects.append(SendToSlot(self.job.job_id, execution.slot_id, message))
                case SendToAllTasks(message):
                    unended = [e for e in self.executions.values() if not e.state.is_terminal]
                    effects += [SendToSlot(self.job.job_id, slot_id, message) for slot_id in self.slots_of(unended)]
                case ReleaseCoordinators():
                    for held in self.gateways.open():
                        effects += self._coordinator_said(held)
                case FailJob(error):
                    effects += self._fail(error, now_ms)
                case RestoreFrom(checkpoint):
                    effects += self._restore_known(checkpoint, now_ms)
                case Inform() | Warn() | SnapshotResult():
                    effects.append(effect)
                case DiscardCheckpoint(_, location) if location.startswith(JOB_MANAGER_STORAGE):
                    pass  # it was never more than what this core has let go of
                case _:
                    effects.append(CheckpointEffect(self.job.job_id, effect))
        return effects + (self._rescale_snapshot_taken(now_ms) if rescale else [])

    def _restore_known(self, checkpoint: Optional[CompletedCheckpoint], now_ms: int) -> list:
        waiting = self.recovery.next_attempt
        if waiting is None:
            return []  # the job has been cancelled, or has failed for good
        if self.recovery.began_ms is not None and self._all_finished():
            # It was only the publication that failed, and that is done now.
            self.recovery.next_attempt = self.recovery.began_ms = None
            self.recovery.forgiven()
            self.recovery.end()
            return [*self._move(JobStatus.RUNNING, now_ms), *self._end_if_over(now_ms)]
        waiting.restore_known, waiting.checkpoint = True, checkpoint
        return self._go_on(now_ms)

    # ---- tasks ---------------------------------------------------------------------------------------

    def _task_changed(self, id_, state: ExecutionState, failure, now_ms: int) -> list:
        subtask = id_.vertex_id, id_.subtask_index
        execution = self.executions[subtask]
        cancelling = execution.state is ExecutionState.CANCELING
        if cancelling and state is ExecutionState.FINISHED:
            state = ExecutionState.CANCELED  # it was faster than the order to stop
        stopped = not cancelling and state is ExecutionState.CANCELED
        if stopped:
            state = ExecutionState.FAILED
        if not execution.state.can_become(state):
            return []  # late or repeated
        effects = self._to(execution, state)
        held: list[OperatorEvent] = []
        if state is not ExecutionState.INITIALIZING:
            held = self.held_events.pop(subtask, [])
        if not execution.state.is_terminal:
            effects += [SendToSlot(self.job.job_id, execution.slot_id, message) for message in held]
        if stopped:
            error = ConnectionLostError(
                f"{execution.name_with_subtask} has stopped by itself",
                where=self._where(),
                why="its slot has ended it and did not say why",
                do="look at the log of the executor that ran it",
            )
            return effects + self._fail(error, now_ms, {subtask}, execution.name_with_subtask, consequence=True)
        if state is ExecutionState.FAILED:
            name = execution.name_with_subtask
            execution.failure = failure.error if failure else InternalError(f"{name} failed and did not say why")
            return effects + self._fail(execution.failure, now_ms, {subtask}, name)
        if state in (ExecutionState.RUNNING, ExecutionState.FINISHED):
            effects += self._task_goes_well(execution, now_ms)
        return effects + self._end_if_over(now_ms)

    def _task_goes_well(self, execution: ExecutionVertex, now_ms: int) -> list:
        """Tell the CheckpointCoordinator."""
        if self.recovery.next_attempt is not None:
            return []  # some wait to be replaced, and then it is told how this one is
        if self.all_run:
            return self._checkpoints(TaskFinished(execution.execution), now_ms)
        states = {other.state for other in self.executions.values()}
        if not states <= {ExecutionState.RUNNING, ExecutionState.FINISHED}:
            return []
        self.all_run = True
        effects: list = []
        if self.recovery.began_ms is not None:
            duration_ms = now_ms - self.recovery.began_ms
            effects.append(
                Inform(f"job recovered job={self.job.job_id} attempt={self.attempt} duration_ms={duration_ms}")
            )
        self.recovery.began_ms = None
        self.recovery.end()
        if self.rescaling is not None:
            effects += self.rescaling.result()
            self.rescaling = None
        ids = tuple(other.execution for other in self.executions.values())
        finished = frozenset(
            other.execution for other in self.executions.values() if other.state is ExecutionState.FINISHED
        )
        effects += self._checkpoints(TasksRunning(self.attempt, ids, finished), now_ms)
        early, self.ended_early = self.ended_early, []
        for event in early:
            effects += self._checkpoints(event, now_ms)
        return effects

    # ---- what others ask -----------------------------------------------------------------------------

    def describe(self) -> dict:
        """For the REST API: plain data."""
        return describe_job(self)

    def check(self) -> None:
        """Assert what holds between any two steps."""
        self.checkpoints.check()
        self.gateways.check()
        self.recovery.check()
        self.aligner.check(self.attempt)
        states = [execution.state for execution in self.executions.values()]
        all_ended = all(state.is_terminal for state in states)
        for execution in self.executions.values():
            assert execution.execution.attempt <= self.attempt
            assert execution.execution.attempt == self.attempt or execution.state is not ExecutionState.DEPLOYING
        if self.ended:
            assert all_ended, "a job ends after its tasks"
            assert self.closing is None and not self.cancellation.is_running and self.checkpoints.ended
        if self.status is JobStatus.FINISHED or self.closing is Closing.COMMITTING:
            assert all(state is ExecutionState.FINISHED for state in states)
            assert not self.checkpoints.has_unpublished
        if self.closing is not None:
            assert all_ended, "sinks are committed and aborted after the last task"
        failed = self.status in (JobStatus.FAILING, JobStatus.FAILED, JobStatus.RESTARTING)
        rescales = self.rescaling is not None and self.status is JobStatus.RESTARTING
        assert (self.cause is not None) == failed or rescales, "a cause belongs to a failure"
        assert self.rescaling is None or not self.ended
        assert self.deployed <= {slot.slot_id for slot in self.slots}
        assert not self.started or self.deployed == set(self.deploying)
        stops = self.status in (JobStatus.FAILING, JobStatus.CANCELLING, JobStatus.RESTARTING)
        waits = stops and bool(self.unended())
        assert self.cancellation.is_running == waits, "every wait for tasks is bounded"
        assert (self.recovery.next_attempt is not None) >= (self.status is JobStatus.RESTARTING)
        if self.recovery.next_attempt is not None:
            assert len(self.held) + self.requested >= self.needed_next, "a slot is missing, and nobody asks for it"
            assert self.status is JobStatus.RUNNING or self.recovery.deadline_ms < FOR_EVER_MS
            if self.recovery.next_attempt.tasks_ended and self.status is JobStatus.RESTARTING:
                assert not self.unended(), "two attempts at a subtask run at once"
