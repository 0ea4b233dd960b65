import pytest

from flinkish.errors import CheckpointStorageError, ExternalError, InternalError, UserError, UserFunctionError
from flinkish.jobmanager import events as e
from flinkish.jobmanager.checkpoint_coordinator import CheckpointConfiguration, CheckpointCoordinator
from flinkish.jobmanager.checkpoint_plan import CheckpointedOperator, CheckpointedVertex
from flinkish.jobmanager.completed_checkpoints import CheckpointRetention, CompletedCheckpoints
from flinkish.messages.checkpoints import (
    AcknowledgeCheckpoint,
    CheckpointAborted,
    CheckpointCommit,
    CheckpointComplete,
    CheckpointFailureReason,
    CheckpointOptions,
    DeclineCheckpoint,
    DistributionMode,
    FileHandle,
    InFlightHandle,
    InlineBytes,
    KeyGroupRange,
    KeyedStateHandle,
    NotifyEndOfData,
    OperatorSnapshot,
    OperatorStateHandle,
    OperatorSubtaskState,
    SnapshotKind,
    SubtaskState,
    TriggerCheckpoint,
    VertexInFlight,
)
from flinkish.messages.deployment import ExecutionAttemptID, TaskFailure

SAVEPOINT, SUSPEND, DRAIN = (
    SnapshotKind.SAVEPOINT,
    SnapshotKind.SAVEPOINT_SUSPEND,
    SnapshotKind.SAVEPOINT_TERMINATE,
)


def execution(vertex, subtask=0, attempt=0):
    return ExecutionAttemptID("j", attempt, vertex, subtask)


SWEEP = e.SweepSharedFiles("j", "d/j")
SOURCE, SINK0, SINK1 = ALL = (execution("v"), execution("w", 0), execution("w", 1))


def coordinator(coordinated=False, completed=None, running=True, next_checkpoint_id=1, **configuration):
    """A source ``v`` and two subtasks of a sink ``w`` behind a shuffle; an interval of 100 ms from 0."""
    vertices = (
        CheckpointedVertex("v", 1, 128, (CheckpointedOperator("source", "Source", "u", coordinated),)),
        CheckpointedVertex("w", 2, 128, (CheckpointedOperator("sink", "Sink"),), (("v", False),)),
    )
    core = CheckpointCoordinator(
        "j",
        "job",
        "r",
        vertices,
        CheckpointConfiguration(**{"directory": "d", "interval_ms": 100, "savepoint_directory": "s", **configuration}),
        completed or CompletedCheckpoints("j"),
        next_checkpoint_id,
    )
    if running:
        assert step(core, e.Recover())[-1:] == [e.RestoreFrom(core.completed.latest)]
        assert step(core, e.TasksRunning(0, ALL)) == []
    return core


def step(core, event, now_ms=0):
    """Effects without lines for the log."""
    effects = core.step(event, now_ms)
    core.check()
    return [effect for effect in effects if not isinstance(effect, (e.Inform, e.Warn))]


def of(kind, effects):
    return [effect for effect in effects if isinstance(effect, kind)]


def ack(task, checkpoint_id, blob=None, finished=False, state=None):
    if state is None:
        state = SubtaskState(committables={"sink": blob} if blob else {}, finished=finished)
    return AcknowledgeCheckpoint(task, checkpoint_id, state)


def options(checkpoint_id, kind=SnapshotKind.CHECKPOINT, **changes):
    return CheckpointOptions(kind, f"d/j/chk-{checkpoint_id}", "d/j/shared", **changes)


def trigger(checkpoint_id, now_ms, task=SOURCE, **changes):
    message = TriggerCheckpoint(task, checkpoint_id, now_ms, options(checkpoint_id, **changes))
    return e.SendToExecution(message)


def begin(core, now_ms=100):
    step(core, e.Tick(), now_ms)
    return core.next_checkpoint_id - 1


def acknowledge(core, checkpoint_id, now_ms=100, blob=None, tasks=ALL):
    effects = []
    for task in tasks:
        effects += step(core, ack(task, checkpoint_id, blob), now_ms)
    return effects


def complete(core, now_ms=100, blob=None):
    checkpoint_id = begin(core, now_ms)
    acknowledge(core, checkpoint_id, now_ms, blob)
    return step(core, e.MetadataStored(checkpoint_id), now_ms)


def restart(core, attempt, now_ms=0):
    """All tasks fail; returns the effects of the failure and of the recovery."""
    tasks = tuple(execution(task.vertex_id, task.subtask_index, attempt) for task in ALL)
    stopped = step(core, e.TasksStopped(frozenset(core.executions)), now_ms)
    recovered = step(core, e.Recover(whole=True), now_ms)
    if of(e.RestoreFrom, recovered):
        step(core, e.TasksRunning(attempt, tasks), now_ms)
    return stopped, recovered


# ---- the good way -------------------------------------------------------------------------------


