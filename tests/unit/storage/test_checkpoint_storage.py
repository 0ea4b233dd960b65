"""Folders of checkpoints, on the local disk and on an S3 server: whole or not there."""

import dataclasses
import errno
import os
import shutil

import pytest
from pyarrow import fs

from flinkish.errors import CheckpointStorageError, CorruptSnapshotError, InvalidJobError
from flinkish.jobmanager.events import DiscardCheckpoint, MetadataStored, StoreMetadata
from flinkish.messages.checkpoints import (
    CompletedCheckpoint,
    FileHandle,
    InlineBytes,
    KeyedStateHandle,
    KeyGroupRange,
    OperatorSnapshot,
    OperatorSubtaskState,
    SnapshotKind,
)
from flinkish.shell.checkpoint_files import CheckpointFiles
from flinkish.shell.managed_job import ManagedJob
from flinkish.shell.state_recovery import load_checkpoint
from flinkish.storage import checkpoint_storage
from flinkish.storage.checkpoint_storage import CheckpointStorage, storage_at
from flinkish.storage.metadata import encode_metadata

JOB = "9f3c" * 8


@pytest.fixture(scope="module")
def s3():
    """Address of an S3 server in this process, with a bucket."""
    from moto.server import ThreadedMotoServer
    from pyarrow import fs

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        address = "%s:%d" % server.get_host_and_port()
        system = fs.S3FileSystem(
            access_key="k", secret_key="s3cr3t", endpoint_override=address, scheme="http", region="us-east-1",
            allow_bucket_creation=True,
        )  # fmt: skip
        system.create_dir("bucket")
        yield address
    finally:
        server.stop()


@pytest.fixture(params=["local", "file", "s3 by query", "s3 by configuration"])
def storage(request, tmp_path):
    if request.param == "local":
        return CheckpointStorage(tmp_path / "checkpoints")
    if request.param == "file":
        return CheckpointStorage(f"file://{tmp_path}/checkpoints")
    address = request.getfixturevalue("s3")
    folder = f"bucket/{tmp_path.name}"
    if request.param == "s3 by query":
        return CheckpointStorage(
            f"s3://k:s3cr3t@{folder}?endpoint_override={address}&scheme=http&region=us-east-1"
        )
    return CheckpointStorage(
        f"s3://{folder}",
        {
            "s3.access-key": "k",
            "s3.secret-key": "s3cr3t",
            "s3.endpoint": f"http://{address}",
            "s3.endpoint.region": "us-east-1",
        },
    )


@pytest.fixture
def local(tmp_path):
    return CheckpointStorage(tmp_path / "checkpoints")


def checkpoint(location, checkpoint_id=1, job_id=JOB, *, content=InlineBytes(b"x")):
    keyed = (KeyedStateHandle(KeyGroupRange(0, 127), content),)
    operator = OperatorSnapshot("op", "uid", "name", 1, 128, {0: OperatorSubtaskState(keyed)})
    return CompletedCheckpoint(
        job_id, "name", "run", checkpoint_id, 10, 20, SnapshotKind.CHECKPOINT, location, {"op": operator}
    )


def complete(storage, checkpoint_id, data=b"state"):
    location = storage.checkpoint_location(JOB, checkpoint_id)
    storage.create_folder(location)
    stored = checkpoint(location, checkpoint_id, content=storage.write(location, data))
    storage.store_metadata(stored)
    return stored


def file_of(found):
    return found.operators["op"].subtasks[0].keyed[0].content


# ---- on every file system -----------------------------------------------------------------------


def test_a_checkpoint_is_written_found_read_and_deleted(storage):
    assert storage.newest_complete(JOB) == (None, []) and storage.list_checkpoints(JOB) == []
    first, second = complete(storage, 9), complete(storage, 10, b"")
    for text in (storage.directory, first.location, file_of(first).uri):
        assert "s3cr3t" not in text and "?" not in text
    assert storage.load(first.location) == first == storage.load(first.location + "/_metadata")
    assert storage.newest_complete(JOB) == (second, [])
    assert [found.checkpoint_id for found in storage.list_checkpoints(JOB)] == [10, 9]
    assert storage.read(file_of(first)) == b"state" and storage.read(file_of(second)) == b""
    storage.discard(second.location)
    storage.discard(second.location)
    assert storage.newest_complete(JOB) == (first, [])
    with pytest.raises(CorruptSnapshotError, match="it is gone"):
        storage.read(file_of(second))
    storage.discard(first.location)
    storage.discard_job(JOB)
    storage.discard_job(JOB)
    assert storage.list_checkpoints(JOB) == []


