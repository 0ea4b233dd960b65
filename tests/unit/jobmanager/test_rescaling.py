import random

import pytest

from flinkish.common.job_status import JobStatus
from flinkish.datastream.partitioners import RebalancePartitioner
from flinkish.errors import CheckpointFailedError, NotEnoughSlotsError, UserFunctionError
from flinkish.graph.job_graph import ChainedOperator, JobEdge, JobGraph, JobVertex, OperatorChainSpec
from flinkish.jobmanager.checkpoint_coordinator import CheckpointConfiguration
from flinkish.jobmanager.events import (
    CancelRequested,
    CheckpointEffect,
    CheckpointEvent,
    DeployToSlot,
    ExecutionChanged,
    FromSlot,
    Inform,
    JobRescaled,
    JobStatusChanged,
    MetadataStored,
    ReleaseSlots,
    RequestSlots,
    RescaleRequested,
    RescaleResult,
    SendToSlot,
    SlotLost,
    SlotsAllocated,
    SlotsRefused,
    StartCoordinators,
    StopCoordinators,
    StoreMetadata,
    Warn,
)
from flinkish.jobmanager.job_description import CheckpointSettings, JobDescription
from flinkish.jobmanager.job_master import JobMaster
from flinkish.jobmanager.restart_strategy import FixedDelayRestart
from flinkish.messages.checkpoints import AcknowledgeCheckpoint, SubtaskState, TriggerCheckpoint
from flinkish.messages.control import TasksDeployed, TaskStateChanged
from flinkish.messages.deployment import ExecutionAttemptID, SlotAddress, TaskFailure

SLOTS = tuple(SlotAddress(f"s{i}", "host", None, ("127.0.0.1", i)) for i in range(4))


def vertex(name, parallelism=1):
    chain = OperatorChainSpec((ChainedOperator(0, f"id-{name}", name, None),), (), ())
    return JobVertex(name, name, chain, parallelism, 128, "default")


def graph(*vertices):
    pairs = enumerate(zip(vertices, vertices[1:]))
    edges = [JobEdge(index, one.id, other.id, 0, RebalancePartitioner()) for index, (one, other) in pairs]
    for index, edge in enumerate(edges):
        vertices[index].outputs.append(edge)
        vertices[index + 1].inputs.append(edge)
    return JobGraph("j", "job", list(vertices))


def parallelism_of(job_graph):
    return [vertex.parallelism for vertex in job_graph.vertices]


def step(job, event, now_ms=0):
    effects = job.step(event, now_ms)
    job.check()
    return [effect for effect in effects if not isinstance(effect, (ExecutionChanged, Inform, Warn))]


def execution(name, subtask, attempt=0):
    return ExecutionAttemptID("j", attempt, name, subtask)


def changed(job, key, state, error=None):
    failure = TaskFailure(error) if error else None
    slot_id = job.executions[key].slot_id
    return FromSlot(slot_id, TaskStateChanged(execution(*key, job.attempt), state, failure))


def all_change(job, state):
    return [
        effect
        for key, present in list(job.executions.items())
        if not present.state.is_terminal
        for effect in step(job, changed(job, key, state))
    ]


def run(job):
    for slot in job.slots:
        step(job, FromSlot(slot.slot_id, TasksDeployed("j", job.attempt)))
    return all_change(job, "RUNNING")


def running(parallelism=1):
    job_graph = graph(vertex("v", parallelism), vertex("w", parallelism))
    job = JobMaster(JobDescription(job_graph, restart_strategy=FixedDelayRestart(5, 0)), random.Random(1))
    job.start(0)
    step(job, SlotsAllocated("j", SLOTS[:parallelism]))
    run(job)
    return job


def acknowledge(job, checkpoint_id=1):
    effects = []
    for name, subtask in list(job.executions):
        message = AcknowledgeCheckpoint(execution(name, subtask, job.attempt), checkpoint_id, SubtaskState())
        effects += step(job, FromSlot(job.executions[name, subtask].slot_id, message))
    return effects


def stop_for(job, parallelism, more=()):
    """Until the tasks are told to end."""
    step(job, RescaleRequested("j", 7, parallelism))
    if more:
        step(job, SlotsAllocated("j", more))
    acknowledge(job)
    return step(job, CheckpointEvent("j", MetadataStored(1)))


