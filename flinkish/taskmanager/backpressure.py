"""Where the time of a subtask goes: the figures by which backpressure shows.

At each moment a subtask is in one state::

    BUSY            has something to do (running, or waiting for its turn on the slot's thread)
    IDLE            has no input
    BACKPRESSURED   has input, but an output or a sink has no room

What the three rates mean to a reader, and the two figures of the gates and writers beside them:
``flinkish.metrics.names``.
"""

from __future__ import annotations

from flinkish.metrics import names

BUSY, IDLE, BACKPRESSURED = 0, 1, 2

RATE_NAMES = (names.TASK_BUSY_TIME, names.TASK_IDLE_TIME, names.TASK_BACK_PRESSURED_TIME)
TOTAL_NAMES = ("accumulateBusyTimeMs", "accumulateIdleTimeMs", "accumulateBackPressuredTimeMs")

INTERVAL_NS_MIN = 100_000_000  # rates over less than this would be noise


class TaskTimes:
    """Adds up the time in each state; the caller brings the clock.

    >>> times = TaskTimes(now_ns=0)
    >>> times.switch(BUSY, 400_000_000); times.switch(IDLE, 1_000_000_000)
    >>> times.rates(now_ns=1_000_000_000)
    {'busyTimeMsPerSecond': 600, 'idleTimeMsPerSecond': 400, 'backPressuredTimeMsPerSecond': 0}
    """

    __slots__ = ("state", "total_ns", "_since_ns", "_reported_ns", "_reported_at_ns", "_rates")

    def __init__(self, now_ns: int):
        self.state = IDLE
        self.total_ns = [0, 0, 0]
        self._since_ns = now_ns
        self._reported_ns = [0, 0, 0]
        self._reported_at_ns = now_ns
        self._rates = dict.fromkeys(RATE_NAMES, 0)

    def switch(self, state: int, now_ns: int) -> None:
        """The time since the last call was spent in the state of then; from now on it is
        ``state``."""
        self.total_ns[self.state] += now_ns - self._since_ns
        self._since_ns = now_ns
        self.state = state

    def rates(self, now_ns: int) -> dict[str, int]:
        """Milliseconds per second in each state since the last call that was not too close
        before; the first call tells of the time since the start, however short."""
        self.switch(self.state, now_ns)
        interval = now_ns - self._reported_at_ns
        if interval >= INTERVAL_NS_MIN or (interval > 0 and not any(self._rates.values())):
            spent = [now - then for now, then in zip(self.total_ns, self._reported_ns)]
            self._rates = {name: round(1000 * ns / interval) for name, ns in zip(RATE_NAMES, spent)}
            self._reported_ns = list(self.total_ns)
            self._reported_at_ns = now_ns
        return dict(self._rates)

    def blocked_ms(self) -> int:
        """Backpressured since the start; the time since the last `switch` is not in it."""
        return self.total_ns[BACKPRESSURED] // 1_000_000

    def totals(self) -> dict[str, int]:
        """Milliseconds in each state since the start."""
        return {name: ns // 1_000_000 for name, ns in zip(TOTAL_NAMES, self.total_ns)}