def test_a_checkpoint_goes_from_coordinators_to_tasks_to_storage_and_then_all_hear_of_it():
    core = coordinator(coordinated=True)
    assert step(core, e.Tick(), 99) == []
    assert step(core, e.Tick(), 100) == [e.SnapshotCoordinators("j", 1, ("source",))]
    assert step(core, e.CoordinatorSnapshotted(1, "source", b"splits"), 101) == [
        trigger(1, 100),
        e.ReleaseCoordinators("j", 1),
    ]
    assert acknowledge(core, 1, 110, tasks=(SOURCE, SINK0)) == []
    (store,) = step(core, ack(SINK1, 1, b"files"), 120)
    checkpoint = store.checkpoint
    assert store == e.StoreMetadata(checkpoint)
    assert (checkpoint.checkpoint_id, checkpoint.location, checkpoint.timestamp_ms) == (1, "d/j/chk-1", 100)
    assert checkpoint.operators["source"] == OperatorSnapshot("source", "u", "Source", 1, 128, {}, coordinator=b"splits")
    commit = CheckpointCommit("j", "r", 1, {"sink": (b"files",)})
    assert checkpoint.commits == (commit,)
    assert step(core, e.MetadataStored(1), 130) == [
        e.SendToAllTasks(CheckpointComplete("j", 1)),
        e.NotifyCoordinators("j", 1, True),
        e.CommitCheckpoint(commit),
    ]
    assert core.completed.latest == checkpoint and core.has_unpublished
    assert step(core, e.CheckpointCommitted("r", 1), 140) == [] and not core.has_unpublished


def test_metadata_hold_what_each_subtask_saved():
    core = coordinator()
    begin(core)
    keyed = OperatorSubtaskState((KeyedStateHandle(KeyGroupRange(0, 63), InlineBytes(b"x")),))
    overtaken = (InFlightHandle(InlineBytes(b"frames"), ()),)
    step(core, ack(SOURCE, 1, finished=True))
    step(core, ack(SINK0, 1, state=SubtaskState({"sink": keyed}, overtaken)))
    (store,) = step(core, ack(SINK1, 1))
    assert store.checkpoint.operators == {
        "source": OperatorSnapshot("source", "u", "Source", 1, 128, {}, frozenset({0})),
        "sink": OperatorSnapshot("sink", None, "Sink", 2, 128, {0: keyed}),
    }
    assert store.checkpoint.in_flight == (VertexInFlight("w", {0: overtaken}),)
    assert store.checkpoint.state_size == 1


def test_the_older_checkpoint_is_discarded_last():
    core = coordinator()
    complete(core)
    effects = complete(core, 200)
    assert effects == [e.SendToAllTasks(CheckpointComplete("j", 2)), e.DiscardCheckpoint("j", "d/j/chk-1")]


@pytest.mark.parametrize(
    "configuration, changes",
    [
        ({"exactly_once": False, "unaligned": True}, {"exactly_once": False}),
        ({"unaligned": True, "aligned_timeout_ms": 30}, {"unaligned": True, "aligned_timeout_ms": 30}),
        ({"aligned_timeout_ms": 30}, {}),
    ],
)
def test_tasks_are_told_how_to_align(configuration, changes):
    assert step(coordinator(**configuration), e.Tick(), 100) == [trigger(1, 100, **changes)]


# ---- when one begins ----------------------------------------------------------------------------


def test_the_next_begins_an_interval_after_the_last_began():
    core = coordinator()
    complete(core, 110)
    assert step(core, e.Tick(), 209) == []
    assert step(core, e.Tick(), 210) == [trigger(2, 210)]


def test_the_next_waits_for_the_pause_after_the_last_was_complete():
    core = coordinator(min_pause_ms=60)
    begin(core)
    acknowledge(core, 1)
    step(core, e.MetadataStored(1), 190)
    assert step(core, e.Tick(), 249) == []
    assert step(core, e.Tick(), 250) == [trigger(2, 250)]


def test_a_pause_longer_than_the_interval_is_the_interval():
    core = coordinator(min_pause_ms=300)
    assert step(core, e.Tick(), 299) == []
    assert step(core, e.Tick(), 300) == [trigger(1, 300)]


def test_as_many_are_pending_as_may_be_and_the_next_begins_as_soon_as_one_is_complete():
    core = coordinator(max_concurrent=2)
    assert [begin(core, now_ms) for now_ms in (100, 200, 300)] == [1, 2, 2]
    acknowledge(core, 1, 310)
    assert step(core, e.MetadataStored(1), 320)[-1] == trigger(3, 320)


def test_checkpoints_wait_for_committers_that_are_slower():
    core = coordinator()
    complete(core, 100, b"1")
    complete(core, 200, b"2")
    assert step(core, e.Tick(), 300) == []
    assert of(e.SendToExecution, step(core, e.CheckpointCommitted("r", 1), 310)) == [trigger(3, 310)]


def test_without_an_interval_only_what_is_asked_for_begins():
    core = coordinator(interval_ms=None)
    assert step(core, e.Tick(), 10**6) == []
    assert step(core, e.SnapshotRequested(7, SnapshotKind.CHECKPOINT), 10**6) == [trigger(1, 10**6)]
    acknowledge(core, 1, 10**6)
    assert step(core, e.MetadataStored(1), 10**6)[-1] == e.SnapshotResult(7, "d/j/chk-1")


def test_nothing_begins_before_all_tasks_run_nor_while_they_restart():
    core = coordinator(running=False)
    assert step(core, e.Tick(), 1_000) == []
    step(core, e.Recover(), 1_000)
    assert step(core, e.Tick(), 1_200) == []
    step(core, e.TasksRunning(0, ALL), 1_300)
    assert step(core, e.Tick(), 1_399) == [] and step(core, e.Tick(), 1_400) == [trigger(1, 1_400)]
    step(core, e.TasksStopped(frozenset(ALL)), 1_410)
    assert step(core, e.Tick(), 5_000) == []


def test_ids_go_on_where_the_job_was():
    core = coordinator(next_checkpoint_id=42)
    assert step(core, e.Tick(), 100) == [trigger(42, 100)]


