"""Runs a ``SourceFunction``, the older kind of source whose ``run(ctx)`` loops by itself.

``run`` may block, which nothing may do on the slot's one thread.  So it runs on a thread of its own, also when it is a
generator, and hands its records over through a short queue.  Two Python threads that both compute take turns of some
milliseconds at the interpreter's lock.  So the slot asks for records and waits for them, and ``run`` waits until it is asked:
only one of them computes, as if the slot called ``run`` itself.  A ``run`` that does not give them within
``HAND_IN_HAND_S`` waits for something; the slot stops waiting for it, and ``run`` may be ahead until it has filled the queue.

The function is an object with ``run(ctx)`` and ``cancel()``, or a callable that takes ``ctx`` or
nothing, and may yield or return records.
"""

from __future__ import annotations

import inspect
import itertools
import threading
from collections import deque
from typing import Any, Callable, Iterable, Optional, Sequence, TypeVar

from flinkish.connectors.isolation import isolate
from flinkish.connectors.spi import (
    Boundedness,
    InputStatus,
    ReaderOutput,
    Source,
    SourceReader,
    SourceReaderContext,
    SourceSplit,
    SplitEnumerator,
    SplitEnumeratorContext,
)
from flinkish.connectors.split_assignment import NoSplitEnumerator
from flinkish.datastream.functions import (
    CheckpointedFunction,
    ParallelSourceFunction,
    RuntimeContext,
    SourceContext,
)
from flinkish.errors import InvalidJobError

T = TypeVar("T")

#: Records that a ``run`` which waits may be ahead of the slot.
QUEUE_RECORDS = 4_096
#: The slot asks for as many at least: asking costs some 50 us.
ASKED_RECORDS_MIN = 512
#: The slot waits no longer than this for what it has asked for.
HAND_IN_HAND_S = 0.005
_CLOSE_TIMEOUT_S = 1.0

_RECORD, _WATERMARK, _IDLE = 0, 1, 2
_Entry = tuple[int, Any, Optional[int]]


class _Cancelled(BaseException):
    """Ends ``run`` at its next ``ctx`` call after the reader was closed."""


class FunctionSource(Source[T, SourceSplit]):
    """A source around ``function``.

    >>> source = FunctionSource(lambda ctx: iter(range(100)), parallel=True, bounded=True)

    Args:
        function: object with ``run(ctx)`` and ``cancel()``, or a callable.
        parallel: False: one subtask, as Flink's SourceFunction; True: as many as the job says; None:
            True for a ``ParallelSourceFunction``.
        bounded: True when ``run`` ends by itself and the result is complete then.
    """

    def __init__(
        self,
        function: Any,
        parallel: Optional[bool] = None,
        bounded: bool = False,
        type_info: Any = None,
    ):
        if not callable(getattr(function, "run", function)):
            raise InvalidJobError(
                "could not make a source of the function",
                why=f"a {type(function).__name__} has no run(ctx) and cannot be called",
                do="give an object with run(ctx) and cancel(), or a callable that takes ctx",
            )
        if isinstance(function, type):
            raise InvalidJobError(
                "could not make a source of the class",
                why=f"{function.__name__} is a class",
                do=f"give an object: {function.__name__}()",
            )
        if isinstance(function, CheckpointedFunction):
            raise InvalidJobError(
                "could not make a source of the function",
                why=f"{type(function).__name__} is a CheckpointedFunction, and a function with run(ctx) is ahead of what "
                "the job has taken, so its state fits no checkpoint",
                do="write a Source (flinkish.connectors.spi): its splits hold the position",
            )
        run = getattr(function, "run", function)
        if not (_takes_arguments(run, None) or _takes_arguments(run)):
            raise InvalidJobError(
                "could not make a source of the function",
                why=f"it is called with ctx or with nothing, and its parameters are {inspect.signature(run)}",
                do="give it the parameter ctx",
            )
        if parallel is None:
            parallel = isinstance(function, ParallelSourceFunction)
        self.function = function
        self.fixed_parallelism = None if parallel else 1
        self._bounded = bounded
        self._type_info = type_info

    def boundedness(self) -> Boundedness:
        return Boundedness.BOUNDED if self._bounded else Boundedness.CONTINUOUS_UNBOUNDED

    def produced_type(self) -> Any:
        return self._type_info

    def create_enumerator(
        self, context: SplitEnumeratorContext[SourceSplit]
    ) -> SplitEnumerator[SourceSplit]:
        return NoSplitEnumerator()

    def create_reader(self, context: SourceReaderContext) -> SourceReader[T, SourceSplit]:
        return _FunctionReader(self.function, context)


