"""SparkApplication: what a launcher asks of the Spark that carries the slots, classic or Connect."""

from __future__ import annotations

import abc
import threading
from typing import Callable, Iterator, Optional, Sequence

from flinkish.messages.launch import SlotLaunch
from spark_plugin import session
from spark_plugin.supervisor_task import SupervisorEnd, supervisor_task

TaskMain = Callable[[], Iterator[tuple[int, str, bool]]]


class SparkApplication(abc.ABC):
    """One Spark as this process sees it.  Methods are called on any thread."""

    #: Tells it from all others.
    identity: str
    master: str
    #: For the second line of an error.
    where: str
    #: What to do when executors cannot reach this process.
    reach_advice: str

    @abc.abstractmethod
    def setting(self, key: str, default: str = "") -> str:
        """A ``spark.*`` key as the application was started with."""

    @abc.abstractmethod
    def is_on_this_machine(self) -> bool:
        """Whether all tasks run on the machine of this process."""

    @abc.abstractmethod
    def task_slots(self) -> Optional[int]:
        """Tasks that the cluster runs at once, those in use included; None: it does not say."""

    @abc.abstractmethod
    def wait_for_task_slots(self, wanted: Optional[int], timeout_ms: int) -> None:
        """Wait until so many can run; returns earlier when the cluster seems to have no more.

        None: until all executors that this Spark has been asked for are there."""

    @abc.abstractmethod
    def wait_for_executors(self, tasks: int, stopping: threading.Event) -> bool:
        """Wait until so many tasks can start together.  False: stopped meanwhile.

        Spark checks a barrier stage against the executors that have registered, and looks at a stage
        that comes too early again only after 15 seconds."""

    def run(self, name: str, launches: Sequence[SlotLaunch], together: bool) -> list[SupervisorEnd]:
        """Run a Spark task per launch and wait for the end of all.

        Args:
            name: of this run, for ``cancel``; the name of its launch, or one that begins with it.
            together: as a barrier stage.
        Raises:
            Exception: whatever Spark raises when a task fails for good, or is cancelled.
        """
        main = supervisor_task(launches, raises=together)
        description = f"flinkish: {len(launches)} task(s) that carry slots"
        rows = self.run_tasks(name, description, len(launches), main, together)
        return [SupervisorEnd(*row) for row in rows]

    @abc.abstractmethod
    def run_tasks(
        self, name: str, description: str, count: int, main: TaskMain, together: bool
    ) -> list[tuple[int, str, bool]]:
        """Run ``main`` in so many Spark tasks and wait for the end of all; else as ``run``.

        ``main`` travels by value and gives rows of a number, a text and a flag."""

    @abc.abstractmethod
    def runs_tasks(self, name: str) -> bool:
        """Whether tasks of the run run; True also where Spark does not say."""

    @abc.abstractmethod
    def cancel(self, name: str) -> None:
        """Kill the tasks of a run, those too that wait; does nothing where there is none."""

    @abc.abstractmethod
    def is_alive(self) -> bool:
        """False: the Spark has been stopped, or its driver is gone."""

    @abc.abstractmethod
    def describe_waiting(self, name: str, tasks: int) -> str:
        """Of a launch: how many tasks the executors run, and what runs there instead; empty: all of ours run."""

    @abc.abstractmethod
    def advertised_hosts(self) -> list[str]:
        """Where executors find this process, likeliest first."""

    @abc.abstractmethod
    def bind_host(self) -> str:
        """The address of this machine that those hosts lead to."""

    def remove_at_end(self, folder: str) -> None:
        """Have Spark remove a folder of this machine when its driver ends, also when this process is killed.
        Does nothing where the driver is another process: the next one that writes there removes it."""

    def task_cpus(self) -> int:
        return int(self.setting("spark.task.cpus", "1"))

    def is_set(self, key: str) -> bool:
        return self.setting(key, "false").lower() == "true"

    def allocates_dynamically(self) -> bool:
        """Whether executors come and go with the tasks that wait."""
        return not session.is_local(self.master) and self.is_set("spark.dynamicAllocation.enabled")
