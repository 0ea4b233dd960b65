"""Slots on a standalone Spark cluster: a master and two workers in processes of their own."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from flinkish.connectors.discarding import DiscardingSink
from flinkish.errors import NotEnoughSlotsError, SlotLostError
from spark_plugin.session_cluster import SessionCluster
from tests.integration.spark_servers import FAST_START

PATIENT = {"slot.request.timeout": "180 s"}  # a busy machine takes long to start executors


@pytest.fixture
def spark(standalone, spark_of_tests):
    return spark_of_tests.context_for(
        standalone.url,
        executor_extraJavaOptions=FAST_START,
        driver_extraJavaOptions=FAST_START,
        driver_host=standalone.master_host.address,
        executor_memory="512m",
    )


def count_words(env):
    pairs = env.from_collection(["to", "be", "or", "not", "to", "be"] * 50).map(lambda word: (word, 1))
    with pairs.key_by(lambda pair: pair[0]).reduce(
        lambda a, b: (a[0], a[1] + b[1])
    ).execute_and_collect() as results:
        return dict(results)  # the last count of each word


@pytest.mark.launch
def test_the_first_job_waits_for_the_executors_and_its_end_gives_the_cores_back(spark, no_jobs_left):
    from flinkish.datastream import StreamExecutionEnvironment

    env = StreamExecutionEnvironment.get_execution_environment(PATIENT, spark=spark)
    env.set_parallelism(2)
    assert count_words(env) == {"to": 100, "be": 100, "or": 50, "not": 50}


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
