"""Savepoints read as tables, and built from tables."""

import datetime
import decimal
import enum
import pickle
import shutil
import uuid
import warnings
from collections import Counter
from dataclasses import dataclass, replace
from typing import NamedTuple

import pyarrow as pa
import pytest

from flinkish.common.time import Time
from flinkish.common.typeinfo import Types
from flinkish.common.types import Row
from flinkish.datastream.functions import AggregateFunction, KeyedProcessFunction
from flinkish.datastream.state import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from flinkish.datastream.window import TumblingEventTimeWindows
from flinkish.errors import InvalidJobError, StateMigrationError, UserError
from flinkish.messages.checkpoints import (
    CheckpointCommit,
    DistributionMode,
    FileHandle,
    InlineBytes,
    IncrementalKeyedStateHandle,
    InFlightHandle,
    InFlightPart,
    KeyGroupRange,
    OperatorStateHandle,
    OperatorSubtaskState,
    VertexInFlight,
)
from flinkish.messages.deployment import EdgeDescriptor
from flinkish.shell import snapshot_executor
from flinkish.state.key_groups import key_group
from flinkish.state.operator_state import OperatorStateBackend
from flinkish.state_processor import (
    KeyedStateBootstrap,
    OperatorIdentifier,
    OperatorTransformation,
    SavepointReader,
    SavepointWriter,
)
from flinkish.state_processor.savepoint_reader import COLUMNS, read_part
from flinkish.storage.checkpoint_storage import CheckpointStorage
from flinkish.testing.stream_test_harness import StreamTestHarness


@dataclass
class Visit:
    user: str
    pages: int


class Everything(KeyedProcessFunction):
    def open(self, context):
        ttl = StateTtlConfig.new_builder(1_000).build()
        expiring, expiring_map = ValueStateDescriptor("expiring"), MapStateDescriptor("expiring-map")
        expiring.enable_time_to_live(ttl)
        expiring_map.enable_time_to_live(ttl)
        self.expiring, self.expiring_map = context.get_state(expiring), context.get_map_state(expiring_map)
        self.visit = context.get_state(ValueStateDescriptor("visit"))
        self.mixed = context.get_state(ValueStateDescriptor("mixed"))
        self.row = context.get_state(
            ValueStateDescriptor("row", Types.ROW_NAMED(["n", "text"], [Types.INT(), Types.STRING()]))
        )
        self.list = context.get_list_state(ListStateDescriptor("list", Types.DOUBLE()))
        self.sum = context.get_reducing_state(ReducingStateDescriptor("sum", lambda a, b: a + b))

    def process_element(self, value, ctx):
        key, number = value
        self.expiring.update(number)
        self.expiring_map.put(f"m{number}", number)
        self.visit.update(Visit(key, number))
        self.mixed.update(number if number % 2 else str(number))
        self.row.update(Row(n=number, text=key))
        self.list.add(number / 2)
        self.sum.add(number)
        ctx.timer_service().register_event_time_timer(number)
        yield value


def everything(stream):
    return (
        stream.key_by(lambda value: value[0])
        .process(Everything())
        .uid("every")
        .name("Every")
        .set_max_parallelism(64)
    )


def stored(snapshot, folder, name="savepoint-1"):
    location = str(folder / name)
    storage = CheckpointStorage(folder)
    storage.create_folder(location)
    storage.store_metadata(replace(snapshot, location=location))
    return location


@pytest.fixture
def savepoint(tmp_path):
    with StreamTestHarness(everything, parallelism=3) as harness:
        harness.set_processing_time(5_000)
        harness.process_elements([((key, number), None) for number, key in enumerate("abcab", 1)])
        return stored(harness.snapshot(), tmp_path)


def inlined(location):
    """As the harness wants it: without files."""
    storage = CheckpointStorage(location)
    checkpoint = storage.load(location)
    operators = {
        operator_id: replace(
            operator,
            subtasks={
                index: replace(
                    state,
                    keyed=tuple(
                        replace(part, content=InlineBytes(storage.read(part.content))) for part in state.keyed
                    ),
                )
                for index, state in operator.subtasks.items()
            },
        )
        for operator_id, operator in checkpoint.operators.items()
    }
    return replace(checkpoint, operators=operators)


def rows(table, *names):
    return sorted(zip(*(table[name].to_pylist() for name in names)), key=repr)


def test_the_states_of_a_savepoint_are_listed_with_their_types(savepoint):
    infos = {info.state_name: info for info in SavepointReader.read(savepoint).select(operator_uid="every")}
    assert {name: info.state_kind for name, info in infos.items()} == {
        "expiring": "VALUE", "expiring-map": "MAP", "visit": "VALUE", "mixed": "VALUE", "row": "VALUE",
        "list": "LIST", "sum": "REDUCING",
        "_timer_state/event-time": "TIMERS", "_timer_state/processing-time": "TIMERS",
    }  # fmt: skip
    types = {name: info.types.get("value") for name, info in infos.items()}
    assert (
        types["expiring"]
        == types["expiring-map"]
        == types["sum"]
        == types["_timer_state/event-time"]
        == pa.int64()
    )
    assert types["visit"] == pa.struct([("user", pa.string()), ("pages", pa.int64())])
    assert types["row"] == pa.struct([("n", pa.int32()), ("text", pa.string())])  # declared
    assert types["list"] == pa.float64() and types["mixed"] is None
    assert infos["expiring-map"].types["map_key"] == infos["sum"].types["key"] == pa.string()
    assert infos["expiring"].ttl["ttl_ms"] == 1_000 and infos["sum"].ttl is None
    assert (infos["sum"].num_entries, infos["sum"].parallelism, infos["sum"].max_parallelism) == (3, 3, 64)
    table = SavepointReader.read(savepoint).states_table()
    assert ("every", "Every", "sum", "REDUCING", "string", "int64", 3) in rows(
        table, "operator_uid", "operator_name", "state_name", "state_kind", "key_type", "value_type", "num_entries"
    )


