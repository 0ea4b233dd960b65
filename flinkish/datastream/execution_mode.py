"""RuntimeExecutionMode: how bounded input is run."""

from __future__ import annotations

from enum import Enum

__all__ = ["RuntimeExecutionMode"]


class RuntimeExecutionMode(Enum):
    """STREAMING gives results as records come, of bounded and unbounded input; BATCH gives final results of bounded
    input; AUTOMATIC is BATCH where all sources are bounded."""

    STREAMING = 0
    BATCH = 1
    AUTOMATIC = 2
