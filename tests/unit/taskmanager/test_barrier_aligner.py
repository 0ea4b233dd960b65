"""BarrierAligner: calls in, effects out; and random histories against what a reader of the channels knows."""

import random

import pytest

from flinkish.messages.checkpoints import CheckpointFailureReason, CheckpointOptions, SnapshotKind
from flinkish.messages.elements import CheckpointBarrier
from flinkish.taskmanager.barrier_aligner import (
    GIVEN_UP_MAX,
    BarrierAligner,
    GiveUp,
    InFlightComplete,
    Resume,
    StopPersisting,
    TakeSnapshot,
)

SUBSUMED = CheckpointFailureReason.SUBSUMED
CANCELLED = CheckpointFailureReason.ON_CANCELLATION_BARRIER


def barrier(checkpoint_id, timestamp_ms=0, **options):
    return CheckpointBarrier(checkpoint_id, timestamp_ms, CheckpointOptions(SnapshotKind.CHECKPOINT, "l", "s", **options))


class Checked(BarrierAligner):
    """Asserts the invariants after each move."""

    def __getattribute__(self, name):
        found = super().__getattribute__(name)
        if name not in ("announced", "end_announced", "barrier", "ordered", "cancelled", "aborted", "ended", "tick"):
            return found

        def move(*arguments):
            effects = found(*arguments)
            self.check()
            return effects

        return move


def test_a_source_takes_its_snapshot_when_it_is_ordered():
    aligner = Checked(())
    assert aligner.ordered(barrier(1), 0) == [TakeSnapshot(barrier(1))]
    assert aligner.ordered(barrier(1), 0) == []  # repeated
    assert aligner.ordered(barrier(4), 0) == [TakeSnapshot(barrier(4))]


def test_one_channel_needs_no_alignment():
    aligner = Checked([7])
    assert aligner.barrier(7, barrier(1), 0) == [TakeSnapshot(barrier(1)), Resume((7,))]


def test_channels_with_the_barrier_wait_for_the_others():
    aligner = Checked([1, 2, 3])
    assert aligner.barrier(2, barrier(5), 10) == []
    assert aligner.barrier(1, barrier(5), 12) == []
    assert aligner.held == {1, 2}
    assert aligner.barrier(3, barrier(5), 40) == [TakeSnapshot(barrier(5), 30), Resume((1, 2, 3))]


def test_at_least_once_never_holds_a_channel():
    aligner = Checked([1, 2])
    loose = {"exactly_once": False}
    assert aligner.barrier(1, barrier(1, **loose), 0) == [Resume((1,))]
    assert aligner.barrier(1, barrier(2, **loose), 0) == [Resume((1,))]
    assert aligner.barrier(2, barrier(1, **loose), 5) == [
        Resume((2,)), TakeSnapshot(barrier(1, **loose), 5),
    ]  # fmt: skip
    assert aligner.barrier(2, barrier(2, **loose), 5) == [
        Resume((2,)), TakeSnapshot(barrier(2, **loose), 5),
    ]  # fmt: skip


def test_at_least_once_nothing_older_is_complete_behind_a_marker_that_has_gone_on():
    aligner = Checked([1, 2])
    loose = {"exactly_once": False}
    aligner.barrier(1, barrier(1, **loose), 0)
    assert aligner.cancelled(1, 2) == [GiveUp(1, SUBSUMED), GiveUp(2, CANCELLED)]
    assert aligner.barrier(2, barrier(1, **loose), 5) == [Resume((2,))]


def test_a_newer_barrier_supersedes_what_can_not_be_complete_any_more():
    aligner = Checked([1, 2])
    aligner.barrier(1, barrier(1), 0)
    # Channel 2 has skipped checkpoint 1.
    assert aligner.barrier(2, barrier(2), 0) == [GiveUp(1, SUBSUMED), Resume((1,))]
    assert aligner.held == {2}
    assert aligner.barrier(1, barrier(2), 3) == [TakeSnapshot(barrier(2), 3), Resume((1, 2))]