def test_a_state_is_read_with_its_types(savepoint):
    reader = SavepointReader.read(savepoint)
    table = reader.read_table(operator_uid="every", state_name="sum")
    assert rows(table, "key", "value", "key_group") == [
        (key, value, key_group(key, 64)) for key, value in (("a", 5), ("b", 7), ("c", 3))
    ]
    assert set(table["operator_uid"].to_pylist()) == {"every"} and set(table["state_kind"].to_pylist()) == {
        "REDUCING"
    }
    assert table["ttl"].null_count == len(table) and tuple(table.column_names) == tuple(COLUMNS)
    visits = reader.read_table(operator_name="Every", state_name="visit")
    assert rows(visits, "value") == [({"user": k, "pages": n},) for k, n in (("a", 4), ("b", 5), ("c", 3))]
    assert rows(reader.read_table(state_name="list"), "key", "position", "value") == [
        ("a", 0, 0.5), ("a", 1, 2.0), ("b", 0, 1.0), ("b", 1, 2.5), ("c", 0, 1.5),
    ]  # fmt: skip
    assert rows(reader.read_table(state_name="mixed"), "key", "value") == [("a", "4"), ("b", "5"), ("c", "3")]
    assert rows(reader.read_table(state_name="_timer_state/event-time"), "value") == [(n,) for n in range(1, 6)]


def test_times_to_live_are_a_column(savepoint):
    table = SavepointReader.read(savepoint).read_table(state_name="expiring-map")
    assert rows(table, "key", "map_key", "value") == [
        ("a", "m1", 1), ("a", "m4", 4), ("b", "m2", 2), ("b", "m5", 5), ("c", "m3", 3),
    ]  # fmt: skip
    (ttl,) = {tuple(ttl.values()) for ttl in table["ttl"].to_pylist()}
    assert (ttl[0], ttl[1].timestamp(), ttl[2].timestamp()) == (1_000, 5.0, 6.0)


def test_all_states_together_are_text(savepoint):
    table = SavepointReader.read(savepoint).read_table()
    assert table.schema.field("value").type == table.schema.field("map_key").type == pa.string()
    found = rows(table, "state_name", "key", "value")
    assert ("visit", "c", '{"user": "c", "pages": 3}') in found and ("list", "a", "0.5") in found
    of_state = Counter(row[0] for row in found)
    assert of_state["expiring-map"] == of_state["list"] == of_state["_timer_state/event-time"] == 5
    assert of_state["visit"] == of_state["sum"] == 3


def test_a_schema_of_ones_own_picks_columns_and_types(savepoint):
    reader = SavepointReader.read(savepoint)
    schema = pa.schema([("value", pa.float64()), ("key", pa.string())])
    table = reader.read_table(state_name="sum", schema=schema)
    assert table.schema == schema and rows(table, "value", "key") == [(3.0, "c"), (5.0, "a"), (7.0, "b")]
    with pytest.raises(UserError, match='value of state "mixed" as int64'):
        reader.read_table(state_name="mixed", schema=pa.schema([("value", pa.int64())]))
    with pytest.raises(InvalidJobError, match="column 'values'"):
        reader.read_table(state_name="sum", schema=pa.schema([("values", pa.int64())]))


def test_parts_of_a_plan_have_every_row_once(savepoint):
    reader = SavepointReader.read(savepoint)
    infos = reader.select(operator_uid="every")
    schema = reader.schema(infos)
    whole = reader.plan(infos)
    cut = reader.plan(infos, part_bytes=300)
    assert len(whole) == 1 and len(cut) > 6
    read = [
        sorted(repr(row) for part in plan for batch in read_part(part, schema) for row in batch.to_pylist())
        for plan in (whole, cut)
    ]
    assert read[0] == read[1] and len(read[0]) == 30


def test_a_state_that_is_not_there_is_refused_with_those_that_are(savepoint):
    with pytest.raises(UserError, match="(?s)state 'missing'.*\"sum\" of every"):
        SavepointReader.read(savepoint).select(operator_uid="every", state_name="missing")


def test_an_incremental_checkpoint_is_refused_by_name(savepoint, tmp_path):
    storage = CheckpointStorage(tmp_path)
    checkpoint = storage.load(savepoint)
    operator = next(operator for operator in checkpoint.operators.values() if operator.uid == "every")
    handle = IncrementalKeyedStateHandle(
        KeyGroupRange(0, 63), "rocksdb", "b", 1, {"1.sst": FileHandle("/x", 1)}, {}
    )
    changed = replace(operator, subtasks={0: OperatorSubtaskState((handle,))})
    checkpoint = replace(checkpoint, operators={operator.operator_id: changed})
    with pytest.raises(
        UserError, match="incremental checkpoint, in the own format of the backend rocksdb"
    ) as refused:
        SavepointReader(checkpoint, savepoint, {}).states()
    assert "canonical savepoint" in refused.value.do


