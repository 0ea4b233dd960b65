"""Windowed streams from end to end: fields, streams without keys, count windows, snapshots and rescales."""

import pytest

from flinkish.common.time import Time
from flinkish.common.typeinfo import Types
from flinkish.common.types import Row
from flinkish.datastream.functions import AllWindowFunction, ProcessAllWindowFunction
from flinkish.datastream.state import ValueStateDescriptor
from flinkish.datastream.window import (
    CountEvictor,
    CountTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    GlobalWindows,
    PurgingTrigger,
    TumblingEventTimeWindows,
)
from flinkish.errors import StateMigrationError
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


@pytest.mark.parametrize("turned", [False, True], ids=["aligned to per key", "per key to aligned"])
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_windows_that_are_kept_in_another_way_are_not_restored(turned, backend):
    def plain(stream):
        return stream.key_by(key).window(TEN).reduce(lambda a, b: a)

    def purging(stream):
        windowed = stream.key_by(key).window(TEN).trigger(PurgingTrigger.of(EventTimeTrigger()))
        return windowed.reduce(lambda a, b: a)

    first, second = (purging, plain) if turned else (plain, purging)
    with StreamTestHarness(first, backend, **QUICK) as harness:
        harness.process_element(("a", 1), 1)
        snapshot = harness.snapshot()
    with pytest.raises(StateMigrationError, match="another uid"):
        StreamTestHarness.restore(second, snapshot, state_backend=backend, **QUICK)
