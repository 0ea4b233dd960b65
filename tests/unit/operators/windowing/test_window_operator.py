"""Windows of any assigner, trigger and evictor: what Flink gives, in generated code and record by record."""

import gc
import weakref
from operator import itemgetter

import numpy as np
import pytest

from flinkish.datastream import functions as f
from flinkish.datastream.output_tag import OutputTag
from flinkish.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from flinkish.datastream.transformations import MapOperator, WindowOperator
from flinkish.datastream.window import (
    ContinuousEventTimeTrigger,
    ContinuousProcessingTimeTrigger,
    CountEvictor,
    CountSlidingWindowAssigner,
    CountTrigger,
    CountTumblingWindowAssigner,
    CumulativeEventTimeWindows,
    DeltaEvictor,
    DeltaFunction,
    DeltaTrigger,
    EventTimeSessionWindows,
    EventTimeTrigger,
    Evictor,
    GlobalWindows,
    MergingWindowAssigner,
    ProcessingTimeoutTrigger,
    ProcessingTimeSessionWindows,
    PurgingTrigger,
    SlidingEventTimeWindows,
    SlidingProcessingTimeWindows,
    TimeEvictor,
    TimeWindow,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from flinkish.errors import InvalidJobError, UserError, UserFunctionError
from flinkish.messages.elements import MAX_WATERMARK_MS
from tests.unit.operators.chains import Chain

KEY = itemgetter(0)
LATE = OutputTag("late")


@pytest.fixture(params=[True, False], ids=["fused", "interpreted"])
def fused(request):
    return request.param


def add(a, b):
    return a[0], a[1] + b[1]


def show(key, window, values):
    """(key, what the window is, its values)"""
    about = (window.start, window.end) if isinstance(window, TimeWindow) else getattr(window, "id", "all")
    yield key, about, [value for _, value in values]


def window(assigner, kind="apply", function=None, **options):
    if kind == "apply":
        options.setdefault("window_function", show)
    return WindowOperator(assigner, kind, function, **options), KEY


def chain_of(assigner, fused, *args, **options):
    return Chain(window(assigner, *args, **options), outputs=[(0,), (0, LATE)], fused=fused)


def values(chain, writer=0):
    return [element[0] for element in chain.writers[writer].elements if isinstance(element, tuple)]


def timers(chain):
    return chain.chain.num_event_time_timers() + chain.chain.num_processing_time_timers()


def is_clean(chain):
    return chain.chain.num_keyed_state_entries() == timers(chain) == 0


# ---- sessions ---------------------------------------------------------------------------------------


def test_b04_a_session_that_covers_another_takes_it_in_and_leaves_nothing(fused):
    gaps = EventTimeSessionWindows.with_dynamic_gap(lambda record: record[2])
    chain = chain_of(gaps, fused, "reduce", lambda a, b: (a[0], a[1] + b[1]), window_function=show)
    chain.rows([("a", 1, 2)], [5]).rows([("a", 2, 10)], [0]).watermark(20)
    assert values(chain) == [("a", (0, 10), [3])]
    assert is_clean(chain)


def test_b06_lateness_is_judged_on_the_merged_session(fused):
    chain = chain_of(EventTimeSessionWindows.with_gap(10), fused, late_data_tag=LATE)
    chain.rows([("a", 1), ("a", 2)], [0, 9]).watermark(12).rows([("a", 3)], [1])
    assert values(chain) == []
    chain.watermark(18)
    assert values(chain) == [("a", (0, 19), [1, 2, 3])] and values(chain, 1) == []
    chain.rows([("a", 4)], [2])
    assert values(chain, 1) == [("a", 4)] and is_clean(chain)


def test_a_record_between_two_sessions_makes_them_one(fused):
    chain = chain_of(EventTimeSessionWindows.with_gap(10), fused, "reduce", add)
    chain.rows([("a", 1), ("a", 2), ("b", 5)], [0, 15, 7])
    assert chain.chain.num_event_time_timers() == 3
    chain.rows([("a", 4)], [8])
    assert chain.chain.num_event_time_timers() == 2
    chain.watermark(100)
    assert chain.output[:2] == [(("b", 5), 16), (("a", 7), 24)] and is_clean(chain)


def test_a_session_within_its_lateness_fires_again_also_when_it_grows(fused):
    chain = chain_of(EventTimeSessionWindows.with_gap(10), fused, allowed_lateness_ms=5)
    chain.rows([("a", 1)], [0]).watermark(9)
    chain.rows([("a", 2)], [0])
    chain.rows([("a", 3)], [1])
    assert [value[1:] for value in values(chain)] == [((0, 10), [1]), ((0, 10), [1, 2])]
    chain.watermark(10).watermark(14)
    assert values(chain)[2:] == [("a", (0, 11), [1, 2, 3])] and not is_clean(chain)
    chain.watermark(15)
    assert is_clean(chain)


def test_sessions_by_the_clock(fused):
    chain = chain_of(ProcessingTimeSessionWindows.with_gap(10), fused)
    chain.rows([("a", 1)]).time(8).rows([("a", 2)]).time(17)
    assert values(chain) == [("a", (0, 18), [1, 2])] and is_clean(chain)


def test_a_session_has_no_state_of_its_own_but_the_key_has(fused):
    class OfWindow(f.ProcessWindowFunction):
        def process(self, key, context, elements):
            calls = getattr(context, self.store)().get_state(ValueStateDescriptor("calls"))
            calls.update((calls.value() or 0) + 1)
            yield key, calls.value()

        def __init__(self, store):
            self.store = store

    sessions = EventTimeSessionWindows.with_gap(10)
    chain = chain_of(sessions, fused, "process", window_function=OfWindow("global_state"))
    chain.rows([("a", 1), ("a", 2)], [0, 50]).watermark(100)
    assert values(chain) == [("a", 1), ("a", 2)]
    chain = chain_of(sessions, fused, "process", window_function=OfWindow("window_state"))
    with pytest.raises(UserError, match="global_state"):
        chain.rows([("a", 1)], [0]).watermark(100)


class ToTheNextHundred(MergingWindowAssigner):
    """All windows of a hundred become one, by an assigner of its own."""

    def assign_windows(self, element, timestamp, context):
        return [TimeWindow(timestamp, timestamp + 1), TimeWindow(timestamp + 1000, timestamp + 1001)]

    def merge_windows(self, windows, callback):
        groups = {}
        for one in windows:
            groups.setdefault(one.start // 100, set()).add(one)
        for number, group in groups.items():
            if len(group) > 1:
                callback.merge(group, TimeWindow(number * 100 + self.shift, number * 100 + 100))

    def __init__(self, shift=0):
        self.shift = shift

    def get_default_trigger(self, env=None):
        return EventTimeTrigger()

    def get_window_serializer(self):
        return EventTimeSessionWindows.with_gap(1).get_window_serializer()

    def is_event_time(self):
        return True


def test_an_assigner_of_its_own_may_merge_as_it_likes(fused):
    chain = chain_of(ToTheNextHundred(), fused)
    for value, time in enumerate([5, 7, 7, 60, 105]):
        chain.rows([("a", value)], [time])
    chain.watermark(99).watermark(2000)
    assert values(chain) == [
        ("a", (0, 100), [0, 1, 2, 3]), ("a", (105, 106), [4]),
        ("a", (1000, 1100), [0, 1, 2, 3]), ("a", (1105, 1106), [4]),
    ]  # fmt: skip
    assert is_clean(chain)


def test_a_merged_window_that_lies_in_the_past_is_refused(fused):
    class Backwards(ToTheNextHundred):
        def merge_windows(self, windows, callback):
            windows = list(windows)
            if len(windows) > 2:
                callback.merge(windows, TimeWindow(0, 1))

    chain = chain_of(Backwards(), fused)
    chain.watermark(50).rows([("a", 1)], [60])
    with pytest.raises(UserError, match="could not merge windows"):
        chain.rows([("a", 1)], [70])


@pytest.mark.parametrize("trigger", [None, PurgingTrigger.of(EventTimeTrigger())], ids=["default", "purging"])
@pytest.mark.parametrize("lateness", [0, 5])
def test_windows_that_merge_without_the_one_that_came_fire_and_go(fused, trigger, lateness):
    class Afterwards(EventTimeSessionWindows):
        def merge_windows(self, windows, callback):
            *known, _ = windows
            if len(known) == 2:
                callback.merge(known, TimeWindow(0, 50))

    chain = chain_of(Afterwards(5), fused, trigger=trigger, allowed_lateness_ms=lateness)
    chain.rows([("a", 1), ("a", 2), ("a", 3)], [0, 20, 100]).watermark(1000)
    assert values(chain) == [("a", (0, 50), [1, 2]), ("a", (100, 105), [3])] and is_clean(chain)


@pytest.mark.parametrize("given, message", [
    (None, "a list of windows, not None"), (TimeWindow(0, 5), "a list of windows"), ([(0, 5)], r"windows, not \(0, 5\)"),
    ([TimeWindow(0.5, 5)], "ints of ms"),
])  # fmt: skip
def test_an_assigner_of_its_own_that_gives_no_windows_is_named(fused, given, message):
    class Wrong(TumblingEventTimeWindows):
        def assign_windows(self, element, timestamp, context):
            return given

    with pytest.raises(UserFunctionError, match=f"Wrong.assign_windows.*{message}"):
        chain_of(Wrong(5), fused).rows([("a", 1)], [0])


def test_bounds_of_windows_may_be_numbers_of_numpy(fused):
    class Numpy(TumblingEventTimeWindows):
        def assign_windows(self, element, timestamp, context):
            return {TimeWindow(np.int64(0), np.int64(10))}

    chain = chain_of(Numpy(5), fused).rows([("a", 1)], [0]).watermark(9)
    assert [type(element[1]) for element in chain.output[:1]] == [int]


# ---- which windows ----------------------------------------------------------------------------------


def test_cumulative_windows_are_a_running_total(fused):
    chain = chain_of(CumulativeEventTimeWindows.of(30, 10, -5), fused, "reduce", add, window_function=show)
    chain.rows([("a", 1), ("a", 2), ("a", 4)], [-5, 12, 26]).watermark(100)
    assert values(chain) == [
        ("a", (-5, 5), [1]), ("a", (-5, 15), [3]), ("a", (-5, 25), [3]),
        ("a", (25, 35), [4]), ("a", (25, 45), [4]), ("a", (25, 55), [4]),
    ]  # fmt: skip
    assert is_clean(chain)
    with pytest.raises(InvalidJobError, match="multiple"):
        CumulativeEventTimeWindows.of(25, 10)
    with pytest.raises(InvalidJobError, match="multiple"):
        CumulativeEventTimeWindows.of(25, 0)
    with pytest.raises(InvalidJobError, match="offset must be less than the size of 30 ms"):
        CumulativeEventTimeWindows.of(30, 10, -30)


def test_the_total_of_a_day_may_begin_by_another_clock_and_grow_by_the_hour(fused):
    """The offset shifts the whole of it, so it may be longer than a step."""
    hour = 3_600_000
    chain = chain_of(CumulativeEventTimeWindows.of(24 * hour, hour, -8 * hour), fused, "reduce", add)
    chain.rows([("a", 1), ("a", 2)], [16 * hour - 1, 16 * hour]).watermark(17 * hour - 1)
    assert values(chain) == [("a", 1), ("a", 2)]  # up to 16:00 UTC, when the day ends there, and in the next one


@pytest.mark.parametrize("trigger", [None, CountTrigger.of(1)], ids=["aligned", "per key"])
def test_b03_sliding_windows_that_are_no_multiple_of_the_slide(fused, trigger):
    chain = chain_of(SlidingEventTimeWindows.of(5_500, 5_000), fused, trigger=trigger, late_data_tag=LATE)
    chain.rows([("a", 1)], [513_040]).watermark(MAX_WATERMARK_MS)
    assert values(chain) == [("a", (510_000, 515_500), [1])] and values(chain, 1) == []
    chain = chain_of(SlidingEventTimeWindows.of(1_600, 700), fused, trigger=trigger, late_data_tag=LATE)
    chain.rows([("a", 1)], [1_709_315_512_577]).watermark(MAX_WATERMARK_MS)
    starts = sorted(about[0] for _, about, _ in values(chain))
    assert starts == [1_709_315_511_400, 1_709_315_512_100] and values(chain, 1) == []


@pytest.mark.parametrize("trigger", [None, PurgingTrigger.of(EventTimeTrigger())], ids=["aligned", "per key"])
def test_between_sliding_windows_a_record_is_dropped_and_late_only_behind_the_watermark(fused, trigger):
    chain = chain_of(SlidingEventTimeWindows.of(4, 10), fused, trigger=trigger, late_data_tag=LATE)
    chain.rows([("a", 1), ("a", 2), ("a", 3)], [3, 5, 12]).watermark(15)
    chain.rows([("a", 4), ("a", 5)], [15, 16]).watermark(100)
    assert values(chain) == [("a", (0, 4), [1]), ("a", (10, 14), [3])] and values(chain, 1) == [("a", 4)]


@pytest.mark.parametrize("trigger", [None, PurgingTrigger.of(EventTimeTrigger())], ids=["aligned", "per key"])
def test_a_record_that_one_of_its_windows_takes_is_not_late(fused, trigger):
    chain = chain_of(SlidingEventTimeWindows.of(20, 10), fused, trigger=trigger, late_data_tag=LATE)
    chain.watermark(19).rows([("a", 1), ("a", 2)], [15, 5]).watermark(100)
    assert values(chain) == [("a", (10, 30), [1])] and values(chain, 1) == [("a", 2)]


@pytest.mark.parametrize("trigger", [None, EventTimeTrigger()], ids=["aligned", "per key"])
def test_b09_at_the_watermark_is_late_and_behind_it_is_not(fused, trigger):
    assigner = TumblingEventTimeWindows.of(1) if trigger is None else CumulativeEventTimeWindows.of(1, 1)
    chain = chain_of(assigner, fused, late_data_tag=LATE)
    chain.watermark(999).rows([("a", 1), ("a", 2)], [999, 1000]).watermark(2000)
    assert values(chain) == [("a", (1000, 1001), [2])] and values(chain, 1) == [("a", 1)]


def test_sliding_windows_fire_again_within_their_lateness_latest_first(fused):
    chain = chain_of(SlidingEventTimeWindows.of(20, 10), fused, "reduce", add, allowed_lateness_ms=15)
    chain.rows([("a", 1)], [12]).watermark(30)
    assert chain.output[:2] == [(("a", 1), 19), (("a", 1), 29)]
    chain.rows([("a", 2)], [13])
    assert chain.output[3:] == [(("a", 3), 29), (("a", 3), 19)]
    chain.watermark(34).rows([("a", 4)], [14]).watermark(44)
    assert chain.output[6:-1] == [(("a", 7), 29)] and is_clean(chain)


def test_a_reduce_that_changes_what_it_is_given_does_not_reach_other_windows(fused):
    def keep_second(one, other):
        other["n"].extend(one["n"])
        return other

    def keep_first(one, other):
        one["n"].extend(other["n"])
        return one

    for reduce in (keep_first, keep_second):
        for trigger in (None, PurgingTrigger.of(EventTimeTrigger())):
            operator = WindowOperator(SlidingEventTimeWindows.of(30, 10), "reduce", reduce, trigger=trigger)
            chain = Chain((operator, itemgetter("k")), fused=fused)
            chain.rows([{"k": 1, "n": [n]} for n in range(3)], [5, 15, 25]).watermark(100)
            assert [sorted(value["n"]) for value in values(chain)] == [[0], [0, 1], [0, 1, 2], [1, 2], [2]]


@pytest.mark.parametrize("trigger", [None, PurgingTrigger.of(EventTimeTrigger())], ids=["aligned", "per key"])
def test_what_one_window_emits_can_be_changed_downstream_without_another_seeing_it(fused, trigger):
    class Kept(Total):
        def create_accumulator(self):
            return []

        def add(self, value, accumulator):
            return [*accumulator, value]

        def get_result(self, accumulator):
            return accumulator

    def spoil(records):
        for record in records:
            record["n"] += 100
        return [record["n"] for record in records]

    operator = WindowOperator(SlidingEventTimeWindows.of(20, 10), "aggregate", Kept(), trigger=trigger)
    chain = Chain((operator, itemgetter("k")), MapOperator(spoil), fused=fused)
    chain.rows([{"k": 1, "n": 1}, {"k": 1, "n": 2}], [5, 15]).watermark(100)
    assert values(chain) == [[101], [101, 102], [102]]


def test_sliding_windows_by_the_clock(fused):
    chain = chain_of(SlidingProcessingTimeWindows.of(20, 10), fused)
    chain.time(12).rows([("a", 1)]).time(18).rows([("a", 2)]).time(40)
    assert values(chain) == [("a", (0, 20), [1, 2]), ("a", (10, 30), [1, 2])] and is_clean(chain)


def test_count_windows_are_numbered_and_leave_only_what_is_not_full(fused):
    chain = chain_of(CountTumblingWindowAssigner.of(2), fused)
    chain.rows([("a", 1), ("b", 9), ("a", 2), ("a", 3), ("a", 4), ("a", 5)])
    assert values(chain) == [("a", 0, [1, 2]), ("a", 1, [3, 4])]
    assert chain.writers[0].elements[0][1] == MAX_WATERMARK_MS
    chain = chain_of(CountSlidingWindowAssigner.of(3, 2), fused)
    chain.rows([("a", n) for n in range(1, 8)])
    assert values(chain) == [("a", 0, [1, 2, 3]), ("a", 1, [3, 4, 5]), ("a", 2, [5, 6, 7])]


def test_a_global_window_fires_at_the_end_of_the_input_when_it_is_to(fused):
    chain = chain_of(GlobalWindows.create_with_end_of_stream_trigger(), fused)
    chain.rows([("a", 1), ("a", 2)], [5, 3]).watermark(100)
    assert values(chain) == []
    assert values(chain.watermark(MAX_WATERMARK_MS)) == [("a", "all", [1, 2])]


def test_windows_of_a_class_of_its_own_are_written_by_their_serializer(fused):
    class Parity(TimeWindow):
        __slots__ = ()

    class ParitySerializer:
        def serialize(self, element, stream):
            stream.write(bytes([element.start]))

        def deserialize(self, stream):
            (start,) = stream.read(1)
            return Parity(start, start + 1)

    class ByParity(TumblingEventTimeWindows):
        def assign_windows(self, element, timestamp, context):
            return [Parity(timestamp % 2, timestamp % 2 + 1)]

        def get_window_serializer(self):
            return ParitySerializer()

    seen = []
    chain = chain_of(ByParity(1), fused, window_function=lambda key, window, values: seen.append(type(window)))
    chain.rows([("a", 1), ("a", 2)], [4, 5]).watermark(10)
    assert seen == [Parity, Parity]


# ---- triggers ---------------------------------------------------------------------------------------


def test_a_continuous_trigger_fires_at_multiples_of_its_interval_and_at_the_end(fused):
    chain = chain_of(TumblingEventTimeWindows.of(12), fused, trigger=ContinuousEventTimeTrigger.of(5))
    chain.rows([("a", 1)], [1]).watermark(4).watermark(5)
    assert values(chain) == [("a", (0, 12), [1])]
    chain.rows([("a", 2)], [7]).watermark(11)
    assert [value[2] for value in values(chain)] == [[1], [1, 2], [1, 2]]
    assert is_clean(chain)


def test_a_continuous_trigger_rounds_down_before_the_epoch(fused):
    chain = chain_of(GlobalWindows.create(), fused, trigger=ContinuousEventTimeTrigger.of(5))
    chain.rows([("a", 1)], [-7]).watermark(-6)
    assert values(chain) == []
    assert values(chain.watermark(-5)) == [("a", "all", [1])]


def test_a_continuous_trigger_by_the_clock(fused):
    """Flink's ContinuousProcessingTimeTriggerTest."""
    trigger = ContinuousProcessingTimeTrigger.of(5)
    chain = chain_of(TumblingProcessingTimeWindows.of(10), fused, trigger=trigger)
    chain.rows([("a", 1)]).time(2).rows([("a", 2)]).time(5).time(7).rows([("a", 3)]).time(9)
    assert [value[1:] for value in values(chain)] == [((0, 10), [1, 2]), ((0, 10), [1, 2, 3])]
    chain.time(10).rows([("a", 3)]).time(15).time(18).rows([("a", 3)]).time(20)
    assert [value[1:] for value in values(chain)[2:]] == [((10, 20), [3]), ((10, 20), [3, 3])]
    assert is_clean(chain)
    chain = chain_of(TumblingEventTimeWindows.of(10), fused, trigger=trigger)
    chain.rows([("a", 1), ("a", 2)], [1, 7]).time(5).rows([("a", 3)], [8]).time(10)
    assert [value[2] for value in values(chain)] == [[1, 2], [1, 2, 3]]
    chain = chain_of(ProcessingTimeSessionWindows.with_gap(10), fused, trigger=trigger)
    chain.rows([("a", 1)]).time(2).rows([("a", 2)]).time(5).time(9).time(10).time(15).time(100)
    assert [value[1] for value in values(chain)] == [(0, 12)] * 3 and is_clean(chain)


def test_a_continuous_trigger_goes_on_by_a_clock_that_is_behind_the_end_of_an_open_window(fused):
    """FLINK-35069: Flink fires again and again at the same instant."""
    chain = chain_of(TumblingEventTimeWindows.of(100), fused, trigger=ContinuousProcessingTimeTrigger.of(5))
    chain.time(1000).rows([("a", 1)], [1]).time(1005).rows([("a", 2)], [2]).time(1009).time(1010)
    assert [value[2] for value in values(chain)] == [[1], [1, 2]]
    chain.time(1015).watermark(99)
    assert len(values(chain)) == 3 and is_clean(chain)


def test_at_the_end_of_event_time_a_continuous_trigger_fires_a_global_window_once(fused):
    chain = chain_of(GlobalWindows.create(), fused, trigger=ContinuousEventTimeTrigger.of(5))
    chain.rows([("a", 1)], [1]).watermark(7).rows([("a", 2)], [8]).watermark(MAX_WATERMARK_MS)
    assert [value[2] for value in values(chain)] == [[1], [1, 2], [1, 2]] and timers(chain) == 0


def test_a_delta_trigger_fires_when_a_record_is_far_from_the_last_firing(fused):
    class Distance(DeltaFunction):
        def get_delta(self, old_data_point, new_data_point):
            return abs(new_data_point[1] - old_data_point[1])

    for delta in (Distance(), lambda old, new: abs(new[1] - old[1])):
        trigger = PurgingTrigger.of(DeltaTrigger.of(3, delta))
        chain = chain_of(GlobalWindows.create(), fused, trigger=trigger)
        chain.rows([("a", value) for value in (0, 3, 4, 6, 7, 8)])
        assert [value[2] for value in values(chain)] == [[0, 3, 4], [6, 7, 8]]


def test_a_timeout_fires_what_waits(fused):
    def run(reset, *times):
        trigger = ProcessingTimeoutTrigger.of(CountTrigger.of(3), 50, reset_timer_on_new_record=reset)
        chain = chain_of(GlobalWindows.create(), fused, trigger=PurgingTrigger.of(trigger))
        for number, time in enumerate(times):
            chain.time(time).rows([("a", number)])
        chain.time(1000)
        assert timers(chain) == 0
        return [value[2] for value in values(chain)]

    assert run(False, 0, 40, 45) == [[0, 1, 2]]
    assert run(False, 0, 40, 60) == [[0, 1], [2]]
    assert run(True, 0, 40, 60, 200) == [[0, 1, 2], [3]]


class Merged(Trigger):
    """Fires when the window is as long as 30, and remembers in each kind of state that can merge."""

    count = ReducingStateDescriptor("n", lambda a, b: a + b)
    seen = ListStateDescriptor("seen")

    class Longest(f.AggregateFunction):
        def create_accumulator(self):
            return [0]

        def add(self, value, accumulator):
            return [max(value, accumulator[0])]

        def get_result(self, accumulator):
            return accumulator[0]

        def merge(self, acc_a, acc_b):
            return max(acc_a, acc_b)

    longest = AggregatingStateDescriptor("longest", Longest())
    log: list = []

    def on_element(self, element, timestamp, window, ctx):
        ctx.get_partitioned_state(self.count).add(1)
        ctx.get_partitioned_state(self.seen).add(element[1])
        ctx.get_partitioned_state(self.longest).add(element[1])
        return TriggerResult.FIRE_AND_PURGE if window.end - window.start >= 30 else TriggerResult.CONTINUE

    def can_merge(self):
        return True

    def on_merge(self, window, ctx):
        for descriptor in (self.count, self.seen, self.longest):
            ctx.merge_partitioned_state(descriptor)
        states = (ctx.get_partitioned_state(descriptor) for descriptor in (self.count, self.seen, self.longest))
        self.log.append((window.start, window.end, *(state.get() for state in states)))

    def on_event_time(self, time, window, ctx):
        return TriggerResult.CONTINUE

    def on_processing_time(self, time, window, ctx):
        return TriggerResult.CONTINUE

    def clear(self, window, ctx):
        for descriptor in (self.count, self.seen, self.longest):
            ctx.get_partitioned_state(descriptor).clear()


def test_a_trigger_of_its_own_keeps_state_for_each_window_and_merges_it(fused):
    Merged.log.clear()
    chain = chain_of(EventTimeSessionWindows.with_gap(10), fused, trigger=Merged())
    chain.rows([("a", 5), ("a", 7), ("b", 1)], [0, 20, 0]).rows([("a", 6)], [10])
    assert Merged.log == [(0, 30, 2, [5, 7], 7)]
    assert values(chain) == [("a", (0, 30), [5, 7, 6])]
    chain.watermark(100)
    assert is_clean(chain)


def test_a_trigger_state_that_cannot_merge_is_refused(fused):
    class Values(EventTimeTrigger):
        def on_merge(self, window, ctx):
            ctx.merge_partitioned_state(ValueStateDescriptor("v"))

    chain = chain_of(EventTimeSessionWindows.with_gap(10), fused, trigger=Values())
    with pytest.raises(InvalidJobError, match="ValueStateDescriptor says nothing"):
        chain.rows([("a", 1), ("a", 2)], [0, 5])


def test_a_trigger_that_gives_no_result_is_named(fused):
    class Forgets(EventTimeTrigger):
        def on_element(self, element, timestamp, window, ctx):
            super().on_element(element, timestamp, window, ctx)

    chain = chain_of(TumblingEventTimeWindows.of(10), fused, trigger=Forgets())
    with pytest.raises(UserFunctionError, match=r"Forgets.on_element\(\) must return a TriggerResult, not None"):
        chain.rows([("a", 1)], [0])


def test_what_a_trigger_raises_names_the_window(fused):
    class Broken(EventTimeTrigger):
        def on_event_time(self, time, window, ctx):
            raise ValueError("boom")

    chain = chain_of(TumblingEventTimeWindows.of(10), fused, trigger=Broken())
    with pytest.raises(UserFunctionError) as caught:
        chain.rows([("a", 1)], [0]).watermark(10)
    assert caught.value.fields["record"] == "<window [0, 10) of key 'a'>" and "trigger" in caught.value.what


def test_a_trigger_fires_one_of_several_windows_and_the_others_go_on(fused):
    chain = chain_of(SlidingEventTimeWindows.of(20, 10), fused, trigger=CountTrigger.of(2))
    chain.rows([("a", 1), ("a", 2), ("a", 3)], [5, 15, 17])
    assert values(chain) == [("a", (0, 20), [1, 2]), ("a", (10, 30), [2, 3])]
    chain.watermark(100)
    assert is_clean(chain)


def test_a_purged_window_is_empty_until_the_next_record(fused):
    trigger = PurgingTrigger.of(EventTimeTrigger())
    chain = chain_of(TumblingEventTimeWindows.of(10), fused, trigger=trigger, allowed_lateness_ms=20)
    chain.rows([("a", 1)], [1]).watermark(9).rows([("a", 2)], [2]).watermark(29)
    assert values(chain) == [("a", (0, 10), [1]), ("a", (0, 10), [2])] and is_clean(chain)


# ---- evictors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "evictor, seen",
    [
        (CountEvictor.of(3), [[1, 2], [2, 3, 9], [9, 4, 5]]),
        (CountEvictor.of(3, True), [[1, 2], [1, 2, 3, 9], [2, 3, 9, 4, 5]]),
        (TimeEvictor.of(3), [[1, 2], [3, 9], [9, 4, 5]]),
        (TimeEvictor.of(3, True), [[1, 2], [1, 2, 3, 9], [3, 9, 4, 5]]),
        (DeltaEvictor.of(4, lambda old, last: abs(old[1] - last[1])), [[1, 2], [9], [4, 5]]),
        (DeltaEvictor.of(4, lambda old, last: abs(old[1] - last[1]), True), [[1, 2], [1, 2, 3, 9], [9, 4, 5]]),
    ],
    ids=["count", "count after", "time", "time after", "delta", "delta after"],
)
def test_an_evictor_takes_records_out_before_or_after_the_function(fused, evictor, seen):
    chain = chain_of(GlobalWindows.create(), fused, trigger=CountTrigger.of(2), evictor=evictor)
    chain.rows([("a", value) for value in (1, 2, 3, 9, 4, 5)], [0, 1, 4, 5, 6, 7])
    assert [value[2] for value in values(chain)] == seen


class OddOnes(Evictor):
    """Takes even values out before, and all after."""

    def evict_before(self, elements, size, window, evictor_context):
        assert size == len(elements) and evictor_context.get_current_processing_time() == 0
        elements[:] = [element for element in elements if element.get_value()[1] % 2]

    def evict_after(self, elements, size, window, evictor_context):
        elements.clear()


class Total(f.AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + value[1]

    def get_result(self, accumulator):
        return "total", accumulator

    def merge(self, acc_a, acc_b):
        return acc_a + acc_b


@pytest.mark.parametrize(
    "kind, function, expected",
    [
        ("apply", None, [("a", "all", [1, 3]), ("a", "all", [5]), ("a", "all", [])]),
        ("reduce", add, [("a", 4), ("a", 5)]),
        ("aggregate", Total(), [("total", 4), ("total", 5), ("total", 0)]),
    ],
)
def test_what_an_evictor_leaves_is_applied_reduced_or_aggregated(fused, kind, function, expected):
    trigger = CountTrigger.of(3)
    chain = chain_of(GlobalWindows.create(), fused, kind, function, trigger=trigger, evictor=OddOnes())
    chain.rows([("a", value) for value in (1, 2, 3, 4, 5, 6, 8, 10, 12)])
    assert values(chain) == expected


def test_of_nothing_that_an_evictor_leaves_no_window_function_is_told_a_reduced_value(fused):
    chain = chain_of(
        GlobalWindows.create(), fused, "reduce", add, window_function=lambda key, window, values: [values[0]],
        trigger=CountTrigger.of(1), evictor=OddOnes(),
    ).rows([("a", 2), ("a", 3)])  # fmt: skip
    assert values(chain) == [("a", 3)]


@pytest.mark.parametrize("method", ["evict_before", "evict_after"])
def test_an_evictor_that_puts_in_something_else_is_named(fused, method):
    class Adds(CountEvictor):
        pass

    setattr(Adds, method, lambda self, elements, size, window, context: elements.append(5))
    chain = chain_of(GlobalWindows.create(), fused, trigger=CountTrigger.of(1), evictor=Adds(9))
    with pytest.raises(UserFunctionError, match="Adds has put 5 among the elements"):
        chain.rows([("a", 1)])


# ---- what is kept -----------------------------------------------------------------------------------


CLEANED = {
    "tumbling": TumblingEventTimeWindows.of(10),
    "sliding": SlidingEventTimeWindows.of(20, 10),
    "cumulative": CumulativeEventTimeWindows.of(20, 10),
    "session": EventTimeSessionWindows.with_gap(10),
    "tumbling by the clock": TumblingProcessingTimeWindows.of(10),
    "session by the clock": ProcessingTimeSessionWindows.with_gap(10),
}
TRIGGERS = {
    "own": None,
    "purging": PurgingTrigger.of(EventTimeTrigger()),
    "count": CountTrigger.of(2),
    "continuous": ContinuousEventTimeTrigger.of(3),
    "continuous by the clock": ContinuousProcessingTimeTrigger.of(3),
}


@pytest.mark.parametrize("trigger", TRIGGERS.values(), ids=TRIGGERS)
@pytest.mark.parametrize("assigner", CLEANED.values(), ids=CLEANED)
def test_behind_the_lateness_a_window_leaves_no_state_and_no_timer(fused, assigner, trigger):
    class Counted(f.ProcessWindowFunction):
        merges = isinstance(assigner, MergingWindowAssigner)

        def process(self, key, context, elements):
            if not self.merges:
                context.window_state().get_state(ValueStateDescriptor("calls")).update(1)
            yield key

        def clear(self, context):
            if not self.merges:
                context.window_state().get_state(ValueStateDescriptor("calls")).clear()

    options = {"trigger": trigger, "allowed_lateness_ms": 7, "window_function": Counted()}
    chain = chain_of(assigner, fused, "process", None, **options)
    for time in (3, 11, 12, 25):
        chain.time(time).rows([("a", time), ("b", time)], [time, time + 1]).watermark(time - 2)
    assert chain.chain.num_keyed_state_entries() and timers(chain)
    chain.time(50).watermark(50)
    assert is_clean(chain)


@pytest.mark.parametrize("assigner", [*CLEANED.values(), GlobalWindows.create()], ids=[*CLEANED, "global"])
@pytest.mark.parametrize("kind, function", [("reduce", None), ("aggregate", Total())], ids=["reduce", "aggregate"])
def test_records_are_not_kept_where_they_are_reduced(fused, assigner, kind, function):
    class Record:
        """One that can be asked whether it is still there."""

        def __init__(self, value):
            self.value = value

        def __getitem__(self, index):
            return "a" if index == 0 else self.value

    function = function or (lambda a, b: Record(a.value + b.value))
    operator = WindowOperator(assigner, kind, function)
    chain = Chain((operator, KEY), fused=fused, object_reuse=True)
    there = []
    for value in range(5):
        record = Record(value)
        there.append(weakref.ref(record))
        chain.rows([record], [1])
        del record
    gc.collect()
    assert [ref() for ref in there] == [None] * 5
    assert chain.chain.num_keyed_state_entries() <= 3


def test_a_record_without_time_is_refused_with_advice(fused):
    for assigner in (EventTimeSessionWindows.with_gap(5), SlidingEventTimeWindows.of(10, 5)):
        for times in (None, [None]):
            with pytest.raises(UserError, match="assign_timestamps_and_watermarks"):
                chain_of(assigner, fused).rows([("a", 1)], times)


def test_late_records_are_counted(fused):
    chain = chain_of(EventTimeSessionWindows.with_gap(5), fused)
    chain.watermark(100).rows([("a", 1), ("b", 1)], [1, 98])
    assert chain.chain.metrics() == {"numLateRecordsDropped": 1}
