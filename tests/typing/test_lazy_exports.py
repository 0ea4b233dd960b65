"""Packages import lazily; type checkers and editors must see the same names."""

import ast
import importlib
import inspect

import pytest

PACKAGES = [
    "flinkish",
    "flinkish.common",
    "flinkish.connectors",
    "flinkish.connectors.delta",
    "flinkish.connectors.files",
    "flinkish.datastream",
    "flinkish.datastream.connectors",
]


@pytest.mark.parametrize("package", PACKAGES)
def test_type_checkers_see_the_names_that_python_exports(package):
    module = importlib.import_module(package)
    seen = {
        alias.name
        for statement in ast.parse(inspect.getsource(module)).body
        if isinstance(statement, ast.If)
        for imported in statement.body
        for alias in imported.names
    }
    assert seen == set(module.__all__) - {"__version__"}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_exported_name_can_be_imported(package):
    module = importlib.import_module(package)
    assert [name for name in module.__all__ if getattr(module, name, None) is None] == []
    assert set(module.__all__) <= set(dir(module))
    with pytest.raises(AttributeError, match="no attribute"):
        getattr(module, "Nothing")


def test_public_methods_of_streams_declare_what_they_return():
    from flinkish import ConnectedStreams, DataStream, KeyedStream, StreamExecutionEnvironment
    from flinkish.datastream import WindowedStream

    missing = [
        f"{cls.__name__}.{name}"
        for cls in (ConnectedStreams, DataStream, KeyedStream, StreamExecutionEnvironment, WindowedStream)
        for name, method in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_") and "return" not in method.__annotations__
    ]
    assert missing == []


def test_importing_the_api_imports_neither_spark_nor_arrow(run_python):
    code = (
        "import sys, flinkish\n"
        "from flinkish import StreamExecutionEnvironment, TumblingEventTimeWindows, Types, Row\n"
        "print(sorted({'pyspark', 'pyarrow', 'pandas', 'numpy'} & set(sys.modules)))\n"
    )
    done = run_python("-c", code)
    assert done.stdout.strip() == "[]", done.stderr
