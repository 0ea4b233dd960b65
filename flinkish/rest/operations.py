"""What takes longer than a request: it is triggered, and asked for by the id of the trigger.

Source: Flink's ``CompletedOperationCache`` and ``AsynchronousOperationInfo``.
"""

from __future__ import annotations

import secrets
import threading
import time
from dataclasses import dataclass
from typing import Any, Callable, Mapping, Optional

from flinkish.common.completable_future import CompletableFuture
from flinkish.errors import FlinkishError
from flinkish.rest.messages import HttpError, error_parts

#: Operations of a driver that have not ended.
UNDER_WAY_MAX = 32
#: How long a result is kept for who has triggered it (Flink: rest.async.store-duration).
KEPT_S = 300
KEPT_MAX = 200


@dataclass
class _Operation:
    kind: str
    job_id: str
    result: "CompletableFuture[dict[str, Any]]"
    ended_s: Optional[float] = None
    is_read: bool = False


class Operations:
    """Any thread may call its methods.  ``clock_s``: seconds that never go back."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic):
        self._clock_s = clock_s
        self._operations: dict[str, _Operation] = {}
        self._changed = threading.Condition()

    def trigger(self, kind: str, job_id: str, trigger_id: Optional[str], call: Callable[[], dict[str, Any]]) -> str:
        """Begin with ``call`` on a thread of its own.

        Args:
            trigger_id: who asks again with the same one gets the operation that is there.
        Returns:
            The id of the trigger.
        Raises:
            HttpError: too many are under way.
        """
        with self._changed:
            self._forget()
            if trigger_id is not None and trigger_id in self._operations:
                return trigger_id
            if sum(operation.ended_s is None for operation in self._operations.values()) >= UNDER_WAY_MAX:
                raise HttpError(503, f"{UNDER_WAY_MAX} operations are under way; ask again when one has ended")
            trigger_id = trigger_id or secrets.token_hex(16)
            future = CompletableFuture.run_async(call, f"flinkish REST {kind}")
            operation = self._operations[trigger_id] = _Operation(kind, job_id, future)
        future.add_done_callback(lambda _: self._ended(operation))
        return trigger_id

    def status(self, kind: str, job_id: str, trigger_id: str) -> dict[str, Any]:
        """Flink's form: ``{"status": {"id": "COMPLETED"}, "operation": {...}}``.

        Raises:
            HttpError: there is no such operation.
        """
        with self._changed:
            self._forget()
            operation = self._operations.get(trigger_id)
            if operation is None or (operation.kind, operation.job_id) != (kind, job_id):
                raise HttpError(404, f"There is no {kind} with the trigger {trigger_id} of job {job_id}.")
            if operation.ended_s is None:
                return {"status": {"id": "IN_PROGRESS"}, "operation": None}
            operation.is_read = True
            self._changed.notify_all()
        error = operation.result.exception()
        result = operation.result.result() if error is None else {"failure-cause": _failure(error)}
        return {"status": {"id": "COMPLETED"}, "operation": result}

    def wait_read(self, timeout_s: float) -> bool:
        """Whether, within that time, all have ended and everybody knows how."""
        with self._changed:
            return self._changed.wait_for(
                lambda: all(operation.is_read for operation in self._operations.values()), timeout_s
            )

    def _ended(self, operation: _Operation) -> None:
        with self._changed:
            operation.ended_s = self._clock_s()
            self._changed.notify_all()

    def _forget(self) -> None:
        ended = [(id_, one.ended_s) for id_, one in self._operations.items() if one.ended_s is not None]
        before_s = self._clock_s() - KEPT_S
        for number, (trigger_id, ended_s) in enumerate(ended):
            if ended_s < before_s or number < len(ended) - KEPT_MAX:
                del self._operations[trigger_id]


def _failure(error: BaseException) -> Mapping[str, Any]:
    """Flink's serialised throwable; what is Java's in it is null."""
    cause: dict[str, Any] = {
        "class": type(error).__name__, "stack-trace": str(error), "serialized-throwable": None
    }  # fmt: skip
    if isinstance(error, FlinkishError):
        cause["error"] = error_parts(error)
    return cause
