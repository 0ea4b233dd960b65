"""Windows over columns: the same results and the same savepoints as record by record."""

from __future__ import annotations

import datetime
import random
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from flinkish.datastream.field_aggregates import FieldAggregates, described
from flinkish.errors import InvalidJobError, UserError
from flinkish.operators.columns import rows_of
from flinkish.operators.key_map import KeyMap
from flinkish.operators.windowing.column_aggregates import ColumnWindow

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
