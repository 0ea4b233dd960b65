"""Every value keeps type and value through a frame (case B28), at every batch size."""

import dataclasses
import datetime as dt
import enum
import math
from array import array
from collections import OrderedDict, namedtuple
from decimal import Decimal
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest

from flinkish.common.types import Row
from flinkish.errors import InternalError, UserError
from flinkish.messages.checkpoints import CheckpointOptions, SnapshotKind
from flinkish.messages.elements import (
    MAX_WATERMARK_MS,
    CancelCheckpointMarker,
    CheckpointBarrier,
    ColumnBatch,
    EndOfData,
    EndOfInput,
    LatencyMarker,
    RowBatch,
    Watermark,
    WatermarkStatus,
)
from flinkish.taskmanager import wire

Point = namedtuple("Point", "x y")


class Colour(enum.Enum):
    RED = 1


@dataclasses.dataclass
class Flight:
    number: int
    legs: list


NESTED = [
    [Row(1, "a", None), Row(2, "b", 2.5), Row(3, "c", [1])],
    ({"k": (1, 2), "deep": {"list": [{1, 2}, frozenset({3})]}},),
    b"bytes", bytearray(b"array"), "text \u20ac \U0001f600", "",
    Decimal("1.10"), Decimal("NaN"), 10**100, -(10**40), 2**63, True, None, ...,
    float("inf"), -0.0, 1 + 2j,
    dt.datetime(2024, 3, 31, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
    dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=-8))),
    dt.datetime(1, 1, 1), dt.date(2024, 2, 29), dt.time(1, 2, 3, 4), dt.timedelta(-1, 5),
    Point(1, Point(2, 3)), Colour.RED, Flight(7, ["JFK"]), OrderedDict(a=1),
    np.int8(-3), np.float32(0.1), np.datetime64("2024-01-01T00:00:00.123456789"),
    array("d", [1.0]), range(3), {1: {2: {3: [4]}}},
]  # fmt: skip


def through(values, timestamps=None):
    payload = b"".join(wire.encode_rows(values, timestamps))
    return wire.decode_rows(memoryview(payload))


def same(given, received):
    assert type(received) is type(given)
    if (
        isinstance(given, float)
        and math.isnan(given)
        or isinstance(given, Decimal)
        and given.is_nan()
    ):
        assert received != received
    elif isinstance(given, np.ndarray):
        assert given.dtype == received.dtype and np.array_equal(given, received)
    else:
        assert received == given


def test_b28_nested_values_keep_type_and_value():
    batch = through(NESTED, [0] * len(NESTED))
    for given, received in zip(NESTED, batch.values):
        same(given, received)
    received = batch.values[0]
    assert [type(row) for row in received] == [Row] * 3
    zoned = through(NESTED).values[NESTED.index(NESTED[17])]
    assert zoned.utcoffset() == NESTED[17].utcoffset() and zoned.fold == 1


@pytest.mark.parametrize("value", NESTED, ids=lambda value: type(value).__name__)
def test_b28_a_batch_of_one_is_like_any_other(value):
    batch = through([value], [5])
    same(value, batch.values[0])
    assert (len(batch), batch.timestamps) == (1, [5])


def test_numpy_arrays_keep_their_type_and_content():
    arrays = [np.arange(6).reshape(2, 3), np.array(["a", None], dtype=object), np.array(2.5)]
    for given, received in zip(arrays, through(arrays).values):
        same(given, received)


@pytest.mark.parametrize(
    "timestamps",
    [
        None,
        [1, 2, 3],
        [1, None, 3],
        [None, None, None],
        [-(2**63), 0, 2**63 - 1],
        [2**63, 0, 1],
        [np.int64(4), 5, True],
    ],
    ids=str,
)
def test_timestamps_with_and_without_none_arrive_as_they_are(timestamps):
    assert through(["a", "b", "c"], timestamps).timestamps == timestamps


def test_a_record_of_64_megabytes_travels():
    value = bytes(range(256)) * (256 * 1024)
    assert through([value], [1]).values == [value]


def test_a_record_that_does_not_pickle_is_named_by_type_and_reason():
    class Handle:
        def __reduce__(self):
            raise TypeError("a handle stays where it is")

    with pytest.raises(UserError, match="could not send a record of type Handle") as raised:
        wire.encode_rows([1, Handle()], None)
    assert "a handle stays where it is" in str(raised.value)


