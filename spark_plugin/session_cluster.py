"""SessionCluster: slots that stay up in a Spark session, for notebooks and for several jobs."""

from __future__ import annotations

from typing import Any, Mapping, Optional

from flinkish.common import options
from flinkish.jobmanager.launcher import Launcher
from flinkish.shell.slot_cluster import SlotCluster
from spark_plugin import session
from spark_plugin.dataframe_files import drop_dataframes
from spark_plugin.launch_mode import create_launcher
from spark_plugin.state_data import register_where_possible


class SessionCluster(SlotCluster):
    """Runs jobs in slots of one Spark session, after and beside each other::

        with SessionCluster(spark, slots=2) as cluster:
            env = cluster.get_execution_environment()
            env.from_collection([1, 2, 3]).map(lambda x: x + 1).print()
            env.execute()

    Slots start with the first job or with ``start`` and hold their cores until ``close``; DataFrame
    jobs of the session run in the cores that are left.

    Args:
        spark: a SparkSession (classic or Connect) or SparkContext; None: the active one, or a new local
            one with a core more than the slots take.
        slots: each is a process of its own and runs one job at a time.
        configuration: of the cluster (launch mode, heartbeats, timeouts) and of the environments it
            makes.
    Raises:
        NotEnoughSlotsError: the Spark cluster has fewer cores.
        UnsupportedSparkError: this Spark session cannot carry slots.
    """

    def __init__(
        self, spark: Any = None, slots: int = 2, configuration: Optional[Mapping[str, Any]] = None
    ):
        super().__init__(slots, configuration)
        if spark is None:
            per_task = options.read(self.configuration, options.NUM_TASK_SLOTS)
            spark = session.get_or_create(-(-slots // per_task), self.configuration)
        self.spark = spark
        register_where_possible(spark)
        self._launcher = create_launcher(spark, slots, self.configuration)

    def create_launcher(self) -> Launcher:
        return self._launcher

    def close(self) -> None:
        """Cancel what runs, end the slots, and remove what was written of DataFrames of this Spark
        session, except for what a job in another cluster still reads; make such sources again."""
        try:
            super().close()
        finally:
            drop_dataframes(self._launcher.application.identity)
