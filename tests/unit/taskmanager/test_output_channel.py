import numpy as np
import pyarrow as pa
import pytest

from flinkish.errors import UserError
from flinkish.messages.elements import EndOfInput, RowBatch, Watermark, WatermarkStatus
from flinkish.taskmanager.frame_sizer import COLUMN_FRAME_BYTES, FRAME_BYTES
from flinkish.taskmanager.output_channel import RemoteOutputChannel


def emit(channel, count, start=0):
    for i in range(start, start + count):
        channel.values.append(i)


def test_only_full_frames_leave_while_the_task_is_busy(ends):
    channel, transport = ends.remote(records=10)
    emit(channel, 9)
    channel.pump(flush=False)
    assert transport.sizes() == []
    emit(channel, 16, start=9)
    channel.pump(flush=False)
    assert transport.sizes() == [10, 10] and channel.values == [20, 21, 22, 23, 24]
    channel.pump(flush=True)
    assert transport.sizes() == [10, 10, 5]
    channel.check()


def test_the_open_lists_stay_the_same_objects_so_that_they_can_be_kept(ends):
    for channel, _ in (ends.remote(records=4), ends.local(records=4)):
        values, timestamps = channel.values, channel.timestamps
        for _ in range(3):
            values.append(1)
            channel.pump(flush=True)
            values.append(2)
            channel.add_event(Watermark(1))
        assert channel.values is values == [] and channel.timestamps is timestamps == []


def test_a_batch_grows_while_there_is_no_credit_and_room_ends_at_twice_a_frame(ends):
    channel, transport = ends.remote(credits=1, records=10)
    emit(channel, 10)
    channel.pump(flush=True)
    assert (channel.room, transport.sizes()) == (20, [10])
    emit(channel, 15)
    channel.pump(flush=True)
    assert (channel.room, transport.sizes()) == (5, [10])
    emit(channel, 5)
    assert channel.room == 0
    channel.ledger.give_back(1)
    channel.pump(flush=True)
    assert transport.sizes() == [10, 10] and channel.room == 10


def test_records_before_a_watermark_stay_before_it_without_credit(ends):
    channel, transport = ends.remote(credits=1, records=10)
    emit(channel, 3)
    channel.add_event(Watermark(1))
    emit(channel, 2, start=3)
    channel.add_event(Watermark(2))
    emit(channel, 1, start=5)
    channel.pump(flush=True)
    assert transport.sizes() == [3, Watermark(1)]
    assert channel.room == 20 - 3
    channel.check()
    for _ in range(2):
        channel.ledger.give_back(1)
        channel.pump(flush=True)
    assert transport.sizes() == [3, Watermark(1), 2, Watermark(2), 1]


def test_watermarks_behind_an_unsent_batch_coalesce(ends):
    channel, transport = ends.remote(credits=1, records=10)
    emit(channel, 1)
    channel.pump(flush=True)
    emit(channel, 1)
    for timestamp in range(100):
        channel.add_event(Watermark(timestamp))
    assert len(channel.queue) == 2
    channel.ledger.give_back(1)
    channel.pump(flush=True)
    assert transport.sizes() == [1, 1, Watermark(99)]


def test_events_need_no_credit(ends):
    channel, transport = ends.remote(credits=1, records=10)
    emit(channel, 1)
    channel.pump(flush=True)
    channel.add_event(Watermark(4))
    channel.add_event(EndOfInput())
    assert transport.sizes() == [1, Watermark(4), EndOfInput()]


def test_nothing_follows_the_end(ends):
    channel, _ = ends.local()
    channel.add_event(EndOfInput())
    with pytest.raises(AssertionError, match="after the end"):
        channel.add_event(Watermark(1))


def test_nothing_goes_to_a_connection_that_holds_too_much(ends):
    channel, transport = ends.remote(records=10, pending_max=1000)
    transport.pending = 1001
    emit(channel, 20)
    channel.pump(flush=True)
    channel.add_event(WatermarkStatus(True))
    assert transport.sizes() == [] and channel.waits_for_socket
    transport.pending = 0
    channel.pump(flush=True)
    assert transport.sizes() == [10, 10, WatermarkStatus(True)] and not channel.waits_for_socket


