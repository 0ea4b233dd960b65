"""What goes into the cores of the JobManager, and what comes out.

Events are facts that the shell has seen; effects are orders to it, in the order in which it must
carry them out.  A *connection* is a number that the shell gave to a connection that has proved
the secret.  A last group never leaves the Dispatcher: it is how its cores talk to each other.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Union

from flinkish.errors import FlinkishError
from flinkish.messages.checkpoints import (
    AcknowledgeCheckpoint,
    CheckpointCommit,
    CompletedCheckpoint,
    SnapshotKind,
)
from flinkish.messages.control import (
    MetricsReport,
    OperatorEvent,
    RegisterSlot,
    RegisterSupervisor,
    SourceReportedWatermark,
    SupervisorHeartbeat,
)
from flinkish.messages.deployment import ExecutionAttemptID, SlotAddress

# ---- events -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Launched:
    """A launch has been handed to the launcher: these slots are to come.

    ``supervisors``: (task index, its slot ids) of each."""

    lease: str
    supervisors: tuple[tuple[int, tuple[str, ...]], ...]


@dataclass(frozen=True)
class SlotsAdded:
    """The answer to LaunchMoreSlots: these are to come too, as in Launched, of the launch that lives."""

    supervisors: tuple[tuple[int, tuple[str, ...]], ...]


@dataclass(frozen=True)
class LaunchEnded:
    """The launcher has nothing running any more; ``error`` says why when it knows."""

    lease: str
    error: Optional[FlinkishError] = None


@dataclass(frozen=True)
class SupervisorEnded:
    """A supervisor that was launched alone has ended for good, its Spark retries with it; the others of
    the launch go on."""

    task_index: int
    error: FlinkishError


@dataclass(frozen=True)
class SupervisorRegistered:
    connection: int
    message: RegisterSupervisor


@dataclass(frozen=True)
class SlotRegistered:
    connection: int
    message: RegisterSlot


@dataclass(frozen=True)
class SupervisorReported:
    connection: int
    message: SupervisorHeartbeat


@dataclass(frozen=True)
class Disconnected:
    connection: int
    why: str = ""


@dataclass(frozen=True)
class SlotSaid:
    """A message of a registered slot about its job: TasksDeployed, TaskStateChanged, SlotFailed,
    OperatorEvent or MetricsReport."""

    connection: int
    message: Any


@dataclass(frozen=True)
class JobSubmitted:
    """``job`` is a ``jobmanager.job_master.JobDescription``."""

    job: Any


@dataclass(frozen=True)
class CancelRequested:
    job_id: str


@dataclass(frozen=True)
class CoordinatorSaid:
    """A coordinator in the driver has something for the operator of a subtask.  ``attempt``: of the execution that it is
    for; None: whichever runs."""

    job_id: str
    attempt: Optional[int]
    operator_id: str
    subtask: int
    payload: Any


@dataclass(frozen=True)
class CoordinatorFailed:
    """User code of a coordinator in the driver raised.  ``attempt``: with which the coordinators were started."""

    job_id: str
    attempt: int
    error: FlinkishError


@dataclass(frozen=True)
class CommitterStarted:
    """A committer of the job's sinks begins to publish, or to remove what was prepared."""

    job_id: str
    attempt: int
    sink: str


@dataclass(frozen=True)
class Committed:
    """The committers of the job's sinks have run; ``error`` None: everything is published."""

    job_id: str
    attempt: int
    error: Optional[FlinkishError] = None


@dataclass(frozen=True)
class Aborted:
    """The committers have removed what was prepared, or have failed to (the shell logs that)."""

    job_id: str
    attempt: int


@dataclass(frozen=True)
class CheckpointEvent:
    """An event for the CheckpointCoordinator of this job: CoordinatorSnapshotted, MetadataStored,
    CheckpointCommitted or SnapshotRequested."""

    job_id: str
    event: Any


