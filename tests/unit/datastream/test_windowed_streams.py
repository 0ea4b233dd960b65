"""Windowed streams from end to end: fields, streams without keys, count windows, snapshots and rescales."""

import pytest

from flinkish.common.time import Time
from flinkish.common.typeinfo import Types
from flinkish.common.types import Row
from flinkish.datastream.functions import AllWindowFunction, ProcessAllWindowFunction, ProcessWindowFunction
from flinkish.datastream.state import ValueStateDescriptor
from flinkish.datastream.window import (
    CountEvictor,
    CountTrigger,
    CumulativeEventTimeWindows,
    DeltaTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    PurgingTrigger,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from flinkish.errors import InvalidJobError, StateMigrationError
from flinkish.testing import StreamTestHarness, Watermark

TEN = TumblingEventTimeWindows.of(Time.milliseconds(10))
QUICK = {"configuration": {"flinkish.fused-chains": False}}


def key(record):
    return record[0]


def run(build, records, watermark=100):
    with StreamTestHarness(build, **QUICK) as harness:
        harness.process_elements([(record, time) for time, record in enumerate(records)])
        harness.process_watermark(watermark)
        return [element.value for element in harness.output if not isinstance(element, Watermark)]


RECORDS = [("a", 3, "x"), ("a", 1, "y"), ("a", 1, "z"), ("a", 3, "w")]


@pytest.mark.parametrize(
    "method, arguments, expected",
    [
        ("sum", (1,), ("a", 8, "x")),
        ("min", (1,), ("a", 1, "x")),
        ("max", (1,), ("a", 3, "x")),
        ("min_by", (1,), ("a", 1, "y")),
        ("max_by", (1,), ("a", 3, "x")),
        ("min_by", (1, False), ("a", 1, "z")),
        ("max_by", (1, False), ("a", 3, "w")),
    ],
)
def test_fields_of_windows_are_summed_and_compared(method, arguments, expected):
    assert run(lambda s: getattr(s.key_by(key).window(TEN), method)(*arguments), RECORDS) == [expected]
    assert run(lambda s: getattr(s.window_all(TEN), method)(*arguments), RECORDS) == [expected]


def test_fields_of_rows_go_by_name_and_keep_their_declared_type():
    declared = Types.ROW_NAMED(["k", "n"], [Types.STRING(), Types.INT()])

    def build(stream):
        rows = stream.map(lambda record: Row(k=record[0], n=record[1]), output_type=declared)
        summed = rows.key_by("k").window(EventTimeSessionWindows.with_gap(5)).sum("n")
        assert summed.get_type() == declared
        return summed

    assert run(build, RECORDS) == [Row(k="a", n=8)]


def test_windows_of_a_whole_stream_show_the_window_and_no_key():
    class Apply(AllWindowFunction):
        def apply(self, window, inputs):
            yield window.start, sum(record[1] for record in inputs)

    class Process(ProcessAllWindowFunction):
        def open(self, runtime_context):
            self.opened = True

        def process(self, context, elements):
            calls = context.global_state().get_state(ValueStateDescriptor("calls"))
            calls.update((calls.value() or 0) + 1)
            yield context.window().start, len(list(elements)), calls.value(), self.opened, context.current_watermark()

        def clear(self, context):
            context.window_state().get_state(ValueStateDescriptor("mine")).clear()

    two = [*RECORDS, *[("b", 1, "")] * 10]
    assert run(lambda s: s.window_all(TEN).apply(Apply()), two) == [(0, 14), (10, 4)]
    assert run(lambda s: s.window_all(TEN).apply(lambda window, inputs: [len(list(inputs))]), two) == [10, 4]
    assert run(lambda s: s.window_all(TEN).process(Process()), two) == [(0, 10, 1, True, 100), (10, 4, 2, True, 100)]
    assert run(lambda s: s.window_all(TEN).reduce(lambda a, b: a, Apply()), two) == [(0, 3), (10, 1)]


def test_count_windows_of_keyed_and_whole_streams():
    assert run(lambda s: s.key_by(key).count_window(2).sum(1), RECORDS) == [("a", 4, "x"), ("a", 4, "z")]
    assert run(lambda s: s.count_window_all(3).sum(1), RECORDS) == [("a", 5, "x")]
    assert run(lambda s: s.key_by(key).count_window(3, 1).sum(1), RECORDS) == [("a", 5, "x"), ("a", 5, "y")]

    def as_in_java(stream):
        windowed = stream.key_by(key).window(GlobalWindows.create())
        return windowed.trigger(CountTrigger.of(1)).evictor(CountEvictor.of(3)).sum(1)

    assert [value[1] for value in run(as_in_java, RECORDS)] == [3, 4, 5, 5]


def ten(how, assigner=TEN):
    return lambda stream: how(stream.key_by(key).window(assigner)).uid("windows")


def listed(windowed):
    return windowed.apply(lambda key, window, values: [(key, window.start, len(values))])


def reduced(windowed):
    return windowed.reduce(lambda a, b: a)


SESSIONS, STEPS = EventTimeSessionWindows.with_gap(10), CumulativeEventTimeWindows.of(10, 5)
FORMS = {
    "a trigger": (ten(reduced), ten(lambda w: reduced(w.trigger(PurgingTrigger.of(EventTimeTrigger())))), "kept"),
    "size": (ten(listed), ten(listed, TumblingEventTimeWindows.of(5)), "size: 10 ms -> 5 ms"),
    "slide and size": (ten(listed), ten(listed, SlidingEventTimeWindows.of(20, 10)), "size: 10 ms -> 20 ms"),
    "records, then reduced": (ten(listed), ten(reduced), "contents: records -> reduced values"),
    "aggregates": (
        ten(lambda w: w.aggregate_fields(n=(1, "sum"))),
        ten(lambda w: w.aggregate_fields(n=(1, "max"))),
        "sum of 1.* -> .*max of 1",
    ),
    "an evictor": (
        ten(listed, STEPS), ten(lambda w: listed(w.evictor(CountEvictor.of(5))), STEPS), "with their times"
    ),
    "merging": (ten(listed, SESSIONS), ten(listed, STEPS), "merging: yes -> no"),
    "the clock": (ten(listed, STEPS), ten(listed, TumblingProcessingTimeWindows.of(10)), "processing time"),
    "windows": (
        ten(lambda w: w.apply(lambda key, window, values: [1]), GlobalWindows.create()),
        ten(listed, TumblingProcessingTimeWindows.of(10)),
        "GlobalWindowSerializer",
    ),
}  # fmt: skip


@pytest.mark.parametrize("turned", [False, True], ids=["", "turned"])
@pytest.mark.parametrize("changed", FORMS)
def test_windows_of_another_form_are_refused_and_not_read_as_something_else(changed, turned):
    """They gave wrong results before, or none, or failed in a record."""
    first, second, why = FORMS[changed]
    if turned:
        first, second, why = second, first, "another form"
    backend = "rocksdb" if turned else "hashmap"
    with StreamTestHarness(first, backend, **QUICK) as harness:
        harness.process_element(("a", 1), 1)
        snapshot = harness.snapshot()
    with pytest.raises(StateMigrationError, match=why) as caught:
        StreamTestHarness.restore(second, snapshot, state_backend=backend, **QUICK)
    assert "another uid" in caught.value.do


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_offset_slide_and_lateness_may_change_and_nothing_stays_behind(backend):
    first = ten(lambda w: listed(w.allowed_lateness(10)))
    second = ten(listed, SlidingEventTimeWindows.of(10, 4, 1))
    with StreamTestHarness(first, backend, **QUICK) as harness:
        harness.process_elements([(("a", 1), 1), (("b", 1), 1), (("a", 1), 15)])
        harness.process_watermark(12)  # [0, 10) has fired, and is kept for late records
        snapshot = harness.snapshot()
    with StreamTestHarness.restore(second, snapshot, 2, backend, **QUICK) as harness:
        harness.clear_output()
        harness.process_elements([(("a", 2), 2), (("a", 3), 16)])
        harness.process_watermark(100)
        assert [one.value for one in harness.output[:-1]] == [("a", 9, 1), ("a", 10, 1), ("a", 13, 1)]
        assert harness.num_event_time_timers() == 0
        assert backend == "rocksdb" or harness.num_keyed_state_entries() == 0


@pytest.mark.parametrize("saved, now", [(20, 0), (20, 5), (0, 20), (5, 20)])
@pytest.mark.parametrize("assigner", [SESSIONS, STEPS, TEN], ids=["sessions", "cumulative", "tumbling"])
def test_restored_windows_go_by_the_lateness_of_the_program(assigner, saved, now):
    """Flink keeps them for ever, or fails when a late record reaches a session that is over now."""

    def build(lateness):
        return ten(lambda w: listed(w.allowed_lateness(lateness)), assigner)

    with StreamTestHarness(build(saved), **QUICK) as harness:
        harness.process_elements([(("a", 1), 2), (("b", 1), 2), (("a", 1), 25)])
        harness.process_watermark(18)
        snapshot = harness.snapshot()
    with StreamTestHarness.restore(build(now), snapshot, 2, **QUICK) as harness:
        harness.clear_output()
        harness.process_element(("a", 2), 3)  # its windows have ended, at 9 or 12, and are kept for 20 ms or over
        assert {value[2] for value in [one.value for one in harness.output]} == ({1} if now == 20 else set())
        harness.process_watermark(24)
        harness.process_watermark(1000)
        assert harness.num_keyed_state_entries() == harness.num_event_time_timers() == 0


def test_the_global_state_of_a_window_function_is_that_of_its_runtime_context():
    counts = ValueStateDescriptor("fired", Types.INT())

    class Count(ProcessWindowFunction):
        def open(self, runtime_context):
            self.fired = runtime_context.get_state(counts)

        def process(self, key, context, elements):
            self.fired.update((self.fired.value() or 0) + 1)
            yield key, context.global_state().get_state(counts).value()

    for assigner in (TEN, SESSIONS):
        found = run(lambda s: s.key_by(key).window(assigner).process(Count()), [("a",), ("b",), *[("a",)] * 20])
        assert found[-1] == ("a", 3 if assigner is TEN else 1) and ("b", 1) in found


@pytest.mark.parametrize("values", [[1.0, float("nan"), 0.5], [float("nan"), 0.5, 1.0], [0.5, 1.0, float("nan")]])
def test_nan_is_the_largest_number_whatever_the_order(values):
    def of(method):
        ((_, found),) = run(lambda s: getattr(s.key_by(key).window(TEN), method)(1), [("a", value) for value in values])
        return found

    assert of("min") == of("min_by") == 0.5
    assert of("max") != of("max") and of("max_by") != of("max_by")


@pytest.mark.parametrize("method", ["get_window_serializer", "get_default_trigger"])
def test_an_assigner_of_its_own_without_serializer_or_trigger_is_refused_in_the_call(method):
    wrong = type("Wrong", (type(TEN),), {method: lambda *arguments: None})(10)
    with pytest.raises(InvalidJobError, match=f"windows of Wrong\n.*{method}.. gave None"):
        run(lambda stream: stream.key_by(key).window(wrong).sum(1), [])


def test_a_default_trigger_that_cannot_merge_is_refused_in_the_call():
    class Never(EventTimeSessionWindows):
        def get_default_trigger(self, env=None):
            return DeltaTrigger.of(1, lambda one, other: 0)

    with pytest.raises(InvalidJobError, match="DeltaTrigger for Never"):
        run(lambda stream: stream.key_by(key).window(Never(10)).sum(1), [])
