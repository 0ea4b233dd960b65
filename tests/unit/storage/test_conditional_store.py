"""A value in a shared folder that is replaced only by who has read it."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flinkish.storage import conditional_store
from flinkish.storage.conditional_store import FolderCell

CHECKOUT = Path(__file__).resolve().parents[3]


@pytest.fixture
def cell(tmp_path):
    return FolderCell(str(tmp_path / "deep" / "cell"))


def test_of_two_that_replace_the_same_version_one_is_refused(cell):
    assert cell.read() == (None, 0)
    assert cell.replace(b"a", 0) == 1
    assert cell.replace(b"b", 0) is None
    assert cell.read() == (b"a", 1)
    assert cell.replace(b"b", 1) == 2
    assert cell.read() == (b"b", 2)


@pytest.fixture
def few_kept(monkeypatch):
    monkeypatch.setattr(conditional_store, "_KEPT", 4)


def test_old_versions_and_what_killed_processes_left_are_removed(cell, few_kept):
    assert cell.replace(b"0", 0) == 1
    left = f"{cell.folder}/.v-3.00ff.tmp"
    Path(left).touch()
    for version in range(1, 12):
        assert cell.replace(b"%d" % version, version) == version + 1
    names = os.listdir(cell.folder)
    assert len(names) == 4 and "v-12" in names and not os.path.exists(left)


def test_a_write_that_fails_leaves_nothing_and_says_the_same_each_time(cell, monkeypatch):
    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(conditional_store.os, "fsync", full)
    for _ in range(2):
        with pytest.raises(OSError, match=f"No space left on device: '{cell.folder}'"):
            cell.replace(b"a", 0)
    assert os.listdir(cell.folder) == []


def test_a_folder_that_cannot_be_written_is_named(cell, monkeypatch):
    def read_only(path, mode):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    monkeypatch.setattr(conditional_store, "open", read_only, raising=False)
    with pytest.raises(PermissionError, match=f"denied: '{cell.folder}'"):
        cell.replace(b"a", 0)


def test_who_wants_to_replace_a_version_of_long_ago_fails_although_its_number_is_free_again(cell, few_kept):
    version = 0
    for _ in range(10):
        version = cell.replace(b"x", version)
    assert cell.replace(b"old", 7) is None
    with pytest.raises(OSError, match="version 3 of .* was made long ago"):
        cell.replace(b"old", 2)
    assert cell.read() == (b"x", 10)
    assert "v-3" not in os.listdir(cell.folder), "it is taken back"


def test_who_is_replaced_at_once_was_not_refused(cell, monkeypatch):
    sync = conditional_store._sync_folder

    def replaced_at_once(folder):
        monkeypatch.undo()
        sync(folder)
        assert cell.replace(b"b", 1) == 2

    monkeypatch.setattr(conditional_store, "_sync_folder", replaced_at_once)
    assert cell.replace(b"a", 0) == 1
    assert cell.read() == (b"b", 2)


def test_a_link_whose_answer_was_lost_counts(cell, monkeypatch):
    link = os.link

    def made_before(source, name):
        link(source, name)
        raise FileExistsError(name)  # NFS repeats the request

    monkeypatch.setattr(conditional_store.os, "link", made_before)
    assert cell.replace(b"a", 0) == 1


def test_reading_goes_on_when_the_newest_version_is_removed_meanwhile(cell, monkeypatch):
    cell.replace(b"a", 0)
    answers = iter([7, 1])
    monkeypatch.setattr(cell, "_newest", lambda: next(answers))
    assert cell.read() == (b"a", 1)


ADDS = """
import json, sys
from flinkish.storage.conditional_store import FolderCell
cell, me, times = FolderCell(sys.argv[1]), sys.argv[2], int(sys.argv[3])
sys.stdin.readline()  # all begin at once
done = refused = 0
while done < times:
    value, version = cell.read()
    added = [*json.loads(value or b"[]"), me]
    if cell.replace(json.dumps(added).encode(), version) is None:
        refused += 1
    else:
        done += 1
print(refused)
"""


def test_processes_that_write_at_once_lose_no_update(cell):
    """Each appends its name so often to one list."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", ADDS, cell.folder, name, "20"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=CHECKOUT,
        )
        for name in "abcd"
    ]  # fmt: skip
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    refused = [int(process.communicate(timeout=60)[0]) for process in processes]
    value, version = cell.read()
    names = json.loads(value)
    assert len(names) == 80 == version and {name: names.count(name) for name in "abcd"} == dict.fromkeys("abcd", 20)
    assert sum(refused) > 0, "they never met"
