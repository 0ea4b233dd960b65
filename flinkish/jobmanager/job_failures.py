"""What happens after a failure, and when a job is cancelled.

**After a failure** the tasks of the failed regions (``failover_regions``), or all tasks, are cancelled: what they
had in flight is lost.  If the error is one that another try can mend, and the restart strategy allows it, the job is
RESTARTING; ``job_deployment`` says what it waits for then.  A replacement is asked for at once when a slot is lost.  A
recovery that takes too long fails the job, and says what it waited for.

**Tasks of other regions** run on meanwhile, and keep their attempt.  A failure that is no task's (of an enumerator, a
committer, a checkpoint) restarts all.  What fails while others restart, and what has been deployed and not started
yet, restarts with them: so there is never more than one attempt on its way.

What the attempt's cause is, and how long recovery may take, says ``recovery``.  A slot that ends although its tasks
run says why (SlotFailed) before they become CANCELED; it is killed and replaced, not used again.

**Cancelling is bounded** (``cancellation``).  User code that still runs is interrupted every
``cancellation_interval_ms``; what has not ended after ``cancellation_timeout_ms`` is killed with its slot, which
costs the other regions in it a restart; after as long again the JobMaster stops waiting, and a job that was to restart fails.

Source: Flink's ``ExecutionFailureHandler``, ``RestartPipelinedRegionFailoverStrategy``.
"""

from __future__ import annotations

import textwrap
from typing import Collection, Optional

from flinkish.common.job_status import JobStatus
from flinkish.errors import ConnectionLostError, ExternalError, FlinkishError
from flinkish.graph.execution_graph import ExecutionState, ExecutionVertex
from flinkish.jobmanager.cancellation import CancellationStep
from flinkish.jobmanager.events import (
    InterruptSlots,
    KillSlots,
    SendToSlot,
    StopCoordinators,
    TasksStopped,
    Warn,
)
from flinkish.jobmanager.failover_regions import Subtask
from flinkish.jobmanager.job_details import describe_waiting
from flinkish.jobmanager.job_state import Closing, JobState
from flinkish.jobmanager.recovery import FOR_EVER_MS
from flinkish.jobmanager.rescaling import RescalePhase, could_not_rescale
from flinkish.messages.control import CancelTasks, SlotFailed
from flinkish.messages.deployment import ExecutionAttemptID


