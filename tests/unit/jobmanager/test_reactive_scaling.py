import random

import pytest

from flinkish.datastream.partitioners import RebalancePartitioner
from flinkish.errors import NotEnoughSlotsError, SlotLostError
from flinkish.graph.job_graph import ChainedOperator, JobEdge, JobGraph, JobVertex, OperatorChainSpec
from flinkish.jobmanager.events import (
    CheckpointEvent,
    ExecutionChanged,
    FromSlot,
    Inform,
    JobRescaled,
    MetadataStored,
    ReleaseSlots,
    RequestSlots,
    RescaleRequested,
    SlotLost,
    SlotsAllocated,
    SlotsFree,
    SlotsRefused,
    Warn,
)
from flinkish.jobmanager.job_description import JobDescription
from flinkish.jobmanager.job_master import JobMaster
from flinkish.jobmanager.reactive_scaling import ReactiveScaling, largest_that_fits
from flinkish.jobmanager.restart_strategy import FixedDelayRestart
from flinkish.messages.checkpoints import AcknowledgeCheckpoint, SubtaskState
from flinkish.messages.control import TasksDeployed, TaskStateChanged
from flinkish.messages.deployment import ExecutionAttemptID, SlotAddress

SLOTS = tuple(SlotAddress(f"s{i}", "host", None, ("127.0.0.1", i)) for i in range(8))


def graph(parallelism=1, groups=("default", "default"), max_parallelism=128, parallelism_set=False):
    vertices = [
        JobVertex(
            name, name, OperatorChainSpec((ChainedOperator(0, f"id-{name}", name, None),), (), ()),
            parallelism, max_parallelism, group, parallelism_set=parallelism_set and name == "w",
        )
        for name, group in zip("vw", groups)
    ]  # fmt: skip
    edge = JobEdge(0, "v", "w", 0, RebalancePartitioner())
    vertices[0].outputs.append(edge)
    vertices[1].inputs.append(edge)
    return JobGraph("j", "job", vertices)


@pytest.mark.parametrize(
    "options, slots, expected",
    [
        ({}, 3, [3, 3]),
        ({}, 0, None),
        ({"groups": ("a", "b")}, 5, [2, 2]),  # each group has slots of its own
        ({"groups": ("a", "b")}, 1, None),
        ({"max_parallelism": 2}, 5, [2, 2]),
        ({"parallelism_set": True}, 4, [4, 1]),
    ],
)
def test_the_largest_parallelism_that_so_many_slots_carry(options, slots, expected):
    found = largest_that_fits(graph(**options), slots)
    assert (found and [vertex.parallelism for vertex in found.vertices]) == expected


def test_a_number_of_slots_counts_when_it_has_stayed_for_some_time():
    reactive = ReactiveScaling(stabilization_ms=100, submission_ms=10, cooldown_ms=1_000)
    reactive.see(2, 0)
    reactive.see(3, 50)
    reactive.see(3, 149)
    assert not reactive.may_grow(149) and reactive.may_grow(150)
    assert not reactive.may_begin_with_less(59) and reactive.may_begin_with_less(60)
    reactive.rescaled(150)
    assert not reactive.may_grow(1_149) and reactive.may_grow(1_150)
    reactive.see(0, 2_000)
    assert not reactive.may_begin_with_less(9_000), "there are none"


# ---- the job --------------------------------------------------------------------------------------


def step(job, event, now_ms=0):
    effects = job.step(event, now_ms)
    job.check()
    return [effect for effect in effects if not isinstance(effect, (ExecutionChanged, Inform, Warn))]


def all_change(job, state, now_ms=0):
    effects = []
    for key, present in list(job.executions.items()):
        if not present.state.is_terminal:
            message = TaskStateChanged(ExecutionAttemptID("j", job.attempt, *key), state)
            effects += step(job, FromSlot(present.slot_id, message), now_ms)
    return effects


def run(job, now_ms=0):
    for slot in job.slots:
        step(job, FromSlot(slot.slot_id, TasksDeployed("j", job.attempt)), now_ms)
    all_change(job, "RUNNING", now_ms)


def reactive_job(parallelism):
    reactive = ReactiveScaling(stabilization_ms=100, submission_ms=50, cooldown_ms=0)
    strategy = FixedDelayRestart(5, 0)
    job = JobMaster(JobDescription(graph(parallelism), restart_strategy=strategy, reactive=reactive), random.Random(1))
    job.start(0)
    return job


def running(parallelism):
    job = reactive_job(parallelism)
    step(job, SlotsAllocated("j", SLOTS[:parallelism]))
    run(job)
    return job


def widths(job):
    return [vertex.parallelism for vertex in job.job_graph.vertices]


def test_a_job_that_runs_takes_free_slots_by_a_checkpoint_and_a_restart():
    job = running(1)
    assert step(job, SlotsFree("j", 2), 10) == [] and step(job, SlotsFree("j", 2), 109) == []
    assert step(job, SlotsFree("j", 2), 110) == [RequestSlots("j", "job", 2, growth=True)]
    step(job, SlotsAllocated("j", SLOTS[1:3]), 110)
    for key, execution in job.executions.items():
        message = AcknowledgeCheckpoint(ExecutionAttemptID("j", 0, *key), 1, SubtaskState())
        step(job, FromSlot(execution.slot_id, message), 120)
    step(job, CheckpointEvent("j", MetadataStored(1)), 130)
    assert [effect for effect in all_change(job, "CANCELED", 140) if isinstance(effect, JobRescaled)]
    run(job, 150)
    assert widths(job) == [3, 3] and job.rescaling is None
    assert step(job, SlotsFree("j", 0), 10_000) == [], "it has all there are"


def test_a_job_that_has_lost_a_slot_for_good_goes_on_with_those_that_are_left():
    job = running(3)
    step(job, SlotLost("j", "s1", SlotLostError("gone")), 10)
    all_change(job, "CANCELED", 20)
    assert job.requested == 1
    assert step(job, SlotsFree("j", 0), 30) == [] and step(job, SlotsFree("j", 0), 79) == []
    effects = step(job, SlotsFree("j", 0), 80)
    assert effects[0] == ReleaseSlots("j", "the job goes on with fewer slots", ())
    assert widths(job) == [2, 2] and {slot.slot_id for slot in job.slots} == {"s0", "s2"}
    run(job, 90)
    assert job.rescaling is None and job.attempt == 1


def test_a_job_begins_with_fewer_slots_than_the_program_says():
    job = reactive_job(3)
    step(job, SlotsFree("j", 2), 0)
    effects = step(job, SlotsFree("j", 2), 50)
    assert effects == [ReleaseSlots("j", "the job goes on with fewer slots", ()), RequestSlots("j", "job", 2)]
    assert [effect for effect in step(job, SlotsAllocated("j", SLOTS[:2]), 50) if isinstance(effect, JobRescaled)]
    run(job, 60)
    assert widths(job) == [2, 2] and job.attempt == 0


def test_a_job_that_wants_more_than_the_cluster_has_takes_what_it_has():
    job = reactive_job(3)
    error = NotEnoughSlotsError("could not get 3 slots", needed=3, available=2)
    assert RequestSlots("j", "job", 2) in step(job, SlotsRefused("j", error))
    none = NotEnoughSlotsError("could not get 3 slots", needed=3, available=0)
    job = reactive_job(3)
    step(job, SlotsRefused("j", none))
    assert job.status.name == "FAILED" and job.cause is none


def test_nobody_else_rescales_it():
    [refused] = step(running(1), RescaleRequested("j", 7, 2))
    assert "scheduler-mode is reactive" in refused.error.why