# ---- acknowledgements ---------------------------------------------------------------------------


def test_a_repeated_acknowledgement_counts_once():
    core = coordinator()
    begin(core)
    assert acknowledge(core, 1, tasks=(SOURCE, SINK0, SINK0, SINK0)) == []
    assert of(e.StoreMetadata, step(core, ack(SINK1, 1)))


def test_a_repeated_acknowledgement_of_a_complete_checkpoint_takes_no_file_away():
    core = coordinator()
    complete(core)
    state = SubtaskState({"sink": OperatorSubtaskState((KeyedStateHandle(KeyGroupRange(0, 1), FileHandle("f", 1)),))})
    assert step(core, ack(SINK0, 1, state=state)) == []


def test_a_late_acknowledgement_leaves_no_file_and_loses_no_committables():
    core = coordinator(timeout_ms=50)
    begin(core, 100)
    step(core, e.Tick(), 150)
    assert not core.pending
    state = SubtaskState(
        {"sink": OperatorSubtaskState((KeyedStateHandle(KeyGroupRange(0, 1), FileHandle("f", 1)),))},
        committables={"sink": b"late"},
    )
    core = coordinator(timeout_ms=50, tolerable_failures=1)
    begin(core, 100)
    step(core, e.Tick(), 150)
    assert step(core, ack(SINK0, 1, state=state), 160) == [e.DiscardFiles("j", ("f",))]
    commit = CheckpointCommit("j", "r", 2, {"sink": (b"late", b"2", b"2", b"2")})
    assert of(e.CommitCheckpoint, complete(core, 200, b"2")) == [e.CommitCheckpoint(commit)]


def test_an_acknowledgement_of_another_attempt_is_not_counted():
    core = coordinator()
    restart(core, 1)
    assert begin(core) == 1
    assert acknowledge(core, 1, tasks=ALL) == []
    assert not core.pending[1].states
    assert acknowledge(core, 1, tasks=[execution("x", 9, 1)]) == []


def test_what_an_old_attempt_says_late_is_removed():
    core = coordinator()
    begin(core)
    restart(core, 1)
    assert step(core, ack(SINK0, 1, b"old")) == [e.AbortCommittables("j", {"sink": (b"old",)})]


# ---- failures -----------------------------------------------------------------------------------


def failing(core, now_ms=100, reason=CheckpointFailureReason.DECLINED, error=UserFunctionError("no pickle")):
    checkpoint_id = begin(core, now_ms)
    failure = TaskFailure(error)
    return step(core, DeclineCheckpoint(SINK0, checkpoint_id, failure, reason), now_ms)


def test_a_checkpoint_that_takes_too_long_is_given_up():
    core = coordinator(coordinated=True, timeout_ms=50, tolerable_failures=1)
    begin(core)
    step(core, e.CoordinatorSnapshotted(1, "source", b"s"), 110)
    assert step(core, e.Tick(), 149) == []
    assert step(core, e.Tick(), 150) == [
        e.NotifyCoordinators("j", 1, False),
        e.SendToAllTasks(CheckpointAborted("j", 1, 0)),
        e.DiscardCheckpoint("j", "d/j/chk-1"),
    ]


def test_time_in_which_the_driver_stood_still_does_not_count():
    core = coordinator(timeout_ms=50)
    begin(core)
    assert step(core, e.Tick(late_ms=500), 600) == []
    assert step(core, e.Tick(), 649) == []
    assert of(e.DiscardCheckpoint, step(core, e.Tick(), 650))


def test_the_error_of_a_job_with_too_many_failed_checkpoints_says_which_and_why():
    core = coordinator()
    *_, fail = failing(core)
    assert str(fail.error) == (
        'too many checkpoints of job "job" failed\n'
        "  where: job j, attempt 0, d/j/chk-1\n"
        "  why: 1 failed in a row, execution.checkpointing.tolerable-failed-checkpoints is 0; the last: "
        "a task could not take its snapshot: no pickle\n"
        "  do: remove the cause, or raise that setting"
    )
    assert fail.error.retryable and fail.error.fields["reason"] == "DECLINED"
    assert any("DeclineCheckpoint" in line for line in fail.error.fields["checkpoints"])
    assert step(core, e.Tick(), 10_000) == []  # nothing begins in a job that is about to fail


def test_state_that_cannot_be_saved_fails_the_job_for_good_when_no_more_failures_are_tolerated():
    core = coordinator(tolerable_failures=1)
    error = UserError('could not save state "v"', why="its class is defined inside a function")
    assert not of(e.FailJob, failing(core, 100, error=error))
    (fail,) = of(e.FailJob, failing(core, 200, error=error))
    assert fail.error is error and not fail.error.retryable


@pytest.mark.parametrize("error", [CheckpointStorageError("no space"), InternalError("a bug")])
def test_what_is_not_the_fault_of_the_program_restarts_the_job(error):
    (fail,) = of(e.FailJob, failing(coordinator(), error=error))
    assert fail.error.retryable and fail.error.fields["cause"].fields["cause"] is error


def test_failures_in_a_row_fail_the_job_and_a_complete_checkpoint_ends_the_row():
    core = coordinator(tolerable_failures=1)
    assert not of(e.FailJob, failing(core, 100))
    complete(core, 200)
    assert not of(e.FailJob, failing(core, 300))
    assert of(e.FailJob, failing(core, 400))


