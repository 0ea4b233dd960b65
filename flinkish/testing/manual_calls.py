"""Calls of asynchronous functions in a `StreamTestHarness`: in the test's own thread, on the test's clock.

A coroutine runs until it waits for something.  What it may wait for and get without the world outside is the clock
(``asyncio.sleep``, ``asyncio.timeout``), which the test moves, and other coroutines; for the rest (sockets, threads) there is
`ManualCallRunner.wait`.  A function that blocks is called when its record comes, and has returned before the next.
"""

from __future__ import annotations

import asyncio
import math
import selectors
import time
from typing import Any, Callable, Optional

from flinkish.operators.async_io.call_runner import CallRunner, OnAnswer, checked_results, is_coroutine_function
from flinkish.testing.manual_clock import ManualClock


#: How long ``open`` and ``close`` may wait for the world outside.
OUTSIDE_S = 10


class _Selector(selectors.DefaultSelector):
    """Stops its loop when nothing is left to be run, and notes when a timer would be next."""

    def __init__(self, clock: ManualClock):
        super().__init__()
        self._clock = clock
        self.loop: Any = None
        self.next_timer_ms: Optional[int] = None
        self.patience_s = 0.0  # what the loop may wait for the outside

    def select(self, timeout=None):
        idle = timeout is None or timeout > 1e-6  # less is a rounding of the loop's seconds: the timer is due
        events = super().select(self.patience_s if idle else 0)
        if idle and not events:
            wait_ms = None if timeout is None else math.ceil(round(timeout * 1000, 3))
            self.next_timer_ms = None if wait_ms is None else self._clock.now_ms() + wait_ms
            self.loop.stop()
        return events


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, clock: ManualClock):
        self._manual_clock, self.selector = clock, _Selector(clock)
        self.selector.loop = self
        super().__init__(self.selector)

    def time(self):
        return self._manual_clock.now_ms() / 1000


class ManualCallRunner(CallRunner):
    """Of one operator.

    Args:
        invoke, on_answer, copies: as of `operators.async_io.call_runner.create_call_runner`.
    """

    def __init__(self, invoke: Callable[[Any], Any], on_answer: OnAnswer, copies: bool, clock: ManualClock):
        self._invoke, self._on_answer, self._copies = invoke, on_answer, copies
        self._awaits = is_coroutine_function(invoke)
        self._loop = _Loop(clock)
        self._selector = self._loop.selector
        self._tasks: dict[tuple[int, int], asyncio.Task] = {}
        self._answered = 0

    def start(self, number, attempt, value):
        if self._awaits:
            self._tasks[number, attempt] = self._loop.create_task(self._call(number, attempt, value))
            return
        results, failure = None, None
        try:
            results = checked_results(self._invoke(value), "async_invoke", self._copies)
        except BaseException as error:
            failure = error
        self._answer(number, attempt, results, failure)

    def cancel(self, number, attempt):
        task = self._tasks.pop((number, attempt), None)
        if task is not None:
            task.cancel()

    def run(self, function, *args):
        if not self._awaits:
            return function(*args)

        async def call() -> Any:
            result = function(*args)
            return await result if asyncio.iscoroutine(result) else result

        task = self._loop.create_task(call())
        task.add_done_callback(lambda done: self._loop.stop())
        deadline_s = time.monotonic() + OUTSIDE_S
        while not task.done():
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                task.cancel()
                raise TimeoutError(f"it has waited for {OUTSIDE_S} s, and the clock of a test does not move meanwhile")
            self._run(left_s)
        return task.result()

    def cancel_all(self):
        for number, attempt in list(self._tasks):
            self.cancel(number, attempt)
        self.step()

    def close(self):
        self._loop.close()

    # ---- what the harness calls -----------------------------------------------------------------

    def step(self) -> bool:
        """Run coroutines until all of them wait; whether one has answered."""
        before = self._answered
        if not self._loop.is_closed():
            self._loop.run_forever()
        return self._answered > before

    @property
    def next_timer_ms(self) -> Optional[int]:
        """When the clock has something for a coroutine, as of the last `step`."""
        return self._selector.next_timer_ms

    @property
    def outstanding(self) -> int:
        """Calls that have not answered."""
        return len(self._tasks)

    def wait(self, deadline_s: float) -> bool:
        """As `step`, but wait for the world outside until a call answers, at most until ``deadline_s`` of the monotonic clock."""
        before = self._answered
        while self._answered == before and (left_s := deadline_s - time.monotonic()) > 0:
            self._run(left_s)
        return self._answered > before

    # ---- inside ---------------------------------------------------------------------------------

    def _run(self, patience_s: float) -> None:
        self._selector.patience_s = patience_s
        try:
            self._loop.run_forever()
        finally:
            self._selector.patience_s = 0.0

    async def _call(self, number: int, attempt: int, value: Any) -> None:
        results, failure = None, None
        try:
            results = checked_results(await self._invoke(value), "async_invoke", self._copies)
        except BaseException as error:
            failure = error
        if self._tasks.pop((number, attempt), None) is not None:  # else it is cancelled
            self._answer(number, attempt, results, failure)
            if self._selector.patience_s:
                self._loop.stop()

    def _answer(self, number: int, attempt: int, results: Optional[list], error: Optional[BaseException]) -> None:
        self._answered += 1
        self._on_answer(number, attempt, results, error)
