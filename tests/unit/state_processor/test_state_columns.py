"""Values of state as Arrow columns: types by what was written, text for everything, and back."""

import datetime
import decimal
import enum
import pickle
import uuid
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pytest

from flinkish.common.time import Instant
from flinkish.common.types import Row
from flinkish.errors import StateMigrationError, UserError
from flinkish.state.serializers import LayoutReader, LayoutWriter
from flinkish.state.value_columns import ANYTHING, column_form, decode_column, encode_column, merge_forms
from flinkish.state_processor.columns import (
    DataLayoutReader,
    Record,
    arrow_type_of_form,
    as_text,
    to_column,
    to_values,
)


@dataclass
class Visit:
    user: str
    pages: list


class Point(NamedTuple):
    x: int
    y: float


def form_of(values):
    layouts = LayoutWriter()
    return column_form(encode_column(values, layouts), layouts)


@pytest.mark.parametrize(
    "values, form",
    [
        ([1, 2], "q"),
        ([1.5], "d"),
        (["a"], "s"),
        (["a\0b", "c"], "s"),
        ([True], "b"),
        ([b"x"], "y"),
        ([None, None], "n"),
        ([1, None], "q"),
        ([], "n"),
        ([1, "a"], ANYTHING),
        ([1 << 70], ANYTHING),
        ([decimal.Decimal(1)], ANYTHING),
        ([("a", 1), ("b", None)], ["t", ["s", "q"]]),
        ([("a",), ("b", 1)], ANYTHING),
        ([[1], []], ["l", "q"]),
        ([[1, "a"]], ["l", ANYTHING]),
        ([{"a": 1}, {}], ["m", "s", "q"]),
        ([Visit("u", [1]), Visit("v", [])], ["r", ["user", "pages"], ["s", ["l", "q"]]]),
        ([Visit("u", [1]), None], ANYTHING),
        ([Point(1, 2.0)], ["r", ["x", "y"], ["q", "d"]]),
        ([Row(a=1, b="x")], ["r", ["a", "b"], ["q", "s"]]),
        ([Row(1, "x")], ["t", ["q", "s"]]),
    ],
)
def test_the_form_says_what_all_values_are(values, form):
    assert form_of(values) == form


def test_forms_of_blocks_become_one():
    assert merge_forms("n", "q") == "q" and merge_forms(["l", "n"], ["l", "s"]) == ["l", "s"]
    assert merge_forms(["t", ["q", "n"]], ["t", ["q", "d"]]) == ["t", ["q", "d"]]
    assert merge_forms(["t", ["q"]], ["t", ["q", "d"]]) == ANYTHING
    assert merge_forms(["m", "s", "q"], ["m", "s", "d"]) == ["m", "s", ANYTHING]
    assert merge_forms(["r", ["a"], ["q"]], ["r", ["b"], ["q"]]) == ANYTHING
    assert merge_forms(["l", "q"], ["m", "q", "q"]) == ANYTHING


def test_forms_become_arrow_types_where_arrow_has_them():
    assert arrow_type_of_form(["r", ["a", "b"], ["q", ["l", "s"]]]) == pa.struct(
        [("a", pa.int64()), ("b", pa.list_(pa.string()))]
    )
    assert arrow_type_of_form(["m", "s", ["t", ["d", "y"]]]) == pa.map_(
        pa.string(), pa.struct([("f0", pa.float64()), ("f1", pa.binary())])
    )
    for form in (ANYTHING, ["l", ANYTHING], ["t", ["q", ANYTHING]], ["m", "s", ANYTHING]):
        assert arrow_type_of_form(form) is None


class Colour(enum.Enum):
    RED = 1


def test_text_takes_every_value():
    assert as_text("plain") == "plain"
    assert as_text({1: (1, 2.5, None, True)}) == '{"1": [1, 2.5, null, true]}'
    assert as_text(Visit("u", [Point(1, 2.0)])) == '{"user": "u", "pages": [[1, 2.0]]}'
    assert as_text([Row(a=1), Row(1, 2)]) == '[{"a": 1}, [1, 2]]'
    assert (
        as_text([b"\0", decimal.Decimal("1.10"), datetime.date(2020, 2, 29)]) == '["AA==", "1.10", "2020-02-29"]'
    )
    assert as_text([{3, 1}, Colour.RED, uuid.UUID(int=1)]) == f'[[1, 3], "RED", "{uuid.UUID(int=1)}"]'


