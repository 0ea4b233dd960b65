"""What ``pip install .`` brings: everything that a job needs, and nothing at the top but two packages."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory):
    """Names of the files in the wheel, built from a copy so that the checkout stays clean."""
    folder = tmp_path_factory.mktemp("wheel")
    copy = folder / "source"
    copy.mkdir()
    for name in ("flinkish", "spark_plugin", "jobs"):
        shutil.copytree(CHECKOUT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(CHECKOUT / name, copy / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, copy]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    (wheel,) = folder.glob("flinkish-*.whl")
    return zipfile.ZipFile(wheel).namelist()


def test_every_module_is_installed(wheel_names):
    modules = {
        path.relative_to(CHECKOUT).as_posix()
        for package in ("flinkish", "spark_plugin")
        for path in (CHECKOUT / package).rglob("*.py")
    }
    assert sorted(modules - set(wheel_names)) == []


def test_jobs_are_installed_inside_flinkish(wheel_names):
    jobs = {f"flinkish/jobs/{path.name}" for path in (CHECKOUT / "jobs").glob("*.py")}
    assert jobs and jobs <= set(wheel_names)


def test_only_two_packages_stand_at_the_top(wheel_names):
    tops = {name.split("/")[0] for name in wheel_names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"flinkish", "spark_plugin"}


def test_files_that_modules_read_are_installed(wheel_names):
    assert "spark_plugin/log4j2-quiet.properties" in wheel_names