@pytest.mark.parametrize("reason", list(CheckpointFailureReason))
def test_only_some_reasons_count(reason):
    counts = bool(of(e.FailJob, failing(coordinator(), reason=reason)))
    assert counts == (
        reason.name in ("DECLINED", "ASYNC_EXCEPTION", "EXPIRED", "COORDINATOR_FAILED", "FINALIZE_FAILURE")
    )


def test_a_coordinator_that_fails_gives_the_checkpoint_up_before_any_task_hears_of_it():
    core = coordinator(coordinated=True, tolerable_failures=1)
    begin(core)
    error = UserFunctionError("enumerator")
    assert step(core, e.CoordinatorSnapshotted(1, "source", error=error)) == [
        e.ReleaseCoordinators("j", 1),
        e.NotifyCoordinators("j", 1, False),
        e.DiscardCheckpoint("j", "d/j/chk-1"),
    ]
    assert step(core, e.CoordinatorSnapshotted(1, "source", b"late")) == []


def test_what_a_checkpoint_that_was_given_up_had_prepared_is_published_with_the_next():
    core = coordinator(tolerable_failures=1)
    begin(core)
    step(core, ack(SINK1, 1, b"1"))
    step(core, DeclineCheckpoint(SINK0, 1, TaskFailure(UserFunctionError("x"))))
    commit = CheckpointCommit("j", "r", 2, {"sink": (b"1", b"2", b"2", b"2")})
    assert of(e.CommitCheckpoint, complete(core, 200, b"2")) == [e.CommitCheckpoint(commit)]


def test_metadata_that_cannot_be_stored_give_the_checkpoint_up():
    core = coordinator()
    begin(core)
    acknowledge(core, 1, blob=b"x")
    effects = step(core, e.MetadataStored(1, ExternalError("disk full")))
    assert effects[:2] == [e.SendToAllTasks(CheckpointAborted("j", 1, 0)), e.DiscardCheckpoint("j", "d/j/chk-1")]
    assert "its metadata could not be stored: disk full" in effects[2].error.why
    assert core.completed.latest is None and not core.has_unpublished


def test_one_is_stored_at_a_time_and_names_what_is_not_known_to_be_published():
    core = coordinator(max_concurrent=2)
    begin(core, 100)
    begin(core, 200)
    assert of(e.StoreMetadata, acknowledge(core, 1, 210, b"1"))
    assert acknowledge(core, 2, 220, b"2") == []
    effects = step(core, e.MetadataStored(1), 230)
    (store,) = of(e.StoreMetadata, effects)
    assert [commit.checkpoint_id for commit in store.checkpoint.commits] == [1, 2]


def test_an_older_pending_checkpoint_is_subsumed():
    core = coordinator(max_concurrent=2)
    begin(core, 100)
    begin(core, 200)
    acknowledge(core, 2, 210)
    effects = step(core, e.MetadataStored(2), 220)
    assert effects[1:] == [e.SendToAllTasks(CheckpointAborted("j", 1, 0)), e.DiscardCheckpoint("j", "d/j/chk-1")]


# ---- tasks that have finished -------------------------------------------------------------------


def test_when_the_sources_have_finished_those_behind_them_are_triggered():
    core = coordinator()
    step(core, e.TaskFinished(SOURCE))
    assert step(core, e.Tick(), 100) == [trigger(1, 100, SINK0), trigger(1, 100, SINK1)]
    (store,) = acknowledge(core, 1, tasks=(SINK0, SINK1))
    assert store.checkpoint.operators["source"].finished_subtasks == {0}


def test_a_task_that_finishes_without_its_snapshot_gives_the_checkpoint_up():
    core = coordinator()
    begin(core)
    assert of(e.DiscardCheckpoint, step(core, e.TaskFinished(SOURCE))) == [e.DiscardCheckpoint("j", "d/j/chk-1")]
    assert step(core, e.TaskFinished(SINK0)) == []  # and it counts against nobody


def test_a_task_may_finish_after_its_snapshot():
    core = coordinator()
    begin(core)
    acknowledge(core, 1, tasks=[SOURCE])
    assert step(core, e.TaskFinished(SOURCE)) == []
    assert of(e.StoreMetadata, acknowledge(core, 1, tasks=(SINK0, SINK1)))


def test_union_state_of_which_a_part_has_finished_is_not_saved():
    core = coordinator()
    begin(core)
    union = OperatorStateHandle({"offsets": (DistributionMode.UNION, (b"1",))})
    step(core, ack(SOURCE, 1))
    step(core, ack(SINK0, 1, finished=True))
    effects = step(core, ack(SINK1, 1, state=SubtaskState({"sink": OperatorSubtaskState(operator=union)})))
    assert not of(e.StoreMetadata, effects) and of(e.DiscardCheckpoint, effects)


def test_what_a_drain_has_brought_to_its_end_goes_on_from_the_savepoint_and_what_had_ended_before_does_not():
    core = coordinator(final_checkpoint=True)
    step(core, NotifyEndOfData(SINK0), 5)
    step(core, e.SnapshotRequested(1, SnapshotKind.SAVEPOINT_TERMINATE), 10)
    numbers = OperatorStateHandle({"numbers": (DistributionMode.SPLIT, (b"1",))})
    state = SubtaskState({"sink": OperatorSubtaskState(operator=numbers)}, finished=True)
    for task in (SOURCE, SINK1):
        step(core, NotifyEndOfData(task), 11)
        step(core, ack(task, 1, state=state), 11)
    (store,) = of(e.StoreMetadata, step(core, ack(SINK0, 1, finished=True), 12))
    saved = store.checkpoint.operators
    assert (saved["source"].finished_subtasks, saved["sink"].finished_subtasks) == (frozenset(), {0})


