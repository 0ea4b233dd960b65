"""StreamGraph -> JobGraph: what chains, names, edges."""

import pytest

from flinkish.datastream import partitioners as p
from flinkish.datastream.transformations import ChainingStrategy
from flinkish.graph.job_graph_generator import create_job_graph
from flinkish.graph.stream_graph_generator import StreamGraphGenerator
from tests.unit.graph.programs import co_map, keyed, map_, partition, reduce_, side_output, sink, source, union


def job(*transformations, **options):
    return create_job_graph(StreamGraphGenerator(transformations, **options).generate(), "0" * 32)


def names(*transformations, **options):
    return [vertex.name for vertex in job(*transformations, **options).vertices]


def test_operators_in_a_row_are_one_vertex():
    assert names(sink(map_(source(), "X"), "Y")) == ["Source: numbers -> X -> Sink: Y"]


def test_several_outputs_are_named_in_flinks_form():
    stream = map_(source(), "A")
    assert names(sink(map_(stream, "B"), "C"), sink(stream, "D")) == [
        "Source: numbers -> A -> (B -> Sink: C, Sink: D)"
    ]


@pytest.mark.parametrize(
    "build",
    [
        lambda s: map_(keyed(s), "M"),
        lambda s: map_(partition(s, p.RebalancePartitioner()), "M"),
        lambda s: map_(partition(s, p.RescalePartitioner()), "M"),
        lambda s: map_(s, "M", parallelism=2),
        lambda s: map_(s, "M", slot_sharing_group="other"),
        lambda s: map_(s, "M", chaining_strategy=ChainingStrategy.NEVER),
        lambda s: map_(s, "M", chaining_strategy=ChainingStrategy.HEAD),
    ],
)
def test_what_is_not_chained_to_its_input(build):
    assert names(build(source()), parallelism=1) == ["Source: numbers", "M"]


def test_a_head_starts_a_chain_and_never_ends_one():
    head = map_(source(), "H", chaining_strategy=ChainingStrategy.HEAD)
    never = map_(source("b"), "N", chaining_strategy=ChainingStrategy.NEVER)
    assert names(sink(head)) == ["Source: numbers", "H -> Sink: out"]
    assert names(sink(never)) == ["Source: b", "N", "Sink: out"]


def test_unions_and_two_inputs_are_not_chained():
    assert names(map_(union(source("a"), source("b")))) == ["Source: a", "Source: b", "Map"]
    assert names(co_map(source("a"), source("b"))) == ["Source: a", "Source: b", "CoMap"]


def test_another_max_parallelism_still_chains_and_the_head_decides():
    (vertex,) = job(map_(source(max_parallelism=77), max_parallelism=99)).vertices
    assert vertex.max_parallelism == 77


def test_without_chaining_every_operator_is_a_vertex():
    off = {"pipeline.operator-chaining.enabled": "false"}
    assert names(sink(map_(source())), configuration=off) == ["Source: numbers", "Map", "Sink: out"]
    assert names(sink(map_(source())), chaining_enabled=False) == ["Source: numbers", "Map", "Sink: out"]


def test_a_conversion_always_joins_its_producer_and_hands_on_the_wish_not_to_chain():
    never = ChainingStrategy.NEVER
    assert names(map_(source(columns=True))) == ["Source: numbers -> ColumnsToRows -> Map"]
    assert names(map_(source(columns=True, chaining_strategy=never))) == [
        "Source: numbers -> ColumnsToRows", "Map"
    ]
    assert names(map_(source(columns=True)), chaining_enabled=False) == [
        "Source: numbers -> ColumnsToRows", "Map"
    ]


def test_edges_have_ids_of_their_own_and_both_ends_know_them():
    stream = map_(source(), "A")
    graph = job(
        sink(reduce_(keyed(stream), max_parallelism=50, parallelism=3), parallelism=3),
        sink(partition(side_output(stream, "late"), p.RebalancePartitioner()), "late"),
        map_(union(stream, stream), "twice", parallelism=2), parallelism=1,
    )
    first = graph.vertices[0]
    assert [edge.id for edge in graph.edges] == [0, 1, 2, 3]
    assert [output.edge_id for output in first.chain.outputs] == [0, 1, 2, 3]
    by_name = {vertex.name: vertex for vertex in graph.vertices}
    keyed_edge, late, one, two = graph.edges
    assert by_name["Reduce -> Sink: out"].inputs == [keyed_edge]
    assert by_name["Sink: late"].inputs == [late] and by_name["twice"].inputs == [one, two]
    assert keyed_edge.source_vertex_id == first.id
    assert keyed_edge.target_vertex_id == by_name["Reduce -> Sink: out"].id
    assert [o.target_max_parallelism for o in first.chain.outputs] == [50, 128, 128, 128]
    assert [o.output_tag for o in first.chain.outputs] == [None, "late", None, None]
    source_of = {op.node_id: op.name for op in first.chain.operators}
    assert {source_of[o.source_id] for o in first.chain.outputs} == {"A"}


def test_a_chain_lists_its_operators_behind_their_inputs_and_the_vertex_has_the_heads_id():
    stream = map_(source(), "A")
    graph = job(sink(map_(stream, "B"), "C"), sink(stream, "D"))
    (vertex,) = graph.vertices
    order = [operator.name for operator in vertex.chain.operators]
    assert order == ["Source: numbers", "A", "B", "Sink: C", "Sink: D"]
    name = {operator.node_id: operator.name for operator in vertex.chain.operators}
    assert [(name[e.source_id], name[e.target_id]) for e in vertex.chain.edges] == [
        ("Source: numbers", "A"), ("A", "B"), ("A", "Sink: D"), ("B", "Sink: C"),
    ]
    assert vertex.id == vertex.chain.operators[0].operator_id


def test_a_job_id_is_made_when_none_is_given():
    graph = StreamGraphGenerator([source()]).generate()
    one, two = create_job_graph(graph), create_job_graph(graph)
    assert one.job_id != two.job_id and len(one.job_id) == 32