# ---- what run(ctx) gets -------------------------------------------------------------------------


class _QueueContext(SourceContext[Any]):
    """Keeps what ``run`` emits, on its thread or on others of its own, until the slot takes it.

    ``_limit`` is how many entries make ``run`` wait: 0 while the slot has not asked, what it has asked for while it waits, and
    `QUEUE_RECORDS` when it has waited in vain.

    While the slot waits, entries come without the lock, 0.2 us each.  None is forgotten: the slot says that it waits no more
    before it takes, and ``run`` looks for that after it has put.
    """

    def __init__(self, wakeup: Callable[[], None]):
        self._queue: deque[_Entry] = deque()
        self._checkpoint_lock = threading.RLock()
        self._wakeup = wakeup
        self._changed = threading.Condition()
        self._limit = 0
        self._slot_waits = False
        self._slot_sleeps = False  # it has found nothing, and comes when it is woken
        self._cancelled = False
        self.error: Optional[BaseException] = None
        self._ended = False

    def collect(self, value: Any) -> None:
        self._put((_RECORD, isolate(value), None))

    def collect_with_timestamp(self, value: Any, timestamp: int) -> None:
        self._put((_RECORD, isolate(value), timestamp))

    def emit_watermark(self, timestamp: Any) -> None:
        """``timestamp``: a ``Watermark`` or its time, ms."""
        self._put((_WATERMARK, None, getattr(timestamp, "timestamp", timestamp)))

    def mark_as_temporarily_idle(self) -> None:
        self._put((_IDLE, None, None))

    def get_checkpoint_lock(self) -> Any:
        """Hold it (``with``) while you emit records and change the state that says where you are."""
        return self._checkpoint_lock

    def _put(self, entry: _Entry) -> None:
        queue = self._queue
        queue.append(entry)
        if self._slot_waits and len(queue) < self._limit:
            return
        with self._changed:
            if self._slot_waits:
                self._changed.notify_all()
            elif self._slot_sleeps:
                self._slot_sleeps = False
                self._wakeup()
            while len(queue) >= self._limit and not self._cancelled:
                self._changed.wait()
            if self._cancelled:
                raise _Cancelled

    def take(self, room: int) -> list[_Entry]:
        """What there is, at most ``room``: at once, unless ``run`` has been quick."""
        queue = self._queue
        with self._changed:
            if self._limit == 0:
                self._ask(max(room, ASKED_RECORDS_MIN))
            elif len(queue) >= self._limit:
                self._limit = 0  # it is quicker than the slot
            entries = [queue.popleft() for _ in range(min(room, len(queue)))]
            self._slot_sleeps = not entries
            return entries

    def _ask(self, records: int) -> None:
        if len(self._queue) >= records or self._ended:
            return
        self._limit, self._slot_waits = records, True
        self._changed.notify_all()
        in_time = self._changed.wait_for(lambda: len(self._queue) >= records or self._ended, HAND_IN_HAND_S)
        self._slot_waits = False
        self._limit = 0 if in_time else QUEUE_RECORDS

    def end(self, error: Optional[BaseException]) -> None:
        with self._changed:
            self.error, self._ended = error, True
            self._changed.notify_all()
            self._wakeup()

    def ended(self) -> bool:
        """Whether ``run`` is over and everything is taken."""
        with self._changed:
            return self._ended and not self._queue

    def cancel(self) -> None:
        with self._changed:
            self._cancelled, self._limit = True, 0
            self._changed.notify_all()


# ---- the reader ---------------------------------------------------------------------------------


