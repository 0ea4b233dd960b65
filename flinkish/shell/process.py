"""What slots and supervisors ask of the operating system: parents, hosts, shared pages, exit codes."""

from __future__ import annotations

import contextlib
import ctypes
import glob
import mmap
import os
import re
import secrets
import signal
import socket
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import Mapping, Optional

from flinkish.messages.launch import SlotLaunch

# Exit codes of a slot process; others are crashes.
EXIT_RELEASED = 0
EXIT_INTERNAL_ERROR = 70
EXIT_REFUSED = 71
EXIT_JOB_MANAGER_UNREACHABLE = 72
EXIT_JOB_MANAGER_LOST = 73
EXIT_PARENT_LOST = 74
EXIT_STOPPED = 75
EXIT_TERMINATED = 76

_EXIT_TEXTS = {
    EXIT_RELEASED: "released",
    EXIT_INTERNAL_ERROR: "an error of flinkish itself",
    EXIT_REFUSED: "the JobManager refused its registration",
    EXIT_JOB_MANAGER_UNREACHABLE: "could not reach the JobManager",
    EXIT_JOB_MANAGER_LOST: "lost the JobManager",
    EXIT_PARENT_LOST: "its supervisor was gone",
    EXIT_STOPPED: "stopped by its supervisor",
    EXIT_TERMINATED: "told to end by SIGTERM, not by its supervisor",
}

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True)
class SlotBlob:
    """What the supervisor writes into the slot's pipe, pickled, behind its length (8 bytes)."""

    launch: SlotLaunch
    slot_id: str
    sys_path: tuple[str, ...]
    log_level: int


def describe_exit(status: Optional[int]) -> str:
    """Text for an exit status as `subprocess` gives it (negative: killed by that signal)."""
    if status is None:
        return "exit status unknown"
    if status < 0:
        try:
            name = signal.Signals(-status).name
        except ValueError:
            name = "unknown"
        hint = ", often the kernel's out-of-memory killer" if -status == signal.SIGKILL else ""
        return f"killed by signal {-status} ({name}{hint})"
    return f"exit code {status}" + (f" ({_EXIT_TEXTS[status]})" if status in _EXIT_TEXTS else "")


def die_with_parent() -> bool:
    """Ask the kernel for a SIGKILL when the thread that started this process ends (Linux).

    Returns:
        whether the system can do that; elsewhere the closed pipe of the parent must do.
    """
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) == 0


def adopt_orphans() -> None:
    """Become the parent of what descendants leave behind (Linux; elsewhere nothing happens)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children_in_own_session() -> set[int]:
    """Children of this process that have not gone into a session of their own, as daemons do."""
    found = set()
    for path in glob.glob("/proc/self/task/*/children"):
        pids: list[str] = []
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            with open(path, encoding="ascii") as file:
                pids = file.read().split()
        for pid in map(int, pids):
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(pid) == os.getsid(0):
                    found.add(pid)
    return found


def is_stopped(pid: int) -> bool:
    """Whether a signal has stopped the process (SIGSTOP, Ctrl-Z); a debugger's stop does not count.  False
    where the system does not tell."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[:1] == [b"T"]
    except OSError:
        return False


def executor_id(environment: Mapping[str, str] = os.environ) -> str:
    """Which executor of a cluster manager this process belongs to, "" if that is not said.

    Spark tells a Python worker nothing of it, but what the executor was started with is inherited.

    >>> executor_id({"SPARK_LOG_URL_STDERR": "http://h:8081/logPage/?appId=a&executorId=3&logType=stderr"})
    '3'
    """
    known = environment.get("SPARK_EXECUTOR_ID", "")  # Kubernetes
    if not known:
        found = re.search(r"[?&]executorId=(\w+)", environment.get("SPARK_LOG_URL_STDERR", ""))  # standalone
        known = found[1] if found else environment.get("CONTAINER_ID", "")  # YARN
    return known


def host_identity() -> str:
    """A name equal for two processes only if a Unix socket of one reaches the other.

    Boot id, network and mount namespaces (two containers of one machine differ) and user.
    """
    parts = []
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            parts.append(file.read().strip())
        for namespace in ("net", "mnt"):
            parts.append(f"{namespace}{os.stat(f'/proc/self/ns/{namespace}').st_ino}")
    except OSError:
        parts = [socket.gethostname()]
    parts.append(f"uid{os.getuid() if hasattr(os, 'getuid') else 0}")
    return "/".join(parts)


class SlotSocketPath:
    """Where a slot's Unix socket lives; `close` leaves nothing behind.

    On Linux an abstract name: it is in no folder, so that nothing stays when the process is killed.
    Anybody in the network namespace may connect, so the listener drops peers of other users, and
    the handshake does the rest.  Elsewhere a private folder.
    """

    def __init__(self) -> None:
        self._folder: Optional[str] = None
        self.path: Optional[str] = None
        if sys.platform.startswith("linux"):
            self.path = f"\0flinkish-{os.getpid()}-{secrets.token_hex(8)}"
        elif hasattr(socket, "AF_UNIX"):
            self._folder = tempfile.mkdtemp(prefix="flinkish-")  # mode 0700
            path = os.path.join(self._folder, "slot")
            self.path = path if len(os.fsencode(path)) < 100 else None

    def close(self) -> None:
        if self._folder is not None:
            if self.path is not None and os.path.exists(self.path):
                os.unlink(self.path)
            os.rmdir(self._folder)
            self._folder = None


def anonymous_file(name: str) -> int:
    """Descriptor of a file without a name, to be shared with a child."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    file, path = tempfile.mkstemp(prefix=name)
    os.unlink(path)
    return file


class ProgressPage:
    """A shared page in which a slot notes when its loop turned last, and its supervisor that it asks the slot
    to end: so a slot can tell its supervisor's SIGTERM from anybody else's.

    The supervisor makes it (`ProgressPage.create`), the slot opens the descriptor that it is
    given.  Two aligned 8-byte words: each written and read in one piece.
    """

    def __init__(self, fd: int):
        self.fd = fd
        self._map = mmap.mmap(fd, mmap.PAGESIZE)
        self._words = memoryview(self._map).cast("q")

    @classmethod
    def create(cls) -> "ProgressPage":
        fd = anonymous_file("flinkish-progress")
        os.ftruncate(fd, mmap.PAGESIZE)
        return cls(fd)

    def mark(self) -> None:
        self._words[0] = time.monotonic_ns()

    def last_ns(self) -> int:
        """`time.monotonic_ns` of the last mark, 0 before the first."""
        return self._words[0]

    def ask_to_stop(self) -> None:
        self._words[1] = 1

    def stop_asked(self) -> bool:
        return bool(self._words[1])

    def close(self) -> None:
        self._words.release()
        self._map.close()
        os.close(self.fd)
