"""Drivers that want to lead one job, where each of them may stop, die, be cut off, or have a clock that is wrong.

Each driver has a LeaderElection and a clock of its own, which starts anywhere and runs too fast or too slow within the
bound that the core states.  Orders to the store arrive late or not at all, and so do its answers; a write that is
thought to have failed may arrive later.  A driver that is stopped goes on where it was, and what it had decided to do
it does then.  Who is granted leadership takes the job's record over; then it completes checkpoints and publishes.

What must hold is checked where it happens, by the world's own books: never two that may act at one time, epochs
rise, no write to the record from an older leader is accepted, and a new one goes on from the newest checkpoint.
"""

from __future__ import annotations

import heapq
import itertools
import random
from typing import Any, Callable, Optional

from flinkish.errors import LeadershipLostError
from flinkish.jobmanager import leader_election as le
from flinkish.jobmanager.leader_election import LeaderElection
from flinkish.storage.ha_store import HighAvailabilityStore, JobRecord

DURATION_MS = 1_000
CHAOS_MS = 7_000
HEALED_MS = 5_000
STEP_MS = 50
CLOCK_DRIFT = 0.25  # more than clocks have, so that it is felt in so short a time
FRESH = JobRecord("j", "job", "run")


class Cell:
    """A ConditionalCell in memory."""

    def __init__(self) -> None:
        self.value: Optional[bytes] = None
        self.version = 0

    def read(self) -> tuple[Optional[bytes], int]:
        return self.value, self.version

    def replace(self, value: bytes, version: int) -> Optional[int]:
        if version != self.version:
            return None
        self.value, self.version = value, version + 1
        return self.version


class Driver:
    """One process.  ``rate``: of its clock."""

    def __init__(self, name: str, core: LeaderElection, rate: float, offset_ms: int, born_ms: int):
        self.name, self.core, self.rate, self.offset_ms, self.born_ms = name, core, rate, offset_ms, born_ms
        self.stopped_until_ms = 0
        self.cut_off_until_ms = 0
        self.waiting: list[Any] = []  # events that came while it was stopped
        self.epoch: Optional[int] = None
        self.next_tick_ms = 0
        self.planned: Optional[tuple[str, int]] = None  # what it has decided to do, and will do when it runs
        self.checkpoints = 0

    def now_ms(self, true_ms: float) -> int:
        return int(self.offset_ms + self.rate * (true_ms - self.born_ms))


