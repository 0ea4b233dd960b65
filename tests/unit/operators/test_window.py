from operator import itemgetter

import pytest

from flinkish.datastream import functions as f
from flinkish.datastream.output_tag import OutputTag
from flinkish.datastream.state import ValueStateDescriptor
from flinkish.datastream.transformations import KeyedProcessOperator, MapOperator, WindowOperator
from flinkish.datastream.window import (
    DeltaTrigger,
    EventTimeSessionWindows,
    TimeWindow,
    TumblingEventTimeWindows,
)
from flinkish.errors import InvalidJobError, UserError, UserFunctionError
from flinkish.messages.elements import MAX_WATERMARK_MS, Watermark
from tests.unit.operators.chains import Chain

KEY = itemgetter(0)
LATE = OutputTag("late")


@pytest.fixture(params=[True, False], ids=["fused", "interpreted"])
def fused(request):
    return request.param


def add(a, b):
    return a[0], a[1] + b[1]


def window(kind="reduce", function=add, size=10, offset=0, **options):
    assigner = TumblingEventTimeWindows.of(size, offset)
    return WindowOperator(assigner, kind, function, **options), KEY


def records(chain):
    return [element for element in chain.output if isinstance(element, tuple)]


def test_a_window_fires_when_the_watermark_reaches_its_last_instant(fused):
    chain = Chain(window(), fused=fused)
    chain.rows([("a", 1), ("b", 10), ("a", 2), ("a", 4)], [0, 9, 3, 10]).watermark(8)
    assert chain.output == [Watermark(8)]
    chain.watermark(9)
    assert chain.output[1:] == [(("a", 3), 9), (("b", 10), 9), Watermark(9)]
    chain.watermark(MAX_WATERMARK_MS)
    assert chain.output[4:] == [(("a", 4), 19), Watermark(MAX_WATERMARK_MS)]
    assert chain.chain.num_keyed_state_entries() == chain.chain.num_event_time_timers() == 0


def test_windows_round_down_also_before_the_epoch_and_with_an_offset(fused):
    seen = []

    def note(key, win, values):
        seen.extend((v[1], win) for v in values)

    chain = Chain(window("apply", None, 5000, window_function=note), fused=fused)
    times = [-1, -5000, -5001, 0]
    chain.rows([("k", t) for t in times], times).watermark(MAX_WATERMARK_MS)
    assert dict(seen) == {
        -1: TimeWindow(-5000, 0), -5000: TimeWindow(-5000, 0), -5001: TimeWindow(-10000, -5000),
        0: TimeWindow(0, 5000),
    }  # fmt: skip
    seen.clear()
    chain = Chain(window("apply", None, 5000, 2000, window_function=note), fused=fused)
    chain.rows([("k", -9000)], [-9000]).watermark(MAX_WATERMARK_MS)
    assert dict(seen) == {-9000: TimeWindow(-13000, -8000)}


def test_many_windows_fire_in_order_of_time(fused):
    chain = Chain(window(), fused=fused, capacity=2)
    chain.rows([("a", 1)] * 6, [55, 5, 25, 35, 5, 15]).watermark(60)
    assert records(chain) == [(("a", 2), 9), (("a", 1), 19), (("a", 1), 29), (("a", 1), 39), (("a", 1), 59)]


def test_a_late_record_is_counted_and_dropped(fused):
    chain = Chain(window(), fused=fused)
    chain.watermark(9).rows([("a", 1), ("a", 2)], [9, 10]).watermark(19)
    assert records(chain) == [(("a", 2), 19)]
    assert chain.chain.metrics() == {"numLateRecordsDropped": 1}


def test_a_late_record_goes_to_the_late_output_when_there_is_one(fused):
    chain = Chain(window(late_data_tag=LATE), outputs=[(0,), (0, LATE)], fused=fused)
    chain.watermark(9).rows([("a", 1), ("a", 2)], [3, 10]).watermark(19)
    assert records(chain) == [(("a", 2), 19)]
    assert chain.writers[1].elements == [Watermark(9), (("a", 1), 3), Watermark(19)]
    assert chain.chain.metrics() == {"numLateRecordsDropped": 0}


def test_within_the_allowed_lateness_a_window_fires_again_for_each_record(fused):
    chain = Chain(window(allowed_lateness_ms=5), fused=fused)
    chain.rows([("a", 1), ("b", 1)], [1, 1]).watermark(9).rows([("a", 2), ("c", 7)], [2, 2])
    assert records(chain) == [(("a", 1), 9), (("b", 1), 9), (("a", 3), 9), (("c", 7), 9)]
    assert chain.chain.num_keyed_state_entries() == 3
    chain.watermark(13).rows([("a", 1)], [3])
    assert records(chain)[-1] == (("a", 4), 9)
    chain.watermark(14).rows([("a", 1)], [3])
    assert records(chain)[-1] == (("a", 4), 9)
    assert chain.chain.num_keyed_state_entries() == 0
    assert chain.chain.metrics() == {"numLateRecordsDropped": 1}


