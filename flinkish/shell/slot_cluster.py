"""Slots that stay up for several jobs, after and beside each other."""

from __future__ import annotations

import abc
import threading
from typing import Any, Mapping, Optional

from flinkish.common.configuration import Configuration
from flinkish.common.job_client import JobClient
from flinkish.errors import InvalidJobError
from flinkish.jobmanager.launcher import Launcher
from flinkish.shell.executor import prepare
from flinkish.shell.high_availability import EndedJob
from flinkish.shell.job_manager import JobManager


class SlotCluster(abc.ABC):
    """Base of ``MiniCluster`` and ``SessionCluster``.

    Slots start with the first job or with ``start``, and stay until ``close``.

    Args:
        slots: each is a process of its own and runs one job at a time.
        configuration: of the cluster (heartbeats, timeouts) and of the environments it makes.
    """

    #: The SparkSession or SparkContext that the slots live in.
    spark: Any = None

    def __init__(self, slots: int, configuration: Optional[Mapping[str, Any]] = None):
        self.slots = slots
        self.configuration = Configuration(configuration or {})
        self._manager: Optional[JobManager] = None
        self._lock = threading.Lock()
        self._closed = False

    @abc.abstractmethod
    def create_launcher(self) -> Launcher:
        """What brings the slots; called once."""

    def start(self) -> "SlotCluster":
        """Launch the slots; returns at once."""
        with self._lock:
            if self._closed:
                raise InvalidJobError(
                    f"this {type(self).__name__} is closed", do="make a new one for more jobs"
                )
            if self._manager is None:
                manager = JobManager(self.create_launcher(), self.slots, self.configuration)
                manager.start()
                self._manager = manager
        return self

    def get_execution_environment(self, configuration: Optional[Mapping[str, Any]] = None) -> Any:
        """A StreamExecutionEnvironment whose jobs run here; its default parallelism is the number of
        slots unless a configuration sets another."""
        from flinkish.datastream import StreamExecutionEnvironment

        merged = self.configuration.copy()
        merged.add_all(configuration or {})
        if "parallelism.default" not in merged:
            merged["parallelism.default"] = self.slots
        return StreamExecutionEnvironment.get_execution_environment(
            merged, spark=self.spark, cluster=self
        )

    def submit(
        self, stream_graph: Any, configuration: Optional[Mapping[str, Any]] = None
    ) -> JobClient:
        """Start a job and return at once."""
        runtime = prepare(stream_graph, self.slots)
        if isinstance(runtime, EndedJob):
            return JobClient(runtime)
        try:
            self.start()
            return JobClient(self.job_manager.submit(runtime))
        except BaseException:
            runtime.withdraw()
            raise

    @property
    def job_manager(self) -> JobManager:
        assert self._manager is not None, "the cluster has not started"
        return self._manager

    @property
    def closed(self) -> bool:
        return self._closed or (self._manager is not None and self._manager.closed)

    def describe(self) -> dict:
        """Jobs and slots as plain data."""
        return self.job_manager.describe()

    def close(self) -> None:
        """Cancel what runs and end everything that was started here."""
        with self._lock:
            self._closed = True
        if self._manager is not None:
            self._manager.close()

    def __enter__(self) -> "SlotCluster":
        return self.start()

    def __exit__(self, *exc_info: Any) -> None:
        self.close()
