"""Jobs that go on with another parallelism while they run: every record is counted once, and published once."""

import os
import signal

import pytest

from flinkish.common.job_status import JobStatus
from flinkish.datastream import StreamExecutionEnvironment
from flinkish.errors import CheckpointFailedError, FlinkishError, InvalidJobError, NotEnoughSlotsError
from tests.integration.recovery_program import build, counted_without_gap, expected, published
from tests.integration.waiting import wait_until

CLUSTER = {"slots": 3}
RECORDS = 6_000
MODES = ["barrier", pytest.param("independent", marks=pytest.mark.soak)]
SETTINGS = {
    "parallelism.default": 1,
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": 10,
    "restart-strategy.fixed-delay.delay": "0 ms",
}
CHECKPOINTS = {**SETTINGS, "execution.checkpointing.interval": "100 ms"}


def begin(cluster, folder, settings=CHECKPOINTS):
    env = cluster.get_execution_environment(settings)
    build(env, folder, RECORDS)
    client = env.execute_async("rescaled")
    wait_until_it_counts(client, folder)
    return client


def describe(client):
    return client._handle.describe()


def wait_until_it_counts(client, folder):
    before = describe(client)["checkpoints"]["counts"]["completed"]
    wait_until(lambda: describe(client)["checkpoints"]["counts"]["completed"] > before, "a checkpoint")


def tasks_of(client):
    """Vertex name -> how many subtasks run."""
    counts = {}
    for task in describe(client)["tasks"]:
        if task["state"] == "RUNNING":
            counts[task["name"]] = counts.get(task["name"], 0) + 1
    return sorted(counts.values())


def test_a_source_that_has_finished_is_no_obstacle_and_is_not_read_again(cluster, tmp_path):
    seen = tmp_path / "seen"

    def see(value):
        if value < 0:
            with seen.open("a") as out:
                out.write(f"{value}\n")
        return value

    env = cluster.get_execution_environment(CHECKPOINTS)
    short, endless = env.from_collection([-1, -2, -3]).uid("short"), env.from_sequence(0, 10**12).uid("endless")
    short.union(endless).rebalance().map(see).uid("see").filter(lambda value: False).print()
    client = env.execute_async("short and endless")
    wait_until(lambda: describe(client)["status-counts"].get("FINISHED") == 1, "the end of the short source")
    for parallelism in (2, 1):
        client.rescale(parallelism).result(30_000)
        assert tasks_of(client)[-1] == parallelism
    assert sorted(seen.read_text().split()) == ["-1", "-2", "-3"]
    client.cancel().result(30_000)


def test_a_job_goes_from_one_to_three_to_two_slots_and_counts_every_record_once(cluster, tmp_path):
    client = begin(cluster, tmp_path)
    assert tasks_of(client) == [1, 1]
    for parallelism in (3, 2):
        client.rescale(parallelism).result(30_000)
        assert tasks_of(client) == [parallelism, parallelism] and client.status is JobStatus.RUNNING
        wait_until(lambda: cluster.describe()["slots-available"] == 3 - parallelism, "the others are given back")
        wait_until_it_counts(client, tmp_path)
    client.wait(60_000)
    assert published(tmp_path) == expected(RECORDS)
    assert describe(client)["restarts"] == 2 and describe(client)["exceptions"] == []


def test_one_operator_is_rescaled_by_its_uid_and_a_slot_that_dies_then_is_replaced(cluster, tmp_path):
    client = begin(cluster, tmp_path)
    client.rescale({"counts": 2}).result(30_000)
    assert tasks_of(client) == [1, 2]
    held = [slot["pid"] for slot in cluster.describe()["slots"] if slot["job"] == client.job_id]
    os.kill(held[-1], signal.SIGKILL)
    wait_until(lambda: describe(client)["restarts"] == 2, "a restart")
    wait_until(lambda: tasks_of(client) == [1, 2], "all tasks run again")
    client.wait(60_000)
    assert published(tmp_path) == expected(RECORDS)


def test_what_cannot_be_is_refused_and_costs_the_job_nothing(cluster, tmp_path):
    client = begin(cluster, tmp_path)
    with pytest.raises(NotEnoughSlotsError, match="it needs 4 slots, the cluster has 3") as refused:
        client.rescale(4).result(30_000)
    assert refused.value.fields == {"needed": 4, "available": 3}
    with pytest.raises(InvalidJobError, match="its max parallelism is 128"):
        client.rescale(129).result(30_000)
    with pytest.raises(InvalidJobError, match='could not find operator "nobody"'):
        client.rescale({"nobody": 2}).result(30_000)
    client.rescale(1).result(30_000)  # nothing to do
    client.wait(60_000)
    assert published(tmp_path) == expected(RECORDS)
    assert describe(client)["restarts"] == 0
    with pytest.raises(InvalidJobError, match="could not rescale"):
        client.rescale(2).result(30_000)