def test_an_older_barrier_behind_a_newer_one_of_another_channel_is_declined_and_not_waited_for():
    aligner = Checked([1, 2])
    aligner.barrier(1, barrier(2), 0)
    assert aligner.barrier(2, barrier(1), 0) == [GiveUp(1, SUBSUMED), Resume((2,))]
    assert aligner.barrier(2, barrier(2), 0) == [TakeSnapshot(barrier(2)), Resume((1, 2))]


def test_a_marker_gives_up_what_aligns_and_its_barriers_are_passed_over():
    aligner = Checked([1, 2, 3])
    aligner.barrier(1, barrier(1), 0)
    assert aligner.cancelled(2, 1) == [GiveUp(1, CANCELLED), Resume((1,))]
    assert aligner.cancelled(3, 1) == []  # told once
    assert aligner.barrier(1, barrier(2), 0) == []
    assert aligner.barrier(2, barrier(2), 0) == []
    assert aligner.barrier(3, barrier(2), 0)[0] == TakeSnapshot(barrier(2))


def test_a_marker_may_come_before_any_barrier():
    aligner = Checked([1, 2])
    assert aligner.cancelled(1, 3) == [GiveUp(3, CANCELLED)]
    assert aligner.barrier(2, barrier(3), 0) == [Resume((2,))]


def test_the_marker_of_a_newer_one_gives_up_the_one_that_it_has_skipped():
    aligner = Checked([1, 2])
    aligner.barrier(1, barrier(1), 0)
    assert aligner.cancelled(2, 2) == [GiveUp(1, SUBSUMED), Resume((1,)), GiveUp(2, CANCELLED)]


def test_what_the_job_manager_aborts_is_let_go_without_a_word():
    aligner = Checked([1, 2])
    aligner.barrier(1, barrier(1), 0)
    assert aligner.aborted(1) == [Resume((1,))]
    assert aligner.barrier(2, barrier(1), 0) == [Resume((2,))]
    assert aligner.aborted(1) == [] and aligner.aborted(9) == []
    assert aligner.barrier(1, barrier(9), 0) == [Resume((1,))]


def test_the_end_of_a_channel_counts_as_its_barrier():
    aligner = Checked([1, 2])
    aligner.barrier(1, barrier(1), 0)
    assert aligner.ended(2, 8) == [TakeSnapshot(barrier(1), 8), Resume((1,))]
    assert aligner.barrier(1, barrier(2), 9) == [TakeSnapshot(barrier(2)), Resume((1,))]


def test_an_order_waits_for_the_end_of_what_still_comes():
    """All senders have finished: what they have sent belongs before the barrier."""
    aligner = Checked([1, 2])
    assert aligner.ordered(barrier(1), 0) == []
    assert aligner.ended(1, 1) == []
    assert aligner.ended(2, 4) == [TakeSnapshot(barrier(1), 4)]


def test_at_least_once_an_end_may_complete_several():
    aligner = Checked([1, 2])
    loose = {"exactly_once": False}
    aligner.barrier(1, barrier(1, **loose), 0)
    aligner.barrier(1, barrier(2, **loose), 0)
    effects = aligner.ended(2, 0)
    assert effects == [TakeSnapshot(barrier(1, **loose)), TakeSnapshot(barrier(2, **loose))]


def test_what_was_given_up_is_remembered_up_to_a_bound():
    aligner = Checked([1])
    for checkpoint_id in range(1, 1_000):
        aligner.aborted(checkpoint_id)
    assert len(aligner.given_up) == GIVEN_UP_MAX
    assert aligner.barrier(1, barrier(999), 0) == [Resume((1,))]
    assert aligner.barrier(1, barrier(2_000), 0) == [TakeSnapshot(barrier(2_000)), Resume((1,))]
    assert not aligner.given_up


