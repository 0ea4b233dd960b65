"""Keyed state has the key of the record, in every kind of function, and nothing outside of a record."""

import pytest

from flinkish.common.time import Time
from flinkish.common.typeinfo import Types
from flinkish.common.types import Row
from flinkish.datastream.functions import (
    CheckpointedFunction,
    CoMapFunction,
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    MapFunction,
    ReduceFunction,
)
from flinkish.datastream.state import ListStateDescriptor, StateTtlConfig, ValueStateDescriptor
from flinkish.errors import StateMigrationError, UserError
from flinkish.testing import StreamTestHarness

BACKENDS = pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])


class Counting(CheckpointedFunction):
    """Asks for its state in ``initialize_state``; ``open`` is Flink's own."""

    def initialize_state(self, context):
        self.count = context.get_keyed_state_store().get_state(ValueStateDescriptor("count"))

    def snapshot_state(self, context):
        pass

    def counted(self, record):
        self.count.update((self.count.value() or 0) + 1)
        return record[0], self.count.value()


class CountingMap(Counting, MapFunction):
    def map(self, record):
        return self.counted(record)


class CountingFlatMap(Counting, FlatMapFunction):
    def flat_map(self, record):
        yield self.counted(record)


class FirstTwo(Counting, FilterFunction):
    def filter(self, record):
        return self.counted(record)[1] <= 2


class CountingCoMap(Counting, CoMapFunction):
    def map1(self, record):
        return self.counted(record)

    def map2(self, record):
        return self.counted(record)


class CountingReduce(Counting, ReduceFunction):
    def reduce(self, first, second):
        return self.counted(first)


def first_of(record):
    return record[0]


@BACKENDS
@pytest.mark.parametrize(
    "build,expected",
    [
        (lambda stream: stream.key_by(first_of).map(CountingMap()), ["a1", "a2", "b1", "a3"]),
        (lambda stream: stream.key_by(first_of).flat_map(CountingFlatMap()), ["a1", "a2", "b1", "a3"]),
        (lambda stream: stream.key_by(first_of).filter(FirstTwo()), ["a0", "a0", "b0"]),
        (lambda stream: stream.key_by(first_of).reduce(CountingReduce()), ["a0", "a1", "b0", "a2"]),
    ],
    ids=["map", "flat_map", "filter", "reduce"],
)
def test_state_that_initialize_state_asked_for_is_of_the_key(backend, build, expected):
    with StreamTestHarness(build, backend) as harness:
        for key in "aaba":
            harness.process_element((key, 0))
        assert ["".join(map(str, record.value)) for record in harness.output] == expected


@BACKENDS
def test_state_of_two_inputs_is_of_the_key_too(backend):
    def build(numbers, words):
        return numbers.connect(words).key_by(first_of, first_of).map(CountingCoMap())

    with StreamTestHarness(build, backend, inputs=2) as harness:
        harness.process_element(("a", 0))
        harness.process_element(("b", 0), input=1)
        harness.process_element(("a", 0), input=1)
        assert [record.value for record in harness.output] == [("a", 1), ("b", 1), ("a", 2)]


REFUSED = []  # (place, access); a function is pickled on its way into the job


class Meddling(KeyedProcessFunction, CheckpointedFunction):
    """Uses state and timers in every place that has no key."""

    def meddle(self, place):
        value, expiring, timers = self.value, self.expiring, self.timers
        accesses = {
            "read": lambda: value.value(),
            "update": lambda: value.update(1),
            "add": lambda: self.list.add(1),
            "get": lambda: self.list.get(),
            "read expiring": lambda: expiring.value(),
            "update expiring": lambda: expiring.update(1),
        }
        if timers is not None:
            accesses["event time"] = lambda: timers.register_event_time_timer(1)
            accesses["processing time"] = lambda: timers.register_processing_time_timer(1)
        for name, access in accesses.items():
            with pytest.raises(UserError, match="no key is set"):
                access()
            REFUSED.append((place, name))

    def initialize_state(self, context):
        store, self.timers = context.get_keyed_state_store(), None
        self.value = store.get_state(ValueStateDescriptor("value"))
        self.list = store.get_list_state(ListStateDescriptor("list"))
        expiring = ValueStateDescriptor("expiring")
        expiring.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
        self.expiring = store.get_state(expiring)
        self.meddle("initialize_state")

    def open(self, context):
        self.meddle("open")

    def process_element(self, record, ctx):
        self.timers = ctx.timer_service()
        self.value.update((self.value.value() or 0) + 1)
        yield record, self.value.value()

    def snapshot_state(self, context):
        self.meddle("snapshot_state")

    def close(self):
        self.meddle("close")


