"""Watermark alignment in the JobManager: the core by itself, a simulation of readers, and the JobMaster around it."""

import random

import pytest

from flinkish.common.watermark_strategy import WatermarkAlignment
from flinkish.graph.job_graph import JobGraph, JobVertex, OperatorChainSpec
from flinkish.jobmanager.events import FromSlot, SendToSlot, SlotsAllocated, Tick
from flinkish.jobmanager.job_description import JobDescription
from flinkish.jobmanager.job_master import JobMaster
from flinkish.jobmanager.watermark_alignment import WatermarkAligner
from flinkish.messages.control import (
    OperatorEvent,
    SourceReportedWatermark,
    SourceWatermarkAlignment,
    TasksDeployed,
    TaskStateChanged,
)
from flinkish.messages.deployment import ExecutionAttemptID, SlotAddress
from flinkish.messages.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS


def execution(operator, subtask=0, attempt=0):
    return ExecutionAttemptID("j", attempt, operator, subtask)


class Group:
    """An aligner and the executions that run."""

    def __init__(self, **sources):
        self.aligner = WatermarkAligner({name: WatermarkAlignment(*given) for name, given in sources.items()})
        self.running = {name: {execution(name)} for name in sources}
        self.now_ms = 0

    def report(self, operator, watermark, subtask=0, attempt=0):
        self.aligner.reported(operator, execution(operator, subtask, attempt), watermark)

    def announce(self, after_ms=1_000):
        """{(operator, subtask): limit} of what is told."""
        self.now_ms += after_ms
        told = self.aligner.announce(self.running, self.now_ms)
        self.aligner.check(attempt=99)
        return {(operator, one.subtask_index): limit for operator, one, limit in told}


def test_each_source_of_a_group_may_go_its_own_drift_ahead_of_the_least():
    group = Group(a=("g", 100, 1_000), b=("g", 30, 1_000), other=("h", 5, 1_000))
    group.report("a", 1_000), group.report("b", 50), group.report("other", 7)
    assert group.announce() == {("a", 0): 150, ("b", 0): 80, ("other", 0): 12}


def test_all_subtasks_that_run_are_told_also_those_without_a_watermark():
    group = Group(a=("g", 100, 1_000))
    group.running["a"] = {execution("a", subtask) for subtask in range(3)}
    assert group.announce() == {}
    group.report("a", 10), group.report("a", 20, subtask=1)
    assert group.announce() == {("a", 0): 110, ("a", 1): 110, ("a", 2): 110}


def test_what_has_not_changed_is_not_said_again_and_intervals_are_kept():
    group = Group(a=("g", 100, 1_000), b=("g", 100, 300))
    group.report("a", 10), group.report("b", 20)
    assert group.announce(0) == {("a", 0): 110, ("b", 0): 110}
    assert group.announce(300) == {}
    group.report("a", 15)
    assert group.announce(300) == {("b", 0): 115}
    assert group.announce(400) == {("a", 0): 115}


def test_idle_readers_and_those_at_their_end_hold_nobody_and_nobody_is_left():
    group = Group(a=("g", 100, 1_000), b=("g", 100, 1_000))
    group.report("a", 10), group.report("b", MAX_WATERMARK_MS)
    assert group.announce() == {("a", 0): 110, ("b", 0): 110}
    group.report("a", MAX_WATERMARK_MS)
    assert group.announce() == {("a", 0): MAX_WATERMARK_MS, ("b", 0): MAX_WATERMARK_MS}


def test_an_execution_that_has_ended_or_was_replaced_counts_no_more():
    group = Group(a=("g", 100, 1_000), b=("g", 100, 1_000))
    group.report("a", 10), group.report("b", 500)
    assert group.announce() == {("a", 0): 110, ("b", 0): 110}
    group.running["a"] = set()
    assert group.announce() == {("b", 0): 600}
    group.running["a"] = {execution("a", attempt=1)}
    group.report("a", 40, attempt=1)
    assert group.announce() == {("a", 0): 140, ("b", 0): 140}


def test_event_times_before_the_epoch_and_at_the_ends_of_64_bits():
    group = Group(a=("g", 100, 1_000))
    group.report("a", MIN_WATERMARK_MS + 1)
    assert group.announce() == {("a", 0): MIN_WATERMARK_MS + 101}
    group.report("a", MAX_WATERMARK_MS - 50)
    assert group.announce() == {("a", 0): MAX_WATERMARK_MS}


