"""A subtask alone in a slot core: turns, slices, room, idleness, failure, end."""

import asyncio
from collections import deque

import pytest

from flinkish.connectors.spi import InputStatus
from flinkish.datastream import partitioners
from flinkish.errors import (
    InternalError,
    TaskCancelled,
    UnstableKeyError,
    UserError,
    UserFunctionError,
)
from flinkish.graph.job_graph import JobEdge, JobGraph, JobVertex, OutputEdge
from flinkish.messages.elements import (
    MAX_WATERMARK_MS,
    RowBatch,
    Watermark,
    WatermarkStatus,
)
from flinkish.taskmanager.backpressure import BACKPRESSURED, BUSY, IDLE
from flinkish.taskmanager.output_channel import RemoteOutputChannel
from flinkish.testing.scripted_chain import ChainScript, ScriptLog
from flinkish.testing.simulated_slots import SimulatedSlots


def job(source, process=None, expanding=False, partitioner=None, apart=False, emit="one"):
    """source -> sink, in one slot or two."""
    edge = JobEdge(0, "source", "sink", 0, partitioner or partitioners.RebalancePartitioner())
    output = OutputEdge(0, 0, edge.partitioner, 128)
    head = ChainScript((output,), source=source, process=process, expanding=expanding, emit=emit)
    vertices = [
        JobVertex("source", "source", head, 1, 128, "a", [], [edge]),
        JobVertex("sink", "sink", ChainScript(), 1, 128, "b" if apart else "a", [edge], []),
    ]
    return JobGraph("job", "test", vertices)


class World:
    """One slot (or two) with a clock that the test moves."""

    def __init__(self, graph, apart=False, configuration=(), credits=2, step_ns=1000):
        self.log = ScriptLog()
        self.slots = SimulatedSlots(
            0, ["s0", "s1"] if apart else ["s0"], self.log.chain, credits=credits, clock_ns=self.clock_ns
        )
        self.step_ns = step_ns
        self.ns = 0
        self.slots.deploy(graph, dict(configuration))
        self.slot = self.slots.slots["s0"]
        tasks = [task for slot in self.slots.slots.values() for task in slot.tasks.values()]
        self.tasks = {task.descriptor.task_name: task for task in tasks}

    def clock_ns(self):
        self.ns += self.step_ns
        return self.ns

    def start(self):
        self.slots.start()
        return self


def polls(*batches):
    return lambda subtask, parallelism: list(batches)


def test_a_bounded_job_ends_with_the_last_watermark_and_both_tasks_finished():
    world = World(
        job(polls([RowBatch([1, 2], [5, 6]), Watermark(6)], [RowBatch([3], [7])]))
    ).start()
    while world.slot.run_round():
        pass
    assert set(world.slots.states.values()) == {"FINISHED"}
    seen = [(kind, value) for kind, _, value, _ in world.log.seen["sink", 0]]
    assert seen == [
        ("record", 1), ("record", 2), ("watermark", 6), ("record", 3),
        ("watermark", MAX_WATERMARK_MS), ("end", None),
    ]  # fmt: skip
    assert all(chain.closed for chain in world.log.chains.values())


def test_an_idle_source_becomes_active_before_its_last_watermark():
    idle = [RowBatch([1], [5]), Watermark(5), WatermarkStatus(True)]
    world = World(job(polls(idle, []))).start()
    for _ in range(3):
        world.slot.run_round()
    while world.slot.run_round():
        pass
    seen = [(kind, value) for kind, _, value, _ in world.log.seen["sink", 0]]
    assert seen[2:] == [
        ("status", True), ("status", False), ("watermark", MAX_WATERMARK_MS), ("end", None),
    ]  # fmt: skip