def test_what_is_shared_and_which_checkpoints_are_complete_can_be_listed(storage):
    assert storage.shared_files(JOB) == storage.complete_checkpoints(JOB) == []
    stored = [storage.write(storage.shared_location(JOB), data) for data in (b"a", b"bb")]
    first, second = complete(storage, 9), complete(storage, 10)
    storage.write(storage.checkpoint_location(JOB, 11), b"not complete")
    assert sorted(storage.shared_files(JOB), key=lambda file: file.size) == stored
    assert storage.complete_checkpoints(JOB) == [second, first]
    with storage.create_file(storage.checkpoint_location(JOB, 12)) as stream:
        path = stream._path
    name = path.rpartition("/")[0] + "/_metadata"
    with storage._create_named(name) as stream:
        stream.write(b"damaged")
    with pytest.raises(CorruptSnapshotError, match="could not read all checkpoints"):
        storage.complete_checkpoints(JOB)


def test_a_folder_without_whole_metadata_is_never_chosen_and_is_told(storage):
    good = complete(storage, 3)
    empty, cut, foreign = (storage.checkpoint_location(JOB, n) for n in (4, 5, 6))
    storage.write(empty, b"state of tasks")
    whole = complete(storage, 7)
    raw = read_metadata(storage, whole)
    storage.discard(whole.location)
    put_metadata(storage, cut, raw[:-1])
    put_metadata(storage, foreign, raw)
    found, passed_over = storage.newest_complete(JOB)
    assert found == good
    reasons = {part.checkpoint_id: part.problem for part in passed_over}
    assert list(reasons) == [6, 5, 4]
    assert "checkpoint 7" in storage.list_checkpoints(JOB)[0].problem and "cut off or damaged" in reasons[5]
    assert "no _metadata" in reasons[4]
    assert [part.problem is None for part in storage.list_checkpoints(JOB)] == [False, False, False, True]
    assert [part.completed for part in storage.list_checkpoints(JOB)] == [True, True, False, True]
    with pytest.raises(CorruptSnapshotError, match="it was not completed"):
        storage.load(empty)
    with pytest.raises(CorruptSnapshotError, match="there is no such folder"):
        storage.load(storage.checkpoint_location(JOB, 99))


def read_metadata(storage, stored):
    system, path = storage._resolve(stored.location + "/_metadata")
    with system.open_input_file(path) as source:
        return source.read()


def put_metadata(storage, location, data):
    storage.create_folder(location)
    system, path = storage._resolve(location + "/_metadata")
    with system.open_output_stream(path) as target:
        target.write(data)


def test_metadata_are_stored_once(storage):
    stored = complete(storage, 1)
    other = dataclasses.replace(stored, run_id="of another leader")
    with pytest.raises(CheckpointStorageError, match="it is there already"):
        storage.store_metadata(other)
    assert storage.load(stored.location) == stored


def test_a_savepoint_can_be_moved(storage):
    location = storage.savepoint_location(JOB)
    assert location.rpartition("/")[2].startswith(f"savepoint-{JOB[:6]}-")
    assert storage.savepoint_location(JOB) != location
    storage.create_folder(location)
    storage.store_metadata(checkpoint(location, content=storage.write(location, b"state")))
    moved = f"{storage.directory}/elsewhere/savepoint-moved"
    copy_folder(storage, location, moved)
    storage.discard(location)
    found = storage.load(moved)
    assert found.location == moved and storage.read(file_of(found)) == b"state"
    storage.discard(moved)
    with pytest.raises(CorruptSnapshotError):
        storage.load(moved)


def copy_folder(storage, source, target):
    from pyarrow import fs

    storage.create_folder(target)
    system, path = storage._resolve(source)
    fs.copy_files(path, storage._resolve(target)[1], source_filesystem=system, destination_filesystem=system)


def test_large_files_go_up_and_come_down(storage, tmp_path):
    content = os.urandom(6 << 20)  # S3 takes it in two parts
    (tmp_path / "file").write_bytes(content)
    shared = storage.shared_location(JOB)
    handle = storage.upload(tmp_path / "file", shared, "abc.sst")
    assert handle == FileHandle(f"{shared}/abc.sst", len(content))
    assert storage.upload(tmp_path / "file", shared, "abc.sst") == handle
    storage.download(handle, tmp_path / "back")
    assert (tmp_path / "back").read_bytes() == content
    with storage.open_file(handle) as source:
        source.seek(5_000_000)
        assert source.read(10) == content[5_000_000:5_000_010]
    storage.delete_file(handle)
    storage.delete_file(handle)
    with pytest.raises(CorruptSnapshotError, match="it is gone"):
        storage.open_file(handle)


