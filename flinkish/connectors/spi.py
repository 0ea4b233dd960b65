"""Write your own source or sink: the interfaces that every connector of flinkish uses.

The words are Flink's: sources follow FLIP-27 (a *split* is a piece of input with a position, an
*enumerator* in the JobManager hands splits out, a *reader* in each slot reads them), sinks follow
Sink V2 (a *writer* in each slot, an optional *committer* in the JobManager that publishes what the
writers prepared).

Where code runs: ``Source`` and ``Sink`` objects are made in the driver, pickled (cloudpickle) and
sent to the slots, so they hold plain options, no open files.  ``create_reader`` and
``create_writer`` run in the slot; ``create_enumerator`` and ``create_committer`` in the driver.

Beside these interfaces: ``connectors.split_assignment`` has the usual enumerators and a reader that
reads its splits in turn; ``flinkish.testing.spi_suites`` has the tests that every source and sink must
pass, and ``flinkish.testing.spi_fakes`` runs one in a test's process.

Source: Flink's ``org.apache.flink.api.connector.source`` and ``...sink2`` packages.
"""

from __future__ import annotations

import abc
import enum
from dataclasses import dataclass
from typing import Any, Callable, Generic, Iterable, Optional, Sequence, TypeVar

T = TypeVar("T")
SplitT = TypeVar("SplitT", bound="SourceSplit")


class Boundedness(enum.Enum):
    BOUNDED = "BOUNDED"
    CONTINUOUS_UNBOUNDED = "CONTINUOUS_UNBOUNDED"


class InputStatus(enum.Enum):
    """What ``SourceReader.poll_next`` reports."""

    MORE_AVAILABLE = "MORE_AVAILABLE"  # call again at once
    NOTHING_AVAILABLE = "NOTHING_AVAILABLE"  # call again when there is something to read
    END_OF_INPUT = "END_OF_INPUT"  # every split is finished and no more will come


class SourceSplit(abc.ABC):
    """A piece of the input and how far it has been read.  Must pickle."""

    @abc.abstractmethod
    def split_id(self) -> str:
        """A name that stays the same for the life of the split."""


@dataclass(frozen=True)
class ReaderInfo:
    """A reader that has registered with its enumerator."""

    subtask_id: int
    host: str


class SubtaskContext(abc.ABC):
    """What a slot tells readers and writers alike about the subtask that they belong to."""

    @abc.abstractmethod
    def index_of_subtask(self) -> int: ...

    @abc.abstractmethod
    def current_parallelism(self) -> int: ...

    @abc.abstractmethod
    def configuration(self) -> Any: ...

    @abc.abstractmethod
    def metric_group(self) -> Any:
        """Of the operator."""

    @abc.abstractmethod
    def accumulators(self) -> dict[str, Any]:
        """Of the subtask, by name: ``flinkish.common.accumulators.Accumulator`` objects; put in your own."""


# ---- source -------------------------------------------------------------------------------------


class SplitEnumeratorContext(abc.ABC, Generic[SplitT]):
    """What the JobManager offers an enumerator.  Call it only from the enumerator's own methods
    and from ``call_async`` handlers, which run on the same thread."""

    @abc.abstractmethod
    def current_parallelism(self) -> int: ...

    @abc.abstractmethod
    def registered_readers(self) -> dict[int, ReaderInfo]: ...

    @abc.abstractmethod
    def assign_split(self, split: SplitT, subtask_id: int) -> None:
        """Give ``split`` to the reader of ``subtask_id``, which must be registered."""

    @abc.abstractmethod
    def signal_no_more_splits(self, subtask_id: int) -> None:
        """The reader may end once it has read what it has."""

    @abc.abstractmethod
    def send_event_to_source_reader(self, subtask_id: int, event: Any) -> None: ...

    @abc.abstractmethod
    def call_async(
        self,
        call: Callable[[], Any],
        handler: Callable[[Any, Optional[BaseException]], None],
        period_ms: Optional[int] = None,
    ) -> None:
        """Run ``call`` on a worker thread, then ``handler(result, error)`` on the enumerator's
        thread; every ``period_ms`` when given.  For everything that waits for a service."""


