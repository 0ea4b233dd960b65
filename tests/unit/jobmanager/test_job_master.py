import random

import pytest

from flinkish.common.job_status import JobStatus
from flinkish.datastream.partitioners import RebalancePartitioner
from flinkish.errors import (
    ConnectionLostError,
    InvalidJobError,
    NotEnoughSlotsError,
    SlotLostError,
    UserFunctionError,
)
from flinkish.graph.execution_graph import ExecutionState
from flinkish.jobmanager.events import (
    Aborted,
    AbortSinks,
    CancelRequested,
    CheckpointCommitted,
    CheckpointEffect,
    CheckpointEvent,
    CommitCheckpoint,
    Committed,
    CommitSinks,
    CoordinatorFailed,
    CoordinatorSaid,
    CoordinatorSnapshotted,
    DeployToSlot,
    DiscardCheckpoint,
    ExecutionChanged,
    FromSlot,
    Inform,
    JobStatusChanged,
    KillSlots,
    MetadataStored,
    ReleaseSlots,
    RequestSlots,
    SendToSlot,
    SlotLost,
    SlotsAllocated,
    SlotsRefused,
    SnapshotCoordinators,
    SnapshotRequested,
    SnapshotResult,
    StartCoordinators,
    StopCoordinators,
    StoreMetadata,
    Tick,
    ToCoordinator,
    Warn,
)
from flinkish.graph.job_graph import ChainedOperator, JobEdge, JobGraph, JobVertex, OperatorChainSpec
from flinkish.jobmanager.checkpoint_coordinator import CheckpointConfiguration
from flinkish.jobmanager.job_description import CheckpointSettings, JobDescription
from flinkish.jobmanager.job_master import Closing, JobMaster
from flinkish.jobmanager.restart_strategy import FixedDelayRestart
from flinkish.messages.checkpoints import (
    AcknowledgeCheckpoint,
    CheckpointComplete,
    NotifyEndOfData,
    SnapshotKind,
    SubtaskState,
    TriggerCheckpoint,
)
from flinkish.messages.control import (
    CancelTasks,
    OperatorEvent,
    SlotFailed,
    StartTasks,
    TasksDeployed,
    TaskStateChanged,
)
from flinkish.messages.deployment import ExecutionAttemptID, SlotAddress, TaskFailure

SLOTS = tuple(SlotAddress(f"s{i}", "host", None, ("127.0.0.1", i)) for i in range(2))


def job_graph(job_id="j", parallelism=2):
    chain = OperatorChainSpec((), (), ())
    vertices = [JobVertex(name, name, chain, parallelism, 128, "default") for name in ("v", "w")]
    return JobGraph(job_id, "job", vertices)


def master(commits=False, **options):
    return JobMaster(JobDescription(job_graph(), (("source", "v"),), commits, **options), random.Random(1))


def step(job, event, now_ms=0):
    """Effects without the changes of executions, which have tests of their own."""
    effects = job.step(event, now_ms)
    job.check()
    return [effect for effect in effects if not isinstance(effect, ExecutionChanged)]


def execution(vertex, subtask, attempt=0):
    return ExecutionAttemptID("j", attempt, vertex, subtask)


def of_slot(subtask, attempt=0):
    return execution("v", subtask, attempt), execution("w", subtask, attempt)


def changed(vertex, subtask, state, error=None, attempt=0):
    failure = TaskFailure(error) if error else None
    message = TaskStateChanged(execution(vertex, subtask, attempt), state, failure)
    return FromSlot(f"s{subtask}", message)


def all_change(job, state, now_ms=0):
    effects = []
    for key, present in job.executions.items():
        if not present.state.is_terminal:
            effects += step(job, changed(*key, state), now_ms)
    return effects


def running(commits=False, **options):
    job = master(commits, **options)
    job.start(0)
    step(job, SlotsAllocated("j", SLOTS))
    step(job, FromSlot("s0", TasksDeployed("j", 0)))
    step(job, FromSlot("s1", TasksDeployed("j", 0)))
    all_change(job, "RUNNING")
    return job


