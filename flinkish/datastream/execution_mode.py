"""RuntimeExecutionMode: how bounded input is run."""

from __future__ import annotations

from enum import Enum

__all__ = ["RuntimeExecutionMode"]


class RuntimeExecutionMode(Enum):
    """STREAMING handles bounded and unbounded input; BATCH is refused, AUTOMATIC is STREAMING."""

    STREAMING = 0
    BATCH = 1
    AUTOMATIC = 2
