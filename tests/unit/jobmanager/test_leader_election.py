"""One candidate's side of an election: events in, effects out."""

import pytest

from flinkish.jobmanager.leader_election import (
    Candidacy,
    ConnectionSuspended,
    Granted,
    LeaderElection,
    Lease,
    LeaseChanged,
    LeaseRead,
    LeaseWritten,
    ReadLease,
    Resigned,
    Revoked,
    StoreFailed,
    Tick,
    WriteLease,
    standby_wait_ms,
)

OWN = Lease(1, "me", 900, "the driver")
OTHER = Lease(4, "other", 900, "another driver")


@pytest.fixture
def election():
    return LeaderElection("me", 900, 50, "the driver")


def lead(election, now_ms=0):
    """Since ``now_ms``; the lease is renewed 300 ms later."""
    assert election.step(Tick(), now_ms) == [ReadLease()]
    assert election.step(LeaseRead(None, 0), now_ms) == [WriteLease(OWN, 0)]
    assert election.step(LeaseWritten(1), now_ms) == [Granted(1)]
    election.check()
    return election


def test_a_lease_that_nobody_has_is_taken_and_renewed_every_third_of_its_time(election):
    lead(election, 1_000)
    assert election.next_tick_ms(1_000) == 1_300
    assert election.step(Tick(), 1_299) == []
    assert election.step(Tick(), 1_300) == [WriteLease(OWN, 1)]
    assert election.step(LeaseWritten(2), 1_310) == []
    assert election.may_act(2_199) and not election.may_act(2_200)


def test_its_time_counts_from_the_begin_of_the_write(election):
    election.step(Tick(), 0)
    election.step(LeaseRead(None, 0), 10)
    assert election.step(LeaseWritten(1), 800)[0] == Granted(1)
    assert election.may_act(909) and not election.may_act(910)


def test_a_lease_that_is_written_too_late_is_not_granted_but_taken_again_with_the_next_epoch(election):
    election.step(Tick(), 0)
    election.step(LeaseRead(None, 0), 0)
    assert election.step(LeaseWritten(1), 900) == [ReadLease()]
    assert election.step(LeaseRead(OWN, 1), 910) == [WriteLease(Lease(2, "me", 900, "the driver"), 1)]


def test_anothers_lease_is_taken_when_its_version_has_stood_still_for_its_time_and_the_drift(election):
    wait_ms = standby_wait_ms(900)
    assert wait_ms > 900 * 1.02
    election.step(Tick(), 0)
    assert election.step(LeaseRead(OTHER, 7), 10) == []
    assert election.describe() == "another driver leads, epoch 4"
    assert election.step(Tick(), 60) == [ReadLease()]
    assert election.step(LeaseRead(OTHER, 8), 70) == []  # it was renewed
    assert election.step(Tick(), 69 + wait_ms) == [ReadLease()]
    assert election.step(LeaseRead(OTHER, 8), 69 + wait_ms) == []
    assert election.step(Tick(), 200 + wait_ms) == [ReadLease()]
    assert election.step(LeaseRead(OTHER, 8), 200 + wait_ms) == [
        WriteLease(Lease(5, "me", 900, "the driver"), 8)
    ]


@pytest.mark.parametrize("read", [LeaseRead(Lease(4, "", 900), 7), LeaseRead(OTHER, 7, holder_gone=True)])
def test_nobody_waits_for_a_lease_that_was_given_back_or_whose_holder_is_gone(election, read):
    election.step(Tick(), 0)
    assert election.step(read, 10) == [WriteLease(Lease(5, "me", 900, "the driver"), 7)]


def test_who_was_not_first_stands_by(election):
    election.step(Tick(), 0)
    election.step(LeaseRead(None, 0), 0)
    assert election.step(LeaseWritten(None), 10) == []
    assert election.state is Candidacy.STANDBY and not election.may_act(10)
    assert election.step(LeaseChanged(), 20) == [ReadLease()]


def test_a_leader_whose_write_failed_reads_before_it_writes_again(election):
    lead(election)
    election.step(Tick(), 300)
    assert election.step(StoreFailed("no answer"), 400) == []
    assert election.step(Tick(), 450) == [ReadLease()]
    assert election.step(LeaseRead(OWN, 2), 460) == [WriteLease(OWN, 2)]  # it had arrived
    assert election.may_act(899) and not election.may_act(900)  # that it was read says nothing about when


