"""States, channels, slots, deployments."""

import pytest

from flinkish.datastream import partitioners as p
from flinkish.errors import InternalError, NotEnoughSlotsError
from flinkish.graph.execution_graph import (
    ExecutionState,
    aligned_vertices,
    assign_slots,
    build_deployments,
    connections,
    create_execution_graph,
    pickle_chains,
    slot_sharing_groups,
    slots_needed,
)
from flinkish.graph.job_graph import JobEdge, JobGraph, JobVertex
from flinkish.graph.job_graph_generator import create_job_graph
from flinkish.graph.stream_graph_generator import StreamGraphGenerator
from tests.unit.graph.programs import keyed, map_, partition, reduce_, sink, source, union

S = ExecutionState


def job(*transformations, **options):
    return create_job_graph(StreamGraphGenerator(transformations, **options).generate(), "0" * 32)


def test_a_subtask_moves_only_as_the_diagram_says():
    graph = create_execution_graph(job(sink(source())), 0, ["s"])
    (vertex,) = graph.executions().values()
    for state in (S.SCHEDULED, S.DEPLOYING, S.INITIALIZING, S.RUNNING):
        vertex.transition(state)
    with pytest.raises(InternalError, match=r"Sink: out \(1/1\) cannot go from RUNNING to CREATED"):
        vertex.transition(S.CREATED)
    vertex.transition(S.FAILED, failure="why")
    assert vertex.failure == "why" and vertex.state.is_terminal


def test_nothing_leaves_a_terminal_state_and_every_other_can_fail():
    for state in S:
        assert state.is_terminal == (state in (S.FINISHED, S.CANCELED, S.FAILED))
        assert state.can_become(S.FAILED) == (not state.is_terminal)
        assert not (state.is_terminal and any(state.can_become(other) for other in S))


def test_all_to_all_connects_everyone():
    assert connections(False, 2, 3) == [(s, t) for s in range(2) for t in range(3)]


@pytest.mark.parametrize(
    "sources, targets, expected",
    [
        (3, 3, [(0, 0), (1, 1), (2, 2)]),
        (2, 4, [(0, 0), (0, 1), (1, 2), (1, 3)]),
        (4, 2, [(0, 0), (1, 0), (2, 1), (3, 1)]),
        (2, 3, [(0, 0), (0, 1), (1, 2)]),
        (3, 2, [(0, 0), (1, 1), (2, 1)]),
        (5, 3, [(0, 0), (1, 1), (2, 1), (3, 2), (4, 2)]),
        (3, 5, [(0, 0), (0, 1), (1, 2), (1, 3), (2, 4)]),
        (1, 3, [(0, 0), (0, 1), (0, 2)]),
    ],
)
def test_pointwise_connects_neighbours_as_flink_does(sources, targets, expected):
    assert connections(True, sources, targets) == expected


def test_slots_are_the_largest_parallelism_of_each_group():
    graph = job(
        sink(map_(source(parallelism=2), parallelism=3)),
        map_(source("b", slot_sharing_group="g", parallelism=4), "M", slot_sharing_group="h"), parallelism=1,
    )
    assert slot_sharing_groups(graph) == {"default": 3, "g": 4, "h": 1}
    assert slots_needed(graph) == 8
    assert assign_slots(graph, list("abcdefghij"))["g"] == ("d", "e", "f", "g")


def test_too_few_slots_are_refused_with_both_numbers_and_the_groups():
    graph = job(sink(source()), parallelism=3)
    with pytest.raises(NotEnoughSlotsError, match=r'needs 3 slots \(group "default" 3\), there are 2'):
        assign_slots(graph, ["a", "b"])


def deployments(graph, slots):
    return build_deployments(graph, 7, slots, {v.id: v.name.encode() for v in graph.vertices})


def test_subtask_i_of_every_vertex_of_a_group_is_in_the_ith_slot():
    graph = job(sink(reduce_(keyed(source(parallelism=2)), parallelism=3), parallelism=3), parallelism=1)
    plan = deployments(graph, ["a", "b", "c", "spare"])
    assert {slot: [(t.task_name, t.execution.subtask_index) for t in tasks] for slot, tasks in plan.items()} == {
        "a": [("Source: numbers", 0), ("Reduce -> Sink: out", 0)],
        "b": [("Source: numbers", 1), ("Reduce -> Sink: out", 1)],
        "c": [("Reduce -> Sink: out", 2)],
    }
    task = plan["b"][1]
    assert (task.parallelism, task.max_parallelism, task.chain) == (3, 128, b"Reduce -> Sink: out")
    assert (task.execution.job_id, task.execution.attempt) == ("0" * 32, 7)
    assert task.execution.vertex_id == graph.vertices[1].id