def test_a_job_asks_for_slots_deploys_to_all_and_starts_when_all_have_deployed():
    job = master()
    effects = job.start(0)
    assert effects[0] == JobStatusChanged("j", "RUNNING") and effects[-1] == RequestSlots("j", "job", 2)
    assert step(job, SlotsAllocated("j", SLOTS)) == [
        StartCoordinators("j", 0),
        DeployToSlot("j", 0, 0, SLOTS),
        DeployToSlot("j", 0, 1, SLOTS),
    ]
    assert step(job, FromSlot("s0", TasksDeployed("j", 0))) == []
    assert step(job, FromSlot("s0", TasksDeployed("j", 0))) == []
    assert step(job, FromSlot("s1", TasksDeployed("j", 0))) == [
        SendToSlot("j", "s0", StartTasks("j", 0)),
        SendToSlot("j", "s1", StartTasks("j", 0)),
    ]
    assert {e.state for e in job.executions.values()} == {ExecutionState.INITIALIZING}


def test_a_job_is_finished_when_its_last_task_is_and_gives_its_slots_back():
    job = running()
    assert all_change(job, "FINISHED") == [
        JobStatusChanged("j", "FINISHED"),
        ReleaseSlots("j", "job j is FINISHED"),
    ]


def test_sinks_are_committed_after_the_last_task_and_before_the_job_ends():
    job = running(commits=True)
    assert all_change(job, "FINISHED") == [CommitSinks("j", 0)]
    assert job.status is JobStatus.RUNNING
    assert step(job, CancelRequested("j")) == []  # too late: it is being published
    assert step(job, Committed("j", 0)) == [
        JobStatusChanged("j", "FINISHED"),
        ReleaseSlots("j", "job j is FINISHED"),
    ]


def test_a_job_whose_commit_fails_has_failed():
    job = running(commits=True)
    all_change(job, "FINISHED")
    error = UserFunctionError("committer failed")
    effects = step(job, Committed("j", 0, error))
    assert effects[-2:] == [
        JobStatusChanged("j", "FAILED", error),
        ReleaseSlots("j", "job j is FAILED"),
    ]


def test_the_first_failure_cancels_the_other_tasks_and_is_the_cause():
    job = running(commits=True)
    error = UserFunctionError("boom")
    assert step(job, changed("v", 0, "FAILED", error)) == [
        JobStatusChanged("j", "FAILING"),
        SendToSlot("j", "s0", CancelTasks("j", (execution("w", 0),))),
        SendToSlot("j", "s1", CancelTasks("j", of_slot(1))),
    ]
    assert step(job, changed("w", 0, "FAILED", UserFunctionError("second"))) == []
    assert step(job, changed("v", 1, "CANCELED")) == []
    assert step(job, changed("w", 1, "CANCELED")) == [AbortSinks("j", 0)]
    assert step(job, Aborted("j", 0)) == [
        JobStatusChanged("j", "FAILED", error),
        ReleaseSlots("j", "job j is FAILED"),
    ]
    assert "boom" not in str(error.fields["story"]) or error.fields["story"]


def test_a_lost_slot_is_the_cause_even_when_its_peers_complain_first():
    job = running()
    gone = ConnectionLostError("lost the connection to a peer")
    complaint = SlotFailed("s0", "j", of_slot(0), TaskFailure(gone), lost_peer="s1")
    effects = step(job, FromSlot("s0", complaint))
    assert effects[0] == JobStatusChanged("j", "FAILING") and job.cause is gone
    step(job, changed("v", 0, "CANCELED"))
    step(job, changed("w", 0, "CANCELED"))
    lost = SlotLostError("lost slot s1")
    assert step(job, SlotLost("j", "s1", lost))[0] == JobStatusChanged("j", "FAILED", lost)


def test_a_task_that_fails_for_a_lost_connection_is_a_consequence_too():
    job = running()
    gone = ConnectionLostError("lost the connection to slot s1")
    step(job, changed("v", 0, "FAILED", gone))
    boom = UserFunctionError("boom")
    step(job, changed("v", 1, "FAILED", boom))
    step(job, changed("w", 1, "FAILED", gone))
    assert job.cause is boom


