"""What a JobMaster knows of its job, and what its chapters call of each other.

The JobMaster is written in chapters: how an attempt gets into its slots (``job_deployment``), what happens after a
failure and when the job is cancelled (``job_failures``), another parallelism (``job_rescaling``), and the end
of tasks and of the job (``job_end``).  ``job_master`` brings events to them, and says what always holds.
"""

from __future__ import annotations

import abc
import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Collection, Iterable, Optional

from flinkish.common.job_status import JobStatus
from flinkish.errors import FlinkishError
from flinkish.graph.execution_graph import (
    ExecutionState,
    ExecutionVertex,
    create_execution_graph,
    slots_needed,
)
from flinkish.graph.job_graph import JobGraph
from flinkish.jobmanager.cancellation import Cancellation
from flinkish.jobmanager.checkpoint_coordinator import CheckpointCoordinator
from flinkish.jobmanager.coordinator_gateway import CoordinatorGateways
from flinkish.jobmanager.events import ExecutionChanged, JobStatusChanged, Story
from flinkish.jobmanager.failover_regions import FailoverRegions, Subtask
from flinkish.jobmanager.job_description import JobDescription
from flinkish.jobmanager.recovery import FOR_EVER_MS, Recovery
from flinkish.jobmanager.rescaling import Rescaling
from flinkish.jobmanager.watermark_alignment import WatermarkAligner
from flinkish.messages.checkpoints import NotifyEndOfData
from flinkish.messages.control import OperatorEvent
from flinkish.messages.deployment import ExecutionAttemptID, SlotAddress

if TYPE_CHECKING:
    import random

RESCALE_SNAPSHOT = -1  # the request id of the checkpoint that a rescaling takes


def parallelism_of(job_graph: JobGraph) -> list[int]:
    return [vertex.parallelism for vertex in job_graph.vertices]


class Closing(enum.Enum):
    """What runs off the loop after the last task, before the job ends or restarts."""

    PUBLISHING = "PUBLISHING"  # complete checkpoints
    COMMITTING = "COMMITTING"
    ABORTING = "ABORTING"


