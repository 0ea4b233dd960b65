"""The harness that users test their jobs with, and behaviour cases that are easiest shown by it."""

import asyncio
import datetime
import decimal

import pytest

from flinkish import (
    AggregateFunction,
    CoMapFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    OutputTag,
    ProcessFunction,
    Row,
    Time,
    TumblingEventTimeWindows,
    Types,
    ValueStateDescriptor,
)
from flinkish.datastream.async_data_stream import AsyncDataStream
from flinkish.datastream.forgotten_sinks import forget_waiting_sinks, report_forgotten_sinks
from flinkish.datastream.functions import AsyncFunction
from flinkish.datastream.window import ProcessingTimeSessionWindows, TumblingProcessingTimeWindows
from flinkish.errors import InvalidJobError, UnstableKeyError, UserFunctionError
from flinkish.testing import StreamRecord, StreamTestHarness, Watermark


class RunningSum(KeyedProcessFunction):
    def open(self, runtime_context):
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum", Types.LONG()))

    def process_element(self, value, ctx):
        total = (self.sum.value() or 0) + value[1]
        self.sum.update(total)
        yield value[0], total


class Reminder(KeyedProcessFunction):
    """Echoes each value and reminds of it 10 ms later, in event time or processing time."""

    def __init__(self, processing_time=False):
        self.processing_time = processing_time

    def process_element(self, value, ctx):
        timers = ctx.timer_service()
        if self.processing_time:
            timers.register_processing_time_timer(timers.current_processing_time() + 10)
        else:
            timers.register_event_time_timer(ctx.timestamp() + 10)
        yield value

    def on_timer(self, timestamp, ctx):
        yield "remind", ctx.get_current_key(), timestamp


def by_key(function):
    return lambda stream: stream.key_by(lambda record: record[0]).process(function)


@pytest.fixture(params=[True, False], ids=["fused", "interpreted"])
def options(request):
    return {"flinkish.fused-chains": request.param}


def test_keyed_state_is_kept_for_each_key(options):
    with StreamTestHarness(by_key(RunningSum()), configuration=options) as harness:
        harness.process_element(("a", 1), 10)
        harness.process_element(("b", 5), 11)
        harness.process_element(("a", 2))
        assert harness.output == [
            StreamRecord(("a", 1), 10),
            StreamRecord(("b", 5), 11),
            StreamRecord(("a", 3), None),
        ]
        assert harness.num_keyed_state_entries() == 2


def test_an_event_time_timer_fires_before_the_watermark_that_fires_it(options):
    with StreamTestHarness(by_key(Reminder()), configuration=options) as harness:
        harness.process_element(("a", 1), 5)
        assert harness.num_event_time_timers() == 1
        harness.process_watermark(14)
        harness.process_watermark(15)
        assert harness.output == [
            StreamRecord(("a", 1), 5),
            Watermark(14),
            StreamRecord(("remind", "a", 15), 15),
            Watermark(15),
        ]
        assert harness.num_event_time_timers() == 0


def test_processing_time_stands_still_until_the_test_moves_it(options):
    with StreamTestHarness(by_key(Reminder(True)), configuration=options) as harness:
        harness.set_processing_time(100)
        harness.process_element(("a", 1))
        assert harness.num_processing_time_timers() == 1
        harness.set_processing_time(109)
        harness.clear_output()
        harness.set_processing_time(110)
        assert harness.output == [StreamRecord(("remind", "a", 110), None)]


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_what_comes_within_the_millisecond_of_a_timer_comes_before_it(backend):
    """As in Flink, whose timers wait one millisecond more; so the last one of a window does not fire record by record."""

    def sums(window):
        return lambda stream: stream.key_by(lambda v: v[0]).window(window).reduce(lambda a, b: (a[0], a[1] + b[1]))

    with StreamTestHarness(sums(TumblingProcessingTimeWindows.of(Time.milliseconds(3_000))), backend) as harness:
        harness.set_processing_time(2_999)
        harness.process_elements([(("a", 2), None), (("a", 4), None)])
        assert harness.output == []
        harness.set_processing_time(3_000)
        assert harness.output == [StreamRecord(("a", 6), 2_999)]
    with StreamTestHarness(sums(ProcessingTimeSessionWindows.with_gap(Time.milliseconds(10))), backend) as harness:
        harness.process_element(("a", 1))
        harness.set_processing_time(8)
        harness.process_element(("a", 2))
        harness.set_processing_time(16)
        harness.process_element(("a", 3))
        harness.set_processing_time(25)
        assert harness.output == [StreamRecord(("a", 6), 25)]


