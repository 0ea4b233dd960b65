import pytest

from flinkish.datastream import functions as f
from flinkish.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from flinkish.errors import InvalidJobError
from flinkish.state.heap import HeapKeyedStateBackend, StateStore


@pytest.fixture
def backend():
    return HeapKeyedStateBackend("op")


def test_a_value_belongs_to_the_current_key_and_none_clears_it(backend):
    state = backend.state(ValueStateDescriptor("v"))
    backend.current_key = "a"
    assert state.value() is None
    state.update(0)
    assert state.value() == 0
    backend.current_key = "b"
    assert state.value() is None
    backend.current_key = "a"
    state.update(None)
    assert state.value() is None and backend.num_entries == 0


def test_a_list_can_be_changed_while_it_is_walked(backend):
    state = backend.state(ListStateDescriptor("l"))
    backend.current_key = 1
    assert list(state.get()) == [] and list(state) == []
    state.add_all(iter([1, 2]))
    for value in state.get():
        state.add(value * 10)
    assert list(state.get()) == [1, 2, 10, 20]
    state.update([5])
    assert list(state) == [5]
    state.update([])
    state.add_all([])
    assert backend.num_entries == 0
    state.add(1)
    state.clear()
    assert backend.num_entries == 0


def test_a_map_leaves_nothing_behind_when_it_is_empty(backend):
    state = backend.state(MapStateDescriptor("m"))
    backend.current_key = 1
    assert state.is_empty() and state.get("x") is None and list(state.items()) == []
    state.put("x", 1)
    state.put_all({"y": 2})
    state["z"] = None
    assert dict(state.items()) == {"x": 1, "y": 2, "z": None}
    assert "z" in state and state.contains("y") and not state.contains("q")
    assert sorted(state.keys()) == ["x", "y", "z"] and state["x"] == 1 and list(state.values())[:2] == [1, 2]
    for key in state.keys():
        state.remove(key)
    state.remove("x")
    assert backend.num_entries == 0
    state.put_all({})
    assert state.is_empty() and backend.num_entries == 0
    state.put("a", 1)
    state.clear()
    assert state.is_empty()


class Collect(f.AggregateFunction):
    def create_accumulator(self):
        return []

    def add(self, value, accumulator):
        return accumulator + [value]

    def get_result(self, accumulator):
        return tuple(accumulator)

    def merge(self, a, b):
        return a + b


def test_reducing_and_aggregating_states_combine_what_is_added(backend):
    total = backend.state(ReducingStateDescriptor("r", lambda a, b: a + b))
    seen = backend.state(AggregatingStateDescriptor("a", Collect()))
    backend.current_key = "k"
    assert total.get() is None and seen.get() is None
    for n in (1, 2, 3):
        total.add(n)
        seen.add(n)
    assert total.get() == 6 and seen.get() == (1, 2, 3)
    assert backend.num_entries == 2
    total.clear()
    seen.clear()
    assert backend.num_entries == 0 and total.get() is None


def test_an_equal_descriptor_gives_the_same_state_and_another_kind_is_refused(backend):
    store = StateStore(backend)
    assert store.get_state(ValueStateDescriptor("s")) is store.get_state(ValueStateDescriptor("s"))
    with pytest.raises(InvalidJobError, match='"s" was described twice'):
        store.get_list_state(ListStateDescriptor("s"))
    with pytest.raises(InvalidJobError, match="is not a MapStateDescriptor"):
        store.get_map_state(ValueStateDescriptor("s"))


def test_states_of_another_scope_are_kept_apart(backend):
    class Scope:
        current_key = ("window", 1)

    plain = backend.state(ValueStateDescriptor("s"))
    scoped = backend.state(ValueStateDescriptor("s"), Scope(), "window/")
    backend.current_key = 1
    plain.update("plain")
    scoped.update("scoped")
    assert (plain.value(), scoped.value()) == ("plain", "scoped")
