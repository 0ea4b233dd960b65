import copy
import pickle

import pytest

from flinkish.common import Row, RowKind


def test_fields_are_read_by_position_by_name_and_as_attributes():
    row = Row(name="Alice", age=11)
    assert (row[0], row["age"], row.name, row[-1]) == ("Alice", 11, "Alice", 11)
    assert "name" in row and "Alice" not in row
    assert list(row) == ["Alice", 11] and len(row) == 2
    assert repr(row) == "Row(name='Alice', age=11)"


def test_a_row_of_names_makes_rows():
    person = Row("name", "age")
    assert person("Alice", 11) == Row(name="Alice", age=11)
    assert repr(person) == "<Row('name', 'age')>"
    with pytest.raises(ValueError):
        person("Alice", 11, "Berlin")


def test_rows_with_names_are_equal_whatever_the_order_and_hash_alike():
    one, two = Row(a=1, b=2), Row(b=2, a=1)
    assert one == two and hash(one) == hash(two)
    assert Row(1, 2) != one and Row(a=1) != Row(a=1, b=2)
    assert Row.of_kind(RowKind.DELETE, 1) != Row(1)


def test_a_row_survives_pickle_and_copy_with_names_and_kind():
    row = Row.of_kind(RowKind.UPDATE_AFTER, a=[1], b=None)
    for twin in (pickle.loads(pickle.dumps(row, 5)), copy.deepcopy(row), copy.copy(row)):
        assert twin == row and twin.get_row_kind() is RowKind.UPDATE_AFTER
    shallow = copy.copy(row)
    shallow["b"] = 5
    assert row.b is None


def test_fields_can_be_set_but_no_attributes():
    row = Row(a=1)
    row["a"] = 2
    row[0] = row[0] + 1
    assert row.a == 3
    with pytest.raises(AttributeError):
        row.a = 4
    with pytest.raises(AttributeError):
        getattr(row, "nothing")
    with pytest.raises(KeyError):
        row["nothing"]


def test_as_dict_goes_into_rows_lists_and_dicts_when_asked():
    row = Row(a=1, b=[Row(c=2)], d={"e": Row(f=3)})
    assert row.as_dict(True) == {"a": 1, "b": [{"c": 2}], "d": {"e": {"f": 3}}}
    assert row.as_dict()["b"] == [Row(c=2)]
    with pytest.raises(TypeError):
        Row(1).as_dict()


def test_names_can_be_given_later_and_values_be_taken_by_names():
    row = Row(1, 2)
    row.set_field_names(["x", "y"])
    assert row.get_fields_by_names(["y", "x"]) == [2, 1]
    assert Row.of_fields(["x", "y"], (1, 2)) == row


def test_the_kinds_show_as_in_flink():
    assert [str(kind) for kind in RowKind] == ["+I", "-U", "+U", "-D"]
