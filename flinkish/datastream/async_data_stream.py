"""AsyncDataStream: calls of outside services from a stream, many at the same time."""

from __future__ import annotations

import inspect
from typing import Any, Callable, Optional, Union

from flinkish.common.arguments import check_argument
from flinkish.common.time import TimeLike, to_milliseconds
from flinkish.common.typeinfo import TypeInformation
from flinkish.datastream.async_retry_strategies import NoRetryStrategy
from flinkish.datastream.data_stream import DataStream
from flinkish.datastream.function_adapters import check_function, check_type
from flinkish.datastream.functions import AsyncFunction, AsyncRetryPredicate, AsyncRetryStrategy
from flinkish.datastream.transformations import AsyncWaitOperator
from flinkish.errors import InvalidJobError

__all__ = ["AsyncDataStream"]

AsyncFunctionLike = Union[AsyncFunction, Callable[[Any], Any]]


class AsyncDataStream:
    """Applies an asynchronous function: for each record a call is begun, and up to ``capacity`` are under way.

    The function is an ``AsyncFunction`` or a callable of the record, and returns a list of results.  One written with
    ``async def`` runs as a coroutine, on an event loop in a thread of its own for each subtask (also its ``open`` and
    ``close``, which may be coroutines too); one written with ``def`` may block, and runs in threads.  Neither holds up the slot.

    Each record has one outcome: the results of a call; those of ``AsyncFunction.timeout``, when ``timeout`` (ms, or any length of
    time; 0: none) is over, whatever attempt is under way then; or an error, which fails the job.  What a call gives after that
    is ignored.  Results have the event time of their record.  Records whose results have not left are in checkpoints, and their
    calls are made again after a restore.

    Raises (each method):
        InvalidJobError: an argument cannot be used.
    """

    @staticmethod
    def unordered_wait(
        data_stream: DataStream,
        async_function: AsyncFunctionLike,
        timeout: TimeLike,
        capacity: int = 100,
        output_type: Optional[TypeInformation] = None,
    ) -> DataStream:
        """Results leave as they come, but none passes a watermark."""
        return _apply("unordered_wait", data_stream, async_function, timeout, None, capacity, output_type)

    @staticmethod
    def unordered_wait_with_retry(
        data_stream: DataStream,
        async_function: AsyncFunctionLike,
        timeout: TimeLike,
        async_retry_strategy: AsyncRetryStrategy,
        capacity: int = 100,
        output_type: Optional[TypeInformation] = None,
    ) -> DataStream:
        """The same; calls that the strategy is not content with are made again."""
        name = "unordered_wait_with_retry"
        return _apply(name, data_stream, async_function, timeout, async_retry_strategy, capacity, output_type)

    @staticmethod
    def ordered_wait(
        data_stream: DataStream,
        async_function: AsyncFunctionLike,
        timeout: TimeLike,
        capacity: int = 100,
        output_type: Optional[TypeInformation] = None,
    ) -> DataStream:
        """Results leave in the order of their records: a slow one holds up all behind it."""
        return _apply("ordered_wait", data_stream, async_function, timeout, None, capacity, output_type)

    @staticmethod
    def ordered_wait_with_retry(
        data_stream: DataStream,
        async_function: AsyncFunctionLike,
        timeout: TimeLike,
        async_retry_strategy: AsyncRetryStrategy,
        capacity: int = 100,
        output_type: Optional[TypeInformation] = None,
    ) -> DataStream:
        """The same; calls that the strategy is not content with are made again."""
        name = "ordered_wait_with_retry"
        return _apply(name, data_stream, async_function, timeout, async_retry_strategy, capacity, output_type)


def _apply(
    method: str,
    data_stream: DataStream,
    function: AsyncFunctionLike,
    timeout: TimeLike,
    strategy: Optional[AsyncRetryStrategy],
    capacity: int,
    output_type: Optional[TypeInformation],
) -> DataStream:
    call = f"{method}()"
    check_argument(data_stream, DataStream, call, "data_stream")
    check_function(function, AsyncFunction, method)
    _refuse_async_forms(function, method)
    timeout_ms = to_milliseconds(timeout)
    with_retry = method.endswith("_with_retry")
    if timeout_ms < with_retry:
        raise InvalidJobError(
            f"{call} cannot use the timeout {timeout!r}",
            why="attempts need an end" if with_retry else "it is negative",
            do="give the time that a record may take at most" + ("" if with_retry else ", or 0 for any"),
        )
    if check_argument(capacity, int, call, "capacity") < 1:
        raise InvalidJobError(f"{call} cannot use the capacity {capacity}", do="give at least 1")
    if with_retry:
        do = "give AsyncRetryStrategy.fixed_delay(...) or exponential_backoff(...)"
        check_argument(strategy, AsyncRetryStrategy, call, "async_retry_strategy", do)
        predicate = strategy.get_retry_predicate()  # type: ignore[union-attr]
        do = "return RetryPredicate(result_predicate, exception_predicate)"
        check_argument(predicate, AsyncRetryPredicate, call, f"{type(strategy).__name__}.get_retry_predicate()", do)
    operator = AsyncWaitOperator(
        function, method.startswith("ordered"), timeout_ms, int(capacity), strategy or NoRetryStrategy()
    )
    return data_stream._apply("async wait operator", operator, check_type(output_type, method))


def _refuse_async_forms(function: AsyncFunctionLike, method: str) -> None:
    """Forms of ``async def`` that nothing awaits."""
    invoke = function.async_invoke if isinstance(function, AsyncFunction) else function
    for called in (invoke, getattr(invoke, "__call__", None)):
        if inspect.isasyncgenfunction(called):
            raise InvalidJobError(
                f"{method}() cannot use an asynchronous generator",
                why="a record has one outcome: a list of results",
                do="return a list instead of yielding",
            )
    if isinstance(function, AsyncFunction) and inspect.iscoroutinefunction(function.timeout):
        raise InvalidJobError(
            f"{method}() cannot use {type(function).__name__}: its timeout() is a coroutine",
            why="it is called when time is over, by the operator, and awaits nothing",
            do="write timeout() with def",
        )
