"""What a chain does with records, watermarks and the clock; each test for both forms."""

import functools
import pickle
from operator import attrgetter, itemgetter

import cloudpickle
import pyarrow as pa
import pytest

from flinkish.common import Types
from flinkish.common.types import Row
from flinkish.common.watermark_strategy import WatermarkGenerator, WatermarkStrategy
from flinkish.connectors.spi import Sink, SinkWriter
from flinkish.datastream import functions as f
from flinkish.datastream.fields import FieldSelector
from flinkish.datastream.function_adapters import CallableCoFlatMapFunction, process_function_of
from flinkish.datastream.output_tag import OutputTag
from flinkish.datastream.state import ListStateDescriptor, ValueStateDescriptor
from flinkish.datastream.time_domain import TimeDomain
from flinkish.datastream.transformations import (
    CoFlatMapOperator,
    ColumnsToRowsOperator,
    CoMapOperator,
    CoProcessOperator,
    FilterOperator,
    FlatMapOperator,
    KeyedCoProcessOperator,
    KeyedProcessOperator,
    MapOperator,
    ProcessOperator,
    ReduceOperator,
    SinkOperator,
    TimestampsAndWatermarksOperator,
    WindowOperator,
)
from flinkish.datastream.window import TumblingEventTimeWindows
from flinkish.errors import TaskCancelled, UnstableKeyError, UserError, UserFunctionError
from flinkish.messages.control import SinkCommittables, SinkPayload
from flinkish.messages.elements import MAX_WATERMARK_MS, ColumnBatch, Watermark, WatermarkStatus
from flinkish.operators.columns import rows_of
from tests.unit.operators.chains import Chain

FIRST = itemgetter(0)
LATE = OutputTag("late")


@pytest.fixture(params=[True, False], ids=["fused", "interpreted"])
def fused(request):
    return request.param


# ---- stateless ----------------------------------------------------------------------------------


def test_maps_filters_and_flat_maps_run_in_line(fused):
    chain = Chain(
        MapOperator(lambda v: v + 1),
        FilterOperator(lambda v: v % 2),
        FlatMapOperator(lambda v: None if v == 3 else (v, str(v))),
        fused=fused,
    )
    chain.rows([0, 1, 2, 3, 4])
    assert chain.output == [(1, None), ("1", None), (5, None), ("5", None)]
    assert chain.chain.expanding


def test_timestamps_stay_with_their_records_also_where_some_have_none(fused):
    chain = Chain(FlatMapOperator(lambda v: [v] * v), fused=fused)
    chain.rows([1, 2, 0, 1], [10, None, 30, 40])
    assert chain.output == [(1, 10), (2, None), (2, None), (1, 40)]
    assert not Chain(MapOperator(str), FilterOperator(bool)).chain.expanding


def test_only_the_asked_for_slice_of_a_batch_is_processed(fused):
    from flinkish.messages.elements import RowBatch

    chain = Chain(MapOperator(str), fused=fused)
    chain.run(chain.chain.process_batch(0, RowBatch([1, 2, 3, 4], [1, 2, 3, 4]), 1, 3))
    assert chain.output == [("2", 2), ("3", 3)]


def test_each_of_several_consumers_sees_the_value_as_it_was_emitted(fused):
    def add(mark):
        def append(v):
            v.append(mark)
            return v

        return append

    chain = Chain(
        MapOperator(lambda v: [v]), MapOperator(add("b")), MapOperator(add("c")),
        edges=[(0, 1), (0, 2)], outputs=[(0,), (1,), (2,)], fused=fused,
    )  # fmt: skip
    chain.rows([1, 2])
    assert [[v for v, _ in writer.elements] for writer in chain.writers] == [
        [[1], [2]], [[1, "b"], [2, "b"]], [[1, "c"], [2, "c"]],
    ]  # fmt: skip


def test_a_map_that_returns_the_same_list_each_time_emits_what_it_held_then(fused):
    kept = []

    def remember(v):
        kept.append(v)
        return kept

    chain = Chain(MapOperator(remember), fused=fused).rows([1, 2, 3])
    assert chain.values == [[1], [1, 2], [1, 2, 3]]
    kept.clear()
    inside = Chain(MapOperator(lambda v: ("t", {"all": remember(v)})), fused=fused).rows([1, 2])
    assert inside.values == [("t", {"all": [1]}), ("t", {"all": [1, 2]})]


def test_with_object_reuse_nothing_is_copied(fused):
    kept = []

    def remember(v):
        kept.append(v)
        return kept

    chain = Chain(MapOperator(remember), fused=fused, object_reuse=True).rows([1, 2])
    assert all(value is kept for value in chain.values)


def test_a_chain_deeper_than_python_allows_loops_still_runs(fused):
    operators = [FlatMapOperator(lambda v: (v,)), FilterOperator(lambda v: True)] * 70
    chain = Chain(*operators, fused=fused, capacity=2)
    assert chain.rows([1, 2, 3], [7, 8, 9]).output == [(1, 7), (2, 8), (3, 9)]


def test_one_function_object_given_to_two_operators_is_two_functions(fused):
    class Count(f.MapFunction):
        def open(self, context):
            self.n = 0

        def map(self, value):
            self.n += 1
            return value, self.n

    count = Count()
    chain = Chain(MapOperator(count), MapOperator(count), fused=fused).rows([1, 2])
    assert chain.values == [((1, 1), 1), ((2, 2), 2)]


