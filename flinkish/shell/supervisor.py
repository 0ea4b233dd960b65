"""Starts slot processes, watches them, replaces them.  Runs inside a Spark task, or a thread of the driver.

States of one slot's process::

    WAITING --backoff over--> RUNNING --exit--> WAITING        (exit code 0: no backoff)
                                 | InterruptSlot: SIGUSR2, see `shell.interruption`
                                 | KillSlot: stacks are dumped, then SIGKILL
    any --stop--> SIGTERM --bounded--> SIGKILL --> reaped

The supervisor ends when the JobManager says so, when it loses the JobManager, or when its caller's
`stop()` holds; however it ends, no process, descriptor or file stays.  The kernel kills a slot when
the thread that runs the supervisor ends, so that thread must live as long as its slots: run it in
one that does nothing else.  No signal handler is installed here.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import subprocess
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
from flinkish.shell.event_loop import EventLoop, TimerHandle
from flinkish.shell.finding import wait_connected
from flinkish.shell.process import (
    EXIT_RELEASED,
    ProgressPage,
    SlotBlob,
    anonymous_file,
    describe_exit,
    executor_id,
)

log = logging.getLogger(__name__)

STOP_TIMEOUT_MS = 5_000

_STOP_POLL_MS = 50
_REAP_POLL_MS = 50  # only where the system has no process descriptors
_DUMP_WAIT_MS = 1_000
_DUMP_POLL_MS = 20
_DUMP_BYTES_MAX = 64 * 1024

# A process that dies younger than this has not even started well: wait longer each time.
_YOUNG_MS = 5_000
_BACKOFF_FIRST_MS = 200
_BACKOFF_MAX_MS = 5_000

# The paths come first, before anything that they could shadow is imported.  A `-m` would put the
# working folder in front of the standard library.  Descriptor 0 is freed, so that user code that
# reads stdin sees its end and not our pipe.
_BOOTSTRAP = """\
import sys, _signal
_signal.signal(_signal.SIGINT, _signal.SIG_IGN)
import os
fd = os.dup(0)
line = bytearray()
while not line.endswith(b"\\n"):
    part = os.read(fd, 1)
    if not part:
        os._exit(74)
    line += part
