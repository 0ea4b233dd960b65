"""Fixtures that several test folders share."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from tests.integration.spark_servers import FAST_START

# The same examples on each run, so that a failure is the change's.  New ones are looked for with
# `HYPOTHESIS_PROFILE=search pytest tests/property`, which prints how to reproduce what it finds.
settings.register_profile("same", derandomize=True, deadline=None)
settings.register_profile("search", max_examples=3_000, print_blob=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))

# Drivers that tests start, in their own process and in others.
os.environ.setdefault("SPARK_SUBMIT_OPTS", FAST_START)


def pytest_collection_modifyitems(config, items):
    """Soak tests run only where a marker expression names them."""
    if "soak" not in config.option.markexpr:
        items[:] = [item for item in items if item.get_closest_marker("soak") is None]


CHECKOUT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session", autouse=True)
def drivers_of_tests(tmp_path_factory):
    """Drivers that tests start are found by tests alone, and these find no others."""
    os.environ["FLINKISH_RUN_DIR"] = str(tmp_path_factory.mktemp("run") / "drivers")


@pytest.fixture
def run_python(tmp_path):
    """Runs ``python ARGUMENTS`` in a process of its own, in an empty folder; returns the
    CompletedProcess.  ``environ``: variables to set, or to remove when None."""

    def run(*arguments, environ=None, timeout_s=180):
        variables = {**os.environ, "PYTHONPATH": str(CHECKOUT)}
        for name, value in (environ or {}).items():
            variables.pop(name, None)
            if value is not None:
                variables[name] = value
        return subprocess.run(
            [sys.executable, *map(str, arguments)],
            cwd=tmp_path,
            env=variables,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )

    return run
