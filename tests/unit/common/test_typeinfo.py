import datetime as dt
import decimal
from typing import NamedTuple

import numpy as np
import pytest

from flinkish.common import Instant, Row, RowKind, Types
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


@pytest.mark.parametrize(
    "value", [{"a": 1, "b": "x", "c": 2}, {"A": 1}, Row(a=1, b="x", c=2), Row(a=1, c="x")], ids=repr
)
def test_a_result_with_other_names_than_the_declared_row_is_refused_not_cut(value):
    declared = Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.STRING()])
    with pytest.raises(TypeError, match="not of the declared type .*unknown"):
        declared.converter()(value)


def test_convert_gives_the_types_own_form():
    assert repr(Types.LONG().convert(1.0)) == "1"
    assert repr(Types.LONG().convert(True)) == "1"
    assert repr(Types.DOUBLE().convert(1)) == "1.0"
    assert Types.BOOLEAN().convert(1) is True
    assert Types.BIG_DEC().convert(1) == decimal.Decimal(1)
    assert ROW.convert((1, "x")) == Row(id=1, name="x")
    assert ROW.convert({"id": 1}) == Row(id=1, name=None)
    assert Types.TUPLE([Types.LONG(), Types.DOUBLE()]).convert([1, 2]) == (1, 2.0)
    assert Types.MAP(Types.STRING(), Types.DOUBLE()).convert({"a": 1}) == {"a": 1.0}
    for fraction in (1.5, float("inf")):
        with pytest.raises(ValueError, match="not a whole number"):
            Types.LONG().convert(fraction)


def test_a_key_takes_the_form_that_a_result_of_its_type_has():
    for type_info, value in [
        (Types.BIG_DEC(), 0.1),
        (Types.SQL_DATE(), dt.datetime(2021, 1, 9, 12)),
        (Types.FLOAT(), 0.1),
        (Types.INSTANT(), dt.datetime(2021, 1, 9)),
    ]:
        assert type_info.convert(value) == type_info.converter()(value)
    for type_info in (Types.BIG_DEC(), Types.DOUBLE(), Types.LONG(), Types.BOOLEAN()):
        with pytest.raises(TypeError, match="expected"):
            type_info.convert("1")


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


NESTED = Types.ROW_NAMED(["pair", "tags"], [Types.TUPLE([Types.INT(), Types.DOUBLE()]), Types.LIST(ROW)])


@pytest.mark.parametrize(
    "type_info, result, form",
    [
        (Types.DOUBLE(), 1, 1.0),
        (Types.TUPLE([Types.INT(), Types.STRING()]), [1, "a"], (1, "a")),
        (Types.TUPLE([Types.INT(), Types.STRING()]), Row(1, "a"), (1, "a")),
        (ROW, (1, "a"), Row(id=1, name="a")),
        (ROW, Row(1, "a"), Row(id=1, name="a")),
        (ROW, Row(name="a", id=1), Row(id=1, name="a")),
        (ROW, {"name": "a", "id": 1}, Row(id=1, name="a")),
        (Types.ROW([Types.INT(), Types.STRING()]), Row(x=1, y="a"), Row(f0=1, f1="a")),
        (Types.LIST(Types.INT()), (1, 2), [1, 2]),
        (Types.PRIMITIVE_ARRAY(Types.INT()), np.array([1, 2]), [1, 2]),
        (Types.PRIMITIVE_ARRAY(Types.BYTE()), bytearray(b"x"), b"x"),
        (Types.MAP(Types.STRING(), Types.DOUBLE()), {"a": 1}, {"a": 1.0}),
        (Types.FLOAT(), 110.1, 110.0999984741211),
        (Types.FLOAT(), -1e39, float("-inf")),
        (Types.TUPLE([Types.STRING(), Types.FLOAT()]), ("a", 0.1), ("a", 0.10000000149011612)),
        (Types.LIST(Types.FLOAT()), [0.1, None], [0.10000000149011612, None]),
        (Types.SHORT(), np.int64(-(2**15)), -(2**15)),
        (Types.INT(), True, 1),
        (Types.LONG(), 5.0, 5),
        (Types.BIG_INT(), 2**100, 2**100),
        (Types.BOOLEAN(), np.bool_(False), False),
        (Types.BIG_DEC(), 0.1, decimal.Decimal("0.1")),
        (Types.INSTANT(), dt.datetime(1970, 1, 1, 0, 0, 1), Instant(1, 0)),
        (Types.SQL_DATE(), dt.datetime(2021, 1, 9, 12), dt.date(2021, 1, 9)),
        (Types.TUPLE([Types.TUPLE([Types.BYTE()])]), ([1],), ((1,),)),
        (Types.PICKLED_BYTE_ARRAY(), np.float32(0.5), np.float32(0.5)),
        (NESTED, ([1, 2], [(1, "a")]), Row(pair=(1, 2.0), tags=[Row(id=1, name="a")])),
    ],
)
def test_a_result_takes_the_form_of_its_declared_type(type_info, result, form):
    convert = type_info.converter() or (lambda value: value)
    converted = convert(result)
    assert converted == form and repr(converted) == repr(form)
    assert convert(converted) == form and convert(None) is None


