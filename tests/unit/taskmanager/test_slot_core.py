"""Deployment, routing, peers, cancel; several subtasks in one slot."""

import pickle
from operator import itemgetter

import pytest

from flinkish.datastream import partitioners
from flinkish.errors import ConnectionLostError, InternalError
from flinkish.graph.job_graph import JobEdge, JobGraph, JobVertex, OutputEdge
from flinkish.messages.control import OperatorEvent
from flinkish.messages.deployment import ExecutionAttemptID
from flinkish.taskmanager import wire
from flinkish.testing.scripted_chain import ChainScript, ScriptLog, source_of_numbers
from flinkish.testing.simulated_slots import SimulatedSlots


def pipeline(parallelism=2, source=None, groups=("a", "a", "a"), middle=None):
    """source -> middle -> sink, by key and rebalance."""
    first = JobEdge(0, "source", "middle", 0, partitioners.KeyGroupPartitioner(itemgetter(1)))
    second = JobEdge(1, "middle", "sink", 0, partitioners.RebalancePartitioner())
    source = source or source_of_numbers(500, 64, 1)
    scripts = [
        ChainScript((OutputEdge(0, 0, first.partitioner, 128),), source=source),
        ChainScript(
            (OutputEdge(1, 0, second.partitioner, 128),), process=middle, expanding=bool(middle)
        ),
        ChainScript(),
    ]
    vertices = [
        JobVertex("source", "source", scripts[0], parallelism, 128, groups[0], [], [first]),
        JobVertex("middle", "middle", scripts[1], parallelism, 128, groups[1], [first], [second]),
        JobVertex("sink", "sink", scripts[2], parallelism, 128, groups[2], [second], []),
    ]
    return JobGraph("job", "pipeline", vertices)


def a_world(graph, slot_ids=("s0", "s1"), **options):
    log = ScriptLog()
    slots = SimulatedSlots(1, list(slot_ids), log.chain, **options)
    slots.deploy(graph, {})
    return slots, log


def inputs(slot):
    """Input channels of all tasks."""
    return [channel for task in slot.tasks.values() for gate in task.gates for channel in gate.channels]


def test_two_slots_run_a_keyed_pipeline_to_its_end():
    slots, log = a_world(pipeline())
    slots.start()
    slots.run_until_quiet()
    assert set(slots.states.values()) == {"FINISHED"}
    received = log.records("sink", 0) + log.records("sink", 1)
    assert sorted(received) == [(subtask, i) for subtask in range(2) for i in range(500)]
    assert all(slot.is_over for slot in slots.slots.values())


@pytest.mark.parametrize("credits", [1, 2, 4])
def test_subtasks_of_one_slot_feed_each_other_under_backpressure_without_deadlock(credits):
    def expand(subtask, value):
        for copy in range(50):
            yield (*value, copy)

    log = ScriptLog()
    slots = SimulatedSlots(1, ["only"], log.chain, credits=credits)
    slots.deploy(
        pipeline(1, source_of_numbers(200, 16, 1), middle=expand),
        {"taskmanager.network.max-records-per-batch": "8"},
    )
    slots.start()
    slots.run_until_quiet(check_every=1)
    assert set(slots.states.values()) == {"FINISHED"}
    assert len(log.records("sink", 0)) == 200 * 50


def test_frames_for_channels_that_are_not_there_are_dropped_and_counted():
    slots, _ = a_world(pipeline())
    slot = slots.slots["s0"]
    rows = b"".join(wire.encode_rows([1], None))
    slot.on_frame(0, "s1", wire.ROWS, 999, rows)
    slot.on_frame(0, "s1", wire.CREDIT, 999, b"".join(wire.encode_credit(1)))
    own = next(c for c in inputs(slot) if c.peer_slot == "s1")
    slot.on_frame(0, "s7", wire.ROWS, own.channel_id, rows)  # not the peer of this channel
    assert slot.frames_dropped == 3 and not own.queue
    slot.dispose()
    slot.on_frame(0, "s1", wire.ROWS, own.channel_id, rows)
    assert slot.frames_dropped == 4
    slot.on_operator_event(OperatorEvent(ExecutionAttemptID("job", 0, "source", 0), "op", 1))
    assert slot.events_dropped == 1


def test_a_slot_can_be_used_again_after_dispose():
    slots, log = a_world(pipeline())
    slots.start()
    for _ in range(20):
        slots.step()
    for slot in slots.slots.values():
        slot.dispose()
    assert set(slots.states.values()) == {"CANCELED"}
    assert all(chain.closed for chain in log.chains.values())
    slots.states.clear()
    slots.network.pairs.clear()
    slots.deploy(pipeline(), {})
    slots.start()
    slots.run_until_quiet()
    assert set(slots.states.values()) == {"FINISHED"}


