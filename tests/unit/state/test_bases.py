"""When a base is begun, and which stored files are a task's own to delete."""

import pytest

from flinkish.errors import CheckpointStorageError
from flinkish.messages.checkpoints import FileHandle
from flinkish.state.bases import RETRY_MS, BaseSchedule, UploadedFiles

A, B = FileHandle("/shared/a", 1), FileHandle("/shared/b", 2)


@pytest.fixture
def now():
    return [0]


@pytest.fixture
def schedule(now):
    settings = {"state.changelog.enabled": "true", "state.changelog.periodic-materialize.interval": "1 min"}
    return BaseSchedule(settings, lambda: now[0], "op")


def test_one_base_is_made_at_a_time_and_a_failed_one_is_not_followed_at_once(schedule, now):
    assert schedule.is_due(outgrown=True)
    schedule.begin()
    assert not schedule.is_due(outgrown=True)
    schedule.end(OSError("no space"))
    assert not schedule.is_due(outgrown=True)
    now[0] = RETRY_MS
    assert schedule.is_due(outgrown=True)
    schedule.begin()
    schedule.end()
    assert schedule.is_due(outgrown=True)


def test_a_base_that_fails_behind_the_end_of_its_task_is_no_failure(schedule, caplog):
    schedule.begin()
    schedule.closed = True
    schedule.end(OSError("the folder is gone"))
    assert not schedule.under_way and not caplog.records


@pytest.mark.parametrize("allowed", [None, "0"])
def test_the_task_fails_when_more_bases_have_failed_in_a_row_than_are_allowed(now, allowed):
    settings = {} if allowed is None else {"state.backend.changelog.max-failures-allowed": allowed}  # the 1.x spelling
    schedule = BaseSchedule(settings, lambda: now[0], "op")
    for number in range(4 if allowed is None else 1):
        assert schedule.is_due(outgrown=True)
        schedule.begin()
        schedule.end(OSError("no space"))
        now[0] += RETRY_MS
    for ask in (schedule.require, lambda: schedule.is_due(outgrown=False)):
        with pytest.raises(CheckpointStorageError, match=f"{number + 1} failed in a row.*no space"):
            ask()


def test_a_base_that_was_stored_forgives_those_that_failed_before(schedule, now):
    for number in range(8):
        now[0] += RETRY_MS
        schedule.begin()
        schedule.end(None if number == 3 else OSError("no space"))
        if number != 7:
            schedule.require()
    with pytest.raises(CheckpointStorageError, match="4 failed in a row"):
        schedule.require()


def test_after_the_interval_a_base_is_due_when_anything_has_changed(schedule, now):
    now[0] = 59_999
    assert not schedule.is_due(outgrown=False)
    now[0] = 60_000
    assert schedule.is_due(outgrown=False) and not schedule.is_due(outgrown=False, changed=False)
    schedule.begin()
    schedule.end()
    assert not schedule.is_due(outgrown=False), "it is counted from the beginning of the last one"


@pytest.mark.parametrize(
    "settings", [{}, {"state.changelog.enabled": "true", "state.changelog.periodic-materialize.interval": "-1"}]
)
def test_without_an_interval_a_base_is_made_only_when_the_changes_have_outgrown_it(settings, now):
    schedule = BaseSchedule(settings, lambda: now[0], "op")
    now[0] = 10**9
    assert not schedule.is_due(outgrown=False) and schedule.is_due(outgrown=True)


def test_a_file_is_deleted_when_every_snapshot_that_refers_to_it_was_given_up_and_no_later_one_will():
    files = UploadedFiles()
    files.add(A)
    for checkpoint_id in (1, 2):
        files.refer(checkpoint_id, [A])
    files.given_up(1)
    files.release([A])
    assert files.take_unused() == []
    files.given_up(2)
    assert files.take_unused() == [A] and files.take_unused() == []


def test_a_file_of_a_complete_checkpoint_is_the_jobmanagers():
    files = UploadedFiles()
    files.add(A)
    files.add(B)
    files.refer(1, [A, B])
    files.refer(2, [B])
    files.complete(2)  # which subsumes 1
    files.release([A, B])
    assert files.take_unused() == [A]


def test_a_file_that_is_stored_after_its_snapshot_was_given_up_belongs_to_none():
    files = UploadedFiles()
    files.refer(1, [])
    files.refer(2, [])
    files.given_up(1)
    files.add(A, checkpoint_id=1)
    files.add(B, checkpoint_id=2)
    files.release([A, B])
    assert files.take_unused() == [A]


def test_files_of_others_are_never_deleted():
    files = UploadedFiles()
    files.refer(1, [A])
    files.given_up(1)
    files.release([A])
    assert files.take_unused() == []