sys.path[:] = os.fsdecode(bytes(line[:-1])).split("\\0")
null = os.open(os.devnull, os.O_RDONLY)
os.dup2(null, 0)
os.close(null)
del os, part, line, null, sys, _signal
from flinkish.shell.slot_process import main
main(fd)
"""


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


class _Slot:
    """One slot id and the process that serves it now."""

    def __init__(self, slot_id: str):
        self.slot_id = slot_id
        self.process: Optional[subprocess.Popen] = None
        self.progress: Optional[ProgressPage] = None
        self.dump_fd = -1
        self.pid_fd = -1
        self.started_ns = 0
        self.young_deaths = 0
        self.kill_reason: Optional[str] = None
        self.restart: Optional[TimerHandle] = None

    def report(self) -> SlotReport:
        if self.process is None or self.progress is None:
            return SlotReport(self.slot_id, 0, 0, detail="waiting to be started again")
        since_ns = max(self.progress.last_ns(), self.started_ns)
        age_ms = (time.monotonic_ns() - since_ns) // 1_000_000
        return SlotReport(self.slot_id, self.process.pid, max(0, age_ms))

    def dumped(self) -> str:
        """What the process wrote there: stacks, or the traceback of its death."""
        size = os.fstat(self.dump_fd).st_size
        start = max(0, size - _DUMP_BYTES_MAX)
        return os.pread(self.dump_fd, size - start, start).decode(errors="replace").strip()

    def release(self) -> None:
        """Close what belonged to the process; it has been reaped."""
        assert self.process is None or self.process.returncode is not None
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
        if self.pid_fd >= 0:
            os.close(self.pid_fd)
        if self.progress is not None:
            self.progress.close()
        if self.dump_fd >= 0:
            os.close(self.dump_fd)
        self.process, self.progress, self.dump_fd, self.pid_fd = None, None, -1, -1
        self.kill_reason = None


class Supervisor:
    """See the module; one object, one `run`."""

    def __init__(self, launch: SlotLaunch, spark_attempt: int, stop: Callable[[], bool]):
        self._launch = launch
        self._spark_attempt = spark_attempt
        self._stop = stop
        self._loop = EventLoop()
        self._slots = {slot_id: _Slot(slot_id) for slot_id in launch.slot_ids}
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
            for slot in self._slots.values():
                self._start(slot)
            self._loop.call_later(self._launch.heartbeat_interval_ms, self._heartbeat)
            while self._reason is None:
                if self._stop():
                    self._end("stopped by its caller")
                    break
                self._loop.run_once(_STOP_POLL_MS)
            log.info("supervisor ends task=%d reason=%r", self._launch.task_index, self._reason)
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
            case KillSlot(slot_id, reason):
                self._kill(slot_id, reason)
            case _:
                log.warning("unknown message type=%s", type(message).__name__)

    def _on_control_closed(
        self, connection: Connection, error: Optional[ConnectionLostError]
    ) -> None:
        self._end(f"lost the JobManager: {error.why if error is not None else 'closed'}")

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
            self._end(f"lost the JobManager: no heartbeat for {silent_ms} ms")
            return
        self._report(*(slot.report() for slot in self._slots.values()))
        self._loop.call_later(launch.heartbeat_interval_ms, self._heartbeat)

    def _report(self, *reports: SlotReport) -> None:
        if self._control is not None and not self._control.closed:
            self._control.send_message(SupervisorHeartbeat(reports))

    # ---- slot processes -------------------------------------------------------------------------

    def _start(self, slot: _Slot) -> None:
        slot.restart = None
        if self._reason is not None:
            return
        # At each try anew: what the slots may import can have grown (Spark's addPyFile).
        known = dict.fromkeys(path for path in self._launch.sys_path if os.path.exists(path))
        paths = [*known, *(os.path.abspath(path) for path in sys.path if os.path.abspath(path) not in known)]
        slot.progress = ProgressPage.create()
        slot.dump_fd = anonymous_file("flinkish-dump")
        try:
            slot.process = subprocess.Popen(
                [sys.executable, "-c", _BOOTSTRAP, slot.slot_id],
                stdin=subprocess.PIPE,
                pass_fds=(slot.progress.fd, slot.dump_fd),
                bufsize=0,
            )
        except OSError as error:
            log.warning("could not start a slot slot=%s reason=%r", slot.slot_id, str(error))
            slot.release()
            self._report(SlotReport(slot.slot_id, 0, 0, exit_status=-1, detail=f"could not start: {error}"))
            self._restart_later(slot)
            return
        slot.started_ns = time.monotonic_ns()
        if hasattr(os, "pidfd_open"):
            slot.pid_fd = os.pidfd_open(slot.process.pid)
            self._loop.register(slot.pid_fd, "r", lambda readable, writable: self._reap(slot))
        else:
            self._loop.call_later(_REAP_POLL_MS, self._poll_exit, slot, slot.process)
        blob = pickle.dumps(
            SlotBlob(
                launch=self._launch,
                slot_id=slot.slot_id,
                parent_pid=os.getpid(),
                progress_fd=slot.progress.fd,
                dump_fd=slot.dump_fd,
                log_level=log.getEffectiveLevel(),
            )
        )
        line = b"\0".join(os.fsencode(path) for path in paths) + b"\n"
        assert slot.process.stdin is not None
        try:
            # The pipe stays open: the slot ends when it closes.
            slot.process.stdin.write(line + len(blob).to_bytes(8, "little") + blob)
        except BrokenPipeError:
            log.warning("slot died at once slot=%s", slot.slot_id)
        log.info("slot started slot=%s pid=%d", slot.slot_id, slot.process.pid)

    def _poll_exit(self, slot: _Slot, process: subprocess.Popen) -> None:
        if slot.process is process:
            self._reap(slot)
        if slot.process is process:
            self._loop.call_later(_REAP_POLL_MS, self._poll_exit, slot, process)

    def _reap(self, slot: _Slot) -> None:
        """The process has ended: report how, and start the next."""
        process = slot.process
        if process is None or process.poll() is None:
            return
        if slot.pid_fd >= 0:
            self._loop.unregister(slot.pid_fd)
        status = process.returncode
        detail = describe_exit(status)
        if slot.kill_reason is not None:
            detail = f"killed by the supervisor: {slot.kill_reason}"
        text = slot.dumped()
        if text:
            detail += f"\n{text}"
        lived_ms = (time.monotonic_ns() - slot.started_ns) // 1_000_000
        log.log(
            logging.INFO if status == EXIT_RELEASED or self._reason is not None else logging.WARNING,
            "slot ended slot=%s pid=%d lived_ms=%d detail=%r",
            slot.slot_id,
            process.pid,
            lived_ms,
            detail,
        )
        killed = slot.kill_reason is not None
        self._report(
            SlotReport(slot.slot_id, process.pid, 0, status, detail, ended_by_supervisor=killed)
        )
        slot.release()
        if self._reason is not None:
            return
        if status == EXIT_RELEASED or killed or lived_ms >= _YOUNG_MS:
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
        slot.restart = self._loop.call_later(delay_ms, self._start, slot)

    def _interrupt(self, slot_id: str, pid: int) -> None:
        """Only the process that was meant: a younger one may not handle the signal yet."""
        slot = self._slots.get(slot_id)
        if slot is not None and slot.process is not None and slot.process.pid == pid:
            slot.process.send_signal(signal.SIGUSR2)

    def _kill(self, slot_id: str, reason: str) -> None:
        slot = self._slots.get(slot_id)
        if slot is None or slot.process is None or slot.kill_reason is not None:
            return
        slot.kill_reason = reason
        size = os.fstat(slot.dump_fd).st_size
        if hasattr(signal, "SIGUSR1"):
            slot.process.send_signal(signal.SIGUSR1)
        deadline_ns = time.monotonic_ns() + _DUMP_WAIT_MS * 1_000_000
        self._loop.call_later(
            _DUMP_POLL_MS, self._kill_when_dumped, slot, slot.process, size, size, deadline_ns
        )

    def _kill_when_dumped(
        self, slot: _Slot, process: subprocess.Popen, empty: int, last: int, deadline_ns: int
    ) -> None:
        """SIGKILL once the dump has grown and then stood still, or the deadline has passed."""
        if slot.process is not process:
            return
        size = os.fstat(slot.dump_fd).st_size
        if time.monotonic_ns() < deadline_ns and (size == empty or size != last):
            self._loop.call_later(
                _DUMP_POLL_MS, self._kill_when_dumped, slot, process, empty, size, deadline_ns
            )
            return
        process.kill()

    # ---- end ------------------------------------------------------------------------------------

    def _stop_slots(self) -> None:
        """SIGTERM, a bounded wait in which heartbeats still flow, then SIGKILL."""
        for slot in self._slots.values():
            if slot.process is not None and slot.progress is not None:
                slot.progress.ask_to_stop()
                slot.process.terminate()

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
                    self._kill(slot.slot_id, f"it did not end within {STOP_TIMEOUT_MS} ms")
            self._loop.run_until(all_ended, 2 * _DUMP_WAIT_MS)
        control = self._control
        if control is not None and not control.closed:
            control.on_close = None
            self._loop.run_until(lambda: control.closed or not control.pending_bytes, 500)

    def _clean_up(self) -> None:
        """Whatever happened before, also an exception: nothing stays."""
        self._reason = self._reason or "failed"
        for slot in self._slots.values():
            if slot.process is not None:
                slot.process.kill()
                slot.process.wait()
                if slot.pid_fd >= 0:
                    self._loop.unregister(slot.pid_fd)
                slot.release()
        if self._control is not None:
            self._control.on_close = None
            self._control.close()
        self._loop.close()
