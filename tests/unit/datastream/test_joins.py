"""Joins of windows, co_group, interval joins and connected streams, as a program writes them."""

import copy
import pickle

import pytest

from flinkish.common.time import Time
from flinkish.common.typeinfo import Types
from flinkish.datastream import (
    CoGroupFunction,
    FlatJoinFunction,
    JoinFunction,
    KeyedCoProcessFunction,
    KeySelector,
    OutputTag,
    StreamExecutionEnvironment,
)
from flinkish.datastream.state import ListStateDescriptor, MapStateDescriptor
from flinkish.datastream.window import (
    CountEvictor,
    CountTrigger,
    EventTimeSessionWindows,
    PurgingTrigger,
    TumblingEventTimeWindows,
)
from flinkish.errors import InvalidJobError, MissingCallError, UserFunctionError
from flinkish.testing import StreamRecord, StreamTestHarness, Watermark

TEN = TumblingEventTimeWindows.of(Time.milliseconds(10))
FUSED, QUICK = {}, {"configuration": {"flinkish.fused-chains": False}}
SIDE = OutputTag("side")


def key(record):
    return record[0]


def together(one, other, method="join", assigner=TEN):
    return getattr(one, method)(other).where(key).equal_to(key).window(assigner)


def run(build, steps, backend="hashmap", parallelism=1, **options):
    """Steps (input, value, time) and watermarks of both; the output without watermarks."""
    with StreamTestHarness(build, backend, parallelism, **(options or QUICK)) as harness:
        for step in steps:
            feed(harness, step)
        return results(harness)


def feed(harness, step):
    if isinstance(step, int):
        harness.process_watermark(step, 0)
        harness.process_watermark(step, 1)
    else:
        side, value, time = step
        harness.process_element(value, time, side)


def results(harness):
    return [(element.value, element.timestamp) for element in harness.output if not isinstance(element, Watermark)]


STEPS = [
    (0, ("a", 1), 1), (1, ("a", 2), 2), (0, ("b", 3), 3), (1, ("a", 4), 4), (1, ("c", 5), 5), (0, ("a", 6), 6),
    (0, ("a", 7), 11), 100,
]  # fmt: skip
PAIRS = [((1, 2), 9), ((1, 4), 9), ((6, 2), 9), ((6, 4), 9)]


class Pair(JoinFunction):
    def join(self, first, second):
        return first[1], second[1]


class OpenedPair(Pair):
    def open(self, runtime_context):
        self.task = runtime_context.get_task_name()

    def join(self, first, second):
        assert self.task
        return super().join(first, second)


class EvenPairs(FlatJoinFunction):
    def join(self, first, second):
        yield SIDE, first[1]
        if first[1] % 2 == 0:
            yield first[1], second[1]


# ---- windows ------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [FUSED, QUICK], ids=["fused", "interpreted"])
@pytest.mark.parametrize("function", [Pair(), OpenedPair(), lambda one, other: (one[1], other[1])])
def test_a_join_gives_each_pair_of_a_key_and_window(function, options):
    found = run(lambda one, other: together(one, other).apply(function), STEPS, parallelism=2, **options)
    assert found == PAIRS


def flat(one, other):
    if one[1] == 6:
        yield one[1], other[1]


@pytest.mark.parametrize("function", [EvenPairs(), flat])
def test_a_flat_join_gives_any_number_of_results_for_a_pair(function):
    with StreamTestHarness(lambda one, other: together(one, other).apply(function), **QUICK) as harness:
        for step in STEPS:
            feed(harness, step)
        assert results(harness) == [((6, 2), 9), ((6, 4), 9)]
        if function is not flat:
            assert [record.value for record in harness.side_output(SIDE)] == [1, 1, 6, 6]


