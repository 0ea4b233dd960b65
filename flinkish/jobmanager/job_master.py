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

An attempt goes in steps, each for all slots at once: slots allocated, tasks deployed (no user code
yet, channels connected), tasks started.  So no record meets a peer that is not there.

**After a failure** all tasks are cancelled: what they had in flight is lost.  If the error is one that another
try can mend, and the restart strategy allows it, the job is RESTARTING.  The next attempt is deployed when the
delay is over, all tasks have ended, what complete checkpoints publish is published, the CheckpointCoordinator has
said from which one to go on, and each lost slot has been replaced.  Living slots are used again.  A replacement is
asked for at once when a slot is lost.  A recovery that takes too long fails the job, and says what it waited for.

What the attempt's cause is, and how long recovery may take, says ``recovery``.  A slot that ends although its tasks
run says why (SlotFailed) before they become CANCELED; it is killed and replaced, not used again.

Cancelling is bounded.  User code that still runs is interrupted every ``cancellation_interval_ms``;
what has not ended after ``cancellation_timeout_ms`` is killed with its slot; after as long again the
JobMaster stops waiting, and a job that was to restart fails.  So is the wait for committers of a job that has
failed or been cancelled.  Those that publish have all the time they need: what they do cannot be taken back.
Only who cancels meanwhile says that it takes too long; if they have not ended ``cancellation_timeout_ms``
later, the job fails.

**Rescaling** (``rescaling``): more slots if need be, a checkpoint, then a restart from it without a failure: the
next attempt is that of the new graph.  Slots that it does not need are given back.

**Events of coordinators** (enumerators) to readers go out in order.  From a coordinator's snapshot on they are
held until the readers have been told of the checkpoint: then what the snapshot does not have, comes behind the barrier.

Invariants, see ``check``: a job that has ended has only executions that have ended, FINISHED only FINISHED ones;
FAILED, FAILING and RESTARTING (unless for rescaling) have a cause; sinks are committed and aborted only after the
last task; a job that waits for its next attempt holds or has asked for all slots it needs; every wait for tasks
is bounded.

Source: Flink's ``DefaultScheduler``, ``ExecutionFailureHandler``, ``SubtaskGatewayImpl``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Optional

from flinkish.common.job_status import JobStatus
from flinkish.errors import (
    ConnectionLostError,
    ExternalError,
    FlinkishError,
    InternalError,
    InvalidJobError,
)
from flinkish.graph.execution_graph import (
    ExecutionState,
    ExecutionVertex,
    create_execution_graph,
    slots_needed,
)
from flinkish.graph.job_graph import JobGraph
from flinkish.graph.rescale_job_graph import rescale_job_graph
from flinkish.jobmanager.cancellation import Cancellation, CancellationStep
from flinkish.jobmanager.checkpoint_coordinator import CheckpointCoordinator
from flinkish.jobmanager.checkpoint_plan import checkpointed_vertices
from flinkish.jobmanager.coordinator_gateway import CoordinatorGateways
from flinkish.jobmanager.events import (
    Aborted,
    AbortSinks,
    CancelRequested,
    CheckpointEffect,
    CheckpointEvent,
    Committed,
    CommitSinks,
    CommitterStarted,
    CoordinatorFailed,
    CoordinatorSaid,
    CoordinatorSnapshotted,
    DeployToSlot,
    DiscardCheckpoint,
    ExecutionChanged,
    FailJob,
    FromSlot,
    Inform,
    InterruptSlots,
    JobEnding,
    JobRescaled,
    JobStatusChanged,
    KillSlots,
    Recover,
    ReleaseCoordinators,
    ReleaseSlots,
    RequestSlots,
    RescaleRequested,
    RescaleResult,
    RestoreFrom,
    SendToAllTasks,
    SendToExecution,
    SendToSlot,
    SlotLost,
    SlotsAllocated,
    SlotsFree,
    SlotsRefused,
    SlotStandsStill,
    SnapshotRequested,
    SnapshotResult,
    StartCoordinators,
    StopCoordinators,
    Story,
    TaskFinished,
    TasksRunning,
    TasksStopped,
    Tick,
    ToCoordinator,
    Warn,
)
from flinkish.jobmanager.job_description import JobDescription
from flinkish.jobmanager.job_details import describe_job, describe_waiting
from flinkish.jobmanager.reactive_scaling import largest_that_fits
from flinkish.jobmanager.recovery import FOR_EVER_MS, NextAttempt, Recovery
from flinkish.jobmanager.rescaling import (
    RescalePhase,
    Rescaling,
    could_not_rescale,
)
from flinkish.jobmanager.restore_decision import decide_restore
from flinkish.messages.checkpoints import (
    JOB_MANAGER_STORAGE,
    AcknowledgeCheckpoint,
    CompletedCheckpoint,
    DeclineCheckpoint,
    NotifyEndOfData,
    SnapshotKind,
)
from flinkish.messages.control import (
    CancelTasks,
    OperatorEvent,
    SlotFailed,
    StartTasks,
    TasksDeployed,
    TaskStateChanged,
)
from flinkish.messages.deployment import ExecutionAttemptID, SlotAddress

