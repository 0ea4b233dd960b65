"""A submitted job, for who submitted it: the JobHandle behind ``JobClient``."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, Mapping, Optional

from flinkish.common.accumulators import merge_accumulators
from flinkish.common.completable_future import CompletableFuture
from flinkish.common.file_system import absolute_uri, without_secrets
from flinkish.common.job_execution_result import JobExecutionResult
from flinkish.common.job_status import JobStatus
from flinkish.errors import FlinkishError, InvalidJobError, JobCancelledError
from flinkish.graph.rescale_job_graph import Parallelism
from flinkish.jobmanager.dispatcher import Dispatcher
from flinkish.jobmanager.events import CancelRequested
from flinkish.messages.checkpoints import SnapshotKind
from flinkish.storage.checkpoint_storage import CheckpointStorage, storage_at

if TYPE_CHECKING:
    from flinkish.shell.job_manager import JobManager

_WAIT_SLICE_S = 0.5  # so that Ctrl-C reaches a main thread that waits


class ManagedJob:
    """A job of a JobManager, for who submitted it.  Any thread may use it.

    ``configuration``: the job's, which says how storage is reached."""

    def __init__(self, manager: "JobManager", job_id: str, job_name: str, configuration: Mapping[str, Any]):
        self.job_id, self.job_name = job_id, job_name
        self._configuration = configuration
        self._manager = manager
        self._status = JobStatus.CREATED
        self._error: Optional[FlinkishError] = None
        self._running_s: Optional[float] = None
        self._ended_s: Optional[float] = None
        self._core_ended = threading.Event()  # its slots are given back
        self._done = threading.Event()  # in application mode: everything is torn down too
        self._waiting = 0  # threads in `wait_ended`

    @property
    def error(self) -> Optional[FlinkishError]:
        return self._error

    @property
    def net_runtime_ms(self) -> int:
        """From the first subtask that ran to the end, or till now."""
        if self._running_s is None:
            return 0
        return int(((self._ended_s or time.time()) - self._running_s) * 1000)

    def status(self) -> JobStatus:
        return self._status

    def cancel(self) -> None:
        """Ask the job to end; ``wait`` waits for it."""
        self._manager.check_process()
        self._manager._post(CancelRequested(self.job_id))

    def take_savepoint(self, directory: Optional[str] = None) -> CompletableFuture[str]:
        """A savepoint below ``directory``, None: the configured folder; the job goes on.  Its location."""
        return self._manager.take_snapshot(self.job_id, SnapshotKind.SAVEPOINT, self._location(directory))

    def take_checkpoint(self) -> CompletableFuture[str]:
        """A checkpoint out of turn.  Its location."""
        return self._manager.take_snapshot(self.job_id, SnapshotKind.CHECKPOINT, None)

    def stop(self, drain: bool, directory: Optional[str] = None) -> CompletableFuture[str]:
        """Take a savepoint, then end the job; ``drain``: event time comes to its end before."""
        kind = SnapshotKind.SAVEPOINT_TERMINATE if drain else SnapshotKind.SAVEPOINT_SUSPEND
        return self._manager.take_snapshot(self.job_id, kind, self._location(directory))

    def rescale(self, parallelism: Parallelism) -> CompletableFuture[None]:
        """Go on with another parallelism."""
        return self._manager.rescale(self.job_id, parallelism)

    def wait(self, timeout_s: Optional[float] = None) -> JobExecutionResult:
        """Wait for the end, and in application mode for the end of slots and threads too.

        Raises:
            TimeoutError: the job still runs.
            FlinkishError: why the job has failed; JobCancelledError when it was cancelled.
        """
        if not self.wait_ended(timeout_s):
            waits_for = self.describe().get("waits-for", "")
            raise TimeoutError(
                f'job "{self.job_name}" is {self._status.name} after {timeout_s} s'
                + (f" and waits for slots: {waits_for}" if waits_for else "")
            )
        if self._status is JobStatus.CANCELED:
            raise JobCancelledError(f'job "{self.job_name}" was cancelled', where=self.job_id)
        if self._error is not None:
            raise self._error
        return JobExecutionResult(
            self.job_id, self.net_runtime_ms, merge_accumulators(self.accumulators().values()), self.job_name
        )

    def wait_ended(self, timeout_s: Optional[float] = None) -> bool:
        """Like ``wait``, but raises nothing; False: the time was up."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._waiting += 1
        try:
            while not self._done.is_set():
                self._manager.check_process()
                left_s = _WAIT_SLICE_S
                if deadline_s is not None:
                    left_s = min(left_s, deadline_s - time.monotonic())
                    if left_s <= 0:
                        return False
                self._done.wait(left_s)
            return True
        finally:
            self._waiting -= 1

    @property
    def is_awaited(self) -> bool:
        """Whether some thread waits for the end right now."""
        return self._waiting > 0

    def accumulators(self) -> Mapping[str, bytes]:
        """Of each subtask the last that it has reported."""
        return self._manager._ask(lambda dispatcher: dispatcher.accumulators(self.job_id), {})

    def metrics(self) -> dict[str, Mapping[str, Any]]:
        """The last report of each task."""
        return self._manager._ask(lambda dispatcher: dispatcher.metrics(self.job_id), {})

    def explain_watermarks(self, operator: Optional[str] = None) -> Mapping[str, Any]:
        """How far event time is and what holds it back, see ``jobmanager.watermark_explanation``."""
        return self._manager.explain_watermarks(self.job_id, operator)

    def _location(self, directory: Optional[str]) -> Optional[str]:
        """Relative to the folder of the driver, in the form that the checkpoint storage gives.

        Raises:
            InvalidJobError: there is no file system for it, or it says how it is reached, which slots do not hear.
            CheckpointStorageError: a folder of a local disk that cannot be made; tasks that fail to would cost the job
                a restart.
        """
        if directory is None:
            return None
        uri = absolute_uri(directory)
        if uri.startswith(("/", "file:")):
            storage = CheckpointStorage(uri)
            storage.create_folder(storage.directory)
            return storage.directory
        if "?" in uri or "@" in uri:
            raise InvalidJobError(
                f"could not take a savepoint in {without_secrets(uri)}",
                why="its URI has a query or keys, and these do not reach the slots",
                do="name the folder alone; the job's configuration has the server and its keys (s3.endpoint, s3.access-key, "
                "s3.secret-key), or a URI with them as execution.checkpointing.savepoint-dir",
            )
        storage_at(uri, self._configuration, lazy=True)
        return uri.rstrip("/")

    def describe(self) -> dict:
        """Status, tasks and slots as plain data."""

        def find(dispatcher: Dispatcher) -> dict:
            return next(
                (job for job in dispatcher.describe()["jobs"] if job["jid"] == self.job_id), {}
            )

        return self._manager._ask(find, {})
