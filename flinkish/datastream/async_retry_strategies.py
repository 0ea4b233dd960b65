"""How often, and how soon, an asynchronous call is tried again."""

from __future__ import annotations

from typing import Any, Callable, Optional, TypeVar

from flinkish.common.time import TimeLike, to_milliseconds
from flinkish.datastream.functions import AsyncRetryPredicate, AsyncRetryStrategy
from flinkish.errors import InvalidJobError

OUT = TypeVar("OUT")

__all__ = [
    "ExponentialBackoffDelayRetryStrategy",
    "FixedDelayRetryStrategy",
    "NoRetryStrategy",
    "RetryPredicate",
]

ResultPredicate = Optional[Callable[[Any], bool]]
ExceptionPredicate = Optional[Callable[[BaseException], bool]]


class RetryPredicate(AsyncRetryPredicate):
    def __init__(self, result_predicate: ResultPredicate, exception_predicate: ExceptionPredicate):
        self._result_predicate = result_predicate
        self._exception_predicate = exception_predicate

    def result_predicate(self) -> ResultPredicate:
        return self._result_predicate

    def exception_predicate(self) -> ExceptionPredicate:
        return self._exception_predicate


class NoRetryStrategy(AsyncRetryStrategy):
    def can_retry(self, current_attempts: int) -> bool:
        return False

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        return -1

    def get_retry_predicate(self) -> AsyncRetryPredicate:
        return RetryPredicate(None, None)


class FixedDelayRetryStrategy(AsyncRetryStrategy):
    def __init__(
        self,
        max_attempts: int,
        backoff_time_millis: TimeLike,
        result_predicate: ResultPredicate,
        exception_predicate: ExceptionPredicate,
    ):
        self.max_attempts = _attempts(max_attempts)
        self.backoff_time_millis = _delay(backoff_time_millis)
        self._predicate = RetryPredicate(result_predicate, exception_predicate)

    def can_retry(self, current_attempts: int) -> bool:
        return current_attempts <= self.max_attempts

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        return self.backoff_time_millis

    def get_retry_predicate(self) -> AsyncRetryPredicate:
        return self._predicate


class ExponentialBackoffDelayRetryStrategy(AsyncRetryStrategy):
    def __init__(
        self,
        max_attempts: int,
        initial_delay: TimeLike,
        max_retry_delay: TimeLike,
        multiplier: float,
        result_predicate: ResultPredicate,
        exception_predicate: ExceptionPredicate,
    ):
        self.max_attempts = _attempts(max_attempts)
        self.initial_delay = _delay(initial_delay)
        self.max_retry_delay = _delay(max_retry_delay)
        self.multiplier = multiplier
        self._predicate = RetryPredicate(result_predicate, exception_predicate)

    def can_retry(self, current_attempts: int) -> bool:
        return current_attempts <= self.max_attempts

    def get_backoff_time_millis(self, current_attempts: int) -> int:
        """Depends on ``current_attempts`` alone, so calls that are under way do not disturb it."""
        delay: float = self.initial_delay
        for _ in range(current_attempts - 1):
            delay *= self.multiplier
            if delay >= self.max_retry_delay:
                return self.max_retry_delay
        return round(delay)

    def get_retry_predicate(self) -> AsyncRetryPredicate:
        return self._predicate


def _attempts(max_attempts: int) -> int:
    if max_attempts < 1:
        raise InvalidJobError(f"max_attempts must be at least 1, not {max_attempts}")
    return max_attempts


def _delay(delay: TimeLike) -> int:
    delay_ms = to_milliseconds(delay)
    if delay_ms < 1:
        raise InvalidJobError(f"a delay must be at least 1 ms, not {delay_ms}")
    return delay_ms