class _FunctionReader(SourceReader[Any, SourceSplit]):
    def __init__(self, function: Any, context: SourceReaderContext):
        self._function = function
        self._reader_context = context
        self._context = _QueueContext(context.wakeup)
        self._thread: Optional[threading.Thread] = None
        self._idle = False

    def start(self) -> None:
        open_function = getattr(self._function, "open", None)
        if open_function is not None:
            open_function(_SourceRuntimeContext(self._reader_context))
        subtask = self._reader_context.index_of_subtask()
        self._thread = threading.Thread(target=self._run, name=f"source-function-{subtask}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        error: Optional[BaseException] = None
        try:
            self._collect_all(self._call(self._context) or ())
        except _Cancelled:
            return
        except BaseException as raised:  # the user's code; handed to the slot's thread, which raises it
            error = raised
        self._context.end(error)

    def _collect_all(self, values: Iterable[Any]) -> None:
        try:
            for value in values:
                self._context.collect(value)
        finally:
            if inspect.isgenerator(values):
                values.close()  # on its own thread, with what it holds

    def _call(self, context: SourceContext[Any]) -> Optional[Iterable[Any]]:
        run = getattr(self._function, "run", self._function)
        return run(context) if _takes_arguments(run, context) else run()

    def _emit(self, output: ReaderOutput[Any], entries: list[_Entry]) -> None:
        for kind, group in itertools.groupby(entries, key=lambda entry: entry[0]):
            if kind == _IDLE:
                self._idle = True
                output.mark_idle()
                continue
            if self._idle:
                self._idle = False
                output.mark_active()
            if kind == _WATERMARK:
                for _, _, timestamp in group:
                    output.emit_watermark(timestamp)
                continue
            _, values, timestamps = zip(*group)
            has_times = any(timestamp is not None for timestamp in timestamps)
            output.collect_batch(list(values), list(timestamps) if has_times else None)

    def add_splits(self, splits: Sequence[SourceSplit]) -> None:
        raise AssertionError("a function source has no splits")

    def poll_next(self, output: ReaderOutput[Any]) -> InputStatus:
        room = output.room
        if room <= 0:
            return InputStatus.MORE_AVAILABLE
        entries = self._context.take(room)
        self._emit(output, entries)
        if entries:
            return InputStatus.MORE_AVAILABLE
        if not self._context.ended():
            return InputStatus.NOTHING_AVAILABLE
        if self._context.error is not None:
            raise self._context.error
        return InputStatus.END_OF_INPUT

    def close(self) -> None:
        self._context.cancel()
        cancel = getattr(self._function, "cancel", None)
        if cancel is not None:
            cancel()
        if self._thread is not None:
            self._thread.join(_CLOSE_TIMEOUT_S)
        close = getattr(self._function, "close", None)
        if close is not None:
            close()


def _takes_arguments(function: Callable[..., Any], *arguments: Any) -> bool:
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        return True
    return True


class _SourceRuntimeContext(RuntimeContext):
    """What ``open`` of a source function gets: where it runs, and no keyed state."""

    def __init__(self, context: SourceReaderContext):
        self._context = context

    def get_task_name(self) -> str:
        return "Source"

    def get_number_of_parallel_subtasks(self) -> int:
        return self._context.current_parallelism()

    def get_max_number_of_parallel_subtasks(self) -> int:
        return self._context.current_parallelism()

    def get_index_of_this_subtask(self) -> int:
        return self._context.index_of_subtask()

    def get_attempt_number(self) -> int:
        return 0

    def get_task_name_with_subtasks(self) -> str:
        index, parallelism = self._context.index_of_subtask(), self._context.current_parallelism()
        return f"Source ({index + 1}/{parallelism})"

    def get_job_parameter(self, key: str, default_value: Optional[str] = None) -> Optional[str]:
        return self._context.configuration().get(key, default_value)

    def get_metrics_group(self) -> Any:
        return self._context.metric_group()

    def _accumulators(self) -> dict[str, Any]:
        return self._context.accumulators()

    def _no_state(self, state_descriptor: Any) -> Any:
        raise InvalidJobError(
            "could not give keyed state to a source function",
            why="a source has no keys",
            do="write a Source (flinkish.connectors.spi) whose splits hold the position",
        )

    get_state = get_list_state = get_map_state = _no_state
    get_reducing_state = get_aggregating_state = _no_state
