"""What a driver must know to go on with a job that another one has begun: the job's record.

One small document per job, replaced by compare and set (``conditional_store``):

    epoch              of the leader that writes: the fencing token
    run_id             of the job's run, which a takeover keeps
    checkpoints        locations of the complete checkpoints that are retained, oldest first, and of one before them
                       that may be gone (Flink's CompletedCheckpointStore); a savepoint that was to stop the job is last
    next_checkpoint_id every id below may have been used (its CheckpointIDCounter)
    attempt            of the newest of them, so that names which contain it are not used again
    savepoints         locations of those in which there is something that may have to be published, the newest
    parallelism        by vertex id, since the job was rescaled: a takeover goes on with it
    status             how the job has ended (its JobResultStore); such a job is never run again

**Fencing.** ``take_over`` writes the new leader's epoch before it reads where to go on.  From then on every
write of an older leader is refused; what it had written before is what the new one reads.  So a checkpoint is
complete exactly when it stands here: after its ``_metadata``, and before anything of it is published.

**Ids.** A leader takes over with the ids from ``next_checkpoint_id`` on and reserves so many more with each write
that the next leader's begin above all that this one may have used, however many of its checkpoints failed.

All methods block.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Mapping, Optional

from flinkish.errors import CheckpointStorageError, CorruptSnapshotError, LeadershipLostError
from flinkish.storage.conditional_store import ConditionalCell

FORMAT = "flinkish-job-record"
VERSION = 1
#: Ids that a leader may use between two complete checkpoints.
RESERVED_IDS = 100
SAVEPOINTS_MAX = 20


@dataclass(frozen=True)
class JobRecord:
    """See the module.  ``status``: name of a JobStatus, None while the job has not ended."""

    job_id: str
    job_name: str
    run_id: str
    epoch: int = 0
    checkpoints: tuple[str, ...] = ()
    next_checkpoint_id: int = 1
    attempt: int = -1
    status: Optional[str] = None
    ended_ms: int = 0
    savepoints: tuple[str, ...] = ()
    parallelism: Mapping[str, int] = field(default_factory=dict)

    @property
    def latest(self) -> Optional[str]:
        """Location that a takeover goes on from."""
        return self.checkpoints[-1] if self.checkpoints else None


class HighAvailabilityStore:
    """The record of one job, in ``cell``; ``where``: the cell for people."""

    def __init__(self, cell: ConditionalCell, where: str):
        self._cell, self._where = cell, where

    def read(self) -> Optional[JobRecord]:
        """None: nobody has led the job yet.

        Raises:
            CheckpointStorageError: the store cannot be read.
        """
        return self._read()[0]

    def take_over(self, epoch: int, beginning: JobRecord) -> JobRecord:
        """Fence all older leaders; what there is to go on from.  ``beginning``: of a job that nobody has led.

        Raises:
            LeadershipLostError: a newer leader has been here.
            CheckpointStorageError: the store fails.
        """

        def taken(record: Optional[JobRecord]) -> JobRecord:
            record = record or beginning
            return replace(record, epoch=epoch, next_checkpoint_id=record.next_checkpoint_id + RESERVED_IDS)

        fenced = self._update(epoch, taken)
        return replace(fenced, next_checkpoint_id=fenced.next_checkpoint_id - RESERVED_IDS)

    def add_checkpoint(
        self, epoch: int, location: str, checkpoint_id: int, is_savepoint: bool, retained_max: int, attempt: int
    ) -> None:
        """``location`` has a whole `_metadata`: from here on the checkpoint is complete.

        Raises: as ``take_over``.
        """

        def added(record: JobRecord) -> JobRecord:
            known = [one for one in record.checkpoints if one != location]
            if not is_savepoint:
                # One more than is retained: if this one is taken back, there is still where to go on from.
                known = [one for one in known if not _is_savepoint(one)][-retained_max:]
            return replace(
                record,
                checkpoints=(*known, location),
                next_checkpoint_id=max(record.next_checkpoint_id, checkpoint_id + 1 + RESERVED_IDS),
                attempt=max(record.attempt, attempt),
            )

        self._change(epoch, added)

    def add_savepoint(self, epoch: int, location: str) -> None:
        """It is complete, and what sinks have prepared is needed by who starts from it.  Raises: as ``take_over``."""
        self._change(
            epoch, lambda record: replace(record, savepoints=(*record.savepoints, location)[-SAVEPOINTS_MAX:])
        )

    def store_parallelism(self, epoch: int, parallelism: Mapping[str, int]) -> None:
        """The job is rescaled.  Raises: as ``take_over``."""
        self._change(epoch, lambda record: replace(record, parallelism=dict(parallelism)))

    def remove_checkpoint(self, epoch: int, location: str) -> None:
        """Before the newest one is deleted: it was given up while it was being stored.  Raises: as ``take_over``."""

        def removed(record: JobRecord) -> JobRecord:
            return replace(record, checkpoints=tuple(one for one in record.checkpoints if one != location))

        record = self.read()
        if record is not None and record.latest == location:
            self._change(epoch, removed)

    def store_result(self, epoch: int, status: str, ended_ms: int) -> None:
        """The job has ended for good; its checkpoints may go now.  Raises: as ``take_over``."""

        self._change(epoch, lambda record: replace(record, status=status, ended_ms=ended_ms))

    def _change(self, epoch: int, change: Callable[[JobRecord], JobRecord]) -> None:
        def changed(record: Optional[JobRecord]) -> JobRecord:
            assert record is not None, "the leader has taken it over"
            return change(record)

        self._update(epoch, changed)

    def _update(self, epoch: int, change: Callable[[Optional[JobRecord]], JobRecord]) -> JobRecord:
        while True:
            record, version = self._read()
            if record is not None and record.epoch > epoch:
                raise LeadershipLostError(
                    f'lost leadership of job "{record.job_name}"',
                    where=self._where,
                    why=f"another driver leads it, epoch {record.epoch}; this one had epoch {epoch}",
                    do="look at the other driver: it goes on from the newest checkpoint",
                )
            changed = change(record)
            data = json.dumps({"format": FORMAT, "version": VERSION, **vars(changed)}).encode()
            # Refused: somebody was first, perhaps oneself by a write that was thought to have failed.
            if self._attempt("write", lambda: self._cell.replace(data, version)) is not None:
                return changed

    def _read(self) -> tuple[Optional[JobRecord], int]:
        data, version = self._attempt("read", self._cell.read)
        return (None if data is None else self._decode(data)), version

    def _decode(self, data: bytes) -> JobRecord:
        try:
            document = json.loads(data)
            if document.pop("format") != FORMAT or document.pop("version") > VERSION:
                raise ValueError(f"it is no {FORMAT} of version {VERSION} or older")
            for name in ("checkpoints", "savepoints"):
                document[name] = tuple(document.get(name, ()))
            return JobRecord(**document)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CorruptSnapshotError(
                "could not read the record of a job",
                where=self._where,
                why=f"{type(error).__name__}: {error}",
                do="use another high-availability.cluster-id, and execution.state-recovery.path to go on",
            ) from error

    def _attempt(self, verb: str, action: Callable[[], Any]) -> Any:
        try:
            return action()
        except Exception as error:  # of whatever store it is
            raise CheckpointStorageError(
                f"could not {verb} the record of a job",
                where=self._where,
                why=f"{type(error).__name__}: {error}",
                do="check that storage: without it no checkpoint can be completed",
            ) from error


def _is_savepoint(location: str) -> bool:
    return location.rstrip("/").rpartition("/")[2].startswith("savepoint-")
