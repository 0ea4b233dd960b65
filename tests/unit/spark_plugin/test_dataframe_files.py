"""How long the files of a DataFrame stay; without Spark."""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from flinkish.errors import UserError
from spark_plugin.dataframe import ArrowFileSplit, DataFrameSource
from spark_plugin.dataframe_files import DataFrameFiles, drop_dataframes, remove_stale


class StoppableApplication:
    """The part of a SparkApplication that files ask."""

    def __init__(self):
        self.identity = str(id(self))
        self.folders, self.stopped = [], False

    def remove_at_end(self, folder):
        self.folders.append(folder)

    def is_alive(self):
        return not self.stopped

    def stop(self):
        self.stopped = True


@pytest.fixture
def application():
    return StoppableApplication()


def source_of(folder, application):
    staging = DataFrameFiles(str(folder), application)
    path = Path(staging.folder, "part-0.arrow")
    path.write_bytes(b"rows")
    return DataFrameSource([ArrowFileSplit(str(path), 1)], None, staging), Path(staging.folder)


def left_by_a_killed_driver(folder):
    """A folder that a process made and did not live to remove."""
    program = (
        "import os, signal, sys; from spark_plugin.dataframe_files import DataFrameFiles;"
        f"print(DataFrameFiles({str(folder)!r}).folder, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    ended = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    return Path(ended.stdout.strip())


def test_the_folder_of_a_killed_driver_is_removed_by_the_next_one(tmp_path):
    left = left_by_a_killed_driver(tmp_path)
    assert left.parent == tmp_path and left.is_dir()
    remove_stale(str(tmp_path))
    assert not left.exists()


def test_folders_of_living_drivers_other_machines_and_unknown_owners_stay(tmp_path, application):
    source, own = source_of(tmp_path, application)
    elsewhere = left_by_a_killed_driver(tmp_path)
    owner = json.loads((elsewhere / "owner.json").read_text())
    (elsewhere / "owner.json").write_text(json.dumps({**owner, "place": "another machine"}))
    unknown, broken = tmp_path / "flinkish-dataframe-0", tmp_path / "flinkish-dataframe-1"
    unknown.mkdir()
    broken.mkdir()
    (broken / "owner.json").write_text("[]")
    remove_stale(str(tmp_path))
    assert all(folder.is_dir() for folder in (own, elsewhere, unknown, broken))


def test_a_later_process_of_the_same_number_does_not_keep_a_folder(tmp_path):
    left = left_by_a_killed_driver(tmp_path)
    owner = json.loads((left / "owner.json").read_text())
    (left / "owner.json").write_text(json.dumps({**owner, "pid": os.getpid(), "started": "1"}))
    remove_stale(str(tmp_path))
    assert not left.exists()


def test_dropped_files_stay_for_the_job_that_reads_them(tmp_path, application):
    source, folder = source_of(tmp_path, application)
    other, other_folder = source_of(tmp_path, StoppableApplication())
    reading = source.create_enumerator(None)
    drop_dataframes(application.identity)
    assert folder.is_dir() and other_folder.is_dir()
    reading.close()
    assert not folder.exists() and other_folder.is_dir()
    with pytest.raises(UserError, match="make the source again"):
        source.create_enumerator(None)
    drop_dataframes(application.identity)
    del source, reading
    gc.collect()  # what was dropped twice, and the source with it, counts once


def test_files_of_a_spark_that_was_stopped_go_when_the_next_are_written(tmp_path, application):
    source, folder = source_of(tmp_path, application)
    other, other_folder = source_of(tmp_path, StoppableApplication())
    remove_stale(str(tmp_path))
    assert folder.is_dir()
    application.stop()
    remove_stale(str(tmp_path))
    assert not folder.exists() and other_folder.is_dir()


def test_a_session_cluster_takes_the_files_of_its_spark_along(tmp_path, application, monkeypatch):
    from spark_plugin import session_cluster

    launcher = SimpleNamespace(application=application)
    monkeypatch.setattr(session_cluster, "create_launcher", lambda *arguments: launcher)
    source, folder = source_of(tmp_path, application)
    cluster = session_cluster.SessionCluster("a Spark", slots=1)
    cluster.close()
    assert not folder.exists()
