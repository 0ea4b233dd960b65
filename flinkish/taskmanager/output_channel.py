"""The sending end of one channel.

What a channel holds, oldest first::

    queue    sealed batches and control events that wait for credit or for the socket
    open     ``values`` and ``timestamps`` (or ``columns``): where the chain appends

Moves: the chain appends to the open lists; ``add_event`` seals them and puts the event behind;
``pump`` sends from the front as long as there is credit: sealed batches, then the open lists when
they are full (``sizer.records``) or the caller wants them out.  So a batch grows while downstream
is busy, up to twice the full size; then ``room`` is 0 and the task takes no more records.

The open lists are one object for the life of the channel.  Sealing copies (a slice, 3 ns a record)
or pickles, then clears, so that memos and fused loops can keep them: an emit without a timestamp is
``memo.get(key).append(value)``.

``timestamps`` may be shorter than ``values``: what is missing at its end are records without a
timestamp.  Whoever appends in a loop with timestamps calls ``align`` first.

A barrier waits in the queue like every event; ``barrier`` is the one that may still overtake there, and
``overtake`` sends it before all that has not been sent, which it returns (and keeps, to be sent).  A frame that has
been handed to the connection is not overtaken: its credit says that the receiver reads it, however slow its
operators are.

Invariants: ``queued_records`` is the number of records in ``queue``; at most one of ``values`` and
``columns`` holds something; nothing follows EndOfInput.
"""

from __future__ import annotations

import abc
from collections import deque
from typing import Any, Callable, Optional

import numpy as np
import pyarrow as pa

from flinkish.errors import UserError
from flinkish.messages.elements import (
    FRAME_PAYLOAD_BYTES_MAX,
    Batch,
    CancelCheckpointMarker,
    CheckpointBarrier,
    ColumnBatch,
    ControlEvent,
    EndOfInput,
    RowBatch,
)
from flinkish.taskmanager import wire
from flinkish.taskmanager.credit_ledger import CreditLedger
from flinkish.taskmanager.event_queue import append_event
from flinkish.taskmanager.frame_sizer import FRAME_BYTES, FrameSizer


