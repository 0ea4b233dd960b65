"""ExecutionGraph: the subtasks of one attempt, their states, channels and slots.  Plain data.

States of a subtask (Flink's)::

    CREATED -> SCHEDULED -> DEPLOYING -> INITIALIZING -> RUNNING -> FINISHED
       |           |            |              |            |
       |           |            +--------------+------------+--> CANCELING -> CANCELED
       +-----------+-------------------------------------------------------> CANCELED
    any of them that has not ended -> FAILED

Invariants: FINISHED, CANCELED and FAILED are left by nothing; subtask i of every vertex of a slot
sharing group is in the i-th slot of that group; a channel id belongs to one pair of subtasks of
one edge, and both ends list it.

Source: Flink's ``ExecutionState``, ``Execution``, ``VertexInputInfoComputationUtils`` (which
consumers a pointwise producer reaches) and ``SlotSharingStrategy``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Mapping, Sequence

from flinkish.datastream.partitioners import BroadcastPartitioner
from flinkish.errors import InternalError, NotEnoughSlotsError
from flinkish.graph.chain_pickling import main_module_classes, pickle_chains
from flinkish.graph.job_graph import JobEdge, JobGraph, JobVertex
from flinkish.messages.deployment import (
    ChannelDescriptor,
    EdgeDescriptor,
    ExecutionAttemptID,
    InputDescriptor,
    OutputDescriptor,
    TaskDeploymentDescriptor,
)

__all__ = [
    "ExecutionGraph",
    "ExecutionJobVertex",
    "ExecutionState",
    "ExecutionVertex",
    "assign_slots",
    "build_deployments",
    "connections",
    "create_execution_graph",
    "main_module_classes",
    "pickle_chains",
    "slot_sharing_groups",
    "slots_needed",
]


class ExecutionState(enum.Enum):
    CREATED = "CREATED"
    SCHEDULED = "SCHEDULED"
    DEPLOYING = "DEPLOYING"
    INITIALIZING = "INITIALIZING"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    CANCELING = "CANCELING"
    CANCELED = "CANCELED"
    FAILED = "FAILED"

    @property
    def is_terminal(self) -> bool:
        return not _TRANSITIONS[self]

    def can_become(self, new: "ExecutionState") -> bool:
        return new in _TRANSITIONS[self]


_S = ExecutionState
_TRANSITIONS: dict[ExecutionState, frozenset[ExecutionState]] = {
    _S.CREATED: frozenset({_S.SCHEDULED, _S.CANCELED, _S.FAILED}),
    _S.SCHEDULED: frozenset({_S.DEPLOYING, _S.CANCELED, _S.FAILED}),
    # A slot that restores nothing reports RUNNING at once.
    _S.DEPLOYING: frozenset({_S.INITIALIZING, _S.RUNNING, _S.CANCELING, _S.FAILED}),
    _S.INITIALIZING: frozenset({_S.RUNNING, _S.FINISHED, _S.CANCELING, _S.FAILED}),
    _S.RUNNING: frozenset({_S.FINISHED, _S.CANCELING, _S.FAILED}),
    _S.CANCELING: frozenset({_S.CANCELED, _S.FAILED}),
    _S.FINISHED: frozenset(),
    _S.CANCELED: frozenset(),
    _S.FAILED: frozenset(),
}


@dataclass
class ExecutionVertex:
    """One subtask in one attempt.  ``failure`` is a FlinkishError when the state is FAILED."""

    execution: ExecutionAttemptID
    task_name: str
    parallelism: int
    slot_id: str
    state: ExecutionState = ExecutionState.CREATED
    failure: Any = None

    @property
    def name_with_subtask(self) -> str:
        """Flink's form: ``Map -> Sink: Print (2/4)``."""
        return f"{self.task_name} ({self.execution.subtask_index + 1}/{self.parallelism})"

    def transition(self, new: ExecutionState, failure: Any = None) -> None:
        """Enter ``new``.

        Raises:
            InternalError: the state machine has no such move.
        """
        if not self.state.can_become(new):
            raise InternalError(
                f"subtask {self.name_with_subtask} cannot go from {self.state.name} to {new.name}",
                where=str(self.execution),
            )
        self.state = new
        self.failure = failure


@dataclass
class ExecutionJobVertex:
    """All subtasks of a vertex, by index."""

    job_vertex: JobVertex
    task_vertices: list[ExecutionVertex] = field(default_factory=list)


