"""Batch jobs: sorted inputs, one key at a time, final results."""

import pytest

from flinkish.common.time import Time
from flinkish.common.typeinfo import Types
from flinkish.datastream.functions import (
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
)
from flinkish.datastream.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from flinkish.datastream.window import (
    ContinuousEventTimeTrigger,
    CountTrigger,
    EventTimeSessionWindows,
    GlobalWindows,
    TumblingEventTimeWindows,
)
from flinkish.errors import InvalidJobError, UserError, UserFunctionError
from flinkish.operators import external_sorter
from flinkish.testing import StreamRecord, StreamTestHarness, Watermark

END = 2**63 - 1
RULES = MapStateDescriptor("rules")
SPILLS = ("0", "1 kb")
RECORDS = [(("a", 1), 5), (("b", 2), 3), (("a", 3), 1), (("c", 4), 9), (("b", 5), 8), (("a", 6), 15), (("a", 7), 5)]


def batch(build, *inputs, memory="1 mb", fused=True, parallelism=1, watermarks=True):
    """What ``build`` gives of the (value, timestamp) of its inputs, which are fed in turn."""
    settings = {
        "execution.runtime-mode": "BATCH",
        "execution.sorted-inputs.memory": memory,
        "flinkish.fused-chains": str(fused).lower(),
    }
    with StreamTestHarness(build, parallelism=parallelism, configuration=settings) as harness:
        for index, records in enumerate(inputs):
            for value, timestamp in records:
                harness.process_element(value, timestamp, input=index)
            if watermarks:
                harness.process_watermark(1_000, input=index)  # has no effect
                harness.process_watermark_status(True, input=index)
        harness.end_input()
        assert harness.num_keyed_state_entries() == 0
        assert harness.num_event_time_timers() == harness.num_processing_time_timers() == 0
        assert harness.output[-1] == Watermark(END)
        spilled = sum(chain.metrics().get("spilledBytes", 0) for chain in harness._core.chains())
        assert (spilled > 0) is (memory in SPILLS)
        return [(record.value, record.timestamp) for record in harness.output[:-1]]


def key(value):
    return value[0]


def add(one, other):
    return one[0], one[1] + other[1]


class Everything(KeyedProcessFunction):
    """Says what it sees; timers in both times, which register more."""

    def open(self, runtime_context):
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen"))

    def process_element(self, value, ctx):
        timers = ctx.timer_service()
        assert timers.current_watermark() == -(2**63)
        self.seen.add(value[1])
        timers.register_event_time_timer(100 - value[1])
        timers.register_event_time_timer(50)
        timers.register_processing_time_timer(10**15 + value[1])  # in many years
        if value[1] == 7:
            timers.delete_event_time_timer(100 - 1)
        yield value, list(self.seen)

    def on_timer(self, timestamp, ctx):
        timers = ctx.timer_service()
        assert timers.current_watermark() == END
        timers.register_event_time_timer(timestamp + 1)
        timers.register_processing_time_timer(timestamp + 1)
        if timestamp == 50:
            timers.delete_event_time_timer(97)
        yield "timer", ctx.get_current_key(), timestamp, len(list(self.seen)), ctx.time_domain().name


EVERYTHING = [
    ((("a", 3), [3]), 1),  # by key, then by time, then as they came
    ((("a", 1), [3, 1]), 5),
    ((("a", 7), [3, 1, 7]), 5),
    ((("a", 6), [3, 1, 7, 6]), 15),
    (("timer", "a", 50, 4, "EVENT_TIME"), 50),
    (("timer", "a", 93, 4, "EVENT_TIME"), 93),
    (("timer", "a", 94, 4, "EVENT_TIME"), 94),
    (("timer", "a", 10**15 + 1, 4, "PROCESSING_TIME"), None),
    (("timer", "a", 10**15 + 3, 4, "PROCESSING_TIME"), None),
    (("timer", "a", 10**15 + 6, 4, "PROCESSING_TIME"), None),
    (("timer", "a", 10**15 + 7, 4, "PROCESSING_TIME"), None),
    ((("b", 2), [2]), 3),
    ((("b", 5), [2, 5]), 8),
    (("timer", "b", 50, 2, "EVENT_TIME"), 50),
    (("timer", "b", 95, 2, "EVENT_TIME"), 95),
    (("timer", "b", 98, 2, "EVENT_TIME"), 98),
    (("timer", "b", 10**15 + 2, 2, "PROCESSING_TIME"), None),
    (("timer", "b", 10**15 + 5, 2, "PROCESSING_TIME"), None),
    ((("c", 4), [4]), 9),
    (("timer", "c", 50, 1, "EVENT_TIME"), 50),
    (("timer", "c", 96, 1, "EVENT_TIME"), 96),
    (("timer", "c", 10**15 + 4, 1, "PROCESSING_TIME"), None),
]