def test_a_slot_that_ends_by_itself_gives_the_reason_and_its_tasks_only_say_that_they_ended():
    job = running()
    told = SlotLostError("lost slot s1", why="its process was told to end by SIGTERM")
    step(job, FromSlot("s1", SlotFailed("s1", "j", of_slot(1), TaskFailure(told))))
    for vertex, subtask in (("v", 1), ("w", 1), ("v", 0), ("w", 0)):
        step(job, changed(vertex, subtask, "CANCELED"))
    assert job.status is JobStatus.FAILED and job.cause is told


def test_a_slot_that_ends_tasks_without_a_reason_is_not_given_one():
    job = running()
    step(job, changed("v", 1, "CANCELED"))
    assert job.cause.why == "its slot has ended it and did not say why"


def test_a_slot_that_cannot_build_its_tasks_needs_no_answer_to_the_cancel():
    job = master()
    job.start(0)
    step(job, SlotsAllocated("j", SLOTS))
    for vertex in ("v", "w"):
        step(job, changed(vertex, 1, "FAILED", UserFunctionError("no module")))
    for vertex in ("v", "w"):
        step(job, changed(vertex, 0, "CANCELED"))
    assert job.status is JobStatus.FAILED and job.cause.what == "no module"


def test_the_loss_of_a_slot_whose_tasks_have_finished_costs_nothing():
    job = running()
    for vertex in ("v", "w"):
        step(job, changed(vertex, 1, "FINISHED"))
    assert step(job, SlotLost("j", "s1", SlotLostError("lost"))) == []
    assert job.status is JobStatus.RUNNING


def test_the_loss_of_a_slot_that_runs_fails_the_job():
    job = running()
    lost = SlotLostError("lost slot s1")
    assert step(job, SlotLost("j", "s1", lost)) == [
        JobStatusChanged("j", "FAILING"),
        SendToSlot("j", "s0", CancelTasks("j", of_slot(0))),
    ]
    assert all_change(job, "CANCELED")[0] == JobStatusChanged("j", "FAILED", lost)


def test_cancel_ends_in_canceled_after_the_last_task():
    job = running()
    assert step(job, CancelRequested("j")) == [
        JobStatusChanged("j", "CANCELLING"),
        SendToSlot("j", "s0", CancelTasks("j", of_slot(0))),
        SendToSlot("j", "s1", CancelTasks("j", of_slot(1))),
    ]
    assert step(job, CancelRequested("j")) == []
    assert all_change(job, "CANCELED") == [
        JobStatusChanged("j", "CANCELED"),
        ReleaseSlots("j", "job j is CANCELED"),
    ]


def test_a_job_that_waits_for_slots_is_cancelled_at_once():
    job = master(commits=True)
    job.start(0)
    assert step(job, CancelRequested("j"))[-2:] == [
        JobStatusChanged("j", "CANCELED"),
        ReleaseSlots("j", "job j is CANCELED"),
    ]
    assert step(job, SlotsAllocated("j", SLOTS)) == []


def test_refused_slots_fail_the_job():
    job = master()
    job.start(0)
    error = NotEnoughSlotsError("too few")
    assert JobStatusChanged("j", "FAILED", error) in step(job, SlotsRefused("j", error))


def test_cancelling_is_bounded_first_the_slot_is_killed_then_no_longer_waited_for():
    job = running(cancellation_timeout_ms=100)
    step(job, CancelRequested("j"), 1_000)
    for vertex in ("v", "w"):
        step(job, changed(vertex, 0, "CANCELED"), 1_050)
    assert step(job, Tick(), 1_099) == []
    warning, kill = step(job, Tick(), 1_100)
    assert isinstance(kill, KillSlots) and kill.slot_ids == ("s1",)
    assert step(job, Tick(late_ms=50), 1_249) == []
    effects = step(job, Tick(), 1_250)
    assert JobStatusChanged("j", "CANCELED") in effects