def test_cancel_closes_every_chain_and_reports_each_once():
    slots, log = a_world(pipeline())
    slots.start()
    for _ in range(30):
        slots.step()
    for slot in slots.slots.values():
        slot.cancel(slot.tasks)
        slot.cancel(slot.tasks)
    assert set(slots.states.values()) == {"CANCELED"} and len(slots.states) == 6
    assert all(chain.closed for chain in log.chains.values())
    assert not any(slot.run_round() for slot in slots.slots.values())
    assert all(slot.next_deadline_ms() is None for slot in slots.slots.values())


def test_cancel_before_start_closes_what_was_built():
    slots, log = a_world(pipeline())
    slots.slots["s0"].cancel(slots.slots["s0"].tasks)
    assert {s for e, s in slots.states.items()} == {"CANCELED"} and len(slots.states) == 3
    slots.slots["s0"].start(0)
    assert set(slots.states.values()) == {"CANCELED"}


def test_a_lost_peer_fails_the_tasks_that_still_need_it():
    slots, _ = a_world(pipeline(groups=("a", "a", "a")))
    slots.start()
    slots.slots["s0"].on_peer_lost(0, "s1", OSError("connection reset"))
    failed = {e for e, state in slots.states.items() if state == "FAILED"}
    assert {e.vertex_id for e in failed} == {"source", "middle", "sink"}
    for error in slots.failures.values():
        assert isinstance(error, ConnectionLostError) and "connection reset" in error.why
        assert error.retryable and error.fields["peer_slot"] == "s1"


def test_a_lost_peer_is_no_news_to_finished_tasks():
    slots, _ = a_world(pipeline())
    slots.start()
    slots.run_until_quiet()
    for slot in slots.slots.values():
        slot.on_peer_lost(0, "s0", None)
        slot.on_peer_lost(0, "s1", None)
    assert set(slots.states.values()) == {"FINISHED"}


def test_a_frame_without_credit_fails_the_task_that_owns_the_channel():
    slots, _ = a_world(pipeline())
    slots.start()
    slot = slots.slots["s0"]
    channel = next(c for c in inputs(slot) if c.peer_slot == "s1")
    for _ in range(3):
        slot.on_frame(0, "s1", wire.ROWS, channel.channel_id, b"".join(wire.encode_rows([1], None)))
    (error,) = slots.failures.values()
    assert isinstance(error, InternalError) and "frame without credit" in error.why


def test_a_record_that_does_not_unpickle_fails_its_task():
    slots, _ = a_world(pipeline())
    slots.start()
    slot = slots.slots["s0"]
    channel = next(c for c in inputs(slot) if c.peer_slot == "s1")
    slot.on_frame(0, "s1", wire.ROWS, channel.channel_id, b"\x00" + pickle.dumps([1])[:-3])
    slot.run_round()
    assert [e.vertex_id for e in slots.failures] == [
        channel.edge.target_vertex
    ]


def test_a_chain_that_cannot_be_built_is_reported_and_the_others_stay():
    graph = pipeline()
    log = ScriptLog()

    def factory(spec, environment, writers, fused):
        if environment.task_name == "middle":
            raise ValueError("no such operator")
        return log.chain(spec, environment, writers, fused)

    slots = SimulatedSlots(1, ["s0", "s1"], factory)
    slots.deploy(graph, {})
    states = {(e.vertex_id, e.subtask_index): s for e, s in slots.states.items()}
    assert states == {("middle", 0): "FAILED", ("middle", 1): "FAILED"}
    error = next(iter(slots.failures.values()))
    assert isinstance(error, InternalError) and "no such operator" in error.why
    slots.start()
    slots.slots["s0"].run_round()
    slots.slots["s0"].dispose()
    assert log.chains["source", 0].closed and log.chains["sink", 0].closed


def test_events_reach_the_operator_of_their_subtask():
    slots, log = a_world(pipeline(source=lambda subtask, parallelism: [[], []]))
    slots.start()
    execution = next(e for e in slots.slots["s0"].tasks if e.vertex_id == "source")
    slots.slots["s0"].on_operator_event(OperatorEvent(execution, "op", {"a": 1}))
    slots.slots["s0"].run_round()
    assert ("event", 0, ("op", {"a": 1}), None) in log.seen["source", 0]


def test_operators_can_send_events_and_know_where_they_run():
    slots, log = a_world(pipeline())
    environment = log.chains["middle", 1].environment
    assert (environment.subtask_index, environment.parallelism, environment.host) == (1, 2, "host")
    environment.send_event("op", "payload")
    (event,) = slots.events
    assert (event.execution.vertex_id, event.operator_id, event.payload) == (
        "middle",
        "op",
        "payload",
    )


def test_metrics_are_reported_by_execution():
    slots, _ = a_world(pipeline())
    slots.start()
    slots.run_until_quiet()
    reports = {k: v for slot in slots.slots.values() for k, v in slot.metrics().items()}
    assert len(reports) == 6
    total = sum(v["numRecordsIn"] for k, v in reports.items() if "-sink" in k)
    assert total == 1000


