"""A StreamGraph to look at: Flink's plan JSON, Mermaid, and HTML for notebooks.

Source: Flink's ``JSONGenerator`` (``env.getExecutionPlan()``).
"""

from __future__ import annotations

import html as _html
import json
from typing import Any

from flinkish.datastream.transformations import SinkOperator, SourceOperator
from flinkish.graph.stream_graph import StreamEdge, StreamGraph, StreamNode


def execution_plan(stream_graph: StreamGraph) -> dict[str, Any]:
    """The plan as a dict; see ``execution_plan_json``."""
    nodes = []
    order = sorted(stream_graph.nodes.values(), key=lambda node: (_is_sink(node), node.id))
    for node in order:
        entry: dict[str, Any] = {
            "id": node.id,
            "type": node.name,
            "pact": _pact(node),
            "contents": node.description,
            "parallelism": node.parallelism,
        }
        if node.in_edges:
            # Flink writes "second" for every side (it looks after it has added), so do we.
            entry["predecessors"] = [
                {"id": edge.source_id, "ship_strategy": edge.partitioner.name, "side": "second"}
                for edge in node.in_edges
            ]
        nodes.append(entry)
    return {"nodes": nodes}


def execution_plan_json(stream_graph: StreamGraph) -> str:
    """``env.get_execution_plan()``: what Flink's plan visualizer reads."""
    return json.dumps(execution_plan(stream_graph), indent=2)


def _is_sink(node: StreamNode) -> bool:
    return isinstance(node.operator, SinkOperator)


def _pact(node: StreamNode) -> str:
    if isinstance(node.operator, SourceOperator):
        return "Data Source"
    return "Data Sink" if _is_sink(node) else "Operator"


def _edge_label(edge: StreamEdge) -> str:
    tag = getattr(edge.output_tag, "tag_id", edge.output_tag)
    return edge.partitioner.name if tag is None else f"{edge.partitioner.name} ({tag})"


# ---- mermaid ------------------------------------------------------------------------------------


def mermaid(stream_graph: StreamGraph) -> str:
    """A flowchart in Mermaid's text form."""
    lines = ["flowchart LR"]
    for node in stream_graph.nodes.values():
        label = f"{_mermaid_text(node.name)}<br/>parallelism {node.parallelism}"
        left, right = ("([", "])") if _pact(node) != "Operator" else ("[", "]")
        lines.append(f'    n{node.id}{left}"{label}"{right}')
    for edge in stream_graph.edges:
        label = _mermaid_text(_edge_label(edge))
        lines.append(f'    n{edge.source_id} -->|"{label}"| n{edge.target_id}')
    return "\n".join(lines) + "\n"


def _mermaid_text(text: str) -> str:
    """Mermaid writes special characters as ``#code;``."""
    return "".join(
        character if character.isalnum() or character in " _-.,:()/+*=" else f"#{ord(character)};"
        for character in text
    )


# ---- html ---------------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 190, 56, 110, 26, 12
_NAME_LENGTH_MAX = 25


def html(stream_graph: StreamGraph) -> str:
    """One self-contained SVG: no script, no network; takes the colours of the page around it."""
    levels = _levels(stream_graph)
    rows: dict[int, int] = {}
    position: dict[int, tuple[int, int]] = {}
    for node_id, level in levels.items():
        row = rows.get(level, 0)
        rows[level] = row + 1
        position[node_id] = (
            _MARGIN + level * (_WIDTH + _GAP_X),
            _MARGIN + row * (_HEIGHT + _GAP_Y),
        )
    width = max(x for x, _ in position.values()) + _WIDTH + _MARGIN
    height = max(y for _, y in position.values()) + _HEIGHT + _MARGIN
    parts = [_svg_edge(edge, position) for edge in stream_graph.edges]
    parts += [_svg_node(node, *position[node.id]) for node in stream_graph.nodes.values()]
    title = _html.escape(stream_graph.job_name)
    return (
        '<div class="flinkish-graph" style="overflow-x:auto">'
        f'<div style="font:600 13px sans-serif;margin:4px 0">{title}</div>'
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img" aria-label="{title}" '
        'style="color:inherit;font-family:sans-serif">' + "".join(parts) + "</svg></div>"
    )


def _levels(graph: StreamGraph) -> dict[int, int]:
    """Column of each node: one behind its last input."""
    levels: dict[int, int] = {}
    for node in graph.nodes.values():  # in topological order
        levels[node.id] = max((levels[e.source_id] + 1 for e in node.in_edges), default=0)
    return levels


def _svg_node(node: StreamNode, x: int, y: int) -> str:
    fill = {"Data Source": "#2f855a", "Data Sink": "#b7791f", "Operator": "#3182ce"}[_pact(node)]
    name = node.name
    if len(name) > _NAME_LENGTH_MAX:
        name = name[: _NAME_LENGTH_MAX - 1] + "…"
    middle = x + _WIDTH // 2
    return (
        f"<g><title>{_html.escape(node.description)}</title>"
        f'<rect x="{x}" y="{y}" width="{_WIDTH}" height="{_HEIGHT}" rx="7" fill="{fill}" '
        f'fill-opacity="0.15" stroke="{fill}"/>'
        f'<text x="{middle}" y="{y + 24}" text-anchor="middle" font-size="13" '
        f'fill="currentColor">{_html.escape(name)}</text>'
        f'<text x="{middle}" y="{y + 43}" text-anchor="middle" font-size="11" '
        f'fill="currentColor" fill-opacity="0.7">parallelism {node.parallelism}</text></g>'
    )


def _svg_edge(edge: StreamEdge, position: dict[int, tuple[int, int]]) -> str:
    x1, y1 = position[edge.source_id]
    x2, y2 = position[edge.target_id]
    x1, y1, y2 = x1 + _WIDTH, y1 + _HEIGHT // 2, y2 + _HEIGHT // 2
    bend = (x2 - x1) // 2
    return (
        f'<path d="M{x1} {y1} C{x1 + bend} {y1} {x2 - bend} {y2} {x2 - 7} {y2}" fill="none" '
        'stroke="currentColor" stroke-opacity="0.55"/>'
        f'<path d="M{x2 - 8} {y2 - 4} L{x2} {y2} L{x2 - 8} {y2 + 4} Z" fill="currentColor" '
        'fill-opacity="0.55"/>'
        f'<text x="{(x1 + x2) // 2}" y="{(y1 + y2) // 2 - 5}" text-anchor="middle" font-size="10" '
        f'fill="currentColor" fill-opacity="0.75">{_html.escape(_edge_label(edge))}</text>'
    )
