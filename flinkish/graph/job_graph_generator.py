"""StreamGraph -> JobGraph: operators that can run in one loop become one vertex.

Source: Flink's ``StreamingJobGraphGenerator`` (``isChainable``, ``createChainedName``).
"""

from __future__ import annotations

import uuid
from typing import Optional

from flinkish.datastream.partitioners import ForwardPartitioner
from flinkish.datastream.transformations import (
    ChainingStrategy,
    ColumnsToRowsOperator,
    SourceOperator,
    TimestampsAndWatermarksOperator,
)
from flinkish.graph.job_graph import (
    ChainedOperator,
    ChainEdge,
    JobEdge,
    JobGraph,
    JobVertex,
    OperatorChainSpec,
    OutputEdge,
)
from flinkish.graph.stream_graph import StreamEdge, StreamGraph, StreamNode


def is_chainable(edge: StreamEdge, stream_graph: StreamGraph) -> bool:
    """Whether both ends of ``edge`` run in one chain.

    A conversion of columns to rows always joins its producer: it is no operator of the user's, so
    ``disable_chaining`` does not mean it.
    """
    source, target = stream_graph.nodes[edge.source_id], stream_graph.nodes[edge.target_id]
    if len(target.in_edges) != 1 or not isinstance(edge.partitioner, ForwardPartitioner):
        return False
    if isinstance(target.operator, ColumnsToRowsOperator):
        return True
    return (
        stream_graph.chaining_enabled
        and source.slot_sharing_group == target.slot_sharing_group
        and source.parallelism == target.parallelism
        and source.chaining_strategy is not ChainingStrategy.NEVER
        and target.chaining_strategy is ChainingStrategy.ALWAYS
    )


def create_job_graph(stream_graph: StreamGraph, job_id: Optional[str] = None) -> JobGraph:
    """Group the operators into chains.

    Args:
        job_id: 32 hex digits; None: a new one.
    """
    chained = {
        id(edge): is_chainable(edge, stream_graph) for edge in stream_graph.edges
    }
    heads = [
        node
        for node in stream_graph.nodes.values()
        if not (node.in_edges and chained[id(node.in_edges[0])])
    ]
    # A head comes behind all that feeds it in node order, so heads are in topological order too.
    members = {head.id: _members(head, stream_graph, chained) for head in heads}
    head_of = {node.id: head for head in heads for node in members[head.id]}

    timed_by = _timed_by(stream_graph)
    edge_ids: dict[int, int] = {}
    job_edges: dict[int, JobEdge] = {}
    for head in heads:
        for node in members[head.id]:
            for edge in node.out_edges:
                if not chained[id(edge)]:
                    edge_id = len(edge_ids)
                    edge_ids[id(edge)] = edge_id
                    job_edges[edge_id] = JobEdge(
                        id=edge_id,
                        source_vertex_id=head.operator_id,
                        target_vertex_id=head_of[edge.target_id].operator_id,
                        input_index=edge.input_index,
                        partitioner=edge.partitioner,
                        columns=edge.columns,
                    )

    vertices = []
    for head in heads:
        nodes = members[head.id]
        outputs = [e for node in nodes for e in node.out_edges if not chained[id(e)]]
        vertices.append(
            JobVertex(
                id=head.operator_id,
                name=_chain_name(nodes, stream_graph, chained),
                chain=OperatorChainSpec(
                    operators=tuple(_chained_operator(node, timed_by[node.id]) for node in nodes),
                    edges=tuple(
                        ChainEdge(e.source_id, e.target_id, e.output_tag)
                        for node in nodes
                        for e in node.out_edges
                        if chained[id(e)]
                    ),
                    outputs=tuple(
                        _output_edge(e, edge_ids[id(e)], stream_graph) for e in outputs
                    ),
                ),
                parallelism=head.parallelism,
                max_parallelism=head.max_parallelism,
                slot_sharing_group=head.slot_sharing_group,
                inputs=[job_edges[edge_ids[id(e)]] for e in head.in_edges],
                outputs=[job_edges[edge_ids[id(e)]] for e in outputs],
                parallelism_set=any(node.parallelism_set for node in nodes),
                max_parallelism_derived=head.max_parallelism_derived,
            )
        )
    return JobGraph(
        job_id=job_id or uuid.uuid4().hex,
        job_name=stream_graph.job_name,
        vertices=vertices,
        configuration=dict(stream_graph.configuration),
    )


def _members(head: StreamNode, graph: StreamGraph, chained: dict[int, bool]) -> list[StreamNode]:
    """The chain from ``head``, each operator behind its input: a tree, walked depth first."""
    nodes, stack = [], [head]
    while stack:
        node = stack.pop()
        nodes.append(node)
        for edge in reversed(node.out_edges):
            if chained[id(edge)]:
                stack.append(graph.nodes[edge.target_id])
    return nodes


def _chain_name(nodes: list[StreamNode], graph: StreamGraph, chained: dict[int, bool]) -> str:
    names: dict[int, str] = {}
    for node in reversed(nodes):
        rest = [names[edge.target_id] for edge in node.out_edges if chained[id(edge)]]
        if len(rest) > 1:
            names[node.id] = f"{node.name} -> ({', '.join(rest)})"
        elif rest:
            names[node.id] = f"{node.name} -> {rest[0]}"
        else:
            names[node.id] = node.name
    return names[nodes[0].id]


def _timed_by(graph: StreamGraph) -> dict[int, frozenset[str]]:
    """By node id, see `ChainedOperator`."""
    found: dict[int, frozenset[str]] = {}
    for node in graph.nodes.values():  # each behind what feeds it
        ids: set[str] = set()
        for edge in node.in_edges:
            source = graph.nodes[edge.source_id]
            ids |= found[source.id]
            if isinstance(source.operator, (SourceOperator, TimestampsAndWatermarksOperator)):
                ids.add(source.operator_id)
        found[node.id] = frozenset(ids)
    return found


def _chained_operator(node: StreamNode, timed_by: frozenset[str]) -> ChainedOperator:
    return ChainedOperator(
        node_id=node.id,
        operator_id=node.operator_id,
        name=node.name,
        operator=node.operator,
        key_selectors=node.key_selectors,
        key_type=node.key_type,
        output_type=node.output_type,
        uid=node.uid,
        timed_by=timed_by,
    )


def _output_edge(edge: StreamEdge, edge_id: int, graph: StreamGraph) -> OutputEdge:
    output_type = graph.nodes[edge.source_id].output_type
    if edge.output_tag is not None:
        output_type = getattr(edge.output_tag, "type_info", None)
    return OutputEdge(
        edge_id=edge_id,
        source_id=edge.source_id,
        partitioner=edge.partitioner,
        target_max_parallelism=graph.nodes[edge.target_id].max_parallelism,
        output_tag=edge.output_tag,
        buffer_timeout_ms=edge.buffer_timeout_ms,
        columns=edge.columns,
        output_type=output_type,
    )
