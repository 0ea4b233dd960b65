"""The process of one slot: one thread, an EventLoop, and a SlotCore between its turns.

Life::

    launch blob from the supervisor (a pipe) -> connect to the JobManager -> RegisterSlot
      -> DeployTasks: connect to peers -> TasksDeployed -> StartTasks -> records flow
      -> ReleaseSlot: exit 0

It ends early, and closes the operators before, when the supervisor says so (SIGTERM), when the
supervisor is gone (its pipe closes; on Linux the kernel kills at once), when the JobManager is gone
(connection closed, or silent for the heartbeat timeout), when anybody else sends it a SIGTERM, and on
an error of its own.  If tasks run then, the JobManager is told why (SlotFailed) before they are closed.

Forked by `flinkish.shell.fork_server`, never started by hand.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import faulthandler
import gc
import importlib
import logging
import os
import pickle
import signal
import socket
import sys
import threading
import time
import traceback
from dataclasses import replace
from typing import Any, Optional

from flinkish.common.driver_only import this_is_slot
from flinkish.common.user_traceback import format_user_traceback, is_raised_by_user_code, message_of
from flinkish.connectors.isolation import portable_pickle
from flinkish.errors import (
    ConnectionLostError,
    FlinkishError,
    InternalError,
    SlotLostError,
    UnpicklableFunctionError,
)
from flinkish.graph.chain_pickling import install_main_classes, unpickle_main_classes
from flinkish.messages.checkpoints import (
    CheckpointAborted,
    CheckpointComplete,
    CheckpointOptions,
    DeclineCheckpoint,
    InFlightPart,
    TriggerCheckpoint,
)
from flinkish.messages.control import (
    CancelTasks,
    DeployTasks,
    Heartbeat,
    MetricsReport,
    OperatorEvent,
    RegisterSlot,
    RegistrationRefused,
    ReleaseSlot,
    SlotFailed,
    StartTasks,
    TasksDeployed,
    TaskStateChanged,
)
from flinkish.messages.deployment import ExecutionAttemptID, TaskFailure
from flinkish.operators.snapshots import TaskSnapshot
from flinkish.shell.clock import SystemClock
from flinkish.shell.connections import ROLE_JOB_MANAGER, Connection
from flinkish.shell.event_loop import EventLoop
from flinkish.shell.finding import wait_connected
from flinkish.shell.interruption import interrupt_user_code
from flinkish.shell.peer_connections import PeerConnections
from flinkish.shell.snapshot_executor import SnapshotExecutor
from flinkish.shell.tls import Tls
from flinkish.shell.process import (
    EXIT_BROKEN,
    EXIT_INTERNAL_ERROR,
    EXIT_JOB_MANAGER_LOST,
    EXIT_JOB_MANAGER_UNREACHABLE,
    EXIT_PARENT_LOST,
    EXIT_REFUSED,
    EXIT_RELEASED,
    EXIT_STOPPED,
    EXIT_TERMINATED,
    ProgressPage,
    SlotBlob,
    die_with_parent,
    host_identity,
)
from flinkish.taskmanager import wire
from flinkish.taskmanager.slot_core import SlotCore
from flinkish.taskmanager.task import Task

log = logging.getLogger(__name__)

# What the rounds of the core may take before the sockets are looked at again.
_POLL_EVERY_NS = 300_000
_METRICS_EVERY_MS = 1_000
_HOUSEKEEPING_EVERY_MS = 500
_FLUSH_AT_END_MS = 1_000
_EXIT_WITHIN_S = 3.0
# A reader that connects again may get the number of its old socket, which the system no longer watches: so
# descriptors are watched anew now and then, and not at each record (a fifth of the system calls).
_WATCH_AGAIN_NS = 100_000_000
# Of descriptors that cannot be waited for (plain files).
_UNPOLLABLE_RETRY_MS = 5.0

# The garbage collector walks young objects seldom and all objects almost never while records
# flow; housekeeping collects when the slot is idle (a full pass over 1 M heap keys takes 150 ms).
_GC_THRESHOLDS = (50_000, 50, 1_000)
_FULL_COLLECTION_EVERY_S = 60.0

# How long a Python thread of a C library waits for the interpreter lock of a busy slot.
_SWITCH_INTERVAL_S = 0.001


# What the engine calls and user code may have replaced, as it was at the start.
_USED = {
    "time.monotonic_ns": time.monotonic_ns,
    "time.monotonic": time.monotonic,
    "time.perf_counter_ns": time.perf_counter_ns,
    "time.time_ns": time.time_ns,
    "os.read": os.read,
    "os.write": os.write,
    "socket.socket": socket.socket,
    "socket.socket.send": socket.socket.send,
    "socket.socket.sendmsg": socket.socket.sendmsg,
    "socket.socket.recv_into": socket.socket.recv_into,
    "pickle.dumps": pickle.dumps,
    "pickle.loads": pickle.loads,
}


class SlotProcess:
    """The shell around one SlotCore; also its `listener`."""

    def __init__(self, blob: SlotBlob, progress: ProgressPage, parent_pipe: int):
        self.launch = blob.launch
        self.slot_id = blob.slot_id
        self.loop = EventLoop()
        self.exit_code: Optional[int] = None
        self._progress = progress
        self._parent_pipe = parent_pipe
        self._clock = SystemClock()
        self._control: Optional[Connection] = None
        self._peers: Optional[PeerConnections] = None
        self._core: Optional[SlotCore] = None
        self._snapshots: Optional[SnapshotExecutor] = None
        self._deployed: Optional[DeployTasks] = None
        self._held: Optional[list[TaskStateChanged]] = None
        self._watched: dict[int, tuple[str, Task]] = {}
        self._watched_ns = 0
        self._control_reads = -1
        self._control_heard_ns = time.monotonic_ns()
        self._worked = False
        self._look = True  # the next round asks all sources
        self._collected_ns = time.monotonic_ns()
        self._ending = False
        self._forks_on_main = True

    # ---- life -----------------------------------------------------------------------------------

    def run(self) -> int:
        """Returns the exit code."""
        loop = self.loop
        signal.signal(signal.SIGTERM, self._on_terminate)
        signal.signal(signal.SIGUSR2, interrupt_user_code)
        os.register_at_fork(before=self._before_fork, after_in_child=self._in_forked_child)
        loop.register(self._parent_pipe, "r", self._on_parent_pipe)
        try:
            if self._register():
                self._work()
        except BaseException as error:  # also what is no Exception must be told to the JobManager
            self._broken(error)
        try:
            self._end()
        except BaseException as error:
            self._broken(error)
        assert self.exit_code is not None
        self._progress.note_end()
        return self.exit_code

    def _register(self) -> bool:
        launch = self.launch
        tls = None if launch.tls is None else Tls(launch.tls)
        try:
            self._control = wait_connected(
                self.loop,
                launch.job_manager_addresses,
                launch.secret,
                ROLE_JOB_MANAGER,
                launch.connect_timeout_ms,
                should_stop=lambda: self.exit_code is not None,
                tls=tls,
                on_message=self._on_message,
            )
        except ConnectionLostError as error:
            if self.exit_code is None:
                log.error("slot could not register slot=%s\n%s", self.slot_id, error)
                self.exit_code = EXIT_JOB_MANAGER_UNREACHABLE
            return False
        self._control.on_close = self._on_control_closed
        self._peers = PeerConnections(
            self.loop,
            launch.secret,
            self.slot_id,
            self._control.local_host,
            self._on_frame,
            self._on_peer_lost,
            (wire.ROWS, wire.COLUMNS, wire.EVENT),
            wire.CREDIT,
            launch.connect_timeout_ms,
            tls,
            launch.unix_sockets,
        )
        # Only lambdas: each needs the other.
        self._snapshots = snapshots = SnapshotExecutor(
            self.loop,
            lambda *stored: core.snapshot_stored(*stored),
            lambda *failed: core.snapshot_failed(*failed),
            lambda *stored: core.in_flight_stored(*stored),
        )
        self._core = core = SlotCore(
            self.slot_id,
            host_identity(),
            self._clock.now_ms,
            self._peers,
            self,
            clock_ns=self._clock.perf_ns,
            open_content=snapshots.open_content,
            materialiser=snapshots.materialiser,
        )
        address = self._peers.address
        self._control.send_message(RegisterSlot(launch.lease, self.slot_id, os.getpid(), address))
        self.loop.call_later(_METRICS_EVERY_MS, self._report_metrics)
        self.loop.call_later(_HOUSEKEEPING_EVERY_MS, self._housekeeping)
        self.loop.call_later(launch.heartbeat_interval_ms, self._check_heartbeat)
        self.loop.run_once(0)
        log.info("slot registered slot=%s pid=%d tcp=%s:%d", self.slot_id, os.getpid(), *address.tcp)
        return True

    def _work(self) -> None:
        loop, core, progress = self.loop, self._core, self._progress
        assert core is not None
        now_ns = time.monotonic_ns
        polled_ns = 0
        while self.exit_code is None:
            look, self._look = self._look, True
            more = core.run_round(look)
            progress.mark()
            if more:
                self._worked = True
                if now_ns() - polled_ns < _POLL_EVERY_NS:
                    continue
                loop.run_once(0)
            else:
                waited = core.waits_for_socket()
                loop.flush()
                if waited and not core.waits_for_socket():
                    continue  # what waited for room in a connection goes on
                self._look = False
                loop.run_once(self._idle_timeout_ms(core))
            polled_ns = now_ns()

    def _idle_timeout_ms(self, core: SlotCore) -> Optional[float]:
        """How long nothing can happen; descriptors of tasks are watched from now on."""
        timeout_ms: Optional[float] = None  # the timers of this class turn the loop often enough
        deadline_ms = core.next_deadline_ms()
        if deadline_ms is not None:
            timeout_ms = max(0, deadline_ms - self._clock.now_ms())
        wanted = core.descriptors()
        now_ns = time.monotonic_ns()
        if wanted == self._watched and (not wanted or now_ns - self._watched_ns < _WATCH_AGAIN_NS):
            return timeout_ms
        for fd in self._watched.keys() - wanted.keys():
            self.loop.unregister(fd)
        self._watched, self._watched_ns = dict(wanted), now_ns
        for fd, (events, task) in wanted.items():
            try:
                self.loop.register(fd, events, lambda readable, writable, task=task: task.look())
            except PermissionError:
                del self._watched[fd]
                self._look = True
                if timeout_ms is None or timeout_ms > _UNPOLLABLE_RETRY_MS:
                    timeout_ms = _UNPOLLABLE_RETRY_MS
        return timeout_ms

    def _end(self) -> None:
        """Close operators, tell the JobManager, leave nothing open."""
        self._ending = True
        if self._core is not None:
            try:
                self._core.dispose()
            except Exception as error:
                self._broken(error)
        if self._snapshots is not None:
            self._snapshots.close()
        control = self._control
        if control is not None and not control.closed:
            control.on_close = None
            self.loop.run_until(lambda: control.closed or not control.pending_bytes, _FLUSH_AT_END_MS)
            control.close()
        if self._peers is not None:
            self._peers.close()
        self.loop.close()

    def _finish(self, exit_code: int, reason: str, error: Optional[FlinkishError] = None) -> None:
        """End after this turn.  ``error``: what the job is told if it still has tasks here, ahead of
        operators that may be slow to close."""
        if self.exit_code is not None:
            return
        log.info("slot ends slot=%s code=%d reason=%r", self.slot_id, exit_code, reason)
        self.exit_code = exit_code
        core, control = self._core, self._control
        if error is not None and core is not None and not core.is_over and control is not None:
            self._report_failure(error, self._unended())
            control.flush()

    def _lost(self, why: str, do: str = "") -> SlotLostError:
        job = "" if self._deployed is None else f"job {self._deployed.job_id}, "
        where = f"{job}slot process {os.getpid()} on {socket.gethostname()}"
        tasks = [] if self._core is None else [f'"{task.name}"' for task in self._core.tasks.values()]
        if tasks:
            where += f", which ran {', '.join(tasks)}"
        return SlotLostError(f"lost slot {self.slot_id}", where=where, why=why, do=do)

    def _broken(self, error: BaseException) -> None:
        """An error of this runtime, or of user code that has reached into it: report it, then end, so that
        nothing broken is used again."""
        text = traceback.format_exc()
        log.error("slot failed slot=%s\n%s", self.slot_id, text)
        failure = self._explain(error, text)
        self._progress.note_end(failure.why, failure.do)
        self._report_failure(failure, self._unended())
        if self.exit_code is None or self.exit_code == EXIT_RELEASED:
            self.exit_code = EXIT_INTERNAL_ERROR if isinstance(failure, InternalError) else EXIT_BROKEN

    def _explain(self, error: BaseException, text: str) -> FlinkishError:
        """What the job is told of an error that no subtask is known to have caused."""
        if isinstance(error, FlinkishError):
            return error
        reason = f"{type(error).__name__}: {message_of(error)}"
        if isinstance(error, OSError) and error.errno == errno.EBADF or self._closed_descriptors():
            return self._descriptor_closed(reason)
        replaced = [name for name, function in _USED.items() if _named(name) is not function]
        if replaced:
            why = f"user code has replaced {', '.join(replaced)}, which flinkish needs in its process: {reason}"
            return self._lost(why, "put replaced functions back when the call that needs them is over")
        if isinstance(error, MemoryError):
            return self._lost(f"its process ran out of memory: {reason}", "give the executors more memory")
        if is_raised_by_user_code(error):
            why = f"user code that flinkish has not called, such as a signal handler or a trace function, raised {reason}"
            return self._lost(f"{why}\n{format_user_traceback(error).rstrip()}", "catch it there")
        return InternalError(
            "a slot failed",
            where=f"slot {self.slot_id}",
            why=reason,
            do="this is a bug of flinkish, please report it with the traceback",
            traceback_text=text,
        )

    def _descriptor_closed(self, reason: str) -> SlotLostError:
        return self._lost(
            f"a descriptor of the slot was closed under it ({reason}): user code in one of its tasks closes "
            f"descriptors that it does not own",
            "close only what the job's code has opened: look for os.close and os.closerange",
        )

    def _closed_descriptors(self) -> bool:
        """Whether user code has closed one that the loop watches: the poller says nothing about it then."""
        try:
            for descriptor in self.loop.descriptors() - self._watched.keys():
                os.fstat(descriptor)
        except OSError:
            return True
        return False

    def _end_for_closed_descriptor(self, reason: str) -> None:
        error = self._descriptor_closed(reason)
        self._progress.note_end(error.why, error.do)
        self._finish(EXIT_BROKEN, reason, error)

    def _before_fork(self) -> None:
        self._forks_on_main = threading.current_thread() is threading.main_thread()

    def _in_forked_child(self) -> None:
        """User code has forked (multiprocessing does): the child has none of the slot's duties."""
        for signum in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(signum, signal.SIG_DFL)
        if hasattr(faulthandler, "unregister"):
            faulthandler.unregister(signal.SIGUSR1)
        if self._forks_on_main:  # the kernel's signal would follow the end of another thread
            die_with_parent()
        self.loop.leave_to_parent(keep=set(self._watched))

    def _on_terminate(self, signum: int, frame: Any) -> None:
        # A handler does not end the wait of the loop; a call does.
        self.loop.call_soon_threadsafe(self._terminated)

    def _terminated(self) -> None:
        if self._progress.stop_asked():
            error = self._lost("its supervisor has told it to end")
            self._finish(EXIT_STOPPED, "stopped by its supervisor", error)
            return
        error = self._lost(
            "its process was told to end by SIGTERM, and not by its supervisor: an out-of-memory daemon, "
            "Kubernetes, systemd or a user does that",
            "look at the log of that machine for who ended the process, and at its memory",
        )
        self._finish(EXIT_TERMINATED, "told to end by SIGTERM from outside", error)

    def _on_parent_pipe(self, readable: bool, writable: bool) -> None:
        if not os.read(self._parent_pipe, 4096):
            self.loop.unregister(self._parent_pipe)
            error = self._lost("its supervisor is gone", "look at the executor's log")
            self._finish(EXIT_PARENT_LOST, "the supervisor is gone", error)

    # ---- JobManager -----------------------------------------------------------------------------

    def _on_control_closed(self, connection: Connection, error: Optional[Exception]) -> None:
        why = getattr(error, "why", "")
        if os.strerror(errno.EBADF) in why:
            self._end_for_closed_descriptor(why)
        else:
            self._finish(EXIT_JOB_MANAGER_LOST, f"lost the JobManager: {why}")

    def _check_heartbeat(self) -> None:
        """Any bytes count.  The loop reads before its timers run, so its own lag is no silence."""
        assert self._control is not None
        if self._closed_descriptors():
            self._end_for_closed_descriptor(os.strerror(errno.EBADF))
            return
        now_ns = time.monotonic_ns()
        if self._control.reads != self._control_reads:
            self._control_reads = self._control.reads
            self._control_heard_ns = now_ns
        silent_ms = (now_ns - self._control_heard_ns) // 1_000_000
        if silent_ms > self.launch.heartbeat_timeout_ms:
            reason = f"no heartbeat of the JobManager for {silent_ms} ms"
            error = ConnectionLostError(
                f"slot {self.slot_id} has stopped by itself",
                why=f"it no longer heard the JobManager: {reason}",
                do="look for long pauses of the driver, or raise heartbeat.timeout",
            )
            self._finish(EXIT_JOB_MANAGER_LOST, reason, error)
        self.loop.call_later(self.launch.heartbeat_interval_ms, self._check_heartbeat)

    def _on_message(self, connection: Connection, message: Any) -> None:
        core = self._core
        if self._ending or core is None:
            if isinstance(message, RegistrationRefused):
                self._finish(EXIT_REFUSED, message.reason)
            return
        match message:
            case Heartbeat():
                return
            case OperatorEvent():
                core.on_operator_event(message)
            case DeployTasks():
                self._deploy(core, message)
            case TriggerCheckpoint():
                core.on_trigger_checkpoint(message)
            case CheckpointComplete() | CheckpointAborted():
                if self._serves(message.job_id):
                    core.on_checkpoint_notice(message)
            case StartTasks(job_id, attempt):
                if self._serves(job_id):
                    self._start(core, attempt)
            case CancelTasks(job_id, executions):
                if self._serves(job_id):
                    core.cancel(executions)
            case ReleaseSlot(reason):
                self._finish(EXIT_RELEASED, reason or "the job is over")
            case RegistrationRefused(reason):
                log.warning("slot refused slot=%s reason=%r", self.slot_id, reason)
                self._finish(EXIT_REFUSED, reason)
            case _:
                log.warning("unknown message type=%s", type(message).__name__)

    def _serves(self, job_id: str) -> bool:
        return self._deployed is not None and self._deployed.job_id == job_id

    def _deploy(self, core: SlotCore, deploy: DeployTasks) -> None:
        assert self._peers is not None and self._snapshots is not None
        beside = deploy.beside and self._serves(deploy.job_id)  # else nothing of the job is here yet
        self._deployed = deploy
        if not beside:
            core.dispose()
            self._peers.end_all_but(())
            self._snapshots.configure(deploy.configuration)
            try:
                _extend_sys_path(deploy.sys_path)
                self._install_main_classes(deploy.main_classes)
            except UnpicklableFunctionError as error:
                for task in deploy.tasks:
                    self.task_state_changed(task.execution, "FAILED", TaskFailure(error))
                return
        complete = core.deploy(deploy)
        self._peers.end_all_but(core.attempts)
        if not complete:
            return
        receivers = {
            end.peer_slot: deploy.peers[end.peer_slot]
            for task in deploy.tasks
            for output in task.outputs
            for end in output.channels
            if end.peer_slot != self.slot_id
        }
        self._collect(full=True)
        gc.freeze()

        def on_ready() -> None:
            if self._control is not None and not any(task.is_over for task in core.tasks_of(deploy.attempt)):
                self._control.send_message(TasksDeployed(deploy.job_id, deploy.attempt))

        self._peers.begin(deploy.job_id, deploy.attempt, receivers, on_ready)

    def _start(self, core: SlotCore, attempt: int) -> None:
        """Open the operators.  What they restore is there to stay, so the collector does not walk it."""
        restores = any(task.descriptor.restore is not None for task in core.tasks_of(attempt))
        if not restores:
            core.start(attempt)
            return
        gc.disable()
        try:
            core.start(attempt)
        finally:
            gc.enable()
        gc.freeze()

    def _install_main_classes(self, pickled: bytes) -> None:
        """Classes of the driver's `__main__` become those of ours, so that records of them pickle."""
        if pickled:
            classes, left_out = unpickle_main_classes(pickled, self.slot_id)
            install_main_classes(classes)
            for name, why in left_out.items():
                log.warning("class of __main__ cannot be read slot=%s class=%s reason=%r", self.slot_id, name, why)

    def _report_metrics(self) -> None:
        self.loop.call_later(_METRICS_EVERY_MS, self._report_metrics)
        core, deployed, control = self._core, self._deployed, self._control
        if deployed is not None and core is not None and core.tasks and control is not None:
            control.send_message(
                MetricsReport(
                    deployed.job_id, self.slot_id, core.metrics(), core.watermarks(), self._pickled_accumulators()
                )
            )

    def _pickled_accumulators(self) -> dict[str, bytes]:
        """One that does not pickle is left out with a warning: a count is no reason to fail a job."""
        assert self._core is not None
        pickled = {}
        for name, accumulators in self._core.accumulators().items():
            try:
                pickled[name] = portable_pickle(accumulators)
            except Exception as error:  # pickling runs the user's code
                log.warning("could not send accumulators slot=%s task=%s error=%r", self.slot_id, name, error)
        return pickled

    def _report_failure(
        self, error: FlinkishError, executions: tuple[ExecutionAttemptID, ...], lost_peer: Optional[str] = None
    ) -> None:
        deployed, control = self._deployed, self._control
        if deployed is not None and control is not None:
            failed = SlotFailed(self.slot_id, deployed.job_id, executions, TaskFailure(error), lost_peer)
            control.send_message(failed)

    def _unended(self) -> tuple[ExecutionAttemptID, ...]:
        tasks = {} if self._core is None else self._core.tasks
        return tuple(execution for execution, task in tasks.items() if not task.is_over)

    # ---- peers ----------------------------------------------------------------------------------

    def _on_frame(self, attempt: int, peer_slot: str, kind: int, channel_id: int, payload: Any) -> None:
        self._worked = True
        assert self._core is not None
        self._core.on_frame(attempt, peer_slot, kind, channel_id, payload)

    def _on_peer_lost(self, attempt: int, peer_slot: str, error: Optional[BaseException]) -> None:
        """Only a loss that a task still minds is news; its cause goes first."""
        if self._ending or self._core is None:
            return
        if os.strerror(errno.EBADF) in getattr(error, "why", ""):
            self._end_for_closed_descriptor(error.why)  # type: ignore[union-attr]
            return
        self._held = []
        try:
            self._core.on_peer_lost(attempt, peer_slot, error)
        finally:
            held, self._held = self._held, None
        failed = tuple(change.execution for change in held if change.state == "FAILED")
        if failed:
            log.warning("peer lost slot=%s peer=%s reason=%r", self.slot_id, peer_slot, str(error))
            self._report_failure(
                ConnectionLostError(
                    f'slot {self.slot_id} lost slot "{peer_slot}"',
                    why=getattr(error, "why", "") or "the connection was closed",
                ),
                failed,
                peer_slot,
            )
        for change in held:
            self._send_change(change)

    # ---- listener of SlotCore -------------------------------------------------------------------

    def task_state_changed(
        self, execution: ExecutionAttemptID, state: str, failure: Optional[TaskFailure]
    ) -> None:
        change = TaskStateChanged(execution, state, failure)
        if state == "FINISHED" and self._control is not None:
            pickled = self._pickled_accumulators()
            if pickled:
                self._control.send_message(MetricsReport(execution.job_id, self.slot_id, accumulators=pickled))
        if self._held is not None:
            self._held.append(change)
        else:
            self._send_change(change)

    def operator_event(self, event: OperatorEvent) -> None:
        if self._control is not None:
            self._control.send_message(event)

    def checkpoint_message(self, message: Any) -> None:
        if self._control is None:
            return
        try:
            self._control.send_message(message)
        except Exception as error:
            if not isinstance(message, DeclineCheckpoint):
                raise
            # Its error does not pickle; that it has failed must still be known.
            why = f"its error could not be sent: {type(error).__name__}: {error}"
            wrapped = TaskFailure(InternalError(str(message.failure.error), why=why))
            self._control.send_message(replace(message, failure=wrapped))

    def store_snapshot(self, snapshot: TaskSnapshot) -> None:
        assert self._snapshots is not None
        self._snapshots.store(snapshot)

    def store_in_flight(
        self,
        execution: ExecutionAttemptID,
        checkpoint_id: int,
        options: CheckpointOptions,
        data: bytes,
        parts: tuple[InFlightPart, ...],
    ) -> None:
        assert self._snapshots is not None
        self._snapshots.store_in_flight(execution, checkpoint_id, options, data, parts)

    def drop_snapshot(self, execution: ExecutionAttemptID, checkpoint_id: int) -> None:
        assert self._snapshots is not None
        self._snapshots.drop(execution, checkpoint_id)

    def wakeup(self) -> None:
        self.loop.call_soon_threadsafe(self._woken)

    def _woken(self) -> None:
        self._look = True  # some source has more, or a subtask something to do

    def _send_change(self, change: TaskStateChanged) -> None:
        if self._control is None:
            return
        try:
            self._control.send_message(change)
        except Exception as error:
            # A failure that does not pickle must not hide that the task has failed.
            text = str(change.failure.error) if change.failure is not None else ""
            wrapped = InternalError(
                text or "a subtask failed",
                why=f"its error could not be sent: {type(error).__name__}: {error}",
            )
            self._control.send_message(
                TaskStateChanged(change.execution, change.state, TaskFailure(wrapped))
            )

    # ---- memory ---------------------------------------------------------------------------------

    def _housekeeping(self) -> None:
        self.loop.call_later(_HOUSEKEEPING_EVERY_MS, self._housekeeping)
        worked, self._worked = self._worked, False
        # A pass while a child writes would copy each page that it touches: 334 ms instead of 65.
        if not worked and not self._snapshots.shares_memory and sum(gc.get_count()) > 0:
            overdue = time.monotonic_ns() - self._collected_ns > _FULL_COLLECTION_EVERY_S * 1e9
            self._collect(full=overdue)

    def _collect(self, full: bool) -> None:
        gc.collect(2 if full else 1)
        if full:
            self._collected_ns = time.monotonic_ns()


