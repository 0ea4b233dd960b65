"""One job: its status, its executions, what happens when something fails, and its end.

Status, Flink's ``JobStatus``::

    CREATED -> RUNNING ──all tasks FINISHED, sinks committed──> FINISHED
                 │  │
                 │  └──a failure──> FAILING ──all tasks ended, sinks aborted──> FAILED
                 └──cancel──> CANCELLING ──all tasks ended, sinks aborted──> CANCELED

The states of its executions are in ``flinkish.graph.execution_graph``.

An attempt goes in steps, each for all slots at once: slots allocated, tasks deployed (no user code
yet, channels connected), tasks started.  So no record meets a peer that is not there.

The first failure is the job's cause.  One exception: when a slot dies, its peers may report the
broken connection before the loss of the slot is known; such a *consequence* gives way to the
first failure that is none.  A slot that ends although its tasks run says why (SlotFailed) before they
become CANCELED.

Cancelling is bounded.  User code that still runs is interrupted every ``cancellation_interval_ms``;
what has not ended after ``cancellation_timeout_ms`` is killed with its slot; after as long again the
JobMaster stops waiting.  So is the wait for committers of a job that has failed or been cancelled.  Those
that publish have all the time they need: what they do cannot be taken back.  Only who cancels meanwhile
says that it takes too long; if they have not ended ``cancellation_timeout_ms`` later, the job fails.

Invariants, see ``check``: a job that has ended has only executions that have ended, FINISHED only
FINISHED ones; FAILED and FAILING have a cause; commits run only after the last task.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Optional

from flinkish.common.job_status import JobStatus
from flinkish.errors import ConnectionLostError, ExternalError, FlinkishError, InternalError
from flinkish.graph.execution_graph import (
    ExecutionState,
    ExecutionVertex,
    create_execution_graph,
    slots_needed,
)
from flinkish.graph.job_graph import JobGraph
from flinkish.jobmanager.events import (
    Aborted,
    AbortSinks,
    CancelRequested,
    Committed,
    CommitSinks,
    CommitterStarted,
    CoordinatorFailed,
    CoordinatorSaid,
    DeployToSlot,
    ExecutionChanged,
    FromSlot,
    InterruptSlots,
    JobStatusChanged,
    KillSlots,
    ReleaseSlots,
    RequestSlots,
    SendToSlot,
    SlotLost,
    SlotsAllocated,
    SlotsRefused,
    SlotStandsStill,
    StartCoordinators,
    Story,
    Tick,
    ToCoordinator,
    Warn,
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

_FOR_EVER_MS = 10**15


@dataclass(frozen=True)
class JobDescription:
    """What the JobMaster needs to know of a job.

    ``operators``: (operator id, vertex id) of those with a coordinator in the driver.
    ``commits``: a sink may have a committer.
    ``cancellation_interval_ms`` 0: never interrupt.  ``cancellation_timeout_ms`` 0: wait for ever.
    ``slot_request_timeout_ms`` None: the cluster's."""

    job_graph: JobGraph
    operators: tuple[tuple[str, str], ...] = ()
    commits: bool = False
    cancellation_interval_ms: int = 1_000
    cancellation_timeout_ms: int = 10_000
    slot_request_timeout_ms: Optional[int] = None

    @property
    def job_id(self) -> str:
        return self.job_graph.job_id

    @property
    def job_name(self) -> str:
        return self.job_graph.job_name


class Closing(enum.Enum):
    """What runs off the loop after the last task, before the job ends."""

    COMMITTING = "COMMITTING"
    ABORTING = "ABORTING"


