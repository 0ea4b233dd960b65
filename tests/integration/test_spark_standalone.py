"""Slots on a standalone Spark cluster: a master and two workers in processes of their own."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from flinkish.common.notices import listen
from flinkish.connectors.discarding import DiscardingSink
from flinkish.datastream import StreamExecutionEnvironment
from flinkish.errors import NotEnoughSlotsError, SlotLostError
from flinkish.shell import executor
from flinkish.shell.job_manager import JobManager
from spark_plugin import doctor
from spark_plugin.session_cluster import SessionCluster
from tests.integration.spark_servers import FAST_START
from tests.integration.waiting import wait_until

PATIENT = {"slot.request.timeout": "180 s"}  # a busy machine takes long to start executors


@pytest.fixture
def heard():
    """Notices to the user."""
    notices = []
    listen(notices.append)
    yield notices
    listen(None)


@pytest.fixture
def spark(standalone, spark_of_tests):
    return spark_of_tests.context_for(
        standalone.url,
        executor_extraJavaOptions=FAST_START,
        driver_extraJavaOptions=FAST_START,
        driver_host=standalone.master_host.address,
        executor_memory="512m",
        cores_max=4,
    )


def executors_of(context):
    """Pids of the JVMs."""
    parents = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended meanwhile
        if context.applicationId in line and any(word.endswith("CoarseGrainedExecutorBackend") for word in line):
            parents[int(process.name)] = parent
    # A child of theirs looks alike before it runs its own program.
    return [pid for pid, parent in parents.items() if parent not in parents]


def count_words(env):
    pairs = env.from_collection(["to", "be", "or", "not", "to", "be"] * 50).map(lambda word: (word, 1))
    with pairs.key_by(lambda pair: pair[0]).reduce(
        lambda a, b: (a[0], a[1] + b[1])
    ).execute_and_collect() as results:
        return dict(results)  # the last count of each word


def environment(spark, **settings):
    return StreamExecutionEnvironment.get_execution_environment(
        {**PATIENT, **{key.replace("_", "."): value for key, value in settings.items()}}, spark=spark
    )


@pytest.mark.launch
def test_the_first_job_waits_for_all_executors_so_its_session_gets_every_slot_but_one(
    spark, no_jobs_left, monkeypatch
):
    monkeypatch.setattr("spark_plugin.session.NEXT_EXECUTOR_S", 120)  # a busy machine starts them far apart
    env = environment(spark, execution_target="spark-session")
    assert count_words(env) == {"to": 100, "be": 100, "or": 50, "not": 50}
    session = executor._sessions[spark.applicationId]
    try:
        assert session.slots == 3
    finally:
        session.close()


@pytest.mark.launch
def test_the_end_of_a_job_gives_the_cores_back(spark, no_jobs_left):
    env = environment(spark, parallelism_default=2)
    assert count_words(env) == {"to": 100, "be": 100, "or": 50, "not": 50}


def test_the_doctor_finds_that_jobs_run_here(spark, no_jobs_left):
    findings = doctor.examine(spark, timeout_s=60)
    assert {line.status for line in findings.lines} == {"ok"}, findings
    assert f"standalone, master {spark.master}" in findings.of("Spark").found
    assert findings.of("task slots").found == "4 free of 4"
    assert "12 connections between 4 tasks" in findings.of("slot to slot").found


def test_a_job_that_waits_for_an_executor_that_is_gone_says_why(spark, heard, monkeypatch, no_jobs_left):
    monkeypatch.setattr(JobManager, "wait_notice_ms", 1_000)
    stopped, *others = executors_of(spark)
    assert len(others) == 1
    env = environment(spark, parallelism_default=3)
    env.from_sequence(1, 100).rebalance().map(str).sink_to(DiscardingSink())
    os.kill(stopped, signal.SIGSTOP)  # Spark knows of a silent executor after two minutes only
    try:
        client = env.execute_async("waits")
        wait_until(lambda: heard, "a notice", 60)
    finally:
        os.kill(stopped, signal.SIGCONT)
    client.wait(120_000)
    (notice,) = heard
    assert notice.startswith('Job "waits" waits: it needs 3 slots, the cluster has 3 slots: '), notice
    assert "not registered yet; the launch waits: Spark says that all 3 tasks run" in notice
    assert "spark.network.timeout (120s)" in notice


def test_more_slots_than_the_workers_have_cores_are_refused_with_both_numbers(spark, no_jobs_left):
    with pytest.raises(NotEnoughSlotsError) as refused:
        SessionCluster(spark, slots=5, configuration=PATIENT)
    assert (refused.value.fields["needed"], refused.value.fields["available"]) == (5, 4)


def test_a_slot_is_replaced_while_a_dataframe_job_takes_all_other_cores(spark, bell, tmp_path, no_jobs_left):
    from pyspark.sql import SparkSession

    started, go = str(tmp_path / "started"), str(tmp_path / "go")
    for path in (started, go):
        os.mkfifo(path)
    started_end, go_end = os.open(started, os.O_RDWR), os.open(go, os.O_RDWR)

    def at_leisure(number):  # the cores are for the others
        time.sleep(0.01)
        return number

    def wait_for_the_test(batches):
        with open(started, "wb", buffering=0) as pipe:
            pipe.write(b"x")
        with open(go, "rb", buffering=0) as pipe:
            pipe.read(1)
        yield from batches

    with SessionCluster(spark, slots=2, configuration=PATIENT) as cluster:
        env = cluster.get_execution_environment()
        numbers = env.from_sequence(0, 2**62).map(at_leisure)
        numbers.rebalance().map(bell.at_first_record()).sink_to(DiscardingSink())
        client = env.execute_async()
        bell.wait(2)
        session = SparkSession.builder.getOrCreate()
        frame = session.range(0, 100, 1, 4).mapInArrow(wait_for_the_test, "id long")
        counts = []
        dataframe_job = threading.Thread(target=lambda: counts.append(frame.count()))
        dataframe_job.start()
        try:
            assert os.read(started_end, 1) + os.read(started_end, 1) == b"xx"  # two more tasks wait for cores
            victim = cluster.describe()["slots"][0]
            os.kill(victim["pid"], signal.SIGKILL)
            with pytest.raises(SlotLostError) as lost:
                client.wait(60_000)
            assert lost.value.what == f"lost slot {victim['id']}" and "SIGKILL" in lost.value.why
            assert count_words(cluster.get_execution_environment()) == {"to": 100, "be": 100, "or": 50, "not": 50}
            assert victim["pid"] not in {slot["pid"] for slot in cluster.describe()["slots"]}
            assert dataframe_job.is_alive() and not counts
        finally:
            os.write(go_end, b"xxxx")
            dataframe_job.join(60)
        assert counts == [100]
    os.close(started_end)
    os.close(go_end)