class SplitEnumerator(abc.ABC, Generic[SplitT]):
    """Finds splits and hands them out; one per source, in the JobManager, on one thread."""

    def start(self) -> None:
        """Called once, before any reader registers."""

    @abc.abstractmethod
    def handle_split_request(self, subtask_id: int, host: Optional[str]) -> None:
        """A reader asks for one more split."""

    def add_reader(self, subtask_id: int) -> None:
        """A reader has registered; called again for it after a restart."""

    def add_splits_back(self, splits: Sequence[SplitT], subtask_id: int) -> None:
        """Splits that a failed reader has got since the checkpoint that it goes on from come back, when it restarts
        and others do not.  It is not registered until its next ``add_reader``: an enumerator that remembers who
        has asked looks at ``registered_readers`` first."""

    def handle_source_event(self, subtask_id: int, event: Any) -> None:
        """An event that the reader sent by ``SourceReaderContext.send_source_event``."""

    def snapshot_state(self, checkpoint_id: int) -> Any:
        """The enumerator's state, picklable.  Given to ``Source.restore_enumerator``."""
        return None

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None: ...

    def close(self) -> None: ...


class WatermarkOutput(abc.ABC):
    """Where watermarks go when a source or generator makes its own."""

    @abc.abstractmethod
    def emit_watermark(self, timestamp_ms: int) -> None: ...

    @abc.abstractmethod
    def mark_idle(self) -> None: ...

    @abc.abstractmethod
    def mark_active(self) -> None: ...


class SourceOutput(WatermarkOutput, Generic[T]):
    """Takes records of one split (or of the whole reader)."""

    @abc.abstractmethod
    def collect(self, value: T, timestamp_ms: Optional[int] = None) -> None: ...

    @abc.abstractmethod
    def collect_batch(
        self, values: list[T], timestamps_ms: Optional[list[Optional[int]]] = None
    ) -> None:
        """Many records at once.  The lists are handed over: do not touch them afterwards."""

    @abc.abstractmethod
    def collect_columns(self, columns: Any, timestamps_ms: Any = None) -> None:
        """A ``pyarrow.RecordBatch`` and optionally its event times: a numpy or Arrow int64 array, ms.

        Only for sources with ``gives_columns``."""


class ReaderOutput(SourceOutput[T]):
    """Takes all records of a reader.  ``room`` says how many more it wants in this call."""

    @property
    @abc.abstractmethod
    def room(self) -> int:
        """Records that may be collected before ``poll_next`` must return, >= 0.  One more batch
        than that is kept and counted as overdraft; it is never refused."""

    @abc.abstractmethod
    def create_output_for_split(self, split_id: str) -> SourceOutput[T]:
        """An output with a watermark of its own; the reader's is the minimum over its splits.
        Calling it again with the same id returns the same output."""

    @abc.abstractmethod
    def release_output_for_split(self, split_id: str) -> None:
        """The split is finished: it no longer holds the watermark back."""


class SourceReaderContext(SubtaskContext):
    """What a slot offers a reader."""

    @abc.abstractmethod
    def host(self) -> str: ...

    @abc.abstractmethod
    def send_split_request(self) -> None:
        """Ask the enumerator for a split."""

    @abc.abstractmethod
    def send_source_event(self, event: Any) -> None:
        """Send a picklable event to the enumerator."""

    @abc.abstractmethod
    def wakeup(self) -> None:
        """Have ``poll_next`` called soon.  The one method that any thread may call."""


