"""StreamGraph: one node per operator, as the user wrote the program.  Plain data.

Source: Flink's ``StreamGraph``, ``StreamNode``, ``StreamEdge``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Optional

from flinkish.datastream.partitioners import StreamPartitioner
from flinkish.datastream.transformations import ChainingStrategy, Operator

DEFAULT_SLOT_SHARING_GROUP = "default"


@dataclass
class StreamEdge:
    """``input_index`` 0 or 1 at the target.  ``output_tag`` None: the main output.
    ``columns``: batches travel as columns."""

    source_id: int
    target_id: int
    input_index: int
    partitioner: StreamPartitioner
    output_tag: Any = None
    buffer_timeout_ms: Optional[int] = None
    columns: bool = False


@dataclass
class StreamNode:
    """``operator_id``: 32 hex digits, stable over program changes when the user set uid or name."""

    id: int
    operator_id: str
    name: str
    uid: Optional[str]
    description: str
    operator: Operator
    parallelism: int
    parallelism_set: bool  # by the program, or the operator has no other
    max_parallelism: int
    slot_sharing_group: str
    chaining_strategy: ChainingStrategy
    key_selectors: tuple[Optional[Callable[[Any], Any]], ...] = ()
    key_type: Any = None
    output_type: Any = None
    max_parallelism_derived: bool = False  # from the parallelism: the program sets none
    in_edges: list[StreamEdge] = field(default_factory=list)
    out_edges: list[StreamEdge] = field(default_factory=list)


@dataclass
class StreamGraph:
    """Nodes in topological order (sources first, ties by id).  ``configuration``: dict of strings."""

    job_name: str
    nodes: dict[int, StreamNode]
    configuration: Mapping[str, Any] = field(default_factory=dict)
    chaining_enabled: bool = True

    @property
    def edges(self) -> list[StreamEdge]:
        return [edge for node in self.nodes.values() for edge in node.out_edges]
