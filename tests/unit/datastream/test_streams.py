"""What each call leaves in the graph of transformations, and what is refused."""

import pytest

from flinkish import (
    AggregateFunction,
    CoMapFunction,
    CoProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    MapStateDescriptor,
    OutputTag,
    ProcessFunction,
    ProcessWindowFunction,
    SinkFunction,
    StreamExecutionEnvironment,
    Time,
    TumblingEventTimeWindows,
    Types,
    WatermarkStrategy,
)
from flinkish.datastream import partitioners
from flinkish.datastream.aggregations import MinMaxBy, Sum
from flinkish.datastream.data_stream import _common_parallelism
from flinkish.datastream.fields import FieldSelector
from flinkish.datastream.functions import BroadcastProcessFunction, Partitioner
from flinkish.datastream.slot_sharing_group import SlotSharingGroup
from flinkish.datastream.transformations import (
    ChainingStrategy,
    CoMapOperator,
    CoProcessOperator,
    KeyedCoProcessOperator,
    KeyedProcessOperator,
    MapOperator,
    ReduceOperator,
    TwoInputTransformation,
    UnionTransformation,
    WindowOperator,
)
from flinkish.datastream.window import CountTrigger, DeltaTrigger, EventTimeSessionWindows, GlobalWindows
from flinkish.errors import InvalidJobError

PAIR = Types.TUPLE([Types.STRING(), Types.INT()])
NAMED = Types.ROW_NAMED(["name", "n"], [Types.STRING(), Types.INT()])


class Keyed(KeyedProcessFunction):
    def process_element(self, value, ctx):
        yield value


class Plain(ProcessFunction):
    def process_element(self, value, ctx):
        yield value


class Double(MapFunction):
    def map(self, value):
        return value * 2


@pytest.fixture
def env():
    return StreamExecutionEnvironment.get_execution_environment()


@pytest.fixture
def pairs(env):
    return env.from_collection([("a", 1), ("b", 2)], PAIR)


@pytest.fixture
def untyped(env):
    return env.from_collection([("a", 1)])


def operator(stream):
    return stream.transformation.operator


# ---- types --------------------------------------------------------------------------------------


def test_an_element_that_is_not_of_the_declared_type_is_refused_with_its_place(env):
    with pytest.raises(InvalidJobError, match='(?s)element 1 .*field "1": expected an int'):
        env.from_collection([("a", 1), ("b", "2")], PAIR)


def test_elements_take_the_form_of_the_declared_type(env):
    stream = env.from_collection([("a", 1), {"name": "b", "n": 2}], NAMED)
    assert stream.get_type() == NAMED
    assert env.from_collection([1]).get_type() == Types.PICKLED_BYTE_ARRAY()


@pytest.mark.parametrize("method", ["map", "flat_map", "process"])
def test_an_output_type_that_is_no_type_is_refused(pairs, method):
    with pytest.raises(InvalidJobError, match="TypeInformation"):
        getattr(pairs, method)(lambda *values: values, output_type=int)


def test_filter_keeps_the_type_and_map_has_the_one_that_is_given(pairs):
    assert pairs.filter(lambda v: True).get_type() == PAIR
    assert pairs.map(lambda v: v[1], Types.INT()).get_type() == Types.INT()
    assert pairs.map(lambda v: v[1]).transformation.output_type is None


def test_a_key_outside_of_the_declared_type_is_refused(env, pairs):
    with pytest.raises(InvalidJobError, match="fields are 0, 1"):
        pairs.key_by(2)
    with pytest.raises(InvalidJobError, match="name, n"):
        env.from_collection([("a", 1)], NAMED).key_by("nam")
    with pytest.raises(InvalidJobError):
        env.from_collection([1], Types.INT()).key_by(1)


def test_a_sum_of_text_is_refused_where_the_type_is_declared(pairs, untyped):
    with pytest.raises(InvalidJobError, match="string"):
        pairs.key_by(0).sum(0)
    assert operator(untyped.key_by(0).sum(0)).function.field == 0


def test_streams_of_different_declared_types_cannot_be_united(env, pairs, untyped):
    with pytest.raises(InvalidJobError, match="different types"):
        pairs.union(env.from_collection([1], Types.INT()))
    assert pairs.union(untyped).transformation.output_type is None
    assert pairs.union(pairs.filter(lambda v: True)).get_type() == PAIR