def test_a_file_that_nobody_changes_any_more_is_adopted_once(storage, tmp_path):
    (tmp_path / "000012.sst").write_bytes(b"rows" * 1_000)
    shared = storage.shared_location(JOB)
    handle = storage.adopt(str(tmp_path / "000012.sst"), shared, "address.sst")
    assert handle == storage.adopt(str(tmp_path / "000012.sst"), shared, "address.sst")
    assert (handle.uri, handle.size) == (f"{shared}/address.sst", 4_000)
    os.unlink(tmp_path / "000012.sst")
    assert storage.read(handle) == b"rows" * 1_000
    with pytest.raises(InvalidJobError):
        storage.adopt(str(tmp_path / "000012.sst"), shared, "../address.sst")


def test_a_file_of_another_disk_is_copied(local, tmp_path, monkeypatch):
    def no_link(source, target):
        raise OSError(errno.EXDEV, "another disk")

    (tmp_path / "file").write_bytes(b"rows")
    monkeypatch.setattr(os, "link", no_link)
    handle = local.adopt(str(tmp_path / "file"), local.shared_location(JOB), "address.sst")
    assert local.read(handle) == b"rows"


def test_a_file_of_another_size_is_refused(storage):
    handle = storage.write(storage.checkpoint_location(JOB, 1), b"12345")
    with pytest.raises(CorruptSnapshotError, match="it has 5 bytes, 6 were written"):
        storage.read(FileHandle(handle.uri, 6))


# ---- on a local disk ----------------------------------------------------------------------------


def test_what_fails_while_it_is_written_leaves_no_file(local):
    location = local.checkpoint_location(JOB, 1)
    for make in (lambda: local.create_file(location), lambda: local.create_named_file(location, "a.sst")):
        with pytest.raises(ZeroDivisionError), make() as stream:
            stream.write(b"some")
            raise ZeroDivisionError
        stream.abort()
    assert os.listdir(location) == []


def test_metadata_appear_whole_or_not_at_all(local, monkeypatch):
    """The process dies at the worst moment: all is written, and nothing has its name."""
    location = local.checkpoint_location(JOB, 1)
    local.create_folder(location)

    def dies(*args):
        raise OSError("no space left")

    monkeypatch.setattr(os, "link", dies)
    with pytest.raises(CheckpointStorageError, match="no space left"):
        local.store_metadata(checkpoint(location))
    assert local.newest_complete(JOB)[0] is None
    assert "no _metadata" in local.newest_complete(JOB)[1][0].problem and os.listdir(location) == []
    monkeypatch.undo()
    local.store_metadata(checkpoint(location))
    assert local.newest_complete(JOB)[0].location == location


def test_the_second_of_two_leaders_does_not_replace_metadata(local, monkeypatch):
    """Both have looked before either has written."""
    location = local.checkpoint_location(JOB, 1)
    first, second = checkpoint(location), dataclasses.replace(checkpoint(location), run_id="second")
    link = os.link

    def first_is_quicker(part, path):
        with open(path, "xb") as target:
            target.write(encode_metadata(first))
        link(part, path)

    monkeypatch.setattr(os, "link", first_is_quicker)
    with pytest.raises(CheckpointStorageError, match="FileExistsError"):
        local.store_metadata(second)
    assert local.load(location) == first and os.listdir(location) == ["_metadata"]


def test_a_whole_folder_may_move_with_its_job(local, tmp_path):
    stored = complete(local, 1)
    shutil.move(tmp_path / "checkpoints", tmp_path / "moved")
    found = CheckpointStorage(tmp_path / "moved").newest_complete(JOB)[0]
    assert found.location == f"{tmp_path}/moved/{JOB}/chk-1" and local.read(file_of(found)) == b"state"
    assert stored.location == f"{tmp_path}/checkpoints/{JOB}/chk-1"


def test_only_folders_of_checkpoints_are_deleted(local, tmp_path):
    (tmp_path / "checkpoints").mkdir()
    for location in (local.directory, str(tmp_path), "/", local.shared_location(JOB), f"{local.directory}/x/../chk-1"):
        with pytest.raises((CheckpointStorageError, InvalidJobError)):
            local.discard(location)
    assert (tmp_path / "checkpoints").is_dir()


def test_names_from_outside_are_checked(local):
    for job_id in ("", "..", "a/b", "a\0b", "x" * 200):
        with pytest.raises(InvalidJobError, match="as the id of a job"):
            local.checkpoint_location(job_id, 1)
    for name in ("", "..", "a/b", "_metadata", "x" * 300):
        with pytest.raises(InvalidJobError, match="as the name of a file"):
            local.create_named_file(local.shared_location(JOB), name)