def windows(stream):
    of_ten = stream.key_by(lambda value: value[0]).window(TumblingEventTimeWindows.of(Time.milliseconds(10)))
    return of_ten.reduce(lambda one, other: (one[0], one[1] + other[1])).uid("windows")


@pytest.fixture
def logged(tmp_path, monkeypatch):
    """A checkpoint of base and changes, and a savepoint of the same state, of every kind and of windows."""
    monkeypatch.setattr(snapshot_executor, "INLINE_BYTES_MAX", 500)
    options = {"execution.checkpointing.dir": str(tmp_path / "checkpoints"), "state.changelog.enabled": "true"}
    with StreamTestHarness(lambda s: [everything(s), windows(s)], parallelism=2, configuration=options) as harness:
        harness.set_processing_time(5_000)
        numbers = range(100)
        harness.process_elements([((f"key-{number}", number), number) for number in numbers])
        harness.checkpoint()
        harness.process_elements([((f"key-{number}", 7), 200 + number) for number in range(20)])
        harness.process_watermark(50)
        harness.checkpoint()
        harness.process_elements([((f"key-{number}", 8), 300) for number in range(10, 15)])
        changed = harness.checkpoint()
        saved = stored(harness.snapshot(), tmp_path)
    CheckpointStorage(tmp_path).store_metadata(changed)
    return changed, saved


def test_base_and_changes_are_read_as_one(logged):
    changed, saved = logged
    handles = [h for o in changed.operators.values() for s in o.subtasks.values() for h in s.keyed]
    assert all(len(handle.shared) + len(handle.private) == 3 for handle in handles if hasattr(handle, "shared"))
    assert sum(hasattr(handle, "shared") for handle in handles) == 4, "two operators, two subtasks"
    expected, found = SavepointReader.read(saved), SavepointReader.read(changed.location)
    assert [(s.title, s.state_kind, s.types) for s in found.states()] == [
        (s.title, s.state_kind, s.types) for s in expected.states()
    ]
    names = [name for name in COLUMNS if name != "subtask"]
    assert rows(found.read_table(), *names) == rows(expected.read_table(), *names)
    assert found.read_table("windows", state_name="window-contents").num_rows == 50 + 20 + 5
    parts = found.plan(found.states(), part_bytes=10_000)
    schema = found.schema(found.states())
    assert len(parts) > 3
    in_parts = pa.Table.from_batches([batch for part in parts for batch in read_part(part, schema)], schema)
    assert rows(in_parts, *names) == rows(expected.read_table(), *names)


def test_a_savepoint_takes_base_and_changes_along(logged, tmp_path):
    changed, saved = logged
    location = SavepointWriter.from_existing_savepoint(changed.location).write(tmp_path / "savepoint-2")
    names = [name for name in COLUMNS if name != "subtask"]
    expected = rows(SavepointReader.read(saved).read_table(), *names)
    assert rows(SavepointReader.read(location).read_table(), *names) == expected
    shutil.rmtree(tmp_path / "checkpoints")
    assert rows(SavepointReader.read(location).read_table(), *names) == expected
    restored = CheckpointStorage(location).load(location)
    options = {"execution.checkpointing.dir": str(tmp_path / "others"), "state.changelog.enabled": "true"}
    with StreamTestHarness.restore(
        lambda s: [everything(s), windows(s)], restored, 2, configuration=options
    ) as harness:
        assert harness.num_keyed_state_entries() > 700
        again = harness.checkpoint()
    handles = [h for o in again.operators.values() for s in o.subtasks.values() for h in s.keyed]
    assert all(len(getattr(handle, "shared", {})) <= 1 for handle in handles), "files of the savepoint are its own"


def test_operator_state_has_its_subtask_and_broadcast_state_one_copy(savepoint, tmp_path):
    storage = CheckpointStorage(tmp_path)
    checkpoint = storage.load(savepoint)

    def state(*numbers):
        return OperatorSubtaskState(
            (),
            OperatorStateHandle(
                {
                    "offsets": (DistributionMode.SPLIT, tuple(pickle.dumps((f"p{n}", n)) for n in numbers)),
                    "rules": (DistributionMode.BROADCAST, (pickle.dumps(("limit", 5)),)),
                }
            ),
        )

    operator = next(operator for operator in checkpoint.operators.values() if operator.uid == "every")
    operator = replace(operator, subtasks={0: state(1, 2), 1: state(3)})
    reader = SavepointReader(replace(checkpoint, operators={operator.operator_id: operator}), savepoint, {})
    table = reader.read_table(state_name="offsets")
    assert table.schema.field("value").type == pa.struct([("f0", pa.string()), ("f1", pa.int64())])
    assert [
        tuple(row.values()) for row in table.select(["state_kind", "subtask", "position", "value"]).to_pylist()
    ] == [
        ("OPERATOR_LIST", 0, 0, {"f0": "p1", "f1": 1}),
        ("OPERATOR_LIST", 0, 1, {"f0": "p2", "f1": 2}),
        ("OPERATOR_LIST", 1, 0, {"f0": "p3", "f1": 3}),
    ]
    assert rows(reader.read_table(state_name="rules"), "state_kind", "map_key", "value") == [
        ("BROADCAST", "limit", 5)
    ]