def test_project_takes_types_and_names_along(env, pairs):
    assert pairs.project(1, 0).get_type() == Types.TUPLE([Types.INT(), Types.STRING()])
    named = env.from_collection([("a", 1)], NAMED).project("n")
    assert named.get_type() == Types.ROW_NAMED(["n"], [Types.INT()])
    with pytest.raises(InvalidJobError):
        pairs.project(5)
    with pytest.raises(InvalidJobError):
        pairs.project()


def test_the_field_of_the_timestamps_must_be_in_the_declared_type(env):
    stream = env.from_collection([("a", 1)], NAMED)
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    stream.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner("n"))
    with pytest.raises(InvalidJobError, match="time"):
        stream.assign_timestamps_and_watermarks(strategy.with_timestamp_assigner("time"))


# ---- functions ----------------------------------------------------------------------------------


def test_a_class_in_place_of_an_object_is_refused_with_what_to_write(pairs):
    with pytest.raises(InvalidJobError, match=r"Double\(\)"):
        pairs.map(Double)


@pytest.mark.parametrize(
    "call",
    [
        lambda s: s.map(5),
        lambda s: s.map(Plain()),
        lambda s: s.process(Keyed()),
        lambda s: s.filter(Double()),
        lambda s: s.add_sink(3),
        lambda s: s.sink_to(lambda v: None),
        lambda s: s.get_side_output("late"),
        lambda s: s.connect(5),
        lambda s: s.union(5),
    ],
)
def test_what_a_method_cannot_use_is_refused_when_the_graph_is_built(pairs, call):
    with pytest.raises(InvalidJobError):
        call(pairs)


def test_plain_callables_and_objects_are_taken_as_they_are(pairs):
    function, double = (lambda v: v), Double()
    assert operator(pairs.map(function)).function is function
    assert operator(pairs.map(double)).function is double
    assert isinstance(operator(pairs.process(lambda v, ctx: [v])).function, ProcessFunction)


def test_a_sink_may_be_a_plain_callable(pairs):
    seen = []
    sink = pairs.add_sink(seen.append)
    sink.transformation.operator.sink.invoke(3, None)
    assert seen == [3] and isinstance(sink.transformation.operator.sink, SinkFunction)


# ---- keys ---------------------------------------------------------------------------------------


def test_key_by_takes_callables_key_selectors_positions_and_names(pairs):
    class First(KeySelector):
        def get_key(self, value):
            return value[0]

    select = lambda v: v[0]  # noqa: E731
    assert pairs.key_by(select).key_selector is select
    assert pairs.key_by(First()).key_selector(("k", 1)) == "k"
    by_position = pairs.key_by(0)
    assert by_position.key_selector == FieldSelector(0) and by_position.key_type == Types.STRING()
    partitioner = by_position.transformation.partitioner
    assert (partitioner.name, partitioner.key_field) == ("HASH", 0)
    assert pairs.key_by(select).transformation.partitioner.key_field is None


def test_a_key_selector_that_must_be_opened_is_refused(pairs):
    class Opened(KeySelector):
        def open(self, runtime_context): ...

        def get_key(self, value):
            return value

    with pytest.raises(InvalidJobError, match="open"):
        pairs.key_by(Opened())


def test_keyed_operators_carry_the_key_and_stateless_callables_do_not(pairs):
    keyed = pairs.key_by(lambda v: v[0], Types.STRING())
    process = keyed.process(Keyed()).transformation
    assert process.key_selectors == (keyed.key_selector,) and process.key_type == Types.STRING()
    assert isinstance(process.operator, KeyedProcessOperator)
    assert keyed.map(Double()).transformation.key_selectors == (keyed.key_selector,)
    assert keyed.map(lambda v: v).transformation.key_selectors == ()


def test_a_process_function_on_a_keyed_stream_runs_with_the_key(pairs):
    function = operator(pairs.key_by(0).process(Plain())).function
    assert isinstance(function, KeyedProcessFunction)
    assert list(function.process_element(5, None)) == [5]


def test_aggregations_are_reductions_of_the_key(pairs):
    keyed = pairs.key_by(0)
    total = operator(keyed.sum(1))
    assert isinstance(total, ReduceOperator) and isinstance(total.function, Sum)
    largest = operator(keyed.max_by(1)).function
    assert isinstance(largest, MinMaxBy) and largest.largest
    assert keyed.min(1).get_type() == PAIR
    with pytest.raises(InvalidJobError):
        keyed.sum(-1)


def test_a_keyed_stream_cannot_be_partitioned_otherwise(pairs):
    with pytest.raises(InvalidJobError, match="key_by"):
        pairs.key_by(0).rebalance()