def test_union_state_of_a_drained_task_beside_one_that_had_ended_before_is_not_saved():
    core = coordinator(final_checkpoint=True)
    step(core, NotifyEndOfData(SINK0), 5)
    step(core, e.SnapshotRequested(1, SnapshotKind.SAVEPOINT_TERMINATE), 10)
    union = OperatorStateHandle({"offsets": (DistributionMode.UNION, (b"1",))})
    state = SubtaskState({"sink": OperatorSubtaskState(operator=union)}, finished=True)
    step(core, ack(SOURCE, 1, finished=True), 11)
    step(core, ack(SINK1, 1, state=state), 11)
    effects = step(core, ack(SINK0, 1, finished=True), 12)
    assert not of(e.StoreMetadata, effects) and of(e.DiscardCheckpoint, effects)


def test_at_the_end_of_all_data_a_checkpoint_begins_at_once_and_once():
    core = coordinator(final_checkpoint=True, interval_ms=10_000)
    step(core, NotifyEndOfData(SOURCE), 5)
    step(core, NotifyEndOfData(SINK0), 5)
    assert step(core, NotifyEndOfData(SINK1), 6) == [trigger(1, 6)]
    assert step(core, NotifyEndOfData(SINK1), 7) == []
    acknowledge(core, 1, 8)
    assert step(core, e.MetadataStored(1), 9) == [e.SendToAllTasks(CheckpointComplete("j", 1))]
    for task in ALL:
        assert step(core, e.TaskFinished(task), 10) == []


def test_a_checkpoint_from_before_the_end_of_data_is_not_the_final_one():
    core = coordinator(final_checkpoint=True)
    begin(core)
    for task in ALL:
        step(core, NotifyEndOfData(task), 101)
    acknowledge(core, 1, 102)
    assert step(core, e.MetadataStored(1), 103)[-1] == trigger(2, 103)


def test_a_final_checkpoint_that_fails_is_tried_again():
    core = coordinator(final_checkpoint=True, interval_ms=None, tolerable_failures=3)
    for task in ALL:
        step(core, NotifyEndOfData(task), 10)
    step(core, DeclineCheckpoint(SINK0, 1, TaskFailure(UserFunctionError("x"))), 20)
    assert step(core, e.Tick(), 1_019) == []
    assert step(core, e.Tick(), 1_020) == [trigger(2, 1_020)]


def test_the_end_of_data_is_nothing_special_where_sinks_do_not_commit():
    core = coordinator(interval_ms=10_000)
    assert [step(core, NotifyEndOfData(task), 5) for task in ALL] == [[], [], []]


# ---- restart ------------------------------------------------------------------------------------


def test_when_tasks_fail_all_is_given_up_and_the_job_goes_on_from_the_newest_checkpoint():
    core = coordinator()
    complete(core)
    begin(core, 200)
    step(core, ack(SINK0, 2, b"2"), 210)
    stopped, recovered = restart(core, 1)
    assert stopped == [e.DiscardCheckpoint("j", "d/j/chk-2"), e.AbortCommittables("j", {"sink": (b"2",)})]
    assert recovered == [SWEEP, e.RestoreFrom(core.completed.latest)] and core.completed.latest.checkpoint_id == 1


def test_files_are_swept_only_where_all_tasks_have_ended_and_there_are_files():
    core = coordinator()
    step(core, e.TasksStopped(frozenset({SINK1})))
    assert step(core, e.Recover()) == [e.RestoreFrom(None)]  # the others may refer to any
    core = coordinator()
    step(core, e.TasksStopped(frozenset(ALL)))
    assert step(core, e.Recover()) == [e.RestoreFrom(None)]  # others begin, and do not run yet
    assert restart(coordinator(), 1)[1] == [SWEEP, e.RestoreFrom(None)]
    assert restart(coordinator(directory="jobmanager:"), 1)[1] == [e.RestoreFrom(None)]


def test_recovery_waits_for_a_checkpoint_that_is_being_stored():
    core = coordinator()
    begin(core)
    acknowledge(core, 1, blob=b"x")
    stopped, recovered = restart(core, 1)
    assert stopped == recovered == []
    commit, = of(e.CommitCheckpoint, step(core, e.MetadataStored(1)))
    assert step(core, e.CheckpointCommitted("r", 1)) == [SWEEP, e.RestoreFrom(core.completed.latest)]
    assert core.completed.latest.checkpoint_id == 1


def test_recovery_goes_on_without_a_checkpoint_that_cannot_be_stored():
    core = coordinator()
    begin(core)
    acknowledge(core, 1, blob=b"x")
    restart(core, 1)
    assert step(core, e.MetadataStored(1, ExternalError("disk"))) == [
        e.DiscardCheckpoint("j", "d/j/chk-1"),
        e.AbortCommittables("j", {"sink": (b"x", b"x", b"x")}),
        SWEEP,
        e.RestoreFrom(None),
    ]


def test_recovery_does_not_wait_for_the_storage_for_ever():
    core = coordinator(timeout_ms=50)
    begin(core)
    acknowledge(core, 1)
    restart(core, 1)
    assert step(core, e.Tick(), 149) == []
    assert step(core, e.Tick(), 150) == [e.DiscardCheckpoint("j", "d/j/chk-1"), SWEEP, e.RestoreFrom(None)]
    assert step(core, e.MetadataStored(1), 160) == []


