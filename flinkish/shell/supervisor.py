"""Starts slot processes, watches them, replaces them.  Runs inside a Spark task, or a thread of the driver.

States of one slot's process::

    WAITING --backoff over--> STARTING --forked--> RUNNING --exit--> WAITING    (exit code 0: no backoff)
                                 | InterruptSlot: SIGUSR2, see `shell.interruption`
                                 | KillSlot: stacks are dumped, then SIGKILL
                                 | stopped (SIGSTOP) for the heartbeat timeout: SIGKILL
    any --stop--> SIGTERM --bounded--> SIGKILL --> reaped

Slots are forked by a server that has imported what they need (`shell.fork_server`): it starts with the
first slot and lives as long as the supervisor.  If it ends before, its slots end with it, and a new one
starts with them.

The supervisor ends when the JobManager says so, when it loses the JobManager, or when its caller's
`stop()` holds; however it ends, no process, descriptor or file stays.  The kernel kills a slot when
the thread that runs the supervisor ends, so that thread must live as long as its slots: run it in
one that does nothing else.  No signal handler is installed here.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import socket
import sys
import time
from typing import Any, Callable, Optional

from flinkish.errors import ConnectionLostError, ResourceError
from flinkish.messages.control import (
    Heartbeat,
    InterruptSlot,
    KillSlot,
    RegisterSupervisor,
    RegistrationRefused,
    SlotReport,
    StopSupervisor,
    SupervisorHeartbeat,
)
from flinkish.messages.launch import SlotLaunch
from flinkish.shell.connections import ROLE_JOB_MANAGER, Connection
from flinkish.shell.event_loop import EventLoop
from flinkish.shell.finding import wait_connected
from flinkish.shell.fork_server import ForkServer
from flinkish.shell.process import (
    EXIT_RELEASED,
    ProgressPage,
    SlotBlob,
    anonymous_file,
    describe_exit,
    executor_id,
    explain_end,
    is_stopped,
)
from flinkish.shell.stack_dump import short_stack
from flinkish.shell.tls import Tls
from flinkish.state.local_folders import remove_folders_of, remove_stale

log = logging.getLogger(__name__)

STOP_TIMEOUT_MS = 5_000

_JOB_MANAGER_LOST = "lost the JobManager"
_STOP_POLL_MS = 50
_DUMP_WAIT_MS = 1_000
_DUMP_POLL_MS = 20
_DUMP_BYTES_MAX = 64 * 1024

# A process that dies younger than this has not even started well: wait longer each time.
YOUNG_MS = 5_000
_BACKOFF_FIRST_MS = 200
_BACKOFF_MAX_MS = 5_000


def never() -> bool:
    return False


def run_supervisor(
    launch: SlotLaunch, spark_attempt: int = 0, stop: Callable[[], bool] = never
) -> str:
    """Run the slots of `launch` until told to stop.

    Args:
        spark_attempt: attempt number of the Spark task.
        stop: asked about 20 times a second; True ends the supervisor.
    Returns:
        why it ended.
    Raises:
        ConnectionLostError: the JobManager cannot be reached; lists the addresses tried.
    """
    return Supervisor(launch, spark_attempt, stop).run()


class _Process:
    """A process that serves a slot, from the request to fork it until it is known to have ended."""

    def __init__(self, number: int):
        """Raises OSError: the system has no descriptor or no memory left."""
        with contextlib.ExitStack() as opened:
            self.dump_fd = anonymous_file("flinkish-dump")
            opened.callback(os.close, self.dump_fd)
            self.progress = ProgressPage.create()
            opened.callback(self.progress.close)
            self.reads, self.pipe = os.pipe()  # the process ends when the latter closes
            opened.pop_all()
        self.number = number
        self.pid = 0  # until it has been forked
        self.started_ns = time.monotonic_ns()
        self.stopped_ns: Optional[int] = None  # since when it has been seen to stand still
        self.kill_reason: Optional[str] = None

    def progress_age_ms(self) -> int:
        since_ns = max(self.progress.last_ns(), self.started_ns)
        return max(0, (time.monotonic_ns() - since_ns) // 1_000_000)

    def lived_ms(self) -> int:
        return (time.monotonic_ns() - self.started_ns) // 1_000_000

    def dumped(self) -> str:
        """What the process wrote there: stacks, or the traceback of its death."""
        size = os.fstat(self.dump_fd).st_size
        start = max(0, size - _DUMP_BYTES_MAX)
        return os.pread(self.dump_fd, size - start, start).decode(errors="replace").strip()

    def close(self) -> None:
        os.close(self.pipe)
        os.close(self.dump_fd)
        self.progress.close()


class _Slot:
    """One slot id and the process that serves it now."""

    def __init__(self, slot_id: str):
        self.slot_id = slot_id
        self.process: Optional[_Process] = None
        self.young_deaths = 0

    def report(self) -> SlotReport:
        if self.process is None or not self.process.pid:
            return SlotReport(self.slot_id, 0, 0, detail="waiting to be started")
        return SlotReport(self.slot_id, self.process.pid, self.process.progress_age_ms())


class Supervisor:
    """See the module; one object, one `run`."""

    def __init__(self, launch: SlotLaunch, spark_attempt: int, stop: Callable[[], bool]):
        self._launch = launch
        self._spark_attempt = spark_attempt
        self._stop = stop
        self._loop = EventLoop()
        self._slots = {slot_id: _Slot(slot_id) for slot_id in launch.slot_ids}
        self._server: Optional[ForkServer] = None
        self._server_stopped_ns: Optional[int] = None
        self._forked = 0
        self._control: Optional[Connection] = None
        self._control_reads = -1
        self._control_heard_ns = time.monotonic_ns()
        self._reason: Optional[str] = None

    def run(self) -> str:
        if not sys.executable:
            raise ResourceError(
                "could not start a slot process",
                why="this Python does not know its own interpreter (sys.executable is empty)",
                do="set PYSPARK_PYTHON to a Python interpreter",
            )
        try:
            if not self._connect():
                return "stopped before it started"
            remove_stale()  # of slots whose supervisor was killed
            for slot in self._slots.values():
                self._start(slot)
            self._loop.call_later(self._launch.heartbeat_interval_ms, self._heartbeat)
            while self._reason is None:
                if self._stop():
                    self._end("stopped by its caller")
                    break
                self._loop.run_once(_STOP_POLL_MS)
            # Of a driver that was killed this line is all that is left.
            level = logging.WARNING if self._reason.startswith(_JOB_MANAGER_LOST) else logging.INFO
            log.log(level, "supervisor ends task=%d reason=%r", self._launch.task_index, self._reason)
            self._stop_slots()
            assert self._reason is not None
            return self._reason
        finally:
            self._clean_up()

    # ---- JobManager -----------------------------------------------------------------------------

    def _connect(self) -> bool:
        launch = self._launch
        try:
            self._control = wait_connected(
                self._loop,
                launch.job_manager_addresses,
                launch.secret,
                ROLE_JOB_MANAGER,
                launch.connect_timeout_ms,
                should_stop=self._stop,
                tls=None if launch.tls is None else Tls(launch.tls),
                on_message=self._on_message,
            )
        except ConnectionLostError:
            if self._stop():
                return False
            raise
        self._control.on_close = self._on_control_closed
        self._control.send_message(
            RegisterSupervisor(
                lease=launch.lease,
                task_index=launch.task_index,
                spark_attempt=self._spark_attempt,
                host=socket.gethostname(),
                pid=os.getpid(),
                slot_ids=launch.slot_ids,
                executor_id=executor_id(),
            )
        )
        return True

    def _on_message(self, connection: Connection, message: Any) -> None:
        match message:
            case Heartbeat():
                return
            case StopSupervisor(reason):
                self._end(reason or "stopped by the JobManager")
            case RegistrationRefused(reason):
                self._end(f"refused by the JobManager: {reason}")
            case InterruptSlot(slot_id, pid):
                self._interrupt(slot_id, pid)
            case KillSlot(slot_id, pid, reason):
                self._kill(slot_id, pid, reason)
            case _:
                log.warning("unknown message type=%s", type(message).__name__)

    def _on_control_closed(
        self, connection: Connection, error: Optional[ConnectionLostError]
    ) -> None:
        self._end(f"{_JOB_MANAGER_LOST}: {error.why if error is not None else 'closed'}")

    def _end(self, reason: str) -> None:
        if self._reason is None:
            self._reason = reason

    def _heartbeat(self) -> None:
        launch, control = self._launch, self._control
        assert control is not None
        now_ns = time.monotonic_ns()
        if control.reads != self._control_reads:
            self._control_reads, self._control_heard_ns = control.reads, now_ns
        silent_ms = (now_ns - self._control_heard_ns) // 1_000_000
        if silent_ms > launch.heartbeat_timeout_ms:
            self._end(f"{_JOB_MANAGER_LOST}: no heartbeat for {silent_ms} ms")
            return
        self._look_for_stopped(now_ns)
        self._report(*(slot.report() for slot in self._slots.values()))
        self._loop.call_later(launch.heartbeat_interval_ms, self._heartbeat)

    def _report(self, *reports: SlotReport) -> None:
        if self._control is not None and not self._control.closed:
            self._control.send_message(SupervisorHeartbeat(reports))

    # ---- slot processes -------------------------------------------------------------------------

    def _start(self, slot: _Slot) -> None:
        if self._reason is not None:
            return
        # At each try anew: what the slots may import can have grown (Spark's addPyFile).
        known = dict.fromkeys(path for path in self._launch.sys_path if os.path.exists(path))
        paths = (*known, *(os.path.abspath(path) for path in sys.path if os.path.abspath(path) not in known))
        try:
            if self._server is None:
                self._server = ForkServer(
                    self._loop,
                    paths,
                    ",".join(self._launch.slot_ids),
                    self._on_started,
                    self._on_ended,
                    self._on_server_end,
                )
            process = _Process(self._forked + 1)
        except OSError as error:
            self._could_not_start(slot, str(error))
            return
        slot.process, self._forked = process, process.number
        self._server.start(process.number, (process.reads, process.progress.fd, process.dump_fd))
        os.close(process.reads)
        blob = pickle.dumps(
            SlotBlob(
                launch=self._launch, slot_id=slot.slot_id, sys_path=paths, log_level=log.getEffectiveLevel()
            )
        )
        try:
            with open(process.pipe, "wb", closefd=False) as pipe:
                pipe.write(len(blob).to_bytes(8, "little") + blob)
        except BrokenPipeError:
            log.info("the fork server is gone slot=%s", slot.slot_id)  # its end tells the rest

    def _could_not_start(self, slot: _Slot, why: str) -> None:
        log.warning("could not start a slot slot=%s reason=%r", slot.slot_id, why)
        self._report(SlotReport(slot.slot_id, 0, 0, exit_status=-1, detail=f"could not start: {why}"))
        self._restart_later(slot)

    def _on_started(self, number: int, pid: int) -> None:
        for slot in self._slots.values():
            process = slot.process
            if process is not None and process.number == number:
                break
        else:
            return  # nobody waits for it any more: its pipe is closed, so it ends
        if pid < 0:
            process.close()
            slot.process = None
            self._could_not_start(slot, os.strerror(-pid))
            return
        process.pid, process.started_ns = pid, time.monotonic_ns()
        log.info("slot started slot=%s pid=%d", slot.slot_id, pid)

    def _on_ended(self, pid: int, status: int) -> None:
        for slot in self._slots.values():
            if slot.process is not None and slot.process.pid == pid:
                self._ended(slot, slot.process, status, *explain_end(status, slot.process.progress.end_note()))

    def _on_server_end(self, status: int) -> None:
        """Its slots end with it; who waited for a start has waited in vain."""
        self._server = self._server_stopped_ns = None
        log.warning("fork server ended status=%d", status)
        for slot in self._slots.values():
            if slot.process is not None:
                detail = f"it ended with the process that forks slots: {describe_exit(status)}"
                self._ended(slot, slot.process, status, detail)

    def _ended(self, slot: _Slot, process: _Process, status: int, detail: str, do: str = "") -> None:
        """Report how, and start the next."""
        if process.kill_reason is not None:
            detail = f"killed by the supervisor: {process.kill_reason}"
        text = process.dumped()
        if text:
            log.warning("stacks of slot=%s pid=%d\n%s", slot.slot_id, process.pid, text)
            place = short_stack(text)
            detail += f", in {place}" if place else ""
        lived_ms, killed = process.lived_ms(), process.kill_reason is not None
        log.log(
            logging.INFO if status == EXIT_RELEASED or self._reason is not None else logging.WARNING,
            "slot ended slot=%s pid=%d lived_ms=%d detail=%r",
            slot.slot_id,
            process.pid,
            lived_ms,
            detail,
        )
        self._report(
            SlotReport(slot.slot_id, process.pid, 0, status, detail, ended_by_supervisor=killed, do=do)
        )
        process.close()
        slot.process = None
        remove_folders_of(process.pid)
        if self._reason is not None:
            return
        if status == EXIT_RELEASED or killed or lived_ms >= YOUNG_MS:
            slot.young_deaths = 0
            self._start(slot)
        else:
            self._restart_later(slot)

    def _restart_later(self, slot: _Slot) -> None:
        """The first early death may be an accident, so its replacement comes at once."""
        slot.young_deaths += 1
        delay_ms = 0
        if slot.young_deaths > 1:
            delay_ms = min(_BACKOFF_MAX_MS, _BACKOFF_FIRST_MS * 2 ** min(16, slot.young_deaths - 2))
        self._loop.call_later(delay_ms, self._start, slot)

    def _signal(self, process: _Process, signum: int) -> None:
        if self._server is not None and process.pid:
            self._server.signal(process.pid, signum)

    def _interrupt(self, slot_id: str, pid: int) -> None:
        """Only the process that was meant: a younger one may not handle the signal yet."""
        slot = self._slots.get(slot_id)
        if slot is not None and slot.process is not None and slot.process.pid == pid:
            self._signal(slot.process, signal.SIGUSR2)

    def _kill(self, slot_id: str, pid: int, reason: str) -> None:
        slot = self._slots.get(slot_id)
        process = slot.process if slot is not None else None
        if slot is None or process is None or process.pid != pid or process.kill_reason is not None:
            return
        process.kill_reason = reason
        size = os.fstat(process.dump_fd).st_size
        self._signal(process, signal.SIGUSR1)
        deadline_ns = time.monotonic_ns() + _DUMP_WAIT_MS * 1_000_000
        self._loop.call_later(
            _DUMP_POLL_MS, self._kill_when_dumped, slot, process, size, size, deadline_ns
        )

    def _kill_when_dumped(
        self, slot: _Slot, process: _Process, empty: int, last: int, deadline_ns: int
    ) -> None:
        """SIGKILL once the dump has grown and then stood still, or the deadline has passed."""
        if slot.process is not process:
            return
        size = os.fstat(process.dump_fd).st_size
        if time.monotonic_ns() < deadline_ns and (size == empty or size != last):
            self._loop.call_later(
                _DUMP_POLL_MS, self._kill_when_dumped, slot, process, empty, size, deadline_ns
            )
            return
        self._signal(process, signal.SIGKILL)

    def _look_for_stopped(self, now_ns: int) -> None:
        """A process that the system does not run (SIGSTOP) is lost after the heartbeat timeout, as it would
        be if it sent heartbeats itself; one whose user code hangs is not."""
        timeout_ms = self._launch.heartbeat_timeout_ms
        for slot in self._slots.values():
            process = slot.process
            if process is None or not process.pid or not is_stopped(process.pid):
                if process is not None:
                    process.stopped_ns = None
                continue
            process.stopped_ns = process.stopped_ns or now_ns
            stopped_ms = (now_ns - process.stopped_ns) // 1_000_000
            if stopped_ms > timeout_ms and process.kill_reason is None:
                process.kill_reason = f"it was stopped (SIGSTOP) for {stopped_ms} ms (heartbeat.timeout)"
                self._signal(process, signal.SIGKILL)
        server = self._server
        if server is None or not is_stopped(server.pid):
            self._server_stopped_ns = None
            return
        self._server_stopped_ns = self._server_stopped_ns or now_ns
        if (now_ns - self._server_stopped_ns) // 1_000_000 > timeout_ms:
            log.warning("fork server was stopped (SIGSTOP), killing it pid=%d", server.pid)
            server.kill()

    # ---- end ------------------------------------------------------------------------------------

    def _stop_slots(self) -> None:
        """SIGTERM, a bounded wait in which heartbeats still flow, then SIGKILL."""
        for slot in self._slots.values():
            process = slot.process
            if process is None:
                continue
            if process.pid:
                process.progress.ask_to_stop()
                self._signal(process, signal.SIGTERM)
            else:  # it has not begun, and ends when its pipe closes
                process.close()
                slot.process = None

        def all_ended() -> bool:
            return all(slot.process is None for slot in self._slots.values())

        if not self._loop.run_until(all_ended, STOP_TIMEOUT_MS):
            for slot in self._slots.values():
                if slot.process is not None:
                    log.warning(
                        "slot did not end in time, killing it slot=%s pid=%d timeout_ms=%d",
                        slot.slot_id,
                        slot.process.pid,
                        STOP_TIMEOUT_MS,
                    )
                    self._kill(slot.slot_id, slot.process.pid, f"it did not end within {STOP_TIMEOUT_MS} ms")
            self._loop.run_until(all_ended, 2 * _DUMP_WAIT_MS)
        control = self._control
        if control is not None and not control.closed:
            control.on_close = None
            self._loop.run_until(lambda: control.closed or not control.pending_bytes, 500)

    def _clean_up(self) -> None:
        """Whatever happened before, also an exception: nothing stays."""
        self._reason = self._reason or "failed"
        if self._server is not None:
            self._server.close(driver_lost=self._reason.startswith(_JOB_MANAGER_LOST))
        for slot in self._slots.values():
            if slot.process is not None:
                slot.process.close()
                slot.process = None
        if self._control is not None:
            self._control.on_close = None
            self._control.close()
        self._loop.close()
