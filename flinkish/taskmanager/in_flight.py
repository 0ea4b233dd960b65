"""Records that an unaligned barrier has overtaken: how they are kept, and how they come back.

What one subtask has of them is one content: a header, then for each part (one channel, or what was joined from
several) its frames, as they go over the wire::

    magic "FLKF", 1 byte version
    part   frame ...      frame: 1 byte kind (wire.ROWS, COLUMNS, EVENT), uint32 length, payload

Column frames bring their schema.  Of events only watermarks are kept; whatever else a channel says (statuses,
latency markers, ends) its sender says anew.  The index, with a checksum for each part, travels in the handle
(``messages.checkpoints.InFlightPart``).

How much it can be: of a channel what its credits allow at the receiver, and two batches with the sender.
"""

from __future__ import annotations

import pickle
import struct
import zlib
from dataclasses import dataclass, field
from typing import Any, Callable, Iterator, Optional

from flinkish.errors import CorruptSnapshotError, FlinkishError
from flinkish.graph.job_graph import OutputEdge
from flinkish.messages.checkpoints import Bytes, CheckpointOptions, InFlightPart, InFlightRestore
from flinkish.messages.deployment import EdgeDescriptor
from flinkish.messages.elements import Batch, ColumnBatch, RowBatch, Watermark
from flinkish.taskmanager import wire
from flinkish.taskmanager.credit_ledger import CreditLedger
from flinkish.taskmanager.frame_sizer import FrameSizer
from flinkish.taskmanager.output_channel import LocalOutputChannel
from flinkish.taskmanager.record_writer import create_record_writer

HEADER = b"FLKF\x01"
_FRAME = struct.Struct("<BI")

#: (kind, payload), as they go over the wire.
Frame = tuple[int, bytes]


def frame_of(element: Any) -> Optional[Frame]:
    """``element`` as a frame that needs no other to be read; None: it is none that is kept.

    Raises:
        UserError: a record does not pickle.
    """
    kind = type(element)
    if kind is RowBatch or kind is ColumnBatch:
        code, buffers = wire.encode_batch(element, wire.ColumnEncoder())
        return code, b"".join(buffers)
    if kind is Watermark:
        return wire.EVENT, b"".join(wire.encode_event(element))
    return None


def element_of(frame: Frame) -> Any:
    kind, payload = frame
    if kind == wire.ROWS:
        return wire.decode_rows(payload)
    return wire.ColumnDecoder().decode(payload) if kind == wire.COLUMNS else wire.decode_event(payload)


class FrameRecorder:
    """Frames of one channel that are in flight, and the first reason why one could not be kept."""

    def __init__(self, schema: Any = None) -> None:
        self.frames: list[Frame] = []
        self.error: Optional[FlinkishError] = None
        self._decoder = wire.ColumnDecoder(schema)

    def record(self, item: Any) -> None:
        """An element, or the (kind, payload) of a peer slot."""
        if self.error is not None:
            return
        try:
            if type(item) is not tuple:
                frame = frame_of(item)
            elif item[0] == wire.COLUMNS:
                frame = frame_of(self._decoder.decode(item[1]))
            else:
                frame = item
        except FlinkishError as error:
            self.error = error
            return
        if frame is None:
            return
        if frame[0] == wire.EVENT and self.frames and self.frames[-1][0] == wire.EVENT:
            self.frames.pop()  # a watermark takes the place of the one before it
        self.frames.append(frame)


@dataclass
class InFlightData:
    """What barrier ``checkpoint_id`` has overtaken at one subtask.

    ``inputs_open``: not every channel has its barrier; ``outputs_open``: barriers wait in output queues;
    ``dropped``: it will never be complete."""

    checkpoint_id: int
    options: CheckpointOptions
    inputs_open: bool = False
    outputs_open: bool = False
    dropped: bool = False
    error: Optional[FlinkishError] = None
    _parts: list[tuple[EdgeDescriptor, Optional[int], int, bool, list[Frame]]] = field(default_factory=list)

    def add(
        self, edge: EdgeDescriptor, sender: Optional[int], receiver: int, sent: bool, recorder: FrameRecorder
    ) -> None:
        self.error = self.error or recorder.error
        if recorder.frames:
            self._parts.append((edge, sender, receiver, sent, recorder.frames))

    @property
    def is_complete(self) -> bool:
        return not (self.inputs_open or self.outputs_open)

    def content(self) -> tuple[bytes, tuple[InFlightPart, ...]]:
        """All of it, and its index; both empty when nothing was overtaken."""
        if not self._parts:
            return b"", ()
        pieces, at, index = [HEADER], len(HEADER), []
        for edge, sender, receiver, sent, frames in self._parts:
            part = b"".join(_FRAME.pack(kind, len(payload)) + payload for kind, payload in frames)
            index.append(InFlightPart(edge, sender, receiver, sent, at, len(part), zlib.crc32(part)))
            pieces.append(part)
            at += len(part)
        return b"".join(pieces), tuple(index)


