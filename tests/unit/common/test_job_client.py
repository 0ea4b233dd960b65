import pickle
import asyncio
import threading

import pytest

from flinkish.common.accumulators import IntCounter
from flinkish.common import CompletableFuture, JobClient, JobExecutionResult, JobStatus
from flinkish.errors import JobCancelledError


class Handle:
    """A job that ends when it is told to."""

    job_id = "ab" * 16

    def __init__(self):
        self.over = threading.Event()
        self.state = JobStatus.RUNNING

    def status(self):
        return self.state

    def cancel(self):
        self.state = JobStatus.CANCELED
        self.over.set()

    def finish(self):
        self.state = JobStatus.FINISHED
        self.over.set()

    def wait(self, timeout_s=None):
        if not self.over.wait(timeout_s):
            raise TimeoutError
        if self.state is JobStatus.CANCELED:
            raise JobCancelledError("cancelled")
        return JobExecutionResult(self.job_id, 5, {"count": 3})

    def take_savepoint(self, directory=None):
        return CompletableFuture.completed(f"savepoint below {directory}")

    def take_checkpoint(self):
        return CompletableFuture.completed("checkpoint")

    def stop(self, drain, directory=None):
        return CompletableFuture.completed(f"{'drained' if drain else 'suspended'}, savepoint below {directory}")

    def metrics(self):
        return {"task": {"numRecordsIn": 1}}

    def accumulators(self):
        return {"task 0": pickle.dumps({"count": IntCounter(1)}), "task 1": pickle.dumps({"count": IntCounter(2)})}


def test_a_finished_job_gives_its_result_both_ways():
    handle = Handle()
    client = JobClient(handle)
    assert client.get_accumulators().result(10_000) == {"count": 3}  # of a job that runs, too
    future = client.get_job_execution_result()
    assert not future.done() and client.status is JobStatus.RUNNING
    handle.finish()
    assert future.result("10 s").get_net_runtime() == client.wait(10_000).get_net_runtime() == 5
    assert client.wait(10_000).get_all_accumulator_results() == {"count": 3}
    assert str(client.get_job_id()) == handle.job_id
    assert client.get_job_status().result() is JobStatus.FINISHED


def test_the_future_of_cancel_is_done_when_the_job_is_over():
    handle = Handle()
    client = JobClient(handle)
    assert client.cancel().result(10_000) is None
    assert client.status is JobStatus.CANCELED
    with pytest.raises(JobCancelledError):
        client.wait(10_000)


def test_waiting_no_longer_than_the_timeout_raises_and_leaves_the_job_running():
    client = JobClient(Handle())
    with pytest.raises(TimeoutError):
        client.wait(1)
    assert client.status is JobStatus.RUNNING


def test_savepoints_are_futures_of_the_job():
    client = JobClient(Handle())
    assert client.trigger_savepoint("/x").result() == "savepoint below /x"
    assert client.trigger_checkpoint().result() == "checkpoint"
    assert client.stop_with_savepoint(True).result() == "drained, savepoint below None"


def test_a_future_hands_over_results_errors_and_timeouts():
    future = CompletableFuture()
    seen = []
    future.add_done_callback(seen.append)
    with pytest.raises(TimeoutError):
        future.result(1)
    future.set_result(7)
    assert future.result() == 7 and seen == [future] and future.exception() is None
    failed = CompletableFuture.run_async(lambda: 1 / 0)
    assert isinstance(failed.exception(10_000), ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        failed.result()


def test_a_future_can_be_awaited():
    async def wait():
        return await CompletableFuture.run_async(lambda: 3)

    assert asyncio.run(wait()) == 3


def test_only_three_states_are_the_end_for_good():
    ends = {status.name for status in JobStatus if status.is_globally_terminal_state()}
    assert ends == {"FAILED", "CANCELED", "FINISHED"}
    assert JobStatus.SUSPENDED.is_terminal_state() and not JobStatus.RESTARTING.is_terminal_state()
