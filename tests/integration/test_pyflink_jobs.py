"""Whole jobs in PyFlink's API: what they say is what a PyFlink program says, with ``flinkish`` for
``pyflink``.  The expected values are Flink's."""

import datetime
import decimal
import json
import textwrap
from collections import Counter

import numpy
import pytest

from flinkish.common import Duration, Encoder, Row, Time, Types, WatermarkStrategy
from flinkish.common.accumulators import IntMaximum
from flinkish.common.watermark_strategy import TimestampAssigner
from flinkish.connectors.collect_sink import CollectSink
from flinkish.datastream import StreamExecutionEnvironment, TimeWindow
from flinkish.datastream.connectors.file_system import FileSink, OutputFileConfig, RollingPolicy
from flinkish.datastream.connectors.number_seq import NumberSequenceSource
from flinkish.datastream.functions import (
    AggregateFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    FilterFunction,
    FlatMapFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    Partitioner,
    ProcessFunction,
    ProcessWindowFunction,
    ReduceFunction,
    RuntimeContext,
    SinkFunction,
    WindowFunction,
)
from flinkish.datastream.output_tag import OutputTag
from flinkish.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from flinkish.datastream.window import (
    CountWindow,
    EventTimeSessionWindows,
    SessionWindowTimeGapExtractor,
    SlidingEventTimeWindows,
    TumblingEventTimeWindows,
)
from flinkish.errors import UserFunctionError
from flinkish.testing.mini_cluster import MiniCluster


@pytest.fixture(scope="module")
def cluster():
    with MiniCluster(slots=2) as cluster:
        yield cluster


@pytest.fixture
def env(cluster):
    StreamExecutionEnvironment.set_context(cluster=cluster)
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    yield env
    StreamExecutionEnvironment.reset_context()


def results_of(**streams):
    """Records of several streams of one job, by name."""
    sinks = {name: CollectSink() for name in streams}
    for name, stream in streams.items():
        stream.sink_to(sinks[name])
    job = next(iter(streams.values())).get_execution_environment().execute_async()
    records = {name: list(sink.results()) for name, sink in sinks.items()}
    job.get_job_execution_result().result(20_000)
    return records


class SecondField(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp) -> int:
        return int(value[1])


def by_second_field(stream, strategy=None):
    strategy = strategy or WatermarkStrategy.for_monotonous_timestamps()
    return stream.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner(SecondField()))


WORD_COUNT = """
    from pyflink.common import Encoder, Types, WatermarkStrategy
    from pyflink.datastream import StreamExecutionEnvironment
    from pyflink.datastream.connectors import (
        FileSink, FileSource, OutputFileConfig, RollingPolicy, StreamFormat)

    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    lines = env.from_source(
        source=FileSource.for_record_stream_format(StreamFormat.text_line_format(), INPUT)
        .process_static_file_set()
        .build(),
        watermark_strategy=WatermarkStrategy.for_monotonous_timestamps(),
        source_name="lines",
    )

    def words(line):
        yield from line.split()

    counts = (
        lines.flat_map(words)
        .map(lambda word: (word, 1), output_type=Types.TUPLE([Types.STRING(), Types.INT()]))
        .key_by(lambda count: count[0])
        .reduce(lambda a, b: (a[0], a[1] + b[1]))
    )
    counts.sink_to(
        sink=FileSink.for_row_format(base_path=OUTPUT, encoder=Encoder.simple_string_encoder())
        .with_output_file_config(
            OutputFileConfig.builder().with_part_prefix("count").with_part_suffix(".txt").build())
        .with_rolling_policy(RollingPolicy.default_rolling_policy())
        .build()
    )
    counts.print("count")
    env.execute("word count")
"""


def test_a_program_text_runs_once_pyflink_is_flinkish_and_writes_flinks_lines(env, tmp_path, capsys):
    (tmp_path / "in.txt").write_text("to be or\nnot to be\n")
    program = textwrap.dedent(WORD_COUNT).replace("pyflink", "flinkish")
    exec(program, {"INPUT": str(tmp_path / "in.txt"), "OUTPUT": str(tmp_path / "out")})
    lines = ["(to,1)", "(be,1)", "(or,1)", "(not,1)", "(to,2)", "(be,2)"]
    (part,) = (tmp_path / "out").iterdir()
    assert part.name.startswith("count-") and part.name.endswith(".txt")
    assert part.read_text().splitlines() == lines
    assert capsys.readouterr().out.splitlines() == [f"count> {line}" for line in lines]


