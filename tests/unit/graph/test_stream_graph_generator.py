"""Transformations -> StreamGraph."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flinkish.datastream import partitioners as p
from flinkish.datastream import transformations as t
from flinkish.errors import ConfigurationError, InvalidJobError
from flinkish.graph.stream_graph_generator import StreamGraphGenerator, operator_id_of_uid
from tests.unit.graph.programs import (
    co_map, keyed, map_, partition, reduce_, side_output, sink, source, union,
)


def generate(*transformations, **options):
    return StreamGraphGenerator(transformations, **options).generate()


def edges_of(graph):
    name = {node.id: node.name for node in graph.nodes.values()}
    return [
        (name[e.source_id], name[e.target_id], e.partitioner.name, e.input_index) for e in graph.edges
    ]


def node(graph, name):
    return next(node for node in graph.nodes.values() if node.name == name)


# ---- edges --------------------------------------------------------------------------------------


def test_sources_and_sinks_are_found_from_the_sinks_and_say_what_they_are():
    graph = generate(sink(map_(source())))
    assert edges_of(graph) == [
        ("Source: numbers", "Map", "FORWARD", 0), ("Map", "Sink: out", "FORWARD", 0),
    ]


def test_unequal_parallelism_rebalances():
    graph = generate(sink(map_(source(parallelism=2), parallelism=3), parallelism=3), parallelism=1)
    assert [edge[2] for edge in edges_of(graph)] == ["REBALANCE", "FORWARD"]


def test_a_union_becomes_edges_to_the_same_input():
    a, b = source("a"), source("b")
    graph = generate(sink(map_(union(a, union(b, a)))))
    assert edges_of(graph)[:3] == [
        ("Source: a", "Map", "FORWARD", 0), ("Source: a", "Map", "FORWARD", 0),
        ("Source: b", "Map", "FORWARD", 0),
    ]


def test_two_inputs_have_their_own_index():
    graph = generate(co_map(source("a"), partition(source("b"), p.BroadcastPartitioner())))
    assert edges_of(graph) == [
        ("Source: a", "CoMap", "FORWARD", 0), ("Source: b", "CoMap", "BROADCAST", 1),
    ]


def test_the_partition_nearest_to_the_consumer_wins_also_over_a_union():
    first = keyed(source("a"))
    graph = generate(
        map_(partition(first, p.ShufflePartitioner()), "M1"),
        map_(partition(union(first, source("b")), p.GlobalPartitioner()), "M2"),
        map_(union(first, source("c")), "M3"),
    )
    assert [(e[1], e[2]) for e in sorted(edges_of(graph))] == [
        ("M1", "SHUFFLE"), ("M2", "GLOBAL"), ("M3", "HASH"), ("M2", "GLOBAL"), ("M3", "FORWARD"),
    ]


def test_a_side_output_is_an_edge_with_its_tag():
    main = map_(source())
    late = partition(side_output(main, "late"), p.RebalancePartitioner())
    graph = generate(sink(main, "main"), sink(late, "late"))
    edges = node(graph, "Map").out_edges
    tags = {graph.nodes[e.target_id].name: (e.output_tag, e.partitioner.name) for e in edges}
    assert tags == {"Sink: main": (None, "FORWARD"), "Sink: late": ("late", "REBALANCE")}


def test_nodes_are_in_topological_order_with_sources_first():
    a, b = source("a"), source("b")
    late = map_(b, "late")
    graph = generate(sink(co_map(map_(a, "early"), late)), source("unused"))
    order = [n.name for n in graph.nodes.values()]
    assert order[:3] == ["Source: a", "Source: b", "Source: unused"]
    position = {name: i for i, name in enumerate(order)}
    assert all(position[a] < position[b] for a, b, _, _ in edges_of(graph))


def test_a_program_of_thousands_of_operators_is_no_problem():
    stream = source()
    for _ in range(3000):
        stream = map_(stream)
    assert len(generate(sink(stream)).nodes) == 3002


def test_buffer_timeouts_are_the_producers():
    graph = generate(sink(map_(source(buffer_timeout_ms=7), buffer_timeout_ms=0)))
    assert [e.buffer_timeout_ms for e in graph.edges] == [7, 0]


# ---- parallelism --------------------------------------------------------------------------------


def test_parallelism_comes_from_the_operator_then_the_arguments_then_the_configuration():
    program = lambda: sink(map_(source(), parallelism=5))  # noqa: E731
    configuration = {"parallelism.default": "3", "pipeline.max-parallelism": "64", "pipeline.name": "n"}
    graph = generate(program(), configuration=configuration)
    assert [n.parallelism for n in graph.nodes.values()] == [3, 5, 3]
    assert {n.max_parallelism for n in graph.nodes.values()} == {64} and graph.job_name == "n"
    graph = generate(program(), configuration=configuration, parallelism=2, max_parallelism=99, job_name="j")
    assert [n.parallelism for n in graph.nodes.values()] == [2, 5, 2]
    assert {n.max_parallelism for n in graph.nodes.values()} == {99} and graph.job_name == "j"


def test_max_parallelism_follows_the_parallelism_when_nobody_set_it():
    graph = generate(sink(map_(source(), parallelism=200), max_parallelism=7))
    assert [n.max_parallelism for n in graph.nodes.values()] == [128, 512, 7]


def test_a_fixed_parallelism_of_a_source_or_sink_wins_over_the_default():
    graph = generate(sink(map_(source(fixed=1)), fixed=2), parallelism=4)
    assert [n.parallelism for n in graph.nodes.values()] == [1, 4, 2]


# ---- slot sharing groups ------------------------------------------------------------------------


def test_the_group_is_the_inputs_if_they_agree_and_the_default_if_not():
    a, b = source("a", slot_sharing_group="g"), source("b", slot_sharing_group="h")
    graph = generate(
        map_(a, "M1"), map_(partition(a, p.RebalancePartitioner()), "M2"), map_(union(a, b), "M3"),
        co_map(a, map_(a, "M4"), "M5"), map_(b, "M6", slot_sharing_group="x"), source("c"),
    )
    groups = {n.name: n.slot_sharing_group for n in graph.nodes.values()}
    assert groups == {
        "Source: a": "g", "Source: b": "h", "Source: c": "default", "M1": "g", "M2": "g",
        "M3": "default", "M4": "g", "M5": "g", "M6": "x",
    }


# ---- physical forms -----------------------------------------------------------------------------


def test_columns_stay_columns_where_both_neighbours_take_them():
    stream = source(columns=True)
    graph = generate(
        sink(stream, "a", columns=True),
        sink(partition(stream, p.RebalancePartitioner()), "b", columns=True),
        sink(keyed(stream, key_field="k"), "c", columns=True),
    )
    assert len(graph.nodes) == 4 and all(edge.columns for edge in graph.edges)


def test_one_conversion_serves_all_consumers_that_want_rows():
    stream = source(columns=True, parallelism=2, slot_sharing_group="g")
    graph = generate(
        sink(stream, "columns", columns=True), map_(stream, "M1"), map_(keyed(stream), "M2", parallelism=3),
        sink(keyed(stream), "selected", columns=True),
        sink(partition(stream, p.CustomPartitioner(max, abs)), "custom", columns=True),
        map_(side_output(stream, "tag"), "M3"), parallelism=2,
    )
    convert = node(graph, "ColumnsToRows")
    assert (convert.parallelism, convert.slot_sharing_group) == (2, "g")
    assert {graph.nodes[e.target_id].name: (e.columns, e.partitioner.name) for e in convert.out_edges} == {
        "M1": (False, "FORWARD"), "M2": (False, "HASH"), "Sink: selected": (False, "HASH"),
        "Sink: custom": (False, "CUSTOM"),
    }
    from_source = {graph.nodes[e.target_id].name: e.columns for e in node(graph, "Source: numbers").out_edges}
    assert from_source == {"Sink: columns": True, "M3": False, "ColumnsToRows": True}
    for n in graph.nodes.values():
        assert all(e.target_id == n.id for e in n.in_edges) and all(e.source_id == n.id for e in n.out_edges)


# ---- operator ids -------------------------------------------------------------------------------


def ids(*transformations):
    return {n.name: n.operator_id for n in generate(*transformations).nodes.values()}


def test_an_operator_id_is_32_hex_digits_and_follows_the_uid():
    one = ids(sink(map_(source(), "count", uid="my-count")))
    two = ids(sink(map_(map_(source("other"), "before"), "renamed", uid="my-count", parallelism=7)))
    assert one["count"] == two["renamed"] == operator_id_of_uid("my-count")
    assert all(len(i) == 32 and int(i, 16) >= 0 for i in {**one, **two}.values())


def test_a_name_that_no_other_operator_has_gives_an_id_that_survives_changes_around_it():
    one = ids(sink(map_(source(), "count")))
    two = ids(sink(map_(map_(keyed(source("other"))), "count")), map_(source("more"), "Flat Map"))
    assert one["count"] == two["count"] and one["Sink: out"] == two["Sink: out"]


def test_operators_of_one_name_get_ids_by_their_place():
    def program():
        stream = source()
        return sink(map_(map_(stream))), sink(map_(stream), "b"), sink(map_(stream), "c")

    graph = generate(*program())
    found = [n.operator_id for n in graph.nodes.values()]
    assert len(set(found)) == len(found)
    assert [n.operator_id for n in generate(*program()).nodes.values()] == found


def test_a_uid_hash_is_taken_as_it_is():
    given = "ABCDEF0123456789abcdef0123456789"
    assert ids(sink(map_(source(), uid_hash=given)))["Map"] == given.lower()
    with pytest.raises(InvalidJobError, match="32 hexadecimal digits"):
        ids(map_(source(), uid_hash="abc"))


def test_ids_are_the_same_in_every_process():
    code = (
        "from tests.unit.graph.programs import *\n"
        "from flinkish.graph.stream_graph_generator import StreamGraphGenerator\n"
        "s = source(); g = StreamGraphGenerator([sink(map_(map_(s))), reduce_(keyed(s))]).generate()\n"
        "print([n.operator_id for n in g.nodes.values()])\n"
    )
    root = str(Path(__file__).resolve().parents[3])
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": root},
        ).stdout
        for seed in ("1", "2", "random")
    }
    assert len(outputs) == 1


# ---- refusals -----------------------------------------------------------------------------------


def refused(*transformations, **options):
    with pytest.raises(InvalidJobError) as caught:
        generate(*transformations, **options)
    error = caught.value
    assert error.what and error.why and error.do
    return str(error)


def test_a_program_without_operators_is_refused():
    assert "defines no operators" in refused(job_name="empty")


def test_forward_to_another_parallelism_is_refused_with_both_numbers():
    text = refused(map_(partition(source(parallelism=2), p.ForwardPartitioner()), parallelism=3))
    assert '"Source: numbers" has parallelism 2, "Map" has 3' in text


def test_two_operators_with_one_uid_are_refused_by_their_names():
    text = refused(sink(map_(source(), "A", uid="x"), "B", uid="x"))
    assert "'x'" in text and '"A" and "Sink: B"' in text
    same_hash = "ab" * 16
    assert "uid hash" in refused(sink(map_(source(), "A", uid_hash=same_hash), uid_hash=same_hash))
    assert "id of its own" in refused(sink(map_(source(), "A", uid="x"), uid_hash=operator_id_of_uid("x")))


@pytest.mark.parametrize(
    "operator", [t.ReduceOperator(max), t.KeyedProcessOperator(abs), t.WindowOperator(None, "reduce")]
)
def test_a_keyed_operator_without_a_key_is_refused(operator):
    stream = t.OneInputTransformation(name="count", operator=operator, input=source())
    assert 'operator "count"' in refused(stream) and "key_by()" in refused(stream)


def test_a_keyed_operator_with_two_inputs_needs_two_keys():
    stream = t.TwoInputTransformation(
        name="join", operator=t.KeyedCoProcessOperator(abs), input1=keyed(source()), input2=source("b"),
        key_selectors=(abs, None),
    )
    assert "on both inputs" in refused(stream)


def test_a_keyed_input_that_arrives_unkeyed_is_refused():
    stream = partition(source(), p.RebalancePartitioner())
    assert "arrive by REBALANCE" in refused(reduce_(stream), parallelism=2)
    assert generate(reduce_(stream), parallelism=1)
    assert generate(reduce_(partition(source(), p.ForwardPartitioner())), parallelism=2)


def test_a_parallelism_above_the_max_parallelism_is_refused_with_both_numbers():
    text = refused(map_(source(), parallelism=9, max_parallelism=8))
    assert "parallelism 9" in text and "max parallelism is 8" in text and 'operator "Map"' in text


def test_a_max_parallelism_that_cannot_be_is_refused():
    assert "between 1 and 32768" in refused(map_(source(), max_parallelism=40_000))


def test_another_parallelism_for_a_fixed_source_is_refused():
    assert "only run with parallelism 1" in refused(source(fixed=1, parallelism=2))


@pytest.mark.parametrize("parallelism", [0, -2, 1.5])
def test_a_parallelism_that_is_no_positive_integer_is_refused(parallelism):
    assert "at least 1" in refused(map_(source(), parallelism=parallelism))


def test_an_option_that_is_no_integer_is_refused_by_its_key():
    with pytest.raises(ConfigurationError, match="parallelism.default"):
        generate(source(), configuration={"parallelism.default": "many"})


def test_a_state_backend_whose_package_is_missing_is_refused(monkeypatch):
    generate(source(), configuration={"state.backend.type": "rocksdb"})
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match="rocksdict is not installed"):
        generate(source(), configuration={"state.backend.type": "rocksdb"})


def test_operators_without_a_uid_are_refused_when_none_may_be_derived():
    configuration = {"pipeline.auto-generate-uids": "false"}
    generate(source(uid="numbers"), configuration=configuration)
    with pytest.raises(InvalidJobError, match='operator "Map"'):
        generate(map_(source(uid="numbers")), configuration=configuration)
