"""What a subtask hands over at a barrier: parts that are fixed already, and keyed state that is to be written.

The keyed part is only consistent while nothing changes the state: whoever takes a TaskSnapshot writes it
before it returns, or forks, because a forked child's memory stands still.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, BinaryIO, Callable, Iterable, Mapping, Optional

from flinkish.messages.checkpoints import (
    CheckpointMetrics,
    CheckpointOptions,
    KeyGroupRange,
    OperatorStateHandle,
)
from flinkish.messages.deployment import ExecutionAttemptID
from flinkish.state.keyed_snapshot import StateEntries, write_keyed_snapshot


@dataclass(frozen=True)
class KeyedStateToWrite:
    """Keyed state and timers of one operator.

    Args:
        states: makes the entries anew at each call.
        num_entries: of all states, timers too.
        stands_still: ``states`` may be walked later, once, on any thread (a database's snapshot).
        changes: an incremental snapshot of the backend; ``states`` are then what lies beside it.
        compression: as in ``write_keyed_snapshot``.
    """

    operator: str
    states: Callable[[], Iterable[StateEntries]]
    num_entries: int
    key_groups: KeyGroupRange
    max_parallelism: int
    stands_still: bool = False
    changes: Any = None
    compression: Optional[str] = None

    def write(self, out: BinaryIO) -> int:
        """The canonical file; its bytes."""
        return write_keyed_snapshot(
            out, self.states(), self.key_groups, self.max_parallelism, self.compression, self.operator
        )


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

    @property
    def num_entries(self) -> int:
        return sum(part.num_entries for part in self.keyed.values())
