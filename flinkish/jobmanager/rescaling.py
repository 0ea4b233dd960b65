"""Another parallelism for a job that runs: what it becomes, and how far that is.

Phases of one rescaling::

    SLOTS ──enough of them──> CHECKPOINT ──complete──> RESTARTING ──all tasks run──> over
      └──refused, or the job fails──> given up <──failed──┘             └──the job ends──> failed

Until the checkpoint is complete nothing has happened to the job, so what goes wrong before costs nothing but the
rescaling.  From then on the job goes on from that checkpoint with the new parallelism, as after a failure, also
when something fails meanwhile.

Source: Flink's ``AdaptiveScheduler`` (a rescaling is a restart from the newest checkpoint; here one is taken for it).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Optional

from flinkish.errors import FlinkishError, InvalidJobError
from flinkish.graph.execution_graph import slots_needed
from flinkish.graph.job_graph import JobGraph
from flinkish.jobmanager.events import RescaleResult


class RescalePhase(enum.Enum):
    SLOTS = "SLOTS"
    CHECKPOINT = "CHECKPOINT"
    RESTARTING = "RESTARTING"


@dataclass
class Rescaling:
    """``job_graph``: what the job becomes.  ``request_id`` None: nobody waits for it, the job has chosen it
    itself."""

    request_id: Optional[int]
    job_graph: JobGraph
    phase: RescalePhase = RescalePhase.SLOTS

    def result(self, error: Optional[FlinkishError] = None) -> list:
        """The answer to who waits."""
        return [] if self.request_id is None else [RescaleResult(self.request_id, error)]

    @property
    def needed(self) -> int:
        return slots_needed(self.job_graph)


def could_not_rescale(job_graph: JobGraph, why: str, do: str = "") -> FlinkishError:
    return InvalidJobError(
        f'could not rescale job "{job_graph.job_name}"', where=f"job {job_graph.job_id}", why=why, do=do
    )
