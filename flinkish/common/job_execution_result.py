"""JobExecutionResult: what a finished job leaves."""

from __future__ import annotations

from typing import Any, Mapping, Optional

from flinkish.common.job_id import JobID

__all__ = ["JobExecutionResult"]


class JobExecutionResult:
    """
    Args:
        job_id: 32 hex digits.
        net_runtime_ms: from the first subtask running to the last one finished.
        accumulators: results by name.
    """

    def __init__(
        self,
        job_id: str,
        net_runtime_ms: int = 0,
        accumulators: Optional[Mapping[str, Any]] = None,
        job_name: str = "",
    ):
        self._job_id = JobID(job_id)
        self.net_runtime_ms = net_runtime_ms
        self.job_name = job_name
        self._accumulators = dict(accumulators or {})

    def get_job_id(self) -> JobID:
        return self._job_id

    def is_job_execution_result(self) -> bool:
        return True

    def get_net_runtime(self) -> int:
        """Milliseconds."""
        return self.net_runtime_ms

    def get_accumulator_result(self, accumulator_name: str) -> Any:
        """None when there is no such accumulator."""
        return self._accumulators.get(accumulator_name)

    def get_all_accumulator_results(self) -> dict[str, Any]:
        return dict(self._accumulators)

    def __repr__(self) -> str:
        return f"JobExecutionResult(job_id={self._job_id}, net_runtime_ms={self.net_runtime_ms})"