class HasEvenLength(FlatMapFunction):
    def flat_map(self, value):
        if value[1] % 2 == 0:
            yield value


class IsLong(FilterFunction):
    def filter(self, value):
        return value[1] > 2


class ToRow(MapFunction):
    def map(self, value):
        return Row(value[0], value[1] + 1, value[2])


def test_results_take_the_form_of_their_declared_type(env):
    lengths = Types.TUPLE([Types.STRING(), Types.INT(), Types.BIG_DEC()])
    words = env.from_collection(
        [("ab", Row("a", decimal.Decimal(1))), ("abcd", Row("b", decimal.Decimal(2)))],
        type_info=Types.TUPLE([Types.STRING(), Types.ROW([Types.STRING(), Types.BIG_DEC()])]),
    )
    rows = (
        words.map(lambda w: [w[0], len(w[0]), w[1][1]], output_type=lengths)
        .flat_map(HasEvenLength(), output_type=lengths)
        .filter(IsLong())
        .map(ToRow(), output_type=Types.ROW([Types.STRING(), Types.INT(), Types.BIG_DEC()]))
    )
    named = env.from_sequence(1, 2).map(
        lambda n: (n, n),
        output_type=Types.ROW_NAMED(["id", "price"], [Types.LONG(), Types.DOUBLE()]),
    )
    tag = OutputTag("pairs", Types.ROW_NAMED(["a", "b"], [Types.LONG(), Types.LONG()]))

    class Pairs(ProcessFunction):
        def process_element(self, value, ctx: "ProcessFunction.Context"):
            yield str(value)
            yield tag, (value.id, value.id * 2)

    texts = named.process(Pairs(), output_type=Types.STRING())
    everything = env.from_collection(
        [
            (
                [1.5, 2.5], [None, "a"], datetime.date(2021, 1, 9), datetime.time(12),
                datetime.datetime(2021, 1, 9, 12, 0, 0, 11_000), (1, 2), {"a": 1},
            )
        ],
        type_info=Types.ROW(
            [
                Types.PRIMITIVE_ARRAY(Types.FLOAT()), Types.BASIC_ARRAY(Types.STRING()),
                Types.SQL_DATE(), Types.SQL_TIME(), Types.SQL_TIMESTAMP(), Types.LIST(Types.INT()),
                Types.MAP(Types.STRING(), Types.INT()),
            ]
        ),
    )  # fmt: skip
    found = results_of(
        rows=rows,
        prices=named.key_by(lambda r: r.id).sum("price").map(lambda r: (r.id, repr(r.price))),
        texts=texts,
        pairs=texts.get_side_output(tag).map(lambda pair: pair.b - pair.a),
        everything=everything.map(str),
    )
    assert found["rows"] == [Row(f0="abcd", f1=5, f2=decimal.Decimal(2))]
    assert sorted(found["prices"]) == [(1, "1.0"), (2, "2.0")]
    assert sorted(found["texts"]) == ["Row(id=1, price=1.0)", "Row(id=2, price=2.0)"]
    assert sorted(found["pairs"]) == [1, 2]
    assert found["everything"] == [
        "Row(f0=[1.5, 2.5], f1=[None, 'a'], f2=datetime.date(2021, 1, 9), f3=datetime.time(12, 0), "
        "f4=datetime.datetime(2021, 1, 9, 12, 0, 0, 11000), f5=[1, 2], f6={'a': 1})"
    ]


class SecondFieldSelector(KeySelector):
    def get_key(self, value):
        return value[1]


class JoinedNames(ReduceFunction):
    def open(self, runtime_context: RuntimeContext):
        self.calls = runtime_context.get_state(ValueStateDescriptor("calls", Types.INT()))

    def reduce(self, value1, value2):
        self.calls.update((self.calls.value() or 0) + 1)
        return Row(f"{value1[0]}{value2[0]}{self.calls.value()}", value1[1])


