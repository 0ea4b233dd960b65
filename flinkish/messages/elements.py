"""What flows from subtask to subtask: batches of records, and the control events between them.

A batch is the unit that moves.  It never spans a control event, so records keep their place
before or behind a watermark, whatever the batch size.  Both batch forms carry event timestamps in
milliseconds since the epoch beside the values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Union

from flinkish.messages.checkpoints import CheckpointOptions

MAX_WATERMARK_MS = 2**63 - 1  # "no more event time": sent at the end of a bounded input
MIN_WATERMARK_MS = -(2**63)  # before the first watermark

#: What one frame between two slots carries at most, and so a record: it goes in one piece.
FRAME_PAYLOAD_BYTES_MAX = 1 << 30


class RowBatch:
    """Records as Python objects.

    ``values`` is a list, ``timestamps`` a list of the same length (an entry is None where that
    record has no timestamp), or None when no record of the batch has one.
    """

    __slots__ = ("values", "timestamps")

    def __init__(self, values: list, timestamps: list | None = None):
        self.values = values
        self.timestamps = timestamps

    def __len__(self) -> int:
        return len(self.values)


class ColumnBatch:
    """Records as columns.

    ``columns`` is a ``pyarrow.RecordBatch``; ``timestamps`` a ``numpy`` int64 array of shape
    ``[n]`` or None when the records have none.
    """

    __slots__ = ("columns", "timestamps")

    def __init__(self, columns: Any, timestamps: Any = None):
        self.columns = columns
        self.timestamps = timestamps

    def __len__(self) -> int:
        return self.columns.num_rows


@dataclass(frozen=True, slots=True)
class Watermark:
    """No more records with an event time at or below ``timestamp`` (ms) are expected."""

    timestamp: int


@dataclass(frozen=True, slots=True)
class WatermarkStatus:
    """Whether a channel takes part in the combined watermark (idle: it does not)."""

    idle: bool


@dataclass(frozen=True, slots=True)
class LatencyMarker:
    """Travels with the records from a source so that the way can be timed."""

    marked_time_ms: int
    operator_id: str
    subtask_index: int


@dataclass(frozen=True, slots=True)
class CheckpointBarrier:
    """What came before it on this channel belongs to checkpoint ``checkpoint_id``, what comes behind
    it does not.  ``timestamp_ms``: when the JobManager began it."""

    checkpoint_id: int
    timestamp_ms: int
    options: CheckpointOptions


@dataclass(frozen=True, slots=True)
class CancelCheckpointMarker:
    """No barrier of this checkpoint comes on this channel: it has been given up upstream."""

    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class EndOfData:
    """No more records and watermarks come on this channel; the sender stays for a checkpoint, so barriers
    may follow, and then EndOfInput.  A sender that does not stay sends EndOfInput only."""


@dataclass(frozen=True, slots=True)
class EndOfInput:
    """The last thing on a channel."""


ControlEvent = Union[
    Watermark, WatermarkStatus, LatencyMarker, CheckpointBarrier, CancelCheckpointMarker, EndOfData, EndOfInput
]
Batch = Union[RowBatch, ColumnBatch]
Element = Union[Batch, ControlEvent]