def test_one_record_in_an_idle_slot_is_through_all_subtasks_and_sent_in_one_round():
    world = World(job(polls([], [RowBatch([1])], [], []), apart=True), apart=True).start()
    world.slot.run_round()
    assert not world.slots.network.pairs
    world.slot.run_round()  # the poll that finds the record
    assert [len(frames) for frames in world.slots.network.pairs.values()] == [1]
    # In the receiver's slot: one frame, one round, and the sink has it and was told to flush.
    world.slots.deliver("s0", "s1", 0)
    idle_calls = world.log.chains["sink", 0].idle_calls
    world.slots.slots["s1"].run_round()
    assert world.log.records("sink", 0) == [1]
    assert world.log.chains["sink", 0].idle_calls == idle_calls + 1


def test_one_record_goes_through_two_subtasks_of_one_slot_in_one_round():
    world = World(job(polls([], [RowBatch([1])], [], []))).start()
    world.slot.run_round()
    world.slot.run_round()
    assert world.log.records("sink", 0) == [1]


def test_turns_end_after_their_time_and_slices_follow_the_measured_cost():
    world = World(job(polls(*[[RowBatch(list(range(1000)))]] * 3)), step_ns=100_000).start()
    task = world.tasks["source"]
    started = world.ns
    assert task.run_turn(1_000_000)
    assert 700_000 <= world.ns - started <= 1_500_000
    assert task.times.state == BUSY
    assert 0 < len(world.log.records("source", 0)) < 1000
    for _ in range(2000):
        world.slot.run_round()
    assert world.log.records("sink", 0) == list(range(1000)) * 3


def test_a_record_that_costs_a_second_does_not_take_a_slice_along():
    world = World(job(polls([RowBatch(list(range(1000)))])), step_ns=1_000_000_000).start()
    sizes = []
    for _ in range(6):
        before = len(world.log.records("source", 0))
        world.tasks["source"].run_turn()
        sizes.append(len(world.log.records("source", 0)) - before)
    assert sizes == [1] * 6  # also the first: a processing-time timer or a barrier may be waiting


def test_without_room_nothing_is_taken_and_time_counts_as_backpressured():
    batches = polls(*[[RowBatch(list(range(i * 1000, i * 1000 + 1000)))] for i in range(10)])
    world = World(job(batches, apart=True), apart=True).start()
    for _ in range(500):
        world.slot.run_round()  # the other slot does nothing
    task = world.tasks["source"]
    channel = task.writers[0].channels[0]
    assert task.times.state == BACKPRESSURED and not world.slot.run_round()
    assert channel.ledger.available == 0 and channel.room == 0
    assert task.metrics()["outPoolUsage"] == 1.0
    assert len(world.log.records("source", 0)) == 2 * 1024 + 2 * 1024  # two frames sent, two held
    totals = task.times.totals()
    world.ns += 5_000_000_000
    world.slot.run_round()
    after = task.times.totals()
    assert after["accumulateBackPressuredTimeMs"] - totals["accumulateBackPressuredTimeMs"] >= 5000
    assert after["accumulateBusyTimeMs"] - totals["accumulateBusyTimeMs"] < 2
    world.slots.run_until_quiet()
    assert world.log.records("sink", 0) == list(range(10_000))


def test_a_chain_that_expands_stops_in_the_middle_of_a_record_and_goes_on_there():
    expand = polls([RowBatch([0, 1])])
    graph = job(
        expand, lambda subtask, value: (value * 10_000 + i for i in range(10_000)), True, apart=True
    )
    world = World(graph, apart=True).start()
    for _ in range(100):
        world.slot.run_round()
    task = world.tasks["source"]
    assert task.times.state == BACKPRESSURED
    assert world.log.records("source", 0) == [0]  # the second record has not been taken
    assert task.writers[0].channels[0].pending_records <= 2048
    world.slots.run_until_quiet()
    assert world.log.records("sink", 0) == list(range(20_000))


