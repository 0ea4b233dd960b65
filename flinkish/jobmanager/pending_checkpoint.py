"""One checkpoint or savepoint on its way, and how it becomes a CompletedCheckpoint: plain data.

Its phases are those of ``flinkish.jobmanager.checkpoint_coordinator``, which moves it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Optional, Sequence

from flinkish.jobmanager.checkpoint_plan import CheckpointedVertex, Subtask
from flinkish.jobmanager.committables import Prepared
from flinkish.jobmanager.events import SnapshotRequested
from flinkish.messages.checkpoints import (
    CompletedCheckpoint,
    DistributionMode,
    OperatorSnapshot,
    SnapshotKind,
    SubtaskState,
    VertexInFlight,
)
from flinkish.messages.deployment import ExecutionAttemptID


class Phase(enum.Enum):
    COORDINATORS = "COORDINATORS"  # of operators take their snapshot
    TASKS = "TASKS"  # take theirs
    ACKNOWLEDGED = "ACKNOWLEDGED"  # by all; waits for another to be stored
    STORING = "STORING"  # its metadata


@dataclass
class PendingCheckpoint:
    checkpoint_id: int
    kind: SnapshotKind
    location: str
    timestamp_ms: int
    deadline_ms: int
    trigger: list[ExecutionAttemptID]
    waiting: set[ExecutionAttemptID]  # for their acknowledgement
    waiting_coordinators: set[str]
    finished: frozenset[Subtask]  # before it began
    at_end: frozenset[ExecutionAttemptID]  # of their data, before it began
    request: Optional[SnapshotRequested] = None
    phase: Phase = Phase.COORDINATORS
    states: dict[ExecutionAttemptID, SubtaskState] = field(default_factory=dict)
    coordinator_states: dict[str, Optional[bytes]] = field(default_factory=dict)
    publishes: frozenset[Prepared] = frozenset()
    completed: Optional[CompletedCheckpoint] = None  # what is being stored
    warned: bool = False

    @property
    def name(self) -> str:
        return f"{'savepoint' if self.kind.is_savepoint else 'checkpoint'} {self.checkpoint_id}"

    def finished_subtasks(self, vertex: CheckpointedVertex) -> frozenset[int]:
        """Subtasks that had nothing to save any more.

        Those that a drain has brought to their end are none of them: whoever goes on from the savepoint goes on with
        their data.  Source: Flink's ``DefaultCheckpointPlan``, where only what finished before the trigger counts."""
        drains = self.kind is SnapshotKind.SAVEPOINT_TERMINATE
        before = {index for vertex_id, index in self.finished if vertex_id == vertex.vertex_id}
        meanwhile = {
            execution.subtask_index
            for execution, state in self.states.items()
            if execution.vertex_id == vertex.vertex_id
            and state.finished
            and (execution in self.at_end or not drains)
        }
        return frozenset(before | meanwhile)

    def partly_finished_union(self, vertices: Sequence[CheckpointedVertex]) -> Optional[str]:
        """Name of an operator with union state of which some subtasks have finished.

        Each subtask gets all entries of a union state at restore, so those of a finished one would be missing.
        Flink refuses such a checkpoint too."""
        for vertex in vertices:
            finished = self.finished_subtasks(vertex)
            if not finished or len(finished) == vertex.parallelism:
                continue
            states = [
                state
                for execution, state in self.states.items()
                if execution.vertex_id == vertex.vertex_id and execution.subtask_index not in finished
            ]
            for operator in vertex.operators:
                for state in states:
                    saved = state.operators.get(operator.operator_id)
                    handle = saved.operator if saved is not None else None
                    if handle and any(mode is DistributionMode.UNION for mode, _ in handle.states.values()):
                        return operator.name
        return None

    def operator_snapshots(self, vertices: Sequence[CheckpointedVertex]) -> dict[str, OperatorSnapshot]:
        """What each operator has saved, by its id."""
        operators = {}
        for vertex in vertices:
            states = self._states_of(vertex)
            finished = self.finished_subtasks(vertex)
            for operator in vertex.operators:
                operators[operator.operator_id] = OperatorSnapshot(
                    operator.operator_id,
                    operator.uid,
                    operator.name,
                    vertex.parallelism,
                    vertex.max_parallelism,
                    {
                        index: state.operators[operator.operator_id]
                        for index, state in states.items()
                        if operator.operator_id in state.operators
                    },
                    finished,
                    self.coordinator_states.get(operator.operator_id),
                )
        return operators

    def in_flight(self, vertices: Sequence[CheckpointedVertex]) -> tuple[VertexInFlight, ...]:
        """The records that barriers have overtaken, of vertices where there are any."""
        found = []
        for vertex in vertices:
            states = self._states_of(vertex)
            overtaken = {index: state.in_flight for index, state in states.items() if state.in_flight}
            if overtaken:
                found.append(VertexInFlight(vertex.vertex_id, overtaken))
        return tuple(found)

    def _states_of(self, vertex: CheckpointedVertex) -> dict[int, SubtaskState]:
        return {
            execution.subtask_index: self.states[execution]
            for execution in sorted(self.states)
            if execution.vertex_id == vertex.vertex_id
        }
