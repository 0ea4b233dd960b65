"""Snapshots of one subtask between its barrier and its acknowledgement.

Each is stored by somebody else, who says ``stored`` or ``failed`` in any order, and ``in_flight_stored`` where
an unaligned barrier may have overtaken records.  Acknowledgements leave in
the order of checkpoint ids, so one that is stored waits for the older ones.  What sinks have prepared goes with an
acknowledgement, whatever becomes of the checkpoint: that of a snapshot which fails or is given up goes
with the next one.

Invariant: what was prepared is in exactly one place, an entry, ``left_over``, or an acknowledgement.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from typing import Mapping, Optional, Union

import cloudpickle

from flinkish.messages.checkpoints import (
    AcknowledgeCheckpoint,
    CheckpointFailureReason,
    CheckpointMetrics,
    DeclineCheckpoint,
    FileHandle,
    IncrementalKeyedStateHandle,
    InFlightHandle,
    KeyedStateHandle,
    OperatorSubtaskState,
    SubtaskState,
    size_of,
)
from flinkish.messages.deployment import TaskFailure
from flinkish.operators.snapshots import TaskSnapshot

KeyedHandles = Mapping[str, tuple[Union[KeyedStateHandle, IncrementalKeyedStateHandle], ...]]


@dataclass
class _Entry:
    snapshot: TaskSnapshot
    state: Optional[SubtaskState] = None
    in_flight: Optional[tuple[InFlightHandle, ...]] = None  # not known yet
    metrics: CheckpointMetrics = CheckpointMetrics()


class OutstandingSnapshots:
    def __init__(self) -> None:
        self._entries: dict[int, _Entry] = {}  # by id, rising
        self.left_over: dict[str, bytes] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, checkpoint_id: int) -> bool:
        return checkpoint_id in self._entries

    def ids(self) -> list[int]:
        return list(self._entries)

    def taken(self, snapshot: TaskSnapshot) -> None:
        assert all(older < snapshot.checkpoint_id for older in self._entries)
        committables = _merged(self.left_over, snapshot.committables)
        self.left_over = {}
        entry = self._entries[snapshot.checkpoint_id] = _Entry(replace(snapshot, committables=committables))
        if not snapshot.in_flight_follows:
            entry.in_flight = ()

    def in_flight_stored(
        self, checkpoint_id: int, handles: tuple[InFlightHandle, ...]
    ) -> list[AcknowledgeCheckpoint]:
        """What the barrier has overtaken is durable too; what may be acknowledged now."""
        entry = self._entries.get(checkpoint_id)
        if entry is None:
            return []  # given up meanwhile
        entry.in_flight = handles
        return self._release()

    def stored(
        self, checkpoint_id: int, keyed: KeyedHandles, async_ms: int = 0, uploaded_bytes: int = 0
    ) -> list[AcknowledgeCheckpoint]:
        """All of it is durable; what may be acknowledged now."""
        entry = self._entries.get(checkpoint_id)
        if entry is None:
            return []  # given up meanwhile
        snapshot = entry.snapshot
        operators = {
            operator_id: OperatorSubtaskState(keyed.get(operator_id, ()), snapshot.operator.get(operator_id))
            for operator_id in (*snapshot.keyed, *(known for known in snapshot.operator if known not in snapshot.keyed))
        }
        size = sum(size_of(handle) for handles in keyed.values() for handle in handles)
        size += sum(
            len(part) for handle in snapshot.operator.values() for _, parts in handle.states.values() for part in parts
        )
        entry.state = SubtaskState(operators, finished=snapshot.finished)
        entry.metrics = replace(
            snapshot.metrics, async_duration_ms=async_ms, state_size=size, uploaded_bytes=uploaded_bytes
        )
        return self._release()

    def failed(self, checkpoint_id: int, failure: TaskFailure) -> list[Union[AcknowledgeCheckpoint, DeclineCheckpoint]]:
        """It could not be stored."""
        entry = self._entries.get(checkpoint_id)
        if entry is None:
            return []
        self._drop(checkpoint_id)
        reason = CheckpointFailureReason.ASYNC_EXCEPTION
        decline = DeclineCheckpoint(entry.snapshot.execution, checkpoint_id, failure, reason)
        return [decline, *self._release()]

    def given_up(self, checkpoint_id: int) -> list[AcknowledgeCheckpoint]:
        """The JobManager does not want it any more."""
        if checkpoint_id not in self._entries:
            return []
        self._drop(checkpoint_id)
        return self._release()

    def _drop(self, checkpoint_id: int) -> None:
        committables = self._entries.pop(checkpoint_id).snapshot.committables
        for younger, entry in self._entries.items():
            if younger > checkpoint_id:
                merged = _merged(committables, entry.snapshot.committables)
                entry.snapshot = replace(entry.snapshot, committables=merged)
                return
        self.left_over = _merged(self.left_over, committables)

    def _release(self) -> list[AcknowledgeCheckpoint]:
        acknowledged = []
        for checkpoint_id, entry in list(self._entries.items()):
            if entry.state is None or entry.in_flight is None:
                break
            del self._entries[checkpoint_id]
            state = replace(
                entry.state, committables=entry.snapshot.committables, in_flight=entry.in_flight
            )
            persisted = sum(part.length for handle in entry.in_flight for part in handle.parts)
            uploaded = sum(
                handle.content.size for handle in entry.in_flight if isinstance(handle.content, FileHandle)
            )
            metrics = replace(
                entry.metrics,
                persisted_bytes=persisted,
                uploaded_bytes=entry.metrics.uploaded_bytes + uploaded,
            )
            acknowledged.append(AcknowledgeCheckpoint(entry.snapshot.execution, checkpoint_id, state, metrics))
        return acknowledged


def _merged(first: Mapping[str, bytes], second: Mapping[str, bytes]) -> dict[str, bytes]:
    """Both, the committables of ``first`` in front."""
    merged = dict(first)
    for operator_id, blob in second.items():
        if operator_id in merged:
            blob = cloudpickle.dumps([*pickle.loads(merged[operator_id]), *pickle.loads(blob)])
        merged[operator_id] = blob
    return merged
