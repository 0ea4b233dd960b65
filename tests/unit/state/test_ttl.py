"""Times to live: what expires when, what a read gives, what is saved, what is cleaned up."""

import io

import pytest

from flinkish.common.time import Time
from flinkish.common.typeinfo import Types
from flinkish.common.types import Row
from flinkish.datastream import functions as f
from flinkish.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from flinkish.errors import InvalidJobError, StateMigrationError
from flinkish.messages.checkpoints import KeyGroupRange
from flinkish.state.heap import HeapKeyedStateBackend, HeapValueState
from flinkish.state.keyed_snapshot import KeyedSnapshotReader, write_keyed_snapshot
from flinkish.state.operator_state import OperatorStateBackend
from flinkish.testing.manual_clock import ManualClock
from flinkish.testing.stream_test_harness import StreamTestHarness

TTL = 100


class Collect(f.AggregateFunction):
    def create_accumulator(self):
        return ()

    def add(self, value, accumulator):
        return accumulator + (value,)

    def get_result(self, accumulator):
        return list(accumulator)

    def merge(self, a, b):
        return a + b


def descriptor(kind="value", config=None, **types):
    made = {
        "value": lambda: ValueStateDescriptor("s", **types),
        "list": lambda: ListStateDescriptor("s", **types),
        "map": lambda: MapStateDescriptor("s", **types),
        "reduce": lambda: ReducingStateDescriptor("s", lambda a, b: a + b, **types),
        "aggregate": lambda: AggregatingStateDescriptor("s", Collect(), **types),
    }[kind]()
    if config is not None:
        made.enable_time_to_live(config.build() if isinstance(config, StateTtlConfig.Builder) else config)
    return made


def ttl(ms=TTL):
    return StateTtlConfig.new_builder(Time.milliseconds(ms))


class World:
    """One backend with one state, and a clock."""

    def __init__(self, kind, config, **types):
        self.clock = ManualClock()
        self.backend = HeapKeyedStateBackend("op", self.clock.now_ms)
        self.backend.current_key = "k"
        self.state = self.backend.state(descriptor(kind, config, **types))

    @property
    def kept(self):
        return self.backend.tables["s"]

    def at(self, ms):
        self.clock.set(ms)
        return self.state

    def saved(self):
        out = io.BytesIO()
        write_keyed_snapshot(out, self.backend.snapshot_states(), KeyGroupRange(0, 127), 128, operator="op")
        return out.getvalue()

    def restored(self, kind, config, **types):
        """Another program that goes on from this one's snapshot."""
        other = World.__new__(World)
        other.clock = self.clock
        other.backend = HeapKeyedStateBackend("op", self.clock.now_ms)
        other.backend.restore(KeyedSnapshotReader(self.saved()))
        other.backend.current_key = "k"
        other.state = other.backend.state(descriptor(kind, config, **types))
        return other


# ---- what expires -------------------------------------------------------------------------------


def test_a_value_expires_a_ttl_after_its_last_write():
    world = World("value", ttl())
    world.at(0).update(1)
    assert world.at(50).value() == 1
    world.state.update(2)
    assert world.at(149).value() == 2
    assert world.at(150).value() is None
    assert not world.kept  # a read removes what it finds expired


def test_a_read_renews_with_on_read_and_write():
    world = World("value", ttl().update_ttl_on_read_and_write())
    world.at(0).update(1)
    assert world.at(99).value() == 1 and world.at(198).value() == 1
    assert world.at(298).value() is None


def test_a_disabled_ttl_leaves_the_plain_state():
    world = World("value", ttl().set_update_type(StateTtlConfig.UpdateType.Disabled))
    assert type(world.state) is HeapValueState
    world.at(0).update(1)
    assert world.at(10_000).value() == 1


CLEANUPS = {
    "none": lambda config: config.disable_cleanup_in_background(),
    "in background": lambda config: config,
    "at each access": lambda config: config.cleanup_incrementally(100, False),
    "at each record": lambda config: config.cleanup_incrementally(100, True),
}


@pytest.mark.parametrize("cleanup", CLEANUPS)
@pytest.mark.parametrize("kind", ["value", "reduce", "aggregate"])
def test_what_is_not_cleaned_up_can_be_returned_once(kind, cleanup):
    world = World(kind, CLEANUPS[cleanup](ttl().return_expired_if_not_cleaned_up()))
    read = world.state.value if kind == "value" else world.state.get
    (world.state.update if kind == "value" else world.state.add)(1)
    world.at(500)
    world.backend.current_key = "k"  # a record comes
    assert read() == ([1] if kind == "aggregate" else 1)
    assert read() is None