class CountOfKey(MapFunction):
    def open(self, runtime_context: RuntimeContext):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.INT()))

    def map(self, value):
        self.count.update((self.count.value() or 0) + 1)
        return value[0], self.count.value()


def test_keyed_aggregates_reduce_and_map_with_state(env):
    env.set_parallelism(1)
    names = env.from_collection(
        [("a", 0), ("c", 1), ("d", 1), ("b", 0), ("e", 1)],
        type_info=Types.ROW([Types.STRING(), Types.INT()]),
    )
    keyed = names.key_by(SecondFieldSelector(), key_type=Types.INT())
    numbers = env.from_collection(
        [(1, 1), (1, 2), (1, 3), (2, 5), (2, 1)],
        type_info=Types.ROW_NAMED(["v1", "v2"], [Types.INT(), Types.INT()]),
    )
    sums = (
        numbers.key_by(lambda x: x[0])
        .sum("v2")
        .key_by(lambda x: x[0])
        .sum(1)
        .map(lambda x: (x[1], x[0]), output_type=Types.TUPLE([Types.INT(), Types.INT()]))
        .key_by(lambda x: x[1])
        .sum()
    )
    triples = env.from_collection([("k", 3, 0), ("k", 1, 1), ("k", 1, 2), ("k", 5, 3)])
    by_name = triples.key_by(lambda t: t[0])
    found = results_of(
        joined=keyed.reduce(JoinedNames()),
        counts=keyed.map(CountOfKey()),
        sums=sums,
        min=by_name.min(1),
        min_by=by_name.min_by(1),
        max=by_name.max(1),
        max_by=by_name.max_by(1),
        words=env.from_collection(["b", "a", "c"]).key_by(lambda word: 0).min(),
    )
    assert Counter(row[0] for row in found["joined"]) == Counter(["a", "ab1", "c", "cd1", "cd1e2"])
    assert sorted(found["counts"]) == [("a", 1), ("b", 2), ("c", 1), ("d", 2), ("e", 3)]
    assert sorted(found["sums"]) == [(1, 1), (5, 1), (5, 2), (15, 1), (16, 2)]
    assert found["min"] == [("k", 3, 0), ("k", 1, 0), ("k", 1, 0), ("k", 1, 0)]
    assert found["min_by"] == [("k", 3, 0), ("k", 1, 1), ("k", 1, 1), ("k", 1, 1)]
    assert found["max"] == [("k", 3, 0), ("k", 3, 0), ("k", 3, 0), ("k", 5, 0)]
    assert found["max_by"] == [("k", 3, 0), ("k", 3, 0), ("k", 3, 0), ("k", 5, 3)]
    assert found["words"] == ["b", "a", "a"]


class Total(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + value

    def get_result(self, accumulator):
        return accumulator

    def merge(self, acc_a, acc_b):
        return acc_a + acc_b


class EveryState(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.last = runtime_context.get_state(ValueStateDescriptor("last", Types.INT()))
        self.all = runtime_context.get_list_state(ListStateDescriptor("all", Types.INT()))
        self.seen = runtime_context.get_map_state(
            MapStateDescriptor("seen", Types.INT(), Types.STRING())
        )
        self.sum = runtime_context.get_reducing_state(
            ReducingStateDescriptor("sum", lambda a, b: a + b, Types.INT())
        )
        self.total = runtime_context.get_aggregating_state(
            AggregatingStateDescriptor("total", Total(), Types.INT())
        )

    def process_element(self, value, ctx: "KeyedProcessFunction.Context"):
        before = (self.last.value(), list(self.all.get()), self.seen.is_empty(), self.sum.get())
        self.last.update(value[1])
        self.all.add(value[1])
        self.seen.put(value[1], value[0])
        self.sum.add(value[1])
        self.total.add(value[1])
        yield (
            before, self.sum.get(), self.total.get(), sorted(self.seen.items()), 99 in self.seen,
            ctx.get_current_key(), ctx.timestamp(), ctx.timer_service().current_watermark(),
        )  # fmt: skip
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 2)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 1)
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 1)
        ctx.timer_service().delete_event_time_timer(ctx.timestamp() + 2)

    def on_timer(self, timestamp: int, ctx: "KeyedProcessFunction.OnTimerContext"):
        yield (
            "timer", timestamp, ctx.time_domain().name, ctx.get_current_key(), ctx.timestamp(),
            list(self.all.get()),
        )  # fmt: skip


