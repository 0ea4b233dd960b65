"""All jobs of a JobManager, and the way of events to them.

One ``step`` carries an event to the core that it concerns, carries that core's wishes to the
others (a JobMaster asks for slots, the ResourceManager allocates them, the JobMaster deploys),
and returns what is left for the shell.  The order of effects is the order in which the cores made
them, so a message to a slot is always behind the one before it.

Jobs that have ended move to an archive of the last ``archive_size``.

Invariants, see ``check``: those of the cores; only jobs that have not ended hold or await slots.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Mapping, Optional

from flinkish.common.job_status import JobStatus
from flinkish.errors import FlinkishError, InvalidJobError
from flinkish.jobmanager.events import (
    Aborted,
    CancelRequested,
    CheckpointEvent,
    Committed,
    CommitterStarted,
    CoordinatorFailed,
    CoordinatorSaid,
    DeployToSlot,
    FromSlot,
    InterruptSlots,
    JobStatusChanged,
    JobSubmitted,
    KillSlots,
    ReleaseSlots,
    RequestSlots,
    RescaleRequested,
    RescaleResult,
    SendToSlot,
    SlotLost,
    SlotsAllocated,
    SlotSaid,
    SlotsFree,
    SlotsRefused,
    SlotStandsStill,
    SnapshotRequested,
    SnapshotResult,
    Tick,
)
from flinkish.jobmanager.job_master import JobMaster
from flinkish.jobmanager.resource_manager import ResourceManager, SlotState
from flinkish.jobmanager.watermark_explanation import explain_watermarks
from flinkish.messages.control import MetricsReport

if TYPE_CHECKING:
    import random


@dataclass(frozen=True)
class ArchivedJob:
    """What is kept of a job that has ended."""

    job_id: str
    job_name: str
    status: str
    error: Optional[FlinkishError]
    description: Mapping[str, Any]
    metrics: Mapping[str, Mapping[str, Any]]
    accumulators: Mapping[str, bytes]


@dataclass
class Dispatcher:
    """``rng``: for the jitter of restart strategies; a job that may restart needs it."""

    resource_manager: ResourceManager
    rng: "Optional[random.Random]" = None
    archive_size: int = 100
    jobs: dict[str, JobMaster] = field(default_factory=dict)
    archive: "OrderedDict[str, ArchivedJob]" = field(default_factory=OrderedDict)
    task_metrics: dict[str, dict[str, Mapping[str, Any]]] = field(default_factory=dict)
    task_watermarks: dict[str, dict[str, Mapping[str, Any]]] = field(default_factory=dict)
    task_accumulators: dict[str, dict[str, bytes]] = field(default_factory=dict)

    def step(self, event, now_ms: int) -> list:
        """Apply one event; return what the shell must do, in order."""
        effects: list = []
        match event:
            case JobSubmitted(job):
                assert job.job_id not in self.jobs, f"job {job.job_id} was submitted twice"
                master = self.jobs[job.job_id] = JobMaster(job, self.rng)
                self._run(master.start(now_ms), now_ms, effects)
            case SlotSaid(connection, message):
                self._slot_said(connection, message, now_ms, effects)
            case CancelRequested() | CoordinatorSaid() | CoordinatorFailed():
                self._to_job(event.job_id, event, now_ms, effects)
            case CheckpointEvent(job_id, SnapshotRequested(request_id)) if job_id not in self.jobs:
                effects.append(SnapshotResult(request_id, error=self._no_job(job_id, "take a snapshot")))
            case RescaleRequested(job_id, request_id) if job_id not in self.jobs:
                effects.append(RescaleResult(request_id, self._no_job(job_id, "rescale")))
            case CommitterStarted() | Committed() | Aborted() | CheckpointEvent() | RescaleRequested():
                self._to_job(event.job_id, event, now_ms, effects)
            case Tick():
                self._run(self.resource_manager.step(event, now_ms), now_ms, effects)
                for job_id in list(self.jobs):
                    if self.jobs[job_id].job.reactive is not None:
                        free = SlotsFree(job_id, self.resource_manager.free_for(job_id))
                        self._to_job(job_id, free, now_ms, effects)
                    self._to_job(job_id, event, now_ms, effects)
            case _:
                self._run(self.resource_manager.step(event, now_ms), now_ms, effects)
        return effects

    def _no_job(self, job_id: str, what: str) -> InvalidJobError:
        why = f"the job is {self.archive[job_id].status}" if job_id in self.archive else "there is no such job"
        return InvalidJobError(f"could not {what}", where=f"job {job_id}", why=why)

    def _to_job(self, job_id: str, event, now_ms: int, effects: list) -> None:
        master = self.jobs.get(job_id)
        if master is not None:
            self._run(master.step(event, now_ms), now_ms, effects)

    def _slot_said(self, connection: int, message, now_ms: int, effects: list) -> None:
        slot = self.resource_manager.slot_at(connection)
        execution = getattr(message, "execution", None)
        job_id = message.job_id if execution is None else execution.job_id
        if slot is None or slot.job_id is None or slot.job_id != job_id:
            return  # of a process that has been replaced, or of a job that is over
        if isinstance(message, MetricsReport):
            current = {name: tasks for name, tasks in message.tasks.items() if name in self.jobs[job_id].task_names}
            self.task_metrics.setdefault(job_id, {}).update(current)
            said = {name: marks for name, marks in message.watermarks.items() if name in self.jobs[job_id].task_names}
            self.task_watermarks.setdefault(job_id, {}).update(said)
            if message.accumulators:
                self.task_accumulators.setdefault(job_id, {}).update(message.accumulators)
                self.task_accumulators[job_id] = self._accumulators_of(self.jobs[job_id])
            return
        self._to_job(job_id, FromSlot(slot.slot_id, message), now_ms, effects)

    def _run(self, wishes: list, now_ms: int, effects: list) -> None:
        for wish in wishes:
            match wish:
                case RequestSlots() | ReleaseSlots() | InterruptSlots() | KillSlots() | SendToSlot():
                    self._run(self.resource_manager.step(wish, now_ms), now_ms, effects)
                case SlotsAllocated(job_id) | SlotsRefused(job_id) | SlotLost(job_id) | SlotStandsStill(job_id):
                    self._to_job(job_id, wish, now_ms, effects)
                case DeployToSlot(_, _, index, slots):
                    slot = self.resource_manager.slots.get(slots[index].slot_id)
                    if slot is not None and slot.job_id == wish.job_id and slot.connection is not None:
                        effects.append(replace(wish, connection=slot.connection))
                case JobStatusChanged(job_id, status):
                    effects.append(wish)
                    if JobStatus[status].is_globally_terminal_state():
                        self._archive(job_id)
                case _:
                    effects.append(wish)

    def _archive(self, job_id: str) -> None:
        master = self.jobs.pop(job_id)
        self.task_watermarks.pop(job_id, None)
        self.archive[job_id] = ArchivedJob(
            job_id,
            master.job.job_name,
            master.status.name,
            master.cause,
            master.describe(),
            self.task_metrics.pop(job_id, {}),
            self._accumulators_of(master),
        )
        self.task_accumulators.pop(job_id, None)
        while len(self.archive) > self.archive_size:
            self.archive.popitem(last=False)

    # ---- what others ask ------------------------------------------------------------------------

    def status(self, job_id: str) -> Optional[str]:
        """Name of the JobStatus; None: unknown, or no longer in the archive."""
        if job_id in self.jobs:
            return self.jobs[job_id].status.name
        archived = self.archive.get(job_id)
        return archived.status if archived else None

    def metrics(self, job_id: str) -> dict[str, Mapping[str, Any]]:
        """The last report of each task: name of the execution -> metric -> value."""
        archived = self.archive.get(job_id)
        return dict(archived.metrics if archived else self.task_metrics.get(job_id, {}))

    def accumulators(self, job_id: str) -> Mapping[str, bytes]:
        """Of each subtask the last that it has reported: name of the execution -> pickle."""
        archived = self.archive.get(job_id)
        if archived is not None:
            return archived.accumulators
        return self._accumulators_of(self.jobs[job_id]) if job_id in self.jobs else {}

    def _accumulators_of(self, master: JobMaster) -> dict[str, bytes]:
        """Without those of executions that others have replaced."""
        reported = self.task_accumulators.get(master.job.job_id, {})
        return {name: reported[name] for name in sorted(reported) if name in master.task_names}

    def explain_watermarks(self, job_id: str, operator: Optional[str], now_ms: int) -> dict[str, Any]:
        """How far event time is in a job and what holds it back, see ``watermark_explanation``.

        Raises:
            InvalidJobError: there is no such job, it is over, or it has no such operator."""
        master = self.jobs.get(job_id)
        if master is None:
            raise self._no_job(job_id, "explain the watermarks of a job")
        return explain_watermarks(master, self.task_watermarks.get(job_id, {}), now_ms, operator)

    def describe(self) -> dict:
        """For the REST API: plain data."""
        slots = self.resource_manager.slots.values()
        return {
            "slots-total": len(slots),
            "slots-available": sum(slot.state is SlotState.FREE for slot in slots),
            "taskmanagers": [
                {"lease": s.lease, "task": s.task_index, "host": s.host, "attempt": s.spark_attempt, "pid": s.pid}
                for s in self.resource_manager.supervisors.values()
            ],
            "slots": [
                {
                    "id": s.slot_id,
                    "state": s.state.name,
                    "job": s.job_id,
                    "pid": s.pid,
                    "progress-age-ms": s.progress_age_ms,
                }
                for s in slots
            ],
            "jobs": [
                {**master.describe(), "waits-for": self.resource_manager.why_waiting(job_id)}
                for job_id, master in self.jobs.items()
            ]
            + [job.description for job in self.archive.values()],
        }

    def check(self) -> None:
        """Assert what holds between any two steps."""
        self.resource_manager.check()
        for job_id, master in self.jobs.items():
            assert master.job.job_id == job_id
            assert not master.ended, "jobs that have ended are in the archive"
            master.check()
        manager = self.resource_manager
        holders = {slot.job_id for slot in manager.slots.values() if slot.job_id}
        holders |= {request.job_id for request in manager.requests}
        assert holders <= set(self.jobs), f"{holders - set(self.jobs)} hold slots and are over"
        assert len(self.archive) <= self.archive_size
