"""What a JobMaster is told of its job: plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Mapping, Optional

from flinkish.common.watermark_strategy import WatermarkAlignment
from flinkish.graph.job_graph import JobGraph
from flinkish.jobmanager.checkpoint_coordinator import CheckpointConfiguration, CheckpointCoordinator
from flinkish.jobmanager.checkpoint_plan import checkpointed_vertices
from flinkish.jobmanager.completed_checkpoints import CheckpointRetention, CompletedCheckpoints
from flinkish.jobmanager.reactive_scaling import ReactiveScaling
from flinkish.jobmanager.restart_strategy import NoRestart, RestartStrategy
from flinkish.messages.checkpoints import JOB_MANAGER_STORAGE, CompletedCheckpoint


@dataclass(frozen=True)
class CheckpointSettings:
    """What the CheckpointCoordinator of a job begins with.

    ``coordinated``: operators whose coordinators take snapshots.  ``restored``: the checkpoint that the job begins
    with, which ``owned`` says it may discard; its id is lower than all that this job will use.  ``retained``: older ones
    that are its own too, oldest first, where it goes on with another driver's run; ``unfinished``: locations of those
    which that one has not completed; ``predecessor``: the folder of that job, where it is another.  ``claimed``: what
    the job began from, be it in another driver, is its own.
    ``next_checkpoint_id``: above all that the job may have used."""

    configuration: CheckpointConfiguration = CheckpointConfiguration(JOB_MANAGER_STORAGE)
    coordinated: frozenset[str] = frozenset()
    run_id: str = ""
    retained_max: int = 1
    retention: CheckpointRetention = CheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS
    restored: Optional[CompletedCheckpoint] = None
    owned: bool = False
    flinkish_version: str = ""
    retained: tuple[CompletedCheckpoint, ...] = ()
    next_checkpoint_id: int = 1
    unfinished: tuple[str, ...] = ()
    predecessor: Optional[str] = None
    claimed: bool = True

    def create_coordinator(self, job_graph: JobGraph) -> CheckpointCoordinator:
        completed = CompletedCheckpoints(
            job_graph.job_id,
            self.retained_max,
            self.retention,
            unfinished=self.unfinished,
            predecessor=self.predecessor,
            claimed=self.claimed,
        )
        for checkpoint in self.retained:
            completed.restore(checkpoint, owned=True)
        if self.restored is not None:
            completed.restore(self.restored, self.owned)
        return CheckpointCoordinator(
            job_graph.job_id,
            job_graph.job_name,
            self.run_id,
            checkpointed_vertices(job_graph, self.coordinated),
            self.configuration,
            completed,
            max(self.next_checkpoint_id, 1 if self.restored is None else self.restored.checkpoint_id + 1),
            self.flinkish_version,
        )


@dataclass(frozen=True)
class JobDescription:
    """What the JobMaster needs to know of a job.

    ``operators``: (operator id, vertex id) of those with a coordinator in the driver.
    ``commits``: a sink may have a committer.
    ``cancellation_interval_ms`` 0: never interrupt.  ``cancellation_timeout_ms`` 0: wait for ever.
    ``slot_request_timeout_ms`` None: the cluster's.  ``restart_strategy`` serves this job alone.
    ``region_failover``: only the pipelined regions of what has failed restart, see ``failover_regions``.
    ``reactive``: it takes whatever slots there are.
    ``first_attempt``: above all that another driver may have published with.
    ``alignments``: of the sources whose watermarks are aligned, by operator id."""

    job_graph: JobGraph
    operators: tuple[tuple[str, str], ...] = ()
    commits: bool = False
    cancellation_interval_ms: int = 1_000
    cancellation_timeout_ms: int = 10_000
    slot_request_timeout_ms: Optional[int] = None
    checkpoints: CheckpointSettings = CheckpointSettings()
    restart_strategy: RestartStrategy = field(default_factory=NoRestart)
    recovery_timeout_ms: int = 600_000
    region_failover: bool = False
    reactive: Optional[ReactiveScaling] = None  # serves this job alone
    first_attempt: int = 0
    alignments: Mapping[str, WatermarkAlignment] = field(default_factory=dict)

    @property
    def job_id(self) -> str:
        return self.job_graph.job_id

    @property
    def job_name(self) -> str:
        return self.job_graph.job_name
