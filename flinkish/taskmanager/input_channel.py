"""The receiving end of one channel: a queue of frames, bounded by credits.

Moves: ``receive_frame`` (from a peer slot) and ``receive`` (from a subtask of the same slot) put
an element behind the queue; ``take`` removes the first one, and the credit of a batch goes back.
Frames of a peer stay bytes until they are taken: that is compact, and a record that does not
unpickle fails the task that wanted it.

Credits go back when half the window has been taken, so that a channel which moves one small
frame at a time does not answer each with a message of its own; the sender keeps at least one.

**Barriers that may overtake** are announced to the gate when they arrive, and so is the end.  ``overtake`` takes
such a barrier out of turn: what stands before it goes into a recorder (and stays in the queue).  Is it not there yet,
what arrives is recorded too until it comes; then it does not enter the queue.

Invariants: ``ledger.held`` is the number of batches in ``queue``; nothing follows EndOfInput.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Optional

from flinkish.messages.deployment import EdgeDescriptor
from flinkish.messages.elements import (
    CancelCheckpointMarker,
    CheckpointBarrier,
    ColumnBatch,
    Element,
    EndOfInput,
    RowBatch,
)
from flinkish.taskmanager import wire
from flinkish.taskmanager.credit_ledger import CreditLedger
from flinkish.taskmanager.event_queue import append_event
from flinkish.taskmanager.in_flight import FrameRecorder

SMALL_FRAME_BYTES = 8 * 1024


class InputChannel:
    """``gate``: has ``on_announced(channel, event)``, and ``channel_ready(channel)``, called when this one is not ``listed`` there and
    has something; a listed channel may be empty again (two statuses that undo each other), and one that
    is held for a barrier stays listed although the gate does not read it.

    ``transport`` None: the sender is in the same slot and shares ``ledger``.
    """

    __slots__ = (
        "channel_id",
        "peer_subtask",
        "peer_slot",
        "gate",
        "index",
        "ledger",
        "queue",
        "listed",
        "transport",
        "decoder",
        "credits_owed",
        "credits_sent_at",
        "bytes_in",
        "data_ended",
        "ended",
        "closed",
        "edge",
        "persisting",
        "recorder",
    )

    def __init__(
        self,
        channel_id: int,
        peer_subtask: int,
        peer_slot: str,
        gate: Any,
        index: int,
        ledger: CreditLedger,
        transport: Any = None,
        edge: Optional[EdgeDescriptor] = None,
    ):
        self.channel_id = channel_id
        self.peer_subtask = peer_subtask
        self.peer_slot = peer_slot
        self.gate = gate
        self.index = index
        self.ledger = ledger
        self.transport = transport
        self.queue: deque[Any] = deque()  # a frame is (kind, payload), all else an Element
        self.listed = False
        self.decoder = wire.ColumnDecoder()
        self.credits_owed = 0
        self.credits_sent_at = max(1, ledger.window // 2)
        self.bytes_in = 0
        self.data_ended = False  # its end, of data or of all, has been taken
        self.ended = False
        self.closed = False
        self.edge = edge
        self.persisting = 0  # id of the checkpoint whose barrier has not come while others have overtaken
        self.recorder: Optional[FrameRecorder] = None

    def receive(self, element: Element) -> None:
        """An element of a subtask in this slot; it has taken the credit from the shared ledger."""
        if self.closed:
            return
        assert not self.ended, f"{element} after the end of channel {self.channel_id}"
        kind = type(element)
        if self.persisting and self._stands_for_barrier(element):
            return
        queue = self.queue
        if not self.listed:
            self.gate.channel_ready(self)
        if kind is RowBatch or kind is ColumnBatch:
            queue.append(element)
            return
        append_event(queue, element)
        if kind is EndOfInput:
            self.ended = True
            self.gate.on_announced(self, element)
        elif kind is CheckpointBarrier and element.options.may_overtake:  # type: ignore[union-attr]
            self.gate.on_announced(self, element)

    def _stands_for_barrier(self, element: Element) -> bool:
        """Record what comes before the barrier that is waited for; whether ``element`` stays out of the queue."""
        kind = type(element)
        if kind is CheckpointBarrier or kind is CancelCheckpointMarker:
            if element.checkpoint_id < self.persisting:  # type: ignore[union-attr]
                return True  # of one that is no more
            own = kind is CheckpointBarrier and element.checkpoint_id == self.persisting  # type: ignore[union-attr]
            self.persisting = 0
            if own:
                self.gate.on_announced(self, element)
            return own
        assert self.recorder is not None
        if kind is EndOfInput:
            self.persisting = 0
        else:
            self.recorder.record(element)
        return False

    def overtake(self, checkpoint_id: int) -> None:
        """Record what stands before the barrier of ``checkpoint_id``, which is taken out of turn."""
        self.recorder = recorder = FrameRecorder(self.decoder.schema)
        kept: deque[Any] = deque()
        found = False
        for item in self.queue:
            if not found:
                kind = type(item)
                if kind is CheckpointBarrier and item.checkpoint_id == checkpoint_id:
                    found = True
                    continue
                if (kind is CheckpointBarrier or kind is CancelCheckpointMarker) and item.checkpoint_id < checkpoint_id:
                    continue
                recorder.record(item)
            kept.append(item)
        self.queue = kept
        self.persisting = 0 if found or self.ended else checkpoint_id

    def take_recorded(self) -> FrameRecorder:
        """What ``overtake`` and later arrivals have recorded, once the barrier is there."""
        assert self.recorder is not None and not self.persisting
        recorder, self.recorder = self.recorder, None
        return recorder

    def stop_recording(self) -> None:
        """The checkpoint has been given up."""
        self.persisting, self.recorder = 0, None

    def receive_frame(self, kind: int, payload: bytes | memoryview) -> None:
        """A frame of a peer slot."""
        if self.closed:
            return
        if kind == wire.EVENT:
            self.receive(wire.decode_event(payload))
            return
        assert not self.ended, f"batch after the end of channel {self.channel_id}"
        self.ledger.take()
        if type(payload) is not bytes:
            payload = bytes(payload)  # the connection uses its buffer again
        self.bytes_in += len(payload)
        if self.persisting:
            assert self.recorder is not None
            self.recorder.record((kind, payload))
        if not self.listed:
            self.gate.channel_ready(self)
        self.queue.append((kind, payload))

    def take(self) -> Element:
        """Remove the first element; the queue must not be empty."""
        item = self.queue.popleft()
        if type(item) is tuple:
            self._return_credit()
            kind, payload = item
            if kind == wire.ROWS:
                return wire.decode_rows(payload)
            return self.decoder.decode(payload)
        if type(item) is RowBatch or type(item) is ColumnBatch:
            self._return_credit()
        return item

    def first_is_small_rows(self, records_max: int) -> bool:
        """Whether the first element is a batch of few rows, which may be joined with others."""
        if not self.queue:
            return False
        item = self.queue[0]
        if type(item) is tuple:
            return item[0] == wire.ROWS and len(item[1]) <= SMALL_FRAME_BYTES
        return type(item) is RowBatch and len(item.values) <= records_max

    def close(self) -> None:
        """Drop what is there and what will come: the task is over."""
        self.closed = True
        self.queue.clear()
        self.stop_recording()

    def _return_credit(self) -> None:
        self.ledger.give_back(1)
        if self.transport is None or self.ended:
            return
        self.credits_owed += 1
        if self.credits_owed >= self.credits_sent_at:
            payload = wire.encode_credit(self.credits_owed)
            self.credits_owed = 0
            self.transport.send(self.peer_slot, wire.CREDIT, self.channel_id, payload)

    def check(self) -> None:
        """Assert what holds between any two moves."""
        self.ledger.check()
        batches = [i for i in self.queue if type(i) in (tuple, RowBatch, ColumnBatch)]
        assert self.closed or self.transport is None or self.ledger.held == len(batches)
