"""Chains as bytes for the slots, and what to say when a function cannot travel.

Functions go by cloudpickle, so lambdas, closures and classes of ``__main__`` or a notebook travel by
value.  What fails is named: operator, function and the variable that holds the culprit.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import pickle
import sys
import types
from typing import Any, Iterator, Mapping, NamedTuple, Optional

import cloudpickle

from flinkish.errors import UnpicklableFunctionError
from flinkish.graph.job_graph import JobGraph, JobVertex

_PROTOCOL = 5
_DEPTH_MAX = 12
# Driver-only objects of Spark, known by name: some of them pickle and then fail in the slot.
_SPARK_DRIVER_TYPES = frozenset(
    ("SparkSession", "SparkContext", "DataFrame", "SQLContext", "RDD", "PipelinedRDD", "Column",
     "GroupedData", "DataFrameReader", "DataFrameWriter", "StreamingContext", "StreamingQuery")
)


# Those of flinkish, by module: without a cluster they would even pickle, and then do nothing in a slot.
_OWN_DRIVER_MODULES = (
    "flinkish.common.job_client",
    "flinkish.datastream.broadcast_stream",
    "flinkish.datastream.closeable_iterator",
    "flinkish.datastream.connected_streams",
    "flinkish.datastream.data_stream",
    "flinkish.datastream.keyed_stream",
    "flinkish.datastream.stream_execution_environment",
    "flinkish.datastream.windowed_stream",
    "flinkish.shell.slot_cluster",
)


class _DriverObjectFound(Exception):
    """Raised out of the pickler at an object of Spark or flinkish that lives in the driver only."""


class _Pickler(cloudpickle.Pickler):
    """cloudpickle that stops at Spark's driver objects, and keeps what some of its versions lose: the file
    name of code (they write "<dynamic-code>", and then the user's traceback shows neither file nor line),
    and the slots of a class (its objects then pickle in another form than those of the driver)."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is types.CodeType:
            make, arguments = self.dispatch_table[types.CodeType](obj)
            return make, tuple(
                obj.co_filename if isinstance(item, str) and item == "<dynamic-code>" else item
                for item in arguments
            )
        if _is_driver_object(obj):
            raise _DriverObjectFound(_type_name(obj))
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and isinstance(reduced, tuple) and "__slots__" in vars(obj):
            make, arguments, *_ = reduced
            # A NamedTuple makes its own, which are empty, and refuses to be given any.
            if make.__name__ == "_make_skeleton_class" and not issubclass(obj, tuple):
                arguments[3].setdefault("__slots__", obj.__slots__)  # of the class's body
        return reduced


def _is_spark_object(obj: Any) -> bool:
    # By name: a job that uses no Spark object must not import pyspark.
    return any(
        cls.__name__ in _SPARK_DRIVER_TYPES and cls.__module__.split(".")[0] == "pyspark"
        for cls in type(obj).__mro__
    )


def _is_driver_object(obj: Any) -> bool:
    if isinstance(obj, types.FunctionType):  # most of what is pickled
        return False
    return _is_spark_object(obj) or any(
        cls.__module__ in _OWN_DRIVER_MODULES for cls in type(obj).__mro__
    )


def _type_name(obj: Any) -> str:
    cls = type(obj)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _dumps(obj: Any) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=_PROTOCOL).dump(obj)
    return buffer.getvalue()


def pickle_chains(job_graph: JobGraph) -> dict[str, bytes]:
    """Each vertex's ``OperatorChainSpec`` as cloudpickle, by vertex id.

    Raises:
        UnpicklableFunctionError: a function captures what cannot travel; names operator, function
            and variable.
    """
    chains = {}
    for vertex in job_graph.vertices:
        try:
            chains[vertex.id] = _dumps(vertex.chain)
        except Exception as error:  # see _failure
            raise _explain(vertex, error) from error
    return chains


def main_module_classes() -> bytes:
    """cloudpickle of ``{name: class}`` that ``__main__`` of this process defines.

    The slot puts them into its own ``__main__``, so that records of these classes pickle there.
    cloudpickle gives a class that comes in several pickles one identity in the receiver.  A class
    that does not pickle is left out: a function that uses it is refused by ``pickle_chains``.
    """
    main = sys.modules["__main__"]
    found = {
        name: value
        for name, value in list(vars(main).items())
        if isinstance(value, type) and value.__module__ == "__main__"
    }
    try:
        return _dumps(found)
    except Exception:  # see _failure
        return _dumps({name: value for name, value in found.items() if _failure(value) is None})


# ---- naming the culprit -------------------------------------------------------------------------


class _Child(NamedTuple):
    """One thing that a value holds: how the user would write it, and whether it is a variable."""

    label: str
    value: Any


def _failure(obj: Any) -> Optional[BaseException]:
    """Why ``obj`` cannot travel, or None."""
    try:
        _dumps(obj)
    except Exception as error:  # pickling runs __reduce__ and __getstate__ of the user's classes
        return error
    return None


