"""The slot pool: supervisors, slots, and the jobs that hold them or wait for them.

States of a slot::

    EXPECTED ──registers──> FREE ──request──> ALLOCATED ──job over──> RELEASED
       ^                      │                  │ disconnects           │ disconnects
       │<────disconnects──────┘                  v                       │
       │<──exit reported, or report_wait_ms── MISSING                    │
       │<────────────────────────────────────────────────────────────────┘
    any ──supervisor gone──> LOST ──supervisor of a Spark retry, or of a new Spark job──> EXPECTED

A supervisor that Spark has given up (`SupervisorEnded`, launch mode independent) is launched again if it had ever
registered since it was launched: at once, or later and later when it dies young each time (`relaunch_backoff`),
and so is a launch that ends as a whole while jobs wait.  Otherwise whoever waits is told why, and it is launched
again for the next job that asks.

A supervisor that is silent, or whose connection has been gone for the heartbeat timeout, is *abandoned* where
Spark still thinks that it runs: what carries it is killed, for only then is it replaced.

How a process under a job has ended is told by its supervisor, on another connection than its own: the
report may come before or after the slot's connection closes.  The loss is told when both are there, so
that nothing that the process has said is passed over, or ``report_wait_ms`` after the first.

A process whose loop does not turn is no loss: user code may take its time, and in Flink too heartbeats
go on meanwhile.  It is told once, when the heartbeat timeout has passed.

A slot serves one job at a time: after a job its process ends, and the supervisor starts a fresh
one, which registers under the same slot id.  A process that registers while the core still
believes in the one before it is newer, so it wins (its supervisor has started it because the old
one is dead); the old one's connection is closed, which makes it exit if it lives after all.

A cluster that serves one job alone grows when that wants more slots: the launch gets more supervisors.

Requests are served in the order of their arrival, each as a whole, so that a large job is not starved by small
ones behind it; so is that of a job that wants more slots, which keeps those that it has meanwhile.  Only jobs
that have lost slots go first, and keep their others meanwhile: they had as many as they ask for, so all of them
can be served.  A request for more slots than the cluster can ever have is refused at once; one that merely waits
says so, and is refused after ``request_timeout_ms``, or the time of its job, with the names of those who hold the
slots.

Invariants, see ``check``: a slot belongs to a job exactly in ALLOCATED and MISSING; a slot with a
connection is FREE, ALLOCATED or RELEASED; no connection serves two; no job that waits holds slots unless it waits
for replacements, and these wait before all others, or for more; a slot has the pid of its process except in EXPECTED
and LOST.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Optional

from flinkish.errors import FlinkishError, NotEnoughSlotsError, ResourceError, SlotLostError
from flinkish.jobmanager.events import (
    AbandonSupervisors,
    CloseConnection,
    Disconnected,
    Inform,
    InterruptSlots,
    KillSlots,
    LaunchEnded,
    Launched,
    LaunchMoreSlots,
    LaunchSlots,
    LaunchSupervisors,
    ReleaseSlots,
    RequestSlots,
    Send,
    SendToSlot,
    SlotLost,
    SlotRegistered,
    SlotsAdded,
    SlotsAllocated,
    SlotsRefused,
    SlotStandsStill,
    Story,
    SupervisorEnded,
    SupervisorRegistered,
    SupervisorReported,
    Tick,
    Warn,
)
from flinkish.jobmanager.relaunch_backoff import DEATHS_MAX, RelaunchBackoff
from flinkish.messages.control import (
    PROTOCOL_VERSION,
    InterruptSlot,
    KillSlot,
    RegistrationRefused,
    ReleaseSlot,
    SlotReport,
)
from flinkish.messages.deployment import SlotAddress


FAILED_STARTS_MAX = 3
_SIGKILL = 9


class SlotState(enum.Enum):
    EXPECTED = "EXPECTED"  # a process is to start and register
    FREE = "FREE"
    ALLOCATED = "ALLOCATED"
    MISSING = "MISSING"  # its connection broke under a job; the supervisor may still say why
    RELEASED = "RELEASED"  # told to end
    LOST = "LOST"  # nobody will start a process any more


@dataclass
class Slot:
    slot_id: str
    lease: str
    task_index: int
    order: int
    state: SlotState = SlotState.EXPECTED
    job_id: Optional[str] = None
    connection: Optional[int] = None
    address: Optional[SlotAddress] = None
    pid: Optional[int] = None  # of the process that has registered, until it is known to have ended
    deadline_ms: Optional[int] = None  # of MISSING, of RELEASED, and with an exit report
    exit_report: Optional[SlotReport] = None  # of a process under a job that is still connected
    progress_age_ms: int = 0  # as last reported: since the loop of the process turned
    told_to_stand_still: bool = False
    failed_starts: int = 0  # processes that ended badly since the last one registered

    def vacate(self, state: SlotState) -> None:
        """Its process is gone, or out of reach."""
        self.state = state
        self.connection = self.address = self.pid = self.deadline_ms = self.exit_report = None
        self.progress_age_ms, self.told_to_stand_still = 0, False


@dataclass
class Supervisor:
    lease: str
    task_index: int
    spark_attempt: int
    host: str
    connection: int
    last_heartbeat_ms: int
    executor_id: str = ""
    pid: int = 0

    @property
    def place(self) -> str:
        """Where it runs, as Spark's pages name it."""
        executor = f"executor {self.executor_id}, " if self.executor_id else ""
        return f"{self.host} ({executor}task {self.task_index}, attempt {self.spark_attempt})"


