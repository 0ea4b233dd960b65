import pytest

from flinkish.messages.checkpoints import CheckpointOptions, SnapshotKind
from flinkish.messages.elements import (
    MAX_WATERMARK_MS,
    CancelCheckpointMarker,
    CheckpointBarrier,
    ColumnBatch,
    EndOfData,
    EndOfInput,
    RowBatch,
    Watermark,
    WatermarkStatus,
)
from flinkish.taskmanager import wire
from flinkish.taskmanager.credit_ledger import CreditLedger
from flinkish.taskmanager.input_channel import InputChannel
from flinkish.taskmanager.input_gate import InputGate


class Credits:
    """A transport that counts the credits sent."""

    def __init__(self):
        self.sent = []

    def send(self, peer_slot, kind, channel_id, buffers):
        assert kind == wire.CREDIT
        self.sent.append((channel_id, wire.decode_credit(b"".join(buffers))))


def a_gate(channels, transport=None, credits=100):
    gate = InputGate(0)
    for index in range(channels):
        gate.channels.append(
            InputChannel(index, index, "peer", gate, index, CreditLedger(credits), transport)
        )
    gate.seal()
    return gate


def give(gate, index, element):
    channel = gate.channels[index]
    if type(element) in (RowBatch, ColumnBatch):
        channel.ledger.take()
    channel.receive(element)


def take_all(gate):
    taken = []
    while (element := gate.next_element()) is not None:
        taken.append(element.values if type(element) is RowBatch else element)
    return taken


def test_channels_take_turns():
    gate = a_gate(2)
    for number in range(3):
        give(gate, 0, RowBatch([("a", number)] * 300))
    give(gate, 1, RowBatch([("b", 0)] * 300))
    assert [values[0] for values in take_all(gate)] == [("a", 0), ("b", 0), ("a", 1), ("a", 2)]
    assert gate.records_in == 1200 and not gate.has_input


def test_small_batches_side_by_side_are_joined():
    gate = a_gate(3)
    give(gate, 0, RowBatch([1], [10]))
    give(gate, 0, RowBatch([2]))
    give(gate, 1, RowBatch([3]))
    give(gate, 2, RowBatch([4], [40]))
    element = gate.next_element()
    assert element.values == [1, 3, 4, 2]
    assert element.timestamps == [10, None, 40, None]
    assert gate.next_element() is None and gate.records_in == 4


def test_joining_stops_at_an_event_and_at_columns():
    import pyarrow as pa

    gate = a_gate(2)
    give(gate, 0, RowBatch([1]))
    give(gate, 0, Watermark(5))
    give(gate, 0, RowBatch([2]))
    give(gate, 1, Watermark(3))
    give(gate, 1, ColumnBatch(pa.record_batch({"a": [1]})))
    taken = take_all(gate)
    assert taken.index([1]) < taken.index(Watermark(3)) < taken.index([2])
    assert any(type(element) is ColumnBatch for element in taken)


def test_frames_of_a_peer_are_joined_too_and_credits_go_back_by_halves():
    transport = Credits()
    gate = a_gate(1, transport, credits=4)
    channel = gate.channels[0]
    for number in range(4):
        payload = bytearray(b"".join(wire.encode_rows([number], [number])))
        channel.receive_frame(wire.ROWS, memoryview(payload))
        payload[:] = bytes(len(payload))  # the connection uses its buffer again
    assert channel.ledger.held == 4 and gate.pool_usage == 1.0
    assert take_all(gate) == [[0, 1, 2, 3]]
    assert transport.sent == [(0, 2), (0, 2)]
    assert channel.ledger.held == 0
    channel.check()


def test_one_credit_is_enough_to_go_on():
    transport = Credits()
    gate = a_gate(1, transport, credits=1)
    for number in range(3):
        gate.channels[0].receive_frame(wire.ROWS, b"".join(wire.encode_rows([number], None)))
        assert take_all(gate) == [[number]]
    assert transport.sent == [(0, 1)] * 3