@BACKENDS
def test_keyed_state_is_refused_where_no_key_is_and_none_is_a_key_like_any_other(backend):
    REFUSED.clear()
    with StreamTestHarness(lambda stream: stream.key_by(lambda record: record).process(Meddling()), backend) as harness:
        for key in (None, "a", None):
            harness.process_element(key)
            harness.snapshot()  # takes the key away, and the next record has its own
        assert [record.value for record in harness.output] == [(None, 1), ("a", 1), (None, 2)]
    times = {place: sum(place == at for at, _ in REFUSED) for place in dict(REFUSED)}
    assert times == {"initialize_state": 6, "open": 6, "snapshot_state": 3 * 8, "close": 8}


class ReadsInOpen(MapFunction):
    def open(self, context):
        context.get_state(ValueStateDescriptor("value")).value()

    def map(self, record):
        return record


def test_the_refusal_names_the_operator_and_says_what_to_do():
    with pytest.raises(UserError, match="no key is set") as caught:
        StreamTestHarness(lambda stream: stream.key_by(first_of).map(ReadsInOpen()), "hashmap")
    assert 'operator "Map"' in caught.value.where and "operator state" in caught.value.do


class AsksLate(KeyedProcessFunction):
    """``form``: its time to live, or its fields."""

    def __init__(self, form):
        self.form = form

    def open(self, context):
        self.context = context

    def process_element(self, record, ctx):
        key, value = record
        fields = ["a", "b"] if "b" in self.form else ["a"]
        descriptor = ValueStateDescriptor("late", Types.ROW_NAMED(fields, [Types.LONG()] * len(fields)))
        if "ttl" in self.form:
            descriptor.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
        state = self.context.get_state(descriptor)
        if value is not None:
            state.update(value)
        yield key, state.value()


def asking(form):
    return lambda stream: stream.key_by(first_of).process(AsksLate(form)).uid("late")


@BACKENDS
@pytest.mark.parametrize("forms", [("a ttl", "a"), ("a b", "a"), ("a", "a b ttl")])
def test_parts_of_a_state_in_two_forms_are_brought_into_one(backend, forms):
    before, after = forms
    fields = {"a": 1, "b": 2} if "b" in before else {"a": 1}
    expected = Row(**({"a": 1, "b": fields.get("b")} if "b" in after else {"a": 1}))
    keys = [f"k{number}" for number in range(6)]
    with StreamTestHarness(asking(before), backend, 2) as harness:
        for key in keys:
            harness.process_element((key, Row(**fields)))
        first = harness.snapshot()
    with StreamTestHarness.restore(asking(after), first, 2, backend) as harness:
        harness.process_element(("k0", None))  # one of two subtasks asks
        second = harness.snapshot()
    with StreamTestHarness.restore(asking(after), second, 1, backend) as harness:
        for key in keys:
            harness.process_element((key, None))
        assert [record.value for record in harness.output] == [(key, expected) for key in keys]


@BACKENDS
def test_another_declared_type_of_the_keys_is_refused(backend):
    def keyed(key_type):
        return lambda stream: stream.key_by(first_of, key_type).process(AsksLate("a")).uid("late")

    with StreamTestHarness(keyed(Types.LONG()), backend) as harness:
        harness.process_element((1, Row(a=1)))
        saved = harness.snapshot()
    with pytest.raises(StateMigrationError, match="the type of its keys has changed") as caught:
        StreamTestHarness.restore(keyed(Types.STRING()), saved, 1, backend)
    assert (caught.value.fields["old"], caught.value.fields["new"]) == ("long", "string")
    for key_type in (Types.LONG(), None):
        with StreamTestHarness.restore(keyed(key_type), saved, 1, backend) as harness:
            harness.process_element((1, None))
            assert [record.value for record in harness.output] == [(1, Row(a=1))]
