"""Process functions with their timers and side outputs, whole and cut by a snapshot and a restore after every step."""

import pytest

from flinkish.common.time import Time
from flinkish.datastream.functions import (
    CoProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    ProcessFunction,
)
from flinkish.datastream.output_tag import OutputTag
from flinkish.datastream.state import ValueStateDescriptor
from flinkish.datastream.window import TumblingEventTimeWindows
from flinkish.errors import UserFunctionError
from flinkish.testing import StreamRecord, StreamTestHarness, Watermark
from tests.unit.operators.scripts import BACKENDS, Run, clock, element, elements, in_any_order, watermark

SIDE = OutputTag("side")
NONE_YET = -(2**63)
END = 2**63 - 1


class Timers:
    """What both keyed functions do with a record ``(key, order, time)``, and with a timer."""

    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))
        self.again = runtime_context.get_state(ValueStateDescriptor("again"))

    def obey(self, value, ctx, input):
        key, order, time = value
        assert ctx.get_current_key() == key
        self.count.update((self.count.value() or 0) + 1)
        timers = ctx.timer_service()
        if order == "again":
            self.again.update(True)
            order = "event"
        {
            "event": timers.register_event_time_timer,
            "clock": timers.register_processing_time_timer,
            "no event": timers.delete_event_time_timer,
            "no clock": timers.delete_processing_time_timer,
        }[order](time)
        yield SIDE, (input, key, order, ctx.timestamp(), timers.current_watermark(), timers.current_processing_time())
        yield input, key, self.count.value()

    def on_timer(self, timestamp, ctx):
        domain = ctx.time_domain().name
        if self.again.value():
            self.again.clear()
            ctx.timer_service().register_event_time_timer(timestamp)  # fires in the same advance
            ctx.timer_service().delete_event_time_timer(timestamp + 1)  # that is due, too
        yield "timer", ctx.get_current_key(), self.count.value(), domain, ctx.timestamp()
        yield SIDE, ("timer", ctx.get_current_key(), timestamp, ctx.timer_service().current_watermark())


