"""The code writer: names, places for `yield`, and whose fault a line is."""

import linecache

import pytest

from flinkish.datastream.output_tag import OutputTag
from flinkish.operators.codegen import CodeWriter


def writer():
    return CodeWriter("task", lambda: 3)


def test_equal_objects_share_a_name_and_names_never_collide():
    code = writer()
    thing = object()
    assert code.bind("thing", thing) == code.bind("other", thing)
    assert code.bind("room", code.spend) == code.bind("room", code.spend) != code.bind("room", code.line)
    names = [code.variable(hint) for hint in ("if", "if", "1 a-ä!", "")] + [code.bind("x", 1)]
    assert len(set(names)) == 5 and all(name.isidentifier() for name in names)


def test_a_function_that_never_suspends_is_a_plain_function():
    code = writer()
    with code.function("double", "values"):
        code.before("out = []")
        with code.block("for v in values:"):
            code.line("out.append(v * 2)")
        code.line("return out")
    assert code.build()["double"]([1, 2]) == [2, 4]


def test_what_was_fetched_before_the_loop_is_written_back_and_fetched_again_around_each_yield():
    events = []
    code = writer()
    with code.function("run", "values"):
        note = code.bind("note", events.append)
        code.before(f"{note}('before')")
        code.before(f"{note}('before')")  # once, though asked for twice
        code.after(f"{note}('after')")
        with code.block("for v in values:"):
            code.spend()
            code.line(f"{note}(v)")
    for _ in code.build()["run"](range(5)):
        events.append("yield")
    assert events == ["before", 0, 1, 2, "after", "yield", "before", 3, 4, "after"]


def test_a_budget_that_is_still_used_up_after_a_yield_suspends_again():
    rooms = [1, 0, 0, 2]
    code = CodeWriter("task", lambda: rooms.pop(0))
    with code.function("run", "values"):
        with code.block("for v in values:"):
            code.spend()
    assert len(list(code.build()["run"](range(3)))) == 3


def test_a_line_knows_whose_code_it_runs():
    def broken():
        raise ValueError

    code = writer()
    with code.function("run", "v"):
        code.line("w = v")
        with code.blame("operator", "key selector", "w"):
            code.line(f"{code.bind('broken', broken)}()")
    with pytest.raises(ValueError) as caught:
        code.build()["run"](7)
    frame = caught.traceback[1]
    blame = code.blame_of(frame.lineno + 1)
    assert (blame.operator, blame.role, blame.record) == ("operator", "key selector", "w")
    assert code.blame_of(1) is None
    assert linecache.getline(code.filename, frame.lineno + 1).strip().startswith("broken_")
    code.forget()
    assert linecache.getline(code.filename, 1) == ""


@pytest.mark.parametrize("size", range(8))
def test_the_inline_test_for_values_that_can_change_agrees_with_freeze(size):
    code = writer()
    with code.function("fix", "v"):
        code.freeze("v")
        code.line("return v")
    fix = code.build()["fix"]
    same = tuple(range(size))
    assert fix(same) is same
    for at in range(size):
        changeable = (*range(at), [at], *range(at + 1, size))
        fixed = fix(changeable)
        assert fixed == changeable and fixed is not changeable and fixed[at] is not changeable[at]
        assert fix(same) is same
    for value in ([1], {"a": 1}):
        assert fix(value) == value and fix(value) is not value
    for value in ("a", 1, None):
        assert fix(value) is value


def test_the_types_that_were_seen_last_do_not_hide_a_value_that_can_change():
    code = writer()
    with code.function("fix", "values"):
        code.before("out = []")
        with code.block("for v in values:"):
            code.freeze("v")
            code.line("out.append(v)")
        code.line("return out")
    values = [(1, "a"), ("a", 1), (1, [2]), (1, "b"), ([1], "b"), ("x", [1]), (1, 2, 3), (1, 2, {3})]
    fixed = code.build()["fix"](values)
    assert fixed == values
    changeable = [not all(isinstance(e, (int, str)) for e in value) for value in values]
    assert [a is not b for a, b in zip(fixed, values)] == changeable


def test_a_pair_with_a_tag_is_taken_apart():
    code = writer()
    with code.function("split", "v"):
        code.freeze("v", "tag")
        code.line("return tag, v")
    split = code.build()["split"]
    late, items = OutputTag("late"), [1]
    tag, value = split((late, items))
    assert tag is late and value is items
    assert split((late, 1, 2)) == (None, (late, 1, 2)) and split((1, late)) == (None, (1, late))
    assert split(("a", "b")) == (None, ("a", "b")) and split(late) == (None, late)
