"""Chains as bytes for the slots, and what to say when a function cannot travel.

Functions go by cloudpickle, so lambdas, closures and classes of ``__main__`` or a notebook travel by
value.  What fails is named: operator, function and the variable that holds the culprit.
"""

from __future__ import annotations

import dataclasses
import functools
import io
import pickle
import pkgutil
import sys
import types
import typing
from typing import Any, Mapping, Optional

import cloudpickle

from flinkish.common.watermark_strategy import WatermarkStrategy
from flinkish.datastream.partitioners import StreamPartitioner
from flinkish.errors import UnpicklableFunctionError
from flinkish.graph.job_graph import JobGraph, JobVertex, OperatorChainSpec
from flinkish.graph.pickling_culprit import find_culprit, is_too_deep
from flinkish.graph.unpickling_culprit import Unreadable, UnreadableFound, read_leniently, reason

_PROTOCOL = 5
# A way to a culprit that has more labels is shown without its middle.
_WAY_MAX = 8

_COLLECT = (
    "use it in the driver before execute(): collect() what the function needs into plain Python values and "
    "capture those, or read a DataFrame as a stream with env.from_dataframe() and bring it to the function "
    "with connect() or broadcast()"
)
# Driver-only objects of Spark, known by the name of their type, and what to do instead: some of them
# pickle and then fail in the slot.
_SPARK_DRIVER_TYPES = {
    **dict.fromkeys(
        ("SparkSession", "SparkContext", "SQLContext", "StreamingContext", "DataFrame", "RDD", "GroupedData",
         "Catalog", "DataFrameReader", "DataFrameWriter", "DataFrameWriterV2", "DataStreamReader",
         "DataStreamWriter", "StreamingQuery", "StreamingQueryManager", "RuntimeConfig", "UDFRegistration"),
        _COLLECT,
    ),
    "Broadcast": "capture its value: slots get it with the function",
    "Accumulator": "count with a metric of get_runtime_context(), or emit what is to be counted",
    "UserDefinedFunction": "call the Python function that it was made of",
    "Column": "compute with the Python values of the record: a column has none outside Spark",
}  # fmt: skip
# Packages all of whose objects are such: pandas-on-Spark, and what stands for an object of the JVM.
_SPARK_DRIVER_PACKAGES = ("pyspark.pandas.", "py4j.")

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


_CachedFunction = type(functools.lru_cache(len))


class _DriverObjectFound(Exception):
    """Raised out of the pickler at an object of Spark or flinkish that lives in the driver only."""


