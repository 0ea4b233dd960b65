"""BarrierLauncher: slots as the tasks of one long-running Spark barrier stage.

Each task supervises its slots until the JobManager says stop.  All tasks start together or none
does.  Spark never retries a barrier result stage, so a stage that ends early is reported here and
the JobManager launches anew.

The stage is an RDD stage, not ``mapInArrow(barrier=True)``: both run the same tasks, but the first
stage of an application is up in 3.5 s instead of 9 s, and it needs no SparkSession (4 s more); see
``flinkish/docs/decisions/0010-slots-start-from-an-rdd-barrier-stage.md``.
"""

from __future__ import annotations

import logging
import pickle
import re
import threading
import time
from pathlib import Path
from typing import Any, Mapping, Optional, Sequence

import flinkish
from flinkish.common import options
from flinkish.errors import (
    FlinkishError,
    NotEnoughSlotsError,
    ResourceError,
    SlotLostError,
    UnsupportedSparkError,
)
from flinkish.jobmanager.launcher import Launcher
from flinkish.messages.launch import SlotLaunch
from spark_plugin import session

log = logging.getLogger(__name__)

_POLL_S = 0.1
_CANCEL_AGAIN_S = 1.0
_IDLE_POLLS_MAX = 5
_KILL_TIMEOUT_MS = 10_000  # Spark's cancel is a SIGKILL of the Python workers