class TimeOf(ProcessFunction):
    def process_element(self, value, ctx):
        yield value, ctx.timestamp()


def test_keyed_process_functions_have_every_kind_of_state_and_event_time_timers(env):
    pairs = by_second_field(
        env.from_collection(
            [("a", 5), ("b", 3), ("a", 9)], type_info=Types.TUPLE([Types.STRING(), Types.INT()])
        )
    )
    results = pairs.key_by(lambda x: x[0], key_type=Types.STRING()).process(EveryState())
    found = results_of(timed=results.process(TimeOf()))["timed"]
    lowest = -(2**63)
    of_a = [record for record in found if "a" in record[0]]
    assert of_a == [
        (((None, [], True, None), 5, 5, [(5, "a")], False, "a", 5, lowest), 5),
        (((5, [5], False, 5), 14, 14, [(5, "a"), (9, "a")], False, "a", 9, lowest), 9),
        (("timer", 6, "EVENT_TIME", "a", 6, [5, 9]), 6),
        (("timer", 10, "EVENT_TIME", "a", 10, [5, 9]), 10),
    ]
    assert len(found) == 6


class ExpiringSum(KeyedProcessFunction):
    """As in PyFlink's published example of state access."""

    def open(self, runtime_context: RuntimeContext):
        state_ttl_config = (
            StateTtlConfig.new_builder(Time.hours(1))
            .set_update_type(StateTtlConfig.UpdateType.OnReadAndWrite)
            .disable_cleanup_in_background()
            .build()
        )
        descriptor = ValueStateDescriptor("state", Types.FLOAT())
        descriptor.enable_time_to_live(state_ttl_config)
        self.state = runtime_context.get_state(descriptor)

    def process_element(self, value, ctx: "KeyedProcessFunction.Context"):
        self.state.update((self.state.value() or 0) + value[1])
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 60_000)

    def on_timer(self, timestamp: int, ctx: "KeyedProcessFunction.OnTimerContext"):
        yield ctx.get_current_key(), self.state.value()


def test_state_may_have_a_time_to_live(env):
    pairs = by_second_field(env.from_collection([("a", 1), ("b", 2), ("a", 3), ("b", 4)]))
    found = results_of(sums=pairs.key_by(lambda x: x[0]).process(ExpiringSum()))["sums"]
    assert sorted(found) == [("a", 4), ("a", 4), ("b", 6), ("b", 6)]


class Present(CoMapFunction):
    def map1(self, value):
        return value[1] if value[1] > 1 else None

    def map2(self, value):
        return -value[1]


class Distinct(CoFlatMapFunction):
    def open(self, runtime_context: RuntimeContext):
        self.seen = runtime_context.get_map_state(
            MapStateDescriptor("seen", Types.STRING(), Types.BOOLEAN())
        )

    def flat_map1(self, value):
        yield value[0]
        yield value[0]

    def flat_map2(self, value):
        if value[0] not in self.seen:
            self.seen[value[0]] = True
            yield f"new {value[0]}"


SIDE = OutputTag("side", Types.INT())


class Split(CoProcessFunction):
    def process_element1(self, value, ctx: "CoProcessFunction.Context"):
        yield value[0]
        yield SIDE, value[1]

    def process_element2(self, value, ctx: "CoProcessFunction.Context"):
        yield SIDE, value[1] * 10


class CountBoth(KeyedCoProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.INT()))

    def _count(self, value, ctx):
        self.count.update((self.count.value() or 0) + 1)
        ctx.timer_service().register_event_time_timer(100)
        return [Row(value[0], self.count.value())]

    process_element1 = process_element2 = _count

    def on_timer(self, timestamp: int, ctx: "KeyedCoProcessFunction.OnTimerContext"):
        return [Row(f"end of {ctx.get_current_key()}", self.count.value())]