class JobFailures(JobState):
    """See the module."""

    # ---- failures ------------------------------------------------------------------------------------

    def _fail(
        self,
        error: FlinkishError,
        now_ms: int,
        subtasks: Optional[Collection[Subtask]] = None,
        task: Optional[str] = None,
        consequence: bool = False,
    ) -> list:
        """``subtasks``: that have failed; None: the job as a whole.  ``task``: name of the first of them."""
        consequence = consequence or isinstance(error, ConnectionLostError)
        if self.status is JobStatus.RESTARTING:
            return self._fail_again(error, now_ms, subtasks, task, consequence)
        if self.status is JobStatus.FAILING:
            self.recovery.improve_cause(error, consequence, task)
            return self._end_if_over(now_ms)
        if self.status is not JobStatus.RUNNING or self.closing in (Closing.COMMITTING, Closing.ABORTING):
            return self._end_if_over(now_ms)
        if self.closing is Closing.PUBLISHING:
            self.closing = None
            self.closing_deadline_ms = self.closing_warn_ms = FOR_EVER_MS
        self.recovery.failed(error, now_ms, self.attempt, task, consequence)
        effects: list = []
        if self.rescaling is not None and self.rescaling.phase is not RescalePhase.RESTARTING:
            effects = self._give_rescaling_up(could_not_rescale(self.job_graph, f"the job failed: {error.what}"))
        if not self.recovery.may_restart(now_ms):
            return effects + self._fail_for_good(now_ms)
        restarting = self._to_restart(subtasks)
        delay_ms = self.recovery.plan_restart(now_ms, restarting)
        self.all_run = False
        return [
            *effects,
            *self._move(JobStatus.RESTARTING, now_ms),
            self._restart_warning(error, delay_ms),
            *self._stop_tasks(restarting, now_ms),
        ]

    def _to_restart(self, failed: Optional[Collection[Subtask]]) -> frozenset[Subtask]:
        """All of the failed regions, and of those that are being deployed: these have no progress to lose, and so
        there is one attempt on its way at a time."""
        if failed is None or not self.job.region_failover:
            return self.all_subtasks
        deploying = [key for key, e in self.executions.items() if e.state is ExecutionState.DEPLOYING]
        return self.regions.tasks_to_restart([*failed, *deploying])

    def _fail_again(
        self,
        error: FlinkishError,
        now_ms: int,
        subtasks: Optional[Collection[Subtask]],
        task: Optional[str],
        consequence: bool,
    ) -> list:
        """While the job restarts."""
        waiting = self.recovery.next_attempt
        assert waiting is not None
        more = self._to_restart(subtasks) - waiting.subtasks
        effects: list = []
        if not waiting.tasks_ended:  # it belongs to the failure that has stopped the tasks, or comes at the same time
            improved = self.recovery.improve_cause(error, consequence, task)
            if not error.retryable and (improved or more):
                if not improved:
                    self.recovery.failed(error, now_ms, self.attempt, task, consequence)
                return self._fail_for_good(now_ms)
            if more and not improved:
                self.recovery.another(error, now_ms, self.attempt, task)
        else:
            self.recovery.failed(error, now_ms, self.attempt, task, consequence)
            if not self.recovery.may_restart(now_ms):
                return self._fail_for_good(now_ms)
            delay_ms = self.recovery.plan_another_restart(now_ms)
            effects.append(self._restart_warning(error, delay_ms))
        if more:
            waiting.widen(more)
            effects += self._stop_tasks(more, now_ms)
        return effects + self._end_if_over(now_ms)

    def _restart_warning(self, error: FlinkishError, delay_ms: int) -> Warn:
        why = error.why
        if not why and "exception_type" in error.fields:  # user code raised
            message = " ".join(str(error.fields.get("exception_message") or "").split())
            why = textwrap.shorten(f"{error.fields['exception_type']}: {message}".removesuffix(": "), 200)
        return Warn(
            f"job restarts job={self.job.job_id} name={self.job.job_name!r} attempt={self.attempt + 1} "
            f"failure={self.recovery.failures} delay_ms={delay_ms} error={error.what!r} why={why!r}"
        )

    def _fail_for_good(self, now_ms: int) -> list:
        self.recovery.next_attempt = None
        self.recovery.end()
        return [*self._move(JobStatus.FAILING, now_ms), *self._stop_tasks(self.all_subtasks, now_ms)]

    def _refused(self, error: FlinkishError, now_ms: int) -> list:
        """There are no slots: that ends the job, whatever the restart strategy says, unless it takes what there is."""
        if self.rescaling is not None and self.rescaling.phase is RescalePhase.SLOTS:
            return self._give_rescaling_up(error)
        waiting = self.recovery.next_attempt
        if self.job.reactive is not None and waiting is not None and waiting.is_ready(now_ms):
            effects = self._begin_with_less(len(self.held) + error.fields.get("available", 0), now_ms)
            if effects:
                return effects
        if self.status is JobStatus.RESTARTING:
            return self._give_recovery_up(error, now_ms)
        if self.status is JobStatus.RUNNING and self.recovery.next_attempt is not None:
            self.recovery.failed(error, now_ms, self.attempt)
            return self._fail_for_good(now_ms)
        return self._end_if_over(now_ms)

    def _give_recovery_up(self, error: FlinkishError, now_ms: int) -> list:
        if self.cause is not None:  # it is not only being rescaled
            error.fields.setdefault("restarted_because", f"{self.cause.what}: {self.cause.why}")
            error.where = ", ".join(filter(None, (error.where, f"while it restarted because {self.cause.what}")))
        self.recovery.failed(error, now_ms, self.attempt)
        return self._fail_for_good(now_ms)

    # ---- slots ---------------------------------------------------------------------------------------

    def _slot_failed(self, slot_id: str, message: SlotFailed, now_ms: int) -> list:
        effects: list = []
        if message.lost_peer is None:
            self.dying.add(slot_id)
            if self.status is JobStatus.RESTARTING:
                effects += self._replace_dying()
        failed = [self._at(id_) for id_ in message.executions if self.is_present(id_)]
        failed = [execution for execution in failed if not execution.state.is_terminal]
        if not failed:
            return effects
        subtasks = {(e.execution.vertex_id, e.execution.subtask_index) for e in failed}
        consequence = message.lost_peer is not None
        return effects + self._fail(message.failure.error, now_ms, subtasks, consequence=consequence)

    def _slot_lost(self, slot_id: str, error: FlinkishError, now_ms: int) -> list:
        self.held.pop(slot_id, None)
        self.dying.discard(slot_id)
        lost = {
            subtask: execution
            for subtask, execution in self.executions.items()
            if not execution.state.is_terminal and execution.slot_id == slot_id
        }
        if not lost:
            if self.rescaling is not None and self.rescaling.phase is not RescalePhase.RESTARTING:
                return self._give_rescaling_up(error)
            if self.recovery.next_attempt is None:
                return []  # all that it ran has finished and handed over its output
            return self._request_slots() + self._go_on(now_ms)
        # Also those that had finished: what they did to the process may be why it has ended.
        tasks = ", ".join(
            f'"{execution.name_with_subtask}"'
            for execution in self.executions.values()
            if execution.slot_id == slot_id
        )
        error.where = ", ".join(filter(None, (error.where, f"which ran {tasks}")))
        effects: list = []
        for execution in lost.values():
            cancelling = execution.state is ExecutionState.CANCELING
            effects += self._to(execution, ExecutionState.CANCELED if cancelling else ExecutionState.FAILED)
        first = next(iter(lost.values()))
        effects += self._fail(error, now_ms, lost.keys(), first.name_with_subtask)
        if self.status is JobStatus.RESTARTING:
            effects += self._request_slots()
        return effects

    def _replace_dying(self) -> list:
        dying = tuple(sorted(self.dying & self.held.keys()))
        return [KillSlots(self.job.job_id, dying, "it has failed, and is replaced")] if dying else []

    # ---- tasks end -----------------------------------------------------------------------------------

    def _stop_tasks(self, subtasks: frozenset[Subtask], now_ms: int) -> list:
        job_id = self.job.job_id
        effects: list = []
        waiting = self.recovery.next_attempt
        if self.status is JobStatus.RESTARTING and self.slots:
            assert waiting is not None
            if waiting.subtasks == self.all_subtasks:
                effects.append(StopCoordinators(job_id))
        ids = frozenset(self.executions[subtask].execution for subtask in subtasks)
        effects += self._checkpoints(TasksStopped(ids, self.status is JobStatus.CANCELLING), now_ms)
        effects += self._cancel_executions(ids, now_ms)
        if self.status is JobStatus.RESTARTING:
            effects += self._replace_dying()
            effects += self._request_slots()
        return effects

    def _cancel(self, now_ms: int) -> list:
        if self.closing in (Closing.COMMITTING, Closing.PUBLISHING):  # what is being published is published
            self.closing_deadline_ms = min(self.closing_deadline_ms, self.cancellation.bound(now_ms))
            self.closing_warn_ms = FOR_EVER_MS  # it advises to cancel
            return []
        if self.status not in (JobStatus.RUNNING, JobStatus.RESTARTING):
            return []  # what fails goes on failing
        if self.status is JobStatus.RESTARTING:
            self.recovery.forgiven()
        self.recovery.next_attempt = None
        self.recovery.end()
        return [*self._move(JobStatus.CANCELLING, now_ms), *self._stop_tasks(self.all_subtasks, now_ms)]

    def _cancel_executions(self, ids: frozenset[ExecutionAttemptID], now_ms: int) -> list:
        effects: list = []
        if not self.slots:  # nobody has heard of these tasks yet
            effects += self._all_to(ExecutionState.CANCELED)
        cancelled: list[ExecutionVertex] = []
        for execution in self.executions.values():
            if execution.execution in ids and execution.state.can_become(ExecutionState.CANCELING):
                effects += self._to(execution, ExecutionState.CANCELING)
                cancelled.append(execution)
        for slot_id in self.slots_of(cancelled):
            of_slot = tuple(execution.execution for execution in cancelled if execution.slot_id == slot_id)
            effects.append(SendToSlot(self.job.job_id, slot_id, CancelTasks(self.job.job_id, of_slot)))
        if cancelled:
            self.cancellation.begin(now_ms)
        return effects + self._end_if_over(now_ms)

    # ---- time ----------------------------------------------------------------------------------------

    def _tick_cancelling(self, late_ms: int, now_ms: int) -> list:
        due = self.cancellation.tick(late_ms, now_ms)
        if due is None:
            return []
        awaited = self.unended()
        slots = self.slots_of(awaited)
        if due is CancellationStep.INTERRUPT:
            return [InterruptSlots(self.job.job_id, slots)]
        if due is CancellationStep.KILL:
            reason = (
                f"job {self.job.job_id}: not cancelled within "
                f"{self.job.cancellation_timeout_ms} ms (task.cancellation.timeout)"
            )
            return [
                Warn(f"killing slots that do not cancel job={self.job.job_id} slots={','.join(slots)}"),
                KillSlots(self.job.job_id, slots, reason),
            ]
        effects: list = [Warn(f"gave up waiting for slots job={self.job.job_id} slots={','.join(slots)}")]
        if self.status is JobStatus.RESTARTING:  # two attempts must not run at once
            effects += self._fail_for_good(now_ms)
        for execution in awaited:
            effects += self._to(execution, ExecutionState.CANCELED)
        return effects + self._end_if_over(now_ms)

    def _tick_recovery(self, late_ms: int, now_ms: int) -> list:
        """A recovery that takes long says what it waits for, and one that takes too long ends the job."""
        self.recovery.forgive(late_ms)
        if self.recovery.is_too_late(now_ms):
            self.recovery.end()
            error = ExternalError(
                f'job "{self.job.job_name}" did not recover',
                where=self._where(),
                why=f"it took more than {self.job.recovery_timeout_ms} ms (flinkish.recovery.timeout); "
                f"it waits for {describe_waiting(self, now_ms)}",
                do="look at the log of the executors and at the checkpoint storage, or raise that setting",
            )
            if self.status is JobStatus.RESTARTING:
                return self._give_recovery_up(error, now_ms)
            self.recovery.failed(error, now_ms, self.attempt)
            return self._fail_for_good(now_ms)
        if not self.recovery.take_progress(now_ms):
            return []
        since_ms = now_ms - (self.recovery.began_ms or self.status_times_ms[JobStatus.CREATED.name])
        return [Warn(f"job recovers job={self.job.job_id} since_ms={since_ms} waits_for={describe_waiting(self, now_ms)!r}")]