class SourceReader(abc.ABC, Generic[T, SplitT]):
    """Reads splits; one per subtask, on the slot's mailbox thread, which it must never block."""

    #: How long to wait after NOTHING_AVAILABLE when there is no ``fileno`` and no ``wakeup``, ms.
    poll_interval_ms: Optional[int] = None

    def start(self) -> None:
        """Called once, after restored splits were added.  Ask for splits here if you want them."""

    @abc.abstractmethod
    def poll_next(self, output: ReaderOutput[T]) -> InputStatus:
        """Hand some records to ``output`` and return; stop when ``output.room`` is used up.

        Called again and again while the subtask may emit; never while a snapshot is taken.  After
        NOTHING_AVAILABLE it is surely called when ``fileno`` is readable, ``poll_interval_ms`` has passed,
        ``wakeup`` was called or something came from the enumerator, and may be called at other times."""

    def fileno(self) -> Optional[int]:
        """A descriptor that becomes readable when there is more, after NOTHING_AVAILABLE."""
        return None

    def add_splits(self, splits: Sequence[SplitT]) -> None:
        """Splits assigned by the enumerator, or restored."""

    def notify_no_more_splits(self) -> None:
        """No split will come any more."""

    def handle_source_event(self, event: Any) -> None: ...

    def pause_or_resume_splits(self, splits_to_pause: Sequence[str], splits_to_resume: Sequence[str]) -> None:
        """Give no records of the splits with the first ids until they are named among the second.

        Called between two polls, of a reader that has several splits with outputs of their own, where watermarks are
        aligned (``WatermarkStrategy.with_watermark_alignment``).  A paused split keeps its place in snapshots.  A reader
        that does not write this method is aligned as a whole, or not at all, see
        ``pipeline.watermark-alignment.allow-unaligned-source-splits``."""
        raise NotImplementedError(f"{type(self).__name__} cannot pause single splits")

    def snapshot_state(self, checkpoint_id: int) -> list[SplitT]:
        """The splits with their positions: where a restored reader goes on.  Called between two polls, when
        all that was collected has been processed."""
        return []

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None: ...

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None: ...

    def close(self) -> None: ...


class Source(abc.ABC, Generic[T, SplitT]):
    """The description of a source, as the user writes it down.  Must pickle."""

    #: True when readers call ``collect_columns``.
    gives_columns: bool = False
    #: A fixed parallelism (a socket has one reader), or None: as the job says.
    fixed_parallelism: Optional[int] = None

    @abc.abstractmethod
    def boundedness(self) -> Boundedness: ...

    @abc.abstractmethod
    def create_enumerator(self, context: SplitEnumeratorContext[SplitT]) -> SplitEnumerator[SplitT]: ...

    @abc.abstractmethod
    def create_reader(self, context: SourceReaderContext) -> SourceReader[T, SplitT]: ...

    def restore_enumerator(
        self, context: SplitEnumeratorContext[SplitT], state: Any
    ) -> SplitEnumerator[SplitT]:
        return self.create_enumerator(context)

    def produced_type(self) -> Any:
        """A ``TypeInformation``, or None when records are not declared."""
        return None


# ---- sink ---------------------------------------------------------------------------------------


class WriterInitContext(SubtaskContext):
    """What a slot offers a writer."""

    @abc.abstractmethod
    def attempt_number(self) -> int: ...

    @abc.abstractmethod
    def job_id(self) -> str: ...

    @abc.abstractmethod
    def operator_id(self) -> str: ...

    def restored_checkpoint_id(self) -> Optional[int]:
        """The checkpoint or savepoint that the job goes on from; None: it begins anew."""
        return None

    @abc.abstractmethod
    def send_to_coordinator(self, payload: Any) -> None:
        """Send a picklable value to the sink's coordinator in the driver (``Sink.create_coordinator``).
        For sinks whose result is read in the driver."""


class RecordError(Exception):
    """``raise RecordError(record) from error``: what ``write_batch`` raises so that the job's error names the
    one record of the batch whose turn it was."""

    def __init__(self, record: Any):
        super().__init__("a record could not be written")
        self.record = record


