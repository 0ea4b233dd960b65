"""The borders of DESIGN.md, kept by a checker that is itself tested."""

from pathlib import Path

import pytest

from tests.architecture import import_rules as rules

ROOT = Path(__file__).resolve().parents[2]


def test_every_file_keeps_the_borders():
    files = rules.source_files(ROOT)
    assert len(files) > 20
    found = []
    for path in files:
        found += rules.violations(path.relative_to(ROOT).as_posix(), path.read_text())
    assert found == [], "\n".join(found)


def test_each_exception_has_a_reason_and_is_still_needed():
    for (file, module), reason in {**rules.LATE, **rules.CORE_EXCEPTIONS}.items():
        assert reason
        package = ".".join(file.split("/")[:-1])
        used = rules.imports_of((ROOT / file).read_text(), package)
        assert any(rules._within(item.module, module) for item in used), f"{file} {module}: remove it"


def test_jobmanager_and_taskmanager_do_not_know_each_other():
    assert not {"taskmanager", "operators", "state", "shell"} & rules.MAY_IMPORT["jobmanager"]
    assert not {"jobmanager", "shell"} & rules.MAY_IMPORT["taskmanager"]
    for owner, allowed in rules.MAY_IMPORT.items():
        if owner not in ("shell", "testing", "spark_plugin"):
            assert "shell" not in allowed


def test_the_table_has_no_way_in_a_circle():
    table = {
        owner: {entry.split(".")[0] for entry in allowed} - {owner}
        for owner, allowed in rules.MAY_IMPORT.items()
        if "." not in owner
    }
    done: set = set()
    while len(done) < len(table):
        ready = {owner for owner, allowed in table.items() if owner not in done and allowed <= done}
        assert ready, f"circle among {sorted(set(table) - done)}"
        done |= ready


@pytest.mark.parametrize(
    "path, text, expected",
    [
        ("flinkish/common/x.py", "import flinkish.datastream", "common may import errors"),
        ("flinkish/common/x.py", "from flinkish import datastream", "common may import errors"),
        ("flinkish/common/x.py", "def f():\n    from flinkish.graph import plan", "common may import errors"),
        ("flinkish/common/x.py", "from ..graph import plan", "common may import errors"),
        ("flinkish/common/x.py", "import importlib\nimportlib.import_module('flinkish.graph')", "may import"),
        ("flinkish/datastream/x.py", "def f():\n    import flinkish.shell.executor", "datastream may import"),
        ("flinkish/datastream/stream_execution_environment.py", "import flinkish.graph.plan", "may import"),
        ("flinkish/datastream/stream_execution_environment.py", "def f():\n    import flinkish.jobmanager", "may"),
        ("flinkish/jobmanager/x.py", "from flinkish.taskmanager.task import Task", "jobmanager may import"),
        ("flinkish/taskmanager/x.py", "from flinkish.jobmanager import launcher", "taskmanager may import"),
        ("flinkish/operators/x.py", "from flinkish.connectors.files import FileSource", "operators may import"),
        ("flinkish/connectors/x/y.py", "from flinkish.operators import output", "connectors may import"),
        ("flinkish/shell/x.py", "from flinkish.testing import MiniCluster", "shell may import"),
        ("flinkish/shell/x.py", "def f():\n    import spark_plugin.launcher", "spark_plugin"),
        ("flinkish/shell/x.py", "try:\n    import pyspark.sql\nexcept ImportError:\n    pass", "pyspark is for"),
        ("flinkish/table/x.py", "def f():\n    from pyspark import sql", "pyspark is for"),
        ("jobs/x.py", "from flinkish.shell import executor", "jobs may import"),
        ("flinkish/graph/x.py", "import time", "graph is a core"),
        ("flinkish/graph/x.py", "def f():\n    from concurrent.futures import Future", "graph is a core"),
        ("flinkish/jobmanager/x.py", "from datetime import datetime\nx = datetime.now()", "uses datetime.now"),
        ("flinkish/taskmanager/x.py", "import numpy as np\nx = np.random.default_rng()", "uses np.random"),
        ("flinkish/taskmanager/x.py", "def f():\n    print(1)", "uses print"),
    ],
)
def test_the_checker_sees_a_violation(path, text, expected):
    found = rules.violations(path, text)
    assert found and expected in found[0]


@pytest.mark.parametrize(
    "path, text",
    [
        ("flinkish/datastream/stream_execution_environment.py", "def f():\n    import flinkish.graph.plan"),
        ("flinkish/datastream/connectors/kafka/x.py", "from flinkish.connectors.kafka import KafkaSource"),
        ("flinkish/common/x.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import flinkish.shell"),
        ("flinkish/graph/x.py", "from . import job_graph\nfrom flinkish.messages import deployment"),
        ("flinkish/shell/x.py", "import time, socket, threading, logging"),
        ("spark_plugin/x.py", "def f():\n    import pyspark"),
        ("jobs/x.py", "from flinkish import Types\nfrom flinkish.common import Time"),
    ],
)
def test_the_checker_lets_pass_what_is_right(path, text):
    assert rules.violations(path, text) == []


def test_a_package_that_the_table_does_not_know_is_an_error():
    with pytest.raises(AssertionError, match="belongs to no package"):
        rules.violations("flinkish/novel/x.py", "")
