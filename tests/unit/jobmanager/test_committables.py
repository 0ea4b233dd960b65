from flinkish.errors import ExternalError
from flinkish.jobmanager.committables import Committables
from flinkish.jobmanager.events import AbortCommittables, CheckpointCommitted, CommitCheckpoint
from flinkish.messages.checkpoints import CheckpointCommit
from flinkish.messages.deployment import ExecutionAttemptID

A, B = (ExecutionAttemptID("j", 0, "sink", index) for index in range(2))


def commit(checkpoint_id, *blobs):
    return CheckpointCommit("j", "r", checkpoint_id, {"sink": blobs})


def committables(**prepared):
    """``a1=b"x"``: A prepared b"x" for checkpoint 1."""
    made = Committables("j", "r")
    for name, blob in prepared.items():
        made.prepared[int(name[1:]), {"a": A, "b": B}[name[0]]] = {"sink": blob}
    return made


def complete(core, checkpoint_id):
    effects = core.complete(checkpoint_id, core.up_to(checkpoint_id))
    core.check()
    return effects


def test_a_checkpoint_publishes_what_was_prepared_for_it_and_for_those_given_up_before():
    core = committables(a1=b"a1", b1=b"b1", a2=b"a2", b3=b"b3")
    assert complete(core, 2) == [CommitCheckpoint(commit(2, b"a1", b"b1", b"a2"))]
    assert list(core.prepared) == [(3, B)]


def test_commits_go_one_by_one():
    core = committables(a1=b"1", a2=b"2")
    assert complete(core, 1) == [CommitCheckpoint(commit(1, b"1"))]
    assert complete(core, 2) == []
    assert core.committed(CheckpointCommitted("r", 2)) == []  # that is not the one
    assert core.committed(CheckpointCommitted("r", 1)) == [CommitCheckpoint(commit(2, b"2"))]
    assert core.committed(CheckpointCommitted("r", 1)) == []
    assert core.committed(CheckpointCommitted("r", 2)) == []
    assert core.commits == []


def test_after_a_failed_commit_the_others_wait_until_it_is_repeated():
    core = committables(a1=b"1", a2=b"2")
    complete(core, 1)
    assert core.committed(CheckpointCommitted("r", 1, ExternalError("down"))) == []
    assert complete(core, 2) == [] and core.held
    assert core.repeat() == [CommitCheckpoint(commit(1, b"1"))]


def test_nothing_prepared_nothing_to_publish():
    core = committables()
    assert complete(core, 1) == [] and core.commits == []
    assert core.commit_of(1, ()) == ()


def test_what_tasks_that_are_gone_prepared_is_aborted_but_not_what_a_checkpoint_or_savepoint_has():
    core = committables(a1=b"a1", a2=b"a2", b2=b"b2", a3=b"a3")
    core.saved.add((1, A))
    assert core.remove_orphans({B}, {(2, A)}) == [AbortCommittables("j", {"sink": (b"a3",)})]
    assert sorted(core.prepared) == [(2, A), (2, B)]
    core.check()
    assert core.remove_orphans({B}, {(2, A)}) == []
    assert core.remove_orphans({B}, frozenset()) == [AbortCommittables("j", {"sink": (b"a2",)})]
