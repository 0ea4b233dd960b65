"""The same program as a stream and as a batch: the same final results, for any records, keys, order, parallelism and
memory."""

from hypothesis import given, settings
from hypothesis import strategies as st

from flinkish.common.time import Time
from flinkish.datastream.functions import KeyedBroadcastProcessFunction, KeyedCoProcessFunction
from flinkish.datastream.interval_join import ProcessJoinFunction
from flinkish.datastream.state import MapStateDescriptor, ValueStateDescriptor
from flinkish.datastream.window import EventTimeSessionWindows, SlidingEventTimeWindows, TumblingEventTimeWindows
from flinkish.testing import StreamTestHarness, Watermark

RULES = MapStateDescriptor("rules")
MS = Time.milliseconds


def key(value):
    return value[0]


def add(one, other):
    return one[0], one[1] + other[1]


def last_of_each_key(results):
    """Of a stream, which gives a result for each record."""
    return sorted({value[0]: value for value, _ in results}.values())


def as_they_are(results):
    return sorted(results, key=repr)


class Sums(KeyedCoProcessFunction):
    """Adds one input and counts the other; a timer says what there was."""

    def open(self, runtime_context):
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum"))
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element1(self, value, ctx):
        self.sum.update((self.sum.value() or 0) + value[1])
        ctx.timer_service().register_event_time_timer(10_000)

    def process_element2(self, value, ctx):
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(10_000)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), self.sum.value(), self.count.value(), timestamp


class Ruled(KeyedBroadcastProcessFunction):
    """Rules are looked at by a timer, when all are there."""

    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(20_000 + value[1])

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(RULES).put(*value)

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), timestamp, sorted(ctx.get_broadcast_state(RULES))


class Pairs(ProcessJoinFunction):
    def process_element(self, left, right, ctx):
        yield left, right


def windowed(assigner):
    return lambda one, other: one.union(other).key_by(key).window(assigner).reduce(add)


PROGRAMS = {
    "reduce": (lambda one, other: one.union(other).key_by(key).reduce(add), last_of_each_key),
    "max": (lambda one, other: one.union(other).key_by(key).max(1), last_of_each_key),
    "tumbling": (windowed(TumblingEventTimeWindows.of(MS(7))), as_they_are),
    "sliding": (windowed(SlidingEventTimeWindows.of(MS(9), MS(4))), as_they_are),
    "session": (windowed(EventTimeSessionWindows.with_gap(MS(5))), as_they_are),
    "window behind a window": (
        lambda one, other: windowed(TumblingEventTimeWindows.of(MS(7)))(one, other)
        .key_by(lambda value: 0)
        .window(TumblingEventTimeWindows.of(MS(21)))
        .reduce(lambda one, other: ("all", one[1] + other[1]))
        .map(lambda value: value[1]),
        as_they_are,
    ),
    "co-process": (lambda one, other: one.connect(other).key_by(key, key).process(Sums()), as_they_are),
    "broadcast": (
        lambda one, other: one.key_by(key).connect(other.broadcast(RULES)).process(Ruled()),
        as_they_are,
    ),
    "interval join": (
        lambda one, other: one.key_by(key).interval_join(other.key_by(key)).between(MS(-3), MS(2)).process(Pairs()),
        as_they_are,
    ),
}

RECORDS = st.lists(st.tuples(st.tuples(st.sampled_from("abc"), st.integers(-3, 3)), st.integers(-30, 30)), max_size=20)


def run(build, inputs, mode, parallelism, memory):
    configuration = {
        "execution.runtime-mode": mode,
        "execution.sorted-inputs.memory": memory,
        "flinkish.fused-chains": "false",
    }
    with StreamTestHarness(build, parallelism=parallelism, configuration=configuration) as harness:
        for index, records in enumerate(inputs):
            harness.process_elements(records, input=index)
        harness.end_input()
        assert harness.output[-1] == Watermark(2**63 - 1)
        return [(record.value, record.timestamp) for record in harness.output[:-1]]


@settings(max_examples=40)
@given(st.sampled_from(sorted(PROGRAMS)), RECORDS, RECORDS, st.sampled_from([1, 2]), st.sampled_from(["0", "1 mb"]))
def test_a_batch_gives_the_final_results_of_the_stream(program, one, other, parallelism, memory):
    build, final = PROGRAMS[program]
    streamed = run(build, (one, other), "STREAMING", parallelism, memory)
    batched = run(build, (one, other), "BATCH", parallelism, memory)
    assert len(batched) == len(final(streamed))
    assert final(batched) == final(streamed)