def test_the_death_of_a_killed_slot_ends_the_cancellation():
    job = running(cancellation_timeout_ms=100)
    step(job, CancelRequested("j"))
    for vertex in ("v", "w"):
        step(job, changed(vertex, 0, "CANCELED"))
    step(job, Tick(), 100)
    effects = step(job, SlotLost("j", "s1", SlotLostError("lost")), 150)
    assert effects[0] == JobStatusChanged("j", "CANCELED")


def test_what_comes_from_another_attempt_changes_nothing():
    job = running()
    assert step(job, changed("v", 0, "FAILED", UserFunctionError("old"), attempt=7)) == []
    assert step(job, FromSlot("s0", TasksDeployed("j", 7))) == []
    assert step(job, CoordinatorFailed("j", 7, UserFunctionError("old"))) == []
    event = OperatorEvent(execution("v", 0, attempt=7), "source", "x")
    assert step(job, FromSlot("s0", event)) == []
    assert job.status is JobStatus.RUNNING


def test_states_go_only_forward():
    job = running()
    step(job, changed("v", 0, "FINISHED"))
    assert step(job, changed("v", 0, "RUNNING")) == []
    assert step(job, changed("v", 0, "FAILED", UserFunctionError("late"))) == []
    assert job.executions["v", 0].state is ExecutionState.FINISHED


def test_a_task_that_stops_by_itself_fails_the_job():
    job = running()
    assert step(job, changed("v", 0, "CANCELED"))[0] == JobStatusChanged("j", "FAILING")
    assert isinstance(job.cause, ConnectionLostError)


def test_a_failing_enumerator_fails_the_job():
    job = running()
    error = UserFunctionError("enumerator")
    assert step(job, CoordinatorFailed("j", 0, error))[0] == JobStatusChanged("j", "FAILING")
    assert job.cause is error


def test_operator_events_go_to_the_coordinator():
    job = running()
    event = OperatorEvent(execution("v", 0), "source", "x")
    assert step(job, FromSlot("s0", event)) == [ToCoordinator("j", event)]


@pytest.mark.parametrize("subtask", [0, 1])
def test_what_a_coordinator_says_is_held_until_the_subtask_runs_and_dropped_when_it_has_ended(subtask):
    job = master()
    job.start(0)
    said = CoordinatorSaid("j", 0, "source", subtask, "split")
    slot = f"s{subtask}"
    sent = SendToSlot("j", slot, OperatorEvent(execution("v", subtask), "source", "split"))
    step(job, SlotsAllocated("j", SLOTS))
    assert step(job, said) == []
    step(job, FromSlot("s0", TasksDeployed("j", 0)))
    step(job, FromSlot("s1", TasksDeployed("j", 0)))
    assert step(job, said) == []
    assert step(job, changed("v", subtask, "RUNNING")) == [sent, sent]
    assert step(job, said) == [sent]
    step(job, changed("v", subtask, "FINISHED"))
    assert step(job, said) == []


# ---- restarts -----------------------------------------------------------------------------------


def restarting(**options):
    """A job that runs and may restart once, at once."""
    return running(restart_strategy=FixedDelayRestart(1, options.pop("delay_ms", 0)), **options)


def without_warnings(effects):
    return [effect for effect in effects if not isinstance(effect, (Warn, Inform))]


