"""Several jobs on one cluster: after each other, beside each other, one of them failing."""

import pytest

from flinkish.common.job_status import JobStatus
from flinkish.errors import JobCancelledError, NotEnoughSlotsError, UserFunctionError
from flinkish.testing.mini_cluster import MiniCluster


CLUSTER = {"slots": 3, "configuration": {"slot.request.timeout": "20 s"}}


def environment(cluster, parallelism=1):
    return cluster.get_execution_environment({"parallelism.default": parallelism})


def forever(env, function=lambda n: n):
    env.from_sequence(1, 2**60).map(function).filter(lambda n: n < 0).print()
    return env.execute_async("forever")


def slot_pids(cluster, client):
    return {slot["pid"] for slot in cluster.describe()["slots"] if slot["job"] == client.job_id}


def end(client):
    client.cancel().result()
    assert client.status is JobStatus.CANCELED


def test_jobs_run_after_each_other_each_in_fresh_processes(cluster, collect):
    def process_id(number):
        import os

        return os.getpid()

    seen = [set(collect(environment(cluster, 3).from_sequence(1, 3).map(process_id))) for _ in range(2)]
    assert len(seen[0]) == len(seen[1]) == 3
    assert not seen[0] & seen[1], "modules and threads of a job do not reach the next"


def test_a_job_that_fails_leaves_the_one_beside_it_alone(cluster, collect):
    client = forever(environment(cluster))
    env = environment(cluster, 2)
    env.from_sequence(1, 10).map(lambda n: 1 // (n - 7)).print()
    with pytest.raises(UserFunctionError, match="ZeroDivisionError"):
        env.execute()
    before = slot_pids(cluster, client)
    assert sorted(collect(environment(cluster, 2).from_sequence(1, 5))) == [1, 2, 3, 4, 5]
    assert client.status is JobStatus.RUNNING and slot_pids(cluster, client) == before
    end(client)


def test_a_job_waits_for_the_slots_of_another(cluster):
    client = forever(environment(cluster, 3))
    env = environment(cluster, 2)
    env.from_sequence(1, 5).print()
    waiting = env.execute_async("waiting")
    with pytest.raises(TimeoutError):
        waiting.wait(200)
    end(client)
    assert waiting.wait(20_000).job_name == "waiting"


def test_a_job_that_waits_can_be_cancelled(cluster):
    client = forever(environment(cluster, 3))
    waiting = forever(environment(cluster, 1))
    end(waiting)
    with pytest.raises(JobCancelledError):
        waiting.wait()
    assert client.status is not JobStatus.CANCELED
    end(client)


def test_a_job_that_waits_too_long_is_told_who_holds_the_slots(bell):
    with MiniCluster(slots=1, configuration={"slot.request.timeout": "10 s"}) as cluster:
        client = forever(environment(cluster), bell.at_first_record())
        bell.wait()
        env = environment(cluster)
        env.from_sequence(1, 5).print()
        with pytest.raises(NotEnoughSlotsError) as refused:
            env.execute()
        assert f'1 held by job "forever" ({client.job_id})' in refused.value.why
        assert client.status is JobStatus.RUNNING
