"""What barriers overtake: recorded, written, read, and sorted anew."""

from __future__ import annotations

import io
from collections import deque

import numpy as np
import pyarrow as pa
import pytest

from flinkish.datastream.partitioners import CustomPartitioner, KeyGroupPartitioner
from flinkish.errors import CorruptSnapshotError, UserError
from flinkish.graph.chain_pickling import pickle_partitioner
from flinkish.messages.checkpoints import CheckpointOptions, InFlightRestore, InlineBytes, SnapshotKind
from flinkish.messages.deployment import EdgeDescriptor
from flinkish.messages.elements import (
    CancelCheckpointMarker,
    CheckpointBarrier,
    ColumnBatch,
    EndOfData,
    EndOfInput,
    RowBatch,
    Watermark,
    WatermarkStatus,
)
from flinkish.state.key_groups import key_group, subtask_for_key_group
from flinkish.taskmanager import wire
from flinkish.taskmanager.credit_ledger import CreditLedger
from flinkish.taskmanager.frame_sizer import FrameSizer
from flinkish.taskmanager.in_flight import (
    HEADER,
    FrameRecorder,
    InFlightData,
    Sieve,
    element_of,
    read_frames,
    read_replay,
)
from flinkish.taskmanager.input_channel import InputChannel
from flinkish.taskmanager.output_channel import LocalOutputChannel

EDGE = EdgeDescriptor(3, "a", "b", 0, "HASH", True)
OPTIONS = CheckpointOptions(SnapshotKind.CHECKPOINT, "l", "s", unaligned=True)


def barrier(checkpoint_id, **options):
    return CheckpointBarrier(
        checkpoint_id, 0, CheckpointOptions(SnapshotKind.CHECKPOINT, "l", "s", unaligned=True, **options)
    )


def recorded(*items):
    recorder = FrameRecorder()
    for item in items:
        recorder.record(item)
    return recorder


def written(*recorders):
    data = InFlightData(7, OPTIONS)
    for sender, recorder in enumerate(recorders):
        data.add(EDGE, sender, 1, True, recorder)
    return data.content()


def restores(content, parts, **fields):
    return tuple(
        InFlightRestore(EDGE.edge_id, part.sender, InlineBytes(content), part.offset, part.length, part.checksum, **fields)
        for part in parts
    )


def values_of(frames):
    return [value for frame in frames for value in getattr(element_of(frame), "values", [])]


@pytest.mark.parametrize("opened", [lambda data: data, io.BytesIO], ids=["bytes", "file"])
def test_what_is_written_is_read_part_by_part(opened):
    content, parts = written(recorded(RowBatch([1, 2], [5, None]), Watermark(9)), recorded(RowBatch(["x"])))
    first, second = restores(content, parts)
    batch, watermark = map(element_of, read_frames(opened(content), first))
    assert (batch.values, batch.timestamps, watermark) == ([1, 2], [5, None], Watermark(9))
    assert values_of(read_frames(opened(content), second)) == ["x"]


def test_nothing_overtaken_is_no_content():
    assert written(recorded(EndOfData(), WatermarkStatus(True))) == (b"", ())


@pytest.mark.parametrize(
    "damage", [lambda data: b"XXXX" + data[4:], lambda data: data[:-1], lambda data: data[:-1] + b"\0"]
)
def test_damaged_content_is_refused(damage):
    content, parts = written(recorded(RowBatch([1])))
    (part,) = restores(content, parts)
    with pytest.raises(CorruptSnapshotError):
        list(read_frames(damage(content), part))
    assert content.startswith(HEADER)


def test_of_watermarks_in_a_row_the_last_is_kept():
    recorder = recorded(Watermark(1), Watermark(2), RowBatch([1]), Watermark(3))
    assert [element_of(frame) for frame in recorder.frames][0::2] == [Watermark(2), Watermark(3)]


def test_column_frames_bring_their_schema_although_the_channel_has_sent_it_before():
    encoder = wire.ColumnEncoder()
    batches = [ColumnBatch(pa.record_batch({"n": [number]}), np.array([number])) for number in (1, 2)]
    frames = [(wire.COLUMNS, b"".join(map(bytes, encoder.encode(batch)))) for batch in batches]
    decoder = wire.ColumnDecoder()
    decoder.decode(frames[0][1])  # taken already
    recorder = FrameRecorder(decoder.schema)
    recorder.record(frames[1])
    (frame,) = recorder.frames
    assert element_of(frame).columns.to_pylist() == [{"n": 2}]


def test_a_record_that_does_not_pickle_is_the_reason_why_the_snapshot_fails():
    data = InFlightData(7, OPTIONS)
    data.add(EDGE, 0, 1, True, recorded(RowBatch([(number for number in [1])]), RowBatch([2])))
    assert isinstance(data.error, UserError) and "generator" in data.error.what


# ---- channels -----------------------------------------------------------------------------------


class Gate:
    def __init__(self):
        self.announced = []

    def channel_ready(self, channel):
        channel.listed = True

    def on_announced(self, channel, event):
        self.announced.append(event)


def input_channel():
    return InputChannel(1, 0, "", Gate(), 0, CreditLedger(9), None, EDGE)


def receive(channel, *elements):
    for element in elements:
        if type(element) is RowBatch:
            channel.ledger.take()
        channel.receive(element)


def test_a_barrier_that_is_there_is_taken_out_of_turn():
    channel, ours = input_channel(), barrier(4)
    receive(channel, RowBatch([1]), CancelCheckpointMarker(3), RowBatch([2]), ours, RowBatch([3]))
    assert channel.gate.announced == [ours]
    channel.overtake(4)
    assert values_of(channel.take_recorded().frames) == [1, 2]
    assert [item.values for item in channel.queue] == [[1], [2], [3]]


