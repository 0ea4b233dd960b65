"""A Spark whose driver is this process: a SparkContext, or a SparkSession on top of one."""

from __future__ import annotations

import logging
import threading
from typing import Any, Optional

from spark_plugin import session
from spark_plugin.spark_application import SparkApplication, TaskMain

log = logging.getLogger(__name__)

_POLL_S = 0.1


class ClassicApplication(SparkApplication):
    """See the module.

    Tasks are those of an RDD, not of ``mapInArrow``: both run the same, but the first stage of an
    application is up in 3.5 s instead of 9 s, and it needs no SparkSession (4 s more); see
    ``flinkish/docs/decisions/0010-slots-start-from-an-rdd-barrier-stage.md``.
    """

    reach_advice = (
        "open the network between executors and driver, or set jobmanager.rpc.address to an address of the "
        "driver that executors reach"
    )

    def __init__(self, context: Any):
        self.context = context
        self.identity = context.applicationId
        self.master = context.master
        self.where = f"Spark application {self.identity}, master {self.master}"

    def setting(self, key: str, default: str = "") -> str:
        return self.context.getConf().get(key, default)

    def is_on_this_machine(self) -> bool:
        return session.is_on_this_machine(self.master)

    def task_slots(self) -> Optional[int]:
        return session.task_slots(self.context)

    def wait_for_task_slots(self, wanted: Optional[int], timeout_ms: int) -> None:
        session.wait_for_task_slots(self.context, wanted, timeout_ms)

    def wait_for_executors(self, tasks: int, stopping: threading.Event) -> bool:
        while session.registered_task_slots(self.context) < tasks:
            if stopping.wait(_POLL_S):
                return False
        return True

    def run_tasks(
        self, name: str, description: str, count: int, main: TaskMain, together: bool
    ) -> list[tuple[int, str, bool]]:
        context = self.context
        context.setJobGroup(name, description, interruptOnCancel=True)
        context.addJobTag("flinkish")

        def partition_main(partition):
            for _ in partition:  # one number, of no meaning
                pass
            yield from main()

        numbers = context.parallelize(range(count), count)
        stage = numbers.barrier() if together else numbers
        return stage.mapPartitions(partition_main).collect()

    def runs_tasks(self, name: str) -> bool:
        return any(stage.tasks for stage in self._stages_of(name))

    def cancel(self, name: str) -> None:
        # Spark warns of a group without a job: one that has just ended, or is not there yet.
        if self._stages_of(name):
            log.info("cancelling the spark jobs that carry slots group=%s", name)
            self.context.cancelJobGroup(name)

    def _stages_of(self, name: str) -> list[session.RunningStage]:
        return [stage for stage in session.running_stages(self.context) if stage.job_group == name]

    def is_alive(self) -> bool:
        return session.active_context() is self.context

    def describe_waiting(self, name: str, tasks: int) -> str:
        stages = session.running_stages(self.context)
        if sum(stage.tasks for stage in stages if _belongs(stage, name)) >= tasks:
            return ""
        holders = [
            f'stage {stage.stage_id} of "{stage.description}" runs {stage.tasks}'
            for stage in stages
            if stage.tasks and not _belongs(stage, name)
        ]
        return "; ".join(
            [f"executors run {session.registered_task_slots(self.context)} at once", *holders]
        )

    def remove_at_end(self, folder: str) -> None:
        # As Spark does with its own temporary folders; not its public API.
        jvm = self.context._jvm
        try:
            jvm.org.apache.spark.util.ShutdownHookManager.registerShutdownDeleteDir(jvm.java.io.File(folder))
        except Exception as error:
            log.info("a folder is not removed with the JVM folder=%s error=%s", folder, error)

    def advertised_hosts(self) -> list[str]:
        return session.advertised_hosts(self.context)

    def bind_host(self) -> str:
        return session.bind_host(self.context)


def _belongs(stage: session.RunningStage, launch: str) -> bool:
    """Whether it is one of a launch, the jobs of which have its name or one that begins with it."""
    return stage.job_group == launch or stage.job_group.startswith(f"{launch}-")