def test_connected_streams_with_and_without_keys(env):
    kind = Types.ROW([Types.STRING(), Types.INT()])
    one = by_second_field(env.from_collection([("a", 1), ("b", 2)], type_info=kind))
    two = by_second_field(env.from_collection([("b", 2), ("b", 3)], type_info=kind))
    both = one.connect(two)
    split = both.process(Split(), output_type=Types.STRING())
    found = results_of(
        mapped=both.map(Present()),
        distinct=both.key_by(lambda x: x[0], lambda x: x[0]).flat_map(Distinct(), Types.STRING()),
        main=split,
        side=split.get_side_output(SIDE),
        counted=one.key_by(lambda x: x[0]).connect(two.key_by(lambda x: x[0])).process(CountBoth()),
        united=one.union(two, one).map(lambda x: x[1]),
    )
    assert sorted(found["mapped"]) == [-3, -2, 2]  # None is no result
    assert Counter(found["distinct"]) == Counter(["a", "a", "b", "b", "new b"])
    assert sorted(found["main"]) == ["a", "b"] and sorted(found["side"]) == [1, 2, 20, 30]
    assert Counter(map(str, found["counted"])) == Counter(
        ["<Row('a', 1)>", "<Row('b', 1)>", "<Row('b', 2)>", "<Row('b', 3)>",
         "<Row('end of a', 1)>", "<Row('end of b', 3)>"]
    )  # fmt: skip
    assert sorted(found["united"]) == [1, 1, 2, 2, 2, 3]


class CountOfWindow(ProcessWindowFunction[tuple, tuple, str, TimeWindow]):
    def process(self, key, context: ProcessWindowFunction.Context[TimeWindow], elements):
        return [(key, context.window().start, context.window().end, len([e for e in elements]))]

    def clear(self, context: ProcessWindowFunction.Context) -> None:
        pass


class SumOfWindow(WindowFunction[tuple, tuple, str, TimeWindow]):
    def apply(self, key, window: TimeWindow, inputs):
        yield key, window.max_timestamp(), sum(value[1] for value in inputs)


class Average(AggregateFunction):
    def create_accumulator(self):
        return 0, 0

    def add(self, value, accumulator):
        return accumulator[0] + value[1], accumulator[1] + 1

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]

    def merge(self, acc_a, acc_b):
        return acc_a[0] + acc_b[0], acc_a[1] + acc_b[1]


def test_tumbling_event_time_windows_in_every_form(env):
    env.set_parallelism(1)
    pairs = by_second_field(
        env.from_collection(
            [("hi", time) for time in (1, 2, 3, 4, 5, 8, 9, 15)],
            type_info=Types.TUPLE([Types.STRING(), Types.INT()]),
        ),
        WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(1)),
    )
    windows = pairs.key_by(lambda x: x[0], key_type=Types.STRING()).window(
        TumblingEventTimeWindows.of(Time.milliseconds(5))
    )
    quadruple = Types.TUPLE([Types.STRING(), Types.INT(), Types.INT(), Types.INT()])
    found = results_of(
        processed=windows.process(CountOfWindow(), quadruple),
        applied=windows.apply(SumOfWindow(), Types.TUPLE([Types.STRING(), Types.LONG(), Types.INT()])),
        reduced=windows.reduce(lambda a, b: (a[0], a[1] + b[1])).process(TimeOf()),
        averages=windows.aggregate(
            Average(),
            accumulator_type=Types.TUPLE([Types.LONG(), Types.LONG()]),
            output_type=Types.DOUBLE(),
        ),
        both=windows.aggregate(Average(), window_function=CountOfWindow(), output_type=quadruple),
    )
    assert found["processed"] == [("hi", 0, 5, 4), ("hi", 5, 10, 3), ("hi", 15, 20, 1)]
    assert found["applied"] == [("hi", 4, 10), ("hi", 9, 22), ("hi", 19, 15)]
    assert found["reduced"] == [(("hi", 10), 4), (("hi", 22), 9), (("hi", 15), 19)]
    assert found["averages"] == [2.5, 22 / 3, 15.0]
    assert [result[3] for result in found["both"]] == [1, 1, 1]


class GapOfRecord(SessionWindowTimeGapExtractor):
    def extract(self, element: tuple) -> int:
        return element[1]


class SumOfCountWindow(WindowFunction[tuple, tuple, str, CountWindow]):
    def apply(self, key: str, window: CountWindow, inputs):
        return [(key, sum(value[0] for value in inputs))]