def test_a_running_job_says_once_that_storing_takes_long():
    core = coordinator(timeout_ms=50)
    begin(core)
    acknowledge(core, 1)
    lines = [core.step(e.Tick(), now_ms) for now_ms in (149, 150, 151)]
    assert lines[0] == lines[2] == [] and "storing metadata takes long" in lines[1][0].text


def test_a_commit_that_fails_fails_the_job_and_is_repeated_before_it_goes_on():
    core = coordinator()
    commit, = of(e.CommitCheckpoint, complete(core, blob=b"x"))
    error = ExternalError("table is locked")
    assert step(core, e.CheckpointCommitted("r", 1, error)) == [e.FailJob(error)]
    assert restart(core, 1)[1] == [commit]
    assert step(core, e.CheckpointCommitted("r", 1, error)) == [e.FailJob(error)]
    assert step(core, e.Recover(whole=True)) == [commit]
    assert step(core, e.CheckpointCommitted("r", 1)) == [SWEEP, e.RestoreFrom(core.completed.latest)]


def test_a_new_driver_publishes_what_the_checkpoint_says_before_the_job_goes_on():
    first = coordinator()
    complete(first, 100, b"1")
    complete(first, 200, b"2")
    store = CompletedCheckpoints("j")
    store.restore(first.completed.latest, owned=True)
    core = coordinator(completed=store, running=False, next_checkpoint_id=3)
    assert step(core, e.Recover()) == [e.CommitCheckpoint(CheckpointCommit("j", "r", 1, {"sink": (b"1",) * 3}))]
    (second,) = step(core, e.CheckpointCommitted("r", 1))
    assert second.commit.checkpoint_id == 2
    assert step(core, e.CheckpointCommitted("r", 2)) == [e.RestoreFrom(store.latest)]


def test_a_new_run_publishes_under_the_name_of_the_old_one():
    store = CompletedCheckpoints("j")
    first = coordinator()
    complete(first, 100, b"1")
    store.restore(first.completed.latest, owned=False)
    core = coordinator(completed=store, running=False, next_checkpoint_id=2)
    core.run_id = core.committables.run_id = "r2"
    assert step(core, e.Recover())[0].commit.run_id == "r"
    step(core, e.CheckpointCommitted("r", 1))
    step(core, e.TasksRunning(0, ALL))
    assert of(e.CommitCheckpoint, complete(core, 100, b"2"))[0].commit.run_id == "r2"


def test_a_region_that_restarts_leaves_what_others_prepared():
    core = coordinator()
    begin(core)
    step(core, ack(SINK0, 1, b"0"))
    step(core, ack(SINK1, 1, b"1"))
    assert step(core, e.TasksStopped(frozenset({SINK1}))) == [
        e.SendToAllTasks(CheckpointAborted("j", 1, 0)),
        e.DiscardCheckpoint("j", "d/j/chk-1"),
        e.AbortCommittables("j", {"sink": (b"1",)}),
    ]
    step(core, e.Recover())
    again = execution("w", 1, 1)
    step(core, e.TasksRunning(1, (SOURCE, SINK0, again)))
    begin(core, 200)
    acknowledge(core, 2, 200, tasks=(SOURCE, SINK0, again))
    (commit,) = of(e.CommitCheckpoint, step(core, e.MetadataStored(2), 200))
    assert commit.commit.committables == {"sink": (b"0",)}


# ---- savepoints ---------------------------------------------------------------------------------


def request(core, kind=SAVEPOINT, now_ms=10, directory=None):
    return step(core, e.SnapshotRequested(1, kind, directory), now_ms)


@pytest.mark.parametrize(
    "event, why, do",
    [
        (e.TasksStopped(frozenset(ALL), job_cancelled=True), "the job was cancelled", "that it has completed before"),
        (e.JobEnding("CANCELED"), "the job was cancelled", "that it has completed before"),
        (e.TasksStopped(frozenset(ALL)), "tasks failed", "ask again when the job runs"),
        (e.SnapshotRequested(2, SUSPEND), "the job is being stopped", "use the savepoint that the job is stopped with"),
    ],
)
def test_who_asked_for_a_savepoint_hears_what_has_overtaken_it(event, why, do):
    core = coordinator(unaligned=False)
    request(core)
    results = [result for result in of(e.SnapshotResult, step(core, event, 20)) if result.request_id == 1]
    (error,) = [result.error for result in results]
    assert error.why == why and do in error.do


def test_a_savepoint_begins_at_once_and_its_requester_gets_the_folder():
    core = coordinator(unaligned=False)
    begin(core)
    location = "own/savepoint-j-2"
    assert request(core, directory="own/") == [
        e.SendToExecution(
            TriggerCheckpoint(SOURCE, 2, 10, CheckpointOptions(SAVEPOINT, location, "d/j/shared"))
        )
    ]
    acknowledge(core, 1)
    step(core, e.MetadataStored(1))
    assert of(e.StoreMetadata, acknowledge(core, 2))
    assert step(core, e.MetadataStored(2)) == [e.SnapshotResult(1, location)]
    assert core.completed.latest.checkpoint_id == 1


@pytest.mark.parametrize("kind", [SAVEPOINT, SnapshotKind.CHECKPOINT, SnapshotKind.SAVEPOINT_SUSPEND])
def test_a_batch_job_has_none(kind):
    core = coordinator(interval_ms=None, batch=True)
    [result] = step(core, e.SnapshotRequested(1, kind))
    assert "it is a batch job" in result.error.why and "STREAMING" in result.error.do
    assert core.stopping is None and not core.requests


