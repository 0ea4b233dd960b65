"""Our public names against PyFlink's (2.3): module paths, classes, members, parameter names.

``pyflink_names.tsv`` holds the names of ``pyflink.common``, ``pyflink.datastream`` (with its formats) and
``pyflink.metrics``.  What we leave out stands below with the reason.
"""

from __future__ import annotations

import ast
import csv
import enum
import importlib
import inspect
from pathlib import Path

import pytest

JVM = "wraps a JVM object"
INTERNAL = "an implementation detail of PyFlink's runtime that users do not call"

#: (module, name or name.member): why we do not have it.
LEFT_OUT = {
    ("common", "AssignerWithPeriodicWatermarksWrapper"): JVM,
    ("common.watermark_strategy", "AssignerWithPeriodicWatermarksWrapper"): JVM,
    ("datastream", "CustomCheckpointStorage"): JVM,
    ("datastream", "CustomStateBackend"): JVM,
    ("datastream.checkpoint_storage", "CustomCheckpointStorage"): JVM,
    ("datastream.state_backend", "CustomStateBackend"): JVM,
    ("datastream.utils", "convert_to_python_obj"): INTERNAL,
    ("datastream.utils", "create_hadoop_configuration"): JVM,
    ("datastream.utils", "create_java_properties"): JVM,
    ("datastream.utils", "pickled_bytes_to_python_obj"): INTERNAL,
    ("datastream.window", "WindowOperationDescriptor"): INTERNAL,
}

#: There only to say what to use instead.
REFUSED = {
    ("datastream.state_backend", "EmbeddedRocksDBStateBackend", "set_options"): JVM,
    ("datastream.state_backend", "EmbeddedRocksDBStateBackend", "get_options"): JVM,
}

#: The share of PyFlink's names that must be there and work.
FLOOR = 0.98

#: Constructors that nobody calls: the object is made by another one, or wraps a JVM object.
OTHER_CONSTRUCTOR = {
    "ConfigOption",
    "ConfigOptions",
    "ConfigOptions.OptionBuilder",
    "ConfigOptions.TypedConfigOptionBuilder",
    "KeyedStream",
    "MemorySize",
    "SourceFunction",
    "SinkFunction",
}


def _facts() -> list[tuple[str, str, str, str]]:
    with open(Path(__file__).with_name("pyflink_names.tsv"), newline="") as file:
        return [tuple(row) for row in list(csv.reader(file, delimiter="\t"))[1:]]


FACTS = _facts()


def _left_out(module: str, name: str, member: str) -> bool:
    parts = [*name.split("."), *([member] if member else [])]
    return any((module, ".".join(parts[: n + 1])) in LEFT_OUT for n in range(len(parts)))


def _find(module: str, name: str, member: str = "") -> object:
    found = importlib.import_module(f"flinkish.{module}")
    for part in [*name.split("."), *([member] if member else [])]:
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("module", sorted({fact[0] for fact in FACTS}))
def test_every_public_name_of_pyflink_exists_or_is_left_out_with_a_reason(module):
    missing = []
    for fact_module, name, member, _ in FACTS:
        if fact_module == module and not _left_out(module, name, member):
            try:
                _find(module, name, member)
            except (AttributeError, ImportError) as error:
                missing.append(f"{name}.{member}: {error}")
    assert missing == []


def test_more_than_the_floor_of_pyflinks_names_are_there():
    missing = [fact for fact in FACTS if _left_out(*fact[:3]) or fact[:3] in REFUSED]
    share = 1 - len(missing) / len(FACTS)
    assert share >= FLOOR, f"{len(FACTS) - len(missing)} of {len(FACTS)}"


def test_nothing_is_left_out_that_exists():
    exists = []
    for module, path in LEFT_OUT:
        name, _, member = path.rpartition(".")
        try:
            _find(module, *((name, member) if name else (member, "")))
        except (AttributeError, ImportError):
            continue
        exists.append((module, path))
    assert exists == []


def _names_of(parameters: str) -> list[str]:
    """Parameter names of PyFlink that a program may write; JVM objects are none of them."""
    definition = ast.parse(f"def f{parameters}: pass").body[0].args  # type: ignore[attr-defined]
    names = [a.arg for a in [*definition.posonlyargs, *definition.args, *definition.kwonlyargs]]
    return [name for name in names if not name.startswith("j_")]


@pytest.mark.parametrize("module", sorted({fact[0] for fact in FACTS}))
def test_parameters_have_the_names_and_the_order_of_pyflink(module):
    different = []
    for fact_module, name, member, parameters in FACTS:
        if fact_module != module or not parameters or _left_out(module, name, member):
            continue
        if not member and (name in OTHER_CONSTRUCTOR or parameters.startswith("(j_")):
            continue
        if member.startswith("__"):
            continue
        found = _find(module, name, member)
        if inspect.isclass(found) and found.__init__ is object.__init__:
            ours = []
        elif inspect.isclass(found) and issubclass(found, enum.Enum):
            continue
        else:
            ours = [
                p.name if p.kind is not p.VAR_POSITIONAL else "*"
                for p in inspect.signature(found).parameters.values()
                if p.name != "self"
            ]
        theirs = _names_of(parameters)
        if "*" not in ours and ours[: len(theirs)] != theirs:
            different.append(f"{name}.{member}: PyFlink {theirs}, ours {ours}")
    assert different == []