def read_frames(content: Any, part: InFlightRestore) -> Iterator[Frame]:
    """The frames of a part.

    Args:
        content: bytes, or a file that can seek.
    Raises:
        CorruptSnapshotError: they are not what was written.
    """
    if isinstance(content, bytes):
        header, data = content[: len(HEADER)], content[part.offset : part.offset + part.length]
    else:
        header = content.read(len(HEADER))
        content.seek(part.offset)
        data = content.read(part.length)
    if header != HEADER:
        raise _corrupt(part.content, f"it begins with {header!r}, not with {HEADER!r}")
    if len(data) != part.length or zlib.crc32(data) != part.checksum:
        raise _corrupt(part.content, f"the {part.length} bytes from {part.offset} on are damaged or cut off")
    at = 0
    while at < len(data):
        kind, length = _FRAME.unpack_from(data, at)
        at += _FRAME.size + length
        yield kind, data[at - length : at]


def _corrupt(content: Bytes, why: str) -> CorruptSnapshotError:
    return CorruptSnapshotError(
        "could not read the records in flight of a checkpoint",
        where=getattr(content, "uri", "the checkpoint's metadata"),
        why=why,
        do="restore from another checkpoint or savepoint",
    )


class Sieve:
    """Lets those records through that a partitioner sends to one of ``parallelism`` subtasks: exactly as the
    writers of that edge would, because it asks one."""

    def __init__(self, partitioner: bytes, index: int, parallelism: int, max_parallelism: int):
        sizer = FrameSizer(1024)
        self._channels = [
            LocalOutputChannel(number, number, "", CreditLedger(1), sizer, None) for number in range(parallelism)
        ]
        edge = OutputEdge(0, 0, pickle.loads(partitioner), max_parallelism)
        self._writer = create_record_writer(edge, list(self._channels), sizer, None, lambda value: value, -1)
        self._index = index

    def __call__(self, batch: Batch) -> list[Batch]:
        if type(batch) is ColumnBatch:
            self._writer.emit_columns(batch.columns, batch.timestamps)
        else:
            self._writer.emit_batch(batch.values, batch.timestamps)
        mine = self._channels[self._index].take_unsent()
        for channel in self._channels:
            channel.discard()
        return mine


@dataclass(frozen=True)
class Replayed:
    """One frame on its way back.  ``sender`` None: as in ``InFlightRestore``."""

    edge: EdgeDescriptor
    sender: Optional[int]
    frame: Frame
    sieve: Optional[Sieve]

    def elements(self) -> list[Any]:
        if self.frame[0] == wire.EVENT:
            return [] if self.sender is None else [element_of(self.frame)]
        element = element_of(self.frame)
        return [element] if self.sieve is None else self.sieve(element)


def read_replay(
    parts: tuple[InFlightRestore, ...],
    edges: dict[int, EdgeDescriptor],
    subtask: tuple[int, int, int],
    open_content: Callable[[Bytes], Any],
) -> Iterator[Replayed]:
    """What a subtask takes before anything that its channels bring, in this order.

    Args:
        subtask: its index, the parallelism and the max parallelism of its vertex.
    """
    sieves: dict[bytes, Sieve] = {}
    for part in parts:
        sieve = None
        if part.partitioner is not None:
            sieve = sieves.get(part.partitioner)
            if sieve is None:
                sieve = sieves[part.partitioner] = Sieve(part.partitioner, *subtask)
        content = open_content(part.content)
        try:
            for frame in read_frames(content, part):
                yield Replayed(edges[part.edge_id], part.sender, frame, sieve)
        finally:
            if not isinstance(content, bytes):
                content.close()