class LeaderWorld:
    """``election``: class under test."""

    def __init__(
        self,
        seed: int,
        election: type[LeaderElection] = LeaderElection,
        records: type[HighAvailabilityStore] = HighAvailabilityStore,
    ):
        self.rng = random.Random(seed)
        self.election = election
        self.harshness = self.rng.choice((0.3, 1.0, 2.0))
        self.retry_ms = self.rng.choice((50, 150))
        self.knows_holders = self.rng.random() < 0.3  # as ZooKeeper does
        self.true_ms = 0
        self.chaos = True
        self.log: list[tuple] = []  # when, who, what
        self.lease: Optional[le.Lease] = None
        self.lease_version = 0
        self.last_heard_ms: dict[str, float] = {}  # of each holder's session
        self.records = records(Cell(), "the record")
        self.numbers = itertools.count()
        self.queue: list[tuple[float, int, Callable[[], None]]] = []
        self.last_epoch = 0  # granted
        self.fenced_epoch = 0  # of the record
        self.accepted: list[str] = []  # locations, in order
        self.grants_after_healing = 0
        self.drivers: list[Driver] = []
        for _ in range(self.rng.choice((2, 2, 3))):
            self.start_driver()

    def fault(self, chance: float) -> bool:
        return self.chaos and self.rng.random() < chance * self.harshness

    def start_driver(self) -> None:
        name = f"d{next(self.numbers)}"
        core = self.election(name, DURATION_MS, self.retry_ms, clock_drift=CLOCK_DRIFT)
        rate = 1 + self.rng.choice((-1, 0, 1)) * CLOCK_DRIFT
        self.drivers.append(Driver(name, core, rate, self.rng.randrange(10**6), self.true_ms))
        self.last_heard_ms[name] = self.true_ms

    # ---- time -----------------------------------------------------------------------------------

    def run(self) -> None:
        while self.true_ms < CHAOS_MS:
            self.step()
            self.break_something()
        self.chaos = False
        self.log.append((self.true_ms, "--", "no more faults"))
        while self.true_ms < CHAOS_MS + HEALED_MS:
            self.step()
        leaders = [driver for driver in self.drivers if driver.core.may_act(driver.now_ms(self.true_ms))]
        assert len(leaders) == 1, f"{len(leaders)} lead after healing"
        assert leaders[0].checkpoints, "the leader completes nothing"
        assert self.grants_after_healing <= 2, "leadership does not come to rest"  # of what was under way

    def step(self) -> None:
        self.true_ms += STEP_MS
        while self.queue and self.queue[0][0] <= self.true_ms:
            heapq.heappop(self.queue)[2]()
            self.check()
        for driver in list(self.drivers):
            if self.true_ms < driver.stopped_until_ms:
                continue
            if driver.waiting or driver.planned or driver.epoch is not None:
                self.wake(driver)
            now_ms = driver.now_ms(self.true_ms)
            if now_ms >= driver.next_tick_ms:
                self.tell(driver, le.Tick())
        self.check()

    def wake(self, driver: Driver) -> None:
        waiting, driver.waiting = driver.waiting, []
        planned, driver.planned = driver.planned, None
        # A stopped process goes on in the midst of whatever its threads were at.
        if planned is not None and self.rng.random() < 0.5:
            self.do(driver, *planned)
            planned = None
        for event in waiting:
            self.tell(driver, event)
        if planned is not None:
            self.do(driver, *planned)
        leads = driver.epoch is not None and driver.core.may_act(driver.now_ms(self.true_ms))
        if leads and self.rng.random() < (0.2 if self.chaos else 0.6):
            self.do(driver, *self.next_checkpoint(driver))

    def next_checkpoint(self, driver: Driver) -> tuple[str, int]:
        assert driver.epoch is not None
        driver.checkpoints += 1
        return f"{driver.name}/chk-{driver.checkpoints}", driver.epoch

    def later(self, delay_ms: float, action: Callable[[], None]) -> None:
        heapq.heappush(self.queue, (self.true_ms + delay_ms, next(self.numbers), action))

    def break_something(self) -> None:
        rng = self.rng
        if rng.random() > 0.08:  # most steps break nothing, and this is asked at each
            return
        for driver in list(self.drivers):
            if self.true_ms < driver.stopped_until_ms:
                continue
            if self.fault(0.08):
                self.stop(driver, rng.choice((100, 700, 1_500, 4_000)))
            elif self.fault(0.08):
                driver.cut_off_until_ms = self.true_ms + rng.choice((300, 1_200, 5_000))
                self.log.append((self.true_ms, driver.name, "is cut off until", driver.cut_off_until_ms))
                if self.knows_holders and self.true_ms >= driver.stopped_until_ms:
                    self.tell(driver, le.ConnectionSuspended())
            elif self.fault(0.05):
                self.log.append((self.true_ms, driver.name, "dies"))
                self.drivers.remove(driver)
                self.start_driver()
            elif self.fault(0.02):
                self.tell(driver, le.Resigned())

    def stop(self, driver: Driver, for_ms: int) -> None:
        driver.stopped_until_ms = min(self.true_ms + for_ms, CHAOS_MS + 1_500)
        self.log.append((self.true_ms, driver.name, "is stopped until", driver.stopped_until_ms))
        if driver.epoch is not None and driver.planned is None and driver.core.may_act(driver.now_ms(self.true_ms)):
            driver.planned = self.next_checkpoint(driver)  # between the look at its time and the write

    # ---- a driver -------------------------------------------------------------------------------

    def tell(self, driver: Driver, event: Any) -> None:
        if driver not in self.drivers:
            return
        if self.true_ms < driver.stopped_until_ms:
            driver.waiting.append(event)
            return
        if not isinstance(event, le.Tick):
            self.log.append((self.true_ms, driver.name, "<-", event))
        now_ms = driver.now_ms(self.true_ms)
        effects = driver.core.step(event, now_ms)
        driver.core.check()
        driver.next_tick_ms = driver.core.next_tick_ms(now_ms)
        for effect in effects:
            self.log.append((self.true_ms, driver.name, "->", effect))
            match effect:
                case le.ReadLease():
                    self.send(driver, self.read, None)
                case le.WriteLease():
                    self.send(driver, self.write, effect)
                case le.Granted(epoch):
                    assert epoch > self.last_epoch, "epochs rise for ever"
                    self.last_epoch = epoch
                    self.grants_after_healing += not self.chaos
                    driver.planned = ("", epoch)
                    if self.fault(0.1):
                        self.stop(driver, 2_500)
                    else:
                        self.do(driver, *driver.planned)
                        driver.planned = None
                case le.Revoked():
                    driver.epoch = None
        if driver.core.state is le.Candidacy.ENDED:  # the same script is started again
            self.drivers.remove(driver)
            self.start_driver()

    def do(self, driver: Driver, location: str, epoch: int) -> None:
        """Take the record over ("") or complete a checkpoint; what has been decided is done, whatever the time is."""
        if driver not in self.drivers:
            return
        self.log.append((self.true_ms, driver.name, "does", location or "take over", "epoch", epoch))
        try:
            if not location:
                record = self.records.take_over(epoch, FRESH)
                assert list(record.checkpoints) == self.accepted[-2:], "it goes on from an older checkpoint"
                assert epoch > self.fenced_epoch, "an older leader took the record over"
                self.fenced_epoch, driver.epoch = epoch, epoch
            else:
                self.records.add_checkpoint(epoch, location, driver.checkpoints, False, 1, 0)
                assert epoch == self.fenced_epoch, "a write of an older leader was accepted"
                self.accepted.append(location)
        except LeadershipLostError:
            assert epoch < self.fenced_epoch, "the newest leader was refused"

    # ---- the store ------------------------------------------------------------------------------

    def send(self, driver: Driver, action: Callable[[Driver, Any], Any], order: Any) -> None:
        def delay_ms() -> int:
            return self.rng.choice((2, 2, 10, 40) if not self.chaos else (2, 2, 2, 2, 10, 10, 40, 400, 1_500))

        def cut_off() -> bool:
            return self.fault(0.03) or (self.chaos and self.true_ms < driver.cut_off_until_ms)

        given_up = [False]

        def give_up() -> None:
            if not given_up[0]:
                given_up[0] = True
                self.tell(driver, le.StoreFailed("time is up"))

        def answer(event: Any) -> None:
            if not given_up[0]:
                given_up[0] = True
                self.tell(driver, event)

        def arrive() -> None:
            if driver not in self.drivers and self.rng.random() < 0.5:
                return
            self.last_heard_ms[driver.name] = self.true_ms
            event = action(driver, order)
            if not cut_off():
                self.later(delay_ms(), lambda: answer(event))

        if cut_off():
            if self.rng.random() < 0.3:
                self.later(self.rng.choice((500, 3_000)), arrive)
        else:
            self.later(delay_ms(), arrive)
        self.later(600, give_up)

    def read(self, driver: Driver, order: None) -> le.LeaseRead:
        holder = self.lease.holder if self.lease is not None else ""
        gone = self.knows_holders and self.true_ms - self.last_heard_ms.get(holder, 0) > DURATION_MS / (1 - CLOCK_DRIFT)
        return le.LeaseRead(self.lease, self.lease_version, bool(holder) and gone)

    def write(self, driver: Driver, order: le.WriteLease) -> le.LeaseWritten:
        if order.version != self.lease_version:
            return le.LeaseWritten(None)
        self.lease, self.lease_version = order.lease, self.lease_version + 1
        return le.LeaseWritten(self.lease_version)

    # ---- what must hold -------------------------------------------------------------------------

    def check(self) -> None:
        acting = [driver.name for driver in self.drivers if driver.core.may_act(driver.now_ms(self.true_ms))]
        assert len(acting) <= 1, f"{' and '.join(acting)} may act at one time"

    def story(self) -> list[str]:
        return [" ".join(map(str, entry)) for entry in self.log[-150:]]
