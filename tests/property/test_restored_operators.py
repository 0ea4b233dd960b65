"""Operators restored at random moments give what they give on the heap, uninterrupted: records of each step in any
order of keys, late ones, timers and entries of state."""

import asyncio
import contextlib
import random
from dataclasses import dataclass, field
from typing import Any, Callable

import pytest

from flinkish import Time
from flinkish.datastream import AsyncDataStream, CoGroupFunction, ProcessJoinFunction
from flinkish.datastream.functions import (
    AggregateFunction,
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedStateFunction,
    ProcessWindowFunction,
)
from flinkish.datastream.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from flinkish.datastream.window import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountEvictor,
    CountTrigger,
    CumulativeEventTimeWindows,
    DailyEventTimeWindows,
    DeltaEvictor,
    DeltaTrigger,
    EventTimeSessionWindows,
    GlobalWindows,
    ProcessingTimeoutTrigger,
    ProcessingTimeSessionWindows,
    PurgingTrigger,
    SessionWindowTimeGapExtractor,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TimeEvictor,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from flinkish.testing import StreamTestHarness
from tests.property.test_restored_states import KEYS
from tests.restored_harness import COUNTED, LATE, observed, restored_harness, seeds, timer_counts

STEPS = 70

ms = Time.milliseconds
tumbling, sliding, sessions = TumblingEventTimeWindows.of, SlidingEventTimeWindows.of, EventTimeSessionWindows.with_gap


# ---- functions of a record (key, value, time) ---------------------------------------------------------


def key(record):
    return record[0]


def add(one, other):
    return one[0], one[1] + other[1], min(one[2], other[2])


class Values(AggregateFunction):
    """Accumulators are changed in place."""

    def create_accumulator(self):
        return {"count": 0, "values": []}

    def add(self, value, accumulator):
        accumulator["count"] += 1
        accumulator["values"].append(value[1])
        return accumulator

    def get_result(self, accumulator):
        return accumulator["count"], sorted(accumulator["values"])

    def merge(self, acc_a, acc_b):
        return {name: acc_a[name] + acc_b[name] for name in acc_a}


def bounds(window):
    return (window.start, window.end) if hasattr(window, "start") else None


