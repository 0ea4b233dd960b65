"""JobID: the name of one job, 32 hex digits."""

from __future__ import annotations

import uuid
from typing import Optional

__all__ = ["JobID"]


class JobID:
    def __init__(self, job_id: Optional[str] = None):
        self._hex = uuid.uuid4().hex if job_id is None else str(job_id)

    def to_hex_string(self) -> str:
        return self._hex

    def __str__(self) -> str:
        return self._hex

    def __repr__(self) -> str:
        return f"JobID({self._hex!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JobID) and self._hex == other._hex

    def __hash__(self) -> int:
        return hash(self._hex)
