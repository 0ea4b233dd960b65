"""TimerService: the time, and timers on the current key."""

from __future__ import annotations

import abc

__all__ = ["TimerService"]


class TimerService(abc.ABC):
    """Times are ms since the epoch.  A timer is one per key and time: registering it again changes
    nothing.  Only keyed streams have timers."""

    @abc.abstractmethod
    def current_processing_time(self) -> int: ...

    @abc.abstractmethod
    def current_watermark(self) -> int:
        """The smallest int64 before the first watermark."""

    @abc.abstractmethod
    def register_processing_time_timer(self, timestamp: int) -> None:
        """Call ``on_timer`` once the machine's clock has reached ``timestamp``."""

    @abc.abstractmethod
    def register_event_time_timer(self, timestamp: int) -> None:
        """Call ``on_timer`` once the watermark has reached ``timestamp``."""

    @abc.abstractmethod
    def delete_processing_time_timer(self, timestamp: int) -> None: ...

    @abc.abstractmethod
    def delete_event_time_timer(self, timestamp: int) -> None: ...
