import threading

import pytest

from flinkish.errors import ResourceError, SlotLostError, UnsupportedSparkError
from spark_plugin import session
from spark_plugin.launcher import BarrierLauncher, explain_failure, fold_spark_error

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


# ---- the end of a stage -------------------------------------------------------------------------


class StageOfTasks:
    """A stage in Spark's scheduler, as the launcher sees it: each look takes one step of ``steps``, the
    numbers of running tasks; None: the scheduler does not have it.  After the last step, or when it is
    cancelled, its thread ends."""

    def __init__(self, *steps):
        self.steps = list(steps)
        self.cancelled = 0
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.ended.wait, daemon=True)
        self.thread.start()

    def cancelJobGroup(self, group):
        self.cancelled += 1
        self.ended.set()

    def look(self, context):
        tasks = self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]
        if tasks == "end":
            self.ended.set()
            tasks = None
        return [] if tasks is None else [session.RunningStage(1, "group", "slots", tasks)]


@pytest.fixture
def stop(monkeypatch):
    def stop(*steps, timeout_ms=60_000):
        stage = StageOfTasks(*steps)
        launcher = BarrierLauncher.__new__(BarrierLauncher)
        launcher._context, launcher._group, launcher._tasks = stage, "group", 2
        launcher._lock, launcher._stopping = threading.Lock(), threading.Event()
        launcher._thread = stage.thread
        monkeypatch.setattr(session, "active_context", lambda: stage)
        monkeypatch.setattr(session, "running_stages", stage.look)
        launcher.stop(timeout_ms)
        assert not stage.thread.is_alive()
        return stage.cancelled

    monkeypatch.setattr("spark_plugin.launcher._POLL_S", 0.001)
    monkeypatch.setattr("spark_plugin.launcher._CANCEL_AGAIN_S", 0.001)
    return stop


def test_a_stage_whose_tasks_end_one_after_the_other_is_not_cancelled(stop):
    assert stop(2, 1, 1, 1, 1, 1, 1, 1, 1, 0, None, "end") == 0


def test_a_stage_that_waits_for_cores_is_cancelled_before_the_timeout(stop):
    assert stop(0) == 1


def test_a_stage_that_does_not_end_in_time_is_cancelled(stop):
    assert stop(2, timeout_ms=1) == 1


def test_a_stage_that_has_ended_or_is_not_there_yet_is_not_cancelled(stop):
    assert stop(*[None] * 20, "end") == 0
    assert stop(*[None] * 20, 0) == 1
