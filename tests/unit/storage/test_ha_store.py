"""The record of a job: what a new leader finds, and what an old one cannot write any more."""

import json
from dataclasses import replace

import pytest

from flinkish.errors import CheckpointStorageError, CorruptSnapshotError, LeadershipLostError
from flinkish.storage.conditional_store import FolderCell
from flinkish.storage.ha_store import RESERVED_IDS, SAVEPOINTS_MAX, HighAvailabilityStore, JobRecord

FRESH = JobRecord("job-id", "job", "run")


@pytest.fixture
def cell(tmp_path):
    return FolderCell(str(tmp_path / "record"))


@pytest.fixture
def store(cell):
    return HighAvailabilityStore(cell, "the record")


def add(store, epoch, number, retained_max=1, attempt=0):
    store.add_checkpoint(epoch, f"file:/c/chk-{number}", number, False, retained_max, attempt)


def test_a_new_leader_finds_the_newest_checkpoint_the_run_and_ids_that_nobody_has_used(store):
    assert store.read() is None
    assert store.take_over(1, FRESH) == JobRecord("job-id", "job", "run", epoch=1)
    add(store, 1, 1, attempt=0)
    add(store, 1, 2, attempt=3)
    record = store.take_over(2, JobRecord("job-id", "job", "another run"))
    assert (record.run_id, record.latest, record.attempt) == ("run", "file:/c/chk-2", 3)
    assert record.next_checkpoint_id == 3 + RESERVED_IDS
    # Also when the one before has completed nothing.
    assert store.take_over(3, FRESH).next_checkpoint_id == 3 + 2 * RESERVED_IDS


def test_an_older_leader_is_refused_whatever_it_writes(store):
    store.take_over(1, FRESH)
    add(store, 1, 1)
    store.take_over(2, FRESH)
    before = store.read()
    for write in (
        lambda: add(store, 1, 2),
        lambda: store.remove_checkpoint(1, "file:/c/chk-1"),
        lambda: store.store_result(1, "FINISHED", 5),
        lambda: store.take_over(1, FRESH),
    ):
        with pytest.raises(LeadershipLostError, match='lost leadership of job "job"'):
            write()
    assert store.read() == before


def test_as_many_checkpoints_are_named_as_are_retained_and_one_more(store):
    store.take_over(1, FRESH)
    for number in range(1, 6):
        add(store, 1, number, retained_max=2)
    assert store.read().checkpoints == ("file:/c/chk-3", "file:/c/chk-4", "file:/c/chk-5")


def test_a_stopping_savepoint_is_where_to_go_on_until_a_newer_checkpoint_is_complete(store):
    store.take_over(1, FRESH)
    add(store, 1, 1)
    store.add_checkpoint(1, "file:/s/savepoint-ab-2", 2, True, 1, 0)
    assert store.read().checkpoints == ("file:/c/chk-1", "file:/s/savepoint-ab-2")
    add(store, 1, 3)
    assert store.read().checkpoints == ("file:/c/chk-1", "file:/c/chk-3")


def test_a_checkpoint_that_is_given_up_leaves_the_one_before(store):
    store.take_over(1, FRESH)
    add(store, 1, 1)
    add(store, 1, 2)
    store.remove_checkpoint(1, "file:/c/chk-1")  # it is not where to go on, and may be gone
    assert store.read().latest == "file:/c/chk-2"
    store.remove_checkpoint(1, "file:/c/chk-2")
    assert store.read().checkpoints == ("file:/c/chk-1",)


def test_a_parallelism_and_the_newest_savepoints_are_kept(store, cell):
    store.take_over(1, FRESH)
    store.store_parallelism(1, {"a": 3, "b": 1})
    for number in range(SAVEPOINTS_MAX + 2):
        store.add_savepoint(1, f"file:/s/savepoint-{number}")
    add(store, 1, 1)
    record = store.take_over(2, FRESH)
    assert record.parallelism == {"a": 3, "b": 1} and record.checkpoints == ("file:/c/chk-1",)
    assert record.savepoints == tuple(f"file:/s/savepoint-{number}" for number in range(2, SAVEPOINTS_MAX + 2))
    for write in (lambda: store.store_parallelism(1, {}), lambda: store.add_savepoint(1, "file:/s/savepoint-99")):
        with pytest.raises(LeadershipLostError):
            write()
    assert store.read() == replace(record, next_checkpoint_id=record.next_checkpoint_id + RESERVED_IDS)


def test_a_record_of_before_there_was_rescaling_is_read(store, cell):
    store.take_over(1, FRESH)
    document = json.loads(cell.read()[0])
    del document["savepoints"], document["parallelism"]
    cell.replace(json.dumps(document).encode(), 1)
    assert (store.read().savepoints, store.read().parallelism) == ((), {})


def test_a_result_is_kept(store):
    store.take_over(1, FRESH)
    store.store_result(1, "FINISHED", 5)
    assert (store.take_over(2, FRESH).status, store.read().ended_ms) == ("FINISHED", 5)


def test_a_write_that_failed_and_arrived_all_the_same_is_repeated(store, cell, monkeypatch):
    store.take_over(1, FRESH)
    replace = cell.replace

    def arrives_and_fails(value, version):
        replace(value, version)
        raise OSError("no answer")

    monkeypatch.setattr(cell, "replace", arrives_and_fails)
    with pytest.raises(CheckpointStorageError, match="no answer"):
        add(store, 1, 1)
    monkeypatch.undo()
    add(store, 1, 1)
    assert store.read().checkpoints == ("file:/c/chk-1",)


@pytest.mark.parametrize("data", [b"", b"[]", json.dumps({"format": "other"}).encode(), b"\xff"])
def test_a_record_that_is_none_is_refused(store, cell, data):
    cell.replace(data, 0)
    with pytest.raises(CorruptSnapshotError, match="could not read the record of a job"):
        store.take_over(1, FRESH)


def test_a_record_of_a_newer_version_is_refused(store, cell):
    store.take_over(1, FRESH)
    document = json.loads(cell.read()[0])
    cell.replace(json.dumps({**document, "version": 2}).encode(), 1)
    with pytest.raises(CorruptSnapshotError, match="version 1 or older"):
        store.read()
