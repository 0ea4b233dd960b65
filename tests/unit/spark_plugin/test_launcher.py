import logging
import threading
from queue import SimpleQueue

import pytest

from flinkish.errors import ConnectionLostError, ResourceError, SlotLostError, UnsupportedSparkError
from flinkish.messages.launch import SlotLaunch
from spark_plugin.independent_launcher import IndependentLauncher
from spark_plugin.launch_mode import create_launcher
from spark_plugin.launcher import BarrierLauncher, explain_failure
from spark_plugin.spark_errors import fold_spark_error
from spark_plugin.spark_application import SparkApplication
from spark_plugin.supervisor_task import SupervisorEnd

PYTHON_FAILURE = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Could not recover from a failed barrier ResultStage. Most recent failure reason: Stage failed because barrier task ResultTask(0, 1) finished unsuccessfully.
org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 1247, in main
    process()
  File "launcher.py", line 174, in slot_main
    run()
ValueError: no room

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:572)
\tat java.base/java.lang.Thread.run(Thread.java:840)
Caused by: org.apache.spark.SparkException: something deeper
"""


def test_of_a_python_failure_only_the_traceback_is_kept():
    folded = fold_spark_error(PYTHON_FAILURE)
    assert folded.startswith("Traceback (most recent call last):")
    assert folded.endswith("ValueError: no room")
    assert "scala" not in folded


def test_of_a_jvm_failure_the_first_cause_is_kept():
    text = "An error occurred.\n: org.apache.spark.SparkException: Job 3 cancelled because killed\n\tat org.x.Y.z(Y.scala:1)"
    assert fold_spark_error(text) == "Job 3 cancelled because killed"


def test_text_without_a_java_exception_is_kept_by_its_first_line():
    assert fold_spark_error("the connection was closed\nmore") == "the connection was closed"
    assert fold_spark_error("") == "no reason was given"


def test_executors_without_flinkish_are_told_apart():
    error = explain_failure(RuntimeError("ModuleNotFoundError: No module named 'flinkish.shell'\n\tat x"))
    assert isinstance(error, ResourceError)
    assert error.why == "their Python has no module flinkish.shell"
    assert "--py-files" in error.do


def test_sparks_own_refusal_of_dynamic_allocation_is_translated():
    text = "[SPARK-24942]: Barrier execution mode does not support dynamic resource allocation for now."
    assert isinstance(explain_failure(RuntimeError(text)), UnsupportedSparkError)


def test_a_stage_of_a_stopped_spark_is_lost_because_spark_was_stopped():
    error = explain_failure(RuntimeError("Job 0 cancelled because SparkContext was shut down"))
    assert isinstance(error, SlotLostError)
    assert error.why == "Spark was stopped"


def test_a_stage_that_ended_without_a_reason_names_the_interpreter_that_was_to_run_it(monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", "/nowhere/python")
    error = explain_failure(RuntimeError("Stage failed because barrier task ResultTask(0, 0) finished unsuccessfully."))
    assert isinstance(error, SlotLostError)
    assert "/nowhere/python (PYSPARK_PYTHON)" in error.do


UNREACHED = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "supervisor_task.py", line 60, in main
    reason = run_supervisor(launch)
flinkish.errors.ConnectionLostError: could not connect to the JobManager
  where: this machine is worker-3
  why: tried for 10000 ms: 10.0.0.9:4711 (no answer)
  do: check that this machine can reach the driver
"""


def test_executors_that_cannot_reach_the_driver_are_told_with_the_addresses_and_the_advice():
    error = explain_failure(UNREACHED, FakeApplication())
    assert isinstance(error, ConnectionLostError)
    assert str(error).splitlines() == [
        "executors could not reach the JobManager",
        "  where: Spark application app-1; this machine is worker-3",
        "  why: tried for 10000 ms: 10.0.0.9:4711 (no answer)",
        "  do: open the network",
    ]


# ---- a Spark without Spark ----------------------------------------------------------------------


