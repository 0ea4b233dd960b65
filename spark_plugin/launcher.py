"""SparkLauncher: supervisors as Spark tasks, and BarrierLauncher, where all of them share one stage.

Each task supervises its slots until the JobManager says stop.  In a barrier stage all tasks start
together or none does.  Spark never retries a barrier result stage, so a stage that ends early is
reported here and the JobManager launches anew.  ``IndependentLauncher`` is the other launch mode.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
from dataclasses import dataclass
from typing import Any, ClassVar, Mapping, Optional, Sequence

from flinkish.common import options
from flinkish.errors import (
    ConnectionLostError,
    FlinkishError,
    NotEnoughSlotsError,
    ResourceError,
    SlotLostError,
    UnsupportedSparkError,
)
from flinkish.jobmanager.launcher import Launcher
from flinkish.messages.launch import SlotLaunch
from spark_plugin import session
from spark_plugin.classic_application import ClassicApplication
from spark_plugin.connect_application import ConnectApplication
from spark_plugin.spark_application import SparkApplication
from spark_plugin.spark_errors import fold_spark_error

log = logging.getLogger(__name__)

_POLL_S = 0.1
_CANCEL_AGAIN_S = 1.0
_IDLE_POLLS_MAX = 5
_KILL_TIMEOUT_MS = 10_000  # Spark's cancel is a SIGKILL of the Python workers


def application_of(spark: Any) -> SparkApplication:
    """What carries the slots of a SparkSession, of a SparkContext, or of a Spark Connect session."""
    if isinstance(spark, SparkApplication):
        return spark
    if session.is_connect(spark):
        return ConnectApplication(spark)
    return ClassicApplication(session.context_of(spark))


@dataclass
class Run:
    """Tasks that Spark runs as one job, and the thread that waits for it."""

    name: str  # of its Spark job
    launches: list[SlotLaunch]
    thread: Optional[threading.Thread] = None
    failure: Optional[FlinkishError] = None
    end: str = ""  # what the last of its supervisors said

    def alive(self) -> bool:
        return self.thread is not None and self.thread.is_alive()


class SparkLauncher(Launcher):
    """Base of both launch modes, see the module.

    Args:
        spark: a SparkSession (classic or Connect), a SparkContext, or a SparkApplication.
        slots: how many the caller wants in all; 0: not known yet.
        configuration: of the job or the session cluster.
    Raises:
        NotEnoughSlotsError: the cluster has fewer.
        UnsupportedSparkError: this Spark cannot run such tasks for long.
    """

    #: ``flinkish.launch-mode``
    mode: ClassVar[str]
    #: Whether all supervisors of a launch are tasks of one barrier stage.
    together: ClassVar[bool]

    def __init__(self, spark: Any, slots: int = 0, configuration: Optional[Mapping[str, Any]] = None):
        configuration = configuration or {}
        self.application = application_of(spark)
        self._rpc_address = options.read(configuration, options.JOB_MANAGER_RPC_ADDRESS)
        self._bind_host = options.read(configuration, options.JOB_MANAGER_BIND_HOST)
        self._slots_per_task = options.read(configuration, options.NUM_TASK_SLOTS)
        self._lock = threading.Lock()
        self._group = ""
        self._runs: dict[int, Run] = {}  # by the first task of each
        self._stopping = threading.Event()
        check_mode_allowed(self.application, self.mode)
        if not self.application.allocates_dynamically():
            self.application.wait_for_task_slots(
                -(-slots // self._slots_per_task), options.read(configuration, options.SLOT_REQUEST_TIMEOUT)
            )
        capacity = self.capacity()
        if capacity is not None and slots > capacity:
            raise NotEnoughSlotsError(
                f"could not start {slots} slots",
                where=self.application.where,
                why=f"the job needs {slots} slots, the cluster has {capacity}",
                do="lower the parallelism, or start Spark with more cores",
                needed=slots,
                available=capacity,
            )
        self._warn_of_cores(slots)

    # ---- Launcher -----------------------------------------------------------------------------------

    def capacity(self) -> Optional[int]:
        tasks = self.application.task_slots()
        return None if tasks is None else tasks * self._slots_per_task

    def launch(self, launches: Sequence[SlotLaunch]) -> None:
        assert launches, "nothing to launch"
        with self._lock:
            group = self._group = session.JOB_GROUP_PREFIX + launches[0].lease
            for part in [list(launches)] if self.together else [[launch] for launch in launches]:
                first = part[0].task_index
                assert first not in self._runs or not self._runs[first].alive(), "it still runs"
                run = self._runs[first] = Run(f"{group}-{first}" if first or not self.together else group, part)
                run.thread = threading.Thread(
                    target=self._run, args=(run,), name=run.name, daemon=True
                )
                run.thread.start()

    def take_ended(self) -> list[tuple[int, FlinkishError]]:
        if not self.alive():
            return []  # all of them have, which is told otherwise
        with self._lock:
            ended = [run for _, run in sorted(self._runs.items()) if not run.alive()]
            for run in ended:
                del self._runs[run.launches[0].task_index]
        return [
            (launch.task_index, run.failure or self._lost(launch.task_index, run.end))
            for run in ended
            for launch in run.launches
        ]

    def _lost(self, task: int, reason: str) -> FlinkishError:
        return SlotLostError(
            "lost a Spark task that carries slots",
            where=f"{self.application.where}, task {task}",
            why=f"its supervisor has ended: {reason}",
        )

    def _warn_of_cores(self, slots: int) -> None:
        tasks = self.application.task_slots()
        if not slots or tasks is None:
            return
        master = self.application.master
        # Elsewhere more executors may be about to register.
        if -(-slots // self._slots_per_task) == tasks and self.application.is_on_this_machine():
            log.warning("slots take every core: DataFrame jobs wait until they end slots=%d master=%s", slots, master)
        cores = tasks * self.application.task_cpus()
        if slots > cores:
            log.warning(
                "slots share cores: there are more of them slots=%d cores=%d taskmanager.numberOfTaskSlots=%d "
                "spark.task.cpus=%d master=%s",
                slots, cores, self._slots_per_task, self.application.task_cpus(), master,
            )

    def stop(self, timeout_ms: int) -> None:
        with self._lock:
            first, runs = not self._stopping.is_set(), list(self._runs.values())
            self._stopping.set()
        if not runs or not first:
            return
        self._wait_for_ordered_end(runs, timeout_ms)
        deadline_s = time.monotonic() + _KILL_TIMEOUT_MS / 1000
        while any(run.alive() for run in runs) and self.application.is_alive():
            self._cancel(runs)
            _join(runs, _CANCEL_AGAIN_S)
            if time.monotonic() > deadline_s:
                log.warning("spark did not end what carries the slots group=%s", self._group)
                return

    def abandon(self, tasks: Sequence[int]) -> None:
        with self._lock:
            if self._stopping.is_set():
                return
            lost = [run for run in self._runs.values() if any(launch.task_index in tasks for launch in run.launches)]
        # The JVM, and a Connect server more so, may take its time to answer.
        threading.Thread(target=self._cancel, args=(lost,), name="flinkish abandon", daemon=True).start()

    def _cancel(self, runs: Sequence[Run]) -> None:
        for run in runs:
            if run.alive():
                self.application.cancel(run.name)

    def _wait_for_ordered_end(self, runs: list[Run], timeout_ms: int) -> None:
        """Wait while slots end as they were told; what has not started has nobody to stop in order.

        A stage of which some tasks have ended is no such: cancelling it would kill the others."""
        deadline_s = time.monotonic() + timeout_ms / 1000
        idle_polls = 0
        while any(run.alive() for run in runs) and self.application.is_alive():
            busy = any(run.alive() and self.application.runs_tasks(run.name) for run in runs)
            idle_polls = 0 if busy else idle_polls + 1
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or idle_polls > _IDLE_POLLS_MAX:
                return
            _join(runs, min(left_s, _POLL_S))

    def describe_waiting(self) -> str:
        tasks = sum(len(run.launches) for run in self._runs.values())
        if not self.alive() or not self.application.is_alive():
            return ""
        held = self.application.describe_waiting(self._group, tasks)
        if not held and not self.application.is_on_this_machine():
            timeout = self.application.setting("spark.network.timeout", "120s")
            return (
                f"Spark says that all {tasks} tasks run; they may be about to start Python, or an executor's host is "
                f"lost, which Spark sees after spark.network.timeout ({timeout})"
            )
        if not held:
            return ""
        return f"{tasks} Spark tasks must start{' together' if self.together else ''}, {held}"

    def advertised_hosts(self) -> list[str]:
        return [self._rpc_address] if self._rpc_address else self.application.advertised_hosts()

    def bind_host(self) -> str:
        return self._bind_host or self.application.bind_host()

    # ---- a run --------------------------------------------------------------------------------------

    def _run(self, run: Run) -> None:
        try:
            if self.together and not self.application.wait_for_executors(len(run.launches), self._stopping):
                return
            for end in self.application.run(run.name, run.launches, self.together):
                log.info("supervisor ended task=%d reason=%s", end.task_index, end.reason)
                if end.failed:
                    run.failure = explain_failure(end.reason, self.application)
                run.end = end.reason
        except Exception as error:  # told by failure(), or by take_ended()
            if not self._stopping.is_set():
                run.failure = explain_failure(error, self.application)
                log.warning("spark job of slots failed group=%s error=%s", run.name, run.failure.what)


def _join(runs: Sequence[Run], timeout_s: float) -> None:
    """Wait for the end of all, at most so long."""
    deadline_s = time.monotonic() + timeout_s
    for run in runs:
        if run.thread is not None:
            run.thread.join(max(0, deadline_s - time.monotonic()))


class BarrierLauncher(SparkLauncher):
    """The supervisors of a launch are tasks of one barrier stage: they start together and end together.

    A barrier stage does not grow, so supervisors that come later have one of their own."""

    mode = "barrier"
    together = True

    def launch(self, launches: Sequence[SlotLaunch]) -> None:
        with self._lock:
            old = any(run.launches[0].lease != launches[0].lease for run in self._runs.values())
            if old:
                assert not self.alive(), "a launch is still alive"
                self._runs.clear()
        super().launch(launches)

    def alive(self) -> bool:
        return any(run.alive() for run in self._runs.values())

    def failure(self) -> Optional[FlinkishError]:
        failures = [run.failure for run in self._runs.values() if not run.alive()]
        return failures[0] if failures else None


def check_mode_allowed(application: SparkApplication, mode: str) -> None:
    """Refuse what cannot go with tasks that never end.

    Raises:
        UnsupportedSparkError: speculation is on; or dynamic allocation, in barrier mode.
    """
    if session.is_local(application.master):  # Spark itself ignores both there
        return
    if mode == "barrier" and application.allocates_dynamically():
        raise UnsupportedSparkError(
            "could not start slots with dynamic allocation",
            where=application.where,
            why="spark.dynamicAllocation.enabled is true, and Spark runs no barrier stage beside it",
            do=_WITHOUT_DYNAMIC_ALLOCATION,
        )
    if application.is_set("spark.speculation"):
        raise UnsupportedSparkError(
            "could not start slots with speculation",
            where=application.where,
            why="spark.speculation is true, and Spark would start copies of slots that run long",
            do="start Spark with --conf spark.speculation=false",
        )


_WITHOUT_DYNAMIC_ALLOCATION = (
    "set flinkish.launch-mode to independent, or start Spark with --conf spark.dynamicAllocation.enabled=false"
)

# ---- failures -----------------------------------------------------------------------------------------


def explain_failure(error: object, application: Optional[SparkApplication] = None) -> FlinkishError:
    """What ended tasks that carry slots, from Spark's exception or its text: the cause first, JVM frames
    left out."""
    text = str(error)
    gone = application is not None and not application.is_alive()
    where = application.where if application is not None and not gone else ""
    if "BarrierJobRunWithDynamicAllocation" in text or "dynamic resource allocation" in text:
        return UnsupportedSparkError(
            "could not start slots with dynamic allocation",
            where=where,
            why="Spark runs no barrier stage beside it",
            do=_WITHOUT_DYNAMIC_ALLOCATION,
        )
    if missing := re.search(r"ModuleNotFoundError: No module named '([\w.]+)'", text):
        return ResourceError(
            "could not start slots on the executors",
            where=where,
            why=f"their Python has no module {missing[1]}",
            do="install flinkish there, or ship it with spark-submit --py-files or --archives",
        )
    unreached = re.search(
        r"(\w+)Error: could not connect to the JobManager\n\s*where: (.*)\n\s*why: (.*)", text
    )
    if unreached:
        return ConnectionLostError(
            "executors could not reach the JobManager",
            where=f"{where}; {unreached[2]}" if where else unreached[2],
            why=unreached[3],
            do=application.reach_advice if application is not None else "open the network between them",
        )
    if gone or "SparkContext was shut down" in text:
        return SlotLostError("lost the Spark tasks that carry the slots", why="Spark was stopped")
    return SlotLostError(
        "lost the Spark tasks that carry the slots",
        where=where,
        why=fold_spark_error(text),
        # Of a barrier stage Spark does not say why its task ended: it may never have started.
        do="look at the log of its executor for why the Python of the task ended; it is started as "
        f"{os.environ.get('PYSPARK_PYTHON', 'python3')} (PYSPARK_PYTHON)",
    )
