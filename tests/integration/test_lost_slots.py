"""Slot processes that end under a running job: the job's error says why, from what is really known."""

import contextlib
import os
import resource
import signal
from pathlib import Path

import pytest

from flinkish.connectors.discarding import DiscardingSink
from flinkish.datastream.functions import MapFunction
from flinkish.errors import SlotLostError, UserError, UserFunctionError
from flinkish.taskmanager.output_channel import RemoteOutputChannel
from flinkish.testing.mini_cluster import MiniCluster
from tests.integration.leftovers import ancestors
from tests.integration.waiting import wait_until


def endless_job(cluster, bell, *functions):
    def numbers():
        yield from iter(int, 1)

    env = cluster.get_execution_environment()
    stream = env.add_source(numbers).rebalance().map(bell.at_first_record())
    for function in functions:
        stream = stream.map(function)
    stream.sink_to(DiscardingSink())
    return env.execute_async()


def held(cluster):
    return [slot for slot in cluster.describe()["slots"] if slot["job"]]


def test_a_slot_that_gets_sigterm_from_outside_says_so(cluster, bell):
    client = endless_job(cluster, bell)
    bell.wait(2)
    victim = held(cluster)[1]
    os.kill(victim["pid"], signal.SIGTERM)
    with pytest.raises(SlotLostError) as caught:
        client.wait(20_000)
    error = caught.value
    assert error.what == f"lost slot {victim['id']}" and f"slot process {victim['pid']}" in error.where
    assert "SIGTERM" in error.why and "not by its supervisor" in error.why
    assert "JobManager" not in str(error)


@pytest.mark.parametrize("code", [0, 3, 70])
def test_user_code_that_ends_the_process_is_named_by_the_exit_code(cluster, bell, code):
    client = endless_job(cluster, bell, lambda value: os._exit(code))
    with pytest.raises(SlotLostError, match=f"exit code {code}") as caught:
        client.wait(20_000)
    error = caught.value
    assert "released" not in error.why and "an error of flinkish" not in error.why
    assert "user code ended the process" in error.why and "os._exit" in error.do


class LowersTheLimit(MapFunction):
    """So that a test needs no GiB; in the slot process itself, which ends after the job."""

    def open(self, runtime_context):
        RemoteOutputChannel.payload_bytes_max = 600_000

    def map(self, value):
        return b"x" * (1_000_000 if value >= 5 else 1_000)


def test_a_record_that_is_too_large_for_another_slot_fails_its_task_by_name(cluster):
    env = cluster.get_execution_environment()
    grown = env.from_collection(range(20)).map(LowersTheLimit()).name("grow")
    grown.rebalance().map(len).sink_to(DiscardingSink())
    with pytest.raises(UserError) as caught:
        env.execute()
    error = caught.value
    assert error.what == "could not send a record of type bytes to another slot"
    assert "grow" in error.where and "600000" in error.why


def test_an_exception_with_a_huge_text_is_cut_in_the_middle(cluster):
    def explode(value):
        raise ValueError("begin " + "x" * 30_000_000 + " end")

    env = cluster.get_execution_environment()
    env.from_collection([1]).map(explode).sink_to(DiscardingSink())
    with pytest.raises(UserFunctionError) as caught:
        env.execute()
    text = str(caught.value)
    assert len(text) < 70_000 and "ValueError: begin x" in text and "characters left out" in text
    assert len(caught.value.fields["exception_message"]) < 9_000


def free_slot(cluster):
    return next((slot for slot in cluster.describe()["slots"] if slot["state"] == "FREE"), None)


def descriptors():
    return {path.name: os.readlink(path) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}


def test_a_slot_starts_again_when_there_are_descriptors_again(caplog):
    with contextlib.ExitStack() as filled, MiniCluster(slots=1) as cluster:
        slot = wait_until(lambda: free_slot(cluster), "a slot")
        server = next(ancestors(slot["pid"]))
        # The supervisor has those of a slot from here on, and its successor gets the same.
        first = min(int(number) for number, target in descriptors().items() if "flinkish-dump" in target)
        while (null := os.open(os.devnull, os.O_RDONLY)) < first:
            filled.callback(os.close, null)
        os.close(null)
        before = descriptors().keys()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (first + 3, hard))  # one less than it needs
        try:
            os.kill(slot["pid"], signal.SIGKILL)
            wait_until(lambda: "Too many open files" in caplog.text, "that a slot cannot be started")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        slot = wait_until(lambda: free_slot(cluster), "a slot again")
        assert next(ancestors(slot["pid"])) == server and descriptors().keys() == before
