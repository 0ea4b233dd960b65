"""Checkpoints of subtasks in slots: order of barrier and events, the end, stopping, what is declined."""

import pickle
from dataclasses import replace

import pytest

from flinkish.errors import InternalError
from flinkish.messages.checkpoints import (
    AcknowledgeCheckpoint,
    CheckpointAborted,
    CheckpointComplete,
    CheckpointFailureReason,
    CheckpointOptions,
    DeclineCheckpoint,
    NotifyEndOfData,
    SnapshotKind,
    TriggerCheckpoint,
)
from flinkish.messages.control import OperatorEvent, SinkCommittables
from flinkish.messages.deployment import TaskFailure, TaskRestore
from flinkish.messages.elements import MAX_WATERMARK_MS, RowBatch
from flinkish.taskmanager import slot_core
from flinkish.testing.scripted_chain import ChainScript, ScriptLog
from flinkish.testing.simulated_slots import SimulatedSlots
from tests.unit.taskmanager.test_task import job, polls

KINDS = SnapshotKind


class World:
    """source -> sink in one slot, stepped by the test."""

    def __init__(self, *batches, final=False, committables=False, restore=None, start=True):
        graph = job(polls(*batches))
        if committables:
            graph.vertices[1] = replace(graph.vertices[1], chain=ChainScript(committables=True))
        self.log = ScriptLog()
        self.slots = SimulatedSlots(0, ["s0"], self.log.chain)
        if restore is not None:
            original = slot_core.SlotCore.deploy

            def deploy(core, message):
                tasks = tuple(replace(task, restore=restore) for task in message.tasks)
                return original(core, replace(message, tasks=tasks))

            self.slots.slots["s0"].deploy = deploy.__get__(self.slots.slots["s0"])
        self.slots.deploy(graph, {}, final)
        self.slot = self.slots.slots["s0"]
        self.tasks = {task.descriptor.task_name: task for task in self.slot.tasks.values()}
        if start:
            self.slots.start()

    def trigger(self, checkpoint_id, kind=KINDS.CHECKPOINT, task="source"):
        options = CheckpointOptions(kind, "file:/c", "file:/s")
        execution = self.tasks[task].execution
        self.slots.tell(execution, TriggerCheckpoint(execution, checkpoint_id, 0, options))

    def run(self, rounds=20):
        for _ in range(rounds):
            self.slot.run_round()

    def store_all(self):
        while self.slots.storing["s0"]:
            self.slots.store_one("s0")

    def complete(self, checkpoint_id):
        self.slots.notify("s0", CheckpointComplete("job", checkpoint_id))

    def abort(self, checkpoint_id):
        self.slots.notify("s0", CheckpointAborted("job", checkpoint_id, 0))

    def said(self, kind):
        return [message for message in self.slots.checkpoint_messages if isinstance(message, kind)]

    def seen(self, task):
        return [(kind, value) for kind, _, value, _ in self.log.seen[task, 0]]

    @property
    def states(self):
        return sorted(self.slots.states.values())


def never_ending(*batches):
    return [*batches, *[[] for _ in range(500)]]


def test_the_barrier_of_a_source_comes_behind_what_it_has_collected():
    world = World(*never_ending([RowBatch(list(range(100)))], [RowBatch([100])]))
    task = world.tasks["source"]
    task.clock_ns = lambda: 0
    task.run_turn()
    world.trigger(1)
    world.run()
    for name in ("source", "sink"):
        kinds = [kind for kind, _ in world.seen(name)]
        assert kinds.count("snapshot") == 1
    at = world.seen("sink").index(("snapshot", 1))
    records = [value for kind, value in world.seen("sink")[:at]]
    assert records == list(range(len(records)))


def test_events_of_the_source_wait_for_its_barrier_and_those_of_others_do_not():
    """The coordinator's snapshot has what they bring (an assigned split would be in both)."""
    world = World(*never_ending([RowBatch(list(range(5_000)))]))
    task = world.tasks["source"]
    task.run_turn(1)  # a part of the batch
    world.trigger(1)
    for operator in ("source", "another"):
        world.slot.on_operator_event(OperatorEvent(task.execution, operator, "late"))
    world.trigger(2)
    world.run(200)
    kinds = [(kind, value) for kind, value in world.seen("source") if kind in ("event", "snapshot")]
    assert kinds == [
        ("event", ("another", "late")), ("snapshot", 1), ("event", ("source", "late")), ("snapshot", 2),
    ]  # fmt: skip


