"""The writers of sinks whose records go to the driver, to be collected or printed there."""

from __future__ import annotations

import abc
from collections import deque
from typing import Any, Optional, Sized, TypeVar

from flinkish.connectors.spi import SinkWriter, WriterInitContext

T = TypeVar("T")

BATCH_BYTES = 1 << 20  # or one record, if that is larger
WINDOW_BYTES = 8 << 20


class DriverWriter(SinkWriter[T]):
    """Sends batches to the sink's coordinator, and has no room while ``window_batches`` of them, or 8 MiB, are
    on their way or wait there: a slow driver slows the job down instead of filling its memory.

    A subclass writes ``encode``.  The coordinator sends the attempt of the writer back for each batch that it is
    done with; those of an attempt that has failed are nobody's any more.

    Args:
        batch_records: records that are gathered before they are sent, unless they make 1 MiB or the input
            runs dry.
    """

    keeps_values = False  # each is encoded at once

    def __init__(self, context: WriterInitContext, window_batches: int, batch_records: int):
        self._context = context
        self._window_batches = window_batches
        self._batch_records = batch_records
        self._gathered: list[Sized] = []
        self._gathered_bytes = 0
        self._records = 0
        self._unanswered: deque[int] = deque()  # bytes of each batch
        self._unanswered_bytes = 0

    @abc.abstractmethod
    def encode(self, values: list[T]) -> list[Any]:
        """What the coordinator gets of these records, in pieces with a length: shares nothing with them that
        can change."""

    def write(self, value: T, timestamp_ms: Optional[int], watermark_ms: int) -> None:
        self.write_batch([value], None, watermark_ms)

    def write_batch(self, values: list[T], timestamps_ms: Any, watermark_ms: int) -> None:
        for piece in self.encode(values):
            size = len(piece)
            if self._gathered_bytes + size > BATCH_BYTES:
                self.flush(False)
            self._gathered.append(piece)
            self._gathered_bytes += size
        self._records += len(values)
        if self._records >= self._batch_records or self._gathered_bytes >= BATCH_BYTES:
            self.flush(False)

    @property
    def has_room(self) -> bool:  # type: ignore[override]
        return len(self._unanswered) < self._window_batches and self._unanswered_bytes < WINDOW_BYTES

    def flush(self, end_of_input: bool) -> None:
        if self._gathered:
            batch, self._gathered, self._records = self._gathered, [], 0
            self._unanswered.append(self._gathered_bytes)
            self._unanswered_bytes += self._gathered_bytes
            self._gathered_bytes = 0
            self._context.send_to_coordinator(batch)

    def handle_coordinator_event(self, payload: Any) -> None:
        if payload == self._context.attempt_number():
            self._unanswered_bytes -= self._unanswered.popleft()