def test_what_arrives_before_the_barrier_is_recorded_and_the_barrier_does_not_enter_the_queue():
    channel, ours = input_channel(), barrier(4)
    receive(channel, RowBatch([1]))
    channel.overtake(4)
    receive(channel, barrier(3, forced_aligned=True), RowBatch([2]))
    assert channel.gate.announced == []
    receive(channel, ours, RowBatch([3]))
    assert channel.gate.announced == [ours]
    assert values_of(channel.take_recorded().frames) == [1, 2]
    assert [item.values for item in channel.queue] == [[1], [2], [3]]


def test_the_end_of_a_channel_stands_for_its_barrier():
    channel = input_channel()
    channel.overtake(4)
    receive(channel, RowBatch([1]), EndOfInput())
    assert channel.gate.announced == [EndOfInput()] and channel.queue[-1] == EndOfInput()
    assert values_of(channel.take_recorded().frames) == [1]


def test_a_newer_barrier_ends_the_recording_and_waits_its_turn():
    channel = input_channel()
    channel.overtake(4)
    receive(channel, barrier(5))
    assert channel.gate.announced == [barrier(5)] and channel.queue == deque([barrier(5)])


class Receiver:
    def __init__(self):
        self.got = []

    def receive(self, element):
        self.got.append(getattr(element, "values", element))


def output_channel(credits=1):
    return LocalOutputChannel(1, 2, "", CreditLedger(credits), FrameSizer(2), Receiver())


def test_a_barrier_overtakes_what_has_not_been_sent_which_follows_it():
    channel = output_channel()
    channel.add_rows([1, 2, 3, 4], None)
    channel.add_event(Watermark(8))
    channel.add_event(barrier(1, forced_aligned=True))  # of a checkpoint that is no more
    channel.add_rows([5], None)
    overtaken = channel.overtake(barrier(2))
    assert [getattr(item, "values", item) for item in overtaken] == [[3, 4], Watermark(8), [5]]
    channel.check()
    channel.ledger.give_back(1)
    channel.pump(flush=True)
    channel.ledger.give_back(1)
    channel.pump(flush=True)
    assert channel.receiver.got == [[1, 2], barrier(2), [3, 4], Watermark(8), [5]]


def test_a_patient_barrier_overtakes_what_stands_before_it_and_nothing_behind():
    channel, patient = output_channel(), barrier(1, aligned_timeout_ms=50)
    channel.add_rows([1, 2, 3, 4], None)
    channel.add_event(patient)
    channel.add_rows([5, 6], None)
    assert channel.barrier is patient
    assert [item.values for item in channel.overtake(barrier(1))] == [[3, 4]]
    assert channel.barrier is None and channel.receiver.got == [[1, 2], barrier(1)]
    channel.check()


def test_a_patient_barrier_that_gets_credit_leaves_in_its_turn():
    channel, patient = output_channel(), barrier(1, aligned_timeout_ms=50)
    channel.add_rows([1, 2, 3, 4], None)
    channel.add_event(patient)
    channel.ledger.give_back(1)
    assert channel.overtake(barrier(1)) == []
    assert channel.barrier is None and channel.receiver.got == [[1, 2], [3, 4], patient]


# ---- partitioned anew ---------------------------------------------------------------------------


def test_a_sieve_lets_through_what_the_writer_of_the_edge_would_send_there():
    keyed = pickle_partitioner(KeyGroupPartitioner(lambda value: value % 11))
    for index in range(3):
        batches = Sieve(keyed, index, 3, 128)(RowBatch(list(range(50)), [None] * 49 + [7]))
        mine = [
            number for number in range(50) if subtask_for_key_group(key_group(number % 11, 128), 128, 3) == index
        ]
        assert [value for batch in batches for value in batch.values] == mine
        times = [time for batch in batches for time in batch.timestamps or [None] * len(batch.values)]
        assert times == [7 if number == 49 else None for number in mine]


def test_columns_and_custom_partitioners_are_sieved_too():
    columns = ColumnBatch(pa.record_batch({"n": list(range(20))}))
    keyed = pickle_partitioner(KeyGroupPartitioner(lambda row: row["n"], key_field="n"))
    found = [row["n"] for index in range(3) for batch in Sieve(keyed, index, 3, 128)(columns)
             for row in batch.columns.to_pylist()]  # fmt: skip
    assert sorted(found) == list(range(20))
    custom = pickle_partitioner(CustomPartitioner(lambda key, count: key % count, lambda value: value))
    (batch,) = Sieve(custom, 1, 2, 128)(RowBatch([1, 2, 3]))
    assert batch.values == [1, 3]


def test_what_a_sender_that_is_gone_said_about_event_time_is_dropped():
    content, parts = written(recorded(RowBatch([1]), Watermark(5)))
    (same,) = restores(content, parts)
    edges, subtask = {EDGE.edge_id: EDGE}, (1, 2, 128)
    elements = [
        element for replayed in read_replay((same,), edges, subtask, lambda found: found.data)
        for element in replayed.elements()
    ]  # fmt: skip
    assert elements[0].values == [1] and elements[1:] == [Watermark(5)]
    gone = InFlightRestore(EDGE.edge_id, None, same.content, same.offset, same.length, same.checksum)
    (batch,) = [
        element for replayed in read_replay((gone,), edges, subtask, lambda found: found.data)
        for element in replayed.elements()
    ]  # fmt: skip
    assert batch.values == [1]