class _Pickler(cloudpickle.Pickler):
    """cloudpickle that stops at Spark's driver objects, and keeps what some of its versions lose: the file
    name of code (they write "<dynamic-code>", and then the user's traceback shows neither file nor line),
    the slots of a class (its objects then pickle in another form than those of the driver), the qualified
    name of a class (one nested in another is then found nowhere, so that it cannot be state), the aliases of
    an Enum's members, and that ``dataclasses.MISSING`` is one object (libraries ask with ``is`` whether a
    field has a default).  What would go by its name in ``__main__``, which the slot does not have, goes by
    value too: functions with a ``functools.cache``, which comes empty, and ``typing.NewType``."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is types.CodeType:
            make, arguments = self.dispatch_table[types.CodeType](obj)
            return make, tuple(
                obj.co_filename if isinstance(item, str) and item == "<dynamic-code>" else item
                for item in arguments
            )
        if obj is dataclasses.MISSING:
            return "MISSING"  # by its name in the module of its class
        if _is_driver_object(obj):
            raise _DriverObjectFound(_type_name(obj))
        if isinstance(obj, (_CachedFunction, typing.NewType)) and not _is_importable(obj):
            if isinstance(obj, typing.NewType):
                return typing.NewType, (obj.__name__, obj.__supertype__), {"__module__": obj.__module__}
            parameters = obj.cache_parameters()
            arguments = (parameters["maxsize"], parameters["typed"])
            # The function comes afterwards, because it may call itself by this object.
            return _empty_cache, arguments, obj.__wrapped__, None, None, functools.update_wrapper
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and isinstance(reduced, tuple) and reduced[0].__name__ == "_make_skeleton_class":
            body = reduced[1][3]
            body.setdefault("__qualname__", _name_in_module(obj))
            # A NamedTuple makes its own, which are empty, and refuses to be given any.
            if "__slots__" in vars(obj) and not issubclass(obj, tuple):
                body.setdefault("__slots__", obj.__slots__)
        if isinstance(reduced, tuple) and getattr(reduced[0], "__name__", "") == "_make_skeleton_enum":
            return _with_aliases(obj, reduced)
        return reduced


def _with_aliases(cls: Any, reduced: tuple) -> tuple:
    """An Enum's members with those that have another name too, which go as attributes of the class else: then they are no
    members, or the class cannot be made."""
    make, arguments, (attributes, slots), *more = reduced
    members = {name: member._value_ for name, member in cls.__members__.items()}
    attributes = {name: value for name, value in attributes.items() if name not in members}
    return make, (*arguments[:3], members, *arguments[4:]), (attributes, slots), *more


def _name_in_module(cls: type) -> str:
    """Qualified name, or the name that a class made by a function was given at the top of its module."""
    module = sys.modules.get(cls.__module__)
    return cls.__name__ if getattr(module, cls.__name__, None) is cls else cls.__qualname__


def _empty_cache(maxsize: Optional[int], typed: bool) -> Any:
    @functools.lru_cache(maxsize, typed)
    def cached(*arguments: Any, **keywords: Any) -> Any:
        return cached.__wrapped__(*arguments, **keywords)

    return cached


def _is_importable(obj: Any) -> bool:
    """Whether a slot finds ``obj`` by its name."""
    module = obj.__module__
    if module is None or module == "__main__" or module in cloudpickle.list_registry_pickle_by_value():
        return False
    found: Any = sys.modules.get(module)
    for name in getattr(obj, "__qualname__", "").split("."):
        found = getattr(found, name, None)
    return found is obj


def _spark_advice(obj: Any) -> Optional[str]:
    """What to do instead of capturing this object of Spark; None: it is no such object, or can travel."""
    # By name: a job that uses no Spark object must not import pyspark.
    for cls in type(obj).__mro__:
        module = f"{cls.__module__}."
        if module.startswith(_SPARK_DRIVER_PACKAGES):
            return _COLLECT
        if module.startswith("pyspark.") and cls.__name__ in _SPARK_DRIVER_TYPES:
            return _SPARK_DRIVER_TYPES[cls.__name__]
    return None


def _is_driver_object(obj: Any) -> bool:
    if isinstance(obj, types.FunctionType):  # most of what is pickled
        return False
    return _spark_advice(obj) is not None or any(
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


def pickle_partitioner(partitioner: StreamPartitioner) -> bytes:
    """A partitioner on its own, one of a chain that ``pickle_chains`` has accepted."""
    return _dumps(partitioner)


@dataclasses.dataclass(frozen=True)
class ImportedClass:
    """A class that ``__main__`` has imported: where it is."""

    module: str
    qualname: str

    def find(self) -> Any:
        return pkgutil.resolve_name(f"{self.module}:{self.qualname}")


def main_module_classes() -> bytes:
    """cloudpickle of ``{name: class}`` that ``__main__`` of this process defines, and of its `ImportedClass`es: state of
    a class that has moved from the script to a module has the name of the script.

    The slot puts them into its own ``__main__`` (`install_main_classes`), so that records of these classes pickle there.
    cloudpickle gives a class that comes in several pickles one identity in the receiver.  A class
    that does not pickle is left out: a function that uses it is refused by ``pickle_chains``.
    """
    main = sys.modules["__main__"]
    found = {
        name: value if value.__module__ == "__main__" else ImportedClass(value.__module__, value.__qualname__)
        for name, value in list(vars(main).items())
        if isinstance(value, type)
    }
    try:
        return _dumps(found)
    except Exception:  # see _failure
        return _dumps({name: value for name, value in found.items() if _failure(value) is None})


# ---- naming the culprit -------------------------------------------------------------------------


def _failure(obj: Any) -> Optional[BaseException]:
    """Why ``obj`` cannot travel, or None."""
    try:
        _dumps(obj)
    except Exception as error:  # pickling runs __reduce__ and __getstate__ of the user's classes
        return error
    return None


def _explain(vertex: JobVertex, error: BaseException) -> UnpicklableFunctionError:
    for operator_name, role, value in _suspects(vertex.chain):
        failure = _failure(value)
        if failure is not None:
            return _describe(vertex, operator_name, role, value, failure)
    return _describe(vertex, vertex.name, "chain", vertex.chain, error)


def _suspects(chain: OperatorChainSpec) -> list[tuple[str, str, Any]]:
    """What users have given to the operators of a chain: operator, role, thing."""
    names = {operator.node_id: operator.name for operator in chain.operators}
    suspects: list[tuple[str, str, Any]] = []
    for operator in chain.operators:
        for item in dataclasses.fields(operator.operator):
            value = getattr(operator.operator, item.name)
            if isinstance(value, WatermarkStrategy):
                suspects.append((operator.name, "timestamp assigner", value.timestamp_assigner))
                suspects.append((operator.name, "watermark generator", value.generator_factory))
            suspects.append((operator.name, item.name, value))
        for selector in operator.key_selectors:
            suspects.append((operator.name, "key selector", selector))
        suspects.append((operator.name, "key type", operator.key_type))
        suspects.append((operator.name, "output type", operator.output_type))
    for edge in chain.outputs:
        partitioner = edge.partitioner
        for item in dataclasses.fields(partitioner):
            value = getattr(partitioner, item.name)
            suspects.append((names[edge.source_id], item.name.replace("_", " "), value))
    return suspects


def _describe(
    vertex: JobVertex, operator_name: str, role: str, value: Any, failure: BaseException
) -> UnpicklableFunctionError:
    path, culprit, failure = find_culprit(value, failure, _failure, _is_driver_object)
    function = _function_name(value)
    kind = _type_name(culprit)
    captured = _captured(path, kind)
    if isinstance(failure, _DriverObjectFound):
        why = f"it {captured}, which lives in the driver only"
        do = _spark_advice(culprit) or (
            "collect what the function needs into plain Python values before, "
            "or bring another stream to the function with connect() or union()"
        )
    elif is_too_deep(failure):
        why = f"it {captured}, which is nested too deeply to be pickled"
        do = "capture it in a flatter form, such as a list or a dict of its parts"
    else:
        why = f"it {captured}: {_failure_text(failure)}"
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
        variable=path[-1] if path else "",
        variable_type=kind,
    )


def _captured(path: tuple[str, ...], kind: str) -> str:
    labels = [f'"{label}"' for label in reversed(path)]
    if len(labels) > _WAY_MAX:
        labels[_WAY_MAX // 2 : -_WAY_MAX // 2] = ["..."]
    return f"captures {' of '.join(labels)}, a {kind}" if path else f"is a {kind}"


def _failure_text(failure: BaseException) -> str:
    try:
        lines = str(failure).strip().splitlines()
    except Exception:  # of the user's class
        lines = []
    return f"{type(failure).__name__}: {lines[0] if lines else ''}".rstrip(": ")


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


# ---- in the slot --------------------------------------------------------------------------------


def unpickle_chain(data: bytes, task_name: str, slot_id: str) -> Any:
    """The ``OperatorChainSpec``.  Only for bytes of a peer that has proved the secret.

    Raises:
        UnpicklableFunctionError: something that the driver could pickle cannot be read here; names
            operator, function and variable.
    """
    try:
        return pickle.loads(data)
    except BaseException as error:  # unpickling imports modules and runs the user's __setstate__
        raise _unread(data, f'task "{task_name}", slot {slot_id}', error) from error


def unpickle_main_classes(data: bytes, slot_id: str) -> tuple[dict[str, type], dict[str, str]]:
    """What `main_module_classes` has pickled, and why some of them cannot be read here, by name: a function that
    uses one of those is refused by `unpickle_chain`.

    Raises:
        UnpicklableFunctionError: it is no such pickle.
    """
    try:
        return pickle.loads(data), {}
    except BaseException as error:  # as in unpickle_chain
        found = _read_leniently(data)
        if not isinstance(found, dict):
            what = "the classes that __main__ of the driver defines"
            raise _refusal(what, f"slot {slot_id}", reason(error), error) from error
    failures = {name: _unreadable_failure(value) for name, value in found.items()}
    good = {name: value for name, value in found.items() if failures[name] is None}
    return good, {name: str(failure) for name, failure in failures.items() if failure is not None}


def install_main_classes(classes: Mapping[str, Any]) -> None:
    """Put them into ``__main__`` of this process; what was imported there is imported here when it is asked for, because
    importing runs the user's code."""
    main: Any = sys.modules["__main__"]
    imported = {name: value for name, value in classes.items() if isinstance(value, ImportedClass)}
    for name, value in classes.items():
        if name not in imported:
            setattr(main, name, value)

    def find(name: str) -> Any:
        if name not in imported:
            raise AttributeError(f"module '__main__' has no attribute {name!r}")
        return imported[name].find()

    main.__getattr__ = find