def test_sliding_session_and_count_windows(env):
    """The data of PyFlink's examples of windows."""
    env.set_parallelism(1)
    pair = Types.TUPLE([Types.STRING(), Types.INT()])
    times = [("hi", time) for time in (1, 2, 3, 4, 5, 8, 9, 15)]
    gaps = [("hi", time) for time in (1, 2, 3, 4, 9, 9, 15)]
    counted = [(1, "hi"), (2, "hello"), (3, "hi"), (4, "hello"), (5, "hi"), (6, "hello"), (6, "hello")]
    keyed = by_second_field(env.from_collection(times, pair)).key_by(lambda x: x[0], key_type=Types.STRING())
    with_gaps = by_second_field(env.from_collection(gaps, pair)).key_by(lambda x: x[0], key_type=Types.STRING())
    numbers = env.from_collection(counted, Types.TUPLE([Types.INT(), Types.STRING()]))
    quadruple = Types.TUPLE([Types.STRING(), Types.INT(), Types.INT(), Types.INT()])
    sliding = SlidingEventTimeWindows.of(Time.milliseconds(5), Time.milliseconds(2))
    found = results_of(
        sliding=keyed.window(sliding).process(CountOfWindow(), quadruple),
        fixed=keyed.window(EventTimeSessionWindows.with_gap(Time.milliseconds(5))).process(CountOfWindow(), quadruple),
        dynamic=with_gaps.window(EventTimeSessionWindows.with_dynamic_gap(GapOfRecord())).process(
            CountOfWindow(), quadruple
        ),
        counts=numbers.key_by(lambda x: x[1], key_type=Types.STRING()).count_window(3).apply(SumOfCountWindow(), pair),
        whole=numbers.count_window_all(7).sum(0),
    )
    assert found["sliding"] == [
        ("hi", -2, 3, 2), ("hi", 0, 5, 4), ("hi", 2, 7, 4), ("hi", 4, 9, 3), ("hi", 6, 11, 2), ("hi", 8, 13, 2),
        ("hi", 12, 17, 1), ("hi", 14, 19, 1),
    ]  # fmt: skip
    assert found["fixed"] == [("hi", 1, 14, 7), ("hi", 15, 20, 1)]
    assert found["dynamic"] == [("hi", 1, 8, 4), ("hi", 9, 30, 3)]
    assert found["counts"] == [("hi", 9), ("hello", 12)]
    assert found["whole"] == [(27, "hi")]


class Modulo(Partitioner):
    def partition(self, key, num_partitions):
        return key % num_partitions


class WithSubtask(MapFunction):
    def open(self, runtime_context: RuntimeContext):
        self.subtask = runtime_context.get_index_of_this_subtask()

    def map(self, value):
        return value, self.subtask


def test_partitioners_and_ordered_results_in_the_driver(env):
    numbers = env.from_collection([0, 1, 2, 3], Types.INT())
    found = results_of(
        custom=numbers.partition_custom(Modulo(), lambda n: n).map(WithSubtask()),
        broadcast=numbers.broadcast().map(WithSubtask()),
        rebalanced=numbers.rebalance().map(WithSubtask()).name("spread").uid("spread"),
        projected=env.from_collection(
            [[1, 2, 3], [4, 5, 6]], type_info=Types.TUPLE([Types.INT()] * 3)
        ).project(2, 0),
    )
    assert sorted(found["custom"]) == [(0, 0), (1, 1), (2, 0), (3, 1)]
    assert Counter(found["broadcast"]) == Counter((n, i) for n in range(4) for i in range(2))
    assert Counter(subtask for _, subtask in found["rebalanced"]) == Counter({0: 2, 1: 2})
    assert sorted(found["projected"]) == [(3, 1), (6, 4)]
    assert env.from_collection(["d", "a", "c", "b"]).execute_and_collect(limit=3) == ["d", "a", "c"]


class Shout(SinkFunction):
    def __init__(self, path):
        self.path = path

    def invoke(self, value, context: SinkFunction.Context):
        with open(self.path, "a") as file:
            file.write(f"{value}!\n")


class Quoted(Encoder):
    def encode(self, element, stream):
        stream.write(f"<{element}>".encode())