def test_key_by_on_a_keyed_stream_replaces_the_key(pairs):
    again = pairs.key_by(0).key_by(1)
    assert again.transformation.input is pairs.transformation


# ---- partitions, unions, connections ------------------------------------------------------------


@pytest.mark.parametrize(
    "method, kind",
    [
        ("shuffle", partitioners.ShufflePartitioner),
        ("rebalance", partitioners.RebalancePartitioner),
        ("rescale", partitioners.RescalePartitioner),
        ("broadcast", partitioners.BroadcastPartitioner),
        ("forward", partitioners.ForwardPartitioner),
        ("global_", partitioners.GlobalPartitioner),
    ],
)
def test_each_partitioning_method_leaves_its_partitioner(pairs, method, kind):
    stream = getattr(pairs, method)()
    assert isinstance(stream.transformation.partitioner, kind) and stream.get_type() == PAIR


def test_a_custom_partitioner_may_be_a_callable_or_an_object(pairs):
    class Mod(Partitioner):
        def partition(self, key, num_partitions):
            return key % num_partitions

    for given in (Mod(), lambda key, n: key % n):
        partitioner = pairs.partition_custom(given, 1).transformation.partitioner
        assert partitioner.partitioner(partitioner.key_selector(("a", 5)), 3) == 2


def test_a_union_lists_its_inputs(pairs):
    other = pairs.filter(lambda v: True)
    union = pairs.union(other, other).transformation
    assert isinstance(union, UnionTransformation)
    assert union.inputs == (pairs.transformation, other.transformation, other.transformation)


def test_streams_of_two_environments_cannot_meet(pairs):
    other = StreamExecutionEnvironment.get_execution_environment().from_collection([1])
    for method in (pairs.union, pairs.connect):
        with pytest.raises(InvalidJobError, match="environment"):
            method(other)


def test_connected_streams_take_co_functions_and_pairs_of_callables(pairs, untyped):
    class Both(CoMapFunction):
        def map1(self, value):
            return 1

        def map2(self, value):
            return 2

    connected = pairs.connect(untyped)
    stream = connected.map(Both(), Types.INT())
    assert isinstance(stream.transformation, TwoInputTransformation)
    assert isinstance(operator(stream), CoMapOperator) and stream.get_type() == Types.INT()
    function = operator(connected.map((lambda v: "one", lambda v: "two"))).function
    assert (function.map1(0), function.map2(0)) == ("one", "two")
    with pytest.raises(InvalidJobError):
        connected.map(lambda v: v)


def test_connected_keyed_streams_share_their_keys(pairs, untyped):
    class Co(CoProcessFunction):
        def process_element1(self, value, ctx):
            yield value

        def process_element2(self, value, ctx):
            yield value

    class KeyedCo(KeyedCoProcessFunction):
        process_element1 = process_element2 = lambda self, value, ctx: [value]

    plain = pairs.connect(untyped)
    assert isinstance(operator(plain.process(Co())), CoProcessOperator)
    with pytest.raises(InvalidJobError, match="key_by"):
        plain.process(KeyedCo())
    keyed = plain.key_by(0, 0)
    result = keyed.process(KeyedCo())
    assert isinstance(operator(result), KeyedCoProcessOperator)
    assert len(result.transformation.key_selectors) == 2
    assert result.transformation.key_type == Types.STRING()
    assert isinstance(operator(keyed.process(Co())).function, KeyedCoProcessFunction)


def test_keys_of_different_declared_types_cannot_be_connected(pairs):
    with pytest.raises(InvalidJobError, match="different types"):
        pairs.connect(pairs).key_by(0, 1)


def test_a_side_output_hangs_on_its_operator(pairs):
    tag = OutputTag("late", Types.STRING())
    side = pairs.process(Plain()).get_side_output(tag)
    assert side.transformation.output_tag == tag and side.get_type() == Types.STRING()
    with pytest.raises(InvalidJobError):
        pairs.rebalance().get_side_output(tag)


# ---- settings -----------------------------------------------------------------------------------


def test_settings_end_in_the_transformation(pairs):
    stream = pairs.map(Double()).name("double").uid("d1").set_description("twice").set_parallelism(2)
    stream.set_max_parallelism(8).slot_sharing_group("g").set_buffer_timeout(Time.milliseconds(5))
    stream.start_new_chain().set_uid_hash("AB" * 16)
    t = stream.transformation
    assert (t.name, t.uid, t.description, t.parallelism, t.max_parallelism) == ("double", "d1", "twice", 2, 8)
    assert (t.slot_sharing_group, t.buffer_timeout_ms, t.uid_hash) == ("g", 5, "ab" * 16)
    assert t.chaining_strategy is ChainingStrategy.HEAD
    assert stream.disable_chaining().transformation.chaining_strategy is ChainingStrategy.NEVER
    assert stream.force_non_parallel().transformation.max_parallelism == 1