class OfWindow(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield repr(key), bounds(context.window()), context.current_watermark(), [element[1:] for element in elements]


class OfResult(ProcessWindowFunction):
    """Of the one that was reduced or aggregated."""

    def process(self, key, context, elements):
        yield repr(key), bounds(context.window()), list(elements)


class WithState(ProcessWindowFunction):
    """State of the window and of the key."""

    FIRED, SIZES = ValueStateDescriptor("fired"), ListStateDescriptor("sizes")
    SEEN = MapStateDescriptor("seen")

    def process(self, key, context, elements):
        fired, sizes = context.window_state().get_state(self.FIRED), context.window_state().get_list_state(self.SIZES)
        seen, window = context.global_state().get_map_state(self.SEEN), context.window()
        fired.update((fired.value() or 0) + 1)
        sizes.add(len(list(elements)))
        seen.put(window.start, (seen.get(window.start) or 0) + 1)
        yield repr(key), bounds(window), fired.value(), list(sizes.get()), sorted(seen.items())

    def clear(self, context):
        context.window_state().get_state(self.FIRED).clear()
        context.window_state().get_list_state(self.SIZES).clear()


class BySum(Trigger):
    """Fires at a sum, which is its state, and at the end of the window."""

    SUM = ReducingStateDescriptor("sum", lambda one, other: one + other)

    def on_element(self, element, timestamp, window, ctx):
        total = ctx.get_partitioned_state(self.SUM)
        total.add(element[1])
        if bounds(window):
            ctx.register_event_time_timer(window.max_timestamp())
        if total.get() <= 15:
            return TriggerResult.CONTINUE
        total.clear()
        return TriggerResult.FIRE

    def on_event_time(self, time, window, ctx):
        return TriggerResult.FIRE if bounds(window) and time == window.max_timestamp() else TriggerResult.CONTINUE

    def on_processing_time(self, time, window, ctx):
        return TriggerResult.CONTINUE

    def can_merge(self):
        return True

    def on_merge(self, window, ctx):
        ctx.merge_partitioned_state(self.SUM)
        ctx.register_event_time_timer(window.max_timestamp())

    def clear(self, window, ctx):
        ctx.get_partitioned_state(self.SUM).clear()
        if bounds(window):
            ctx.delete_event_time_timer(window.max_timestamp())


class GapOfValue(SessionWindowTimeGapExtractor):
    def extract(self, element):
        return 3 + element[1]


def distance(one, other):
    return abs(other[1] - one[1])


class BothInputs(KeyedCoProcessFunction):
    def open(self, runtime_context):
        self.total = runtime_context.get_state(ValueStateDescriptor("total"))
        self.rules = runtime_context.get_map_state(MapStateDescriptor("rules"))

    def process_element1(self, value, ctx):
        self.total.update((self.total.value() or 0) + value[1])
        ctx.timer_service().register_event_time_timer(value[2] + 7)
        yield value[1], self.total.value(), sorted(self.rules.items())

    def process_element2(self, value, ctx):
        self.rules.put(value[1], value[2])
        timers = ctx.timer_service()
        timers.register_processing_time_timer(timers.current_processing_time() + 9)
        yield value[1], self.total.value()

    def on_timer(self, timestamp, ctx):
        total, rules = self.total.value(), sorted(self.rules.items())
        yield ctx.time_domain().name, timestamp, repr(ctx.get_current_key()), total, rules
        self.rules.clear()


RULES, LISTS = MapStateDescriptor("rules"), MapStateDescriptor("lists")


class AddThousand(KeyedStateFunction):
    def process(self, key, state):
        state.update(state.value() + 1000)


class WithRules(KeyedBroadcastProcessFunction):
    TOTAL = ValueStateDescriptor("total")

    def open(self, runtime_context):
        self.total = runtime_context.get_state(self.TOTAL)

    def process_element(self, value, ctx):
        self.total.update((self.total.value() or 0) + value[1])
        ctx.timer_service().register_event_time_timer(value[2] + 3)
        yield value[1], self.total.value(), self.all_rules(ctx)

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(RULES).put(value[1] % 3, value[2])
        ctx.get_broadcast_state(LISTS).put((value[1], None), [value[2]])
        if value[1] == 3:
            ctx.get_broadcast_state(RULES).remove(0)
        if value[1] == 7:
            ctx.apply_to_keyed_state(self.TOTAL, AddThousand())

    def on_timer(self, timestamp, ctx):
        yield timestamp, repr(ctx.get_current_key()), self.total.value(), self.all_rules(ctx)

    def all_rules(self, ctx):
        return [sorted(ctx.get_broadcast_state(descriptor).items()) for descriptor in (RULES, LISTS)]


class RulesAlone(BroadcastProcessFunction):
    def process_element(self, value, ctx):
        yield value[1], sorted(ctx.get_broadcast_state(RULES).items())

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(RULES).put(value[1] % 3, value[2])


class Groups(CoGroupFunction):
    def co_group(self, first, second):
        yield [record[1:] for record in first], [record[1:] for record in second]


class Pairs(ProcessJoinFunction):
    def process_element(self, left, right, ctx):
        yield left[1:], right[1:], ctx.get_left_timestamp(), ctx.get_right_timestamp(), ctx.get_timestamp()


async def ask(record):
    await asyncio.sleep(record[1] / 1000)
    return [record]


async def ask_often_at_once(record):
    if record[1] % 2:
        await asyncio.sleep(record[1] / 1000)
    return [record]


# ---- pipelines ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pipeline:
    """``in_time``: records are later than the watermark.  ``at_end``: only then is its output compared, as when it
    comes is not the records' to say.  ``counted``: timers and entries are too."""

    build: Callable[..., Any]
    inputs: int = field(default=1, kw_only=True)
    in_time: bool = field(default=False, kw_only=True)
    at_end: bool = field(default=False, kw_only=True)
    counted: bool = field(default=True, kw_only=True)


def windowed(assigner, lateness=0):
    """Of late records there is a side output."""

    def build(stream):
        windows = stream.key_by(key).window(assigner)
        return windows.allowed_lateness(lateness).side_output_late_data(LATE) if lateness else windows

    return build


def keyed(then):
    return Pipeline(lambda stream: then(stream.key_by(key)))


def of_windows(assigner, then, lateness=0):
    return Pipeline(lambda stream: then(windowed(assigner, lateness)(stream)))


def joined(assigner, then):
    return Pipeline(lambda one, other: then(one.join(other).where(key).equal_to(key).window(assigner)), inputs=2)


def intervals(lower, upper, then=lambda joined: joined):
    """Restored in a database it may keep records a little longer."""

    def build(one, other):
        return then(one.key_by(key).interval_join(other.key_by(key)).between(ms(lower), ms(upper))).process(Pairs())

    return Pipeline(build, inputs=2, counted=False)


def asked(wait, function):
    return Pipeline(
        lambda stream: wait(stream, function, 100_000, capacity=1_000)
        .key_by(key).window(tumbling(ms(10))).aggregate(Values(), OfResult()),
        in_time=True, at_end=True, counted=False,
    )  # fmt: skip


PIPELINES = {
    "tumbling reduce": of_windows(tumbling(ms(10)), lambda w: w.reduce(add, OfResult()), 6),
    "tumbling aggregate": of_windows(tumbling(ms(10)), lambda w: w.aggregate(Values(), OfResult())),
    "tumbling with state": of_windows(tumbling(ms(10)), lambda w: w.process(WithState()), 15),
    "tumbling, evictor of time": of_windows(
        tumbling(ms(20)), lambda w: w.trigger(CountTrigger.of(3)).evictor(TimeEvictor.of(ms(5))).process(OfWindow())
    ),
    "tumbling, purged by a sum": of_windows(
        tumbling(ms(20)), lambda w: w.trigger(PurgingTrigger.of(BySum())).aggregate(Values(), OfResult())
    ),
    "tumbling, again by the clock": of_windows(
        tumbling(ms(40)), lambda w: w.trigger(ContinuousProcessingTimeTrigger.of(ms(6))).process(OfWindow())
    ),
    "sliding aggregate": of_windows(sliding(ms(12), ms(5), ms(-2)), lambda w: w.aggregate(Values()), 4),
    "sliding process": of_windows(sliding(ms(15), ms(5)), lambda w: w.process(OfWindow()), 9),
    "sliding with state": of_windows(sliding(ms(10), ms(5)), lambda w: w.process(WithState()), 15),
    "sliding, evictor of distance": of_windows(
        sliding(ms(15), ms(5)), lambda w: w.evictor(DeltaEvictor.of(4, distance, True)).process(OfWindow())
    ),
    "session reduce": of_windows(sessions(ms(6)), lambda w: w.reduce(add, OfResult()), 5),
    "session aggregate": of_windows(sessions(ms(6)), lambda w: w.aggregate(Values(), OfResult())),
    "session by a sum": of_windows(sessions(ms(6)), lambda w: w.trigger(BySum()).process(OfWindow()), 5),
    "session, again in event time": of_windows(
        sessions(ms(8)), lambda w: w.trigger(ContinuousEventTimeTrigger.of(ms(5))).process(OfWindow())
    ),
    "session, evictor of count": of_windows(
        sessions(ms(8)), lambda w: w.evictor(CountEvictor.of(2)).process(OfWindow()), 5
    ),
    "session of dynamic gap": of_windows(
        EventTimeSessionWindows.with_dynamic_gap(GapOfValue()),
        lambda w: w.trigger(CountTrigger.of(3)).process(OfWindow()),
    ),
    "cumulative reduce": of_windows(
        CumulativeEventTimeWindows.of(ms(20), ms(5)), lambda w: w.reduce(add, OfResult()), 3
    ),
    "cumulative process": of_windows(CumulativeEventTimeWindows.of(ms(20), ms(5)), lambda w: w.process(OfWindow())),
    "daily by count": of_windows(
        DailyEventTimeWindows.of("Europe/Berlin"), lambda w: w.trigger(CountTrigger.of(2)).process(OfWindow())
    ),
    "global by count": of_windows(
        GlobalWindows.create(), lambda w: w.trigger(CountTrigger.of(4)).evictor(CountEvictor.of(6)).process(OfWindow())
    ),
    "global by distance": of_windows(
        GlobalWindows.create(), lambda w: w.trigger(PurgingTrigger.of(DeltaTrigger.of(3, distance))).process(OfWindow())
    ),
    "global by a sum": of_windows(GlobalWindows.create(), lambda w: w.trigger(BySum()).reduce(add)),
    "global with timeout": of_windows(
        GlobalWindows.create(),
        lambda w: w.trigger(PurgingTrigger.of(ProcessingTimeoutTrigger.of(CountTrigger.of(4), ms(15))))
        .process(OfWindow()),
    ),
    "count reduce": keyed(lambda k: k.count_window(3).reduce(add)),
    "count aggregate": keyed(lambda k: k.count_window(4).aggregate(Values())),
    "count sliding": keyed(lambda k: k.count_window(5, 2).process(OfWindow())),
    "processing-time tumbling": of_windows(TumblingProcessingTimeWindows.of(ms(10)), lambda w: w.process(OfWindow())),
    "processing-time sliding": of_windows(SlidingProcessingTimeWindows.of(ms(10), ms(4)), lambda w: w.reduce(add)),
    "processing-time session": of_windows(
        ProcessingTimeSessionWindows.with_gap(ms(7)), lambda w: w.aggregate(Values(), OfResult())
    ),
    "aggregate_fields": Pipeline(
        lambda stream: stream.map(lambda r: {"key": r[0], "value": r[1]}).key_by("key").window(tumbling(ms(10)))
        .aggregate_fields(total=("value", "sum"), top=("value", "max"), count="count", mean=("value", "avg"))
    ),
    "window_all": Pipeline(lambda stream: stream.window_all(sliding(ms(10), ms(5))).aggregate(Values())),
    "pre_aggregate": Pipeline(  # which passes on what it has at each barrier
        lambda stream: stream.key_by(key).pre_aggregate(4, ms(5)).window(tumbling(ms(10))).reduce(add), counted=False
    ),
    "full_window_partition": keyed(lambda k: k.full_window_partition().reduce(add)),
    "reduce": keyed(lambda k: k.reduce(add)),
    "sum": keyed(lambda k: k.sum(1)),
    "min_by": keyed(lambda k: k.min_by(1)),
    "windows of windows": of_windows(
        tumbling(ms(5)),
        lambda w: w.reduce(add).key_by(lambda r: r[1] % 2).window(tumbling(ms(10))).aggregate(Values(), OfResult()),
    ),
    "co-process": Pipeline(
        lambda one, other: one.key_by(key).connect(other.key_by(key)).process(BothInputs()), inputs=2
    ),
    "keyed broadcast": Pipeline(
        lambda one, other: one.key_by(key).connect(other.broadcast(RULES, LISTS)).process(WithRules()), inputs=2
    ),
    "broadcast": Pipeline(lambda one, other: one.connect(other.broadcast(RULES)).process(RulesAlone()), inputs=2),
    "window join": joined(
        tumbling(ms(12)), lambda w: w.allowed_lateness(5).apply(lambda left, right: (left[1:], right[1:]))
    ),
    "session join": joined(sessions(ms(5)), lambda w: w.apply(lambda left, right: (left[1:], right[1:]))),
    "co_group": Pipeline(
        lambda one, other: one.co_group(other).where(key).equal_to(key).window(sliding(ms(10), ms(5)))
        .evictor(CountEvictor.of(4)).apply(Groups()),
        inputs=2,
    ),
    "interval join": intervals(-8, 3, lambda j: j.lower_bound_exclusive().side_output_left_late_data(LATE)),
    "interval join ahead": intervals(2, 9),
    "ordered async": asked(AsyncDataStream.ordered_wait, ask),
    "unordered async": asked(AsyncDataStream.unordered_wait, ask_often_at_once),
}  # fmt: skip


def steps(rng, pipeline):
    """Calls of a harness: (method, arguments)."""
    inputs, now, watermarks = pipeline.inputs, 0, [0] * pipeline.inputs
    names = rng.sample([name for same in KEYS for name in same], 4)  # few, so that they have state
    names += rng.choice(KEYS)

    def record(input):
        time = max(watermarks) + rng.randint(-12, 18) if rng.random() < 0.7 else watermarks[input] + rng.randint(1, 12)
        if pipeline.in_time:
            time = max(time, watermarks[input] + 1)
        return (rng.choice(names), rng.randrange(10), time), time

    for _ in range(STEPS):
        chance, input = rng.random(), rng.randrange(inputs)
        if chance < 0.65:
            yield "process_element", (*record(input), input)
        elif chance < 0.75:
            yield "process_elements", ([record(input) for _ in range(4)], input)
        elif chance < 0.9:
            watermarks[input] += rng.randint(0, 9)
            yield "process_watermark", (watermarks[input], input)
        else:
            now += rng.randint(0, 12)
            yield "set_processing_time", (now,)
    yield "set_processing_time", (now + 1_000,)


@pytest.mark.parametrize("seed", seeds(2, 40))
@pytest.mark.parametrize("name", PIPELINES)
def test_operators_restored_at_random_moments_give_what_they_give_uninterrupted(name, seed):
    pipeline, seed = PIPELINES[name], f"{name} {seed}"
    rng = random.Random(seed)
    with contextlib.ExitStack() as stack:
        restored = stack.enter_context(restored_harness(pipeline.build, seed, pipeline.inputs))
        whole = stack.enter_context(StreamTestHarness(pipeline.build, inputs=pipeline.inputs))
        expected, found = Outputs(), Outputs()
        for number, (method, arguments) in enumerate(steps(rng, pipeline)):
            place = f"{seed}, step {number}: {method}{arguments}"
            for harness in (whole, restored.harness):
                getattr(harness, method)(*arguments)
            expected.add(whole)
            found.add(restored.harness)
            assert pipeline.at_end or found == expected, place
            restored.maybe_cut()
            found.add(restored.harness)
            assert pipeline.at_end or found == expected, f"restored after {place}"
            if pipeline.counted:
                assert timer_counts(restored.harness) == timer_counts(whole), place
                if rng.random() < COUNTED:
                    entries = restored.harness.num_keyed_state_entries()
                    assert entries == whole.num_keyed_state_entries(), place
        for harness in (whole, restored.harness):
            harness.end_input()
        expected.add(whole)
        found.add(restored.harness)
        assert found == expected, f"{seed}, at the end of the input"


@dataclass
class Outputs:
    """Of all harnesses of one run."""

    records: list = field(default_factory=list)
    late: list = field(default_factory=list)
    watermark: int = -(2**63)  # the highest

    def add(self, harness):
        records, late, watermark = observed(harness)
        self.records = sorted(self.records + records)
        self.late = sorted(self.late + late)
        self.watermark = max(self.watermark, watermark if watermark is not None else self.watermark)
