"""Small user functions as expressions of the generated loop, so that it need not call them.

A call costs 45 ns of CPython 3.11, and what it gives back is unknown; ``lambda r: (r[0], r[1] * 2)`` does
as much in the loop, and gives a new tuple of two.  Only functions that are one expression of their
parameters, constants and outer names go in: fields, arithmetic, comparisons, tuples.  Nothing that calls: what is called
may look at its caller (logging names the line).  Anything else stays a call.

The expression is read from the function's bytecode, which differs between versions of Python, and proved: it is
taken only if it compiles to the very same code.  So an instruction that is not known here costs speed, never a result.

If the expression raises, the function itself is called once more with the same arguments, for the lines that the
user knows (`as_called`).
"""

from __future__ import annotations

import ast
import dis
import itertools
import sys
import traceback
import types
import warnings
from dataclasses import dataclass
from typing import Any, Callable, Optional, Sequence

from flinkish.common.user_traceback import let_pass

#: ``*args``, ``**kwargs``, and all that is suspended.
_OTHER_FUNCTIONS = 0x04 | 0x08 | 0x20 | 0x80 | 0x200
_INSTRUCTIONS_MAX = 60

_CONSTANTS = (int, str, float, bytes, bool, type(None))
_BINARY: dict[str, type[ast.operator]] = {
    "+": ast.Add, "-": ast.Sub, "*": ast.Mult, "/": ast.Div, "//": ast.FloorDiv, "%": ast.Mod, "**": ast.Pow,
    "@": ast.MatMult, "<<": ast.LShift, ">>": ast.RShift, "&": ast.BitAnd, "|": ast.BitOr, "^": ast.BitXor,
}  # fmt: skip
_COMPARE: dict[str, type[ast.cmpop]] = {
    "<": ast.Lt, "<=": ast.LtE, "==": ast.Eq, "!=": ast.NotEq, ">": ast.Gt, ">=": ast.GtE,
}  # fmt: skip
_UNARY: dict[str, type[ast.unaryop]] = {
    "UNARY_NEGATIVE": ast.USub, "UNARY_INVERT": ast.Invert, "UNARY_NOT": ast.Not,
}  # fmt: skip
_NOTHING = frozenset(
    ("RESUME", "PRECALL", "CACHE", "NOP", "PUSH_NULL", "COPY_FREE_VARS", "EXTENDED_ARG", "NOT_TAKEN", "TO_BOOL")
)


@dataclass(frozen=True)
class Inlined:
    """``text`` is the expression.  ``elements``: where it is a new tuple, those of its elements."""

    text: str
    elements: Optional[tuple[str, ...]] = None


def inlined(
    function: Any, arguments: Sequence[str], bind: Callable[[str, Any], str]
) -> Optional[Inlined]:
    """What ``function(*arguments)`` does, for variables ``arguments``; None if only a call does it.

    ``bind`` names an object for the code.

    >>> inlined(lambda record: (record[0], record.user.name), ["v"], None)
    Inlined(text='(v[0], v.user.name)', elements=('v[0]', 'v.user.name'))
    """
    if isinstance(function, types.MethodType):
        if not isinstance(function.__func__, types.FunctionType):
            return None
        arguments = [bind("self", function.__self__), *arguments]
        function = function.__func__
    if type(function) is not types.FunctionType:
        return None
    code = function.__code__
    if (
        code.co_argcount != len(arguments)
        or code.co_kwonlyargcount
        or code.co_flags & _OTHER_FUNCTIONS
        or code.co_cellvars
        or len(code.co_code) > 4 * _INSTRUCTIONS_MAX
    ):
        return None
    expression = _read(code)
    if expression is None or not _is_proved(expression, code):
        return None
    names = dict(zip(code.co_varnames, arguments))
    try:
        placed = _Place(names, function, bind).visit(expression)
    except NameError:
        return None
    elements = tuple(map(ast.unparse, placed.elts)) if isinstance(placed, ast.Tuple) and placed.elts else None
    return Inlined(ast.unparse(placed), elements)


def over_batch(function: Callable[[Any], Any]) -> Callable[[Any], list]:
    """``[function(value) for value in values]``, of an iterable, without a call a value where it can be read."""
    numbers, bound = itertools.count(1), {}

    def bind(name: str, value: Any) -> str:
        bound[name := f"{name}_{next(numbers)}"] = value
        return name

    expression = inlined(function, ["value"], bind)
    if expression is None:
        return lambda values: [function(value) for value in values]  # not map, which ends at a StopIteration
    return eval(f"lambda values: [{expression.text} for value in values]", bound)


def as_called(error: BaseException, function: Any, arguments: Sequence[Any]) -> BaseException:
    """``error``, or where an expression stood for the call ``function(*arguments)`` and raised it, the one that the call
    raises: it has the user's lines in its traceback."""
    code = getattr(function, "__code__", None)
    if code is None or any(frame.f_code is code for frame, _ in traceback.walk_tb(error.__traceback__)):
        return error
    handled = sys.exc_info()[1]
    try:
        function(*arguments)
    except BaseException as raised:
        let_pass(raised)
        first: BaseException = raised
        while first.__context__ is not None and first.__context__ is not handled:
            first = first.__context__
        first.__context__ = None  # the one that is being handled is the same and not another before it
        return raised
    return error


