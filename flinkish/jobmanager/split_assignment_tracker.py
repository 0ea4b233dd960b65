"""Which splits a source's readers have got since which checkpoint, so that those of a reader that restarts come back.

A split that was assigned before a coordinator's snapshot is in the reader's snapshot of the same checkpoint; one that was
assigned later is in neither::

    new ──snapshot n──> of n ──n, or a later one, is complete──> forgotten: the readers have it
     │                   │
     └──its reader goes on from a checkpoint before──> comes back

Source: Flink's ``SplitAssignmentTracker``.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class SplitAssignmentTracker:
    """Splits as bytes: what an enumerator does to its object afterwards changes nothing.

    >>> tracker = SplitAssignmentTracker()
    >>> tracker.assigned(0, b"a"); tracker.snapshot(1); tracker.assigned(0, b"b"); tracker.assigned(1, b"c")
    >>> tracker.take(0, checkpoint_id=1), tracker.take(1, checkpoint_id=0)
    ([b'b'], [b'c'])
    """

    new: dict[int, list[bytes]] = field(default_factory=dict)  # by subtask
    by_checkpoint: dict[int, dict[int, list[bytes]]] = field(default_factory=dict)  # ids rise

    def assigned(self, subtask: int, split: bytes) -> None:
        self.new.setdefault(subtask, []).append(split)

    def snapshot(self, checkpoint_id: int) -> None:
        """The coordinator has taken its snapshot."""
        if self.new:
            self.by_checkpoint[checkpoint_id], self.new = self.new, {}

    def complete(self, checkpoint_id: int) -> None:
        """No reader goes on from an older one any more."""
        for known in [known for known in self.by_checkpoint if known <= checkpoint_id]:
            del self.by_checkpoint[known]

    def take(self, subtask: int, checkpoint_id: int) -> list[bytes]:
        """What this reader does not have when it goes on from ``checkpoint_id``, 0: from its beginning; in the order of
        assignment."""
        splits: list[bytes] = []
        for known, assigned in self.by_checkpoint.items():
            if known > checkpoint_id:
                splits += assigned.pop(subtask, ())
        return splits + self.new.pop(subtask, [])