@dataclass(frozen=True)
class RescaleRequested:
    """Somebody wants another parallelism of a job, see ``jobmanager.rescaling``.  Answered once, by RescaleResult."""

    job_id: str
    request_id: int
    parallelism: Union[int, Mapping[str, int]]


@dataclass(frozen=True)
class Tick:
    """Time has passed.  ``launch_waiting``: what the launcher says that it waits for.

    ``late_ms``: how much later than due this tick comes.  The JobManager itself did not get to run
    (user code in the driver may hold the GIL), so that time is counted against nobody."""

    launch_waiting: str = ""
    late_ms: int = 0


Event = Union[
    Launched,
    SlotsAdded,
    LaunchEnded,
    SupervisorEnded,
    SupervisorRegistered,
    SlotRegistered,
    SupervisorReported,
    Disconnected,
    SlotSaid,
    JobSubmitted,
    CancelRequested,
    CoordinatorSaid,
    CoordinatorFailed,
    CommitterStarted,
    Committed,
    Aborted,
    CheckpointEvent,
    RescaleRequested,
    Tick,
]

# ---- effects ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Send:
    connection: int
    message: Any


@dataclass(frozen=True)
class CloseConnection:
    """After what was sent on it has gone out."""

    connection: int
    reason: str


@dataclass(frozen=True)
class LaunchSlots:
    """The last launch has ended and a job waits: launch all slots again, under a new lease."""


@dataclass(frozen=True)
class LaunchSupervisors:
    """Launch these supervisors of the living launch again; they keep slots and lease."""

    tasks: tuple[int, ...]


@dataclass(frozen=True)
class LaunchMoreSlots:
    """The launch that lives, and each after it, is to have so many slots more."""

    count: int


@dataclass(frozen=True)
class AbandonSupervisors:
    """Kill what carries these supervisors of the living launch, if it still runs: nothing is heard of them."""

    tasks: tuple[int, ...]


@dataclass(frozen=True)
class StartCoordinators:
    """Start the job's enumerators, before any reader of this attempt registers; the attempt goes on from
    ``checkpoint``, None: it begins anew."""

    job_id: str
    attempt: int
    checkpoint: Optional[CompletedCheckpoint] = None


@dataclass(frozen=True)
class StopCoordinators:
    """Close the enumerators, for all tasks restart."""

    job_id: str


@dataclass(frozen=True)
class ResetSubtasks:
    """These subtasks (vertex id, index) have ended and go on from ``checkpoint``, None: they begin anew, while others and
    the enumerators run on: these get back what the readers have got since then."""

    job_id: str
    attempt: int
    subtasks: frozenset[tuple[str, int]]
    checkpoint: Optional[CompletedCheckpoint] = None


@dataclass(frozen=True)
class DeployToSlot:
    """Build ``DeployTasks`` for ``slots[index]`` of the job's attempt and send it.  ``beside``: of these subtasks
    only, beside what runs; None: of all."""

    job_id: str
    attempt: int
    index: int
    slots: tuple[SlotAddress, ...]
    beside: Optional[frozenset[tuple[str, int]]] = None
    connection: int = -1  # filled in by the Dispatcher


@dataclass(frozen=True)
class ToCoordinator:
    job_id: str
    event: OperatorEvent


@dataclass(frozen=True)
class CommitSinks:
    """All tasks have finished: publish what writers have handed over at the end of their input, behind
    ``prepared`` (by operator id), which came with savepoints.  ``kept``: see AbortSinks, then remove what tasks have
    left behind that were replaced while others ran on; None: there were none."""

    job_id: str
    attempt: int
    prepared: Mapping[str, tuple[bytes, ...]] = field(default_factory=dict)
    kept: Optional[Mapping[str, tuple[bytes, ...]]] = None