class Groups(CoGroupFunction):
    def co_group(self, first, second):
        yield [record[1] for record in first], [record[1] for record in second]


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("function", [Groups(), lambda one, other: Groups().co_group(one, other)])
def test_a_co_group_sees_keys_that_only_one_stream_has(function, backend):
    found = run(lambda one, other: together(one, other, "co_group").apply(function), STEPS, backend, 2)
    first = [(([1, 6], [2, 4]), 9), (([3], []), 9), (([], [5]), 9), (([7], []), 19)]
    assert sorted(found, key=repr) == sorted(first, key=repr)


def test_a_join_takes_trigger_evictor_and_lateness_of_windows():
    def counted(one, other):
        return together(one, other).trigger(PurgingTrigger.of(CountTrigger.of(2))).apply(Pair())

    assert run(counted, [(0, ("a", 1), 1), (1, ("a", 2), 2), (1, ("a", 3), 3), 100]) == [((1, 2), 9)]

    def evicted(one, other):
        return together(one, other, "co_group").evictor(CountEvictor.of(2)).apply(Groups())

    assert run(evicted, [(0, ("a", 1), 1), (1, ("a", 2), 2), (0, ("a", 3), 3), 100]) == [(([3], [2]), 9)]

    def late(one, other):
        return together(one, other).allowed_lateness(Time.milliseconds(5)).apply(Pair())

    steps = [(0, ("a", 1), 1), (1, ("a", 2), 2), 12, (1, ("a", 3), 3), 14, (1, ("a", 4), 4)]
    assert run(late, steps) == [((1, 2), 9), ((1, 2), 9), ((1, 3), 9)]


def test_sessions_of_both_streams_merge():
    def build(one, other):
        return together(one, other, assigner=EventTimeSessionWindows.with_gap(5)).apply(Pair())

    steps = [(0, ("a", 1), 1), (0, ("a", 2), 9), (1, ("a", 3), 20), (1, ("a", 4), 5), 100]
    assert sorted(run(build, steps)) == [((1, 4), 13), ((2, 4), 13)]


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("assigner", [TEN, EventTimeSessionWindows.with_gap(5)], ids=["aligned", "sessions"])
def test_a_join_of_windows_that_is_cut_after_every_step_goes_on(assigner, backend):
    def build(one, other):
        return together(one, other, assigner=assigner).allowed_lateness(3).apply(Pair())

    steps = [*STEPS[:4], 7, *STEPS[4:6], 9, (1, ("b", 8), 2), 12, (1, ("a", 9), 14), 60]
    harness, found = StreamTestHarness(build, backend, **QUICK), []
    for number, step in enumerate(steps):
        feed(harness, step)
        found += results(harness)
        snapshot = harness.snapshot()
        harness.close()
        harness = StreamTestHarness.restore(build, snapshot, 1 + number % 2, backend, **QUICK)
        harness.clear_output()
    harness.close()
    assert sorted(found) == sorted(run(build, steps))
    assert len(found) >= 5


def test_a_key_selector_may_be_all_that_key_by_takes():
    class First(KeySelector):
        def get_key(self, value):
            return value[0]

    def build(one, other):
        return one.join(other).where(First()).equal_to(0, Types.STRING()).window(TEN).apply(Pair())

    assert run(build, STEPS) == PAIRS

    def keyed_before(one, other):
        return one.key_by(key).join(other.key_by(key)).where(key).equal_to(key).window(TEN).apply(Pair())

    assert run(keyed_before, STEPS, parallelism=2) == PAIRS


def test_a_declared_key_type_holds_for_both_streams():
    """0.1 is another number in 32 bits: it must become that for each stream, and before its subtask is chosen."""

    def build(one, other):
        return one.join(other).where(key).equal_to(key, Types.FLOAT()).window(TEN).apply(Pair())

    def in_time(one, other):
        left, right = one.key_by(key), other.key_by(key, Types.FLOAT())
        return left.interval_join(right).between(-5, 5).process(lambda one, other, ctx: [(one[1], other[1])])

    steps = [(side, (n / 10, n), 1) for side in (0, 1) for n in range(9)] + [100]
    for joined in (build, in_time):
        assert sorted(value for value, _ in run(joined, steps, parallelism=4)) == [(n, n) for n in range(9)]


