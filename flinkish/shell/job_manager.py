"""The JobManager: one thread in the driver that runs the cores of ``flinkish.jobmanager``.

The thread owns the loop, all connections and the Dispatcher.  Others talk to it by
``call_soon_threadsafe``; user code of the driver (enumerators, committers) runs on threads of its
own and comes back the same way.  Each event becomes one ``Dispatcher.step``; its effects are
carried out in order before the next event.

Closing, from whatever side it comes (the application's job has ended, ``close()``, the
interpreter's exit), goes one way: cancel what runs, tell the supervisors to stop, wait for the
launcher, close connections and thread.  Every wait in it is bounded.  A thread of its own does it,
so that a Ctrl-C ends only the wait of who has called ``close()``.

A process that the driver forks has none of these threads.  There a JobManager lets go of its
descriptors, refuses what would wait for ever, and closes nothing.
"""

from __future__ import annotations

import atexit
import logging
import math
import os
import random
import secrets
import threading
import time
import weakref
from collections import deque
from typing import Any, Callable, Mapping, Optional, Sequence, TypeVar, Union

from flinkish.common import options
from flinkish.common.completable_future import CompletableFuture
from flinkish.common.job_status import JobStatus
from flinkish.common.notices import notify
from flinkish.errors import (
    FlinkishError,
    InternalError,
    InvalidJobError,
    JobCancelledError,
    NotEnoughSlotsError,
)
from flinkish.graph.job_graph import JobGraph
from flinkish.graph.rescale_job_graph import Parallelism
from flinkish.jobmanager.dispatcher import Dispatcher
from flinkish.jobmanager.events import (
    AbandonSupervisors,
    Aborted,
    AbortSinks,
    CancelRequested,
    CheckpointEffect,
    CheckpointEvent,
    CloseConnection,
    CommitSinks,
    CoordinatorFailed,
    DeployToSlot,
    Disconnected,
    ExecutionChanged,
    Inform,
    JobRescaled,
    JobStatusChanged,
    JobSubmitted,
    LaunchEnded,
    Launched,
    LaunchMoreSlots,
    LaunchSlots,
    LaunchSupervisors,
    RescaleRequested,
    RescaleResult,
    ResetSubtasks,
    Send,
    SlotRegistered,
    SlotsAdded,
    SlotSaid,
    SnapshotRequested,
    SnapshotResult,
    StartCoordinators,
    StopCoordinators,
    SupervisorEnded,
    SupervisorRegistered,
    SupervisorReported,
    Tick,
    ToCoordinator,
    Warn,
)
from flinkish.jobmanager.launcher import Launcher
from flinkish.jobmanager.resource_manager import ResourceManager, SlotRequest
from flinkish.messages.checkpoints import (
    AcknowledgeCheckpoint,
    DeclineCheckpoint,
    NotifyEndOfData,
    SnapshotKind,
)
from flinkish.messages.checks import MessageRefused, check_message
from flinkish.messages.control import (
    Heartbeat,
    MetricsReport,
    OperatorEvent,
    RegisterSlot,
    RegisterSupervisor,
    SlotFailed,
    StopSupervisor,
    SupervisorHeartbeat,
    TasksDeployed,
    TaskStateChanged,
)
from flinkish.messages.launch import SlotLaunch
from flinkish.shell.connections import ROLE_JOB_MANAGER, Connection, Listener
from flinkish.shell.drop_log import DropLog
from flinkish.shell.event_loop import EventLoop
from flinkish.shell.job_runtime import JobRuntime
from flinkish.shell.managed_job import ManagedJob
from flinkish.shell.module_path import driver_sys_path
from flinkish.shell.rest_endpoint import RestEndpoint, join, leave_to_parent
from flinkish.shell.tls import Tls, credentials_of

log = logging.getLogger(__name__)

T = TypeVar("T")

TICK_MS = 100
EXIT_TIMEOUT_MS = 5_000  # what the interpreter's exit may take
_CLOSE_OVERTIME_MS = 25_000  # of a launcher that has to kill, and of threads that are joined

