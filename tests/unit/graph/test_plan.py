"""The plan as JSON, Mermaid and HTML."""

import json
import xml.etree.ElementTree as ElementTree

from flinkish.graph.plan import execution_plan_json, html, mermaid
from flinkish.graph.stream_graph_generator import StreamGraphGenerator
from tests.unit.graph.programs import keyed, map_, reduce_, side_output, sink, source


def generate(*transformations, **options):
    return StreamGraphGenerator(transformations, **options).generate()


def test_the_plan_is_in_flinks_form_with_sinks_last():
    stream = source()
    out = sink(stream, "first", description="writes <here>")
    total = reduce_(keyed(stream), parallelism=3)
    graph = generate(out, sink(total), parallelism=2)
    plan = json.loads(execution_plan_json(graph))
    ids = {node["type"]: node["id"] for node in plan["nodes"]}
    assert plan["nodes"] == [
        {"id": ids["Source: numbers"], "type": "Source: numbers", "pact": "Data Source",
         "contents": "Source: numbers", "parallelism": 2},
        {"id": ids["Reduce"], "type": "Reduce", "pact": "Operator", "contents": "Reduce", "parallelism": 3,
         "predecessors": [{"id": ids["Source: numbers"], "ship_strategy": "HASH", "side": "second"}]},
        {"id": ids["Sink: first"], "type": "Sink: first", "pact": "Data Sink", "contents": "writes <here>",
         "parallelism": 2,
         "predecessors": [{"id": ids["Source: numbers"], "ship_strategy": "FORWARD", "side": "second"}]},
        {"id": ids["Sink: out"], "type": "Sink: out", "pact": "Data Sink", "contents": "Sink: out",
         "parallelism": 2,
         "predecessors": [{"id": ids["Reduce"], "ship_strategy": "REBALANCE", "side": "second"}]},
    ]


def test_mermaid_escapes_names_and_shows_how_records_travel():
    stream = source('"odd" [name]|')
    graph = generate(sink(side_output(map_(stream), "late"), parallelism=2))
    text = mermaid(graph)
    a, b, c = graph.nodes
    assert text.splitlines()[0] == "flowchart LR"
    assert f'n{a}(["Source: #34;odd#34; #91;name#93;#124;<br/>parallelism 1"])' in text
    assert f'n{a} -->|"FORWARD"| n{b}' in text and f'n{b} -->|"REBALANCE (late)"| n{c}' in text


def test_html_is_well_formed_self_contained_and_takes_the_colours_of_the_page():
    stream = map_(source(), "<script>alert(1)</script>")
    graph = generate(sink(stream), sink(keyed(stream), "b", parallelism=2), job_name="a & b")
    text = html(graph)
    root = ElementTree.fromstring(text)
    assert "<script>" not in text and "a &amp; b" in text
    assert "currentColor" in text and "fill=\"#fff" not in text
    links = [value for element in root.iter() for value in element.attrib.values() if "://" in value]
    assert links == []  # nothing to load; the SVG's own namespace is no attribute
    rectangles = [e for e in root.iter() if e.tag.endswith("rect")]
    assert len(rectangles) == len(graph.nodes)
    places = {(r.get("x"), r.get("y")) for r in rectangles}
    assert len(places) == len(graph.nodes)