def test_the_rest_of_one_that_is_forgotten_does_not_begin_it_again():
    aligner = Checked([1, 2])
    assert aligner.barrier(1, barrier(5), 0) == []
    for checkpoint_id in range(5, 6 + GIVEN_UP_MAX):
        aligner.aborted(checkpoint_id)
    assert 5 not in aligner.given_up
    assert aligner.barrier(2, barrier(5), 0) == [Resume((2,))] and not aligner.pending


def test_an_unaligned_barrier_overtakes_as_soon_as_it_is_announced():
    aligner = Checked([1, 2, 3])
    unaligned = barrier(1, unaligned=True)
    assert aligner.announced(2, unaligned, 0) == [
        TakeSnapshot(unaligned, 0, True, frozenset({1, 2, 3})), StopPersisting(1, 2),
    ]  # fmt: skip
    assert aligner.announced(1, unaligned, 5) == [StopPersisting(1, 1)]
    assert aligner.end_announced(3, 9) == [StopPersisting(1, 3), InFlightComplete(1)]
    assert aligner.latest == 1 and aligner.ended(3, 11) == []


def test_an_aligned_barrier_overtakes_when_its_time_is_over():
    aligner = Checked([1, 2, 3])
    patient = barrier(1, 100, unaligned=True, aligned_timeout_ms=20)
    urgent = barrier(1, 100, unaligned=True)
    assert aligner.announced(1, patient, 105) == aligner.barrier(1, patient, 106) == []
    assert aligner.announced(2, patient, 107) == []
    assert aligner.held == {1} and aligner.deadline_ms == 120
    assert aligner.tick(119) == []
    assert aligner.tick(120) == [
        TakeSnapshot(urgent, 15, True, frozenset({2, 3})), StopPersisting(1, 2), Resume((1,)),
    ]  # fmt: skip
    assert aligner.deadline_ms is None
    assert aligner.announced(3, patient, 130) == [StopPersisting(1, 3), InFlightComplete(1)]


def test_the_time_counts_from_the_first_barrier_where_the_clock_is_behind():
    aligner = Checked([1, 2])
    aligner.announced(1, barrier(1, 9_000, unaligned=True, aligned_timeout_ms=20), 100)
    assert aligner.deadline_ms == 120


def test_one_that_has_lost_patience_makes_the_others_lose_it():
    aligner = Checked([1, 2])
    assert aligner.announced(1, barrier(1, unaligned=True, aligned_timeout_ms=500), 0) == []
    urgent = barrier(1, unaligned=True)
    assert aligner.announced(2, urgent, 1) == [
        TakeSnapshot(urgent, 1, True, frozenset({1, 2})), StopPersisting(1, 1), StopPersisting(1, 2), InFlightComplete(1),
    ]  # fmt: skip


def test_a_barrier_that_comes_in_time_needs_no_overtaking():
    aligner = Checked([1, 2])
    patient = barrier(1, 100, unaligned=True, aligned_timeout_ms=20)
    aligner.announced(1, patient, 100)
    aligner.barrier(1, patient, 101)
    aligner.announced(2, patient, 110)
    assert aligner.barrier(2, patient, 119) == [TakeSnapshot(patient, 19), Resume((1, 2))]


def test_where_overtaking_is_not_possible_an_unaligned_barrier_aligns():
    aligner = Checked([1, 2])
    forced = barrier(1, unaligned=True, forced_aligned=True)
    assert aligner.barrier(1, forced, 0) == [] and aligner.deadline_ms is None
    assert aligner.barrier(2, forced, 7) == [TakeSnapshot(forced, 7), Resume((1, 2))]


def test_an_order_that_overtakes_waits_for_the_ends_of_the_channels():
    aligner = Checked([1, 2])
    aligner.end_announced(1, 0)
    unaligned = barrier(1, unaligned=True)
    assert aligner.ordered(unaligned, 5) == [
        TakeSnapshot(unaligned, 0, True, frozenset({1, 2})), StopPersisting(1, 1),
    ]  # fmt: skip
    assert aligner.end_announced(2, 6) == [StopPersisting(1, 2), InFlightComplete(1)]