def test_results_have_the_form_of_their_declared_type():
    def build(one, other):
        declared = Types.ROW_NAMED(["first", "second"], [Types.INT(), Types.INT()])
        return together(one, other).apply(Pair(), declared).map(lambda row: row.first * 10 + row.second)

    assert [value for value, _ in run(build, STEPS)] == [12, 14, 62, 64]


# ---- connected streams --------------------------------------------------------------------------


class Shared(KeyedCoProcessFunction):
    """Both inputs add to one list and set one timer."""

    def open(self, runtime_context):
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen"))

    def process_element1(self, value, ctx):
        self.seen.add(("one", value[1]))
        ctx.timer_service().register_event_time_timer(value[2])

    def process_element2(self, value, ctx):
        self.seen.add(("other", value[1]))
        ctx.timer_service().register_event_time_timer(value[2])

    def on_timer(self, timestamp, ctx):
        yield ctx.get_current_key(), list(self.seen.get())
        self.seen.clear()


@pytest.mark.parametrize("options", [FUSED, QUICK], ids=["fused", "interpreted"])
@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_connected_inputs_share_the_state_and_the_timers_of_a_key(backend, options):
    def build(one, other):
        return one.key_by(key).connect(other.key_by(key)).process(Shared())

    steps = [(0, ("a", 1, 20), 1), (1, ("a", 2, 20), 2), (1, ("b", 3, 20), 3), 10, (0, ("b", 4, 30), 11), 20, 30]
    expected = [
        (("a", [("one", 1), ("other", 2)]), 20), (("b", [("other", 3), ("one", 4)]), 20), (("b", []), 30)
    ]  # fmt: skip
    assert sorted(run(build, steps, backend, 2, **options), key=repr) == sorted(expected, key=repr)
    found, harness = [], StreamTestHarness(build, backend, **options)
    for number, step in enumerate(steps):
        feed(harness, step)
        found += results(harness)
        snapshot = harness.snapshot()
        harness.close()
        harness = StreamTestHarness.restore(build, snapshot, 1 + number % 2, backend, **options)
        harness.clear_output()
    assert harness.num_event_time_timers() == 0
    harness.close()
    assert sorted(found, key=repr) == sorted(expected, key=repr)


# ---- refusals -----------------------------------------------------------------------------------


def streams():
    env = StreamExecutionEnvironment.get_execution_environment()
    return env.from_collection([("a", 1)]), env.from_collection([("a", 1)])


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda a, b: a.join(7), "join() takes a stream, not 7"),
        (lambda a, b: a.co_group(streams()[0]), "another environment"),
        (lambda a, b: a.join(b).where(None), "cannot use a NoneType"),
        (lambda a, b: a.join(b).where(key, Types.INT()).equal_to(key, Types.STRING()), "keys of different types"),
        (lambda a, b: a.join(b).where(key).equal_to(key).window(10), "takes a WindowAssigner"),
        (lambda a, b: together(a, b).trigger(TEN), "takes a Trigger"),
        (lambda a, b: together(a, b).evictor(TEN), "takes an Evictor"),
        (lambda a, b: together(a, b).allowed_lateness(-1), "at least 0 ms"),
        (lambda a, b: together(a, b).apply(Pair), "got a class instead of a function"),
        (lambda a, b: together(a, b).apply(Groups()), "cannot use a Groups"),
        (lambda a, b: together(a, b).apply(lambda one: one), "called with 2 arguments"),
        (lambda a, b: together(a, b, "co_group").apply(Pair()), "give a CoGroupFunction or a plain callable"),
        (lambda a, b: together(a, b).apply(Pair(), int), "is not a TypeInformation"),
        (lambda a, b: a.key_by(key).interval_join(b), "call key_by(...) on the other stream too"),
        (lambda a, b: near(a, b).between(2, 1), "the lower bound is above the upper one"),
        (lambda a, b: near(a, b).between("soon", 1), "soon"),
        (lambda a, b: near(a, b).in_processing_time(), "compares event times"),
        (lambda a, b: near(a, b).between(0, 1).side_output_left_late_data("late"), "takes an OutputTag"),
        (lambda a, b: near(a, b).between(0, 1).side_output_right_late_data("late"), "side_output_right_late_data()"),
        (lambda a, b: near(a, b).between(0, 1).process(Pair()), "give a ProcessJoinFunction or a plain callable"),
        (lambda a, b: near(a, b).between(0, 1).process(lambda left, right: 1), "called with 3 arguments"),
        (
            lambda a, b: a.key_by(key, Types.INT()).interval_join(b.key_by(key, Types.STRING())).between(0, 1),
            "keys of different types",
        ),
    ],
)
def test_what_cannot_be_joined_is_refused_in_the_call(call, message):
    with pytest.raises(InvalidJobError) as refused:
        call(*streams())
    assert message in str(refused.value)


