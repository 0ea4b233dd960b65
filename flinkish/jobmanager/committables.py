"""What the sinks of a job have prepared, from the acknowledgement until it is published.

Way of the committables of one acknowledgement::

    prepared ──a checkpoint that is not older is complete──> in its commit ──published──> gone
        │                                                        │
        │                                                        └──a committer failed──> repeated at recovery
        └──its task is gone, no checkpoint being stored has it──> aborted (a savepoint has it: left alone)

Those of a checkpoint that is given up, or of a savepoint, stay prepared and so go with the next checkpoint that
is complete.  Commits are carried out one at a time, oldest first: a committer may tell by the number that it has
published a checkpoint before, and then a lower number would look as if it had.

Invariants, see ``check``: no commit is there twice; what a savepoint has is prepared.

Source: Flink's ``CommitterOperator`` and ``CommittableCollector``, which do this inside the job.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import AbstractSet, Iterable, Mapping

from flinkish.jobmanager.events import AbortCommittables, CheckpointCommitted, CommitCheckpoint
from flinkish.messages.checkpoints import CheckpointCommit
from flinkish.messages.deployment import ExecutionAttemptID

#: The acknowledgement that brought them: (checkpoint id, execution).
Prepared = tuple[int, ExecutionAttemptID]


@dataclass
class Committables:
    job_id: str
    run_id: str
    commits: list[CheckpointCommit] = field(default_factory=list)  # not known to be published
    prepared: dict[Prepared, Mapping[str, bytes]] = field(default_factory=dict)
    saved: set[Prepared] = field(default_factory=set)  # of ``prepared``: a savepoint has them too
    left_alone: list[Mapping[str, bytes]] = field(default_factory=list)  # of savepoints, not prepared any more
    committing: bool = False  # the first of ``commits``
    held: bool = False  # one has failed

    def up_to(self, checkpoint_id: int) -> frozenset[Prepared]:
        """What this checkpoint publishes if it is complete."""
        return frozenset(key for key in self.prepared if key[0] <= checkpoint_id)

    def commit_of(self, checkpoint_id: int, keys: Iterable[Prepared]) -> tuple[CheckpointCommit, ...]:
        """One, or none where sinks have nothing to publish."""
        committables = self._by_operator(keys)
        if not committables:
            return ()
        return (CheckpointCommit(self.job_id, self.run_id, checkpoint_id, committables),)

    def _by_operator(self, keys: Iterable[Prepared]) -> dict[str, tuple[bytes, ...]]:
        found: dict[str, tuple[bytes, ...]] = {}
        for key in sorted(keys):
            for operator_id, committables in sorted(self.prepared[key].items()):
                found[operator_id] = (*found.get(operator_id, ()), committables)
        return found

    def complete(self, checkpoint_id: int, keys: frozenset[Prepared]) -> list:
        """A checkpoint is durable that has these; returns what to publish now."""
        self.commits += self.commit_of(checkpoint_id, keys)
        for key in keys:
            del self.prepared[key]
        self.saved -= keys
        return self.publish()

    def publish(self) -> list:
        if self.committing or self.held or not self.commits:
            return []
        self.committing = True
        return [CommitCheckpoint(self.commits[0])]

    def repeat(self) -> list:
        """Begin again after a failure."""
        self.held = False
        return self.publish()

    def committed(self, event: CheckpointCommitted) -> list:
        """A committer has answered; after an error the others wait for ``repeat``."""
        first = self.commits[0] if self.committing else None
        if first is None or (first.run_id, first.checkpoint_id) != (event.run_id, event.checkpoint_id):
            return []
        self.committing = False
        if event.error is not None:
            self.held = True
            return []
        del self.commits[0]
        return self.publish()

    def remove_orphans(
        self, executions: AbstractSet[ExecutionAttemptID], storing: AbstractSet[Prepared]
    ) -> list:
        """Abort what tasks have prepared that are none of ``executions`` any more: they will prepare it
        again.  ``storing``: of a checkpoint whose fate is open."""
        orphans = {key for key in self.prepared if key[1] not in executions and key not in storing}
        committables = self._by_operator(orphans - self.saved)
        self.left_alone += [self.prepared[key] for key in sorted(orphans & self.saved)]
        for key in orphans:
            del self.prepared[key]
        self.saved -= orphans
        return [AbortCommittables(self.job_id, committables)] if committables else []

    def take_prepared(self) -> dict[str, tuple[bytes, ...]]:
        """All tasks have finished and no checkpoint will come: what it would publish, by operator."""
        committables = self._by_operator(self.prepared)
        self.prepared.clear()
        self.saved.clear()
        return committables

    def kept(self) -> dict[str, tuple[bytes, ...]]:
        """What must not be removed although no task runs: it may be published yet, or a savepoint has it."""
        found = self._by_operator(self.prepared)
        for commit in self.commits:
            for operator_id, committables in commit.committables.items():
                found[operator_id] = (*found.get(operator_id, ()), *committables)
        for of_savepoint in self.left_alone:
            for operator_id, blob in of_savepoint.items():
                found[operator_id] = (*found.get(operator_id, ()), blob)
        return found

    def check(self) -> None:
        """Assert what holds between any two steps."""
        assert self.saved <= self.prepared.keys()
        assert not self.committing or self.commits
        ids = [(commit.run_id, commit.checkpoint_id) for commit in self.commits]
        assert len(ids) == len(set(ids)), "a commit is there twice"