def test_a_job_gets_its_slots_then_takes_a_checkpoint_then_restarts_as_the_new_graph():
    job = running()
    assert step(job, RescaleRequested("j", 7, 2)) == [RequestSlots("j", "job", 1, growth=True)]
    assert job.status is JobStatus.RUNNING, "it goes on meanwhile"
    [trigger] = step(job, SlotsAllocated("j", SLOTS[1:2]))
    assert isinstance(trigger, SendToSlot) and isinstance(trigger.message, TriggerCheckpoint)
    [store] = acknowledge(job)
    assert isinstance(store, CheckpointEffect) and isinstance(store.effect, StoreMetadata)
    effects = step(job, CheckpointEvent("j", MetadataStored(1)))
    assert JobStatusChanged("j", "RESTARTING") in effects and StopCoordinators("j") in effects
    assert job.cause is None and job.describe()["exceptions"] == []
    effects = all_change(job, "CANCELED")
    [rescaled] = [effect for effect in effects if isinstance(effect, JobRescaled)]
    assert parallelism_of(rescaled.job_graph) == [2, 2]
    start = next(effect for effect in effects if isinstance(effect, StartCoordinators))
    assert start.attempt == 1 and start.checkpoint.checkpoint_id == 1
    assert effects.index(rescaled) < effects.index(start)
    assert [effect.index for effect in effects if isinstance(effect, DeployToSlot)] == [0, 1]
    assert {key: e.slot_id for key, e in job.executions.items()} == {
        ("v", 0): "s0", ("v", 1): "s1", ("w", 0): "s0", ("w", 1): "s1",
    }  # fmt: skip
    assert RescaleResult(7) in run(job) and job.rescaling is None


def test_slots_that_a_smaller_job_does_not_need_are_given_back():
    job = running(parallelism=2)
    stop_for(job, 1)
    effects = all_change(job, "CANCELED")
    assert ReleaseSlots("j", "the job needs fewer slots", ("s1",)) in effects and set(job.held) == {"s0"}
    assert RescaleResult(7) in run(job)


@pytest.mark.parametrize("phase", ["slots", "checkpoint"])
def test_a_job_that_fails_before_it_is_stopped_restarts_as_it_was(phase):
    job = running()
    step(job, RescaleRequested("j", 7, 2))
    if phase == "checkpoint":
        step(job, SlotsAllocated("j", SLOTS[1:2]))
    effects = step(job, changed(job, ("v", 0), "FAILED", UserFunctionError("boom")))
    [result] = [effect for effect in effects if isinstance(effect, RescaleResult)]
    assert "the job failed: boom" in result.error.why
    released = ("s1",) if phase == "checkpoint" else ()
    assert ReleaseSlots("j", "the job is not rescaled", released) in effects
    all_change(job, "CANCELED")
    assert len(job.executions) == 2 and job.attempt == 1


def test_a_rescaling_that_gets_no_slots_costs_the_job_nothing():
    job = running()
    step(job, RescaleRequested("j", 7, 3))
    error = NotEnoughSlotsError("could not get 2 slots")
    assert step(job, SlotsRefused("j", error)) == [
        ReleaseSlots("j", "the job is not rescaled", ()), RescaleResult(7, error),
    ]  # fmt: skip
    assert job.status is JobStatus.RUNNING and job.rescaling is None


def test_a_rescaling_whose_checkpoint_fails_costs_the_job_nothing():
    job = running(parallelism=2)
    step(job, RescaleRequested("j", 7, 1))
    acknowledge(job)
    effects = step(job, CheckpointEvent("j", MetadataStored(1, CheckpointFailedError("the disk is full"))))
    [result] = [effect for effect in effects if isinstance(effect, RescaleResult)]
    assert isinstance(result.error, CheckpointFailedError) and job.rescaling is None
    assert job.cause is not None, "tolerable-failed-checkpoints is 0, so this one restarts the job, as any other"


def test_a_slot_lost_while_the_job_is_stopped_is_replaced_before_it_goes_on():
    job = running(parallelism=2)
    stop_for(job, 3, more=SLOTS[2:3])
    effects = step(job, SlotLost("j", "s2", UserFunctionError("gone")))
    assert RequestSlots("j", "job", 1, replacement=True) in effects
    assert not [effect for effect in all_change(job, "CANCELED") if isinstance(effect, JobRescaled)]
    assert [effect for effect in step(job, SlotsAllocated("j", SLOTS[3:4])) if isinstance(effect, JobRescaled)]
    assert len(job.executions) == 6


