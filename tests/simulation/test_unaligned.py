"""Unaligned checkpoints in the simulated data plane, and aligners and collectors that are broken on purpose."""

from __future__ import annotations

import pytest

from flinkish.jobmanager import restore_decision
from flinkish.taskmanager.barrier_aligner import BarrierAligner, TakeSnapshot
from flinkish.taskmanager.in_flight_collector import InFlightCollector
from tests.simulation.unaligned_world import UnalignedWorld
from tests.simulation.worlds import first_failure

SEEDS = 300
SEEDS_TO_CATCH = 500


def test_what_barriers_overtake_is_taken_once_and_in_order_by_whoever_goes_on():
    worlds: list[UnalignedWorld] = []

    def make(seed):
        worlds.append(UnalignedWorld(seed))
        return worlds[-1]

    failure = first_failure(make, range(SEEDS))
    assert failure is None, failure[1]
    assert sum(world.in_flight_seen for world in worlds) > 2_000
    assert sum(world.replayed for world in worlds) > 600


# ---- broken aligners ----------------------------------------------------------------------------


class Unchecked(BarrierAligner):
    """Its own invariants would find some of the faults below: the world must find them without."""

    def check(self):
        pass


class PersistsOneChannelTooFew(Unchecked):
    def _advance(self, pending, now_ms):
        return [
            TakeSnapshot(effect.barrier, effect.alignment_ms, True, frozenset(sorted(effect.persist)[1:]))
            if isinstance(effect, TakeSnapshot) and len(effect.persist) > 1
            else effect
            for effect in super()._advance(pending, now_ms)
        ]


class DoesNotWaitForTheLastBarrier(Unchecked):
    def _advance(self, pending, now_ms):
        if pending.overtaking and len(self.open - pending.arrived) == 1:
            pending.announced |= self.open
        return super()._advance(pending, now_ms)


class EndsAreNotAnnounced(Unchecked):
    def end_announced(self, channel, now_ms):
        return []

    def ended(self, channel, now_ms):
        self.open.discard(channel)
        self.held.discard(channel)
        return []


class SnapshotsAfterTheTimeAsIfAligned(Unchecked):
    def _advance(self, pending, now_ms):
        due = pending.overtakes_at_ms
        if due is not None and now_ms >= due:
            pending.arrived |= self.open
        return super()._advance(pending, now_ms)


# ---- broken collectors --------------------------------------------------------------------------


class ForgetsTheBatchInWork(InFlightCollector):
    def send_barrier(self, order, in_work):
        return super().send_barrier(order, None)


class ForgetsWhatItHasNotSent(InFlightCollector):
    def _add_unsent(self, data, writer, overtaken):
        super()._add_unsent(data, writer, [])


class KeepsWhatItHasNotSentTwice(InFlightCollector):
    def _add_unsent(self, data, writer, overtaken):
        for _ in range(2):
            super()._add_unsent(data, writer, overtaken)


class IsCompleteBeforeItsChannelsAre(InFlightCollector):
    def begin(self, data):
        data.inputs_open = False
        super().begin(data)


class ForgetsWhatArrivesLater(InFlightCollector):
    def channel_complete(self, checkpoint_id, channel_id):
        recorder = self._channels[channel_id].recorder
        if recorder is not None and len(recorder.frames) > 1:
            recorder.frames.pop()
        super().channel_complete(checkpoint_id, channel_id)


class MixesUpTheOrder(InFlightCollector):
    def channel_complete(self, checkpoint_id, channel_id):
        recorder = self._channels[channel_id].recorder
        if recorder is not None:
            recorder.frames.reverse()
        super().channel_complete(checkpoint_id, channel_id)


# ---- broken restores ----------------------------------------------------------------------------

deal_out = restore_decision.deal_out_in_flight
edge_of = restore_decision._edge_of


def takes_senders_for_those_they_were(*arguments):
    *others, _ = arguments
    return deal_out(*others, True)


def takes_the_target_for_unchanged(parts, edge_id, partitioner, pickle_partitioner, saved, declared, same_senders):
    dealt = deal_out(parts, edge_id, partitioner, pickle_partitioner, saved, saved, same_senders)
    return (dealt + [()] * declared[0])[: declared[0]]


def takes_any_edge_between_two_vertices(job_graph, saved):
    ends = saved.source_vertex, saved.target_vertex
    return next(edge for edge in job_graph.edges if (edge.source_vertex_id, edge.target_vertex_id) == ends)


def takes_edges_by_their_ids(job_graph, saved):
    return next((edge for edge in job_graph.edges if edge.id == saved.edge_id), None)


def guesses_which_edge_it_was(job_graph, saved):
    return edge_of(job_graph, saved) or takes_any_edge_between_two_vertices(job_graph, saved)


BROKEN_RESTORES = {
    takes_senders_for_those_they_were: "deal_out_in_flight",
    takes_the_target_for_unchanged: "deal_out_in_flight",
    takes_any_edge_between_two_vertices: "_edge_of",
    takes_edges_by_their_ids: "_edge_of",
    guesses_which_edge_it_was: "_edge_of",
}

#: With the first seed to try: one a little before the first that finds it, so that the suite does not search.
ALIGNERS = [
    (PersistsOneChannelTooFew, 0),
    (DoesNotWaitForTheLastBarrier, 0),
    (EndsAreNotAnnounced, 12),
    (SnapshotsAfterTheTimeAsIfAligned, 0),
]
COLLECTORS = [
    (ForgetsTheBatchInWork, 66),
    (ForgetsWhatItHasNotSent, 0),
    (KeepsWhatItHasNotSentTwice, 0),
    (IsCompleteBeforeItsChannelsAre, 0),
    (ForgetsWhatArrivesLater, 14),
    (MixesUpTheOrder, 0),
]


def name_of(value):
    return value.__name__ if isinstance(value, type) else ""


@pytest.mark.parametrize("broken, first_seed", ALIGNERS, ids=name_of)
def test_an_aligner_that_is_broken_is_caught(broken, first_seed):
    seeds = range(first_seed, SEEDS_TO_CATCH)
    assert first_failure(lambda seed: UnalignedWorld(seed, broken), seeds) is not None


@pytest.mark.parametrize("broken, first_seed", COLLECTORS, ids=name_of)
def test_a_collector_that_is_broken_is_caught(broken, first_seed):
    seeds = range(first_seed, SEEDS_TO_CATCH)
    assert first_failure(lambda seed: UnalignedWorld(seed, collector=broken), seeds) is not None


@pytest.mark.parametrize("broken", BROKEN_RESTORES, ids=lambda broken: broken.__name__)
def test_a_restore_that_is_broken_is_caught(broken, monkeypatch):
    monkeypatch.setattr(restore_decision, BROKEN_RESTORES[broken], broken)
    assert first_failure(UnalignedWorld, range(SEEDS_TO_CATCH)) is not None