@pytest.mark.parametrize("memory", ["1 mb", "0"])
@pytest.mark.parametrize("fused", [True, False])
def test_a_keyed_operator_sees_one_key_after_the_other_in_order_of_time(fused, memory, monkeypatch):
    monkeypatch.setattr(external_sorter, "BLOCK_RECORDS_FIRST", 2)
    monkeypatch.setattr(external_sorter, "BLOCK_RECORDS_MAX", 2)
    monkeypatch.setattr(external_sorter, "RUNS_IN_FILE_MAX", 2)
    build = lambda stream: stream.key_by(key).process(Everything())  # noqa: E731
    assert batch(build, RECORDS, fused=fused, memory=memory) == EVERYTHING


@pytest.mark.parametrize("fused", [True, False])
def test_reduce_gives_the_final_value_of_each_key(fused):
    """With the time of the key's last record."""
    assert batch(lambda s: s.key_by(key).reduce(add), RECORDS, fused=fused) == [
        (("a", 17), 15),
        (("b", 7), 8),
        (("c", 4), 9),
    ]
    assert batch(lambda s: s.key_by(key).sum(1), [(value, None) for value, _ in RECORDS], fused=fused) == [
        (("a", 17), None),
        (("b", 7), None),
        (("c", 4), None),
    ]


def test_reduce_with_two_subtasks_goes_on_behind_itself():
    """The second one gets final results only."""
    build = lambda s: s.key_by(key).reduce(add).map(lambda v: ("all", v[1])).key_by(key).reduce(add)  # noqa: E731
    assert batch(build, RECORDS, parallelism=2) == [(("all", 28), 15)]


def test_more_records_than_memory_and_room_holds():
    records = [((number % 7, number), number) for number in range(3_000)]
    build = lambda stream: stream.key_by(key).map(Numbered())  # noqa: E731
    given = batch(build, records, memory="1 kb", parallelism=2)
    of_keys = {key: [number for number in range(3_000) if number % 7 == key] for key in range(7)}
    for key_, numbers in of_keys.items():
        assert [value for value, _ in given if value[0] == key_] == [
            (key_, number, position) for position, number in enumerate(numbers, 1)
        ]


class Numbered(MapFunction):
    """Keyed state with a time to live, in a function that is no process function."""

    def open(self, runtime_context):
        descriptor = ValueStateDescriptor("count")
        descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.days(1)).cleanup_incrementally(5, True).build())
        self.count = runtime_context.get_state(descriptor)

    def map(self, value):
        self.count.update((self.count.value() or 0) + 1)
        return (*value, self.count.value())


