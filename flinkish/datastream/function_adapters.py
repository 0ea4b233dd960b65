"""Turns what the user gave into what the operators take, and refuses what cannot work."""

from __future__ import annotations

import functools
import inspect
import types
from typing import Any, Callable, Optional, Union

from flinkish.common.typeinfo import TypeInformation
from flinkish.datastream.fields import Field, FieldSelector, check_field, declared_field_type
from flinkish.datastream.functions import (
    AggregateFunction,
    AllWindowFunction,
    AsyncFunction,
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    FilterFunction,
    FlatMapFunction,
    Function,
    FunctionWrapper,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    Partitioner,
    ProcessAllWindowFunction,
    ProcessFunction,
    ProcessWindowFunction,
    ReduceFunction,
    SinkFunction,
    WindowFunction,
)
from flinkish.datastream.join_functions import (
    CoGroupFunction,
    FlatJoinFunction,
    JoinFunction,
    MapPartitionFunction,
    ProcessJoinFunction,
)
from flinkish.errors import InvalidJobError

#: Kinds of functions whose result is used as it is: the methods that must not be generators.
_NOT_ITERATED: dict[type, tuple[str, ...]] = {
    CoMapFunction: ("map1", "map2"),
    FilterFunction: ("filter",),
    JoinFunction: ("join",),
    KeySelector: ("get_key",),
    MapFunction: ("map",),
    Partitioner: ("partition",),
    ReduceFunction: ("reduce",),
    SinkFunction: ("invoke",),
}

#: What the methods of each kind are called with.
_PARAMETERS: dict[type, dict[str, tuple[str, ...]]] = {
    AggregateFunction: {
        "create_accumulator": (),
        "add": ("value", "accumulator"),
        "get_result": ("accumulator",),
    },
    AllWindowFunction: {"apply": ("window", "inputs")},
    AsyncFunction: {"async_invoke": ("value",), "timeout": ("value",)},
    BroadcastProcessFunction: {
        "process_element": ("value", "ctx"),
        "process_broadcast_element": ("value", "ctx"),
    },
    CoFlatMapFunction: {"flat_map1": ("value",), "flat_map2": ("value",)},
    CoGroupFunction: {"co_group": ("first", "second")},
    CoMapFunction: {"map1": ("value",), "map2": ("value",)},
    CoProcessFunction: {"process_element1": ("value", "ctx"), "process_element2": ("value", "ctx")},
    FilterFunction: {"filter": ("value",)},
    FlatJoinFunction: {"join": ("first", "second")},
    FlatMapFunction: {"flat_map": ("value",)},
    JoinFunction: {"join": ("first", "second")},
    KeyedBroadcastProcessFunction: {
        "process_element": ("value", "ctx"),
        "process_broadcast_element": ("value", "ctx"),
        "on_timer": ("timestamp", "ctx"),
    },
    KeyedCoProcessFunction: {
        "process_element1": ("value", "ctx"),
        "process_element2": ("value", "ctx"),
        "on_timer": ("timestamp", "ctx"),
    },
    KeyedProcessFunction: {"process_element": ("value", "ctx"), "on_timer": ("timestamp", "ctx")},
    KeySelector: {"get_key": ("value",)},
    MapFunction: {"map": ("value",)},
    MapPartitionFunction: {"map_partition": ("values",)},
    Partitioner: {"partition": ("key", "num_partitions")},
    ProcessAllWindowFunction: {"process": ("context", "elements")},
    ProcessFunction: {"process_element": ("value", "ctx")},
    ProcessJoinFunction: {"process_element": ("left", "right", "ctx")},
    ProcessWindowFunction: {"process": ("key", "context", "elements")},
    ReduceFunction: {"reduce": ("value1", "value2")},
    SinkFunction: {"invoke": ("value", "context")},
    WindowFunction: {"apply": ("key", "window", "inputs")},
}

#: The same of a plain callable, where it is not what the only method gets.
_PARAMETERS_OF_CALLABLE: dict[type, tuple[str, ...]] = {
    AsyncFunction: ("value",),
    KeyedProcessFunction: ("value", "ctx"),
    SinkFunction: ("value",),
}


def check_type(type_info: Any, what: str) -> Optional[TypeInformation]:
    """``type_info`` when it is a TypeInformation or None."""
    if type_info is None or isinstance(type_info, TypeInformation):
        return type_info
    raise InvalidJobError(
        f"the type of {what} is not usable",
        why=f"{type_info!r} is not a TypeInformation",
        do="give for example Types.LONG() (from flinkish.common import Types), or leave it out",
    )