@dataclass
class Offset:
    partition: str
    number: int


def test_records_in_operator_state_are_read_without_their_classes(savepoint, tmp_path, monkeypatch):
    checkpoint = CheckpointStorage(tmp_path).load(savepoint)
    backend = OperatorStateBackend("every")
    backend.get_list_state(ListStateDescriptor("offsets")).add_all([Offset("p1", 1), Offset("p2", 2)])
    backend.get_broadcast_state(MapStateDescriptor("rules", Types.STRING(), Types.LONG())).put("limit", 5)
    operator = next(operator for operator in checkpoint.operators.values() if operator.uid == "every")
    operator = replace(operator, subtasks={0: OperatorSubtaskState((), backend.snapshot())})
    reader = SavepointReader(replace(checkpoint, operators={operator.operator_id: operator}), savepoint, {})
    monkeypatch.delitem(globals(), "Offset")
    assert rows(reader.read_table(state_name="offsets"), "position", "value") == [
        (0, {"partition": "p1", "number": 1}),
        (1, {"partition": "p2", "number": 2}),
    ]
    assert rows(reader.read_table(state_name="rules"), "map_key", "value") == [("limit", 5)]


# ---- writing ------------------------------------------------------------------------------------


class Join(AggregateFunction):
    def create_accumulator(self):
        return ""

    def add(self, value, accumulator):
        return accumulator + value

    def get_result(self, accumulator):
        return accumulator.upper()

    def merge(self, a, b):
        return a + b


def states():
    expiring = ValueStateDescriptor("v", Types.LONG())
    expiring.enable_time_to_live(StateTtlConfig.new_builder(3_600_000).build())
    return {
        "v": expiring,
        "l": ListStateDescriptor("l"),
        "m": MapStateDescriptor("m", Types.STRING(), Types.ROW_NAMED(["n", "t"], [Types.LONG(), Types.STRING()])),
        "r": ReducingStateDescriptor("r", lambda a, b: a + b),
        "a": AggregatingStateDescriptor("a", Join()),
    }


class Tell(KeyedProcessFunction):
    def open(self, context):
        made = states()
        self.states = (
            context.get_state(made["v"]), context.get_list_state(made["l"]), context.get_map_state(made["m"]),
            context.get_reducing_state(made["r"]), context.get_aggregating_state(made["a"]),
        )  # fmt: skip

    def process_element(self, value, ctx):
        value_state, elements, entries, reduced, aggregated = self.states
        yield (
            value, value_state.value(), elements.get(), dict(entries.items()), reduced.get(), aggregated.get(),
        )  # fmt: skip


def tell(stream):
    return stream.key_by(lambda value: value).process(Tell()).uid("tell").set_max_parallelism(32)


ROWS = [{"k": 1, "n": 10, "t": "x"}, {"k": 1, "n": 20, "t": "y"}, {"k": 2, "n": 30, "t": "z"}]


def test_a_program_begins_with_bootstrapped_state_of_every_kind(tmp_path):
    made = states()
    data = OperatorTransformation.bootstrap_with(ROWS).key_by("k")
    latest = OperatorTransformation.bootstrap_with(pa.table({"k": [1, 2, 3], "n": [20, 30, None]})).key_by("k")
    many = data.transform(
        KeyedStateBootstrap(made["l"], "n"),
        KeyedStateBootstrap(made["m"], ["n", "t"], map_key="t"),
        KeyedStateBootstrap(made["r"], "n"),
        KeyedStateBootstrap(made["a"], lambda row: row.t),
    )
    tell_id = OperatorIdentifier.for_uid("tell")
    first = SavepointWriter.new_savepoint(32).with_operator(tell_id, many).write(tmp_path / "first")
    with StreamTestHarness.restore(tell, inlined(first), parallelism=2) as harness:
        harness.process_elements([(1, None), (2, None), (3, None)])
        assert sorted(record.value for record in harness.output if hasattr(record, "value")) == [
            (1, None, [10, 20], {"x": Row(n=10, t="x"), "y": Row(n=20, t="y")}, 30, "XY"),
            (2, None, [30], {"z": Row(n=30, t="z")}, 30, "Z"),
            (3, None, [], {}, None, None),
        ]
    values = latest.transform(KeyedStateBootstrap(made["v"], "n"))
    second = SavepointWriter.new_savepoint(32).with_operator(tell_id, values).write(tmp_path / "second")
    table = SavepointReader.read(second).read_table(operator_uid="tell", state_name="v")
    assert rows(table, "key", "value") == [(1, 20), (2, 30)]  # null is no state
    assert {ttl["ttl_ms"] for ttl in table["ttl"].to_pylist()} == {3_600_000}
    with StreamTestHarness.restore(
        tell, inlined(second), parallelism=2
    ) as harness:  # its time is that of the savepoint
        harness.process_elements([(1, None)])
        assert [record.value for record in harness.output if hasattr(record, "value")] == [
            (1, 20, [], {}, None, None)
        ]


