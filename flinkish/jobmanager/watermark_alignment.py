"""Watermark alignment: how far ahead of the others each source of a group may read.

Readers report the watermark of their source at the group's update interval.  From the least of a group and its drift
comes the watermark that none of its readers may pass; a reader that has passed it stops reading until it may go on::

    reader --SourceReportedWatermark--> JobMaster --SourceWatermarkAlignment, on a tick--> all readers of the group

Of each execution the last report counts.  In the least of a group are

- the executions that run: one that has ended or that a restart has replaced counts no more;
- those that have had a watermark: one without any holds nobody up (Flink);
- not the idle ones and those at the end of their input, which report the last watermark there is.

Sources of a group may have drifts and intervals of their own.  What has not changed is not sent again, so an execution
is told its limit anew after each restart.  Invariant, see ``check``: only sources that take part are known, and only
executions of attempts that the job has had.

Source: Flink's ``SourceCoordinator`` (FLIP-182); what finished subtasks report is FLINK-35157.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Collection, Mapping, Optional

from flinkish.common.watermark_strategy import WatermarkAlignment
from flinkish.messages.deployment import ExecutionAttemptID
from flinkish.messages.elements import MAX_WATERMARK_MS

#: (operator id, execution, the watermark that it may not pass)
Announcement = tuple[str, ExecutionAttemptID, int]


@dataclass
class WatermarkAligner:
    """``sources``: by operator id, those that take part.

    >>> slow, fast = ExecutionAttemptID("job", 0, "slow", 0), ExecutionAttemptID("job", 0, "fast", 0)
    >>> aligner = WatermarkAligner({name: WatermarkAlignment("g", 100, 1_000) for name in ("slow", "fast")})
    >>> aligner.reported("slow", slow, 500), aligner.reported("fast", fast, 9_000)
    (None, None)
    >>> for operator_id, _, watermark in aligner.announce({"slow": [slow], "fast": [fast]}, now_ms=1_000):
    ...     print(operator_id, watermark)
    fast 600
    slow 600
    """

    sources: Mapping[str, WatermarkAlignment] = field(default_factory=dict)
    #: operator id -> execution -> its last report
    watermarks: dict[str, dict[ExecutionAttemptID, int]] = field(default_factory=dict)
    _told: dict[tuple[str, ExecutionAttemptID], int] = field(default_factory=dict)
    _due_ms: dict[str, int] = field(default_factory=dict)

    def reported(self, operator_id: str, execution: ExecutionAttemptID, watermark_ms: int) -> None:
        """A reader has got so far; MAX_WATERMARK_MS: it is idle, or at its end."""
        if operator_id in self.sources:
            self.watermarks.setdefault(operator_id, {})[execution] = watermark_ms

    def announce(self, running: Mapping[str, Collection[ExecutionAttemptID]], now_ms: int) -> list[Announcement]:
        """What the readers are told now.

        Args:
            running: by operator id, the present executions that run.
        """
        due = [operator_id for operator_id in sorted(self.sources) if self._due_ms.get(operator_id, 0) <= now_ms]
        if not due:
            return []
        self._forget_all_but(running)
        announcements: list[Announcement] = []
        for operator_id in due:
            alignment = self.sources[operator_id]
            self._due_ms[operator_id] = now_ms + alignment.update_interval_ms
            least = self.group_watermark(alignment.group)
            if least is None:
                continue  # nobody has got anywhere
            limit = min(MAX_WATERMARK_MS, least + alignment.max_drift_ms)
            for execution in sorted(running.get(operator_id, ())):
                if self._told.get((operator_id, execution)) != limit:
                    self._told[operator_id, execution] = limit
                    announcements.append((operator_id, execution, limit))
        return announcements

    def group_watermark(self, group: str) -> Optional[int]:
        """The least of a group; None: nothing has been reported."""
        found = [
            watermark
            for operator_id, watermarks in self.watermarks.items()
            if self.sources[operator_id].group == group
            for watermark in watermarks.values()
        ]
        return min(found, default=None)

    def _forget_all_but(self, running: Mapping[str, Collection[ExecutionAttemptID]]) -> None:
        self.watermarks = {
            operator_id: {one: mark for one, mark in marks.items() if one in running.get(operator_id, ())}
            for operator_id, marks in self.watermarks.items()
        }
        self._told = {key: limit for key, limit in self._told.items() if key[1] in running.get(key[0], ())}

    def check(self, attempt: int) -> None:
        """Assert what holds between any two steps; ``attempt`` is the job's newest."""
        assert self.watermarks.keys() <= self.sources.keys()
        assert all(one.attempt <= attempt for marks in self.watermarks.values() for one in marks)
        assert all(operator_id in self.sources and one.attempt <= attempt for operator_id, one in self._told)