def test_a_result_that_has_its_form_is_not_copied_and_a_named_tuple_stays_one():
    class Price(NamedTuple):
        name: str
        price: float

    row_of, tuple_of = ROW.converter(), Types.TUPLE([Types.STRING(), Types.DOUBLE()]).converter()
    row = row_of((1, "a"))
    assert row_of(row) is row
    assert tuple_of(Price("a", 1)) == Price("a", 1.0) and type(tuple_of(Price("a", 1))) is Price
    assert Types.STRING().converter() is None
    texts = {"a": "b"}
    assert Types.MAP(Types.STRING(), Types.STRING()).converter()(texts) is texts
    pair = (1, "a")
    assert Types.TUPLE([Types.INT(), Types.STRING()]).converter()(pair) is pair
    kind = Row.of_kind(RowKind.DELETE, 1, "a")
    assert row_of(kind).get_row_kind() is RowKind.DELETE and kind.get_field_names() is None


@pytest.mark.parametrize(
    "type_info, result",
    [
        (Types.DOUBLE(), "1"),
        (ROW, (1,)),
        (ROW, "ab"),
        (Types.TUPLE([Types.INT()]), 5),
        (Types.TUPLE([Types.INT()]), (1, 2)),
        (Types.LIST(Types.INT()), "ab"),
        (Types.PRIMITIVE_ARRAY(Types.BYTE()), 3),
        (Types.DOUBLE(), b"1"),
        (Types.MAP(Types.STRING(), Types.DOUBLE()), [("a", 1.0)]),
        (Types.MAP(Types.STRING(), Types.STRING()), "ab"),
    ],
)
def test_a_result_of_another_type_is_refused(type_info, result):
    with pytest.raises(TypeError, match="expected"):
        type_info.converter()(result)


@pytest.mark.parametrize(
    "type_info, result",
    [
        (Types.BYTE(), 128),
        (Types.SHORT(), -(2**15) - 1),
        (Types.INT(), 2**31),
        (Types.LONG(), 2**63),
        (Types.TUPLE([Types.STRING(), Types.INT()]), ("a", -(2**31) - 1)),
        (Types.ROW([Types.SHORT()]), Row(2**15)),
        (Types.MAP(Types.STRING(), Types.LIST(Types.BYTE())), {"a": [1, 300]}),
        (Types.DOUBLE(), 10**400),
    ],
)
def test_a_number_that_the_declared_bits_cannot_hold_fails_and_never_wraps(type_info, result):
    with pytest.raises(ValueError, match="does not fit into"):
        type_info.converter()(result)