def test_what_one_record_expands_into_is_cut_by_the_time_that_it_takes():
    graph = job(polls([RowBatch([0])]), lambda subtask, value: range(100), True)
    world = World(graph, credits=100, step_ns=20_000_000).start()
    task, made = world.tasks["source"], [0]
    for _ in range(6):
        task.run_turn()
        made.append(task.metrics()["numRecordsOut"])
    results = [after - before for before, after in zip(made, made[1:])]
    assert results[0] <= 8 and results[1:] == [1] * 5
    world.step_ns = 1_000
    for _ in range(20):
        world.slot.run_round()
    assert world.log.records("sink", 0) == list(range(100))
    assert task.chain.budget_max > 64


def test_a_sink_without_room_backpressures_and_is_asked_again_soon():
    world = World(job(polls([RowBatch([1])], [], [RowBatch([2])], [], []))).start()
    sink = world.log.chains["sink", 0]
    sink.sink_room = False
    sink.sink_descriptors = lambda: [42]
    for _ in range(10):
        world.slot.run_round()
    assert world.log.records("sink", 0) == []
    assert world.tasks["sink"].times.state == BACKPRESSURED
    assert world.slot.descriptors()[42][0] == "w"
    assert world.slot.next_deadline_ms() <= world.slots.now_ms + 10
    sink.sink_room = True
    for _ in range(10):
        world.slot.run_round()
    assert world.log.records("sink", 0) == [1, 2]


def test_what_a_sink_could_not_push_out_when_the_input_ran_dry_leaves_without_another_record():
    world = World(job(polls([RowBatch([1])], *[[]] * 40))).start()
    sink = world.log.chains["sink", 0]
    sink.sink_holds = True
    sink.sink_descriptors = lambda: [42]
    for _ in range(10):
        world.slot.run_round()
    task = world.tasks["sink"]
    assert world.log.records("sink", 0) == [1] and task.times.state == IDLE
    assert world.slot.descriptors()[42][0] == "w"
    assert world.slot.next_deadline_ms() <= world.slots.now_ms + 10
    calls = sink.idle_calls
    world.slot.run_round()
    assert sink.idle_calls > calls  # asked again
    sink.sink_holds = False
    world.slot.run_round()
    calls = sink.idle_calls
    world.slot.run_round()
    assert sink.idle_calls == calls and 42 not in world.slot.descriptors()


def test_a_source_is_polled_for_what_fits_and_not_without_room():
    batches = polls(*[[RowBatch(list(range(64)))] for _ in range(200)])
    world = World(job(batches, apart=True), apart=True, step_ns=10).start()
    for _ in range(300):
        world.slot.run_round()
    rooms = world.log.chains["source", 0].source.rooms
    assert rooms[0] == 2 and 64 <= max(rooms) <= 2048  # what a record costs is not known at first
    polled = len(rooms)
    for _ in range(10):
        world.slot.run_round()
    assert len(rooms) == polled < 200


def test_an_idle_source_names_its_descriptor_and_its_poll_interval():
    world = World(job(polls([], [], []))).start()
    source = world.log.chains["source", 0].source
    source.fileno = lambda: 17
    source.poll_interval_ms = 50
    world.slots.now_ms = 1000
    world.slot.run_round()
    assert world.slot.descriptors() == {17: ("r", world.tasks["source"])}
    assert world.slot.next_deadline_ms() == 1050
    assert world.tasks["source"].times.state == IDLE


def test_timers_run_when_due_and_only_between_batches():
    world = World(job(polls([RowBatch([1])], [], [], [])))
    chain, fired = world.log.chains["source", 0], []
    due = deque([1000, 2000])
    chain.next_processing_time = lambda: due[0] if due else None

    def on_processing_time(now_ms):
        fired.append((due.popleft(), now_ms))
        for writer in chain.writers:
            writer.emit(f"timer {now_ms}", None)
        yield

    chain.on_processing_time = on_processing_time
    world.start()
    world.slot.run_round()
    assert fired == [] and world.slot.next_deadline_ms() <= 1000
    world.slots.now_ms = 1500
    while world.slot.run_round():
        pass
    assert fired == [(1000, 1500)]
    assert world.log.records("sink", 0) == [1, "timer 1500"]


