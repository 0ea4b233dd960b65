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
EXIT_BROKEN = 77

_EXIT_TEXTS = {
    EXIT_RELEASED: "released",
    EXIT_INTERNAL_ERROR: "an error of flinkish itself",
    EXIT_REFUSED: "the JobManager refused its registration",
    EXIT_JOB_MANAGER_UNREACHABLE: "could not reach the JobManager",
    EXIT_JOB_MANAGER_LOST: "lost the JobManager",
    EXIT_PARENT_LOST: "its supervisor was gone",
    EXIT_STOPPED: "stopped by its supervisor",
    EXIT_TERMINATED: "told to end by SIGTERM, not by its supervisor",
    EXIT_BROKEN: "user code has broken the slot",
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


def explain_end(status: int, note: Optional[tuple[str, str]]) -> tuple[str, str]:
    """Why a slot process has ended, and what to do ("": nothing special).

    Args:
        status: as for `describe_exit`.
        note: what it has said of its end in its `ProgressPage`; None: nothing, so it has not ended by itself.
    """
    why, do = note or ("", "")
    if status == EXIT_BROKEN and why:
        return why, do
    if status >= 0 and note is None:
        return (
            f"user code ended the process with exit code {status} (os._exit, or exit() of a C library)",
            "raise an exception instead; look for os._exit, and for exit() in C libraries, in what the job calls",
        )
    if -status in _CRASHES:
        do = (
            "look at the C library that is called there, or at a recursion without end; the executor's log has the "
            "stacks of all threads"
        )
    return describe_exit(status) + (f": {why}" if why else ""), do


_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT)


def die_with_parent(signum: int = signal.SIGKILL) -> bool:
    """Ask the kernel for a signal when the thread that started this process ends (Linux).

    Returns:
        whether the system can do that; elsewhere the closed pipe of the parent must do.
    """
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.prctl(_PR_SET_PDEATHSIG, signum, 0, 0, 0) == 0


def adopt_orphans() -> None:
    """Become the parent of what descendants leave behind (Linux; elsewhere nothing happens)."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children_in_own_session() -> dict[int, int]:
    """Children of this process that have not gone into a session of their own, as daemons do: pid -> process
    group."""
    found = {}
    for path in glob.glob("/proc/self/task/*/children"):
        pids: list[str] = []
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            with open(path, encoding="ascii") as file:
                pids = file.read().split()
        for pid in map(int, pids):
            with contextlib.suppress(ProcessLookupError):
                if os.getsid(pid) == os.getsid(0):
                    found[pid] = os.getpgid(pid)
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


_NOTE_AT = 64


class ProgressPage:
    """A shared page in which a slot notes when its loop turned last and why it ends, and its supervisor that it
    asks the slot to end: so a slot can tell its supervisor's SIGTERM from anybody else's, and a supervisor an
    end by the slot's own will from one by user code, also when no descriptor is left to say it by.

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
        try:
            os.ftruncate(fd, mmap.PAGESIZE)
            return cls(fd)
        except OSError:
            os.close(fd)
            raise

    def mark(self) -> None:
        self._words[0] = time.monotonic_ns()

    def last_ns(self) -> int:
        """`time.monotonic_ns` of the last mark, 0 before the first."""
        return self._words[0]

    def ask_to_stop(self) -> None:
        self._words[1] = 1

    def stop_asked(self) -> bool:
        return bool(self._words[1])

    def note_end(self, why: str = "", do: str = "") -> None:
        """The process ends by itself now.  The first ``why`` stays."""
        room = mmap.PAGESIZE - _NOTE_AT
        text = f"{do}\0{why}".encode(errors="replace")[:room] if why else b""
        if text and not self._words[3]:
            self._map[_NOTE_AT : _NOTE_AT + len(text)] = text
            self._words[3] = len(text)
        self._words[2] = 1

    def end_note(self) -> Optional[tuple[str, str]]:
        """What `note_end` was given, None before it was called."""
        if not self._words[2]:
            return None
        do, _, why = self._map[_NOTE_AT : _NOTE_AT + self._words[3]].decode(errors="replace").partition("\0")
        return why, do

    def close(self) -> None:
        self._words.release()
        self._map.close()
        os.close(self.fd)