@dataclass
class ExecutionGraph:
    """One attempt of a job; vertices in topological order."""

    job_id: str
    job_name: str
    attempt: int
    vertices: list[ExecutionJobVertex]

    def executions(self) -> dict[ExecutionAttemptID, ExecutionVertex]:
        return {v.execution: v for job in self.vertices for v in job.task_vertices}


def create_execution_graph(
    job_graph: JobGraph, attempt: int, slots: Sequence[str]
) -> ExecutionGraph:
    """The subtasks of an attempt, each with its slot.

    Raises:
        NotEnoughSlotsError: fewer ``slots`` than ``slots_needed``.
    """
    slots_of = assign_slots(job_graph, slots)
    vertices = []
    for vertex in job_graph.vertices:
        group = slots_of[vertex.slot_sharing_group]
        tasks = [
            ExecutionVertex(
                ExecutionAttemptID(job_graph.job_id, attempt, vertex.id, index),
                vertex.name,
                vertex.parallelism,
                group[index],
            )
            for index in range(vertex.parallelism)
        ]
        vertices.append(ExecutionJobVertex(vertex, tasks))
    return ExecutionGraph(job_graph.job_id, job_graph.job_name, attempt, vertices)


# ---- slots --------------------------------------------------------------------------------------


def slot_sharing_groups(job_graph: JobGraph) -> dict[str, int]:
    """Slots that each group needs: its largest parallelism; groups in order of appearance."""
    needed: dict[str, int] = {}
    for vertex in job_graph.vertices:
        group = vertex.slot_sharing_group
        needed[group] = max(needed.get(group, 0), vertex.parallelism)
    return needed


def slots_needed(job_graph: JobGraph) -> int:
    """Slots without which the job cannot start."""
    return sum(slot_sharing_groups(job_graph).values())


