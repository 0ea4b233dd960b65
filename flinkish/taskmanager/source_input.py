"""What the reader of a source gives, as one sequence of elements: for a source what an `InputGate` is for other tasks.

Collected records, watermarks, and barriers behind them wait in a queue.  When it is empty the reader is polled, once a
turn at most where it had nothing, for about as many records as a turn can process.  A reader that had nothing is asked
again only when something says so: its descriptor, a wake-up, an event, or its poll interval.  A reader that waits for
others (``source.is_paused``) is not asked at all.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Callable, Optional

from flinkish.connectors.spi import InputStatus
from flinkish.messages.elements import (
    MAX_WATERMARK_MS,
    MIN_WATERMARK_MS,
    CheckpointBarrier,
    ColumnBatch,
    Element,
    EndOfInput,
    RowBatch,
    Watermark,
    WatermarkStatus,
)

POLL_RECORDS_FIRST = 64
POLL_RECORDS_MAX = 2048
POLL_ROWS_MAX = 64 * 1024


class SourceInput:
    """The input of a task that begins with ``source`` (``operators.source.SourceOperator`` or anything with its
    methods).

    Args:
        now_ms: processing time.
        slow_ns: a poll that takes longer is asked for less the next time.
    """

    def __init__(self, source: Any, now_ms: Callable[[], int], clock_ns: Callable[[], int], slow_ns: int):
        self.source = source
        self.now_ms, self.clock_ns, self.slow_ns = now_ms, clock_ns, slow_ns
        self.records_in = 0
        #: The reader may have something although it had nothing when asked last.
        self.look = True
        self._queue: deque[Element] = deque()  # and barriers
        self._status = InputStatus.NOTHING_AVAILABLE
        self._idle = False
        self._columns = False  # what it gave last
        self._polled_ms = MIN_WATERMARK_MS
        self._polled_this_turn = False
        self._limit = POLL_RECORDS_FIRST

    def begin_turn(self) -> None:
        self._polled_this_turn = False

    def next_element(self, room: int, records_max: int, at_end: bool) -> Optional[Element]:
        """The next element; None when there is nothing now.

        Args:
            room: records or rows that the outputs take.
            records_max: rows by which a barrier may be delayed; columns are not counted in it.
            at_end: the reader is not asked (any more).
        """
        queue = self._queue
        while True:
            if queue:
                element = queue.popleft()
                if type(element) is WatermarkStatus:
                    self._idle = element.idle
                return element
            if self.source.has_collected:  # a tick or an event of the coordinator may have left something
                self.take_collected()
                continue
            if at_end:
                return None
            if self._status is InputStatus.END_OF_INPUT:
                self.end()
                continue
            if self.source.is_paused:
                self.look = True  # as soon as it may go on
                return None
            waiting = self._status is InputStatus.NOTHING_AVAILABLE
            if waiting and (self._polled_this_turn or not self.look):
                return None
            self._poll(room if self._columns or room < records_max else records_max)
            if not queue and self._status is not InputStatus.END_OF_INPUT:
                return None  # also for MORE_AVAILABLE: let the others have their turn first

    def _poll(self, room: int) -> None:
        """Let the reader collect about a turn's worth of records, and not more than fits."""
        self._polled_this_turn, self.look = True, False
        self._polled_ms = self.now_ms()
        before = self.clock_ns()
        self._status = self.source.poll(max(1, min(self._limit, room)))
        spent = self.clock_ns() - before
        records = self.take_collected()
        if spent > self.slow_ns:
            self._limit = max(1, self._limit // 2)
        elif 2 * records > self._limit:
            limit_max = POLL_ROWS_MAX if self._columns else POLL_RECORDS_MAX
            self._limit = min(limit_max, 2 * self._limit)

    def take_collected(self) -> int:
        """Queue what the source has collected; returns the records in it."""
        records = 0
        for element in self.source.take():
            kind = type(element)
            if kind is RowBatch:
                records += len(element.values)
                self._columns = False
            elif kind is ColumnBatch:
                records += len(element)
                self._columns = True
            self._queue.append(element)
        self.records_in += records
        return records

    def put(self, barrier: CheckpointBarrier) -> None:
        """Behind all that has been collected."""
        self._queue.append(barrier)

    def end(self) -> None:
        """Queue what ends a source: event time goes to its end, then the input ends."""
        statuses = [element.idle for element in self._queue if type(element) is WatermarkStatus]
        if statuses[-1] if statuses else self._idle:  # an idle output passes no watermark (FLINK-40499)
            self._queue.append(WatermarkStatus(False))
        self._queue.append(Watermark(MAX_WATERMARK_MS))
        self._queue.append(EndOfInput())
        self._status = InputStatus.NOTHING_AVAILABLE
        self._polled_this_turn = True

    def drop(self) -> None:
        self._queue.clear()

    # ---- what the task asks -----------------------------------------------------------------------

    @property
    def has_collected(self) -> bool:
        """Whether something waits."""
        return bool(self._queue) or self.source.has_collected

    @property
    def has_input(self) -> bool:
        """Whether something waits, or the reader has said that it has more."""
        if self._queue or self._status is InputStatus.END_OF_INPUT:
            return True
        return self._status is InputStatus.MORE_AVAILABLE and not self.source.is_paused

    def may_have_more(self, at_end: bool) -> bool:
        """Whether `next_element` could give something in this turn."""
        return self.source.has_collected or not (self._polled_this_turn or at_end or self.source.is_paused)

    @property
    def next_poll_ms(self) -> Optional[int]:
        """When the reader is asked again although nothing says so; None: never."""
        if self.source.is_paused:
            return None
        interval = self.source.poll_interval_ms
        return None if interval is None else self._polled_ms + interval

    def is_to_be_asked(self) -> bool:
        if self.source.is_paused:
            return False
        if self.look:
            return True
        next_poll_ms = self.next_poll_ms
        return next_poll_ms is not None and self.now_ms() >= next_poll_ms