# ---- room ---------------------------------------------------------------------------------------


def test_a_flat_map_stops_in_the_middle_of_a_record_and_goes_on_where_it_was(fused):
    chain = Chain(FlatMapOperator(lambda v: range(v)), fused=fused, capacity=3)
    chain.rows([10, 2])
    assert chain.values == [*range(10), 0, 1]
    assert chain.suspensions >= 3 and chain.writers[0].overdraft <= 0


def test_a_silent_flat_map_gives_the_turn_back(fused):
    chain = Chain(FlatMapOperator(lambda v: range(v)), FilterOperator(lambda v: False), fused=fused)
    chain.rows([10_000])
    assert chain.suspensions >= 4


def test_timers_stop_between_two_records_and_go_on(fused):
    class Fire(f.KeyedProcessFunction):
        def process_element(self, value, ctx):
            ctx.timer_service().register_event_time_timer(5)

        def on_timer(self, timestamp, ctx):
            yield ctx.get_current_key(), 1
            yield ctx.get_current_key(), 2

    chain = Chain((KeyedProcessOperator(Fire()), FIRST), fused=fused, capacity=3)
    chain.rows([(k, 0) for k in "abcde"], [1] * 5).watermark(5)
    assert chain.values == [(k, n) for k in "abcde" for n in (1, 2)]
    assert chain.output[-1] == Watermark(5)
    assert chain.suspensions >= 3 and chain.writers[0].overdraft <= 1  # the watermark


# ---- keyed --------------------------------------------------------------------------------------


class RunningSum(f.KeyedProcessFunction):
    def open(self, runtime_context):
        self.sum = runtime_context.get_state(ValueStateDescriptor("sum"))

    def process_element(self, value, ctx):
        self.sum.update((self.sum.value() or 0) + value[1])
        yield ctx.get_current_key(), self.sum.value()


@pytest.mark.parametrize(
    "selector", [FIRST, FieldSelector(0), lambda v: v[0]], ids=["itemgetter", "field", "lambda"]
)
def test_keyed_state_belongs_to_the_key(fused, selector):
    chain = Chain((KeyedProcessOperator(RunningSum()), selector), fused=fused)
    chain.rows([("a", 1), ("b", 10), ("a", 2)], size=2)
    assert chain.values == [("a", 1), ("b", 10), ("a", 3)]
    assert chain.chain.num_keyed_state_entries() == 2


def test_a_key_that_is_a_field_is_read_without_a_call():
    texts = {
        "itemgetter": (Chain((ReduceOperator(max), FIRST)), "[0]"),
        "two fields": (Chain((ReduceOperator(max), itemgetter(0, "b"))), "[0], v_"),
        "attribute": (Chain((ReduceOperator(max), attrgetter("a.b"))), ".a.b"),
        "field": (Chain((ReduceOperator(max), FieldSelector("name"))), "['name'] if type("),
    }
    for chain, expression in texts.values():
        assert expression in chain.chain.source_text


def test_keys_that_are_equal_are_one_key_in_its_canonical_form(fused):
    nan = float("nan")
    chain = Chain((KeyedProcessOperator(RunningSum()), FIRST), fused=fused)
    chain.rows([(1, 1), (True, 1), (1.0, 1), (None, 5), (nan, 1), (float("nan"), 1)])
    counts = [value for value in chain.values]
    assert counts[:4] == [(1, 1), (1, 2), (1, 3), (None, 5)]
    assert [n for _, n in counts[4:]] == [1, 2]
    assert all(type(key) is int for key, _ in counts[:3])


def test_a_declared_key_type_converts_first(fused):
    chain = Chain(
        (KeyedProcessOperator(RunningSum()), FIRST), fused=fused, key_type=Types.DOUBLE()
    ).rows([(1, 1), (1.5, 2), (True, 3)])
    assert chain.values == [(1, 1), (1.5, 2), (1, 4)]


def test_a_rich_map_on_a_keyed_stream_has_state(fused):
    class Count(f.MapFunction):
        def open(self, context):
            self.count = context.get_state(ValueStateDescriptor("count"))

        def map(self, value):
            self.count.update((self.count.value() or 0) + 1)
            return value, self.count.value()

    chain = Chain((MapOperator(Count()), lambda v: v), fused=fused).rows(["a", "b", "a"])
    assert chain.values == [("a", 1), ("b", 1), ("a", 2)]


def test_state_without_a_key_is_refused_with_advice(fused):
    class Count(f.MapFunction):
        def open(self, context):
            context.get_state(ValueStateDescriptor("count"))

        def map(self, value):
            return value

    with pytest.raises(UserError, match=r'"count" needs a key(.|\n)*key_by'):
        Chain(MapOperator(Count()), fused=fused)


def test_reduce_emits_the_accumulator_of_each_moment(fused):
    def add(acc, value):
        acc["n"] += value["n"]
        return acc

    for size in (1, 2, 3):
        chain = Chain((ReduceOperator(add), lambda v: v["k"]), fused=fused)
        chain.rows([{"k": 1, "n": n} for n in (1, 2, 3)], size=size)
        assert [v["n"] for v in chain.values] == [1, 3, 6]