def test_other_folders_beside_checkpoints_are_passed_over(local, tmp_path):
    complete(local, 2)
    for name in ("chk-", "chk-x", "chk-1.old", "shared"):
        (tmp_path / "checkpoints" / JOB / name).mkdir()
    (tmp_path / "checkpoints" / JOB / "chk-8").write_text("a file")
    assert [found.checkpoint_id for found in local.list_checkpoints(JOB)] == [2]


def test_a_storage_that_refuses_is_an_external_error_that_names_the_place(local, tmp_path):
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    with pytest.raises(CheckpointStorageError, match="could not write in the checkpoint storage") as caught:
        local.write(local.checkpoint_location(JOB, 1), b"x")
    assert caught.value.where.startswith(f"{tmp_path}/checkpoints/{JOB}/chk-1/") and caught.value.retryable
    assert len(str(caught.value).splitlines()) == 4


def test_secrets_stay_out_of_errors():
    with pytest.raises(InvalidJobError) as caught:
        CheckpointStorage("nofs://user:s3cr3t@host/x?key=s3cr3t")
    assert "s3cr3t" not in str(caught.value) and "nofs://host/x" in str(caught.value)


def test_what_nobody_wants_is_deleted_with_the_folders_in_which_nothing_is_left(storage):
    chk, shared = storage.checkpoint_location(JOB, 3), storage.shared_location(JOB)
    savepoint = f"{storage.directory}/savepoint-1"
    files = {location: storage.write(location, b"x") for location in (chk, shared, savepoint)}
    other = storage.write(chk, b"y")
    storage.forget([files[chk]], chk)
    assert storage.read(other) == b"y"
    storage.forget([other], chk)
    storage.forget([other], chk)  # somebody else may have been there before
    assert storage.read(files[shared]) == b"x"
    storage.forget([files[shared], files[savepoint]], shared, savepoint)
    left = storage._fs.get_file_info(fs.FileSelector(storage._base, recursive=True, allow_not_found=True))
    assert left == [] or not storage.is_local
    if storage.is_local:
        assert os.path.isdir(storage._base), "the folder of savepoints is the user's"


def test_an_empty_folder_goes_with_that_of_its_job_and_no_other(storage):
    def folders():
        selector = fs.FileSelector(storage._base, recursive=True, allow_not_found=True)
        return sorted(info.path.removeprefix(storage._base + "/") for info in storage._fs.get_file_info(selector))

    other = "b" * 32
    kept = storage.write(storage.shared_location(JOB), b"x")
    chk, mine = (storage.write(storage.checkpoint_location(job, 3), b"y") for job in (JOB, other))
    storage.delete_if_empty(storage.checkpoint_location(JOB, 3))
    assert storage.read(chk) == b"y"
    storage.delete_file(chk)
    storage.delete_if_empty(storage.checkpoint_location(JOB, 3))
    assert storage.read(kept) == b"x"
    storage.delete_file(kept)
    storage.delete_if_empty(storage.shared_location(JOB))
    storage.delete_if_empty(storage.shared_location(JOB))
    assert folders() == [other, f"{other}/chk-3", mine.uri.rpartition(f"{storage.directory}/")[2]]
    storage.delete_file(mine)
    storage.delete_if_empty(storage.checkpoint_location(other, 3))
    assert folders() == [] and (not storage.is_local or os.path.isdir(storage._base))


def test_a_file_is_made_although_its_empty_folder_is_deleted_at_the_same_time(tmp_path, monkeypatch):
    storage = CheckpointStorage(tmp_path)
    location = storage.checkpoint_location(JOB, 1)
    makedirs, made = os.makedirs, []

    def make_and_lose(path, exist_ok):
        makedirs(path, exist_ok=exist_ok)
        if path.endswith("chk-1"):
            made.append(path)
        if made == [path]:
            storage.forget([], location)

    monkeypatch.setattr(os, "makedirs", make_and_lose)
    assert storage.read(storage.write(location, b"x")) == b"x" and len(made) == 2


@pytest.mark.parametrize("option", ["execution.checkpointing.dir", "execution.state-recovery.path"])
def test_what_lies_in_the_bucket_of_a_folder_with_a_query_is_reached_as_that_is(s3, tmp_path, option):
    """Checkpoints and handles name their files without it."""
    query = f"endpoint_override={s3}&scheme=http&region=us-east-1"
    configuration = {option: f"s3://k:s3cr3t@bucket/{tmp_path.name}/checkpoints?{query}"}
    savepoint = f"s3://bucket/{tmp_path.name}/savepoints/savepoint-1"
    stored = checkpoint(savepoint, content=storage_at(savepoint, configuration).write(savepoint, b"state"))
    storage_at(savepoint, configuration, lazy=True).store_metadata(stored)
    assert storage_at(savepoint, configuration).load(savepoint) == stored == load_checkpoint(savepoint, configuration)
    assert storage_at(str(tmp_path), configuration).is_local