@pytest.mark.parametrize("fused", [True, False])
def test_windows_give_their_final_results_and_nothing_is_late(fused):
    tens = lambda s: s.key_by(key).window(TumblingEventTimeWindows.of(Time.milliseconds(10)))  # noqa: E731
    sums = [(("a", 11), 9), (("a", 6), 19), (("b", 7), 9), (("c", 4), 9)]
    assert batch(lambda s: tens(s).reduce(add), RECORDS, fused=fused) == sums
    often = ContinuousEventTimeTrigger.of(Time.milliseconds(2))
    given = batch(lambda s: tens(s).trigger(often).reduce(add), RECORDS, fused=fused)
    assert [result for result in sums if given.count(result) < 1] == []
    sessions = lambda s: s.key_by(key).window(EventTimeSessionWindows.with_gap(Time.milliseconds(6)))  # noqa: E731
    assert batch(lambda s: sessions(s).reduce(add), RECORDS, fused=fused) == [
        (("a", 11), 10),
        (("a", 6), 20),
        (("b", 7), 13),
        (("c", 4), 14),
    ]
    pairs = lambda s: s.key_by(key).window(GlobalWindows.create()).trigger(CountTrigger.of(2)).reduce(add)  # noqa: E731
    assert batch(pairs, RECORDS, fused=fused) == [(("a", 4), END), (("a", 17), END), (("b", 7), END)]
    whole = GlobalWindows.create_with_end_of_stream_trigger()
    assert batch(lambda s: s.window_all(whole).reduce(add), RECORDS, fused=fused) == [(("a", 28), END)]


class Both(KeyedCoProcessFunction):
    def process_element1(self, value, ctx):
        yield "first", value

    def process_element2(self, value, ctx):
        yield "second", value
        ctx.timer_service().register_event_time_timer(3)

    def on_timer(self, timestamp, ctx):
        yield "timer", ctx.get_current_key()


@pytest.mark.parametrize("parallelism", [1, 2])
@pytest.mark.parametrize("fused", [True, False])
def test_two_keyed_inputs_are_sorted_together(fused, parallelism):
    build = lambda s, t: s.connect(t).key_by(key, key).process(Both())  # noqa: E731
    second = [(("b", -1), 3), (("a", -2), 4), (("d", -3), 0), (("a", -4), 20)]
    expected = {
        "a": [
            (("first", ("a", 3)), 1),
            (("second", ("a", -2)), 4),
            (("first", ("a", 1)), 5),
            (("first", ("a", 7)), 5),
            (("first", ("a", 6)), 15),
            (("second", ("a", -4)), 20),
            (("timer", "a"), 3),
        ],
        "b": [(("first", ("b", 2)), 3), (("second", ("b", -1)), 3), (("first", ("b", 5)), 8), (("timer", "b"), 3)],
        "c": [(("first", ("c", 4)), 9)],
        "d": [(("second", ("d", -3)), 0), (("timer", "d"), 3)],
    }
    given = batch(build, RECORDS, second, fused=fused, parallelism=parallelism)
    for name, results in expected.items():
        assert [(v, t) for v, t in given if (v[1] if v[0] == "timer" else v[1][0]) == name] == results
    if parallelism == 1:
        assert given == sum(expected.values(), [])


class Rules(BroadcastProcessFunction):
    def process_element(self, value, ctx):
        yield value, sorted(ctx.get_broadcast_state(RULES))

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(RULES).put(value, True)
        yield "rule", value


