"""A subtask whose receiver takes nothing, and a barrier that overtakes: source -> expand -> sink, a slot each."""

from __future__ import annotations

from operator import itemgetter

from flinkish.datastream.partitioners import KeyGroupPartitioner
from flinkish.graph.job_graph import JobEdge, JobGraph, JobVertex, OutputEdge
from flinkish.messages.checkpoints import (
    AcknowledgeCheckpoint,
    CheckpointAborted,
    CheckpointOptions,
    SnapshotKind,
    TriggerCheckpoint,
)
from flinkish.messages.elements import RowBatch
from flinkish.taskmanager import task as task_module
from flinkish.testing.scripted_chain import ChainScript, ScriptLog
from flinkish.testing.simulated_slots import SimulatedSlots

KEYED = KeyGroupPartitioner(itemgetter(0))


class World:
    """``makes``: what ``expand`` makes of one record."""

    def __init__(self, makes: int, timeout_ms: int | None = None):
        first, second = JobEdge(0, "source", "expand", 0, KEYED), JobEdge(1, "expand", "sink", 0, KEYED)
        batches = [[RowBatch([(number, 0)])] for number in range(40)]

        def vertex(name, chain, inputs, outputs):
            return JobVertex(name, name, chain, 1, 16, name, inputs, outputs)

        graph = JobGraph("job", "unaligned", [
            vertex("source", ChainScript((OutputEdge(0, 0, KEYED, 16),),
                                         lambda subtask, parallelism: [*batches, *[[]] * 1_000]), [], [first]),
            vertex("expand", ChainScript((OutputEdge(1, 1, KEYED, 16),), None,
                                         lambda subtask, value: ((value[0], i) for i in range(makes)), expanding=True),
                   [first], [second]),
            vertex("sink", ChainScript(), [second], []),
        ])  # fmt: skip
        self.log = ScriptLog()
        self.slots = SimulatedSlots(0, ["source", "expand", "sink"], self.log.chain, credits=2)
        self.slots.deploy(graph, {"taskmanager.network.max-records-per-batch": "8"})
        self.slots.start()
        self.options = CheckpointOptions(
            SnapshotKind.CHECKPOINT, "file:/c", "file:/s", unaligned=True, aligned_timeout_ms=timeout_ms
        )
        (self.source,) = [execution for execution in self.slots.states if execution.vertex_id == "source"]

    def run(self, *slots, rounds=60):
        """These slots, and all frames between any."""
        for _ in range(rounds):
            for slot_id in slots:
                self.slots.run(slot_id)
            while self.slots.network.waiting():
                self.slots.deliver(*self.slots.network.waiting()[0])
            for slot_id in slots:
                while self.slots.storing[slot_id]:
                    self.slots.store_one(slot_id)

    def trigger(self, checkpoint_id=1):
        self.slots.tell(self.source, TriggerCheckpoint(self.source, checkpoint_id, self.slots.now_ms, self.options))

    @property
    def acknowledged(self):
        return {
            message.execution.vertex_id: message
            for message in self.slots.checkpoint_messages
            if isinstance(message, AcknowledgeCheckpoint)
        }

    def in_flight(self, vertex):
        return {(part.edge.edge_id, part.sent) for handle in self.acknowledged[vertex].state.in_flight
                for part in handle.parts}  # fmt: skip


def test_it_goes_through_a_task_that_is_stuck_in_the_middle_of_a_records_output():
    world = World(makes=100)
    world.run("source", "expand")
    task = next(task for task in world.slots.slots["expand"].tasks.values())
    assert task._suspended is not None and not task._has_room()
    world.trigger()
    world.run("source", "expand")
    assert set(world.acknowledged) == {"source", "expand"}
    assert world.in_flight("source") == {(0, False)} and world.in_flight("expand") == {(0, True), (1, False)}
    assert world.acknowledged["expand"].metrics.unaligned and world.acknowledged["expand"].metrics.persisted_bytes > 0
    assert task.chain.overdraft == 0
    world.run("source", "expand", "sink")
    assert "sink" in world.acknowledged
    world.slots.check()


def test_a_record_that_makes_more_than_outputs_may_be_overdrawn_by_holds_it_up(monkeypatch):
    monkeypatch.setattr(task_module, "OVERDRAFT_RECORDS", 200)
    world = World(makes=400)
    world.run("source", "expand")
    world.trigger()
    world.run("source", "expand")
    assert set(world.acknowledged) == {"source"}
    for task in world.slots.slots["expand"].tasks.values():
        assert all(channel.pending_records < 300 for writer in task.writers for channel in writer.channels)
    world.run("source", "expand", "sink", rounds=400)
    assert set(world.acknowledged) == {"source", "expand", "sink"}


def test_with_patience_it_waits_in_the_outputs_until_its_time_is_over():
    world = World(makes=3, timeout_ms=500)
    world.run("source", "expand")
    world.trigger()
    world.run("source", "expand")
    assert set(world.acknowledged) == set()
    deadlines = [world.slots.slots[slot].next_deadline_ms() for slot in ("source", "expand")]
    world.slots.now_ms = 499
    world.run("source", "expand")
    assert set(world.acknowledged) == set()
    world.slots.now_ms = max(500, *(deadline for deadline in deadlines if deadline is not None))
    world.run("source", "expand")
    assert set(world.acknowledged) == {"source", "expand"}
    assert world.in_flight("source") == {(0, False)} and (1, False) in world.in_flight("expand")


def test_what_was_overtaken_for_a_checkpoint_that_is_given_up_is_dropped_and_the_next_one_goes_through():
    world = World(makes=3, timeout_ms=500)
    world.run("source", "expand")
    world.trigger()
    world.run("source", "expand")
    for slot_id in ("source", "expand", "sink"):
        world.slots.notify(slot_id, CheckpointAborted("job", 1, 0))
    world.run("source", "expand")
    world.options = CheckpointOptions(SnapshotKind.CHECKPOINT, "file:/c", "file:/s", unaligned=True)
    world.trigger(2)
    world.run("source", "expand", "sink")
    assert {message.checkpoint_id for message in world.acknowledged.values()} == {2}
    assert set(world.acknowledged) == {"source", "expand", "sink"}
