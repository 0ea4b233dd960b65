"""CompletableFuture: the result of something that is still under way."""

from __future__ import annotations

import asyncio
import concurrent.futures
from typing import Any, Callable, Generic, Optional, TypeVar

from flinkish.common.time import TimeLike, to_milliseconds

T = TypeVar("T")

__all__ = ["CompletableFuture"]


class CompletableFuture(Generic[T]):
    """PyFlink's methods over a Python future.  `result` waits; ``await`` works too."""

    def __init__(self, future: "Optional[concurrent.futures.Future[T]]" = None):
        self._future: "concurrent.futures.Future[T]" = (
            concurrent.futures.Future() if future is None else future
        )

    @staticmethod
    def completed(value: T) -> "CompletableFuture[T]":
        future: CompletableFuture[T] = CompletableFuture()
        future.set_result(value)
        return future

    @staticmethod
    def run_async(call: Callable[[], T], name: str = "flinkish-future") -> "CompletableFuture[T]":
        """Run ``call`` in a daemon thread."""
        import threading

        future: CompletableFuture[T] = CompletableFuture()

        def run() -> None:
            if not future._future.set_running_or_notify_cancel():
                return
            try:
                value = call()
            except BaseException as error:  # handed to whoever waits
                future._future.set_exception(error)
            else:
                future._future.set_result(value)

        threading.Thread(target=run, name=name, daemon=True).start()
        return future

    def set_result(self, value: T) -> None:
        self._future.set_result(value)

    def set_exception(self, error: BaseException) -> None:
        self._future.set_exception(error)

    def cancel(self) -> bool:
        return self._future.cancel()

    def cancelled(self) -> bool:
        return self._future.cancelled()

    def done(self) -> bool:
        return self._future.done()

    def result(self, timeout: Optional[TimeLike] = None) -> T:
        """Wait for the result and return it, or raise the error.

        Args:
            timeout: longest wait; None waits for ever.
        Raises:
            TimeoutError: there is no result yet.
        """
        try:
            return self._future.result(_seconds(timeout))
        except concurrent.futures.TimeoutError as error:
            if self._future.done():
                raise
            raise TimeoutError(f"no result after {timeout} ms") from error

    def exception(self, timeout: Optional[TimeLike] = None) -> Optional[BaseException]:
        """Wait, and return the error, or None when it went well."""
        return self._future.exception(_seconds(timeout))

    def add_done_callback(self, callback: "Callable[[CompletableFuture[T]], Any]") -> None:
        self._future.add_done_callback(lambda _: callback(self))

    def __await__(self):
        return asyncio.wrap_future(self._future).__await__()

    def __repr__(self) -> str:
        state = "cancelled" if self.cancelled() else "done" if self.done() else "pending"
        return f"CompletableFuture({state})"


def _seconds(timeout: Optional[TimeLike]) -> Optional[float]:
    return None if timeout is None else to_milliseconds(timeout) / 1_000
