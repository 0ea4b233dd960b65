"""Launch mode independent: each supervisor is a Spark job of its own."""

from __future__ import annotations

import os
import signal
import time

import pytest

from flinkish.datastream import StreamExecutionEnvironment
from flinkish.errors import SlotLostError, UnsupportedSparkError
from spark_plugin.session_cluster import SessionCluster
from tests.integration import region_program
from tests.integration.leftovers import carrier
from tests.integration.waiting import wait_until

pytestmark = [pytest.mark.usefixtures("no_jobs_left")]

INDEPENDENT = {"slot.request.timeout": "180 s", "flinkish.launch-mode": "independent"}
REGION_RECORDS = 3_000
REGIONS = {
    "parallelism.default": region_program.PARALLELISM,
    "execution.checkpointing.interval": "100 ms",
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": 10,
    "restart-strategy.fixed-delay.delay": "0 ms",
}
DYNAMIC = {
    "dynamicAllocation_enabled": "true",
    "dynamicAllocation_shuffleTracking_enabled": "true",
    "dynamicAllocation_minExecutors": "0",
    "dynamicAllocation_maxExecutors": "2",
    "dynamicAllocation_executorIdleTimeout": "600s",
}


def slots_of_a_job(env):
    """Runs a job in all slots; gives the pids of their processes."""
    pairs = env.from_sequence(1, 1_000).rebalance().map(lambda number: (number, os.getpid()))
    with pairs.key_by(lambda pair: pair[0] % 7).map(lambda pair: pair).execute_and_collect() as results:
        records = list(results)
    assert sum(number for number, _ in records) == 500_500
    return {pid for _, pid in records}


def supervisors(cluster):
    """Task index -> (pid of the Spark worker, Spark's attempt)."""
    return {each["task"]: (each["pid"], each["attempt"]) for each in cluster.describe()["taskmanagers"]}


def kill_worker(cluster, task):
    """Kill a Spark worker; returns the supervisors after it has been replaced, and the seconds it took."""
    before = supervisors(cluster)
    started_s = time.monotonic()
    os.kill(before[task][0], signal.SIGKILL)
    wait_until(
        lambda: supervisors(cluster).get(task, before[task])[0] != before[task][0]
        and cluster.describe()["slots-available"] == len(before),
        "a new supervisor with a new slot",
        timeout_s=120,
    )
    after = supervisors(cluster)
    assert {key: after[key] for key in before if key != task} == {key: before[key] for key in before if key != task}
    return after, time.monotonic() - started_s


def test_under_dynamic_allocation_a_killed_worker_costs_its_own_slots_only(spark_of_tests):
    context = spark_of_tests.context_for("local-cluster[2,1,1024]", **DYNAMIC)
    with pytest.raises(UnsupportedSparkError) as caught:
        SessionCluster(context, slots=2)
    assert caught.value.what == "could not start slots with dynamic allocation"
    assert "flinkish.launch-mode to independent" in caught.value.do
    with SessionCluster(context, slots=2, configuration=INDEPENDENT) as cluster:
        env = cluster.get_execution_environment()
        assert len(slots_of_a_job(env)) == 2
        wait_until(lambda: cluster.describe()["slots-available"] == 2, "fresh slots", timeout_s=60)
        free = {slot["id"]: slot["pid"] for slot in cluster.describe()["slots"]}
        after, seconds = kill_worker(cluster, 0)
        print(f"a supervisor and its slot were replaced in {seconds:.1f} s")
        assert after[0][1] == 1, "Spark's own retry"
        kept = [pid for slot, pid in free.items() if pid in {each["pid"] for each in cluster.describe()["slots"]}]
        assert len(kept) == 1, "the other slot was not touched"
        assert len(slots_of_a_job(env)) == 2


@pytest.mark.launch
def test_after_sparks_last_retry_the_job_manager_launches_the_supervisor_anew(spark_of_tests):
    context = spark_of_tests.context_for("local[3]")  # where Spark does not retry
    with SessionCluster(context, slots=2, configuration=INDEPENDENT) as cluster:
        env = cluster.get_execution_environment()
        assert len(slots_of_a_job(env)) == 2
        wait_until(lambda: cluster.describe()["slots-available"] == 2, "fresh slots", timeout_s=60)
        after, _ = kill_worker(cluster, 1)
        assert after[1][1] == 0, "a new Spark job"
        assert len(slots_of_a_job(env)) == 2


def test_a_killed_slot_and_then_a_killed_worker_restart_only_the_region_that_had_a_task_there(spark_of_tests, tmp_path):
    context = spark_of_tests.context_for("local[4]")
    settings = {**INDEPENDENT, **REGIONS}
    with SessionCluster(context, slots=3, configuration=settings) as cluster:
        env = cluster.get_execution_environment(settings)
        region_program.build(env, tmp_path, REGION_RECORDS, {REGION_RECORDS // 2: "kill-slot"}, after_a_checkpoint=True)
        client = env.execute_async("regions")
        wait_until(lambda: len(region_program.opened(tmp_path).get(1, ())) == 2, "the killed slot is replaced")
        job = client._handle.describe()
        (slot,) = {task["slot"] for task in job["tasks"] if task["subtask"] == 1}
        (pid,) = [each["pid"] for each in cluster.describe()["slots"] if each["id"] == slot]
        os.kill(carrier(pid, "worker"), signal.SIGKILL)
        client.wait(120_000)
        job = client._handle.describe()
    attempts = {(task["subtask"], task["attempt"]) for task in job["tasks"]}
    assert attempts == {(0, 0), (1, 2), (2, 0)}
    region_program.check_exact(tmp_path, REGION_RECORDS)
    region_program.check_left_alone(tmp_path, 0)
    region_program.check_left_alone(tmp_path, 2)


def test_a_job_whose_supervisor_dies_fails_with_its_cause_and_the_session_goes_on(spark_of_tests):
    context = spark_of_tests.context_for("local[3]")
    with SessionCluster(context, slots=2, configuration=INDEPENDENT) as cluster:
        env = cluster.get_execution_environment()
        with env.from_sequence(0, 2**62).rebalance().map(lambda number: number).execute_and_collect() as results:
            next(results)
            os.kill(supervisors(cluster)[0][0], signal.SIGKILL)
            with pytest.raises(SlotLostError) as caught:
                for _ in results:
                    pass
        assert "supervisor" in caught.value.why
        assert len(slots_of_a_job(env)) == 2


TWO_SLOTS_A_TASK = {**INDEPENDENT, "taskmanager.numberOfTaskSlots": "2"}


@pytest.mark.launch
def test_a_task_supervises_several_slots_of_a_job(spark_of_tests):
    context = spark_of_tests.context_for("local[3]")
    env = StreamExecutionEnvironment.get_execution_environment(
        {**TWO_SLOTS_A_TASK, "flinkish.launch-mode": "barrier"}, spark=context
    )
    env.set_parallelism(4)
    assert len(slots_of_a_job(env)) == 4


@pytest.mark.launch
def test_a_task_supervises_several_slots_of_a_session(spark_of_tests):
    context = spark_of_tests.context_for("local[3]")
    with SessionCluster(context, slots=4, configuration=TWO_SLOTS_A_TASK) as cluster:
        assert len(slots_of_a_job(cluster.get_execution_environment())) == 4
        assert len(supervisors(cluster)) == 2
