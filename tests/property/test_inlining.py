"""Any expression that is inlined gives what its function gives, and raises where that raises."""

import warnings

from hypothesis import given
from hypothesis import strategies as st

from flinkish.operators.inlining import inlined

FACTOR = 3

names = st.sampled_from(["a", "b", "FACTOR", "free"])
constants = st.one_of(st.integers(-3, 300), st.sampled_from(["'x'", "1.5", "None", "True", "b'y'", "1e999", "-0.0"])).map(str)


def _larger(inner):
    two = st.tuples(inner, inner)
    operators = st.sampled_from("+ - * // % & | < <= == != > is in".split() + ["is not", "not in"])
    return st.one_of(
        st.tuples(operators, two).map(lambda it: f"({it[1][0]} {it[0]} {it[1][1]})"),
        two.map(lambda it: f"({it[0]})[{it[1]}]"),
        inner.map(lambda it: f"({it}).real"),
        st.tuples(st.sampled_from(["-", "~", "not "]), inner).map(lambda it: f"({it[0]}{it[1]})"),
        st.lists(inner, max_size=4).map(lambda parts: f"({', '.join(parts)}{',' * (len(parts) == 1)})"),
        # Not inlined, at any depth.
        two.map(lambda it: f"({it[0]} and {it[1]})"),
        inner.map(lambda it: f"repr({it})"),
    )


def _result(run):
    try:
        return repr(run())
    except Exception as error:
        return type(error)


@given(
    text=st.recursive(st.one_of(names, constants), _larger, max_leaves=8),
    arguments=st.tuples(*[st.one_of(st.integers(-5, 5), st.tuples(st.integers(), st.text(max_size=2)))] * 2),
    form=st.sampled_from(["lambda a, b: {}", "def f(a, b): return {}", "def f(a, b):\n  'says what'\n  return {}"]),
)
def test_an_inlined_expression_does_what_its_function_does(text, arguments, form):
    body = form.format(text).replace("\n", "\n ")
    source = f"def around(free):\n {body}\n return f" if "def" in form else f"def around(free): return {body}"
    namespace = {"FACTOR": FACTOR}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        exec(compile(source, "", "exec", dont_inherit=True), namespace)
    function, bound = namespace["around"](2), {}

    def bind(hint, thing):
        bound[f"{hint}_{len(bound)}"] = thing
        return f"{hint}_{len(bound) - 1}"

    expression = inlined(function, ["x", "y"], bind)
    if expression is None:
        return
    names = {"x": arguments[0], "y": arguments[1], **bound}
    assert _result(lambda: eval(expression.text, dict(names))) == _result(lambda: function(*arguments))
    if expression.elements is not None:
        made = _result(lambda: tuple([eval(element, dict(names)) for element in expression.elements]))
        assert made == _result(lambda: function(*arguments))
