from dataclasses import replace

import pytest

from flinkish.common.job_status import JobStatus
from flinkish.jobmanager.completed_checkpoints import (
    CheckpointRetention,
    CompletedCheckpoints,
    discard_private,
)
from flinkish.jobmanager.events import DiscardCheckpoint, DiscardFiles, SweepSharedFiles
from flinkish.messages.checkpoints import (
    CompletedCheckpoint,
    FileHandle,
    IncrementalKeyedStateHandle,
    InFlightHandle,
    InlineBytes,
    KeyedStateHandle,
    KeyGroupRange,
    OperatorSnapshot,
    OperatorSubtaskState,
    SnapshotKind,
    SubtaskState,
)

GROUPS = KeyGroupRange(0, 127)


def keyed(checkpoint_id, shared, private=()):
    return IncrementalKeyedStateHandle(
        GROUPS,
        "rocksdb",
        "b",
        checkpoint_id,
        {name: FileHandle(f"s/{name}", 1) for name in shared},
        {name: FileHandle(f"chk-{checkpoint_id}/{name}", 1) for name in private},
    )


def acknowledged(store, checkpoint_id, shared):
    store.acknowledged(checkpoint_id, SubtaskState({"op": OperatorSubtaskState((keyed(checkpoint_id, shared),))}))


def checkpoint(checkpoint_id, shared="", kind=SnapshotKind.CHECKPOINT):
    state = OperatorSubtaskState((keyed(checkpoint_id, shared),))
    operator = OperatorSnapshot("op", None, "op", 1, 128, {0: state})
    location = f"chk-{checkpoint_id}"
    return CompletedCheckpoint("j", "job", "r", checkpoint_id, 0, 0, kind, location, {"op": operator})


def complete(store, checkpoint_id, shared="", kind=SnapshotKind.CHECKPOINT):
    if not kind.is_savepoint:
        acknowledged(store, checkpoint_id, shared)
    effects = store.add(checkpoint(checkpoint_id, shared, kind))
    store.check()
    return effects


def test_what_another_run_has_not_completed_goes_once_with_the_first_checkpoint_or_at_the_end():
    for end in (lambda store: complete(store, 4), lambda store: store.job_ended(JobStatus.FINISHED, False)):
        store = CompletedCheckpoints("j", retained_max=2, unfinished=("o/chk-3",), predecessor="o")
        store.restore(checkpoint(1, "a"), owned=True)
        store.restore(checkpoint(2, "b"), owned=True)
        effects = end(store)
        assert DiscardCheckpoint("j", "o/chk-3", unless_complete=True) in effects
        assert SweepSharedFiles("j", "o") in effects
        later = complete(store, 5)
        assert not any(isinstance(effect, DiscardCheckpoint) and effect.unless_complete for effect in later)
        assert SweepSharedFiles("j", "o") not in later


def test_the_newest_are_retained_and_older_ones_discarded():
    store = CompletedCheckpoints("j", retained_max=2)
    assert complete(store, 1) == [] and complete(store, 2) == []
    assert complete(store, 5) == [DiscardCheckpoint("j", "chk-1")]
    assert [known.checkpoint_id for known in store.retained] == [2, 5]
    assert store.latest.checkpoint_id == 5


def test_a_shared_file_goes_with_the_last_retained_checkpoint_that_uses_it():
    store = CompletedCheckpoints("j", retained_max=2)
    complete(store, 1, "ab")
    complete(store, 2, "ac")
    assert complete(store, 3, "ad") == [DiscardCheckpoint("j", "chk-1"), DiscardFiles("j", ("s/b",))]
    assert complete(store, 4, "d") == [DiscardCheckpoint("j", "chk-2"), DiscardFiles("j", ("s/c",))]
    assert complete(store, 5, "d") == [DiscardCheckpoint("j", "chk-3"), DiscardFiles("j", ("s/a",))]


def test_a_file_that_a_pending_checkpoint_uses_stays():
    store = CompletedCheckpoints("j")
    complete(store, 1, "a")
    acknowledged(store, 3, "a")  # 2 and 3 at the same time
    assert complete(store, 2, "b") == [DiscardCheckpoint("j", "chk-1")]
    assert complete(store, 3, "a") == [DiscardCheckpoint("j", "chk-2"), DiscardFiles("j", ("s/b",))]


def test_files_of_a_checkpoint_that_was_given_up_go_once_a_newer_one_is_complete():
    store = CompletedCheckpoints("j")
    complete(store, 1, "a")
    acknowledged(store, 2, "abc")
    assert complete(store, 3, "ac") == [DiscardCheckpoint("j", "chk-1"), DiscardFiles("j", ("s/b",))]


