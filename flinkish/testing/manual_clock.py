"""A clock that stands still until a test moves it, and timers that fire by such a clock."""

from __future__ import annotations

import contextlib
from typing import Iterable, Iterator

from flinkish.operators.chain import OperatorChain
from flinkish.operators.operator import KeyedOperator
from flinkish.operators.timers import KeyedTimerService


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


@contextlib.contextmanager
def timers_at_their_time(chains: Iterable[OperatorChain]) -> Iterator[None]:
    """Within it timers fire at their very time: no record comes in the same millisecond any more.

    Flink's test harness does so whenever its clock is set.  In a slot, and outside of this, a timer waits until its
    millisecond is over.
    """
    operators = [node.operator for chain in chains for node in chain.nodes]
    services = [operator.timers for operator in operators if isinstance(operator, KeyedOperator)]
    for service in services:
        service.delay_ms = 0
    try:
        yield
    finally:
        for service in services:
            service.delay_ms = KeyedTimerService.delay_ms