def near(one, other):
    return one.key_by(key).interval_join(other.key_by(key)).in_event_time()


def test_an_interval_join_without_keys_says_that_it_needs_them():
    one, other = streams()
    with pytest.raises(AttributeError, match=r"no interval_join\(\)\n  why: it needs a key"):
        one.interval_join(other)


@pytest.mark.parametrize(
    "unfinished, name, do",
    [
        (lambda a, b: a.join(b), "equal_to", "call where() before, as in a.join(b)"),
        (lambda a, b: a.join(b).where(key), "window", "call equal_to() before"),
        (lambda a, b: a.join(b).where(key).equal_to(key), "apply", "call window() before"),
        (lambda a, b: a.co_group(b).where(key).equal_to(key), "trigger", "call window() before"),
        (lambda a, b: near(a, b), "process", "call between() before"),
        (lambda a, b: a.connect(b.broadcast(MapStateDescriptor("rules"))), "map", "call process() with a Broadcast"),
        (lambda a, b: a.connect(b.broadcast(MapStateDescriptor("rules"))), "key_by", "call key_by() on the other"),
    ],
)
def test_a_call_that_was_left_out_is_named_by_the_next(unfinished, name, do):
    found = unfinished(*streams())
    assert not hasattr(found, name) and type(copy.copy(found)) is type(found)
    with pytest.raises(MissingCallError) as refused:
        getattr(found, name)
    error = pickle.loads(pickle.dumps(refused.value))
    assert name in error.what and error.where and error.why and error.do.startswith(do)
    with pytest.raises(AttributeError, match="object has no attribute 'aply'"):
        found.aply  # noqa: B018


def test_a_join_function_that_yields_is_refused():
    class Yields(JoinFunction):
        def join(self, first, second):
            yield first

    with pytest.raises(InvalidJobError, match="generator"):
        together(*streams()).apply(Yields())


def test_an_error_of_a_join_function_names_the_window():
    with pytest.raises(UserFunctionError, match=r"window \[0, 10\) of key 'a'"):
        run(lambda one, other: together(one, other).apply(lambda first, second: 1 / 0), STEPS)


def test_what_is_made_on_the_way_to_a_join_is_no_operator_of_its_own():
    """A join that is never applied leaves nothing behind in the job."""
    one, other = streams()
    together(one, other)
    with pytest.raises(InvalidJobError, match="nothing to run"):
        one.environment.get_stream_graph()
    together(one, other).apply(Pair()).print()
    graph = one.environment.get_stream_graph()
    assert [node.name for node in graph.nodes.values() if node.parallelism == 1].count("Tag") == 2


def test_records_of_a_join_keep_their_event_time():
    def build(one, other):
        return near(one, other).between(-5, 5).process(lambda left, right, ctx: [right[1] - left[1]]).map(lambda n: -n)

    with StreamTestHarness(build, **QUICK) as harness:
        harness.process_element(("a", 3), 3)
        harness.process_element(("a", 7), 7, 1)
        assert harness.output == [StreamRecord(-4, 7)]