@dataclass
class SlotRequest:
    job_id: str
    job_name: str
    count: int
    since_ms: int
    deadline_ms: int
    replacement: bool = False  # for slots that the job has lost
    growth: bool = False  # of a job that has slots


@dataclass
class ResourceManager:
    """See the module.

    Args:
        capacity: slots that the cluster can ever have; None: unknown.
        grows_to: slots that it can have when a job wants more than it has now; None: unknown.  Default: it does not grow.
        request_timeout_ms: ``slot.request.timeout`` of the cluster.
        heartbeat_timeout_ms: ``heartbeat.timeout``, of supervisors.
        release_timeout_ms: a released process that has not ended by then is killed.
        report_wait_ms: how long a broken connection waits for the supervisor's exit report.
    """

    capacity: Optional[int]
    request_timeout_ms: int = 60_000
    grows_to: Optional[int] = 0
    heartbeat_timeout_ms: int = 10_000
    release_timeout_ms: int = 10_000
    report_wait_ms: int = 1_000
    slots: dict[str, Slot] = field(default_factory=dict)
    supervisors: dict[tuple[str, int], Supervisor] = field(default_factory=dict)
    requests: list[SlotRequest] = field(default_factory=list)
    job_names: dict[str, str] = field(default_factory=dict)
    story: Story = field(default_factory=Story)
    lease: Optional[str] = None  # of the launch that lives
    _launched_once: bool = False
    _launch_has_served: bool = False
    _launch_ordered: bool = False  # the shell has been told to launch
    _waiting_text: str = ""
    _unregistered: set[int] = field(default_factory=set)  # supervisors launched, and not seen yet
    _given_up: set[int] = field(default_factory=set)  # to be launched for the next job that asks
    _backoffs: dict[int, RelaunchBackoff] = field(default_factory=dict)  # of supervisors
    _launch_backoff: RelaunchBackoff = field(default_factory=RelaunchBackoff)
    _relaunches: dict[int, int] = field(default_factory=dict)  # supervisor -> when it is launched again
    _launch_ms: Optional[int] = None  # when all are launched again
    _gone: dict[int, int] = field(default_factory=dict)  # supervisor without connection -> when it is abandoned

    # ---- events ---------------------------------------------------------------------------------

    def step(self, event, now_ms: int) -> list:
        """Apply one event; return what must be done, in order."""
        self.story.add(now_ms, event)
        match event:
            case Launched():
                return self._launched(event)
            case SupervisorRegistered(connection, message):
                return self._supervisor_registered(connection, message, now_ms)
            case SlotRegistered(connection, message):
                return self._slot_registered(connection, message, now_ms) + self._serve()
            case SupervisorReported(connection, message):
                return self._supervisor_reported(connection, message, now_ms)
            case Disconnected(connection, why):
                return self._disconnected(connection, why, now_ms)
            case SlotsAdded(supervisors):
                return self._expect(supervisors)
            case LaunchEnded(lease, error):
                return self._launch_ended(lease, error, now_ms)
            case SupervisorEnded(task_index, error):
                return self._supervisor_ended(task_index, error, now_ms)
            case RequestSlots():
                return self._request(event, now_ms) + self._serve() + self._say_that_it_waits(event)
            case ReleaseSlots(job_id, reason, slot_ids):
                return self._release(job_id, reason, slot_ids, now_ms) + self._serve()
            case InterruptSlots(job_id, slot_ids):
                return self._interrupt(job_id, slot_ids)
            case KillSlots(job_id, slot_ids, reason):
                return self._kill(job_id, slot_ids, reason)
            case SendToSlot(job_id, slot_id, message):
                slot = self.slots.get(slot_id)
                if slot is None or slot.job_id != job_id or slot.connection is None:
                    return []  # on its way out; its loss is told by SlotLost
                return [Send(slot.connection, message)]
            case Tick(launch_waiting, late_ms):
                self._waiting_text = launch_waiting
                return self._tick(late_ms, now_ms)
        raise AssertionError(f"unknown event {event!r}")

    def _launched(self, event: Launched) -> list:
        self.lease = event.lease
        self._launched_once, self._launch_has_served, self._launch_ordered = True, False, False
        self._backoffs, self._relaunches, self._gone, self._launch_ms = {}, {}, {}, None
        self._unregistered, self._given_up = set(), set()
        self.slots = {key: slot for key, slot in self.slots.items() if slot.job_id is not None}
        return self._expect(event.supervisors)

    def _expect(self, supervisors: tuple[tuple[int, tuple[str, ...]], ...]) -> list:
        assert self.lease is not None, "there is no launch that they could belong to"
        for task_index, slot_ids in supervisors:
            self._unregistered.add(task_index)
            for slot_id in slot_ids:
                assert slot_id not in self.slots, f"slot id {slot_id} was launched twice"
                self.slots[slot_id] = Slot(slot_id, self.lease, task_index, order=len(self.slots))
        return []

    def _supervisor_registered(self, connection: int, message, now_ms: int) -> list:
        key = (message.lease, message.task_index)
        present = self.supervisors.get(key)
        refusal = self._refusal(message.lease, message.protocol_version)
        if not refusal and present is not None:
            refusal = f"task {message.task_index} of this launch has registered already"
        unknown = [slot_id for slot_id in message.slot_ids if slot_id not in self.slots]
        if not refusal and unknown:
            refusal = f"this launch has no slots {', '.join(unknown)}"
        if refusal:
            return [
                Send(connection, RegistrationRefused(refusal)),
                CloseConnection(connection, refusal),
            ]
        self.supervisors[key] = Supervisor(
            message.lease,
            message.task_index,
            message.spark_attempt,
            message.host,
            connection,
            now_ms,
            message.executor_id,
            message.pid,
        )
        self._unregistered.discard(message.task_index)
        self._gone.pop(message.task_index, None)
        self._backoffs.setdefault(message.task_index, RelaunchBackoff()).registered(now_ms)
        if self._launch_backoff.registered_ms is None:
            self._launch_backoff.registered(now_ms)
        for slot in self._slots_of(key):
            if slot.state is SlotState.LOST:
                slot.state = SlotState.EXPECTED
        return []

    def _slot_registered(self, connection: int, message, now_ms: int) -> list:
        slot = self.slots.get(message.slot_id)
        refusal = self._refusal(message.lease, message.protocol_version)
        if not refusal and slot is None:
            refusal = f"this launch has no slot {message.slot_id}"
        if not refusal and slot.state is SlotState.LOST:
            refusal = f"the supervisor of slot {message.slot_id} is gone"
        if not refusal and message.address.slot_id != message.slot_id:
            refusal = f"slot {message.slot_id} gave the address of slot {message.address.slot_id}"
        if refusal:
            return [
                Send(connection, RegistrationRefused(refusal)),
                CloseConnection(connection, refusal),
            ]
        effects: list = []
        if slot.connection is not None:
            effects.append(CloseConnection(slot.connection, "a newer process has taken the slot"))
        if slot.job_id is not None:
            effects += self._lose(slot, "its process was replaced", now_ms)
        slot.vacate(SlotState.FREE)
        slot.connection, slot.address, slot.pid = connection, message.address, message.pid
        slot.failed_starts = 0
        return effects

    def _refusal(self, lease: str, protocol_version: int) -> str:
        if protocol_version != PROTOCOL_VERSION:
            return f"protocol version {protocol_version}, the JobManager speaks {PROTOCOL_VERSION}"
        if lease != self.lease:
            return f"launch {lease} is over"
        return ""

    def _supervisor_reported(self, connection: int, message, now_ms: int) -> list:
        supervisor = self._supervisor_at(connection)
        if supervisor is None:
            return []
        supervisor.last_heartbeat_ms = now_ms
        effects: list = []
        for report in message.reports:
            slot = self.slots.get(report.slot_id)
            if slot is None:
                continue
            if report.exit_status is None:
                effects += self._progressed(slot, report)
            elif slot.job_id is not None and report.pid == slot.pid:
                slot.exit_report = report
                if slot.state is SlotState.MISSING:
                    effects += self._lose(slot, "", now_ms)
                else:
                    slot.deadline_ms = now_ms + self.report_wait_ms
            elif slot.state is SlotState.EXPECTED and report.exit_status != 0:
                slot.failed_starts += 1
                if slot.failed_starts >= FAILED_STARTS_MAX:
                    effects += self._refuse_all(slot, supervisor, _exit_text(report))
        return effects

    def _progressed(self, slot: Slot, report: SlotReport) -> list:
        if slot.job_id is None or report.pid != slot.pid:
            return []
        slot.progress_age_ms = report.progress_age_ms
        still = report.progress_age_ms > self.heartbeat_timeout_ms
        news = still and not slot.told_to_stand_still
        slot.told_to_stand_still = still
        return [SlotStandsStill(slot.job_id, slot.slot_id, slot.pid, slot.progress_age_ms)] if news else []

    @staticmethod
    def _why_ended(report: SlotReport) -> tuple[str, str]:
        """Why a process that served a job has ended, and what to do."""
        why, do = f"its process has ended: {_exit_text(report)}", report.do or "look at the executor's log"
        if report.exit_status == -_SIGKILL and not report.ended_by_supervisor:
            do += "; a process that was killed is often out of memory"
        return why, do

    def _refuse_all(self, slot: Slot, supervisor: Supervisor, text: str) -> list:
        """A process that never comes up (a module is missing there) is no reason to wait."""
        waiting, self.requests = self.requests, []
        return [
            SlotsRefused(
                request.job_id,
                ResourceError(
                    "could not start a slot process",
                    where=f"slot {slot.slot_id} on {supervisor.place}",
                    why=f"{slot.failed_starts} processes in a row ended before they registered: {text}",
                    do="look at the error output of the slot, in the log of its executor",
                ),
            )
            for request in waiting
        ]

    def _disconnected(self, connection: int, why: str, now_ms: int) -> list:
        supervisor = self._supervisor_at(connection)
        if supervisor is not None:
            return self._supervisor_lost(supervisor, why or "its connection closed", now_ms)
        for slot in self.slots.values():
            if slot.connection != connection:
                continue
            if slot.exit_report is not None:
                return self._lose(slot, "", now_ms)
            if slot.state is SlotState.ALLOCATED:
                slot.connection = slot.address = None
                slot.state = SlotState.MISSING
                slot.deadline_ms = now_ms + self.report_wait_ms
            else:
                slot.vacate(SlotState.EXPECTED)
        return []

    def _supervisor_lost(self, supervisor: Supervisor, why: str, now_ms: int) -> list:
        key = (supervisor.lease, supervisor.task_index)
        del self.supervisors[key]
        self._gone[supervisor.task_index] = now_ms + self.heartbeat_timeout_ms
        effects: list = []
        for slot in self._slots_of(key):
            if slot.connection is not None:
                effects.append(CloseConnection(slot.connection, "its supervisor is gone"))
            if slot.job_id is not None:
                effects += self._lose(
                    slot, f"its supervisor on {supervisor.place} is gone: {why}", now_ms
                )
            slot.vacate(SlotState.LOST)
        return effects

    def _lose(self, slot: Slot, why: str, now_ms: int) -> list:
        """``why``: unless its supervisor has said how the process ended."""
        do = "look at the executor's log"
        if slot.exit_report is not None:
            why, do = self._why_ended(slot.exit_report)
        job_id, slot.job_id = slot.job_id, None
        pid = slot.pid
        slot.vacate(SlotState.EXPECTED)
        supervisor = self.supervisors.get((slot.lease, slot.task_index))
        place = f" on {supervisor.place}" if supervisor is not None else ""
        error = SlotLostError(
            f"lost slot {slot.slot_id}",
            where=f"job {job_id}, slot process {pid}{place}",
            why=why,
            do=do,
            story=self.story.lines(),
        )
        return [SlotLost(job_id, slot.slot_id, error)]

    def _launch_ended(self, lease: str, error: Optional[FlinkishError], now_ms: int) -> list:
        if lease != self.lease:
            return []
        self.lease = None
        why = error.what if error else "the launch has ended"
        effects: list = []
        for supervisor in list(self.supervisors.values()):
            if supervisor.lease == lease:
                effects.append(CloseConnection(supervisor.connection, why))
                effects += self._supervisor_lost(supervisor, why, now_ms)
        for slot in self.slots.values():
            if slot.lease == lease and slot.state is not SlotState.LOST:
                if slot.connection is not None:
                    effects.append(CloseConnection(slot.connection, why))
                if slot.job_id is not None:
                    effects += self._lose(slot, why, now_ms)
                slot.vacate(SlotState.LOST)
        self._gone.clear()
        if self._launch_has_served:
            # It was up: a lost Python worker, executor or host costs a new launch, not the jobs that wait.
            delay_ms = self._launch_backoff.ended(now_ms)
            if delay_ms is not None:
                self._launch_ms = now_ms + delay_ms
                return effects + (self._launch_again(now_ms) if self.requests else [])
            error = _dies_young("the launch of the slots", error)
        waiting, self.requests = self.requests, []
        for request in waiting:
            refusal = error or NotEnoughSlotsError(
                f"could not get {count_of(request.count, 'slot')}",
                where=f'job "{request.job_name}" ({request.job_id})',
                why="the launch of the slots ended without an error",
                do="look at the log of the Spark application",
            )
            effects.append(SlotsRefused(request.job_id, refusal))
        return effects

    def _supervisor_ended(self, task_index: int, error: FlinkishError, now_ms: int) -> list:
        if self.lease is None:
            return []
        effects: list = []
        supervisor = self.supervisors.get((self.lease, task_index))
        if supervisor is not None:  # its connection has not broken yet
            effects.append(CloseConnection(supervisor.connection, error.what))
            effects += self._supervisor_lost(supervisor, error.what, now_ms)
        self._gone.pop(task_index, None)
        if task_index not in self._unregistered:
            delay_ms = self._backoffs[task_index].ended(now_ms)
            if delay_ms is not None:
                self._unregistered.add(task_index)
                self._relaunches[task_index] = now_ms + delay_ms
                return effects + self._relaunch_due(now_ms)
            error = _dies_young(f"supervisor {task_index}", error)
        self._given_up.add(task_index)
        for slot in self._slots_of((self.lease, task_index)):
            slot.vacate(SlotState.LOST)
        waiting, self.requests = self.requests, []
        return [*effects, *(SlotsRefused(request.job_id, error) for request in waiting)]

    # ---- jobs -----------------------------------------------------------------------------------

    def _request(self, event: RequestSlots, now_ms: int) -> list:
        self.job_names[event.job_id] = event.job_name
        held = sum(slot.job_id == event.job_id for slot in self.slots.values()) if event.growth else 0
        missing = 0 if self.capacity is None else held + event.count - self.capacity
        grows = event.growth and (self.grows_to is None or held + event.count <= self.grows_to)
        if missing > 0 and not (grows and self.lease is not None):
            available = max(self.capacity or 0, self.grows_to or 0) if event.growth else self.capacity
            do = "lower the parallelism, or start the cluster with more slots"
            if event.growth:
                do = "stop the job with a savepoint, and start it from there with that parallelism (on a cluster with more slots)"
            error = NotEnoughSlotsError(
                f"could not get {count_of(event.count, 'slot')}",
                where=f'job "{event.job_name}" ({event.job_id})',
                why=f"it needs {count_of(held + event.count, 'slot')}, the cluster has {available}",
                do=do,
                needed=held + event.count,
                available=available,
            )
            return [SlotsRefused(event.job_id, error)]
        timeout_ms = self.request_timeout_ms if event.timeout_ms is None else event.timeout_ms
        self._enqueue(event, now_ms, now_ms + timeout_ms)
        if self._launched_once and self.lease is None:
            return self._launch_again(now_ms)
        if missing > 0:
            assert self.capacity is not None
            self.capacity += missing
            return [LaunchMoreSlots(missing)]
        if self._given_up:
            again, self._given_up = sorted(self._given_up), set()
            return [LaunchSupervisors(tuple(again))]
        return []

    def _enqueue(self, event: RequestSlots, now_ms: int, deadline_ms: int) -> None:
        """A job that has lost one more slot has one request for all of them."""
        for request in self.requests:
            if request.job_id == event.job_id:
                request.count, request.deadline_ms = request.count + event.count, deadline_ms
                return
        request = SlotRequest(
            event.job_id, event.job_name, event.count, now_ms, deadline_ms, event.replacement, event.growth
        )
        ahead = sum(other.replacement for other in self.requests) if event.replacement else len(self.requests)
        self.requests.insert(ahead, request)

    def _relaunch_due(self, now_ms: int) -> list:
        due = tuple(sorted(task for task, due_ms in self._relaunches.items() if now_ms >= due_ms))
        for task in due:
            del self._relaunches[task]
        return [LaunchSupervisors(due)] if due else []

    def _launch_again(self, now_ms: int) -> list:
        """Once, however many slots are asked for until the launch is there, and not before its time."""
        if self._launch_ms is not None and now_ms < self._launch_ms:
            return []
        ordered, self._launch_ordered = self._launch_ordered, True
        return [] if ordered else [LaunchSlots()]

    def _say_that_it_waits(self, event: RequestSlots) -> list:
        """For other jobs, not for slots that are about to start."""
        why = self.why_waiting(event.job_id)
        busy = len(self.requests) > 1 or any(slot.job_id for slot in self.slots.values())
        if not why or not busy:
            return []
        return [Inform(f"job waits for slots job={event.job_id} name={event.job_name!r} why={why!r}")]

    def _serve(self) -> list:
        effects: list = []
        while self.requests:
            free = sorted(
                (slot for slot in self.slots.values() if slot.state is SlotState.FREE),
                key=lambda slot: slot.order,
            )
            request = self.requests[0]
            if len(free) < request.count:
                break
            del self.requests[0]
            chosen = free[: request.count]
            for slot in chosen:
                slot.state, slot.job_id = SlotState.ALLOCATED, request.job_id
            self._launch_has_served = True
            effects.append(SlotsAllocated(request.job_id, tuple(slot.address for slot in chosen)))
        return effects

    def _release(
        self, job_id: str, reason: str, slot_ids: Optional[tuple[str, ...]], now_ms: int
    ) -> list:
        self.requests = [request for request in self.requests if request.job_id != job_id]
        if slot_ids is None:
            self.job_names.pop(job_id, None)
        effects: list = []
        for slot in self.slots.values():
            if slot.job_id != job_id or slot_ids is not None and slot.slot_id not in slot_ids:
                continue
            slot.job_id = slot.exit_report = None
            if slot.connection is None:  # MISSING
                slot.vacate(SlotState.EXPECTED)
                continue
            slot.state, slot.deadline_ms = SlotState.RELEASED, now_ms + self.release_timeout_ms
            effects.append(Send(slot.connection, ReleaseSlot(reason)))
        return effects

    def _interrupt(self, job_id: str, slot_ids: tuple[str, ...]) -> list:
        effects: list = []
        for slot in self._named(job_id, slot_ids):
            supervisor = self.supervisors.get((slot.lease, slot.task_index))
            if supervisor is not None:
                effects.append(Send(supervisor.connection, InterruptSlot(slot.slot_id, slot.pid)))
        return effects

    def _kill(self, job_id: str, slot_ids: tuple[str, ...], reason: str) -> list:
        effects: list = []
        for slot in self._named(job_id, slot_ids):
            effects += self._kill_process(slot, reason)
        return effects

    def _named(self, job_id: str, slot_ids: tuple[str, ...]) -> list[Slot]:
        """Those of ``slot_ids`` that the job still holds."""
        known = [self.slots[slot_id] for slot_id in slot_ids if slot_id in self.slots]
        return [slot for slot in known if slot.job_id == job_id]

    def _kill_process(self, slot: Slot, reason: str) -> list:
        supervisor = self.supervisors.get((slot.lease, slot.task_index))
        if supervisor is not None:
            return [Send(supervisor.connection, KillSlot(slot.slot_id, slot.pid, reason))]
        return []

    # ---- time -----------------------------------------------------------------------------------

    def _tick(self, late_ms: int, now_ms: int) -> list:
        if late_ms:
            self._forgive(late_ms, now_ms)
        effects: list = []
        for supervisor in list(self.supervisors.values()):
            silent_ms = now_ms - supervisor.last_heartbeat_ms
            if silent_ms > self.heartbeat_timeout_ms:
                effects.append(CloseConnection(supervisor.connection, "no heartbeat"))
                effects += self._supervisor_lost(supervisor, f"no heartbeat for {silent_ms} ms", now_ms)
                self._gone[supervisor.task_index] = now_ms
        abandoned = tuple(sorted(task for task, due_ms in self._gone.items() if now_ms >= due_ms))
        if abandoned:
            for task in abandoned:
                del self._gone[task]
            effects.append(AbandonSupervisors(abandoned))
        effects += self._relaunch_due(now_ms)
        if self.requests and self._launched_once and self.lease is None:
            effects += self._launch_again(now_ms)
        for slot in self.slots.values():
            if slot.deadline_ms is None or now_ms < slot.deadline_ms:
                continue
            if slot.job_id is not None:
                if slot.connection is not None:  # a program that it has started keeps it open
                    effects.append(CloseConnection(slot.connection, "its process has ended"))
                effects += self._lose(slot, "its connection closed", now_ms)
            else:
                slot.deadline_ms = now_ms + self.release_timeout_ms
                effects.append(Warn(f"released slot did not end slot={slot.slot_id} pid={slot.pid}"))
                effects += self._kill_process(slot, "it did not end after its job")
        effects += self._time_out_requests(now_ms)
        return effects

    def _forgive(self, late_ms: int, now_ms: int) -> None:
        for supervisor in self.supervisors.values():
            supervisor.last_heartbeat_ms = min(now_ms, supervisor.last_heartbeat_ms + late_ms)
        for slot in self.slots.values():
            if slot.deadline_ms is not None:
                slot.deadline_ms += late_ms
        self._gone = {task: due_ms + late_ms for task, due_ms in self._gone.items()}

    def _time_out_requests(self, now_ms: int) -> list:
        effects: list = []
        for request in [request for request in self.requests if now_ms >= request.deadline_ms]:
            self.requests.remove(request)
            error = NotEnoughSlotsError(
                f"could not get {count_of(request.count, 'slot')} in {now_ms - request.since_ms} ms",
                where=f'job "{request.job_name}" ({request.job_id})',
                why=self.describe_holders(request.job_id),
                do="wait for the other jobs, start more slots, or raise slot.request.timeout",
                needed=request.count,
                available=sum(slot.state is SlotState.FREE for slot in self.slots.values()),
            )
            effects.append(SlotsRefused(request.job_id, error))
        return effects + (self._serve() if effects else [])

    # ---- what others ask ------------------------------------------------------------------------

    def why_waiting(self, job_id: str) -> str:
        """What a job that waits for slots waits for, in one line; empty: it does not wait."""
        for request in self.requests:
            if request.job_id == job_id:
                return f"it needs {count_of(request.count, 'slot')}, {self.describe_holders(job_id)}"
        return ""

    def describe_holders(self, job_id: str = "") -> str:
        """What holds the slots, in one line.

        >>> ResourceManager(capacity=2).describe_holders()
        'the cluster has 0 slots'
        """
        parts: list[str] = []
        by_job: dict[str, int] = {}
        counts: dict[SlotState, int] = {}
        for slot in self.slots.values():
            if slot.job_id is not None:
                by_job[slot.job_id] = by_job.get(slot.job_id, 0) + 1
            else:
                counts[slot.state] = counts.get(slot.state, 0) + 1
        for holder in sorted(by_job):
            parts.append(f'{by_job[holder]} held by job "{self.job_names.get(holder, "")}" ({holder})')
        for state, words in (
            (SlotState.FREE, "free"),
            (SlotState.EXPECTED, "not registered yet"),
            (SlotState.RELEASED, "being replaced"),
            (SlotState.LOST, "lost"),
        ):
            if counts.get(state):
                parts.append(f"{counts[state]} {words}")
        text = f"the cluster has {count_of(len(self.slots), 'slot')}"
        if parts:
            text += ": " + ", ".join(parts)
        ahead = [request for request in self.requests if request.job_id != job_id]
        if ahead:
            text += "; waiting too: " + ", ".join(
                f'job "{request.job_name}" for {request.count}' for request in ahead
            )
        if self._waiting_text and self.misses_supervisors():
            text += f"; the launch waits: {self._waiting_text}"
        return text

    def free_for(self, job_id: str) -> int:
        """Slots that this job could have at once."""
        if any(request.job_id != job_id for request in self.requests):
            return 0
        return sum(slot.state is SlotState.FREE for slot in self.slots.values())

    def misses_supervisors(self) -> bool:
        """Whether a launch has not started everywhere."""
        return any((slot.lease, slot.task_index) not in self.supervisors for slot in self.slots.values())

    def slot_at(self, connection: int) -> Optional[Slot]:
        for slot in self.slots.values():
            if slot.connection == connection:
                return slot
        return None

    def _supervisor_at(self, connection: int) -> Optional[Supervisor]:
        for supervisor in self.supervisors.values():
            if supervisor.connection == connection:
                return supervisor
        return None

    def _slots_of(self, key: tuple[str, int]) -> list[Slot]:
        return [slot for slot in self.slots.values() if (slot.lease, slot.task_index) == key]

    def check(self) -> None:
        """Assert what holds between any two steps."""
        holding = (SlotState.ALLOCATED, SlotState.MISSING)
        connected = (SlotState.FREE, SlotState.ALLOCATED, SlotState.RELEASED)
        connections = [supervisor.connection for supervisor in self.supervisors.values()]
        for slot_id, slot in self.slots.items():
            assert slot.slot_id == slot_id
            assert (slot.job_id is not None) == (slot.state in holding), slot
            assert (slot.connection is not None) == (slot.state in connected), slot
            assert (slot.address is not None) == (slot.connection is not None), slot
            timed = slot.state in (SlotState.MISSING, SlotState.RELEASED) or slot.exit_report is not None
            assert (slot.deadline_ms is not None) == timed, slot
            assert (slot.pid is None) == (slot.state in (SlotState.EXPECTED, SlotState.LOST)), slot
            assert slot.exit_report is None or slot.state is SlotState.ALLOCATED, slot
            if slot.connection is not None:
                connections.append(slot.connection)
        assert len(connections) == len(set(connections)), "a connection serves two"
        holders = {slot.job_id for slot in self.slots.values()}
        assert not [r for r in self.requests if r.job_id in holders and not (r.replacement or r.growth)]
        replacements = [request.replacement for request in self.requests]
        assert replacements == sorted(replacements, reverse=True), "replacements wait before all others"
        assert len({request.job_id for request in self.requests}) == len(self.requests)
        if self.requests:
            free = sum(slot.state is SlotState.FREE for slot in self.slots.values())
            assert free < self.requests[0].count, "the first request could be served"


def _dies_young(what: str, error: Optional[FlinkishError]) -> ResourceError:
    return ResourceError(
        f"could not keep {what} alive",
        where=error.where if error is not None else "",
        why=f"it has ended {DEATHS_MAX + 1} times in a row within seconds of its registration"
        + (f"; the last time: {error.why or error.what}" if error is not None else ""),
        do="look at the log of its executor: something there ends it (memory, a limit, a health check)",
    )


def _exit_text(report: SlotReport) -> str:
    return report.detail or f"exit status {report.exit_status}"


def count_of(count: int, noun: str) -> str:
    """
    >>> count_of(1, "slot"), count_of(2, "slot")
    ('1 slot', '2 slots')
    """
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