def test_values_of_any_record_fill_a_struct():
    struct = pa.struct([("x", pa.int64()), ("y", pa.float64())])
    values = [Point(1, 2.0), (3, 4.0), Row(y=6.0, x=5), Record(x=7, y=8.0), None]
    column = to_column(values, struct, "s", "value")
    assert column.to_pylist() == [
        {"x": 1, "y": 2.0}, {"x": 3, "y": 4.0}, {"x": 5, "y": 6.0}, {"x": 7, "y": 8.0}, None,
    ]  # fmt: skip
    nested = pa.map_(pa.string(), pa.list_(struct))
    column = to_column([{"k": [Point(1, 2.0)]}, None], nested, "s", "value")
    assert column.to_pylist() == [[("k", [{"x": 1, "y": 2.0}])], None]
    assert to_values(column) == [{"k": [Row(x=1, y=2.0)]}, None]


def test_instants_are_timestamps_and_texts(tmp_path):
    type_ = pa.map_(pa.string(), pa.timestamp("us", "UTC"))
    column = to_column([{"k": Instant(1, 5_000)}, None], type_, "s", "value")
    assert column.cast(pa.map_(pa.string(), pa.int64())).to_pylist() == [[("k", 1_000_005)], None]
    assert to_column([Instant(1, 5)], pa.timestamp("ns"), "s", "value").cast(pa.int64()).to_pylist() == [1_000_000_005]
    assert as_text(Instant(1, 5)) == '"1970-01-01T00:00:01.000000005+00:00"'
    with pytest.raises(UserError, match="not a whole number of us"):
        to_column([Instant(1, 5)], pa.timestamp("us"), "s", "value")


@pytest.mark.parametrize(
    "value, type_",
    [("a", pa.int64()), (1.5, pa.int64()), ((1, 2, 3), pa.struct([("x", pa.int64())])), (1, pa.list_(pa.int64()))],
)
def test_a_value_of_another_type_is_refused_with_advice(value, type_):
    with pytest.raises(UserError, match='value of state "s" as') as refused:
        to_column([value], type_, "s", "value")
    assert "string" in refused.value.do


def test_records_are_read_without_their_classes():
    values = [Visit("u", [Point(1, 2.0), {"deep": Visit("v", [])}]), Visit("w", [])]
    layouts = LayoutWriter()
    data = layouts.dumps(encode_column(values, layouts))
    assert decode_column(LayoutReader(layouts.layouts).loads(data), LayoutReader(layouts.layouts)) == values
    reader = DataLayoutReader(layouts.layouts)
    found = decode_column(reader.loads(data), reader)
    assert found == [
        {"user": "u", "pages": [{"x": 1, "y": 2.0}, {"deep": {"user": "v", "pages": []}}]},
        {"user": "w", "pages": []},
    ]
    assert {found[0]["pages"][0]: 1}  # it can be a key


class Kind(enum.Enum):
    A = 1


def test_an_enum_member_is_read_by_its_name_without_its_class(monkeypatch):
    layouts = LayoutWriter()
    data = layouts.dumps([Kind.A])
    monkeypatch.delitem(globals(), "Kind")
    assert DataLayoutReader(layouts.layouts).loads(data) == ["A"]


def test_an_object_whose_class_is_gone_says_its_name():
    class Gone:
        def __init__(self, a):
            self.a = a

    Gone.__module__, Gone.__qualname__ = "program_of_yesterday", "Gone"
    import sys
    import types

    module = types.ModuleType("program_of_yesterday")
    module.Gone = Gone
    sys.modules["program_of_yesterday"] = module
    try:
        layouts = LayoutWriter()
        data = layouts.dumps([Gone(1), pickle.loads])
    finally:
        del sys.modules["program_of_yesterday"]
    (found, function) = DataLayoutReader(()).loads(data)
    assert repr(found) == "<program_of_yesterday.Gone {'a': 1}>" and function is pickle.loads


def test_half_of_a_surrogate_pair_is_shown_escaped():
    assert to_column(["a\ud83d", "\u00e9"], pa.string(), "s", "value").to_pylist() == ["a\\ud83d", "\u00e9"]
    assert as_text({"k": ["\ud83d"]}) == '{"k": ["\\ud83d"]}'


def test_a_list_or_dict_whose_class_is_gone_shows_what_is_in_it():
    # GLOBAL, empty arguments, NEWOBJ, then APPENDS and SETITEMS: as pickle writes subclasses of list and dict
    appends = b"\x80\x04cgone\nBag\n)\x81(K\x01K\x02e."
    setitems = b"\x80\x04cgone\nBag\n)\x81(\x8c\x01aK\x01u."
    append = b"\x80\x04cgone\nBag\n)\x81K\x03a."
    shown = [repr(DataLayoutReader().loads(data)) for data in (appends, setitems, append)]
    assert shown == ["<gone.Bag [1, 2]>", "<gone.Bag {'a': 1}>", "<gone.Bag [3]>"]
