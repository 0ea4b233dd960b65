"""Arithmetic of windows; the given cases B01 and B03 of the semantics list."""

import io
import pickle
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis.strategies import integers

from flinkish.common import Duration, Time
from flinkish.common.time import to_epoch_milliseconds
from flinkish.datastream.window import (
    CountWindow,
    CountWindowSerializer,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindow,
    GlobalWindows,
    Min,
    SlidingEventTimeWindows,
    TimeWindow,
    TimeWindowSerializer,
    TriggerResult,
    TumblingEventTimeWindows,
    long_to_int_with_bit_mixing,
    mod_inverse,
)
from flinkish.errors import InvalidJobError


def windows(assigner, timestamp):
    return [(w.start, w.end) for w in assigner.assign_windows(None, timestamp, None)]


@pytest.mark.parametrize(
    "size, offset, timestamp, window",
    [
        (5_000, 0, -1, (-5_000, 0)),
        (5_000, 0, -5_000, (-5_000, 0)),
        (5_000, 0, -5_001, (-10_000, -5_000)),
        (5_000, 0, 0, (0, 5_000)),
        (5_000, 2_000, -9_000, (-13_000, -8_000)),
    ],
)
def test_b01_times_before_the_epoch_round_down(size, offset, timestamp, window):
    assert windows(TumblingEventTimeWindows.of(size, offset), timestamp) == [window]


def test_b01_a_day_in_china_starts_at_sixteen_utc():
    day = TumblingEventTimeWindows.of(timedelta(days=1), timedelta(hours=-8))
    timestamp = to_epoch_milliseconds(datetime(2023, 12, 31, 16, 30, tzinfo=timezone.utc))
    start = to_epoch_milliseconds(datetime(2023, 12, 31, 16, 0, tzinfo=timezone.utc))
    assert windows(day, timestamp) == [(start, start + 86_400_000)]


@pytest.mark.parametrize("offset", [5_000, -5_000, 7_000])
def test_b01_an_offset_as_large_as_the_size_is_refused_with_both_numbers(offset):
    with pytest.raises(InvalidJobError, match=f"(?s){offset}.*5000"):
        TumblingEventTimeWindows.of(Time.seconds(5), Time.milliseconds(offset))


@given(timestamp=integers(-(2**62), 2**62), size=integers(1, 10**9), offset=integers(-(10**9), 10**9))
def test_a_time_always_lies_in_its_window_and_windows_tile_time(timestamp, size, offset):
    start = TimeWindow.get_window_start_with_offset(timestamp, offset, size)
    assert start <= timestamp < start + size
    assert (start - offset) % size == 0


@pytest.mark.parametrize(
    "size, slide, timestamp, expected",
    [
        (5_500, 5_000, 513_040, [(510_000, 515_500)]),
        (
            1_600,
            700,
            1_709_315_512_577,
            [(1_709_315_511_400, 1_709_315_513_000), (1_709_315_512_100, 1_709_315_513_700)],
        ),
        (10, 5, 12, [(5, 15), (10, 20)]),
    ],
)
def test_b03_sliding_windows_whose_size_is_no_multiple_of_the_slide(size, slide, timestamp, expected):
    assert sorted(windows(SlidingEventTimeWindows.of(size, slide), timestamp)) == expected


def test_a_size_of_nothing_is_refused():
    for make in (
        lambda: TumblingEventTimeWindows.of(0),
        lambda: SlidingEventTimeWindows.of(10, 0),
        lambda: EventTimeSessionWindows.with_gap(0),
    ):
        with pytest.raises(InvalidJobError):
            make()


def test_a_record_without_event_time_is_refused_with_what_to_do():
    with pytest.raises(InvalidJobError, match="assign_timestamps_and_watermarks"):
        windows(TumblingEventTimeWindows.of(Duration.of_seconds(1)), None)


def test_windows_that_overlap_or_touch_merge_and_others_stay():
    merged = []
    TimeWindow.merge_windows(
        [TimeWindow(20, 30), TimeWindow(0, 10), TimeWindow(10, 15), TimeWindow(5, 7), TimeWindow(40, 50)],
        lambda group, cover: merged.append((sorted(group), cover)),
    )
    assert merged == [([TimeWindow(0, 10), TimeWindow(5, 7), TimeWindow(10, 15)], TimeWindow(0, 15))]


def test_a_session_starts_at_each_record_with_its_own_gap():
    assert windows(EventTimeSessionWindows.with_gap("1 s"), 5) == [(5, 1_005)]
    by_record = EventTimeSessionWindows.with_dynamic_gap(lambda record: record["gap"])
    assert [(w.start, w.end) for w in by_record.assign_windows({"gap": 2}, 5, None)] == [(5, 7)]


def test_windows_are_values():
    assert TimeWindow(0, 5) == TimeWindow(0, 5) != TimeWindow(0, 6)
    assert len({TimeWindow(0, 5), TimeWindow(0, 5), CountWindow(1), GlobalWindow.get()}) == 3
    assert pickle.loads(pickle.dumps(TimeWindow(1, 2))) == TimeWindow(1, 2)
    assert pickle.loads(pickle.dumps(GlobalWindow.get())) is GlobalWindow.get()
    assert TimeWindow(0, 5).max_timestamp() == 4


def test_the_numbers_that_pyflink_hashes_windows_by():
    # As PyFlink's own functions give them.
    assert [long_to_int_with_bit_mixing(x) for x in (0, 1, -1)] == [0, 147849196037467560671341166926513243621, 0]
    assert [mod_inverse(x) for x in (0, 1, 7)] == [0, 1, -157250448822857142857142857]
    assert all(mod_inverse(x) * x % 2**32 == 1 for x in (1, -1, 2**63 - 1, 2 * 1_700_000_000_000 + 1))
    assert Min().reduce(4, 3) == 3


def test_serializers_write_what_they_read():
    for serializer, window in (
        (TimeWindowSerializer(), TimeWindow(-5, 2**40)),
        (CountWindowSerializer(), CountWindow(7)),
        (GlobalWindows().get_window_serializer(), GlobalWindow.get()),
    ):
        stream = io.BytesIO()
        serializer.serialize(window, stream)
        stream.seek(0)
        assert serializer.deserialize(stream) == window


class TriggerContext:
    def __init__(self, watermark):
        self.watermark, self.timers = watermark, []

    def get_current_watermark(self):
        return self.watermark

    def register_event_time_timer(self, time):
        self.timers.append(time)


def test_an_event_time_trigger_waits_for_the_end_and_fires_at_once_when_late():
    trigger, window, context = EventTimeTrigger.create(), TimeWindow(0, 10), TriggerContext(5)
    assert trigger.on_element(None, 3, window, context) is TriggerResult.CONTINUE
    assert context.timers == [9]
    assert trigger.on_event_time(9, window, context) is TriggerResult.FIRE
    assert trigger.on_event_time(8, window, context) is TriggerResult.CONTINUE
    assert trigger.on_element(None, 3, window, TriggerContext(9)) is TriggerResult.FIRE
    assert TriggerResult.FIRE_AND_PURGE.is_fire() and TriggerResult.FIRE_AND_PURGE.is_purge()