def _named(name: str) -> Any:
    module, *attributes = name.split(".")
    found: Any = sys.modules[module]
    for attribute in attributes:
        found = getattr(found, attribute, None)
    return found


def _extend_sys_path(entries: tuple[str, ...]) -> None:
    known = set(sys.path)
    for entry in entries:
        if entry not in known and os.path.exists(entry):
            sys.path.append(entry)
            known.add(entry)
    importlib.invalidate_caches()


def _read_exactly(fd: int, count: int) -> bytes:
    parts = []
    while count:
        part = os.read(fd, count)
        if not part:
            raise EOFError("the supervisor closed the pipe")
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def main(parent_pipe: int, progress_fd: int, dump_fd: int) -> None:
    """Entry of the process; does not return.  `parent_pipe` is at the start of the blob."""
    try:
        size = int.from_bytes(_read_exactly(parent_pipe, 8), "little")
        blob: SlotBlob = pickle.loads(_read_exactly(parent_pipe, size))
    except EOFError:
        os._exit(EXIT_PARENT_LOST)
    sys.path[:] = blob.sys_path
    importlib.invalidate_caches()
    # A Ctrl-C in a terminal reaches the whole group: the driver decides what follows.  A handler,
    # not SIG_IGN, because programs that user code starts would inherit that.
    signal.signal(signal.SIGINT, lambda signum, frame: None)
    faulthandler.enable(file=dump_fd, all_threads=True)
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, file=dump_fd, all_threads=True)
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.set_threshold(*_GC_THRESHOLDS)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(line_buffering=True)
    logging.basicConfig(
        level=blob.log_level,
        format=f"%(asctime)s %(levelname)s slot {blob.slot_id} %(name)s: %(message)s",
    )
    this_is_slot(blob.slot_id)
    code = EXIT_INTERNAL_ERROR
    try:
        code = SlotProcess(blob, ProgressPage(progress_fd), parent_pipe).run()
    except BaseException:
        text = traceback.format_exc()
        with contextlib.suppress(OSError):  # also that descriptor may be closed
            os.write(dump_fd, text.encode())
        log.error("slot process failed slot=%s\n%s", blob.slot_id, text)
    # What user code registered still runs, but a thread that it left behind cannot hold the slot.
    faulthandler.dump_traceback_later(_EXIT_WITHIN_S, exit=True, file=dump_fd)
    try:
        atexit._run_exitfuncs()
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
    finally:
        os._exit(code)