def test_after_a_failure_the_next_attempt_is_deployed_into_the_living_slots_when_all_tasks_have_ended():
    job = restarting()
    error = UserFunctionError("boom")
    assert without_warnings(step(job, changed("v", 0, "FAILED", error), 5)) == [
        JobStatusChanged("j", "RESTARTING"),
        StopCoordinators("j"),
        SendToSlot("j", "s0", CancelTasks("j", (execution("w", 0),))),
        SendToSlot("j", "s1", CancelTasks("j", of_slot(1))),
    ]
    assert step(job, changed("w", 0, "CANCELED"), 6) == []
    assert step(job, changed("v", 1, "CANCELED"), 7) == []
    assert without_warnings(step(job, changed("w", 1, "CANCELED"), 8)) == [
        JobStatusChanged("j", "RUNNING"),
        StartCoordinators("j", 1),
        DeployToSlot("j", 1, 0, SLOTS),
        DeployToSlot("j", 1, 1, SLOTS),
    ]
    assert job.cause is None and {e.execution.attempt for e in job.executions.values()} == {1}
    assert step(job, changed("w", 1, "CANCELED"), 9) == []  # of the first attempt
    assert job.describe()["exceptions"] == [
        {
            "timestamp": 5,
            "attempt": 0,
            "taskName": "v (1/2)",
            "exceptionName": "UserFunctionError",
            "stacktrace": str(error),
        }
    ]


def test_the_next_attempt_waits_for_the_delay():
    job = restarting(delay_ms=500)
    step(job, changed("v", 0, "FAILED", UserFunctionError("boom")), 1_000)
    all_change(job, "CANCELED", 1_100)
    assert step(job, Tick(), 1_499) == []
    assert JobStatusChanged("j", "RUNNING") in step(job, Tick(), 1_500)


def test_a_lost_slot_is_asked_for_at_once_and_the_others_are_kept():
    job = restarting()
    effects = step(job, SlotLost("j", "s1", SlotLostError("lost slot s1")))
    assert effects[-1] == RequestSlots("j", "job", 1, replacement=True)
    all_change(job, "CANCELED")
    assert job.status is JobStatus.RESTARTING
    replacement = SlotAddress("s9", "host", None, ("127.0.0.1", 9))
    effects = step(job, SlotsAllocated("j", (replacement,)))
    assert DeployToSlot("j", 1, 1, (SLOTS[0], replacement)) in effects


def test_a_slot_that_has_failed_in_itself_is_killed_and_not_used_again():
    job = restarting()
    failure = TaskFailure(SlotLostError("out of memory"))
    effects = step(job, FromSlot("s1", SlotFailed("s1", "j", of_slot(1), failure)))
    assert KillSlots("j", ("s1",), "it has failed, and is replaced") in effects
    all_change(job, "CANCELED")
    assert job.status is JobStatus.RESTARTING
    assert RequestSlots("j", "job", 1, replacement=True) in step(job, SlotLost("j", "s1", SlotLostError("gone")))
    assert JobStatusChanged("j", "RUNNING") in step(job, SlotsAllocated("j", (SLOTS[1],)))


def test_an_error_that_another_try_cannot_mend_fails_the_job_at_once():
    job = restarting()
    effects = step(job, changed("v", 0, "FAILED", InvalidJobError("no")))
    assert effects[0] == JobStatusChanged("j", "FAILING")


def test_the_cause_behind_a_consequence_decides():
    job = restarting()
    step(job, changed("v", 0, "FAILED", ConnectionLostError("peer gone")))
    assert job.status is JobStatus.RESTARTING
    error = InvalidJobError("no")
    assert step(job, changed("w", 1, "FAILED", error))[0] == JobStatusChanged("j", "FAILING")
    assert job.cause is error and [e.error for e in job.recovery.exceptions.entries] == [error]


def test_when_the_restart_strategy_says_no_the_job_fails_and_says_so():
    job = restarting()
    step(job, changed("v", 0, "FAILED", UserFunctionError("first")))
    all_change(job, "CANCELED")
    job = job_that_runs_again(job)
    error = UserFunctionError("second")
    assert step(job, changed("v", 0, "FAILED", error, attempt=1))[0] == JobStatusChanged("j", "FAILING")
    assert error.fields["not_restarted"] == "fixed-delay allows 1 restarts, this is failure 2"


def job_that_runs_again(job):
    for slot in SLOTS:
        step(job, FromSlot(slot.slot_id, TasksDeployed("j", job.attempt)))
    for key in job.executions:
        step(job, changed(*key, "RUNNING", attempt=job.attempt))
    return job


