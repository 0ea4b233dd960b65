"""Snapshots of a chain: sources with their splits and watermarks, sinks with what they prepared, listeners."""

import pickle

import pytest

from flinkish.common.watermark_strategy import WatermarkStrategy
from flinkish.connectors.spi import Sink, SinkWriter
from flinkish.datastream.functions import CheckpointListener, MapFunction
from flinkish.datastream.transformations import MapOperator, SinkOperator
from flinkish.errors import UserFunctionError
from flinkish.messages.control import SinkCommittables
from flinkish.messages.deployment import TaskRestore
from flinkish.messages.elements import MIN_WATERMARK_MS, Watermark, WatermarkStatus
from tests.unit.operators.chains import Chain, snapshot
from tests.unit.operators.source_chains import SourceChain, Split, bounded, split


@pytest.fixture(params=[True, False], ids=["fused", "interpreted"])
def fused(request):
    return request.param


# ---- sources ------------------------------------------------------------------------------------


def source(restore=None, strategy=None, **options):
    chain = SourceChain(strategy or bounded(), restore=restore, **options)
    chain.reader.snapshot_state = lambda checkpoint_id: list(chain.splits)
    return chain


def with_splits(chain, *names):
    chain.splits = [Split(name) for name in names]
    return chain


def test_restored_splits_are_given_to_the_reader_before_it_starts(fused):
    restore, _ = snapshot(with_splits(source(fused=fused), "p0", "p1"))
    restored = source(restore, fused=fused)
    assert restored.reader.log[:2] == [["p0", "p1"], "start"]


def test_the_watermark_stays_where_it_was_until_a_restored_split_speaks(fused):
    """Case B11: p0 and p1 restored, p0 sends @1000, p1 nothing, later p1 @500, which is not late."""
    chain = with_splits(source(fused=fused), "p0", "p1").assign("p0", "p1")
    chain.poll(split("p0", 400), split("p1", 301))
    chain.poll().tick()
    assert chain.marks == [Watermark(300)]
    restore, _ = snapshot(chain)
    restored = source(restore, fused=fused).poll(split("p0", 1000))
    restored.tick()
    assert restored.marks == [Watermark(300)]  # told again, and no further
    restored.poll(split("p1", 500)).tick()
    assert restored.values == [1000, 500]
    assert restored.marks == [Watermark(300), Watermark(499)]


def test_a_restored_split_without_a_watermark_pins_it_until_it_is_idle(fused):
    restore, _ = snapshot(with_splits(source(fused=fused), "p0", "p1"))
    restored = source(restore, bounded().with_idleness(50), fused=fused).poll(split("p0", 1000))
    restored.tick()
    assert restored.marks == []
    restored.poll(split("p0", 1001)).tick()
    assert restored.marks == [Watermark(1000)]


def test_a_split_that_is_released_after_a_restore_pins_nothing(fused):
    restore, _ = snapshot(with_splits(source(fused=fused), "p0", "p1"))
    restored = source(restore, fused=fused).poll(split("p0", 1000))
    restored.poll(lambda output: output.release_output_for_split("p1")).tick()
    assert restored.marks == [Watermark(999)]


def test_a_split_found_at_run_time_has_no_watermark_of_before(fused):
    """It is read from its start, and pins the watermark; operators behind do not go back (their own state
    says how far they are)."""
    chain = with_splits(source(fused=fused), "p0").assign("p0").poll(split("p0", 401)).tick()
    restore, _ = snapshot(chain)
    restored = source(restore, fused=fused).assign("p2").poll(split("p0", 1000), split("p2", 7))
    restored.poll().tick()
    assert restored.values == [1000, 7]
    assert restored.marks == [Watermark(6)]


def test_a_subtask_without_a_partition_is_idle_after_a_restore_too(fused):
    restored = source(TaskRestore(1, {}), fused=fused)
    for _ in range(3):
        restored.tick()
    assert restored.marks == [WatermarkStatus(True)]


def test_each_split_is_saved_with_its_own_watermark(fused):
    chain = with_splits(source(fused=fused), "p0", "p1", "p2").assign("p0", "p1", "p2")
    chain.poll(split("p0", 10), split("p1", 20)).poll().tick()
    _, parts = snapshot(chain)
    _, entries = parts["id-0"].operator.states["SourceReaderState"]
    saved = {pickle.loads(pickled).name: mark for pickled, mark in map(pickle.loads, entries)}
    assert saved == {"p0": 9, "p1": 19, "p2": MIN_WATERMARK_MS}


