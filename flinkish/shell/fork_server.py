"""The process that slots are forked from: a fresh one costs milliseconds, not the imports.

A supervisor starts it once.  It imports what every slot needs, nothing of any user, and then forks a slot
for each request, so that no module, thread or setting of one job reaches the next, and slots share the
pages of what was imported.  `ForkServer` is the supervisor's side, `serve` the other one.

The way of death is a chain: a slot is killed by the kernel when the server ends, the server is told by it
when the supervisor's thread ends.  Where the kernel cannot do that, closed pipes must.  A server that is
told to end kills its slots and waits for them.  Processes that user code started and left go with their
slot: the server adopts them then and kills them, and what they leave, unless they are daemons with a
session of their own.  They stay only if the server itself is killed.  Only it signals slots: as their
parent it knows which pid is still theirs.  Being the last to end, it also removes the file by which a driver
on its machine was found that has been killed (`rest.registration`).

On the socket, after the line of `_BOOTSTRAP`::

    supervisor -> server    START number (with the descriptors of the slot), SIGNAL pid signum, END
    server -> supervisor    STARTED number pid (pid < 0: that errno), ENDED pid wait-status
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import logging
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import traceback
import warnings
from typing import Callable, NoReturn, Sequence

from flinkish.errors import FlinkishError
from flinkish.rest.registration import find_drivers
from flinkish.shell.event_loop import EventLoop
from flinkish.shell.process import (
    EXIT_INTERNAL_ERROR,
    EXIT_PARENT_LOST,
    adopt_orphans,
    children_in_own_session,
    die_with_parent,
)

log = logging.getLogger(__name__)

_MESSAGE = struct.Struct("<iii")
_START, _SIGNAL, _STARTED, _ENDED, _END = range(5)

_DESCRIPTORS = 3  # of a slot: its pipe, its progress page, its dump
_END_TIMEOUT_S = 5.0
_DRIVER_END_S = 1.0
_LOOKS_MAX, _LOOK_AGAIN_S = 10, 0.02
# What the kernel sends when the supervisor's thread has ended: a signal that has no other use.
_PARENT_ENDED = getattr(signal, "SIGRTMIN", signal.SIGUSR1)

# The paths come first, before anything that they could shadow is imported.  A `-m` would put the
# working folder in front of the standard library.  Descriptor 0 is freed, so that user code that
# reads stdin sees its end and not our socket.
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
from flinkish.shell.fork_server import serve
serve(fd)
"""

# What a slot needs sooner or later, so that no slot pays for it; the codec is for host names.
_WARM_MODULES = (
    "flinkish.shell.slot_process",
    "cloudpickle",
    "encodings.idna",
    "numpy",
    "pyarrow",
    "flinkish.operators.chain",
    "flinkish.connectors.collect_sink",
    "flinkish.connectors.collection",
    "flinkish.connectors.sequence",
)