def test_with_unaligned_checkpoints_a_savepoint_waits_its_turn_and_is_aligned():
    core = coordinator(unaligned=True)
    begin(core)
    assert request(core) == []
    acknowledge(core, 1)
    effects = step(core, e.MetadataStored(1), 110)
    assert effects[-1].message.options == CheckpointOptions(SAVEPOINT, "s/savepoint-j-2", "d/j/shared")


def test_a_savepoint_publishes_nothing_and_the_next_checkpoint_does_it_for_both():
    core = coordinator()
    request(core)
    acknowledge(core, 1, 20, b"s")
    assert step(core, e.MetadataStored(1), 20) == [e.SnapshotResult(1, "s/savepoint-j-1")]
    effects = complete(core, 120, b"c")
    assert of(e.CommitCheckpoint, effects)[0].commit.committables == {"sink": (b"s",) * 3 + (b"c",) * 3}


def test_what_a_savepoint_has_is_not_aborted_when_tasks_fail():
    core = coordinator()
    request(core)
    acknowledge(core, 1, 20, b"s")
    step(core, e.MetadataStored(1), 20)
    assert restart(core, 1)[0] == []


def test_a_savepoint_that_times_out_costs_the_job_nothing_and_one_that_a_task_declines_counts():
    core = coordinator(timeout_ms=50)
    request(core)
    assert [type(effect) for effect in step(core, e.Tick(), 60)] == [
        e.SendToAllTasks,
        e.DiscardCheckpoint,
        e.SnapshotResult,
    ]
    request(core, now_ms=70)
    effects = step(core, DeclineCheckpoint(SINK0, 2, TaskFailure(UserFunctionError("x"))), 80)
    assert of(e.SnapshotResult, effects)[0].error.fields["reason"] == "DECLINED" and of(e.FailJob, effects)


@pytest.mark.parametrize("kind", [SAVEPOINT, SnapshotKind.CHECKPOINT])
def test_what_was_asked_for_and_failed_since_a_task_had_finished_is_begun_again(kind):
    core = coordinator(interval_ms=None)
    request(core, kind)
    assert of(e.SnapshotResult, step(core, e.TaskFinished(SOURCE), 20)) == []
    assert of(e.SendToExecution, step(core, e.Tick(), 60)) == []  # the next is about to finish, perhaps
    triggered = of(e.SendToExecution, step(core, e.Tick(), 70))
    assert [effect.message.execution for effect in triggered] == [SINK0, SINK1]
    acknowledge(core, 2, 80, tasks=[SINK0, SINK1])
    assert of(e.SnapshotResult, step(core, e.MetadataStored(2), 80))[0].error is None


def test_a_savepoint_needs_a_folder_and_running_tasks():
    (result,) = request(coordinator(savepoint_directory=None))
    assert "execution.checkpointing.savepoint-dir is not set" in result.error.why
    (result,) = request(coordinator(running=False))
    assert result.error.why == "not all tasks of the job are running"
    core = coordinator(unaligned=True, interval_ms=None)
    step(core, e.SnapshotRequested(1, SnapshotKind.CHECKPOINT))
    for number in range(100):
        assert step(core, e.SnapshotRequested(2 + number, SAVEPOINT)) == []
    (result,) = step(core, e.SnapshotRequested(200, SAVEPOINT))
    assert result.error.why == "100 others are waiting"


def test_who_waits_for_a_savepoint_hears_of_a_restart():
    core = coordinator(unaligned=True)
    begin(core)
    request(core)
    effects = step(core, e.TasksStopped(frozenset(ALL)))
    assert "failed or were cancelled" in of(e.SnapshotResult, effects)[0].error.why