def test_a_timer_for_now_fires_when_the_millisecond_is_over(options):
    class Now(KeyedProcessFunction):
        def process_element(self, value, ctx):
            ctx.timer_service().register_processing_time_timer(ctx.timer_service().current_processing_time())
            yield value

        def on_timer(self, timestamp, ctx):
            yield timestamp, ctx.timer_service().current_processing_time()

    with StreamTestHarness(lambda s: s.key_by(lambda v: 0).process(Now()), configuration=options) as harness:
        harness.set_processing_time(100)
        harness.process_element("first")
        harness.process_element("second")
        harness.set_processing_time(101)
        assert [record.value for record in harness.output] == ["first", "second", (100, 101)]


def test_timers_on_the_way_fire_at_their_time_also_beside_calls_that_sleep():
    class Later(KeyedProcessFunction):
        def process_element(self, value, ctx):
            timers = ctx.timer_service()
            timers.register_processing_time_timer(timers.current_processing_time() + 100)

        def on_timer(self, timestamp, ctx):
            yield timestamp, ctx.timer_service().current_processing_time()

    class Sleep(AsyncFunction):
        async def async_invoke(self, value):
            await asyncio.sleep(value / 1_000)
            return [value]

    def build(stream):
        slept = AsyncDataStream.unordered_wait(stream, Sleep(), Time.seconds(10), 10)
        return slept.key_by(lambda value: 0).process(Later())

    with StreamTestHarness(build) as harness:
        harness.process_elements([(50, None), (150, None)])
        harness.set_processing_time(1_000)
        assert [record.value for record in harness.output] == [(150, 150), (250, 1_000)]


def test_two_inputs_share_state_and_the_smaller_watermark():
    class Both(KeyedCoProcessFunction):
        def open(self, runtime_context):
            self.seen = runtime_context.get_state(ValueStateDescriptor("seen", Types.STRING()))

        def process_element1(self, value, ctx):
            self.seen.update(value)
            yield "left", value

        def process_element2(self, value, ctx):
            yield "right", value, self.seen.value()

    def build(left, right):
        return left.connect(right).key_by(lambda v: v, lambda v: v).process(Both())

    with StreamTestHarness(build) as harness:
        harness.process_element("k", 1)
        harness.process_element("k", 2, input=1)
        harness.process_watermark(5)
        harness.process_watermark(3, input=1)
        assert harness.output == [
            StreamRecord(("left", "k"), 1),
            StreamRecord(("right", "k", "k"), 2),
            Watermark(3),
        ]


def test_idle_inputs_leave_the_combined_watermark_and_come_back_at_once():
    """Case B10: watermark 5 then idle, 4 then idle; then the second is active with 4, then 6."""

    def build(left, right):
        return left.union(right).map(lambda value: value)

    for first, second in ((0, 1), (1, 0)):
        with StreamTestHarness(build) as harness:
            marks = {0: 5, 1: 4}
            for input in (first, second):
                harness.process_watermark(marks[input], input=input)
                harness.process_watermark_status(True, input=input)
            assert harness.output[-1] == Watermark(5)
            harness.process_watermark_status(False, input=1)
            harness.process_watermark(4, input=1)
            assert harness.output[-1] == Watermark(5)
            harness.process_watermark(6, input=1)
            assert harness.output[-1] == Watermark(6)


def test_side_outputs_are_seen_whether_or_not_the_pipeline_takes_them():
    odd = OutputTag("odd")

    class Split(ProcessFunction):
        def process_element(self, value, ctx):
            if value % 2:
                yield odd, value
            else:
                yield value

    with StreamTestHarness(lambda stream: stream.process(Split())) as harness:
        for value in range(4):
            harness.process_element(value, value)
        assert [record.value for record in harness.output] == [0, 2]
        assert harness.side_output(odd) == [StreamRecord(1, 1), StreamRecord(3, 3)]

    def taking(stream):
        main = stream.process(Split())
        return [main, main.get_side_output(odd).map(lambda value: value * 10)]

    with StreamTestHarness(taking) as harness:
        for value in range(4):
            harness.process_element(value)
        assert [record.value for record in harness.outputs[1]] == [10, 30]
        assert harness.side_output(odd) == []