_FROM_SLOTS = (
    TasksDeployed,
    TaskStateChanged,
    SlotFailed,
    OperatorEvent,
    MetricsReport,
    AcknowledgeCheckpoint,
    DeclineCheckpoint,
    NotifyEndOfData,
)

_living: "weakref.WeakSet[JobManager]" = weakref.WeakSet()


class JobManager:
    """See the module.

    Args:
        launcher: brings the slots; belongs to this JobManager from now on.
        slots: how many it launches.
        configuration: heartbeats and timeouts of the cluster, see ``common.options``.
        application: it lives for one job, whose end tears everything down.
    Raises:
        NotEnoughSlotsError: the cluster cannot carry that many.
    """

    #: How long a supervisor tries to reach this JobManager before the launch fails.
    connect_timeout_ms = 10_000
    #: A job that waits so long for a launch says so.
    wait_notice_ms = 10_000

    def __init__(
        self,
        launcher: Launcher,
        slots: int,
        configuration: Mapping[str, Any] = {},
        application: bool = False,
    ):
        capacity = launcher.capacity()
        if capacity is not None and slots > capacity:
            raise NotEnoughSlotsError(
                f"could not start {slots} slots",
                why=f"{slots} slots are needed, the cluster has {capacity}",
                do="lower the parallelism, or start the cluster with more slots",
                needed=slots,
                available=capacity,
            )
        self.launcher = launcher
        self.slots = slots
        self.application = application
        self._configuration = dict(configuration)
        self._heartbeat_interval_ms = options.read(configuration, options.HEARTBEAT_INTERVAL)
        self._heartbeat_timeout_ms = options.read(configuration, options.HEARTBEAT_TIMEOUT)
        cancellation_timeout_ms = options.read(configuration, options.TASK_CANCELLATION_TIMEOUT)
        self._dispatcher = Dispatcher(
            ResourceManager(
                capacity=slots,
                grows_to=capacity if application else slots,
                request_timeout_ms=options.read(configuration, options.SLOT_REQUEST_TIMEOUT),
                heartbeat_timeout_ms=self._heartbeat_timeout_ms,
                release_timeout_ms=cancellation_timeout_ms or 10_000,
            ),
            rng=random.Random(),
        )
        self._secret = secrets.token_bytes(32)
        self._tls = credentials_of(configuration)
        self._log_dropped = DropLog()
        self._loop = EventLoop(on_error=self._broken)
        self._listener: Optional[Listener] = None
        self.rest: Optional[RestEndpoint] = None
        self._connections: dict[int, Connection] = {}
        self._last_connection = 0
        self._events: deque[Any] = deque()
        self._stepping = False
        self._jobs: dict[str, ManagedJob] = {}
        # Of jobs that have not ended: what a job carries (a collection, say) need not stay as long as its result.
        self._runtimes: dict[str, JobRuntime] = {}
        self._storing: list[threading.Thread] = []  # the checkpoint storage of jobs that have ended
        self._requests: dict[int, CompletableFuture] = {}  # that somebody waits for
        self._last_request = 0
        self._lease: Optional[str] = None
        self._launches: list[SlotLaunch] = []  # of that lease, by task index
        self._tick_due_ms = 0
        self._told_to_wait: set[str] = set()  # jobs
        self._clock_offset_ms = time.time_ns() // 1_000_000 - time.monotonic_ns() // 1_000_000
        self._thread: Optional[threading.Thread] = None
        self._lock = threading.Lock()
        self._closing = False
        self._tearing_down = False  # set by the thread that does it: a Ctrl-C may keep another from its start
        # Connections of supervisors; not the core's, so that they are told to stop when a core is broken.
        self._supervisors: set[int] = set()
        self._stopping_supervisors = False
        self._loop_over = False
        self._closed = threading.Event()
        self._inherited = False

    # ---- from any thread ------------------------------------------------------------------------

    def start(self) -> None:
        """Listen, start the thread and launch the slots; returns at once."""
        self.rest = join(self, self._configuration)
        self._listener = Listener(
            self._loop,
            self._secret,
            ROLE_JOB_MANAGER,
            self.launcher.bind_host(),
            on_connection=self._connected,
            tls=None if self._tls is None else Tls(self._tls),
        )
        port = self._listener.address[1]
        self._addresses = tuple((host, port) for host in self.launcher.advertised_hosts())
        self._loop.call_soon_threadsafe(self._launch)
        self._loop.call_later(self._heartbeat_interval_ms, self._send_heartbeats)
        self._tick_due_ms = self._now_ms() + TICK_MS
        self._loop.call_later(TICK_MS, self._tick)
        thread = threading.Thread(target=self._main, name="flinkish JobManager", daemon=True)
        thread.start()
        self._thread = thread
        _take_care_of_ends()
        _living.add(self)
        log.info(
            "job manager started slots=%d addresses=%s",
            self.slots,
            ",".join(f"{host}:{port}" for host, port in self._addresses),
        )

    def submit(self, job: "JobGraph | JobRuntime") -> ManagedJob:
        """Run a job; returns at once.

        Raises:
            InvalidJobError: something in it cannot be sent to a slot, or a sink refuses.
        """
        self.check_process()
        runtime = job if isinstance(job, JobRuntime) else JobRuntime(job)
        managed = ManagedJob(self, runtime.job_id, runtime.job_name, runtime.job_graph.configuration)
        with self._lock:
            if self._closing:
                raise InternalError(f'could not submit job "{runtime.job_name}"', why="the cluster is closed")
            self._jobs[runtime.job_id] = managed
            self._runtimes[runtime.job_id] = runtime
        runtime.attach(self._post)
        runtime.on_leadership_lost(
            lambda error: self._loop.call_soon_threadsafe(self._leadership_lost, managed, error)
        )
        self._post(JobSubmitted(runtime.description))
        return managed

    def take_snapshot(
        self, job_id: str, kind: SnapshotKind, directory: Optional[str]
    ) -> CompletableFuture[str]:
        """A checkpoint or savepoint of a job; its location when it is complete, and for one that stops the job
        when the job is FINISHED.  ``directory``: URI for a savepoint; None: as the job says."""
        return self._request(lambda id_: CheckpointEvent(job_id, SnapshotRequested(id_, kind, directory)))

    def rescale(self, job_id: str, parallelism: Parallelism) -> CompletableFuture[None]:
        """Have a job go on with another parallelism, see ``jobmanager.rescaling``; done when all tasks run again."""
        return self._request(lambda id_: RescaleRequested(job_id, id_, parallelism))

    def _request(self, event: Callable[[int], Any]) -> CompletableFuture:
        """Post the event of a request with this id; its answer."""
        self.check_process()
        future: CompletableFuture = CompletableFuture()
        with self._lock:
            self._last_request += 1
            request_id = self._last_request
            self._requests[request_id] = future
        self._post(event(request_id))
        if self._loop_over:
            self._answer(request_id, error=InternalError("the cluster is closed"))
        return future

    def _answer(self, request_id: int, result: Any = None, error: Optional[FlinkishError] = None) -> None:
        with self._lock:
            future = self._requests.pop(request_id, None)
        if future is None:
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    def describe(self) -> dict:
        """Jobs and slots as plain data, for the REST API."""
        return self._ask(lambda dispatcher: dispatcher.describe(), {"jobs": [], "slots": []})

    def explain_watermarks(self, job_id: str, operator: Optional[str]) -> dict[str, Any]:
        """See ``Dispatcher.explain_watermarks``.

        Raises:
            InvalidJobError: there is no such job, it is over, or it has no such operator."""

        def explain(dispatcher: Dispatcher) -> Union[dict[str, Any], FlinkishError]:
            try:
                return dispatcher.explain_watermarks(job_id, operator, self._now_ms())
            except InvalidJobError as error:  # the answer to who asks, not a failure of the loop
                return error
            except Exception as error:  # a report that makes no sense costs the answer, not the JobManager
                return InternalError("could not explain watermarks", where=job_id, why=f"{type(error).__name__}: {error}")

        answer: Union[dict[str, Any], FlinkishError] = self._ask(explain, InternalError("the JobManager could not answer"))
        if isinstance(answer, FlinkishError):
            raise answer
        return answer

    def jobs(self) -> list[ManagedJob]:
        return list(self._jobs.values())

    @property
    def closed(self) -> bool:
        return self._closing

    def check_process(self) -> None:
        """Raises InvalidJobError in a process that was forked from the one that has the slots."""
        if self._inherited:
            raise InvalidJobError(
                "could not use a cluster of another process",
                where=f"process {os.getpid()}",
                why="it was forked from the process that started the cluster, and has none of its threads",
                do="use the cluster where it was started, or start another one here",
            )

    def close(self, timeout_ms: int = 15_000) -> None:
        """Cancel what runs and tear everything down; a second call waits for the first."""
        if not self._inherited:
            self._close_in_background(timeout_ms)
            self._closed.wait((timeout_ms + _CLOSE_OVERTIME_MS) / 1000)

    def _tear_down(self, timeout_ms: int) -> None:
        with self._lock:
            first, self._tearing_down = not self._tearing_down, True
        if not first:
            return
        deadline_s = time.monotonic() + timeout_ms / 1000

        def left_ms() -> int:
            return max(0, int((deadline_s - time.monotonic()) * 1000))

        try:
            if self._thread is not None:
                jobs = list(self._jobs.values())
                for job in jobs:
                    if not job._core_ended.is_set():
                        self._post(CancelRequested(job.job_id))
                for job in jobs:
                    # The launcher needs time too, to end what does not answer.
                    job._core_ended.wait(max(0, left_ms() - timeout_ms // 3) / 1000)
                # Once this has run, nothing is launched any more.
                stopping = threading.Event()
                self._loop.call_soon_threadsafe(self._stop_supervisors, stopping)
                stopping.wait(5)
            # Without a supervisor there is nobody who could end in order.
            self.launcher.stop(max(left_ms(), 1_000) if self._supervisors else 1_000)
        finally:
            if self._thread is not None:
                self._loop.call_soon_threadsafe(self._end_loop)
                if threading.current_thread() is not self._thread:
                    self._thread.join(5)
            else:
                if self._listener is not None:
                    self._listener.close()
                self._loop.close()
            for thread in self._storing:
                thread.join(max(left_ms(), 1_000) / 1000)
                if thread.is_alive():
                    log.warning("checkpoints of an ended job may be left over thread=%r", thread.name)
            for request_id in list(self._requests):
                self._answer(request_id, error=InternalError("the cluster is closed"))
            if self.rest is not None:
                self.rest.leave(self)
            for job in self._jobs.values():
                self._abandon(job)
            _living.discard(self)
            self._closed.set()
            log.info("job manager closed")

    def _abandon(self, job: ManagedJob) -> None:
        if not job._core_ended.is_set():
            job._status = JobStatus.FAILED
            job._error = job._error or InternalError(
                f'job "{job.job_name}" did not end in time', where=job.job_id, why="its cluster was closed"
            )
            job._ended_s = time.time()
            self._close_coordinators(job.job_id, job._error)
            job._core_ended.set()
        job._done.set()

    def _post(self, event: Any) -> None:
        """Have the loop step through ``event``; dropped once the loop is over."""
        self._loop.call_soon_threadsafe(self._step, event)

    def _ask(self, question: Callable[[Dispatcher], T], default: T) -> T:
        """Answer of the loop's thread; ``default`` if it raises there, which the loop reports."""
        self.check_process()
        if self._thread is None or self._loop_over or threading.current_thread() is self._thread:
            return question(self._dispatcher)
        answers: list[T] = []
        answered = threading.Event()

        def ask() -> None:
            try:
                answers.append(question(self._dispatcher))
            finally:
                answered.set()

        self._loop.call_soon_threadsafe(ask)
        while not answered.wait(0.1):
            if self._loop_over:
                return question(self._dispatcher)
        return answers[0] if answers else default

    # ---- the thread -----------------------------------------------------------------------------

    def _main(self) -> None:
        try:
            while not self._loop_over:
                self._loop.run_once(None)
        finally:
            self._loop_over = True
            for connection in list(self._connections.values()):
                connection.on_close = None
                connection.close()
            self._connections.clear()
            if self._listener is not None:
                self._listener.close()
            self._loop.close()

    def _now_ms(self) -> int:
        """Reads like wall time, never jumps."""
        return time.monotonic_ns() // 1_000_000 + self._clock_offset_ms

    def _broken(self, error: BaseException) -> None:
        """A core broke one of its rules, or a bug: nothing here can be trusted any more."""
        log.error("job manager failed, ending all jobs", exc_info=error)
        failure = InternalError(
            "the JobManager failed",
            why=f"{type(error).__name__}: {error}",
            do="report this with the log of the driver",
        )
        for job in self._jobs.values():
            if not job._core_ended.is_set():
                job._error = failure
                self._abandon_soon(job)
        self._close_in_background()

    def _leadership_lost(self, job: ManagedJob, error: FlinkishError) -> None:
        """Let go of the job without another word to its storage and sinks: they are another driver's now."""
        if job._core_ended.is_set():
            return
        log.error("job ends here, another driver may go on with it job=%s name=%r", job.job_id, job.job_name)
        job._error = error
        self._abandon_soon(job)
        if self.application:
            self._close_in_background()
        else:
            self._step(CancelRequested(job.job_id))  # its slots are for other jobs

    def _abandon_soon(self, job: ManagedJob) -> None:
        job._status, job._ended_s = JobStatus.FAILED, time.time()
        self._close_coordinators(job.job_id, job._error)
        job._core_ended.set()
        if not self.application:
            job._done.set()

    def _close_coordinators(self, job_id: str, error: Optional[FlinkishError]) -> None:
        runtime = self._runtimes.pop(job_id, None)
        if runtime is not None:
            thread = runtime.close_coordinators(error)
            self._storing = [other for other in (*self._storing, thread) if other is not None and other.is_alive()]

    def _close_in_background(self, timeout_ms: int = 15_000) -> None:
        with self._lock:
            self._closing = True
        if not self._tearing_down:
            try:
                threading.Thread(
                    target=self._tear_down, args=(timeout_ms,), name="flinkish close", daemon=True
                ).start()
            except RuntimeError:  # no thread is to be had; Python 3.12 starts none while it ends
                self._tear_down(timeout_ms)

    def _step(self, event: Any) -> None:
        """Events that come up while effects are carried out wait for their turn."""
        self._events.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._events:
                for effect in self._dispatcher.step(self._events.popleft(), self._now_ms()):
                    self._carry_out(effect)
        finally:
            self._stepping = False

    # ---- effects --------------------------------------------------------------------------------

    def _carry_out(self, effect: Any) -> None:
        match effect:
            case Send(connection, message):
                self._send(connection, message)
            case ToCoordinator(job_id, event):
                self._guarded(job_id, lambda runtime: runtime.to_coordinator(event))
            case ExecutionChanged(job_id, task, state):
                log.debug("task changed job=%s task=%r state=%s", job_id, task, state)
                job = self._jobs[job_id]
                if state == "RUNNING" and job._running_s is None:
                    job._running_s = time.time()
            case JobStatusChanged(job_id, status, error):
                self._job_changed(job_id, JobStatus[status], error)
            case DeployToSlot(job_id, attempt, index, slots, beside, connection):
                self._guarded(
                    job_id,
                    lambda runtime: self._send(connection, runtime.deployment(attempt, index, slots, beside)),
                )
            case StartCoordinators(job_id, attempt, checkpoint):
                self._guarded(job_id, lambda runtime: runtime.start_coordinators(attempt, checkpoint))
            case ResetSubtasks(job_id, attempt, subtasks, checkpoint):
                self._guarded(job_id, lambda runtime: runtime.reset_subtasks(attempt, subtasks, checkpoint))
            case StopCoordinators(job_id):
                self._guarded(job_id, lambda runtime: runtime.stop_coordinators())
            case CheckpointEffect(job_id, order):
                self._guarded(job_id, lambda runtime: runtime.carry_out(order))
            case SnapshotResult(request_id, location, error):
                self._answer(request_id, location, error)
            case JobRescaled(job_id, job_graph):
                self._guarded(job_id, lambda runtime: runtime.rescale(job_graph))
            case RescaleResult(request_id, error):
                self._answer(request_id, error=error)
            case CommitSinks(job_id, attempt, prepared, kept):
                self._guarded(job_id, lambda runtime: runtime.commit(attempt, prepared, kept))
            case AbortSinks(job_id, attempt) if job_id not in self._runtimes:
                self._events.append(Aborted(job_id, attempt))  # it was abandoned: what it prepared is left alone
            case AbortSinks(job_id, attempt, kept):
                self._guarded(job_id, lambda runtime: runtime.abort(attempt, kept))
            case CloseConnection(connection, reason):
                if connection in self._connections:
                    log.info("closing a connection peer=%s reason=%r", self._connections[connection].peer, reason)
                    self._connections[connection].close_when_sent()
            case LaunchSlots():
                self._launch()
            case LaunchSupervisors(tasks):
                error = self._hand_over([self._launches[task] for task in tasks])
                if error is not None:  # the other supervisors of this launch live on
                    self._events += [SupervisorEnded(task, error) for task in tasks]
            case LaunchMoreSlots(count):
                self._launch_more(count)
            case AbandonSupervisors(tasks):
                log.warning("nothing is heard of supervisors, killing what carries them tasks=%s", tasks)
                self.launcher.abandon(tasks)
            case Inform(text):
                log.info("%s", text)
            case Warn(text):
                log.warning("%s", text)
            case _:
                raise AssertionError(f"unknown effect {effect!r}")

    def _guarded(self, job_id: str, action: Callable[[JobRuntime], None]) -> None:
        """What touches the job's own code costs that job, never the JobManager."""
        runtime = self._runtimes.get(job_id)
        if runtime is None:
            return  # it was abandoned
        try:
            action(runtime)
        except Exception as error:
            master = self._dispatcher.jobs.get(job_id)
            attempt = 0 if master is None else master.coordinators_attempt
            self._events.append(CoordinatorFailed(job_id, attempt, runtime.explain(error)))

    def _send(self, number: int, message: Any) -> None:
        connection = self._connections.get(number)
        if connection is not None:
            connection.send_message(message)

    def _job_changed(self, job_id: str, status: JobStatus, error: Optional[FlinkishError]) -> None:
        job = self._jobs[job_id]
        if job._core_ended.is_set():
            return  # it was abandoned; only its slots have been waited for
        log.info("job changed job=%s name=%r status=%s", job_id, job.job_name, status.name)
        if not status.is_globally_terminal_state():
            job._status = status
            return
        job._error, job._ended_s = error, time.time()
        job._status = status
        if error is not None:
            # Who waits is given the error itself, and the user's traceback should come first.
            level = logging.INFO if job.is_awaited else logging.ERROR
            log.log(level, "job failed job=%s name=%r error=%s", job_id, job.job_name, error.what)
            log.debug("what led to it job=%s\n%s", job_id, "\n".join(error.fields.get("story", ())))
        if error is None and status is JobStatus.CANCELED:
            self._close_coordinators(job_id, JobCancelledError(f'job "{job.job_name}" was cancelled'))
        else:
            self._close_coordinators(job_id, error)
        job._core_ended.set()
        if self.application:
            self._close_in_background()
        else:
            job._done.set()
        self._forget_old_jobs()

    def _forget_old_jobs(self) -> None:
        known = self._dispatcher
        for job_id in [i for i, job in self._jobs.items() if job._done.is_set()]:
            if job_id not in known.archive and job_id not in known.jobs:
                del self._jobs[job_id]

    # ---- connections ----------------------------------------------------------------------------

    def _connected(self, connection: Connection) -> None:
        self._last_connection += 1
        number = self._last_connection
        connection.tag = number
        self._connections[number] = connection
        connection.on_message = self._received
        connection.on_close = self._disconnected

    def _received(self, connection: Connection, message: Any) -> None:
        number = connection.tag
        try:
            check_message(message)
        except MessageRefused as refused:
            self._log_dropped(connection.peer, str(refused))
            connection.close()
            return
        if isinstance(message, _FROM_SLOTS):
            self._step(SlotSaid(number, message))
        elif isinstance(message, SupervisorHeartbeat):
            self._step(SupervisorReported(number, message))
        elif isinstance(message, RegisterSlot):
            log.info("slot registered slot=%s pid=%d", message.slot_id, message.pid)
            self._step(SlotRegistered(number, message))
        elif isinstance(message, RegisterSupervisor):
            log.info(
                "supervisor registered task=%d host=%s attempt=%d",
                message.task_index, message.host, message.spark_attempt,
            )
            self._supervisors.add(number)
            if self._stopping_supervisors:  # it came while the cluster was being closed
                self._send(number, StopSupervisor("the cluster is closed"))
            self._step(SupervisorRegistered(number, message))
        elif not isinstance(message, Heartbeat):
            self._log_dropped(connection.peer, f"it sent an unknown message {type(message).__name__}")
            connection.close()

    def _disconnected(self, connection: Connection, error: Optional[FlinkishError]) -> None:
        self._connections.pop(connection.tag, None)
        self._supervisors.discard(connection.tag)
        self._step(Disconnected(connection.tag, error.why if error else ""))

    def _send_heartbeats(self) -> None:
        self._loop.call_later(self._heartbeat_interval_ms, self._send_heartbeats)
        for connection in self._connections.values():
            connection.send_message(Heartbeat())

    # ---- launch and time ------------------------------------------------------------------------

    def _launch(self) -> None:
        if self._stopping_supervisors:
            return
        lease = self._lease = secrets.token_hex(8)
        self._launches = self._describe_launches(lease, range(self.slots), first_task=0)
        self._step(Launched(lease, tuple((launch.task_index, launch.slot_ids) for launch in self._launches)))
        error = self._hand_over(self._launches)
        if error is not None:
            self._launch_over(error)

    def _launch_more(self, count: int) -> None:
        """Supervisors beside those of the launch that lives; the next launch has as many from its start."""
        assert self._lease is not None
        numbers = range(self.slots, self.slots + count)
        launches = self._describe_launches(self._lease, numbers, first_task=len(self._launches))
        self.slots += count
        self._launches += launches
        self._step(SlotsAdded(tuple((launch.task_index, launch.slot_ids) for launch in launches)))
        error = self._hand_over(launches)
        if error is not None:
            self._events += [SupervisorEnded(launch.task_index, error) for launch in launches]

    def _describe_launches(self, lease: str, slots: Sequence[int], first_task: int) -> list[SlotLaunch]:
        per_task = options.read(self._configuration, options.NUM_TASK_SLOTS)
        names = [f"{lease[:6]}-{number}" for number in slots]
        return [
            SlotLaunch(
                lease=lease,
                task_index=first_task + task,
                slot_ids=tuple(names[task * per_task : (task + 1) * per_task]),
                job_manager_addresses=self._addresses,
                secret=self._secret,
                heartbeat_interval_ms=self._heartbeat_interval_ms,
                heartbeat_timeout_ms=self._heartbeat_timeout_ms,
                connect_timeout_ms=self.connect_timeout_ms,
                sys_path=driver_sys_path(),
                tls=self._tls,
            )
            for task in range(math.ceil(len(names) / per_task))
        ]

    def _hand_over(self, launches: list[SlotLaunch]) -> Optional[FlinkishError]:
        """Start supervisors; why that was not possible, if so."""
        if self._stopping_supervisors:
            return None
        try:
            self.launcher.launch(launches)
        except Exception as error:
            if isinstance(error, FlinkishError):
                return error
            return InternalError("could not launch slots", why=f"{type(error).__name__}: {error}")
        return None

    def _launch_over(self, error: Optional[FlinkishError]) -> None:
        lease, self._lease = self._lease, None
        log.warning("launch ended lease=%s error=%s", lease, error.what if error else "none")
        self._step(LaunchEnded(lease, error))

    def _tick(self) -> None:
        now_ms = self._now_ms()
        late_ms = now_ms - self._tick_due_ms
        self._tick_due_ms = now_ms + TICK_MS
        self._loop.call_later(TICK_MS, self._tick)
        if self._lease is not None and not self._closing:
            for task_index, error in self.launcher.take_ended():
                log.warning("supervisor ended task=%d error=%s", task_index, error.what)
                self._step(SupervisorEnded(task_index, error))
            if not self.launcher.alive():
                self._launch_over(self.launcher.failure())
        manager = self._dispatcher.resource_manager
        untold = self._waiting_untold(now_ms)
        # Asking the launcher may cost a call to the JVM: only when the answer is about to be shown.
        due = untold or any(now_ms >= request.deadline_ms for request in manager.requests)
        self._step(Tick(self.launcher.describe_waiting() if due else "", late_ms if late_ms > TICK_MS else 0))
        for request in untold:
            if why := manager.why_waiting(request.job_id):
                notify(f'Job "{request.job_name}" waits: {why}', unheard=log.warning)

    def _waiting_untold(self, now_ms: int) -> list[SlotRequest]:
        """Requests that wait for a launch, each once when it has waited for some time."""
        manager = self._dispatcher.resource_manager
        self._told_to_wait &= {request.job_id for request in manager.requests}
        if not manager.misses_supervisors():
            return []
        found = [
            request
            for request in manager.requests
            if now_ms - request.since_ms >= self.wait_notice_ms and request.job_id not in self._told_to_wait
        ]
        self._told_to_wait |= {request.job_id for request in found}
        return found

    # ---- the end --------------------------------------------------------------------------------

    def _stop_supervisors(self, stopping: threading.Event) -> None:
        self._stopping_supervisors = True
        stopping.set()
        for number in sorted(self._supervisors):
            self._send(number, StopSupervisor("the cluster is closed"))

    def _end_loop(self) -> None:
        self._loop_over = True


def close_all() -> None:
    """End every JobManager of this process in order, while Spark is still there."""
    for manager in list(_living):
        running = [job.job_name for job in list(manager._jobs.values()) if not job._core_ended.is_set()]
        if running:
            log.warning(
                "the program has ended, jobs that still run are cancelled (wait for them by "
                "job_client.wait()) jobs=%r", running,
            )
        manager.close(EXIT_TIMEOUT_MS)


def _in_forked_child() -> None:
    """What the parent has goes on, and ends with it: our copies of its sockets must not keep them open."""
    for manager in list(_living):
        manager._inherited = True
        manager._loop.leave_to_parent()
    leave_to_parent()
    _living.clear()


_ends_lock = threading.Lock()
_ends_cared_for = False


def _take_care_of_ends() -> None:
    """Registered with the first JobManager, so that it runs before what was registered earlier
    (Python runs the last first): Spark is still there then."""
    global _ends_cared_for
    with _ends_lock:
        if not _ends_cared_for:
            _ends_cared_for = True
            atexit.register(close_all)
            if hasattr(os, "register_at_fork"):
                os.register_at_fork(after_in_child=_in_forked_child)