def test_a_failure_of_the_new_attempt_is_a_failure_like_any_other_and_the_new_parallelism_stays():
    job = running()
    stop_for(job, 2, more=SLOTS[1:2])
    all_change(job, "CANCELED")
    step(job, changed(job, ("w", 1), "FAILED", UserFunctionError("boom")))
    all_change(job, "CANCELED")
    assert job.attempt == 2 and len(job.executions) == 4
    assert RescaleResult(7) in run(job)
    assert [entry["attempt"] for entry in job.describe()["exceptions"]] == [1]


def test_who_cancels_a_job_that_is_being_rescaled_ends_both():
    job = running()
    stop_for(job, 2, more=SLOTS[1:2])
    step(job, CancelRequested("j"))
    effects = all_change(job, "CANCELED")
    [result] = [effect for effect in effects if isinstance(effect, RescaleResult)]
    assert result.error.why == "the job is CANCELED" and effects[-1] == ReleaseSlots("j", "job j is CANCELED")


def test_one_rescaling_at_a_time_and_only_of_a_job_that_runs():
    job = running()
    step(job, RescaleRequested("j", 7, 2))
    [refused] = step(job, RescaleRequested("j", 8, 3))
    assert refused.request_id == 8 and refused.error.why == "it is being rescaled"
    starting = JobMaster(JobDescription(graph(vertex("v"))), random.Random(1))
    starting.start(0)
    [refused] = step(starting, RescaleRequested("j", 9, 2))
    assert refused.error.why == "it waits for 1 of 1 slots" and refused.error.do == "ask again when these run"


def test_a_batch_job_has_no_checkpoint_to_be_rescaled_from():
    settings = CheckpointSettings(CheckpointConfiguration("d", batch=True))
    job = JobMaster(JobDescription(graph(vertex("v")), checkpoints=settings), random.Random(1))
    job.start(0)
    [refused] = step(job, RescaleRequested("j", 7, 2))
    assert "it is a batch job" in refused.error.why and "start it anew" in refused.error.do


def refusal(job):
    [refused] = step(job, RescaleRequested("j", 9, 2))
    return refused.error


def test_a_job_whose_tasks_have_finished_in_part_is_rescaled_like_any_other():
    job = running(parallelism=2)
    step(job, changed(job, ("v", 0), "FINISHED"))
    step(job, RescaleRequested("j", 7, 1))
    for key in (("v", 1), ("w", 0), ("w", 1)):
        message = AcknowledgeCheckpoint(execution(*key), 1, SubtaskState())
        step(job, FromSlot(job.executions[key].slot_id, message))
    step(job, CheckpointEvent("j", MetadataStored(1)))
    effects = all_change(job, "CANCELED")
    [rescaled] = [effect for effect in effects if isinstance(effect, JobRescaled)]
    assert parallelism_of(rescaled.job_graph) == [1, 1]
    assert RescaleResult(7) in run(job)


def test_who_cannot_rescale_is_told_which_tasks_the_job_waits_for_and_when_it_is_too_late():
    job = running()
    all_change(job, "CANCELED")  # by themselves: a failure, and the job begins anew
    for slot in job.slots:
        step(job, FromSlot(slot.slot_id, TasksDeployed("j", job.attempt)))
    step(job, changed(job, ("v", 0), "RUNNING"))
    step(job, changed(job, ("v", 0), "FINISHED"))
    error = refusal(job)
    assert error.why == "it waits for 1 tasks to run: w (1/1) is INITIALIZING"
    assert error.do == "ask again when these run"
    step(job, changed(job, ("w", 0), "RUNNING"))
    step(job, CancelRequested("j"))
    error = refusal(job)
    assert error.why == "it is CANCELLING" and "another job" in error.do


def test_when_only_its_sinks_are_left_a_job_is_not_rescaled():
    job_graph = graph(vertex("v"))
    job = JobMaster(JobDescription(job_graph, restart_strategy=FixedDelayRestart(5, 0), commits=True), random.Random(1))
    job.start(0)
    step(job, SlotsAllocated("j", SLOTS[:1]))
    run(job)
    all_change(job, "FINISHED")
    assert job.status is JobStatus.RUNNING
    error = refusal(job)
    assert "all of its tasks have finished" in error.why and "another job" in error.do


def test_the_parallelism_that_it_has_is_nothing_to_do():
    assert step(running(parallelism=2), RescaleRequested("j", 7, 2)) == [RescaleResult(7)]