def test_a_savepoint_takes_the_operators_of_another_along(savepoint, tmp_path):
    extra = OperatorTransformation.bootstrap_with(ROWS[1:]).key_by("k").transform(KeyedStateBootstrap("v", "n"))
    writer = SavepointWriter.from_existing_savepoint(savepoint)
    with pytest.raises(InvalidJobError, match='"every".*') as refused:
        writer.with_operator(OperatorIdentifier.for_uid("every"), extra)
    assert "remove_operator" in refused.value.do
    location = writer.with_operator(OperatorIdentifier.for_uid("new"), extra).write(tmp_path / "both")
    CheckpointStorage(tmp_path).discard(savepoint)  # files were copied
    reader = SavepointReader.read(location)
    assert rows(reader.read_table(state_name="sum"), "key", "value") == [("a", 5), ("b", 7), ("c", 3)]
    assert rows(reader.read_table(operator_uid="new"), "key", "value") == [(1, 20), (2, 30)]
    without = SavepointWriter.from_existing_savepoint(location).remove_operator(
        OperatorIdentifier.for_uid("every")
    )
    assert {info.operator_uid for info in SavepointReader.read(without.write(tmp_path / "less")).states()} == {
        "new",
        None,
    }


def test_keys_are_those_of_the_job(tmp_path):
    data = OperatorTransformation.bootstrap_with([{"a": 1.0, "b": "x", "n": 1}])
    for key, key_type, expected in (
        (["a", "b"], None, (1, "x")),
        ("a", Types.LONG(), 1),
        (lambda row: row.b, None, "x"),
    ):
        transformed = data.key_by(key, key_type).transform(KeyedStateBootstrap("v", "n"))
        path = tmp_path / str(expected)
        SavepointWriter.new_savepoint(128).with_operator(OperatorIdentifier.for_uid("o"), transformed).write(path)
        (group,) = SavepointReader.read(path).read_table()["key_group"].to_pylist()
        assert group == key_group(expected, 128)


@pytest.mark.parametrize(
    "key, bootstrap, error, message",
    [
        ("k", KeyedStateBootstrap("v", "n"), UserError, "two rows of the key 1"),
        (
            "k",
            KeyedStateBootstrap(ListStateDescriptor("l", Types.STRING()), "n"),
            UserError,
            "not of the declared type",
        ),
        (
            "k",
            KeyedStateBootstrap(ReducingStateDescriptor("r", lambda a, b: a / 0), "n"),
            UserError,
            "ZeroDivisionError",
        ),
        ("key", KeyedStateBootstrap("v", "n"), InvalidJobError, "column 'key'"),
        (lambda row: row.nope, KeyedStateBootstrap("v", "n"), UserError, "AttributeError: nope"),
        ("k", KeyedStateBootstrap("v", lambda row: 1 / 0), UserError, "ZeroDivisionError"),
    ],
)
def test_what_cannot_become_state_is_refused(tmp_path, key, bootstrap, error, message):
    transformed = OperatorTransformation.bootstrap_with(ROWS).key_by(key).transform(bootstrap)
    writer = SavepointWriter.new_savepoint(32).with_operator(OperatorIdentifier.for_uid("o"), transformed)
    with pytest.raises(error, match=message):
        writer.write(tmp_path / "s")
    assert not (tmp_path / "s" / "_metadata").exists()


def test_wrong_settings_are_refused(savepoint):
    with pytest.raises(InvalidJobError, match="needs map_key"):
        KeyedStateBootstrap(MapStateDescriptor("m"), "n")
    with pytest.raises(InvalidJobError, match="max parallelism 0"):
        SavepointWriter.new_savepoint(0)
    with pytest.raises(InvalidJobError, match="there is one already"):
        SavepointWriter.new_savepoint(8).write(savepoint)
    with pytest.raises(InvalidJobError, match="cannot use '8' as max_parallelism"):
        SavepointWriter.new_savepoint("8")
    with pytest.raises(InvalidJobError, match="cannot use None as uid"):
        OperatorIdentifier.for_uid(None)
    with pytest.raises(InvalidJobError, match="cannot use 5 as state"):
        KeyedStateBootstrap(5, "n")
    for selector in (0, [], [1], None):
        with pytest.raises(InvalidJobError, match="cannot use .* as (value|key)"):
            KeyedStateBootstrap("v", selector)
        with pytest.raises(InvalidJobError, match="key_by.. cannot use"):
            OperatorTransformation.bootstrap_with([{"k": 1}]).key_by(selector)


def test_a_map_whose_declared_types_have_no_columns_is_read_by_what_it_holds(tmp_path):
    """Its keys take no notice of the type of the keys of the stream."""
    state = MapStateDescriptor("m", Types.PICKLED_BYTE_ARRAY(), Types.INSTANT())
    at = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)
    data = OperatorTransformation.bootstrap_with([{"k": 1, "m": "a", "v": at}]).key_by("k", Types.LONG())
    data = data.transform(KeyedStateBootstrap(state, "v", map_key="m"))
    path = SavepointWriter.new_savepoint(32).with_operator(OperatorIdentifier.for_uid("u"), data).write(tmp_path / "s")
    table = SavepointReader.read(path).read_table("u", None, "m")
    assert rows(table, "key", "map_key", "value") == [(1, "a", at)]
    assert table.schema.field("value").type == pa.timestamp("ns", "UTC")