class OneInput(Timers, KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield from self.obey(value, ctx, 0)


class TwoInputs(Timers, KeyedCoProcessFunction):
    def process_element1(self, value, ctx):
        return self.obey(value, ctx, 0)

    def process_element2(self, value, ctx):
        return list(self.obey(value, ctx, 1))


def one_input(stream):
    return stream.key_by(lambda value: value[0]).process(OneInput())


def two_inputs(first, second):
    return first.connect(second).key_by(lambda value: value[0], lambda value: value[0]).process(TwoInputs())


def script(inputs):
    second = inputs - 1
    return [
        elements((("a", "event", 50), 1), (("b", "event", 20), 2), (("a", "event", 50), 3)),
        element(("a", "event", 30), 4, input=second),
        element(("c", "clock", 500), 5, input=second),
        watermark(19, inputs),
        watermark(20, inputs),
        element(("a", "no event", 30), 21, input=second),
        element(("b", "no event", 99), 22),  # there is none
        elements((("d", "again", 60), 23), (("d", "event", 61), 24)),
        elements((("c", "clock", 400), 25), (("c", "no clock", 500), 26)),
        clock(450),
        element(("e", "clock", 10), 27, input=second),  # the clock is past it already
        watermark(70, inputs),
        element(("f", "event", 40), 71),  # late: with the next watermark
        watermark(71, inputs),
        element(("g", "event", END), 72),
        watermark(END, inputs),
        clock(1_000),
    ]


def given(inputs):
    second = inputs - 1
    return [
        ((0, "a", 1), 1),
        ((0, "b", 1), 2),
        ((0, "a", 2), 3),
        ((second, "a", 3), 4),
        ((second, "c", 1), 5),
        ("WM", 19),
        (("timer", "b", 1, "EVENT_TIME", 20), 20),
        ("WM", 20),
        ((second, "a", 4), 21),
        ((0, "b", 2), 22),
        ((0, "d", 1), 23),
        ((0, "d", 2), 24),
        ((0, "c", 2), 25),
        ((0, "c", 3), 26),
        (("timer", "c", 3, "PROCESSING_TIME", 400), None),
        ((second, "e", 1), 27),
        (("timer", "e", 1, "PROCESSING_TIME", 10), None),
        (("timer", "a", 4, "EVENT_TIME", 50), 50),  # one, though it was registered twice
        (("timer", "d", 2, "EVENT_TIME", 60), 60),
        (("timer", "d", 2, "EVENT_TIME", 60), 60),
        ("WM", 70),
        ((0, "f", 1), 71),
        (("timer", "f", 1, "EVENT_TIME", 40), 40),
        ("WM", 71),
        ((0, "g", 1), 72),
        (("timer", "g", 1, "EVENT_TIME", END), END),
        ("WM", END),
    ]


def on_the_side(inputs):
    second = inputs - 1
    return [
        ((0, "a", "event", 1, NONE_YET, 0), 1),
        ((0, "b", "event", 2, NONE_YET, 0), 2),
        ((0, "a", "event", 3, NONE_YET, 0), 3),
        ((second, "a", "event", 4, NONE_YET, 0), 4),
        ((second, "c", "clock", 5, NONE_YET, 0), 5),
        (("timer", "b", 20, 20), 20),
        ((second, "a", "no event", 21, 20, 0), 21),
        ((0, "b", "no event", 22, 20, 0), 22),
        ((0, "d", "event", 23, 20, 0), 23),
        ((0, "d", "event", 24, 20, 0), 24),
        ((0, "c", "clock", 25, 20, 0), 25),
        ((0, "c", "no clock", 26, 20, 0), 26),
        (("timer", "c", 400, 20), None),
        ((second, "e", "clock", 27, 20, 450), 27),
        (("timer", "e", 10, 20), None),
        (("timer", "a", 50, 70), 50),
        (("timer", "d", 60, 70), 60),
        (("timer", "d", 60, 70), 60),
        ((0, "f", "event", 71, 70, 450), 71),
        (("timer", "f", 40, 71), 40),
        ((0, "g", "event", 72, 71, 450), 72),
        (("timer", "g", END, END), END),
    ]


BUILDS = [pytest.param(one_input, 1, id="one input"), pytest.param(two_inputs, 2, id="two inputs")]


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("build, inputs", BUILDS)
def test_timers_of_both_times_and_side_outputs(build, inputs, backend, fused):
    run = Run(build, script(inputs), backend, fused=fused, tags=[SIDE])
    assert run.records == given(inputs)
    assert run.of_tag(SIDE) == on_the_side(inputs)
    assert run.timers == 0


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("build, inputs", BUILDS)
def test_a_run_that_is_cut_after_every_step_gives_the_same(build, inputs, parallelism):
    whole = Run(build, script(inputs), tags=[SIDE])
    cut = Run(build, script(inputs), parallelism=parallelism, fused=False, tags=[SIDE], cut=True)
    assert in_any_order(cut.results) == in_any_order(whole.results)
    assert sorted(map(repr, cut.of_tag(SIDE))) == sorted(map(repr, whole.of_tag(SIDE)))
    assert cut.timers == 0


@pytest.mark.parametrize("batch", [True, False])
@pytest.mark.parametrize("build, inputs", BUILDS)
def test_what_timers_give_comes_before_their_watermark_in_the_next_stateful_operator(build, inputs, batch):
    """B13, with a window behind the timers."""

    def counted(*streams):
        fired = build(*streams).filter(lambda value: value[0] == "timer").map(lambda value: (value[1], 1))
        windows = fired.key_by(lambda value: 0).window(TumblingEventTimeWindows.of(Time.milliseconds(10)))
        return windows.reduce(lambda one, other: (one[0] + other[0], one[1] + other[1]))

    fed = [(("a", "again", 9), 1), (("b", "event", 9), 2), (("c", "event", 8), 3)]
    with StreamTestHarness(counted, inputs=inputs) as harness:
        for records in [fed] if batch else [[record] for record in fed]:
            harness.process_elements(records)
        for index in range(inputs):
            harness.process_watermark(9, input=index)
        record, after = harness.output
        assert (sorted(record.value[0]), record.value[1], record.timestamp) == (list("aabc"), 4, 9)
        assert after == Watermark(9)


# ---- without keys --------------------------------------------------------------------------------


class Plain(ProcessFunction):
    def process_element(self, value, ctx):
        timers = ctx.timer_service()
        yield value, ctx.timestamp(), timers.current_watermark(), timers.current_processing_time()
        yield SIDE, value


class PlainCo(CoProcessFunction):
    def process_element1(self, value, ctx):
        yield from Plain.process_element(self, value, ctx)

    def process_element2(self, value, ctx):
        return [(SIDE, (value, ctx.timestamp()))]


@pytest.mark.parametrize("fused", [True, False])
def test_functions_without_a_key_see_times_and_have_side_outputs(fused):
    steps = [element("x"), element("y", 5, input=1), watermark(7, 2), clock(40)]
    steps += [element("z", 8), element(None, input=1)]
    run = Run(lambda s, t: s.connect(t).process(PlainCo()), steps, fused=fused, tags=[SIDE])
    assert run.records == [(("x", None, NONE_YET, 0), None), ("WM", 7), (("z", 8, 7, 40), 8)]
    assert run.of_tag(SIDE) == [("x", None), (("y", 5), 5), ("z", 8), ((None, None), None)]
    single = [(method, args) for method, args in steps if method != "process_element" or args[2] == 0]
    single[1] = watermark(7)
    run = Run(lambda s: s.process(Plain()), single, fused=fused, tags=[SIDE])
    assert run.records == [(("x", None, NONE_YET, 0), None), ("WM", 7), (("z", 8, 7, 40), 8)]
    assert run.of_tag(SIDE) == [("x", None), ("z", 8)]


@pytest.mark.parametrize("method", ["register_event_time_timer", "delete_processing_time_timer"])
def test_timers_without_a_key_are_refused_with_advice(method):
    class Sets(CoProcessFunction):
        def process_element1(self, value, ctx):
            getattr(ctx.timer_service(), method)(1)

        def process_element2(self, value, ctx):
            return None

    with StreamTestHarness(lambda s, t: s.connect(t).process(Sets())) as harness:
        with pytest.raises(UserFunctionError, match="timers needs a keyed stream: call key_by"):
            harness.process_element(1)


def test_a_function_without_on_timer_lets_its_timers_pass():
    class Silent(KeyedCoProcessFunction):
        def process_element1(self, value, ctx):
            ctx.timer_service().register_event_time_timer(value)

        def process_element2(self, value, ctx):
            return None

    with StreamTestHarness(lambda s, t: s.connect(t).key_by(lambda v: v, lambda v: v).process(Silent())) as harness:
        harness.process_element(3)
        for index in range(2):
            harness.process_watermark(5, input=index)
        assert harness.output == [Watermark(5)] and harness.num_event_time_timers() == 0


def test_a_callable_of_a_keyed_stream_sees_the_key_and_the_time():
    build = lambda stream: stream.key_by(lambda v: v % 2).process(lambda v, ctx: [(ctx.get_current_key(), v)])  # noqa: E731
    with StreamTestHarness(build) as harness:
        harness.process_elements([(1, 10), (2, 20)])
        assert harness.output == [StreamRecord((1, 1), 10), StreamRecord((0, 2), 20)]
