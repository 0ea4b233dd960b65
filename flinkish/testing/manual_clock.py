"""A clock that stands still until a test moves it."""

from __future__ import annotations


class ManualClock:
    """Same methods as ``flinkish.shell.clock.SystemClock``; all of them show one time.

    >>> clock = ManualClock(1_000)
    >>> clock.advance(500)
    >>> clock.now_ms(), clock.monotonic_ns()
    (1500, 1500000000)
    """

    def __init__(self, now_ms: int = 0):
        self._now_ns = now_ms * 1_000_000

    def advance(self, ms: float) -> None:
        assert ms >= 0, "time goes forward"
        self._now_ns += int(ms * 1_000_000)

    def set(self, now_ms: int) -> None:
        assert now_ms * 1_000_000 >= self._now_ns, "time goes forward"
        self._now_ns = now_ms * 1_000_000

    def now_ms(self) -> int:
        return self._now_ns // 1_000_000

    def monotonic_ms(self) -> int:
        return self._now_ns // 1_000_000

    def monotonic_ns(self) -> int:
        return self._now_ns

    def perf_ns(self) -> int:
        return self._now_ns