def test_a_parallelism_above_the_max_parallelism_is_refused(env, pairs):
    stream = pairs.map(Double()).set_max_parallelism(4)
    with pytest.raises(InvalidJobError, match="(?s)5.*max parallelism is 4"):
        stream.set_parallelism(5)
    env.set_max_parallelism(2)
    with pytest.raises(InvalidJobError):
        pairs.map(Double()).set_parallelism(3)


def test_a_source_with_one_reader_stays_with_one(pairs):
    pairs.set_parallelism(1)
    with pytest.raises(InvalidJobError, match="rebalance"):
        pairs.set_parallelism(2)


def test_settings_of_what_is_no_operator_are_refused(pairs):
    for stream in (pairs.rebalance(), pairs.key_by(0), pairs.union(pairs.filter(lambda v: True))):
        with pytest.raises(InvalidJobError, match="no operator"):
            stream.name("x")


def test_a_slot_sharing_group_object_counts_by_its_name(pairs):
    group = SlotSharingGroup.builder("g").build()
    assert pairs.map(Double()).slot_sharing_group(group).transformation.slot_sharing_group == "g"
    with pytest.warns(UserWarning, match="usual size"):
        pairs.map(Double()).slot_sharing_group(SlotSharingGroup("h", {"cpu_cores": 2.0}))


# ---- windows ------------------------------------------------------------------------------------


