from flinkish.datastream.partitioners import ForwardPartitioner
from flinkish.graph.job_graph import (
    ChainedOperator,
    JobEdge,
    JobGraph,
    JobVertex,
    OperatorChainSpec,
)
from flinkish.jobmanager.checkpoint_plan import (
    CheckpointedOperator,
    CheckpointedVertex,
    checkpointed_vertices,
    subtasks_to_trigger,
)


def vertex(name, parallelism, *inputs):
    return CheckpointedVertex(name, parallelism, 128, (), inputs)


def trigger(vertices, finished=()):
    running = {(v.vertex_id, index) for v in vertices for index in range(v.parallelism)} - set(finished)
    return subtasks_to_trigger(vertices, running)


def test_sources_are_triggered_while_all_run():
    assert trigger([vertex("a", 2), vertex("b", 1, ("a", False)), vertex("c", 1)]) == [("a", 0), ("a", 1), ("c", 0)]


def test_a_task_is_triggered_when_all_that_send_to_it_have_finished():
    vertices = [vertex("a", 2), vertex("b", 2, ("a", False)), vertex("c", 1, ("b", False))]
    assert trigger(vertices, [("a", 0)]) == [("a", 1)]
    assert trigger(vertices, [("a", 0), ("a", 1)]) == [("b", 0), ("b", 1)]
    assert trigger(vertices, [("a", 0), ("a", 1), ("b", 0)]) == [("b", 1)]
    assert trigger(vertices, [("a", 0), ("a", 1), ("b", 0), ("b", 1)]) == [("c", 0)]


def test_forward_neighbours_are_looked_at_one_by_one():
    vertices = [vertex("a", 3), vertex("b", 3, ("a", True))]
    assert trigger(vertices, [("a", 1)]) == [("a", 0), ("a", 2), ("b", 1)]


def test_rescaled_neighbours_are_looked_at_one_by_one():
    vertices = [vertex("a", 4), vertex("b", 2, ("a", True))]
    assert trigger(vertices, [("a", 0)]) == [("a", 1), ("a", 2), ("a", 3)]
    assert trigger(vertices, [("a", 0), ("a", 1)]) == [("a", 2), ("a", 3), ("b", 0)]


def test_one_running_input_of_two_is_enough_to_bring_the_barrier():
    vertices = [vertex("a", 1), vertex("b", 1), vertex("c", 1, ("a", False), ("b", False))]
    assert trigger(vertices, [("a", 0)]) == [("b", 0)]
    assert trigger(vertices, [("a", 0), ("b", 0)]) == [("c", 0)]


def test_when_all_have_finished_nobody_is_triggered():
    assert trigger([vertex("a", 1)], [("a", 0)]) == []


def test_vertices_come_from_the_job_graph():
    edge = JobEdge(0, "a", "b", 0, ForwardPartitioner())
    operators = [ChainedOperator(index, f"id{index}", f"op{index}", None, uid=uid) for index, uid in enumerate("xy")]
    graph = JobGraph(
        "j",
        "job",
        [
            JobVertex("a", "a", OperatorChainSpec(tuple(operators[:1]), (), ()), 2, 16, "g", [], [edge]),
            JobVertex("b", "b", OperatorChainSpec(tuple(operators[1:]), (), ()), 2, 32, "g", [edge], []),
        ],
    )
    assert checkpointed_vertices(graph, {"id0"}) == (
        CheckpointedVertex("a", 2, 16, (CheckpointedOperator("id0", "op0", "x", True),)),
        CheckpointedVertex("b", 2, 32, (CheckpointedOperator("id1", "op1", "y"),), (("a", True),)),
    )
