"""Windows over columns: the same results and the same savepoints as record by record."""

from __future__ import annotations

import datetime
import random
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from flinkish.common import Types
from flinkish.datastream.field_aggregates import FieldAggregates, described
from flinkish.errors import InvalidJobError, UserError
from flinkish.operators.columns import rows_of
from flinkish.operators.key_map import KeyMap
from flinkish.operators.windowing.column_aggregates import ColumnWindow
from flinkish.operators.windowing.column_windows import key_column

AGGREGATES = {
    "n": "count",
    "values": ("v", "count"),
    "total": ("v", "sum"),
    "least": ("v", "min"),
    "most": ("v", "max"),
    "mean": ("v", "avg"),
}


def by_rows(function, batches):
    """Key -> results, and key -> accumulators."""
    accumulators: dict = {}
    for batch in batches:
        for row in rows_of(batch):
            known = accumulators.setdefault(row["k"], function.create_accumulator())
            accumulators[row["k"]] = function.add(row, known)
    return {key: function.get_result(found) for key, found in accumulators.items()}, accumulators


def by_columns(function, batches):
    keys = KeyMap()
    window = ColumnWindow(function, keys)
    for batch in batches:
        window.add(keys.slots(batch.column("k")), batch, len(keys))
    return keys, window


def results_of(keys, window):
    slots = window.present()
    columns = [column.to_pylist() for column in window.results(slots)]
    return {keys.keys[slot]: list(values) for slot, values in zip(slots.tolist(), zip(*columns))}


RNG = random.Random(5)
COLUMNS = {
    "ints": [RNG.randrange(-1000, 1000) for _ in range(60)],
    "ints with nulls": [RNG.choice((None, 1, 7, -3)) for _ in range(60)],
    "only nulls": pa.nulls(60, pa.int64()),
    "small ints": pa.array([RNG.randrange(-100, 100) for _ in range(60)], pa.int8()),
    "beyond 64 bits": [2**62 + RNG.randrange(9) if i % 2 else -(2**62) for i in range(60)],
    "unsigned": pa.array([2**63 + i for i in range(5)] + [None] * 55, pa.uint64()),
    "floats": [RNG.uniform(-1, 1) for _ in range(60)],
    "floats with nan": [RNG.choice((1.5, float("nan"), None, -2.5)) for _ in range(60)],
    "decimals": pa.array([Decimal(RNG.randrange(-99, 99)) / 10 for _ in range(60)], pa.decimal128(9, 1)),
    "decimals of 36 digits": pa.array([Decimal(RNG.randrange(10**36)).scaleb(-18) for _ in range(60)], pa.decimal128(38, 18)),
    "booleans": [RNG.choice((True, False, None)) for _ in range(60)],
}


def same(found, expected):
    """Equal, and NaN where NaN is expected."""
    return repr(found) == repr(expected) or found == expected


@pytest.mark.parametrize("name", COLUMNS)
def test_columns_give_what_rows_give(name):
    function = FieldAggregates(described(AGGREGATES, "k"), "k")
    keys = [f"key {RNG.randrange(7)}" if i % 9 else None for i in range(60)]
    table = pa.record_batch({"k": keys, "v": pa.array(COLUMNS[name])})
    if name in ("beyond 64 bits", "unsigned"):  # a sum of rows is an int of any size, of columns it has 64 bits
        function = FieldAggregates(tuple(each for each in function.aggregates if each.name != "total"), "k")
    batches = [table.slice(0, 20), table.slice(20, 1), table.slice(21)]
    expected, accumulators = by_rows(function, batches)
    found_keys, window = by_columns(function, batches)
    found = results_of(found_keys, window)
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        assert all(map(same, found[key], values)), key
    saved = dict(zip(window, window.values()))
    assert {key: repr(part) for key, part in saved.items()} == {key: repr(p) for key, p in accumulators.items()}

    again = KeyMap()
    restored = ColumnWindow(function, again)
    for key, accumulator in saved.items():
        restored[key] = accumulator
    restored.take_restored()
    restored.add(again.slots(table.column("k")), table, len(again))
    twice, _ = by_rows(function, [*batches, table])
    for key, values in results_of(again, restored).items():
        assert all(map(same, values, twice[key])), key


@pytest.mark.parametrize(
    "values", [["b", "a", None, "c"], [datetime.date(2020, 1, 2), datetime.date(2019, 1, 1), None, None]]
)
def test_least_and_most_of_what_is_no_number(values):
    function = FieldAggregates(described({"least": ("v", "min"), "most": ("v", "max")}, "k"), "k")
    batch = pa.record_batch({"k": ["x", "x", "y", "x"], "v": values})
    keys, window = by_columns(function, [batch])
    assert results_of(keys, window) == by_rows(function, [batch])[0]


