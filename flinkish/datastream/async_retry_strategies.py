"""How often, and how soon, an asynchronous call is tried again."""

from __future__ import annotations

import math
from typing import Any, Callable, Optional, TypeVar

from flinkish.common.arguments import check_argument
from flinkish.common.time import TimeLike, to_milliseconds
from flinkish.datastream.function_adapters import check_parameters
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
        self._result_predicate = _predicate(result_predicate, "result", "not result")
        self._exception_predicate = _predicate(exception_predicate, "error", "isinstance(error, OSError)")

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
        self.multiplier = check_argument(multiplier, (float, int), _CALL, "multiplier")
        if not 0 < multiplier < math.inf:
            raise InvalidJobError(f"{_CALL} cannot use the multiplier {multiplier}", do="give for example 2.0")
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


_CALL = "a retry strategy"


def _predicate(predicate: Any, parameter: str, example: str) -> Any:
    """Raises: InvalidJobError: it cannot be asked, or would say yes of everything."""
    if predicate is None:
        return None
    if not callable(predicate) or isinstance(predicate, type):
        raise InvalidJobError(
            f"{_CALL} cannot use {predicate!r} as {parameter}_predicate",
            why="it must be a function that gives True for another attempt",
            do=f"give for example lambda {parameter}: {example}",
        )
    check_parameters(predicate, (parameter,), f"{parameter}_predicate")
    return predicate


def _attempts(max_attempts: int) -> int:
    if check_argument(max_attempts, int, _CALL, "max_attempts") < 1:
        raise InvalidJobError(f"max_attempts must be at least 1, not {max_attempts}")
    return max_attempts


def _delay(delay: TimeLike) -> int:
    delay_ms = to_milliseconds(delay)
    if delay_ms < 1:
        raise InvalidJobError(f"a delay must be at least 1 ms, not {delay_ms}")
    return delay_ms
