"""When a job in reactive mode takes another number of slots.

It looks at how many there are for it, its own and free ones.  A number counts only when it has been the same for
some time, so that slots which come one after another cost one rescaling, and not sooner than ``cooldown_ms``
after the last::

    cooldown ──over──> idle ──another number──> stabilizing ──the same for so long──> rescale

Source: Flink's ``DefaultStateTransitionManager`` (its phases), and ``ReactiveScaleController`` of the reactive mode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

from flinkish.graph.execution_graph import slots_needed
from flinkish.graph.job_graph import JobGraph
from flinkish.graph.rescale_job_graph import rescale_job_graph


@dataclass
class ReactiveScaling:
    """``stabilization_ms``: of a job that runs.  ``submission_ms``: of one that starts or restarts with too few
    slots."""

    stabilization_ms: int = 60_000
    submission_ms: int = 10_000
    cooldown_ms: int = 30_000
    slots: int = -1  # seen last
    changed_ms: int = 0
    rescaled_ms: Optional[int] = None

    def see(self, slots: int, now_ms: int) -> None:
        """So many are there for the job."""
        if slots != self.slots:
            self.slots, self.changed_ms = slots, now_ms

    def rescaled(self, now_ms: int) -> None:
        """The job runs with another parallelism from now on."""
        self.rescaled_ms = now_ms

    def may_grow(self, now_ms: int) -> bool:
        cool = self.rescaled_ms is None or now_ms >= self.rescaled_ms + self.cooldown_ms
        return cool and now_ms >= self.changed_ms + self.stabilization_ms

    def may_begin_with_less(self, now_ms: int) -> bool:
        return self.slots > 0 and now_ms >= self.changed_ms + self.submission_ms


def largest_that_fits(job_graph: JobGraph, slots: int) -> Optional[JobGraph]:
    """The job with the largest parallelism that so many slots carry; None: they are too few for any."""
    open_ = [vertex.max_parallelism for vertex in job_graph.vertices if not vertex.parallelism_set]
    for parallelism in range(min([slots, *open_]), 0, -1):
        rescaled = rescale_job_graph(job_graph, parallelism)
        if slots_needed(rescaled) <= slots:
            return rescaled
    return None