def check_channels(graph, slots):
    """Every channel has one sender and one receiver, in the slots that both say."""
    ends = {}
    for slot, tasks in deployments(graph, slots).items():
        for task in tasks:
            index = task.execution.subtask_index
            for side, descriptors in (("out", task.outputs), ("in", task.inputs)):
                for descriptor in descriptors:
                    peers = [channel.peer_subtask for channel in descriptor.channels]
                    assert peers == sorted(peers)
                    for channel in descriptor.channels:
                        pair = ends.setdefault(channel.channel_id, {})
                        assert side not in pair
                        pair[side] = (descriptor.edge.edge_id, index, slot, channel.peer_subtask, channel.peer_slot)
    for pair in ends.values():
        edge, index, slot, peer, peer_slot = pair["out"]
        assert pair["in"] == (edge, peer, peer_slot, index, slot)
    assert sorted(ends) == list(range(len(ends)))
    return len(ends)


def test_both_ends_of_each_channel_agree():
    stream = source(parallelism=3)
    graph = job(
        sink(reduce_(keyed(stream), parallelism=2), parallelism=2),
        map_(partition(stream, p.RescalePartitioner()), "M", parallelism=4),
        map_(union(stream, stream, source("b")), "U", parallelism=3), parallelism=1,
    )
    assert check_channels(graph, list("abcd")) == 3 * 2 + 4 + 3 + 3 + 3


def test_the_place_of_a_channel_is_the_consumers_subtask_when_all_are_connected():
    graph = job(sink(reduce_(keyed(source()))), parallelism=4)
    for tasks in deployments(graph, list("abcd")).values():
        (output,) = tasks[0].outputs
        assert [channel.peer_subtask for channel in output.channels] == [0, 1, 2, 3]


def test_pickled_chains_come_back_as_they_were():
    import pickle

    from tests.unit.graph import programs

    graph = job(map_(programs.map_(source(), function=lambda x: x + 1)))
    ((vertex_id, data),) = pickle_chains(graph).items()
    chain = pickle.loads(data)
    assert vertex_id == graph.vertices[0].id
    assert [o.name for o in chain.operators] == ["Source: numbers", "Map", "Map"]
    assert chain.operators[1].operator.function(4) == 5


def test_barriers_never_overtake_where_records_in_flight_belong_to_one_subtask_or_to_all():
    def aligned(*partitioners):
        edges = [JobEdge(i, f"s{i}", "t", 0, partitioner) for i, partitioner in enumerate(partitioners)]
        vertices = [JobVertex(f"s{i}", "", None, 1, 128, "g") for i in range(len(edges))]
        return aligned_vertices(JobGraph("j", "j", [*vertices, JobVertex("t", "", None, 1, 128, "g", edges)]))

    keyed = p.KeyGroupPartitioner(lambda value: value)
    assert aligned(keyed, p.RebalancePartitioner(), p.ShufflePartitioner(), p.GlobalPartitioner()) == frozenset()
    for other in (p.ForwardPartitioner(), p.RescalePartitioner(), p.BroadcastPartitioner()):
        assert aligned(other) == aligned(keyed, other) == {"t"}


def test_what_lies_between_two_inputs_of_an_aligned_vertex_is_aligned_so_that_none_waits_in_a_circle():
    shuffle, broadcast = p.ShufflePartitioner(), p.BroadcastPartitioner()
    inputs = {
        "a": [],
        "b": [("a", shuffle)],
        "c": [("b", shuffle), ("a", shuffle)],
        "d": [("c", broadcast), ("b", shuffle)],  # holds c's records until b's barrier is there
        "e": [("d", shuffle)],
    }
    vertices = [
        JobVertex(name, "", None, 1, 128, "g", [JobEdge(0, source, name, 0, how) for source, how in edges])
        for name, edges in inputs.items()
    ]
    assert aligned_vertices(JobGraph("j", "j", vertices)) == {"b", "c", "d"}