def test_the_files_of_a_job_whose_folder_has_a_query_are_stored_and_deleted(s3, tmp_path):
    query = f"endpoint_override={s3}&scheme=http&region=us-east-1"
    configuration = {"execution.checkpointing.dir": f"s3://k:s3cr3t@bucket/{tmp_path.name}?{query}"}
    directory = f"s3://bucket/{tmp_path.name}"
    storage, answers = CheckpointStorage(configuration["execution.checkpointing.dir"]), []
    stored, shared = checkpoint(f"{directory}/{JOB}/chk-1"), storage.write(f"{directory}/{JOB}/shared", b"x")
    files = CheckpointFiles(JOB, "job", directory, configuration, answers.append)
    files.start()
    files.carry_out(StoreMetadata(stored))
    files.after(lambda: answers.append(storage.newest_complete(JOB)[0]))
    half = f"{directory}/{JOB}/chk-2"
    storage.write(half, b"x")
    files.after(lambda: answers.append(storage.unfinished(JOB)))
    for location in (stored.location, half):
        files.carry_out(DiscardCheckpoint(JOB, location, unless_complete=True))
    files.after(lambda: answers.append(storage.newest_complete(JOB)))
    for location in (stored.location, f"{directory}/{JOB}"):
        files.carry_out(DiscardCheckpoint(JOB, location))
    files.close().join()
    assert answers == [MetadataStored(1), stored, [half], (stored, [])] and storage.newest_complete(JOB) == (None, [])
    with pytest.raises(CorruptSnapshotError, match="it is gone"):
        storage.read(shared)


def test_a_lazy_storage_asks_no_server_before_it_is_used(monkeypatch):
    asked = []
    monkeypatch.setattr(checkpoint_storage, "open_file_system", lambda *args: asked.append(args) or (fs.LocalFileSystem(), "b"))
    storage = storage_at("s3://bucket/savepoints", {}, lazy=True)
    assert not storage.is_local and storage.directory == "s3://bucket/savepoints" and not asked
    assert storage.job_ids() == [] and len(asked) == 1


def test_where_a_savepoint_lies_is_said_without_asking_a_server_and_as_slots_hear_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    job = ManagedJob(None, JOB, "job", {"s3.endpoint": "http://127.0.0.1:1"})
    assert job._location(None) is None and job._location("savepoints") == str(tmp_path / "savepoints")
    assert job._location((tmp_path / "a b").as_uri()) == str(tmp_path / "a b")
    assert job._location("s3://bucket/savepoints/") == "s3://bucket/savepoints"
    for uri in ("s3://k:s3cr3t@bucket/x", "s3://bucket/x?endpoint_override=localhost"):
        with pytest.raises(InvalidJobError, match="do not reach the slots") as refused:
            job._location(uri)
        assert "s3cr3t" not in str(refused.value)
    with pytest.raises(InvalidJobError, match="could not open nofs://x"):
        job._location("nofs://x")


def test_a_checkpoint_that_is_deleted_while_it_is_looked_at_is_passed_over(storage, monkeypatch):
    for checkpoint_id in (1, 2):
        complete(storage, checkpoint_id)
    attempt = storage._attempt

    def deleted_before_it_is_read(verb, path, action):
        if path.endswith("chk-2/_metadata") and action.__name__ == "read":
            storage.discard(storage.checkpoint_location(JOB, 2))
        return attempt(verb, path, action)

    monkeypatch.setattr(storage, "_attempt", deleted_before_it_is_read)
    found = storage.list_checkpoints(JOB)
    assert [(each.checkpoint_id, each.completed, each.problem) for each in found] == [
        (2, False, "it has just been deleted"), (1, True, None),
    ]  # fmt: skip


def test_a_folder_that_cannot_be_made_or_reached_is_refused_before_anything_is_stored(s3, tmp_path):
    CheckpointStorage(str(tmp_path / "new" / "folder")).require()
    assert (tmp_path / "new" / "folder").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointStorageError, match="could not create in the checkpoint storage"):
        CheckpointStorage(str(tmp_path / "file" / "folder")).require()
    with pytest.raises(CheckpointStorageError, match="could not look in the checkpoint storage"):
        CheckpointStorage(f"s3://wrong:key@nowhere/f?endpoint_override={s3}0&scheme=http").require()