class ForkServer:
    """Starts the server process; the loop's thread owns it and must live as long as it does.

    Args:
        sys_path: of the server.  A slot gets its own.
        label: shown as an argument of the process.
        on_started(number, pid): pid < 0: there is none, for that errno.
        on_ended(pid, exit_code): negative: killed by that signal.
        on_end(exit_code): of the server; nothing follows.  Its slots have ended or are about to.
    Raises:
        OSError: the process could not be started.
    """

    def __init__(
        self,
        loop: EventLoop,
        sys_path: Sequence[str],
        label: str,
        on_started: Callable[[int, int], None],
        on_ended: Callable[[int, int], None],
        on_end: Callable[[int], None],
    ):
        self._loop = loop
        self._on_started, self._on_ended, self._on_end = on_started, on_ended, on_end
        self._received = b""
        self._socket, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen([sys.executable, "-c", _BOOTSTRAP, label], stdin=theirs.fileno())
            except OSError:
                self._socket.close()
                raise
        self._send(b"\0".join(os.fsencode(path) for path in sys_path) + b"\n")
        loop.register(self._socket.fileno(), "r", self._on_readable)

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self, number: int, descriptors: Sequence[int]) -> None:
        """Fork a slot that gets these descriptors (pipe, progress page, dump); `on_started` follows."""
        assert len(descriptors) == _DESCRIPTORS
        self._send(_MESSAGE.pack(_START, number, 0), descriptors)

    def signal(self, pid: int, signum: int) -> None:
        """To a slot that `on_started` has named; nothing happens if it has ended."""
        self._send(_MESSAGE.pack(_SIGNAL, pid, signum))

    def kill(self) -> None:
        """End it and all its slots without an order; `on_end` follows."""
        self._process.kill()

    def close(self, driver_lost: bool = False) -> None:
        """End it and what it has forked, and wait for that; no callback follows.  ``driver_lost``: it may have been
        killed."""
        self._loop.unregister(self._socket.fileno())
        if not driver_lost:
            self._send(_MESSAGE.pack(_END, 0, 0))
        with contextlib.suppress(OSError):  # it has ended already
            self._socket.shutdown(socket.SHUT_RDWR)  # a process that was forked off may have it too
        self._socket.close()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            log.warning("fork server did not end, killing it pid=%d", self.pid)
            self._process.kill()
            self._process.wait()

    def _send(self, message: bytes, descriptors: Sequence[int] = ()) -> None:
        try:
            socket.send_fds(self._socket, [message], descriptors)
        except (BrokenPipeError, ConnectionResetError):
            log.info("fork server is gone pid=%d", self.pid)  # the end of the socket tells the rest

    def _on_readable(self, readable: bool, writable: bool) -> None:
        try:
            part = self._socket.recv(4096)
        except ConnectionResetError:  # it ended before it had read everything
            part = b""
        if not part:
            self._loop.unregister(self._socket.fileno())
            self._socket.close()
            self._process.kill()  # it may be at its end still
            self._on_end(self._process.wait())
            return
        self._received += part
        whole = len(self._received) - len(self._received) % _MESSAGE.size
        messages, self._received = self._received[:whole], self._received[whole:]
        for kind, first, second in _MESSAGE.iter_unpack(messages):
            if kind == _STARTED:
                self._on_started(first, second)
            else:
                self._on_ended(first, os.waitstatus_to_exitcode(second))


# ---- the process --------------------------------------------------------------------------------


def serve(fd: int) -> NoReturn:
    """The life of the server and, in each process that it forks, of a slot."""
    # Who ends a whole group of processes means the slots, and those have something to say before they
    # end: the server only follows its supervisor.  Blocked, not ignored: a slot that is being forked
    # must not lose the signal.  Before any library starts a thread, which would take it.  That of the parent's
    # end waits until there is a handler.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, _PARENT_ENDED})
    die_with_parent(_PARENT_ENDED)
    for name in _WARM_MODULES:
        try:
            importlib.import_module(name)
        except ImportError as error:
            # Whoever needs it will say so with more context.
            log.info("could not import ahead module=%s reason=%r", name, str(error))
    gc.collect()
    gc.freeze()
    _Server(socket.socket(fileno=fd)).run()


