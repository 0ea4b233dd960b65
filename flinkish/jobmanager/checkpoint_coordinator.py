"""The checkpoints of one job: when one begins, when it is complete, and what follows from that.

Phases of a checkpoint or savepoint::

    COORDINATORS ──all have theirs──> TASKS ──all acknowledged──> ACKNOWLEDGED ──no other is stored──> STORING
         │                              │                             │                                 │    │
         └──failure, timeout, restart───┴─────────────────────────────┴──> given up <──not to be stored─┘    │
                                                                            complete <──metadata durable─────┘

Complete: tasks, coordinators and committers are told, older checkpoints that are not complete are given up
(*subsumed*), and what retention does not keep is discarded.  A savepoint of a job that goes on is complete
and nothing else follows: it subsumes nothing, publishes nothing, tasks do not hear of it, as in Flink.

**When one begins.** A periodic checkpoint: ``interval_ms`` after the last began, ``min_pause_ms`` after the last
was complete, while fewer than ``max_concurrent`` are pending (savepoints are counted).  One that a user asks for
waits for the last condition only.  A savepoint goes first and waits for nothing, but with unaligned checkpoints it
waits its turn too.  One of these that fails since a task has ended meanwhile is begun again.  When all tasks have come to the end of their data and sinks commit, a checkpoint begins at once.
Never two in COORDINATORS.  Committers that are slower than checkpoints hold up the next.

**What is published.** Committables are this core's from the acknowledgement on.  Those of a checkpoint that is
given up, or of a savepoint, go with the next checkpoint that is complete.  Commits are carried out one by one in
the order of checkpoints, and metadata name all that were not known to be carried out, so that nothing is
left out however often the driver fails.  When tasks fail, what only they have prepared is removed: they
will prepare it again.

**Stopping with a savepoint.** All other checkpoints are given up and none begins.  When the savepoint is complete
the tasks end by themselves, and what it publishes is published; then the job is FINISHED, and the requester gets the
location.  If it fails, the job goes on; with drain, event time has come to its end in some tasks already, so the job
restarts from its newest checkpoint.  If a task fails after it was complete, the job goes on from it.

**Recovery.** ``TasksStopped`` gives up every checkpoint but the one being stored, whose fate is
not known.  ``Recover`` waits for that and for commits, then says where to go on.

Order of effects is a contract: metadata are durable before anybody hears that a checkpoint is complete;
it is published by nobody before that, and discards come last.

Invariants, see ``check``: ids rise, one is stored at a time; a checkpoint in STORING or ACKNOWLEDGED has one
acknowledgement of each execution and a snapshot of each coordinator; all pending ones are of the executions that run;
the metadata being stored name all that is prepared up to their id.

Source: Flink's ``CheckpointCoordinator``, ``CheckpointRequestDecider``, ``CheckpointFailureManager``,
``StopWithSavepointTerminationManager``, ``VertexEndOfDataListener``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional, Sequence

from flinkish.common.job_status import JobStatus
from flinkish.errors import CheckpointFailedError, FlinkishError
from flinkish.jobmanager.checkpoint_plan import CheckpointedVertex, subtasks_to_trigger
from flinkish.jobmanager.committables import Committables
from flinkish.jobmanager.completed_checkpoints import CompletedCheckpoints, discard_private
from flinkish.jobmanager.events import (
    CheckpointCommitted,
    CoordinatorSnapshotted,
    DiscardCheckpoint,
    FailJob,
    Inform,
    JobEnding,
    MetadataStored,
    NotifyCoordinators,
    Recover,
    ReleaseCoordinators,
    RestoreFrom,
    SendToAllTasks,
    SendToExecution,
    SnapshotCoordinators,
    SnapshotRequested,
    SnapshotResult,
    StoreJobResult,
    StoreMetadata,
    Story,
    SweepSharedFiles,
    TaskFinished,
    TasksRunning,
    TasksStopped,
    Tick,
    Warn,
)
from flinkish.jobmanager.pending_checkpoint import PendingCheckpoint, Phase
from flinkish.messages.checkpoints import (
    JOB_MANAGER_STORAGE,
    AcknowledgeCheckpoint,
    CheckpointAborted,
    CheckpointComplete,
    CheckpointFailureReason,
    CheckpointOptions,
    CompletedCheckpoint,
    DeclineCheckpoint,
    NotifyEndOfData,
    SnapshotKind,
    TriggerCheckpoint,
)
from flinkish.messages.deployment import ExecutionAttemptID

_FINAL_RETRY_MS = 1_000
_REQUEST_RETRY_MS = 50
_REQUESTS_MAX = 100
_IS_BATCH = "it is a batch job, and these have no state that is saved"

# Of a job that did not stop although its savepoint is complete: why, what follows from that, and what to do.
_GOES_ON = "tasks failed", ", and the job goes on from it", "stop the job again"
_HAS_FAILED = "the job failed", "", "see why it failed; it can be started from the savepoint"
_IS_CANCELLED = "the job was cancelled", "", "start it from the savepoint, if it should go on"


@dataclass(frozen=True)
class CheckpointConfiguration:
    """``directory``: URI under which the job's checkpoints are; ``savepoint_directory``: for savepoints that
    name none.  ``interval_ms`` None: no periodic checkpoints.  ``aligned_timeout_ms``: see CheckpointOptions.
    ``final_checkpoint``: sinks commit, so tasks at the end of their data wait for a checkpoint.
    ``high_availability``: other drivers stand by, who must know when the job has ended.
    ``batch``: the job runs in BATCH mode, whose operators keep what no snapshot has, so none is taken."""

    directory: str
    savepoint_directory: Optional[str] = None
    interval_ms: Optional[int] = None
    min_pause_ms: int = 0
    timeout_ms: int = 600_000
    max_concurrent: int = 1
    tolerable_failures: int = 0
    exactly_once: bool = True
    unaligned: bool = False
    aligned_timeout_ms: Optional[int] = None
    final_checkpoint: bool = False
    high_availability: bool = False
    batch: bool = False


@dataclass
class CheckpointCoordinator:
    """One for the life of a job.  ``completed`` has what was there before; ``next_checkpoint_id`` is higher than
    every id that this job has ever used, also for checkpoints that never were complete."""

    job_id: str
    job_name: str
    run_id: str
    vertices: Sequence[CheckpointedVertex]
    configuration: CheckpointConfiguration
    completed: CompletedCheckpoints
    next_checkpoint_id: int = 1
    flinkish_version: str = ""

    attempt: int = -1
    active: bool = False  # all tasks run, so a checkpoint may begin
    failing: bool = False  # the JobMaster has been told to fail the job; nothing begins until tasks run again
    recovering: bool = False
    none_is_left: bool = False  # no task, while recovering
    ended: bool = False
    executions: set[ExecutionAttemptID] = field(default_factory=set)
    running: set[ExecutionAttemptID] = field(default_factory=set)
    at_end: set[ExecutionAttemptID] = field(default_factory=set)  # of their data
    covered: set[ExecutionAttemptID] = field(default_factory=set)  # by a checkpoint begun after that
    pending: dict[int, PendingCheckpoint] = field(default_factory=dict)
    requests: list[SnapshotRequested] = field(default_factory=list)
    stopping: Optional[SnapshotRequested] = None
    stopped_location: Optional[str] = None
    #: Of the executions of this attempt and those stopped last: the highest id acknowledged.
    acknowledged: dict[ExecutionAttemptID, int] = field(default_factory=dict)
    committables: Committables = field(init=False)
    failures: int = 0  # in a row
    completed_count: int = 0
    failed_count: int = 0
    next_periodic_ms: int = 0
    next_final_ms: int = 0
    next_request_ms: int = 0
    last_completed_ms: Optional[int] = None
    story: Story = field(default_factory=Story)

    def __post_init__(self) -> None:
        latest = self.completed.latest
        assert latest is None or self.next_checkpoint_id > latest.checkpoint_id, "ids rise for ever"
        commits = latest.commits if latest is not None else ()
        self.committables = Committables(self.job_id, self.run_id, list(commits))
        self._coordinated = tuple(
            operator.operator_id
            for vertex in self.vertices
            for operator in vertex.operators
            if operator.coordinated
        )

    # ---- events ---------------------------------------------------------------------------------

    def step(self, event, now_ms: int) -> list:
        """Apply one event; return what must be done, in order."""
        if self.ended:
            return []
        self.story.add(now_ms, event)
        effects = self._apply(event, now_ms)
        if self.ended:
            return effects
        effects += self._store_next(now_ms)
        effects += self._trigger_what_is_due(now_ms)
        effects += self._restore_when_ready()
        # Last, so that whoever fails the job on it has carried out all that came before.
        return sorted(effects, key=lambda effect: isinstance(effect, FailJob))

    def _apply(self, event, now_ms: int) -> list:
        match event:
            case Tick(late_ms=late_ms):
                return self._tick(late_ms, now_ms)
            case AcknowledgeCheckpoint():
                return self._task_acknowledged(event)
            case DeclineCheckpoint(execution, checkpoint_id, failure, reason):
                pending = self.pending.get(checkpoint_id)
                if pending is None or execution not in pending.waiting:
                    return []  # it is given up already, or of another attempt
                return self._give_up(pending, reason, now_ms, failure.error, by_task=True)
            case NotifyEndOfData(execution):
                self.at_end |= {execution} & self.running
                return []
            case CoordinatorSnapshotted():
                return self._coordinator_snapshotted(event, now_ms)
            case MetadataStored(checkpoint_id, error):
                pending = self.pending.get(checkpoint_id)
                if pending is None:
                    return []  # the job has ended or gone on without it
                return self._stored(pending, error, now_ms)
            case CheckpointCommitted():
                effects = self.committables.committed(event)
                return effects + (self._fail_job(event.error) if self.committables.held and event.error else [])
            case TasksRunning():
                return self._tasks_run(event, now_ms)
            case TaskFinished(execution):
                return self._task_finished(execution, now_ms)
            case TasksStopped(executions, job_cancelled):
                reason = CheckpointFailureReason.CANCELLED if job_cancelled else CheckpointFailureReason.JOB_FAILURE
                return self._tasks_stopped(executions, reason, now_ms)
            case Recover(whole):
                assert not self.active, "tasks run"
                self.recovering, self.failing, self.none_is_left = True, False, whole
                return self.committables.repeat()
            case SnapshotRequested():
                return self._requested(event, now_ms)
            case JobEnding(status):
                return self._job_ends(JobStatus[status], now_ms)
        raise AssertionError(f"no event: {event!r}")

    # ---- when one begins ------------------------------------------------------------------------

    def _requested(self, request: SnapshotRequested, now_ms: int) -> list:
        why = self._why_refused(request)
        if why:
            return [self._refusal(request, why)]
        if not request.kind.stops:
            self.requests.append(request)
            return []
        effects: list = []
        for pending in list(self.pending.values()):
            if pending.phase is not Phase.STORING:
                effects += self._give_up(pending, CheckpointFailureReason.SUSPENDED, now_ms)
        effects += self._refuse_all("the job is being stopped")
        self.stopping = request
        return effects + self._begin(request.kind, request, now_ms)

    def _why_refused(self, request: SnapshotRequested) -> str:
        if self.configuration.batch:
            return _IS_BATCH
        if self.stopping is not None:
            return "the job is being stopped"
        if not self.active or self.failing or not self.running:
            return "not all tasks of the job are running"
        if len(self.requests) >= _REQUESTS_MAX:
            return f"{len(self.requests)} others are waiting"
        if request.kind.is_savepoint and not (request.directory or self.configuration.savepoint_directory):
            return "no folder is given, and execution.checkpointing.savepoint-dir is not set"
        return ""

    def _refuse_all(self, why: str) -> list:
        refused, self.requests = self.requests, []
        return [self._refusal(request, why) for request in refused]

    def _refusal(self, request: SnapshotRequested, why: str) -> SnapshotResult:
        name = "savepoint" if request.kind.is_savepoint else "checkpoint"
        do = "ask again when the job runs" if "folder" not in why else "give a folder, or set that"
        if why is _IS_BATCH:
            do = "run it in STREAMING mode, or cancel it and start it anew"
        error = CheckpointFailedError(
            f'could not begin a {name} of job "{self.job_name}"', where=f"job {self.job_id}", why=why, do=do
        )
        return SnapshotResult(request.request_id, error=error)

    def _trigger_what_is_due(self, now_ms: int) -> list:
        effects: list = []
        while self.active and not self.failing and self.running and self.stopping is None:
            if any(pending.phase is Phase.COORDINATORS for pending in self.pending.values()):
                break  # one snapshot of the coordinators at a time
            request = self._next_request(now_ms)
            if request is not None:
                self.requests.remove(request)
                effects += self._begin(request.kind, request, now_ms)
            elif self._checkpoint_is_due(now_ms):
                effects += self._begin(SnapshotKind.CHECKPOINT, None, now_ms)
            else:
                break
        if not self.running:
            effects += self._refuse_all("all tasks of the job have finished")
        return effects

    @property
    def _is_full(self) -> bool:
        return len(self.pending) >= self.configuration.max_concurrent

    def _next_request(self, now_ms: int) -> Optional[SnapshotRequested]:
        if now_ms < self.next_request_ms:
            return None
        for request in sorted(self.requests, key=lambda request: not request.kind.is_savepoint):
            forced = request.kind.is_savepoint and not self.configuration.unaligned
            if forced or not self._is_full:
                return request
        return None

    def _checkpoint_is_due(self, now_ms: int) -> bool:
        configuration = self.configuration
        if self._is_full:
            return False
        if (
            configuration.final_checkpoint
            and self.running <= self.at_end
            and not self.running <= self.covered
            and now_ms >= self.next_final_ms
            and not any(self.running <= pending.at_end for pending in self.pending.values())
        ):
            return True
        if configuration.interval_ms is None or now_ms < self.next_periodic_ms:
            return False
        if self.last_completed_ms is not None and now_ms < self.last_completed_ms + configuration.min_pause_ms:
            return False
        return len(self.committables.commits) <= configuration.max_concurrent

    def _begin(self, kind: SnapshotKind, request: Optional[SnapshotRequested], now_ms: int) -> list:
        checkpoint_id = self.next_checkpoint_id
        self.next_checkpoint_id += 1
        if kind is SnapshotKind.CHECKPOINT:
            self._begin_periods(now_ms)
            location = f"{self._job_directory}/chk-{checkpoint_id}"
        else:
            assert request is not None
            directory = (request.directory or self.configuration.savepoint_directory or "").rstrip("/")
            location = f"{directory}/savepoint-{self.job_id[:12]}-{checkpoint_id}"
        running = {(task.vertex_id, task.subtask_index): task for task in self.running}
        pending = self.pending[checkpoint_id] = PendingCheckpoint(
            checkpoint_id,
            kind,
            location,
            now_ms,
            now_ms + self.configuration.timeout_ms,
            [running[subtask] for subtask in subtasks_to_trigger(self.vertices, running.keys())],
            set(self.running),
            set(self._coordinated),
            frozenset(
                (task.vertex_id, task.subtask_index) for task in self.executions - self.running
            ),
            frozenset(self.at_end),
            request,
        )
        effects: list = [Inform(f"triggering {pending.name} job={self.job_id} type={kind.name}")]
        if self._coordinated:
            return [*effects, SnapshotCoordinators(self.job_id, checkpoint_id, self._coordinated)]
        return effects + self._trigger_tasks(pending)

    @property
    def _job_directory(self) -> str:
        return f"{self.configuration.directory.rstrip('/')}/{self.job_id}"

    def _begin_periods(self, now_ms: int) -> None:
        # An interval shorter than the pause makes no sense, Flink takes the pause then too.
        interval_ms = max(self.configuration.interval_ms or 0, self.configuration.min_pause_ms)
        self.next_periodic_ms = now_ms + interval_ms

    def _coordinator_snapshotted(self, event: CoordinatorSnapshotted, now_ms: int) -> list:
        pending = self.pending.get(event.checkpoint_id)
        if pending is None or event.operator_id not in pending.waiting_coordinators:
            return []
        if event.error is not None:
            return self._give_up(pending, CheckpointFailureReason.COORDINATOR_FAILED, now_ms, event.error)
        pending.waiting_coordinators.discard(event.operator_id)
        pending.coordinator_states[event.operator_id] = event.state
        return [] if pending.waiting_coordinators else self._trigger_tasks(pending)

    def _trigger_tasks(self, pending: PendingCheckpoint) -> list:
        pending.phase = Phase.TASKS
        configuration = self.configuration
        # Savepoints are always aligned: in-flight records have no canonical form.
        unaligned = configuration.unaligned and configuration.exactly_once and not pending.kind.is_savepoint
        options = CheckpointOptions(
            pending.kind,
            pending.location,
            f"{self._job_directory}/shared",
            configuration.exactly_once,
            unaligned,
            configuration.aligned_timeout_ms if unaligned else None,
        )
        effects: list = [
            SendToExecution(TriggerCheckpoint(task, pending.checkpoint_id, pending.timestamp_ms, options))
            for task in pending.trigger
        ]
        if self._coordinated:
            effects.append(ReleaseCoordinators(self.job_id, pending.checkpoint_id))
        return effects

    # ---- on its way -----------------------------------------------------------------------------

    def _task_acknowledged(self, message: AcknowledgeCheckpoint) -> list:
        execution, checkpoint_id, state = message.execution, message.checkpoint_id, message.state
        if checkpoint_id <= self.acknowledged.get(execution, checkpoint_id):
            return []  # repeated, or of an execution long gone; its files may be in use, so they stay
        self.acknowledged[execution] = checkpoint_id
        pending = self.pending.get(checkpoint_id)
        if pending is None or not pending.kind.is_savepoint:
            self.completed.acknowledged(checkpoint_id, state)
        if state.committables:
            self.committables.prepared[checkpoint_id, execution] = state.committables
        if pending is None or execution not in pending.waiting:
            # Late: what it wrote is nobody's, but what its sinks have prepared goes with the next checkpoint.
            return [*discard_private(self.job_id, state), *self._remove_orphans()]
        pending.waiting.discard(execution)
        pending.states[execution] = state
        if not pending.waiting:
            assert pending.phase is Phase.TASKS, "no task knows of it yet"
            pending.phase = Phase.ACKNOWLEDGED
        return []

    def _task_finished(self, execution: ExecutionAttemptID, now_ms: int) -> list:
        self.running.discard(execution)
        effects: list = []
        for pending in list(self.pending.values()):
            if execution in pending.waiting:
                effects += self._give_up(pending, CheckpointFailureReason.TASK_CLOSING, now_ms, by_task=True)
        return effects

    def _tick(self, late_ms: int, now_ms: int) -> list:
        effects: list = []
        for pending in list(self.pending.values()):
            pending.deadline_ms += late_ms
            if now_ms < pending.deadline_ms:
                continue
            if pending.phase is not Phase.STORING:
                effects += self._give_up(pending, CheckpointFailureReason.EXPIRED, now_ms)
            elif self.recovering:  # better to go on from an older one than to hang
                effects += self._give_up(pending, CheckpointFailureReason.EXPIRED, now_ms)
                effects += self._remove_orphans()
            elif not pending.warned:
                pending.warned = True
                age_ms = now_ms - pending.timestamp_ms
                effects.append(
                    Warn(f"storing metadata takes long job={self.job_id} {pending.name} age_ms={age_ms}")
                )
        return effects

    # ---- complete -------------------------------------------------------------------------------

    def _store_next(self, now_ms: int) -> list:
        """One at a time: only when the fate of a checkpoint is known is it known what the next publishes."""
        effects: list = []
        for pending in sorted(self.pending.values(), key=lambda pending: pending.checkpoint_id):
            if pending.phase is Phase.STORING:
                break
            if pending.phase is not Phase.ACKNOWLEDGED:
                continue
            operator = pending.partly_finished_union(self.vertices)
            if operator is not None:
                error = CheckpointFailedError(
                    f'operator "{operator}" has union state and some of its subtasks have finished'
                )
                effects += self._give_up(pending, CheckpointFailureReason.TASK_CLOSING, now_ms, error)
                continue
            pending.phase = Phase.STORING
            pending.publishes = self.committables.up_to(pending.checkpoint_id)
            own = self.committables.commit_of(pending.checkpoint_id, pending.publishes)
            pending.completed = CompletedCheckpoint(
                self.job_id,
                self.job_name,
                self.run_id,
                pending.checkpoint_id,
                pending.timestamp_ms,
                now_ms,
                pending.kind,
                pending.location,
                pending.operator_snapshots(self.vertices),
                pending.in_flight(self.vertices),
                (*self.committables.commits, *own),
                self.flinkish_version,
            )
            effects.append(StoreMetadata(pending.completed))
            break
        return effects

    def _stored(self, pending: PendingCheckpoint, error: Optional[FlinkishError], now_ms: int) -> list:
        if error is not None:
            effects = self._give_up(pending, CheckpointFailureReason.FINALIZE_FAILURE, now_ms, error)
            return effects + self._remove_orphans()
        completed = pending.completed
        assert completed is not None and pending.phase is Phase.STORING
        del self.pending[pending.checkpoint_id]
        self.failures = 0
        self.completed_count += 1
        self.last_completed_ms = now_ms
        effects = [
            Inform(
                f"completed {pending.name} job={self.job_id} bytes={completed.state_size} "
                f"duration_ms={now_ms - pending.timestamp_ms}"
            )
        ]
        if pending.kind is SnapshotKind.SAVEPOINT:
            self.committables.saved |= pending.publishes
            effects += self._remove_orphans()
        else:
            effects += self._apply_complete(pending, completed, now_ms)
        if pending.request is not None and not pending.kind.stops:
            effects.append(SnapshotResult(pending.request.request_id, pending.location))
        return effects

    def _apply_complete(
        self, pending: PendingCheckpoint, completed: CompletedCheckpoint, now_ms: int
    ) -> list:
        effects: list = []
        if self.executions and (self.active or not pending.kind.stops):  # those who took part
            self.covered |= pending.at_end & self.running
            complete = CheckpointComplete(self.job_id, pending.checkpoint_id)
            effects.append(SendToAllTasks(complete))
            if self._coordinated:
                effects.append(NotifyCoordinators(self.job_id, pending.checkpoint_id, True))
        effects += self.committables.complete(pending.checkpoint_id, pending.publishes)
        for older in list(self.pending.values()):
            if older.checkpoint_id < pending.checkpoint_id and not older.kind.is_savepoint:
                effects += self._give_up(older, CheckpointFailureReason.SUBSUMED, now_ms)
        effects += self.completed.add(completed)
        if pending.kind.stops:
            if self.active:
                self.stopped_location = pending.location
            else:
                effects += self._not_stopped(pending.location, _GOES_ON)
        return effects

    def _fail_job(self, error: FlinkishError) -> list:
        if self.failing:
            return []
        self.failing, self.recovering = True, False
        return [FailJob(error)]

    def _remove_orphans(self) -> list:
        storing = {key for pending in self.pending.values() for key in pending.publishes}
        return self.committables.remove_orphans(self.executions, storing)

    # ---- given up -------------------------------------------------------------------------------

    def _give_up(
        self,
        pending: PendingCheckpoint,
        reason: CheckpointFailureReason,
        now_ms: int,
        error: Optional[FlinkishError] = None,
        by_task: bool = False,
    ) -> list:
        del self.pending[pending.checkpoint_id]
        self.failed_count += 1
        if self.running <= pending.at_end:
            self.next_final_ms = now_ms + _FINAL_RETRY_MS  # or the final one would be tried without a pause
        failure = self._failure(pending, reason, error, now_ms)
        line = f"gave up {pending.name} job={self.job_id} reason={reason.name}"
        effects: list = [Warn(f"{line} why={failure.why!r}") if reason.counts else Inform(line)]
        triggered = pending.phase is not Phase.COORDINATORS
        if self._coordinated:
            if not triggered:
                effects.append(ReleaseCoordinators(self.job_id, pending.checkpoint_id))
            effects.append(NotifyCoordinators(self.job_id, pending.checkpoint_id, False))
        if triggered and self.executions:
            latest = self.completed.latest
            latest_id = latest.checkpoint_id if latest is not None else 0
            effects.append(SendToAllTasks(CheckpointAborted(self.job_id, pending.checkpoint_id, latest_id)))
        effects.append(DiscardCheckpoint(self.job_id, pending.location))
        if pending.request is not None:
            if reason is CheckpointFailureReason.TASK_CLOSING and error is None and not pending.kind.stops:
                # A task has come to its end between the trigger and the barrier, as each does once.
                self.requests.insert(0, pending.request)
                self.next_request_ms = now_ms + _REQUEST_RETRY_MS
            else:
                effects.append(SnapshotResult(pending.request.request_id, error=failure))
        return effects + self._after_failure(pending, reason, failure, triggered, by_task)

    def _after_failure(
        self,
        pending: PendingCheckpoint,
        reason: CheckpointFailureReason,
        failure: CheckpointFailedError,
        triggered: bool,
        by_task: bool,
    ) -> list:
        """Whether the job fails with it, in Flink's way; a failing savepoint costs the job nothing, unless
        its tasks are at fault."""
        if pending.kind.stops:
            self.stopping = None
            # Those that run on, and be it beside others that restart, may have been told that event time is over.
            drained = pending.kind is SnapshotKind.SAVEPOINT_TERMINATE and triggered and bool(self.executions)
            return self._fail_job(failure) if drained else []
        if not self.active or not reason.counts or (pending.kind.is_savepoint and not by_task):
            return []
        self.failures += 1
        if self.failures <= self.configuration.tolerable_failures:
            return []
        cause = failure.fields["cause"]
        if cause is not None and cause.domain == "user" and not cause.retryable:
            return self._fail_job(cause)  # state that cannot be saved: no later checkpoint would be better
        error = CheckpointFailedError(
            f'too many checkpoints of job "{self.job_name}" failed',
            where=failure.where,
            why=f"{self.failures} failed in a row, execution.checkpointing.tolerable-failed-checkpoints is "
            f"{self.configuration.tolerable_failures}; the last: {failure.why}",
            do="remove the cause, or raise that setting",
            checkpoint_id=pending.checkpoint_id,
            reason=reason.name,
            cause=failure,
            checkpoints=self.story.lines(),
        )
        self.failures = 0
        return self._fail_job(error)

    def _failure(
        self,
        pending: PendingCheckpoint,
        reason: CheckpointFailureReason,
        error: Optional[FlinkishError],
        now_ms: int,
    ) -> CheckpointFailedError:
        why = reason.value
        if reason is CheckpointFailureReason.EXPIRED:
            missing = sorted(map(str, pending.waiting_coordinators or pending.waiting))
            why += f": {now_ms - pending.timestamp_ms} ms (execution.checkpointing.timeout)"
            if missing:
                why += f", {len(missing)} are missing: {', '.join(missing[:3])}"
        elif error is not None:
            why += f": {error.what}" + (f" ({error.why})" if error.why else "")
        return CheckpointFailedError(
            f'{pending.name} of job "{self.job_name}" did not complete',
            where=f"job {self.job_id}, attempt {self.attempt}, {pending.location}",
            why=why,
            do=_advice(pending, reason),
            checkpoint_id=pending.checkpoint_id,
            reason=reason.name,
            cause=error,
        )

    # ---- the job --------------------------------------------------------------------------------

    def _tasks_run(self, event: TasksRunning, now_ms: int) -> list:
        assert not self.pending and not self.recovering and not self.active
        effects = [] if self.stopped_location is None else self._not_stopped(self.stopped_location, _GOES_ON)
        self.executions = set(event.executions)
        # Of those that have just stopped something may still be on its way.
        self.acknowledged = {
            task: last
            for task, last in self.acknowledged.items()
            if task in self.executions or task.attempt >= self.attempt
        }
        self.attempt, self.active, self.failing = event.attempt, True, False
        self.running = self.executions - event.finished
        self.at_end &= self.running
        self.covered &= self.running
        for execution in event.executions:
            self.acknowledged.setdefault(execution, 0)
        self.failures = 0
        self._begin_periods(now_ms)
        self.next_final_ms = now_ms
        return effects

    def _tasks_stopped(
        self, executions: frozenset[ExecutionAttemptID], reason: CheckpointFailureReason, now_ms: int
    ) -> list:
        self.active = self.recovering = False
        has_stopped = not self.running  # only the publication has failed, which is repeated
        self.executions -= executions
        self.running -= executions
        effects: list = []
        for pending in list(self.pending.values()):
            if pending.phase is not Phase.STORING:
                effects += self._give_up(pending, reason, now_ms)
        effects += self._refuse_all("tasks of the job failed or were cancelled")
        if self.stopped_location is not None and not has_stopped:
            cancelled = reason is CheckpointFailureReason.CANCELLED
            effects += self._not_stopped(self.stopped_location, _IS_CANCELLED if cancelled else _GOES_ON)
        return effects + self._remove_orphans()

    def _not_stopped(self, location: str, reason: tuple[str, str, str]) -> list:
        """The savepoint is complete, yet the job does not finish.  If it goes on, then from there, also with the tasks
        that have ended because of it: a restart of one region will not do."""
        assert self.stopping is not None
        request, self.stopping, self.stopped_location = self.stopping, None, None
        why, then, do = reason
        error = CheckpointFailedError(
            f'job "{self.job_name}" did not stop with its savepoint',
            where=f"job {self.job_id}, attempt {self.attempt}",
            why=f"{why} after the savepoint was complete; it is at {location}{then}",
            do=do,
            location=location,
        )
        result = SnapshotResult(request.request_id, error=error)
        return [result, *(self._fail_job(error) if self.executions else [])]

    def _restore_when_ready(self) -> list:
        if not self.recovering or self.pending or self.has_unpublished:
            return []
        self.recovering = False
        restore = RestoreFrom(self.completed.latest)
        if self.none_is_left and self.attempt >= 0 and self._has_files:
            return [SweepSharedFiles(self.job_id, self._job_directory), restore]
        return [restore]

    @property
    def _has_files(self) -> bool:
        return not self.configuration.directory.startswith(JOB_MANAGER_STORAGE)

    def _job_ends(self, status: JobStatus, now_ms: int) -> list:
        self.active = self.recovering = False
        self.executions.clear()
        self.running.clear()
        effects: list = []
        if self.configuration.high_availability:
            effects.append(StoreJobResult(self.job_id, status.name))
        cancelled = status is JobStatus.CANCELED
        reason = CheckpointFailureReason.CANCELLED if cancelled else CheckpointFailureReason.JOB_FAILURE
        for pending in list(self.pending.values()):
            effects += self._give_up(pending, reason, now_ms)
        effects += self._refuse_all(f"the job is {status.name}")
        if self.stopping is not None and self.stopped_location is not None:
            if status is JobStatus.FINISHED:
                effects.append(SnapshotResult(self.stopping.request_id, self.stopped_location))
                self.stopping = self.stopped_location = None
            else:
                effects += self._not_stopped(self.stopped_location, _IS_CANCELLED if cancelled else _HAS_FAILED)
        effects += self.completed.job_ended(status, unpublished=self.has_unpublished)
        folder = self._job_directory
        kept = (*self.completed.retained, *self.completed.others)
        if not any(checkpoint.location.startswith(f"{folder}/") for checkpoint in kept):
            # With what tasks may have written and nobody has heard of.
            effects.append(DiscardCheckpoint(self.job_id, folder))
        elif self._has_files:
            effects.append(SweepSharedFiles(self.job_id, folder))
        effects += self._remove_orphans()
        self.ended = True
        return effects

    # ---- what others ask ------------------------------------------------------------------------

    @property
    def has_unpublished(self) -> bool:
        """The job must not end yet: complete checkpoints are to be published."""
        return bool(self.committables.commits)

    @property
    def is_storing(self) -> bool:
        """A checkpoint that all have acknowledged is not complete yet."""
        return any(pending.phase in (Phase.ACKNOWLEDGED, Phase.STORING) for pending in self.pending.values())

    def describe(self) -> dict:
        """For the REST API: plain data."""
        latest = self.completed.latest
        return {
            "counts": {
                "completed": self.completed_count,
                "failed": self.failed_count,
                "in_progress": len(self.pending),
            },
            "latest": None
            if latest is None
            else {
                "id": latest.checkpoint_id,
                "type": latest.kind.name,
                "external_path": latest.location,
                "trigger_timestamp": latest.timestamp_ms,
                "end_to_end_duration": latest.completed_ms - latest.timestamp_ms,
                "state_size": latest.state_size,
            },
            "pending": [
                {
                    "id": pending.checkpoint_id,
                    "type": pending.kind.name,
                    "phase": pending.phase.name,
                    "trigger_timestamp": pending.timestamp_ms,
                    "num_acknowledged_subtasks": len(pending.states),
                    "num_subtasks": len(pending.states) + len(pending.waiting),
                }
                for pending in self.pending.values()
            ],
            "unpublished": len(self.committables.commits),
        }

    def check(self) -> None:
        """Assert what holds between any two steps."""
        self.completed.check()
        self.committables.check()
        assert self.running <= self.executions
        phases = [pending.phase for pending in self.pending.values()]
        assert phases.count(Phase.STORING) <= 1 and phases.count(Phase.COORDINATORS) <= 1
        assert Phase.ACKNOWLEDGED not in phases or Phase.STORING in phases, "one could be stored"
        for checkpoint_id, pending in self.pending.items():
            assert checkpoint_id == pending.checkpoint_id < self.next_checkpoint_id
            assert not pending.waiting & pending.states.keys()
            assert self.active or pending.phase is Phase.STORING
            if pending.phase is not Phase.COORDINATORS:
                assert not pending.waiting_coordinators
                assert pending.coordinator_states.keys() == set(self._coordinated)
            if pending.phase in (Phase.ACKNOWLEDGED, Phase.STORING):
                assert not pending.waiting, "a checkpoint is complete with an acknowledgement missing"
            if self.active:
                assert pending.waiting | pending.states.keys() <= self.executions
            assert (pending.completed is not None) == (pending.phase is Phase.STORING)
            assert pending.publishes <= self.committables.prepared.keys()
            if pending.phase is Phase.STORING:
                prepared = self.committables.up_to(checkpoint_id)
                assert pending.publishes == prepared, "prepared for it, and its metadata do not name that"
        assert not self.recovering or not self.active
        assert self.stopped_location is None or self.stopping is not None
        if self.ended:
            assert not self.pending and not self.requests and not self.active


def _advice(pending: PendingCheckpoint, reason: CheckpointFailureReason) -> str:
    if reason.counts:
        return "look at the log of the task, and at the checkpoint storage"
    if reason is CheckpointFailureReason.CANCELLED:
        return "start the job from a checkpoint or savepoint that it has completed before"
    if reason is CheckpointFailureReason.SUSPENDED:
        return "use the savepoint that the job is stopped with"
    if pending.request is not None:  # nobody takes it again by himself
        return "ask again when the job runs"
    return "nothing, if the next one completes"