def _read(code: types.CodeType) -> Optional[ast.expr]:
    """The expression that ``code`` returns; None when it does more, or what is not known here."""
    stack: list[Any] = []
    try:
        for instruction in dis.get_instructions(code):
            name, value = instruction.opname, instruction.argval
            if name in _NOTHING:
                continue
            if name == "RETURN_VALUE":
                return stack.pop() if len(stack) == 1 else None
            if name == "RETURN_CONST":
                return None if stack else _constant(value)
            if not _apply(stack, name, value, instruction):
                return None
    except (IndexError, KeyError, ValueError):  # not what such an instruction had when this was written
        return None
    return None


def _apply(stack: list[Any], name: str, value: Any, instruction: dis.Instruction) -> bool:
    match name:
        case "LOAD_FAST" | "LOAD_FAST_BORROW" | "LOAD_GLOBAL" | "LOAD_DEREF":
            stack.append(ast.Name(value))
        case "LOAD_FAST_LOAD_FAST" | "LOAD_FAST_BORROW_LOAD_FAST_BORROW":
            stack += map(ast.Name, value)
        case "LOAD_CONST" | "LOAD_SMALL_INT":
            stack.append(_constant(value))
        case "LOAD_ATTR":
            stack.append(ast.Attribute(stack.pop(), value))
        case "BINARY_SUBSCR":
            _subscript(stack)
        case "BINARY_OP" if instruction.argrepr == "[]":
            _subscript(stack)
        case "BINARY_OP":
            right, left = stack.pop(), stack.pop()
            stack.append(ast.BinOp(left, _BINARY[instruction.argrepr](), right))
        case "COMPARE_OP":
            symbol = str(value).removeprefix("bool(").removesuffix(")")
            _compare(stack, _COMPARE[symbol]())
        case "IS_OP":
            _compare(stack, ast.IsNot() if instruction.arg else ast.Is())
        case "CONTAINS_OP":
            _compare(stack, ast.NotIn() if instruction.arg else ast.In())
        case "BUILD_TUPLE":
            count = instruction.arg or 0
            elements = stack[len(stack) - count :]
            if len(elements) < count:
                return False
            del stack[len(stack) - count :]
            stack.append(ast.Tuple(elements))
        case _ if name in _UNARY:
            stack.append(ast.UnaryOp(_UNARY[name](), stack.pop()))
        case _:
            return False
    return True


def _constant(value: Any) -> ast.Constant:
    parts = value if type(value) is tuple else (value,)
    if not all(type(part) in _CONSTANTS for part in parts):
        raise ValueError(f"a constant of another kind: {value!r}")
    return ast.Constant(value)


def _subscript(stack: list[Any]) -> None:
    index, container = stack.pop(), stack.pop()
    stack.append(ast.Subscript(container, index))


def _compare(stack: list[Any], operator: ast.cmpop) -> None:
    right, left = stack.pop(), stack.pop()
    stack.append(ast.Compare(left, [operator], [right]))


def _is_proved(expression: ast.expr, code: types.CodeType) -> bool:
    text = ast.unparse(expression)
    parameters = ", ".join(code.co_varnames[: code.co_argcount])
    for form in (f"lambda {parameters}: {text}", f"def f({parameters}): return {text}"):
        if code.co_freevars:
            body = form if form.startswith("def") else f"return {form}"
            form = f"def around({', '.join(code.co_freevars)}):\n {body}"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", SyntaxWarning)  # Python has given it for the function
                compiled: types.CodeType = compile(form, "", "exec")
        except (SyntaxError, ValueError):
            return False
        for _ in range(2 if code.co_freevars else 1):
            compiled = next(part for part in compiled.co_consts if type(part) is types.CodeType)
        if _does(compiled) == _does(code):
            return True
    return False


def _does(code: types.CodeType) -> tuple:
    constants = tuple((type(constant), constant) for constant in code.co_consts if constant is not None)
    return code.co_code, repr(constants), code.co_names, code.co_freevars, code.co_varnames


class _Place(ast.NodeTransformer):
    """The loop's names for the function's."""

    def __init__(self, arguments: dict[str, str], function: types.FunctionType, bind: Callable[[str, Any], str]):
        self._arguments, self._function, self._bind = arguments, function, bind

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if node.id in self._arguments:
            return ast.Name(self._arguments[node.id])
        function = self._function
        free = function.__code__.co_freevars
        if node.id in free:
            cell = (function.__closure__ or ())[free.index(node.id)]
            return ast.Attribute(ast.Name(self._bind(node.id, cell)), "cell_contents")
        if node.id in function.__globals__:
            return ast.Subscript(ast.Name(self._bind("globals", function.__globals__)), ast.Constant(node.id))
        raise NameError(node.id)  # not yet there, or a builtin, which the module may shadow later
