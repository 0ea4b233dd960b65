"""The real clock.  Cores take time as an argument; only the shell reads it."""

from __future__ import annotations

import time


class SystemClock:
    """Wall time for users, monotonic time for deadlines."""

    __slots__ = ()

    @staticmethod
    def now_ms() -> int:
        """Milliseconds since the epoch (UTC); may jump when the machine's clock is set."""
        return time.time_ns() // 1_000_000

    @staticmethod
    def monotonic_ms() -> int:
        """Milliseconds on a clock that only goes forward; comparable between processes of one boot."""
        return time.monotonic_ns() // 1_000_000

    @staticmethod
    def monotonic_ns() -> int:
        return time.monotonic_ns()

    #: The finest clock, for measuring turns; as it is, because a turn asks it six times.
    perf_ns = staticmethod(time.perf_counter_ns)
