"""Slots, Python workers, executors and drivers that are killed, on local-cluster and on a standalone cluster:
the reason is said, the session goes on, and nothing is left."""

from __future__ import annotations

import glob
import os
import shutil
import signal

import pytest

from flinkish.rest.registration import run_folder
from tests.integration.driver_process import SUM, Driver
from tests.integration.leftovers import carrier, listening_sockets, marked, still_listening
from tests.integration.spark_servers import SPARK_HOME
from tests.integration.waiting import wait_until


class LocalCluster:
    """Master and workers in the driver's JVM, executors in processes of their own."""

    url = "local-cluster[2,1,1024]"

    def applications(self):
        return set()

    def executor_logs(self, application):
        """What the executors of an application wrote to stderr; they do it into Spark's own folder."""
        folder = SPARK_HOME / "work" / application
        text = "".join(path.read_text() for path in sorted(folder.glob("*/stderr")))
        shutil.rmtree(folder)
        return text


@pytest.fixture
def spark(request):
    return request.getfixturevalue("standalone") if request.param == "standalone" else LocalCluster()


@pytest.fixture
def driver(spark, tmp_path):
    driver = Driver(spark.url, tmp_path)
    yield driver
    driver.kill_rest()


REASON_OF_LOSS = {"slot": "SIGKILL", "worker": "its supervisor on ", "executor": "its supervisor on "}


@pytest.mark.parametrize(
    "spark, victim, end",
    [
        pytest.param("local-cluster", "slot", signal.SIGINT, marks=pytest.mark.soak),
        pytest.param("local-cluster", "worker", signal.SIGTERM, marks=pytest.mark.soak),
        ("local-cluster", "executor", signal.SIGKILL),
        pytest.param("standalone", "slot", signal.SIGINT, marks=pytest.mark.soak),
        ("standalone", "worker", signal.SIGTERM),
        pytest.param("standalone", "executor", signal.SIGKILL, marks=pytest.mark.soak),
    ],
    indirect=["spark"],
)
def test_a_killed_process_costs_one_job_and_a_killed_driver_leaves_nothing(driver, spark, victim, end):
    application = driver.hear("application")
    assert driver.hear("sum") == SUM
    slots = driver.hear("slots")
    assert len(set(slots)) == 2
    killed = carrier(slots[0], victim)
    os.kill(killed, signal.SIGKILL)
    error = driver.hear("error")
    assert error.startswith("lost slot ") and REASON_OF_LOSS[victim] in error, error
    assert driver.hear("sum") == SUM, "the next job of the session"
    assert not {killed, *slots} & marked(driver.mark).keys()

    slots = driver.hear("slots")
    processes = marked(driver.mark)
    places = listening_sockets(processes)
    assert set(slots) < processes.keys() and still_listening(places) == places
    driver.process.send_signal(end)
    assert driver.process.wait(30) == -end
    wait_until(lambda: not marked(driver.mark), "the end of all processes")
    wait_until(lambda: not still_listening(places), "the end of all sockets")
    wait_until(lambda: application not in spark.applications(), "the end of the application")
    wait_until(lambda: not os.listdir(driver.temporary), f"an empty {driver.temporary}")
    wait_until(lambda: not glob.glob(f"{run_folder()}/{driver.process.pid}-*"), "the end of the file that names it")
    # A JVM that is killed leaves its own folders there.
    assert not list(driver.temporary_of_executors.rglob("*flinkish*"))
    executor_logs = spark.executor_logs(application)
    if end == signal.SIGINT:
        assert "KeyboardInterrupt" in driver.errors()
    else:
        assert "supervisor ends task=0 reason='lost the JobManager: " in executor_logs
    assert "closed in order" in executor_logs, "user functions"


@pytest.mark.parametrize("spark", ["local-cluster"], indirect=True)
def test_ctrl_c_while_spark_starts_leaves_no_jvm(driver):
    wait_until(lambda: any("pyspark-shell" in command for command in marked(driver.mark).values()), "a JVM")
    driver.process.send_signal(signal.SIGINT)
    assert driver.process.wait(30) == -signal.SIGINT
    wait_until(lambda: not marked(driver.mark), "the end of all processes")
    assert "KeyboardInterrupt" in driver.errors()


INTERRUPTED_START = """
import signal
from pyspark import SparkContext
from spark_plugin import session

def start():
    return session.get_or_create_context(1, {"flinkish.spark.master": "local[2]"})

def made_and_interrupted(self, conf):
    initialize(self, conf)  # the JVM has its context now, and Python does not know it yet
    signal.raise_signal(signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
initialize, SparkContext._initialize_context = SparkContext._initialize_context, made_and_interrupted
try:
    start()
except KeyboardInterrupt:
    SparkContext._initialize_context = initialize
    print(start().parallelize([1, 2], 1).sum())
session.shut_down()
"""


@pytest.mark.soak
def test_spark_starts_again_after_a_ctrl_c_during_its_start(run_python):
    run = run_python("-c", INTERRUPTED_START)
    assert run.returncode == 0 and run.stdout.splitlines()[-1:] == ["3"], run.stderr
