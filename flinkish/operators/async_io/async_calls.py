"""AsyncCalls: which calls are made for the records of an asynchronous operator, and what comes of each record.

States of a record::

    backlog     restored, and not begun: it waits for room
    calling     attempt n is under way
    waiting     attempt n was not good enough, n + 1 begins at ``retry_at_ms``
    done        it has its one outcome, and waits for its turn to leave (`element_queue`)
    gone        its results have left; or the job fails

Moves, with the event in front: ``add``, or room for the backlog -> calling; ``answered`` -> waiting, if the retry strategy says
so, else done (an error that is not tried again fails the job); ``advance`` at ``retry_at_ms`` -> calling; ``advance`` at
``deadline_ms`` -> `AskTimeout`, and what the handler gives, by ``finish``, is the outcome.  The deadline is one for all
attempts, and the end of the input changes nothing: attempts are made until the outcome.

Invariants: records that are calling, waiting or done are at most ``capacity`` (watermarks between them are not counted); an answer
counts only when it is that of the attempt under way, so what comes after a timeout, or twice, changes nothing; nothing new begins
before the backlog has.

No clock, thread or user function is here, but for ``retry_delay``; effects are carried out in order.

Source: Flink's ``AsyncWaitOperator``, and at the end of the input PyFlink's ``AsyncOperation`` (Java's gives attempts up).
There, results of the timeout handler may be tried again; here they are the outcome.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass
from typing import Any, Callable, Iterable, Iterator, Optional, Union

from flinkish.operators.async_io.element_queue import (
    AsyncRecord,
    Control,
    OrderedStreamElementQueue,
    StreamElementQueue,
    UnorderedStreamElementQueue,
)


@dataclass(frozen=True)
class Start:
    """Make the call of ``record.attempt``."""

    record: AsyncRecord


@dataclass(frozen=True)
class Cancel:
    """Nobody waits for this call any more."""

    number: int
    attempt: int


@dataclass(frozen=True)
class AskTimeout:
    """Time is over: ask the function what stands in for results, and tell `AsyncCalls.finish` before anything else."""

    record: AsyncRecord


@dataclass(frozen=True)
class Fail:
    """The last attempt has failed, and so does the job."""

    record: AsyncRecord
    error: BaseException


Effect = Union[Start, Cancel, AskTimeout, Fail]

#: ``(record, results, error)``, one of the last two is None -> ms until the next attempt; None: there is none.
RetryDelay = Callable[[AsyncRecord, Optional[list], Optional[BaseException]], Optional[int]]


class AsyncCalls:
    """See the module.

    Args:
        ordered: results leave in the order of their records.
        capacity: records on their way, at least 1.
        timeout_ms: from the first attempt of a record until its outcome; 0: for ever.
        retry_delay: the retry strategy; None: nothing is tried again.
    """

    def __init__(self, ordered: bool, capacity: int, timeout_ms: int, retry_delay: Optional[RetryDelay] = None):
        self.capacity, self.timeout_ms, self._retry_delay = capacity, timeout_ms, retry_delay
        self._queue: StreamElementQueue = OrderedStreamElementQueue() if ordered else UnorderedStreamElementQueue()
        self._backlog: deque[Union[tuple[Any, Optional[int]], Control]] = deque()
        self._open: dict[int, AsyncRecord] = {}  # calling or waiting, by number
        self._on_way = 0  # and those that are done
        self._deadlines: deque[AsyncRecord] = deque()  # all wait equally long; may be done
        self._retries: list[tuple[int, int, int]] = []  # heap of (time, number, attempt before), may be over
        self._last_number = 0

    # ---- what comes in --------------------------------------------------------------------------

    def restore(self, records: Iterable[tuple[Any, Optional[int]]]) -> None:
        """(value, timestamp) of records that were on their way in a snapshot; they go before anything new."""
        self._backlog.extend(records)

    def add(self, value: Any, timestamp: Optional[int], now_ms: int) -> list[Effect]:
        assert self.room > 0
        return [self._begin(value, timestamp, now_ms)]

    def add_control(self, control: Control) -> None:
        """A watermark or status, behind all that is here."""
        if self._backlog:
            self._backlog.append(control)
        else:
            self._queue.put_control(control)

    # ---- what becomes of calls ------------------------------------------------------------------

    def answered(
        self, number: int, attempt: int, results: Optional[list], error: Optional[BaseException], now_ms: int
    ) -> list[Effect]:
        """A call is over: with ``results``, or with ``error``."""
        record = self._open.get(number)
        if record is None or record.attempt != attempt or record.retry_at_ms is not None:
            return []  # its record has its outcome, or it has answered before
        delay_ms = None if self._retry_delay is None else self._retry_delay(record, results, error)
        if delay_ms is not None:
            record.retry_at_ms = now_ms + delay_ms
            heapq.heappush(self._retries, (record.retry_at_ms, number, attempt))
            return []
        if error is not None:
            return [Fail(record, error)]
        assert results is not None
        self.finish(record, results)
        return []

    def finish(self, record: AsyncRecord, results: list) -> None:
        """The outcome of a record."""
        del self._open[record.number]
        record.results = results
        self._queue.done(record)

    def advance(self, now_ms: int) -> list[Effect]:
        """What is due: timeouts first, then other attempts and the backlog."""
        effects: list[Effect] = []
        while self._deadlines and (record := self._deadlines[0]).deadline_ms <= now_ms:  # type: ignore[operator]
            self._deadlines.popleft()
            if record.results is None:
                if record.retry_at_ms is None:
                    effects.append(Cancel(record.number, record.attempt))
                record.retry_at_ms = None
                effects.append(AskTimeout(record))
        while self._retries and self._retries[0][0] <= now_ms:
            _, number, attempt = heapq.heappop(self._retries)
            if self._waits(number, attempt):
                effects.append(self._try_again(self._open[number]))
        while self._backlog and self._on_way < self.capacity:
            element = self._backlog.popleft()
            if type(element) is tuple:
                effects.append(self._begin(*element, now_ms))
            else:
                self._queue.put_control(element)  # type: ignore[arg-type]
        return effects

    def _begin(self, value: Any, timestamp: Optional[int], now_ms: int) -> Effect:
        self._last_number += 1
        record = AsyncRecord(self._last_number, value, timestamp)
        self._on_way += 1
        self._open[record.number] = record
        self._queue.put(record)
        if self.timeout_ms:
            record.deadline_ms = now_ms + self.timeout_ms
            self._deadlines.append(record)
        return Start(record)

    def _try_again(self, record: AsyncRecord) -> Effect:
        record.attempt, record.retry_at_ms = record.attempt + 1, None
        return Start(record)

    # ---- what goes out --------------------------------------------------------------------------

    @property
    def head(self) -> Union[AsyncRecord, Control, None]:
        """What leaves next: a record with its results, a watermark or a status; None: not known yet."""
        return self._queue.head

    def take(self) -> None:
        """The `head` leaves."""
        if type(self._queue.head) is AsyncRecord:
            self._on_way -= 1
        self._queue.take()

    # ---- what the operator asks -----------------------------------------------------------------

    @property
    def room(self) -> int:
        """Records that may come now."""
        return 0 if self._backlog else self.capacity - self._on_way

    @property
    def is_empty(self) -> bool:
        return self._queue.is_empty and not self._backlog

    @property
    def next_time_ms(self) -> Optional[int]:
        """When `advance` has something to do; None: not before something else happens."""
        if self._backlog and self._on_way < self.capacity:
            return 0
        while self._deadlines and self._deadlines[0].results is not None:
            self._deadlines.popleft()
        while self._retries and not self._waits(*self._retries[0][1:]):
            heapq.heappop(self._retries)
        deadline_ms = self._deadlines[0].deadline_ms if self._deadlines else None
        retry_at_ms = self._retries[0][0] if self._retries else None
        if deadline_ms is None or retry_at_ms is None:
            return retry_at_ms if deadline_ms is None else deadline_ms
        return min(deadline_ms, retry_at_ms)

    def _waits(self, number: int, attempt: int) -> bool:
        record = self._open.get(number)
        return record is not None and record.attempt == attempt and record.retry_at_ms is not None

    def records(self) -> Iterator[tuple[Any, Optional[int]]]:
        """(value, timestamp) of all whose results have not left, in order: what a snapshot keeps."""
        for record in self._queue.records():
            yield record.value, record.timestamp
        for element in self._backlog:
            if type(element) is tuple:
                yield element

    def check(self) -> None:
        """Assert what holds between any two events."""
        records = list(self._queue.records())
        assert len(records) == self._on_way <= self.capacity
        assert [record.number for record in records if record.results is None] == sorted(self._open)
        assert [record.number for record in records] == sorted(record.number for record in records)
        for record in self._open.values():
            assert record.retry_at_ms is None or (record.retry_at_ms, record.number, record.attempt) in self._retries
            assert (record.deadline_ms is not None) == bool(self.timeout_ms)