class _Server:
    def __init__(self, control: socket.socket):
        self._control = control
        self._slots: set[int] = set()
        self._killed: set[int] = set()  # orphans, of which the end has not been seen
        adopt_orphans()
        self._wake, wakes = os.pipe()
        for end in (self._wake, wakes):
            os.set_blocking(end, False)
        self._wakes = wakes
        signal.signal(signal.SIGCHLD, lambda signum, frame: None)
        signal.set_wakeup_fd(wakes, warn_on_full_buffer=False)
        signal.signal(_PARENT_ENDED, lambda signum, frame: None)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {_PARENT_ENDED})

    def run(self) -> NoReturn:
        control = self._control.fileno()
        while True:
            ready, _, _ = select.select([control, self._wake], [], [])
            if self._wake in ready:
                if _PARENT_ENDED in os.read(self._wake, 4096):
                    self._end_without_driver()
                self._reap()
            if control in ready:
                self._serve_one()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid in self._slots:
                self._slots.remove(pid)
                self._kill_orphans()
                self._tell(_ENDED, pid, status)
            elif pid in self._killed:
                self._killed.remove(pid)
                self._kill_orphans()  # now its own children are ours

    def _kill_orphans(self) -> None:
        """What slots that have ended leave behind: each slot and what it starts are a process group."""
        for pid, group in children_in_own_session().items():
            # A newborn slot still is in the group of this server.
            if not self._slots & {pid, group} and pid not in self._killed:
                os.kill(pid, signal.SIGKILL)
                self._killed.add(pid)

    def _serve_one(self) -> None:
        try:
            message, descriptors, _, _ = socket.recv_fds(self._control, _MESSAGE.size, _DESCRIPTORS)
        except ConnectionResetError:  # the supervisor had not read all when it ended
            self._end_without_driver()
        while message and len(message) < _MESSAGE.size:
            part = self._control.recv(_MESSAGE.size - len(message))
            message = message + part if part else b""
        if not message:
            self._end_without_driver()
        kind, first, second = _MESSAGE.unpack(message)
        if kind == _END:
            self._end()
        elif kind == _START:
            self._fork(first, descriptors)
        elif first in self._slots:
            os.kill(first, second)

    def _fork(self, number: int, descriptors: list[int]) -> None:
        server = os.getpid()
        try:
            with warnings.catch_warnings():
                # Threads of numpy and pyarrow; both have handlers for a fork.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
        except OSError as error:
            pid = -(error.errno or 1)
        if pid == 0:
            self._become_slot(server, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        if pid > 0:
            self._slots.add(pid)
        self._tell(_STARTED, number, pid)

    def _become_slot(self, server: int, descriptors: list[int]) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            for signum in (signal.SIGCHLD, signal.SIGTERM, _PARENT_ENDED):
                signal.signal(signum, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            die_with_parent()
            os.setpgid(0, 0)
            if os.getppid() != server:  # it died before the kernel was asked to tell
                os._exit(EXIT_PARENT_LOST)
            self._control.close()
            os.close(self._wake)
            os.close(self._wakes)
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)
            if "numpy.random" in sys.modules:  # it has drawn its seed at import
                sys.modules["numpy.random"].seed()
            from flinkish.shell.slot_process import main

            main(*descriptors)
        except BaseException:
            traceback.print_exc()
            os.write(descriptors[-1], traceback.format_exc().encode())
        finally:
            os._exit(EXIT_INTERNAL_ERROR)

    def _end(self) -> NoReturn:
        self._kill_all()
        os._exit(0)

    def _end_without_driver(self) -> NoReturn:
        """The supervisor is gone, or has lost the driver: nobody of the driver can remove its file then."""
        self._kill_all()
        with contextlib.suppress(OSError):
            # The thread that runs the supervisor may end long before its process closes what it has open.
            self._control.settimeout(_DRIVER_END_S)
            while self._control.recv(4096):
                pass
        with contextlib.suppress(OSError, FlinkishError):  # no folder of this user's: the driver has no file there
            for _ in range(_LOOKS_MAX):  # sockets and locks of a process do not end in one instant
                if not find_drivers():
                    break
                time.sleep(_LOOK_AGAIN_S)
        os._exit(0)

    def _kill_all(self) -> None:
        ends = self._slots
        while ends:
            for pid in ends:
                os.kill(pid, signal.SIGKILL)
            for pid in ends:
                os.waitpid(pid, 0)
            ends = set(children_in_own_session())  # what those have left

    def _tell(self, kind: int, first: int, second: int) -> None:
        try:
            self._control.sendall(_MESSAGE.pack(kind, first, second))
        except (BrokenPipeError, ConnectionResetError):
            return  # its end is read next