def test_a_job_that_waits_for_its_restart_can_be_cancelled():
    job = restarting(delay_ms=500)
    step(job, changed("v", 0, "FAILED", UserFunctionError("boom")))
    all_change(job, "CANCELED")
    assert step(job, CancelRequested("j"), 10) == [
        JobStatusChanged("j", "CANCELLING"),
        JobStatusChanged("j", "CANCELED"),
        ReleaseSlots("j", "job j is CANCELED"),
    ]


def test_no_slot_for_a_replacement_ends_the_job_and_says_what_it_restarted_from():
    job = restarting()
    step(job, SlotLost("j", "s1", SlotLostError("lost slot s1")))
    all_change(job, "CANCELED")
    error = NotEnoughSlotsError("none came")
    assert JobStatusChanged("j", "FAILED", error) in step(job, SlotsRefused("j", error))
    assert "lost slot s1" in error.where


def test_a_recovery_that_takes_long_says_what_it_waits_for_and_has_a_deadline():
    job = restarting(recovery_timeout_ms=30_000)
    step(job, SlotLost("j", "s1", SlotLostError("lost slot s1")), 0)
    all_change(job, "CANCELED")
    (progress,) = step(job, Tick(), 10_000)
    assert "job recovers job=j since_ms=10000" in progress.text and "1 of 2 slots" in progress.text
    assert step(job, Tick(late_ms=15_000), 29_000)[0].text.startswith("job recovers")  # nobody's time
    assert not [e for e in step(job, Tick(), 44_000) if isinstance(e, JobStatusChanged)]
    effects = step(job, Tick(), 45_000)
    failed = next(e for e in effects if isinstance(e, JobStatusChanged) and e.status == "FAILED")
    assert "it waits for 1 of 2 slots" in failed.error.why


def test_slots_that_do_not_cancel_are_killed_and_a_restart_waits_no_longer_than_that():
    job = restarting(cancellation_timeout_ms=1_000)
    error = UserFunctionError("boom")
    step(job, changed("v", 0, "FAILED", error), 0)
    assert [e for e in step(job, Tick(), 1_000) if isinstance(e, KillSlots)]
    effects = step(job, Tick(), 2_000)
    assert JobStatusChanged("j", "FAILED", error) in effects


def test_without_checkpoints_what_the_attempt_has_prepared_is_removed_before_the_next_begins():
    job = restarting(commits=True)
    step(job, changed("v", 0, "FAILED", UserFunctionError("boom")))
    assert all_change(job, "CANCELED")[-1] == AbortSinks("j", 0)
    assert job.status is JobStatus.RESTARTING
    assert JobStatusChanged("j", "RUNNING") in step(job, Aborted("j", 0))


# ---- checkpoints --------------------------------------------------------------------------------


def checkpointing(commits=False, coordinated=frozenset(), **options):
    configuration = CheckpointConfiguration("file:/chk", interval_ms=100, final_checkpoint=commits)
    settings = CheckpointSettings(configuration, coordinated, "run")
    graph = job_graph()
    for vertex in graph.vertices:
        operator = ChainedOperator(0, f"op-{vertex.id}", vertex.id, None)
        vertex.chain = OperatorChainSpec((operator,), (), ())
    graph.vertices[1].inputs = graph.vertices[0].outputs = [JobEdge(1, "v", "w", 0, RebalancePartitioner())]
    description = JobDescription(
        graph,
        (("op-v", "v"),),
        commits,
        checkpoints=settings,
        restart_strategy=FixedDelayRestart(3, 0),
        **options,
    )
    job = JobMaster(description, random.Random(1))
    job.start(0)
    step(job, SlotsAllocated("j", SLOTS))
    return job_that_runs_again(job)


def acknowledge(job, checkpoint_id, committables=False):
    effects = []
    for execution in list(job.executions.values()):
        prepared = {"op-w": b"x"} if committables and execution.execution.vertex_id == "w" else {}
        state = SubtaskState(committables=prepared)
        message = AcknowledgeCheckpoint(execution.execution, checkpoint_id, state)
        effects += step(job, FromSlot(execution.slot_id, message))
    return effects