def test_a_window_leaves_no_state_and_no_timer():
    class Count(AggregateFunction):
        def create_accumulator(self):
            return 0

        def add(self, value, accumulator):
            return accumulator + 1

        def get_result(self, accumulator):
            return accumulator

        def merge(self, acc_a, acc_b):
            return acc_a + acc_b

    def build(stream):
        windows = TumblingEventTimeWindows.of(Time.milliseconds(10))
        return stream.key_by(lambda v: v).window(windows).aggregate(Count())

    with StreamTestHarness(build) as harness:
        for timestamp in (-1, 0, 3, 9, 10):
            harness.process_element("k", timestamp)
        harness.process_watermark(30)
        assert harness.output == [
            StreamRecord(1, -1),
            StreamRecord(3, 9),
            StreamRecord(1, 19),
            Watermark(30),
        ]
        assert harness.num_keyed_state_entries() == 0
        assert harness.num_event_time_timers() == 0


@pytest.mark.parametrize("batched", [False, True])
def test_what_a_timer_emits_comes_before_its_watermark_downstream(options, batched):
    """Case B13: on_timer emits and registers the same timer again once; then a window [0, 10)."""

    class Twice(KeyedProcessFunction):
        def open(self, runtime_context):
            self.again = runtime_context.get_state(ValueStateDescriptor("again", Types.BOOLEAN()))

        def process_element(self, value, ctx):
            ctx.timer_service().register_event_time_timer(9)

        def on_timer(self, timestamp, ctx):
            if self.again.value() is None:
                self.again.update(True)
                ctx.timer_service().register_event_time_timer(9)
            yield "r"

    def build(stream):
        return (
            stream.key_by(lambda v: v)
            .process(Twice())
            .key_by(lambda v: v)
            .window(TumblingEventTimeWindows.of(Time.milliseconds(10)))
            .reduce(lambda a, b: a + b)
        )

    with StreamTestHarness(build, configuration=options) as harness:
        if batched:
            harness.process_elements([("x", 1), ("x", 2)])
        else:
            harness.process_element("x", 1)
            harness.process_element("x", 2)
        harness.process_watermark(9)
        assert harness.output == [StreamRecord("rr", 9), Watermark(9)]


@pytest.mark.parametrize(
    "value",
    [
        [Row(1, "a", None), Row(2, "b", 0.5)],
        ({"k": (1, 2)}, b"\x00\xff"),
        decimal.Decimal("1.10"),
        datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=5))),
        {"rows": [Row(a=1, b=[1, 2])]},
    ],
    ids=["rows", "tuple", "decimal", "datetime", "dict"],
)
def test_nested_values_keep_their_shape(value):
    """Case B28, through a shuffle and through state."""

    class Keep(KeyedProcessFunction):
        def open(self, runtime_context):
            self.kept = runtime_context.get_state(ValueStateDescriptor("kept", Types.PICKLED_BYTE_ARRAY()))

        def process_element(self, value, ctx):
            if self.kept.value() is not None:
                yield self.kept.value()
            self.kept.update(value)

    def build(stream):
        return stream.rebalance().map(lambda v: v).key_by(lambda v: 0).process(Keep())

    with StreamTestHarness(build, parallelism=2) as harness:
        harness.process_element(value)
        harness.process_element("last")
        (record,) = harness.output
        assert record.value == value and type(record.value) is type(value)
        assert repr(record.value) == repr(value)


def test_each_batch_size_gives_the_same_sums_for_a_reduce_that_changes_its_accumulator(options):
    def add(total, value):
        total[1] += value[1]
        return total

    def build(stream):
        return stream.key_by(lambda v: v[0]).reduce(add)

    outputs = []
    for batches in ([3], [1, 1, 1], [2, 1]):
        with StreamTestHarness(build, configuration=options) as harness:
            values = iter([1, 2, 3])
            for size in batches:
                harness.process_elements([(["k", next(values)], None) for _ in range(size)])
            outputs.append([record.value for record in harness.output])
    assert outputs == [[["k", 1], ["k", 3], ["k", 6]]] * 3