def test_typed_records_print_as_in_flink_and_files_take_any_encoder(env, tmp_path, capsys):
    numbers = env.from_source(
        NumberSequenceSource(1, 2), WatermarkStrategy.no_watermarks(), "numbers", Types.LONG()
    )
    numbers.map(
        lambda n: Row(n, n / 2, None),
        output_type=Types.ROW([Types.LONG(), Types.DOUBLE(), Types.STRING()]),
    ).print()
    numbers.map(
        lambda n: (n > 1, n * 1e7, [n]),
        output_type=Types.TUPLE([Types.BOOLEAN(), Types.DOUBLE(), Types.LIST(Types.LONG())]),
    ).print("typed")
    numbers.map(lambda n: (n > 1, None)).print("untyped")
    numbers.add_sink(Shout(str(tmp_path / "shouts"))).name("shout").set_parallelism(1)
    numbers.rebalance().sink_to(
        FileSink.for_row_format(str(tmp_path / "out"), Quoted())
        .with_output_file_config(OutputFileConfig("quoted", ".q"))
        .with_rolling_policy(RollingPolicy.default_rolling_policy(part_size=1))
        .build()
    ).set_parallelism(1)
    env.execute("sinks")
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "1> +I[1,0.5,None]",
        "2> +I[2,1.0,None]",
        "typed:1> (false,1.0E7,[1])",
        "typed:2> (true,2.0E7,[2])",
        "untyped:1> (False, None)",
        "untyped:2> (True, None)",
    ]
    assert sorted((tmp_path / "shouts").read_text().splitlines()) == ["1!", "2!"]
    files = sorted((tmp_path / "out").iterdir())
    assert all(file.name.startswith("quoted-") and file.suffix == ".q" for file in files)
    assert sorted("".join(file.read_text() for file in files)) == sorted("<1><2>")


class RunningTotal(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext):
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.FLOAT()))

    def process_element(self, value, ctx: "KeyedProcessFunction.Context"):
        self.total.update((self.total.value() or 0) + value[1])
        yield value[0], self.total.value()


def test_declared_numbers_have_their_bits_and_pickled_values_stay(env, capsys):
    """The sums are those of doubles, of which each came as a float of 32 bits, as PyFlink prints them."""
    env.set_parallelism(1)
    prices = env.from_collection(
        [("a", 0.1), ("b", 110.1), ("a", 0.2)], type_info=Types.TUPLE([Types.STRING(), Types.FLOAT()])
    )
    prices.key_by(lambda price: price[0]).process(RunningTotal()).print("state")
    prices.print("typed")
    sizes = env.from_collection([numpy.float64(0.1)])
    sizes.map(lambda x: type(x).__name__).print("pickled")
    sizes.map(lambda x: x, output_type=Types.FLOAT()).map(repr).print("float")
    sizes.map(lambda x: numpy.int16(7), output_type=Types.SHORT()).map(lambda n: type(n).__name__).print("short")
    env.execute()
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "float> 0.10000000149011612",
        "pickled> float64",
        "short> int",
        "state> ('a', 0.10000000149011612)",
        "state> ('a', 0.30000000447034836)",
        "state> ('b', 110.0999984741211)",
        "typed> (a,0.1)",
        "typed> (a,0.2)",
        "typed> (b,110.1)",
    ]
    env.from_collection([2**15]).map(lambda n: n, output_type=Types.SHORT()).print()
    with pytest.raises(UserFunctionError, match="32768 does not fit into 16 bits"):
        env.execute()


class CountsAll(MapFunction):
    def open(self, runtime_context: RuntimeContext):
        self.seen = runtime_context.get_int_counter("seen")
        self.largest = IntMaximum()
        runtime_context.add_accumulator("largest", self.largest)
        self.remainders = runtime_context.get_histogram("remainders")
        metrics = runtime_context.get_metrics_group().add_group("mine")
        self.spread, self.meter = metrics.histogram("spread"), metrics.meter("rate")
        self.counter, self.distribution = metrics.counter("count"), metrics.distribution("values")
        metrics.gauge("last", lambda: self.last)

    def map(self, value):
        self.seen.add(1)
        self.largest.add(value)
        self.remainders.add(value % 3)
        self.last = value
        for metric in (self.spread, self.distribution):
            metric.update(value)
        self.meter.mark_event()
        self.counter.inc()
        return value