@dataclass(frozen=True)
class AbortSinks:
    """All tasks have ended: remove what this attempt has prepared and left behind, but not ``kept`` (by
    operator id), which is to be published still, or lies in a savepoint."""

    job_id: str
    attempt: int
    kept: Mapping[str, tuple[bytes, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckpointEffect:
    """An order of the CheckpointCoordinator to the shell, for this job: SnapshotCoordinators,
    NotifyCoordinators, StoreMetadata, CommitCheckpoint, AbortCommittables, DiscardCheckpoint, DiscardFiles or
    SweepSharedFiles."""

    job_id: str
    effect: Any


@dataclass(frozen=True)
class JobRescaled:
    """From the attempt on that follows, the job is ``job_graph``, a ``graph.job_graph.JobGraph``."""

    job_id: str
    job_graph: Any


@dataclass(frozen=True)
class RescaleResult:
    """To who sent the RescaleRequested; ``error`` None: all tasks run with the new parallelism."""

    request_id: int
    error: Optional[FlinkishError] = None


@dataclass(frozen=True)
class ExecutionChanged:
    """For the log and the web UI."""

    job_id: str
    task: str
    state: str


@dataclass(frozen=True)
class JobStatusChanged:
    """``status`` is the name of a JobStatus.  A terminal one comes once and is the job's last
    effect but for the release of its slots."""

    job_id: str
    status: str
    error: Optional[FlinkishError] = None


@dataclass(frozen=True)
class Inform:
    """What goes on: a line for the log."""

    text: str


@dataclass(frozen=True)
class Warn:
    """Odd, but recovered: a line for the log."""

    text: str


Effect = Union[
    Send,
    CloseConnection,
    LaunchSlots,
    LaunchSupervisors,
    LaunchMoreSlots,
    AbandonSupervisors,
    StartCoordinators,
    StopCoordinators,
    ResetSubtasks,
    DeployToSlot,
    ToCoordinator,
    CommitSinks,
    AbortSinks,
    CheckpointEffect,
    JobRescaled,
    RescaleResult,
    ExecutionChanged,
    JobStatusChanged,
    Inform,
    Warn,
]

# ---- between the cores --------------------------------------------------------------------------


@dataclass(frozen=True)
class RequestSlots:
    """JobMaster to ResourceManager.  ``timeout_ms`` None: the cluster's ``slot.request.timeout``.
    ``replacement``: for slots that the job has lost; it keeps the others meanwhile.  ``growth``: for a job that
    has slots and wants more; it keeps them meanwhile, and waits behind all others."""

    job_id: str
    job_name: str
    count: int
    timeout_ms: Optional[int] = None
    replacement: bool = False
    growth: bool = False


@dataclass(frozen=True)
class ReleaseSlots:
    """JobMaster to ResourceManager: the job needs these slots no more, and no request; ``slot_ids`` None: none of
    its slots."""

    job_id: str
    reason: str
    slot_ids: Optional[tuple[str, ...]] = None


@dataclass(frozen=True)
class InterruptSlots:
    """JobMaster to ResourceManager: cancelled user code still runs in these."""

    job_id: str
    slot_ids: tuple[str, ...]


@dataclass(frozen=True)
class KillSlots:
    """JobMaster to ResourceManager: these do not answer."""

    job_id: str
    slot_ids: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class SlotsAllocated:
    """ResourceManager to JobMaster."""

    job_id: str
    slots: tuple[SlotAddress, ...]


@dataclass(frozen=True)
class SlotsRefused:
    """ResourceManager to JobMaster."""

    job_id: str
    error: FlinkishError


@dataclass(frozen=True)
class SlotLost:
    """ResourceManager to JobMaster."""

    job_id: str
    slot_id: str
    error: FlinkishError


@dataclass(frozen=True)
class SlotsFree:
    """ResourceManager to the JobMaster of a reactive job, at each tick: so many are free, and nobody else waits
    for them."""

    job_id: str
    count: int


@dataclass(frozen=True)
class SlotStandsStill:
    """ResourceManager to JobMaster: the loop of this slot process has not turned for so long."""

    job_id: str
    slot_id: str
    pid: int
    age_ms: int


@dataclass(frozen=True)
class FromSlot:
    """Dispatcher to JobMaster: a ``SlotSaid`` whose slot is held by this job."""

    slot_id: str
    message: Any


@dataclass(frozen=True)
class SendToSlot:
    """JobMaster to ResourceManager: for the process that holds the slot for this job."""

    job_id: str
    slot_id: str
    message: Any


# ---- checkpoints: between JobMaster, CheckpointCoordinator and shell -------------------------------
#
# The messages AcknowledgeCheckpoint, DeclineCheckpoint and NotifyEndOfData are events of the coordinator as they are.


@dataclass(frozen=True)
class TasksRunning:
    """JobMaster: every task of the job is RUNNING or has FINISHED.  ``executions``: all of them, with those
    that a restart of a region has left alone; ``finished``: of these, which have ended."""

    attempt: int
    executions: tuple[ExecutionAttemptID, ...]
    finished: frozenset[ExecutionAttemptID] = frozenset()


@dataclass(frozen=True)
class TaskFinished:
    """JobMaster: this task has FINISHED."""

    execution: ExecutionAttemptID


@dataclass(frozen=True)
class TasksStopped:
    """JobMaster: these tasks have failed or are being cancelled, and will not go on.  ``job_cancelled``: by the user."""

    executions: frozenset[ExecutionAttemptID]
    job_cancelled: bool = False


@dataclass(frozen=True)
class Recover:
    """JobMaster: the tasks to restart have all ended, or none has started yet; from which checkpoint do they
    go on?  Answered by RestoreFrom or FailJob.  ``whole``: no task of the job is left."""

    whole: bool = False


@dataclass(frozen=True)
class SnapshotRequested:
    """A checkpoint or savepoint for a user, or for rescaling.  Answered once, by SnapshotResult.

    ``directory``: where a savepoint's folder is made; None: the configured one."""

    request_id: int
    kind: SnapshotKind
    directory: Optional[str] = None


@dataclass(frozen=True)
class CoordinatorSnapshotted:
    """The coordinator of this operator has taken its snapshot; ``error``: it could not."""

    checkpoint_id: int
    operator_id: str
    state: Optional[bytes] = None
    error: Optional[FlinkishError] = None


@dataclass(frozen=True)
class MetadataStored:
    """The answer to StoreMetadata.  ``error`` None: it is durable; else it may be there or not, and the
    DiscardCheckpoint that follows sees to it that it is not."""

    checkpoint_id: int
    error: Optional[FlinkishError] = None


@dataclass(frozen=True)
class CheckpointCommitted:
    """The answer to CommitCheckpoint.  ``error`` None: all of it is published."""

    run_id: str
    checkpoint_id: int
    error: Optional[FlinkishError] = None


@dataclass(frozen=True)
class JobEnding:
    """JobMaster: the job is about to have this status (the name of a terminal JobStatus)."""

    status: str


@dataclass(frozen=True)
class SnapshotCoordinators:
    """Snapshot the coordinators of these operators.  What they send to tasks from their snapshot on is held
    until ReleaseCoordinators."""

    job_id: str
    checkpoint_id: int
    operator_ids: tuple[str, ...]


@dataclass(frozen=True)
class ReleaseCoordinators:
    """What the coordinators have sent since their snapshot goes out now, behind the TriggerCheckpoints
    before it."""

    job_id: str
    checkpoint_id: int


@dataclass(frozen=True)
class NotifyCoordinators:
    """The checkpoint is complete, or has been given up."""

    job_id: str
    checkpoint_id: int
    complete: bool


@dataclass(frozen=True)
class SendToExecution:
    """CheckpointCoordinator to JobMaster: a message to the slot of its ``execution``."""

    message: Any


@dataclass(frozen=True)
class SendToAllTasks:
    """CheckpointCoordinator to JobMaster: a message to every slot with tasks that have not ended."""

    message: Any


@dataclass(frozen=True)
class StoreMetadata:
    """Write the metadata of this checkpoint: atomically and last, it makes the checkpoint complete."""

    checkpoint: CompletedCheckpoint


@dataclass(frozen=True)
class CommitCheckpoint:
    """Have committers publish this.  The next one comes when this one has been answered."""

    commit: CheckpointCommit


@dataclass(frozen=True)
class AbortCommittables:
    """Have committers remove what no checkpoint will publish, by operator id; after every
    DiscardCheckpoint before this has been carried out, for a checkpoint that is still there would publish it."""

    job_id: str
    committables: Mapping[str, tuple[bytes, ...]]


@dataclass(frozen=True)
class StoreJobResult:
    """To the checkpoint storage's thread: the job has ended for good, so no other driver must run it again.  Before
    its checkpoints are discarded."""

    job_id: str
    status: str


@dataclass(frozen=True)
class DiscardCheckpoint:
    """Remove the folder of a checkpoint, or at its end that of the job, with all that is in it, metadata
    first; after a StoreMetadata before this has ended, however it ended.

    ``unless_complete``: only if it has no metadata."""

    job_id: str
    location: str
    unless_complete: bool = False


@dataclass(frozen=True)
class DiscardFiles:
    """Remove these files, URIs."""

    job_id: str
    uris: tuple[str, ...]


@dataclass(frozen=True)
class SweepSharedFiles:
    """Remove the files in the shared folder of a job that no complete checkpoint in ``job_folder`` refers to: the tasks
    that may have done so have ended.  Not if others have begun meanwhile."""

    job_id: str
    job_folder: str


@dataclass(frozen=True)
class SnapshotResult:
    """To who sent the SnapshotRequested: ``location`` of the complete snapshot, or ``error``."""

    request_id: int
    location: Optional[str] = None
    error: Optional[FlinkishError] = None


@dataclass(frozen=True)
class FailJob:
    """CheckpointCoordinator to JobMaster: as if a task had failed.  The last effect of its step."""

    error: FlinkishError


@dataclass(frozen=True)
class RestoreFrom:
    """CheckpointCoordinator to JobMaster, the answer to Recover: all that this checkpoint publishes is
    published.  None: there is none, begin anew."""

    checkpoint: Optional[CompletedCheckpoint]


class Story:
    """The last events that a core has seen, for the error when something fails.

    Ticks, heartbeats, metrics and watermarks are no news.  Events are turned to text only when asked for, so
    large payloads are named by their type and let go."""

    def __init__(self, length: int = 50):
        self._entries: deque[tuple[int, Any]] = deque(maxlen=length)

    def add(self, now_ms: int, event: Any) -> None:
        if isinstance(event, (Tick, SupervisorReported, SlotsFree)):
            return
        if isinstance(event, CheckpointEvent):
            event = event.event
        if isinstance(event, (SlotSaid, FromSlot)):
            message = event.message
            if isinstance(message, MetricsReport):
                return
            if isinstance(message, OperatorEvent) and isinstance(message.payload, SourceReportedWatermark):
                return
            if isinstance(message, OperatorEvent):
                event = f"OperatorEvent({message.execution}, {type(message.payload).__name__})"
            elif isinstance(message, AcknowledgeCheckpoint):
                event = f"AcknowledgeCheckpoint({message.execution}, {message.checkpoint_id})"
        elif isinstance(event, AcknowledgeCheckpoint):
            event = f"AcknowledgeCheckpoint({event.execution}, {event.checkpoint_id})"
        elif isinstance(event, CoordinatorSnapshotted) and event.error is None:
            event = f"CoordinatorSnapshotted({event.checkpoint_id}, {event.operator_id})"
        elif isinstance(event, CoordinatorSaid):
            event = f"CoordinatorSaid({event.operator_id}, {event.subtask}, {type(event.payload).__name__})"
        self._entries.append((now_ms, event))

    def lines(self) -> tuple[str, ...]:
        return tuple(f"{now_ms} {_bounded(event)}" for now_ms, event in self._entries)


def _bounded(event: Any, length: int = 200) -> str:
    text = event if isinstance(event, str) else repr(event)
    return text if len(text) <= length else text[: length - 3] + "..."