def test_a_chained_neighbour_cannot_change_the_state_behind_what_it_got(fused):
    class Emit(f.KeyedProcessFunction):
        def open(self, context):
            self.seen = context.get_state(ValueStateDescriptor("seen"))

        def process_element(self, value, ctx):
            seen = self.seen.value() or []
            seen.append(value)
            self.seen.update(seen)
            yield seen

    def spoil(v):
        v.append("spoilt")
        return v

    chain = Chain((KeyedProcessOperator(Emit()), lambda v: 0), MapOperator(spoil), fused=fused)
    chain.rows([1, 2, 3])
    assert chain.values == [[1, "spoilt"], [1, 2, "spoilt"], [1, 2, 3, "spoilt"]]


def test_reduce_keeps_records_that_are_none(fused):
    chain = Chain((ReduceOperator(lambda a, b: (a, b)), lambda v: 0), fused=fused)
    assert chain.rows([None, 1, None]).values == [None, (None, 1), ((None, 1), None)]


# ---- process functions, side outputs, timers ----------------------------------------------------


class Split(f.ProcessFunction):
    def process_element(self, value, ctx):
        if value < 0:
            yield LATE, value
        elif value == 100:
            yield OutputTag("nobody asked"), value
        else:
            yield value, ctx.timestamp()


def test_a_side_output_goes_to_those_who_asked_for_it(fused):
    unclaimed = []
    chain = Chain(
        ProcessOperator(Split()), MapOperator(lambda v: ("side", v)),
        edges=[(0, 1, LATE)], outputs=[(0,), (1,), (0, LATE)], fused=fused,
        collect_side_output=lambda *side: unclaimed.append(side),
    )  # fmt: skip
    chain.rows([1, -2, 100, 3], [10, 20, 30, 40]).watermark(7)
    main, mapped, side = (writer.elements for writer in chain.writers)
    assert main == [((1, 10), 10), ((3, 40), 40), Watermark(7)]
    assert mapped == [(("side", -2), 20), Watermark(7)]
    assert side == [(-2, 20), Watermark(7)]
    assert unclaimed == [("nobody asked", 100, 30)]


def test_a_process_function_of_a_plain_stream_has_no_timers(fused):
    def process(value, ctx):
        ctx.timer_service().register_event_time_timer(1)

    chain = Chain(ProcessOperator(process), fused=fused)
    with pytest.raises(UserFunctionError, match="setting timers needs a keyed stream"):
        chain.rows([1])


def test_a_function_may_return_a_list_or_nothing(fused):
    chain = Chain(ProcessOperator(lambda v, ctx: [v, v] if v else None), fused=fused)
    assert chain.rows([0, 1]).values == [1, 1]


class Remind(f.KeyedProcessFunction):
    """Emits at time v[1] what came; ``again``: once more from the timer, for the same time."""

    def open(self, context):
        self.kept = context.get_list_state(ListStateDescriptor("kept"))
        self.again = set()

    def process_element(self, value, ctx):
        self.kept.add(value)
        ctx.timer_service().register_event_time_timer(value[1])
        ctx.timer_service().register_processing_time_timer(1_000 + value[1])

    def on_timer(self, timestamp, ctx):
        key = ctx.get_current_key()
        domain = "event" if ctx.time_domain() is TimeDomain.EVENT_TIME else "processing"
        yield key, timestamp, ctx.timestamp(), domain, ctx.timer_service().current_watermark()
        yield LATE, (key, list(self.kept.get()))
        self.kept.clear()
        if timestamp == 9 and key not in self.again:
            self.again.add(key)
            ctx.timer_service().register_event_time_timer(9)


def test_timers_fire_before_the_watermark_that_makes_them_due(fused):
    chain = Chain((KeyedProcessOperator(Remind()), FIRST), outputs=[(0,), (0, LATE)], fused=fused)
    chain.rows([("a", 9), ("b", 20), ("a", 9)], [1, 2, 3])
    assert chain.chain.num_event_time_timers() == 2 and chain.chain.num_processing_time_timers() == 2
    chain.watermark(9)
    assert chain.output == [
        (("a", 9, 9, "event", 9), 9), (("a", 9, 9, "event", 9), 9), Watermark(9),
    ]  # fmt: skip
    assert chain.chain.num_event_time_timers() == 1
    assert chain.chain.next_processing_time() == 1_010  # when its millisecond is over
    chain.slot_time(1_009)
    assert len(chain.output) == 3
    chain.slot_time(1_021)
    assert [e for e in chain.output[3:]] == [
        (("a", 1_009, 1_009, "processing", 9), None), (("b", 1_020, 1_020, "processing", 9), None),
    ]  # fmt: skip
    assert [value for value, _ in chain.writers[1].elements[0:1]] == [("a", [("a", 9), ("a", 9)])]
    assert chain.chain.next_processing_time() is None


def test_a_timer_set_behind_the_watermark_fires_with_the_next_one(fused):
    chain = Chain((KeyedProcessOperator(Remind()), FIRST), fused=fused)
    chain.watermark(10).rows([("a", 5)], [11])
    assert chain.values == []
    chain.watermark(11)
    assert chain.values == [("a", 5, 5, "event", 11)]


def test_many_silent_timers_give_the_turn_back(fused):
    class Silent(f.KeyedProcessFunction):
        def process_element(self, value, ctx):
            ctx.timer_service().register_event_time_timer(5)

    chain = Chain((KeyedProcessOperator(Silent()), lambda v: v), fused=fused)
    chain.rows(list(range(2_000)))
    chain.chain.budget_max = 100
    chain.watermark(5)
    assert chain.suspensions >= 19 and chain.chain.num_event_time_timers() == 0


