"""JobGraph: operators grouped into chains, each chain a JobVertex.  Plain data.

Source: Flink's ``JobGraph``, ``JobVertex``, ``StreamingJobGraphGenerator``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Optional

from flinkish.datastream.partitioners import StreamPartitioner
from flinkish.datastream.transformations import Operator


@dataclass(frozen=True)
class ChainedOperator:
    """One operator of a chain.  ``node_id`` is its StreamNode id, ``operator_id`` the stable one.  ``timed_by``: stable
    ids of what makes its event time: the sources and watermark generators upstream of it."""

    node_id: int
    operator_id: str
    name: str
    operator: Operator
    key_selectors: tuple[Optional[Callable[[Any], Any]], ...] = ()
    key_type: Any = None
    output_type: Any = None
    uid: Optional[str] = None
    timed_by: frozenset[str] = frozenset()

    @property
    def is_keyed(self) -> bool:
        return any(selector is not None for selector in self.key_selectors)


@dataclass(frozen=True)
class ChainEdge:
    """Output of one chained operator to the next inside the chain."""

    source_id: int
    target_id: int
    output_tag: Any = None


@dataclass(frozen=True)
class OutputEdge:
    """Output of a chained operator that leaves the chain by ``edge_id``.

    ``columns``: batches travel as columns.  ``target_max_parallelism`` is the consumer's (key
    groups)."""

    edge_id: int
    source_id: int
    partitioner: StreamPartitioner
    target_max_parallelism: int
    output_tag: Any = None
    buffer_timeout_ms: Optional[int] = None
    columns: bool = False
    output_type: Any = None


@dataclass(frozen=True)
class OperatorChainSpec:
    """What a slot runs as one task.

    ``operators`` are in topological order; the first is the head: it has a SourceOperator, or the
    task's inputs end there.  Pickled by cloudpickle, once per vertex."""

    operators: tuple[ChainedOperator, ...]
    edges: tuple[ChainEdge, ...]
    outputs: tuple[OutputEdge, ...]


@dataclass(frozen=True)
class JobEdge:
    """A connection between two vertices.  ``id`` is unique in the job."""

    id: int
    source_vertex_id: str
    target_vertex_id: str
    input_index: int
    partitioner: StreamPartitioner
    columns: bool = False


@dataclass
class JobVertex:
    """``id`` is the operator id of the chain's head.  ``parallelism_set``: the program sets that of one of its
    operators, or one of them has no other, so it stays when the job is rescaled as a whole.
    ``max_parallelism_derived``: from the parallelism, so that a job which is restored takes over the saved one."""

    id: str
    name: str
    chain: OperatorChainSpec
    parallelism: int
    max_parallelism: int
    slot_sharing_group: str
    inputs: list[JobEdge] = field(default_factory=list)
    outputs: list[JobEdge] = field(default_factory=list)
    parallelism_set: bool = False
    max_parallelism_derived: bool = False


@dataclass
class JobGraph:
    """Vertices in topological order."""

    job_id: str
    job_name: str
    vertices: list[JobVertex]
    configuration: Mapping[str, Any] = field(default_factory=dict)

    @property
    def edges(self) -> list[JobEdge]:
        return [edge for vertex in self.vertices for edge in vertex.outputs]
