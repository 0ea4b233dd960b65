"""Carries out what a CheckpointCoordinator orders of the checkpoint storage, on a thread of its own.

Orders are carried out in their order, so nothing that is deleted comes back by a write before it.  What cannot be deleted
is told in the log: it costs space, not the job.

With high availability a checkpoint is complete when it also stands in the job's record, and nothing is done while it is not
known that this driver leads.  Whether a checkpoint stands there must become known: until then the thread waits.

A *sweep* deletes files that nobody has told of.  It lists them first.  If no task of a newer attempt has begun by then,
and the job's record says that no other driver has led it, all were written by tasks that are over (lost ones may still
write more): then only complete checkpoints refer to any, and those lie in the job's folder.  Nobody will ever refer to
the others, for no two tasks give a file the same name.  So the reading and deleting may go on beside the next tasks.
"""

from __future__ import annotations

import functools
import logging
import re
import threading
import time
from typing import Any, Callable, Mapping, Optional

from flinkish.common import options
from flinkish.errors import CheckpointStorageError, FlinkishError, InternalError, LeadershipLostError
from flinkish.jobmanager.completed_checkpoints import shared_files_of
from flinkish.jobmanager.events import (
    DiscardCheckpoint,
    DiscardFiles,
    MetadataStored,
    StoreJobResult,
    StoreMetadata,
    SweepSharedFiles,
)
from flinkish.messages.checkpoints import JOB_MANAGER_STORAGE, CompletedCheckpoint, FileHandle
from flinkish.shell.coordinator_worker import CoordinatorWorker
from flinkish.shell.high_availability import LedJob
from flinkish.storage.checkpoint_storage import CheckpointStorage, storage_at

log = logging.getLogger(__name__)

Order = StoreMetadata | StoreJobResult | DiscardCheckpoint | DiscardFiles | SweepSharedFiles

_RECORD_RETRY_S = 0.5
#: The id of a job is its last part; others may be folders of the user.
_JOB_FOLDER = re.compile(r".*/[0-9a-f]{32}")