class OutputChannel(abc.ABC):
    """Buffer and queue of one channel; how a batch leaves is up to the two subclasses."""

    __slots__ = (
        "channel_id",
        "peer_subtask",
        "peer_slot",
        "ledger",
        "sizer",
        "values",
        "timestamps",
        "queue",
        "queued_records",
        "columns",
        "column_rows",
        "records_out",
        "bytes_out",
        "frames_out",
        "ended",
        "barrier",
    )

    is_local: bool

    def __init__(
        self,
        channel_id: int,
        peer_subtask: int,
        peer_slot: str,
        ledger: CreditLedger,
        sizer: FrameSizer,
    ):
        self.channel_id = channel_id
        self.peer_subtask = peer_subtask
        self.peer_slot = peer_slot
        self.ledger = ledger
        self.sizer = sizer
        self.values: list = []
        self.timestamps: list = []
        self.queue: deque[Batch | ControlEvent] = deque()
        self.queued_records = 0
        self.columns: list[tuple[Any, Any]] = []
        self.column_rows = 0
        self.records_out = 0
        self.bytes_out = 0
        self.frames_out = 0
        self.ended = False
        self.barrier: Optional[CheckpointBarrier] = None

    # ---- what the writer does -------------------------------------------------------------------

    def emit(self, value: Any, timestamp: Optional[int]) -> None:
        """Append one record."""
        self.seal_columns()
        if timestamp is not None:
            self.align()
            self.timestamps.append(timestamp)
        self.values.append(value)

    def add_rows(self, values: list, timestamps: Optional[list]) -> None:
        """Append many records; the lists stay the caller's."""
        self.seal_columns()
        if timestamps is not None:
            self.align()
            self.timestamps += timestamps
        self.values += values

    def add_columns(self, columns: Any, timestamps: Any) -> None:
        """Append a ``pyarrow.RecordBatch``."""
        if self.values:
            self._seal()
        if not columns.num_rows:
            return
        if self.columns and not _same_layout(self.columns[0], columns, timestamps):
            self._seal()
        self.columns.append((columns, timestamps))
        self.column_rows += columns.num_rows

    def add_event(self, event: ControlEvent) -> None:
        """Put a control event behind all records so far, and send what may be sent."""
        assert not self.ended, f"{event} after the end of channel {self.channel_id}"
        if type(event) is EndOfInput:
            self.ended = True
        self.pump(flush=True)
        if self.values or self.columns:
            self._seal()
        if self.queue:
            append_event(self.queue, event)
        elif self._event_may_pass():
            self._send_event(event)
        else:
            self.queue.append(event)
        if type(event) is CheckpointBarrier and self.queue and event.options.may_overtake:
            self.barrier = event

    def overtake(self, barrier: CheckpointBarrier) -> list[Batch | ControlEvent]:
        """Send ``barrier``, which may be in the queue already, before all that has not been sent; returns
        what stands before it.  Older barriers and markers there are dropped: they are of checkpoints that are no
        more, and ids on a channel rise."""
        is_queued = self.barrier is not None and self.barrier.checkpoint_id == barrier.checkpoint_id
        assert is_queued or not self.ended, f"{barrier} after the end of channel {self.channel_id}"
        self.pump(flush=True)
        if not is_queued:
            self._seal()
        elif self.barrier is None:
            return []  # it has just left in its turn
        overtaken: list[Batch | ControlEvent] = []
        kept: deque[Batch | ControlEvent] = deque()
        found = False
        for item in self.queue:
            if not found:
                if type(item) is CheckpointBarrier and item.checkpoint_id == barrier.checkpoint_id:
                    found = True
                    continue
                if type(item) in (CheckpointBarrier, CancelCheckpointMarker):
                    continue
                overtaken.append(item)
            kept.append(item)
        self.queue = kept
        self.barrier = None
        self._send_event(barrier)
        return overtaken

    def take_unsent(self) -> list[Batch]:
        """Remove and return the batches that have not been sent."""
        self._seal()
        unsent = [item for item in self.queue if type(item) in (RowBatch, ColumnBatch)]
        self.discard()
        return unsent  # type: ignore[return-value]

    def seal_columns(self) -> None:
        """Rows come next: what is open as columns goes before them."""
        if self.columns:
            self._seal()

    def align(self) -> None:
        """Give each open record without a timestamp its None, so that both lists are equally
        long."""
        missing = len(self.values) - len(self.timestamps)
        if missing:
            self.timestamps += [None] * missing

    @property
    def room(self) -> int:
        """Records that fit until the channel is twice full; may be negative."""
        held = len(self.values) + self.queued_records
        if self.columns or self.column_rows:
            return 2 * self.sizer.rows - held - self.column_rows
        return 2 * self.sizer.records - held

    @property
    def pending_records(self) -> int:
        return len(self.values) + self.column_rows + self.queued_records

    @property
    def is_empty(self) -> bool:
        return not (self.values or self.queue or self.columns)

    @property
    def receiver_waits(self) -> bool:
        """Whether the receiver has, as far as credits tell, taken what was sent (it returns them in
        halves of the window)."""
        return 2 * self.ledger.held < self.ledger.window

    @property
    def waits_for_socket(self) -> bool:
        """Whether only the connection holds this channel back."""
        return self.ledger.available > 0 and not self._event_may_pass()

    # ---- what the task does ---------------------------------------------------------------------

    def pump(self, flush: bool) -> None:
        """Send from the front while there is credit; of the open records only full frames, unless
        ``flush``."""
        queue = self.queue
        while queue:
            head = queue[0]
            if type(head) is RowBatch:
                if not self._may_send():
                    return
                sent = self._send_rows(head.values, head.timestamps)
                self.queued_records -= sent
                if not head.values:
                    queue.popleft()
            elif type(head) is ColumnBatch:
                if not self._may_send():
                    return
                queue.popleft()
                self.queued_records -= len(head)
                self._count(len(head))
                self._send_columns(head)
            else:
                if not self._event_may_pass():
                    return
                queue.popleft()
                if head is self.barrier:
                    self.barrier = None
                self._send_event(head)
        values = self.values
        while values and (flush or len(values) >= self.sizer.records) and self._may_send():
            if self.timestamps:
                self.align()
                self._send_rows(values, self.timestamps)
            else:
                self._send_rows(values, None)
        if self.columns and (flush or self.column_rows >= self.sizer.rows):
            while self.columns and self._may_send():
                batch = self._take_columns()
                self._count(len(batch))
                self._send_columns(batch)
                if not flush and self.column_rows < self.sizer.rows:
                    return

    def discard(self) -> None:
        """Drop all that has not been sent: the task is over."""
        self.values.clear()
        self.timestamps.clear()
        self.queue.clear()
        self.columns.clear()
        self.queued_records = self.column_rows = 0
        self.barrier = None

    def check(self) -> None:
        """Assert what holds between any two moves."""
        self.ledger.check()
        batches = [item for item in self.queue if type(item) in (RowBatch, ColumnBatch)]
        assert self.queued_records == sum(len(batch) for batch in batches)
        assert not (self.values and self.columns)
        assert len(self.timestamps) <= len(self.values)
        assert self.column_rows == sum(columns.num_rows for columns, _ in self.columns)

    # ---- inside ---------------------------------------------------------------------------------

    def _seal(self) -> None:
        """Move the open records to the queue."""
        while self.columns:
            batch = self._take_columns()
            self.queue.append(batch)
            self.queued_records += len(batch)
        if self.values:
            timestamps = None
            if self.timestamps:
                self.align()
                timestamps = self.timestamps[:]
                self.timestamps.clear()
            self.queue.append(RowBatch(self.values[:], timestamps))
            self.queued_records += len(self.values)
            self.values.clear()

    def _take_columns(self) -> ColumnBatch:
        """The next frame of open columns: small batches joined, large ones cut."""
        limit = self.sizer.rows
        columns, times = self.columns[0]
        if columns.num_rows > limit:
            rest = (columns.slice(limit), None if times is None else times[limit:])
            self.columns[0] = rest
            columns, times = columns.slice(0, limit), None if times is None else times[:limit]
            self.column_rows -= limit
        else:
            taken, rows = 1, columns.num_rows
            while taken < len(self.columns) and rows + self.columns[taken][0].num_rows <= limit:
                rows += self.columns[taken][0].num_rows
                taken += 1
            if taken > 1:
                columns, times = _concatenate(self.columns[:taken])
            del self.columns[:taken]
            self.column_rows -= rows
        self.sizer.observe_columns(columns.nbytes, columns.num_rows)
        return ColumnBatch(columns, times)

    def _count(self, records: int) -> None:
        self.records_out += records
        self.frames_out += 1

    @abc.abstractmethod
    def _may_send(self) -> bool:
        """Whether a batch may go now."""

    @abc.abstractmethod
    def _event_may_pass(self) -> bool:
        """Whether a control event may go now (it needs no credit)."""

    @abc.abstractmethod
    def _send_rows(self, values: list, timestamps: Optional[list]) -> int:
        """Send one frame from the front of the lists, remove it from them, return its records."""

    @abc.abstractmethod
    def _send_columns(self, batch: ColumnBatch) -> None: ...

    @abc.abstractmethod
    def _send_event(self, event: ControlEvent) -> None: ...