def test_a_full_connection_makes_a_deadline_so_that_the_slot_looks_again():
    graph = pipeline(1, groups=("a", "b", "c"))
    log = ScriptLog()
    slots = SimulatedSlots(1, ["s0", "s1", "s2"], log.chain, credits=100)
    slots.deploy(
        graph,
        {
            "taskmanager.network.max-pending-bytes": "100",
            "taskmanager.network.max-records-per-batch": "8",
        },
    )
    slots.start()
    slot = slots.slots["s0"]
    for _ in range(100):
        slot.run_round()
    assert not slot.run_round()
    assert slots.now_ms < slot.next_deadline_ms() <= slots.now_ms + 10


# ---- tasks of several attempts side by side


def two_pipelines(source=None):
    """a -> b and c -> d, by rebalance: two regions that share all slots."""
    source = source or source_of_numbers(400, 16, 1)
    vertices = []
    for edge_id, (first, second) in enumerate((("a", "b"), ("c", "d"))):
        edge = JobEdge(edge_id, first, second, 0, partitioners.RebalancePartitioner())
        script = ChainScript((OutputEdge(edge_id, 0, edge.partitioner, 128),), source=source)
        vertices += [
            JobVertex(first, first, script, 2, 128, "default", [], [edge]),
            JobVertex(second, second, ChainScript(), 2, 128, "default", [edge], []),
        ]
    return JobGraph("job", "two pipelines", vertices)


FIRST = {(vertex, subtask) for vertex in "ab" for subtask in range(2)}


def of_first(slot):
    return {execution for execution in slot.tasks if execution.vertex_id in "ab"}


def half_way(graph):
    slots, log = a_world(graph)
    slots.start()
    while len(log.records("d", 0)) < 50:
        assert slots.step()
    return slots, log


def replace_first(slots, graph, log, attempt=1):
    """What a JobManager does: cancel the first pipeline everywhere, deploy it anew, start it."""
    for slot in slots.slots.values():
        slot.cancel(of_first(slot))
    for subtask in range(2):
        log.seen["b", subtask].clear()
    slots.deploy(graph, {}, attempt=attempt, beside=FIRST)
    slots.start(attempt)


@pytest.mark.parametrize("seed", range(5))
def test_a_region_is_replaced_beside_another_that_goes_on_and_no_old_record_reaches_a_new_task(seed):
    graph = two_pipelines()
    slots, log = half_way(graph)
    for _ in range(seed * 40):
        slots.step()
    chains = {key: chain for key, chain in log.chains.items() if key[0] in "cd"}
    assert any(slots.network.pairs.values()), "nothing is on its way"
    replace_first(slots, graph, log)
    slots.run_until_quiet(check_every=1)
    expected = [(subtask, i) for subtask in range(2) for i in range(400)]
    received = [record for subtask in range(2) for record in log.records("d", subtask)]
    assert sorted(received) == expected
    assert {key: log.chains[key] for key in chains} == chains, "the other pipeline was not built again"
    states = {(e.vertex_id, e.subtask_index, e.attempt): state for e, state in slots.states.items()}
    assert {states[vertex, subtask, 0] for vertex, subtask in FIRST} <= {"CANCELED", "FINISHED"}
    assert {states[vertex, subtask, 1] for vertex, subtask in FIRST} == {"FINISHED"}
    assert {states[vertex, subtask, 0] for vertex in "cd" for subtask in range(2)} == {"FINISHED"}
    again = [record for subtask in range(2) for record in log.records("b", subtask)]
    assert sorted(again) == expected


def test_an_attempt_is_forgotten_with_its_last_task_and_metrics_are_of_present_tasks_only():
    graph = two_pipelines()
    slots, log = half_way(graph)
    slot = slots.slots["s0"]
    assert slot.attempts == {0}
    replace_first(slots, graph, log)
    assert slot.attempts == {0, 1}
    replace_first(slots, graph, log, attempt=2)
    assert slot.attempts == {0, 2}
    assert sorted((e.vertex_id, e.attempt) for e in slot.tasks) == [("a", 2), ("b", 2), ("c", 0), ("d", 0)]
    assert set(slot.metrics()) == {str(execution) for execution in slot.tasks}
    dropped = slot.frames_dropped
    slot.on_frame(1, "s1", wire.ROWS, 0, b"".join(wire.encode_rows([1], None)))
    assert slot.frames_dropped == dropped + 1


def test_a_lost_connection_of_one_attempt_fails_its_tasks_only():
    graph = two_pipelines()
    slots, log = half_way(graph)
    replace_first(slots, graph, log)
    slots.slots["s0"].on_peer_lost(1, "s1", OSError("reset"))
    failed = {(e.vertex_id, e.attempt) for e, state in slots.states.items() if state == "FAILED"}
    assert failed == {("a", 1), ("b", 1)}


def test_a_task_that_has_not_ended_is_not_replaced():
    graph = two_pipelines()
    slots, _ = half_way(graph)
    with pytest.raises(AssertionError, match="two attempts at a subtask at once"):
        slots.deploy(graph, {}, attempt=1, beside=FIRST)
