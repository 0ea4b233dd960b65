"""Key groups, their ranges, and key groups of columns."""

import datetime as dt
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from flinkish.common.types import Row
from flinkish.errors import InvalidJobError, UnstableKeyError
from flinkish.state.column_memo import ColumnMemo
from flinkish.state.key_groups import (
    KeyMemo,
    canonical_key,
    check_parallelism,
    default_max_parallelism,
    key_group,
    key_group_range,
    key_groups_of_column,
    subtask_for_key_group,
)


@pytest.mark.parametrize("max_parallelism, parallelism", [(128, 1), (128, 3), (128, 128), (10, 7), (32768, 5)])
def test_the_ranges_of_all_subtasks_cover_each_group_once_and_agree_with_the_subtask(
    max_parallelism, parallelism
):
    owners = []
    for index in range(parallelism):
        for group in key_group_range(max_parallelism, parallelism, index):
            assert subtask_for_key_group(group, max_parallelism, parallelism) == index
            owners.append(group)
    assert owners == list(range(max_parallelism))


@pytest.mark.parametrize(
    "parallelism, expected",
    [(1, 128), (85, 128), (86, 256), (128, 256), (171, 256), (1000, 2048), (30000, 32768)],
)
def test_the_default_max_parallelism_is_flinks(parallelism, expected):
    assert default_max_parallelism(parallelism) == expected


def test_a_max_parallelism_below_the_parallelism_or_out_of_range_is_refused():
    check_parallelism(4, 4, "count")
    with pytest.raises(InvalidJobError, match='operator "count"(.|\n)*max parallelism is 4'):
        check_parallelism(4, 5, "count")
    for wrong in (0, 32769):
        with pytest.raises(InvalidJobError, match="between 1 and 32768"):
            check_parallelism(wrong, 1, "count")


@pytest.mark.parametrize(
    "keys",
    [range(20_000), [f"N{n}" for n in range(20_000)], [("JFK", n) for n in range(20_000)],
     [n / 8 + 0.1 for n in range(20_000)], [n * 1000 for n in range(20_000)]],
    ids=["ints", "strings", "tuples", "floats", "thousands"],
)
def test_keys_spread_evenly_over_the_groups(keys):
    counts = np.bincount([key_group(canonical_key(key), 128) for key in keys], minlength=128)
    expected = len(keys) / 128
    chi_square = ((counts - expected) ** 2 / expected).sum()
    assert chi_square < 200  # 127 degrees of freedom: beyond 190 in one of 5,000 cases


# ---- columns ------------------------------------------------------------------------------------


def rows_of(column):
    """Groups by the row path; a struct is a Row there."""
    return [key_group(canonical_key(value), 128) for value in map(as_row, column.to_pylist())]


def as_row(value):
    if isinstance(value, dict):
        return Row.of_fields(list(value), [as_row(item) for item in value.values()])
    return value


NAN = math.nan
COLUMNS = {
    "int8": pa.array([1, -1, 127, None], pa.int8()),
    "int32 without nulls": pa.array([1, -1, 2**31 - 1], pa.int32()),
    "int64": pa.array([0, -1, 2**63 - 1, -(2**63)], pa.int64()),
    "uint64": pa.array([0, 2**63, 2**64 - 1], pa.uint64()),
    "uint64 small": pa.array([0, 2**63 - 1], pa.uint64()),
    "bool": pa.array([True, False, None]),
    "float64": pa.array([0.0, -0.0, NAN, 1.0, 0.5, math.inf, 1e300, None, np.float64("nan")]),
    "float32": pa.array([0.0, -0.0, NAN, 0.1, None], pa.float32()),
    "float16": pa.array(np.array([0.0, -0.0, NAN, 0.5], np.float16)),
    "string": pa.array(["a", "", "é", None, "a"]),
    "large string": pa.array(["a", None], pa.large_string()),
    "string view": pa.array(["a", "a string that is long", None], pa.string_view()),
    "binary": pa.array([b"a", b"", None]),
    "fixed binary": pa.array([b"ab", b"cd"], pa.binary(2)),
    "decimal": pa.array([Decimal("1.10"), Decimal("2.00"), Decimal("0.50"), None], pa.decimal128(10, 2)),
    "decimal256": pa.array([Decimal("1.1"), None], pa.decimal256(50, 1)),
    "date32": pa.array([dt.date(2024, 1, 1), None]),
    "date64": pa.array([dt.date(2024, 1, 1), None], pa.date64()),
    "time32": pa.array([dt.time(1, 2, 3), None], pa.time32("s")),
    "time64": pa.array([dt.time(1, 2, 3, 4), None], pa.time64("us")),
    "timestamp us": pa.array([dt.datetime(2024, 1, 1), None], pa.timestamp("us")),
    "timestamp ns": pa.array([1, 1000, None], pa.timestamp("ns")),
    "timestamp with zone": pa.array(
        [1_729_989_000_000, 1_729_992_600_000, 1_729_996_200_000, None], pa.timestamp("ms", "Europe/Berlin")
    ),
    "timestamp ns with zone": pa.array([1, None], pa.timestamp("ns", "America/New_York")),
    "duration": pa.array([dt.timedelta(seconds=1), None], pa.duration("us")),
    "duration ns": pa.array([1, 1000], pa.duration("ns")),
    "struct": pa.array([{"a": 1.0, "b": "x"}, {"a": NAN, "b": None}, None, {"a": 1.0, "b": "x"}]),
    "nested struct": pa.array([{"b": {"z": 1, "a": -0.0}, "a": True}]),
    "dictionary": pa.array(["a", None, "b", "a"]).dictionary_encode(),
    "dictionary with a null value": pa.DictionaryArray.from_arrays(pa.array([0, 1, None]), pa.array(["a", None])),
    "null": pa.nulls(3),
    "run end encoded": pa.RunEndEncodedArray.from_arrays([2, 3], ["a", "b"]),
    "extension": pa.ExtensionArray.from_storage(pa.uuid(), pa.array([bytes(16), bytes(range(16))], pa.binary(16))),
    "chunked": pa.chunked_array([["a", "b"], [None, "a"]]),
    "sliced": pa.array([5, 6, 7, 8])[1:3],
    "empty": pa.array([], pa.string()),
    "empty chunks": pa.chunked_array([], pa.int64()),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_has_the_groups_of_its_values(name):
    column = COLUMNS[name]
    groups = key_groups_of_column(column, 128)
    assert groups.dtype == np.int32 and groups.tolist() == rows_of(column)
    memo = ColumnMemo(KeyMemo(lambda key: key_group(key, 128)))
    for _ in range(2):
        assert key_groups_of_column(column, 128, memo).tolist() == rows_of(column)


def test_the_repeated_hour_of_a_zone_gives_a_group_to_each_instant():
    hour_ms = 3_600_000
    instants = [1_729_989_000_000 + n * hour_ms for n in range(3)]
    zoned = key_groups_of_column(pa.array(instants, pa.timestamp("ms", "Europe/Berlin")), 32768)
    utc = key_groups_of_column(pa.array(instants, pa.timestamp("ms", "UTC")), 32768)
    assert zoned.tolist() == utc.tolist() and len(set(utc.tolist())) == 3


@pytest.mark.parametrize(
    "column", [pa.array([[1]]), pa.array([[(1, 2)]], pa.map_(pa.int64(), pa.int64())), pa.array([{"a": [1]}])]
)
def test_a_column_of_values_that_can_change_is_refused(column):
    with pytest.raises(UnstableKeyError, match="key by"):
        key_groups_of_column(column, 128)