def check_function(function: Any, kind: type, method: str) -> Any:
    """``function`` when it is an object of ``kind`` or a plain callable.

    Raises:
        InvalidJobError: it is a class, another kind of function, or cannot be called."""
    if isinstance(function, kind):
        _check_methods(function, kind, method)
        return function
    if isinstance(function, type) and issubclass(function, Function):
        raise InvalidJobError(
            f"{method}() got a class instead of a function",
            why=f"{function.__name__} is a class",
            do=f"give an object: {function.__name__}()",
        )
    if isinstance(function, Function) or not callable(function):
        raise InvalidJobError(
            f"{method}() cannot use {_describe(function)}",
            do=f"give a {kind.__name__} or a plain callable",
        )
    is_async = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
    if is_async and kind is not AsyncFunction:
        raise InvalidJobError(
            f"{method}() cannot use the async function {getattr(function, '__name__', function)!r}",
            why="nothing awaits it: its results would be coroutines",
            do="write it with def; calls of services go into AsyncDataStream.unordered_wait()",
        )
    if kind in _NOT_ITERATED:
        _refuse_generator(function, method)
    parameters = _PARAMETERS_OF_CALLABLE.get(kind)
    if parameters is None:
        (parameters,) = _PARAMETERS[kind].values()
    check_parameters(function, parameters, method)
    return function


def _check_methods(function: Any, kind: type, method: str) -> None:
    for name in _NOT_ITERATED.get(kind, ()):
        _refuse_generator(getattr(function, name), method)
    for name, parameters in _PARAMETERS.get(kind, {}).items():
        check_parameters(getattr(function, name), parameters, method)


def check_parameters(function: Any, parameters: tuple[str, ...], method: str) -> None:
    """Refuse a function that cannot be called with that many arguments, if that is certain: what says
    nothing of its parameters (builtins) or may say it of another function (decorators) passes."""
    try:
        signature = inspect.signature(function, follow_wrapped=False)
        certain = getattr(function, "__signature__", None) is None
    except (TypeError, ValueError):  # it does not say
        return
    try:
        signature.bind(*parameters)
    except TypeError:
        if not certain:
            return
        name, place = function_place(function)
        given = f"{len(parameters)} argument{'s' * (len(parameters) != 1)}"
        raise InvalidJobError(
            f"{method}() cannot use {name}",
            where=place,
            why=f"it is called with {given}, and its parameters are {signature}",
            do=f"give it the parameters ({', '.join(parameters)})",
        ) from None


def function_place(function: Any) -> tuple[str, str]:
    """Name of a user's function, and where it is written (empty when that cannot be told).

    Args:
        function: a callable; adapters of this module and bound methods are seen through.

    >>> function_place(len)
    ('len', '')
    """
    for _ in range(20):  # a bound on wrappers of wrappers
        inner = _inside(function)
        if inner is None:
            break
        function = inner
    called = function
    if not hasattr(called, "__code__") and not isinstance(called, type):
        called = getattr(type(function), "__call__", None)
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    code = getattr(called, "__code__", None)
    place = f'File "{code.co_filename}", line {code.co_firstlineno}' if code is not None else ""
    return name.rpartition("<locals>.")[2], place


def _inside(function: Any) -> Any:
    """The function that ``function`` stands for, or None."""
    if isinstance(function, functools.partial):
        return function.func
    if not isinstance(function, types.MethodType):
        return None
    owner, name = function.__self__, function.__name__
    if isinstance(owner, FunctionWrapper):
        inner = owner._func
        return getattr(inner, name, inner) if isinstance(inner, Function) else inner
    if isinstance(owner, (CallableCoMapFunction, CallableCoFlatMapFunction)):
        return getattr(owner, f"_{name}")
    return function.__func__


def _refuse_generator(function: Any, method: str) -> None:
    """Nothing would run the body of a generator function here, or the generator would be the result."""
    called = getattr(type(function), "__call__", None)
    if not (inspect.isgeneratorfunction(function) or inspect.isgeneratorfunction(called)):
        return
    do = "return one value instead of yielding"
    raise InvalidJobError(
        f"{method}() cannot use the generator function {getattr(function, '__qualname__', function)!r}",
        why=f"calling it gives a generator, which {method}() does not iterate over",
        do=f"use flat_map(), which takes generators, or {do}" if method == "map" else do,
    )


