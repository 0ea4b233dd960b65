import pickle

import pytest

from flinkish import AggregateFunction, OutputTag, ReduceFunction, StateTtlConfig, Types
from flinkish.datastream.async_retry_predicates import empty_result_predicate, exception_type_predicate
from flinkish.datastream.functions import AsyncRetryStrategy, MapFunction, ReduceFunctionWrapper
from flinkish.datastream.slot_sharing_group import MemorySize, SlotSharingGroup
from flinkish.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from flinkish.errors import InvalidJobError


def test_a_function_class_without_its_method_cannot_be_made():
    class Empty(MapFunction):
        pass

    with pytest.raises(TypeError, match="map"):
        Empty()


def test_a_descriptor_needs_a_name_and_a_type_only_if_you_like():
    assert ValueStateDescriptor("seen").type_info is None
    assert ValueStateDescriptor("seen", Types.INT()) == ValueStateDescriptor("seen", Types.INT())
    assert ValueStateDescriptor("seen") != ListStateDescriptor("seen")
    assert MapStateDescriptor("m", Types.STRING(), Types.INT()).value_type_info == Types.INT()
    for make in (
        lambda: ValueStateDescriptor(""),
        lambda: ValueStateDescriptor("x", int),
        lambda: MapStateDescriptor("m", Types.STRING(), str),
        lambda: AggregatingStateDescriptor("a", lambda: 0),
        lambda: ReducingStateDescriptor("r", 5),
    ):
        with pytest.raises(InvalidJobError):
            make()


def test_a_reducing_state_takes_a_callable():
    function = ReducingStateDescriptor("sum", lambda a, b: a + b).get_reduce_function()
    assert isinstance(function, ReduceFunctionWrapper) and isinstance(function, ReduceFunction)
    assert function.reduce(1, 2) == 3


def test_an_aggregating_state_keeps_its_function():
    class Count(AggregateFunction):
        create_accumulator = add = get_result = merge = lambda self, *a: 0

    function = Count()
    assert AggregatingStateDescriptor("a", function, Types.INT()).get_agg_function() is function


def test_map_state_reads_like_a_dict():
    class Dict(MapState):
        def __init__(self):
            self.kept = {}

        get = lambda self, key: self.kept.get(key)  # noqa: E731
        put = lambda self, key, value: self.kept.__setitem__(key, value)  # noqa: E731
        put_all = lambda self, values: self.kept.update(values)  # noqa: E731
        remove = lambda self, key: self.kept.pop(key, None)  # noqa: E731
        contains = lambda self, key: key in self.kept  # noqa: E731
        items = lambda self: self.kept.items()  # noqa: E731
        keys = lambda self: self.kept.keys()  # noqa: E731
        values = lambda self: self.kept.values()  # noqa: E731
        is_empty = lambda self: not self.kept  # noqa: E731
        clear = lambda self: self.kept.clear()  # noqa: E731

    state = Dict()
    state["a"] = 1
    assert state["a"] == 1 and "a" in state and list(state) == ["a"]
    del state["a"]
    assert state.is_empty()


def test_a_ttl_config_is_built_as_in_flink():
    ttl = (
        StateTtlConfig.new_builder("7 d")
        .update_ttl_on_read_and_write()
        .never_return_expired()
        .cleanup_incrementally(10, True)
        .build()
    )
    assert ttl.ttl_ms == 604_800_000 and ttl.is_enabled()
    assert ttl.get_update_type() is StateTtlConfig.UpdateType.OnReadAndWrite
    assert ttl.get_cleanup_strategies().get_incremental_cleanup_strategy().get_cleanup_size() == 10
    assert not ttl.get_cleanup_strategies().in_full_snapshot()
    with pytest.raises(InvalidJobError):
        StateTtlConfig.new_builder(0).build()
    assert pickle.loads(pickle.dumps(ttl)).ttl_ms == ttl.ttl_ms


def test_tags_of_one_name_are_one_output_in_every_process():
    tag = OutputTag("late", Types.STRING())
    assert tag == OutputTag("late") and len({tag, OutputTag("late"), OutputTag("other")}) == 2
    twin = pickle.loads(pickle.dumps(tag))
    assert twin == tag and hash(twin) == hash(tag) and twin.type_info == Types.STRING()
    with pytest.raises(InvalidJobError):
        OutputTag("")


def test_retries_wait_longer_each_time_up_to_the_limit():
    strategy = AsyncRetryStrategy.exponential_backoff(5, 100, 500, 2, empty_result_predicate)
    assert [strategy.get_backoff_time_millis(n) for n in (1, 2, 3, 4, 2)] == [100, 200, 400, 500, 200]
    assert strategy.can_retry(5) and not strategy.can_retry(6)
    assert strategy.get_retry_predicate().result_predicate()([])
    assert strategy.get_retry_predicate().exception_predicate() is None
    assert not AsyncRetryStrategy.no_restart().can_retry(1)
    assert AsyncRetryStrategy.fixed_delay(2, 10).get_backoff_time_millis(9) == 10
    assert exception_type_predicate(KeyError(), LookupError)


def test_memory_sizes_are_read_and_compared():
    assert MemorySize.of_mebi_bytes(2) == MemorySize("2 mb") == MemorySize(2 << 20)
    assert MemorySize("1 gb").get_mebi_bytes() == 1024 and MemorySize(1) < MemorySize("1 kb")
    builder = SlotSharingGroup.builder("g").set_managed_memory_mb(5).set_external_resource("gpu", 1)
    for lacking in (builder, builder.set_cpu_cores(1), builder.set_task_heap_memory_mb(0)):
        with pytest.raises(InvalidJobError, match="CPU cores and task heap memory"):
            lacking.build()
    group = builder.set_task_heap_memory_mb(1).build()
    assert group.get_managed_memory() == MemorySize("5 mb")
    assert group.get_external_resources() == {"gpu": 1}
