"""Combines the watermarks of the channels of one input into one.

Each channel is active or idle, and aligned or not::

    active, aligned      takes part in the minimum
    active, not aligned  was idle, and is still behind the output, which it does not hold back
    idle                 takes no part
    finished             has sent the last watermark (MAX): takes no part, and never comes back

Moves and output:

- the output watermark is the minimum over the aligned channels; it never goes back;
- a channel that becomes idle may let the minimum rise;
- when the last one becomes idle, the largest watermark of all is put out, then IDLE, so that the
  order in which they became idle does not matter;
- a channel that becomes active again is aligned at once when its watermark has reached the output,
  and the minimum is taken anew, behind the ACTIVE status;
- MAX is put out only when every channel has finished.  A finished channel beside an idle one must
  not carry event time to its end, or all that the idle one sends later would be late.

Source: Flink's ``StatusWatermarkValve`` with FLINK-7728, FLINK-38454 and FLINK-40475; the rule for
finished channels is that of FLINK-38477.
"""

from __future__ import annotations

from typing import Iterable

from flinkish.messages.elements import (
    MAX_WATERMARK_MS,
    MIN_WATERMARK_MS,
    Watermark,
    WatermarkStatus,
)


class WatermarkValve:
    """Takes watermarks and statuses of ``channels`` channels; returns what goes on, in order.

    >>> valve = WatermarkValve(2)
    >>> valve.watermark(0, 5), valve.watermark(1, 4)
    ([], [Watermark(timestamp=4)])
    >>> valve.status(1, idle=True)
    [Watermark(timestamp=5)]
    """

    __slots__ = ("_watermarks", "_idle", "_aligned", "_finished", "output_watermark", "output_idle")

    def __init__(self, channels: int):
        assert channels >= 1, channels
        self._watermarks = [MIN_WATERMARK_MS] * channels
        self._idle = [False] * channels
        self._aligned = [True] * channels
        self._finished = [False] * channels
        self.output_watermark = MIN_WATERMARK_MS
        self.output_idle = False

    def watermark(self, channel: int, timestamp: int) -> list[Watermark | WatermarkStatus]:
        """A watermark of ``channel``; one at or below its last, or of an idle channel, has no
        effect."""
        if timestamp >= MAX_WATERMARK_MS:
            return self.finish(channel)
        if self._idle[channel] or self._finished[channel] or timestamp <= self._watermarks[channel]:
            return []
        self._watermarks[channel] = timestamp
        if not self._aligned[channel]:
            if timestamp < self.output_watermark:
                return []
            self._aligned[channel] = True
        return self._raise_to_minimum()

    def status(self, channel: int, idle: bool) -> list[Watermark | WatermarkStatus]:
        """``channel`` becomes idle or active; a repeated status has no effect."""
        if self._finished[channel] or self._idle[channel] == idle:
            return []
        self._idle[channel] = idle
        if idle:
            self._aligned[channel] = False
            return self._after_one_less()
        if self._watermarks[channel] >= self.output_watermark:
            self._aligned[channel] = True
        out: list[Watermark | WatermarkStatus] = []
        if self.output_idle:
            self.output_idle = False
            out.append(WatermarkStatus(False))
        return out + self._raise_to_minimum()

    def finish(self, channel: int) -> list[Watermark | WatermarkStatus]:
        """``channel`` has sent its last watermark or has ended."""
        if self._finished[channel]:
            return []
        self._finished[channel] = True
        self._aligned[channel] = False
        if not all(self._finished):
            return self._after_one_less()
        out: list[Watermark | WatermarkStatus] = []
        if self.output_idle:
            self.output_idle = False
            out.append(WatermarkStatus(False))
        self.output_watermark = MAX_WATERMARK_MS
        out.append(Watermark(MAX_WATERMARK_MS))
        return out

    def _after_one_less(self) -> list[Watermark | WatermarkStatus]:
        """A channel has left the minimum; at least one has not finished."""
        active = any(
            not idle and not finished for idle, finished in zip(self._idle, self._finished)
        )
        if active:
            return self._raise_to_minimum()
        if self.output_idle:
            return []
        out: list[Watermark | WatermarkStatus] = []
        largest = max(self._watermarks)
        if largest > self.output_watermark:
            self.output_watermark = largest
            out.append(Watermark(largest))
        self.output_idle = True
        out.append(WatermarkStatus(True))
        return out

    def _raise_to_minimum(self) -> list[Watermark | WatermarkStatus]:
        aligned = [
            watermark
            for watermark, is_aligned in zip(self._watermarks, self._aligned)
            if is_aligned
        ]
        if not aligned:
            return []
        smallest = min(aligned)
        if smallest <= self.output_watermark:
            return []
        self.output_watermark = smallest
        return [Watermark(smallest)]

    def channels(self) -> Iterable[tuple[int, bool, bool, bool]]:
        """(watermark, idle, aligned, finished) of each channel, in their order."""
        return zip(self._watermarks, self._idle, self._aligned, self._finished)

    def check(self) -> None:
        """Assert what holds between any two moves."""
        for idle, aligned, finished, watermark in zip(
            self._idle, self._aligned, self._finished, self._watermarks
        ):
            assert not (aligned and (idle or finished))
            assert not aligned or watermark >= self.output_watermark
            assert finished or idle or aligned or watermark < self.output_watermark
        assert self.output_idle == (
            not all(self._finished)
            and all(idle or finished for idle, finished in zip(self._idle, self._finished))
        )
