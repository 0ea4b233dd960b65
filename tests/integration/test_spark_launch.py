"""Slots in real Spark: local, and local-cluster with executors in processes of their own."""

from __future__ import annotations

import itertools
import os
import signal

import pytest

from flinkish.common.job_status import JobStatus
from flinkish.datastream import StreamExecutionEnvironment
from flinkish.errors import ExternalError, NotEnoughSlotsError, UserFunctionError
from spark_plugin.launcher import BarrierLauncher
from spark_plugin.session_cluster import SessionCluster

pytestmark = [pytest.mark.launch, pytest.mark.usefixtures("no_jobs_left")]

#: A busy machine takes long to start executors.
PATIENT = {"slot.request.timeout": "180 s"}


def environment(spark, parallelism):
    env = StreamExecutionEnvironment.get_execution_environment(PATIENT, spark=spark)
    env.set_parallelism(parallelism)
    return env


def count_words(env):
    words = ["to", "be", "or", "not", "to", "be"] * 50
    counts = (
        env.from_collection(words)
        .map(lambda word: (word, 1))
        .key_by(lambda pair: pair[0])
        .reduce(lambda a, b: (a[0], a[1] + b[1]))
    )
    with counts.execute_and_collect() as results:
        return dict(results)  # the last count of each word


def endless(env, parallelism=2):
    """A stream that runs until it is cancelled; gives each number together with its slot's pid."""
    import os

    return env.from_sequence(0, 2**62).map(lambda number: (number, os.getpid())).set_parallelism(parallelism)


@pytest.mark.parametrize("master", ["local[2]", "local[4]", "local-cluster[2,1,1024]"])
def test_a_job_with_a_shuffle_runs_in_two_slots(spark_of_tests, master):
    counts = count_words(environment(spark_of_tests.context_for(master), 2))
    assert counts == {"to": 100, "be": 100, "or": 50, "not": 50}


def test_more_slots_than_cores_are_refused_with_both_numbers(spark_of_tests):
    env = environment(spark_of_tests.context_for("local[2]"), 3)
    env.from_sequence(1, 10).rebalance().map(lambda n: n).print()
    with pytest.raises(NotEnoughSlotsError) as caught:
        env.execute()
    assert (caught.value.fields["needed"], caught.value.fields["available"]) == (3, 2)
    assert "needs 3 slots, the cluster has 2" in str(caught.value)


def test_a_dataframe_job_runs_while_a_stream_runs(spark_of_tests):
    from pyspark.sql import SparkSession

    context = spark_of_tests.context_for("local[4]")
    spark = SparkSession.builder.getOrCreate()
    with endless(environment(context, 2)).execute_and_collect() as results:
        assert len(list(itertools.islice(results, 1_000))) == 1_000  # it runs
        assert spark.range(1_000).selectExpr("sum(id)").first()[0] == 499_500
        assert len(list(itertools.islice(results, 10_000))) == 10_000  # still


def test_a_user_exception_shows_the_users_traceback_first_and_spark_lives_on(spark_of_tests):
    context = spark_of_tests.context_for("local[4]")

    def invert(number):
        return 1 // number

    env = environment(context, 2)
    env.from_collection([2, 1, 0]).map(invert).print()
    with pytest.raises(UserFunctionError) as caught:
        env.execute()
    lines = str(caught.value).splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "ZeroDivisionError" in str(caught.value)
    assert "0" in lines[-1] and "subtask" in lines[-1]
    assert count_words(environment(context, 2))["to"] == 100


def test_a_session_runs_jobs_after_and_beside_each_other_and_one_failure_stays_alone(spark_of_tests):
    context = spark_of_tests.context_for("local[4]")
    with SessionCluster(context, slots=3, configuration=PATIENT) as cluster:
        env = cluster.get_execution_environment({"parallelism.default": "1"})
        assert count_words(env)["be"] == 100
        with endless(env, 1).execute_and_collect() as running:
            first = list(itertools.islice(running, 100))
            env.from_collection([1]).map(lambda n: n // 0).print()
            with pytest.raises(UserFunctionError):
                env.execute()
            assert count_words(env)["be"] == 100
            later = list(itertools.islice(running, 20_000))
            assert {pid for _, pid in first} == {pid for _, pid in later}, "its slot was restarted"


def test_jobs_of_one_application_share_the_slots_of_its_session(spark_of_tests):
    from flinkish.shell import executor

    context = spark_of_tests.context_for("local[3]")
    env = StreamExecutionEnvironment.get_execution_environment(
        {**PATIENT, "execution.target": "spark-session", "parallelism.default": "2"}, spark=context
    )
    assert count_words(env)["to"] == 100
    group_jobs = len(context.statusTracker().getActiveJobsIds())
    assert count_words(env)["to"] == 100
    assert group_jobs == len(context.statusTracker().getActiveJobsIds()) == 1
    executor._sessions[context.applicationId].close()


def test_a_killed_spark_worker_ends_the_job_with_a_readable_cause(spark_of_tests):
    context = spark_of_tests.context_for("local[4]")
    env = environment(context, 2)

    def worker(number):
        """The Spark worker that supervises the slot: the parent of the server that has forked it."""
        import os
        from pathlib import Path

        return int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])

    job = env.from_sequence(0, 2**62).map(worker)
    with job.execute_and_collect() as results:
        os.kill(next(results), signal.SIGKILL)
        # Whichever is seen first: the lost worker, or its stage that Spark ends.
        with pytest.raises(ExternalError) as caught:
            for _ in results:
                pass
    assert "\tat " not in str(caught.value), "frames of the JVM"
    assert count_words(environment(context, 2))["to"] == 100


def test_a_cancelled_job_gives_the_cores_back(spark_of_tests):
    context = spark_of_tests.context_for("local[2]")
    endless_job = endless(environment(context, 2))
    endless_job.print()
    client = endless_job.environment.execute_async("endless")
    client.cancel().result(60_000)
    assert client.status is JobStatus.CANCELED
    assert context.parallelize(range(10), 2).sum() == 45


def test_what_a_launch_waits_for_is_told(spark_of_tests):
    context = spark_of_tests.context_for("local[2]")
    launcher = BarrierLauncher(context, 2)
    assert launcher.describe_waiting() == ""
    assert launcher.capacity() == 2
    assert launcher.advertised_hosts() == ["127.0.0.1"]
    with SessionCluster(context, slots=1, configuration=PATIENT) as cluster:
        env = cluster.get_execution_environment()
        assert count_words(env)["or"] == 50  # its slot holds one of two cores
        beside = StreamExecutionEnvironment.get_execution_environment(
            {"slot.request.timeout": "5 s"}, spark=context
        )
        beside.set_parallelism(2)
        beside.from_sequence(1, 10).rebalance().map(lambda n: n).print()
        with pytest.raises(NotEnoughSlotsError) as caught:
            beside.execute()
    assert "2 Spark tasks must start together" in caught.value.why
    assert 'of "flinkish: 1 task(s) that carry slots" runs 1' in caught.value.why, "who holds the core"
