import datetime as dt
import decimal

import numpy as np
import pytest

from flinkish.common import Instant, Row, Types
from flinkish.errors import InvalidJobError

ROW = Types.ROW_NAMED(["id", "name"], [Types.INT(), Types.STRING()])


@pytest.mark.parametrize(
    "type_info, value",
    [
        (Types.STRING(), "x"),
        (Types.BOOLEAN(), True),
        (Types.BOOLEAN(), np.bool_(True)),
        (Types.BYTE(), -128),
        (Types.INT(), np.int32(5)),
        (Types.BIG_INT(), 2**100),
        (Types.DOUBLE(), 1),
        (Types.DOUBLE(), np.float64(1.5)),
        (Types.BIG_DEC(), decimal.Decimal("1.5")),
        (Types.INSTANT(), Instant(1, 2)),
        (Types.SQL_DATE(), dt.date(2013, 1, 1)),
        (Types.SQL_TIMESTAMP(), dt.datetime(2013, 1, 1)),
        (Types.LIST(Types.INT()), [1, None, 2]),
        (Types.MAP(Types.STRING(), Types.INT()), {"a": 1}),
        (Types.PRIMITIVE_ARRAY(Types.BYTE()), b"raw"),
        (Types.TUPLE([Types.INT(), Types.STRING()]), (1, "x")),
        (ROW, Row(id=1, name="x")),
        (ROW, Row(name="x", id=1)),
        (ROW, (1, "x")),
        (ROW, {"id": 1}),
        (Types.PICKLED_BYTE_ARRAY(), object()),
        (Types.INT(), None),
    ],
)
def test_a_value_of_the_type_is_accepted(type_info, value):
    assert type_info.mismatch(value) == ""


@pytest.mark.parametrize(
    "type_info, value, reason",
    [
        (Types.STRING(), 1, "expected a str, got int 1"),
        (Types.BYTE(), 128, "128 does not fit into 8 bits"),
        (Types.LONG(), 2**63, "does not fit into 64 bits"),
        (Types.INT(), True, "expected an int, got bool"),
        (Types.INT(), 1.0, "expected an int, got float"),
        (Types.DOUBLE(), "1", "expected a float"),
        (Types.BOOLEAN(), 1, "expected a bool"),
        (Types.CHAR(), "ab", "one character"),
        (Types.SQL_DATE(), dt.datetime(2013, 1, 1), "expected a date"),
        (Types.LIST(Types.INT()), "abc", "expected a list"),
        (Types.LIST(Types.INT()), [1, "x"], "element 1: expected an int"),
        (Types.MAP(Types.STRING(), Types.INT()), {"a": "b"}, "entry 'a'"),
        (Types.TUPLE([Types.INT()]), (1, 2), "expected 1 fields, got 2"),
        (ROW, Row(id="x", name="y"), 'field "id": expected an int'),
        (ROW, Row(id=1, nam="y"), "unknown \\['nam'\\], missing \\['name'\\]"),
        (ROW, {"id": 1, "nam": "y"}, "unknown \\['nam'\\]"),
    ],
)
def test_a_value_of_another_type_is_refused_with_the_place_and_the_reason(type_info, value, reason):
    with pytest.raises(InvalidJobError, match=reason):
        type_info.check(value)


def test_convert_gives_the_types_own_form():
    assert repr(Types.LONG().convert(1.0)) == "1"
    assert repr(Types.LONG().convert(True)) == "1"
    assert repr(Types.DOUBLE().convert(1)) == "1.0"
    assert Types.BOOLEAN().convert(1) is True
    assert Types.BIG_DEC().convert(1) == decimal.Decimal(1)
    assert ROW.convert((1, "x")) == Row(id=1, name="x")
    assert ROW.convert({"id": 1}) == Row(id=1, name=None)
    assert Types.TUPLE([Types.LONG(), Types.DOUBLE()]).convert([1, 2]) == (1, 2.0)
    with pytest.raises(ValueError):
        Types.LONG().convert(1.5)


def test_equal_types_are_equal_and_show_what_they_are():
    assert ROW == Types.ROW_NAMED(["id", "name"], [Types.INT(), Types.STRING()])
    assert len({ROW, Types.ROW([Types.INT(), Types.STRING()]), Types.INT(), Types.INT()}) == 3
    assert str(Types.MAP(Types.STRING(), ROW)) == "map<string, row<id: int, name: string>>"


def test_a_field_is_found_by_name_and_position_and_missed_by_both():
    assert ROW.field_type("name") == ROW.field_type(1) == Types.STRING()
    assert ROW.get_field_index("name") == 1 and ROW.get_field_index("x") == -1
    for field in ("nam", 2):
        with pytest.raises(InvalidJobError, match="id, name"):
            ROW.field_type(field)


def test_a_type_made_of_something_else_is_refused():
    for make in (lambda: Types.LIST(int), lambda: Types.ROW([str]), lambda: Types.MAP(str, Types.INT())):
        with pytest.raises(InvalidJobError, match="TypeInformation"):
            make()
    with pytest.raises(InvalidJobError, match="repeat"):
        Types.ROW_NAMED(["a", "a"], [Types.INT(), Types.INT()])


@pytest.mark.parametrize(
    "type_info, value",
    [
        (Types.SQL_DATE(), dt.date(1969, 12, 31)),
        (Types.SQL_TIME(), dt.time(23, 59, 58, 7)),
        (Types.SQL_TIMESTAMP(), dt.datetime(1969, 12, 31, 23, 59, 59, 999_999)),
        (Types.INSTANT(), Instant(-1, 5_000)),
        (ROW, Row(id=1, name="x")),
        (Types.TUPLE([Types.SQL_DATE()]), (dt.date(2013, 1, 1),)),
        (Types.LIST(Types.SQL_DATE()), [dt.date(2013, 1, 1)]),
    ],
)
def test_the_internal_form_goes_there_and_back(type_info, value):
    assert type_info.from_internal_type(type_info.to_internal_type(value)) == value