def assign_slots(job_graph: JobGraph, slots: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Which slots each group gets, in the given order; slots beyond the need stay free."""
    groups = slot_sharing_groups(job_graph)
    needed = sum(groups.values())
    if len(slots) < needed:
        parts = ", ".join(f'group "{name}" {count}' for name, count in groups.items())
        raise NotEnoughSlotsError(
            f'could not place job "{job_graph.job_name}"',
            where=f"job {job_graph.job_id}",
            why=f"it needs {needed} slots ({parts}), there are {len(slots)}",
            do="lower the parallelism, or give it more slots",
            needed=needed,
            available=len(slots),
        )
    assigned, start = {}, 0
    for name, count in groups.items():
        assigned[name] = tuple(slots[start : start + count])
        start += count
    return assigned


# ---- channels -----------------------------------------------------------------------------------


def connections(pointwise: bool, sources: int, targets: int) -> list[tuple[int, int]]:
    """Which (producer, consumer) subtasks of an edge are connected, by producer, then consumer.

    >>> connections(True, 2, 4)
    [(0, 0), (0, 1), (1, 2), (1, 3)]
    >>> connections(True, 3, 2)
    [(0, 0), (1, 1), (2, 1)]
    """
    if not pointwise:
        return [(s, t) for s in range(sources) for t in range(targets)]
    if sources >= targets:
        return [
            (s, t)
            for t in range(targets)
            for s in range(t * sources // targets, (t + 1) * sources // targets)
        ]
    return [
        (s, t)
        for s in range(sources)
        for t in range(-(-s * targets // sources), -(-(s + 1) * targets // sources))
    ]


@dataclass(frozen=True)
class _Channel:
    id: int
    source: int
    target: int


def _channels(job_graph: JobGraph) -> dict[int, list[_Channel]]:
    """Channels of every edge, by edge id; ids count through the whole attempt."""
    parallelism = {vertex.id: vertex.parallelism for vertex in job_graph.vertices}
    channels: dict[int, list[_Channel]] = {}
    next_id = 0
    for edge in sorted(job_graph.edges, key=lambda edge: edge.id):
        pairs = connections(
            edge.partitioner.pointwise,
            parallelism[edge.source_vertex_id],
            parallelism[edge.target_vertex_id],
        )
        channels[edge.id] = [_Channel(next_id + i, s, t) for i, (s, t) in enumerate(pairs)]
        next_id += len(pairs)
    return channels


def aligned_vertices(job_graph: JobGraph) -> frozenset[str]:
    """Vertices on whose inputs barriers never overtake.

    * Those with an edge where a record in flight would belong to one particular subtask (pointwise) or to all of
      them (broadcast) also after the parallelism has changed.  (Flink's ``StreamGraphGenerator``,
      ``shouldDisableUnalignedCheckpointing``.)
    * So that nothing waits in a circle: where one of those has inputs from X and from Z, and Z is before X too, what
      lies between Z and X.  Else X could have its barrier early and wait to send, because its receiver holds
      its records until Z's barrier is there, while Z waits for X to take records.
    """
    inputs = {vertex.id: {edge.source_vertex_id for edge in vertex.inputs} for vertex in job_graph.vertices}
    before: dict[str, set[str]] = {}
    for vertex in job_graph.vertices:  # in topological order
        before[vertex.id] = inputs[vertex.id].union(*[before[source] for source in inputs[vertex.id]])
    aligned = {
        vertex.id
        for vertex in job_graph.vertices
        for edge in vertex.inputs
        if edge.partitioner.pointwise or isinstance(edge.partitioner, BroadcastPartitioner)
    }
    waiting = list(aligned)
    while waiting:
        sources = inputs[waiting.pop()]
        between = {
            vertex
            for first in sources
            for last in sources
            if first in before[last]
            for vertex in (*before[last], last)
            if first in before[vertex]
        }
        waiting += between - aligned
        aligned |= between
    return frozenset(aligned)


def _describe_edges(job_graph: JobGraph) -> dict[int, EdgeDescriptor]:
    aligned = aligned_vertices(job_graph)
    return {
        edge.id: EdgeDescriptor(
            edge.id,
            edge.source_vertex_id,
            vertex.id,
            edge.input_index,
            edge.partitioner.name,
            vertex.id not in aligned,
        )
        for vertex in job_graph.vertices
        for edge in vertex.inputs
    }


def build_deployments(
    job_graph: JobGraph, attempt: int, slots: Sequence[str], chains: Mapping[str, bytes]
) -> dict[str, tuple[TaskDeploymentDescriptor, ...]]:
    """What each slot is told to run.

    Channels of an output are ordered by the consumer's subtask, so that with all consumers
    connected the place in the list is the subtask; channels of an input by the producer's.

    Args:
        slots: at least ``slots_needed`` slot ids.
        chains: ``pickle_chains`` of the job graph, by vertex id.
    Returns:
        by slot id, the slots that the job uses only; tasks in topological order.
    Raises:
        NotEnoughSlotsError: too few ``slots``.
    """
    slots_of_group = assign_slots(job_graph, slots)
    slots_of = {v.id: slots_of_group[v.slot_sharing_group] for v in job_graph.vertices}
    channels = _channels(job_graph)
    outgoing: dict[tuple[int, int], list[_Channel]] = {}
    incoming: dict[tuple[int, int], list[_Channel]] = {}
    for edge_id, all_channels in channels.items():
        for channel in all_channels:
            outgoing.setdefault((edge_id, channel.source), []).append(channel)
            incoming.setdefault((edge_id, channel.target), []).append(channel)

    edges = _describe_edges(job_graph)
    deployments: dict[str, list[TaskDeploymentDescriptor]] = {}
    for vertex in job_graph.vertices:
        for index in range(vertex.parallelism):
            descriptor = TaskDeploymentDescriptor(
                execution=ExecutionAttemptID(job_graph.job_id, attempt, vertex.id, index),
                task_name=vertex.name,
                parallelism=vertex.parallelism,
                max_parallelism=vertex.max_parallelism,
                chain=chains[vertex.id],
                inputs=tuple(
                    InputDescriptor(
                        edges[edge.id],
                        _peers(incoming, edge, index, slots_of[edge.source_vertex_id], "source"),
                    )
                    for edge in vertex.inputs
                ),
                outputs=tuple(
                    OutputDescriptor(
                        edges[edge.id],
                        _peers(outgoing, edge, index, slots_of[edge.target_vertex_id], "target"),
                    )
                    for edge in vertex.outputs
                ),
            )
            slot = slots_of[vertex.id][index]
            deployments.setdefault(slot, []).append(descriptor)
    return {slot: tuple(tasks) for slot, tasks in deployments.items()}


def _peers(
    channels: Mapping[tuple[int, int], list[_Channel]],
    edge: JobEdge,
    index: int,
    slots: Sequence[str],
    end: str,
) -> tuple[ChannelDescriptor, ...]:
    found = channels.get((edge.id, index), [])
    return tuple(
        ChannelDescriptor(channel.id, getattr(channel, end), slots[getattr(channel, end)])
        for channel in sorted(found, key=lambda channel: getattr(channel, end))
    )
