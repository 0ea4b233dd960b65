import pickle
from dataclasses import dataclass
from datetime import datetime, timedelta
from operator import itemgetter

import pytest

from flinkish.common import Row, TimestampAssigner, WatermarkGenerator, WatermarkStrategy
from flinkish.errors import InvalidJobError


class Output:
    def __init__(self):
        self.watermarks = []

    def emit_watermark(self, timestamp_ms):
        self.watermarks.append(timestamp_ms)

    def mark_idle(self): ...

    def mark_active(self): ...


class Assigner(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value + (record_timestamp or 0)


def periodic(generator):
    output = Output()
    generator.on_periodic_emit(output)
    return output.watermarks


def test_the_watermark_stays_behind_the_latest_event_by_the_disorder():
    generator = WatermarkStrategy.for_bounded_out_of_orderness("2 s").create_watermark_generator()
    assert periodic(generator) == [-(2**63)]
    generator.on_event(None, 5_000, None)
    generator.on_event(None, 1_000, None)
    assert periodic(generator) == [2_999]
    generator.on_batch(9_000)
    assert periodic(generator) == [6_999]


def test_without_disorder_the_watermark_is_just_below_the_latest_event():
    generator = WatermarkStrategy.for_monotonous_timestamps().create_watermark_generator()
    generator.on_batch(10)
    assert periodic(generator) == [9]


def test_no_watermarks_emits_none():
    generator = WatermarkStrategy.no_watermarks().create_watermark_generator()
    generator.on_event(None, 5, None)
    assert periodic(generator) == []


def test_each_split_gets_a_generator_of_its_own():
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(timedelta(seconds=1))
    assert strategy.create_watermark_generator() is not strategy.create_watermark_generator()


def test_a_generator_object_is_refused_because_splits_would_share_it():
    class Mine(WatermarkGenerator):
        def on_periodic_emit(self, output): ...

    assert isinstance(WatermarkStrategy.for_generator(Mine).create_watermark_generator(), Mine)
    with pytest.raises(InvalidJobError, match="supplier"):
        WatermarkStrategy.for_generator(Mine())


@pytest.mark.parametrize(
    "assigner, takes_two",
    [
        (lambda value: value, False),
        (lambda value, record_timestamp: value, True),
        (lambda value, factor=2: value * factor, False),
        (itemgetter(0), False),
        (Assigner(), True),
    ],
)
def test_an_assigner_may_take_the_record_alone_or_its_timestamp_too(assigner, takes_two):
    strategy = WatermarkStrategy.no_watermarks().with_timestamp_assigner(assigner)
    function, takes_record_timestamp = strategy.timestamp_function()
    assert takes_record_timestamp is takes_two


@dataclass
class Trade:
    time: datetime


@pytest.mark.parametrize(
    "field, record",
    [
        ("time", {"time": 1_000}),
        ("time", Row(time=1_000)),
        (1, ("x", 1_000)),
        ("time", Trade(datetime(1970, 1, 1, 0, 0, 1))),
        (0, Trade(datetime(1970, 1, 1, 0, 0, 1))),
        (0, 1_000),
        (0, datetime(1970, 1, 1, 0, 0, 1)),
    ],
)
def test_a_field_name_or_position_assigns_the_time_of_that_field(field, record):
    strategy = WatermarkStrategy.no_watermarks().with_timestamp_assigner(field)
    function, _ = strategy.timestamp_function()
    assert function(record, None) == 1_000
    assert strategy.timestamp_field == field


@pytest.mark.parametrize("field, record", [("time", {"time": None}), (0, (1.5,)), (0, "x"), (1, 1_000), (0, None)])
def test_what_is_no_time_in_a_field_is_said(field, record):
    function, _ = WatermarkStrategy.no_watermarks().with_timestamp_assigner(field).timestamp_function()
    with pytest.raises(TypeError, match="a point in time must be|has no field"):
        function(record, None)


def test_a_strategy_is_not_changed_by_with_and_survives_pickle():
    base = WatermarkStrategy.for_bounded_out_of_orderness(5)
    idle = base.with_idleness("10 s").with_watermark_alignment("g", 5_000)
    assert base.idle_timeout_ms is None and base.timestamp_function() is None
    assert idle.idle_timeout_ms == 10_000
    assert (idle.alignment.group, idle.alignment.max_drift_ms, idle.alignment.update_interval_ms) == (
        "g",
        5_000,
        1_000,
    )
    assert pickle.loads(pickle.dumps(idle)) == idle


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(InvalidJobError):
        WatermarkStrategy.for_bounded_out_of_orderness(-1)
    with pytest.raises(InvalidJobError):
        WatermarkStrategy.no_watermarks().with_idleness(0)
    with pytest.raises(InvalidJobError):
        WatermarkStrategy.no_watermarks().with_timestamp_assigner(1.5)


class Unwritten(WatermarkGenerator):
    def on_event(self, event, event_timestamp, output): ...


@pytest.mark.parametrize("supplier, why", [
    (dict, "no on_event"), (Unwritten, "on_periodic_emit unwritten"), (lambda split: None, "without arguments"),
    (5, "one object"),
])  # fmt: skip
def test_what_cannot_make_generators_is_refused_in_the_call(supplier, why):
    with pytest.raises(InvalidJobError) as caught:
        WatermarkStrategy.for_generator(supplier)
    assert why in caught.value.why and caught.value.do


def test_what_a_supplier_gives_instead_of_a_generator_is_said():
    with pytest.raises(TypeError, match="gave 5, no WatermarkGenerator"):
        WatermarkStrategy.for_generator(lambda: 5).create_watermark_generator()
