"""What JobManager and slots say to each other about checkpoints, and what a checkpoint consists of.

Way of one checkpoint::

    JobManager                              slots
      coordinators (enumerators) snapshot; what they send to readers is held from here on
      TriggerCheckpoint (source subtasks) ->
                                              barrier behind the records so far, snapshot
                                              barriers flow in the channels, inputs align, snapshot
                                          <-  AcknowledgeCheckpoint (each subtask, once its state is durable)
                                          <-  DeclineCheckpoint (it could not)
      metadata durable: the checkpoint is complete
      CheckpointComplete (all subtasks)   ->  listeners, committers
      CheckpointAborted                   ->  whoever aligns or uploads for it stops

A *handle* says where a part of the state lies: in a file, or in the message itself when it is small.
Files are named by URIs below the folder of the checkpoint storage.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Mapping, Optional, Union

from flinkish.messages.deployment import EdgeDescriptor, ExecutionAttemptID, TaskFailure

# ---- what is asked for --------------------------------------------------------------------------

#: Where checkpoints are when no folder is configured, Flink's JobManagerCheckpointStorage.
JOB_MANAGER_STORAGE = "jobmanager:"


class SnapshotKind(enum.Enum):
    CHECKPOINT = "CHECKPOINT"
    SAVEPOINT = "SAVEPOINT"  # canonical format, owned by the user, the job goes on
    SAVEPOINT_SUSPEND = "SAVEPOINT_SUSPEND"  # stop with savepoint: sources end, nothing is flushed
    SAVEPOINT_TERMINATE = "SAVEPOINT_TERMINATE"  # with drain: event time goes to its end first

    @property
    def is_savepoint(self) -> bool:
        return self is not SnapshotKind.CHECKPOINT

    @property
    def stops(self) -> bool:
        return self in (SnapshotKind.SAVEPOINT_SUSPEND, SnapshotKind.SAVEPOINT_TERMINATE)


@dataclass(frozen=True)
class CheckpointOptions:
    """``location``: URI of the folder of this checkpoint; ``shared_location``: of files that several
    checkpoints use; both begin with JOB_MANAGER_STORAGE when there is no folder.  ``exactly_once`` False:
    barriers do not align.  ``unaligned``: barriers overtake records; with ``aligned_timeout_ms`` only those that
    are not through after that time.  ``forced_aligned``: not on this edge, although the job wants it."""

    kind: SnapshotKind
    location: str
    shared_location: str
    exactly_once: bool = True
    unaligned: bool = False
    aligned_timeout_ms: Optional[int] = None
    forced_aligned: bool = False

    @property
    def may_overtake(self) -> bool:
        return self.unaligned and not self.forced_aligned

    @property
    def is_inline(self) -> bool:
        """All handles must be InlineBytes: the driver keeps the state in its memory."""
        return self.location.startswith(JOB_MANAGER_STORAGE)


# ---- handles ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class InlineBytes:
    """A part of the state that travels in messages and metadata."""

    data: bytes

    @property
    def size(self) -> int:
        return len(self.data)


@dataclass(frozen=True)
class FileHandle:
    """A whole file."""

    uri: str
    size: int


Bytes = Union[InlineBytes, FileHandle]


@dataclass(frozen=True)
class KeyGroupRange:
    """Key groups ``start`` to ``end``, both included; empty when ``end < start``."""

    start: int
    end: int

    def __contains__(self, key_group: int) -> bool:
        return self.start <= key_group <= self.end

    def intersection(self, other: "KeyGroupRange") -> "KeyGroupRange":
        return KeyGroupRange(max(self.start, other.start), min(self.end, other.end))

    @property
    def count(self) -> int:
        return max(0, self.end - self.start + 1)


@dataclass(frozen=True)
class KeyedStateHandle:
    """Keyed state (and timers) of one operator for a range of key groups, as one canonical file
    (``flinkish.state.keyed_snapshot``)."""

    key_groups: KeyGroupRange
    content: Bytes


@dataclass(frozen=True)
class IncrementalKeyedStateHandle:
    """Keyed state of one operator as files of its backend: ``shared`` ones by content address, counted by
    the JobManager, and ``private`` ones of this checkpoint; both from the name in the backend's folder."""

    key_groups: KeyGroupRange
    backend: str
    backend_id: str
    checkpoint_id: int
    shared: Mapping[str, FileHandle]
    private: Mapping[str, Bytes]