def test_a_window_that_is_first_seen_after_its_end_fires_at_once_and_once(fused):
    chain = Chain(window(allowed_lateness_ms=10), fused=fused)
    chain.watermark(12).rows([("a", 1)], [5]).watermark(15).watermark(30)
    assert records(chain) == [(("a", 1), 9)]
    assert chain.chain.num_keyed_state_entries() == 0


def test_what_a_window_emitted_stays_as_it_was_when_it_fires_again(fused):
    def collect(a, b):
        a[1].extend(b[1])
        return a

    chain = Chain(window(function=collect, allowed_lateness_ms=50), fused=fused)
    chain.rows([("a", [1])], [1]).watermark(9).rows([("a", [2])], [2]).rows([("a", [3])], [2])
    assert [value[1] for value, _ in records(chain)] == [[1], [1, 2], [1, 2, 3]]


class CountsDrops(f.ProcessWindowFunction):
    """Says how many windows of the key had been dropped when it ran."""

    def process(self, key, context, elements):
        dropped = context.global_state().get_state(ValueStateDescriptor("dropped")).value()
        yield context.window().start, dropped or 0

    def clear(self, context):
        state = context.global_state().get_state(ValueStateDescriptor("dropped"))
        state.update((state.value() or 0) + 1)


@pytest.mark.parametrize("lateness, dropped", [(0, [0, 1, 2]), (1, [0, 1, 2]), (10, [0, 1, 2]), (11, [0, 0, 1])])
@pytest.mark.parametrize("steps", [[100], [9, 10, 19, 20, 21, 29, 30, 100]], ids=str)
def test_windows_fire_and_go_in_order_of_time_whatever_the_steps_of_the_watermark(fused, lateness, dropped, steps):
    chain = Chain(
        window("process", None, window_function=CountsDrops(), allowed_lateness_ms=lateness), fused=fused
    )
    chain.rows([("a", 1), ("a", 2), ("a", 3)], [1, 11, 21])
    for step in steps:
        chain.watermark(step)
    assert [value for value, _ in records(chain)] == list(zip([0, 10, 20], dropped))
    assert chain.chain.num_event_time_timers() == 0


@pytest.mark.parametrize("lateness", [0, 2_000])
def test_at_the_end_of_event_time_every_window_has_fired_and_gone(fused, lateness):
    chain = Chain(window(size=1_000, allowed_lateness_ms=lateness), fused=fused)
    times = [MAX_WATERMARK_MS - 1_750, MAX_WATERMARK_MS, -(2**63) + 1]
    chain.rows([("a", i) for i in range(3)], times).watermark(MAX_WATERMARK_MS)
    assert [value for value, _ in records(chain)] == [("a", 2), ("a", 0), ("a", 1)]
    assert max(time for _, time in records(chain)) == MAX_WATERMARK_MS
    assert chain.chain.num_keyed_state_entries() == chain.chain.num_event_time_timers() == 0
    chain.rows([("a", 3)], times[:1])
    assert chain.chain.num_keyed_state_entries() == 0
    assert chain.chain.metrics() == {"numLateRecordsDropped": 1}


class Mean(f.AggregateFunction):
    def create_accumulator(self):
        return [0, 0]

    def add(self, value, accumulator):
        accumulator[0] += value[1]
        accumulator[1] += 1
        return accumulator

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]

    def merge(self, a, b):
        return [a[0] + b[0], a[1] + b[1]]


def test_an_aggregate_has_an_accumulator_of_its_own(fused):
    chain = Chain(window("aggregate", Mean(), allowed_lateness_ms=5), fused=fused)
    chain.rows([("a", 1), ("a", 3), ("b", 7)], [1, 2, 3]).watermark(9).rows([("a", 8)], [3])
    assert records(chain) == [(2.0, 9), (7.0, 9), (4.0, 9)]


class Describe(f.ProcessWindowFunction):
    """Counts its calls in both kinds of state."""

    def open(self, context):
        self.cleared = []

    def process(self, key, context, elements):
        per_window = context.window_state().get_state(ValueStateDescriptor("calls"))
        of_key = context.global_state().get_state(ValueStateDescriptor("calls"))
        for state in (per_window, of_key):
            state.update((state.value() or 0) + 1)
        window = context.window()
        yield key, window.start, window.end, list(elements), per_window.value(), of_key.value()
        yield LATE, ("side", context.current_watermark(), context.current_processing_time())

    def clear(self, context):
        self.cleared.append(context.window().start)
        context.window_state().get_state(ValueStateDescriptor("calls")).clear()