def order(effects, kind):
    return next(e.effect for e in effects if isinstance(e, CheckpointEffect) and isinstance(e.effect, kind))


def complete(job, checkpoint_id, committables=False):
    stored = order(acknowledge(job, checkpoint_id, committables), StoreMetadata)
    return stored.checkpoint, step(job, CheckpointEvent("j", MetadataStored(checkpoint_id)))


def test_sources_are_triggered_and_all_slots_hear_of_the_complete_checkpoint():
    job = checkpointing()
    triggers = [e for e in step(job, Tick(), 100) if isinstance(e, SendToSlot)]
    assert [(e.slot_id, e.message.execution.vertex_id) for e in triggers] == [("s0", "v"), ("s1", "v")]
    assert all(isinstance(e.message, TriggerCheckpoint) for e in triggers)
    _, effects = complete(job, 1)
    told = [(e.slot_id, e.message) for e in effects if isinstance(e, SendToSlot)]
    assert told == [("s0", CheckpointComplete("j", 1)), ("s1", CheckpointComplete("j", 1))]


def test_a_restart_goes_on_from_the_newest_complete_checkpoint():
    job = checkpointing()
    step(job, Tick(), 100)
    checkpoint, _ = complete(job, 1)
    step(job, Tick(), 300)  # the second one is on its way
    effects = step(job, changed("v", 0, "FAILED", UserFunctionError("boom")), 310)
    assert order(effects, DiscardCheckpoint).location == "file:/chk/j/chk-2"
    assert StartCoordinators("j", 1, checkpoint) in all_change(job, "CANCELED", 320)


def test_events_of_a_coordinator_wait_from_its_snapshot_until_the_readers_know_of_the_checkpoint():
    job = checkpointing(coordinated=frozenset({"op-v"}))
    said = [CoordinatorSaid("j", 0, "op-v", 0, f"split {n}") for n in range(3)]
    assert order(step(job, Tick(), 100), SnapshotCoordinators).operator_ids == ("op-v",)
    assert [e.message.payload for e in step(job, said[0])] == ["split 0"]  # before its snapshot
    job.gateways.close("op-v")  # as its snapshot does, while that of another coordinator is awaited
    assert step(job, said[1]) == []
    effects = step(job, CheckpointEvent("j", CoordinatorSnapshotted(1, "op-v", b"state")))
    messages = [e.message for e in effects if isinstance(e, SendToSlot)]
    assert [type(message) for message in messages] == [TriggerCheckpoint, TriggerCheckpoint, OperatorEvent]
    assert messages[-1].payload == "split 1"
    assert [e.message.payload for e in step(job, said[2])] == ["split 2"]


def test_a_restart_waits_until_what_the_checkpoint_publishes_is_published():
    job = checkpointing(commits=True)
    step(job, Tick(), 100)
    checkpoint, effects = complete(job, 1, committables=True)
    assert order(effects, CommitCheckpoint).commit == checkpoint.commits[0]
    step(job, changed("v", 0, "FAILED", UserFunctionError("boom")), 110)
    all_change(job, "CANCELED", 120)
    step(job, Aborted("j", 0), 120)
    assert job.status is JobStatus.RESTARTING
    effects = step(job, CheckpointEvent("j", CheckpointCommitted("run", 1)), 130)
    assert StartCoordinators("j", 1, checkpoint) in effects


def test_a_failed_commit_restarts_the_job_which_publishes_again():
    job = checkpointing(commits=True)
    step(job, Tick(), 100)
    complete(job, 1, committables=True)
    error = UserFunctionError("the service is down")
    effects = step(job, CheckpointEvent("j", CheckpointCommitted("run", 1, error)), 110)
    assert JobStatusChanged("j", "RESTARTING") in effects
    all_change(job, "CANCELED", 120)
    assert order(step(job, Aborted("j", 0), 120), CommitCheckpoint).commit.checkpoint_id == 1


