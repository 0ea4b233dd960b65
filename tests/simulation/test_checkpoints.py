"""The CheckpointCoordinator in its simulated world, and copies of it that are broken on purpose."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flinkish.jobmanager.checkpoint_coordinator import CheckpointCoordinator, Phase
from flinkish.jobmanager.completed_checkpoints import CompletedCheckpoints, discard_private
from flinkish.jobmanager.events import (
    CheckpointCommitted,
    CommitCheckpoint,
    DiscardFiles,
    ReleaseCoordinators,
    RestoreFrom,
    SendToExecution,
    SnapshotCoordinators,
    StoreMetadata,
)
from flinkish.jobmanager.pending_checkpoint import PendingCheckpoint
from flinkish.messages.checkpoints import CheckpointFailureReason, SnapshotKind
from flinkish.state import redistribution
from flinkish.state.redistribution import _runs, deal_out_keyed, key_group_range
from tests.simulation.checkpoint_world import CheckpointWorld
from tests.simulation.command import main
from tests.simulation.worlds import WORLDS, first_failure

SEEDS = 2_000
SEEDS_TO_CATCH = 500


def test_whatever_fails_checkpoints_are_whole_and_everything_is_published_once():
    failure = first_failure(CheckpointWorld, range(SEEDS))
    assert failure is None, failure[1]


class Unchecked(CheckpointCoordinator):
    """Its own invariants would find some of the faults below: the world must find them without."""

    def check(self):
        pass


class CommitsBeforeItIsDurable(Unchecked):
    def _store_next(self, now_ms):
        effects = super()._store_next(now_ms)
        for effect in list(effects):
            if isinstance(effect, StoreMetadata) and effect.checkpoint.commits and not self.committables.committing:
                effects.append(CommitCheckpoint(effect.checkpoint.commits[-1]))
        return effects


class TellsBeforeItIsDurable(Unchecked):
    def _store_next(self, now_ms):
        effects = super()._store_next(now_ms)
        for pending in list(self.pending.values()):
            if pending.phase is Phase.STORING:
                effects += self._stored(pending, None, now_ms)
        return effects


class CountsAcknowledgementsOfOldAttempts(Unchecked):
    def _task_acknowledged(self, message):
        old = message.execution
        for execution in self.running:
            if (execution.vertex_id, execution.subtask_index) == (old.vertex_id, old.subtask_index):
                message = replace(message, execution=execution)
        return super()._task_acknowledged(message)


class IsCompleteWithOneMissing(Unchecked):
    def _task_acknowledged(self, message):
        effects = super()._task_acknowledged(message)
        for pending in self.pending.values():
            if pending.phase is Phase.TASKS and len(pending.waiting) == 1 and pending.states:
                pending.phase = Phase.ACKNOWLEDGED
        return effects


class ForgetsCoordinators(Unchecked):
    """Triggers the sources at once."""

    def _begin(self, kind, request, now_ms):
        effects = super()._begin(kind, request, now_ms)
        pending = self.pending[self.next_checkpoint_id - 1]
        if pending.phase is Phase.COORDINATORS:
            pending.waiting_coordinators.clear()
            effects = [effect for effect in effects if not isinstance(effect, SnapshotCoordinators)]
            effects += self._trigger_tasks(pending)
        return effects


class ReleasesCoordinatorsTooEarly(Unchecked):
    def _trigger_tasks(self, pending):
        effects = super()._trigger_tasks(pending)
        return sorted(effects, key=lambda effect: not isinstance(effect, ReleaseCoordinators))


class LosesWhatFailedCheckpointsPrepared(Unchecked):
    def _give_up(self, pending, *arguments, **options):
        for key in list(self.committables.prepared):
            if key[0] == pending.checkpoint_id:
                del self.committables.prepared[key]
        return super()._give_up(pending, *arguments, **options)


class KeepsWhatFailedTasksPrepared(Unchecked):
    def _remove_orphans(self):
        return []


class CountsRepetitions(Unchecked):
    def _task_acknowledged(self, message):
        self.acknowledged[message.execution] = 0
        return super()._task_acknowledged(message)


class DiscardsFilesOfRepetitions(Unchecked):
    def _task_acknowledged(self, message):
        if message.checkpoint_id not in self.pending:
            return [*discard_private(self.job_id, message.state), *super()._task_acknowledged(message)]
        return super()._task_acknowledged(message)


class RecoversWhileStoring(Unchecked):
    def _restore_when_ready(self):
        if self.recovering and not self.has_unpublished:
            self.recovering = False
            return [RestoreFrom(self.completed.latest)]
        return []

    def _tasks_run(self, event, now_ms):
        self.pending.clear()
        return super()._tasks_run(event, now_ms)


class ForgetsToPublishAgain(Unchecked):
    def __post_init__(self):
        super().__post_init__()
        self.committables.commits.clear()


class TakesFailedCommitsForDone(Unchecked):
    def _apply(self, event, now_ms):
        return super()._apply(replace(event, error=None) if isinstance(event, CheckpointCommitted) else event, now_ms)


class PublishesWithoutOrder(Unchecked):
    """The newest first."""

    def __post_init__(self):
        super().__post_init__()
        publish = self.committables.publish

        def newest_first():
            if not self.committables.committing:
                self.committables.commits.sort(key=lambda commit: -commit.checkpoint_id)
            return publish()

        self.committables.publish = newest_first


class PublishesSavepoints(Unchecked):
    """And again with the next checkpoint."""

    def _stored(self, pending, error, now_ms):
        effects = super()._stored(pending, error, now_ms)
        if error is None and pending.completed.commits and not self.has_unpublished and pending.request is not None:
            self.committables.commits = [pending.completed.commits[-1]]
            effects += self.committables.publish()
        return effects


class AbortsWhatSavepointsHave(Unchecked):
    """When their tasks fail, though a new job may begin from the savepoint."""

    def _remove_orphans(self):
        self.committables.saved.clear()
        return super()._remove_orphans()


class ForgetsWhatSavepointsHave(Unchecked):
    """So sinks remove it with what else is left when no task runs."""

    def _remove_orphans(self):
        effects = super()._remove_orphans()
        self.committables.left_alone.clear()
        return effects


class SavepointsTakeWhatIsPublished(Unchecked):
    """So that the next checkpoint does not publish it."""

    def _stored(self, pending, error, now_ms):
        effects = super()._stored(pending, error, now_ms)
        if error is None and pending.kind is SnapshotKind.SAVEPOINT:
            for key in pending.publishes & self.committables.prepared.keys():
                del self.committables.prepared[key]
        return effects


class SavepointsSubsumeCheckpoints(Unchecked):
    def _stored(self, pending, error, now_ms):
        effects = super()._stored(pending, error, now_ms)
        if error is None and pending.kind is SnapshotKind.SAVEPOINT:
            for older in [known for known in self.pending.values() if known.checkpoint_id < pending.checkpoint_id]:
                effects += self._give_up(older, CheckpointFailureReason.SUBSUMED, now_ms)
        return effects


class GoesOnFromSavepoints(Unchecked):
    """Of a job that goes on: what came before the savepoint is not published yet."""

    def _stored(self, pending, error, now_ms):
        effects = super()._stored(pending, error, now_ms)
        if error is None and pending.kind is SnapshotKind.SAVEPOINT:
            effects += self.completed.add(pending.completed)
        return effects


class CountsSavepointsThatFail(Unchecked):
    """As if they were checkpoints: too many fail the job."""

    def _after_failure(self, pending, reason, failure, triggered, by_task):
        return super()._after_failure(pending, reason, failure, triggered, True)


class WaitsWithTheLastCheckpoint(Unchecked):
    """Until a periodic one is due."""

    def _checkpoint_is_due(self, now_ms):
        return now_ms >= self.next_periodic_ms and super()._checkpoint_is_due(now_ms)


class StoresTwoAtOnce(Unchecked):
    def _store_next(self, now_ms):
        effects = super()._store_next(now_ms)
        for pending in self.pending.values():
            if pending.phase is Phase.ACKNOWLEDGED:
                stored = [other.phase for other in self.pending.values()]
                for other in self.pending.values():
                    other.phase = Phase.TASKS if other is not pending else Phase.ACKNOWLEDGED
                effects += super()._store_next(now_ms)
                for other, phase in zip(self.pending.values(), stored):
                    other.phase = phase
                pending.phase = Phase.STORING
        return effects


class NeverGivesUp(Unchecked):
    def _tick(self, late_ms, now_ms):
        return []


class StaysStopped(Unchecked):
    """After a stop with savepoint that has failed."""

    def _after_failure(self, pending, reason, failure, triggered, by_task):
        stopping = self.stopping
        effects = super()._after_failure(pending, reason, failure, triggered, by_task)
        self.stopping = stopping
        return effects


class TriggersTheWrongTasks(Unchecked):
    """Only sources, also when they have finished."""

    def _begin(self, kind, request, now_ms):
        effects = super()._begin(kind, request, now_ms)
        sources = {vertex.vertex_id for vertex in self.vertices if not vertex.inputs}
        pending = self.pending[self.next_checkpoint_id - 1]
        pending.trigger = [task for task in pending.trigger if task.vertex_id in sources]
        return [
            effect
            for effect in effects
            if not isinstance(effect, SendToExecution) or effect.message.execution.vertex_id in sources
        ]


class DiscardsByTheSubsumedOneAlone(CompletedCheckpoints):
    """All shared files of a subsumed checkpoint, without a look at who else uses them."""

    def add(self, checkpoint):
        before = list(self.retained)
        effects = super().add(checkpoint)
        for old in before:
            if old not in self.retained:
                uris = [
                    file.uri
                    for operator in old.operators.values()
                    for saved in operator.subtasks.values()
                    for keyed in saved.keyed
                    for file in getattr(keyed, "shared", {}).values()
                ]
                effects.append(DiscardFiles(self.job_id, tuple(uris)))
        return effects

    def check(self):
        pass


class KeepsNoSharedFileOfLateOnes(CompletedCheckpoints):
    """Files are counted by complete checkpoints only, so one that a pending checkpoint uses goes."""

    def acknowledged(self, checkpoint_id, state):
        pass

    def add(self, checkpoint):
        used = [
            file.uri
            for operator in checkpoint.operators.values()
            for saved in operator.subtasks.values()
            for keyed in saved.keyed
            for file in getattr(keyed, "shared", {}).values()
        ]
        self.last_use.update(dict.fromkeys(set(used) - self.last_use.keys(), checkpoint.checkpoint_id))
        return super().add(checkpoint)

    def check(self):
        pass


class DiscardsTheNewest(CompletedCheckpoints):
    def add(self, checkpoint):
        effects = super().add(checkpoint)
        if len(self.retained) > 1:
            self.retained.reverse()
        return effects

    def check(self):
        pass


class OwnsWhatAnotherJobHasLeft(CompletedCheckpoints):
    def restore(self, checkpoint, owned):
        super().restore(checkpoint, owned=True)


class OwnsWhatItsCheckpointsReferTo(CompletedCheckpoints):
    """Whoever takes the job over, which began from a checkpoint of another."""

    def restore(self, checkpoint, owned):
        self.claimed = True
        super().restore(checkpoint, owned)


class LeavesSharedFiles(CompletedCheckpoints):
    def _discard_unused(self, uris):
        return []


BROKEN_COORDINATORS = [broken for broken in Unchecked.__subclasses__()]
BROKEN_STORES = [broken for broken in CompletedCheckpoints.__subclasses__()]


@pytest.mark.parametrize("broken", BROKEN_COORDINATORS, ids=lambda broken: broken.__name__)
def test_a_broken_coordinator_is_caught(broken):
    assert first_failure(lambda seed: CheckpointWorld(seed, coordinator=broken), range(SEEDS_TO_CATCH))


@pytest.mark.parametrize("broken", BROKEN_STORES, ids=lambda broken: broken.__name__)
def test_a_broken_store_of_checkpoints_is_caught(broken):
    def world(seed):
        return CheckpointWorld(seed, coordinator=Unchecked, completed=broken)

    assert first_failure(world, range(SEEDS_TO_CATCH))


def drops_single_key_groups(handles, parallelism, max_parallelism):
    dealt = deal_out_keyed(handles, parallelism, max_parallelism)
    return [tuple(handle for handle in part if handle.key_groups.count > 1) for part in dealt]


def skips_an_entry(entries, parallelism, start):
    return _runs(entries[:2] + entries[3:] if parallelism > 2 else entries, parallelism, start)


def doubles_an_entry(entries, parallelism, start):
    return _runs(entries + entries[-1:] if parallelism > 2 else entries, parallelism, start)


def gives_all_what_is_the_firsts(max_parallelism, parallelism, index):
    return key_group_range(max_parallelism, parallelism, 0)


BROKEN_DEALERS = {
    drops_single_key_groups: "deal_out_keyed",
    skips_an_entry: "_runs",
    doubles_an_entry: "_runs",
    gives_all_what_is_the_firsts: "key_group_range",
}


@pytest.mark.parametrize("broken", BROKEN_DEALERS, ids=lambda broken: broken.__name__)
def test_state_that_is_dealt_out_wrongly_is_caught(broken, monkeypatch):
    monkeypatch.setattr(redistribution, BROKEN_DEALERS[broken], broken)
    assert first_failure(CheckpointWorld, range(SEEDS_TO_CATCH))


def test_what_a_drain_has_ended_and_is_taken_for_finished_is_caught(monkeypatch):
    def whatever_has_ended(self, vertex):
        ended = {(task.vertex_id, task.subtask_index) for task, state in self.states.items() if state.finished}
        return frozenset(index for vertex_id, index in self.finished | ended if vertex_id == vertex.vertex_id)

    monkeypatch.setattr(PendingCheckpoint, "finished_subtasks", whatever_has_ended)
    assert first_failure(CheckpointWorld, range(SEEDS_TO_CATCH))


def test_the_command_counts_seeds(capsys):
    assert main(["--seeds", "3", "--first-seed", "7", "--world", "checkpoints"]) == 0
    assert capsys.readouterr().out.startswith("checkpoints: 3 seeds")


def test_the_command_tells_the_story_of_a_seed_that_fails(capsys, monkeypatch):
    def broken(seed):
        return CheckpointWorld(seed, coordinator=IsCompleteWithOneMissing)

    monkeypatch.setitem(WORLDS, "checkpoints", broken)
    assert main(["--seeds", "100", "--world", "checkpoints", "--processes", "1"]) == 1
    out = capsys.readouterr().out
    assert "StoreMetadata" in out and "--first-seed" in out