def test_one_that_overtakes_is_given_up_by_a_newer_one():
    aligner = Checked([1, 2])
    aligner.announced(1, barrier(1, unaligned=True), 0)
    effects = aligner.announced(2, barrier(2, unaligned=True), 0)
    assert effects[0] == GiveUp(1, SUBSUMED)
    assert effects[1:] == [
        TakeSnapshot(barrier(2, unaligned=True), 0, True, frozenset({1, 2})), StopPersisting(2, 2),
    ]  # fmt: skip


class Stream:
    """A channel as its sender makes it: rising ids, each a barrier or a marker, then perhaps the end."""

    def __init__(self, rng, channel, options):
        self.channel, self.options = channel, options
        self.events = [
            ("cancel" if rng.random() < 0.15 else "barrier", checkpoint_id)
            for checkpoint_id in range(1, rng.randint(2, 9))
            if rng.random() < 0.85
        ]
        if rng.random() < 0.5:
            self.events.append(("end", 0))


@pytest.mark.parametrize("seed", range(500))
def test_random_histories(seed):
    """Aligned: at a snapshot every open channel stands right behind its barrier.  Always: a checkpoint is told
    of once, none waits when all channels have been read, and no channel stays held."""
    rng = random.Random(seed)
    options = rng.choice(({}, {}, {"exactly_once": False}, {"unaligned": True, "aligned_timeout_ms": 30}))
    exactly_once = options.get("exactly_once", True)
    streams = [Stream(rng, channel, options) for channel in range(rng.randint(1, 4))]
    aligner = Checked([stream.channel for stream in streams])
    position = {stream.channel: 0 for stream in streams}  # events taken
    held: set[int] = set()
    told: dict[int, object] = {}
    last_snapshot = 0
    now_ms = 0

    def obey(effects):
        nonlocal last_snapshot
        for effect in effects:
            match effect:
                case Resume(channels):
                    assert held.issuperset(channels)
                    held.difference_update(channels)
                case TakeSnapshot(taken, _, unaligned, persist):
                    number = taken.checkpoint_id
                    assert number not in told and number > last_snapshot
                    told[number], last_snapshot = effect, number
                    for stream in streams:
                        at = position[stream.channel]
                        read = stream.events[:at]
                        if ("end", 0) in read or unaligned and stream.channel in persist:
                            continue
                        if exactly_once:
                            assert read[-1:] == [("barrier", number)], (stream.channel, read, number)
                        else:
                            assert ("barrier", number) in read
                case GiveUp(number, _):
                    before = told.get(number)
                    assert before is None or getattr(before, "unaligned", False)
                    told[number] = effect

    while True:
        now_ms += rng.choice((0, 1, 10))
        obey(aligner.tick(now_ms))
        readable = [s for s in streams if s.channel not in held and position[s.channel] < len(s.events)]
        if not readable:
            break
        stream = rng.choice(readable)
        kind, number = stream.events[position[stream.channel]]
        position[stream.channel] += 1
        if kind == "barrier":
            if options.get("unaligned"):
                obey(aligner.announced(stream.channel, barrier(number, **options), now_ms))
                if number <= aligner._last.get(stream.channel, 0):
                    continue  # it was taken out of turn
            held.add(stream.channel)
            obey(aligner.barrier(stream.channel, barrier(number, **options), now_ms))
        elif kind == "cancel":
            obey(aligner.cancelled(stream.channel, number))
        else:
            obey(aligner.end_announced(stream.channel, now_ms))
            obey(aligner.ended(stream.channel, now_ms))
        if rng.random() < 0.05:
            obey(aligner.aborted(rng.randint(1, 9)))
    waiting = set(aligner.pending)
    for channel in held:  # only for what other channels have never sent and not skipped either
        assert waiting and stream_is_short(streams, aligner, channel)


def stream_is_short(streams, aligner, channel):
    """Whether a channel that is open has not come to the checkpoint that ``channel`` waits for."""
    return any(
        max([number for _, number in stream.events], default=0) < max(aligner.pending)
        for stream in streams
        if stream.channel in aligner.open and stream.channel != channel
    )