def test_an_event_of_a_coordinator_reaches_a_suspended_chain_because_it_may_make_room():
    expand = polls([RowBatch([0])])
    graph = job(expand, lambda subtask, value: range(10_000), True, apart=True)
    world = World(graph, apart=True).start()
    for _ in range(50):
        world.slot.run_round()
    world.tasks["source"].handle_operator_event("operator", "payload")
    world.slot.run_round()
    kinds = [kind for kind, *_ in world.log.seen["source", 0]]
    assert kinds == ["record", "event"] and world.tasks["source"].times.state == BACKPRESSURED


def test_a_sink_that_waits_for_its_coordinator_gets_the_answer():
    world = World(job(polls([RowBatch([1])]))).start()
    sink = world.log.chains["sink", 0]
    sink.sink_room = False
    for _ in range(5):
        world.slot.run_round()
    sink.handle_operator_event = lambda operator_id, payload: setattr(sink, "sink_room", True)
    world.tasks["sink"].handle_operator_event("sink", "acknowledged")
    assert world.tasks["sink"].wants_turn()
    world.slot.run_round()
    assert world.log.records("sink", 0) == [1]


def failing(error):
    def process(subtask, value):
        if value == 3:
            raise error
        return [value]

    return process


def test_a_failure_is_reported_with_its_task_and_closes_the_chain_only_there():
    world = World(job(polls([RowBatch([1, 2, 3, 4])], [], []))).start()
    world.log.chains["source", 0].process_batch = None
    world.slots.run_until_quiet()
    ((execution, error),) = world.slots.failures.items()
    assert execution.vertex_id == "source" and world.slots.states[execution] == "FAILED"
    assert isinstance(error, InternalError) and 'task "source (1/1)"' in error.where
    assert "not callable" in error.why and "TypeError" in error.fields["traceback_text"]
    assert world.log.chains["source", 0].closed and not world.log.chains["sink", 0].closed
    assert world.tasks["sink"].state == "RUNNING"
    world.slot.cancel(world.slot.tasks)
    assert world.tasks["sink"].state == "CANCELED" and world.log.chains["sink", 0].closed


def test_what_code_of_the_users_raises_and_no_operator_explains_is_no_error_of_flinkish():
    world = World(job(polls([RowBatch([1, 2, 3, 4])]), failing(ZeroDivisionError("oops")))).start()
    world.slots.run_until_quiet()
    (error,) = world.slots.failures.values()
    assert isinstance(error, UserFunctionError) and error.fields["exception_type"] == "ZeroDivisionError"


def test_an_unstable_key_names_the_task():
    graph = job(
        polls([RowBatch([[1]])]), partitioner=partitioners.KeyGroupPartitioner(lambda value: value)
    )
    world = World(graph).start()
    world.slots.run_until_quiet()
    (error,) = world.slots.failures.values()
    assert isinstance(error, UnstableKeyError) and "source (1/1)" in error.where


@pytest.mark.parametrize("credits", [2, 1])
def test_a_record_that_is_too_large_to_send_names_its_task_and_the_slot_goes_on(monkeypatch, credits):
    """With one credit it is sent between two turns, when the credit comes back."""
    monkeypatch.setattr(RemoteOutputChannel, "payload_bytes_max", 1_000)
    graph = job(polls([RowBatch([1])], [RowBatch(["x" * 1_000])], [], []), apart=True)
    world = World(graph, apart=True, credits=credits).start()
    world.slots.run_until_quiet()
    ((execution, error),) = world.slots.failures.items()
    assert execution.vertex_id == "source" and isinstance(error, UserError)
    assert error.where == 'task "source (1/1)"' and "record of type str" in error.what
    assert world.tasks["sink"].state == "RUNNING"


def test_a_cancelled_task_inside_user_code_is_canceled_not_failed():
    world = World(job(polls([RowBatch([3])]), failing(TaskCancelled()))).start()
    world.slots.run_until_quiet()
    states = {execution.vertex_id: state for execution, state in world.slots.states.items()}
    assert states["source"] == "CANCELED" and not world.slots.failures