# ---- two inputs ---------------------------------------------------------------------------------


def test_connected_streams_keep_their_functions_apart(fused):
    class Both(f.CoMapFunction):
        def map1(self, value):
            return "one", value

        def map2(self, value):
            return "two", value

    class Many(f.CoFlatMapFunction):
        def flat_map1(self, value):
            return [value] * 2

        def flat_map2(self, value):
            return None

    chain = Chain(CoMapOperator(Both()), fused=fused)
    chain.rows([1]).rows([2], input=1)
    assert chain.values == [("one", 1), ("two", 2)] and chain.chain.number_of_inputs == 2
    assert Chain(CoFlatMapOperator(Many()), fused=fused).rows([1]).rows([2], input=1).values == [1, 1]


def test_two_keyed_inputs_share_state_and_timers(fused):
    class Join(f.KeyedCoProcessFunction):
        def open(self, context):
            self.left = context.get_state(ValueStateDescriptor("left"))

        def process_element1(self, value, ctx):
            self.left.update(value[1])
            ctx.timer_service().register_event_time_timer(10)

        def process_element2(self, value, ctx):
            yield ctx.get_current_key(), self.left.value(), value["v"]

        def on_timer(self, timestamp, ctx):
            yield "timer", ctx.get_current_key()

    chain = Chain((KeyedCoProcessOperator(Join()), FIRST, itemgetter("k")), fused=fused)
    chain.rows([("a", 1)], [1]).rows([{"k": "a", "v": 2}, {"k": "b", "v": 3}], [2, 3], input=1)
    chain.watermark(10).watermark(12, input=1)
    assert chain.values == [("a", 1, 2), ("b", None, 3), ("timer", "a")]
    assert chain.output[-1] == Watermark(10)


def two_inputs(fused):
    class Pass(f.CoProcessFunction):
        def process_element1(self, value, ctx):
            yield value

        process_element2 = process_element1

    return Chain(CoProcessOperator(Pass()), fused=fused)


def test_the_watermark_of_two_inputs_is_the_lesser(fused):
    chain = two_inputs(fused).watermark(5).watermark(3, 1).watermark(7).watermark(6, 1)
    assert chain.output == [Watermark(3), Watermark(6)]


@pytest.mark.parametrize("first", [0, 1])
def test_when_all_inputs_are_idle_the_largest_watermark_counts_in_either_order(fused, first):
    chain = two_inputs(fused)
    for index in (first, 1 - first):
        chain.watermark(5 if index == 0 else 4, index)
    chain.status(True, first).status(True, 1 - first)
    marks = [e.timestamp for e in chain.output if isinstance(e, Watermark)]
    assert marks[-1] == 5 and marks == sorted(set(marks))
    assert chain.output[-2:] == [Watermark(5), WatermarkStatus(True)]
    chain.status(False, 1).watermark(4, 1).watermark(6, 1)
    assert chain.output[-2:] == [WatermarkStatus(False), Watermark(6)]


def test_the_status_of_a_single_input_passes(fused):
    chain = Chain(MapOperator(str), fused=fused).status(True).status(False)
    assert chain.output == [WatermarkStatus(True), WatermarkStatus(False)]


# ---- event times --------------------------------------------------------------------------------


def strategy():
    return WatermarkStrategy.for_bounded_out_of_orderness(2)


@pytest.mark.parametrize("assigner", [lambda v: v, lambda v, given: v], ids=["one", "two"])
def test_an_assigner_in_the_stream_gives_times_and_periodic_watermarks(fused, assigner):
    operator = TimestampsAndWatermarksOperator(strategy().with_timestamp_assigner(assigner))
    chain = Chain(MapOperator(lambda v: v), operator, fused=fused)
    assert chain.chain.next_processing_time() == 200
    chain.rows([5, 3, 9]).watermark(100)
    assert chain.output == [(5, 5), (3, 3), (9, 9)]
    chain.time(200)
    assert chain.output[-1] == Watermark(6) and chain.chain.next_processing_time() == 400
    chain.time(400)
    assert chain.output[-1] == Watermark(6) and len(chain.output) == 4
    chain.rows([4], [1]).watermark(MAX_WATERMARK_MS)
    assert chain.output[-2:] == [(4, 4), Watermark(MAX_WATERMARK_MS)]


def test_a_generator_may_emit_after_each_record(fused):
    class Punctuated(WatermarkGenerator):
        def on_event(self, event, event_timestamp, output):
            if event == "!":
                output.emit_watermark(event_timestamp)

        def on_periodic_emit(self, output):
            pass

    marks = TimestampsAndWatermarksOperator(WatermarkStrategy.for_generator(Punctuated))
    seen = []
    late = ProcessOperator(lambda v, ctx: seen.append((v, ctx.timer_service().current_watermark())))
    chain = Chain(marks, late, outputs=[(0,)], fused=fused, capacity=2)
    chain.rows(["a", "!", "b"], [1, 2, 3])
    assert chain.output == [("a", 1), ("!", 2), Watermark(2), ("b", 3)]
    assert [mark for _, mark in seen][:2] == [-(2**63)] * 2 and seen[2] == ("b", 2)


def test_a_stream_that_falls_silent_becomes_idle_and_wakes_up(fused):
    operator = TimestampsAndWatermarksOperator(strategy().with_idleness(300))
    chain = Chain(operator, fused=fused)
    chain.rows([1], [10]).time(200).time(400).time(600).time(800)
    assert chain.output == [(1, 10), Watermark(7), WatermarkStatus(True)]
    chain.rows([2], [20]).time(1_000)
    assert chain.output[3:] == [(2, 20), WatermarkStatus(False), Watermark(17)]


