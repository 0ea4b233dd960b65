from types import SimpleNamespace

import pytest

from flinkish.datastream.partitioners import ForwardPartitioner, RebalancePartitioner
from flinkish.datastream.transformations import SourceOperator
from flinkish.errors import InvalidJobError
from flinkish.graph.job_graph import ChainedOperator, JobEdge, JobGraph, JobVertex, OperatorChainSpec
from flinkish.graph.rescale_job_graph import rescale_job_graph


def vertex(name, parallelism=1, operator=None, keyed=False, **options):
    keys = (lambda value: value,) if keyed else ()
    chained = ChainedOperator(0, f"id-{name}", name, operator, keys, uid=f"uid-{name}")
    return JobVertex(name, f"task {name}", OperatorChainSpec((chained,), (), ()), parallelism, 128, "default", **options)


def graph(*vertices, partitioner=None):
    edges = [
        JobEdge(index, one.id, other.id, 0, partitioner or RebalancePartitioner())
        for index, (one, other) in enumerate(zip(vertices, vertices[1:]))
    ]
    for index, edge in enumerate(edges):
        vertices[index].outputs.append(edge)
        vertices[index + 1].inputs.append(edge)
    return JobGraph("j", "job", list(vertices))


def parallelism_of(job_graph):
    return [vertex.parallelism for vertex in job_graph.vertices]


def test_as_a_whole_all_that_the_program_leaves_open_is_rescaled():
    job = graph(vertex("v"), vertex("w", parallelism_set=True), vertex("x"))
    assert parallelism_of(rescale_job_graph(job, 3)) == [3, 1, 3]
    assert parallelism_of(job) == [1, 1, 1], "the job itself has not changed"


@pytest.mark.parametrize("name", ["w", "uid-w", "task w", "id-w"])
def test_one_task_is_named_by_its_name_or_by_uid_or_name_of_an_operator(name):
    job = graph(vertex("v"), vertex("w", parallelism_set=True))
    if name == "id-w":
        with pytest.raises(InvalidJobError, match='could not find operator "id-w"'):
            rescale_job_graph(job, {name: 2})
    else:
        assert parallelism_of(rescale_job_graph(job, {name: 2})) == [1, 2]


@pytest.mark.parametrize("number", [0, -1, 1.5, True, "2"])
def test_a_parallelism_is_a_number_of_subtasks(number):
    with pytest.raises(InvalidJobError, match="an integer of at least 1"):
        rescale_job_graph(graph(vertex("v")), number)


def test_no_more_than_the_max_parallelism():
    assert parallelism_of(rescale_job_graph(graph(vertex("v")), 128)) == [128]
    with pytest.raises(InvalidJobError, match="its max parallelism is 128"):
        rescale_job_graph(graph(vertex("v")), 129)


def test_a_source_that_runs_alone_stays_alone():
    source = SourceOperator(SimpleNamespace(fixed_parallelism=1), SimpleNamespace())
    with pytest.raises(InvalidJobError, match='operator "v" can only run with parallelism 1'):
        rescale_job_graph(graph(vertex("v", operator=source), vertex("w")), {"v": 2})


def test_what_is_forwarded_stays_as_wide_as_what_it_is_forwarded_to():
    job = graph(vertex("v"), vertex("w"), partitioner=ForwardPartitioner())
    assert parallelism_of(rescale_job_graph(job, 2)) == [2, 2]
    with pytest.raises(InvalidJobError, match="different parallelism"):
        rescale_job_graph(job, {"w": 2})


def test_a_keyed_operator_whose_keys_would_be_spread_is_refused():
    job = graph(vertex("v"), vertex("w", keyed=True))
    with pytest.raises(InvalidJobError, match="those of one key would reach several subtasks"):
        rescale_job_graph(job, 2)