def test_a_column_that_is_there_twice_is_not_chosen_from(tmp_path):
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["k", "k"])
    data = OperatorTransformation.bootstrap_with(table).key_by("k").transform(KeyedStateBootstrap("v", lambda row: 1))
    with pytest.raises(InvalidJobError, match="several of this name"):
        SavepointWriter.new_savepoint(8).with_operator(OperatorIdentifier.for_uid("u"), data).write(tmp_path / "s")


def test_another_max_parallelism_is_refused_at_the_restore(tmp_path):
    data = (
        OperatorTransformation.bootstrap_with(ROWS).key_by("k").transform(KeyedStateBootstrap(states()["l"], "n"))
    )
    path = (
        SavepointWriter.new_savepoint(16)
        .with_operator(OperatorIdentifier.for_uid("tell"), data)
        .write(tmp_path / "s")
    )
    with pytest.raises(StateMigrationError, match="max parallelism 16, the program has 32"):
        StreamTestHarness.restore(tell, CheckpointStorage(tmp_path).load(path))


def test_a_map_key_that_cannot_be_hashed_is_refused_with_state_and_operator(tmp_path):
    rows_of_lists = OperatorTransformation.bootstrap_with([{"k": 1, "m": [1], "v": 1}]).key_by("k")
    state = KeyedStateBootstrap(MapStateDescriptor("by list"), "v", map_key="m")
    writer = SavepointWriter.new_savepoint(32)
    with pytest.raises(UserError, match='the map_key of state "by list"') as refused:
        writer.with_operator(OperatorIdentifier.for_uid("u"), rows_of_lists.transform(state)).write(tmp_path / "s")
    assert 'operator "u"' in refused.value.where and "tuple" in refused.value.do


# ---- and back -----------------------------------------------------------------------------------


class Colour(enum.Enum):
    RED = 1
    GREEN = 2
    BLUE = 3


@dataclass(frozen=True)
class Key:
    number: int
    text: str


class Pair(NamedTuple):
    number: int
    text: str


@dataclass(frozen=True)
class DayKey:
    key: Key
    colour: Colour
    day: datetime.date


class Keep(KeyedProcessFunction):
    """Yields what each state has for the key, then changes all."""

    def open(self, context):
        self.value = context.get_state(ValueStateDescriptor("value"))
        self.list = context.get_list_state(ListStateDescriptor("list"))
        self.map = context.get_map_state(MapStateDescriptor("map"))

    def process_element(self, number, ctx):
        yield number, (self.value.value(), list(self.list.get()), dict(self.map.items()))
        visit = DayKey(Key(number, "v"), Colour.RED, datetime.date(2020, 1, number))
        self.value.update(visit)
        self.list.add(Visit("u", number))
        self.map.put((number, Colour.BLUE), Pair(number, "m"))


def kept(key):
    return lambda stream: stream.key_by(key).process(Keep()).uid("keep").set_max_parallelism(32)


def saved_by(job, folder):
    with StreamTestHarness(job, parallelism=2) as harness:
        harness.process_elements([(number, None) for number in (1, 2, 3)])
        return SavepointReader.read(stored(harness.snapshot(), folder))


def found_by(job, location):
    """What it yields for the keys that `saved_by` has saved."""
    with StreamTestHarness.restore(job, inlined(location), parallelism=3) as harness:
        harness.process_elements([(number, None) for number in (1, 2, 3)])
        found = dict(record.value for record in harness.output if hasattr(record, "value"))
        return [found[number] for number in (1, 2, 3)]


def written(table, path, *states, key="key", key_type=None):
    data = OperatorTransformation.bootstrap_with(table).key_by(key, key_type).transform(*states)
    return SavepointWriter.new_savepoint(32).with_operator("keep", data).write(path)


DATE = datetime.datetime(2020, 1, 1, tzinfo=datetime.timezone.utc)


@pytest.mark.parametrize(
    "key, key_type",
    [
        (lambda n: (n, ("t", None)), tuple),
        (lambda n: (n, "t"), Types.TUPLE([Types.LONG(), Types.STRING()])),
        (lambda n: Key(n, "t"), Key),
        (lambda n: Pair(n, "t"), Pair),
        (lambda n: Row(a=n, b="t"), Row),
        (lambda n: list(Colour)[n - 1], Colour),
        (lambda n: DayKey(Key(n, "t"), Colour.RED, DATE.date()), DayKey),
        (lambda n: (n, Colour.RED), tuple[int, Colour]),
        (lambda n: DATE.date().replace(day=n), datetime.date),
        (lambda n: DATE.replace(day=n), datetime.datetime),
        (lambda n: uuid.UUID(int=n), uuid.UUID),
        (lambda n: decimal.Decimal(n) / 10, decimal.Decimal),
        (lambda n: n / 2, float),
        (lambda n: n << 70, int),
        (lambda n: None if n == 1 else n, int),
    ],
)
def test_keys_of_a_job_are_read_and_written_back_as_they_were(tmp_path, key, key_type):
    table = saved_by(kept(key), tmp_path).read_table("keep", state_name="list")
    state = KeyedStateBootstrap(ListStateDescriptor("list"), "value", value_type=Visit)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        location = written(table, tmp_path / "back", state, key_type=key_type)
    assert found_by(kept(key), location) == [(None, [Visit("u", n)], {}) for n in (1, 2, 3)]


