"""How the next attempt gets into its slots.

In steps, each for all of its slots at once: slots allocated, tasks deployed (no user code yet, channels connected),
tasks started.  So no record meets a peer that is not there.

The next attempt is all tasks, or those of regions that restart, beside tasks that run on.  It is deployed when the
restart strategy's delay is over, the tasks that it replaces have ended, what complete checkpoints publish is published,
the CheckpointCoordinator has said from which one to go on, and each lost slot has been replaced.  Living slots are used
again.  Enumerators run on beside tasks that run on; else they are started, from the same checkpoint.
"""

from __future__ import annotations

from flinkish.common.job_status import JobStatus
from flinkish.graph.execution_graph import ExecutionState
from flinkish.jobmanager.coordinator_gateway import CoordinatorGateways
from flinkish.jobmanager.events import (
    DeployToSlot,
    Inform,
    Recover,
    ReleaseSlots,
    RequestSlots,
    ResetSubtasks,
    SendToSlot,
    StartCoordinators,
)
from flinkish.jobmanager.job_state import JobState
from flinkish.jobmanager.recovery import NextAttempt
from flinkish.messages.control import StartTasks
from flinkish.messages.deployment import SlotAddress


class JobDeployment(JobState):
    """See the module."""

    def _request_slots(self) -> list:
        missing = self.needed_next - len(self.held) - self.requested
        if missing <= 0:
            return []
        self.requested += missing
        return [
            RequestSlots(
                self.job.job_id,
                self.job.job_name,
                missing,
                self.job.slot_request_timeout_ms,
                replacement=self.recovery.began_ms is not None,
            )
        ]

    def _go_on(self, now_ms: int) -> list:
        """Deploy the next attempt when nothing is missing; else ask for what can be asked for."""
        waiting = self.recovery.next_attempt
        if waiting is None or not waiting.tasks_ended or self.closing:
            return []
        if not waiting.restore_asked:
            if self.checkpoints.committables.held and now_ms < waiting.due_ms:
                return []  # publication is tried again when the delay is over
            waiting.restore_asked = True
            return self._checkpoints(Recover(waiting.subtasks == self.all_subtasks), now_ms)
        if not waiting.is_ready(now_ms) or len(self.held) < self.needed_next or self.dying:
            return []
        return self._deploy(waiting, now_ms)

    def _deploy(self, next_attempt: NextAttempt, now_ms: int) -> list:
        effects: list = []
        checkpoint, subtasks = next_attempt.checkpoint, next_attempt.subtasks
        beside = None if subtasks == self.all_subtasks else subtasks
        if self.status is JobStatus.RESTARTING:
            self.attempt += 1
            self.recovery.forgiven()
            effects += self._move(JobStatus.RUNNING, now_ms)
        self.recovery.next_attempt = None
        if self.rescaling is not None and self.job_graph is not self.rescaling.job_graph:
            effects += self._rescaled()
        self.slots = slots = self._slots_in_order()
        if len(self.held) > len(slots):
            effects += self._release_extra_slots("the job needs fewer slots")
        self._place([slot.slot_id for slot in slots], beside)
        self._all_to(ExecutionState.SCHEDULED)  # as they were, before they had a place
        places = {e.slot_id for e in self.executions.values() if e.state is ExecutionState.SCHEDULED}
        self.deploying = tuple(slot.slot_id for slot in slots if slot.slot_id in places)
        self.deployed, self.started = set(), False
        job_id, attempt = self.job.job_id, self.attempt
        if self.recovery.began_ms is not None:
            origin = "from its beginning" if checkpoint is None else f"from {checkpoint.location}"
            what = f"job={job_id} attempt={attempt} tasks={len(subtasks)} of={len(self.executions)}"
            effects.append(Inform(f"job goes on {origin} {what}"))
        if beside is None:
            self.held_events, self.ended_early = {}, []
            self.gateways = CoordinatorGateways()
            self.coordinators_attempt = attempt
            effects.append(StartCoordinators(job_id, attempt, checkpoint))
        else:
            self.held_events = {key: held for key, held in self.held_events.items() if key not in beside}
            self.ended_early = [early for early in self.ended_early if self.is_present(early.execution)]
            self.regions_restarted = True
            effects.append(ResetSubtasks(job_id, attempt, beside, checkpoint))
        return [
            *effects,
            *self._all_to(ExecutionState.DEPLOYING),
            *(
                DeployToSlot(job_id, attempt, index, slots, beside)
                for index, slot in enumerate(slots)
                if slot.slot_id in places
            ),
        ]

    def _slots_in_order(self) -> tuple[SlotAddress, ...]:
        """Each subtask where it was, if that slot is still held: its files may be there."""
        places = [slot.slot_id if slot.slot_id in self.held else "" for slot in self.slots[: self.needed]]
        others = [slot_id for slot_id in self.held if slot_id not in places]
        placed = [slot_id or others.pop(0) for slot_id in places]
        return tuple(self.held[slot_id] for slot_id in (*placed, *others)[: self.needed])

    def _tasks_deployed(self, slot_id: str) -> list:
        if self.status is not JobStatus.RUNNING or self.started:
            return []
        self.deployed.add(slot_id)
        if len(self.deployed) < len(self.deploying):
            return []
        self.started = True
        job_id = self.job.job_id
        return [
            *self._all_to(ExecutionState.INITIALIZING),
            *(
                SendToSlot(job_id, slot_id, StartTasks(job_id, self.attempt))
                for slot_id in self.deploying
            ),
        ]

    def _release_extra_slots(self, reason: str) -> list:
        """Those that no task of the job has its place in, and the request for more."""
        used = {slot.slot_id for slot in self.slots}
        extra = tuple(slot_id for slot_id in self.held if slot_id not in used)
        for slot_id in extra:
            del self.held[slot_id]
        return [ReleaseSlots(self.job.job_id, reason, extra)]
