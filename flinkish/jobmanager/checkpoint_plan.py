"""Who takes part in a checkpoint: plain data and two pure functions.

All tasks that have not finished acknowledge.  Those of them whose predecessors have all finished (sources
always) are told to begin; the others get barriers from their inputs.

Source: Flink's ``DefaultCheckpointPlanCalculator`` (FLIP-147).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import AbstractSet, Optional, Sequence

from flinkish.graph.execution_graph import connections
from flinkish.graph.job_graph import JobGraph

#: (vertex id, subtask index)
Subtask = tuple[str, int]


@dataclass(frozen=True)
class CheckpointedOperator:
    operator_id: str
    name: str
    uid: Optional[str] = None
    coordinated: bool = False  # it has a coordinator in the driver, with a snapshot of its own


@dataclass(frozen=True)
class CheckpointedVertex:
    """``inputs``: (source vertex id, pointwise) of each edge that ends here."""

    vertex_id: str
    parallelism: int
    max_parallelism: int
    operators: tuple[CheckpointedOperator, ...]
    inputs: tuple[tuple[str, bool], ...] = ()


def checkpointed_vertices(
    job_graph: JobGraph, coordinated: AbstractSet[str] = frozenset()
) -> tuple[CheckpointedVertex, ...]:
    """What checkpoints need to know of a job.  ``coordinated``: ids of operators with a coordinator."""
    return tuple(
        CheckpointedVertex(
            vertex.id,
            vertex.parallelism,
            vertex.max_parallelism,
            tuple(
                CheckpointedOperator(
                    operator.operator_id, operator.name, operator.uid, operator.operator_id in coordinated
                )
                for operator in vertex.chain.operators
            ),
            tuple((edge.source_vertex_id, edge.partitioner.pointwise) for edge in vertex.inputs),
        )
        for vertex in job_graph.vertices
    )


def subtasks_to_trigger(
    vertices: Sequence[CheckpointedVertex], running: AbstractSet[Subtask]
) -> list[Subtask]:
    """The running subtasks that no running subtask sends to, in order of vertices."""
    parallelism = {vertex.vertex_id: vertex.parallelism for vertex in vertices}
    running_of = Counter(vertex_id for vertex_id, _ in running)
    chosen = []
    for vertex in vertices:
        fed: set[int] = set()
        for source, pointwise in vertex.inputs:
            if not running_of[source]:
                continue
            if not pointwise or running_of[source] == parallelism[source]:
                fed.update(range(vertex.parallelism))
                break
            pairs = connections(True, parallelism[source], vertex.parallelism)
            fed.update(target for index, target in pairs if (source, index) in running)
        chosen += [
            (vertex.vertex_id, index)
            for index in range(vertex.parallelism)
            if index not in fed and (vertex.vertex_id, index) in running
        ]
    return chosen
