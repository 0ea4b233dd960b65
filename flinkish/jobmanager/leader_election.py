"""Which of several drivers leads: one candidate's side of an election by a lease in a conditional store.

The lease is one small value in a store that replaces it only for who has read the newest version (*compare and
set*).  States of a candidate::

    STANDBY ──the lease is free or has run out: write it with the next epoch──> ACQUIRING ──written──> LEADER
       ^                                                                            │                    │
       └──somebody was first, the outcome is not known, or it came too late─────────┘                    │
                                                                                                         v
                                   ENDED <──another has the lease, it cannot be renewed, or resigned─────┘

**Who may act.** A leader acts until ``duration_ms`` after it *began* its last write that succeeded; a candidate
takes the lease when it has seen the same version for ``duration_ms`` and the clocks' drift, counted from the
*end* of the read that first saw it.  No clock is compared with another: only their rates must agree, within
``CLOCK_DRIFT_MAX``.  A process that was stopped finds its own time to act over when it wakes up.

**The epoch** rises with each leader for ever and is the fencing token: who becomes leader marks the job's record
with it before reading it, and a write of an older one is refused there.

**When a leader gives up.** Not when its time runs out, for it may renew if nobody has come: it only stops acting.
It ends when it reads that another has the lease, or when that is not known ``duration_ms`` after its time ran out.

A write whose outcome is not known is followed by a read, and a lease that names this candidate is its own.  The
holder of a lease in ZooKeeper is known to be gone (``holder_gone``) when its session has ended: nobody waits then.

Invariants, see ``check``: a LEADER has an epoch; one order to the store at a time; who has ended does not act.

Source: Flink's ``LeaderElectionDriver``; the times are Kubernetes' ``leaderelection`` (lease-duration,
retry-period), and leases as in Gray and Cheriton 1989.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Optional

#: By how much the rate of a driver's clock may differ from true time.
CLOCK_DRIFT_MAX = 0.01


@dataclass(frozen=True)
class Lease:
    """``holder``: id of a candidate, "" when it was given back.  ``duration_ms``: that the holder counts on.
    ``label``: the holder for people."""

    epoch: int
    holder: str
    duration_ms: int
    label: str = ""


# ---- events -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LeaseRead:
    """``lease`` None: nobody has ever had it.  ``version``: to replace it."""

    lease: Optional[Lease]
    version: int
    holder_gone: bool = False


@dataclass(frozen=True)
class LeaseWritten:
    """``version`` None: refused, another was first."""

    version: Optional[int]


@dataclass(frozen=True)
class StoreFailed:
    """A read or a write; what was written may be there or not, now or later."""

    why: str


@dataclass(frozen=True)
class ConnectionSuspended:
    """The store does not answer just now: stop acting until a write succeeds."""


@dataclass(frozen=True)
class LeaseChanged:
    """The store says that something has happened: look at once."""


@dataclass(frozen=True)
class Resigned:
    """The job has ended, or this driver does not want to lead any more."""


@dataclass(frozen=True)
class Tick:
    """Time has passed."""


# ---- effects ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReadLease:
    """LeaseRead or StoreFailed follows."""


@dataclass(frozen=True)
class WriteLease:
    """Replace version ``version``; LeaseWritten or StoreFailed follows."""

    lease: Lease
    version: int


@dataclass(frozen=True)
class Granted:
    epoch: int


@dataclass(frozen=True)
class Revoked:
    why: str


class Candidacy(enum.Enum):
    STANDBY = "STANDBY"
    ACQUIRING = "ACQUIRING"
    LEADER = "LEADER"
    ENDED = "ENDED"


@dataclass
class LeaderElection:
    """``candidate``: an id that no other process ever has.  ``duration_ms``: of the lease, where this one holds it.
    ``retry_ms``: how often a standby looks, and after a failure anybody.  ``label``: the candidate for people."""

    candidate: str
    duration_ms: int
    retry_ms: int
    label: str = ""
    clock_drift: float = CLOCK_DRIFT_MAX

    state: Candidacy = Candidacy.STANDBY
    epoch: Optional[int] = None  # of this candidate's leadership
    lease: Optional[Lease] = None  # as last read or written
    version: int = 0
    seen_ms: Optional[int] = None  # since when that version is there
    due_ms: int = 0  # when to look or to renew
    asked_ms: Optional[int] = None  # since when the store owes an answer
    writing: Optional[Lease] = None
    resigning: bool = False
    valid_until_ms: int = 0  # when this candidate's time to act is over
    suspended: bool = False
    problem: str = ""  # why the last order to the store failed, or the last write, while there is nobody to wait for
    cannot_write: bool = False  # it is of a write

    @property
    def renew_ms(self) -> int:
        return max(1, self.duration_ms // 3)

    def may_act(self, now_ms: int) -> bool:
        """Whether this candidate leads, as far as it can know: no other does."""
        leads = self.state is Candidacy.LEADER and not self.resigning and not self.suspended
        return leads and now_ms < self.valid_until_ms

    @property
    def gives_up_ms(self) -> int:
        return self.valid_until_ms + self.duration_ms

    # ---- events ---------------------------------------------------------------------------------

    def step(self, event, now_ms: int) -> list:
        """Apply one event; return what must be done, in order.  ``now_ms``: a clock that never goes back."""
        if self.state is Candidacy.ENDED:
            return []
        match event:
            case LeaseRead():
                self.asked_ms = None
                effects = self._read(event, now_ms)
                if self.writing is None or not self.cannot_write:
                    self.problem, self.cannot_write = "", False
            case LeaseWritten(version):
                assert self.writing is not None and self.asked_ms is not None
                written, begun_ms = self.writing, self.asked_ms
                self.writing = self.asked_ms = None
                self.problem, self.cannot_write = "", False
                effects = self._written(written, version, begun_ms, now_ms)
            case StoreFailed(why):
                self.problem, self.cannot_write = why, self.writing is not None
                effects = self._failed(now_ms)
            case ConnectionSuspended():
                self.suspended = self.state is Candidacy.LEADER
                self.due_ms = now_ms
                effects = []
            case LeaseChanged():
                if self.state is Candidacy.STANDBY:
                    self.due_ms = now_ms
                effects = []
            case Resigned():
                self.resigning = True
                effects = []
            case Tick():
                effects = self._out_of_time(now_ms)
            case _:
                raise AssertionError(f"no event: {event!r}")
        return effects + self._order_what_is_due(now_ms)

    def _order_what_is_due(self, now_ms: int) -> list:
        if self.state is Candidacy.ENDED or self.asked_ms is not None:
            return []
        if self.resigning:
            if self.state is not Candidacy.LEADER or self.seen_ms is None:
                self.state = Candidacy.ENDED
                return []
            assert self.epoch is not None
            return self._write(Lease(self.epoch, "", self.duration_ms), now_ms)
        if now_ms < self.due_ms:
            return []
        if self.state is Candidacy.LEADER and self.seen_ms is not None:
            assert self.lease is not None
            return self._write(self.lease, now_ms)
        self.asked_ms = now_ms
        return [ReadLease()]

    def _write(self, lease: Lease, now_ms: int) -> list:
        self.writing, self.asked_ms = lease, now_ms
        return [WriteLease(lease, self.version)]

    # ---- answers of the store -------------------------------------------------------------------

    def _read(self, event: LeaseRead, now_ms: int) -> list:
        if self.seen_ms is None or event.version != self.version:
            self.seen_ms = now_ms
        self.lease, self.version = event.lease, event.version
        self.due_ms = now_ms + self.retry_ms
        lease = event.lease
        if self.state is Candidacy.LEADER:
            if lease is not None and (lease.holder, lease.epoch) == (self.candidate, self.epoch):
                self.due_ms = now_ms  # a write of one's own whose outcome was not known: renew it
                return []
            who = "nobody" if lease is None or not lease.holder else lease.label or lease.holder
            return self._revoked(f"{who} has the lease now, epoch {0 if lease is None else lease.epoch}")
        if not self._is_free(event, now_ms):
            return []
        self.state = Candidacy.ACQUIRING
        epoch = 1 if lease is None else lease.epoch + 1
        return self._write(Lease(epoch, self.candidate, self.duration_ms, self.label), now_ms)

    def _is_free(self, event: LeaseRead, now_ms: int) -> bool:
        lease = event.lease
        if lease is None or lease.holder in ("", self.candidate) or event.holder_gone:
            return True
        assert self.seen_ms is not None
        return now_ms - self.seen_ms >= standby_wait_ms(lease.duration_ms, self.clock_drift)

    def _written(self, written: Lease, version: Optional[int], begun_ms: int, now_ms: int) -> list:
        if version is None:
            self.seen_ms, self.due_ms = None, now_ms  # look who was first; it may have been oneself
            if self.state is Candidacy.ACQUIRING:
                self.state = Candidacy.STANDBY
                self.due_ms = now_ms + self.retry_ms
            return []
        self.lease, self.version, self.seen_ms = written, version, now_ms
        self.suspended = False
        if not written.holder:
            self.state = Candidacy.ENDED
            return []
        self.valid_until_ms = begun_ms + self.duration_ms
        self.due_ms = begun_ms + self.renew_ms
        if self.state is Candidacy.LEADER:
            return []
        if now_ms >= self.valid_until_ms:  # too late: another may have come already
            self.state, self.due_ms = Candidacy.STANDBY, now_ms
            return []
        self.state, self.epoch = Candidacy.LEADER, written.epoch
        return [Granted(written.epoch)]

    def _failed(self, now_ms: int) -> list:
        wrote, self.writing, self.asked_ms = self.writing is not None, None, None
        self.due_ms = now_ms + self.retry_ms
        if wrote:
            self.seen_ms = None  # what is there must be read
        if self.state is Candidacy.ACQUIRING:
            self.state = Candidacy.STANDBY
        return self._out_of_time(now_ms, failed=True)

    def _out_of_time(self, now_ms: int, failed: bool = False) -> list:
        """After the end of its time a leader goes on only if it may still find out; a store that does not
        answer at all ends it too."""
        hangs = self.asked_ms is not None and now_ms - self.asked_ms >= self.duration_ms
        if self.state is not Candidacy.LEADER or now_ms < self.gives_up_ms or not (failed or hangs):
            return []
        return self._revoked(
            f"the lease was not renewed for {now_ms - self.valid_until_ms + self.duration_ms} ms: "
            f"{self.problem or 'the store does not answer'}"
        )

    def _revoked(self, why: str) -> list:
        self.state = Candidacy.ENDED
        return [Revoked(why)]

    # ---- what others ask ------------------------------------------------------------------------

    def next_tick_ms(self, now_ms: int) -> int:
        """When to tick at the latest; while the store owes an answer, its absence is looked for at each retry."""
        return now_ms + self.retry_ms if self.asked_ms is not None else self.due_ms

    def describe(self) -> str:
        """What a standby waits for, one line."""
        if self.cannot_write:
            return f"nobody leads, and the lease cannot be written: {self.problem}"
        if self.problem:
            return f"the lease cannot be read: {self.problem}"
        lease = self.lease
        if lease is None or not lease.holder:
            return "nobody holds the lease"
        return f"{lease.label or lease.holder} leads, epoch {lease.epoch}"

    def check(self) -> None:
        """Assert what holds between any two steps."""
        assert (self.state is Candidacy.LEADER) <= (self.epoch is not None)
        assert self.writing is None or self.asked_ms is not None
        assert self.problem or not self.cannot_write
        assert self.state is not Candidacy.ACQUIRING or self.writing is not None
        assert not self.suspended or self.state in (Candidacy.LEADER, Candidacy.ENDED)


def standby_wait_ms(duration_ms: int, clock_drift: float = CLOCK_DRIFT_MAX) -> int:
    """For how long another's version must stand still before its holder's time is over for sure.

    >>> standby_wait_ms(10_000)
    10203
    """
    return int(duration_ms * (1 + clock_drift) / (1 - clock_drift)) + 1