def each_encoded(encode: Callable[[Any], T], records: Iterable[Any]) -> list[T]:
    """``encode`` of each; what it raises names the record.  (``map`` would end at a StopIteration of the
    user's as if there were no more records.)"""
    done: list[T] = []
    append = done.append
    for record in records:
        try:
            append(encode(record))
        except BaseException as error:
            raise RecordError(record) from error
    return done


class SinkWriter(abc.ABC, Generic[T]):
    """Writes records; one per subtask, on the slot's mailbox thread, which it must not block long."""

    #: True when this writer keeps references to values after ``write`` returned.  The engine then
    #: hands it values that nobody else can change; set it to False when each is used at once.
    keeps_values: bool = True

    #: False while the writer cannot take more (a full socket, a full window): the subtask is then
    #: backpressured and the writer is asked again after its ``fileno`` is writable or soon.
    has_room: bool = True

    @abc.abstractmethod
    def write(self, value: T, timestamp_ms: Optional[int], watermark_ms: int) -> None: ...

    def write_batch(
        self, values: list[T], timestamps_ms: Optional[list[Optional[int]]], watermark_ms: int
    ) -> None:
        """Many records in order; the default calls ``write`` for each."""
        write = self.write
        if timestamps_ms is None:
            for value in values:
                write(value, None, watermark_ms)
        else:
            for value, timestamp_ms in zip(values, timestamps_ms):
                write(value, timestamp_ms, watermark_ms)

    def write_columns(self, columns: Any, timestamps_ms: Any, watermark_ms: int) -> None:
        """A ``pyarrow.RecordBatch``; only for sinks with ``takes_columns``."""
        raise TypeError(f"{type(self).__name__} takes no columns")

    def write_watermark(self, watermark_ms: int) -> None: ...

    def fileno(self) -> Optional[int]:
        """A descriptor that becomes writable when ``has_room`` may be true again."""
        return None

    def flush(self, end_of_input: bool) -> None:
        """Push out what is buffered.  Called when the subtask goes idle, before a snapshot and at
        the end of input (then it must be complete when this returns, or `flushed` must say that it is not)."""

    #: False after ``flush`` as long as what it pushes out still has to leave.  It is asked again, in turns with the
    #: other subtasks of the slot, when ``fileno()`` can be written to or some milliseconds have passed: after
    #: ``flush(False)`` of an idle subtask by another ``flush(False)``; after ``flush(True)`` by ``has_room``,
    #: which must be False until then, and ``prepare_commit`` and ``close`` come afterwards.
    flushed: bool = True

    def prepare_commit(self) -> list[Any]:
        """Committables for what was written since the last call; picklable.  Called at each
        checkpoint and at the end of input, after ``flush``."""
        return []

    def snapshot_state(self, checkpoint_id: int) -> list[Any]:
        """Picklable entries for `Sink.restore_writer`; called after ``prepare_commit``.  With another parallelism
        they are spread over the writers."""
        return []

    def handle_coordinator_event(self, payload: Any) -> None:
        """A value that the sink's coordinator sent by ``send_to_writer``."""

    def close(self) -> None:
        """Always called, also after a failure: release everything, publish nothing.

        What ``prepare_commit`` has not handed out (open files, and after a failure all that came since)
        is the writer's to remove here: nobody else knows of it.  What it has handed out must stay:
        ``Committer.commit`` publishes that, or ``Committer.abort`` removes it."""


@dataclass(frozen=True)
class CommitId:
    """Names what one checkpoint publishes through one sink, for ever: a repetition has the same, the next
    one of the same run a higher ``checkpoint_id``.  A job that a user restores by hand is a new run."""

    job_id: str
    run_id: str
    checkpoint_id: int
    operator_id: str


