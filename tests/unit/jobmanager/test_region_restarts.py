"""Failures of a job of several pipelined regions: three forward chains of v and w, subtask i of both in slot i."""

import random

import pytest

from flinkish.common.job_status import JobStatus
from flinkish.datastream.partitioners import ForwardPartitioner
from flinkish.errors import ConnectionLostError, InvalidJobError, SlotLostError, UserFunctionError
from flinkish.graph.execution_graph import ExecutionState
from flinkish.graph.job_graph import ChainedOperator, JobEdge, JobGraph, JobVertex, OperatorChainSpec
from flinkish.jobmanager.checkpoint_coordinator import CheckpointConfiguration
from flinkish.jobmanager.events import (
    AbortSinks,
    CancelRequested,
    CheckpointEffect,
    CheckpointEvent,
    Committed,
    CommitSinks,
    CoordinatorFailed,
    CoordinatorSaid,
    DeployToSlot,
    ExecutionChanged,
    FromSlot,
    Inform,
    InterruptSlots,
    JobStatusChanged,
    KillSlots,
    MetadataStored,
    RequestSlots,
    ResetSubtasks,
    SendToSlot,
    SlotLost,
    SlotsAllocated,
    SnapshotRequested,
    StartCoordinators,
    StopCoordinators,
    StoreMetadata,
    Tick,
    ToCoordinator,
    Warn,
)
from flinkish.jobmanager.job_description import CheckpointSettings, JobDescription
from flinkish.jobmanager.job_master import JobMaster
from flinkish.jobmanager.restart_strategy import FixedDelayRestart
from flinkish.messages.checkpoints import (
    AcknowledgeCheckpoint,
    CheckpointAborted,
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

SLOTS = tuple(SlotAddress(f"s{i}", "host", None, ("127.0.0.1", i)) for i in range(3))
BOOM = UserFunctionError("boom")


def region(*subtasks):
    return frozenset((vertex, subtask) for vertex in "vw" for subtask in subtasks)


def ids(subtask, attempt=0):
    return tuple(ExecutionAttemptID("j", attempt, vertex, subtask) for vertex in "vw")


def step(job, event, now_ms=0):
    effects = job.step(event, now_ms)
    job.check()
    return [effect for effect in effects if not isinstance(effect, (ExecutionChanged, Inform, Warn))]


def said(job, subtask, message, now_ms=0):
    return step(job, FromSlot(job.executions["v", subtask].slot_id, message), now_ms)


def change(job, vertex, subtask, state, error=None, now_ms=0, attempt=None):
    present = job.executions[vertex, subtask].execution
    id_ = present if attempt is None else ExecutionAttemptID("j", attempt, vertex, subtask)
    return said(job, subtask, TaskStateChanged(id_, state, None if error is None else TaskFailure(error)), now_ms)


def change_region(job, subtask, state, now_ms=0):
    effects = []
    for vertex in "vw":
        if not job.executions[vertex, subtask].state.is_terminal:
            effects += change(job, vertex, subtask, state, now_ms=now_ms)
    return effects


def running(attempts=10, delay_ms=0, interval_ms=None, commits=False, **options):
    edge = JobEdge(1, "v", "w", 0, ForwardPartitioner())
    chains = {n: OperatorChainSpec((ChainedOperator(0, f"op-{n}", n, None),), (), ()) for n in "vw"}  # type: ignore[arg-type]
    vertices = [
        JobVertex("v", "v", chains["v"], 3, 128, "default", [], [edge]),
        JobVertex("w", "w", chains["w"], 3, 128, "default", [edge], []),
    ]
    description = JobDescription(
        JobGraph("j", "job", vertices),
        (("op-v", "v"), ("op-w", "w")),
        commits,
        checkpoints=CheckpointSettings(CheckpointConfiguration("file:/chk", "file:/sav", interval_ms), run_id="run"),
        restart_strategy=FixedDelayRestart(attempts, delay_ms),
        region_failover=True,
        **options,
    )
    job = JobMaster(description, random.Random(1))
    job.start(0)
    step(job, SlotsAllocated("j", SLOTS))
    for subtask in range(3):
        said(job, subtask, TasksDeployed("j", 0))
    for subtask in range(3):
        change_region(job, subtask, "RUNNING")
    return job


def run_again(job, *subtasks, now_ms=0):
    """The slots of these deploy the newest attempt, and start."""
    effects = []
    for subtask in subtasks:
        effects += said(job, subtask, TasksDeployed("j", job.attempt), now_ms)
    for subtask in subtasks:
        effects += change_region(job, subtask, "RUNNING", now_ms)
    return effects


def attempts(job):
    return {subtask: job.executions["v", subtask].execution.attempt for subtask in range(3)}


def test_only_the_failed_region_is_cancelled_and_deployed_again_with_a_new_attempt():
    job = running()
    assert change(job, "v", 1, "FAILED", BOOM) == [
        JobStatusChanged("j", "RESTARTING"),
        SendToSlot("j", "s1", CancelTasks("j", ids(1)[1:])),
    ]
    assert change(job, "w", 1, "CANCELED") == [
        JobStatusChanged("j", "RUNNING"),
        ResetSubtasks("j", 1, region(1)),
        DeployToSlot("j", 1, 1, SLOTS, region(1)),
    ]
    assert attempts(job) == {0: 0, 1: 1, 2: 0}
    assert said(job, 1, TasksDeployed("j", 1)) == [SendToSlot("j", "s1", StartTasks("j", 1))]
    change_region(job, 1, "RUNNING")
    assert job.all_run and job.cause is None
    tasks = {(task["vertex"], task["subtask"]): (task["attempt"], task["state"]) for task in job.describe()["tasks"]}
    assert tasks["w", 1] == (1, "RUNNING") and tasks["w", 0] == (0, "RUNNING")
    assert job.describe()["restarts"] == 1


def test_a_message_counts_when_it_is_of_the_present_execution_of_its_subtask():
    job = running()
    change(job, "v", 1, "FAILED", BOOM)
    change(job, "w", 1, "CANCELED")
    run_again(job, 1)
    old, new = OperatorEvent(ids(1)[0], "op-v", "x"), OperatorEvent(ids(1, 1)[0], "op-v", "x")
    other = OperatorEvent(ids(0)[0], "op-v", "x")
    assert said(job, 1, old) == []
    assert said(job, 1, new) == [ToCoordinator("j", new)] and said(job, 0, other) == [ToCoordinator("j", other)]
    assert change(job, "v", 1, "FAILED", BOOM, attempt=0) == [] and job.status is JobStatus.RUNNING
    assert [e.message.payload for e in step(job, CoordinatorSaid("j", 1, "op-v", 1, "split"))] == ["split"]
    assert step(job, CoordinatorSaid("j", 0, "op-v", 1, "for the reader before")) == []
    assert [e.message.execution for e in step(job, CoordinatorSaid("j", None, "op-w", 1, "x"))] == [ids(1, 1)[1]]
    assert [e.message.execution for e in step(job, CoordinatorSaid("j", 0, "op-v", 0, "split"))] == [ids(0)[0]]


def test_tasks_of_other_regions_are_served_while_one_restarts():
    job = running(delay_ms=1_000)
    change(job, "v", 1, "FAILED", BOOM)
    change(job, "w", 1, "CANCELED")
    assert job.status is JobStatus.RESTARTING
    event = OperatorEvent(ids(0)[0], "op-v", "x")
    assert said(job, 0, event) == [ToCoordinator("j", event)]
    assert [e.slot_id for e in step(job, CoordinatorSaid("j", 0, "op-v", 0, "split"))] == ["s0"]
    assert step(job, CoordinatorSaid("j", 0, "op-v", 1, "split")) == []
    change_region(job, 2, "FINISHED", now_ms=500)
    assert step(job, Tick(), 999) == []
    effects = step(job, Tick(), 1_000)
    assert DeployToSlot("j", 1, 1, SLOTS, region(1)) in effects
    run_again(job, 1, now_ms=1_000)
    assert job.all_run and job.checkpoints.running == {*ids(0), *ids(1, 1)}


def test_a_region_that_fails_while_another_ends_restarts_with_it():
    job = running(attempts=1)
    change(job, "v", 1, "FAILED", BOOM)
    second = UserFunctionError("second")
    assert change(job, "w", 2, "FAILED", second) == [SendToSlot("j", "s2", CancelTasks("j", ids(2)[:1]))]
    assert job.cause is BOOM and [entry.error for entry in job.recovery.exceptions.entries] == [second, BOOM]
    assert change(job, "w", 1, "CANCELED") == []
    effects = change(job, "v", 2, "CANCELED")
    both = region(1, 2)
    assert effects[1:] == [
        ResetSubtasks("j", 1, both),
        DeployToSlot("j", 1, 1, SLOTS, both),
        DeployToSlot("j", 1, 2, SLOTS, both),
    ]
    assert attempts(job) == {0: 0, 1: 1, 2: 1}


def test_a_region_that_fails_while_another_waits_for_its_delay_restarts_with_it_and_is_counted():
    job = running(attempts=2, delay_ms=100)
    change(job, "v", 1, "FAILED", BOOM)
    change(job, "w", 1, "CANCELED")
    effects = change(job, "v", 2, "FAILED", UserFunctionError("second"), now_ms=60)
    assert effects == [SendToSlot("j", "s2", CancelTasks("j", ids(2)[1:]))]
    change(job, "w", 2, "CANCELED", now_ms=70)
    assert step(job, Tick(), 159) == []
    assert ResetSubtasks("j", 1, region(1, 2)) in step(job, Tick(), 160)
    run_again(job, 1, 2, now_ms=170)
    change(job, "v", 0, "FAILED", UserFunctionError("third"), now_ms=180)
    assert job.status is JobStatus.FAILING, "the strategy allows two"


def test_what_is_being_deployed_restarts_with_what_fails_meanwhile_and_what_restores_does_not():
    job = running()
    change(job, "v", 1, "FAILED", BOOM)
    change(job, "w", 1, "CANCELED")
    effects = change(job, "v", 2, "FAILED", BOOM)
    cancelled = {effect.slot_id: effect.message.executions for effect in effects if isinstance(effect, SendToSlot)}
    assert cancelled == {"s1": ids(1, 1), "s2": ids(2)[1:]}
    assert said(job, 1, TasksDeployed("j", 1)) == [], "too late"
    for subtask in (1, 2):
        change_region(job, subtask, "CANCELED")
    assert attempts(job) == {0: 0, 1: 2, 2: 2}
    for subtask in (1, 2):
        said(job, subtask, TasksDeployed("j", 2))
    change(job, "v", 0, "FAILED", BOOM)
    change(job, "w", 0, "CANCELED")
    assert attempts(job) == {0: 3, 1: 2, 2: 2}, "they have started"


def test_a_lost_slot_restarts_the_regions_with_a_task_in_it_and_the_replacement_takes_its_place():
    job = running()
    gone = SlotLostError("lost slot s1")
    effects = step(job, SlotLost("j", "s1", gone), 5)
    assert effects == [JobStatusChanged("j", "RESTARTING"), RequestSlots("j", "job", 1, replacement=True)]
    replacement = SlotAddress("s9", "host", None, ("127.0.0.1", 9))
    slots = (SLOTS[0], replacement, SLOTS[2])
    effects = step(job, SlotsAllocated("j", (replacement,)), 50)
    assert effects[1:] == [ResetSubtasks("j", 1, region(1)), DeployToSlot("j", 1, 1, slots, region(1))]
    assert job.executions["v", 1].slot_id == "s9"
    run_again(job, 1)
    assert job.status is JobStatus.RUNNING and job.all_run


def test_a_slot_that_says_why_it_ends_fails_its_tasks_and_a_broken_connection_those_that_it_names():
    job = running()
    failed = SlotFailed("s1", "j", ids(1), TaskFailure(SlotLostError("out of memory")))
    effects = said(job, 1, failed)
    assert SendToSlot("j", "s1", CancelTasks("j", ids(1))) in effects
    assert [effect.slot_ids for effect in effects if isinstance(effect, KillSlots)] == [("s1",)]
    job = running()
    broken = SlotFailed("s0", "j", ids(0)[:1], TaskFailure(ConnectionLostError("gone")), lost_peer="s1")
    assert SendToSlot("j", "s0", CancelTasks("j", ids(0))) in said(job, 0, broken)
    assert said(job, 0, SlotFailed("s0", "j", (), TaskFailure(ConnectionLostError("gone")), lost_peer="s1")) == []


def test_a_failure_that_is_no_tasks_restarts_all_and_starts_the_coordinators_again():
    job = running()
    change(job, "v", 1, "FAILED", BOOM)
    change(job, "w", 1, "CANCELED")
    run_again(job, 1)
    assert step(job, CoordinatorFailed("j", 1, BOOM)) == [], "the coordinators are those of attempt 0"
    effects = step(job, CoordinatorFailed("j", 0, BOOM))
    assert StopCoordinators("j") in effects
    assert {e.slot_id for e in effects if isinstance(e, SendToSlot)} == {"s0", "s1", "s2"}
    effects = [effect for subtask in range(3) for effect in change_region(job, subtask, "CANCELED")]
    assert StartCoordinators("j", 2) in effects and DeployToSlot("j", 2, 0, SLOTS) in effects
    assert attempts(job) == {0: 2, 1: 2, 2: 2}


def test_a_failure_of_the_job_while_a_region_restarts_restarts_all():
    job = running()
    change(job, "v", 1, "FAILED", BOOM)
    effects = step(job, CoordinatorFailed("j", 0, UserFunctionError("enumerator")))
    assert effects[0] == StopCoordinators("j")
    assert {e.slot_id for e in effects if isinstance(e, SendToSlot)} == {"s0", "s2"}, "s1 has been told"


def test_an_error_that_stays_ends_the_job_also_when_it_comes_second():
    job = running()
    change(job, "v", 1, "FAILED", BOOM)
    change(job, "v", 2, "FAILED", InvalidJobError("bad"))
    assert job.status is JobStatus.FAILING and job.cause.what == "bad"
    for subtask in range(3):
        change_region(job, subtask, "CANCELED")
    assert job.status is JobStatus.FAILED


def test_cancelling_ends_the_other_regions_too_while_one_restarts():
    job = running(delay_ms=1_000)
    change(job, "v", 1, "FAILED", BOOM)
    change(job, "w", 1, "CANCELED")
    effects = step(job, CancelRequested("j"))
    assert {e.slot_id for e in effects if isinstance(e, SendToSlot)} == {"s0", "s2"}
    change_region(job, 0, "CANCELED")
    assert JobStatusChanged("j", "CANCELED", None) in change_region(job, 2, "CANCELED")


def test_a_region_whose_user_code_hangs_is_interrupted_then_its_slot_is_killed_and_others_in_it_restart_too():
    job = running()
    change(job, "v", 1, "FAILED", BOOM)
    assert step(job, Tick(), 1_000) == [InterruptSlots("j", ("s1",))]
    (kill,) = [effect for effect in step(job, Tick(), 10_000) if isinstance(effect, KillSlots)]
    assert kill.slot_ids == ("s1",)
    step(job, SlotLost("j", "s1", SlotLostError("killed")), 10_100)
    assert job.recovery.next_attempt.subtasks == region(1) and job.executions["v", 0].state is ExecutionState.RUNNING


def test_giving_up_a_region_that_does_not_end_fails_the_job_and_waits_for_the_others():
    job = running()
    change(job, "v", 1, "FAILED", BOOM)
    step(job, Tick(), 10_000)
    effects = step(job, Tick(), 20_000)
    assert job.status is JobStatus.FAILING
    assert {e.slot_id for e in effects if isinstance(e, SendToSlot)} == {"s0", "s2"}
    change_region(job, 0, "CANCELED", 20_010)
    assert JobStatusChanged("j", "FAILED", BOOM) in change_region(job, 2, "CANCELED", 20_020)


# ---- checkpoints


def order(effects, kind):
    return next(e.effect for e in effects if isinstance(e, CheckpointEffect) and isinstance(e.effect, kind))


def complete(job, checkpoint_id):
    effects = []
    for subtask in range(3):
        for vertex in "vw":
            id_ = job.executions[vertex, subtask].execution
            effects += said(job, subtask, AcknowledgeCheckpoint(id_, checkpoint_id, SubtaskState()))
    return order(effects, StoreMetadata).checkpoint, step(job, CheckpointEvent("j", MetadataStored(checkpoint_id)))


def test_a_region_goes_on_from_the_newest_checkpoint_and_the_pending_one_is_aborted_for_the_others():
    job = running(interval_ms=100)
    step(job, Tick(), 100)
    checkpoint, _ = complete(job, 1)
    step(job, Tick(), 300)
    effects = change(job, "v", 1, "FAILED", BOOM, now_ms=310)
    told = [(e.slot_id, e.message) for e in effects if isinstance(e, SendToSlot)]
    aborted = CheckpointAborted("j", 2, 1)
    assert ("s0", aborted) in told and ("s2", aborted) in told
    assert ResetSubtasks("j", 1, region(1), checkpoint) in change(job, "w", 1, "CANCELED", now_ms=320)
    run_again(job, 1, now_ms=330)
    triggers = [e.message for e in step(job, Tick(), 500) if isinstance(e, SendToSlot)]
    assert all(isinstance(message, TriggerCheckpoint) for message in triggers)
    assert {message.execution for message in triggers} == {ids(0)[0], ids(1, 1)[0], ids(2)[0]}
    complete(job, 3)
    assert job.checkpoints.completed.latest.checkpoint_id == 3


def test_a_region_that_fails_while_the_job_drains_restarts_all_for_event_time_has_ended_in_the_others():
    job = running(interval_ms=1_000)
    step(job, CheckpointEvent("j", SnapshotRequested(1, SnapshotKind.SAVEPOINT_TERMINATE)), 10)
    effects = change(job, "v", 1, "FAILED", BOOM, now_ms=20)
    assert StopCoordinators("j") in effects
    assert job.recovery.next_attempt.subtasks == region(0, 1, 2)
    assert len(job.recovery.exceptions.entries) == 2 and job.cause is BOOM


def test_sinks_are_not_aborted_while_other_regions_write_and_leftovers_go_at_the_end():
    job = running(commits=True)
    change(job, "v", 1, "FAILED", BOOM)
    effects = change(job, "w", 1, "CANCELED")
    assert not any(isinstance(effect, AbortSinks) for effect in effects) and job.status is JobStatus.RUNNING
    run_again(job, 1)
    effects = [effect for subtask in range(3) for effect in change_region(job, subtask, "FINISHED")]
    assert effects == [CommitSinks("j", 1, {}, kept={})]
    assert JobStatusChanged("j", "FINISHED", None) in step(job, Committed("j", 1))


@pytest.mark.parametrize("ended", [0, 2])
def test_a_region_that_has_finished_is_left_alone_and_finished_tasks_of_a_failed_one_restart(ended):
    job = running()
    change_region(job, ended, "FINISHED")
    change(job, "v", 1, "FINISHED")
    change(job, "w", 1, "FAILED", BOOM)
    assert attempts(job)[1] == 1 and attempts(job)[ended] == 0
    assert job.executions["v", 1].state is ExecutionState.DEPLOYING
    run_again(job, 1)
    for subtask in range(3):
        change_region(job, subtask, "FINISHED")
    assert job.status is JobStatus.FINISHED