class FakeApplication(SparkApplication):
    """A Spark that has ``slots`` cores.  A run ends when the test says how by ``end``, or when it is
    cancelled; ``steps`` are the answers to whether tasks run, the last one stays."""

    identity, where, reach_advice = "app-1", "Spark application app-1", "open the network"

    def __init__(self, *steps, master="spark://host:7077", slots=4, **settings):
        self.master, self.slots = master, slots
        self.settings = {f"spark.{key.replace('_', '.')}": value for key, value in settings.items()}
        self.steps = list(steps) or [True]
        self.cancelled: list = []  # names of runs
        self.alive = True
        self.started: SimpleQueue = SimpleQueue()  # (launches, queue of ends) of each run
        self.running: dict = {}  # name of a run -> its queue of ends

    def setting(self, key, default=""):
        return self.settings.get(key, default)

    def is_on_this_machine(self):
        return False

    def task_slots(self):
        return self.slots

    def wait_for_task_slots(self, wanted, timeout_ms):
        assert not self.allocates_dynamically(), "executors come only when tasks wait"

    def wait_for_executors(self, tasks, stopping):
        return True

    def run(self, name, launches, together):
        ends: SimpleQueue = SimpleQueue()
        self.running[name] = ends
        self.started.put((launches, ends))
        end = ends.get(timeout=30)
        if isinstance(end, Exception):
            raise end
        return end

    run_tasks = None  # not asked, as run() is replaced

    def runs_tasks(self, name):
        step = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        if step == "end":  # and until its thread has seen it, the run is no idle one
            self._end_all([])
        return step is not False

    def cancel(self, name):
        self.cancelled.append(name)
        self.running[name].put(RuntimeError("Job cancelled"))

    def _end_all(self, how):
        for ends in self.running.values():
            ends.put(how)

    def is_alive(self):
        return self.alive

    def describe_waiting(self, name, tasks):
        return "executors run 1 at once"

    def advertised_hosts(self):
        return ["192.0.2.7"]

    def bind_host(self):
        return "192.0.2.7"


def launches(count):
    return [SlotLaunch("lease", task, (f"slot-{task}",), (), b"secret") for task in range(count)]


def wait_until_over(launcher):
    for thread in threading.enumerate():
        if thread.name.startswith("flinkish-slots-lease"):
            thread.join(30)
            assert not thread.is_alive()


# ---- what is refused, and what is said ----------------------------------------------------------


def test_dynamic_allocation_is_refused_by_name_in_barrier_mode_and_advises_the_other_mode():
    with pytest.raises(UnsupportedSparkError) as caught:
        create_launcher(FakeApplication(dynamicAllocation_enabled="true"), 2)
    assert caught.value.what == "could not start slots with dynamic allocation"
    assert "flinkish.launch-mode to independent" in caught.value.do


def test_independent_mode_goes_with_dynamic_allocation_and_the_cluster_may_grow():
    launcher = create_launcher(
        FakeApplication(dynamicAllocation_enabled="true"), 99, {"flinkish.launch-mode": "independent"}
    )
    assert isinstance(launcher, IndependentLauncher) and launcher.capacity() is None


@pytest.mark.parametrize("mode", ["barrier", "independent"])
def test_speculation_is_refused_by_name(mode):
    with pytest.raises(UnsupportedSparkError, match="speculation") as caught:
        create_launcher(FakeApplication(speculation="true"), 2, {"flinkish.launch-mode": mode})
    assert len(str(caught.value).splitlines()) == 4


def test_local_spark_ignores_both_so_they_are_allowed():
    local = FakeApplication(master="local[4]", dynamicAllocation_enabled="true", speculation="true")
    assert create_launcher(local, 2).capacity() == 4


@pytest.mark.parametrize(
    "slots, per_task, task_slots, task_cpus, on_this_machine, warnings",
    [
        (2, 1, 4, 1, True, []),
        (4, 1, 4, 1, True, ["take every core"]),
        (4, 1, 4, 1, False, []),  # more executors may come
        (2, 2, 4, 1, True, []),  # in one task, and there is a core for each
        (4, 2, 4, 1, True, []),
        (7, 2, 4, 1, True, ["take every core", "slots=7 cores=4 taskmanager.numberOfTaskSlots=2 spark.task.cpus=1"]),
        (5, 3, 4, 1, True, ["slots=5 cores=4 taskmanager.numberOfTaskSlots=3 spark.task.cpus=1"]),
        (4, 2, 2, 2, True, ["take every core"]),
        (3, 3, 1, 2, False, ["slots=3 cores=2 taskmanager.numberOfTaskSlots=3 spark.task.cpus=2"]),
        (0, 2, 1, 1, True, []),  # how many is not known yet
    ],
)
def test_cores_that_slots_share_or_take_from_dataframes_are_said_when_it_is_so(
    caplog, slots, per_task, task_slots, task_cpus, on_this_machine, warnings
):
    application = FakeApplication(slots=task_slots, task_cpus=str(task_cpus))
    application.is_on_this_machine = lambda: on_this_machine
    with caplog.at_level(logging.WARNING):
        IndependentLauncher(application, slots, {"taskmanager.numberOfTaskSlots": str(per_task)})
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == len(warnings)
    for text, part in zip(said, warnings):
        assert part in text


