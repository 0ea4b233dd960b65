"""The complete checkpoints of a job: which are retained, and which files may go.

The newest ``retained_max`` checkpoints are retained; an older one is *subsumed* and discarded.  A savepoint
is its user's: it does not count and nothing of it is ever discarded.  One that stopped the job is
remembered until a newer checkpoint is complete all the same, for what it published must not be published again.

Files that several checkpoints use are counted by their *last use*: the highest id of a checkpoint
in which a task has referred to the file, be it complete, pending or given up.  A file goes when its last use is
older than every retained checkpoint.  That is as sharp as counting references, and safe for files of a
checkpoint that was given up: the task that uploaded one may refer to it again until a newer one is complete.

What tasks have stored for checkpoints to come, and nobody has heard of, is found in the folder when all of them have
ended: then what no complete checkpoint refers to is *swept*.  That cannot be while some run on.

A run that goes on from the newest checkpoint of another owns the older ones of that run too, and what that run (in the
folder ``predecessor``) has not completed (``unfinished``): that goes when this run completes its first checkpoint, or
ends.

Checkpoints from before a manual restore are not *owned*: they can be restored from, and are never discarded.  Neither
are the shared files that the job's own checkpoints refer to because of that: whoever takes the job over from those
alone knows them by their folder, which is another (``claimed``).

Invariants, see ``check``: ids rise; a file that a retained checkpoint refers to has not been discarded and
its last use is not older than that checkpoint.

Source: Flink's ``DefaultCompletedCheckpointStore``, ``SharedStateRegistryImpl``, ``CheckpointProperties``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Iterable, Optional

from flinkish.common.job_status import JobStatus
from flinkish.jobmanager.events import DiscardCheckpoint, DiscardFiles, SweepSharedFiles
from flinkish.messages.checkpoints import (
    CompletedCheckpoint,
    FileHandle,
    IncrementalKeyedStateHandle,
    OperatorSubtaskState,
    SubtaskState,
)


class CheckpointRetention(enum.Enum):
    """Values of ``execution.checkpointing.externalized-checkpoint-retention``."""

    NO_EXTERNALIZED_CHECKPOINTS = "NO_EXTERNALIZED_CHECKPOINTS"
    DELETE_ON_CANCELLATION = "DELETE_ON_CANCELLATION"
    RETAIN_ON_CANCELLATION = "RETAIN_ON_CANCELLATION"

    def retains(self, status: JobStatus) -> bool:
        """Whether the checkpoints of a job that has ended like this stay.

        >>> CheckpointRetention.DELETE_ON_CANCELLATION.retains(JobStatus.FAILED)
        True
        """
        if status is JobStatus.FAILED:
            return self is not CheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS
        if status is JobStatus.CANCELED:
            return self is CheckpointRetention.RETAIN_ON_CANCELLATION
        return False


@dataclass
class CompletedCheckpoints:
    """Empty, or with what ``restore`` brings.  ``claimed``: the job owns what it began from, and so all shared files
    that its own checkpoints refer to; else only those beside them."""

    job_id: str
    retained_max: int = 1
    retention: CheckpointRetention = CheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS
    retained: list[CompletedCheckpoint] = field(default_factory=list)  # owned, oldest first
    others: list[CompletedCheckpoint] = field(default_factory=list)  # stopping savepoints, not owned ones
    last_use: dict[str, int] = field(default_factory=dict)  # URI of a shared file -> checkpoint id
    not_owned: set[str] = field(default_factory=set)  # shared files that are somebody else's
    unfinished: tuple[str, ...] = ()  # locations
    predecessor: Optional[str] = None  # location
    claimed: bool = True

    @property
    def latest(self) -> Optional[CompletedCheckpoint]:
        """Where a restart goes on."""
        known = (*self.retained, *self.others)
        return max(known, key=lambda checkpoint: checkpoint.checkpoint_id, default=None)

    def restore(self, checkpoint: CompletedCheckpoint, owned: bool) -> None:
        """Take one that was complete before this object was made, in order of ids.

        ``owned``: of this job, so that it is subsumed like one's own."""
        if owned and not checkpoint.kind.is_savepoint:
            self.retained.append(checkpoint)
            files = shared_files_of(checkpoint)
            if not self.claimed:
                folder = checkpoint.location.rpartition("/")[0]
                self.not_owned.update(uri for uri in files if not uri.startswith(f"{folder}/"))
            self._use(checkpoint.checkpoint_id, files)
        else:
            self.others.append(checkpoint)
            self.not_owned.update(shared_files_of(checkpoint))

    def acknowledged(self, checkpoint_id: int, state: SubtaskState) -> None:
        """A task refers to the shared files of ``state`` for a checkpoint (not for a savepoint)."""
        self._use(checkpoint_id, _shared_of(state.operators.values()))

    def _use(self, checkpoint_id: int, uris: Iterable[str]) -> None:
        for uri in uris:
            if uri not in self.not_owned:
                self.last_use[uri] = max(checkpoint_id, self.last_use.get(uri, 0))

    def add(self, checkpoint: CompletedCheckpoint) -> list:
        """The metadata of ``checkpoint`` is durable; returns what may be discarded because of that."""
        if checkpoint.kind.is_savepoint:
            self.others.append(checkpoint)
            return []
        self.retained.append(checkpoint)
        self.others.clear()
        subsumed = self.retained[: -self.retained_max]
        self.retained = self.retained[-self.retained_max :]
        effects = [DiscardCheckpoint(self.job_id, old.location) for old in subsumed] + self._discard_unfinished()
        oldest = self.retained[0].checkpoint_id
        return effects + self._discard_unused([uri for uri, last in self.last_use.items() if last < oldest])

    def job_ended(self, status: JobStatus, unpublished: bool) -> list:
        """The job has ended, nobody refers to anything new; returns what to discard.

        ``unpublished``: not all that the newest checkpoint publishes is published.  Then that one
        stays whatever the retention says, for it is all that is left of those records."""
        kept = list(self.retained) if self.retention.retains(status) else []
        if unpublished and not kept:
            kept = self.retained[-1:]
        effects: list = [
            DiscardCheckpoint(self.job_id, old.location) for old in self.retained if old not in kept
        ]
        effects += self._discard_unfinished()
        self.retained = kept
        used = {uri for checkpoint in kept for uri in shared_files_of(checkpoint)}
        return effects + self._discard_unused([uri for uri in self.last_use if uri not in used])

    def _discard_unused(self, uris: list[str]) -> list:
        for uri in uris:
            del self.last_use[uri]
        return [DiscardFiles(self.job_id, tuple(sorted(uris)))] if uris else []

    def _discard_unfinished(self) -> list:
        locations, self.unfinished = self.unfinished, ()
        effects: list = [DiscardCheckpoint(self.job_id, location, unless_complete=True) for location in locations]
        if self.predecessor is not None:
            effects.append(SweepSharedFiles(self.job_id, self.predecessor))
            self.predecessor = None
        return effects

    def check(self) -> None:
        """Assert what holds between any two steps."""
        ids = [checkpoint.checkpoint_id for checkpoint in self.retained]
        assert ids == sorted(set(ids))
        assert all(not checkpoint.kind.is_savepoint for checkpoint in self.retained)
        for checkpoint in self.retained:
            for uri in shared_files_of(checkpoint):
                if uri not in self.not_owned:
                    assert self.last_use[uri] >= checkpoint.checkpoint_id, f"{uri} was discarded"


def discard_private(job_id: str, state: SubtaskState) -> list:
    """The files that only this acknowledgement refers to may go: its checkpoint is gone."""
    handles: list = [handle.content for handle in state.in_flight]
    for operator in state.operators.values():
        for keyed in operator.keyed:
            if isinstance(keyed, IncrementalKeyedStateHandle):
                handles += keyed.private.values()
            else:
                handles.append(keyed.content)
    uris = sorted({handle.uri for handle in handles if isinstance(handle, FileHandle)})
    return [DiscardFiles(job_id, tuple(uris))] if uris else []


def _shared_of(states: Iterable[OperatorSubtaskState]) -> list[str]:
    return [
        file.uri
        for state in states
        for keyed in state.keyed
        if isinstance(keyed, IncrementalKeyedStateHandle)
        for file in keyed.shared.values()
    ]


def shared_files_of(checkpoint: CompletedCheckpoint) -> list[str]:
    """URIs."""
    return [
        uri for operator in checkpoint.operators.values() for uri in _shared_of(operator.subtasks.values())
    ]
