"""The names that the documentation gives can be imported from where it says, and what it says is missing is."""

import ast
import importlib
import inspect
import re
from pathlib import Path

import pytest

from flinkish import connectors
from flinkish.connectors import delta, files
from flinkish.datastream.connectors import file_system

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "flinkish" / "docs").rglob("*.md"))]
PAGE = ROOT / "flinkish" / "docs" / "connectors.md"


def imports_of(text):
    """(module, name) of each import of ours that stands in ``text``."""
    for statement in re.findall(r"from (?:flinkish|spark_plugin)[\w.]* import [\w, ]+", text):
        (node,) = ast.parse(statement.rstrip(", ")).body
        yield from ((node.module, alias.name) for alias in node.names)


def source_files():
    return [path for top in ("flinkish", "spark_plugin") for path in sorted((ROOT / top).rglob("*.py"))]


def literals_of(path):
    """Texts of a program: what errors advise and docstrings show."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_imports_on_a_page_work(page):
    for module, name in imports_of(page.read_text()):
        exec(f"from {module} import {name}", {})


def test_imports_that_errors_and_docstrings_advise_work():
    advised = {
        found for path in source_files() for text in literals_of(path) if "import" in text for found in imports_of(text)
    }
    assert ("flinkish.connectors.files", "ParquetPart") in advised
    for module, name in sorted(advised):
        exec(f"from {module} import {name}", {})


def test_every_public_connector_is_on_the_page_and_has_an_example():
    listed = set(imports_of(PAGE.read_text()))
    for package in (connectors, delta, files):
        for name in package.__all__:
            if not inspect.isabstract(getattr(package, name)):
                assert (package.__name__, name) in listed
                assert ">>>" in inspect.getdoc(getattr(package, name)), name
    for name in ("FileSource", "FileSink"):  # the same class at PyFlink's path
        assert getattr(file_system, name) is getattr(files, name)


def test_what_is_not_there_yet_is_not_there_and_the_error_is_pythons_own():
    missing = PAGE.read_text().partition("## Not there yet")[2]
    connectors_missing = re.findall(r"`(?:datastream\.connectors)?\.(\w+)`", missing)
    modules = ["flinkish.table"]
    modules += [f"flinkish.datastream.connectors.{name}" for name in connectors_missing]
    assert len(modules) > 8
    for module in modules:
        with pytest.raises(ModuleNotFoundError, match=f"No module named '{module}'"):
            importlib.import_module(module)
    for name in ("FileCompactor", "FileCompactStrategy", "StreamingFileSink"):
        assert f"`{name}`" in missing and not hasattr(file_system, name)
