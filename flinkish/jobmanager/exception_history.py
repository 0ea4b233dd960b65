"""The root causes of a job's failures, newest last, for people and the REST API.

Source: Flink's ``ExceptionHistoryEntry``, ``RootExceptionHistoryEntry`` (``/jobs/:jobid/exceptions``).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Optional

from flinkish.errors import FlinkishError

HISTORY_SIZE = 16  # the default of Flink's web.exception-history-size


@dataclass(frozen=True)
class RootException:
    """``task``: name of the subtask that failed first; None: it was no task."""

    timestamp_ms: int
    attempt: int
    error: FlinkishError
    task: Optional[str] = None


@dataclass
class ExceptionHistory:
    entries: deque[RootException] = field(default_factory=lambda: deque(maxlen=HISTORY_SIZE))
    count: int = 0  # of failures, with those that are forgotten

    def add(self, entry: RootException) -> None:
        self.entries.append(entry)
        self.count += 1

    def add_beside(self, entry: RootException) -> None:
        """It came while the last one was dealt with, which stays the last."""
        last = self.entries.pop()
        self.entries += (entry, last)
        self.count += 1

    def replace_last(self, error: FlinkishError, task: Optional[str]) -> None:
        """What was taken for the cause followed from this."""
        last = self.entries.pop()
        self.entries.append(RootException(last.timestamp_ms, last.attempt, error, task))

    def describe(self) -> list[dict]:
        """Plain data, oldest first."""
        return [
            {
                "timestamp": entry.timestamp_ms,
                "attempt": entry.attempt,
                "taskName": entry.task,
                "exceptionName": type(entry.error).__name__,
                "stacktrace": str(entry.error),
            }
            for entry in self.entries
        ]
