import pytest

from flinkish.common.job_status import JobStatus
from flinkish.errors import ConnectionLostError, NotEnoughSlotsError, SlotLostError, UserFunctionError
from flinkish.graph.execution_graph import ExecutionState
from flinkish.jobmanager.events import (
    Aborted,
    AbortSinks,
    CancelRequested,
    Committed,
    CommitSinks,
    CoordinatorFailed,
    CoordinatorSaid,
    DeployToSlot,
    ExecutionChanged,
    FromSlot,
    JobStatusChanged,
    KillSlots,
    ReleaseSlots,
    RequestSlots,
    SendToSlot,
    SlotLost,
    SlotsAllocated,
    SlotsRefused,
    StartCoordinators,
    Tick,
    ToCoordinator,
)
from flinkish.graph.job_graph import JobGraph, JobVertex, OperatorChainSpec
from flinkish.jobmanager.job_master import JobDescription, JobMaster
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
    return JobMaster(JobDescription(job_graph(), (("source", "v"),), commits, **options))


def step(job, event, now_ms=0):
    """Effects without the changes of executions, which have tests of their own."""
    effects = job.step(event, now_ms)
    job.check()
    return [effect for effect in effects if not isinstance(effect, ExecutionChanged)]


def execution(vertex, subtask, attempt=0):
    return ExecutionAttemptID("j", attempt, vertex, subtask)


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
        SendToSlot("j", "s0", CancelTasks("j", 0)),
        SendToSlot("j", "s1", CancelTasks("j", 0)),
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
    complaint = SlotFailed("s0", "j", 0, TaskFailure(gone), lost_peer="s1")
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
    step(job, FromSlot("s1", SlotFailed("s1", "j", 0, TaskFailure(told))))
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
    step(job, FromSlot("s1", SlotFailed("s1", "j", 0, TaskFailure(UserFunctionError("no module")))))
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
        SendToSlot("j", "s0", CancelTasks("j", 0)),
    ]
    assert all_change(job, "CANCELED")[0] == JobStatusChanged("j", "FAILED", lost)


def test_cancel_ends_in_canceled_after_the_last_task():
    job = running()
    assert step(job, CancelRequested("j")) == [
        JobStatusChanged("j", "CANCELLING"),
        SendToSlot("j", "s0", CancelTasks("j", 0)),
        SendToSlot("j", "s1", CancelTasks("j", 0)),
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
