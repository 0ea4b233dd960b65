"""What makes the calls of an asynchronous function, beside the slot's thread.

A coroutine function runs on an event loop of its own, in one thread for each subtask of the operator: so resources that belong
to a loop (sessions, connection pools) are made, used and closed on the same one, a coroutine that blocks holds up nobody else,
and nothing of an attempt outlives it.  A function that blocks runs in threads.  What the slot must know comes back through
``on_answer``, which only puts it down and wakes the slot's loop.

Nothing is decided here: `async_calls` says which call is made, and which answer counts.
"""

from __future__ import annotations

import abc
import asyncio
import concurrent.futures
import inspect
import queue
import threading
from typing import Any, Callable, Iterable, Mapping, Optional

from flinkish.common.types import Row
from flinkish.operators.copying import freeze

#: ``(number, attempt, results, error)``, one of the last two is None; called in any thread.
OnAnswer = Callable[[int, int, Optional[list], Optional[BaseException]], None]

#: Calls of a function that blocks that run at the same time, at most; others wait for a thread.
THREADS_MAX = 256
#: How long calls that are cancelled, and threads that are to end, are waited for.
_END_WITHIN_S = 1.0


class CallRunner(abc.ABC):
    """Makes calls; its methods are called by the slot's thread."""

    @abc.abstractmethod
    def start(self, number: int, attempt: int, value: Any) -> None:
        """Begin a call; ``on_answer`` hears of it once, unless it is cancelled before."""

    @abc.abstractmethod
    def cancel(self, number: int, attempt: int) -> None:
        """Nobody waits for this call any more."""

    @abc.abstractmethod
    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """``open`` or ``close`` of the function, where its calls run; waits for it, and raises what it raises."""

    @abc.abstractmethod
    def cancel_all(self) -> None:
        """Nothing more is started; waits a moment for what is under way."""

    @abc.abstractmethod
    def close(self) -> None:
        """After `cancel_all`, and after the function has been closed."""


class Inbox:
    """Takes things from any thread and rings ``notify`` when it was empty."""

    def __init__(self, notify: Callable[[], Any]):
        self._notify = notify
        self._lock = threading.Lock()
        self._items: list = []

    def put(self, item: Any) -> None:
        with self._lock:
            self._items.append(item)
            first = len(self._items) == 1
        if first:
            self._notify()

    def take(self) -> list:
        """All that is there, in order."""
        if not self._items:
            return []
        with self._lock:
            items, self._items = self._items, []
        return items

    def __bool__(self) -> bool:
        return bool(self._items)


