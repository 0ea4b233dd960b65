"""Folders of processes: whoever they belong to, nothing stays."""

import errno
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from flinkish.state import local_folders
from flinkish.state.local_folders import LocalFolders, remove_folders_of, remove_stale


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    return tmp_path / "tmp"


def left_by_a_process_that_has_ended(disk):
    """A folder on two disks; the number of the process."""
    program = (
        "import os, sys; from flinkish.state.local_folders import LocalFolders; "
        "LocalFolders().make([sys.argv[1]]); print(os.getpid(), flush=True); os.kill(os.getpid(), 9)"
    )
    environment = {**os.environ, "TMPDIR": tempfile.gettempdir(), "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([sys.executable, "-c", program, str(disk)], env=environment, capture_output=True, text=True)
    return int(ended.stdout)


def test_a_folder_goes_with_its_user_and_the_home_with_the_last_one(temporary_folder, tmp_path):
    folders = LocalFolders()
    one, other = folders.make(), folders.make([str(tmp_path / "disk")])
    assert Path(one).parent.parent == temporary_folder and Path(other).parent.parent == tmp_path / "disk"
    folders.remove(other)
    assert Path(one).exists() and not Path(other).exists()
    folders.remove(one)
    assert list(temporary_folder.iterdir()) == [] and list((tmp_path / "disk").iterdir()) == []


@pytest.mark.parametrize("by", ["its supervisor", "the next process"])
def test_what_a_killed_process_leaves_is_removed_on_every_disk(temporary_folder, tmp_path, by):
    pid = left_by_a_process_that_has_ended(tmp_path / "disk")
    assert len(list(temporary_folder.iterdir())) == len(list((tmp_path / "disk").iterdir())) == 1
    if by == "its supervisor":
        remove_folders_of(pid)
    else:
        remove_stale()
    assert list(temporary_folder.iterdir()) == [] and list((tmp_path / "disk").iterdir()) == []


def test_folders_of_living_processes_and_of_other_machines_stay(temporary_folder, monkeypatch):
    folders = LocalFolders()
    own = Path(folders.make())
    remove_folders_of(os.getpid())
    remove_stale()
    assert own.exists()
    owner = own.parent / "owner.json"
    elsewhere = json.loads(owner.read_text())
    elsewhere["owner"].update(pid=2**22 + 1, place="another machine")
    owner.write_text(json.dumps(elsewhere))
    remove_stale()
    assert own.exists()


def test_a_place_that_does_not_bear_the_name_of_its_home_is_not_touched(temporary_folder, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    pid = left_by_a_process_that_has_ended(tmp_path / "disk")
    (home,) = temporary_folder.iterdir()
    found = json.loads((home / "owner.json").read_text())
    (home / "owner.json").write_text(json.dumps({**found, "places": [str(precious)]}))
    remove_folders_of(pid)
    assert precious.exists() and not home.exists()
    assert local_folders._identity(os.getpid())["started"] is not None


def test_without_a_free_descriptor_a_later_sweep_does_it(temporary_folder, monkeypatch, caplog):
    def no_descriptor(self, pattern):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as full:
        full.setattr(Path, "glob", no_descriptor)
        remove_folders_of(1)
        remove_stale()
    assert caplog.text.count("Too many open files") == 2