@pytest.mark.parametrize("cleanup", CLEANUPS)
def test_expired_elements_and_entries_can_be_returned_once(cleanup):
    config = CLEANUPS[cleanup](ttl().return_expired_if_not_cleaned_up())
    world = World("list", config)
    world.at(0).add(1)
    world.at(50).add(2)
    world.at(120).add(3)
    world.backend.current_key = "k"
    assert world.state.get() == [1, 2, 3] and world.state.get() == [2, 3]
    world = World("map", config)
    world.at(0).put_all({"a": 1, "b": 2})
    world.at(50).put("c", 3)
    world.at(120)
    world.backend.current_key = "k"
    assert not world.state.is_empty() and world.state.get("a") == 1 and world.state.get("a") is None
    assert dict(world.state.items()) == {"b": 2, "c": 3} and dict(world.state.items()) == {"c": 3}


def test_what_was_due_at_an_earlier_access_is_cleaned_up_and_not_returned():
    world = World("map", ttl().return_expired_if_not_cleaned_up())
    world.at(0).put_all({"a": 1, "b": 2})
    assert world.at(120).get("a") == 1
    assert world.at(121).get("b") is None and not world.kept
    world.state.cleanup.check()


def test_elements_of_a_list_expire_one_by_one():
    world = World("list", ttl().disable_cleanup_in_background())
    world.at(0).add(1)
    world.at(60).add_all([2, 3])
    assert world.at(99).get() == [1, 2, 3]
    assert world.at(100).get() == [2, 3]
    assert world.kept == {"k": [(2, 60), (3, 60)]}
    assert world.at(160).get() == [] and not world.kept
    world.state.update([4])
    assert list(world.at(259).get()) == [4]
    assert list(world.at(260).get()) == []


def test_reading_a_list_renews_its_living_elements():
    config = ttl().update_ttl_on_read_and_write().return_expired_if_not_cleaned_up()
    world = World("list", config.disable_cleanup_in_background())
    world.at(0).add(1)
    world.at(60).add(2)
    assert world.at(120).get() == [1, 2]  # the first a last time
    assert world.at(219).get() == [2]


def test_entries_of_a_map_expire_one_by_one():
    world = World("map", ttl().disable_cleanup_in_background())
    world.at(0).put("a", 1)
    world.at(60).put_all({"b": 2, "c": 3})
    state = world.at(100)
    assert not state.contains("a") and state.get("a") is None and state.get("b") == 2
    assert sorted(state.keys()) == ["b", "c"] and sorted(state.values()) == [2, 3] and len(state) == 2
    assert not state.is_empty()
    assert world.at(160).is_empty() and world.state
    assert dict(world.state.items()) == {} and not world.kept


def test_reading_a_map_renews_what_was_read():
    world = World("map", ttl().update_ttl_on_read_and_write())
    world.at(0).put_all({"a": 1, "b": 2, "c": 3})
    assert world.at(50).get("a") == 1
    assert world.at(100).contains("a") and not world.state.contains("b")
    world.state.put("c", 4)
    assert dict(world.at(199).items()) == {"a": 1, "c": 4}
    assert dict(world.at(298).items()) == {"a": 1, "c": 4}


def test_an_expired_accumulator_is_never_added_to():
    for kind, expected in (("reduce", 2), ("aggregate", [2])):
        world = World(kind, ttl().return_expired_if_not_cleaned_up())
        world.at(0).add(1)
        world.at(100).add(2)
        assert world.state.get() == expected


def test_clearing_and_none_forget_at_once():
    world = World("value", ttl())
    world.state.update(1)
    world.state.update(None)
    assert world.state.value() is None and not world.kept
    world = World("map", ttl())
    world.state.put("a", 1)
    world.state.remove("a")
    assert not world.kept
    world.state.put("a", 1)
    world.state.clear()
    assert not world.kept


def test_operator_state_has_no_time_to_live():
    with pytest.raises(InvalidJobError, match="operator state has not"):
        OperatorStateBackend("op").get_list_state(descriptor("list", ttl()))
    with pytest.raises(InvalidJobError, match="operator state has not"):
        OperatorStateBackend("op").get_broadcast_state(descriptor("map", ttl()))


