"""A thread of its own for the user code of one coordinator, so that it never holds up the JobManager.

Calls run one after the other in the order in which they came.  ``call_async`` is for what waits
for a service: the call runs on a second thread and its handler comes back to the first.
"""

from __future__ import annotations

import heapq
import itertools
import queue
import threading
import time
from typing import Any, Callable, Optional

_STOP = object()


class CoordinatorWorker:
    """Runs calls on a daemon thread.

    Args:
        name: of the thread.
        on_error: gets the first exception of a call, on the worker's thread; nothing runs after it
            but ``on_close``.
    """

    def __init__(self, name: str, on_error: Callable[[BaseException], None]):
        self._name = name
        self._on_error = on_error
        self._calls: queue.SimpleQueue = queue.SimpleQueue()
        self._failed = False
        self._async: Optional[_AsyncThread] = None
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)
        self.thread.start()

    def submit(self, call: Callable[..., Any], *args: Any) -> None:
        """Run ``call(*args)`` behind what was submitted before.  Any thread."""
        self._calls.put((call, args))

    def call_async(
        self,
        call: Callable[[], Any],
        handler: Callable[[Any, Optional[BaseException]], None],
        period_ms: Optional[int] = None,
    ) -> None:
        """See ``SplitEnumeratorContext.call_async``; only from this worker's thread."""
        if self._async is None:
            self._async = _AsyncThread(f"{self._name} async", self.submit)
        self._async.add(call, handler, period_ms)

    def close(self, on_close: Callable[[], None], timeout_ms: int = 0) -> bool:
        """End after the call that runs now; ``on_close`` is the last one, also after a failure.

        Returns:
            whether the thread has ended within ``timeout_ms``; user code that hangs cannot be
            stopped, its thread ends with the process.
        """
        self._calls.put((_STOP, on_close))
        self.thread.join(timeout_ms / 1000)
        return not self.thread.is_alive()

    def _run(self) -> None:
        while True:
            call, args = self._calls.get()
            closing = call is _STOP
            if closing:
                call, args = args, ()
                if self._async is not None:
                    self._async.close()
            elif self._failed:
                continue
            try:
                call(*args)
            except BaseException as error:
                if not self._failed:
                    self._failed = True
                    self._on_error(error)
            if closing:
                return


class _AsyncThread:
    """Runs calls when they are due, on one daemon thread; their handlers by ``submit``."""

    def __init__(self, name: str, submit: Callable[..., None]):
        self._submit = submit
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Callable, Callable, Optional[int]]] = []
        self._numbers = itertools.count()
        self._closed = False
        threading.Thread(target=self._run, name=name, daemon=True).start()

    def add(self, call: Callable, handler: Callable, period_ms: Optional[int]) -> None:
        with self._changed:
            self._push(time.monotonic(), call, handler, period_ms)
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify()

    def _push(self, due: float, call: Callable, handler: Callable, period_ms: Optional[int]) -> None:
        heapq.heappush(self._due, (due, next(self._numbers), call, handler, period_ms))

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._closed:
                    wait_s = self._due[0][0] - time.monotonic() if self._due else None
                    if wait_s is not None and wait_s <= 0:
                        break
                    self._changed.wait(wait_s)
                if self._closed:
                    return
                _, _, call, handler, period_ms = heapq.heappop(self._due)
            result, failure = None, None
            try:
                result = call()
            except BaseException as error:  # the handler decides about it
                failure = error
            self._submit(handler, result, failure)
            if period_ms is not None:
                with self._changed:
                    self._push(time.monotonic() + period_ms / 1000, call, handler, period_ms)