# ---- supervisors that end alone -----------------------------------------------------------------


def test_in_independent_mode_each_supervisor_ends_alone_and_is_launched_again_with_its_lease():
    application = FakeApplication()
    launcher = IndependentLauncher(application, 3)
    launcher.launch(launches(3))
    runs = {}
    for _ in range(3):
        (launch,), ends = application.started.get(timeout=30)
        runs[launch.task_index] = ends
    assert launcher.take_ended() == [] and launcher.alive()
    runs[1].put(RuntimeError("Job aborted\n: org.apache.spark.SparkException: Task failed 4 times"))
    runs[2].put([SupervisorEnd(2, "lost the JobManager: no heartbeat", failed=False)])
    ended = []
    deadline = threading.Event()
    while len(ended) < 2 and not deadline.wait(0.001):
        ended += launcher.take_ended()
    errors = dict(ended)
    assert "Task failed 4 times" in errors[1].why and "no heartbeat" in errors[2].why
    assert launcher.alive() and launcher.take_ended() == []
    launcher.launch([launches(3)[1]])
    (again,), _ = application.started.get(timeout=30)
    assert (again.task_index, again.lease) == (1, "lease")
    launcher.stop(1)
    assert sorted(application.cancelled) == ["flinkish-slots-lease-0", "flinkish-slots-lease-1"]
    assert not launcher.alive()


def test_a_supervisor_alone_that_reached_nobody_is_not_a_failed_task_but_an_error():
    application = FakeApplication()
    launcher = IndependentLauncher(application, 1)
    launcher.launch(launches(1))
    _, ends = application.started.get(timeout=30)
    ends.put([SupervisorEnd(0, UNREACHED.partition("run_supervisor(launch)\n")[2], failed=True)])
    wait_until_over(launcher)
    ((task, error),) = launcher.take_ended()
    assert task == 0 and isinstance(error, ConnectionLostError) and "10.0.0.9:4711" in error.why


# ---- the end ------------------------------------------------------------------------------------


@pytest.fixture
def stop(monkeypatch):
    def stop(*steps, timeout_ms=60_000):
        application = FakeApplication(*steps)
        launcher = BarrierLauncher(application, 2)
        launcher.launch(launches(2))
        application.started.get(timeout=30)
        launcher.stop(timeout_ms)
        wait_until_over(launcher)
        return len(application.cancelled)

    monkeypatch.setattr("spark_plugin.launcher._POLL_S", 0.001)
    return stop


def test_supervisors_that_come_later_have_a_barrier_stage_of_their_own_and_may_end_alone():
    application = FakeApplication()
    launcher = BarrierLauncher(application, 2)
    launcher.launch(launches(2))
    both, first_ends = application.started.get(timeout=30)
    launcher.launch(launches(3)[2:])
    (third,), ends = application.started.get(timeout=30)
    assert (len(both), third.task_index, launcher.take_ended()) == (2, 2, [])
    ends.put(RuntimeError("Job aborted\n: org.apache.spark.SparkException: executor lost"))
    ended, deadline = [], threading.Event()
    while not ended and not deadline.wait(0.001):
        ended = launcher.take_ended()
    [(task, error)] = ended
    assert task == 2 and "executor lost" in error.why and launcher.alive()
    first_ends.put(RuntimeError("Job aborted\n: org.apache.spark.SparkException: all lost"))
    while launcher.alive() and not deadline.wait(0.001):
        pass
    assert launcher.take_ended() == [] and "all lost" in launcher.failure().why, "the launch as a whole has ended"
    launcher.stop(1)


@pytest.mark.parametrize(
    "kind, cancelled", [(IndependentLauncher, ["flinkish-slots-lease-1"]), (BarrierLauncher, ["flinkish-slots-lease"])]
)
def test_what_carries_a_supervisor_that_is_silent_is_killed(kind, cancelled):
    application = FakeApplication()
    launcher = kind(application, 2)
    launcher.launch(launches(2))
    for _ in range(2 if kind is IndependentLauncher else 1):
        application.started.get(timeout=30)
    launcher.abandon([1])
    deadline = threading.Event()
    while application.cancelled != cancelled and not deadline.wait(0.001):
        pass
    launcher.stop(1)
    wait_until_over(launcher)


def test_a_stage_whose_tasks_end_one_after_the_other_is_not_cancelled(stop):
    assert stop(*[True] * 9, False, False, "end") == 0


def test_a_stage_that_waits_for_cores_is_cancelled_before_the_timeout(stop):
    assert stop(False) == 1


def test_a_stage_that_does_not_end_in_time_is_cancelled(stop):
    assert stop(True, timeout_ms=1) == 1
