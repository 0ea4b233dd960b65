"""Any program: the graphs keep their invariants."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from flinkish.datastream import partitioners as p
from flinkish.datastream.transformations import ChainingStrategy
from flinkish.graph.execution_graph import build_deployments, connections, slots_needed
from flinkish.graph.job_graph_generator import create_job_graph
from flinkish.graph.stream_graph_generator import StreamGraphGenerator
from tests.unit.graph.programs import co_map, keyed, map_, partition, reduce_, side_output, sink, source, union

parallelisms = st.none() | st.integers(1, 4)
options = st.fixed_dictionaries(
    {},
    optional={
        "parallelism": st.integers(1, 4),
        "slot_sharing_group": st.sampled_from(["default", "g", "h"]),
        "chaining_strategy": st.sampled_from(ChainingStrategy),
        "max_parallelism": st.integers(4, 200),
    },
)
free_partitioners = st.sampled_from(
    [p.RebalancePartitioner(), p.RescalePartitioner(), p.ShufflePartitioner(), p.BroadcastPartitioner(),
     p.GlobalPartitioner()]
)


@st.composite
def programs(draw):
    streams = [source("s0", columns=draw(st.booleans()))]
    for number in range(draw(st.integers(1, 9))):
        pick = st.sampled_from(streams)
        kind = draw(st.sampled_from(["source", "map", "keyed", "partition", "union", "two", "side", "sink"]))
        one = draw(pick)
        extra = draw(options)
        name = draw(st.sampled_from(["Map", f"op{number}"]))
        if kind == "source":
            streams.append(source(f"s{number + 1}", columns=draw(st.booleans()), **extra))
        elif kind == "map":
            streams.append(map_(one, name, **extra))
        elif kind == "keyed":
            streams.append(reduce_(keyed(one, key_field=draw(st.sampled_from([None, "k"]))), name, **extra))
        elif kind == "partition":
            streams.append(map_(partition(one, draw(free_partitioners)), name, **extra))
        elif kind == "union":
            streams.append(map_(union(one, draw(pick)), name, **extra))
        elif kind == "two":
            streams.append(co_map(one, partition(draw(pick), draw(free_partitioners)), name, **extra))
        elif kind == "side":
            streams.append(map_(side_output(one, "tag"), name, **extra))
        else:
            sink(one, name, columns=draw(st.booleans()), **extra)
            streams.append(sink(one, name, columns=draw(st.booleans()), **extra))
    return streams


@given(programs(), st.integers(1, 3), st.booleans())
def test_every_operator_is_in_one_chain_and_every_edge_is_in_or_between_chains(program, parallelism, chaining):
    stream_graph = StreamGraphGenerator(program, parallelism=parallelism, chaining_enabled=chaining).generate()
    job_graph = create_job_graph(stream_graph)
    operators = [o for v in job_graph.vertices for o in v.chain.operators]
    assert Counter(o.node_id for o in operators) == Counter(list(stream_graph.nodes))
    assert len({o.operator_id for o in operators}) == len(operators)
    inside = sum(len(v.chain.edges) for v in job_graph.vertices)
    assert inside + len(job_graph.edges) == len(stream_graph.edges)
    order = {v.id: i for i, v in enumerate(job_graph.vertices)}
    for edge in job_graph.edges:
        assert order[edge.source_vertex_id] < order[edge.target_vertex_id]
    for vertex in job_graph.vertices:
        nodes = [stream_graph.nodes[o.node_id] for o in vertex.chain.operators]
        assert {n.parallelism for n in nodes} == {vertex.parallelism}
        assert {n.slot_sharing_group for n in nodes} == {vertex.slot_sharing_group}
        seen = {nodes[0].id}
        for n in nodes[1:]:
            assert len(n.in_edges) == 1 and n.in_edges[0].source_id in seen
            seen.add(n.id)
    for edge in stream_graph.edges:
        if edge.columns:
            assert stream_graph.nodes[edge.source_id].operator.gives_columns
            assert stream_graph.nodes[edge.target_id].operator.takes_columns
        if isinstance(edge.partitioner, p.ForwardPartitioner):
            ends = stream_graph.nodes[edge.source_id], stream_graph.nodes[edge.target_id]
            assert ends[0].parallelism == ends[1].parallelism


@given(programs(), st.integers(1, 3))
def test_both_ends_of_every_channel_agree_in_any_program(program, parallelism):
    job_graph = create_job_graph(StreamGraphGenerator(program, parallelism=parallelism).generate())
    slots = [f"slot{i}" for i in range(slots_needed(job_graph))]
    plan = build_deployments(job_graph, 0, slots, {v.id: b"" for v in job_graph.vertices})
    senders, receivers = {}, {}
    for slot, tasks in plan.items():
        for task in tasks:
            here = (slot, task.execution.subtask_index)
            for output in task.outputs:
                for c in output.channels:
                    assert senders.setdefault(c.channel_id, (output.edge.edge_id, here, (c.peer_slot, c.peer_subtask)))
            for input in task.inputs:
                for c in input.channels:
                    assert receivers.setdefault(c.channel_id, (input.edge.edge_id, (c.peer_slot, c.peer_subtask), here))
    assert senders == receivers and set(plan) == set(slots)


@given(programs())
def test_the_same_program_has_the_same_ids_again(program):
    one = StreamGraphGenerator(program).generate()
    two = StreamGraphGenerator(program).generate()
    assert [n.operator_id for n in one.nodes.values()] == [n.operator_id for n in two.nodes.values()]


@given(st.integers(1, 40), st.integers(1, 40))
def test_a_pointwise_edge_leaves_nobody_out_and_spreads_evenly(sources, targets):
    pairs = connections(True, sources, targets)
    assert pairs == sorted(set(pairs))
    by_source = Counter(s for s, _ in pairs)
    by_target = Counter(t for _, t in pairs)
    assert set(by_source) == set(range(sources)) and set(by_target) == set(range(targets))
    wide = by_target if sources >= targets else by_source
    assert max(wide.values()) - min(wide.values()) <= 1
    assert len(pairs) == max(sources, targets)