@dataclass
class JobMaster:
    job: JobDescription
    attempt: int = 0
    status: JobStatus = JobStatus.CREATED
    cause: Optional[FlinkishError] = None
    cause_is_consequence: bool = False
    slots: tuple[SlotAddress, ...] = ()
    deployed: set[str] = field(default_factory=set)
    started: bool = False
    closing: Optional[Closing] = None
    closing_warn_ms: int = _FOR_EVER_MS  # when it is said that committers take long
    closing_deadline_ms: int = _FOR_EVER_MS  # when they are not waited for any more
    committing: str = ""  # the sink whose committer runs
    cancel_deadline_ms: Optional[int] = None
    interrupt_ms: int = _FOR_EVER_MS  # when user code is interrupted next
    killed: bool = False
    executions: dict[tuple[str, int], ExecutionVertex] = field(default_factory=dict)
    held_events: dict[tuple[str, int], list[OperatorEvent]] = field(default_factory=dict)
    status_times_ms: dict[str, int] = field(default_factory=dict)
    story: Story = field(default_factory=Story)

    def __post_init__(self) -> None:
        self._place([f"slot {number}" for number in range(slots_needed(self.job.job_graph))])

    def _place(self, slots: list[str]) -> None:
        graph = create_execution_graph(self.job.job_graph, self.attempt, slots)
        self.executions = {
            (id_.vertex_id, id_.subtask_index): vertex for id_, vertex in graph.executions().items()
        }

    # ---- events ---------------------------------------------------------------------------------

    def start(self, now_ms: int) -> list:
        """The first step: ask for slots."""
        self.status_times_ms[JobStatus.CREATED.name] = now_ms
        return [
            *self._move(JobStatus.RUNNING, now_ms),
            *self._all_to(ExecutionState.SCHEDULED),
            RequestSlots(
                self.job.job_id,
                self.job.job_name,
                slots_needed(self.job.job_graph),
                self.job.slot_request_timeout_ms,
            ),
        ]

    def step(self, event, now_ms: int) -> list:
        """Apply one event; return what must be done, in order."""
        if self.ended:
            return []
        self.story.add(now_ms, event)
        match event:
            case SlotsAllocated(_, slots):
                return self._deploy(slots)
            case SlotsRefused(_, error):
                return self._fail(error, now_ms)
            case FromSlot(slot_id, message):
                return self._slot_said(slot_id, message, now_ms)
            case SlotLost(_, slot_id, error):
                return self._slot_lost(slot_id, error, now_ms)
            case SlotStandsStill():
                return self._slot_stands_still(event)
            case CoordinatorSaid() if event.attempt == self.attempt:
                return self._coordinator_said(event)
            case CoordinatorFailed(_, attempt, error) if attempt == self.attempt:
                return [] if self.closing else self._fail(error, now_ms)
            case CancelRequested():
                return self._cancel(now_ms)
            case CommitterStarted(_, attempt, sink) if attempt == self.attempt:
                self.committing = sink
                return []
            case Committed(_, attempt, error) if attempt == self.attempt:
                return self._committed(error, now_ms)
            case Aborted(_, attempt) if attempt == self.attempt:
                return self._end_unwell(now_ms) if self.closing is Closing.ABORTING else []
            case Tick(late_ms=late_ms):
                return self._tick(late_ms, now_ms)
        return []  # of another attempt

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
        return []

    def _coordinator_said(self, event: CoordinatorSaid) -> list:
        """On to the subtask: held until it runs, so that operators are open; dropped once it ended."""
        vertex_id = dict(self.job.operators)[event.operator_id]
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

    # ---- the good way ---------------------------------------------------------------------------

    def _deploy(self, slots: tuple[SlotAddress, ...]) -> list:
        if self.status is not JobStatus.RUNNING:
            return []  # the job goes back to its end, which releases them
        self.slots = slots
        self._place([slot.slot_id for slot in slots])
        self._all_to(ExecutionState.SCHEDULED)  # as they were, before they had a place
        job_id, attempt = self.job.job_id, self.attempt
        return [
            StartCoordinators(job_id, attempt),
            *self._all_to(ExecutionState.DEPLOYING),
            *(DeployToSlot(job_id, attempt, index, slots) for index in range(len(slots))),
        ]

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
            return effects + self._fail(error, now_ms, consequence=True)
        if state is ExecutionState.FAILED:
            name = execution.name_with_subtask
            error = failure.error if failure else InternalError(f"{name} failed and did not say why")
            execution.failure = error
            return effects + self._fail(error, now_ms)
        return effects + self._end_if_over(now_ms)

    def _end_if_over(self, now_ms: int) -> list:
        """All tasks have ended: publish or remove what the sinks have prepared, then end."""
        if self.closing or not all(execution.state.is_terminal for execution in self.executions.values()):
            return []
        self.cancel_deadline_ms = None
        if self.status is JobStatus.RUNNING:
            if self.job.commits:
                self.closing = Closing.COMMITTING
                self.closing_warn_ms = self._cancellation_deadline(now_ms)
                return [CommitSinks(self.job.job_id, self.attempt)]
            return self._end(JobStatus.FINISHED, now_ms)
        if self.job.commits and self.slots:
            self.closing = Closing.ABORTING
            self.closing_deadline_ms = self._cancellation_deadline(now_ms)
            return [AbortSinks(self.job.job_id, self.attempt)]
        return self._end_unwell(now_ms)

    def _cancellation_deadline(self, now_ms: int) -> int:
        return now_ms + (self.job.cancellation_timeout_ms or _FOR_EVER_MS)

    def _committed(self, error: Optional[FlinkishError], now_ms: int) -> list:
        if self.closing is not Closing.COMMITTING:
            return []
        self.closing = None
        if error is None:
            return self._end(JobStatus.FINISHED, now_ms)
        self.cause = error
        return [*self._move(JobStatus.FAILING, now_ms), *self._end(JobStatus.FAILED, now_ms)]

    def _end_unwell(self, now_ms: int) -> list:
        self.closing = None
        failing = self.status is JobStatus.FAILING
        return self._end(JobStatus.FAILED if failing else JobStatus.CANCELED, now_ms)

    def _end(self, status: JobStatus, now_ms: int) -> list:
        if self.cause is not None:
            self.cause.fields.setdefault("story", self.story.lines())
        return [
            *self._move(status, now_ms),
            ReleaseSlots(self.job.job_id, f"job {self.job.job_id} is {status.name}"),
        ]

    # ---- failure and cancellation ---------------------------------------------------------------

    def _fail(self, error: FlinkishError, now_ms: int, consequence: bool = False) -> list:
        consequence = consequence or isinstance(error, ConnectionLostError)
        if self.status is JobStatus.FAILING:
            if self.cause_is_consequence and not consequence:
                self.cause, self.cause_is_consequence = error, False
            return self._end_if_over(now_ms)
        if self.status is not JobStatus.RUNNING or self.closing:
            return self._end_if_over(now_ms)
        self.cause, self.cause_is_consequence = error, consequence
        return [*self._move(JobStatus.FAILING, now_ms), *self._cancel_executions(now_ms)]

    def _cancel(self, now_ms: int) -> list:
        if self.closing is Closing.COMMITTING:  # what is being published is published
            self.closing_deadline_ms = min(self.closing_deadline_ms, self._cancellation_deadline(now_ms))
            self.closing_warn_ms = _FOR_EVER_MS  # it advises to cancel
            return []
        if self.status is not JobStatus.RUNNING:
            return []  # what fails goes on failing
        return [*self._move(JobStatus.CANCELLING, now_ms), *self._cancel_executions(now_ms)]

    def _cancel_executions(self, now_ms: int) -> list:
        job_id = self.job.job_id
        effects: list = []
        if not self.slots:  # nobody has heard of these tasks yet
            effects += self._all_to(ExecutionState.CANCELED)
        else:
            slots = self._slots_of_unended()
            effects += self._all_to(ExecutionState.CANCELING)
            for slot_id in slots:
                effects.append(SendToSlot(job_id, slot_id, CancelTasks(job_id, self.attempt)))
            self.cancel_deadline_ms = self._cancellation_deadline(now_ms)
            self.interrupt_ms = now_ms + (self.job.cancellation_interval_ms or _FOR_EVER_MS)
        return effects + self._end_if_over(now_ms)

    def _slot_failed(self, slot_id: str, message: SlotFailed, now_ms: int) -> list:
        effects: list = []
        if message.lost_peer is None and not self.started:
            # It could not even build its tasks, so it will say nothing more about them.
            for execution in self.executions.values():
                if execution.slot_id == slot_id and execution.state is ExecutionState.DEPLOYING:
                    effects += self._to(execution, ExecutionState.FAILED)
        consequence = message.lost_peer is not None
        return effects + self._fail(message.failure.error, now_ms, consequence)

    def _slot_lost(self, slot_id: str, error: FlinkishError, now_ms: int) -> list:
        lost = [
            execution
            for execution in self.executions.values()
            if not execution.state.is_terminal and execution.slot_id == slot_id
        ]
        if not lost:
            return []  # all that it ran has finished and handed over its output
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
        return effects + self._fail(error, now_ms)

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

    def _tick_closing(self, late_ms: int, now_ms: int) -> list:
        """A committer is user code that waits for a service: nothing can end it but itself."""
        self.closing_warn_ms += late_ms
        self.closing_deadline_ms += late_ms
        job_id, sink = self.job.job_id, self.committing
        if now_ms >= self.closing_deadline_ms:
            waited_ms = self.job.cancellation_timeout_ms
            if self.closing is Closing.ABORTING:
                warning = f"gave up waiting for a committer that aborts job={job_id} sink={sink!r} waited_ms={waited_ms}"
                return [Warn(warning), *self._end_unwell(now_ms)]
            error = ExternalError(
                f'the committer of sink "{sink}" did not end',
                where=self._where(),
                why=f"the job was cancelled while it published, and it took more than {waited_ms} ms longer "
                "(task.cancellation.timeout); it still runs, in a thread of the driver",
                do="look whether the result is complete, and at the service that the sink writes to",
            )
            return self._committed(error, now_ms)
        if now_ms >= self.closing_warn_ms:
            self.closing_warn_ms = _FOR_EVER_MS
            return [Warn(f"a committer takes long, cancel the job to give it up job={job_id} sink={sink!r}")]
        return []

    def _tick(self, late_ms: int, now_ms: int) -> list:
        if self.closing is not None:
            return self._tick_closing(late_ms, now_ms)
        if self.cancel_deadline_ms is None:
            return []
        self.cancel_deadline_ms += late_ms
        self.interrupt_ms += late_ms
        slots = self._slots_of_unended()
        if now_ms < self.cancel_deadline_ms:
            if now_ms < self.interrupt_ms:
                return []
            self.interrupt_ms = now_ms + self.job.cancellation_interval_ms
            return [InterruptSlots(self.job.job_id, slots)]
        if not self.killed:
            self.killed = True
            self.cancel_deadline_ms = now_ms + self.job.cancellation_timeout_ms
            reason = (
                f"job {self.job.job_id}: not cancelled within "
                f"{self.job.cancellation_timeout_ms} ms (task.cancellation.timeout)"
            )
            return [
                Warn(f"killing slots that do not cancel job={self.job.job_id} slots={','.join(slots)}"),
                KillSlots(self.job.job_id, slots, reason),
            ]
        return [
            Warn(f"gave up waiting for slots job={self.job.job_id} slots={','.join(slots)}"),
            *self._all_to(ExecutionState.CANCELED),
            *self._end_if_over(now_ms),
        ]

    # ---- helpers --------------------------------------------------------------------------------

    def _slots_of_unended(self) -> tuple[str, ...]:
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
        counts: dict[str, int] = {}
        for execution in self.executions.values():
            counts[execution.state.name] = counts.get(execution.state.name, 0) + 1
        return {
            "jid": self.job.job_id,
            "name": self.job.job_name,
            "state": self.status.name,
            "attempt": self.attempt,
            "timestamps": dict(self.status_times_ms),
            "status-counts": counts,
            "slots": [slot.slot_id for slot in self.slots],
            "tasks": [
                {
                    "id": str(execution.execution),
                    "vertex": execution.execution.vertex_id,
                    "subtask": execution.execution.subtask_index,
                    "name": execution.task_name,
                    "state": execution.state.name,
                    "slot": execution.slot_id if self.slots else None,
                }
                for execution in self.executions.values()
            ],
        }

    def check(self) -> None:
        """Assert what holds between any two steps."""
        states = [execution.state for execution in self.executions.values()]
        all_ended = all(state.is_terminal for state in states)
        if self.ended:
            assert all_ended, "a job ends after its tasks"
            assert self.closing is None and self.cancel_deadline_ms is None
        if self.status is JobStatus.FINISHED or self.closing is Closing.COMMITTING:
            assert all(state is ExecutionState.FINISHED for state in states)
        if self.closing is not None:
            assert all_ended, "sinks are committed and aborted after the last task"
        failed = self.status in (JobStatus.FAILING, JobStatus.FAILED)
        assert (self.cause is not None) == failed, "a cause belongs to a failure"
        assert self.deployed <= {slot.slot_id for slot in self.slots}
        assert not self.started or len(self.deployed) == len(self.slots)
        waits = self.status in (JobStatus.FAILING, JobStatus.CANCELLING) and not all_ended
        assert (self.cancel_deadline_ms is not None) == waits, "every wait for tasks is bounded"
