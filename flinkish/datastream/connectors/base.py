"""Source and Sink, and what a sink can guarantee."""

from __future__ import annotations

from enum import Enum

from flinkish.connectors.spi import Sink, Source

__all__ = ["DeliveryGuarantee", "Sink", "Source"]


class DeliveryGuarantee(Enum):
    EXACTLY_ONCE = 0
    AT_LEAST_ONCE = 1
    NONE = 2
