"""Runs a LeaderElection: its clock, its store and its thread, for those who must know whether they lead.

Two threads: one steps the core, whatever the storage does; one asks the storage, and may wait for it.  The clock goes
on while the machine sleeps (CLOCK_BOOTTIME), so that a driver that wakes up knows that its time is over.
"""

from __future__ import annotations

import logging
import os
import queue
import secrets
import socket
import threading
import time
from typing import Any, Callable, Optional

from flinkish.errors import FlinkishError, LeadershipLostError
from flinkish.jobmanager.leader_election import (
    Candidacy,
    Granted,
    LeaderElection,
    LeaseWritten,
    ReadLease,
    Resigned,
    Revoked,
    StoreFailed,
    Tick,
    WriteLease,
)
from flinkish.shell.coordinator_worker import CoordinatorWorker
from flinkish.shell.file_lease import LeaseStore

log = logging.getLogger(__name__)

_RESIGN_TIMEOUT_S = 5
_WAIT_SLICE_S = 0.5  # so that Ctrl-C reaches a main thread that waits


class Leadership:
    """One candidacy.  Any thread may call its methods.

    Args:
        name: of what is led, for people.
        duration_ms, retry_ms: see LeaderElection.
    """

    def __init__(self, name: str, store: LeaseStore, duration_ms: int, retry_ms: int):
        self.name = name
        self._store = store
        label = f"the driver on {socket.gethostname()}, process {os.getpid()}"
        self._core = LeaderElection(secrets.token_hex(8), duration_ms, retry_ms, label)
        self._events: queue.SimpleQueue = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._lost: Optional[LeadershipLostError] = None
        self._listeners: list[Callable[[LeadershipLostError], None]] = []
        self._thread = threading.Thread(target=self._run, name=f"flinkish leader election {name}", daemon=True)

    def start(self) -> None:
        self._worker = CoordinatorWorker(f"flinkish lease {self.name}", self._broken)
        self._store.listen(self._events.put)
        self._thread.start()

    # ---- from any thread ------------------------------------------------------------------------

    @property
    def epoch(self) -> Optional[int]:
        return self._core.epoch

    def may_act(self) -> bool:
        """Whether nobody else leads now, as far as can be known."""
        with self._changed:
            return self._core.may_act(_now_ms())

    def require(self) -> None:
        """Return while nobody else leads; waits while that is not known.

        Raises:
            LeadershipLostError: another one leads, or may.
        """
        while not self.may_act():
            with self._changed:
                if self._lost is not None:
                    raise self._lost
                if self._core.resigning:
                    raise self._error("it has given leadership back")
                self._changed.wait(0.1)

    def wait_granted(self, timeout_s: float) -> bool:
        """Whether this candidate leads within that time.  Raises LeadershipLostError: it cannot any more."""
        deadline_s = time.monotonic() + timeout_s
        while True:
            with self._changed:
                if self._lost is not None:
                    raise self._lost
                if self._core.may_act(_now_ms()):
                    return True
                left_s = deadline_s - time.monotonic()
                if left_s <= 0:
                    return False
                self._changed.wait(min(left_s, _WAIT_SLICE_S))

    def describe(self) -> str:
        """What a standby waits for."""
        with self._changed:
            return self._core.describe()

    def on_lost(self, listener: Callable[[LeadershipLostError], None]) -> None:
        """``listener`` gets the error when leadership is lost, on the election's thread; at once if it is."""
        with self._changed:
            lost = self._lost
            if lost is None:
                self._listeners.append(listener)
        if lost is not None:
            listener(lost)

    def resign(self) -> None:
        """Give the lease back, so that a standby need not wait; returns soon, whatever the storage does."""
        self._events.put(Resigned())
        if threading.current_thread() is not self._thread:
            self._thread.join(_RESIGN_TIMEOUT_S)
            if self._thread.is_alive():
                log.warning("the lease could not be given back, others wait until it runs out name=%r", self.name)
        self._store.close()

    # ---- on the election's thread ---------------------------------------------------------------

    def _run(self) -> None:
        event: Any = Tick()
        while True:
            with self._changed:
                try:
                    effects = self._core.step(event, _now_ms())
                    self._core.check()
                except Exception as error:  # a bug: nobody may act on it
                    self._core.state = Candidacy.ENDED
                    log.error("the election of a leader failed name=%r", self.name, exc_info=error)
                    effects = [Revoked(f"{type(error).__name__}: {error}")]
                ended = self._core.state is Candidacy.ENDED
                wait_ms = self._core.next_tick_ms(_now_ms()) - _now_ms()
                self._changed.notify_all()
            for effect in effects:
                self._carry_out(effect)
            if ended:
                self._worker.close(_nothing)
                return
            try:
                event = self._events.get(timeout=max(0, wait_ms) / 1000)
            except queue.Empty:
                event = Tick()

    def _carry_out(self, effect: Any) -> None:
        match effect:
            case ReadLease():
                self._worker.submit(self._ask, self._store.read)
            case WriteLease(lease, version):
                self._worker.submit(self._ask, lambda: LeaseWritten(self._store.write(lease, version)))
            case Granted(epoch):
                log.info("leadership granted name=%r epoch=%d", self.name, epoch)
            case Revoked(why):
                log.warning("leadership lost name=%r epoch=%s why=%r", self.name, self._core.epoch, why)
                with self._changed:
                    lost = self._lost = self._error(why)
                    self._changed.notify_all()
                    listeners, self._listeners = self._listeners, []
                for listener in listeners:
                    listener(lost)
            case _:
                raise AssertionError(f"unknown effect {effect!r}")

    def _error(self, why: str) -> LeadershipLostError:
        return LeadershipLostError(
            f"lost leadership of {self.name}",
            where=f"process {os.getpid()}, epoch {self._core.epoch}",
            why=why,
            do="nothing, if another driver goes on with the job; it begins with the newest checkpoint",
        )

    # ---- on the storage's thread ----------------------------------------------------------------

    def _ask(self, question: Callable[[], Any]) -> None:
        try:
            answer = question()
        except FlinkishError as error:
            answer = StoreFailed(f"{error.what}: {error.why}")
        except Exception as error:  # of whatever storage it is
            answer = StoreFailed(f"{type(error).__name__}: {error}")
        self._events.put(answer)

    def _broken(self, error: BaseException) -> None:
        self._events.put(StoreFailed(f"{type(error).__name__}: {error}"))


def _now_ms() -> int:
    return time.clock_gettime_ns(_CLOCK) // 1_000_000


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _nothing() -> None:
    """What is left to do when the thread ends."""
