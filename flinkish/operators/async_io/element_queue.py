"""The order in which what an asynchronous operator has taken leaves it again.

A queue holds records, whose results come at any time, and what must keep its place among them: watermarks and
statuses (`Control`).

* ordered: everything leaves as it came, so a slow record holds up all behind it,
* unordered: results leave as they become known, but never pass a watermark: records between two of them are a
  *segment*, and a segment begins to leave when the one before it, and the watermark between, have left.

Watermarks that no record separates are one, the newest.

Source: Flink's ``OrderedStreamElementQueue`` and ``UnorderedStreamElementQueue``.
"""

from __future__ import annotations

import abc
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Iterator, Optional, Union

from flinkish.messages.elements import Watermark, WatermarkStatus

Control = Union[Watermark, WatermarkStatus]


@dataclass(eq=False, slots=True)
class AsyncRecord:
    """One record on its way.

    ``number``: of its arrival, 1, 2 ...; ``attempt``: of the call that is made or was made last, from 1 on; ``results``: None
    until its outcome is known.
    """

    number: int
    value: Any
    timestamp: Optional[int]
    attempt: int = 1
    deadline_ms: Optional[int] = None
    retry_at_ms: Optional[int] = None  # it waits for its next attempt
    results: Optional[list] = None
    segment: Any = field(default=None, repr=False)


class StreamElementQueue(abc.ABC):
    """See the module."""

    @abc.abstractmethod
    def put(self, record: AsyncRecord) -> None: ...

    @abc.abstractmethod
    def put_control(self, control: Control) -> None: ...

    @abc.abstractmethod
    def done(self, record: AsyncRecord) -> None:
        """Its results are there."""

    @property
    @abc.abstractmethod
    def head(self) -> Union[AsyncRecord, Control, None]:
        """What leaves next; None when that is not known yet."""

    @abc.abstractmethod
    def take(self) -> None:
        """Take the `head` off."""

    @abc.abstractmethod
    def records(self) -> Iterator[AsyncRecord]:
        """All that have not left, in the order of their arrival."""

    @property
    @abc.abstractmethod
    def is_empty(self) -> bool: ...


class OrderedStreamElementQueue(StreamElementQueue):
    def __init__(self) -> None:
        self._elements: deque[Union[AsyncRecord, Control]] = deque()

    def put(self, record):
        self._elements.append(record)

    def put_control(self, control):
        _append(self._elements, control)

    def done(self, record):
        """It has its place already."""

    @property
    def head(self):
        if not self._elements:
            return None
        first = self._elements[0]
        return None if type(first) is AsyncRecord and first.results is None else first

    def take(self):
        self._elements.popleft()

    def records(self):
        return (element for element in self._elements if type(element) is AsyncRecord)

    @property
    def is_empty(self):
        return not self._elements


class _Segment:
    """Records between two controls."""

    def __init__(self) -> None:
        self.open: dict[int, AsyncRecord] = {}  # by number
        self.done: deque[AsyncRecord] = deque()  # in the order of their results


class UnorderedStreamElementQueue(StreamElementQueue):
    def __init__(self) -> None:
        self._parts: deque[Union[_Segment, Control]] = deque()  # no segment is empty, no two are neighbours

    def put(self, record):
        if not self._parts or type(self._parts[-1]) is not _Segment:
            self._parts.append(_Segment())
        record.segment = self._parts[-1]
        record.segment.open[record.number] = record

    def put_control(self, control):
        _append(self._parts, control)

    def done(self, record):
        del record.segment.open[record.number]
        record.segment.done.append(record)

    @property
    def head(self):
        if not self._parts:
            return None
        first = self._parts[0]
        if type(first) is _Segment:
            return first.done[0] if first.done else None
        return first

    def take(self):
        first = self._parts[0]
        if type(first) is _Segment:
            first.done.popleft()
            if first.done or first.open:
                return
        self._parts.popleft()

    def records(self):
        for part in self._parts:
            if type(part) is _Segment:
                yield from sorted([*part.open.values(), *part.done], key=lambda record: record.number)

    @property
    def is_empty(self):
        return not self._parts


def _append(elements: deque, control: Control) -> None:
    if type(control) is Watermark and elements and type(elements[-1]) is Watermark:
        elements.pop()
    elements.append(control)