if TYPE_CHECKING:
    import random


_RESCALE_SNAPSHOT = -1  # the request id of the checkpoint that a rescaling takes


def _parallelism_of(job_graph: JobGraph) -> list[int]:
    return [vertex.parallelism for vertex in job_graph.vertices]


class Closing(enum.Enum):
    """What runs off the loop after the last task, before the job ends or restarts."""

    PUBLISHING = "PUBLISHING"  # complete checkpoints
    COMMITTING = "COMMITTING"
    ABORTING = "ABORTING"


@dataclass
class JobMaster:
    """``rng``: for the restart strategy's jitter."""

    job: JobDescription
    rng: "Optional[random.Random]" = None
    attempt: int = field(init=False)
    status: JobStatus = JobStatus.CREATED
    rescaling: Optional[Rescaling] = None
    held: dict[str, SlotAddress] = field(default_factory=dict)  # slots that the job has
    requested: int = 0  # slots asked for
    dying: set[str] = field(default_factory=set)  # slots that have said that they end
    slots: tuple[SlotAddress, ...] = ()  # of this attempt
    deployed: set[str] = field(default_factory=set)
    started: bool = False
    all_run: bool = False  # every task is RUNNING or has FINISHED
    ended_early: list[NotifyEndOfData] = field(default_factory=list)  # said before all tasks ran
    closing: Optional[Closing] = None
    closing_warn_ms: int = FOR_EVER_MS  # when it is said that committers take long
    closing_deadline_ms: int = FOR_EVER_MS  # when they are not waited for any more
    committing: str = ""  # the sink whose committer runs
    executions: dict[tuple[str, int], ExecutionVertex] = field(default_factory=dict)
    held_events: dict[tuple[str, int], list[OperatorEvent]] = field(default_factory=dict)
    gateways: CoordinatorGateways = field(default_factory=CoordinatorGateways)
    status_times_ms: dict[str, int] = field(default_factory=dict)
    story: Story = field(default_factory=Story)
    checkpoints: CheckpointCoordinator = field(init=False)
    recovery: Recovery = field(init=False)
    cancellation: Cancellation = field(init=False)

    def __post_init__(self) -> None:
        self.attempt = self.job.first_attempt
        self.cancellation = Cancellation(self.job.cancellation_interval_ms, self.job.cancellation_timeout_ms)
        self.recovery = Recovery(self.job.restart_strategy, self.job.recovery_timeout_ms, self.rng)
        self.job_graph = self.job.job_graph  # as it is now, after rescaling
        self.checkpoints = self.job.checkpoints.create_coordinator(self.job_graph)
        self.needed = slots_needed(self.job_graph)
        self._vertex_of = dict(self.job.operators)
        self._place([f"slot {number}" for number in range(self.needed)])

    def _place(self, slots: list[str]) -> None:
        graph = create_execution_graph(self.job_graph, self.attempt, slots)
        self.executions = {
            (id_.vertex_id, id_.subtask_index): vertex for id_, vertex in graph.executions().items()
        }

    # ---- events ---------------------------------------------------------------------------------

    def start(self, now_ms: int) -> list:
        """The first step: ask for slots."""
        self.status_times_ms[JobStatus.CREATED.name] = now_ms
        self.recovery.next_attempt = NextAttempt(now_ms)
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
            case CoordinatorSaid() if event.attempt == self.attempt:
                return self._coordinator_said(event) if self.gateways.pass_on(event) else []
            case CoordinatorFailed(_, attempt, error) if attempt == self.attempt:
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

    @property
    def cause(self) -> Optional[FlinkishError]:
        return self.recovery.cause

    @property
    def ended(self) -> bool:
        return self.status in (JobStatus.FINISHED, JobStatus.FAILED, JobStatus.CANCELED)

    def _slot_said(self, slot_id: str, message, now_ms: int) -> list:
        match message:
            case TasksDeployed(_, attempt) if attempt == self.attempt:
                return self._tasks_deployed(slot_id)
            case TaskStateChanged(execution, state, failure) if execution.attempt == self.attempt:
                return self._task_changed(execution, ExecutionState[state], failure, now_ms)
            case SlotFailed(_, _, attempt) if attempt == self.attempt:
                return self._slot_failed(slot_id, message, now_ms)
            case OperatorEvent(execution) if execution.attempt == self.attempt:
                if (execution.vertex_id, execution.subtask_index) in self.executions:
                    return [ToCoordinator(self.job.job_id, message)]
            case NotifyEndOfData(execution) if execution.attempt == self.attempt and not self.all_run:
                self.ended_early.append(message)
            case AcknowledgeCheckpoint() | DeclineCheckpoint() | NotifyEndOfData():
                return self._checkpoints(message, now_ms)
        return []

    def _coordinator_said(self, event: CoordinatorSaid) -> list:
        """On to the subtask: held until it runs, so that operators are open; dropped once it ended."""
        vertex_id = self._vertex_of[event.operator_id]
        execution = self.executions.get((vertex_id, event.subtask))
        if execution is None or execution.state.is_terminal:
            return []
        message = OperatorEvent(
            ExecutionAttemptID(self.job.job_id, self.attempt, vertex_id, event.subtask),
            event.operator_id,
            event.payload,
        )
        if not self.started or execution.state is ExecutionState.INITIALIZING:
            self.held_events.setdefault((vertex_id, event.subtask), []).append(message)
            return []
        return [SendToSlot(self.job.job_id, execution.slot_id, message)]

    # ---- checkpoints ----------------------------------------------------------------------------

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
                case SnapshotResult(request_id, _, error) if request_id == _RESCALE_SNAPSHOT:
                    if error is not None:  # now, for the job may fail with it in the same step
                        effects += self._give_rescaling_up(error)
                    rescale = error is None  # when all that its completion means has been carried out
                case SendToExecution(message):
                    id_ = message.execution
                    execution = self.executions[id_.vertex_id, id_.subtask_index]
                    effects.append(SendToSlot(self.job.job_id, execution.slot_id, message))
                case SendToAllTasks(message):
                    effects += [
                        SendToSlot(self.job.job_id, slot_id, message) for slot_id in self.slots_of_unended()
                    ]
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

    # ---- rescaling ------------------------------------------------------------------------------

    def _rescale(self, request: RescaleRequested, now_ms: int) -> list:
        why = self._why_not_rescaled()
        if why:
            error = could_not_rescale(self.job_graph, why, "ask again when all tasks of the job run")
            return [RescaleResult(request.request_id, error)]
        try:
            job_graph = rescale_job_graph(self.job_graph, request.parallelism)
        except InvalidJobError as error:
            return [RescaleResult(request.request_id, error)]
        if _parallelism_of(job_graph) == _parallelism_of(self.job_graph):
            return [RescaleResult(request.request_id)]
        return self._become(Rescaling(request.request_id, job_graph), now_ms)

    def _slots_free(self, count: int, now_ms: int) -> list:
        """In reactive mode: take what there is, when it has been there for some time."""
        reactive = self.job.reactive
        assert reactive is not None
        reactive.see(len(self.held) + count, now_ms)
        waiting = self.recovery.next_attempt
        if waiting is None:
            if not reactive.may_grow(now_ms) or self._why_not_ready_to_rescale():
                return []
            job_graph = largest_that_fits(self.job_graph, reactive.slots)
            if job_graph is None or slots_needed(job_graph) <= self.needed:
                return []
            reactive.rescaled(now_ms)
            return self._become(Rescaling(None, job_graph), now_ms)
        misses_slots = waiting.is_ready(now_ms) and len(self.held) < self.needed_next
        if not misses_slots or self.dying or not reactive.may_begin_with_less(now_ms):
            return []
        return self._begin_with_less(reactive.slots, now_ms)

    def _begin_with_less(self, slots: int, now_ms: int) -> list:
        """Empty: the job cannot run with so few, or cannot go on from its checkpoint like that."""
        waiting, reactive = self.recovery.next_attempt, self.job.reactive
        assert waiting is not None and reactive is not None
        job_graph = largest_that_fits(self.job_graph, slots)
        if job_graph is None or slots_needed(job_graph) >= self.needed_next:
            return []
        if waiting.checkpoint is not None and decide_restore(job_graph, waiting.checkpoint).refusals:
            return []
        reactive.rescaled(now_ms)
        self.rescaling = Rescaling(None, job_graph, RescalePhase.RESTARTING)
        self.requested = 0
        withdrawn = ReleaseSlots(self.job.job_id, "the job goes on with fewer slots", ())
        return [withdrawn, *self._request_slots(), *self._go_on(now_ms)]

    def _become(self, rescaling: Rescaling, now_ms: int) -> list:
        self.rescaling = rescaling
        missing = rescaling.needed - len(self.held)
        if missing <= 0:
            return self._rescaling_goes_on(now_ms)
        self.requested = missing
        timeout_ms = self.job.slot_request_timeout_ms
        return [RequestSlots(self.job.job_id, self.job.job_name, missing, timeout_ms, growth=True)]

    def _why_not_rescaled(self) -> str:
        if self.job.reactive is not None:
            return "its scheduler-mode is reactive: it takes whatever slots there are"
        return self._why_not_ready_to_rescale()

    def _why_not_ready_to_rescale(self) -> str:
        if self.rescaling is not None:
            return "it is being rescaled"
        if self.status is not JobStatus.RUNNING or not self.all_run or self.closing is not None:
            return f"not all of its tasks run, it is {self.status.name}"
        if self.checkpoints.stopping is not None:
            return "it is being stopped with a savepoint"
        return ""

    def _rescaling_goes_on(self, now_ms: int) -> list:
        rescaling = self.rescaling
        if rescaling is None or rescaling.phase is not RescalePhase.SLOTS or len(self.held) < rescaling.needed:
            return []
        rescaling.phase = RescalePhase.CHECKPOINT
        return self._checkpoints(SnapshotRequested(_RESCALE_SNAPSHOT, SnapshotKind.CHECKPOINT), now_ms)

    def _rescale_snapshot_taken(self, now_ms: int) -> list:
        rescaling = self.rescaling
        if rescaling is None or rescaling.phase is not RescalePhase.CHECKPOINT:
            return []  # given up meanwhile
        latest = self.checkpoints.completed.latest
        assert latest is not None
        refusal = decide_restore(rescaling.job_graph, latest).refusal(ignore_unclaimed=True)
        if refusal is not None:
            return self._give_rescaling_up(refusal)
        rescaling.phase = RescalePhase.RESTARTING
        self.recovery.plan_rescaling(now_ms)
        return [
            *self._move(JobStatus.RESTARTING, now_ms),
            Inform(f"job is rescaled job={self.job.job_id} checkpoint={latest.checkpoint_id}"),
            *self._stop_tasks(now_ms),
        ]

    def _give_rescaling_up(self, error: FlinkishError) -> list:
        """Before anything has happened to the tasks: the job is as it was."""
        rescaling, self.rescaling = self.rescaling, None
        if rescaling is None:
            return []
        self.requested = 0
        return [*self._release_extra_slots("the job is not rescaled"), *rescaling.result(error)]

    def _release_extra_slots(self, reason: str) -> list:
        """Those that no task of the job has its place in, and the request for more."""
        used = {slot.slot_id for slot in self.slots}
        extra = tuple(slot_id for slot_id in self.held if slot_id not in used)
        for slot_id in extra:
            del self.held[slot_id]
        return [ReleaseSlots(self.job.job_id, reason, extra)]

    def _rescaled(self) -> list:
        """The next attempt is that of the new graph."""
        assert self.rescaling is not None
        self.job_graph, self.needed = self.rescaling.job_graph, self.rescaling.needed
        self.checkpoints.vertices = checkpointed_vertices(self.job_graph, self.job.checkpoints.coordinated)
        return [JobRescaled(self.job.job_id, self.job_graph)]

    # ---- the good way ---------------------------------------------------------------------------

    @property
    def needed_next(self) -> int:
        """Slots of the next attempt."""
        return self.needed if self.rescaling is None else self.rescaling.needed

    def _request_slots(self) -> list:
        missing = self.needed_next - len(self.held) - self.requested
        if missing <= 0:
            return []
        self.requested += missing
        return [
            RequestSlots(
                self.job.job_id,
                self.job.job_name,
                missing,
                self.job.slot_request_timeout_ms,
                replacement=self.recovery.began_ms is not None,
            )
        ]

    def _go_on(self, now_ms: int) -> list:
        """Deploy the next attempt when nothing is missing; else ask for what can be asked for."""
        waiting = self.recovery.next_attempt
        if waiting is None or not waiting.tasks_ended or self.closing:
            return []
        if not waiting.restore_asked:
            if self.checkpoints.committables.held and now_ms < waiting.due_ms:
                return []  # publication is tried again when the delay is over
            waiting.restore_asked = True
            return self._checkpoints(Recover(), now_ms)
        if not waiting.is_ready(now_ms) or len(self.held) < self.needed_next or self.dying:
            return []
        return self._deploy(waiting.checkpoint, now_ms)

    def _deploy(self, checkpoint: Optional[CompletedCheckpoint], now_ms: int) -> list:
        effects: list = []
        if self.status is JobStatus.RESTARTING:
            self.attempt += 1
            self.recovery.forgiven()
            effects += self._move(JobStatus.RUNNING, now_ms)
        self.recovery.next_attempt = None
        if self.rescaling is not None and self.job_graph is not self.rescaling.job_graph:
            effects += self._rescaled()
        self.slots = slots = self._slots_in_order()
        if len(self.held) > len(slots):
            effects += self._release_extra_slots("the job needs fewer slots")
        self.deployed, self.started, self.all_run = set(), False, False
        self.held_events, self.ended_early = {}, []
        self.gateways = CoordinatorGateways()
        self._place([slot.slot_id for slot in slots])
        self._all_to(ExecutionState.SCHEDULED)  # as they were, before they had a place
        job_id, attempt = self.job.job_id, self.attempt
        if self.recovery.began_ms is not None:
            origin = "from its beginning" if checkpoint is None else f"from {checkpoint.location}"
            effects.append(Inform(f"job goes on {origin} job={job_id} attempt={attempt}"))
        return [
            *effects,
            StartCoordinators(job_id, attempt, checkpoint),
            *self._all_to(ExecutionState.DEPLOYING),
            *(DeployToSlot(job_id, attempt, index, slots) for index in range(len(slots))),
        ]

    def _slots_in_order(self) -> tuple[SlotAddress, ...]:
        """Each subtask where it was, if that slot is still held: its files may be there."""
        places = [slot.slot_id if slot.slot_id in self.held else "" for slot in self.slots[: self.needed]]
        others = [slot_id for slot_id in self.held if slot_id not in places]
        placed = [slot_id or others.pop(0) for slot_id in places]
        return tuple(self.held[slot_id] for slot_id in (*placed, *others)[: self.needed])

    def _tasks_deployed(self, slot_id: str) -> list:
        if self.status is not JobStatus.RUNNING or self.started:
            return []
        self.deployed.add(slot_id)
        if len(self.deployed) < len(self.slots):
            return []
        self.started = True
        job_id = self.job.job_id
        return [
            *self._all_to(ExecutionState.INITIALIZING),
            *(
                SendToSlot(job_id, slot.slot_id, StartTasks(job_id, self.attempt))
                for slot in self.slots
            ),
        ]

    def _task_changed(self, id_, state: ExecutionState, failure, now_ms: int) -> list:
        execution = self.executions.get((id_.vertex_id, id_.subtask_index))
        if execution is None:
            return []
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
            held = self.held_events.pop((id_.vertex_id, id_.subtask_index), [])
        if not execution.state.is_terminal:
            effects += [SendToSlot(self.job.job_id, execution.slot_id, message) for message in held]
        if stopped:
            error = ConnectionLostError(
                f"{execution.name_with_subtask} has stopped by itself",
                where=self._where(),
                why="its slot has ended it and did not say why",
                do="look at the log of the executor that ran it",
            )
            return effects + self._fail(error, now_ms, consequence=True, task=execution.name_with_subtask)
        if state is ExecutionState.FAILED:
            name = execution.name_with_subtask
            error = failure.error if failure else InternalError(f"{name} failed and did not say why")
            execution.failure = error
            return effects + self._fail(error, now_ms, task=name)
        if state in (ExecutionState.RUNNING, ExecutionState.FINISHED):
            effects += self._task_goes_well(execution, now_ms)
        return effects + self._end_if_over(now_ms)

    def _task_goes_well(self, execution: ExecutionVertex, now_ms: int) -> list:
        """Tell the CheckpointCoordinator."""
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

    def _all_finished(self) -> bool:
        return all(execution.state is ExecutionState.FINISHED for execution in self.executions.values())

    # ---- the end of an attempt and of the job -----------------------------------------------------

    def _end_if_over(self, now_ms: int) -> list:
        """All tasks have ended: publish or remove what the sinks have prepared, then end, or go on."""
        if self.closing or not all(execution.state.is_terminal for execution in self.executions.values()):
            return []
        self.cancellation.end()
        if self.status is JobStatus.RESTARTING:
            return self._attempt_over(now_ms)
        if self.status not in (JobStatus.RUNNING, JobStatus.FAILING, JobStatus.CANCELLING):
            return []
        well = self.status is JobStatus.RUNNING
        if self._publishes():
            self.closing = Closing.PUBLISHING
            if well:
                self.closing_warn_ms = self.cancellation.bound(now_ms)
            else:
                self.closing_deadline_ms = self.cancellation.bound(now_ms)
            return []
        if well and self.job.commits:
            self.closing = Closing.COMMITTING
            self.closing_warn_ms = self.cancellation.bound(now_ms)
            prepared = self.checkpoints.committables.take_prepared()
            return [CommitSinks(self.job.job_id, self.attempt, prepared)]
        if well:
            return self._end(JobStatus.FINISHED, now_ms)
        if self.job.commits and self.slots:
            return self._abort_sinks(now_ms)
        return self._end_unwell(now_ms)

    def _publishes(self) -> bool:
        """A committer runs, or a checkpoint is being stored that the job's good end must not give up."""
        well = self.status is JobStatus.RUNNING
        return self.checkpoints.committables.committing or (well and self.checkpoints.is_storing)

    def _attempt_over(self, now_ms: int) -> list:
        waiting = self.recovery.next_attempt
        assert waiting is not None
        if waiting.tasks_ended:
            return self._go_on(now_ms)
        waiting.tasks_ended = True
        if self.job.commits and self.slots and not self._all_finished():
            return self._abort_sinks(now_ms)
        return self._go_on(now_ms)

    def _abort_sinks(self, now_ms: int) -> list:
        self.closing = Closing.ABORTING
        self.closing_deadline_ms = self.cancellation.bound(now_ms)
        kept = self.checkpoints.committables.kept()
        return [AbortSinks(self.job.job_id, self.attempt, kept)]

    def _aborted(self, now_ms: int) -> list:
        self.closing, self.closing_deadline_ms = None, FOR_EVER_MS
        if self.status is JobStatus.RESTARTING:
            return self._go_on(now_ms)
        return self._end_unwell(now_ms)

    def _committed(self, error: Optional[FlinkishError], now_ms: int) -> list:
        """A job without checkpoints does not restart from here: it would publish everything again."""
        if self.closing is not Closing.COMMITTING:
            return []
        self.closing = None
        if error is None:
            return self._end(JobStatus.FINISHED, now_ms)
        self.recovery.failed(error, now_ms, self.attempt)
        return [*self._move(JobStatus.FAILING, now_ms), *self._end(JobStatus.FAILED, now_ms)]

    def _end_unwell(self, now_ms: int) -> list:
        failing = self.status is JobStatus.FAILING
        return self._end(JobStatus.FAILED if failing else JobStatus.CANCELED, now_ms)

    def _end(self, status: JobStatus, now_ms: int) -> list:
        if self.cause is not None:
            self.cause.fields.setdefault("story", self.story.lines())
        self.recovery.next_attempt = None
        self.held.clear()
        effects: list = []
        if self.rescaling is not None:
            error = could_not_rescale(self.job_graph, f"the job is {status.name}")
            effects += self.rescaling.result(error)
            self.rescaling = None
        return [
            *effects,
            *self._checkpoints(JobEnding(status.name), now_ms),
            *self._move(status, now_ms),
            ReleaseSlots(self.job.job_id, f"job {self.job.job_id} is {status.name}"),
        ]

    # ---- failure and cancellation ---------------------------------------------------------------

    def _fail(
        self, error: FlinkishError, now_ms: int, consequence: bool = False, task: Optional[str] = None
    ) -> list:
        consequence = consequence or isinstance(error, ConnectionLostError)
        if self.status is JobStatus.RESTARTING:
            return self._fail_again(error, now_ms, consequence, task)
        if self.status is JobStatus.FAILING:
            self.recovery.improve_cause(error, consequence, task)
            return self._end_if_over(now_ms)
        if self.status is not JobStatus.RUNNING or self.closing in (Closing.COMMITTING, Closing.ABORTING):
            return self._end_if_over(now_ms)
        if self.closing is Closing.PUBLISHING:
            self.closing = None
            self.closing_deadline_ms = self.closing_warn_ms = FOR_EVER_MS
        self.recovery.failed(error, now_ms, self.attempt, task, consequence)
        effects: list = []
        if self.rescaling is not None and self.rescaling.phase is not RescalePhase.RESTARTING:
            effects = self._give_rescaling_up(could_not_rescale(self.job_graph, f"the job failed: {error.what}"))
        if not self.recovery.may_restart(now_ms):
            return effects + self._fail_for_good(now_ms)
        delay_ms = self.recovery.plan_restart(now_ms)
        return [
            *effects,
            *self._move(JobStatus.RESTARTING, now_ms),
            self._restart_warning(error, delay_ms),
            *self._stop_tasks(now_ms),
        ]

    def _stop_tasks(self, now_ms: int) -> list:
        job_id = self.job.job_id
        effects: list = []
        if self.status is JobStatus.RESTARTING and self.slots:
            effects.append(StopCoordinators(job_id))
        ids = frozenset(execution.execution for execution in self.executions.values())
        effects += self._checkpoints(TasksStopped(ids), now_ms)
        effects += self._cancel_executions(now_ms)
        if self.status is JobStatus.RESTARTING:
            effects += self._replace_dying()
            effects += self._request_slots()
        return effects

    def _replace_dying(self) -> list:
        dying = tuple(sorted(self.dying & self.held.keys()))
        return [KillSlots(self.job.job_id, dying, "it has failed, and is replaced")] if dying else []

    def _fail_again(
        self, error: FlinkishError, now_ms: int, consequence: bool, task: Optional[str]
    ) -> list:
        """While the job restarts."""
        waiting = self.recovery.next_attempt
        assert waiting is not None
        if not waiting.tasks_ended:  # it belongs to the failure that has stopped the tasks
            improved = self.recovery.improve_cause(error, consequence, task)
            if improved and not error.retryable:
                return self._fail_for_good(now_ms)
            return self._end_if_over(now_ms)
        self.recovery.failed(error, now_ms, self.attempt, task, consequence)
        if not self.recovery.may_restart(now_ms):
            return self._fail_for_good(now_ms)
        delay_ms = self.recovery.plan_another_restart(now_ms)
        return [self._restart_warning(error, delay_ms)]

    def _restart_warning(self, error: FlinkishError, delay_ms: int) -> Warn:
        return Warn(
            f"job restarts job={self.job.job_id} name={self.job.job_name!r} attempt={self.attempt + 1} "
            f"delay_ms={delay_ms} error={error.what!r} why={error.why!r}"
        )

    def _refused(self, error: FlinkishError, now_ms: int) -> list:
        """There are no slots: that ends the job, whatever the restart strategy says, unless it takes what there is."""
        if self.rescaling is not None and self.rescaling.phase is RescalePhase.SLOTS:
            return self._give_rescaling_up(error)
        waiting = self.recovery.next_attempt
        if self.job.reactive is not None and waiting is not None and waiting.is_ready(now_ms):
            effects = self._begin_with_less(len(self.held) + error.fields.get("available", 0), now_ms)
            if effects:
                return effects
        if self.status is JobStatus.RESTARTING:
            return self._give_recovery_up(error, now_ms)
        if self.status is JobStatus.RUNNING and self.recovery.next_attempt is not None:
            self.recovery.failed(error, now_ms, self.attempt)
            return self._fail_for_good(now_ms)
        return self._end_if_over(now_ms)

    def _give_recovery_up(self, error: FlinkishError, now_ms: int) -> list:
        if self.cause is not None:  # it is not only being rescaled
            error.fields.setdefault("restarted_because", f"{self.cause.what}: {self.cause.why}")
            error.where = ", ".join(filter(None, (error.where, f"while it restarted because {self.cause.what}")))
        self.recovery.failed(error, now_ms, self.attempt)
        return self._fail_for_good(now_ms)

    def _fail_for_good(self, now_ms: int) -> list:
        self.recovery.next_attempt = None
        self.recovery.end()
        restarting = self.status is JobStatus.RESTARTING
        moved = self._move(JobStatus.FAILING, now_ms)
        if not restarting:
            return [*moved, *self._stop_tasks(now_ms)]
        return [*moved, *self._cancel_executions(now_ms)]

    def _cancel(self, now_ms: int) -> list:
        if self.closing in (Closing.COMMITTING, Closing.PUBLISHING):  # what is being published is published
            self.closing_deadline_ms = min(self.closing_deadline_ms, self.cancellation.bound(now_ms))
            self.closing_warn_ms = FOR_EVER_MS  # it advises to cancel
            return []
        if self.status is JobStatus.RESTARTING:
            self.recovery.next_attempt = None
            self.recovery.forgiven()
            self.recovery.end()
            return [*self._move(JobStatus.CANCELLING, now_ms), *self._cancel_executions(now_ms)]
        if self.status is not JobStatus.RUNNING:
            return []  # what fails goes on failing
        self.recovery.next_attempt = None
        self.recovery.end()
        return [*self._move(JobStatus.CANCELLING, now_ms), *self._stop_tasks(now_ms)]

    def _cancel_executions(self, now_ms: int) -> list:
        effects: list = []
        if not self.slots:  # nobody has heard of these tasks yet
            effects += self._all_to(ExecutionState.CANCELED)
        slots = self.slots_of_unended()
        if slots and not self.cancellation.is_running:
            effects += self._all_to(ExecutionState.CANCELING)
            for slot_id in slots:
                cancel = CancelTasks(self.job.job_id, self.attempt)
                effects.append(SendToSlot(self.job.job_id, slot_id, cancel))
            self.cancellation.begin(now_ms)
        return effects + self._end_if_over(now_ms)

    def _slot_failed(self, slot_id: str, message: SlotFailed, now_ms: int) -> list:
        effects: list = []
        if message.lost_peer is None and not self.started:
            # It could not even build its tasks, so it will say nothing more about them.
            for execution in self.executions.values():
                if execution.slot_id == slot_id and execution.state is ExecutionState.DEPLOYING:
                    effects += self._to(execution, ExecutionState.FAILED)
        elif message.lost_peer is None:
            self.dying.add(slot_id)
            if self.status is JobStatus.RESTARTING:
                effects += self._replace_dying()
        consequence = message.lost_peer is not None
        return effects + self._fail(message.failure.error, now_ms, consequence)

    def _slot_lost(self, slot_id: str, error: FlinkishError, now_ms: int) -> list:
        self.held.pop(slot_id, None)
        self.dying.discard(slot_id)
        lost = [
            execution
            for execution in self.executions.values()
            if not execution.state.is_terminal and execution.slot_id == slot_id
        ]
        if not lost:
            if self.rescaling is not None and self.rescaling.phase is not RescalePhase.RESTARTING:
                return self._give_rescaling_up(error)
            if self.recovery.next_attempt is None:
                return []  # all that it ran has finished and handed over its output
            return self._request_slots() + self._go_on(now_ms)
        # Also those that had finished: what they did to the process may be why it has ended.
        tasks = ", ".join(
            f'"{execution.name_with_subtask}"'
            for execution in self.executions.values()
            if execution.slot_id == slot_id
        )
        error.where = ", ".join(filter(None, (error.where, f"which ran {tasks}")))
        running = self.status is JobStatus.RUNNING
        effects: list = []
        for execution in lost:
            effects += self._to(
                execution, ExecutionState.FAILED if running else ExecutionState.CANCELED
            )
        effects += self._fail(error, now_ms, task=lost[0].name_with_subtask)
        if self.status is JobStatus.RESTARTING:
            effects += self._request_slots()
        return effects

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

    # ---- time -----------------------------------------------------------------------------------

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
        return effects + self._go_on(now_ms)

    def _tick_closing(self, late_ms: int, now_ms: int) -> list:
        """A committer is user code that waits for a service: nothing can end it but itself."""
        self.closing_warn_ms += late_ms
        self.closing_deadline_ms += late_ms
        job_id, sink = self.job.job_id, self.committing
        if now_ms >= self.closing_deadline_ms:
            waited_ms = self.job.cancellation_timeout_ms
            if self.closing is Closing.ABORTING:
                warning = f"gave up waiting for a committer that aborts job={job_id} sink={sink!r} waited_ms={waited_ms}"
                return [Warn(warning), *self._aborted(now_ms)]
            error = ExternalError(
                f'the committer of sink "{sink}" did not end',
                where=self._where(),
                why=f"the job was cancelled while it published, and it took more than {waited_ms} ms longer "
                "(task.cancellation.timeout); it still runs, in a thread of the driver",
                do="look whether the result is complete, and at the service that the sink writes to",
            )
            if self.closing is Closing.PUBLISHING:
                return self._publication_given_up(error, now_ms)
            return self._committed(error, now_ms)
        if now_ms >= self.closing_warn_ms:
            self.closing_warn_ms = FOR_EVER_MS
            return [Warn(f"a committer takes long, cancel the job to give it up job={job_id} sink={sink!r}")]
        return []

    def _publication_given_up(self, error: ExternalError, now_ms: int) -> list:
        """The checkpoint whose publication is not known to be done stays, so that it can be repeated."""
        self.closing, self.closing_deadline_ms = None, FOR_EVER_MS
        effects: list = [Warn(f"gave up waiting for a committer job={self.job.job_id} sink={self.committing!r}")]
        if self.status is JobStatus.RUNNING:
            self.recovery.failed(error, now_ms, self.attempt)
            effects += self._move(JobStatus.FAILING, now_ms)
        return effects + self._end_unwell(now_ms)

    def _tick_cancelling(self, late_ms: int, now_ms: int) -> list:
        due = self.cancellation.tick(late_ms, now_ms)
        if due is None:
            return []
        slots = self.slots_of_unended()
        if due is CancellationStep.INTERRUPT:
            return [InterruptSlots(self.job.job_id, slots)]
        if due is CancellationStep.KILL:
            reason = (
                f"job {self.job.job_id}: not cancelled within "
                f"{self.job.cancellation_timeout_ms} ms (task.cancellation.timeout)"
            )
            return [
                Warn(f"killing slots that do not cancel job={self.job.job_id} slots={','.join(slots)}"),
                KillSlots(self.job.job_id, slots, reason),
            ]
        effects: list = [Warn(f"gave up waiting for slots job={self.job.job_id} slots={','.join(slots)}")]
        if self.status is JobStatus.RESTARTING:  # two attempts must not run at once
            effects += self._fail_for_good(now_ms)
        return [*effects, *self._all_to(ExecutionState.CANCELED), *self._end_if_over(now_ms)]

    def _tick_recovery(self, late_ms: int, now_ms: int) -> list:
        """A recovery that takes long says what it waits for, and one that takes too long ends the job."""
        self.recovery.forgive(late_ms)
        if self.recovery.is_too_late(now_ms):
            self.recovery.end()
            error = ExternalError(
                f'job "{self.job.job_name}" did not recover',
                where=self._where(),
                why=f"it took more than {self.job.recovery_timeout_ms} ms (flinkish.recovery.timeout); "
                f"it waits for {describe_waiting(self, now_ms)}",
                do="look at the log of the executors and at the checkpoint storage, or raise that setting",
            )
            if self.status is JobStatus.RESTARTING:
                return self._give_recovery_up(error, now_ms)
            self.recovery.failed(error, now_ms, self.attempt)
            return self._fail_for_good(now_ms)
        if not self.recovery.take_progress(now_ms):
            return []
        since_ms = now_ms - (self.recovery.began_ms or self.status_times_ms[JobStatus.CREATED.name])
        return [Warn(f"job recovers job={self.job.job_id} since_ms={since_ms} waits_for={describe_waiting(self, now_ms)!r}")]

    # ---- helpers --------------------------------------------------------------------------------

    def slots_of_unended(self) -> tuple[str, ...]:
        unended = {e.slot_id for e in self.executions.values() if not e.state.is_terminal}
        return tuple(slot.slot_id for slot in self.slots if slot.slot_id in unended)

    def _to(self, execution: ExecutionVertex, state: ExecutionState) -> list:
        execution.transition(state)
        return [ExecutionChanged(self.job.job_id, execution.name_with_subtask, state.name)]

    def _all_to(self, state: ExecutionState) -> list:
        effects: list = []
        for execution in self.executions.values():
            if execution.state.can_become(state):
                effects += self._to(execution, state)
        return effects

    def _move(self, status: JobStatus, now_ms: int) -> list:
        self.status = status
        self.status_times_ms[status.name] = now_ms
        error = self.cause if status is JobStatus.FAILED else None
        return [JobStatusChanged(self.job.job_id, status.name, error)]

    def _where(self) -> str:
        return f'job "{self.job.job_name}" ({self.job.job_id}), attempt {self.attempt}'

    def describe(self) -> dict:
        """For the REST API: plain data."""
        return describe_job(self)

    def check(self) -> None:
        """Assert what holds between any two steps."""
        self.checkpoints.check()
        self.gateways.check()
        self.recovery.check()
        states = [execution.state for execution in self.executions.values()]
        all_ended = all(state.is_terminal for state in states)
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
        assert not self.started or len(self.deployed) == len(self.slots)
        waits = (
            self.status in (JobStatus.FAILING, JobStatus.CANCELLING, JobStatus.RESTARTING) and not all_ended
        )
        assert self.cancellation.is_running == waits, "every wait for tasks is bounded"
        assert (self.recovery.next_attempt is not None) >= (self.status is JobStatus.RESTARTING)
        if self.recovery.next_attempt is not None:
            assert len(self.held) + self.requested >= self.needed_next, "a slot is missing, and nobody asks for it"
            assert self.status is JobStatus.RUNNING or self.recovery.deadline_ms < FOR_EVER_MS
            if self.recovery.next_attempt.tasks_ended and self.status is JobStatus.RESTARTING:
                assert all_ended, "two attempts run at once"