@pytest.mark.parametrize("timestamps", [None, [1, 2], [None, 2]])
def test_classes_and_functions_that_were_made_inside_a_function_travel_and_stay_one_class(timestamps):
    @dataclasses.dataclass
    class Local:
        n: int

    def double(n):
        return 2 * n

    first, second = through([Local(1), (Local(2), double)], timestamps).values
    assert type(first) is Local and first.n == 1 and second[0] == Local(2)
    assert second[1](4) == 8


def test_events_and_credits_travel():
    events = [
        Watermark(5), Watermark(-(2**63)), Watermark(MAX_WATERMARK_MS), Watermark(2**70),
        WatermarkStatus(True), WatermarkStatus(False), LatencyMarker(1, "op", 3), EndOfInput(),
    ]  # fmt: skip
    for event in events:
        payload = b"".join(wire.encode_event(event))
        received = wire.decode_event(memoryview(payload))
        assert received == event and type(received) is type(event)
    assert wire.decode_credit(b"".join(wire.encode_credit(7))) == 7


def test_frames_of_an_unknown_form_are_refused():
    with pytest.raises(InternalError):
        wire.decode_rows(b"\x09")
    with pytest.raises(InternalError):
        wire.decode_event(b"\x08")
    with pytest.raises(InternalError):
        wire.ColumnDecoder().decode(bytes([4]))  # a batch before its schema


def columns(count, start=0):
    names = pa.array([f"n{i}" if i % 3 else None for i in range(start, start + count)])
    nested = pa.array([[{"x": i}] for i in range(start, start + count)])
    return pa.record_batch(
        {"id": pa.array(range(start, start + count)), "name": names, "l": nested}
    )


def test_columns_travel_with_their_schema_once():
    encoder, decoder = wire.ColumnEncoder(), wire.ColumnDecoder()
    sizes = []
    for start in (0, 10, 20):
        batch = ColumnBatch(columns(10, start), np.arange(start, start + 10))
        payload = b"".join(bytes(part) for part in encoder.encode(batch))
        sizes.append(len(payload))
        received = decoder.decode(payload)
        assert received.columns.equals(batch.columns)
        assert received.timestamps.tolist() == batch.timestamps.tolist()
    assert sizes[1] == sizes[2] < sizes[0]


def test_a_slice_of_columns_sends_only_its_rows():
    whole = columns(10_000)
    part = ColumnBatch(whole.slice(5_000, 10), None)
    payload = b"".join(bytes(part_) for part_ in wire.ColumnEncoder().encode(part))
    assert len(payload) < 5_000
    received = wire.ColumnDecoder().decode(payload)
    assert received.columns.equals(part.columns) and received.timestamps is None


def test_a_changed_schema_and_dictionaries_travel():
    encoder, decoder = wire.ColumnEncoder(), wire.ColumnDecoder()
    batches = [
        columns(3),
        pa.record_batch({"d": pa.array(["a", "b", "a"]).dictionary_encode()}),
        pa.record_batch({"d": pa.array(["c", None]).dictionary_encode()}),
        columns(2),
        pa.record_batch({"id": pa.array([1.5])}),
        pa.record_batch(
            [pa.array([[1]])], schema=pa.schema([pa.field("x", pa.list_(pa.int64()))], {"m": "1"})
        ),
    ]
    for batch in batches:
        payload = b"".join(bytes(part) for part in encoder.encode(ColumnBatch(batch, None)))
        received = decoder.decode(payload).columns
        assert received.equals(batch) and received.schema.equals(batch.schema, check_metadata=True)


def test_a_batch_chooses_its_frame_kind():
    encoder = wire.ColumnEncoder()
    assert wire.encode_batch(RowBatch([1]), encoder)[0] == wire.ROWS
    assert wire.encode_batch(ColumnBatch(columns(1)), encoder)[0] == wire.COLUMNS


@pytest.mark.parametrize("kind", SnapshotKind)
def test_checkpoint_events_keep_all_their_fields(kind):
    options = CheckpointOptions(kind, "s3://b/chk-7", "s3://b/shared", False, True, 30)
    for event in (CheckpointBarrier(2**62, -5, options), CancelCheckpointMarker(2**62), EndOfData()):
        payload = b"".join(wire.encode_event(event))
        assert wire.decode_event(memoryview(payload)) == event