def test_accumulators_of_all_subtasks_are_a_result_of_the_job_and_a_cached_stream_is_computed_once(env, tmp_path):
    cached = env.from_sequence(1, 30).map(CountsAll()).cache()
    tens = cached.filter(lambda n: n % 10 == 0).collect_async()
    client = env.execute_async()
    assert sorted(tens) == [10, 20, 30]
    result = client.wait()
    assert result.get_all_accumulator_results() == {
        "seen": 30, "largest": 30, "remainders": {0: 10, 1: 10, 2: 10},
    }  # fmt: skip
    assert result.get_accumulator_result("seen") == 30 and result.get_accumulator_result("other") is None
    assert client.get_accumulators().result(20_000)["largest"] == 30
    assert cached.is_cached
    again = cached.map(lambda n: -n)
    assert sorted(again.execute_and_collect()) == list(range(-30, 0))
    again.sink_to(FileSink.for_row_format(tmp_path / "out").build())
    assert env.execute().get_all_accumulator_results() == {}  # the function did not run
    cached.invalidate()
    cached.print()
    assert env.execute().get_accumulator_result("seen") == 30


FORMATS = """
    from pyflink.common import Types, WatermarkStrategy
    from pyflink.datastream import StreamExecutionEnvironment
    from pyflink.datastream.connectors.file_system import FileSink, FileSource
    from pyflink.datastream.formats.avro import AvroBulkWriters, AvroInputFormat, AvroSchema, GenericRecordAvroTypeInfo
    from pyflink.datastream.formats.csv import CsvBulkWriters, CsvReaderFormat, CsvSchema
    from pyflink.datastream.formats.parquet import ParquetBulkWriters, ParquetColumnarRowInputFormat

    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    csv = CsvSchema.builder().add_number_column("id", Types.INT()).add_string_column("name")
    csv = csv.set_column_separator("|").set_use_header().build()
    avro = AvroSchema.parse_string(AVRO)
    people = env.from_source(
        FileSource.for_record_stream_format(CsvReaderFormat.for_schema(csv), INPUT).build(),
        WatermarkStrategy.no_watermarks(),
        "csv",
    )
    people.sink_to(FileSink.for_bulk_format(OUTPUT + "/csv", CsvBulkWriters.for_schema(csv)).build())
    row_type = Types.ROW_NAMED(["id", "name"], [Types.INT(), Types.STRING()])
    people.sink_to(FileSink.for_bulk_format(OUTPUT + "/parquet", ParquetBulkWriters.for_row_type(row_type)).build())
    people.map(lambda p: {"id": p.id, "name": p.name}, output_type=GenericRecordAvroTypeInfo(avro)).sink_to(
        FileSink.for_bulk_format(OUTPUT + "/avro", AvroBulkWriters.for_generic_record(avro)).build()
    )
    env.execute("write")
    env.create_input(AvroInputFormat(OUTPUT + "/avro", avro)).print("avro")
    env.from_source(
        FileSource.for_bulk_file_format(ParquetColumnarRowInputFormat(row_type), OUTPUT + "/parquet").build(),
        WatermarkStrategy.no_watermarks(),
        "parquet",
    ).print("parquet")
    env.read_text_file(OUTPUT + "/csv").print("text")
    env.execute("read")
"""


def test_a_program_text_writes_and_reads_files_of_every_format(env, tmp_path, capsys):
    (tmp_path / "in.csv").write_text("id|name\n1|Ann\n2|`Bo`\n")
    avro = {"type": "record", "name": "Person", "fields": [
        {"name": "id", "type": "int"}, {"name": "name", "type": "string"}]}  # fmt: skip
    program = textwrap.dedent(FORMATS).replace("pyflink", "flinkish")
    exec(program, {"INPUT": str(tmp_path / "in.csv"), "OUTPUT": str(tmp_path / "out"), "AVRO": json.dumps(avro)})
    assert sorted(capsys.readouterr().out.splitlines()) == [
        'avro> {"id": 1, "name": "Ann"}',
        'avro> {"id": 2, "name": "`Bo`"}',
        "parquet> +I[1,Ann]",
        "parquet> +I[2,`Bo`]",
        'text> "id"|"name"',
        'text> 1|"Ann"',
        'text> 2|"`Bo`"',
    ]
