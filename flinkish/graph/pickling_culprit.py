"""Which of the things that a value holds keeps it from being pickled, and the way there.

A value fails because of a *leaf*: a thing that fails although nothing that it holds does.  The search
goes breadth first, so it finds the leaf with the shortest way, and does not stop at what fails only
because it leads back to where the search came from (a method whose ``super()`` holds its class).
"""

from __future__ import annotations

import copyreg
import dis
import functools
import reprlib
import types
from collections import deque
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Optional, Sequence

import cloudpickle

# A value that fails at each of so many places is looked at no further.
_NODES_MAX = 2_000
_FAILING_CHILDREN_MAX = 16
# Of what a container holds, so many are pickled at once before the one that fails is looked for.
_AT_ONCE = 64
_PROTOCOL = 5

_SHORT = reprlib.Repr()
_SHORT.maxother = _SHORT.maxstring = 50

FailureOf = Callable[[Any], Optional[BaseException]]


class Child(NamedTuple):
    """One thing that a value holds, and how the user would write it."""

    label: str
    value: Any


class Culprit(NamedTuple):
    """``path``: labels from the value that was looked at down to ``value``."""

    path: tuple[str, ...]
    value: Any
    failure: BaseException


def find_culprit(
    value: Any, failure: BaseException, failure_of: FailureOf, holds_nothing: Callable[[Any], bool]
) -> Culprit:
    """The smallest thing inside ``value`` that fails alone.

    Args:
        failure: of ``value``.
        failure_of: why a value cannot be pickled, or None.
        holds_nothing: whether a value counts as one thing, whatever it holds.
    """
    start = deepest = Culprit((), value, failure)
    waiting, seen = deque([start]), {id(value)}
    # Values made on the way (the state of __getstate__) stay alive, so that no id comes twice.
    alive: list[Any] = []
    for _ in range(_NODES_MAX):
        if not waiting:
            break
        node = waiting.popleft()
        if node.path and is_too_deep(node.failure):
            return node
        failing = [] if holds_nothing(node.value) else _failing(_children(node.value), failure_of)
        if not failing:
            return node
        for child, child_failure in failing:
            if id(child.value) not in seen:
                seen.add(id(child.value))
                alive.append(child.value)
                deepest = Culprit((*node.path, child.label), child.value, child_failure)
                waiting.append(deepest)
    return deepest


def is_too_deep(failure: BaseException) -> bool:
    """Whether nesting alone is why it does not pickle."""
    return isinstance(failure, RecursionError) or isinstance(failure.__cause__, RecursionError)


def _failing(children: Iterator[Child], failure_of: FailureOf) -> list[tuple[Child, BaseException]]:
    """Children that fail alone, of many only the first."""
    found: list[tuple[Child, BaseException]] = []
    known = list(_until_error(children))
    for start in range(0, len(known), _AT_ONCE):
        some = known[start : start + _AT_ONCE]
        if len(known) > _AT_ONCE and failure_of([child.value for child in some]) is None:
            continue
        for child in some:
            failure = failure_of(child.value)
            if failure is not None:
                found.append((child, failure))
                if len(found) == _FAILING_CHILDREN_MAX:
                    return found
    return found


def _until_error(children: Iterator[Child]) -> Iterator[Child]:
    """Looking into an object runs the user's code, which may raise: then it holds what came before."""
    while True:
        try:
            child = next(children)
        except Exception:
            return  # also StopIteration
        yield child


# ---- what pickling a value also pickles ---------------------------------------------------------


