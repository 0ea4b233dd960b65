"""What the thread of the checkpoint storage leaves behind, on files and on S3."""

import threading

import pytest
from pyarrow import fs

from flinkish.common import options
from flinkish.common.configuration import Configuration
from flinkish.jobmanager.events import DiscardCheckpoint, DiscardFiles, SweepSharedFiles
from flinkish.messages.checkpoints import (
    CompletedCheckpoint,
    IncrementalKeyedStateHandle,
    KeyGroupRange,
    OperatorSnapshot,
    OperatorSubtaskState,
    SnapshotKind,
)
from flinkish.shell.checkpoint_files import CheckpointFiles
from flinkish.storage.checkpoint_storage import CheckpointStorage
from tests.unit.storage.test_checkpoint_storage import s3  # noqa: F401

JOB, OTHER = "9f3c" * 8, "ab01" * 8


@pytest.fixture(params=["local", "s3"])
def settings(request, tmp_path):
    if request.param == "local":
        return {options.CHECKPOINT_DIRECTORY.key: str(tmp_path / "checkpoints")}
    address = request.getfixturevalue("s3")
    return {
        options.CHECKPOINT_DIRECTORY.key: f"s3://bucket/{tmp_path.name}",
        "s3.access-key": "k",
        "s3.secret-key": "s3cr3t",
        "s3.endpoint": f"http://{address}",
    }


class Swept(CheckpointFiles):
    def do(self, order):
        done = threading.Event()
        self.carry_out(order)
        self.after(done.set)
        assert done.wait(30)


@pytest.fixture
def files(settings):
    configuration = Configuration.from_dict(settings)
    files = Swept(JOB, "job", settings[options.CHECKPOINT_DIRECTORY.key], configuration, lambda said: None)
    files.storage = CheckpointStorage(settings[options.CHECKPOINT_DIRECTORY.key], configuration)
    files.start()
    yield files
    files.close().join(30)


def complete(storage, job_id, checkpoint_id, *shared):
    location = storage.checkpoint_location(job_id, checkpoint_id)
    storage.create_folder(location)
    names = {str(number): file for number, file in enumerate(shared)}
    keyed = (IncrementalKeyedStateHandle(KeyGroupRange(0, 127), "rocksdb", "b", checkpoint_id, names, {}),)
    operator = OperatorSnapshot("op", "uid", "name", 1, 128, {0: OperatorSubtaskState(keyed)})
    storage.store_metadata(
        CompletedCheckpoint(job_id, "n", "r", checkpoint_id, 1, 2, SnapshotKind.CHECKPOINT, location, {"op": operator})
    )


def stored(storage, job_id, count):
    return [storage.write(storage.shared_location(job_id), bytes([number])) for number in range(count)]


def left(storage, job_id):
    return {file.uri for file in storage.shared_files(job_id)}


def jobs(storage):
    found = storage._fs.get_file_info(fs.FileSelector(storage._path(storage.directory)))
    return sorted(info.base_name for info in found)


def uris(files):
    return {file.uri for file in files}


def test_what_no_complete_checkpoint_refers_to_is_swept_also_of_the_job_before(files):
    storage = files.storage
    own, others = stored(storage, JOB, 5), stored(storage, OTHER, 3)
    complete(storage, JOB, 3, own[0])
    complete(storage, JOB, 4, own[0], own[1])  # one that this run may not know of
    complete(storage, OTHER, 7, others[0])
    files.do(SweepSharedFiles(JOB, f"{storage.directory}/{JOB}"))
    assert left(storage, JOB) == uris(own[:2]) and left(storage, OTHER) == uris(others)
    files.do(SweepSharedFiles(JOB, f"{storage.directory}/{OTHER}"))
    assert left(storage, OTHER) == uris(others[:1])


def test_nothing_is_swept_when_tasks_have_begun_or_a_checkpoint_cannot_be_read(files):
    storage = files.storage
    own = stored(storage, JOB, 2)
    complete(storage, JOB, 3, own[0])
    held, begun = threading.Event(), threading.Event()
    files.after(lambda: (begun.set(), held.wait(30)))
    assert begun.wait(30)
    files.carry_out(SweepSharedFiles(JOB, f"{storage.directory}/{JOB}"))
    files.attempt += 1  # as the driver does before it deploys
    held.set()
    files.after((done := threading.Event()).set)
    assert done.wait(30) and left(storage, JOB) == uris(own)

    location = storage.checkpoint_location(JOB, 4)
    with storage._create_named(f"{storage._path(location)}/_metadata") as stream:
        stream.write(b"damaged")
    files.do(SweepSharedFiles(JOB, f"{storage.directory}/{JOB}"))
    assert left(storage, JOB) == uris(own)
    storage.discard(location)
    files.do(SweepSharedFiles(JOB, f"{storage.directory}/{JOB}"))
    assert left(storage, JOB) == uris(own[:1])


def test_the_folder_of_the_run_before_goes_with_the_last_that_was_in_it(files):
    storage = files.storage
    old, new = (storage.checkpoint_location(job, 1) for job in (OTHER, JOB))
    shared = storage.write(storage.shared_location(OTHER), b"s")
    storage.write(old, b"x")
    storage.write(new, b"y")
    files.do(DiscardCheckpoint(JOB, old))
    assert jobs(storage) == [JOB, OTHER] and storage.read(shared) == b"s"
    files.do(DiscardFiles(JOB, (shared.uri,)))
    assert jobs(storage) == [JOB]


def test_folders_of_this_job_stay_until_it_ends_and_those_of_others_for_ever(files):
    storage = files.storage
    mine, other = storage.checkpoint_location(JOB, 1), storage.checkpoint_location(OTHER, 1)
    claimed = f"{storage.directory}/of-the-user/chk-1"
    for location in (mine, other, claimed):
        storage.write(location, b"x")
    for location in (mine, claimed):
        files.do(DiscardCheckpoint(JOB, location))
    assert jobs(storage) == [JOB, OTHER, "of-the-user"]
    files.do(DiscardCheckpoint(JOB, f"{storage.directory}/{JOB}"))
    assert jobs(storage) == [OTHER, "of-the-user"]
