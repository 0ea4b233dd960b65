from operator import attrgetter, itemgetter

import pytest

from flinkish.common import Types
from flinkish.datastream.fields import FieldSelector
from flinkish.datastream.functions import KeySelector
from flinkish.errors import UnstableKeyError
from flinkish.operators.keys import canonical_memo, key_expression, key_function


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
    ],
)
def test_the_expression_of_a_selector_gives_what_the_selector_gives(selector, value, key):
    names = {}

    def bind(hint, thing):
        names[hint] = thing
        return hint

    assert eval(key_expression(selector, "v", bind), {"v": value, **names}) == key
    assert key_function(selector)(value) == key


def test_a_name_that_is_a_keyword_is_not_written_as_an_attribute():
    assert "call" in key_expression(attrgetter("class"), "v", lambda hint, thing: "call")


def test_a_declared_type_converts_the_key():
    memo = canonical_memo(Types.LONG())
    assert memo[True] == memo[1.0] == 1 and type(memo[True]) is int
    with pytest.raises(UnstableKeyError):
        memo[1.5]
    assert canonical_memo()[1.5] == 1.5