class DistributionMode(enum.Enum):
    """How operator state is dealt out when the parallelism changes."""

    SPLIT = "SPLIT"  # list state: each entry to one subtask
    UNION = "UNION"  # all entries to all
    BROADCAST = "BROADCAST"  # every subtask has the same: one copy is enough


@dataclass(frozen=True)
class OperatorStateHandle:
    """Operator state of one subtask: name -> how it is dealt out, and its entries, each for itself
    (``flinkish.state.operator_entries``)."""

    states: Mapping[str, tuple[DistributionMode, tuple[bytes, ...]]]


@dataclass(frozen=True)
class InFlightPart:
    """Frames that a barrier has overtaken on their way from one subtask to another, at ``offset`` of a content.

    ``sender`` None: of several senders of the edge, and before all else that ``receiver`` gets by it.  ``sent``: they
    had reached the receiver; those that had not come behind."""

    edge: EdgeDescriptor
    sender: Optional[int]
    receiver: int
    sent: bool
    offset: int
    length: int
    checksum: int  # crc32


@dataclass(frozen=True)
class InFlightHandle:
    """What unaligned barriers have overtaken at one subtask (``flinkish.taskmanager.in_flight``)."""

    content: Bytes
    parts: tuple[InFlightPart, ...]


@dataclass(frozen=True)
class InFlightRestore:
    """Frames that a subtask takes before anything that its channels bring.

    ``edge_id``: of the program that goes on.  ``sender`` None: that subtask is not there any more, so what it said
    about event time is dropped.  ``partitioner``: pickled; only the records that it sends to this subtask count,
    None: all do."""

    edge_id: int
    sender: Optional[int]
    content: Bytes
    offset: int
    length: int
    checksum: int
    partitioner: Optional[bytes] = None


@dataclass(frozen=True)
class OperatorSubtaskState:
    """All that one operator has saved in one subtask."""

    keyed: tuple[KeyedStateHandle | IncrementalKeyedStateHandle, ...] = ()
    operator: Optional[OperatorStateHandle] = None

    @property
    def is_empty(self) -> bool:
        return not self.keyed and (self.operator is None or not self.operator.states)


@dataclass(frozen=True)
class SubtaskState:
    """All that one subtask has saved, by operator id.  ``finished``: its input had ended before the
    barrier.

    ``committables``: by operator id of sinks, pickled: what was prepared up to this barrier and has not
    gone with an acknowledgement before, so also what was prepared for a checkpoint that this subtask
    declined or gave up.  From here on they are the JobManager's, whatever becomes of the checkpoint."""

    operators: Mapping[str, OperatorSubtaskState] = field(default_factory=dict)
    in_flight: tuple[InFlightHandle, ...] = ()
    committables: Mapping[str, bytes] = field(default_factory=dict)
    finished: bool = False


@dataclass(frozen=True)
class CheckpointMetrics:
    """Of one subtask, Flink's names: milliseconds and bytes."""

    alignment_duration_ms: int = 0
    start_delay_ms: int = 0
    sync_duration_ms: int = 0
    async_duration_ms: int = 0
    processed_bytes: int = 0  # while aligning
    persisted_bytes: int = 0  # in flight
    state_size: int = 0
    uploaded_bytes: int = 0
    unaligned: bool = False


class CheckpointFailureReason(enum.Enum):
    """Why a checkpoint was given up (Flink's names).  ``counts``: towards
    ``execution.checkpointing.tolerable-failed-checkpoints``; the others say nothing about its health."""

    DECLINED = "a task could not take its snapshot"
    ASYNC_EXCEPTION = "a task could not store its snapshot"
    EXPIRED = "it did not complete in time"
    COORDINATOR_FAILED = "a coordinator in the driver could not take its snapshot"
    FINALIZE_FAILURE = "its metadata could not be stored"
    TASK_NOT_READY = "a task was not ready"
    TASK_CLOSING = "a task ended meanwhile"
    ON_CANCELLATION_BARRIER = "a task before it had given it up"
    SUBSUMED = "a newer one is complete"
    JOB_FAILURE = "tasks failed"
    SUSPENDED = "the job is being stopped"
    CANCELLED = "the job was cancelled"

    @property
    def counts(self) -> bool:
        return self in _COUNTING


