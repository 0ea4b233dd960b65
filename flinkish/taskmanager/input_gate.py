"""All channels of one input of a subtask, as one sequence of elements.

A union is one gate over the channels of several edges.  Channels that have something wait in
``ready`` and take turns, one element each.  Watermarks and statuses go through the valve, so what
comes out is that of the input as a whole; EndOfInput comes out once, when every channel has ended.

Small row batches that lie ready side by side are joined, up to 1,024 records: a batch of one costs a
task about 20 microseconds, and with a hundred senders that each flush one there are many.
"""

from __future__ import annotations

from collections import deque
from typing import Optional

from flinkish.messages.elements import (
    ColumnBatch,
    Element,
    EndOfInput,
    RowBatch,
    Watermark,
    WatermarkStatus,
)
from flinkish.taskmanager.input_channel import InputChannel
from flinkish.taskmanager.watermark_valve import WatermarkValve

JOIN_BELOW = 256
JOIN_UP_TO = 1024


class InputGate:
    """Input ``input_index`` of a subtask.  Add all channels, then ``seal``."""

    def __init__(self, input_index: int):
        self.input_index = input_index
        self.channels: list[InputChannel] = []
        self.ready: deque[InputChannel] = deque()
        self.valve: WatermarkValve = None  # type: ignore[assignment]  # by seal()
        self.records_in = 0
        self.ended = False
        self._open_channels = 0
        self._combined: deque[Element] = deque()

    def seal(self) -> None:
        """All channels are there."""
        self.valve = WatermarkValve(len(self.channels))
        self._open_channels = len(self.channels)

    def channel_ready(self, channel: InputChannel) -> None:
        """``channel`` is about to have something."""
        channel.listed = True
        self.ready.append(channel)

    @property
    def has_input(self) -> bool:
        return bool(self.ready or self._combined)

    def next_element(self) -> Optional[Element]:
        """The next element of this input, or None when nothing is here now."""
        combined, ready = self._combined, self.ready
        while True:
            if combined:
                return combined.popleft()
            if not ready:
                return None
            channel = ready.popleft()
            element = channel.take() if channel.queue else None
            if channel.queue:
                ready.append(channel)
            else:
                channel.listed = False
            kind = type(element)
            if kind is RowBatch:
                if ready and len(element.values) < JOIN_BELOW:
                    self._join(element)
                self.records_in += len(element.values)
                return element
            if kind is ColumnBatch:
                self.records_in += len(element)
                return element
            if kind is Watermark:
                combined.extend(self.valve.watermark(channel.index, element.timestamp))
            elif kind is WatermarkStatus:
                combined.extend(self.valve.status(channel.index, element.idle))
            elif kind is EndOfInput:
                combined.extend(self.valve.finish(channel.index))
                self._open_channels -= 1
                if self._open_channels == 0:
                    self.ended = True
                    combined.append(element)
            elif element is not None:
                return element

    def _join(self, batch: RowBatch) -> None:
        """Put the small row batches that are ready behind ``batch``."""
        values, ready = batch.values, self.ready
        while ready and ready[0].first_is_small_rows(JOIN_BELOW) and len(values) < JOIN_UP_TO:
            channel = ready.popleft()
            other = channel.take()
            if channel.queue:
                ready.append(channel)
            else:
                channel.listed = False
            if other.timestamps is not None:
                if batch.timestamps is None:
                    batch.timestamps = [None] * len(values)
                batch.timestamps += other.timestamps
            elif batch.timestamps is not None:
                batch.timestamps += [None] * len(other.values)
            values += other.values

    @property
    def pool_usage(self) -> float:
        """Share of the credits that are in the queues (Flink's inPoolUsage)."""
        window = sum(channel.ledger.window for channel in self.channels)
        return sum(channel.ledger.held for channel in self.channels) / window

    def close(self) -> None:
        for channel in self.channels:
            channel.close()
        self.ready.clear()
        self._combined.clear()
