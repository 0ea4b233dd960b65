"""Heap state through the canonical file: every kind, asked for late, never, or in another form."""

import io

import pytest

from flinkish.common.typeinfo import Types
from flinkish.common.types import Row
from flinkish.datastream import functions as f
from flinkish.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from flinkish.errors import InternalError, StateMigrationError
from flinkish.messages.checkpoints import KeyGroupRange
from flinkish.operators.timers import KeyedTimerService
from flinkish.state.heap import HeapKeyedStateBackend, WindowTable
from flinkish.state.key_groups import key_group
from flinkish.state.keyed_snapshot import KeyedSnapshotReader, StateKind, write_keyed_snapshot

ALL = KeyGroupRange(0, 127)


def saved(backend, *others):
    out = io.BytesIO()
    states = [entries for part in (backend, *others) for entries in part.snapshot_states()]
    write_keyed_snapshot(out, states, ALL, 128, operator=backend.operator)
    return out.getvalue()


def restored(data, key_groups=None):
    backend = HeapKeyedStateBackend("op")
    backend.restore(KeyedSnapshotReader(data), key_groups)
    return backend


class Collect(f.AggregateFunction):
    def create_accumulator(self):
        return []

    def add(self, value, accumulator):
        return accumulator + [value]

    def get_result(self, accumulator):
        return tuple(accumulator)

    def merge(self, a, b):
        return a + b


def descriptors():
    return {
        StateKind.VALUE: ValueStateDescriptor("v", Types.LONG()),
        StateKind.LIST: ListStateDescriptor("l"),
        StateKind.MAP: MapStateDescriptor("m", Types.STRING(), Types.INT()),
        StateKind.REDUCING: ReducingStateDescriptor("r", lambda a, b: a + b),
        StateKind.AGGREGATING: AggregatingStateDescriptor("a", Collect()),
    }


def fill(backend):
    states = {kind: backend.state(descriptor) for kind, descriptor in descriptors().items()}
    for key in ("a", ("b", 1), None):
        backend.current_key = key
        states[StateKind.VALUE].update(7)
        states[StateKind.LIST].add_all([1, None, "x"])
        states[StateKind.MAP].put_all({"one": 1, "two": 2})
        states[StateKind.REDUCING].add(3)
        states[StateKind.AGGREGATING].add("y")


def test_every_kind_of_state_goes_on_where_it_was():
    backend = HeapKeyedStateBackend("op")
    fill(backend)
    data = saved(backend)
    assert {meta.name: meta.kind for meta in KeyedSnapshotReader(data).states.values()} == {
        descriptor.name: kind for kind, descriptor in descriptors().items()
    }
    backend = restored(data)
    states = {kind: backend.state(descriptor) for kind, descriptor in descriptors().items()}
    for key in ("a", ("b", 1), None):
        backend.current_key = key
        states[StateKind.REDUCING].add(4)
        states[StateKind.AGGREGATING].add("z")
        states[StateKind.LIST].add(2)
        assert states[StateKind.VALUE].value() == 7
        assert states[StateKind.LIST].get() == [1, None, "x", 2]
        assert dict(states[StateKind.MAP].items()) == {"one": 1, "two": 2}
        assert states[StateKind.REDUCING].get() == 7
        assert states[StateKind.AGGREGATING].get() == ("y", "z")


def test_only_the_key_groups_of_the_subtask_are_taken():
    backend = HeapKeyedStateBackend("op")
    backend.table("t").update({f"k{i}": i for i in range(500)})
    halves = KeyGroupRange(0, 63), KeyGroupRange(64, 127)
    low, high = (restored(saved(backend), groups).tables["t"] for groups in halves)
    assert all(key_group(key, 128) < 64 for key in low) and not low.keys() & high.keys()
    assert {**low, **high} == backend.tables["t"]


def test_tables_that_operators_hold_are_filled_and_not_replaced():
    backend = HeapKeyedStateBackend("op")
    backend.table("_op_state")["k"] = 1
    windows = backend.tables["window-contents"] = WindowTable()
    windows[0] = {"a": 1, "b": 2}
    windows[10] = {"a": 3}
    data = saved(backend)
    again = HeapKeyedStateBackend("op")
    table, windows = again.table("_op_state"), WindowTable()
    again.tables["window-contents"] = windows
    again.restore(KeyedSnapshotReader(data))
    assert again.tables["_op_state"] is table and table == {"k": 1}
    assert again.tables["window-contents"] is windows and windows == {0: {"a": 1, "b": 2}, 10: {"a": 3}}
    assert again.num_entries == 4


class Scope:
    current_key = (10, "a")


def test_state_of_a_window_belongs_to_its_key_and_window():
    backend = HeapKeyedStateBackend("op")
    backend.state(ValueStateDescriptor("s"), Scope(), "window/").update(5)
    data = saved(backend)
    (block,) = KeyedSnapshotReader(data).read("window/s")
    assert (block.keys, block.namespaces, block.groups.tolist()) == (["a"], [10], [key_group("a", 128)])
    assert restored(data).state(ValueStateDescriptor("s"), Scope(), "window/").value() == 5
    assert saved(restored(data)) == data
    with pytest.raises(StateMigrationError, match="its kind has changed"):
        restored(data).state(ValueStateDescriptor("window/s"))


def test_state_that_nobody_asks_for_is_in_the_next_snapshot_too():
    backend = HeapKeyedStateBackend("op")
    fill(backend)
    data = saved(backend)
    once = restored(data)
    once.state(descriptors()[StateKind.LIST])
    assert saved(once) == data


