"""JobListener: told when a program's jobs start and end."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from flinkish.common.job_client import JobClient
    from flinkish.common.job_execution_result import JobExecutionResult

__all__ = ["JobListener"]


class JobListener(abc.ABC):
    """Registered by ``env.register_job_listener``.

    Called in the driver, on the thread that calls ``execute()`` or ``execute_async()``; what it raises comes out of
    that call.  (Flink has it for Java; the names are its names.)
    """

    @abc.abstractmethod
    def on_job_submitted(self, job_client: "Optional[JobClient]", error: Optional[BaseException]) -> None:
        """A job has been submitted (``error`` is None), or could not be (``job_client`` is None)."""

    @abc.abstractmethod
    def on_job_executed(
        self, job_execution_result: "Optional[JobExecutionResult]", error: Optional[BaseException]
    ) -> None:
        """A job that ``execute()`` waited for has ended: well, or by ``error``.  ``execute_async()`` waits for none,
        so its jobs are not told."""