class KeyedRules(KeyedBroadcastProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(ValueStateDescriptor("count"))

    def process_element(self, value, ctx):
        self.count.update(1)
        yield value, sorted(ctx.get_broadcast_state(RULES))

    def process_broadcast_element(self, value, ctx):
        ctx.get_broadcast_state(RULES).put(value, True)
        ctx.apply_to_keyed_state(ValueStateDescriptor("count"), lambda key, state: 1 / 0)  # nothing is there yet
        yield "rule", value


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("keyed", [True, False])
def test_a_broadcast_side_is_whole_before_the_other_is_seen(keyed, fused):
    def build(stream, rules):
        if keyed:
            return stream.key_by(key).connect(rules.broadcast(RULES)).process(KeyedRules())
        return stream.connect(rules.broadcast(RULES)).process(Rules())

    rules = [("x", None), ("y", None)]
    records = sorted(RECORDS, key=lambda record: (record[0][0], record[1])) if keyed else RECORDS
    given = [value for value, _ in batch(build, RECORDS, rules, fused=fused)]
    assert given == [("rule", "x"), ("rule", "y")] + [(value, ["x", "y"]) for value, _ in records]


def test_what_comes_behind_the_end_of_the_broadcast_side_is_not_held_back():
    settings = {"execution.runtime-mode": "BATCH"}
    build = lambda s, rules: s.connect(rules.broadcast(RULES)).process(Rules())  # noqa: E731
    with StreamTestHarness(build, configuration=settings) as harness:
        harness.process_element(1, 5)
        assert harness.output == []
        harness.end_input(1)
        assert harness.output == [StreamRecord((1, []), 5)]
        harness.process_element(2, 3)
        assert harness.output[1:] == [StreamRecord((2, []), 3)]
        harness.end_input()
        assert harness.output[2:] == [Watermark(END)]


def test_inputs_without_keys_go_on_as_they_come():
    settings = {"execution.runtime-mode": "BATCH"}
    with StreamTestHarness(lambda s, t: s.union(t).map(lambda v: v + 1), configuration=settings) as harness:
        harness.process_element(1, 5)
        harness.process_watermark(5)
        harness.process_element(1, 5, input=1)
        harness.process_watermark(5, input=1)
        assert harness.output == [StreamRecord(2, 5)] * 2


def test_a_record_is_fixed_as_it_came():
    """What one key's function does to a record is not seen by another that got the same one."""

    def build(stream):
        return stream.flat_map(lambda v: [("b", shared := [v]), ("a", shared)]).key_by(key).map(append)

    def append(value):
        value[1].append(value[0])
        return value

    assert [value for value, _ in batch(build, [(1, None)])] in (
        [("b", [1, "b"]), ("a", [1, "a"])],
        [("a", [1, "a"]), ("b", [1, "b"])],
    )


def test_keys_of_every_kind_and_of_a_declared_type():
    keys = [None, float("nan"), 1, True, 1.0, "1", b"1", (1, "x"), None, float("nan")]
    records = [((key_, 1), None) for key_ in keys]
    given = batch(lambda s: s.key_by(key).reduce(add), records)
    assert sorted(value[1] for value, _ in given) == [1, 1, 1, 2, 2, 3]
    typed = lambda s: s.key_by(key, Types.LONG()).reduce(add)  # noqa: E731
    assert batch(typed, [((1, 1), None), ((1, 2), None)]) == [((1, 3), None)]


# ---- what goes wrong -----------------------------------------------------------------------------


@pytest.mark.parametrize("fused", [True, False])
def test_errors_name_operator_and_record(fused):
    class Breaks(KeyedProcessFunction):
        def process_element(self, value, ctx):
            ctx.timer_service().register_event_time_timer(1)
            if value[0] == "c":
                raise ValueError("no c")

        def on_timer(self, timestamp, ctx):
            raise ValueError("no timer")

    build = lambda s: s.key_by(key).process(Breaks())  # noqa: E731
    with pytest.raises(UserFunctionError, match=r"on record \('c', 4\)"):
        batch(build, RECORDS[3:4], fused=fused)
    with pytest.raises(UserFunctionError, match=r"in its on_timer on record <event_time timer 1 of key 'b'>"):
        batch(build, RECORDS[1:2], fused=fused)


def test_a_record_that_cannot_be_pickled_is_named_with_its_operator():
    build = lambda s: s.map(lambda v: (v[0], lambda: v)).key_by(key).map(lambda v: v).key_by(key).reduce(add)  # noqa: E731
    with pytest.raises(UserError, match="could not sort the record") as refused:
        batch(build, RECORDS)
    assert "Keyed Reduce" in refused.value.where


def test_a_batch_has_an_end_and_no_snapshots():
    settings = {"execution.runtime-mode": "BATCH"}
    with StreamTestHarness(lambda s: s.key_by(key).reduce(add), configuration=settings) as harness:
        with pytest.raises(ValueError, match="no snapshots"):
            harness.snapshot()
        harness.end_input()
        with pytest.raises(ValueError, match="has ended"):
            harness.process_element(("a", 1))


def test_it_does_not_start_from_a_savepoint():
    settings = {"execution.runtime-mode": "BATCH", "execution.state-recovery.path": "s3://bucket/savepoint"}
    with pytest.raises(InvalidJobError, match="could not start a batch job from a savepoint"):
        StreamTestHarness(lambda s: s.key_by(key).reduce(add), configuration=settings)
