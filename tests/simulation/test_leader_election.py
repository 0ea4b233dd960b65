"""The LeaderElection and the job's record in their simulated world, and copies of them that are broken on purpose."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flinkish.jobmanager.leader_election import Candidacy, Granted, LeaderElection
from flinkish.storage.ha_store import HighAvailabilityStore
from tests.simulation.leader_world import LeaderWorld
from tests.simulation.worlds import first_failure

SEEDS = 2_000
SEEDS_TO_CATCH = 500


def test_whatever_fails_one_leads_and_after_healing_one_does():
    failure = first_failure(LeaderWorld, range(SEEDS))
    assert failure is None, failure[1]


class Unchecked(LeaderElection):
    """Its own invariants would find some of the faults below: the world must find them without."""

    def check(self):
        pass


class TakesTheLeaseWithoutWaiting(Unchecked):
    def _is_free(self, event, now_ms):
        return True


class IgnoresTheDriftOfClocks(Unchecked):
    def _is_free(self, event, now_ms):
        free = super()._is_free(event, now_ms)
        return free or now_ms - self.seen_ms >= event.lease.duration_ms


class CountsItsTimeFromTheAnswer(Unchecked):
    def _written(self, written, version, begun_ms, now_ms):
        return super()._written(written, version, now_ms, now_ms)


class CountsFromTheLastReadThatSawNothingNew(Unchecked):
    """Takes a lease whose holder renews, because it looks at the first version it has seen."""

    def _read(self, event, now_ms):
        seen_ms = self.seen_ms
        self.version = event.version
        effects = super()._read(event, now_ms)
        self.seen_ms = seen_ms if seen_ms is not None else now_ms
        return effects


class ActsForEver(Unchecked):
    def may_act(self, now_ms):
        return self.state is Candidacy.LEADER


class KeepsTheEpoch(Unchecked):
    def _write(self, lease, now_ms):
        epoch = 1 if lease.holder else lease.epoch
        return super()._write(replace(lease, epoch=epoch), now_ms)


class OverlooksThatAnotherWasFirst(Unchecked):
    def _written(self, written, version, begun_ms, now_ms):
        return super()._written(written, self.version + 1 if version is None else version, begun_ms, now_ms)


class TakesAFailedWriteForDone(Unchecked):
    def _failed(self, now_ms):
        if self.writing is not None:
            written, begun_ms = self.writing, self.asked_ms
            self.writing = self.asked_ms = None
            return self._written(written, self.version + 1, begun_ms, now_ms)
        return super()._failed(now_ms)


class KeepsAnothersLease(Unchecked):
    """Goes on as leader whoever has the lease."""

    def _read(self, event, now_ms):
        if self.state is Candidacy.LEADER and event.lease is not None:
            event = replace(event, lease=replace(event.lease, holder=self.candidate, epoch=self.epoch))
        return super()._read(event, now_ms)


class NeverRenews(Unchecked):
    @property
    def renew_ms(self):
        return 10**9


class NeverTakesOver(Unchecked):
    def _is_free(self, event, now_ms):
        return event.lease is None


class GivesUpAStandbyAfterAFailure(Unchecked):
    def _failed(self, now_ms):
        effects = super()._failed(now_ms)
        self.due_ms = 10**12
        return effects


class StaysSuspended(Unchecked):
    def _written(self, written, version, begun_ms, now_ms):
        suspended = self.suspended
        effects = super()._written(written, version, begun_ms, now_ms)
        self.suspended = suspended
        return effects


class IsGrantedTwice(Unchecked):
    def _written(self, written, version, begun_ms, now_ms):
        effects = super()._written(written, version, begun_ms, now_ms)
        return effects or ([Granted(self.epoch)] if self.state is Candidacy.LEADER and version else [])


class TakesOverBehindANewerLeader(HighAvailabilityStore):
    def take_over(self, epoch, beginning):
        record = self.read()
        return super().take_over(max(epoch, record.epoch if record else 0), beginning)


class AcceptsOldLeaders(HighAvailabilityStore):
    def add_checkpoint(self, epoch, *arguments):
        record = self.read()
        super().add_checkpoint(max(epoch, record.epoch), *arguments)


class ForgetsTheEpochOfTheNewLeader(HighAvailabilityStore):
    def take_over(self, epoch, beginning):
        return self.read() or super().take_over(epoch, beginning)


class GoesOnFromTheBeginning(HighAvailabilityStore):
    def take_over(self, epoch, beginning):
        return replace(super().take_over(epoch, beginning), checkpoints=())


@pytest.mark.parametrize("broken", Unchecked.__subclasses__(), ids=lambda broken: broken.__name__)
def test_a_broken_election_is_caught(broken):
    assert first_failure(lambda seed: LeaderWorld(seed, election=broken), range(SEEDS_TO_CATCH))


@pytest.mark.parametrize("broken", HighAvailabilityStore.__subclasses__(), ids=lambda broken: broken.__name__)
def test_a_broken_record_is_caught(broken):
    assert first_failure(lambda seed: LeaderWorld(seed, records=broken), range(SEEDS_TO_CATCH))
