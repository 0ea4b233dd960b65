"""SessionCluster: slots that stay up in a Spark session, for notebooks and for several jobs."""

from __future__ import annotations

import threading
from typing import Any, Mapping, Optional

from flinkish.common import options
from flinkish.common.configuration import Configuration
from flinkish.common.job_client import JobClient
from flinkish.shell.executor import prepare
from flinkish.shell.job_manager import JobManager
from spark_plugin import session
from spark_plugin.launcher import BarrierLauncher


class SessionCluster:
    """Runs jobs in slots of one Spark session, after and beside each other::

        with SessionCluster(spark, slots=2) as cluster:
            env = cluster.get_execution_environment()
            env.from_collection([1, 2, 3]).map(lambda x: x + 1).print()
            env.execute()

    Slots start with the first job or with ``start`` and hold their cores until ``close``; DataFrame
    jobs of the session run in the cores that are left.

    Args:
        spark: a classic SparkSession or SparkContext; None: the active one, or a new local one with
            a core more than the slots take.
        slots: each is a process of its own and runs one job at a time.
        configuration: of the cluster (heartbeats, timeouts) and of the environments it makes.
    Raises:
        NotEnoughSlotsError: the Spark cluster has fewer cores.
        UnsupportedSparkError: this Spark session cannot carry slots.
    """

    def __init__(
        self, spark: Any = None, slots: int = 2, configuration: Optional[Mapping[str, Any]] = None
    ):
        self.slots = slots
        self.configuration = Configuration(configuration or {})
        if spark is None:
            per_task = options.read(self.configuration, options.NUM_TASK_SLOTS)
            spark = session.get_or_create_context(-(-slots // per_task), self.configuration)
        self.spark = spark
        self._launcher = BarrierLauncher(spark, slots, self.configuration)
        self._manager: Optional[JobManager] = None
        self._lock = threading.Lock()
        self._closed = False

    def start(self) -> "SessionCluster":
        """Launch the slots; returns at once."""
        with self._lock:
            assert not self._closed, "the cluster is closed"
            if self._manager is None:
                self._manager = JobManager(self._launcher, self.slots, self.configuration)
                self._manager.start()
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
        runtime = prepare(stream_graph)
        self.start()
        return JobClient(self.job_manager.submit(runtime))

    @property
    def job_manager(self) -> JobManager:
        assert self._manager is not None, "the cluster has not started"
        return self._manager

    def describe(self) -> dict:
        """Jobs and slots as plain data."""
        return self.job_manager.describe()

    def close(self) -> None:
        """Cancel what runs and give the cores back; the Spark session stays."""
        with self._lock:
            self._closed = True
        if self._manager is not None:
            self._manager.close()

    def __enter__(self) -> "SessionCluster":
        return self.start()

    def __exit__(self, *exc_info: Any) -> None:
        self.close()
