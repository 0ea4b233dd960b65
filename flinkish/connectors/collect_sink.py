"""Brings the records of a stream back to the driver, for ``DataStream.execute_and_collect``.

Without checkpoints a writer sends batches and stops when ``window_batches`` of them have not been taken by the
driver: a driver that iterates slowly slows the job down instead of filling its memory.  If the job restarts when
some have been taken, the iterator ends with an error, for they would come again.

With checkpoints (exactly once) records come with each complete checkpoint, once however often the job restarts;
what comes between two checkpoints must fit into memory.

Source: Flink's ``CheckpointedCollectResultBuffer`` and ``UncheckpointedCollectResultBuffer``.
"""

from __future__ import annotations

import pickle
import threading
from collections import deque
from typing import Any, Callable, Generic, Iterable, Iterator, Optional, TypeVar

from flinkish.connectors.driver_writer import WINDOW_BYTES, DriverWriter
from flinkish.connectors.isolation import portable_pickle
from flinkish.connectors.spi import (
    CommitId,
    Committer,
    Sink,
    SinkCoordinator,
    SinkCoordinatorContext,
    SinkWriter,
    WriterInitContext,
    each_encoded,
)
from flinkish.errors import ExternalError

T = TypeVar("T")

_WAIT_S = 0.2  # so that Ctrl-C reaches a main thread that waits


class CollectSink(Sink[T]):
    """Use one object for one job: ``results()`` gives that job's records.

    Args:
        window_batches: batches of one writer that may be on their way or wait in the driver.
        batch_records: records that a writer gathers before it sends, unless its input runs dry.
    """

    def __init__(self, window_batches: int = 8, batch_records: int = 1_024):
        self.window_batches = window_batches
        self.batch_records = batch_records
        self._results: Optional[CollectResults[T]] = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_results": None}  # the driver's end stays in the driver

    def results(self) -> "CollectResults[T]":
        """The driver's end; may be called before the job starts."""
        if self._results is None:
            self._results = CollectResults()
        return self._results

    def create_writer(self, context: WriterInitContext) -> SinkWriter[T]:
        return _CollectWriter(context, self.window_batches, self.batch_records)

    def create_coordinator(self, context: SinkCoordinatorContext) -> SinkCoordinator:
        return _CollectCoordinator(context, self.results())


class CheckpointedCollectSink(CollectSink[T]):
    """Gives records with each checkpoint, each once."""

    def create_writer(self, context: WriterInitContext) -> SinkWriter[T]:
        return _CheckpointedWriter()

    def create_committer(self) -> Committer:
        return _ResultsCommitter(self.results())


class _CheckpointedWriter(SinkWriter[T]):
    keeps_values = False  # each is encoded at once

    def __init__(self) -> None:
        self._pickles: list[bytes] = []

    def write(self, value: T, timestamp_ms: Optional[int], watermark_ms: int) -> None:
        self.write_batch([value], None, watermark_ms)

    def write_batch(self, values: list[T], timestamps_ms: Any, watermark_ms: int) -> None:
        self._pickles.append(encode_values(values))

    def prepare_commit(self) -> list[bytes]:
        pickles, self._pickles = self._pickles, []
        return pickles


class _ResultsCommitter(Committer):
    def __init__(self, results: "CollectResults[Any]"):
        self._results = results

    def commit(self, committables: Iterable[bytes]) -> None:
        """What no checkpoint has given."""
        self._results._add(list(committables), _nothing)

    def commit_checkpoint(self, committables: Iterable[bytes], commit_id: CommitId) -> None:
        name = commit_id.run_id, commit_id.checkpoint_id
        if name not in self._results.commits:  # else it is a repetition
            self._results.commits.add(name)
            self._results._add(list(committables), _nothing)


def _nothing() -> None:
    """The writer does not wait for its records to be taken."""


def encode_values(values: list[Any]) -> bytes:
    """A pickle of the values; what one of them raises names it."""
    failure: Optional[BaseException] = None
    try:
        return portable_pickle(values)
    except BaseException as error:
        failure = error
    each_encoded(portable_pickle, values)  # names the one that cannot be pickled
    raise failure