@pytest.mark.parametrize("times", [None, [5]])
def test_an_error_of_an_assigner_that_takes_the_time_of_the_record_names_it(fused, times):
    operator = TimestampsAndWatermarksOperator(strategy().with_timestamp_assigner(lambda v, given: v[given]))
    with pytest.raises(UserFunctionError, match="timestamp assigner") as caught:
        Chain(operator, fused=fused).rows([{1: 1}], times)
    assert type(caught.value.__cause__) is KeyError and caught.value.fields["record"] == "{1: 1}"


@pytest.mark.parametrize("time", [2**63, -(2**63), 2**70])
def test_a_time_beyond_64_bits_is_refused(fused, time):
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda v: v)
    with pytest.raises(UserFunctionError, match=f"between .* got {time}"):
        Chain(TimestampsAndWatermarksOperator(strategy), fused=fused).rows([1, time])


def test_a_time_that_is_no_int_is_refused(fused):
    operator = TimestampsAndWatermarksOperator(strategy().with_timestamp_assigner(lambda v: 1.5))
    with pytest.raises(UserFunctionError, match="must be an int of milliseconds(.|\n)*timestamp assigner"):
        Chain(operator, fused=fused).rows([1])


# ---- sinks --------------------------------------------------------------------------------------


class RememberingSink(Sink):
    def __init__(self, keeps_values=True, batches=False, column=False):
        self.keeps_values, self.batches, self.takes_columns = keeps_values, batches, column

    def create_writer(self, context):
        self.context = context
        self.writer = (BatchWriter if self.batches else RecordWriter)(self.keeps_values)
        return self.writer


class RecordWriter(SinkWriter):
    def __init__(self, keeps_values):
        self.keeps_values = keeps_values
        self.calls = []

    def write(self, value, timestamp_ms, watermark_ms):
        self.calls.append((value, timestamp_ms, watermark_ms))

    def write_columns(self, columns, timestamps_ms, watermark_ms):
        self.calls.append((columns.to_pylist(), timestamps_ms, watermark_ms))

    def write_watermark(self, watermark_ms):
        self.calls.append(("watermark", watermark_ms))

    def flush(self, end_of_input):
        self.calls.append(("flush", end_of_input))

    def prepare_commit(self):
        return ["file 1"]

    def handle_coordinator_event(self, payload):
        self.calls.append(("event", payload))

    def close(self):
        self.calls.append("close")


class BatchWriter(RecordWriter):
    def write_batch(self, values, timestamps_ms, watermark_ms):
        self.calls.append((values, timestamps_ms, watermark_ms))


def test_a_sink_writer_gets_records_watermarks_and_its_life(fused):
    sink = RememberingSink()
    chain = Chain(SinkOperator(sink), outputs=[], fused=fused)
    chain.watermark(3).rows(["a", "b"], [1, 2])
    chain.chain.on_idle()
    chain.chain.handle_operator_event("id-0", SinkPayload(pickle.dumps("hello")))
    chain.end().close()
    assert sink.writer.calls == [
        ("watermark", 3), ("a", 1, 3), ("b", 2, 3), ("flush", False), ("event", "hello"),
        ("flush", True), "close",
    ]  # fmt: skip
    assert [(op, cloudpickle.loads(e.committables)) for op, e in chain.events] == [("id-0", ["file 1"])]
    assert isinstance(chain.events[0][1], SinkCommittables)
    sink.context.send_to_coordinator({"n": 1})
    assert pickle.loads(chain.events[1][1].payload) == {"n": 1}


def test_a_writer_of_batches_gets_the_slice_as_one_batch_in_the_fused_form():
    sink = RememberingSink(batches=True)
    chain = Chain(MapOperator(str), SinkOperator(sink), outputs=[])
    chain.rows([1, 2, 3], size=2).rows([4], [9])
    assert sink.writer.calls == [
        (["1", "2"], None, -(2**63)), (["3"], None, -(2**63)), (["4"], [9], -(2**63))
    ]  # fmt: skip


def test_a_writer_of_batches_gets_what_comes_to_it_by_several_ways(fused):
    """Late records of a window, and what its function yields for the same side output."""
    sink = RememberingSink(batches=True)
    window = WindowOperator(
        TumblingEventTimeWindows.of(10), "apply", None, lambda key, win, values: [(LATE, list(values))],
        allowed_lateness_ms=5, late_data_tag=LATE,
    )  # fmt: skip
    chain = Chain((window, bool), SinkOperator(sink), edges=[(0, 1, LATE)], outputs=[], fused=fused)
    chain.rows([1], [0]).watermark(9).rows([2], [1]).watermark(14).rows([3], [2])
    calls = [call[0] for call in sink.writer.calls if call[0] != "watermark"]
    assert calls == ([[[1]], [[1, 2]], [3]] if fused else [[1], [1, 2], 3])


