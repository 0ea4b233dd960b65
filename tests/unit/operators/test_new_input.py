"""Programs with an input more than the one that was saved: event time begins anew, and nothing fires twice for that."""

import pytest

from flinkish.common.time import Time
from flinkish.common.watermark_strategy import WatermarkStrategy
from flinkish.datastream import functions as f
from flinkish.datastream.data_stream import DataStream
from flinkish.datastream.window import (
    EventTimeSessionWindows,
    EventTimeTrigger,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from flinkish.messages.elements import MAX_WATERMARK_MS
from flinkish.testing.stream_test_harness import StreamTestHarness

BACKENDS = pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
ASSIGNERS = {
    "tumbling": TumblingEventTimeWindows.of(Time.milliseconds(10)),
    "sliding": SlidingEventTimeWindows.of(Time.milliseconds(10), Time.milliseconds(10)),
    "session": EventTimeSessionWindows.with_gap(Time.milliseconds(5)),
}


class Text(f.ProcessWindowFunction):
    def process(self, key, context, elements):
        yield f"{key} {context.window().start} " + "".join(element[1] for element in elements)


def windows(assigner, lateness):
    def build(streams):
        first, *others = streams
        stream = first.union(*others) if others else first
        windowed = stream.key_by(lambda record: record[0]).window(assigner)
        return windowed.allowed_lateness(lateness).process(Text()).uid("windows")

    return build


def one(build):
    return lambda old: build([old])


def two(build):
    return lambda old, new: build([old, new])


def feed(harness, input, *records):
    harness.process_elements([((key, text), timestamp) for key, text, timestamp in records], input)


def values(harness):
    taken = [record.value for record in harness.output if hasattr(record, "value")]
    harness.output.clear()
    return taken


@BACKENDS
@pytest.mark.parametrize("kind", ["tumbling", "sliding", "session"])
def test_records_of_a_new_input_are_not_late_because_the_old_ones_were_ahead(kind, backend):
    build = windows(ASSIGNERS[kind], 0)
    with StreamTestHarness(one(build), backend) as harness:
        feed(harness, 0, ("k", "a", 1), ("k", "b", 101))
        harness.process_watermark(100)
        assert values(harness) == [f"k {1 if kind == 'session' else 0} a"]
        snapshot = harness.snapshot()
    with StreamTestHarness.restore(two(build), snapshot, state_backend=backend) as harness:
        feed(harness, 1, ("k", "x", 2), ("l", "y", 102))
        harness.process_watermark(100)
        assert values(harness) == []  # the new input has said nothing yet
        harness.process_watermark(50, 1)
        assert values(harness) == [f"k {2 if kind == 'session' else 0} x"]
        feed(harness, 1, ("k", "late", 3), ("k", "c", 103))  # the watermark has passed here, too
        harness.process_watermark(MAX_WATERMARK_MS)
        harness.process_watermark(MAX_WATERMARK_MS, 1)
        starts = (101, 102) if kind == "session" else (100, 100)
        assert sorted(values(harness)) == [f"k {starts[0]} bc", f"l {starts[1]} y"]
    with StreamTestHarness.restore(one(build), snapshot, state_backend=backend) as harness:
        feed(harness, 0, ("k", "late", 2))  # the old program goes on where it was
        harness.process_watermark(MAX_WATERMARK_MS)
        assert values(harness) == [f"k {starts[0]} b"]


@BACKENDS
@pytest.mark.parametrize("kind", ["tumbling", "sliding", "session"])
def test_a_kept_window_that_has_fired_fires_again_only_for_keys_with_new_records(kind, backend):
    """As in Flink, where the timers say what is still to fire; also after another snapshot, and in several subtasks."""
    build = windows(ASSIGNERS[kind], 1_000)
    with StreamTestHarness(one(build), backend) as harness:
        feed(harness, 0, ("k", "a", 1), ("l", "b", 1), ("k", "c", 101))
        harness.process_watermark(100)
        assert sorted(values(harness)) == sorted(f"{k} {1 if kind == 'session' else 0} {v}" for k, v in ("ka", "lb"))
        snapshot = harness.snapshot()
    start = 1 if kind == "session" else 0
    with StreamTestHarness.restore(two(build), snapshot, state_backend=backend) as harness:
        feed(harness, 1, ("l", "x", 2), ("m", "y", 2))
        assert values(harness) == []
        snapshots = [harness.snapshot()]
        harness.process_watermark(3)
        harness.process_watermark(3, 1)
        snapshots.append(harness.snapshot())
    for snapshot in snapshots:
        for parallelism in (1, 3):
            options = {"state_backend": backend, "parallelism": parallelism}
            with StreamTestHarness.restore(two(build), snapshot, **options) as harness:
                feed(harness, 0, ("n", "z", 4))
                harness.process_watermark(50)
                harness.process_watermark(50, 1)
                new = [f"l {start} bx", f"m {2 if kind == 'session' else 0} y", f"n {4 if kind == 'session' else 0} z"]
                assert sorted(values(harness)) == new
                feed(harness, 0, ("k", "v", 2))  # late, and taken, as ever
                assert values(harness) == [f"k {start} av"]
                harness.process_watermark(MAX_WATERMARK_MS)
                harness.process_watermark(MAX_WATERMARK_MS, 1)
                assert values(harness) == [f"k {101 if kind == 'session' else 100} c"]


class Own(EventTimeTrigger):
    """Windows with a trigger of the user's go by timers."""


@BACKENDS
@pytest.mark.parametrize("kind", ["tumbling", "session", "trigger"])
def test_a_window_that_has_fired_does_not_fire_again_where_the_program_has_no_lateness_any_more(kind, backend):
    def build(lateness):
        def of(streams):
            first, *others = streams
            keyed = (first.union(*others) if others else first).key_by(lambda record: record[0])
            windowed = keyed.window(ASSIGNERS["tumbling" if kind == "trigger" else kind])
            windowed = windowed.trigger(Own()) if kind == "trigger" else windowed
            return windowed.allowed_lateness(lateness).process(Text()).uid("windows")

        return of

    with StreamTestHarness(one(build(40)), backend) as harness:
        feed(harness, 0, ("k", "a", 1), ("l", "b", 1), ("k", "c", 101))
        harness.process_watermark(30)
        assert len(values(harness)) == 2
        snapshot = harness.snapshot()
    with StreamTestHarness.restore(two(build(0)), snapshot, state_backend=backend) as harness:
        feed(harness, 1, ("l", "x", 2))
        harness.process_watermark(30)
        harness.process_watermark(30, 1)
        assert values(harness) == [f"l {1 if kind == 'session' else 0} bx"]
        harness.process_watermark(900)
        harness.process_watermark(900, 1)
        assert values(harness) == [f"k {101 if kind == 'session' else 100} c"]
        assert harness.num_keyed_state_entries() == 0


@BACKENDS
def test_kept_windows_go_with_their_lateness_also_where_the_program_has_none_any_more(backend):
    cleared = []

    class Clears(Text):
        def clear(self, context):
            cleared.append(context.window().start)

    def build(lateness):
        def make(streams):
            first, *others = streams
            stream = first.union(*others) if others else first
            windowed = stream.key_by(lambda record: record[0]).window(ASSIGNERS["tumbling"])
            return windowed.allowed_lateness(lateness).process(Clears()).uid("windows")

        return make

    with StreamTestHarness(one(build(1_000)), backend) as harness:
        feed(harness, 0, ("k", "a", 1), ("l", "b", 11), ("l", "c", 101))
        harness.process_watermark(100)
        assert values(harness) == ["k 0 a", "l 10 b"]
        snapshot = harness.snapshot()
    with StreamTestHarness.restore(two(build(0)), snapshot, state_backend=backend) as harness:
        feed(harness, 1, ("l", "x", 12), ("m", "y", 21))
        for input in (0, 1):
            harness.process_watermark(60, input)
        assert values(harness) == ["l 10 bx", "m 20 y"]
        feed(harness, 1, ("l", "late", 12))
        for input in (0, 1):
            harness.process_watermark(MAX_WATERMARK_MS, input)
        assert values(harness) == ["l 100 c"]
        assert harness.num_keyed_state_entries() == 0


class Timers(f.KeyedProcessFunction):
    def process_element(self, value, context):
        context.timer_service().register_event_time_timer(context.timestamp() + 10)
        yield f"{value[1]} at {max(context.timer_service().current_watermark(), -1)}"

    def on_timer(self, timestamp, context):
        yield f"timer {timestamp}"


@BACKENDS
def test_timers_fire_once_by_the_new_event_time(backend):
    def build(streams):
        first, *others = streams
        stream = first.union(*others) if others else first
        return stream.key_by(lambda record: record[0]).process(Timers()).uid("timers")

    with StreamTestHarness(one(build), backend) as harness:
        feed(harness, 0, ("k", "a", 1), ("k", "b", 101))
        harness.process_watermark(100)
        assert values(harness) == ["a at -1", "b at -1", "timer 11"]
        snapshot = harness.snapshot()
    with StreamTestHarness.restore(two(build), snapshot, state_backend=backend) as harness:
        feed(harness, 1, ("k", "x", 1))
        assert values(harness) == ["x at -1"]
        for input in (0, 1):
            harness.process_watermark(MAX_WATERMARK_MS, input)
        assert values(harness) == ["timer 11", "timer 111"]


@BACKENDS
def test_an_interval_join_takes_what_a_new_input_has_from_before(backend):
    def build(streams):
        left, right, *others = (stream.key_by(lambda record: record[0]) for stream in streams)
        if others:
            right = streams[1].union(*streams[2:]).key_by(lambda record: record[0])

        class Pair(f.ProcessJoinFunction):
            def process_element(self, left, right, context):
                yield left[1] + right[1]

        joined = left.interval_join(right).between(Time.milliseconds(-5), Time.milliseconds(5))
        return joined.process(Pair()).uid("join")

    with StreamTestHarness(lambda a, b: build([a, b]), backend) as harness:
        feed(harness, 0, ("k", "a", 100))
        for input in (0, 1):
            harness.process_watermark(99, input)
        snapshot = harness.snapshot()
    with StreamTestHarness.restore(lambda a, b, c: build([a, b, c]), snapshot, state_backend=backend) as harness:
        feed(harness, 2, ("k", "x", 96))
        assert values(harness) == ["ax"]
        for input in (0, 1, 2):
            harness.process_watermark(99, input)
        feed(harness, 2, ("k", "y", 97), ("k", "z", 100))
        assert values(harness) == ["az"]


class Event(f.ProcessFunction):
    def process_element(self, value, context):
        yield value


@pytest.mark.parametrize("change", ["branch", "generator", "other-source"])
def test_it_begins_anew_with_each_new_maker_of_event_time_upstream(change):
    """A branch of a known source with watermarks of its own, a new generator, a known source that was not upstream."""
    monotonous = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, _: value[2])

    def build(old: DataStream, other: DataStream, changed: bool):
        windows = old
        if changed and change == "branch":
            windows = old.union(other.process(Event()).assign_timestamps_and_watermarks(monotonous).uid("of branch"))
        elif changed and change == "generator":
            windows = old.union(other).assign_timestamps_and_watermarks(monotonous).uid("generator")
        elif changed:
            windows = old.union(other)
        windowed = windows.key_by(lambda record: record[0]).window(ASSIGNERS["tumbling"])
        return [windowed.process(Text()).uid("windows"), other.map(lambda record: record).uid("beside")]

    with StreamTestHarness(lambda a, b: build(a, b, False)) as harness:
        feed(harness, 0, ("k", "a", 1))
        harness.process_watermark(100)
        snapshot = harness.snapshot()
    with StreamTestHarness.restore(lambda a, b: build(a, b, True), snapshot) as harness:
        harness.process_elements([(("k", "x", 2), 2), (("k", "y", 99), 99)], 1)
        for input in (0, 1):
            harness.process_watermark(MAX_WATERMARK_MS, input)
        found = [record.value for record in harness.outputs[0] if hasattr(record, "value")]
        assert found == ["k 0 x", "k 90 y"]