# ---- cleaning up --------------------------------------------------------------------------------


def test_an_access_removes_a_few_expired_entries_of_other_keys():
    world = World("value", ttl().cleanup_incrementally(3, False))
    for key in range(10):
        world.backend.current_key = key
        world.state.update(key)
    world.backend.current_key = "other"
    world.at(199).value()  # what is due here goes with the accesses after this time
    world.at(200)
    left = []
    for _ in range(5):
        world.state.value()
        left.append(len(world.kept))
    assert left == [7, 4, 1, 0, 0]
    world.state.cleanup.check()


def test_cleanup_spares_what_was_accessed_meanwhile():
    world = World("value", ttl().cleanup_incrementally(100, False))
    for key in range(10):
        world.backend.current_key = key
        world.at(0).update(key)
    for key in range(5):
        world.backend.current_key = key
        world.at(80).update(key)
    world.backend.current_key = "other"
    for ms in (110, 111):
        world.at(ms).value()
    assert sorted(world.kept) == [0, 1, 2, 3, 4]
    world.state.cleanup.check()
    for ms in (200, 201):
        world.at(ms).value()
    assert not world.kept
    world.state.cleanup.check()


def test_cleanup_drops_the_expired_part_of_lists_and_maps():
    world = World("list", ttl().cleanup_incrementally(100, False))
    world.at(0).add(1)
    world.at(50).add(2)
    world.backend.current_key = "other"
    for ms in (110, 111):
        world.at(ms).get()
    assert world.kept == {"k": [(2, 50)]}
    for ms in (160, 161):
        world.at(ms).get()
    assert not world.kept


def test_by_default_five_entries_an_access_are_cleaned_up_and_none_when_that_is_off():
    counts = []
    for config in (ttl(), ttl().disable_cleanup_in_background()):
        world = World("value", config)
        for key in range(10):
            world.backend.current_key = key
            world.state.update(key)
        world.backend.current_key = "other"
        for ms in (200, 201):
            world.at(ms).value()
        counts.append(len(world.kept))
    assert counts == [5, 10]


def test_an_empty_entry_goes_with_the_next_access():
    world = World("list", None)
    world.kept["empty"] = []
    world = world.restored("list", ttl())
    for ms in (TTL, TTL + 1):
        world.at(ms).get()
    assert not world.kept
    world.state.cleanup.check()


def test_cleanup_can_run_at_every_record():
    world = World("value", ttl().cleanup_incrementally(2, True))
    plain = HeapKeyedStateBackend("op", world.clock.now_ms)
    for key in range(4):
        world.backend.current_key = key
        world.state.update(key)
    for ms in (200, 201):
        world.clock.set(ms)
        world.backend.current_key = "other"  # the state is not asked
    assert len(world.kept) == 2 and world.backend.current_key == "other"
    assert type(plain) is HeapKeyedStateBackend  # others pay nothing


def test_full_snapshots_leave_out_what_has_expired_where_that_is_asked_for():
    sizes = []
    for config in (ttl().cleanup_full_snapshot(), ttl()):
        world = World("list", config.disable_cleanup_in_background())
        world.at(0).add(1)
        world.at(50).add(2)
        world.backend.current_key = "gone"
        world.kept["gone"] = [(9, 0)]
        world.clock.set(120)
        (block,) = KeyedSnapshotReader(world.saved()).read("s")
        sizes.append(sorted(zip(block.keys, block.values)))
        assert len(world.kept) == 2  # the running state is left alone
    assert sizes == [[("k", [(2, 50)])], [("gone", [(9, 0)]), ("k", [(1, 0), (2, 50)])]]


# ---- snapshots ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["value", "list", "map", "reduce", "aggregate"])
def test_a_restored_state_keeps_its_ages(kind):
    world = World(kind, ttl())
    if kind == "value":
        world.at(30).update(7)
    elif kind == "map":
        world.at(30).put("a", 7)
    else:
        world.at(30).add(7)
    meta = KeyedSnapshotReader(world.saved()).states["s"]
    assert meta.ttl == {
        "version": 1, "ttl_ms": TTL, "update_type": "OnCreateAndWrite", "visibility": "NeverReturnExpired",
    }  # fmt: skip
    world = world.restored(kind, ttl())
    world.state.cleanup.check()

    def read():
        if kind == "map":
            return world.state.get("a")
        return world.state.value() if kind == "value" else world.state.get()

    world.clock.set(129)
    assert read() in (7, [7])
    world.clock.set(130)
    assert read() in (None, [])