@pytest.mark.parametrize("kind", ["local", "remote"])
def test_records_with_and_without_timestamps_mix_in_one_batch(ends, kind):
    channel, end = getattr(ends, kind)()
    channel.emit("a", None)
    channel.emit("b", 2)
    channel.values.append("c")  # a fused loop without timestamps
    channel.emit("d", 4)
    channel.add_rows(["e", "f"], None)
    channel.add_rows(["g"], [7])
    channel.values.append("h")
    channel.pump(flush=True)
    (batch,) = end.elements if kind == "local" else end.frames
    assert batch.values == list("abcdefgh")
    assert batch.timestamps == [None, 2, None, 4, None, None, 7, None]
    channel.values.append("i")
    channel.pump(flush=True)
    batches = end.elements if kind == "local" else end.frames
    assert batches[1].timestamps is None and batches[1].values == ["i"]


def test_timestamps_follow_their_values_through_a_cut(ends):
    channel, transport = ends.remote(credits=3, records=4)
    channel.add_rows(list(range(10)), list(range(100, 110)))
    channel.pump(flush=False)
    assert transport.sizes() == [4, 4]
    channel.values.append(10)
    channel.pump(flush=True)
    assert [frame.timestamps for frame in transport.frames] == [
        [100, 101, 102, 103], [104, 105, 106, 107], [108, 109, None],
    ]  # fmt: skip


def test_a_frame_of_large_records_is_bounded_in_bytes(ends):
    channel, transport = ends.remote(records=1024)
    channel.add_rows(["small"] * 500, None)
    channel.pump(flush=True)
    channel.add_rows([b"x" * 50_000 for _ in range(100)], None)
    channel.pump(flush=True)
    assert sum(transport.sizes()) == 600
    assert max(transport.payload_bytes) <= 2 * FRAME_BYTES + 1024
    channel.add_rows([b"x" * 5_000_000], None)  # one record may be any size
    channel.pump(flush=True)
    assert transport.sizes()[-1] == 1
    assert channel.sizer.records == 1


def test_what_was_handed_over_is_not_touched_again(ends):
    channel, receiver = ends.local()
    values = [1, 2]
    channel.add_rows(values, None)
    channel.pump(flush=True)
    channel.values.append(3)
    channel.pump(flush=True)
    assert [batch.values for batch in receiver.elements] == [[1, 2], [3]] and values == [1, 2]


def test_columns_are_joined_and_cut_by_bytes(ends):
    channel, transport = ends.remote()
    small = pa.record_batch({"a": np.arange(100)})
    for _ in range(10):
        channel.add_columns(small, np.arange(100))
    channel.pump(flush=True)
    assert transport.sizes() == [1000]
    assert transport.frames[0].timestamps.tolist() == list(range(100)) * 10
    large = pa.record_batch({"a": np.arange(200_000)})
    channel.add_columns(large, None)
    channel.pump(flush=True)
    assert sum(transport.sizes()) == 201_000
    assert max(transport.payload_bytes) < 1.1 * COLUMN_FRAME_BYTES
    assert pa.Table.from_batches([f.columns for f in transport.frames[1:]]).column(
        0
    ).to_pylist() == list(range(200_000))


def test_rows_and_columns_keep_their_order(ends):
    channel, transport = ends.remote()
    columns = pa.record_batch({"a": [1, 2]})
    channel.emit("row", 1)
    channel.add_columns(columns, None)
    channel.add_columns(columns, np.array([1, 2]))
    channel.check()
    channel.emit("other", None)
    channel.add_rows(["third"], None)
    channel.pump(flush=True)
    channel.check()
    assert transport.sizes() == [1, 2, 2, 2]
    assert isinstance(transport.frames[0], RowBatch)
    assert channel.records_out == 7


def test_a_record_above_the_limit_of_a_frame_is_refused_with_its_type_and_both_sizes(ends, monkeypatch):
    monkeypatch.setattr(RemoteOutputChannel, "payload_bytes_max", 1_000)
    channel, transport = ends.remote(records=1)
    channel.values.append("x" * 900)
    channel.pump(flush=True)
    channel.values.append({"k": "x" * 1_000})
    with pytest.raises(UserError) as caught:
        channel.pump(flush=True)
    assert caught.value.what == "could not send a record of type dict to another slot"
    assert "the limit is 1000" in caught.value.why and transport.sizes() == [1]
    channel, transport = ends.remote()
    with pytest.raises(UserError, match="could not send a batch of 500 rows of columns"):
        channel.add_columns(pa.record_batch({"n": list(range(500))}), None)
        channel.pump(flush=True)
    assert transport.sizes() == []
