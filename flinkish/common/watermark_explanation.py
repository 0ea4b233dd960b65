"""How far event time is in a job that runs, and what holds it back: `JobClient.explain_watermarks`."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any, Mapping, Optional

from flinkish.common.constants import MAX_LONG_VALUE, MIN_LONG_VALUE

__all__ = ["WatermarkExplanation"]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class WatermarkExplanation:
    """``str(...)`` is for people, ``data`` for programs.

    ``data``: ``watermark`` in ms since the epoch or None, ``held-by``: what holds it back, the furthest behind
    first, each with ``kind``, ``task``, ``watermark``, ``since`` (ms since the epoch, true to a second or two) and,
    where there are, ``operator`` and ``split``; ``idle`` and ``paused``: subtasks of sources; ``vertices``: each
    subtask's watermark.
    """

    def __init__(self, data: Mapping[str, Any]):
        self.data = data

    @property
    def watermark(self) -> Optional[int]:
        """The least of the subtasks that were asked about; None: nothing is known of one of them yet."""
        return self.data["watermark"]

    @property
    def held_by(self) -> list[Mapping[str, Any]]:
        return self.data["held-by"]

    def __str__(self) -> str:
        data = self.data
        asked = f'job "{data["name"]}"' if data["operator"] is None else f'operator "{data["operator"]}"'
        lines = [f"event time of {asked}: {_point(data['watermark'])}"]
        if data["state"] != "RUNNING":
            lines.append(f"  the job is {data['state']}")
        lines += [f"  held back by {_holder(holder, data['now'])}" for holder in data["held-by"]]
        if not data["held-by"] and data["watermark"] != MAX_LONG_VALUE:
            lines.append("  nothing holds it back: all that could is idle or has ended")
        lines += [f"  idle, so not waited for: {name}" for name in data["idle"]]
        lines += [f"  paused, so that others catch up: {name}" for name in data["paused"]]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"WatermarkExplanation(watermark={self.watermark}, held_by={len(self.held_by)})"


def _holder(holder: Mapping[str, Any], now_ms: int) -> str:
    kind, task = holder["kind"], holder["task"]
    if kind == "TASK":
        state = "has not reported yet" if holder["state"] == "RUNNING" else f"is {holder['state']}"
        return f"{task}: it {state}"
    since = f"{_point(holder['watermark'])}, for {_duration(now_ms - holder['since'])}"
    if kind == "SPLIT":
        return f'split "{holder["split"]}" of {task}: {since}'
    if kind == "GENERATOR":
        return f'the watermark generator "{holder["operator"]}" of {task}: {since}'
    if kind == "RECORDS":
        return (
            f"{task}: {since}; {holder['sender']} is at {_point(holder['sent'])}, "
            "records in between are not processed yet"
        )
    if not holder.get("assigned", 1):
        return f"{task}: it has no split yet, for {_duration(now_ms - holder['since'])}"
    return f"{task}: {since}"


def _point(watermark: Optional[int]) -> str:
    if watermark is None:
        return "not known yet"
    if watermark <= MIN_LONG_VALUE:
        return "no watermark yet"
    if watermark >= MAX_LONG_VALUE:
        return "at its end"
    try:
        moment = (_EPOCH + timedelta(milliseconds=watermark)).isoformat(timespec="milliseconds")
    except OverflowError:
        return str(watermark)
    return f"{moment.replace('+00:00', 'Z')} ({watermark})"


def _duration(ms: int) -> str:
    seconds = max(0, ms) // 1_000
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7_200 else f"{seconds // 3_600} h"
