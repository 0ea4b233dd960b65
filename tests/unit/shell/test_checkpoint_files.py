"""What the thread of the checkpoint storage leaves behind."""

import os

import pytest

from flinkish.jobmanager.events import DiscardCheckpoint, DiscardFiles
from flinkish.shell.checkpoint_files import CheckpointFiles
from flinkish.storage.checkpoint_storage import CheckpointStorage

BEFORE, MINE = "a" * 32, "b" * 32


@pytest.fixture
def storage(tmp_path):
    return CheckpointStorage(tmp_path / "checkpoints")


def carry_out(storage, *orders):
    files = CheckpointFiles(MINE, "job", storage.directory, {"execution.checkpointing.dir": storage.directory}, print)
    files.start()
    for order in orders:
        files.carry_out(order)
    files.close().join()
    return sorted(os.listdir(storage.directory))


def test_the_folder_of_the_run_before_goes_with_the_last_that_was_in_it(storage):
    old, new = (storage.checkpoint_location(job, 1) for job in (BEFORE, MINE))
    shared = storage.write(storage.shared_location(BEFORE), b"s")
    storage.write(old, b"x")
    storage.write(new, b"y")
    assert carry_out(storage, DiscardCheckpoint(MINE, old)) == [BEFORE, MINE]
    assert storage.read(shared) == b"s"
    assert carry_out(storage, DiscardFiles(MINE, (shared.uri,))) == [MINE]


def test_folders_of_this_job_stay_until_it_ends_and_those_of_others_for_ever(storage):
    mine, other = storage.checkpoint_location(MINE, 1), storage.checkpoint_location("c" * 32, 1)
    claimed = f"{storage.directory}/of-the-user/chk-1"
    for location in (mine, other, claimed):
        storage.write(location, b"x")
    orders = [DiscardCheckpoint(MINE, location) for location in (mine, claimed)]
    assert carry_out(storage, *orders) == [MINE, "c" * 32, "of-the-user"]
    assert carry_out(storage, DiscardCheckpoint(MINE, f"{storage.directory}/{MINE}")) == ["c" * 32, "of-the-user"]
