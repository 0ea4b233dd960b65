"""AsyncDataStream: calls of outside services from a stream.  Refused in this version."""

from __future__ import annotations

from typing import NoReturn, Optional

from flinkish.common.time import TimeLike
from flinkish.common.typeinfo import TypeInformation
from flinkish.datastream.data_stream import DataStream
from flinkish.datastream.functions import AsyncFunction, AsyncRetryStrategy
from flinkish.errors import InvalidJobError

__all__ = ["AsyncDataStream"]


def _refuse(name: str) -> NoReturn:
    raise InvalidJobError(
        f"could not apply {name}()",
        why="this version runs no asynchronous functions",
        do="make the call in a flat_map() that collects some records and calls for all of them at once",
    )


class AsyncDataStream:
    @staticmethod
    def unordered_wait(
        data_stream: DataStream,
        async_function: AsyncFunction,
        timeout: TimeLike,
        capacity: int = 100,
        output_type: Optional[TypeInformation] = None,
    ) -> DataStream:
        _refuse("unordered_wait")

    @staticmethod
    def unordered_wait_with_retry(
        data_stream: DataStream,
        async_function: AsyncFunction,
        timeout: TimeLike,
        async_retry_strategy: AsyncRetryStrategy,
        capacity: int = 100,
        output_type: Optional[TypeInformation] = None,
    ) -> DataStream:
        _refuse("unordered_wait_with_retry")

    @staticmethod
    def ordered_wait(
        data_stream: DataStream,
        async_function: AsyncFunction,
        timeout: TimeLike,
        capacity: int = 100,
        output_type: Optional[TypeInformation] = None,
    ) -> DataStream:
        _refuse("ordered_wait")

    @staticmethod
    def ordered_wait_with_retry(
        data_stream: DataStream,
        async_function: AsyncFunction,
        timeout: TimeLike,
        async_retry_strategy: AsyncRetryStrategy,
        capacity: int = 100,
        output_type: Optional[TypeInformation] = None,
    ) -> DataStream:
        _refuse("ordered_wait_with_retry")