class CheckpointFiles:
    """See the module.

    Args:
        directory: of the job's checkpoints, or JOB_MANAGER_STORAGE.
        say: gets MetadataStored; on any thread.
        led: where other drivers stand by; ``retained_max``: see CompletedCheckpoints.
    """

    def __init__(
        self,
        job_id: str,
        job_name: str,
        directory: str,
        configuration: Mapping[str, Any],
        say: Callable[[MetadataStored], None],
        led: Optional[LedJob] = None,
        retained_max: int = 1,
    ):
        self._job_id, self._job_name = job_id, job_name
        self._directory, self._configuration = directory, configuration
        self._say = say
        self._led, self._retained_max = led, retained_max
        self.attempt = 0  # the newest that takes checkpoints
        self._leads = True
        self._worker: Optional[CoordinatorWorker] = None

    def start(self) -> None:
        """Now: no thread can be started while the interpreter exits."""
        self._worker = CoordinatorWorker(f"flinkish checkpoints {self._job_name}", self._failed)

    def carry_out(self, order: Order) -> None:
        if isinstance(order, StoreMetadata) and order.checkpoint.location.startswith(JOB_MANAGER_STORAGE):
            self._say(MetadataStored(order.checkpoint.checkpoint_id))  # the core holds it
        else:
            self.after(self._carry_out, order, self.attempt)

    def after(self, call: Callable[..., None], *args: Any) -> None:
        """Run it behind all orders so far."""
        assert self._worker is not None, "it has not started"
        self._worker.submit(call, *args)

    def close(self) -> Optional[threading.Thread]:
        """End behind the last order; the thread that does so, None: it has never started."""
        if self._worker is None:
            return None
        self._worker.close(_nothing)
        return self._worker.thread

    # ---- on the thread --------------------------------------------------------------------------

    def _carry_out(self, order: Order, attempt: int) -> None:
        if self._led is not None:
            try:
                self._led.leadership.require()
            except LeadershipLostError as lost:
                self._leads = False
                if isinstance(order, StoreMetadata):
                    self._say(MetadataStored(order.checkpoint.checkpoint_id, lost))
        if not self._leads:
            return  # what is there belongs to another driver
        match order:
            case StoreMetadata(checkpoint):
                self._say(MetadataStored(checkpoint.checkpoint_id, self._store(checkpoint)))
            case StoreJobResult(_, status):
                assert self._led is not None, "nobody stands by"
                self._leads = self._led.store_result(status)
            case DiscardCheckpoint(_, location, unless_complete):
                self._attempt("discard a checkpoint", location, lambda: self._discard(location, unless_complete))
            case DiscardFiles(_, uris):
                for uri in uris:
                    self._attempt("delete a file of a checkpoint", uri, functools.partial(self._delete, uri))
                for folder in sorted(set(map(_parent, uris))):
                    self._attempt("delete an empty folder", folder, functools.partial(self._tidy, folder))
            case SweepSharedFiles(_, job_folder):
                self._attempt("look for files that are left over", job_folder, lambda: self._sweep(job_folder, attempt))

    def _store(self, checkpoint: CompletedCheckpoint) -> Optional[FlinkishError]:
        try:
            storage_at(_parent(checkpoint.location), self._configuration).store_metadata(checkpoint)
            self._record(checkpoint)
        except FlinkishError as error:
            self._leads = not isinstance(error, LeadershipLostError)
            return error
        except Exception as error:  # whatever a file system raises is that checkpoint's failure, not the job's
            return CheckpointStorageError(
                "could not store the metadata of a checkpoint",
                where=checkpoint.location,
                why=f"{type(error).__name__}: {error}",
            )
        return None

    def _record(self, checkpoint: CompletedCheckpoint) -> None:
        """Raises LeadershipLostError: it is not there, and will not be."""
        while self._led is not None:
            try:
                self._led.add_checkpoint(checkpoint, self._retained_max, self.attempt)
                return
            except CheckpointStorageError as error:
                if not error.retryable:
                    raise
                log.warning(
                    "the record of a job cannot be written, trying again job=%s checkpoint=%d error=%s",
                    self._job_id, checkpoint.checkpoint_id, error.why,
                )
                time.sleep(_RECORD_RETRY_S)
                self._led.leadership.require()

    def _discard(self, location: str, unless_complete: bool) -> None:
        if unless_complete and storage_at(_parent(location), self._configuration).is_complete(location):
            log.warning("a checkpoint of another run is complete by now and stays location=%s", location)
            return
        if self._led is not None:
            self._led.remove_checkpoint(location)
        job_folder = f"{self._directory.rstrip('/')}/{self._job_id}"
        if location == job_folder:
            self._configured().discard_job(self._job_id)
        else:
            storage_at(_parent(location), self._configuration).discard(location)
            self._tidy(location)

    def _tidy(self, folder: str) -> None:
        """The folders of a run before this one go with the last of what was in them; those of this job when it ends."""
        of_job = _parent(folder)
        if _JOB_FOLDER.fullmatch(of_job) and not of_job.endswith(f"/{self._job_id}"):
            storage_at(of_job, self._configuration).delete_if_empty(folder)

    def _delete(self, uri: str) -> None:
        storage_at(_parent(uri), self._configuration).delete_file(FileHandle(uri, 0))

    def _sweep(self, job_folder: str, attempt: int) -> None:
        """``attempt``: the newest when this was ordered."""
        job_id = job_folder.rpartition("/")[2]
        storage = self._configured()
        found = storage.shared_files(job_id)
        if job_id == self._job_id and self.attempt != attempt:
            return  # its tasks may have stored some of them; there will be another sweep
        if self._led is not None and self._led.is_taken_over():
            return  # those of another leader may have
        complete = storage.complete_checkpoints(job_id)
        used = {uri for checkpoint in complete for uri in shared_files_of(checkpoint)}
        unused = [file for file in found if file.uri not in used]
        if unused:
            storage.forget(unused, storage.shared_location(job_id))
            log.info("deleted files that no checkpoint refers to job=%s folder=%s files=%d",
                     self._job_id, job_folder, len(unused))  # fmt: skip

    def _configured(self) -> CheckpointStorage:
        """Of the folder as it is configured: the paths of a job's folders are those of its own storage."""
        configured = options.read(self._configuration, options.CHECKPOINT_DIRECTORY)
        return CheckpointStorage(configured or self._directory, self._configuration)

    def _attempt(self, what: str, where: str, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            log.warning("could not %s job=%s where=%s error=%s", what, self._job_id, where, error)

    def _failed(self, error: BaseException) -> None:
        """Around an order: a bug, after which nothing is stored any more."""
        log.error("the thread of the checkpoint storage failed job=%s", self._job_id, exc_info=error)
        self._say(MetadataStored(-1, InternalError("the thread of the checkpoint storage failed")))


def _parent(location: str) -> str:
    return location.rstrip("/").rpartition("/")[0]


def _nothing() -> None:
    """What is left to do when the thread ends."""