class Committer(abc.ABC):
    """Publishes what writers prepared; in the JobManager, off its loop.  Must be idempotent."""

    @abc.abstractmethod
    def commit(self, committables: Iterable[Any]) -> None:
        """Publish.  In a job without checkpoints it is called once, at the job's end, with what all
        subtasks have prepared, be it nothing."""

    def commit_checkpoint(self, committables: Iterable[Any], commit_id: CommitId) -> None:
        """Publish what a checkpoint has made final; in the order of checkpoints, after its metadata are
        durable.  Called again when it is not known whether the first call succeeded: after an error, and
        whenever the job goes on from that checkpoint.  By default ``commit``."""
        self.commit(committables)

    def job_finished(self) -> None:
        """The job has finished, and all is published."""

    def abort(self, committables: Iterable[Any]) -> None:
        """Tasks failed or were cancelled before commit: remove what was prepared, that is these, which
        ``SinkWriter.prepare_commit`` returned; all else the writers have removed in ``close``."""

    def remove_leftovers(self, kept: Iterable[Any]) -> None:
        """No task of the job runs now.  Remove what killed writers have left behind, and nothing that ``kept``
        (committables) needs: it is to be published yet, or a savepoint has it.  Called before all tasks restart, at a
        bad end of the job, and behind ``job_finished`` where some tasks had restarted while others ran on."""

    def close(self) -> None: ...


class SinkCoordinatorContext(abc.ABC):
    @abc.abstractmethod
    def send_to_writer(self, subtask: int, payload: Any) -> None:
        """Send a picklable value to ``SinkWriter.handle_coordinator_event``.  Any thread may call it;
        a value for a subtask that is gone is dropped."""


class SinkCoordinator(abc.ABC):
    """The driver's end of a sink; runs on the JobManager's loop and must not block it."""

    @abc.abstractmethod
    def handle(self, subtask: int, attempt: int, payload: Any) -> None:
        """A value that a writer sent by ``WriterInitContext.send_to_coordinator``, in its order."""

    def subtask_reset(self, subtask: int) -> None:
        """A new writer begins in place of the one of this subtask, from a checkpoint or from the beginning: what has
        come from that one since then comes again.  Called before anything of the new one comes; all subtasks restart,
        or some while others write on."""

    def close(self, error: Optional[BaseException]) -> None:
        """The job has ended, with ``error`` or well (None)."""


class Sink(abc.ABC, Generic[T]):
    """The description of a sink, as the user writes it down.  Must pickle."""

    #: True when writers accept ``write_columns``.
    takes_columns: bool = False
    #: A fixed parallelism, or None: as the job says.
    fixed_parallelism: Optional[int] = None

    @abc.abstractmethod
    def create_writer(self, context: WriterInitContext) -> SinkWriter[T]: ...

    def restore_writer(self, context: WriterInitContext, writer_states: list[Any]) -> SinkWriter[T]:
        """In place of ``create_writer`` where entries of ``SinkWriter.snapshot_state`` were restored."""
        return self.create_writer(context)

    def for_operator(self, job_id: str, operator_id: str) -> "Sink[T]":
        """The sink as the driver uses it in one job: ``validate`` and ``create_committer`` are called on what this
        returns, itself or a copy.  Writers find both ids in their context; they stay when another driver takes over."""
        return self

    def create_committer(self) -> Optional[Committer]:
        """Called in the driver; None: nothing to commit."""
        return None

    def create_coordinator(self, context: SinkCoordinatorContext) -> Optional[SinkCoordinator]:
        """Called in the driver, on the sink object that the user made, before the job starts; None:
        writers send nothing there."""
        return None

    def with_record_type(self, record_type: Any) -> "Sink[T]":
        """The sink for records of this declared type.  Called by ``sink_to`` where a type is declared;
        returns itself, or a copy that makes use of the type."""
        return self

    def written_folder(self) -> Optional[tuple[str, bool]]:
        """A text that names the folder or table that it writes, the same for all its spellings, and whether it replaces
        what is there; None: nothing of the kind.  Sinks of a job that would replace each other's results are refused."""
        return None

    def validate(self) -> None:
        """Called in the driver before the job starts: refuse early (a folder that is not empty)."""

    def validate_restored(self) -> None:
        """Called in place of ``validate`` where the job goes on from a checkpoint or savepoint: what it has
        written before is there, must stay, and is no reason to refuse."""