class LocalOutputChannel(OutputChannel):
    """To a subtask in the same slot: lists are handed over, nothing is pickled.

    ``receiver`` has ``receive(element)``; both ends share one ledger.
    """

    __slots__ = ("receiver",)
    is_local = True

    def __init__(self, channel_id, peer_subtask, peer_slot, ledger, sizer, receiver: Any):
        super().__init__(channel_id, peer_subtask, peer_slot, ledger, sizer)
        self.receiver = receiver

    def _may_send(self) -> bool:
        return self.ledger.available > 0

    def _event_may_pass(self) -> bool:
        return True

    def _send_rows(self, values: list, timestamps: Optional[list]) -> int:
        count = min(len(values), self.sizer.records)
        batch = RowBatch(values[:count], None if timestamps is None else timestamps[:count])
        del values[:count]
        if timestamps is not None:
            del timestamps[:count]
        self._count(count)
        self.ledger.take()
        self.receiver.receive(batch)
        return count

    def _send_columns(self, batch: ColumnBatch) -> None:
        self.ledger.take()
        self.receiver.receive(batch)

    def _send_event(self, event: ControlEvent) -> None:
        self.receiver.receive(event)


class RemoteOutputChannel(OutputChannel):
    """To a subtask in another slot.

    A batch is pickled when it is sent, not before: until then it can grow.  While the peer's
    connection holds more than ``max_pending_bytes``, nothing is sent to it.  A record that pickles to more
    than ``payload_bytes_max`` is refused here, where the task that sent it can be named.

    ``explain``: what to raise for the UserError of a record that cannot be sent.
    """

    __slots__ = ("transport", "max_pending_bytes", "explain", "encoder")
    is_local = False
    payload_bytes_max = FRAME_PAYLOAD_BYTES_MAX

    def __init__(
        self,
        channel_id,
        peer_subtask,
        peer_slot,
        ledger,
        sizer,
        transport,
        max_pending_bytes: int,
        explain: Callable[[BaseException], BaseException] = lambda error: error,
    ):
        super().__init__(channel_id, peer_subtask, peer_slot, ledger, sizer)
        self.transport = transport
        self.max_pending_bytes = max_pending_bytes
        self.explain = explain
        self.encoder = wire.ColumnEncoder()

    def _may_send(self) -> bool:
        return self.ledger.available > 0 and self._event_may_pass()

    def _event_may_pass(self) -> bool:
        return self.transport.pending_bytes(self.peer_slot) <= self.max_pending_bytes

    def _send_rows(self, values: list, timestamps: Optional[list]) -> int:
        sizer, total = self.sizer, len(values)
        count = min(total, sizer.records)
        most = min(2 * FRAME_BYTES, self.payload_bytes_max)
        while True:
            try:
                if count == total:
                    payload = wire.encode_rows(values, timestamps)
                else:
                    times = None if timestamps is None else timestamps[:count]
                    payload = wire.encode_rows(values[:count], times)
            except UserError as error:
                raise self.explain(error) from error.__cause__
            size = wire.payload_bytes(payload)
            sizer.observe(size, count)
            if size <= most or count == 1:
                break
            # The records are suddenly larger than any before: cut smaller and pickle again.
            count = max(1, min(count // 2, sizer.records))
        if size > self.payload_bytes_max:
            raise self._too_large(f"record of type {type(values[0]).__name__}", size)
        del values[:count]
        if timestamps is not None:
            del timestamps[:count]
        self._count(count)
        self.bytes_out += size
        self.ledger.take()
        self.transport.send(self.peer_slot, wire.ROWS, self.channel_id, payload)
        return count

    def _send_columns(self, batch: ColumnBatch) -> None:
        payload = self.encoder.encode(batch)
        size = wire.payload_bytes(payload)
        if size > self.payload_bytes_max:
            raise self._too_large(f"batch of {len(batch)} rows of columns", size)
        self.bytes_out += size
        self.ledger.take()
        self.transport.send(self.peer_slot, wire.COLUMNS, self.channel_id, payload)

    def _too_large(self, what: str, size: int) -> BaseException:
        refusal = UserError(
            f"could not send a {what} to another slot",
            why=f"it takes {size} bytes, the limit is {self.payload_bytes_max}: it is sent in one piece",
            do="send smaller ones, or the place of the data (a path, a key) instead of the data",
        )
        return self.explain(refusal)

    def _send_event(self, event: ControlEvent) -> None:
        payload = wire.encode_event(event)
        self.transport.send(self.peer_slot, wire.EVENT, self.channel_id, payload)


def _same_layout(open_: tuple[Any, Any], columns: Any, timestamps: Any) -> bool:
    first, first_times = open_
    return (first_times is None) == (timestamps is None) and (
        first.schema is columns.schema or first.schema.equals(columns.schema, check_metadata=True)
    )


def _concatenate(parts: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    columns = pa.concat_batches([columns for columns, _ in parts])
    if parts[0][1] is None:
        return columns, None
    return columns, np.concatenate([times for _, times in parts])
