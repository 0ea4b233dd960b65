"""When a base is begun, and which stored files are a task's own to delete."""

import pytest

from flinkish.messages.checkpoints import FileHandle
from flinkish.state.bases import RETRY_MS, BaseSchedule, UploadedFiles

A, B = FileHandle("/shared/a", 1), FileHandle("/shared/b", 2)


@pytest.fixture
def now():
    return [0]


@pytest.fixture
def schedule(now):
    settings = {"state.changelog.enabled": "true", "state.changelog.periodic-materialize.interval": "1 min"}
    return BaseSchedule(settings, lambda: now[0])


def test_one_base_is_made_at_a_time_and_a_failed_one_is_not_followed_at_once(schedule, now):
    assert schedule.is_due(outgrown=True)
    schedule.begin()
    assert not schedule.is_due(outgrown=True)
    schedule.end(stored=False)
    assert not schedule.is_due(outgrown=True)
    now[0] = RETRY_MS
    assert schedule.is_due(outgrown=True)
    schedule.begin()
    schedule.end(stored=True)
    assert schedule.is_due(outgrown=True)


def test_after_the_interval_a_base_is_due_when_anything_has_changed(schedule, now):
    now[0] = 59_999
    assert not schedule.is_due(outgrown=False)
    now[0] = 60_000
    assert schedule.is_due(outgrown=False) and not schedule.is_due(outgrown=False, changed=False)
    schedule.begin()
    schedule.end(stored=True)
    assert not schedule.is_due(outgrown=False), "it is counted from the beginning of the last one"


@pytest.mark.parametrize(
    "settings", [{}, {"state.changelog.enabled": "true", "state.changelog.periodic-materialize.interval": "-1"}]
)
def test_without_an_interval_a_base_is_made_only_when_the_changes_have_outgrown_it(settings, now):
    schedule = BaseSchedule(settings, lambda: now[0])
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
