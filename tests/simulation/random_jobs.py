"""Random jobs for the data plane: layers of vertices, any partitioners, any number of slots."""

from __future__ import annotations

import random
from operator import itemgetter

from flinkish.datastream import partitioners
from flinkish.graph.job_graph import JobEdge, JobGraph, JobVertex, OutputEdge
from flinkish.testing.scripted_chain import ChainScript, source_of_numbers

MAX_PARALLELISM = 16


def a_partitioner(rng: random.Random, equal: bool) -> partitioners.StreamPartitioner:
    kinds = [
        partitioners.RebalancePartitioner(),
        partitioners.RescalePartitioner(),
        partitioners.ShufflePartitioner(),
        partitioners.BroadcastPartitioner(),
        partitioners.GlobalPartitioner(),
        partitioners.CustomPartitioner(lambda key, count: key % count, itemgetter(1)),
        partitioners.KeyGroupPartitioner(itemgetter(1)),
        partitioners.KeyGroupPartitioner(lambda value: ("k", value[1] % 7)),
    ]
    return rng.choice(kinds + [partitioners.ForwardPartitioner()] * equal)


class RandomJob:
    """Layers of vertices; each has an input from one or two vertices before it.

    Args:
        counts: how many records a source subtask gives, one of these.
        committables: vertices without outputs prepare what they take.
    """

    def __init__(
        self, rng: random.Random, counts: tuple[int, ...] = (1, 10, 200), committables: bool = False
    ):
        self.rng = rng
        self.committables = committables
        self.count = rng.choice(counts)
        self.idle = rng.random() < 0.3
        self.timed = rng.random() < 0.8
        self.vertices: list[JobVertex] = []
        self.edges: list[JobEdge] = []
        self.fan_out: dict[str, int] = {}
        total = rng.randint(2, 4)
        parallelisms = [rng.randint(1, 3) for _ in range(total)]
        sources = 2 if total > 2 and rng.random() < 0.4 else 1
        for index in range(sources, total):
            first = rng.randrange(index)
            self.connect(first, index, 0, parallelisms)
            if rng.random() < 0.5:
                second = rng.randrange(index)
                self.connect(second, index, rng.randint(0, 1), parallelisms)
        for index, parallelism in enumerate(parallelisms):
            self.vertices.append(self.vertex(index, parallelism, index < sources))
        self.graph = JobGraph("job", "random", self.vertices)

    def connect(self, source: int, target: int, index: int, parallelisms: list[int]) -> None:
        equal = parallelisms[source] == parallelisms[target]
        edge = JobEdge(
            len(self.edges), f"v{source}", f"v{target}", index, a_partitioner(self.rng, equal)
        )
        self.edges.append(edge)

    def vertex(self, index: int, parallelism: int, is_source: bool) -> JobVertex:
        name, rng = f"v{index}", self.rng
        inputs = [edge for edge in self.edges if edge.target_vertex_id == name]
        outputs = [edge for edge in self.edges if edge.source_vertex_id == name]
        fan_out = self.fan_out[name] = 1 if is_source else rng.choice((1, 1, 0, 3))
        if is_source:
            source = source_of_numbers(
                self.count, rng.choice((1, 7, 64)), rng.choice((0, 1, 3)), self.timed, self.idle
            )
            process = None
        else:
            source = None
            process = None if fan_out == 1 and rng.random() < 0.5 else _process(name, fan_out)
        script = ChainScript(
            outputs=tuple(
                OutputEdge(edge.id, index, edge.partitioner, MAX_PARALLELISM) for edge in outputs
            ),
            source=source,
            process=process,
            inputs=1 + max([edge.input_index for edge in inputs], default=0),
            expanding=process is not None,
            emit=rng.choice(("one", "batch", "fused")),
            committables=self.committables and not outputs,
        )
        group = rng.choice(("a", "b", "c"))
        return JobVertex(name, name, script, parallelism, MAX_PARALLELISM, group, inputs, outputs)

    def expected(self) -> dict[str, int]:
        """Records that each vertex takes in, over all of its subtasks."""
        taken: dict[str, int] = {}
        for vertex in self.vertices:
            if not vertex.inputs:
                taken[vertex.id] = vertex.parallelism * self.count
                continue
            taken[vertex.id] = 0
            for edge in vertex.inputs:
                out = taken[edge.source_vertex_id] * self.fan_out[edge.source_vertex_id]
                broadcast = isinstance(edge.partitioner, partitioners.BroadcastPartitioner)
                taken[vertex.id] += out * (vertex.parallelism if broadcast else 1)
        return taken


def _process(name: str, fan_out: int):
    def process(subtask, value):
        origin, number, *trail = value
        for copy in range(fan_out):
            yield (origin, number, *trail, (name, subtask, copy))

    return process