def is_coroutine_function(function: Any) -> bool:
    """Whether calling it gives something to await."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))


def checked_results(results: Any, role: str, copies: bool) -> list:
    """What a call has returned, as a list; with ``copies`` nobody can change it any more.

    Raises:
        TypeError: it is not an iterable of results."""
    if inspect.iscoroutine(results):
        results.close()
        raise TypeError(f"{role} returned a coroutine that nothing awaits: write it with async def, and await in it")
    if isinstance(results, (str, bytes, Row, Mapping)) or not isinstance(results, Iterable):
        kind = type(results).__name__
        raise TypeError(f"{role} must return a list of results, and returned {kind}: return [x], or [] for none")
    return [freeze(result) for result in results] if copies else list(results)


def create_call_runner(
    invoke: Callable[[Any], Any], on_answer: OnAnswer, capacity: int, name: str, copies: bool
) -> CallRunner:
    """The runner that fits to ``invoke``.

    Args:
        invoke: ``async_invoke``, or a plain callable.
        capacity: calls at the same time, at most.
        name: of its threads.
        copies: results are copied where they can change.
    """
    if is_coroutine_function(invoke):
        return EventLoopRunner(invoke, on_answer, name, copies)
    return ThreadPoolRunner(invoke, on_answer, min(capacity, THREADS_MAX), name, copies)


class EventLoopRunner(CallRunner):
    """Coroutines, on an event loop in a thread of its own."""

    def __init__(self, invoke: Callable[[Any], Any], on_answer: OnAnswer, name: str, copies: bool):
        self._invoke, self._on_answer, self._copies = invoke, on_answer, copies
        self._loop = asyncio.new_event_loop()
        self._tasks: dict[tuple[int, int], asyncio.Task] = {}
        self._orders = Inbox(lambda: self._loop.call_soon_threadsafe(self._obey))  # one wake-up for many
        self._is_stuck = False
        self._thread = threading.Thread(target=self._run_loop, name=name, daemon=True)
        self._thread.start()

    def start(self, number, attempt, value):
        self._orders.put((number, attempt, value))

    def cancel(self, number, attempt):
        self._orders.put((number, attempt))

    def run(self, function, *args):
        if self._is_stuck:
            raise TimeoutError("its event loop does not answer: a coroutine blocks its thread; await what takes long")
        return asyncio.run_coroutine_threadsafe(_apply(function, args), self._loop).result()

    def cancel_all(self):
        cancelled = asyncio.run_coroutine_threadsafe(self._cancel_tasks(), self._loop)
        try:
            cancelled.result(2 * _END_WITHIN_S)
        except concurrent.futures.TimeoutError:
            self._is_stuck = True

    def close(self):
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_END_WITHIN_S)

    # ---- on the loop's thread -------------------------------------------------------------------

    def _run_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()

    def _obey(self) -> None:
        for number, attempt, *value in self._orders.take():
            if value:
                task = self._loop.create_task(self._call(number, attempt, *value))
                self._tasks[number, attempt] = task
            elif (number, attempt) in self._tasks:
                self._tasks.pop((number, attempt)).cancel()

    async def _call(self, number: int, attempt: int, value: Any) -> None:
        results, failure = None, None
        try:
            results = checked_results(await self._invoke(value), "async_invoke", self._copies)
        except BaseException as error:  # the user's code; the slot's thread decides what it means
            failure = error
        if self._tasks.pop((number, attempt), None) is not None:  # else it is cancelled
            self._on_answer(number, attempt, results, failure)

    async def _cancel_tasks(self) -> None:
        tasks = list(self._tasks.values())
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_END_WITHIN_S)


async def _apply(function: Callable[..., Any], args: tuple) -> Any:
    result = function(*args)
    return await result if inspect.isawaitable(result) else result


class ThreadPoolRunner(CallRunner):
    """Functions that block, in at most ``threads_max`` threads, which are made when they are needed.

    A call that runs cannot be cancelled: its thread is busy until it returns."""

    def __init__(
        self, invoke: Callable[[Any], Any], on_answer: OnAnswer, threads_max: int, name: str, copies: bool
    ):
        self._invoke, self._on_answer, self._copies = invoke, on_answer, copies
        self._threads_max, self._name = threads_max, name
        self._orders: queue.SimpleQueue = queue.SimpleQueue()  # (number, attempt, value); None ends a thread
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._calls: set[tuple[int, int]] = set()  # wanted, and not answered
        self._unfinished = 0  # also those that are cancelled and run

    def start(self, number, attempt, value):
        with self._lock:
            self._calls.add((number, attempt))
            self._unfinished += 1
            needs_thread = len(self._threads) < min(self._threads_max, self._unfinished)
        self._orders.put((number, attempt, value))
        if needs_thread:
            name = f"{self._name} {len(self._threads) + 1}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def cancel(self, number, attempt):
        with self._lock:
            self._calls.discard((number, attempt))

    def run(self, function, *args):
        return function(*args)

    def cancel_all(self):
        with self._lock:
            self._calls.clear()
        for _ in self._threads:
            self._orders.put(None)
        end_s = _END_WITHIN_S / max(1, len(self._threads))
        for thread in self._threads:
            thread.join(end_s)

    def close(self):
        """Threads whose call still runs end behind it."""

    def _work(self) -> None:
        while True:
            order = self._orders.get()
            if order is None:
                return
            number, attempt, value = order
            with self._lock:
                wanted = (number, attempt) in self._calls
            results, failure = None, None
            if wanted:
                try:
                    results = checked_results(self._invoke(value), "async_invoke", self._copies)
                except BaseException as error:  # the user's code; the slot's thread decides what it means
                    failure = error
            with self._lock:
                self._unfinished -= 1
                wanted = (number, attempt) in self._calls
                self._calls.discard((number, attempt))
            if wanted:
                self._on_answer(number, attempt, results, failure)