@dataclass
class JobState(abc.ABC):
    """``rng``: for the restart strategy's jitter."""

    job: JobDescription
    rng: "Optional[random.Random]" = None
    attempt: int = field(init=False)
    status: JobStatus = JobStatus.CREATED
    rescaling: Optional[Rescaling] = None
    held: dict[str, SlotAddress] = field(default_factory=dict)  # slots that the job has
    requested: int = 0  # slots asked for
    dying: set[str] = field(default_factory=set)  # slots that have said that they end
    slots: tuple[SlotAddress, ...] = ()  # of this attempt
    deploying: tuple[str, ...] = ()  # slots with tasks of this attempt
    deployed: set[str] = field(default_factory=set)  # of these
    started: bool = False
    regions_restarted: bool = False  # while others ran on
    coordinators_attempt: int = field(init=False)  # with which they were started
    all_run: bool = False  # every task is RUNNING or has FINISHED
    ended_early: list[NotifyEndOfData] = field(default_factory=list)  # said before all tasks ran
    closing: Optional[Closing] = None
    closing_warn_ms: int = FOR_EVER_MS  # when it is said that committers take long
    closing_deadline_ms: int = FOR_EVER_MS  # when they are not waited for any more
    committing: str = ""  # the sink whose committer runs
    executions: dict[tuple[str, int], ExecutionVertex] = field(default_factory=dict)
    held_events: dict[tuple[str, int], list[OperatorEvent]] = field(default_factory=dict)
    gateways: CoordinatorGateways = field(default_factory=CoordinatorGateways)
    status_times_ms: dict[str, int] = field(default_factory=dict)
    story: Story = field(default_factory=Story)
    checkpoints: CheckpointCoordinator = field(init=False)
    recovery: Recovery = field(init=False)
    cancellation: Cancellation = field(init=False)
    aligner: WatermarkAligner = field(init=False)

    def __post_init__(self) -> None:
        self.attempt = self.coordinators_attempt = self.job.first_attempt
        self.cancellation = Cancellation(self.job.cancellation_interval_ms, self.job.cancellation_timeout_ms)
        self.recovery = Recovery(self.job.restart_strategy, self.job.recovery_timeout_ms, self.rng)
        self.aligner = WatermarkAligner(self.job.alignments)
        self.job_graph = self.job.job_graph  # as it is now, after rescaling
        self.checkpoints = self.job.checkpoints.create_coordinator(self.job_graph)
        self.needed = slots_needed(self.job_graph)
        self._vertex_of = dict(self.job.operators)
        self._place([f"slot {number}" for number in range(self.needed)], None)

    def _place(self, slots: list[str], subtasks: Optional[frozenset[Subtask]]) -> None:
        """New executions of this attempt, for these subtasks; None: for all that the job graph has."""
        graph = create_execution_graph(self.job_graph, self.attempt, slots)
        placed = {(id_.vertex_id, id_.subtask_index): vertex for id_, vertex in graph.executions().items()}
        if subtasks is None:
            self.executions = placed
            self.regions = FailoverRegions(self.job_graph)
        else:
            self.executions.update((subtask, placed[subtask]) for subtask in subtasks)
        self.task_names = frozenset(str(execution.execution) for execution in self.executions.values())

    @property
    def cause(self) -> Optional[FlinkishError]:
        return self.recovery.cause

    @property
    def ended(self) -> bool:
        return self.status in (JobStatus.FINISHED, JobStatus.FAILED, JobStatus.CANCELED)

    @property
    def needed_next(self) -> int:
        """Slots of the next attempt."""
        return self.needed if self.rescaling is None else self.rescaling.needed

    # ---- tasks ---------------------------------------------------------------------------------------

    @property
    def all_subtasks(self) -> frozenset[Subtask]:
        return frozenset(self.executions)

    def is_present(self, id_: ExecutionAttemptID) -> bool:
        """Whether it is the present execution of its subtask."""
        execution = self.executions.get((id_.vertex_id, id_.subtask_index))
        return execution is not None and execution.execution == id_

    def _at(self, id_: ExecutionAttemptID) -> ExecutionVertex:
        return self.executions[id_.vertex_id, id_.subtask_index]

    def unended(self) -> list[ExecutionVertex]:
        """Tasks that are waited for: all that have not ended, or of these the ones that restart."""
        waiting = self.recovery.next_attempt
        subtasks = self.executions if waiting is None else waiting.subtasks
        return [e for key, e in self.executions.items() if key in subtasks and not e.state.is_terminal]

    def slots_of(self, executions: Iterable[ExecutionVertex]) -> tuple[str, ...]:
        found = {execution.slot_id for execution in executions}
        return tuple(slot.slot_id for slot in self.slots if slot.slot_id in found)

    def _all_finished(self) -> bool:
        return all(execution.state is ExecutionState.FINISHED for execution in self.executions.values())

    def _to(self, execution: ExecutionVertex, state: ExecutionState) -> list:
        execution.transition(state)
        return [ExecutionChanged(self.job.job_id, execution.name_with_subtask, state.name)]

    def _all_to(self, state: ExecutionState) -> list:
        effects: list = []
        for execution in self.executions.values():
            if execution.state.can_become(state):
                effects += self._to(execution, state)
        return effects

    # ---- the job -------------------------------------------------------------------------------------

    def _move(self, status: JobStatus, now_ms: int) -> list:
        self.status = status
        self.status_times_ms[status.name] = now_ms
        error = self.cause if status is JobStatus.FAILED else None
        return [JobStatusChanged(self.job.job_id, status.name, error)]

    def _where(self) -> str:
        return f'job "{self.job.job_name}" ({self.job.job_id}), attempt {self.attempt}'

    # ---- what the chapters call of each other ---------------------------------------------------

    @abc.abstractmethod
    def _checkpoints(self, event, now_ms: int) -> list:
        """Give the CheckpointCoordinator an event; carry out what it says."""

    @abc.abstractmethod
    def _request_slots(self) -> list:
        """Ask for what the next attempt misses."""

    @abc.abstractmethod
    def _go_on(self, now_ms: int) -> list:
        """Deploy the next attempt when nothing is missing."""

    @abc.abstractmethod
    def _fail(
        self,
        error: FlinkishError,
        now_ms: int,
        subtasks: Optional[Collection[Subtask]] = None,
        task: Optional[str] = None,
        consequence: bool = False,
    ) -> list:
        """``subtasks``: that have failed; None: the job as a whole.  ``task``: name of the first of them."""

    @abc.abstractmethod
    def _give_recovery_up(self, error: FlinkishError, now_ms: int) -> list:
        """The job fails for good while it restarts."""

    @abc.abstractmethod
    def _stop_tasks(self, subtasks: frozenset[Subtask], now_ms: int) -> list:
        """They take part in no checkpoint any more, and are cancelled."""

    @abc.abstractmethod
    def _end_if_over(self, now_ms: int) -> list:
        """Go on when the tasks that are waited for have ended."""

    @abc.abstractmethod
    def _begin_with_less(self, slots: int, now_ms: int) -> list:
        """Restart with fewer slots than before."""

    @abc.abstractmethod
    def _rescaled(self) -> list:
        """The next attempt is that of the new graph."""

    @abc.abstractmethod
    def _give_rescaling_up(self, error: FlinkishError) -> list:
        """Before anything has happened to the tasks."""

    @abc.abstractmethod
    def _release_extra_slots(self, reason: str) -> list:
        """Those that no task of the job has its place in."""
