"""Windows: the pieces that time or count is cut into.  Times are ms since the epoch."""

from __future__ import annotations

import abc
import struct
from functools import total_ordering
from typing import Any, BinaryIO, Callable, Iterable, Union

from flinkish.common.constants import MAX_LONG_VALUE
from flinkish.common.serializer import TypeSerializer

__all__ = [
    "CountWindow",
    "CountWindowSerializer",
    "GlobalWindow",
    "GlobalWindowSerializer",
    "TimeWindow",
    "TimeWindowSerializer",
    "Window",
]


class Window(abc.ABC):
    """Windows compare and hash by value."""

    __slots__ = ()

    @abc.abstractmethod
    def max_timestamp(self) -> int:
        """The last instant that still belongs to the window, ms."""


@total_ordering
class TimeWindow(Window):
    """From ``start``, inclusive, to ``end``, exclusive."""

    __slots__ = ("start", "end")

    def __init__(self, start: int, end: int):
        self.start = start
        self.end = end

    def max_timestamp(self) -> int:
        end = self.end
        return end - 1 if end <= MAX_LONG_VALUE else MAX_LONG_VALUE

    def intersects(self, other: "TimeWindow") -> bool:
        """Whether they overlap or touch."""
        return self.start <= other.end and self.end >= other.start

    def cover(self, other: "TimeWindow") -> "TimeWindow":
        """The smallest window that holds both."""
        return TimeWindow(min(self.start, other.start), max(self.end, other.end))

    @staticmethod
    def get_window_start_with_offset(timestamp: int, offset: int, window_size: int) -> int:
        """Start of the window of ``window_size`` that holds ``timestamp``.

        Rounds down, also before the epoch, so start <= timestamp < start + window_size.

        >>> TimeWindow.get_window_start_with_offset(-9_000, 2_000, 5_000)
        -13000
        """
        return timestamp - (timestamp - offset) % window_size

    @staticmethod
    def merge_windows(
        windows: Iterable["TimeWindow"],
        callback: Union[Callable[[list["TimeWindow"], "TimeWindow"], None], Any],
    ) -> None:
        """Find the windows that overlap or touch, and report each group of two or more.

        ``callback``: a MergeCallback, or a function of ``(merged windows, their cover)``."""
        report = callback.merge if hasattr(callback, "merge") else callback
        group: list[TimeWindow] = []
        cover: TimeWindow = None  # type: ignore[assignment]
        for window in sorted(windows):
            if group and cover.intersects(window):
                group.append(window)
                cover = cover.cover(window)
            else:
                if len(group) > 1:
                    report(group, cover)
                group, cover = [window], window
        if len(group) > 1:
            report(group, cover)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TimeWindow) and self.start == other.start and self.end == other.end

    def __lt__(self, other: "TimeWindow") -> bool:
        if not isinstance(other, TimeWindow):
            return NotImplemented
        return (self.start, self.end) < (other.start, other.end)

    def __hash__(self) -> int:
        return hash((self.start, self.end))

    def __reduce__(self):
        return TimeWindow, (self.start, self.end)

    def __repr__(self) -> str:
        return f"TimeWindow(start={self.start}, end={self.end})"


def long_to_int_with_bit_mixing(x: int) -> int:
    """The number that PyFlink hashes a `CountWindow` by; nothing of it is cut off at 64 bits, as there.

    Source: Flink's ``MathUtils.longToIntWithBitMixing``, the finalizer of SplitMix64."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        x = (x ^ x >> shift) * factor
    return x


def mod_inverse(x: int) -> int:
    """A number whose product with an odd ``x`` ends, in binary, with 31 times 0 and a 1.  PyFlink hashes a
    `TimeWindow` by it.

    >>> mod_inverse(3) * 3 % 2**32
    1

    Source: Newton's method.  The first guess has 4 digits right, and each step doubles them."""
    inverse = x**3
    for _ in range(3):
        inverse *= 2 - x * inverse
    return inverse


@total_ordering
class CountWindow(Window):
    """The ``id``-th group of records of a key."""

    __slots__ = ("id",)

    def __init__(self, id: int):
        self.id = id

    def max_timestamp(self) -> int:
        return MAX_LONG_VALUE

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CountWindow) and self.id == other.id

    def __lt__(self, other: "CountWindow") -> bool:
        return self.id < other.id if isinstance(other, CountWindow) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.id)

    def __reduce__(self):
        return CountWindow, (self.id,)

    def __repr__(self) -> str:
        return f"CountWindow(id={self.id})"


class GlobalWindow(Window):
    """The one window that holds everything."""

    __slots__ = ()

    @staticmethod
    def get() -> "GlobalWindow":
        return _GLOBAL

    def max_timestamp(self) -> int:
        return MAX_LONG_VALUE

    def __eq__(self, other: object) -> bool:
        return isinstance(other, GlobalWindow)

    def __hash__(self) -> int:
        return 0

    def __reduce__(self):
        return GlobalWindow.get, ()

    def __repr__(self) -> str:
        return "GlobalWindow"


_GLOBAL = GlobalWindow()
_TWO = struct.Struct(">qq")
_ONE = struct.Struct(">q")


class TimeWindowSerializer(TypeSerializer[TimeWindow]):
    """Two big-endian int64, as Flink writes them."""

    def serialize(self, element: TimeWindow, stream: BinaryIO) -> None:
        stream.write(_TWO.pack(element.start, element.end))

    def deserialize(self, stream: BinaryIO) -> TimeWindow:
        return TimeWindow(*_TWO.unpack(stream.read(16)))


class CountWindowSerializer(TypeSerializer[CountWindow]):
    def serialize(self, element: CountWindow, stream: BinaryIO) -> None:
        stream.write(_ONE.pack(element.id))

    def deserialize(self, stream: BinaryIO) -> CountWindow:
        return CountWindow(*_ONE.unpack(stream.read(8)))


class GlobalWindowSerializer(TypeSerializer[GlobalWindow]):
    def serialize(self, element: GlobalWindow, stream: BinaryIO) -> None:
        stream.write(b"\0")

    def deserialize(self, stream: BinaryIO) -> GlobalWindow:
        stream.read(1)
        return _GLOBAL
