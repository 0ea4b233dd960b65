"""Another parallelism for a job that runs, on request or in reactive mode; see ``rescaling`` for its phases.

More slots if need be, a checkpoint, then a restart from it without a failure: the next attempt is that of the new
graph.  Slots that it does not need are given back.
"""

from __future__ import annotations

from typing import Optional

from flinkish.common.job_status import JobStatus
from flinkish.errors import FlinkishError, InvalidJobError
from flinkish.graph.execution_graph import slots_needed
from flinkish.graph.rescale_job_graph import rescale_job_graph
from flinkish.jobmanager.checkpoint_plan import checkpointed_vertices
from flinkish.jobmanager.events import (
    Inform,
    JobRescaled,
    ReleaseSlots,
    RequestSlots,
    RescaleRequested,
    RescaleResult,
    SnapshotRequested,
)
from flinkish.jobmanager.job_details import describe_waiting
from flinkish.jobmanager.job_state import RESCALE_SNAPSHOT, JobState, parallelism_of
from flinkish.jobmanager.reactive_scaling import largest_that_fits
from flinkish.jobmanager.rescaling import RescalePhase, Rescaling, could_not_rescale
from flinkish.jobmanager.restore_decision import decide_restore
from flinkish.messages.checkpoints import SnapshotKind

_TOO_LATE = "start another job with the parallelism that it should have"


