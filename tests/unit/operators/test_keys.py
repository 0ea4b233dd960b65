from operator import attrgetter, itemgetter

import pytest

from flinkish.common import Types
from flinkish.datastream.fields import FieldSelector
from flinkish.datastream.functions import KeySelector
from flinkish.errors import UnstableKeyError
from flinkish.operators.keys import canonical_memo, key_expression, key_function


INDEX = 1


def return_field(record):
    return record["k"]


class Second(KeySelector):
    def get_key(self, value):
        return value[1]


class Record:
    inner = type("Inner", (), {"a": 5})


@pytest.mark.parametrize(
    "selector,value,key",
    [
        (itemgetter(0), ("a", 1), "a"),
        (itemgetter("k"), {"k": 2}, 2),
        (itemgetter(1, 0), ("a", 1), (1, "a")),
        (itemgetter(slice(1)), "abc", "a"),
        (attrgetter("inner.a"), Record(), 5),
        (attrgetter("inner", "inner.a"), Record(), (Record.inner, 5)),
        (FieldSelector(1), ("a", 1), 1),
        (FieldSelector(1), ["a", 1], 1),
        (FieldSelector("k"), {"k": 2}, 2),
        (FieldSelector("inner"), Record(), Record.inner),
        (Second(), ("a", 1), 1),
        (len, "abc", 3),
        (lambda v: v[0], ("a", 1), "a"),
        (lambda v: v["k"], {"k": 2}, 2),
        (lambda v: v.inner.a, Record(), 5),
        (lambda v: (v[1], v[0]), ("a", 1), (1, "a")),
        (lambda v: v[0][1], ("ab", 1), "b"),
        (lambda v: v[True], ("a", 1), 1),
        (lambda v: v[INDEX], ("a", 1), 1),
        (lambda v: v[0] + "b", ("a", 1), "ab"),
        (lambda v, index=1: v[index], ("a", 1), 1),
    ],
)
def test_the_expression_of_a_selector_gives_what_the_selector_gives(selector, value, key):
    names = {}

    def bind(hint, thing):
        names[hint] = thing
        return hint

    assert eval(key_expression(selector, "v", bind), {"v": value, **names}) == key
    assert key_function(selector)(value) == key


@pytest.mark.parametrize(
    "selector,expression",
    [
        (lambda record: record[0], "v[0]"),
        (lambda record: record["it's"], 'v["it\'s"]'),
        (lambda record: record.inner.a, "v.inner.a"),
        (lambda record: (record[0], record.a), "(v[0], v.a)"),
        (lambda record: (record[2], record[0], record[1]), "(v[2], v[0], v[1])"),
        (return_field, "v['k']"),
        (lambda record: record[INDEX], "v[call['INDEX']]"),
        (lambda record: record[0] or record[1], None),
        (lambda record, index=0: record[index], None),
        (lambda *records: records[0], None),
        (lambda record: len(record), None),
    ],
)
def test_a_function_that_takes_only_fields_is_not_called(selector, expression):
    assert key_expression(selector, "v", lambda hint, thing: "call") == (expression or "call(v)")


def test_a_name_that_is_a_keyword_is_not_written_as_an_attribute():
    assert "call" in key_expression(attrgetter("class"), "v", lambda hint, thing: "call")


def test_a_declared_type_converts_the_key():
    memo = canonical_memo(Types.LONG())
    assert memo[True] == memo[1.0] == 1 and type(memo[True]) is int
    with pytest.raises(UnstableKeyError):
        memo[1.5]
    assert canonical_memo()[1.5] == 1.5
