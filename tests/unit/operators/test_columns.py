import datetime as dt
import decimal
import math
import uuid

import pandas as pd
import pyarrow as pa
import pytest

from flinkish.common.types import Row
from flinkish.errors import UserError
from flinkish.operators.columns import column_values, rows_of

DAY = dt.date(2024, 2, 29)
NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 123456)
PERSON = pa.struct([("name", pa.string()), ("age", pa.int8())])
ANN = Row(name="Ann", age=7)

TABLE = [
    (pa.null(), [None, None]),
    (pa.bool_(), [True, None]),
    (pa.int8(), [-1, None]),
    (pa.int64(), [2**62, -3]),
    (pa.uint64(), [2**64 - 1, 0]),
    (pa.float16(), [1.5, None]),
    (pa.float32(), [0.5, 1.25]),
    (pa.float64(), [0.1, None]),
    (pa.decimal128(10, 2), [decimal.Decimal("1.10"), None]),
    (pa.decimal256(50, 3), [decimal.Decimal("1.100")]),
    (pa.string(), ["ä", None]),
    (pa.large_string(), ["x"]),
    (pa.binary(), [b"\xff", None]),
    (pa.binary(2), [b"ab"]),
    (pa.date32(), [DAY, None]),
    (pa.date64(), [DAY]),
    (pa.timestamp("us"), [NOON, None]),
    (pa.timestamp("us", "UTC"), [NOON.replace(tzinfo=dt.timezone.utc)]),
    (pa.time64("us"), [NOON.time(), None]),
    (pa.time32("s"), [dt.time(1, 2, 3)]),
    (pa.duration("us"), [dt.timedelta(microseconds=5), None]),
    (pa.list_(pa.int64()), [[1, None], None, []]),
    (pa.large_list(pa.string()), [["a"]]),
    (pa.list_(pa.int64(), 2), [[1, 2]]),
    (pa.map_(pa.string(), pa.int64()), [{"a": 1, "b": None}, None]),
    (pa.dictionary(pa.int8(), pa.string()), ["a", None, "a"]),
    (PERSON, [ANN, None]),
    (pa.list_(PERSON), [[ANN, None], None]),
    (pa.struct([("inner", PERSON), ("n", pa.int8())]), [Row(inner=ANN, n=1), Row(inner=None, n=None)]),
    (pa.map_(pa.string(), PERSON), [{"a": ANN, "b": None}]),
]


def plain(value):
    """For building the array: Rows as dicts."""
    if isinstance(value, Row):
        return {name: plain(value[name]) for name in value.get_field_names()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, dict):
        return {key: plain(v) for key, v in value.items()}
    return value


@pytest.mark.parametrize("kind,values", TABLE, ids=lambda x: str(x) if isinstance(x, pa.DataType) else "")
def test_each_arrow_type_gives_the_python_type_of_the_table(kind, values):
    source = [list(v.items()) if isinstance(v, dict) else v for v in map(plain, values)]
    column = pa.array(map(plain, values) if pa.types.is_struct(kind) else source, kind)
    found = column_values(column)
    assert found == values
    assert [type(value) for value in found] == [type(value) for value in values]


def test_nanoseconds_are_kept():
    stamp = pd.Timestamp("2024-01-01T00:00:00.000000001")
    assert column_values(pa.array([stamp], pa.timestamp("ns"))) == [stamp]
    with pytest.raises(UserError, match="time64"):
        column_values(pa.array([1], pa.time64("ns")))


def test_nan_is_a_number_and_not_a_null():
    found = column_values(pa.array([float("nan"), None, 1.0]))
    assert math.isnan(found[0]) and found[1:] == [None, 1.0]


def test_an_extension_type_is_read_as_its_storage_and_uuid_as_uuid():
    identity = uuid.UUID(int=5)
    storage = pa.array([identity.bytes], pa.binary(16))
    assert column_values(pa.ExtensionArray.from_storage(pa.uuid(), storage)) == [identity]


def test_records_are_rows_with_the_names_of_the_columns():
    rows = rows_of(pa.record_batch({"a": [1, None], "b": ["x", "y"]}))
    assert rows == [Row(a=1, b="x"), Row(a=None, b="y")]
    rows[0]["a"] = 9
    rows[0].set_field_names(["c", "d"])
    assert rows[1] == Row(a=None, b="y")
    assert rows_of(pa.record_batch({"a": pa.array([], pa.int8())})) == []


def test_a_slice_of_a_batch_gives_the_records_of_the_slice():
    batch = pa.record_batch({"a": list(range(10)), "s": pa.array(["x", "y"] * 5).dictionary_encode()})
    assert rows_of(batch.slice(3, 2)) == [Row(a=3, s="y"), Row(a=4, s="x")]