def test_another_ttl_may_be_declared_and_counts_from_the_last_access():
    world = World("value", ttl())
    world.at(0).update(1)
    longer = world.restored("value", ttl(1_000))
    assert longer.at(999).value() == 1
    assert longer.at(1_000).value() is None


def test_a_state_that_gets_a_ttl_counts_as_accessed_at_its_restore():
    for kind in ("value", "list", "map"):
        world = World(kind, None)
        world.state.put("a", 1) if kind == "map" else world.state.add(1) if kind == "list" else world.state.update(
            1
        )
        world.clock.set(500)
        world = world.restored(kind, ttl())
        world.clock.set(599)
        assert len(world.kept) == 1 and (world.state.value() if kind == "value" else True)
        world.clock.set(600)
        assert not (world.state.value() if kind == "value" else list(world.state))


def test_a_state_that_loses_its_ttl_keeps_what_is_there():
    for kind, bare in (("value", 1), ("list", [1]), ("map", {"a": 1})):
        world = World(kind, ttl())
        world.state.put("a", 1) if kind == "map" else world.state.add(1) if kind == "list" else world.state.update(
            1
        )
        world.clock.set(5_000)
        world = world.restored(kind, None)
        assert world.kept == {"k": bare}
        assert KeyedSnapshotReader(world.saved()).states["s"].ttl is None


def test_declared_types_are_compared_and_rows_adapted_under_a_ttl():
    old = Types.ROW_NAMED(["a"], [Types.INT()])
    new = Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.STRING()])
    for kind, argument in (("value", "value_type_info"), ("list", "elem_type_info"), ("map", "value_type_info")):
        world = World(kind, ttl(), **{argument: old})
        row = Row(a=1)
        world.state.put("x", row) if kind == "map" else world.state.add(
            row
        ) if kind == "list" else world.state.update(row)
        world = world.restored(kind, ttl(), **{argument: new})
        got = (
            world.state.value()
            if kind == "value"
            else world.state.get("x")
            if kind == "map"
            else world.state.get()[0]
        )
        assert got == Row(a=1, b=None)
    with pytest.raises(StateMigrationError, match="does not fit"):
        world.restored("map", ttl(), value_type_info=Types.LONG())
    untyped = World("value", ttl())
    untyped.state.update("text")
    with pytest.raises(StateMigrationError, match="saved without a type"):
        untyped.restored("value", ttl(), value_type_info=Types.LONG())
    assert untyped.restored("value", ttl(), value_type_info=Types.STRING()).state.value() == "text"


# ---- in an operator -----------------------------------------------------------------------------


class CountWithinTtl(f.KeyedProcessFunction):
    def open(self, runtime_context):
        self.count = runtime_context.get_state(descriptor("value", ttl(1_000)))

    def process_element(self, value, ctx):
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield value, count


def test_a_harness_moves_the_clock_and_restores_ages():
    def build(stream):
        return stream.key_by(lambda value: value).process(CountWithinTtl())

    def values(harness):
        return [record.value for record in harness.output if hasattr(record, "value")]

    with StreamTestHarness(build) as harness:
        harness.set_processing_time(10)
        harness.process_elements([("a", None), ("a", None), ("b", None)])
        harness.set_processing_time(900)
        harness.process_element("b")
        snapshot = harness.snapshot()
        harness.set_processing_time(1_010)
        harness.process_elements([("a", None), ("b", None)])
        assert values(harness) == [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("a", 1), ("b", 3)]
    with StreamTestHarness.restore(build, snapshot, parallelism=2) as harness:
        harness.set_processing_time(1_010)
        harness.process_elements([("a", None), ("b", None)])
        assert sorted(values(harness)) == [("a", 1), ("b", 3)]


@pytest.mark.parametrize("config", [None, ttl()])
def test_a_map_takes_pairs_with_and_without_a_time_to_live(config):
    world = World("map", config)
    world.at(0).put_all([("a", 1), ("b", 2)])
    assert dict(world.state.items()) == {"a": 1, "b": 2}
