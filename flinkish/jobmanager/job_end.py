"""The end of tasks and of the job: what sinks have prepared is published or removed before.

Sinks are committed and aborted only after the last task.  When only some tasks have ended to restart, others still
write, so nothing is removed but what the CheckpointCoordinator knows to be nobody's; the rest goes at the job's
end.

The wait for committers of a job that has failed or been cancelled is bounded by ``cancellation_timeout_ms``.  Those that
publish have all the time they need: what they do cannot be taken back.  Only who cancels meanwhile says that it takes
too long; if they have not ended ``cancellation_timeout_ms`` later, the job fails.
"""

from __future__ import annotations

from typing import Optional

from flinkish.common.job_status import JobStatus
from flinkish.errors import ExternalError, FlinkishError
from flinkish.jobmanager.events import AbortSinks, CommitSinks, JobEnding, ReleaseSlots, SnapshotResult, Warn
from flinkish.jobmanager.job_state import Closing, JobState
from flinkish.jobmanager.recovery import FOR_EVER_MS
from flinkish.jobmanager.rescaling import could_not_rescale


class JobEnd(JobState):
    """See the module."""

    def _end_if_over(self, now_ms: int) -> list:
        """All tasks, or those that restart, have ended: publish or remove what the sinks have prepared, then end, or
        go on."""
        if self.closing or self.unended():
            return []
        self.cancellation.end()
        if self.status is JobStatus.RESTARTING:
            return self._attempt_over(now_ms)
        if self.status not in (JobStatus.RUNNING, JobStatus.FAILING, JobStatus.CANCELLING):
            return []
        well = self.status is JobStatus.RUNNING
        if self._publishes():
            self.closing = Closing.PUBLISHING
            if well:
                self.closing_warn_ms = self.cancellation.bound(now_ms)
            else:
                self.closing_deadline_ms = self.cancellation.bound(now_ms)
            return []
        if well and self.job.commits:
            self.closing = Closing.COMMITTING
            self.closing_warn_ms = self.cancellation.bound(now_ms)
            prepared = self.checkpoints.committables.take_prepared()
            kept = self.checkpoints.committables.kept() if self.regions_restarted else None
            return [CommitSinks(self.job.job_id, self.attempt, prepared, kept)]
        if well:
            return self._end(JobStatus.FINISHED, now_ms)
        if self.job.commits and self.slots:
            return self._abort_sinks(now_ms)
        return self._end_unwell(now_ms)

    def _attempt_over(self, now_ms: int) -> list:
        waiting = self.recovery.next_attempt
        assert waiting is not None
        if waiting.tasks_ended:
            return self._go_on(now_ms)
        waiting.tasks_ended = True
        all_restart = waiting.subtasks == self.all_subtasks  # else others still write
        if self.job.commits and self.slots and all_restart and not self._all_finished():
            return self._abort_sinks(now_ms)
        return self._go_on(now_ms)

    def _publishes(self) -> bool:
        """A committer runs, or a checkpoint is being stored that the job's good end must not give up."""
        well = self.status is JobStatus.RUNNING
        return self.checkpoints.committables.committing or (well and self.checkpoints.is_storing)

    def _abort_sinks(self, now_ms: int) -> list:
        self.closing = Closing.ABORTING
        self.closing_deadline_ms = self.cancellation.bound(now_ms)
        kept = self.checkpoints.committables.kept()
        return [AbortSinks(self.job.job_id, self.attempt, kept)]

    def _aborted(self, now_ms: int) -> list:
        self.closing, self.closing_deadline_ms = None, FOR_EVER_MS
        if self.status is JobStatus.RESTARTING:
            return self._go_on(now_ms)
        return self._end_unwell(now_ms)

    def _committed(self, error: Optional[FlinkishError], now_ms: int) -> list:
        """A job without checkpoints does not restart from here: it would publish everything again."""
        if self.closing is not Closing.COMMITTING:
            return []
        self.closing = None
        if error is None:
            return self._end(JobStatus.FINISHED, now_ms)
        self.recovery.failed(error, now_ms, self.attempt)
        return [*self._move(JobStatus.FAILING, now_ms), *self._end(JobStatus.FAILED, now_ms)]

    def _end_unwell(self, now_ms: int) -> list:
        failing = self.status is JobStatus.FAILING
        return self._end(JobStatus.FAILED if failing else JobStatus.CANCELED, now_ms)

    def _end(self, status: JobStatus, now_ms: int) -> list:
        if self.cause is not None:
            self.cause.fields.setdefault("story", self.story.lines())
        self.recovery.next_attempt = None
        self.held.clear()
        effects: list = []
        if self.rescaling is not None:
            error = could_not_rescale(self.job_graph, f"the job is {status.name}")
            effects += self.rescaling.result(error)
            self.rescaling = None
        of_checkpoints = self._checkpoints(JobEnding(status.name), now_ms)
        # Who waits for the job to stop with a savepoint finds it stopped.
        answers = [effect for effect in of_checkpoints if isinstance(effect, SnapshotResult)]
        return [
            *effects,
            *(effect for effect in of_checkpoints if not isinstance(effect, SnapshotResult)),
            *self._move(status, now_ms),
            *answers,
            ReleaseSlots(self.job.job_id, f"job {self.job.job_id} is {status.name}"),
        ]

    # ---- committers that take long -------------------------------------------------------------------

    def _tick_closing(self, late_ms: int, now_ms: int) -> list:
        """A committer is user code that waits for a service: nothing can end it but itself."""
        self.closing_warn_ms += late_ms
        self.closing_deadline_ms += late_ms
        job_id, sink = self.job.job_id, self.committing
        if now_ms >= self.closing_deadline_ms:
            waited_ms = self.job.cancellation_timeout_ms
            if self.closing is Closing.ABORTING:
                warning = f"gave up waiting for a committer that aborts job={job_id} sink={sink!r} waited_ms={waited_ms}"
                return [Warn(warning), *self._aborted(now_ms)]
            error = ExternalError(
                f'the committer of sink "{sink}" did not end',
                where=self._where(),
                why=f"the job was cancelled while it published, and it took more than {waited_ms} ms longer "
                "(task.cancellation.timeout); it still runs, in a thread of the driver",
                do="look whether the result is complete, and at the service that the sink writes to",
            )
            if self.closing is Closing.PUBLISHING:
                return self._publication_given_up(error, now_ms)
            return self._committed(error, now_ms)
        if now_ms >= self.closing_warn_ms:
            self.closing_warn_ms = FOR_EVER_MS
            return [Warn(f"a committer takes long, cancel the job to give it up job={job_id} sink={sink!r}")]
        return []

    def _publication_given_up(self, error: ExternalError, now_ms: int) -> list:
        """The checkpoint whose publication is not known to be done stays, so that it can be repeated."""
        self.closing, self.closing_deadline_ms = None, FOR_EVER_MS
        effects: list = [Warn(f"gave up waiting for a committer job={self.job.job_id} sink={self.committing!r}")]
        if self.status is JobStatus.RUNNING:
            self.recovery.failed(error, now_ms, self.attempt)
            effects += self._move(JobStatus.FAILING, now_ms)
        return effects + self._end_unwell(now_ms)
