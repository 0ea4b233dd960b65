"""Regions that restart in their simulated world, and copies of the cores that are broken on purpose."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest

from flinkish.jobmanager.events import ResetSubtasks
from flinkish.jobmanager.job_master import JobMaster
from flinkish.jobmanager.split_assignment_tracker import SplitAssignmentTracker
from tests.simulation.region_world import RegionWorld
from tests.simulation.worlds import first_failure

SEEDS = 500
SEEDS_TO_CATCH = 100


def test_whatever_fails_each_record_is_published_once_and_the_job_ends():
    failure = first_failure(RegionWorld, range(SEEDS))
    assert failure is None, failure[1]


class ForgetsWhatReadersHaveGot(SplitAssignmentTracker):
    def take(self, subtask, checkpoint_id):
        super().take(subtask, checkpoint_id)
        return []


class GivesBackWhatTheCheckpointHas(SplitAssignmentTracker):
    def complete(self, checkpoint_id):
        pass

    def take(self, subtask, checkpoint_id):
        return super().take(subtask, 0)


class Unchecked(JobMaster):
    """Its own invariants would find some of the faults below: the world must find them without."""

    def check(self):
        pass


class GivesTheNewReaderWhatWasForTheOneBefore(Unchecked):
    def _coordinator_said(self, event):
        return super()._coordinator_said(replace(event, attempt=None))


class RemovesWhatOthersHavePrepared(Unchecked):
    def _attempt_over(self, now_ms):
        waiting = self.recovery.next_attempt
        if waiting.tasks_ended:
            return self._go_on(now_ms)
        waiting.tasks_ended = True
        return self._abort_sinks(now_ms)


class DoesNotResetTheEnumerator(Unchecked):
    def step(self, event, now_ms):
        return [
            replace(effect, subtasks=frozenset()) if isinstance(effect, ResetSubtasks) else effect
            for effect in super().step(event, now_ms)
        ]


class LeavesAloneWhatFailsMeanwhile(Unchecked):
    def _to_restart(self, failed):
        waiting = self.recovery.next_attempt
        return super()._to_restart(failed) if waiting is None else waiting.subtasks


BROKEN = (
    GivesTheNewReaderWhatWasForTheOneBefore,
    RemovesWhatOthersHavePrepared,
    DoesNotResetTheEnumerator,
    LeavesAloneWhatFailsMeanwhile,
)


@pytest.mark.parametrize("master", BROKEN)
def test_a_broken_job_master_is_caught(master):
    assert first_failure(functools.partial(RegionWorld, master=master), range(SEEDS_TO_CATCH)) is not None


@pytest.mark.parametrize("tracker", [ForgetsWhatReadersHaveGot, GivesBackWhatTheCheckpointHas])
def test_a_broken_tracker_is_caught(tracker):
    assert first_failure(functools.partial(RegionWorld, tracker=tracker), range(SEEDS_TO_CATCH)) is not None


def test_these_worlds_do_restart_regions_and_all_tasks():
    worlds = [RegionWorld(seed) for seed in range(15)]
    for world in worlds:
        world.run()
    assert sum(world.restarts_of_regions for world in worlds) > 10
    assert sum(world.master.coordinators_attempt > 0 for world in worlds) > 1
