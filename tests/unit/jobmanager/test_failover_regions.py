import pytest

from flinkish.datastream.partitioners import (
    ForwardPartitioner,
    RebalancePartitioner,
    RescalePartitioner,
)
from flinkish.graph.job_graph import JobEdge, JobGraph, JobVertex, OperatorChainSpec
from flinkish.jobmanager.failover_regions import FailoverRegions


def job_graph(parallelism, edges):
    """``parallelism``: by vertex; ``edges``: (source, target, partitioner)."""
    made = [
        JobEdge(index, source, target, 0, partitioner) for index, (source, target, partitioner) in enumerate(edges)
    ]
    chain = OperatorChainSpec((), (), ())
    return JobGraph(
        "j",
        "job",
        [
            JobVertex(
                name,
                name,
                chain,
                count,
                128,
                "default",
                [edge for edge in made if edge.target_vertex_id == name],
                [edge for edge in made if edge.source_vertex_id == name],
            )
            for name, count in parallelism.items()
        ],
    )


def regions(parallelism, edges):
    found = FailoverRegions(job_graph(parallelism, edges))
    found.check()
    return [sorted(region) for region in found.regions]


def test_forward_chains_side_by_side_are_regions_of_their_own():
    assert regions({"a": 2, "b": 2}, [("a", "b", ForwardPartitioner())]) == [
        [("a", 0), ("b", 0)],
        [("a", 1), ("b", 1)],
    ]


def test_a_shuffle_makes_one_region():
    assert len(regions({"a": 3, "b": 2}, [("a", "b", RebalancePartitioner())])) == 1


def test_rescaling_ties_a_producer_to_its_consumers_only():
    assert regions({"a": 2, "b": 4}, [("a", "b", RescalePartitioner())]) == [
        [("a", 0), ("b", 0), ("b", 1)],
        [("a", 1), ("b", 2), ("b", 3)],
    ]


def test_jobs_in_one_graph_that_are_not_connected_do_not_touch():
    edges = [("a", "b", RebalancePartitioner())]
    assert regions({"a": 2, "b": 1, "c": 2}, edges) == [
        [("a", 0), ("a", 1), ("b", 0)],
        [("c", 0)],
        [("c", 1)],
    ]


def test_a_shuffle_behind_forward_chains_joins_them():
    edges = [("a", "b", ForwardPartitioner()), ("b", "c", RebalancePartitioner())]
    assert len(regions({"a": 4, "b": 4, "c": 1}, edges)) == 1


def test_all_of_the_failed_regions_restart_and_no_other():
    found = FailoverRegions(job_graph({"a": 3, "b": 3}, [("a", "b", ForwardPartitioner())]))
    assert found.tasks_to_restart([]) == frozenset()
    assert found.tasks_to_restart([("b", 1)]) == {("a", 1), ("b", 1)} == found.region_of(("a", 1))
    assert found.tasks_to_restart([("b", 1), ("a", 2), ("a", 1)]) == {("a", 1), ("b", 1), ("a", 2), ("b", 2)}


def test_a_large_shuffle_takes_no_time():
    found = FailoverRegions(job_graph({"a": 5_000, "b": 5_000}, [("a", "b", RebalancePartitioner())]))
    assert len(found.regions) == 1


def test_an_unknown_subtask_is_an_error():
    with pytest.raises(KeyError):
        FailoverRegions(job_graph({"a": 1}, [])).tasks_to_restart([("a", 1)])