def test_a_process_window_function_sees_key_window_times_and_state(fused):
    describe = Describe()
    operator = window("process", None, window_function=describe)
    chain = Chain(operator, outputs=[(0,), (0, LATE)], fused=fused)
    chain.clock.ms = 77
    chain.rows([("a", 1), ("b", 2), ("a", 3), ("a", 4)], [1, 2, 3, 11]).watermark(9).watermark(19)
    assert records(chain) == [
        (("a", 0, 10, [("a", 1), ("a", 3)], 1, 1), 9), (("b", 0, 10, [("b", 2)], 1, 1), 9),
        (("a", 10, 20, [("a", 4)], 1, 2), 19),
    ]  # fmt: skip
    assert chain.writers[1].elements[0] == (("side", 9, 77), 9)
    assert describe.cleared == [0, 0, 10]
    assert chain.chain.num_keyed_state_entries() == 2  # the state of the keys, which is the user's


def test_a_reduced_value_can_be_shown_to_a_window_function(fused):
    class Show(f.WindowFunction):
        def apply(self, key, window, inputs):
            return [(key, window.start, *inputs)]

    for kind, function in (("reduce", add), ("aggregate", Mean())):
        chain = Chain(window(kind, function, window_function=Show()), fused=fused)
        chain.rows([("a", 1), ("a", 3)], [12, 13]).watermark(19)
        assert records(chain) == [(("a", 10, ("a", 4) if kind == "reduce" else 2.0), 19)]


def test_per_window_state_is_kept_until_the_window_is_dropped(fused):
    describe = Describe()
    chain = Chain(window("process", None, window_function=describe, allowed_lateness_ms=5), fused=fused)
    chain.rows([("a", 1)], [1]).watermark(9).rows([("a", 2)], [2])
    assert [(r[0][3], r[0][4]) for r in records(chain)] == [([("a", 1)], 1), ([("a", 1), ("a", 2)], 2)]
    assert describe.cleared == []
    chain.watermark(14)
    assert describe.cleared == [0]


def test_firing_stops_in_the_middle_of_a_window_and_goes_on(fused):
    chain = Chain(window(), fused=fused, capacity=10)
    chain.rows([(k, 1) for k in range(100)], [5] * 100).watermark(9)
    assert [value for value, _ in records(chain)] == [(k, 1) for k in range(100)]
    assert chain.output[-1] == Watermark(9) and chain.suspensions >= 9


def test_a_record_of_a_timer_upstream_is_in_its_window_before_the_watermark(fused):
    class Echo(f.KeyedProcessFunction):
        def __init__(self):
            self.times = 0

        def process_element(self, value, ctx):
            ctx.timer_service().register_event_time_timer(9)

        def on_timer(self, timestamp, ctx):
            yield ctx.get_current_key(), 1
            self.times += 1
            if self.times == 1:
                ctx.timer_service().register_event_time_timer(9)

    chain = Chain((KeyedProcessOperator(Echo()), KEY), window(), fused=fused)
    chain.rows([("r", 0)], [1]).watermark(9)
    assert chain.output == [(("r", 2), 9), Watermark(9)]


def test_chained_windows_lose_nothing(fused):
    def count(key, win, values):
        yield "all", len(list(values))

    operators = [
        window("apply", None, 5_000, window_function=count),
        MapOperator(lambda v: v),
        window("reduce", add, 10_000),
    ]
    chain = Chain(*operators, fused=fused)
    chain.rows([("all", 0)] * 3, [1_000, 6_000, 11_000]).watermark(MAX_WATERMARK_MS)
    assert records(chain) == [(("all", 2), 9_999), (("all", 1), 19_999)]


def test_a_record_without_time_is_refused_with_advice(fused):
    for times in (None, [None]):
        with pytest.raises(UserError, match=r"without event time(.|\n)*assign_timestamps_and_watermarks"):
            Chain(window(), fused=fused).rows([("a", 1)], times)


def test_an_error_in_a_window_function_names_window_and_key(fused):
    def broken(key, win, values):
        raise ValueError("boom")

    chain = Chain(window("apply", None, window_function=broken), fused=fused)
    with pytest.raises(UserFunctionError) as caught:
        chain.rows([("a", 1)], [1]).watermark(9)
    assert caught.value.fields["record"] == "<window [0, 10) of key 'a'>"


def test_an_error_in_a_reduce_names_the_record(fused):
    chain = Chain(window(function=lambda a, b: 1 / 0), fused=fused)
    with pytest.raises(UserFunctionError) as caught:
        chain.rows([("a", 1), ("a", 2)], [1, 2])
    assert caught.value.fields["record"] == "('a', 2)"


@pytest.mark.parametrize(
    "operator",
    [
        WindowOperator(EventTimeSessionWindows.with_gap(10), "reduce", add, trigger=DeltaTrigger(1, max)),
        WindowOperator(TumblingEventTimeWindows.of(10), "aggregate", add),
        WindowOperator(TumblingEventTimeWindows.of(10), "fold", add),
    ],
    ids=["trigger", "aggregate", "kind"],
)
def test_what_cannot_run_is_refused(operator):
    with pytest.raises(InvalidJobError):
        Chain((operator, KEY))
