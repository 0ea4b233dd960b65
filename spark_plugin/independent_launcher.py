"""IndependentLauncher: each supervisor is a Spark job of one task.

States of one supervisor's job::

    RUNNING ──task fails──> RUNNING (Spark's retry, three times, not under a local master)
       ├──fails for good, or the supervisor ends unasked──> ENDED ──launch──> RUNNING
       └──stop──> over

A lost Python worker or executor costs its own slots only: Spark's retry starts the supervisor anew,
registered with the attempt's number, while the others keep running.  Jobs of one task also go with
dynamic allocation, which asks for executors as such jobs wait and keeps those that run one.  The
price is that slots may come one after another, and hold their cores while a job waits for the last.
"""

from __future__ import annotations

from typing import Optional

from flinkish.errors import FlinkishError
from spark_plugin.launcher import SparkLauncher


class IndependentLauncher(SparkLauncher):
    """See the module."""

    mode = "independent"
    together = False

    def capacity(self) -> Optional[int]:
        return None if self.application.allocates_dynamically() else super().capacity()

    def alive(self) -> bool:
        """Until it is stopped: what has ended alone is to be launched again."""
        return bool(self._group) and not self._stopping.is_set()

    def failure(self) -> Optional[FlinkishError]:
        return None
