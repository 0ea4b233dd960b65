"""Barriers in the simulated data plane, and aligners that are broken on purpose."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flinkish.taskmanager.barrier_aligner import BarrierAligner, Resume, TakeSnapshot
from tests.simulation.barrier_world import BarrierWorld
from tests.simulation.worlds import first_failure

SEEDS = 2_000
SEEDS_TO_CATCH = 500


def test_every_record_is_on_one_side_of_each_barrier():
    failure = first_failure(BarrierWorld, range(SEEDS))
    assert failure is None, failure[1]


class Unchecked(BarrierAligner):
    """Its own invariants would find some of the faults below: the world must find them without."""

    def check(self):
        pass


class NeverHolds(Unchecked):
    def barrier(self, channel, barrier, now_ms):
        effects = super().barrier(channel, barrier, now_ms)
        return [*effects, *self._resume([channel])]


class OneChannelTooFew(Unchecked):
    def _advance(self, pending, now_ms):
        if len(self.open - pending.arrived) == 1:
            pending.arrived |= self.open
        return super()._advance(pending, now_ms)


class ForgetsToResume(Unchecked):
    def ended(self, channel, now_ms):
        return [effect for effect in super().ended(channel, now_ms) if not isinstance(effect, Resume)]


class EndsDoNotCount(Unchecked):
    def ended(self, channel, now_ms):
        self.open.discard(channel)
        return []


class ResumesWhatWaitsForAnother(Unchecked):
    def _waiting_for(self, pending):
        return set(list(super()._waiting_for(pending))[1:])


class GivesOutTheWrongBarrier(Unchecked):
    def barrier(self, channel, barrier, now_ms):
        return [
            replace(effect, barrier=replace(effect.barrier, checkpoint_id=effect.barrier.checkpoint_id + 1))
            if isinstance(effect, TakeSnapshot) and self.latest % 3 == 0
            else effect
            for effect in super().barrier(channel, barrier, now_ms)
        ]


@pytest.mark.parametrize(
    "broken",
    [
        NeverHolds,
        OneChannelTooFew,
        ForgetsToResume,
        EndsDoNotCount,
        ResumesWhatWaitsForAnother,
        GivesOutTheWrongBarrier,
    ],
    ids=lambda broken: broken.__name__,
)
def test_an_aligner_that_is_broken_is_caught(broken):
    assert first_failure(lambda seed: BarrierWorld(seed, broken), range(SEEDS_TO_CATCH)) is not None
