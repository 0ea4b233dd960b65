"""JobClient: watch, wait for and cancel a job that was submitted."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Protocol, Union

from flinkish.common.accumulators import merge_accumulators
from flinkish.common.completable_future import CompletableFuture
from flinkish.common.job_execution_result import JobExecutionResult
from flinkish.common.job_id import JobID
from flinkish.common.job_status import JobStatus
from flinkish.common.time import TimeLike, to_milliseconds
from flinkish.common.watermark_explanation import WatermarkExplanation
from flinkish.errors import FlinkishError

__all__ = ["JobClient", "JobHandle"]


class JobHandle(Protocol):
    """What a JobManager offers for one job.  Any thread may call these."""

    @property
    def job_id(self) -> str: ...

    def status(self) -> JobStatus: ...

    def cancel(self) -> None:
        """Ask for the end of the job and return at once; a job that is over stays as it is."""

    def wait(self, timeout_s: Optional[float] = None) -> JobExecutionResult:
        """Wait until the job is over.

        Raises:
            TimeoutError: it still runs after ``timeout_s``.
            JobCancelledError: it was cancelled.
            FlinkishError: why it failed."""

    def take_savepoint(self, directory: Optional[str] = None) -> CompletableFuture[str]:
        """A savepoint below ``directory``; its location."""

    def take_checkpoint(self) -> CompletableFuture[str]:
        """A checkpoint out of turn; its location."""

    def stop(self, drain: bool, directory: Optional[str] = None) -> CompletableFuture[str]:
        """Take a savepoint, then end the job; its location."""

    def rescale(self, parallelism: Union[int, Mapping[str, int]]) -> CompletableFuture[None]:
        """Go on with another parallelism; done when all tasks run again."""

    def metrics(self) -> dict:
        """The newest figures: subtask to metric name to value."""

    def accumulators(self) -> Mapping[str, bytes]:
        """Of each subtask the last that it has reported: a pickle of name -> Accumulator."""

    def explain_watermarks(self, operator: Optional[str] = None) -> Mapping[str, Any]:
        """What ``WatermarkExplanation.data`` is."""


class JobClient:
    """PyFlink's methods return futures; `wait`, `status` and `get_metrics` are the direct way."""

    def __init__(self, handle: JobHandle):
        self._handle = handle
        self._result: Optional[CompletableFuture[JobExecutionResult]] = None

    @property
    def job_id(self) -> str:
        return self._handle.job_id

    @property
    def status(self) -> JobStatus:
        return self._handle.status()

    def wait(self, timeout: Optional[TimeLike] = None) -> JobExecutionResult:
        """Wait until the job is over and return its result.

        Args:
            timeout: longest wait; None waits for ever.
        Raises:
            TimeoutError: the job still runs.
            JobCancelledError: it was cancelled.
            UserFunctionError: user code raised.
            FlinkishError: any other failure.
        """
        return self._handle.wait(None if timeout is None else to_milliseconds(timeout) / 1_000)

    def get_metrics(self) -> dict:
        return self._handle.metrics()

    def explain_watermarks(self, operator: Optional[str] = None) -> WatermarkExplanation:
        """How far event time is, and which source, split, generator or input holds it back, and since when::

            print(client.explain_watermarks())

        Args:
            operator: name or uid of the one whose input is asked about; None: those at the end of the job.
        Raises:
            InvalidJobError: there is no such operator, or the job is over.
        """
        return WatermarkExplanation(self._handle.explain_watermarks(operator))

    def get_job_id(self) -> JobID:
        return JobID(self._handle.job_id)

    def get_job_status(self) -> CompletableFuture[JobStatus]:
        return CompletableFuture.completed(self._handle.status())

    def cancel(self) -> CompletableFuture[None]:
        """Cancel the job; the future is done when it is over, however it ended."""
        self._handle.cancel()
        return CompletableFuture.run_async(self._wait_over, "flinkish-cancel")

    def _wait_over(self) -> None:
        try:
            self._handle.wait(None)
        except FlinkishError:  # how it ended is told by those who wait for the result
            if not self._handle.status().is_terminal_state():
                raise

    def get_job_execution_result(self) -> CompletableFuture[JobExecutionResult]:
        if self._result is None:
            self._result = CompletableFuture.run_async(lambda: self._handle.wait(None), "flinkish-result")
        return self._result

    def get_accumulators(self) -> CompletableFuture[dict[str, Any]]:
        """Results of the accumulators by name: what subtasks that run have reported in the last second, and what those
        that are over have left."""
        return CompletableFuture.run_async(
            lambda: merge_accumulators(self._handle.accumulators().values()), "flinkish-accumulators"
        )

    def trigger_savepoint(self, savepoint_directory: Optional[str] = None) -> CompletableFuture[str]:
        """Take a savepoint while the job goes on; the future's result is its location.

        Args:
            savepoint_directory: folder or URL below which it is made; None: ``execution.checkpointing.savepoint-dir``.
        """
        return self._handle.take_savepoint(savepoint_directory)

    def trigger_checkpoint(self) -> CompletableFuture[str]:
        """Take a checkpoint now; the future's result is its location."""
        return self._handle.take_checkpoint()

    def stop_with_savepoint(
        self, advance_to_end_of_event_time: bool, savepoint_directory: Optional[str] = None
    ) -> CompletableFuture[str]:
        """Take a savepoint and end the job; the future's result is its location, when the job is FINISHED and all that it
        publishes with the savepoint is published.  A savepoint that is complete although the job does not finish, since a
        task has failed meanwhile, is named by the future's error.

        Args:
            advance_to_end_of_event_time: drain: all windows and timers fire before, so that the job cannot
                sensibly go on from the savepoint; False: suspend, nothing is flushed.
            savepoint_directory: as for `trigger_savepoint`.
        """
        return self._handle.stop(advance_to_end_of_event_time, savepoint_directory)

    def rescale(self, parallelism: Union[int, Mapping[str, int]]) -> CompletableFuture[None]:
        """Have the job go on with another parallelism: it takes a checkpoint and restarts from it, so no record
        is lost and none counted twice.  The future is done when all tasks run again; if it fails before they were
        stopped (too few slots, the checkpoint did not complete) the job has gone on as it was.

        Args:
            parallelism: for all operators whose parallelism the program does not set itself; or, by uid or name
            of an operator,
                for the task that it is in.  At most the max parallelism.
        Raises:
            InvalidJobError: (from the future) the job cannot run like that, or does not run.
            NotEnoughSlotsError: (from the future) the cluster has not so many slots.
        """
        return self._handle.rescale(parallelism)

    def __repr__(self) -> str:
        return f"JobClient(job_id={self.job_id!r}, status={self.status.name})"
