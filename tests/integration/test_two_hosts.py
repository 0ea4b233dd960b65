"""Slots on two hosts: workers of a standalone cluster in network namespaces of their own, the driver and the
master in a third."""

from __future__ import annotations

import contextlib
import time

import pytest

from tests.integration.driver_process import SUM, Driver
from tests.integration.leftovers import connections, listening_sockets, marked, still_listening
from tests.integration.network_hosts import Network
from tests.integration.spark_servers import StandaloneCluster
from tests.integration.waiting import wait_until

HEARTBEAT_TIMEOUT_S = 3


@pytest.fixture
def network():
    with Network("driver", "left", "right") as network:
        yield network


@pytest.fixture
def driver(network, tmp_path):
    workers = [network["left"], network["right"]]
    with StandaloneCluster(tmp_path / "spark", network["driver"], workers, cores=1) as cluster:
        configuration = {"heartbeat.interval": "500 ms", "heartbeat.timeout": f"{HEARTBEAT_TIMEOUT_S} s"}
        driver = Driver(cluster.url, tmp_path, network["driver"], configuration)
        yield driver
        driver.kill_rest()


def host_of(place):
    return place.rpartition(":")[0]


def test_slots_talk_over_the_network_and_a_host_that_is_cut_off_costs_the_job_and_cancels_itself(network, driver):
    driver.hear("application")
    assert driver.hear("sum") == SUM
    slots = {network.host_of_process(pid): pid for pid in driver.hear("slots")}
    assert slots.keys() == {"left", "right"}

    # Each listens where its peers need it, and nowhere else.
    addresses = {name: network[name].address for name in network.names}
    for name, pid in slots.items():
        tcp, unix = sorted(listening_sockets([pid]), key=lambda place: place[0] == "@")
        assert host_of(tcp) == addresses[name] and unix.startswith("@flinkish-")
    of_driver = {host_of(place) for place in listening_sockets([driver.process.pid])}
    assert of_driver == {addresses["driver"], "127.0.0.1"}, "the JobManager, and PySpark's accumulators"
    peers = {host_of(peer) for _, peer in connections(slots["left"])}
    assert peers == {addresses["driver"], addresses["right"]}

    places = listening_sockets([slots["right"]])
    assert slots["right"] in own_processes(network, driver)
    network.cut_off("right")
    cut_s = time.monotonic()
    error = driver.hear("error")
    assert time.monotonic() - cut_s < 3 * HEARTBEAT_TIMEOUT_S
    assert "its supervisor on right (executor " in error and "no heartbeat for" in error, error
    wait_until(lambda: not own_processes(network, driver), "the end of what is cut off", HEARTBEAT_TIMEOUT_S + 10)
    assert not still_listening(places, network.proc_net("right"))


def own_processes(network, driver):
    """Of flinkish on the host "right": Spark's executor knows nothing of a cut for two minutes."""
    found = []
    for pid, command in marked(driver.mark).items():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            if network.host_of_process(pid) == "right" and "flinkish.shell" in command:
                found.append(pid)
    return found
