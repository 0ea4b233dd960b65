"""A failure restarts the tasks of its region only: the others are not opened again, and go on with what they have in
memory."""

import pytest

from flinkish.testing.mini_cluster import MiniCluster
from tests.integration import recovery_program
from tests.integration.region_program import (
    PARALLELISM,
    build,
    check_exact,
    check_left_alone,
    check_numbers,
    opened,
    published,
)

RECORDS = 900
FAULT = 350  # in the second third, of subtask 1
NO_DELAY = {
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": 10,
    "restart-strategy.fixed-delay.delay": "0 ms",
    "parallelism.default": PARALLELISM,
}
CHECKPOINTS = {**NO_DELAY, "execution.checkpointing.interval": "60 ms"}


@pytest.fixture(scope="module")
def cluster():
    with MiniCluster(slots=PARALLELISM) as cluster:
        yield cluster


def run(cluster, folder, settings, *pipelines, after_a_checkpoint=True):
    """``pipelines``: (name, faults).  Gives what the finished job says of itself."""
    env = cluster.get_execution_environment(settings)
    for name, faults in pipelines:
        build(env, folder, RECORDS, faults, name, after_a_checkpoint)
    client = env.execute_async("regions")
    client.wait(60_000)
    return client._handle.describe()


def attempts(job):
    """Of each subtask, those of its tasks."""
    found = {}
    for task in job["tasks"]:
        found.setdefault(task["subtask"], set()).add(task["attempt"])
    return found


@pytest.mark.parametrize("fault", ["raise", "kill-slot"])
def test_only_the_failed_chain_of_three_restarts(cluster, tmp_path, fault):
    job = run(cluster, tmp_path, CHECKPOINTS, ("a", {FAULT: fault}))
    check_exact(tmp_path, RECORDS)
    check_left_alone(tmp_path, 0)
    check_left_alone(tmp_path, 2)
    assert [attempt for attempt, _ in opened(tmp_path)[1]] == [0, 1]
    assert attempts(job) == {0: {0}, 1: {1}, 2: {0}} and job["restarts"] == 1
    again = [record for _, record, _, attempt, _ in published(tmp_path) if attempt == 1]
    assert again[0] > 301, "it has gone on from its checkpoint"
    pids = {pid for _, pid in opened(tmp_path)[1]}
    assert len(pids) == (1 if fault == "raise" else 2), "a user's exception costs no process"


@pytest.mark.parametrize("fault", ["raise", "kill-slot"])
def test_without_checkpoints_the_failed_chain_begins_anew_and_the_others_go_on(cluster, tmp_path, fault):
    job = run(cluster, tmp_path, NO_DELAY, ("a", {FAULT: fault}), after_a_checkpoint=False)
    check_exact(tmp_path, RECORDS)
    check_left_alone(tmp_path, 0)
    check_left_alone(tmp_path, 2)
    assert job["checkpoints"]["counts"]["completed"] == 0 and attempts(job)[1] == {1}


def test_of_two_pipelines_in_the_same_slots_only_the_failed_one_restarts(cluster, tmp_path):
    run(cluster, tmp_path, CHECKPOINTS, ("a", {FAULT: "raise"}), ("b", {}))
    for name in "ab":
        check_exact(tmp_path, RECORDS, name)
        for subtask in range(PARALLELISM):
            if (name, subtask) != ("a", 1):
                check_left_alone(tmp_path, subtask, name)
    assert len(opened(tmp_path, "a")[1]) == 2


SETTINGS_OF_STATE = [
    {"state.backend.type": "hashmap"},
    {"state.backend.type": "rocksdb", "execution.checkpointing.unaligned.enabled": True},
]


@pytest.mark.parametrize("settings", SETTINGS_OF_STATE, ids=["hashmap", "rocksdb-unaligned"])
def test_a_pipeline_with_a_shuffle_restarts_in_all_slots_beside_another_that_keeps_its_connections_and_state(
    cluster, tmp_path, settings
):
    env = cluster.get_execution_environment({**CHECKPOINTS, **settings})
    for name, faults in (("a", {FAULT: "raise"}), ("b", {})):
        build(env, tmp_path, RECORDS, faults, name, after_a_checkpoint=True, keyed=True)
    client = env.execute_async("shuffles")
    client.wait(60_000)
    tasks = client._handle.describe()["tasks"]
    assert sorted({task["attempt"] for task in tasks}) == [0, 1] and len([t for t in tasks if t["attempt"]]) == 6
    for name in "ab":
        check_exact(tmp_path, RECORDS, name)
        check_numbers(tmp_path, name)
    for subtask in range(PARALLELISM):
        check_left_alone(tmp_path, subtask, "b")
        assert [attempt for attempt, _ in opened(tmp_path, "a")[subtask]] == [0, 1]


def test_a_killed_slot_restarts_each_pipeline_that_had_a_task_in_it(cluster, tmp_path):
    run(cluster, tmp_path, CHECKPOINTS, ("a", {FAULT: "kill-slot"}), ("b", {}))
    for name in "ab":
        check_exact(tmp_path, RECORDS, name)
        check_left_alone(tmp_path, 0, name)
        check_left_alone(tmp_path, 2, name)
        assert len(opened(tmp_path, name)[1]) == 2


def test_several_regions_fail_at_the_same_time_and_one_after_the_other(cluster, tmp_path):
    faults = {50: "raise", 250: "kill-slot", 350: "raise", 550: "kill-slot"}
    job = run(cluster, tmp_path, CHECKPOINTS, ("a", faults), after_a_checkpoint=False)
    check_exact(tmp_path, RECORDS)
    check_left_alone(tmp_path, 2)
    assert job["restarts"] >= 2


def test_the_failover_strategy_full_restarts_all(cluster, tmp_path):
    job = run(cluster, tmp_path, {**CHECKPOINTS, "jobmanager.execution.failover-strategy": "full"}, ("a", {FAULT: "raise"}))
    check_exact(tmp_path, RECORDS)
    assert attempts(job) == {0: {1}, 1: {1}, 2: {1}}
    assert {subtask: len(times) for subtask, times in opened(tmp_path).items()} == {0: 2, 1: 2, 2: 2}


def test_a_job_with_a_shuffle_is_one_region_and_restarts_as_a_whole(cluster, tmp_path):
    (tmp_path / "faults").write_text("350 raise\n")
    env = cluster.get_execution_environment(CHECKPOINTS)
    recovery_program.build(env, tmp_path, RECORDS)
    client = env.execute_async("counting")
    client.wait(60_000)
    assert attempts(client._handle.describe()) == {0: {1}, 1: {1}, 2: {1}}
    assert recovery_program.published(tmp_path) == recovery_program.expected(RECORDS)