class _CollectWriter(DriverWriter[T]):
    def encode(self, values: list[T]) -> list[bytes]:
        data = encode_values(values)
        if len(data) > WINDOW_BYTES and len(values) > 1:
            half = len(values) // 2
            return self.encode(values[:half]) + self.encode(values[half:])
        return [data]


class _CollectCoordinator(SinkCoordinator):
    def __init__(self, context: SinkCoordinatorContext, results: "CollectResults[Any]"):
        self._context = context
        self._results = results

    def handle(self, subtask: int, attempt: int, payload: Any) -> None:
        self._results._add(payload, lambda: self._context.send_to_writer(subtask, attempt), subtask)

    def subtask_reset(self, subtask: int) -> None:
        self._results._subtask_begins_anew(subtask)

    def close(self, error: Optional[BaseException]) -> None:
        self._results._end(error)


class CollectResults(Generic[T]):
    """An iterator over the records, in the order of each subtask.

    Iterating waits for the job.  It raises the job's error after the records that came before it.
    ``close()`` gives up the rest; ``on_close`` (set by ``execute_and_collect``) then cancels the job.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._batches: deque[tuple[Optional[int], list[bytes], Callable[[], None]]] = deque()  # of a subtask
        self._current: Iterator[T] = iter(())
        self._ended = False
        self._closed = False
        self._error: Optional[BaseException] = None
        self._taken_from: set[int] = set()  # subtasks of whose records some have been taken
        self.commits: set[tuple[str, int]] = set()  # run and checkpoint of those that are here
        self.on_close: Optional[Callable[[], None]] = None

    def _add(self, pickles: list[bytes], taken: Callable[[], None], subtask: Optional[int] = None) -> None:
        """``subtask``: that may send them again; None: they come once."""
        with self._changed:
            closed = self._closed
            if not closed:
                self._batches.append((subtask, pickles, taken))
                self._changed.notify_all()
        if closed:
            taken()

    def _subtask_begins_anew(self, subtask: int) -> None:
        """All that has come from it comes again."""
        with self._changed:
            self._batches = deque(batch for batch in self._batches if batch[0] != subtask)
            if subtask in self._taken_from and self._error is None:
                self._error = ExternalError(
                    "could not go on collecting the records of a stream",
                    why="the job has restarted from its beginning, and some of them have been taken already",
                    do="enable checkpoints (env.enable_checkpointing), or read the result from a sink",
                )
                self._changed.notify_all()

    def _end(self, error: Optional[BaseException]) -> None:
        with self._changed:
            self._ended, self._error = True, self._error or error
            self._changed.notify_all()

    def fail(self, error: Optional[BaseException]) -> None:
        """The job ended before its coordinator could say so (it was refused, or lost)."""
        with self._changed:
            if not self._ended:
                self._ended, self._error = True, error
                self._changed.notify_all()

    def __iter__(self) -> "CollectResults[T]":
        return self

    def __next__(self) -> T:
        while True:
            for value in self._current:
                return value
            with self._changed:
                while not (self._batches or self._ended or self._closed or self._error):
                    self._changed.wait(_WAIT_S)
                if self._closed:
                    raise StopIteration
                if self._error is not None and not self._ended:
                    raise self._error
                if not self._batches:
                    if self._error is not None:
                        raise self._error
                    raise StopIteration
                subtask, pickles, taken = self._batches.popleft()
                if subtask is not None:
                    self._taken_from.add(subtask)
            taken()
            self._current = iter([value for data in pickles for value in pickle.loads(data)])

    def next(self) -> T:
        """PyFlink's name of ``next(iterator)``."""
        return self.__next__()

    def close(self) -> None:
        """No more records are wanted: waiting writers are freed, the job is cancelled."""
        with self._changed:
            self._closed = True
            waiting, self._batches = list(self._batches), deque()
            on_close = None if self._ended else self.on_close
            self._changed.notify_all()
        for *_, taken in waiting:
            taken()
        if on_close is not None:
            on_close()

    def __enter__(self) -> "CollectResults[T]":
        return self

    def __exit__(self, *exc_info: Any) -> None:
        self.close()