def test_a_bootstrapped_savepoint_says_the_classes_of_its_keys(tmp_path, monkeypatch):
    job = kept(lambda n: Pair(n, "t"))
    table = saved_by(job, tmp_path).read_table("keep", state_name="list")
    state = KeyedStateBootstrap(ListStateDescriptor("list"), "value", value_type=Visit)
    location = written(table, tmp_path / "back", state, key_type=Pair)
    monkeypatch.setitem(globals(), "Pair", NamedTuple("Pair", [("number", int), ("text", str), ("more", int)]))
    with pytest.raises(StateMigrationError, match="saved as a NamedTuple .*Pair.number, text.*now a NamedTuple"):
        found_by(job, location)


@pytest.mark.parametrize(
    "key, says",
    [
        (lambda n: Key(n, "t"), 'the key of operator "keep" is a Row, of a struct in the column "key".*key_type='),
        (lambda n: (n, "t"), 'the key of operator "keep" is a Row'),
        (lambda n: n if n > 1 else "1", 'the key of operator "keep" is a str: .* the text of other values.*key_type='),
        (lambda n: list(Colour)[n - 1], 'the key of operator "keep" is a str'),
    ],
)
def test_keys_that_become_rows_or_texts_without_a_type_are_said(tmp_path, key, says):
    table = saved_by(kept(key), tmp_path).read_table("keep", state_name="list")
    with pytest.warns(UserWarning, match=says) as said:
        written(table, tmp_path / "s", KeyedStateBootstrap(ListStateDescriptor("list"), lambda row: row.value))
    assert [warning.filename for warning in said] == [__file__]


