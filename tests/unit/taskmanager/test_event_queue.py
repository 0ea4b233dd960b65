from collections import deque

from flinkish.messages.checkpoints import CheckpointOptions, SnapshotKind
from flinkish.messages.elements import (
    CancelCheckpointMarker,
    CheckpointBarrier,
    EndOfData,
    EndOfInput,
    LatencyMarker,
    RowBatch,
    Watermark,
    WatermarkStatus,
)
from flinkish.taskmanager.event_queue import append_event

IDLE, ACTIVE = WatermarkStatus(True), WatermarkStatus(False)


def queued(*events):
    queue = deque()
    for event in events:
        append_event(queue, event)
    return list(queue)


def test_a_watermark_replaces_the_one_before_it():
    assert queued(Watermark(1), Watermark(5), Watermark(3)) == [Watermark(5)]


def test_a_batch_keeps_watermarks_apart():
    batch = RowBatch([1])
    queue = deque([Watermark(1), batch])
    append_event(queue, Watermark(2))
    assert list(queue) == [Watermark(1), batch, Watermark(2)]


def test_statuses_that_undo_each_other_vanish():
    assert queued(IDLE, ACTIVE) == []
    assert queued(Watermark(1), IDLE, ACTIVE, Watermark(2)) == [Watermark(2)]


def test_a_watermark_between_two_statuses_is_not_lost():
    assert queued(ACTIVE, Watermark(6), IDLE) == [ACTIVE, Watermark(6), IDLE]
    assert queued(ACTIVE, Watermark(6), IDLE, ACTIVE) == [ACTIVE, Watermark(6)]


def test_the_latency_marker_that_waited_longest_stays():
    first, second, other = (
        LatencyMarker(1, "op", 0),
        LatencyMarker(2, "op", 0),
        LatencyMarker(2, "op", 1),
    )
    assert queued(first, second, other, Watermark(1), second) == [first, other, Watermark(1)]


def test_an_hour_of_watermarks_and_statuses_stays_small():
    events = []
    for i in range(1000):
        events += [ACTIVE, Watermark(i), LatencyMarker(i, "op", 0), IDLE]
    assert len(queued(*events)) <= 4
    assert queued(*events, EndOfInput())[-1] == EndOfInput()


def test_nothing_is_merged_across_a_barrier_a_marker_or_an_end():
    barrier = CheckpointBarrier(1, 0, CheckpointOptions(SnapshotKind.CHECKPOINT, "c", "s"))
    latency = LatencyMarker(1, "op", 0)
    for between in (barrier, CancelCheckpointMarker(1), EndOfData()):
        events = [latency, Watermark(1), IDLE, between, ACTIVE, Watermark(2), latency]
        assert queued(*events) == events
        assert queued(between, between) == [between, between]
