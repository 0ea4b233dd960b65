"""What a subtask hands over at a barrier: parts that are fixed already, and keyed state that is to be written.

The keyed part is only consistent while nothing changes the state: whoever takes a TaskSnapshot writes it
before it returns, or forks, because a forked child's memory stands still.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, BinaryIO, Callable, Iterable, Mapping, Optional

from flinkish.messages.checkpoints import (
    Bytes,
    CheckpointMetrics,
    CheckpointOptions,
    IncrementalKeyedStateHandle,
    KeyedStateHandle,
    KeyGroupRange,
    OperatorStateHandle,
)
from flinkish.messages.deployment import ExecutionAttemptID
from flinkish.state.changelog import LogAddition
from flinkish.state.keyed_snapshot import StateEntries, write_keyed_snapshot

if TYPE_CHECKING:
    from flinkish.state.rocksdb_snapshots import Changes  # its package is needed by those who choose it only


@dataclass(frozen=True)
class KeyedStateToWrite:
    """Keyed state and timers of one operator.

    Args:
        states: makes the entries anew at each call.
        num_entries: of all states, timers too.
        stands_still: ``states`` may be walked later, once, on any thread (a database's snapshot).
        changes: an incremental snapshot of a database; ``states`` are then what lies beside it.
        addition: ``states`` are what a checkpoint adds to this changelog.
        compression: as in ``write_keyed_snapshot``.
    """

    operator: str
    states: Callable[[], Iterable[StateEntries]]
    num_entries: int
    key_groups: KeyGroupRange
    max_parallelism: int
    stands_still: bool = False
    changes: Optional["Changes"] = None
    addition: Optional[LogAddition] = None
    compression: Optional[str] = None

    def write(self, out: BinaryIO) -> int:
        """The canonical file; its bytes."""
        return write_keyed_snapshot(
            out, self.states(), self.key_groups, self.max_parallelism, self.compression, self.operator
        )

    def handle(self, operator_id: str, content: Bytes) -> KeyedStateHandle | IncrementalKeyedStateHandle:
        """``content``: what `write` wrote."""
        if self.addition is None:
            return KeyedStateHandle(self.key_groups, content)
        return self.addition.handle(self.key_groups, operator_id, content)


@dataclass(frozen=True)
class OperatorPart:
    """Of one operator.  ``committables``: a pickled list of what its sink writer has prepared and no snapshot
    has had yet."""

    operator_id: str
    keyed: Optional[KeyedStateToWrite] = None
    operator: Optional[OperatorStateHandle] = None
    committables: Optional[bytes] = None


@dataclass(frozen=True)
class TaskSnapshot:
    """Of one subtask.  ``committables``: by operator id, each blob a pickled list.  ``in_flight_follows``: records
    that the barrier has overtaken are handed over later."""

    execution: ExecutionAttemptID
    checkpoint_id: int
    options: CheckpointOptions
    keyed: Mapping[str, KeyedStateToWrite] = field(default_factory=dict)
    operator: Mapping[str, OperatorStateHandle] = field(default_factory=dict)
    committables: Mapping[str, bytes] = field(default_factory=dict)
    finished: bool = False
    metrics: CheckpointMetrics = CheckpointMetrics()
    in_flight_follows: bool = False

    def location_of(self, operator_id: str) -> str:
        """Where the canonical file of an operator goes."""
        is_shared = self.keyed[operator_id].addition is not None
        return self.options.shared_location if is_shared else self.options.location

    @property
    def num_entries(self) -> int:
        return sum(part.num_entries for part in self.keyed.values())