@pytest.mark.parametrize("kind", [SUSPEND, DRAIN])
def test_a_job_stops_with_a_savepoint(kind):
    core = coordinator()
    begin(core)
    effects = request(core, kind, 110)
    assert effects[:2] == [e.SendToAllTasks(CheckpointAborted("j", 1, 0)), e.DiscardCheckpoint("j", "d/j/chk-1")]
    assert effects[2].message.options.kind is kind
    acknowledge(core, 2, 120, b"x")
    effects = step(core, e.MetadataStored(2), 130)
    commit = CheckpointCommit("j", "r", 2, {"sink": (b"x",) * 3})
    assert effects == [e.SendToAllTasks(CheckpointComplete("j", 2)), e.CommitCheckpoint(commit)]
    assert step(core, e.Tick(), 10_000) == []  # no other begins
    assert of(e.SnapshotResult, step(core, e.SnapshotRequested(2, SAVEPOINT), 10_000))[0].error
    step(core, e.CheckpointCommitted("r", 2), 10_000)
    assert step(core, e.TaskFinished(SOURCE)) == step(core, e.TaskFinished(SINK0)) == []
    assert step(core, e.TaskFinished(SINK1)) == []  # it is not FINISHED yet
    assert step(core, e.JobEnding("FINISHED")) == [
        e.SnapshotResult(1, "s/savepoint-j-2"), e.DiscardCheckpoint("j", "d/j"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "status, why, do", [("FAILED", "the job failed", "see why"), ("CANCELED", "the job was cancelled", "start it from")]
)
def test_who_stops_a_job_hears_that_it_has_ended_otherwise_and_where_its_savepoint_is(status, why, do):
    core = coordinator()
    request(core, SUSPEND, 110)
    acknowledge(core, 1, 120)
    step(core, e.MetadataStored(1), 130)
    for task in ALL:
        assert of(e.SnapshotResult, step(core, e.TaskFinished(task), 140)) == []
    (answer,) = of(e.SnapshotResult, step(core, e.JobEnding(status), 150))
    assert answer.error.why.startswith(why) and answer.error.do.startswith(do)
    assert answer.error.fields["location"] == "s/savepoint-j-1"


def test_a_publication_that_fails_once_does_not_keep_a_job_from_stopping():
    core = coordinator()
    request(core, SUSPEND, 110)
    acknowledge(core, 1, 120, b"x")
    step(core, e.MetadataStored(1), 130)
    for task in ALL:
        step(core, e.TaskFinished(task), 140)
    assert of(e.FailJob, step(core, e.CheckpointCommitted("r", 1, ExternalError("refused")), 150))
    assert step(core, e.TasksStopped(frozenset(ALL)), 150) == []
    assert of(e.CommitCheckpoint, step(core, e.Recover(), 160))
    assert of(e.RestoreFrom, step(core, e.CheckpointCommitted("r", 1), 170))
    assert e.SnapshotResult(1, "s/savepoint-j-1") in step(core, e.JobEnding("FINISHED"), 180)


def test_a_job_that_could_not_stop_goes_on():
    core = coordinator(timeout_ms=50)
    request(core, SUSPEND, 10)
    assert step(core, e.Tick(), 59) == []
    effects = step(core, e.Tick(), 60)
    assert not of(e.FailJob, effects) and "did not complete in time" in of(e.SnapshotResult, effects)[0].error.why
    assert step(core, e.Tick(), 100) == [trigger(2, 100)]


def test_a_job_that_could_not_stop_with_drain_restarts_for_its_event_time_has_come_to_its_end():
    core = coordinator(timeout_ms=50)
    request(core, DRAIN, 10)
    assert of(e.FailJob, step(core, e.Tick(), 60))


def test_a_job_that_fails_after_its_last_savepoint_goes_on_from_it():
    core = coordinator()
    complete(core)
    request(core, SUSPEND, 110)
    acknowledge(core, 2, 120)
    step(core, e.MetadataStored(2), 130)
    step(core, e.TaskFinished(SOURCE), 140)
    stopped = step(core, e.TasksStopped(frozenset({SINK0})), 150)
    assert stopped[0].error.fields["location"] == "s/savepoint-j-2"
    assert isinstance(stopped[1], e.FailJob)  # SOURCE has stopped and must run again too
    step(core, e.TasksStopped(frozenset({SOURCE, SINK1})), 150)
    sweep, restore = step(core, e.Recover(whole=True), 160)
    assert sweep == SWEEP
    assert restore.checkpoint.checkpoint_id == 2


# ---- the end ------------------------------------------------------------------------------------


def test_a_cancelled_job_keeps_its_checkpoint_if_it_should():
    core = coordinator(completed=CompletedCheckpoints("j", 1, CheckpointRetention.RETAIN_ON_CANCELLATION))
    complete(core)
    begin(core, 200)
    step(core, e.TasksStopped(frozenset(ALL)), 210)
    assert step(core, e.JobEnding("CANCELED")) == [SWEEP]
    assert core.step(e.Tick(), 10_000) == []


def test_at_the_end_all_that_is_left_is_removed():
    core = coordinator()
    complete(core)
    begin(core, 200)
    acknowledge(core, 2, 210, b"2")
    assert step(core, e.JobEnding("FAILED")) == [
        e.DiscardCheckpoint("j", "d/j/chk-2"),
        e.DiscardCheckpoint("j", "d/j/chk-1"),
        e.DiscardCheckpoint("j", "d/j"),
        e.AbortCommittables("j", {"sink": (b"2", b"2", b"2")}),
    ]


def test_a_job_that_fails_with_something_unpublished_keeps_it():
    core = coordinator()
    complete(core, 100, b"x")
    step(core, e.CheckpointCommitted("r", 1, ExternalError("down")), 110)
    step(core, e.TasksStopped(frozenset(ALL)), 110)
    assert core.has_unpublished and step(core, e.JobEnding("FAILED"), 120) == [SWEEP]
    assert core.completed.latest.checkpoint_id == 1


def test_it_describes_itself_in_plain_data():
    core = coordinator()
    complete(core, 100, b"x")
    begin(core, 200)
    step(core, ack(SOURCE, 2), 200)
    assert core.describe() == {
        "counts": {"completed": 1, "failed": 0, "in_progress": 1},
        "latest": {
            "id": 1,
            "type": "CHECKPOINT",
            "external_path": "d/j/chk-1",
            "trigger_timestamp": 100,
            "end_to_end_duration": 0,
            "state_size": 0,
        },
        "pending": [
            {
                "id": 2,
                "type": "CHECKPOINT",
                "phase": "TASKS",
                "trigger_timestamp": 200,
                "num_acknowledged_subtasks": 1,
                "num_subtasks": 3,
            }
        ],
        "unpublished": 1,
    }


def test_an_event_that_it_does_not_know_is_a_bug():
    with pytest.raises(AssertionError, match="no event"):
        coordinator().step("hello", 0)


def test_with_high_availability_the_result_is_stored_before_checkpoints_are_discarded():
    core = coordinator(high_availability=True)
    complete(core)
    step(core, e.TasksStopped(frozenset(ALL)))
    effects = step(core, e.JobEnding("FINISHED"))
    assert effects[0] == e.StoreJobResult("j", "FINISHED")
    assert [effect.location for effect in of(e.DiscardCheckpoint, effects)] == ["d/j/chk-1", "d/j"]