def test_records_come_between_two_barriers_of_a_source():
    """Snapshots that take longer than the interval let several be triggered before the next record."""
    world = World(*never_ending(*[[RowBatch([number])] for number in range(8)]))
    task = world.tasks["source"]
    for checkpoint_id in range(1, 5):
        world.trigger(checkpoint_id)
    task.run_turn(10**9)
    seen = [(kind, value) for kind, value in world.seen("source") if kind in ("record", "snapshot")]
    between = [[]]
    for kind, value in seen:
        if kind == "snapshot":
            between.append([])
        else:
            between[-1].append(value)
    assert all(between[1:-1]) and len(between) == 5, seen


def test_where_there_is_no_room_for_records_a_barrier_does_not_wait_for_any():
    world = World(*never_ending([RowBatch([1])]))
    task = world.tasks["source"]
    has_room = task._has_room
    task._has_room = lambda: has_room() and (("snapshot", 1) not in world.seen("source") or task._input.has_collected)
    world.trigger(1)
    world.trigger(2)
    for _ in range(3):
        task.run_turn(10**9)
    assert [seen for seen in world.seen("source") if seen[0] == "snapshot"] == [("snapshot", 1), ("snapshot", 2)]
    assert not task.wants_turn()


def test_acknowledgements_leave_in_the_order_of_ids():
    world = World(*never_ending([RowBatch([1])]))
    world.trigger(1)
    world.run()
    world.trigger(2)
    world.run()
    source = world.tasks["source"].execution
    world.slot.snapshot_stored(source, 2, {})
    assert world.said(AcknowledgeCheckpoint) == []
    world.slot.snapshot_stored(source, 1, {})
    assert [message.checkpoint_id for message in world.said(AcknowledgeCheckpoint)] == [1, 2]


def test_what_was_prepared_for_a_snapshot_that_failed_goes_with_the_next():
    world = World(*never_ending([RowBatch([1, 2])], [], [], [RowBatch([3])]), committables=True)
    world.run(3)
    world.trigger(1)
    world.run(3)
    sink = world.tasks["sink"].execution
    world.slot.snapshot_failed(sink, 1, InternalError("no disk"))
    (declined,) = world.said(DeclineCheckpoint)
    assert declined.reason is CheckpointFailureReason.ASYNC_EXCEPTION
    world.run()
    world.trigger(2)
    world.run()
    world.slot.snapshot_stored(sink, 2, {})
    (message,) = world.said(AcknowledgeCheckpoint)
    assert pickle.loads(message.state.committables["sink"]) == [1, 2, 3]


def test_a_snapshot_that_is_aborted_is_dropped_and_its_committables_are_kept():
    world = World(*never_ending([RowBatch([1])]), committables=True)
    world.run(3)
    world.trigger(1)
    world.run()
    assert world.slots.storing["s0"]
    world.abort(1)
    assert world.slots.storing["s0"] == []
    world.run()
    assert ("aborted", 1) in world.seen("sink")
    world.trigger(2)
    world.run()
    world.store_all()
    (message,) = [m for m in world.said(AcknowledgeCheckpoint) if m.state.committables]
    assert pickle.loads(message.state.committables["sink"]) == [1]


def test_at_the_end_of_data_tasks_stay_for_a_checkpoint_that_began_after():
    world = World([RowBatch([1])], final=True, committables=True)
    world.run()
    assert world.states == ["RUNNING", "RUNNING"]
    assert len(world.said(NotifyEndOfData)) == 2
    assert not world.slot.run_round()  # they are idle
    assert world.seen("sink")[-1] == ("end", None)
    world.complete(0)
    world.run()
    assert world.states == ["RUNNING", "RUNNING"]
    world.trigger(5)
    world.run()
    world.store_all()
    messages = world.said(AcknowledgeCheckpoint)
    assert [message.state.finished for message in messages] == [True, True]
    assert [blob for m in messages for blob in m.state.committables.values()] == [pickle.dumps([1])]
    world.complete(5)
    world.run()
    assert world.states == ["FINISHED", "FINISHED"]


def test_a_task_ends_only_when_its_snapshots_are_stored():
    world = World([RowBatch([1])])
    world.trigger(1)
    world.run()
    assert world.states == ["RUNNING", "RUNNING"]
    assert not world.slot.run_round()
    world.store_all()
    world.run()
    assert world.states == ["FINISHED", "FINISHED"]
    assert len(world.said(AcknowledgeCheckpoint)) == 2