def _unread(data: bytes, task: str, error: BaseException) -> UnpicklableFunctionError:
    found = _read_leniently(data)
    for operator_name, role, value in _suspects(found) if isinstance(found, OperatorChainSpec) else ():
        failure = _unreadable_failure(value)
        if failure is not None:
            path, culprit, failure = find_culprit(value, failure, _unreadable_failure, lambda part: False)
            function = _function_name(value)
            kind = culprit.__qualname__ if isinstance(culprit, Unreadable) else _type_name(culprit)
            return _refusal(
                f'{role} {function} of operator "{operator_name}"',
                f'operator "{operator_name}" in {task}',
                f"it {_captured(path, kind)}, which does not unpickle there: {failure}",
                error,
                operator=operator_name,
                function=function,
                variable=path[-1] if path else "",
            )
    return _refusal("the functions of a task", task, reason(error), error)


def _read_leniently(data: bytes) -> Any:
    try:
        return read_leniently(data)
    except Exception:  # no pickle, or one of objects of ours that are not what they were
        return None


def _refusal(what: str, where: str, why: str, error: BaseException, **fields: str) -> UnpicklableFunctionError:
    do = "install the module on every machine of the cluster, or ship it with the job (PYTHONPATH, addPyFile)"
    if not isinstance(error, ImportError):
        do = (
            "see that the slots have the modules and versions of the driver, and that what __reduce__ or "
            "__getstate__ gives can be read in another process; or make the object in open() of a rich function"
        )
    return UnpicklableFunctionError(f"could not read {what} in a slot", where=where, why=why, do=do, **fields)


def _unreadable_failure(value: Any) -> Optional[BaseException]:
    """The `UnreadableFound` that a value holds, or None."""
    failure = _failure(value)
    return failure if isinstance(failure, UnreadableFound) else None
