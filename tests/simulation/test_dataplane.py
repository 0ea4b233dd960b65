"""Random jobs over random slots and a random network: nothing is lost, doubled or reordered."""

from __future__ import annotations

import random
from collections import Counter, defaultdict

import pytest

from flinkish.graph.execution_graph import slots_needed
from flinkish.testing.scripted_chain import ScriptLog
from flinkish.testing.simulated_slots import SimulatedSlots
from tests.simulation.random_jobs import RandomJob

SEEDS = range(100)


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