def _children(value: Any) -> Iterator[Child]:
    if isinstance(value, types.FunctionType):
        yield from _of_function(value)
    elif isinstance(value, type):
        yield from _of_class(value)
    elif isinstance(value, types.MethodType):
        yield Child("self", value.__self__)
        yield Child(value.__func__.__name__, value.__func__)
    elif isinstance(value, (types.BuiltinMethodType, types.MethodWrapperType)):
        yield Child("self", value.__self__)
    elif isinstance(value, functools.partial):
        yield Child("func", value.func)
        names = _parameter_names(value.func)
        for index, item in enumerate(value.args):
            yield Child(names[index] if index < len(names) else f"argument {index}", item)
        yield from (Child(name, item) for name, item in value.keywords.items())
        yield from _of_instance(value)
    else:
        if isinstance(value, Mapping):
            for key, item in value.items():
                yield Child(f"[{_SHORT.repr(key)}]", item)
            yield from (Child(f"key {_SHORT.repr(key)}", key) for key in value)
        elif isinstance(value, (list, tuple, set, frozenset, deque)):
            names = getattr(value, "_fields", ())  # of a NamedTuple
            for index, item in enumerate(value):
                yield Child(f".{names[index]}" if index < len(names) else f"[{index}]", item)
        if type(value) not in (dict, list, tuple, set, frozenset):
            yield from _of_instance(value)


def _of_function(function: types.FunctionType) -> Iterator[Child]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield Child(name, cell.cell_contents)
        except ValueError:  # not assigned yet
            continue
    for name in sorted(_global_names(function.__code__)):
        if name in function.__globals__:
            yield Child(name, function.__globals__[name])
    defaults = function.__defaults__ or ()
    names = _parameter_names(function)
    yield from (Child(name, item) for name, item in zip(names[len(names) - len(defaults) :], defaults))
    yield from (Child(name, item) for name, item in (function.__kwdefaults__ or {}).items())
    yield from (Child(name, item) for name, item in vars(function).items())
    yield from (Child(f"annotation of {name}", item) for name, item in function.__annotations__.items())


def _parameter_names(function: Any) -> Sequence[str]:
    """Of those parameters that may be given by place; none where they are not known."""
    if isinstance(function, types.MethodType):
        return _parameter_names(function.__func__)[1:]
    code = getattr(function, "__code__", None)
    return code.co_varnames[: code.co_argcount] if isinstance(code, types.CodeType) else ()


def _global_names(code: types.CodeType) -> set[str]:
    """Globals that the code and the functions inside it read: what cloudpickle takes along."""
    names = {step.argval for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names


def _of_class(cls: type) -> Iterator[Child]:
    for name, item in vars(cls).items():
        if name in ("__dict__", "__weakref__", "_abc_impl", "__abstractmethods__"):
            continue  # made anew with the class
        label = f"{cls.__name__}.{name}"
        if isinstance(item, (staticmethod, classmethod)):
            yield Child(label, item.__func__)
        elif isinstance(item, property):
            yield from (Child(label, part) for part in (item.fget, item.fset, item.fdel) if part is not None)
        elif not isinstance(item, (types.MemberDescriptorType, types.GetSetDescriptorType)):
            yield Child(label, item)
    yield from (Child(base.__name__, base) for base in cls.__bases__)
    yield Child(type(cls).__name__, type(cls))


def _of_instance(value: Any) -> Iterator[Child]:
    cls = type(value)
    state = _state(value)
    yield from (Child(f"self.{name}", item) for name, item in state.items())
    yield Child(cls.__name__, cls)
    reducer = cloudpickle.Pickler.dispatch_table.get(cls) or copyreg.dispatch_table.get(cls)
    reduced = reducer(value) if reducer is not None else value.__reduce_ex__(_PROTOCOL)
    if isinstance(reduced, str):  # by name
        return
    make, arguments, *rest = reduced
    if make is not getattr(copyreg, "__newobj__"):
        yield Child(getattr(make, "__name__", "make"), make)
    for index, item in enumerate(arguments):
        yield Child(f"argument {index}", item)
    if rest and rest[0] is not None and not state:
        yield Child("state", rest[0])


def _state(value: Any) -> Mapping[str, Any]:
    """Attributes by name, those that ``__getstate__`` leaves out excepted."""
    cls = type(value)
    getstate = getattr(cls, "__getstate__", None)
    if getstate is not None and getstate is not getattr(object, "__getstate__", None):
        try:
            state = value.__getstate__()
        except Exception:  # the user's code; what the object holds is looked at without it
            state = None
        if isinstance(state, dict):
            return state
    state = dict(getattr(value, "__dict__", {}))
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if hasattr(value, name):
                state[name] = getattr(value, name)
    return state
