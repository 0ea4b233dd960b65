"""Random jobs over random slots and a random network: nothing is lost, doubled or reordered."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from operator import itemgetter

import pytest

from flinkish.datastream import partitioners
from flinkish.graph.execution_graph import slots_needed
from flinkish.graph.job_graph import JobEdge, JobGraph, JobVertex, OutputEdge
from flinkish.testing.scripted_chain import ChainScript, ScriptLog, source_of_numbers
from flinkish.testing.simulated_slots import SimulatedSlots

SEEDS = range(100)
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
    """Layers of vertices; each has an input from one or two vertices before it."""

    def __init__(self, rng: random.Random):
        self.rng = rng
        self.count = rng.choice((1, 10, 200))
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


@pytest.mark.parametrize("seed", SEEDS)
def test_random_jobs_lose_double_and_reorder_nothing(seed):
    rng = random.Random(seed)
    job = RandomJob(rng)
    log = ScriptLog()
    frame_records = rng.choice((1, 3, 16, 1024))
    configuration = {
        "taskmanager.network.max-records-per-batch": str(frame_records),
        "taskmanager.network.max-pending-bytes": str(rng.choice((200, 5_000, 1_000_000))),
        "execution.buffer-timeout": str(rng.choice((-1, 0, 3, 100))),
    }
    slot_ids = [f"s{i}" for i in range(slots_needed(job.graph))]
    slots = SimulatedSlots(
        seed,
        slot_ids,
        log.chain,
        network_slow=rng.random(),
        credits=rng.randint(1, 4),
        overdraft_max=frame_records // 4,  # a slice is not smaller where room is scarce
    )
    slots.deploy(job.graph, configuration)
    slots.start()
    slots.run_until_quiet(steps_max=300_000)

    failures = [f"{error}\n{error.fields}" for error in slots.failures.values()]
    assert set(slots.states.values()) == {"FINISHED"}, (seed, slots.states, failures)
    assert all(chain.closed for chain in log.chains.values())
    for vertex in job.vertices:
        subtasks = range(vertex.parallelism)
        records = [log.records(vertex.id, subtask) for subtask in subtasks]
        assert sum(map(len, records)) == job.expected()[vertex.id], (seed, vertex.id)
        for subtask in subtasks:
            _check_one_subtask(seed, job, vertex, log.seen[vertex.id, subtask])


def _check_one_subtask(seed, job, vertex, seen):
    last_number = defaultdict(lambda: -1)
    watermarks = defaultdict(lambda: -1)
    times_seen = Counter()
    for kind, index, value, timestamp in seen:
        if kind == "watermark":
            watermarks[index] = value
        if kind != "record":
            continue
        origin, number, *trail = value
        if job.timed:
            assert timestamp == number, (seed, value, timestamp)
            # Nothing overtakes a watermark, so nothing is late (an idle input may come back late).
            assert job.idle or timestamp > watermarks[index], (seed, vertex.id, value)
        else:
            assert timestamp is None, (seed, value)
        # All that came by one way (subtasks and copies) is in the order of its source.
        if len(vertex.inputs) <= 1:
            way = (origin, *trail)
            assert number > last_number[way] or _doubles(job, vertex), (seed, vertex.id, value)
            last_number[way] = max(last_number[way], number)
            times_seen[value] += 1
    if len(vertex.inputs) == 1 and not _doubles(job, vertex):
        assert max(times_seen.values(), default=1) == 1, (seed, times_seen.most_common(1))
    ends = [index for kind, index, *_ in seen if kind == "end"]
    assert sorted(ends) == sorted({edge.input_index for edge in vertex.inputs} or {0})


def _doubles(job, vertex) -> bool:
    """Whether two records may look the same here: a vertex without a trail joined two ways, or a
    source's second edge came back together."""
    before = [edge.source_vertex_id for edge in vertex.inputs]
    while before:
        name = before.pop()
        above = next(v for v in job.vertices if v.id == name)
        if len(above.inputs) > 1 or not above.inputs and len(vertex.inputs) > 1:
            return True
        if above.chain.process is None and above.inputs:
            return True
        before += [edge.source_vertex_id for edge in above.inputs]
    sources = [v for v in job.vertices if not v.inputs]
    return len(sources) > 1