def test_objects_in_state_are_written_back_as_they_were(tmp_path):
    reader = saved_by(kept(lambda n: n), tmp_path)
    values, entries = (reader.read_table("keep", state_name=name) for name in ("value", "map"))
    by_class = KeyedStateBootstrap("value", "value", value_type=DayKey)
    of_map = MapStateDescriptor("map")
    entry = KeyedStateBootstrap(of_map, "value", "map_key", value_type=Pair, map_key_type=tuple[int, Colour])
    expected = [DayKey(Key(n, "v"), Colour.RED, datetime.date(2020, 1, n)) for n in (1, 2, 3)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, second = written(values, tmp_path / "v", by_class), written(entries, tmp_path / "m", entry)
    job = kept(lambda n: n)
    assert [value for value, _, _ in found_by(job, first)] == expected
    assert [found for _, _, found in found_by(job, second)] == [
        {(n, Colour.BLUE): Pair(n, "m")} for n in (1, 2, 3)
    ]
    with pytest.warns(UserWarning) as said:
        written(entries, tmp_path / "untyped", KeyedStateBootstrap(of_map, "value", "map_key"))
    assert sorted(str(warning.message).partition(":")[0].partition(",")[0] for warning in said) == [
        'the map_key of state "map" of operator "keep" is a str',
        'the value of state "map" of operator "keep" is a Row',
    ]


@pytest.mark.parametrize(
    "key, key_type, why",
    [
        (["number", "word"], Key, 'no "text", the fields of Key are number, text and those of the struct number, word'),
        ("number", Key, "it is a int 1, no struct with the fields of Key"),
        ("word", Colour, "the members of Colour are RED, GREEN, BLUE"),
        ("word", Types.SQL_DATE(), "not of the declared type date"),
        ("number", Visit, "no struct with the fields of Visit"),
        (lambda row: Visit(row.word, row.number), None, "frozen=True"),
    ],
)
def test_keys_that_are_not_of_their_type_are_refused(tmp_path, key, key_type, why):
    state = KeyedStateBootstrap("v", "number")
    with pytest.raises(UserError) as refused:
        written([{"number": 1, "word": "x"}], tmp_path / "s", state, key=key, key_type=key_type)
    assert why in str(refused.value)
    location = written(
        [{"number": 1, "text": "x"}], tmp_path / "t", state, key=["text", "number"], key_type=Key
    )
    assert SavepointReader.read(location).read_table()["key"].to_pylist() == [{"number": 1, "text": "x"}]


def test_a_type_of_a_value_or_map_key_is_refused_where_it_cannot_be_meant():
    for given, why in [
        ({"value_type": Types.LONG()}, "the job's descriptor declares"),
        ({"map_key_type": int}, "no map_key"),
        ({"value_type": Everything}, "no objects of the class Everything can be made"),
    ]:
        with pytest.raises(InvalidJobError, match=why):
            KeyedStateBootstrap("v", "n", **given)


def test_rows_without_a_value_are_none_wherever_they_stand(tmp_path):
    for values in ([None, 5], [5, None]):
        data = [{"k": 1, "n": n} for n in values]
        location = written(data, tmp_path / str(values[0]), KeyedStateBootstrap("v", "n"), key="k")
        assert rows(SavepointReader.read(location).read_table(), "key", "value") == [(1, 5)]


def test_of_two_rows_of_a_map_key_neither_wins(tmp_path):
    state = KeyedStateBootstrap(MapStateDescriptor("m"), "n", "m")
    with pytest.raises(UserError, match="two rows of the key 1 and the map key 'a'"):
        written([{"k": 1, "m": "a", "n": n} for n in (1, 2)], tmp_path / "s", state, key="k")


# ---- operators ----------------------------------------------------------------------------------


def test_a_str_is_the_uid_of_an_operator_and_may_become_another(savepoint, tmp_path):
    data = OperatorTransformation.bootstrap_with(ROWS[1:]).key_by("k").transform(KeyedStateBootstrap("v", "n"))
    writer = SavepointWriter.from_existing_savepoint(savepoint).with_operator("made", data)
    writer.change_operator_identifier("every", "all").change_operator_identifier("made", "new")
    reader = SavepointReader.read(writer.remove_operator("nothing").write(tmp_path / "changed"))
    assert {info.operator_uid for info in reader.states()} == {"all", "new", None}
    assert rows(reader.read_table("all", state_name="sum"), "key", "value") == [("a", 5), ("b", 7), ("c", 3)]
    assert rows(reader.read_table("new"), "key", "value") == [(1, 20), (2, 30)]
    restored = inlined(reader.checkpoint.location)
    renamed = {"allow_non_restored_state": True}
    with StreamTestHarness.restore(lambda s: everything(s).uid("all"), restored, **renamed) as harness:
        assert harness.num_keyed_state_entries() > 0
    with pytest.raises(InvalidJobError, match='identifier of operator "gone"') as refused:
        writer.change_operator_identifier("gone", "other")
    assert "all" in refused.value.why
    with pytest.raises(InvalidJobError, match="state of it already"):
        writer.change_operator_identifier("new", "all")
    for call in (lambda: writer.with_operator(5, data), lambda: writer.remove_operator(None)):
        with pytest.raises(InvalidJobError, match="cannot use .* as identifier"):
            call()
    with pytest.raises(InvalidJobError, match="cannot use None as transformation"):
        writer.with_operator("x", None)


def test_what_a_sink_has_to_publish_goes_with_its_identifier(savepoint, tmp_path):
    checkpoint = CheckpointStorage(savepoint).load(savepoint)
    old, new = (OperatorIdentifier.for_uid(uid).operator_id for uid in ("every", "new"))
    commit = CheckpointCommit(checkpoint.job_id, checkpoint.run_id, 1, {old: (b"file",), "other": (b"x",)})
    pending = stored(replace(checkpoint, commits=(commit,)), tmp_path, "pending")
    writer = SavepointWriter.from_existing_savepoint(pending).change_operator_identifier("every", "new")
    location = writer.write(tmp_path / "renamed")
    (found,) = CheckpointStorage(location).load(location).commits
    assert found.committables == {new: (b"file",), "other": (b"x",)}


def test_states_of_a_transformation_are_bootstraps_each_once():
    keyed = OperatorTransformation.bootstrap_with(ROWS).key_by("k")
    for states, why in [((), "without a state"), (("v",), "cannot use 'v' as a state"),
                        ([KeyedStateBootstrap("v", "n")] * 2, "there twice")]:  # fmt: skip
        with pytest.raises(InvalidJobError, match=why):
            keyed.transform(*states)


def test_records_in_flight_are_taken_along_with_their_files_and_tie_their_operators(savepoint, tmp_path):
    storage = CheckpointStorage(tmp_path)
    checkpoint = storage.load(savepoint)
    every = OperatorIdentifier.for_uid("every")
    source = next(operator_id for operator_id in checkpoint.operators if operator_id != every.operator_id)
    with storage.create_file(savepoint) as out:
        out.write(b"frames")  # beside the metadata
    part = InFlightPart(EdgeDescriptor(0, source, every.operator_id, 0, "KEYED", True), 0, 0, True, 0, 6, 0)
    overtaken = VertexInFlight(every.operator_id, {0: (InFlightHandle(out.close(), (part,)),)})
    savepoint = stored(replace(checkpoint, in_flight=(overtaken,)), tmp_path, "unaligned")
    writer = SavepointWriter.from_existing_savepoint(savepoint)
    for call in (lambda: writer.remove_operator("every"), lambda: writer.change_operator_identifier("every", "x")):
        with pytest.raises(InvalidJobError, match='operator "every"') as refused:
            call()
        assert "unaligned" in refused.value.why
    copied = writer.write(tmp_path / "copied")
    shutil.rmtree(tmp_path / "savepoint-1")
    (found,) = CheckpointStorage(copied).load(copied).in_flight
    assert storage.read(found.by_subtask[0][0].content) == b"frames"


def test_map_keys_of_several_types_are_text_beside_those_of_one(tmp_path):
    """They were read as the type of the others, which failed."""
    made = [KeyedStateBootstrap(MapStateDescriptor(name), "n", m) for name, m in
            (("numbers", "n"), ("mixed", lambda row: row.n if row.n > 10 else row.t))]  # fmt: skip
    reader = SavepointReader.read(written(ROWS, tmp_path / "s", *made, key="k"))
    assert rows(reader.read_table("keep"), "state_name", "map_key")[:2] == [("mixed", "20"), ("mixed", "30")]