def _explain(vertex: JobVertex, error: BaseException) -> UnpicklableFunctionError:
    names = {operator.node_id: operator.name for operator in vertex.chain.operators}
    suspects: list[tuple[str, str, Any]] = []
    for operator in vertex.chain.operators:
        for item in dataclasses.fields(operator.operator):
            suspects.append((operator.name, item.name, getattr(operator.operator, item.name)))
        for selector in operator.key_selectors:
            suspects.append((operator.name, "key selector", selector))
        suspects.append((operator.name, "key type", operator.key_type))
        suspects.append((operator.name, "output type", operator.output_type))
    for edge in vertex.chain.outputs:
        partitioner = edge.partitioner
        for item in dataclasses.fields(partitioner):
            value = getattr(partitioner, item.name)
            suspects.append((names[edge.source_id], item.name.replace("_", " "), value))
    for operator_name, role, value in suspects:
        failure = _failure(value)
        if failure is not None:
            return _describe(vertex, operator_name, role, value, failure)
    return _describe(vertex, vertex.name, "chain", vertex.chain, error)


def _describe(
    vertex: JobVertex, operator_name: str, role: str, value: Any, failure: BaseException
) -> UnpicklableFunctionError:
    path, culprit, failure = _find_culprit(value, failure)
    function = _function_name(value)
    kind = _type_name(culprit)
    variable = path[-1] if path else ""
    way = " of ".join(f'"{label}"' for label in reversed(path))
    if isinstance(failure, _DriverObjectFound):
        why = f"it captures {way or 'it'}, a {kind}, which lives in the driver only"
        do = (
            "collect what the function needs into plain Python values before, "
            + (
                "or read the DataFrame as a stream with env.from_dataframe()"
                if _is_spark_object(culprit)
                else "or bring another stream to the function with connect() or union()"
            )
        )
    else:
        reason = str(failure).strip().splitlines()
        text = f"{type(failure).__name__}: {reason[0] if reason else ''}".rstrip(": ")
        why = f"it captures {way}, a {kind}: {text}" if path else f"it is a {kind}: {text}"
        do = (
            "make it in open() of a rich function, which runs in the slot, "
            "or capture plain values to make it from"
        )
    return UnpicklableFunctionError(
        f'could not send {role} {function} of operator "{operator_name}" to the slots',
        where=f'operator "{operator_name}" in task "{vertex.name}"',
        why=why,
        do=do,
        operator=operator_name,
        function=function,
        variable=variable,
        variable_type=kind,
    )


def _function_name(value: Any) -> str:
    if isinstance(value, functools.partial):
        return _function_name(value.func)
    name = getattr(value, "__qualname__", None)
    if isinstance(name, str):
        code = getattr(value, "__code__", None)
        if code is not None:
            return f"{name} (line {code.co_firstlineno} of {code.co_filename})"
        return name
    return type(value).__qualname__


def _find_culprit(
    value: Any, failure: BaseException
) -> tuple[list[str], Any, BaseException]:
    """Go down to the smallest thing that fails alone; the way there as labels."""
    path: list[str] = []
    seen = {id(value)}
    while len(path) < _DEPTH_MAX:
        for child in _children(value):
            if id(child.value) in seen:
                continue
            child_failure = _failure(child.value)
            if child_failure is not None:
                seen.add(id(child.value))
                path.append(child.label)
                value, failure = child.value, child_failure
                break
        else:
            break
    return path, value, failure


def _children(value: Any) -> Iterator[_Child]:
    """What pickling ``value`` also pickles."""
    if _is_driver_object(value):
        return
    if isinstance(value, types.MethodType):
        yield _Child("self", value.__self__)
        yield _Child(value.__func__.__name__, value.__func__)
    elif isinstance(value, types.FunctionType):
        yield from _captures(value)
    elif isinstance(value, functools.partial):
        yield _Child("func", value.func)
        yield from (_Child(f"argument {i}", item) for i, item in enumerate(value.args))
        yield from (_Child(name, item) for name, item in value.keywords.items())
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield _Child(f"[{key!r:.50}]", item)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for index, item in enumerate(value):
            yield _Child(f"[{index}]", item)
    elif isinstance(value, type):
        for name, item in vars(value).items():
            if isinstance(item, (staticmethod, classmethod)):
                item = item.__func__
            if name not in ("__dict__", "__weakref__"):
                yield _Child(f"{value.__name__}.{name}", item)
    else:
        yield from _attributes(value)


def _captures(function: types.FunctionType) -> Iterator[_Child]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield _Child(name, cell.cell_contents)
        except ValueError:  # not assigned yet
            continue
    for name in sorted(_global_names(function.__code__)):
        if name in function.__globals__:
            yield _Child(name, function.__globals__[name])
    for index, item in enumerate(function.__defaults__ or ()):
        yield _Child(f"default {index}", item)
    yield from (_Child(name, item) for name, item in (function.__kwdefaults__ or {}).items())
    yield from (_Child(name, item) for name, item in vars(function).items())


def _global_names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            names |= _global_names(constant)
    return names


def _attributes(value: Any) -> Iterator[_Child]:
    cls = type(value)
    state: Any = None
    getstate = getattr(cls, "__getstate__", None)
    if getstate is not None and getstate is not getattr(object, "__getstate__", None):
        try:
            state = value.__getstate__()
        except Exception:  # the user's code; what the object holds is looked at without it
            state = None
    if not isinstance(state, dict):
        state = dict(getattr(value, "__dict__", {}))
        for base in cls.__mro__:
            slots = base.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if hasattr(value, name):
                    state[name] = getattr(value, name)
    for name, item in state.items():
        yield _Child(f"self.{name}", item)
    if cls.__module__ == "__main__" or "<locals>" in cls.__qualname__:
        yield _Child(cls.__name__, cls)


def unpickle_chain(data: bytes) -> Any:
    """The ``OperatorChainSpec``.  Only for bytes of a peer that has proved the secret."""
    return pickle.loads(data)