_COUNTING = frozenset(
    {
        CheckpointFailureReason.DECLINED,
        CheckpointFailureReason.ASYNC_EXCEPTION,
        CheckpointFailureReason.EXPIRED,
        CheckpointFailureReason.COORDINATOR_FAILED,
        CheckpointFailureReason.FINALIZE_FAILURE,
    }
)


# ---- messages -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class TriggerCheckpoint:
    """To a subtask without inputs: put a barrier behind the records so far."""

    execution: ExecutionAttemptID
    checkpoint_id: int
    timestamp_ms: int
    options: CheckpointOptions


@dataclass(frozen=True)
class AcknowledgeCheckpoint:
    """One execution acknowledges in the order of checkpoint ids: one whose upload is done before that of an
    older checkpoint waits for it.  So an id that is not higher than the last one is a repetition."""

    execution: ExecutionAttemptID
    checkpoint_id: int
    state: SubtaskState
    metrics: CheckpointMetrics = CheckpointMetrics()


@dataclass(frozen=True)
class DeclineCheckpoint:
    """The subtask cannot take part, or its snapshot has failed."""

    execution: ExecutionAttemptID
    checkpoint_id: int
    failure: TaskFailure
    reason: CheckpointFailureReason = CheckpointFailureReason.DECLINED


@dataclass(frozen=True)
class NotifyEndOfData:
    """All input of this subtask has ended and its operators have finished; where sinks commit, it
    stays until a checkpoint that began after this is complete.  Flink's ``notifyEndOfData``."""

    execution: ExecutionAttemptID


@dataclass(frozen=True)
class CheckpointComplete:
    job_id: str
    checkpoint_id: int


@dataclass(frozen=True)
class CheckpointAborted:
    """``latest_complete_id``: of the newest complete checkpoint, 0: none."""

    job_id: str
    checkpoint_id: int
    latest_complete_id: int


# ---- a whole checkpoint -------------------------------------------------------------------------


@dataclass(frozen=True)
class OperatorSnapshot:
    """One operator in a checkpoint: by subtask what it has saved; and its coordinator's state."""

    operator_id: str
    uid: Optional[str]
    name: str
    parallelism: int
    max_parallelism: int
    subtasks: Mapping[int, OperatorSubtaskState]
    finished_subtasks: frozenset[int] = frozenset()
    coordinator: Optional[bytes] = None


@dataclass(frozen=True)
class VertexInFlight:
    """What barriers have overtaken at the subtasks of one vertex: on their way to it, or still with it."""

    vertex_id: str
    by_subtask: Mapping[int, tuple[InFlightHandle, ...]]


@dataclass(frozen=True)
class CheckpointCommit:
    """What sinks publish because a checkpoint is complete: by operator id, pickled committables, each in
    the order in which subtasks prepared them.  Job, run and checkpoint number name it for ever, so a committer can
    tell that it has published it before."""

    job_id: str
    run_id: str
    checkpoint_id: int
    committables: Mapping[str, tuple[bytes, ...]]


@dataclass(frozen=True)
class CompletedCheckpoint:
    """What the metadata file of a checkpoint or savepoint says.

    ``run_id`` names the run of the job (a manual restore starts a new one; recovery keeps it): commit ids
    carry job, run and checkpoint number.  ``commits``: what was not known to be published when it was stored,
    oldest first; the last may be its own.  After a restore all are published (again), in this order."""

    job_id: str
    job_name: str
    run_id: str
    checkpoint_id: int
    timestamp_ms: int
    completed_ms: int
    kind: SnapshotKind
    location: str
    operators: Mapping[str, OperatorSnapshot]
    in_flight: tuple[VertexInFlight, ...] = ()
    commits: tuple[CheckpointCommit, ...] = ()
    flinkish_version: str = ""

    @property
    def state_size(self) -> int:
        """Bytes of all handles, shared files counted in full."""
        return sum(
            size_of(handle)
            for operator in self.operators.values()
            for subtask in operator.subtasks.values()
            for handle in subtask.keyed
        )


def size_of(handle: KeyedStateHandle | IncrementalKeyedStateHandle) -> int:
    """Bytes that the state of one handle takes in storage."""
    if isinstance(handle, KeyedStateHandle):
        return handle.content.size
    return sum(part.size for part in (*handle.shared.values(), *handle.private.values()))