@pytest.mark.parametrize("error", [KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError("stop")])
def test_what_user_code_raises_beside_exceptions_fails_its_task_and_not_the_slot(error):
    world = World(job(polls([RowBatch([3])]), failing(error))).start()
    world.slots.run_until_quiet()
    (failure,) = world.slots.failures.values()
    assert isinstance(failure, UserFunctionError)
    assert failure.fields["exception_type"] == type(error).__name__
    text = str(failure)
    assert text.startswith("Traceback") and "in process" in text and "run_turn" not in text
    assert text.splitlines()[-1] == 'operator "source" subtask 0 of 1 failed'
    assert world.tasks["sink"].state == "RUNNING"


def test_an_error_in_open_fails_the_task_and_closes_it():
    world = World(job(polls([RowBatch([1])])))
    chain = world.log.chains["sink", 0]

    def broken():
        raise OSError("no such file")

    chain.open = broken
    world.start()
    states = {execution.vertex_id: state for execution, state in world.slots.states.items()}
    assert states == {"source": "RUNNING", "sink": "FAILED"} and chain.closed


def test_an_error_in_close_at_the_end_fails_the_task():
    world = World(job(polls([RowBatch([1])])))

    def broken():
        raise OSError("disk full")

    world.log.chains["sink", 0].close = broken
    world.start()
    world.slots.run_until_quiet()
    states = {execution.vertex_id: state for execution, state in world.slots.states.items()}
    assert states == {"source": "FINISHED", "sink": "FAILED"}


def test_cancel_closes_a_suspended_chain():
    closed = []

    def process(subtask, value):
        try:
            for i in range(100_000):
                yield i
        finally:
            closed.append(value)

    world = World(job(polls([RowBatch([7])]), process, True, apart=True), apart=True)
    chain = world.log.chains["source", 0]
    chain.spec = ChainScript(chain.spec.outputs, chain.spec.source, process, expanding=True)
    world.start()
    for _ in range(50):
        world.slot.run_round()
    assert closed == []
    world.slot.cancel(world.slot.tasks)
    assert closed == [7] and chain.closed
    assert world.tasks["source"].writers[0].is_empty


def test_metrics_carry_the_five_figures_and_flinks_names():
    world = World(
        job(polls([RowBatch([1, 2], [5, 6]), Watermark(6)], [], []), apart=True), apart=True
    )
    world.start()
    world.slot.run_round()
    world.slots.deliver("s0", "s1", 0)
    world.slots.slots["s1"].run_round()
    world.slots.deliver("s0", "s1", 0)
    world.slots.slots["s1"].run_round()
    sink = world.tasks["sink"].metrics()
    assert {
        "busyTimeMsPerSecond",
        "idleTimeMsPerSecond",
        "backPressuredTimeMsPerSecond",
    } <= sink.keys()
    assert (sink["inPoolUsage"], sink["outPoolUsage"]) == (0.0, 0.0)
    assert (sink["numRecordsIn"], sink["currentInputWatermark"]) == (2, 6)
    source = world.tasks["source"].metrics()
    assert source["numRecordsOut"] == 2 and source["numBytesOut"] == sink["numBytesIn"] > 0


def test_more_available_without_records_does_not_hold_the_turn():
    world = World(job(polls([], [RowBatch([1])])))
    source = world.log.chains["source", 0].source
    source.poll = lambda room: InputStatus.MORE_AVAILABLE
    world.start()
    assert world.tasks["source"].run_turn() is False
    assert world.slot.run_round()  # it wants to be called again at once


@pytest.mark.parametrize("emit", ["one", "batch", "fused"])
def test_a_mutable_record_that_the_receiver_changes_is_not_shared(emit):
    values = [{"n": 1}]
    graph = job(polls([RowBatch(values)]), emit=emit, apart=True)
    world = World(graph, apart=True).start()
    world.slots.run_until_quiet()
    (received,) = world.log.records("sink", 0)
    assert received == {"n": 1} and received is not values[0]
