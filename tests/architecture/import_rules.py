"""Who may import whom, as data, and the checker.

Imports point back along the way of the job (DESIGN.md): user code -> graph -> runtime.  A package
name in ``MAY_IMPORT`` stands for all its modules, a dotted one for that module only.  Imports
under ``if TYPE_CHECKING`` do not run and are free; imports inside functions count like all others,
unless ``LATE`` lists them with a reason.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Iterator

PUBLIC = {"cep", "common", "datastream", "errors", "metrics", "table"}
_BASE = {"common", "errors"}

#: package (or module path, which then goes before its package) -> what it may import of flinkish.
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "common": {"errors"},
    "messages": _BASE,
    "metrics": _BASE,
    "datastream": _BASE | {"metrics"},
    "datastream.connectors": _BASE | {"connectors", "datastream"},  # PyFlink's names for our connectors
    "datastream.formats": _BASE | {"connectors", "datastream"},  # and for its formats
    "cep": _BASE | {"datastream", "metrics"},
    "table": _BASE | {"connectors", "datastream", "metrics"},
    "connectors": _BASE | {"datastream", "metrics"},
    "storage": _BASE | {"messages"},
    "state": _BASE | {"datastream", "messages", "metrics", "storage"},
    "state_processor": _BASE | {"datastream", "graph", "messages", "operators.keys", "state", "storage"},
    "graph": _BASE | {"datastream", "messages", "state.key_groups"},
    "operators": _BASE | {"connectors.spi", "datastream", "graph", "messages", "metrics", "state"},
    "taskmanager": _BASE
    | {"connectors.spi", "datastream", "graph", "messages", "metrics", "operators", "state", "storage"},
    "jobmanager": _BASE
    | {"connectors.spi", "graph", "messages", "metrics", "state.key_groups", "state.redistribution", "storage"},
    "rest": _BASE | {"jobmanager", "messages", "metrics"},
    "shell": _BASE
    | {"connectors", "datastream", "graph", "jobmanager", "messages", "metrics", "operators", "rest",
       "state", "storage", "taskmanager"},
    "testing": _BASE
    | {"connectors", "datastream", "graph", "jobmanager", "messages", "metrics", "operators", "shell",
       "state", "storage", "taskmanager"},
    "cli": PUBLIC | {"rest"},
    "__init__": PUBLIC,
    "jobs": PUBLIC | {"connectors"},
    "spark_plugin": _BASE
    | {"connectors", "datastream", "graph", "jobmanager", "messages", "metrics", "shell", "state_processor", "table"},
}

#: (file, imported prefix) -> reason: imports inside functions that go against the table.
LATE: dict[tuple[str, str], str] = {
    ("flinkish/datastream/stream_execution_environment.py", "flinkish.graph"):
        "execute() and get_execution_plan() hand the program over",
    ("flinkish/datastream/stream_execution_environment.py", "flinkish.shell.executor"):
        "execute() hands the program over",
    ("flinkish/datastream/stream_execution_environment.py", "flinkish.connectors"):
        "from_collection(), from_sequence() and others make the built-in sources",
    ("flinkish/datastream/stream_execution_environment.py", "spark_plugin.dataframe"):
        "from_dataframe() asks for Spark by name",
    ("flinkish/datastream/data_stream.py", "flinkish.connectors"):
        "print() and execute_and_collect() make the built-in sinks",
    ("flinkish/datastream/cached_data_stream.py", "flinkish.connectors"):
        "the records of a cache are a built-in source of the next job",
    ("flinkish/shell/executor.py", "spark_plugin"):
        "execution.target says Spark; the MiniCluster must run without it",
    ("flinkish/cli/scripts.py", "flinkish.shell.job_manager"):
        "the run command ends jobs that its script did not wait for, before it ends Spark",
    ("flinkish/cli/__init__.py", "flinkish.shell.savepoints"):
        "the savepoint command works on files, without a job",
    ("flinkish/cli/__init__.py", "spark_plugin"):
        "the command starts where no Spark is, to say what is missing",
    ("flinkish/cli/scripts.py", "spark_plugin"):
        "the run command ends the Spark that its script has started, if any",
}

#: where pyspark may be imported: folders and files.
PYSPARK_HOMES = ("spark_plugin/", "flinkish/table/dataframe_bridge.py")

#: packages that decide and never act: time, chance, threads, sockets and logs come as arguments.
CORES = ("graph", "jobmanager", "taskmanager")
SIDE_EFFECT_MODULES = {
    "_thread", "asyncio", "concurrent", "logging", "multiprocessing", "queue", "random", "sched", "secrets",
    "select", "selectors", "signal", "socket", "socketserver", "ssl", "subprocess", "tempfile", "threading",
    "time", "uuid",
}
SIDE_EFFECT_CALLS = {
    "datetime.now", "datetime.today", "datetime.utcnow", "date.today", "input", "np.random", "numpy.random",
    "open", "os.urandom", "print",
}

#: (file, module) -> reason.
CORE_EXCEPTIONS: dict[tuple[str, str], str] = {
    ("flinkish/graph/job_graph_generator.py", "uuid"):
        "the id of a new job whose caller gives none; tests give one",
    ("flinkish/taskmanager/deployed_tasks.py", "random"):
        "random.Random, seeded by an argument, shared by the shuffle writers",
}


@dataclass(frozen=True)
class Import:
    module: str
    line: int
    late: bool


def imports_of(text: str, package: str) -> Iterator[Import]:
    """Every import of a file, late ones too; ``package`` resolves relative ones."""
    tree = ast.parse(text)
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.dump(block.test)
        for statement in block.body
        for node in ast.walk(statement)
    }
    late = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        for module in _modules(node, package):
            yield Import(module, node.lineno, id(node) in late)


def _modules(node: ast.AST, package: str) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            parts = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*parts, base] if base else parts)
        return [f"{base}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        name = ast.unparse(node.func)
        if name in ("__import__", "importlib.import_module", "import_module"):
            return [str(node.args[0].value)]
    return []


def violations(path: str, text: str) -> list[str]:
    """What the file at ``path`` (from the root, with /) does against the rules; [] if nothing."""
    found = []
    parts = path[: -len(".py")].split("/")
    package = ".".join(parts[:-1])
    owner, allowed = _rule_of(parts)
    for item in imports_of(text, package):
        where = f"{path}:{item.line} imports {item.module}"
        if _within(item.module, "pyspark") and not path.startswith(PYSPARK_HOMES):
            found.append(f"{where}: pyspark is for {' and '.join(PYSPARK_HOMES)} only")
        if owner in CORES and item.module.split(".")[0] in SIDE_EFFECT_MODULES:
            if (path, item.module.split(".")[0]) not in CORE_EXCEPTIONS:
                found.append(f"{where}: {owner} is a core; side effects are the shell's")
        if item.late and any(
            path == file and _within(item.module, prefix) for file, prefix in LATE
        ):
            continue
        if _within(item.module, "spark_plugin") and parts[0] not in ("spark_plugin", "jobs"):
            found.append(f"{where}: only the reasons in LATE lead to spark_plugin")
        if _within(item.module, "flinkish") and not _allowed(item.module, owner, allowed):
            found.append(f"{where}: {owner} may import {', '.join(sorted(allowed)) or 'nothing'}")
    if owner in CORES:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, (ast.Attribute, ast.Name)):
                name = ".".join(ast.unparse(node).split(".")[-2:])
                if name in SIDE_EFFECT_CALLS:
                    found.append(f"{path}:{node.lineno} uses {name}: {owner} is a core")
    return found


def _rule_of(parts: list[str]) -> tuple[str, set[str]]:
    if parts[0] in ("spark_plugin", "jobs"):
        return parts[0], MAY_IMPORT[parts[0]]
    inner = ".".join(parts[1:])
    fitting = [owner for owner in MAY_IMPORT if _within(inner, owner)]
    assert fitting, f"{'/'.join(parts)} belongs to no package of MAY_IMPORT: add it there"
    owner = max(fitting, key=len)
    return owner, MAY_IMPORT[owner]


def _within(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(prefix + ".")


def _allowed(module: str, owner: str, allowed: set[str]) -> bool:
    inner = module.partition(".")[2]
    if not inner:  # flinkish itself: the everyday names
        return owner in ("jobs", "testing", "spark_plugin", "cli")
    if owner == "jobs" and inner.split(".")[0][0].isupper():  # from flinkish import Types
        return True
    return any(_within(inner, entry) for entry in allowed | {owner})


def source_files(root: Path) -> list[Path]:
    return sorted(
        path for folder in ("flinkish", "spark_plugin", "jobs") for path in (root / folder).rglob("*.py")
    )