class JobRescaling(JobState):
    """See the module."""

    def _rescale(self, request: RescaleRequested, now_ms: int) -> list:
        refused = self._why_not_rescaled(now_ms)
        if refused is not None:
            return [RescaleResult(request.request_id, could_not_rescale(self.job_graph, *refused))]
        try:
            job_graph = rescale_job_graph(self.job_graph, request.parallelism)
        except InvalidJobError as error:
            return [RescaleResult(request.request_id, error)]
        if parallelism_of(job_graph) == parallelism_of(self.job_graph):
            return [RescaleResult(request.request_id)]
        return self._become(Rescaling(request.request_id, job_graph), now_ms)

    def _become(self, rescaling: Rescaling, now_ms: int) -> list:
        self.rescaling = rescaling
        missing = rescaling.needed - len(self.held)
        if missing <= 0:
            return self._rescaling_goes_on(now_ms)
        self.requested = missing
        timeout_ms = self.job.slot_request_timeout_ms
        return [RequestSlots(self.job.job_id, self.job.job_name, missing, timeout_ms, growth=True)]

    def _why_not_rescaled(self, now_ms: int) -> Optional[tuple[str, str]]:
        """Why, and what to do."""
        if self.job.reactive is not None:
            return (
                "its scheduler-mode is reactive: it takes whatever slots there are",
                "add or take away slots, or run it without scheduler-mode",
            )
        return self._why_not_ready_to_rescale(now_ms)

    def _why_not_ready_to_rescale(self, now_ms: int) -> Optional[tuple[str, str]]:
        """Tasks that have finished are no reason: the checkpoint says of them that they have."""
        if self.checkpoints.configuration.batch:
            return (
                "it is a batch job, which has no checkpoint to go on from",
                "cancel it, and start it anew with the other parallelism",
            )
        if self.rescaling is not None:
            return "it is being rescaled", "ask again when that is over"
        if self.checkpoints.stopping is not None:
            return "it is being stopped with a savepoint", "start it from the savepoint with the other parallelism"
        if self.closing is not None and self._all_finished():
            return "all of its tasks have finished, only what its sinks have prepared is being published", _TOO_LATE
        if self.status is JobStatus.RUNNING and not self.all_run:
            return f"it waits for {describe_waiting(self, now_ms)}", "ask again when these run"
        if self.status is JobStatus.RESTARTING:
            return f"it restarts, and waits for {describe_waiting(self, now_ms)}", "ask again when it runs"
        if self.status is not JobStatus.RUNNING:
            return f"it is {self.status.name}", _TOO_LATE
        return None

    def _rescaling_goes_on(self, now_ms: int) -> list:
        rescaling = self.rescaling
        if rescaling is None or rescaling.phase is not RescalePhase.SLOTS or len(self.held) < rescaling.needed:
            return []
        rescaling.phase = RescalePhase.CHECKPOINT
        return self._checkpoints(SnapshotRequested(RESCALE_SNAPSHOT, SnapshotKind.CHECKPOINT), now_ms)

    def _rescale_snapshot_taken(self, now_ms: int) -> list:
        rescaling = self.rescaling
        if rescaling is None or rescaling.phase is not RescalePhase.CHECKPOINT:
            return []  # given up meanwhile
        latest = self.checkpoints.completed.latest
        assert latest is not None
        refusal = decide_restore(rescaling.job_graph, latest).refusal(ignore_unclaimed=True)
        if refusal is not None:
            return self._give_rescaling_up(refusal)
        rescaling.phase = RescalePhase.RESTARTING
        self.recovery.plan_rescaling(now_ms, self.all_subtasks)
        self.all_run = False
        return [
            *self._move(JobStatus.RESTARTING, now_ms),
            Inform(f"job is rescaled job={self.job.job_id} checkpoint={latest.checkpoint_id}"),
            *self._stop_tasks(self.all_subtasks, now_ms),
        ]

    def _rescaled(self) -> list:
        """The next attempt is that of the new graph."""
        assert self.rescaling is not None
        self.job_graph, self.needed = self.rescaling.job_graph, self.rescaling.needed
        self.checkpoints.vertices = checkpointed_vertices(self.job_graph, self.job.checkpoints.coordinated)
        return [JobRescaled(self.job.job_id, self.job_graph)]

    def _give_rescaling_up(self, error: FlinkishError) -> list:
        """Before anything has happened to the tasks: the job is as it was."""
        rescaling, self.rescaling = self.rescaling, None
        if rescaling is None:
            return []
        self.requested = 0
        return [*self._release_extra_slots("the job is not rescaled"), *rescaling.result(error)]

    # ---- reactive mode -------------------------------------------------------------------------------

    def _slots_free(self, count: int, now_ms: int) -> list:
        """In reactive mode: take what there is, when it has been there for some time."""
        reactive = self.job.reactive
        assert reactive is not None
        reactive.see(len(self.held) + count, now_ms)
        waiting = self.recovery.next_attempt
        if waiting is None:
            if not reactive.may_grow(now_ms) or self._why_not_ready_to_rescale(now_ms) is not None:
                return []
            job_graph = largest_that_fits(self.job_graph, reactive.slots)
            if job_graph is None or slots_needed(job_graph) <= self.needed:
                return []
            reactive.rescaled(now_ms)
            return self._become(Rescaling(None, job_graph), now_ms)
        misses_slots = waiting.is_ready(now_ms) and len(self.held) < self.needed_next
        if not misses_slots or self.dying or not reactive.may_begin_with_less(now_ms):
            return []
        return self._begin_with_less(reactive.slots, now_ms)

    def _begin_with_less(self, slots: int, now_ms: int) -> list:
        """Empty: the job cannot run with so few, or cannot go on from its checkpoint like that."""
        waiting, reactive = self.recovery.next_attempt, self.job.reactive
        assert waiting is not None and reactive is not None
        job_graph = largest_that_fits(self.job_graph, slots)
        if job_graph is None or slots_needed(job_graph) >= self.needed_next:
            return []
        if waiting.checkpoint is not None and decide_restore(job_graph, waiting.checkpoint).refusals:
            return []
        reactive.rescaled(now_ms)
        self.rescaling = Rescaling(None, job_graph, RescalePhase.RESTARTING)
        self.requested = 0
        withdrawn = ReleaseSlots(self.job.job_id, "the job goes on with fewer slots", ())
        return [withdrawn, *self._request_slots(), *self._go_on(now_ms)]