def test_an_acknowledgement_that_comes_late_takes_no_file_from_a_newer_one():
    store = CompletedCheckpoints("j")
    acknowledged(store, 3, "a")
    acknowledged(store, 2, "a")
    assert complete(store, 3, "a") == []
    assert store.last_use == {"s/a": 3}


def test_savepoints_do_not_count_and_are_never_discarded():
    store = CompletedCheckpoints("j")
    complete(store, 1, "a")
    assert complete(store, 2, kind=SnapshotKind.SAVEPOINT_SUSPEND) == []
    assert store.latest.checkpoint_id == 2  # what it published must not be published again
    assert complete(store, 3, "a") == [DiscardCheckpoint("j", "chk-1")]
    assert store.latest.checkpoint_id == 3
    assert store.job_ended(JobStatus.FINISHED, False) == [DiscardCheckpoint("j", "chk-3"), DiscardFiles("j", ("s/a",))]


def test_what_is_not_owned_can_be_restored_from_and_is_never_discarded():
    store = CompletedCheckpoints("j")
    store.restore(checkpoint(7, "ab"), owned=False)
    assert store.latest.checkpoint_id == 7
    assert complete(store, 8, "ac") == []
    assert complete(store, 9, "d") == [DiscardCheckpoint("j", "chk-8"), DiscardFiles("j", ("s/c",))]
    assert store.latest.checkpoint_id == 9


@pytest.mark.parametrize("claimed", [True, False])
def test_a_takeover_discards_what_its_job_refers_to_elsewhere_only_if_it_has_claimed_that(claimed):
    store = CompletedCheckpoints("j", claimed=claimed)
    own = checkpoint(8, "ab")  # their folder is s
    store.restore(replace(own, location="o/j/chk-8"), owned=True)
    gone = [DiscardFiles("j", ("s/a", "s/b"))] if claimed else []
    assert complete(store, 9, "c") == [DiscardCheckpoint("j", "o/j/chk-8"), *gone]
    store = CompletedCheckpoints("j", claimed=claimed)
    store.restore(replace(own, location="s/chk-8"), owned=True)
    assert complete(store, 9, "c") == [DiscardCheckpoint("j", "s/chk-8"), DiscardFiles("j", ("s/a", "s/b"))]


def test_what_is_owned_is_subsumed_like_ones_own():
    store = CompletedCheckpoints("j")
    for checkpoint_id in (6, 7):
        store.restore(checkpoint(checkpoint_id, "ab"), owned=True)
    assert complete(store, 8, "a") == [
        DiscardCheckpoint("j", "chk-6"),
        DiscardCheckpoint("j", "chk-7"),
        DiscardFiles("j", ("s/b",)),
    ]


@pytest.mark.parametrize(
    "retention, kept",
    [
        ("NO_EXTERNALIZED_CHECKPOINTS", set()),
        ("DELETE_ON_CANCELLATION", {"FAILED"}),
        ("RETAIN_ON_CANCELLATION", {"FAILED", "CANCELED"}),
    ],
)
def test_the_end_of_the_job_decides_what_stays(retention, kept):
    for status in ("FINISHED", "CANCELED", "FAILED"):
        store = CompletedCheckpoints("j", 2, CheckpointRetention(retention))
        complete(store, 1, "ab")
        acknowledged(store, 2, "ac")
        effects = store.job_ended(JobStatus[status], unpublished=False)
        store.check()
        if status in kept:
            assert effects == [DiscardFiles("j", ("s/c",))]
        else:
            assert effects == [DiscardCheckpoint("j", "chk-1"), DiscardFiles("j", ("s/a", "s/b", "s/c"))]


def test_a_checkpoint_that_has_not_been_published_stays_whatever_the_retention_says():
    store = CompletedCheckpoints("j", 2)
    complete(store, 1, "ab")
    complete(store, 2, "b")
    assert store.job_ended(JobStatus.FAILED, unpublished=True) == [
        DiscardCheckpoint("j", "chk-1"),
        DiscardFiles("j", ("s/a",)),
    ]


def test_the_check_finds_a_file_that_was_discarded_too_early():
    store = CompletedCheckpoints("j")
    complete(store, 1, "a")
    del store.last_use["s/a"]
    with pytest.raises((AssertionError, KeyError)):
        store.check()


def test_private_files_of_an_acknowledgement_are_all_that_only_it_refers_to():
    state = SubtaskState(
        {
            "x": OperatorSubtaskState((keyed(4, "a", ["m"]), KeyedStateHandle(GROUPS, InlineBytes(b"1")))),
            "y": OperatorSubtaskState((KeyedStateHandle(GROUPS, FileHandle("chk-4/k", 1)),)),
        },
        (InFlightHandle(FileHandle("chk-4/i", 1), ()),),
    )
    assert discard_private("j", state) == [DiscardFiles("j", ("chk-4/i", "chk-4/k", "chk-4/m"))]
    assert discard_private("j", SubtaskState()) == []