def test_a_reader_hears_what_became_of_checkpoints():
    chain = source()
    heard = []
    chain.reader.notify_checkpoint_complete = lambda number: heard.append(("complete", number))
    chain.reader.notify_checkpoint_aborted = lambda number: heard.append(("aborted", number))
    chain.chain.notify_checkpoint_complete(1)
    chain.chain.notify_checkpoint_aborted(2)
    assert heard == [("complete", 1), ("aborted", 2)]


# ---- sinks --------------------------------------------------------------------------------------


class Writer(SinkWriter, CheckpointListener):
    def __init__(self, log, entries=()):
        self.log, self.records = log, list(entries)
        self.unprepared = []

    def write(self, value, timestamp_ms, watermark_ms):
        self.unprepared.append(value)

    def flush(self, end_of_input):
        self.log.append(("flush", end_of_input))

    def prepare_commit(self):
        prepared, self.unprepared = self.unprepared, []
        self.records += prepared
        return prepared

    def snapshot_state(self, checkpoint_id):
        self.log.append(("snapshot", checkpoint_id))
        return self.records

    def notify_checkpoint_complete(self, checkpoint_id):
        self.log.append(("complete", checkpoint_id))


class RestorableSink(Sink):
    def __init__(self):
        self.log = []

    def create_writer(self, context):
        self.log.append(("create", context.restored_checkpoint_id()))
        return Writer(self.log)

    def restore_writer(self, context, writer_states):
        self.log.append(("restore", context.restored_checkpoint_id(), list(writer_states)))
        return Writer(self.log, writer_states)


def sink_chain(restore=None, **options):
    sink = RestorableSink()
    chain = Chain(SinkOperator(sink), outputs=[], restore=restore, **options)
    return chain, sink.log


def test_a_sink_flushes_and_prepares_before_the_barrier_and_saves_behind_it(fused):
    chain, log = sink_chain(fused=fused)
    chain.rows([1, 2])
    restore, parts = snapshot(chain, 7)
    assert log == [("create", None), ("flush", False), ("snapshot", 7)]
    assert pickle.loads(parts["id-0"].committables) == [1, 2]
    _, parts = snapshot(chain, 8)
    assert parts["id-0"].committables is None  # each goes once
    chain, log = sink_chain(restore, fused=fused)
    assert log == [("restore", 7, [1, 2])]


def test_a_sink_without_saved_entries_is_created_and_knows_that_the_job_was_restored():
    _, log = sink_chain(TaskRestore(3, {}))
    assert log == [("create", 3)]


def test_at_the_end_committables_go_to_the_driver_unless_a_final_checkpoint_takes_them(fused):
    chain, log = sink_chain(fused=fused)
    chain.rows([1]).end()
    ((_, event),) = chain.events
    assert isinstance(event, SinkCommittables) and pickle.loads(event.committables) == [1]

    chain, log = sink_chain(fused=fused, final_checkpoint=True)
    chain.rows([1]).end()
    assert chain.events == []
    _, parts = snapshot(chain)
    assert pickle.loads(parts["id-0"].committables) == [1]
    assert log.count(("flush", True)) == 1 and ("flush", False) not in log


def test_a_writer_that_listens_hears_of_checkpoints():
    chain, log = sink_chain()
    chain.chain.notify_checkpoint_complete(4)
    chain.chain.notify_checkpoint_aborted(5)
    assert log[-1] == ("complete", 4)


# ---- functions ----------------------------------------------------------------------------------


class Listener(MapFunction, CheckpointListener):
    def __init__(self):
        self.heard = []

    def map(self, value):
        return value

    def notify_checkpoint_complete(self, checkpoint_id):
        if checkpoint_id == 13:
            raise OSError("no luck")
        self.heard.append(checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id):
        self.heard.append(-checkpoint_id)


def test_a_function_that_listens_hears_of_checkpoints_and_may_fail():
    listener = Listener()
    chain = Chain(MapOperator(listener))
    chain.chain.notify_checkpoint_complete(1)
    chain.chain.notify_checkpoint_aborted(2)
    assert listener.heard == [1, -2]
    with pytest.raises(UserFunctionError, match="no luck"):
        chain.chain.notify_checkpoint_complete(13)


def test_strategy_without_watermarks_saves_splits_all_the_same():
    chain = with_splits(source(strategy=WatermarkStrategy.no_watermarks()), "p0").assign("p0")
    restore, _ = snapshot(chain)
    assert source(restore).reader.log[0] == ["p0"]
