"""JobStatus: where a job stands; Flink's states."""

from __future__ import annotations

from enum import Enum

__all__ = ["JobStatus"]


class JobStatus(Enum):
    INITIALIZING = -1  # waiting for slots
    CREATED = 0
    RUNNING = 1
    FAILING = 2
    FAILED = 3
    CANCELLING = 4
    CANCELED = 5
    FINISHED = 6
    RESTARTING = 7
    SUSPENDED = 8
    RECONCILING = 9

    def is_globally_terminal_state(self) -> bool:
        """The job is over for good."""
        return self in _TERMINAL

    def is_terminal_state(self) -> bool:
        """This JobManager does nothing more for the job; another one may (SUSPENDED)."""
        return self in _TERMINAL or self is JobStatus.SUSPENDED


_TERMINAL = frozenset({JobStatus.FAILED, JobStatus.CANCELED, JobStatus.FINISHED})
