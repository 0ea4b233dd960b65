"""User functions as expressions of the generated loop: `flinkish.operators.inlining`."""

import logging
import math

import pytest

from flinkish.operators.inlining import inlined

FACTOR = 3


def around(offset):
    return lambda record: record[0] + offset


class Scale:
    def __init__(self, by):
        self.by = by

    def map(self, value):
        return value[0] * self.by

    def __secret(self, value):
        return value[1]

    def map_by_private_name(self, value):
        return (self.by, value[1])


def defined(record):
    return record[0], record[1] // 2


def evaluated(function, *arguments):
    """What the expression gives; None if there is none."""
    names = {f"a{index}": argument for index, argument in enumerate(arguments)}
    bound = {}

    def bind(hint, thing):
        name = f"{hint}_{len(bound)}"
        bound[name] = thing
        return name

    expression = inlined(function, list(names), bind)
    if expression is None:
        return None
    value = eval(expression.text, {**names, **bound})
    if expression.elements is not None:
        parts = tuple(eval(element, {**names, **bound}) for element in expression.elements)
        assert parts == value and type(value) is tuple
    return value


@pytest.mark.parametrize(
    "function,arguments",
    [
        (lambda record: record, ("x",)),
        (lambda record: 7, ("x",)),
        (lambda record: (record[0], record[1] * 2, -record[1]), (("a", 4),)),
        (lambda record: (1, "a"), ("x",)),
        (lambda record: (record,), ("x",)),
        (lambda record: record[1] >= FACTOR, (("a", 4),)),
        (lambda record: record["it's"]["b"], ({"it's": {"b": 2}},)),
        (lambda record: record[0] in ("a", "b"), (("a", 4),)),
        (lambda record: record[0] not in "xyz", (("a", 4),)),
        (lambda record: record[1] is not None, (("a", 4),)),
        (lambda record: not record[1], (("a", 4),)),
        (lambda record: (record[1] + 1) % 2 == 1.5 ** ~record[1], (("a", 4),)),
        (lambda record: record[1] - (2 - record[1]), (("a", 4),)),
        (lambda record: math.pi * record[1], (("a", 4),)),
        (lambda total, record: (record[0], total[1] + record[1]), (("a", 1), ("a", 2))),
        (lambda first, second: first - second, (5, 3)),
        (around(5), ((2,),)),
        (Scale(4).map, ((2,),)),
        (Scale(4).map_by_private_name, ((2, 3),)),
        (defined, ((2, 3),)),
        (lambda record: (record[0], 1e999, b"x", True, None), ((1,),)),
    ],
)
def test_the_expression_gives_what_the_function_gives(function, arguments):
    assert function(*arguments) is not None
    assert repr(evaluated(function, *arguments)) == repr(function(*arguments))


@pytest.mark.parametrize(
    "function,arguments",
    [
        (lambda record: len(record), ("x",)),
        (lambda record: logging.info(record), ("x",)),
        (lambda record: record[0] or record[1], ((0, 1),)),
        (lambda record: 1 if record else 2, ("x",)),
        (lambda record: [record], ("x",)),
        (lambda record: (part for part in record), ("x",)),
        (lambda record, index=0: record[index], ("x",)),
        (lambda *records: records[0], ("x",)),
        (lambda record, **more: record, ("x",)),
        (lambda record: (lambda: record), ("x",)),
        (lambda record: (yield record), ("x",)),
        (lambda record: NOT_YET_DEFINED[record], ("x",)),  # noqa: F821
        (lambda record: print, ("x",)),
        (lambda record: (record := record + 1), (1,)),
        (str.upper, ("x",)),
        (len, ("x",)),
        (Scale, ("x",)),
        ("x".join, ("x",)),
        (Scale(1).map, ("x", "y")),
    ],
)
def test_what_is_more_than_an_expression_stays_a_call(function, arguments):
    assert evaluated(function, *arguments) is None


def test_outer_names_are_looked_up_each_time():
    namespace = {"limit": 1}
    function = eval("lambda record: record + limit", namespace)
    bound = {}
    expression = inlined(function, ["v"], lambda hint, thing: bound.setdefault(hint, thing) and hint)
    assert eval(expression.text, {"v": 1, **bound}) == 2
    namespace["limit"] = 10
    assert eval(expression.text, {"v": 1, **bound}) == 11


def test_a_changed_cell_is_seen():
    offset = 1

    def change():
        nonlocal offset
        offset = 10

    bound = {}
    expression = inlined(lambda record: record + offset, ["v"], lambda hint, thing: bound.setdefault(hint, thing) and hint)
    change()
    assert eval(expression.text, {"v": 1, **bound}) == 11
