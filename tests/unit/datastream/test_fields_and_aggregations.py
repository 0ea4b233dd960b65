import pickle
from collections import namedtuple
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import NamedTuple

import pytest

from flinkish.common import Row, RowKind
from flinkish.datastream.aggregations import MinMax, MinMaxBy, Sum
from flinkish.datastream.fields import FieldSelector, Projection, get_field, with_field


class Point(NamedTuple):
    key: str
    n: int


@dataclass(frozen=True)
class Frozen:
    key: str
    n: int


@dataclass
class Plain:
    key: str
    n: int


Named = namedtuple("Named", "key n")

RECORDS = [
    (("a", 1), 1),
    (["a", 1], 1),
    (Row("a", 1), 1),
    (Row(key="a", n=1), "n"),
    (Row(key="a", n=1), 1),
    ({"key": "a", "n": 1}, "n"),
    (Point("a", 1), "n"),
    (Point("a", 1), 1),
    (Named("a", 1), "n"),
    (Frozen("a", 1), "n"),
    (Frozen("a", 1), 1),
    (Plain("a", 1), "n"),
    (1, 0),
    (Decimal(1), 0),
]


@pytest.mark.parametrize("record, field", RECORDS)
def test_a_field_can_be_read_and_replaced_in_every_kind_of_record(record, field):
    before = repr(record)
    changed = with_field(record, field, 7)
    assert get_field(changed, field) == 7 and get_field(record, field) == 1
    assert type(changed) in (type(record), int) and repr(record) == before


@pytest.mark.parametrize("record, field", RECORDS)
def test_sum_adds_the_field_and_keeps_the_rest_of_the_first_record(record, field):
    second = with_field(record, field, 41)
    total = Sum(field).reduce(record, second)
    assert total == with_field(record, field, 42)
    assert get_field(record, field) == 1


def test_a_sum_of_decimals_has_all_their_digits():
    first, second = Decimal("12345678901234567890.123456789012345678"), Decimal("1E-18")
    total = Decimal("12345678901234567890.123456789012345679")
    assert Sum(1).reduce(("a", first), ("a", second)) == ("a", total)
    assert Sum("x").reduce({"x": first}, {"x": second}) == {"x": total}


def test_a_replaced_field_of_a_row_keeps_names_and_kind():
    row = Row.of_kind(RowKind.UPDATE_AFTER, a=1)
    changed = with_field(row, "a", 2)
    assert changed == Row.of_kind(RowKind.UPDATE_AFTER, a=2) and row.a == 1


def test_min_keeps_the_other_fields_of_the_first_record_and_min_by_takes_the_whole_record():
    first, second = ("x", 5), ("y", 3)
    assert MinMax(1, largest=False).reduce(first, second) == ("x", 3)
    assert MinMaxBy(1, largest=False).reduce(first, second) == ("y", 3)
    assert MinMax(1, largest=True).reduce(first, second) == ("x", 5)
    assert MinMaxBy(1, largest=True).reduce(second, first) == ("x", 5)


@pytest.mark.parametrize("largest", [False, True])
def test_the_first_record_wins_a_tie(largest):
    assert MinMaxBy(1, largest).reduce(("x", 5), ("y", 5)) == ("x", 5)


def test_a_field_that_is_not_there_is_named():
    with pytest.raises(TypeError, match="'m'"):
        get_field(Plain("a", 1), "m")
    with pytest.raises(TypeError, match="field 1"):
        get_field(5, 1)


def test_projection_keeps_the_kind_of_record():
    assert Projection((1, 0))(("a", 1)) == (1, "a")
    assert Projection((1,))(Row(k="a", n=1)) == Row(n=1)
    assert Projection(("n",))({"k": "a", "n": 1}) == {"n": 1}
    assert Projection((0,))(["a", 1]) == ["a"]


def test_a_selector_pickles_and_compares():
    selector = pickle.loads(pickle.dumps(FieldSelector("key")))
    assert selector == FieldSelector("key") and selector(Point("a", 1)) == "a"


def test_a_text_or_a_date_is_a_record_of_one_field():
    assert MinMax(0, largest=False).reduce("b", "a") == "a"
    assert MinMaxBy(0, largest=True).reduce("b", "a") == "b"
    assert MinMax(0, largest=True).reduce(date(2013, 1, 1), date(2013, 1, 2)) == date(2013, 1, 2)
    assert Sum(0).reduce("a", "b") == "ab"
    with pytest.raises(TypeError, match="no field 1"):
        get_field("text", 1)