def test_a_job_without_checkpoints_of_its_own_is_rescaled_too(cluster, tmp_path):
    env = cluster.get_execution_environment(SETTINGS)
    build(env, tmp_path, RECORDS)
    client = env.execute_async("rescaled")
    wait_until(lambda: tasks_of(client) == [1, 1], "all tasks run")
    client.rescale(2).result(30_000)
    client.wait(60_000)
    assert published(tmp_path) == expected(RECORDS)


def test_a_job_that_fails_again_and_again_while_it_is_rescaled_counts_every_record_once(cluster, tmp_path):
    kinds = {n: "kill-slot" if n % 1_000 else "raise" for n in range(500, RECORDS, 700)}
    (tmp_path / "faults").write_text("".join(f"{n} {kind}\n" for n, kind in kinds.items()))
    client = begin(cluster, tmp_path, {**CHECKPOINTS, "restart-strategy.fixed-delay.attempts": 50})
    asked = rescaled = completed = 0

    def goes_on():
        """Else a job that is rescaled all the time gets no further than a few records between two."""
        return client.status.is_terminal_state() or describe(client)["checkpoints"]["counts"]["completed"] > completed + 2

    while not client.status.is_terminal_state():
        asked += 1
        wait_until(goes_on, "checkpoints or the end")
        completed = describe(client)["checkpoints"]["counts"]["completed"]
        try:
            client.rescale(1 + asked % 3).result(30_000)
            rescaled += 1
        except FlinkishError as error:  # it had failed, or did before its checkpoint was complete
            assert isinstance(error, (InvalidJobError, CheckpointFailedError)), error
    client.wait(30_000)
    assert published(tmp_path) == expected(RECORDS)
    assert rescaled >= 3 and describe(client)["restarts"] > rescaled


REACTIVE = {
    **CHECKPOINTS,
    "scheduler-mode": "reactive",
    "jobmanager.adaptive-scheduler.executing.resource-stabilization-timeout": "300 ms",
    "jobmanager.adaptive-scheduler.executing.cooldown-after-rescaling": "0 ms",
}


@pytest.mark.parametrize("parallelism", [1, 5])
def test_a_reactive_job_takes_the_slots_that_there_are(cluster, tmp_path, parallelism):
    """It begins with fewer and takes more, or would like to have more than there are."""
    client = begin(cluster, tmp_path, {**REACTIVE, "parallelism.default": parallelism})
    wait_until(lambda: tasks_of(client) == [3, 3], "a task in each slot")
    with pytest.raises(InvalidJobError, match="scheduler-mode is reactive"):
        client.rescale(2).result(30_000)
    client.wait(60_000)
    assert published(tmp_path) == expected(RECORDS)


@pytest.mark.parametrize("reactive", [False, True])
def test_a_program_on_local_processes_has_the_slots_that_it_says(tmp_path, reactive):
    settings = {**(REACTIVE if reactive else CHECKPOINTS), "execution.target": "mini-cluster"}
    env = StreamExecutionEnvironment.get_execution_environment({**settings, "taskmanager.numberOfTaskSlots": 3})
    build(env, tmp_path, RECORDS)
    client = env.execute_async("rescaled")
    if not reactive:
        wait_until_it_counts(client, tmp_path)
        client.rescale(3).result(30_000)
    wait_until(lambda: tasks_of(client) == [3, 3], "a task in each slot")
    client.wait(60_000)
    assert published(tmp_path) == expected(RECORDS)


@pytest.mark.parametrize("mode", MODES)
def test_on_spark_a_job_gets_more_slots_than_it_was_launched_with(spark_of_tests, no_jobs_left, tmp_path, mode):
    context = spark_of_tests.context_for("local[4]")
    env = StreamExecutionEnvironment.get_execution_environment(
        {**CHECKPOINTS, "flinkish.launch-mode": mode, "slot.request.timeout": "120 s"}, spark=context
    )
    build(env, tmp_path, 1 << 40)  # it goes on until it is stopped, however long the launch takes
    client = env.execute_async("rescaled")
    wait_until(lambda: describe(client)["checkpoints"]["counts"]["completed"] > 0, "a checkpoint", 120)
    with pytest.raises(NotEnoughSlotsError, match="it needs 5 slots, the cluster has 4"):
        client.rescale(5).result(60_000)
    for parallelism in (3, 2):
        client.rescale(parallelism).result(120_000)
        assert tasks_of(client) == [parallelism, parallelism]
        wait_until_it_counts(client, tmp_path)
    client.stop_with_savepoint(False, str(tmp_path / "savepoints")).result(60_000)
    client.wait(120_000)
    assert sum(counted_without_gap(tmp_path).values()) > 100  # however slow the machine
