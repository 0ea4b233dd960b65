"""All channels of one input of a subtask, as one sequence of elements.

A union is one gate over the channels of several edges.  Channels that have something wait in
``ready`` and take turns, one element each.  Watermarks and statuses go through the valve, so what
comes out is that of the input as a whole; EndOfInput comes out once, when the data of every channel
have ended.

Barriers and markers come out one by one, as (channel, event).  A channel whose barrier has been taken is not
read any more until ``resume``; what arrives for it stays in its queue and keeps its credits.

Small row batches that lie ready side by side are joined, up to 1,024 records: a batch of one costs a
task about 20 microseconds, and with a hundred senders that each flush one there are many.  Only those of one
edge: the rest of a batch may have to be kept as in flight there (``edge`` is that of the last batch).

What was in flight when the checkpoint was taken that the task goes on from (``replay``) comes before all else.
"""

from __future__ import annotations

from collections import deque
from typing import Callable, Optional, Union

from flinkish.messages.deployment import EdgeDescriptor
from flinkish.messages.elements import (
    CancelCheckpointMarker,
    CheckpointBarrier,
    ColumnBatch,
    Element,
    EndOfData,
    EndOfInput,
    RowBatch,
    Watermark,
    WatermarkStatus,
)
from flinkish.taskmanager.in_flight import FrameRecorder, Replayed
from flinkish.taskmanager.input_channel import InputChannel
from flinkish.taskmanager.watermark_valve import WatermarkValve

JOIN_BELOW = 256
JOIN_UP_TO = 1024

CheckpointEvent = Union[CheckpointBarrier, CancelCheckpointMarker]


class InputGate:
    """Input ``input_index`` of a subtask.  Add all channels, then ``seal``.

    ``on_closed(channel)``: its EndOfInput has been taken.  ``on_announced(channel, event)``: a barrier that may
    overtake, or EndOfInput, has arrived; called while others work, so it may only take note.  ``ended``: no more data come; ``closed``: nothing
    comes any more."""

    def __init__(self, input_index: int):
        self.input_index = input_index
        self.channels: list[InputChannel] = []
        self.ready: deque[InputChannel] = deque()
        self.valve: WatermarkValve = None  # type: ignore[assignment]  # by seal()
        self.on_closed: Callable[[InputChannel], None] = lambda channel: None
        self.on_announced: Callable[[InputChannel, Element], None] = lambda channel, event: None
        self.edge: Optional[EdgeDescriptor] = None
        self.replay: deque[Replayed] = deque()
        self.records_in = 0
        self.ended = self.closed = False
        self._with_data = 0
        self._open_channels = 0
        self._combined: deque[Element] = deque()

    def seal(self) -> None:
        """All channels are there."""
        self.valve = WatermarkValve(len(self.channels))
        self._with_data = self._open_channels = len(self.channels)

    def channel_ready(self, channel: InputChannel) -> None:
        """``channel`` is about to have something."""
        channel.listed = True
        self.ready.append(channel)

    @property
    def has_input(self) -> bool:
        return bool(self.ready or self._combined or self.replay)

    def resume(self, channel: InputChannel) -> None:
        """Read on behind the barrier of ``channel``."""
        if channel.queue:
            self.ready.append(channel)
        else:
            channel.listed = False

    def next_element(self) -> Union[Element, tuple[InputChannel, CheckpointEvent], None]:
        """The next element of this input, or None when nothing is here now."""
        combined, ready = self._combined, self.ready
        while True:
            if combined:
                element = combined.popleft()
                if type(element) is RowBatch or type(element) is ColumnBatch:
                    self.records_in += len(element)
                return element
            if self.replay:
                self._take_replayed(self.replay.popleft())
                continue
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
                self.edge = channel.edge
                if ready and len(element.values) < JOIN_BELOW:
                    self._join(element)
                self.records_in += len(element.values)
                return element
            if kind is ColumnBatch:
                self.edge = channel.edge
                self.records_in += len(element)
                return element
            if kind is Watermark:
                combined.extend(self.valve.watermark(channel.index, element.timestamp))
            elif kind is WatermarkStatus:
                combined.extend(self.valve.status(channel.index, element.idle))
            elif kind is EndOfInput:
                self._end_data(channel)
                self._open_channels -= 1
                self.closed = self._open_channels == 0
                self.on_closed(channel)
            elif kind is EndOfData:
                self._end_data(channel)
            elif kind is CheckpointBarrier:
                if channel.queue:
                    ready.pop()
                channel.listed = True
                return channel, element
            elif kind is CancelCheckpointMarker:
                return channel, element
            elif element is not None:
                return element

    def _take_replayed(self, replayed: Replayed) -> None:
        self.edge = replayed.edge
        for element in replayed.elements():
            if type(element) is not Watermark:
                self._combined.append(element)
                continue
            for channel in self.channels:
                if channel.edge is replayed.edge and channel.peer_subtask == replayed.sender:
                    self._combined.extend(self.valve.watermark(channel.index, element.timestamp))

    def recorded_replay(self) -> list[tuple[EdgeDescriptor, FrameRecorder]]:
        """What has not been replayed yet, and so is still in flight, in this order.

        Watermarks are left out: the senders say them anew."""
        recorded: list[tuple[EdgeDescriptor, FrameRecorder]] = []
        for element in self._combined:
            self._record(recorded, self.edge, element)
        for replayed in self.replay:
            for element in replayed.elements():
                self._record(recorded, replayed.edge, element)
        return recorded

    @staticmethod
    def _record(
        recorded: list[tuple[EdgeDescriptor, FrameRecorder]], edge: Optional[EdgeDescriptor], element: Element
    ) -> None:
        if type(element) is RowBatch or type(element) is ColumnBatch:
            assert edge is not None
            if not recorded or recorded[-1][0] is not edge:
                recorded.append((edge, FrameRecorder()))
            recorded[-1][1].record(element)

    def _end_data(self, channel: InputChannel) -> None:
        if channel.data_ended:
            return
        channel.data_ended = True
        self._combined.extend(self.valve.finish(channel.index))
        self._with_data -= 1
        if self._with_data == 0:
            self.ended = True
            self._combined.append(EndOfInput())

    def _join(self, batch: RowBatch) -> None:
        """Put the small row batches that are ready behind ``batch``."""
        values, ready = batch.values, self.ready
        while (
            ready
            and ready[0].edge is self.edge
            and ready[0].first_is_small_rows(JOIN_BELOW)
            and len(values) < JOIN_UP_TO
        ):
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
        self.replay.clear()