def test_a_job_whose_tasks_have_finished_only_publishes_again_when_that_fails():
    job = checkpointing(commits=True)
    step(job, Tick(), 100)
    complete(job, 1, committables=True)
    all_change(job, "FINISHED", 110)
    assert job.closing is Closing.PUBLISHING
    error = UserFunctionError("the service is down")
    effects = step(job, CheckpointEvent("j", CheckpointCommitted("run", 1, error)), 120)
    assert JobStatusChanged("j", "RESTARTING") in effects
    assert order(effects + step(job, Tick(), 130), CommitCheckpoint).commit.checkpoint_id == 1
    effects = step(job, CheckpointEvent("j", CheckpointCommitted("run", 1)), 140)
    assert effects[-1] == CommitSinks("j", 0) and JobStatusChanged("j", "RUNNING") in effects
    assert JobStatusChanged("j", "FINISHED") in step(job, Committed("j", 0), 150)


def test_who_stops_a_job_with_a_savepoint_is_answered_when_it_is_finished_and_the_sinks_have_published():
    job = checkpointing(commits=True)
    step(job, CheckpointEvent("j", SnapshotRequested(7, SnapshotKind.SAVEPOINT_SUSPEND, "file:/sp")), 10)
    checkpoint, _ = complete(job, 1, committables=True)
    answered = SnapshotResult(7, checkpoint.location)
    effects = all_change(job, "FINISHED", 110) + step(job, CheckpointEvent("j", CheckpointCommitted("run", 1)), 120)
    assert job.closing is Closing.COMMITTING and answered not in effects
    effects = step(job, Committed("j", 0), 130)
    assert effects.index(JobStatusChanged("j", "FINISHED")) < effects.index(answered)


def test_each_failure_of_a_committer_is_counted_where_the_attempt_cannot_tell_them_apart():
    job = checkpointing(commits=True)
    step(job, Tick(), 100)
    complete(job, 1, committables=True)
    warnings = []
    failed = CheckpointEvent("j", CheckpointCommitted("run", 1, UserFunctionError("the service is down")))
    for number in range(3):
        warnings += [e.text for e in step(job, failed, 110 + number) if isinstance(e, Warn)]
        all_change(job, "CANCELED", 120)
        step(job, Aborted("j", 0), 120)
        step(job, Tick(), 130)
    assert [text.partition(" failure=")[2].partition(" ")[0] for text in warnings] == ["1", "2", "3"]
    step(job, CheckpointEvent("j", CheckpointCommitted("run", 1)), 140)
    job_that_runs_again(job)
    assert job.recovery.failures == 0


@pytest.mark.parametrize(
    "message, why",
    [("no\n  such key", "KeyError: no such key"), ("", "KeyError"), ("word " * 99, "KeyError: word word word")],
    ids=["lines", "none", "long"],
)
def test_the_warning_of_a_restart_says_in_a_line_what_user_code_raised(message, why):
    job = checkpointing()
    error = UserFunctionError('operator "m" failed', exception_type="KeyError", exception_message=message)
    (text,) = [e.text for e in step(job, changed("v", 0, "FAILED", error), 10) if isinstance(e, Warn)]
    shown = text.partition(" why=")[2]
    assert shown.startswith(repr(why)[:-1]) and (shown == repr(why) or len(shown) < 210)


def test_the_end_of_data_that_comes_before_all_tasks_run_is_not_forgotten():
    job = checkpointing(commits=True)
    step(job, changed("v", 0, "FAILED", UserFunctionError("boom")), 10)
    all_change(job, "CANCELED", 20)
    step(job, Aborted("j", 0), 20)
    for slot in SLOTS:
        step(job, FromSlot(slot.slot_id, TasksDeployed("j", 1)), 20)
    effects = []
    for vertex, subtask in job.executions:
        effects += step(job, changed(vertex, subtask, "RUNNING", attempt=1), 30)
        ended = NotifyEndOfData(execution(vertex, subtask, 1))
        effects += step(job, FromSlot(f"s{subtask}", ended), 30)
    assert [e for e in effects if isinstance(e, SendToSlot) and isinstance(e.message, TriggerCheckpoint)], (
        "the final checkpoint begins at once"
    )
