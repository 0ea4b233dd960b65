"""What snapshots of the form *base and changes since* have in common, whichever backend makes them.

A base is stored between checkpoints, in the job's folder of shared files.  `BaseSchedule` says when the next one is
begun, a `Materialiser` runs the work beside the records, and `UploadedFiles` keeps the books of files that a task has
stored there: those that no complete checkpoint can refer to are the task's to delete.

Who uses it: `rocksdb` (files of the database), `changelog` (a file with all entries, from a forked child).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Callable, Iterable, Mapping, Optional, Protocol

from flinkish.common import options as config
from flinkish.errors import CheckpointStorageError
from flinkish.messages.checkpoints import FileHandle

log = logging.getLogger(__name__)

#: After a base that could not be stored.
RETRY_MS = 10_000

Done = Callable[[Any, Optional[BaseException]], None]


class Materialiser(Protocol):
    """``shared_location``: of the job's checkpoints.  All is called on the slot's thread; ``done(result, error)`` is
    called there too, later, once."""

    shared_location: str

    def run(self, work: Callable[[Any, str], Any], done: Done) -> None:
        """Call ``work(storage, shared_location)`` on a thread."""

    def write(self, write: Callable[[BinaryIO], Any], done: Done) -> None:
        """Store what ``write(file)`` writes in a child that is forked now; the result is its FileHandle."""

    def delete(self, files: Iterable[FileHandle]) -> None:
        """Delete them some time; what cannot be deleted is told in the log."""


class BaseSchedule:
    """One base at a time, none for a while after one that failed; with a changelog one after an interval at the latest.

    When more have failed one after the other than ``state.changelog.max-failures-allowed``, the task fails with the last
    error, at its next batch or snapshot: else changes pile up for ever, and nobody hears of it.

    >>> schedule = BaseSchedule({}, lambda: 0, "counts")
    >>> schedule.is_due(outgrown=True), schedule.begin(), schedule.is_due(outgrown=True)
    (True, None, False)

    Source of the limit: Flink's ``PeriodicMaterializationManager``.
    """

    def __init__(self, configuration: Mapping[str, Any], now_ms: Callable[[], int], operator: str):
        self._now_ms, self._operator = now_ms, operator
        self._failures, self._failures_max = 0, config.read(configuration, config.CHANGELOG_MAX_FAILURES)
        self._failure: Optional[BaseException] = None
        self._begun_ms = now_ms()  # the last one
        self._retry_ms: Optional[int] = None
        self._under_way = False
        self.closed = False  # the backend sets it at the end of its task: its folder goes, and nobody needs a base
        self._interval_ms = -1
        if config.read(configuration, config.CHANGELOG_ENABLED):
            self._interval_ms = config.read(configuration, config.CHANGELOG_MATERIALIZE_INTERVAL)

    @property
    def under_way(self) -> bool:
        return self._under_way

    def is_due(self, outgrown: bool, changed: bool = True) -> bool:
        """``outgrown``: there are too many changes since the last base.  ``changed``: there are any.

        Raises:
            CheckpointStorageError: see `require`."""
        self.require()
        if self._under_way:
            return False
        if not outgrown:
            if not changed or self._interval_ms < 0 or self._now_ms() - self._begun_ms < self._interval_ms:
                return False
        return self._retry_ms is None or self._now_ms() >= self._retry_ms

    def begin(self) -> None:
        assert not self._under_way
        self._under_way, self._retry_ms, self._begun_ms = True, None, self._now_ms()

    def end(self, error: Optional[BaseException] = None) -> None:
        """The one under way is over; ``error``: it is not stored."""
        error = None if self.closed else error
        self._under_way, self._failure = False, error
        self._failures = 0 if error is None else self._failures + 1
        if error is not None:
            self._retry_ms = self._now_ms() + RETRY_MS
            log.warning(
                "could not store a base of keyed state operator=%s failure=%d error=%s",
                self._operator, self._failures, error,
            )

    def require(self) -> None:
        """Raises: CheckpointStorageError: too many have failed one after the other."""
        if self._failure is None or self._failures <= self._failures_max:
            return
        raise CheckpointStorageError(
            "could not store a base of keyed state",
            where=f'operator "{self._operator}"',
            why=f"{self._failures} failed in a row, {config.CHANGELOG_MAX_FAILURES.key} is {self._failures_max}; "
            f"the last: {self._failure}",
            do="look at the checkpoint storage and at the slot's disk, or raise that setting",
        ) from self._failure


@dataclass
class _Uploaded:
    file: FileHandle
    referred: set[int] = field(default_factory=set)  # by snapshots whose end is not known
    released: bool = False


class UploadedFiles:
    """Files that a task has stored for several checkpoints, and that are still its own.

    A file is *the task's* until a checkpoint that refers to it is complete; then the JobManager counts it
    (`jobmanager.completed_checkpoints`), and it is forgotten here.  It is *released* when no later snapshot will refer
    to it.  A released file whose snapshots were all given up is nobody's, and `take_unused` has it once.

    Files that the task was restored from were never its own.

    >>> files, base = UploadedFiles(), FileHandle("/shared/base", 10)
    >>> files.add(base)
    >>> files.refer(7, [base])
    >>> files.release([base])
    >>> files.take_unused(), files.given_up(7), files.take_unused()
    ([], None, [FileHandle(uri='/shared/base', size=10)])
    """

    def __init__(self) -> None:
        self._files: dict[str, _Uploaded] = {}
        self._open: set[int] = set()  # snapshots whose end is not known

    def add(self, file: FileHandle, checkpoint_id: Optional[int] = None) -> None:
        """It is stored; ``checkpoint_id``: of a snapshot that refers to it already."""
        known = self._files[file.uri] = _Uploaded(file)
        if checkpoint_id in self._open:
            known.referred.add(checkpoint_id)  # type: ignore[arg-type]

    def refer(self, checkpoint_id: int, files: Iterable[FileHandle]) -> None:
        """A snapshot is taken that refers to them."""
        self._open.add(checkpoint_id)
        for file in files:
            known = self._files.get(file.uri)
            if known is not None:
                known.referred.add(checkpoint_id)

    def release(self, files: Iterable[FileHandle]) -> None:
        for file in files:
            known = self._files.get(file.uri)
            if known is not None:
                known.released = True

    def complete(self, checkpoint_id: int) -> None:
        """The checkpoint is; older ones that were not cannot be any more."""
        for uri, known in list(self._files.items()):
            if checkpoint_id in known.referred:
                del self._files[uri]
        for older in [known for known in self._open if known <= checkpoint_id]:
            self.given_up(older)

    def given_up(self, checkpoint_id: int) -> None:
        self._open.discard(checkpoint_id)
        for known in self._files.values():
            known.referred.discard(checkpoint_id)

    def take_unused(self) -> list[FileHandle]:
        unused = [known.file for known in self._files.values() if known.released and not known.referred]
        for file in unused:
            del self._files[file.uri]
        return unused