@pytest.mark.parametrize("seed", range(20))
def test_no_reader_gets_further_ahead_than_drift_and_one_read_and_all_get_to_their_end(seed):
    """Readers of random speeds, delays of messages, restarts of a reader at its last checkpoint."""
    rng = random.Random(seed)
    drift, read_max, length = rng.choice([0, 50, 400]), 40, 2_000
    names = [f"s{number}" for number in range(rng.randint(2, 4))]
    group = Group(**{name: ("g", drift, 10) for name in names})
    at, attempt, saved = dict.fromkeys(names, 0), dict.fromkeys(names, 0), dict.fromkeys(names, 0)
    limits, ended = dict.fromkeys(names, MAX_WATERMARK_MS), set()
    speed = {name: rng.choice([1, 5, read_max]) for name in names}
    for name in names:  # a watermark each, before anything is far ahead
        at[name] = 1
        group.report(name, 1)
    in_flight, steps, best = [], 0, 0
    while len(ended) < len(names):
        steps += 1
        assert steps < 100_000, (at, limits)
        for (name, _), limit in group.announce(10).items():
            in_flight.append((steps + rng.randint(0, 3), name, attempt[name], limit))
        for entry in [entry for entry in in_flight if entry[0] <= steps]:
            in_flight.remove(entry)
            if entry[2] == attempt[entry[1]]:
                limits[entry[1]] = entry[3]
        for name in names:
            if name in ended:
                continue
            told = limits[name] != MAX_WATERMARK_MS or len(ended) == len(names) - 1
            if told and at[name] <= limits[name]:
                at[name] += rng.randint(1, speed[name])
                if at[name] >= length:
                    ended.add(name)
                best = max(best, min([at[other] for other in names if other not in ended], default=at[name]))
                assert at[name] <= best + drift + read_max, (name, at)
            if rng.random() < 0.05:
                saved[name] = at[name]
            if rng.random() < 0.002 and name not in ended:
                at[name], limits[name] = saved[name], MAX_WATERMARK_MS
                attempt[name] += 1
                group.running[name] = {execution(name, attempt=attempt[name])}
            group.report(name, MAX_WATERMARK_MS if name in ended else at[name], attempt=attempt[name])


# ---- the JobMaster --------------------------------------------------------------------------------

SLOT = SlotAddress("s0", "host", None, ("127.0.0.1", 0))


def running_job():
    chain = OperatorChainSpec((), (), ())
    vertices = [JobVertex(name, name, chain, 1, 128, "default") for name in ("fast", "slow")]
    alignment = WatermarkAlignment("g", 100, 500)
    job = JobMaster(
        JobDescription(
            JobGraph("j", "job", vertices),
            operators=(("op-fast", "fast"), ("op-slow", "slow")),
            alignments={"op-fast": alignment, "op-slow": alignment},
        ),
        random.Random(1),
    )
    job.start(0)
    job.step(SlotsAllocated("j", (SLOT,)), 0)
    job.step(FromSlot("s0", TasksDeployed("j", 0)), 0)
    for name in ("fast", "slow"):
        changed(job, name, "RUNNING")
    return job


def changed(job, name, state):
    job.step(FromSlot("s0", TaskStateChanged(execution(name), state)), 0)
    job.check()


def reported(job, name, watermark, attempt=0):
    event = OperatorEvent(execution(name, attempt=attempt), f"op-{name}", SourceReportedWatermark(watermark))
    assert job.step(FromSlot("s0", event), 0) == []


def told(job, now_ms):
    effects = job.step(Tick("", 0), now_ms)
    job.check()
    return {
        effect.message.operator_id: effect.message.payload.max_watermark_ms
        for effect in effects
        if isinstance(effect, SendToSlot) and isinstance(effect.message.payload, SourceWatermarkAlignment)
    }


def test_a_job_tells_its_sources_how_far_they_may_get():
    job = running_job()
    reported(job, "fast", 5_000)
    reported(job, "slow", 10)
    assert told(job, 500) == {"op-fast": 110, "op-slow": 110}
    reported(job, "slow", 5_000, attempt=3)  # of an attempt that is not there
    assert told(job, 1_000) == {}
    changed(job, "slow", "FINISHED")
    assert told(job, 1_500) == {"op-fast": 5_100}
    assert not any("Watermark" in line for line in job.story.lines())