def test_records_before_the_one_that_failed_reach_the_sink(fused):
    for batches in (True, False):
        sink = RememberingSink(batches=batches)
        chain = Chain(MapOperator(lambda v: 1 // v), SinkOperator(sink), outputs=[], fused=fused)
        with pytest.raises(UserFunctionError):
            chain.rows([1, 0, 1])
        assert sink.writer.calls == ([([1], None, -(2**63))] if batches and fused else [(1, None, -(2**63))])


@pytest.mark.parametrize("keeps", [True, False])
def test_values_are_copied_for_a_writer_that_keeps_them(fused, keeps):
    kept = []

    def remember(v):
        kept.append(v)
        return kept

    sink = RememberingSink(keeps)
    Chain(MapOperator(remember), SinkOperator(sink), outputs=[], fused=fused).rows([1, 2])
    values = [value for value, _, _ in sink.writer.calls]
    assert values == ([[1], [1, 2]] if keeps else [[1, 2], [1, 2]])


def test_a_sink_function_sees_the_context_of_each_record(fused):
    class Invoke(f.SinkFunction):
        def __init__(self):
            self.seen = []

        def invoke(self, value, context):
            self.seen.append((value, context.timestamp(), context.current_watermark()))

    sink = Invoke()
    chain = Chain(SinkOperator(sink), outputs=[], fused=fused)
    chain.rows([1]).watermark(4).rows([2], [5])
    assert sink.seen == [(1, None, -(2**63)), (2, 5, 4)]


def test_a_sink_without_room_holds_the_chain_back():
    sink = RememberingSink()
    chain = Chain(SinkOperator(sink), outputs=[])
    assert chain.chain.sinks_have_room() and chain.chain.sink_descriptors() == []
    sink.writer.has_room, sink.writer.fileno = False, lambda: 42
    assert not chain.chain.sinks_have_room() and chain.chain.sink_descriptors() == [42]
    assert chain.chain.room() == 0


def test_a_sink_says_whether_all_has_left():
    sink = RememberingSink()
    chain = Chain(SinkOperator(sink), outputs=[])
    assert not chain.chain.on_idle() and chain.chain.sink_descriptors() == []
    sink.writer.flushed, sink.writer.fileno = False, lambda: 42
    assert chain.chain.on_idle() and chain.chain.sink_descriptors() == [42]


# ---- columns ------------------------------------------------------------------------------------


def test_columns_become_rows_where_an_operator_takes_rows(fused):
    import numpy as np

    batch = pa.record_batch({"a": [1, None, 3], "b": ["x", "y", None]})
    chain = Chain(ColumnsToRowsOperator(), MapOperator(lambda r: (r.a, r["b"])), fused=fused)
    chain.run(chain.chain.process_batch(0, ColumnBatch(batch, np.array([1, 2, 3])), 1, 3))
    assert chain.output == [((None, "y"), 2), ((3, None), 3)]
    assert type(rows_of(batch)[0]) is Row
    chain.rows([Row(a=7, b="z")])  # rows go through
    assert chain.values[-1] == (7, "z")


def test_a_sink_that_takes_columns_gets_them_as_they_are(fused):
    sink = RememberingSink(column=True)
    chain = Chain(SinkOperator(sink), outputs=[], fused=fused)
    chain.run(chain.chain.process_batch(0, ColumnBatch(pa.record_batch({"a": [1, 2]})), 0, 1))
    assert sink.writer.calls == [([{"a": 1}], None, -(2**63))]


# ---- errors -------------------------------------------------------------------------------------


def boom(*args):
    raise ValueError("boom")


def broken_generator(v):
    yield v
    raise ValueError("boom")


class BrokenTimer(f.KeyedProcessFunction):
    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(5)

    def on_timer(self, timestamp, ctx):
        boom()


class BrokenWriter(RecordWriter):
    write = boom


class BrokenSink(Sink):
    def create_writer(self, context):
        return BrokenWriter(True)


BROKEN = {
    "map": (MapOperator(boom),),
    "second map": (MapOperator(lambda v: v), MapOperator(boom)),
    "filter": (FilterOperator(boom),),
    "flat_map": (FlatMapOperator(boom),),
    "generator": (FlatMapOperator(broken_generator),),
    "process": (ProcessOperator(boom),),
    "keyed process": ((KeyedProcessOperator(boom), lambda v: v),),
    "key selector": ((KeyedProcessOperator(lambda v, c: None), boom),),
    "reduce": ((ReduceOperator(boom), lambda v: 0),),
    "assigner": (TimestampsAndWatermarksOperator(strategy().with_timestamp_assigner(boom)),),
    "sink": (SinkOperator(BrokenSink()),),
    "timer": ((KeyedProcessOperator(BrokenTimer()), lambda v: v),),
}


@pytest.mark.parametrize("where", BROKEN)
def test_an_error_of_user_code_names_operator_subtask_and_record(fused, where):
    operators = BROKEN[where]
    chain = Chain(*operators, fused=fused, outputs=[] if where == "sink" else None)
    with pytest.raises(UserFunctionError) as caught:
        chain.rows(["r1", "r2"], [1, 2]).watermark(10)
    error = caught.value
    operator = operators[-1][0] if isinstance(operators[-1], tuple) else operators[-1]
    assert error.fields["operator"] == f"{type(operator).__name__} {len(operators) - 1}"
    assert error.fields["exception_type"] == "ValueError" and error.fields["exception_message"] == "boom"
    assert error.fields["subtask"] == 1
    record = error.fields["record"]
    assert {"reduce": "'r2'", "timer": "<event_time timer 5 of key 'r1'>"}.get(where, "'r1'") == record
    text = str(error)
    lines = text.splitlines()
    assert lines[0] == "Traceback (most recent call last):" and "test_chain.py" in lines[1]
    assert "flinkish/operators" not in text
    assert lines[-2] == "ValueError: boom" and "subtask 1 of 3" in lines[-1] and record in lines[-1]
    assert str(pickle.loads(pickle.dumps(error))) == text


def test_a_key_selector_that_is_not_called_fails_with_the_users_line(fused):
    chain = Chain((KeyedProcessOperator(lambda v, c: None), lambda v: v["user"]), fused=fused)
    with pytest.raises(UserFunctionError) as caught:
        chain.rows([{"user": 1}, {"usr": 2}])
    assert caught.value.fields["record"] == "{'usr': 2}" and "key selector" in str(caught.value)
    assert 'lambda v: v["user"]' in str(caught.value) and "flinkish/operators" not in str(caught.value)


def test_stop_iteration_of_a_map_is_an_error_and_not_the_end(fused):
    stops = MapOperator(lambda v: next(iter(())))
    for operators in ([stops], [stops, FlatMapOperator(list)]):
        with pytest.raises(UserFunctionError) as caught:
            Chain(*operators, fused=fused).rows([1])
        assert caught.value.fields["exception_type"] == "StopIteration"
        assert caught.value.fields["record"] == "1"


class RunsDry(f.ProcessFunction):
    def process_element(self, value, ctx):
        yield next(iter(()))


def runs_dry(value):
    yield value
    next(iter(()))


@pytest.mark.parametrize("operator", [FlatMapOperator(runs_dry), ProcessOperator(RunsDry())])
def test_stop_iteration_inside_a_generator_of_the_users_names_operator_and_record(fused, operator):
    with pytest.raises(UserFunctionError, match="StopIteration") as caught:
        Chain(operator, MapOperator(str), fused=fused).rows(["r"])
    assert caught.value.fields["record"] == "'r'" and "Operator 0" in caught.value.fields["operator"]
    assert "next(iter(()))" in str(caught.value)


def test_a_result_that_cannot_be_iterated_is_the_users_error(fused):
    with pytest.raises(UserFunctionError, match=r"'int' object is not iterable(.|\n)*on record 'r'"):
        Chain(FlatMapOperator(lambda v: 5), fused=fused).rows(["r"])


class Returns(f.ProcessFunction):
    def process_element(self, value, ctx):
        return 5


class ReturnsWhenTimerFires(f.KeyedProcessFunction):
    def process_element(self, value, ctx):
        ctx.timer_service().register_event_time_timer(1)

    def on_timer(self, timestamp, ctx):
        return 5


def five(value):
    return 5


def test_a_result_that_cannot_be_iterated_names_the_function_with_file_and_line(fused):
    cases = [
        (FlatMapOperator(five), "flat_map", "five"),
        (FlatMapOperator(functools.partial(five)), "flat_map", "five"),
        (ProcessOperator(Returns()), "process_element", "Returns.process_element"),
        (ProcessOperator(process_function_of(lambda v, ctx: 5)), "process", "<lambda>"),
    ]
    if fused:
        cases.append((CoFlatMapOperator(CallableCoFlatMapFunction(five, five)), "flat_map1", "five"))
    for operator, role, name in cases:
        with pytest.raises(UserFunctionError) as caught:
            Chain(operator, fused=fused).rows(["r"])
        error = caught.value
        says = f'{role} must return an iterable or yield: return [x] ({name}, File "{__file__}", line '
        assert says in str(error)
        assert error.fields["exception_type"] == "TypeError" and error.fields["record"] == "'r'"
        assert "<flinkish chain" not in str(error)


def test_a_timer_that_returns_what_cannot_be_iterated_names_its_function(fused):
    chain = Chain((KeyedProcessOperator(ReturnsWhenTimerFires()), len), fused=fused)
    chain.rows(["r"])
    with pytest.raises(UserFunctionError, match="on_timer must return an iterable or yield") as caught:
        chain.watermark(5)
    assert f'(ReturnsWhenTimerFires.on_timer, File "{__file__}", line ' in str(caught.value)


class RefusingWriter(SinkWriter):
    def write(self, value, timestamp_ms, watermark_ms):
        raise UserError("could not write a record", where="record 1", do="map() it")


class RefusingBatchWriter(RefusingWriter):
    def write_batch(self, values, timestamps_ms, watermark_ms):
        self.write(values[0], None, watermark_ms)


class RefusingSink(Sink):
    def __init__(self, writer):
        self.writer = writer

    def create_writer(self, context):
        return self.writer()


@pytest.mark.parametrize("writer", [RefusingWriter, RefusingBatchWriter])
def test_what_a_sink_refuses_names_the_sink(fused, writer):
    chain = Chain(MapOperator(str), SinkOperator(RefusingSink(writer)), outputs=[], name="sink a", fused=fused)
    with pytest.raises(UserError) as caught:
        chain.rows([1])
    error = caught.value
    assert type(error) is UserError
    assert (error.what, error.do) == ("could not write a record", "map() it")
    assert error.where == 'operator "sink a", subtask 1 of 3, record 1'
    assert pickle.loads(pickle.dumps(error)).fields == {"operator": "sink a"}


def test_a_type_error_inside_of_an_iterator_stays_as_it_is(fused):
    def breaks(value):
        return map(lambda v: v + 1, [value])

    with pytest.raises(UserFunctionError, match="can only concatenate str") as caught:
        Chain(FlatMapOperator(breaks), fused=fused).rows(["r"])
    assert "must return" not in str(caught.value)


def test_sys_exit_in_user_code_does_not_end_the_slot(fused):
    def leave(v):
        raise SystemExit(3)

    with pytest.raises(UserFunctionError):
        Chain(MapOperator(leave), fused=fused).rows([1])


def test_a_cancelled_task_passes_through(fused):
    def cancelled(v):
        raise TaskCancelled

    with pytest.raises(TaskCancelled):
        Chain(MapOperator(cancelled), fused=fused).rows([1])


def test_a_long_or_broken_repr_of_a_record_is_bounded(fused):
    class Bad:
        def __repr__(self):
            raise RuntimeError("no repr")

    with pytest.raises(UserFunctionError) as caught:
        Chain(MapOperator(boom), fused=fused).rows(["x" * 1_000])
    assert len(caught.value.fields["record"]) == 200
    with pytest.raises(UserFunctionError, match="whose repr raised RuntimeError"):
        Chain(MapOperator(boom), fused=fused).rows([Bad()])


class Unstable:
    pass


@pytest.mark.parametrize("key", [[1], {"a": 1}, Unstable(), {1}], ids=lambda key: type(key).__name__)
def test_a_key_that_is_not_stable_is_refused_by_operator_type_and_advice(fused, key):
    chain = Chain((ReduceOperator(max), lambda v: key), fused=fused, name="per key")
    with pytest.raises(UnstableKeyError) as caught:
        chain.rows([1])
    assert 'operator "per key"' in caught.value.where
    assert type(key).__name__ in caught.value.fields["key_type"] and caught.value.do


def test_a_key_refused_by_a_writer_names_the_operator_before_it(fused):
    from flinkish.datastream.partitioners import KeyGroupPartitioner
    from flinkish.state.key_groups import KeyMemo

    memo = KeyMemo(lambda key: key)

    def generate(code, value, timestamp):
        key = code.variable("key")
        code.line(f"{key} = {value}")
        code.look_up_key(memo, key, code.variable("found"))

    def emit(value, timestamp):
        try:
            memo[value]
        except (TypeError, ValueError):
            memo.compute(value)

    by_value = KeyGroupPartitioner(lambda v: v)
    chain = Chain(MapOperator(lambda v: v), partitioner=by_value, fused=fused, name="mapper")
    chain.writers[0].generate, chain.writers[0].emit = generate, emit
    chain.chain.open()  # again, now with that writer
    with pytest.raises(UnstableKeyError, match="list") as caught:
        chain.rows([[1]])
    assert "mapper" in caught.value.where


def test_operators_open_and_close_from_the_tail_to_the_head(fused):
    log = []

    class Noting(f.MapFunction):
        def __init__(self, name, broken=False):
            self.name, self.broken = name, broken

        def open(self, context):
            log.append(("open", self.name))
            if self.broken:
                boom()

        def close(self):
            log.append(("close", self.name))

        def map(self, value):
            return value

    chain = Chain(MapOperator(Noting("head")), MapOperator(Noting("tail")), fused=fused)
    chain.close()
    chain.close()
    assert log == [("open", "tail"), ("open", "head"), ("close", "tail"), ("close", "head")]
    log.clear()
    with pytest.raises(UserFunctionError, match="failed in its open"):
        Chain(MapOperator(Noting("head")), MapOperator(Noting("tail", True)), fused=fused)
    assert log == [("open", "tail")]


def test_close_reaches_every_operator_and_raises_the_first_failure(fused):
    log = []

    class Closing(f.MapFunction):
        def __init__(self, name):
            self.name = name

        def close(self):
            log.append(self.name)
            raise ValueError(self.name)

        def map(self, value):
            return value

    chain = Chain(MapOperator(Closing("a")), MapOperator(Closing("b")), fused=fused)
    with pytest.raises(UserFunctionError) as caught:
        chain.close()
    assert log == ["b", "a"] and caught.value.fields["exception_message"] == "b"


def test_the_generated_code_can_be_shown_and_is_forgotten_at_the_end():
    import linecache

    chain = Chain(MapOperator(lambda v: v))
    assert "def rows_1(values):" in chain.chain.source_text
    names = [name for name in linecache.cache if name.startswith("<flinkish chain")]
    chain.close()
    assert len([name for name in linecache.cache if name.startswith("<flinkish chain")]) == len(names) - 1


def test_the_runtime_context_knows_the_subtask(fused):
    found = {}

    class Ask(f.MapFunction):
        def open(self, context):
            found.update(
                name=context.get_task_name(), index=context.get_index_of_this_subtask(),
                parallelism=context.get_number_of_parallel_subtasks(),
                most=context.get_max_number_of_parallel_subtasks(), attempt=context.get_attempt_number(),
                full=context.get_task_name_with_subtasks(), a=context.get_job_parameter("a"),
                b=context.get_job_parameter("b", "default"),
            )  # fmt: skip

        def map(self, value):
            return value

    Chain(MapOperator(Ask()), fused=fused, job_parameters={"a": "1"})
    assert found == {
        "name": "task", "index": 1, "parallelism": 3, "most": 128, "attempt": 0, "full": "task (2/3)",
        "a": "1", "b": "default",
    }  # fmt: skip


def test_generator_functions_of_classes_need_no_test_for_none():
    assert "is not None" not in Chain((KeyedProcessOperator(RunningSum()), FIRST)).chain.source_text
