"""Whether, and when, a job that has failed is started again.

The JobMaster calls ``failed`` once for each failure (what follows from a failure is none), then
``can_restart`` and ``delay_ms``::

    strategy.failed(now_ms, rng)
    if strategy.can_restart(now_ms):
        restart_ms = now_ms + strategy.delay_ms(now_ms)

An error that is not ``retryable`` ends the job whatever the strategy says; the JobMaster looks at that.

Source: Flink's ``RestartBackoffTimeStrategy``s and ``RestartBackoffTimeStrategyFactoryLoader``.
"""

from __future__ import annotations

import abc
import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Mapping, Optional

from flinkish.common import options

if TYPE_CHECKING:
    import random  # handed in: a core rolls no dice of its own


class RestartStrategy(abc.ABC):
    """One for the life of a job: it remembers the failures."""

    @abc.abstractmethod
    def failed(self, now_ms: int, rng: random.Random) -> bool:
        """Count a failure.  False: it belongs to the one before, the delay of which still runs."""

    @abc.abstractmethod
    def can_restart(self, now_ms: int) -> bool: ...

    @abc.abstractmethod
    def delay_ms(self, now_ms: int) -> int:
        """Milliseconds from now to the restart, >= 0."""

    @abc.abstractmethod
    def describe(self) -> str:
        """For the error of a job that may not restart: what is configured, and how far it went."""


@dataclass
class NoRestart(RestartStrategy):
    """The first failure ends the job."""

    def failed(self, now_ms: int, rng: random.Random) -> bool:
        return True

    def can_restart(self, now_ms: int) -> bool:
        return False

    def delay_ms(self, now_ms: int) -> int:
        return 0

    def describe(self) -> str:
        return "restart-strategy.type is none"


@dataclass
class FixedDelayRestart(RestartStrategy):
    """So many restarts in the whole life of the job, each after the same delay."""

    attempts: int = 1
    delay: int = 1_000
    failures: int = 0

    def failed(self, now_ms: int, rng: random.Random) -> bool:
        self.failures += 1
        return True

    def can_restart(self, now_ms: int) -> bool:
        return self.failures <= self.attempts

    def delay_ms(self, now_ms: int) -> int:
        return self.delay

    def describe(self) -> str:
        return f"fixed-delay allows {self.attempts} restarts, this is failure {self.failures}"


@dataclass
class FailureRateRestart(RestartStrategy):
    """Up to ``failures_max`` failures within any ``interval_ms``."""

    failures_max: int = 1
    interval_ms: int = 60_000
    delay: int = 1_000
    times_ms: deque[int] = field(default_factory=deque)

    def failed(self, now_ms: int, rng: random.Random) -> bool:
        if len(self.times_ms) > self.failures_max:
            self.times_ms.popleft()
        self.times_ms.append(now_ms)
        return True

    def can_restart(self, now_ms: int) -> bool:
        return len(self.times_ms) <= self.failures_max or now_ms - self.times_ms[0] > self.interval_ms

    def delay_ms(self, now_ms: int) -> int:
        return self.delay

    def describe(self) -> str:
        span_ms = self.times_ms[-1] - self.times_ms[0] if self.times_ms else 0
        return (
            f"failure-rate allows {self.failures_max} failures within {self.interval_ms} ms, "
            f"the last {len(self.times_ms)} came within {span_ms} ms"
        )


@dataclass
class ExponentialDelayRestart(RestartStrategy):
    """The delay grows with each failure up to ``max_backoff_ms``, and begins anew when the job has run for
    ``reset_threshold_ms`` since its last restart.  Failures while a restart is being waited for are one."""

    initial_backoff_ms: int = 1_000
    max_backoff_ms: int = 60_000
    backoff_multiplier: float = 1.5
    reset_threshold_ms: int = 3_600_000
    jitter_factor: float = 0.1
    attempts_before_reset: int = 2**31 - 1  # Flink's Integer.MAX_VALUE: without end
    attempts: int = 0
    restart_ms: Optional[int] = None  # when the job starts again, or has

    def failed(self, now_ms: int, rng: random.Random) -> bool:
        if self.restart_ms is not None:
            if now_ms <= self.restart_ms:
                return False
            if now_ms - self.restart_ms >= self.reset_threshold_ms:
                self.attempts = 0
        self.restart_ms = now_ms + self._backoff_ms(rng)
        self.attempts += 1
        return True

    def _backoff_ms(self, rng: random.Random) -> int:
        steps = self.attempts
        if self.backoff_multiplier > 1:
            # Far above the maximum the exponent stays, for a float overflows after enough failures in a row.
            to_max = math.log(self.max_backoff_ms / self.initial_backoff_ms, self.backoff_multiplier)
            steps = min(steps, int(to_max) + 4)
        backoff_ms = int(self.initial_backoff_ms * self.backoff_multiplier**steps)
        offset_ms = int(backoff_ms * self.jitter_factor)
        jitter_ms = rng.randint(-offset_ms, offset_ms) if offset_ms else 0
        return max(self.initial_backoff_ms, min(backoff_ms + jitter_ms, self.max_backoff_ms))

    def can_restart(self, now_ms: int) -> bool:
        return self.attempts <= self.attempts_before_reset

    def delay_ms(self, now_ms: int) -> int:
        assert self.restart_ms is not None, "no failure has been counted"
        return max(0, self.restart_ms - now_ms)

    def describe(self) -> str:
        return (
            f"exponential-delay allows {self.attempts_before_reset} restarts before its delay is reset, "
            f"this is failure {self.attempts}"
        )


def create_restart_strategy(settings: Mapping[str, Any], checkpointing: bool) -> RestartStrategy:
    """The strategy that a job's configuration asks for; by default exponential-delay with
    checkpoints and none without, for without them a restart begins anew.

    >>> create_restart_strategy({}, checkpointing=False)
    NoRestart()
    >>> create_restart_strategy({"restart-strategy.type": "fixed-delay"}, checkpointing=True)
    FixedDelayRestart(attempts=1, delay=1000, failures=0)
    """
    kind = options.RESTART_STRATEGY.read(settings) or ("exponential-delay" if checkpointing else "none")
    if kind == "none":
        return NoRestart()
    if kind == "fixed-delay":
        return FixedDelayRestart(
            options.RESTART_FIXED_DELAY_ATTEMPTS.read(settings), options.RESTART_FIXED_DELAY_DELAY.read(settings)
        )
    if kind == "failure-rate":
        return FailureRateRestart(
            options.RESTART_FAILURE_RATE_MAX.read(settings),
            options.RESTART_FAILURE_RATE_INTERVAL.read(settings),
            options.RESTART_FAILURE_RATE_DELAY.read(settings),
        )
    assert kind == "exponential-delay", kind  # the option allows no other
    initial_ms = options.RESTART_EXPONENTIAL_INITIAL.read(settings)
    return ExponentialDelayRestart(
        initial_ms,
        # Who sets only the initial delay, above the default maximum, means that it does not grow.
        max(initial_ms, options.RESTART_EXPONENTIAL_MAX.read(settings)),
        options.RESTART_EXPONENTIAL_MULTIPLIER.read(settings),
        options.RESTART_EXPONENTIAL_RESET.read(settings),
        options.RESTART_EXPONENTIAL_JITTER.read(settings),
        options.RESTART_EXPONENTIAL_ATTEMPTS.read(settings),
    )