def test_batches_of_one_stream_may_differ_in_the_type_of_a_field():
    function = FieldAggregates(described({k: ("v", k) for k in ("sum", "min", "max", "avg")}, "k"), "k")
    columns = [pa.array([1.5, 2.5]), pa.array([1, 2]), pa.array([Decimal("0.25"), None]), pa.array([7, 7], pa.int8())]
    for some in ([0, 1], [1, 0], [1, 2, 3], [3, 2, 1]):
        batches = [pa.record_batch({"k": ["a", "a"], "v": columns[i]}) for i in some]
        assert results_of(*by_columns(function, batches)) == by_rows(function, batches)[0], some


def test_an_average_of_durations_is_one():
    function = FieldAggregates(described({"mean": ("v", "avg")}, "k"), "k")
    batch = pa.record_batch({"k": ["a", "a"], "v": pa.array([1, 2], pa.duration("s"))})
    assert results_of(*by_columns(function, [batch])) == {"a": [datetime.timedelta(seconds=1.5)]}


@pytest.mark.parametrize(
    "keys",
    [
        pa.array([True, False, None]),
        pa.array([Decimal("1.5"), Decimal(2), None, Decimal("0.1")], pa.decimal128(5, 1)),
        pa.array([Decimal("1.5"), Decimal(10) ** 40], pa.decimal256(60, 1)),
        pa.array([1.0, 2.5, None, 2.0**60, -(2.0**70)]),
        pa.array([1.5, 0.1, None], pa.float32()),
        pa.array([{"a": 1, "b": True}, {"a": None, "b": False}, None]),
        pa.array(["x", "y", None]).dictionary_encode(),
        pa.array([Decimal("1.5"), None], pa.decimal128(5, 1)).dictionary_encode(),
        pa.array([1, None], pa.timestamp("us", "UTC")),
        pa.array([1, 2**64 - 1], pa.uint64()),
    ],
    ids=lambda keys: str(keys.type),
)
def test_keys_leave_in_the_type_in_which_they_came(keys):
    known = KeyMap()
    column = key_column([known.keys[slot] for slot in known.slots(keys).tolist()], keys.type)
    assert column.equals(keys.dictionary_decode() if pa.types.is_dictionary(keys.type) else keys)


def test_a_sum_that_no_column_can_hold_is_refused_with_advice():
    function = FieldAggregates(described({"total": ("v", "sum")}, "k"), "k")
    keys, window = by_columns(function, [pa.record_batch({"k": ["x"] * 3, "v": [2**62] * 3})])
    with pytest.raises(UserError, match='the sum "total"') as error:
        window.results(window.present())
    assert "cast the field" in error.value.do


def test_keys_that_no_window_knows_are_forgotten_and_slots_used_again():
    function = FieldAggregates(described({"n": "count", "total": ("v", "sum")}, "k"), "k")
    keys, window = by_columns(function, [pa.record_batch({"k": ["a", "b", "c"], "v": [1, 2, 3]})])
    kept = np.array([1])
    window.keep(kept)
    keys.keep(kept.tolist())
    assert results_of(keys, window) == {"b": [1, 2]}
    window.add(keys.slots(pa.array(["d", "b"])), pa.record_batch({"k": ["d", "b"], "v": [10, 20]}), len(keys))
    assert results_of(keys, window) == {"b": [2, 22], "d": [1, 10]}


@pytest.mark.parametrize(
    "aggregates, why",
    [
        ({}, "nothing to compute"),
        ({"k": "count"}, "cannot have this name"),
        ({"window_end": ("v", "sum")}, "cannot have this name"),
        ({"x": "sum"}, "cannot use"),
        ({"x": ("v", "median")}, "knows no aggregate"),
        ({"x": (-1, "sum")}, "cannot use the field"),
    ],
)
def test_what_cannot_be_computed_is_refused(aggregates, why):
    with pytest.raises(InvalidJobError, match=why):
        described(aggregates, "k")


@pytest.mark.parametrize(
    "aggregate, why",
    [
        (("name", "sum"), "declared type is string"),
        (("day", "avg"), "declared type is date"),
        (("w", "count"), "no field 'w'"),
        ((9, "min"), "no field 9"),
    ],
)
def test_what_the_declared_record_cannot_give_is_refused(aggregate, why):
    fields = {"name": Types.STRING(), "day": Types.SQL_DATE(), "n": Types.INT(), "done": Types.BOOLEAN()}
    record_type = Types.ROW_NAMED(list(fields), list(fields.values()))
    with pytest.raises(InvalidJobError) as error:
        described({"x": aggregate}, "k", record_type)
    assert why in str(error.value)
    assert described({"x": ("name", "max"), "y": ("done", "sum"), "z": (2, "avg")}, "k", record_type)


def test_accumulators_merge_as_sessions_need_it():
    function = FieldAggregates(described(AGGREGATES, "k"), "k")
    records = [{"v": value} for value in (3, None, -1, 8)]
    parts = []
    for part in (records[:1], records[1:2], records[2:]):
        accumulator = function.create_accumulator()
        for record in part:
            accumulator = function.add(record, accumulator)
        parts.append(accumulator)
    merged = function.merge(function.merge(parts[0], parts[1]), parts[2])
    assert function.get_result(merged) == [4, 3, 10, -1, 8, 10 / 3]