def test_what_no_acknowledgement_has_taken_goes_to_the_driver_at_the_end():
    world = World([RowBatch([1])], committables=True)
    world.trigger(1)
    world.run()
    sink = world.tasks["sink"].execution
    world.slot.snapshot_failed(sink, 1, InternalError("no disk"))
    world.store_all()
    world.run()
    assert world.states == ["FINISHED", "FINISHED"]
    (event,) = world.slots.events
    assert isinstance(event.payload, SinkCommittables)


def test_a_savepoint_that_suspends_stops_all_and_ends_nothing_when_it_is_complete():
    world = World(*never_ending([RowBatch([1])], [RowBatch([2])]))
    world.run(1)
    world.trigger(1, KINDS.SAVEPOINT_SUSPEND)
    world.run()
    before = world.seen("sink")
    world.run()
    assert world.seen("sink") == before and not world.slot.run_round()
    world.store_all()
    world.complete(1)
    world.run()
    assert world.states == ["FINISHED", "FINISHED"]
    assert [kind for kind, _ in world.seen("sink")][-2:] == ["snapshot", "complete"]
    assert ("watermark", MAX_WATERMARK_MS) not in world.seen("sink")


def test_when_a_savepoint_that_suspends_fails_the_job_goes_on():
    world = World(*never_ending([RowBatch([1])], [], [RowBatch([2])]))
    world.run(2)
    world.trigger(1, KINDS.SAVEPOINT_SUSPEND)
    world.run()
    world.abort(1)
    world.run()
    assert world.log.records("sink", 0) == [1, 2]
    assert world.states == ["RUNNING", "RUNNING"]


def test_a_savepoint_that_drains_takes_event_time_to_its_end_first():
    world = World(*never_ending([RowBatch([1])]))
    world.run(2)
    world.trigger(1, KINDS.SAVEPOINT_TERMINATE)
    world.run()
    kinds = world.seen("sink")
    assert kinds.index(("watermark", MAX_WATERMARK_MS)) < kinds.index(("end", None)) < kinds.index(("snapshot", 1))
    assert world.states == ["RUNNING", "RUNNING"]
    world.store_all()
    assert all(message.state.finished for message in world.said(AcknowledgeCheckpoint))
    world.complete(1)
    world.run()
    assert world.states == ["FINISHED", "FINISHED"]


@pytest.mark.parametrize(
    "started, reason",
    [(False, CheckpointFailureReason.TASK_NOT_READY), (True, CheckpointFailureReason.TASK_CLOSING)],
)
def test_a_task_that_does_not_run_declines(started, reason):
    world = World([RowBatch([1])], start=started)
    if started:
        world.run()
        assert world.states == ["FINISHED", "FINISHED"]
    world.trigger(1)
    (declined,) = world.said(DeclineCheckpoint)
    assert declined.reason is reason and isinstance(declined.failure, TaskFailure)


def test_a_task_that_had_finished_before_the_checkpoint_only_ends_its_outputs():
    world = World([RowBatch([1])], restore=TaskRestore(3, {}, finished=True))
    world.run()
    assert world.states == ["FINISHED", "FINISHED"]
    assert not world.log.seen
    assert not any(chain.opened or chain.closed for chain in world.log.chains.values())


def test_an_order_to_a_task_with_inputs_waits_for_what_still_comes():
    """All of its senders have finished, as the JobManager knows; their last records are on their way."""
    world = World([RowBatch([1, 2, 3])])
    world.tasks["source"].run_turn()
    world.tasks["source"].run_turn()
    world.trigger(4, task="sink")
    world.run()
    world.store_all()
    (message,) = world.said(AcknowledgeCheckpoint)
    assert message.execution.vertex_id == "sink"
    at = world.seen("sink").index(("snapshot", 4))
    assert [value for kind, value in world.seen("sink")[:at] if kind == "record"] == [1, 2, 3]


# ---- sources that wait for others -----------------------------------------------------------------


def test_a_source_that_waits_for_others_takes_barriers_and_gives_its_turns_back():
    world = World([RowBatch([1])], [RowBatch([2])])
    task, source = world.tasks["source"], world.log.chains["source", 0].source
    source.is_paused = True
    world.run()
    assert source.rooms == [] and not world.slot.run_round()
    assert task.next_deadline_ms() is None and task.descriptors() == {}
    world.trigger(1)
    world.run()
    world.store_all()
    assert {message.execution for message in world.said(AcknowledgeCheckpoint)} == set(world.slot.tasks)
    assert source.rooms == []
    source.is_paused = False
    world.run()
    assert world.log.records("sink", 0) == [1, 2]
