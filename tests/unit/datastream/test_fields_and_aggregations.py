import pickle
from collections import namedtuple
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import NamedTuple

import pytest

from flinkish.common import Row, RowKind, Time, Types
from flinkish.datastream.aggregations import MinMax, MinMaxBy, Sum, check_of_first, field_aggregation
from flinkish.datastream.fields import FieldSelector, Projection, get_field, with_field
from flinkish.datastream.window import EventTimeSessionWindows, SlidingEventTimeWindows, TumblingEventTimeWindows
from flinkish.errors import UserError
from flinkish.testing import StreamTestHarness


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


class Holder:
    def __init__(self):
        self.held = 1


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
    total = Sum("sum", field).reduce(record, second)
    assert total == with_field(record, field, 42)
    assert get_field(record, field) == 1


def test_a_sum_of_decimals_has_all_their_digits():
    first, second = Decimal("12345678901234567890.123456789012345678"), Decimal("1E-18")
    total = Decimal("12345678901234567890.123456789012345679")
    assert Sum("sum", 1).reduce(("a", first), ("a", second)) == ("a", total)
    assert Sum("sum", "x").reduce({"x": first}, {"x": second}) == {"x": total}


def test_a_replaced_field_of_a_row_keeps_names_and_kind():
    row = Row.of_kind(RowKind.UPDATE_AFTER, a=1)
    changed = with_field(row, "a", 2)
    assert changed == Row.of_kind(RowKind.UPDATE_AFTER, a=2) and row.a == 1


def test_min_keeps_the_other_fields_of_the_first_record_and_min_by_takes_the_whole_record():
    first, second = ("x", 5), ("y", 3)
    assert MinMax("min", 1).reduce(first, second) == ("x", 3)
    assert MinMaxBy("min_by", 1).reduce(first, second) == ("y", 3)
    assert MinMax("max", 1).reduce(first, second) == ("x", 5)
    assert MinMaxBy("max_by", 1).reduce(second, first) == ("x", 5)


@pytest.mark.parametrize("method", ["min_by", "max_by"])
def test_the_first_record_wins_a_tie(method):
    assert MinMaxBy(method, 1).reduce(("x", 5), ("y", 5)) == ("x", 5)


def test_a_field_that_is_not_there_is_named():
    with pytest.raises(TypeError, match="'m'"):
        get_field(Plain("a", 1), "m")
    with pytest.raises(TypeError, match="field 1"):
        get_field(5, 1)


@pytest.mark.parametrize(
    "record, field, fields",
    [
        (("a", 1), 9, "its fields are 0, 1"),
        (["a"], "n", "its fields are 0"),
        (Row("a", 1), 2, "its fields are 0, 1"),
        (Row(k="a"), "n", "its fields are 'k'"),
        ({"k": "a"}, "n", "its fields are 'k'"),
        (Point("a", 1), "m", "its fields are 'key', 'n'"),
        (Plain("a", 1), 2, "its fields are 'key', 'n'"),
        (7, 1, "is a int, which has no fields"),
        (Holder(), "n", "its fields are 'held'"),
    ],
)
def test_an_aggregation_names_the_field_and_the_record_that_lacks_it(record, field, fields):
    function = field_aggregation("max", field, None)
    for call in (lambda: check_of_first(function)(record), lambda: function.reduce(record, record)):
        with pytest.raises(UserError, match="max cannot use the field") as error:
            call()
        assert repr(field) in error.value.what and fields in error.value.why and error.value.do


TEN = Time.milliseconds(10)


@pytest.mark.parametrize("fused", ["true", "false"])
@pytest.mark.parametrize(
    "build",
    [
        lambda keyed: keyed.max(9),
        lambda keyed: keyed.window(TumblingEventTimeWindows.of(TEN)).min_by(9),
        lambda keyed: keyed.window(SlidingEventTimeWindows.of(TEN, Time.milliseconds(5))).sum(9),
        lambda keyed: keyed.window(EventTimeSessionWindows.with_gap(TEN)).max_by(9),
        lambda keyed: keyed.count_window(3).sum(9),
        lambda keyed: keyed.pre_aggregate().min(9),
    ],
)
def test_the_first_record_of_a_key_is_refused_when_it_lacks_the_field(build, fused):
    """And would not go through an aggregation otherwise: it is not added to anything."""
    harness = StreamTestHarness(
        lambda stream: build(stream.key_by(lambda record: record[0])), configuration={"flinkish.fused-chains": fused}
    )
    with harness:
        harness.process_element(("a", *range(9)), 1)
        with pytest.raises(UserError, match="cannot use the field 9") as error:
            harness.process_element(("b", 1), 2)
    assert error.value.where.startswith('operator "') and "('b', 1)" in error.value.why


def test_an_aggregation_names_records_whose_fields_do_not_go_together():
    with pytest.raises(UserError, match=r"sum cannot use the field 1(.|\n)*for \+(.|\n)*\('a', None\)"):
        field_aggregation("sum", 1, None).reduce(("a", 1), ("a", None))
    with pytest.raises(UserError, match=r"min_by cannot use the field 1(.|\n)*not supported"):
        field_aggregation("min_by", 1, None).reduce(("a", 1), ("a", "x"))


def test_an_error_of_the_users_own_numbers_stays_as_it_is():
    class Number:
        def __add__(self, other):
            raise TypeError("mine")

    with pytest.raises(TypeError, match="mine"):
        field_aggregation("sum", 0, None).reduce((Number(),), (Number(),))


def test_a_declared_record_has_been_looked_at_before():
    declared = Types.TUPLE([Types.STRING(), Types.INT()])
    assert check_of_first(field_aggregation("sum", 1, declared)) is None
    assert check_of_first(field_aggregation("sum", 1, None)) is not None


def test_projection_keeps_the_kind_of_record():
    assert Projection((1, 0))(("a", 1)) == (1, "a")
    assert Projection((1,))(Row(k="a", n=1)) == Row(n=1)
    assert Projection(("n",))({"k": "a", "n": 1}) == {"n": 1}
    assert Projection((0,))(["a", 1]) == ["a"]


def test_a_selector_pickles_and_compares():
    selector = pickle.loads(pickle.dumps(FieldSelector("key")))
    assert selector == FieldSelector("key") and selector(Point("a", 1)) == "a"


def test_a_text_or_a_date_is_a_record_of_one_field():
    assert MinMax("min", 0).reduce("b", "a") == "a"
    assert MinMaxBy("max_by", 0).reduce("b", "a") == "b"
    assert MinMax("max", 0).reduce(date(2013, 1, 1), date(2013, 1, 2)) == date(2013, 1, 2)
    assert Sum("sum", 0).reduce("a", "b") == "ab"
    with pytest.raises(TypeError, match="no field 1"):
        get_field("text", 1)