def require_function(function: Any, kinds: Union[type, tuple[type, ...]], method: str) -> Any:
    """As `check_function`, where a plain callable will not do."""
    if isinstance(function, kinds):
        for kind in kinds if isinstance(kinds, tuple) else (kinds,):
            if isinstance(function, kind):
                _check_methods(function, kind, method)
        return function
    names = " or ".join(k.__name__ for k in (kinds if isinstance(kinds, tuple) else (kinds,)))
    is_class = isinstance(function, type) and issubclass(function, Function)
    raise InvalidJobError(
        f"{method}() cannot use {_describe(function)}",
        do=f"give an object: {function.__name__}()" if is_class else f"give an object of a {names}",
    )


def _describe(function: Any) -> str:
    if isinstance(function, type):
        return f"the class {function.__name__}"
    return f"a {type(function).__name__}"


# ---- keys and partitions ------------------------------------------------------------------------


def _bound(function: Function, method: str, what: str) -> Callable:
    """A method of a function object, to be called as a plain callable."""
    for name in ("open", "close"):
        if getattr(type(function), name) is not getattr(Function, name):
            raise InvalidJobError(
                f"{type(function).__name__} cannot be used as a {what}",
                why=f"it defines {name}(), which is not called on a {what}",
                do="compute what it needs in a map() before",
            )
    return getattr(function, method)


def key_selector_of(
    key_selector: Any, key_type: Any, record_type: Optional[TypeInformation], what: str = "key_by"
) -> tuple[Callable[[Any], Any], Optional[TypeInformation], Optional[Field]]:
    """``(selector, key type, field)`` of a callable, a KeySelector, a position or a field name."""
    check_type(key_type, f"the key of {what}")
    if isinstance(key_selector, (int, str)) and not isinstance(key_selector, bool):
        field = check_field(key_selector, what)
        declared = declared_field_type(record_type, field, what)
        return FieldSelector(field), key_type or declared, field
    check_function(key_selector, KeySelector, what)
    if isinstance(key_selector, KeySelector):
        return _bound(key_selector, "get_key", "KeySelector"), key_type, None
    return key_selector, key_type, None


def partitioner_of(partitioner: Any) -> Callable[[Any, int], int]:
    check_function(partitioner, Partitioner, "partition_custom")
    if isinstance(partitioner, Partitioner):
        return _bound(partitioner, "partition", "Partitioner")
    return partitioner


# ---- process functions of plain callables -------------------------------------------------------


class DelegatingFunction(FunctionWrapper):
    """Opens and closes the function it stands for, when that is a Function."""

    def open(self, runtime_context: Any) -> None:
        if isinstance(self._func, Function):
            self._func.open(runtime_context)

    def close(self) -> None:
        if isinstance(self._func, Function):
            self._func.close()


class CallableProcessFunction(FunctionWrapper, ProcessFunction):
    """``function(value, ctx)``."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        return self._func(value, ctx)


class CallableKeyedProcessFunction(FunctionWrapper, KeyedProcessFunction):
    """``function(value, ctx)``."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        return self._func(value, ctx)


class CallableProcessJoinFunction(FunctionWrapper, ProcessJoinFunction):
    """``function(left, right, ctx)``."""

    def process_element(self, left: Any, right: Any, ctx: Any) -> Any:
        return self._func(left, right, ctx)


class KeyedProcessFunctionOfProcessFunction(DelegatingFunction, KeyedProcessFunction):
    """A ProcessFunction on a keyed stream."""

    def process_element(self, value: Any, ctx: Any) -> Any:
        return self._func.process_element(value, ctx)


class CallableWindowFunction(FunctionWrapper, WindowFunction):
    """``function(key, window, inputs)``."""

    def apply(self, key: Any, window: Any, inputs: Any) -> Any:
        return self._func(key, window, inputs)


class WindowFunctionOfAllWindowFunction(DelegatingFunction, WindowFunction):
    """An AllWindowFunction, or ``function(window, inputs)``."""

    def apply(self, key: Any, window: Any, inputs: Any) -> Any:
        function = self._func
        return (function.apply if isinstance(function, AllWindowFunction) else function)(window, inputs)


class ProcessWindowFunctionOfProcessAllWindowFunction(DelegatingFunction, ProcessWindowFunction):
    """A ProcessAllWindowFunction."""

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        return self._func.process(context, elements)

    def clear(self, context: Any) -> None:
        self._func.clear(context)


class CallableSinkFunction(FunctionWrapper, SinkFunction):
    """``function(value)``."""

    def invoke(self, value: Any, context: Any) -> None:
        self._func(value)