def test_an_empty_state_keeps_its_kind_and_type():
    backend = HeapKeyedStateBackend("op")
    backend.state(ValueStateDescriptor("v", Types.LONG()))
    with pytest.raises(StateMigrationError, match="declared type string does not fit"):
        restored(saved(backend)).state(ValueStateDescriptor("v", Types.STRING()))


@pytest.mark.parametrize(
    "old, new, why",
    [
        (ValueStateDescriptor("s"), ListStateDescriptor("s"), "saved as a VALUE state, the program declares a LIST"),
        (
            ListStateDescriptor("s", Types.LONG()),
            MapStateDescriptor("s", Types.STRING(), Types.LONG()),
            "saved as a LIST state, the program declares a MAP",
        ),
        (
            ValueStateDescriptor("s", Types.LONG()),
            ValueStateDescriptor("s", Types.STRING()),
            "value was saved as long, the program declares string",
        ),
        (
            MapStateDescriptor("s", Types.STRING(), Types.LONG()),
            MapStateDescriptor("s", Types.LONG(), Types.LONG()),
            "key was saved as string, the program declares long",
        ),
        (
            ValueStateDescriptor("s", Types.ROW_NAMED(["a"], [Types.LONG()])),
            ValueStateDescriptor("s", Types.ROW_NAMED(["a"], [Types.STRING()])),
            "value was saved as row<a: long>, the program declares row<a: string>",
        ),
        (
            ValueStateDescriptor("s", Types.ROW_NAMED(["a"], [Types.LONG()])),
            ValueStateDescriptor("s", Types.ROW_NAMED(["b"], [Types.LONG()])),
            "value was saved as row<a: long>, the program declares row<b: long>",
        ),
    ],
)
def test_another_kind_or_type_is_refused_with_both(old, new, why):
    backend = HeapKeyedStateBackend("op")
    backend.state(old)
    with pytest.raises(StateMigrationError) as caught:
        restored(saved(backend)).state(new)
    assert why in caught.value.why and caught.value.where == 'operator "op", state "s"'
    assert caught.value.fields["old"] and len(str(caught.value).splitlines()) == 4


def test_a_type_that_is_declared_later_is_compared_with_a_value():
    backend = HeapKeyedStateBackend("op")
    backend.current_key = "k"
    backend.state(ListStateDescriptor("l")).add(5)
    data = saved(backend)
    with pytest.raises(StateMigrationError, match="saved without a type: expected"):
        restored(data).state(ListStateDescriptor("l", Types.STRING()))
    fine = restored(data)
    fine.current_key = "k"
    assert fine.state(ListStateDescriptor("l", Types.LONG())).get() == [5]
    again = KeyedSnapshotReader(saved(fine)).states["l"]
    assert again.declared["value"].text == "long"


OLD_ROW = Types.ROW_NAMED(["a", "b"], [Types.LONG(), Types.STRING()])


@pytest.mark.parametrize(
    "names, types, expected",
    [
        (["a", "b", "c"], [Types.LONG(), Types.STRING(), Types.DOUBLE()], Row(a=1, b="x", c=None)),
        (["b"], [Types.STRING()], Row(b="x")),
        (["b", "a"], [Types.STRING(), Types.LONG()], Row(b="x", a=1)),
    ],
)
def test_rows_of_a_declared_type_follow_it(names, types, expected):
    new = Types.ROW_NAMED(names, types)
    backend = HeapKeyedStateBackend("op")
    backend.current_key = "k"
    backend.state(ValueStateDescriptor("v", OLD_ROW)).update(Row(a=1, b="x"))
    backend.state(ListStateDescriptor("l", OLD_ROW)).add(Row(a=1, b="x"))
    backend.state(MapStateDescriptor("m", Types.STRING(), OLD_ROW)).put("i", Row(a=1, b="x"))
    backend = restored(saved(backend))
    backend.current_key = "k"
    found = [
        backend.state(ValueStateDescriptor("v", new)).value(),
        backend.state(ListStateDescriptor("l", new)).get()[0],
        backend.state(MapStateDescriptor("m", Types.STRING(), new)).get("i"),
    ]
    assert found == [expected] * 3 and all(row.get_field_names() == names for row in found)


def test_restoring_after_a_state_was_asked_for_is_an_error_of_ours():
    backend = HeapKeyedStateBackend("op")
    backend.state(ValueStateDescriptor("v"))
    with pytest.raises(InternalError, match="asked for before it was restored"):
        backend.restore(KeyedSnapshotReader(saved(backend)))


def test_timers_fire_again_and_are_no_state_of_the_backend():
    backend = HeapKeyedStateBackend("op")
    timers = KeyedTimerService(backend, lambda: 0)
    for timestamp, key in [(20, "a"), (10, "b"), (10, ("c", 1)), (10, None)]:
        backend.current_key = key
        timers.register_event_time_timer(timestamp)
    timers.register_processing_time_timer(99)
    data = saved(backend, timers)
    again = KeyedTimerService(restored(data), lambda: 0)
    again.restore(KeyedSnapshotReader(data))
    assert restored(data).tables == {}
    assert set(again.event_time.timers()) == {(20, "a"), (10, "b"), (10, ("c", 1)), (10, None)}
    assert list(again.processing_time.fire(99)) == [(99, None)]
    again.event_time.check()
    timers = KeyedTimerService(None, lambda: 0)
    timers.restore(KeyedSnapshotReader(data), KeyGroupRange(*[key_group("a", 128)] * 2))
    assert list(timers.event_time.timers()) == [(20, "a")]
