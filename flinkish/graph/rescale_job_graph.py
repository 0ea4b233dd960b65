"""The same job with another parallelism.

Chains, channels' edges and operator ids stay; what may not be spread, or would not fit its neighbours, is refused.

Source: Flink's ``JobResourceRequirements`` and ``VertexParallelismStore`` of its ``AdaptiveScheduler``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Mapping, Union

from flinkish.datastream.partitioners import BroadcastPartitioner, ForwardPartitioner, KeyGroupPartitioner
from flinkish.datastream.transformations import SinkOperator, SourceOperator
from flinkish.errors import InvalidJobError
from flinkish.graph.job_graph import JobGraph, JobVertex

#: For all operators whose parallelism the program does not set itself, or by uid or name of an operator.
Parallelism = Union[int, Mapping[str, int]]


def rescale_job_graph(job_graph: JobGraph, parallelism: Parallelism) -> JobGraph:
    """The same job with another parallelism.

    Raises:
        InvalidJobError: there is no such operator, or it cannot run like that.
    """
    wanted = {vertex.id: vertex.parallelism for vertex in job_graph.vertices}
    if isinstance(parallelism, Mapping):
        for name, number in parallelism.items():
            wanted[_find(job_graph, name).id] = number
    else:
        wanted.update((vertex.id, parallelism) for vertex in job_graph.vertices if not vertex.parallelism_set)
    vertices = [replace(vertex, parallelism=wanted[vertex.id]) for vertex in job_graph.vertices]
    for vertex in vertices:
        _check_vertex(job_graph, vertex)
    _check_edges(job_graph, vertices)
    return replace(job_graph, vertices=vertices)


def _find(job_graph: JobGraph, name: str) -> JobVertex:
    found = [
        vertex
        for vertex in job_graph.vertices
        if name in (vertex.id, vertex.name)
        or any(name in (operator.uid, operator.name) for operator in vertex.chain.operators)
    ]
    if len(found) == 1:
        return found[0]
    known = ", ".join(f'"{vertex.name}"' for vertex in job_graph.vertices)
    raise InvalidJobError(
        f'could not find operator "{name}"',
        where=f'job "{job_graph.job_name}"',
        why=f"{len(found)} tasks have an operator of that uid or name; the tasks are {known}",
        do="give the uid or the name of one operator",
    )


def _check_vertex(job_graph: JobGraph, vertex: JobVertex) -> None:
    where = f'job "{job_graph.job_name}", task "{vertex.name}"'
    number = vertex.parallelism
    if not isinstance(number, int) or isinstance(number, bool) or number < 1:
        raise InvalidJobError(
            f"could not rescale to parallelism {number!r}", where=where, why="it must be an integer of at least 1"
        )
    if number > vertex.max_parallelism:
        raise InvalidJobError(
            f"could not rescale to parallelism {number}",
            where=where,
            why=f"its max parallelism is {vertex.max_parallelism}, and its state is in as many key groups",
            do="stop the job with a savepoint and start it with a larger pipeline.max-parallelism, without state",
        )
    for operator in vertex.chain.operators:
        kind = operator.operator
        fixed = None
        if isinstance(kind, SourceOperator):
            fixed = getattr(kind.source, "fixed_parallelism", None)
        elif isinstance(kind, SinkOperator):
            fixed = getattr(kind.sink, "fixed_parallelism", None)
        if fixed is not None and number != fixed:
            raise InvalidJobError(
                f"could not rescale to parallelism {number}",
                where=where,
                why=f'operator "{operator.name}" can only run with parallelism {fixed}',
                do="leave it out",
            )


def _check_edges(job_graph: JobGraph, vertices: list[JobVertex]) -> None:
    by_id = {vertex.id: vertex for vertex in vertices}
    for edge in job_graph.edges:
        source, target = by_id[edge.source_vertex_id], by_id[edge.target_vertex_id]
        where = f'job "{job_graph.job_name}", from "{source.name}" to "{target.name}"'
        if isinstance(edge.partitioner, ForwardPartitioner) and source.parallelism != target.parallelism:
            raise InvalidJobError(
                "could not rescale: records are forwarded between tasks of different parallelism then",
                where=where,
                why=f"they would run with {source.parallelism} and {target.parallelism}",
                do="give both the same parallelism, or put rebalance() between them",
            )
        keys = target.chain.operators[0].key_selectors if target.chain.operators else ()
        keyed = edge.input_index < len(keys) and keys[edge.input_index] is not None
        kept = isinstance(edge.partitioner, (KeyGroupPartitioner, ForwardPartitioner, BroadcastPartitioner))
        if keyed and target.parallelism > 1 and not kept:
            raise InvalidJobError(
                f"could not rescale to parallelism {target.parallelism}",
                where=where,
                why=f"its records arrive by {edge.partitioner.name}, so those of one key would reach several subtasks",
                do="key the stream last, right before the operator",
            )