class CallableCoMapFunction(CoMapFunction):
    def __init__(self, map1: Callable, map2: Callable):
        for function in (map1, map2):
            _refuse_generator(function, "map")
            check_parameters(function, ("value",), "map")
        self._map1, self._map2 = map1, map2

    def map1(self, value: Any) -> Any:
        return self._map1(value)

    def map2(self, value: Any) -> Any:
        return self._map2(value)


class CallableCoFlatMapFunction(CoFlatMapFunction):
    def __init__(self, flat_map1: Callable, flat_map2: Callable):
        for function in (flat_map1, flat_map2):
            check_parameters(function, ("value",), "flat_map")
        self._flat_map1, self._flat_map2 = flat_map1, flat_map2

    def flat_map1(self, value: Any) -> Any:
        return self._flat_map1(value)

    def flat_map2(self, value: Any) -> Any:
        return self._flat_map2(value)


class KeyedCoProcessFunctionOfCoProcessFunction(DelegatingFunction, KeyedCoProcessFunction):
    """A CoProcessFunction on two keyed streams."""

    def process_element1(self, value: Any, ctx: Any) -> Any:
        return self._func.process_element1(value, ctx)

    def process_element2(self, value: Any, ctx: Any) -> Any:
        return self._func.process_element2(value, ctx)


def process_function_of(function: Any) -> ProcessFunction:
    if isinstance(function, KeyedProcessFunction):
        raise InvalidJobError(
            "process() cannot use a KeyedProcessFunction here",
            why="the stream has no key",
            do="call key_by() before process(), or give a ProcessFunction",
        )
    function = check_function(function, ProcessFunction, "process")
    return function if isinstance(function, ProcessFunction) else CallableProcessFunction(function)


def keyed_process_function_of(function: Any) -> KeyedProcessFunction:
    if isinstance(function, ProcessFunction):
        _check_methods(function, ProcessFunction, "process")
        return KeyedProcessFunctionOfProcessFunction(function)
    function = check_function(function, KeyedProcessFunction, "process")
    if isinstance(function, KeyedProcessFunction):
        return function
    return CallableKeyedProcessFunction(function)


def co_process_function_of(function: Any, keyed: bool) -> Any:
    if isinstance(function, (BroadcastProcessFunction, KeyedBroadcastProcessFunction)):
        raise InvalidJobError(
            f"process() cannot use {_describe(function)} here",
            why="neither stream has broadcast state: broadcast() was called without a MapStateDescriptor",
            do='connect with stream.broadcast(MapStateDescriptor("rules", key_type, value_type))',
        )
    if not keyed:
        if isinstance(function, KeyedCoProcessFunction):
            raise InvalidJobError(
                "process() cannot use a KeyedCoProcessFunction here",
                why="the connected streams have no key",
                do="call key_by() on both streams, or give a CoProcessFunction",
            )
        return require_function(function, CoProcessFunction, "process")
    if isinstance(function, CoProcessFunction):
        _check_methods(function, CoProcessFunction, "process")
        return KeyedCoProcessFunctionOfCoProcessFunction(function)
    return require_function(function, KeyedCoProcessFunction, "process")


def broadcast_process_function_of(function: Any, keyed: bool) -> Any:
    kinds: tuple[type, ...] = BroadcastProcessFunction, KeyedBroadcastProcessFunction
    other, kind = kinds if keyed else reversed(kinds)
    if isinstance(function, other):
        raise InvalidJobError(
            f"process() cannot use a {other.__name__} here",
            why=f"the stream that is connected with the broadcast one has {'a' if keyed else 'no'} key",
            do=f"give a {kind.__name__}" + ("" if keyed else ", or call key_by() on that stream"),
        )
    return require_function(function, kind, "process")


def process_join_function_of(function: Any) -> ProcessJoinFunction:
    function = check_function(function, ProcessJoinFunction, "process")
    return function if isinstance(function, ProcessJoinFunction) else CallableProcessJoinFunction(function)


def window_function_of(function: Any, method: str) -> Any:
    """A WindowFunction or ProcessWindowFunction; a callable becomes the former."""
    if isinstance(function, ProcessWindowFunction):
        _check_methods(function, ProcessWindowFunction, method)
        return function
    function = check_function(function, WindowFunction, method)
    return function if isinstance(function, WindowFunction) else CallableWindowFunction(function)


def all_window_function_of(function: Any, method: str) -> Any:
    """As `window_function_of`, of a stream without keys."""
    if isinstance(function, ProcessAllWindowFunction):
        _check_methods(function, ProcessAllWindowFunction, method)
        return ProcessWindowFunctionOfProcessAllWindowFunction(function)
    return WindowFunctionOfAllWindowFunction(check_function(function, AllWindowFunction, method))