def test_a_frame_without_credit_breaks_the_channel():
    gate = a_gate(1, Credits(), credits=1)
    payload = b"".join(wire.encode_rows([1], None))
    gate.channels[0].receive_frame(wire.ROWS, payload)
    with pytest.raises(AssertionError, match="frame without credit"):
        gate.channels[0].receive_frame(wire.ROWS, payload)


def test_watermarks_are_combined_and_the_end_comes_once():
    gate = a_gate(2)
    give(gate, 0, Watermark(5))
    give(gate, 1, Watermark(3))
    give(gate, 0, EndOfInput())
    assert take_all(gate) == [Watermark(3)]
    give(gate, 1, Watermark(9))
    give(gate, 1, EndOfInput())
    assert take_all(gate) == [Watermark(9), Watermark(MAX_WATERMARK_MS), EndOfInput()]
    assert gate.ended


def test_statuses_that_cancel_out_leave_a_channel_usable():
    gate = a_gate(1)
    for _ in range(3):
        give(gate, 0, WatermarkStatus(True))
        give(gate, 0, WatermarkStatus(False))
    assert take_all(gate) == []
    give(gate, 0, RowBatch([1]))
    assert take_all(gate) == [[1]]


def test_a_closed_gate_drops_what_comes():
    gate = a_gate(1)
    give(gate, 0, RowBatch([1]))
    gate.close()
    give(gate, 0, RowBatch([2]))
    assert take_all(gate) == []


BARRIER = CheckpointBarrier(1, 0, CheckpointOptions(SnapshotKind.CHECKPOINT, "c", "s"))


def test_a_channel_with_a_barrier_is_not_read_until_it_is_resumed_and_keeps_its_credits():
    gate = a_gate(2)
    give(gate, 0, RowBatch([1]))
    give(gate, 0, BARRIER)
    give(gate, 0, RowBatch([2]))
    give(gate, 1, RowBatch([10]))
    first, second = gate.channels
    assert take_all(gate) == [[1, 10], (first, BARRIER)]
    give(gate, 0, RowBatch([3]))  # what arrives meanwhile waits too
    give(gate, 1, RowBatch([11]))
    assert take_all(gate) == [[11]] and not gate.has_input
    assert first.ledger.held == 2
    gate.resume(first)
    assert gate.has_input and take_all(gate) == [[2, 3]]
    assert first.ledger.held == 0
    give(gate, 0, RowBatch([4]))
    assert take_all(gate) == [[4]]


def test_a_channel_that_is_resumed_with_nothing_waits_for_its_next_element():
    gate = a_gate(1)
    give(gate, 0, BARRIER)
    assert take_all(gate) == [(gate.channels[0], BARRIER)]
    gate.resume(gate.channels[0])
    assert not gate.has_input
    give(gate, 0, RowBatch([1]))
    assert take_all(gate) == [[1]]


def test_a_marker_holds_nothing():
    gate = a_gate(1)
    give(gate, 0, CancelCheckpointMarker(1))
    give(gate, 0, RowBatch([1]))
    assert take_all(gate) == [(gate.channels[0], CancelCheckpointMarker(1)), [1]]


def test_data_end_before_the_channel_does_and_barriers_may_follow():
    gate = a_gate(2)
    closed = []
    gate.on_closed = closed.append
    first, second = gate.channels
    give(gate, 0, EndOfData())
    give(gate, 0, BARRIER)
    give(gate, 0, EndOfInput())
    give(gate, 1, EndOfInput())  # ends both at once
    assert take_all(gate) == [Watermark(MAX_WATERMARK_MS), EndOfInput(), (first, BARRIER)]
    assert gate.ended and not gate.closed and closed == [second]
    gate.resume(first)
    assert take_all(gate) == []
    assert gate.closed and closed == [second, first]
