"""MiniCluster: a JobManager and slots as processes of this machine, without Spark or a JVM."""

from __future__ import annotations

from typing import Any, Mapping, Optional

from flinkish.jobmanager.launcher import Launcher
from flinkish.shell.local_launcher import LocalLauncher, local_configuration
from flinkish.shell.slot_cluster import SlotCluster


class MiniCluster(SlotCluster):
    """Runs jobs for tests and for development, several after and beside each other::

        with MiniCluster(slots=2) as cluster:
            env = cluster.get_execution_environment()
            env.from_collection([1, 2, 3]).map(lambda x: x + 1).print()
            env.execute()

    ``close`` leaves no process, thread, socket or temporary folder.

    Args:
        slots: each is a process of its own and runs one job at a time.
        configuration: of the cluster (heartbeats, timeouts) and of the environments it makes.
    """

    def __init__(self, slots: int = 2, configuration: Optional[Mapping[str, Any]] = None):
        super().__init__(slots, local_configuration(slots, configuration))

    def create_launcher(self) -> Launcher:
        return LocalLauncher(self.slots)