def test_an_error_of_user_code_reaches_the_test_with_operator_and_record():
    with StreamTestHarness(lambda stream: stream.map(lambda v: 1 // v).name("divide")) as harness:
        harness.process_element(1)
        with pytest.raises(UserFunctionError) as caught:
            harness.process_element(0)
    text = str(caught.value)
    assert "ZeroDivisionError" in text
    assert text.splitlines()[-1].startswith('operator "divide"')
    assert "record 0" in text.splitlines()[-1]


def test_parallel_operators_share_out_the_keys_and_lose_nothing():
    with StreamTestHarness(by_key(RunningSum()), parallelism=3) as harness:
        for number in range(30):
            harness.process_element((number % 10, 1))
        assert sorted(record.value for record in harness.output) == sorted(
            (key, count) for key in range(10) for count in (1, 2, 3)
        )


def test_a_build_without_an_input_is_refused():
    with pytest.raises(InvalidJobError, match="nothing to feed"):
        StreamTestHarness(lambda: None)


CLOSED: list = []


class Closing(ProcessFunction):
    """A class of a module is pickled by its name, so it finds this module's list again."""

    def process_element(self, value, ctx):
        yield value

    def close(self):
        CLOSED.append(True)


def test_functions_are_closed_once_with_the_harness():
    CLOSED.clear()
    harness = StreamTestHarness(lambda stream: stream.process(Closing()))
    harness.close()
    harness.close()
    assert CLOSED == [True]


# ---- declared types -----------------------------------------------------------------------------

PAIR = Types.ROW_NAMED(["name", "price"], [Types.STRING(), Types.DOUBLE()])


class BothOutputs(ProcessFunction):
    def process_element(self, value, ctx):
        yield list(value)
        yield OutputTag("pairs"), tuple(value)


def test_outputs_have_the_form_of_their_declared_type(options):
    def build(stream):
        rows = stream.map(lambda pair: pair, output_type=PAIR).filter(lambda row: row.price > 0)
        main = rows.process(BothOutputs(), output_type=Types.TUPLE([Types.STRING(), Types.DOUBLE()]))
        return rows, main, main.get_side_output(OutputTag("pairs", PAIR)).map(lambda row: row.name)

    with StreamTestHarness(build, configuration=options) as harness:
        harness.process_element(("a", 1))
        (row,), (pair,), (name,) = harness.outputs
        assert repr(row.value) == "Row(name='a', price=1.0)"
        assert repr(pair.value) == "('a', 1.0)" and name.value == "a"


def test_what_is_not_of_the_declared_type_fails_with_operator_and_reason(options):
    def build(stream):
        return stream.map(lambda n: (n,), output_type=PAIR)

    with StreamTestHarness(build, configuration=options) as harness:
        with pytest.raises(UserFunctionError, match='expected 2 fields, got 1(.|\n)*operator "Map"'):
            harness.process_element("a")


def test_none_of_a_co_map_is_no_result(options):
    class Present(CoMapFunction):
        def map1(self, value):
            return value

        map2 = map1

    with StreamTestHarness(
        lambda one, two: one.connect(two).map(Present()), configuration=options
    ) as harness:
        for value, index in ((1, 0), (None, 0), (None, 1), (0, 1)):
            harness.process_element(value, input=index)
        assert [record.value for record in harness.output] == [1, 0]


@pytest.mark.parametrize("build", [lambda s: None, lambda s: s.print(), lambda s: [s, 1], lambda s: []])
def test_a_build_that_returns_no_stream_is_refused_with_advice(build):
    with pytest.raises(InvalidJobError, match="build returned a"):
        StreamTestHarness(build)


def test_an_input_that_does_not_exist_is_refused_by_number():
    with StreamTestHarness(lambda s: s.map(lambda n: n)) as harness:
        for number in (1, -1):
            with pytest.raises(ValueError, match=f"no input {number}: build takes 1"):
                harness.process_element("a", input=number)


def test_ctrl_c_and_the_outcomes_of_pytest_leave_user_code_as_themselves(options):
    def fail(value):
        pytest.fail("the function under test was called")

    def interrupt(value):
        raise KeyboardInterrupt

    for function, outcome in ((fail, pytest.fail.Exception), (interrupt, KeyboardInterrupt)):
        with StreamTestHarness(lambda s: s.map(function), configuration=options) as harness:
            with pytest.raises(outcome):
                harness.process_element("a")


def test_a_key_that_is_not_of_its_declared_type_is_refused_by_operator_and_value():
    def build(stream):
        return stream.key_by(lambda v: v, Types.INT()).reduce(lambda a, b: a)

    with StreamTestHarness(build) as harness:
        with pytest.raises(UnstableKeyError) as caught:
            harness.process_element("a")
    lines = str(caught.value).splitlines()
    assert lines[0] == "a key is not of its declared type int"
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["where", "why", "do"]


def test_the_sinks_of_a_harness_are_not_reported_as_forgotten(capsys):
    forget_waiting_sinks()  # of tests before
    with StreamTestHarness(lambda stream: stream.map(str)) as harness:
        harness.process_element(1)
        report_forgotten_sinks()
        assert capsys.readouterr().err == "" and harness.output == [StreamRecord("1")]
