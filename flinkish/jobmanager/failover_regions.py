"""Which tasks must restart together when one fails.

A *pipelined region* is a set of subtasks that exchange records while they run.  When one of them fails, what
it had in flight is lost, so all of its region go back to the checkpoint; other regions know nothing of it.
Every edge of a stream job is pipelined, so regions are the connected parts of the graph of subtasks:
a job with a shuffle is one region, three forward chains side by side are three.

Invariant, see ``check``: each subtask is in one region.

Source: Flink's ``PipelinedRegionComputeUtil`` and ``RestartPipelinedRegionFailoverStrategy``.
"""

from __future__ import annotations

from typing import Iterable

from flinkish.graph.execution_graph import connections
from flinkish.graph.job_graph import JobEdge, JobGraph

#: (vertex id, subtask index)
Subtask = tuple[str, int]


class FailoverRegions:
    """The pipelined regions of a job; they are the same in each attempt."""

    def __init__(self, job_graph: JobGraph):
        parallelism = {vertex.id: vertex.parallelism for vertex in job_graph.vertices}
        self._above: dict[Subtask, Subtask] = {
            (vertex.id, index): (vertex.id, index)
            for vertex in job_graph.vertices
            for index in range(vertex.parallelism)
        }
        for edge in job_graph.edges:
            for source, target in _joined(edge, parallelism):
                self._join(source, target)
        members: dict[Subtask, list[Subtask]] = {}
        for subtask in self._above:
            members.setdefault(self._top(subtask), []).append(subtask)
        #: In order of their first subtask in the graph.
        self.regions: tuple[frozenset[Subtask], ...] = tuple(
            frozenset(region) for region in members.values()
        )
        self._region_of = {subtask: region for region in self.regions for subtask in region}

    def _top(self, subtask: Subtask) -> Subtask:
        while self._above[subtask] != subtask:
            self._above[subtask] = self._above[self._above[subtask]]
            subtask = self._above[subtask]
        return subtask

    def _join(self, one: Subtask, other: Subtask) -> None:
        self._above[self._top(other)] = self._top(one)

    def region_of(self, subtask: Subtask) -> frozenset[Subtask]:
        return self._region_of[subtask]

    def tasks_to_restart(self, failed: Iterable[Subtask]) -> frozenset[Subtask]:
        """All that must restart when these have failed, themselves included; none when none has."""
        return frozenset().union(*(self._region_of[subtask] for subtask in failed))

    def check(self) -> None:
        """Assert what always holds."""
        assert sum(len(region) for region in self.regions) == len(self._above)


def _joined(edge: JobEdge, parallelism: dict[str, int]) -> Iterable[tuple[Subtask, Subtask]]:
    """Pairs that tie together all subtasks which this edge connects."""
    sources, targets = parallelism[edge.source_vertex_id], parallelism[edge.target_vertex_id]
    if edge.partitioner.pointwise:
        pairs = connections(True, sources, targets)
    else:  # all with all: as many pairs as subtasks do, not as many as channels
        pairs = [(index, 0) for index in range(sources)] + [(0, index) for index in range(targets)]
    for source, target in pairs:
        yield (edge.source_vertex_id, source), (edge.target_vertex_id, target)
