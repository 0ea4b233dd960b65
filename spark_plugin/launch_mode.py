"""``flinkish.launch-mode``: which launcher starts the slots in a Spark."""

from __future__ import annotations

from typing import Any, Mapping, Optional

from flinkish.common import options
from spark_plugin.independent_launcher import IndependentLauncher
from spark_plugin.launcher import BarrierLauncher, SparkLauncher

_LAUNCHERS: dict[str, type[SparkLauncher]] = {
    launcher.mode: launcher for launcher in (BarrierLauncher, IndependentLauncher)
}


def create_launcher(
    spark: Any, slots: int = 0, configuration: Optional[Mapping[str, Any]] = None
) -> SparkLauncher:
    """The launcher of the configured mode; arguments and errors as of ``SparkLauncher``."""
    mode = options.read(configuration or {}, options.LAUNCH_MODE)
    return _LAUNCHERS[mode](spark, slots, configuration)