class Count(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + 1

    def get_result(self, accumulator):
        return accumulator

    def merge(self, acc_a, acc_b):
        return acc_a + acc_b


class Collect(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield key, list(elements)


def test_windows_leave_their_operator(pairs):
    late = OutputTag("late")
    windowed = pairs.key_by(0).window(TumblingEventTimeWindows.of(Time.hours(1)))
    windowed.allowed_lateness("5 s").side_output_late_data(late)
    found = operator(windowed.aggregate(Count(), Collect()))
    assert isinstance(found, WindowOperator) and found.kind == "aggregate"
    assert (found.allowed_lateness_ms, found.late_data_tag) == (5_000, late)
    assert operator(windowed.process(Collect())).kind == "process"
    assert operator(windowed.apply(lambda key, window, inputs: inputs)).kind == "apply"
    reduced = windowed.reduce(lambda a, b: a)
    assert reduced.get_type() == PAIR and operator(reduced).window_function is None


def test_what_cannot_be_a_window_is_refused_with_what_can(pairs):
    keyed = pairs.key_by(0)
    tumbling, sessions = keyed.window(TumblingEventTimeWindows.of(5)), keyed.window(EventTimeSessionWindows.with_gap(5))
    for call, text in (
        (lambda: keyed.window(5), "TumblingEventTimeWindows.of"),
        (lambda: keyed.window(TumblingEventTimeWindows), "the class TumblingEventTimeWindows"),
        (lambda: pairs.window_all(None), r"window_all\(\)"),
        (lambda: keyed.count_window(0), "above 0"),
        (lambda: pairs.count_window_all(5, -1), "above 0"),
        (lambda: tumbling.trigger(CountTrigger), r"trigger\(\)"),
        (lambda: tumbling.evictor(CountTrigger.of(3)), r"evictor\(\)"),
        (lambda: tumbling.allowed_lateness(-1), "at least 0"),
        (lambda: tumbling.side_output_late_data("late"), "OutputTag"),
        (lambda: sessions.trigger(DeltaTrigger.of(1, max)), "can_merge"),
        (lambda: tumbling.sum("missing"), "missing"),
        (lambda: pairs.window_all(GlobalWindows.create()).apply(lambda key, window, inputs: []), "window, inputs"),
    ):
        with pytest.raises(InvalidJobError, match=text):
            call()


def test_windows_of_a_whole_stream_run_in_one_subtask(pairs):
    windowed = pairs.window_all(GlobalWindows.create()).trigger(CountTrigger.of(3))
    for result in (windowed.sum(1), windowed.reduce(lambda a, b: a), windowed.apply(lambda window, inputs: inputs)):
        assert result.transformation.parallelism == result.transformation.max_parallelism == 1


def test_broadcast_state_needs_a_function_of_its_own(pairs):
    broadcast = pairs.broadcast(MapStateDescriptor("rules"))
    with pytest.raises(InvalidJobError, match="an object of a BroadcastProcessFunction"):
        pairs.connect(broadcast).process(object())
    with pytest.raises(InvalidJobError, match="an object of a KeyedBroadcastProcessFunction"):
        pairs.key_by(0).connect(broadcast).process(object())


def test_a_broadcast_stream_without_a_descriptor_has_no_state_for_a_function(pairs):
    class Rules(BroadcastProcessFunction):
        def process_element(self, value, ctx): ...

        def process_broadcast_element(self, value, ctx): ...

    for stream in (pairs, pairs.key_by(0)):
        with pytest.raises(InvalidJobError, match=r"broadcast\(\) was called without a MapStateDescriptor"):
            stream.connect(pairs.broadcast()).process(Rules())


def test_project_and_map_leave_a_map_operator(pairs):
    assert isinstance(operator(pairs.project(0)), MapOperator)


def test_async_functions_are_refused_because_nothing_awaits_them():
    async def look_up(value):
        return value

    async def many(value):
        yield value

    stream = StreamExecutionEnvironment.get_execution_environment().from_collection([1])
    for call in (
        lambda: stream.map(look_up),
        lambda: stream.flat_map(many),
        lambda: stream.filter(look_up),
        lambda: stream.key_by(look_up),
        lambda: stream.add_sink(look_up),
    ):
        with pytest.raises(InvalidJobError, match="async function"):
            call()


def test_a_collection_that_cannot_be_iterated_is_refused_and_a_failing_iterator_shows_its_error():
    env = StreamExecutionEnvironment.get_execution_environment()
    with pytest.raises(InvalidJobError, match="cannot read a int"):
        env.from_collection(5)

    def broken():
        yield 1
        raise TypeError("of the user")

    with pytest.raises(TypeError, match="of the user"):
        env.from_collection(broken())


def test_results_are_collected_with_the_parallelism_of_what_makes_them(env):
    """So that a stream of one subtask stays in order, as in Flink, whose collect sink has one."""
    one, two = env.from_collection([1]), env.from_sequence(1, 2)
    of = [stream.transformation for stream in (
        one, one.key_by(lambda n: n), one.union(one), two, two.rebalance(), two.map(str).set_parallelism(3),
        one.union(two),
    )]  # fmt: skip
    assert [_common_parallelism(transformation) for transformation in of] == [1, 1, 1, None, None, 3, 1]


def test_a_sink_learns_the_declared_type_of_its_records(env, pairs):
    typed, untyped = pairs.print(), pairs.map(str).print()
    assert typed.transformation.operator.sink.record_type == pairs.get_type()
    assert untyped.transformation.operator.sink.record_type is None


@pytest.mark.parametrize(
    "name", ["reduce", "sum", "min", "max", "min_by", "max_by", "window", "count_window"]
)
def test_a_stream_without_a_key_says_that_the_method_needs_one(name):
    stream = StreamExecutionEnvironment.get_execution_environment().from_collection([1])
    assert not hasattr(stream, name) and not hasattr(stream.key_by(lambda v: v).map(str), name)
    assert hasattr(stream.key_by(lambda v: v), name)
    with pytest.raises(AttributeError) as caught:
        getattr(stream, name)
    assert str(caught.value) == (
        f"DataStream has no {name}()\n  why: it needs a key\n"
        "  do: call key_by(...) first (map() and others drop the key)"
    )


def test_an_unknown_name_of_a_stream_is_pythons_own_error():
    stream = StreamExecutionEnvironment.get_execution_environment().from_collection([1])
    with pytest.raises(AttributeError, match="'DataStream' object has no attribute 'mapp'") as caught:
        stream.mapp  # noqa: B018
    assert (caught.value.name, caught.value.obj) == ("mapp", stream)
    keyed = stream.key_by(lambda v: v)
    with pytest.raises(AttributeError, match="'KeyedStream' object has no attribute '_repr_html_'"):
        keyed._repr_html_  # noqa: B018


def test_every_public_method_that_only_a_keyed_stream_has_is_told_apart():
    from flinkish.datastream import data_stream
    from flinkish.datastream.keyed_stream import KeyedStream

    methods = {name for name, value in vars(KeyedStream).items() if callable(value) and name[0].islower()}
    assert set(data_stream._NEEDS_KEY) == {n for n in methods if not hasattr(data_stream.DataStream, n)}