def test_a_leader_that_reads_anothers_lease_has_lost_it(election):
    lead(election)
    election.step(Tick(), 5_000)
    assert election.step(LeaseWritten(None), 5_010) == [ReadLease()]
    (revoked,) = election.step(LeaseRead(OTHER, 9), 5_020)
    assert revoked == Revoked("another driver has the lease now, epoch 4")
    assert election.step(Tick(), 9_000) == [] and not election.may_act(5_020)


def test_a_leader_that_slept_goes_on_if_nobody_has_come(election):
    lead(election)
    assert not election.may_act(50_000)
    assert election.step(Tick(), 50_000) == [WriteLease(OWN, 1)]
    assert election.step(LeaseWritten(2), 50_010) == []
    assert election.may_act(50_010) and election.epoch == 1


@pytest.mark.parametrize("hangs", [True, False])
def test_a_leader_without_its_store_stops_after_its_time_and_ends_after_as_long_again(election, hangs):
    lead(election)
    effects, now_ms = [], 0
    while not effects or not isinstance(effects[-1], Revoked):
        now_ms += 50
        effects += election.step(Tick(), now_ms)
        if election.asked_ms is not None and not hangs:
            effects += election.step(StoreFailed("refused"), now_ms)
        assert election.may_act(now_ms) == (now_ms < 900)
    assert now_ms == 1_800
    assert ("does not answer" if hangs else "refused") in effects[-1].why


def test_a_leader_whose_connection_is_suspended_stops_at_once_until_a_write_succeeds(election):
    lead(election)
    assert election.step(ConnectionSuspended(), 100) == [WriteLease(OWN, 1)]
    assert not election.may_act(100)
    election.step(StoreFailed("connection loss"), 110)
    assert election.step(Tick(), 160) == [ReadLease()]
    assert election.step(LeaseRead(OWN, 1), 170) == [WriteLease(OWN, 1)]
    assert not election.may_act(170)
    election.step(LeaseWritten(2), 180)
    assert election.may_act(180)


def test_who_resigns_gives_the_lease_back_and_does_not_act_any_more(election):
    lead(election)
    assert election.step(Resigned(), 100) == [WriteLease(Lease(1, "", 900), 1)]
    assert not election.may_act(100)
    assert election.step(LeaseWritten(2), 110) == [] and election.state is Candidacy.ENDED


def test_a_standby_that_resigns_ends_when_the_store_has_answered(election):
    election.step(Tick(), 0)
    assert election.step(Resigned(), 10) == [] and election.state is Candidacy.STANDBY
    assert election.step(LeaseRead(OTHER, 7), 20) == [] and election.state is Candidacy.ENDED


def test_a_standby_says_why_it_cannot_read(election):
    election.step(Tick(), 0)
    election.step(StoreFailed("PermissionError: no"), 10)
    assert election.describe() == "the lease cannot be read: PermissionError: no"


def test_a_standby_says_that_it_cannot_write_for_as_long_as_the_lease_is_free(election):
    election.step(Tick(), 0)
    now_ms, said = 0, "nobody leads, and the lease cannot be written: OSError: full"
    for _ in range(3):
        assert election.step(LeaseRead(None, 0), now_ms)[0] == WriteLease(OWN, 0)
        election.step(StoreFailed("OSError: full"), now_ms)
        assert election.describe() == said
        now_ms += 50
        assert election.step(Tick(), now_ms) == [ReadLease()]
        assert election.describe() == said
    election.step(LeaseRead(OTHER, 7), now_ms)
    assert election.describe() == "another driver leads, epoch 4"
    election.check()


def test_a_write_that_was_refused_is_none_that_cannot_be_made(election):
    election.step(Tick(), 0)
    election.step(LeaseRead(None, 0), 0)
    election.step(StoreFailed("OSError: full"), 0)
    election.step(Tick(), 50)
    election.step(LeaseRead(None, 0), 50)
    election.step(LeaseWritten(None), 50)
    assert election.describe() == "nobody holds the lease"
