"""The five figures of backpressure point at the culprit."""

import socket
import time

import pytest

from flinkish.connectors.discarding import DiscardingSink
from flinkish.datastream.functions import MapFunction
from flinkish.metrics import names
from tests.integration.running_jobs import end, figures_by_task
from tests.integration.waiting import wait_until

CLUSTER = {"slots": 3}


class Slow(MapFunction):
    """``how``: by waiting for something else, or by work of its own; 2 ms a record."""

    def __init__(self, how):
        self.how = how

    def map(self, value):
        if self.how == "sleeps":
            time.sleep(0.002)
        else:
            until = time.thread_time() + 0.002
            while time.thread_time() < until:
                pass
        return value


def watch(cluster, client, settled):
    """The figures of the first two reports in a row that are ``settled``; of all reports the times of each
    subtask must add up to a second."""
    reports = [{}]

    def found():
        now = figures_by_task(cluster, client)
        if now and now != reports[-1]:
            reports.append(now)
            for figures in now.values():
                assert 998 <= sum(times(figures)) <= 1_002, figures
        return len(reports) > 2 and settled(reports[-1]) and settled(reports[-2])

    try:
        wait_until(found, "the figures settle")
    except AssertionError as error:
        last = [{name: shown(each) for name, each in report.items()} for report in reports[-3:]]
        raise AssertionError(f"{error}\n{last}") from None
    return reports[-1]


def times(figures):
    return [
        figures[name] for name in (names.TASK_BUSY_TIME, names.TASK_IDLE_TIME, names.TASK_BACK_PRESSURED_TIME)
    ]


def shown(figures):
    return (*times(figures), figures[names.IN_POOL_USAGE], figures[names.OUT_POOL_USAGE])


@pytest.mark.parametrize("slots, how", [(1, "sleeps"), (3, "computes")])
def test_a_slow_operator_in_the_middle_is_the_one_that_is_busy_with_a_full_input(cluster, slots, how):
    """Source and map before it are back-pressured with full outputs, what follows it is idle: when each stage
    has a slot of its own, and when all share one thread."""
    env = cluster.get_execution_environment({"parallelism.default": 1})
    group = "{}" if slots > 1 else "one"
    numbers = env.from_sequence(1, 1 << 60).name("source").slot_sharing_group(group.format("first"))
    before = numbers.rebalance().map(lambda n: n).name("before")
    slow = before.rebalance().map(Slow(how)).name("slow").slot_sharing_group(group.format("second"))
    after = slow.rebalance().map(lambda n: n).name("after").slot_sharing_group(group.format("third"))
    after.sink_to(DiscardingSink()).name("sink")
    client = env.execute_async()

    def settled(figures):
        task = {name.split(" -> ")[0].removeprefix("Source: "): each for name, each in figures.items()}
        if set(task) != {"source", "before", "slow", "after"}:
            return False
        for name in ("source", "before"):
            if task[name][names.TASK_BACK_PRESSURED_TIME] < 900 or task[name][names.OUT_POOL_USAGE] < 0.9:
                return False
        return (
            task["slow"][names.TASK_BUSY_TIME] > 900
            and task["slow"][names.IN_POOL_USAGE] >= 0.75
            and task["slow"][names.OUT_POOL_USAGE] < 0.1
            and task["after"][names.TASK_IDLE_TIME] > 900
            and task["after"][names.IN_POOL_USAGE] < 0.1
        )

    watch(cluster, client, settled)
    end(client)


def test_a_subtask_without_input_is_idle_and_one_that_waits_for_the_thread_of_its_slot_is_busy(cluster):
    """Three sources share a thread: one hogs it, one has always something to do, one is silent."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        env = cluster.get_execution_environment({"parallelism.default": 1})
        hog = env.from_sequence(1, 1 << 60).map(Slow("computes")).name("hog")
        diligent = env.from_sequence(1, 1 << 60).map(lambda n: n).name("diligent")
        silence = env.socket_text_stream(*silent.getsockname()).map(lambda n: n).name("silence")
        diligent.sink_to(DiscardingSink())  # in its own chain: it never waits for room
        for stream in (hog, silence):
            stream.rebalance().map(lambda n: n).name("behind").sink_to(DiscardingSink())
        client = env.execute_async()

        def settled(figures):
            source = {name.split(" -> ")[1]: each for name, each in figures.items() if "Source" in name}
            return (
                set(source) == {"hog", "diligent", "silence"}
                and source["hog"][names.TASK_BUSY_TIME] > 900
                and source["diligent"][names.TASK_BUSY_TIME] > 900
                and source["silence"][names.TASK_IDLE_TIME] > 990
            )

        watch(cluster, client, settled)
        end(client)
