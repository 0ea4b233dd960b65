"""How records choose a channel: plain data in the graph, made into writers by the runtime.

Source: Flink's ``org.apache.flink.streaming.runtime.partitioner`` package.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable, ClassVar


@dataclass(frozen=True)
class StreamPartitioner:
    """``pointwise``: a producer reaches only some of the consumers (Flink's POINTWISE)."""

    name: ClassVar[str] = ""
    pointwise: ClassVar[bool] = False


@dataclass(frozen=True)
class ForwardPartitioner(StreamPartitioner):
    """Subtask i sends to subtask i; asks for equal parallelism.  The only one that chains."""

    name = "FORWARD"
    pointwise = True


@dataclass(frozen=True)
class RebalancePartitioner(StreamPartitioner):
    """Round robin over all consumers."""

    name = "REBALANCE"


@dataclass(frozen=True)
class RescalePartitioner(StreamPartitioner):
    """Round robin over the consumers that lie next to this producer."""

    name = "RESCALE"
    pointwise = True


@dataclass(frozen=True)
class ShufflePartitioner(StreamPartitioner):
    """A random consumer for each record."""

    name = "SHUFFLE"


@dataclass(frozen=True)
class BroadcastPartitioner(StreamPartitioner):
    """Every record to every consumer."""

    name = "BROADCAST"


@dataclass(frozen=True)
class GlobalPartitioner(StreamPartitioner):
    """Every record to the first consumer."""

    name = "GLOBAL"


@dataclass(frozen=True)
class CustomPartitioner(StreamPartitioner):
    """``partitioner(key, num_partitions)`` names the consumer of ``key_selector(value)``."""

    partitioner: Callable[[Any, int], int]
    key_selector: Callable[[Any], Any]
    name = "CUSTOM"


@dataclass(frozen=True)
class KeyGroupPartitioner(StreamPartitioner):
    """The consumer that owns the key group of ``key_selector(value)``.

    ``key_field`` names the column (or position) when the key is just one field of the record, so
    that column batches need not become rows.
    """

    key_selector: Callable[[Any], Any]
    key_type: Any = None
    key_field: Any = None
    name = "HASH"