class BarrierLauncher(Launcher):
    """See the module.

    Args:
        spark: a classic SparkSession or SparkContext.
        slots: how many the caller wants in all; 0: not known yet.
        configuration: of the job or the session cluster.
    Raises:
        NotEnoughSlotsError: the cluster has fewer.
        UnsupportedSparkError: this Spark cannot run a barrier stage for long.
    """

    def __init__(self, spark: Any, slots: int = 0, configuration: Optional[Mapping[str, Any]] = None):
        self._context = session.context_of(spark)
        self._slots_per_task = options.read(configuration or {}, options.NUM_TASK_SLOTS)
        self._lock = threading.Lock()
        self._thread: Optional[threading.Thread] = None
        self._group = ""
        self._tasks = 0
        self._failure: Optional[FlinkishError] = None
        self._stopping = threading.Event()
        session.check_barrier_allowed(self._context)
        capacity = self.capacity()
        if slots > capacity:
            raise NotEnoughSlotsError(
                f"could not start {slots} slots",
                where=f"Spark application {self._context.applicationId}, master {self._context.master}",
                why=f"the job needs {slots} slots, the cluster has {capacity}",
                do="lower the parallelism, or start Spark with more cores",
                needed=slots,
                available=capacity,
            )
        if slots == capacity and slots:
            log.warning(
                "slots take every core: DataFrame jobs wait until they end slots=%d master=%s",
                slots, self._context.master,
            )

    # ---- Launcher -----------------------------------------------------------------------------------

    def capacity(self) -> int:
        return session.task_slots(self._context) * self._slots_per_task

    def launch(self, launches: Sequence[SlotLaunch]) -> None:
        assert launches, "nothing to launch"
        with self._lock:
            assert not self.alive(), "a launch is still alive"
            self._group = session.JOB_GROUP_PREFIX + launches[0].lease
            self._tasks = len(launches)
            self._failure = None
            self._thread = threading.Thread(
                target=self._run, args=(list(launches),), name=self._group, daemon=True
            )
            self._thread.start()

    def alive(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def failure(self) -> Optional[FlinkishError]:
        return None if self.alive() else self._failure

    def stop(self, timeout_ms: int) -> None:
        with self._lock:
            first, thread = not self._stopping.is_set(), self._thread
            self._stopping.set()
        if thread is None or not first:
            return
        self._wait_for_ordered_end(thread, timeout_ms)
        deadline_s = time.monotonic() + _KILL_TIMEOUT_MS / 1000
        while thread.is_alive() and session.active_context() is self._context:
            # Spark warns of a group without a job: one that has just ended, or is not there yet.
            if self._own_stages():
                log.info("cancelling the slot stage group=%s", self._group)
                self._context.cancelJobGroup(self._group)
            thread.join(_CANCEL_AGAIN_S)
            if time.monotonic() > deadline_s:
                log.warning("spark did not end the slot stage group=%s", self._group)
                return

    def _wait_for_ordered_end(self, thread: threading.Thread, timeout_ms: int) -> None:
        """Wait while slots end as they were told; what has not started has nobody to stop in order.

        A stage of which some tasks have ended is no such: cancelling it would kill the others."""
        deadline_s = time.monotonic() + timeout_ms / 1000
        idle_polls = 0
        while thread.is_alive() and session.active_context() is self._context:
            idle_polls = 0 if any(stage.tasks for stage in self._own_stages()) else idle_polls + 1
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or idle_polls > _IDLE_POLLS_MAX:
                return
            thread.join(min(left_s, _POLL_S))

    def _own_stages(self) -> list[session.RunningStage]:
        return [stage for stage in session.running_stages(self._context) if stage.job_group == self._group]

    def describe_waiting(self) -> str:
        if not self.alive() or session.active_context() is not self._context:
            return ""
        stages = session.running_stages(self._context)
        if sum(stage.tasks for stage in stages if stage.job_group == self._group) >= self._tasks:
            return ""
        cores = session.registered_task_slots(self._context)
        text = f"{self._tasks} Spark tasks must start together, executors run {cores} at once"
        holders = [
            f'stage {stage.stage_id} of "{stage.description}" runs {stage.tasks}'
            for stage in stages
            if stage.tasks and stage.job_group != self._group
        ]
        return f"{text}; {', '.join(holders)}" if holders else text

    def advertised_hosts(self) -> list[str]:
        if session.is_on_this_machine(self._context.master):
            return ["127.0.0.1"]
        conf = self._context.getConf()
        hosts = [conf.get("spark.driver.host"), conf.get("spark.driver.bindAddress", None)]
        return list(dict.fromkeys(host for host in hosts if host and host != "0.0.0.0"))

    def bind_host(self) -> str:
        if session.is_on_this_machine(self._context.master):
            return "127.0.0.1"
        conf = self._context.getConf()
        return conf.get("spark.driver.bindAddress", None) or conf.get("spark.driver.host")

    # ---- the stage ----------------------------------------------------------------------------------

    def _run(self, launches: list[SlotLaunch]) -> None:
        context, count = self._context, len(launches)
        try:
            context.setJobGroup(
                self._group, f"flinkish: {count} task(s) that carry slots", interruptOnCancel=True
            )
            context.addJobTag("flinkish")
            if not self._wait_for_executors(count):
                return
            stage = context.parallelize(range(count), count).barrier().mapPartitions(_slot_main(launches))
            for task_index, reason in stage.collect():
                log.info("slots ended task=%d reason=%s", task_index, reason)
        except Exception as error:  # told by failure()
            if not self._stopping.is_set():
                self._failure = explain_failure(error, context)
                log.warning("slot stage failed group=%s error=%s", self._group, self._failure.what)

    def _wait_for_executors(self, tasks: int) -> bool:
        """False: stopped meanwhile.  Spark checks a barrier stage against the executors that have
        registered, and a stage that comes too early is looked at again only after 15 seconds."""
        while session.registered_task_slots(self._context) < tasks:
            if self._stopping.wait(_POLL_S):
                return False
        return True


def _slot_main(launches: list[SlotLaunch]):
    """The function of the stage.  It travels by value and unpickles the rest only after the
    driver's paths are in place, so a checkout that is not installed works too."""
    blob = pickle.dumps(launches)
    sys_path = launches[0].sys_path
    # A checkout goes before a flinkish that is installed there; all else behind what Spark has.
    own_root = str(Path(flinkish.__file__).resolve().parent.parent)

    def slot_main(partition):
        import os
        import pickle
        import sys

        from pyspark import TaskContext

        if own_root not in sys.path and os.path.exists(os.path.join(own_root, "flinkish")):
            sys.path.insert(0, own_root)
        sys.path.extend(path for path in sys_path if path not in sys.path and os.path.exists(path))
        from flinkish.shell.supervisor import run_supervisor

        for _ in partition:  # one number, of no meaning
            pass
        task = TaskContext.get()
        launch = pickle.loads(blob)[task.partitionId()]
        yield launch.task_index, run_supervisor(launch, task.attemptNumber())

    return slot_main


# ---- failures -----------------------------------------------------------------------------------------


def explain_failure(error: BaseException, context: Any = None) -> FlinkishError:
    """What ended a stage of slots, from Spark's exception: its cause first, JVM frames left out."""
    text = str(error)
    where = ""
    if context is not None and session.active_context() is context:
        where = f"Spark application {context.applicationId}, master {context.master}"
    if "BarrierJobRunWithDynamicAllocation" in text or "dynamic resource allocation" in text:
        return UnsupportedSparkError(
            "could not start slots with dynamic allocation",
            where=where,
            why="Spark runs no barrier stage beside it",
            do="start Spark with --conf spark.dynamicAllocation.enabled=false",
        )
    if missing := re.search(r"ModuleNotFoundError: No module named '([\w.]+)'", text):
        return ResourceError(
            "could not start slots on the executors",
            where=where,
            why=f"their Python has no module {missing[1]}",
            do="install flinkish there, or ship it with spark-submit --py-files or --archives",
        )
    gone = context is not None and session.active_context() is not context
    if gone or "SparkContext was shut down" in text:
        return SlotLostError("lost the Spark stage that carries the slots", why="Spark was stopped")
    return SlotLostError(
        "lost the Spark stage that carries the slots", where=where, why=fold_spark_error(text)
    )


def fold_spark_error(text: str) -> str:
    """The readable part of a Spark exception's text: Python's traceback, else the first cause.

    >>> fold_spark_error("An error occurred.\\n: org.apache.spark.SparkException: Job 3 cancelled \\n\\tat org.x")
    'Job 3 cancelled'
    """
    tracebacks = re.findall(
        r"Traceback \(most recent call last\):\n.*?(?=\n\s*\n|\n\tat |\Z)", text, re.DOTALL
    )
    if tracebacks:
        return tracebacks[-1].strip()
    causes = re.findall(r"^(?:: |Caused by: )?[\w.$]+(?:Exception|Error): (.*)", text, re.MULTILINE)
    lines = [line for line in text.splitlines() if line.strip()]
    return (causes[0] if causes else lines[0] if lines else "no reason was given").strip()
